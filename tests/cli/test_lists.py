"""``pfl methods``, ``pfl data`` and the tables of a paper; parsers of values, and what is printed."""

import dataclasses
import inspect
import json
import re
import sys
import time

import pytest

from pfl_core.algorithm import methods
from pfl_core.cli import main
from pfl_core.cli.arguments import BadArgument, moment, value, values
from pfl_core.cli.methods import registered
from pfl_core.cli.specs import partition, seeds, setting, trial
from pfl_core.cli.tables import as_json, duration, latex, size, table
from pfl_core.deadline import passed
from pfl_core.papers import PAPERS
from pfl_core.study.compare import ROW

pytestmark = pytest.mark.usefixtures("folders")


def test_methods_are_listed_as_they_are_registered(capsys):
    """The list is read from the source, the JSON from the registry."""
    assert main(["methods", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == methods().keys()
    wanted = {(name, ", ".join(row["papers"]), row["shares"], row["file"]) for name, row in rows.items()}
    assert set(registered()) == wanted
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == sorted(rows)
    assert rows["fedselect"]["variants"]["alpha_0.50"] == {"alpha": 0.5}
    assert rows["fedselect"]["fields"]["p"] == 0.05 and "authors_code" in rows["fedselect"]["readings"]


def test_the_page_of_a_method_has_every_field_with_default_and_comment(capsys):
    for name, entry in methods().items():
        assert main(["methods", name]) == 0
        _, table, *variants = capsys.readouterr().out.split("\n\n")
        lines = {line.split()[0]: line for line in table.splitlines()[1:]}
        fields = dataclasses.fields(entry.cls)
        assert list(lines) == [field.name for field in fields]
        comments = dict(re.findall(r"^    (\w+): .*  # (.*)$", inspect.getsource(entry.cls), re.MULTILINE))
        for field in fields:
            usual = getattr(entry.cls(), field.name)
            default = usual if isinstance(usual, str) else json.dumps(usual)
            assert default in lines[field.name] and lines[field.name].endswith(comments.get(field.name, ""))
        assert [line.split()[0] for part in variants for line in part.splitlines()[1:]] == list(entry.variants)


def test_the_page_of_a_method_says_what_a_run_without_a_paper_sets(capsys):
    """All that differs from the method's defaults and from the training of other methods."""
    usual = dataclasses.asdict(trial("fedavg", {}, seed=0).train)
    for name, entry in methods().items():
        assert main(["methods", name]) == 0
        told = re.findall(r"^run     without --paper: (.*)$", capsys.readouterr().out, re.MULTILINE)
        pairs = dict(pair.split("=") for line in told for pair in line.split())
        spec = trial(name, {}, seed=0)
        training = {field: value for field, value in dataclasses.asdict(spec.train).items() if value != usual[field]}
        fields = {field: value for field, value in spec.method.items() if field in entry.trial}
        assert pairs == {f: v if isinstance(v, str) else json.dumps(v) for f, v in {**fields, **training}.items()}


@pytest.mark.parametrize(
    ("name", "scored"),
    [
        ("fedavg", "after aggregation"),
        ("star_pfl", "after local training"),
        ("fedselect", "after aggregation; with --reading authors_code after local training"),
        ("own:Half", "after aggregation"),
    ],
)
def test_the_page_of_a_method_says_where_it_is_scored(name, scored, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "own", raising=False)
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\nfrom pfl_core import Algorithm\n\n"
        "@dataclass(frozen=True)\nclass Half(Algorithm):\n    step: float = 0.5  # of the server\n",
        encoding="utf-8",
    )
    assert main(["methods", name]) == 0
    page = capsys.readouterr().out
    assert f"scored  {scored}\n" in page
    if name == "own:Half":
        assert page.splitlines()[-1].split() == ["step", "0.5", "float", "of", "the", "server"]


def test_data_lists_all_sets(capsys):
    assert main(["data"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "built in" in lines["digits"] and "missing" in lines["cifar10"]


def test_data_verifies_what_is_here_and_fails_on_what_is_not(capsys, tmp_path):
    assert main(["data", "digits", "--offline"]) == 0
    assert "1,258 + 539 samples" in capsys.readouterr().out
    assert main(["data", "digits", "mnist", "--offline", "--dir", str(tmp_path / "else")]) == 2
    out, err = capsys.readouterr()
    assert "digits" in out and str(tmp_path / "else") in err and err.count("\n") == 1


def test_compare_with_an_empty_store_has_every_row_of_the_paper(capsys):
    assert main(["compare", "fedselect", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {tuple(row) for row in rows} == {tuple(ROW)}
    assert all(row["ours"] is None for row in rows)
    assert any(row["paper"] == 82.2 and row["variant"] == "alpha=0.50" for row in rows)


def test_compare_without_a_paper_shows_all_four(capsys):
    """Also for LaTeX, where all that is no table is a comment."""
    assert main(["compare"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in PAPERS] == list(PAPERS)
    assert any(line.startswith("note: Table 1, FedSelect: ") for line in lines)
    assert main(["compare", "--latex"]) == 0
    tables = capsys.readouterr().out.split(r"\begin{tabular}")
    assert len(tables) == 1 + len(PAPERS)
    others = [line for part in tables for line in part.rpartition(r"\end{tabular}")[2].splitlines() if line]
    assert others and all(line.startswith("% ") for line in others)


@pytest.mark.parametrize(
    ("parse", "text", "wanted"),
    [
        (value, "0.3", 0.3),
        (value, "3", 3),
        (value, "true", True),
        (value, "null", None),
        (value, "[1, 2]", [1, 2]),
        (value, "per_tensor", "per_tensor"),
        (value, '"3"', "3"),
        (values, "0.1,0.3", [0.1, 0.3]),
        (values, "[8,16]", [[8, 16]]),
        (values, "[8],[16, 16]", [[8], [16, 16]]),
        (values, "a,b", ["a", "b"]),
        (values, "1,a", [1, "a"]),
        (values, '"a,b"', ["a,b"]),
        (values, "", [""]),
        (values, "cifar10, novel", ["cifar10, novel"]),
        (partition, "iid", {"name": "iid"}),
        (partition, "shards:2", {"name": "shards", "classes_per_client": 2}),
        (partition, "dirichlet:0.4", {"name": "dirichlet", "alpha": 0.4}),
        (partition, "paired_dirichlet:0.1", {"name": "paired_dirichlet", "alpha": 0.1}),
        (partition, "pathological:2", {"name": "pathological", "shards": 2}),
        (partition, "my_module:rule", {"name": "my_module:rule"}),
        (setting, "tie_rule=threshold", ("method", "tie_rule", ["threshold"])),
        (setting, "data.corrupt=true", ("data", "corrupt", [True])),
        (setting, "train.milestones=[0.5]", ("train", "milestones", [[0.5]])),
        (setting, "ditto.lam=0.1,1,0.10", ("ditto", "lam", [0.1, 1])),
        (setting, "mine.py:Mine.x=1", ("mine.py:Mine", "x", [1])),
        (seeds, "0-2", [0, 1, 2]),
        (seeds, "5,0-1,1,-3", [5, 0, 1, -3]),
        (moment, "2h", 8200),
        (moment, "90m", 6400),
        (moment, "45s", 1045),
        (moment, "1.5h", 6400),
    ],
)
def test_values_of_arguments(parse, text, wanted, monkeypatch):
    monkeypatch.setattr("pfl_core.cli.arguments.now", lambda: 1000.0)
    assert parse(text) == wanted


@pytest.mark.parametrize(
    ("parse", "texts"),
    [(seeds, ("2-0", "0-99999999", "0-", "1,,2")), (moment, ("2", "0h", "h", "-1h", "2d", "1h30m", "nan s"))],
)
def test_wrong_values_of_arguments(parse, texts):
    for text in texts:
        with pytest.raises(BadArgument):
            parse(text)


def test_setting_the_clock_changes_no_deadline(monkeypatch):
    soon, wall = moment("1h"), time.time()
    for hours in (-5, 5):
        monkeypatch.setattr(time, "time", lambda hours=hours: wall + 3600 * hours)
        assert not passed(soon) and 0 <= moment("1h") - soon < 600
    assert passed(soon - 3600)


def test_json_has_no_numbers_that_json_does_not_know():
    assert as_json({"a": float("nan"), "b": (1.5, float("inf"))}) == '{"a": null, "b": [1.5, null]}'


def test_tables_durations_and_sizes():
    assert table(("a", "long"), [("xyz", None), ("", 0)]) == "a    long\nxyz  -\n-    0"
    assert [duration(s) for s in (0.42, 12, 100, 5400, 200_000)] == ["0.4 s", "12 s", "1.7 min", "1.5 h", "2.3 days"]
    assert [size(b) for b in (12, 1234, 12_345, 3.2e6, 4e9)] == ["12 B", "1.2 kB", "12 kB", "3.2 MB", "4.0 GB"]


def test_a_table_for_latex_escapes_and_aligns():
    lines = latex(("a_1", "b, %"), [("x & y", 1.5), ("z^2", None)]).splitlines()
    assert lines[0] == r"\begin{tabular}{lr}" and lines[2] == r"a\_1 & b, \% \\"
    assert lines[4:6] == [r"x \& y & 1.5 \\", r"z\textasciicircum{}2 & - \\"]
