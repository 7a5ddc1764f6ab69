"""The search, with invented scores and on a small federation."""

import errno
import json
import math
import os
from pathlib import Path

import pytest

from pfl_core.papers import STUDIES, study
from pfl_core.papers.pfedgate.settings import SETTINGS
from pfl_core.runs import Store
from pfl_core.study import search as search_module
from pfl_core.study.search import (
    MAX_EXTENSIONS,
    Score,
    Search,
    _next_value,
    _rows,
    choose,
    diverged,
    read,
    run_search,
    table,
    write,
)


def share(p):
    if p > 1:
        raise ValueError("p is a share")
    return p


RATES = (0.03, 0.1, 0.3)
TOGETHER = {(0.1, 1.0): 3, (0.3, 1.0): 2, (0.1, 2.0): 4, (0.3, 2.0): 6}  # the best rate depends on lam
CASES = {  # grid, start and score; values that are chosen, those at an end, and the grids that were extended
    "two fields": (
        {"lr": RATES, "lam": (0.05, 0.5, 5.0)}, {"lr": 0.03, "lam": 0.05},
        lambda lr, lam: -abs(math.log(lr / 0.1)) - abs(math.log(lam / 0.5)), {"lr": 0.1, "lam": 0.5}, [], {},
    ),
    "a second pass": (
        {"lr": (*RATES, 1.0), "lam": (0.5, 1.0, 2.0, 4.0)}, {"lr": 0.03, "lam": 1.0},
        lambda lr, lam: TOGETHER.get((lr, lam), 0), {"lr": 0.3, "lam": 2.0}, [], {},
    ),
    "extended up twice": (
        {"lr": RATES}, {"lr": 0.1}, lambda lr: -abs(lr - 2.5), {"lr": 2.7}, ["lr"], {"lr": [*RATES, 0.9, 2.7]},
    ),
    "extended down": (
        {"lr": (0.1, 0.2)}, {"lr": 0.2}, lambda lr: -lr, {"lr": 0.025}, ["lr"], {"lr": [0.025, 0.05, 0.1, 0.2]},
    ),
    "the next value is refused": ({"p": (0.25, 0.5, 1.0)}, {"p": 0.25}, share, {"p": 1.0}, ["p"], {}),
    "a start beyond the grid counts as its end": (
        {"tau": (0.2, 0.5, 0.8)}, {"tau": 0.125}, lambda tau: -tau, {"tau": 0.125}, ["tau"], {},
    ),
    "a start that is a default": (  # FedRep's head has the federation's rate unless it is given one of its own
        {"lr_head": (0.05, 0.5)}, {"lr_head": None}, lambda lr_head: float(lr_head is None), {"lr_head": None}, [], {},
    ),
    "a grid with 0": ({"bias": (0.0, 3.0)}, {"bias": 3.0}, lambda bias: -bias, {"bias": 0.0}, ["bias"], {}),
    "NaN and ties": ({"lr": RATES}, {"lr": 0.1}, lambda lr: math.nan if lr > 0.1 else 1.0, {"lr": 0.1}, [], {}),
}  # fmt: skip


@pytest.mark.parametrize(("grid", "start", "score", "values", "edges", "extended"), CASES.values(), ids=CASES)
def test_choose(grid, start, score, values, edges, extended):
    asked = []

    def scores(wanted):
        made = [Score(score(**values), 0.0) for values in wanted]
        asked.extend(map(str, wanted))
        return made

    found = choose(grid, start, scores)
    assert (found.values, found.edges) == (values, edges)
    assert found.grid == {name: list(given) for name, given in grid.items()} | extended
    assert len(asked) == len(set(asked)), "each is asked for once"


def test_of_rates_that_all_end_at_100_percent_the_fastest_is_chosen():
    def saturated(wanted):
        return [Score(100.0, 90 + values["lr"]) for values in wanted]

    assert choose({"lr": (0.001, 0.003, 0.002)}, {"lr": 0.001}, saturated).values["lr"] > 0.003  # the grid is extended


@pytest.fixture
def store(tmp_path):
    return Store(root=tmp_path / "runs", results=tmp_path / "results")


