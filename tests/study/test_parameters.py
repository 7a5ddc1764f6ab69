"""A notebook's parameters in the forms that papermill's -p, -y and -r pass."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.study.parameters import overrides_of, seeds_of, truth_of


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        (None, None), ("None", None), ("", None), (3, [3]), ("3", [3]), ([3], [3]), ("[3]", [3]), ("12", [12]),
        ([0, 1, 2], [0, 1, 2]), ("[0, 1, 2]", [0, 1, 2]), ("0-2", [0, 1, 2]), ("0,2-3", [0, 2, 3]), (["1", 1], [1]),
    ],
)  # fmt: skip
def test_seeds(given, seeds):
    assert seeds_of(given) == seeds


@pytest.mark.parametrize("given", ["one", -1, "0.5", 0.5, [], True, [True], {"a": 1}, "3-x", "2-1", "0,3-1"])
def test_seeds_that_are_none_are_refused_in_one_line(given):
    with pytest.raises(ValueError, match="^SEEDS = .*give seeds such as [^\\n]*$"):
        seeds_of(given)


def test_overrides():
    assert overrides_of(None) == overrides_of("") == overrides_of({}) == {}
    assert overrides_of('{"rounds": 5, "device": null}') == {"rounds": 5, "device": None}
    assert overrides_of("{'rounds': 5}") == overrides_of({"rounds": 5}) == {"rounds": 5}
    for wrong in ("rounds=5", "[1]", [1], 3):
        with pytest.raises(ValueError, match="^OVERRIDES = "):
            overrides_of(wrong)


def test_train():
    assert [truth_of(given) for given in (True, "yes", "True", 1, False, "no", "0", None)] == [True] * 4 + [False] * 4
    with pytest.raises(ValueError, match="give True or False"):
        truth_of("maybe")


def test_seeds_in_any_form(monkeypatch):
    monkeypatch.setenv("PFL_TRAIN", "0")
    name, seeds = "02_personalization_limit", {None: {0, 1, 2}, "0-2": {0, 1, 2}, "0-1": {0, 1}, 0: {0}}
    assert {given: set(PAPER.runs(name, "real", given)["seed"]) for given in seeds} == seeds


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ('"reel"', "fedselect has no preset 'reel' (did you mean 'real'?)"),
        ('"ci", overrides={"lrr": 1}', "overrides cannot set 'lrr' (did you mean 'lr'?)"),
        ('"ci", train="maybe"', "TRAIN = 'maybe': give True or False"),
    ],
)
def test_a_notebook_shows_one_line(capsys, given, line):
    shell = InteractiveShell()
    shell.history_manager.enabled = False
    shell.user_ns["PAPER"] = PAPER
    shell.run_cell(f'PAPER.runs("02_personalization_limit", {given})')
    assert capsys.readouterr().out.strip() == line
