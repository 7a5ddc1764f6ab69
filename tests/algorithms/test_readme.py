"""The tables of pfl_core/algorithms/README.md agree with the registry."""

import inspect
import re
from pathlib import Path

import pytest

import pfl_core.algorithms
from pfl_core.algorithm import methods

FOLDER = Path(pfl_core.algorithms.__file__).parent
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
TITLES = {"FedSelect": "fedselect", "FedPeWS": "fedpews", "pFedGate": "pfedgate", "Star-PFL": "star_pfl"}
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| [")]


def name_and_file(cell: str) -> tuple[str, str]:
    """("ditto", "ditto.py") from "[`ditto`](ditto.py)"."""
    return re.fullmatch(r"\[`(\w+)`\]\((\S+)\)", cell).groups()


def test_every_registered_method_is_listed_exactly_once():
    names = [name_and_file(row[0])[0] for row in ROWS]
    assert sorted(names) == sorted(methods())
    assert f"all {len(names)} methods" in PAGE


@pytest.mark.parametrize("row", ROWS, ids=lambda row: name_and_file(row[0])[0])
def test_a_row_names_the_file_and_the_papers_of_the_registry(row):
    name, file = name_and_file(row[0])
    entry = methods()[name]
    assert (FOLDER / file).resolve() == Path(inspect.getfile(entry.cls)).resolve()
    assert [TITLES[title] for title in row[2].split(", ")] == sorted(entry.papers, key=[*TITLES.values()].index)
    assert len(row) == 5 and all(cell.strip() for cell in row)


def test_other_links_lead_to_files():
    links = re.findall(r"\]\(([^)#]+)", PAGE)
    assert links and all((FOLDER / link).exists() for link in links)