def test_on_runs(store, tmp_path):
    """The settings with the chosen values give the chosen run, which is stored already; other runs have no preset."""
    search = Search("ditto", {"lr": (0.03, 0.3), "lam": (0.1,)})
    row = run_search(search, SETTINGS, "ci", "cifar10", jobs=1, store=store)
    assert row["runs"] == len(row["tried"]) == len(list(store)) >= 2
    assert row["validation"] == max(found for _, found in row["tried"])
    path = tmp_path / "searched.json"
    write(path, [row])
    write(path, [row])
    assert len(json.loads(path.read_text())) == 1
    chosen = SETTINGS.before_search()
    chosen = type(chosen)(**{**vars(chosen), "searched": read(path)})
    spec = chosen.spec("ditto", preset="ci", setting="cifar10")
    assert store.get(spec.key()).spec.preset_label == "ci"
    assert sum(record.spec.preset_label == "ci" for record in store) == 1
    assert chosen.spec("ditto", preset="ci", setting="cifar10, novel").train.lr == row["values"]["lr"]
    assert chosen.spec("ditto", preset="ci", setting="cifar10", overrides={"lr": 7.0}).train.lr == 7.0
    assert chosen.fields_of(spec)["lam"] == row["values"]["lam"]


def test_all_values_of_an_each_field_are_tried(store):
    """The others are searched for each of its values; one after the other would stay where it starts."""
    search = Search("ditto", {"lr": (0.1,)}, {}, {"lam": (0.1, 0.5)})
    row = run_search(search, SETTINGS, "ci", "cifar10", jobs=1, store=store)
    assert {values["lam"] for values, _ in row["tried"]} == set(row["grid"]["lam"]) == {0.1, 0.5}
    assert row["validation"] == max(found for _, found in row["tried"])
    assert row["values"].keys() == {"lr", "lam"}


def test_runs_that_diverge_are_given_up_and_the_choice_is_the_same(store, monkeypatch):
    search = Search("fedavg", {"lr": (0.03, 0.1, 1e9)})
    given_up = run_search(search, SETTINGS, "ci", "cifar10", jobs=1, store=store)
    lengths = {record.spec.train.lr: record.rounds for record in store}
    rounds = max(lengths.values())
    assert lengths[1e9] == 1 < rounds == lengths[0.03] == lengths[0.1]
    monkeypatch.setattr(search_module, "diverged", lambda series: False)
    to_the_end = run_search(search, SETTINGS, "ci", "cifar10", jobs=1, store=Store(store.root / "whole"))
    assert {**given_up, "hours": 0} == {**to_the_end, "hours": 0}


def test_a_run_that_diverged_is_not_chosen_whatever_its_accuracy(store, monkeypatch):
    """Answering one class may be right more often than a poor run that still trains."""
    monkeypatch.setattr(search_module, "validation_score", lambda record: Score(90.0 if record.partial else 5.0, 5.0))
    row = run_search(Search("fedavg", {"lr": (0.1, 1e9)}), SETTINGS, "ci", "cifar10", jobs=1, store=store)
    assert row["values"]["lr"] < 1e9 and row["validation"] == 5.0
    assert [90.0] == [accuracy for values, accuracy in row["tried"] if values["lr"] == 1e9]


def test_a_search_in_which_all_runs_diverge_chooses_nothing(store, monkeypatch):
    monkeypatch.setattr(search_module, "diverged", lambda series: True)
    with pytest.raises(ValueError, match=r"all \d+ runs of the search diverged"):
        run_search(Search("fedavg", {"lr": (0.1, 0.3)}), SETTINGS, "ci", "cifar10", jobs=1, store=store)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [([math.nan, math.nan], True), ([None, None], True), ([math.nan, 2.3], False), ([math.inf, math.nan], False)],
)
def test_a_run_has_diverged_if_no_client_has_a_loss(losses, expected):
    assert diverged({"loss_val": ([1, 2], [[0.5, 0.5], losses])}) is expected
    assert not diverged({"loss_val": ([1, 2], [losses, [0.5, 0.5]])})  # a later evaluation counts
    assert not diverged({})


def test_no_validation_images(store):
    from pfl_core.papers.fedselect.settings import SETTINGS as WITHOUT

    with pytest.raises(LookupError, match="needs validation images"):
        run_search(Search("local", {"lr": (0.1,)}), WITHOUT, "ci", "cifar10", jobs=1, store=store)


def test_no_file_is_no_search(tmp_path):
    assert read(tmp_path / "searched.json") == {}


