"""The results pages, their answers, and `pfl report`."""

import json
import re
import shutil
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from pfl_core import papers
from pfl_core.cli import main
from pfl_core.files import atomic_write
from pfl_core.runs.provenance import ROOT
from pfl_core.runs.store import RESULTS
from pfl_core.study import answers, drawings, pages
from pfl_core.study.claims import OPEN, Claim, Found, Judged, Values

LONGEST = 20_000  # bytes of a results page


@cache
def report(name: str) -> pages.Report:
    return pages.report(papers.study(name), draw=False)


@pytest.mark.parametrize("name", papers.PAPERS)
def test_the_committed_files_are_those_of_the_committed_records(name):
    """If this fails after a change of records, claims or answers, run `pfl report`. A word of the answer that no longer
    fits its number fails here, too."""
    files = report(name).files
    assert [path.name for path, content in files.items() if path.read_bytes() != content] == []
    assert len(files[ROOT / "notebooks" / name / pages.PAGE]) <= LONGEST
    assert (ROOT / "figures" / "claims" / f"{name}.png").exists()


def test_the_pages_of_all_papers_are_current():
    found, notebooks = [report(name) for name in papers.STUDIES], ROOT / "notebooks"
    files = pages.of_all(found, draw=False)
    assert len(files) == 3 and [path.name for path, content in files.items() if path.read_bytes() != content] == []
    assert all(own.headline for own in found if own.name in papers.PAPERS)
    answers = {own.name: pages.first_sentence(own.answer) for own in found}
    for path, name in [(ROOT / "README.md", None), *((notebooks / own.name / "README.md", own.name) for own in found)]:
        text = path.read_text(encoding="utf-8")
        filled = answers if name is None else {name: pages.paragraphs(report(name).answer)}
        assert pages.with_answer(text, filled) == text


@pytest.mark.parametrize("name", papers.PAPERS)
def test_notebooks_show_the_words_of_the_results_page(name):
    """If this fails after new records, draw these notebooks again: `pfl figures --write-notebooks`."""
    table = pd.read_csv(ROOT / "figures" / "claims" / f"{name}.csv", dtype=str)
    words = dict(zip(table["claim"], table["word"], strict=True))
    found = []
    for path in sorted((ROOT / "notebooks" / name).glob("*.ipynb")):
        cells = json.loads(path.read_bytes())["cells"]
        if any("".join(cell["source"]).startswith('PRESET = "quick"') for cell in cells):
            continue
        for cell in cells:
            if ".judge(" in "".join(cell["source"]):
                html = "".join(cell["outputs"][-1]["data"]["text/html"])
                rows = re.findall(r"<th[^>]*>(\d+)</th>\s*<th[^>]*>([a-z ]+)</th>", html)
                found += [(path.stem, *row) for row in rows]
    assert found and [row for row in found if words[row[1]] != row[2]] == []


@pytest.mark.parametrize("name", papers.PAPERS)
def test_a_results_page_shows_every_committed_figure_once(name):
    """A figure of several presets is shown for the one with the best evidence."""
    figures = [path for preset in pages.DECIDING for path in ROOT.glob(f"figures/{preset}/{name}/*.png")]
    shown = [path for notebook in drawings.drawn(name, pages.DECIDING) for path in notebook.figures]
    assert sorted({path.stem for path in figures}) == sorted(path.stem for path in shown)
    assert all(path in shown for path in figures if "paper" in path.parts)


def test_a_picture_is_drawn_anew_only_if_its_numbers_or_its_file_have_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    path, drawn = tmp_path / "claims" / "x.png", []

    def draw():
        drawn.append(1)
        return plt.figure(figsize=(1, 1))

    def written(numbers: str) -> int:
        atomic_write(path, pages._picture(path, numbers, draw))
        return len(drawn)

    assert [written("1"), written("1"), written("2"), written("2")] == [1, 1, 2, 2]
    path.write_bytes(b"of somebody else")
    assert written("2") == 3