def test_table_for_notebooks(tmp_path, monkeypatch):
    monkeypatch.setattr("pfl_core.study.search.searched_path", lambda paper: tmp_path / f"{paper}.json")
    assert table("ours").empty
    place = dict(preset="real", setting="images", method="ditto")
    found = dict(values={"lr": 0.3, "lam": 1.6}, grid={"lr": [0.1, 0.3], "lam": [0.8, 1.6]}, edges=["lr", "lam"])
    found |= dict(validation=81.5, seed=0, runs=4, hours=0.5, tried=[[{"lr": 0.05, "lam": None}, 80.0]])  # the start
    write(tmp_path / "ours.json", [place | found])
    row = table("ours").iloc[0]
    assert (row["chosen"], row["tried"], row["at an end"]) == (
        "lr=0.3, lam=1.6",
        "lr: 0.05 (80.0), 0.1, 0.3; lam: None (80.0), 0.8, 1.6",
        "lr, lam",
    )


@pytest.mark.parametrize("name", STUDIES)
def test_every_choice_lies_in_a_stated_search(name):
    own = study(name)
    for place, methods in own.settings.searched.items():
        searches = {search.method: search for search in own.searches[place]}
        for method, values in methods.items():
            search = searches[method]
            assert values.keys() == search.grid.keys() | search.each.keys(), (place, method)


COMPARED = {"fedselect": ["01_main_comparison", "04_training_size"], "pfedgate": ["01_main_comparison"]}


@pytest.mark.parametrize("name", STUDIES)
def test_searched_runs_are_runs_of_the_notebooks(name):
    """Of these notebooks, or of any: so the chosen run is not computed again."""
    own = study(name)
    for (preset, setting), searches in own.searches.items():
        made = [run for notebook in COMPARED.get(name, own.experiments) for run in own.specs(notebook, preset, [0])]
        for search in searches:
            values = {field: grid[0] for field, grid in search.grid.items()}
            tried = search.spec(own.settings, preset, setting, values).method
            methods = [tried, *(run.method for run in made if run.setting == setting)]
            same, *others = ({k: v for k, v in method.items() if k not in search.grid} for method in methods)
            assert same in others, (preset, setting, search.method)


@pytest.mark.parametrize("name", STUDIES)
def test_grids_with_a_choice_at_an_end_cannot_be_extended_further(name):
    """They were extended as often as is allowed, or their field refuses the next value."""
    part = study(name)
    for row in _rows(part.searched):
        searches = {search.method: search for search in part.searches[row["preset"], row["setting"]]}
        search = searches[row["method"]]
        for field in row["edges"]:
            grid, stated = row["grid"][field], search.grid[field]
            edge = 0 if row["values"][field] == grid[0] else -1
            beyond = [value for value in grid if (value < min(stated) if edge == 0 else value > max(stated))]
            if len(beyond) < MAX_EXTENSIONS:
                extended = {**row["values"], field: _next_value(grid, edge)}
                with pytest.raises(ValueError, match=field):
                    search.spec(part.settings, row["preset"], row["setting"], extended)


def test_a_full_disk_leaves_the_file_of_chosen_values_as_it_was(tmp_path, monkeypatch):
    path, row = tmp_path / "searched.json", {"preset": "quick", "setting": "digits", "method": "local", "values": {}}
    write(path, [row])
    before = path.read_bytes()

    def full(self: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"searched\.json cannot be written: No space left on device"):
        write(path, [{**row, "method": "fedavg"}])
    assert path.read_bytes() == before


def test_a_changed_value_is_noticed_and_the_file_stays(tmp_path):
    path = tmp_path / "searched.json"
    row = {"preset": "real", "setting": "digits", "method": "local", "values": {"lr": 0.1}}
    write(path, [row])
    assert read(path) == {("real", "digits"): {"local": {"lr": 0.1}}}
    path.write_text(path.read_text().replace("0.1", "0.3"))
    changed = path.read_bytes()
    for use in (lambda: read(path), lambda: write(path, [{**row, "method": "fedavg"}])):
        with pytest.raises(ValueError, match="searched.json is damaged .the checksum of local at real does not match"):
            use()
    assert path.read_bytes() == changed


@pytest.mark.parametrize(
    "content", ["[" * 9999, "[{", "[3]", "3", '[{"preset": "ci"}]', '[{"preset": "ci", "setting": "a", "values": 1}]']
)
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "searched.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match="searched.json is damaged"):
        read(path)