def test_report_of_a_folder_judges_these_runs_and_writes_nothing(capsys, tmp_path):
    (tmp_path / "real").mkdir()
    assert main(["report", "star_pfl", "--runs", str(tmp_path)]) == 2
    assert "and its folders have no record" in capsys.readouterr().err
    of_fedpews = next((RESULTS / "fedpews" / "paper").glob("*.json"))
    shutil.copy(of_fedpews, tmp_path / "real")
    (tmp_path / "real" / f"{'0' * 16}.json").write_bytes(of_fedpews.read_bytes()[:-9])
    before = sorted(tmp_path.rglob("*"))
    assert main(["report", "star_pfl", "fedpews", "--runs", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    judged = json.loads(out)
    assert "is damaged" in err
    assert {key for claim in judged for effect in claim["effects"] for key in effect["keys"]} == {of_fedpews.stem}
    of = [claim["word"] for claim in judged if claim["paper"] == "star_pfl"]
    assert of == ["not run"] * len(papers.paper("star_pfl").claims) and len(judged) > len(of)
    assert sorted(tmp_path.rglob("*")) == before
    assert main(["report", "--runs", str(tmp_path / "nothing")]) == 2
    assert "is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "numbers", "fits"),
    [
        ("ahead", (1.0, 1.1, 0.9), True), ("ahead", (1.0, -1.0, 0.5), False), ("ahead", (2.0,), True),
        ("behind", (-1.0, -1.1, -0.9), True), ("behind", (1.0,), False),
        ("near", (1.0, -1.0, 0.5), True), ("near", (1.0, 1.1, 0.9), False), ("near", (0.1,), False),
    ],
)  # fmt: skip
def test_a_word_of_an_answer_must_fit_its_number(word, numbers, fits):
    values = Values(dict(enumerate(numbers)), text="a − b")
    if fits:
        assert answers.checked((), word, values) == answers.mean(values)
    else:
        with pytest.raises(ValueError, match=f"a − b is no longer {word}"):
            answers.checked((), word, values)


def test_a_difference_that_a_claim_leaves_open_is_not_behind():
    values = Values({0: -1.0, 1: -1.1, 2: -0.9}, {"a": {}, "b": {}}, text="a − b")
    effect = Found(
        "b − a > 0", "x", None, 1, 0.0, False, outcome="open", reason="after Holm", mean=1.0, keys=("b", "a")
    )
    assert answers.checked((claim(effect),), "after_holm", values) == "1.0"
    with pytest.raises(ValueError, match="a − b is no longer behind: .* after Holm"):
        answers.checked((claim(effect),), "behind", values)
    other = replace(effect, keys=("b", "c"))
    assert answers.checked((claim(other),), "behind", values) == "1.0"


def claim(*effects: Found, source: str = "Table 1", follows: bool = False) -> Judged:
    return Judged("x", Claim(1, source, "It wins.", lambda r: (), follows=follows), effects)


RUN = Found("a > 0", "cifar10", None, 1, 0.0, False, outcome="reproduced", mean=1.0, seeds=3, data="CIFAR-10 (copy)")
MISSING = Found("a > 0", "emnist", None, 1, 0.0, False)


def test_a_word_names_its_data_and_what_is_not_run():
    assert pages.verdict(claim(RUN)) == "**reproduced** on CIFAR-10"
    assert pages.verdict(claim(RUN, MISSING)) == "**reproduced** on CIFAR-10; 1 of 2 effects not run"
    assert MISSING.outcome == pages.verdict(claim(MISSING)) == "not run"
    elsewhere = replace(RUN, setting="x", data="generated here: points and colours and cifar10: CIFAR-10 (copy)")
    assert pages.verdict(claim(elsewhere)) == "**reproduced** on data generated here and CIFAR-10"
    reverse = replace(RUN, setting="mnist", outcome="reversed")
    assert pages.verdict(claim(RUN, reverse)) == "**reversed** on MNIST"  # the data of the effects that give the word


def test_effects_are_counted_with_their_size_but_not_of_two_bounds():
    small, other = replace(RUN, size="smaller", keys=("a",)), replace(RUN, keys=("b",))
    assert pages.effects_in_short(claim(small, other, other, MISSING)) == "reproduced 3 (1 smaller)"
    assert pages.effects_in_short(claim(small, replace(small, side=-1, bound=2.0), other)) == "reproduced 3"


def test_one_or_two_effects_are_told_with_their_numbers():
    measured = replace(RUN, mean=-1.234, low=-2.0, high=-0.5, printed=[2.0], outcome="not found", keys=("a",))
    told = "a > 0: −1.23 (−2 to −0.5), in the paper 2, not found"
    assert pages.effects_in_short(claim(measured, MISSING)) == told
    assert pages.effects_in_short(claim(measured, RUN)) == f"{told}; a > 0: 1, reproduced"


def test_claims_that_are_not_the_papers_are_counted_and_listed_apart():
    judged = [claim(RUN), claim(RUN, follows=True), claim(RUN, source="not in the paper")]
    first, *apart = pages.tally(judged).split(" Apart, ")
    assert first == "The paper's 1 claims: 1 reproduced." and len(apart) == 2
    assert [table.startswith("### ") for table in pages.claims_tables(judged)] == [False, True, True]


def test_numbers_of_answers():
    values = Values({0: -1.0, 1: -2.0, 2: -3.0})
    assert (answers.mean(values), answers.signed(values), answers.seeds(values)) == ("2.0", "−2.0", 3)
    assert answers.span(values) == "−4.5 to 0.5" and answers.span(Values({0: 1.0})) == "one seed"
    with pytest.raises(ValueError, match="no run of x"):
        answers.mean(Values({}, text="x"))


@pytest.mark.parametrize(
    ("fields", "lacks"),
    [
        ({"outcome": OPEN, "reason": "one seed", "seeds": 1}, "2 more seeds (1)"),
        ({"outcome": OPEN, "reason": "two seeds", "seeds": 2}, "1 more seed (1)"),
        ({"outcome": OPEN, "reason": "too wide: about 12 seeds", "seeds": 4}, "8 more seeds (1)"),
        ({"outcome": OPEN, "reason": "two seeds", "seeds": 2, "blocked": "still improving"}, "still improving (1)"),
        ({"outcome": OPEN, "reason": "too wide: over 100 seeds", "seeds": 3}, "over 100 seeds (1)"),
        ({"setting": "cifar10, sampled"}, "runs of CIFAR-10, sampled (1)"),
        ({"setting": "office_home"}, "data not at hand: OfficeHome"),
    ],
)
def test_a_page_names_seeds_only_where_they_can_change_the_word(fields, lacks):
    """Hours stand only beside seeds. Which data are at hand follows from the committed records."""
    known = {
        "effect": "",
        "setting": "cifar10",
        "option": None,
        "side": 1,
        "bound": 0.0,
        "exact": False,
        "keys": ("k",),
    }
    own = papers.paper("fedselect")
    claim = Judged("fedselect", own.claims[1], (Found(**known | fields),))
    text = pages.missing(SimpleNamespace(records=[], judged=[claim], paper=own))
    hours = "0.1" if "more seed" in lacks else ""
    assert text.splitlines()[-1] == f"| 1 | {claim.word} | {lacks} | {hours} |"
    if "more seed" in lacks:  # a run counts once, with the most seeds that an effect asks of it
        more = Found(**known | fields | {"reason": "too wide: about 22 seeds"})
        claim = Judged("fedselect", own.claims[1], (more, Found(**known | fields)))
        text = pages.missing(
            SimpleNamespace(records=[SimpleNamespace(key="k", core_seconds=3600)], judged=[claim], paper=own)
        )
        assert text.splitlines()[-1].endswith(f"| {(22 - more.seeds) / more.seeds:.1f} |")


def test_a_page_without_a_place_for_the_answer_is_an_error():
    assert pages.with_answer("a <!-- answer b -->old<!-- /answer -->", {"b": "new"}).endswith("-->new<!-- /answer -->")
    with pytest.raises(ValueError, match="needs a block"):
        pages.with_answer("nothing", {"b": "new"})


def test_bars_in_cells_are_escaped():
    assert pages.markdown(("a",), [("x|y",), (float("nan"),)]).splitlines()[2:] == ["| x\\|y |", "|  |"]
