"""The runs of a paper's notebooks, with and without overrides."""

import pytest

from pfl_core import papers
from pfl_core.papers import STUDIES
from pfl_core.papers.fedselect.paper import PAPER

NAME = "02_personalization_limit"


def test_experiments_ask_for_runs_and_for_each_once():
    for paper in map(papers.study, STUDIES):
        for name in paper.experiments:
            for preset in paper.presets:
                case, specs = (paper.name, name, preset), paper.experiments[name](preset, (0, 1), {"rounds": 3})
                assert {s.preset for s in specs} == {preset} and {s.seed for s in specs} == {0, 1}, case
                assert {s.rounds for s in specs} == {3} and {s.paper for s in specs} == {paper.name}, case
                identities = [str(s.identity()) for s in specs]
                assert len(set(identities)) == len(identities), case


@pytest.mark.parametrize("nothing", [None, {}, {"device": "cuda"}, {"clients": 4, "lr": 0.05}])
def test_overrides_that_change_nothing_leave_the_presets_runs(nothing):
    plain = PAPER.specs(NAME, "ci")
    settings = {"clients": plain[0].clients, "lr": plain[0].train.lr} if nothing and "lr" in nothing else nothing
    made = PAPER.specs(NAME, "ci", overrides=settings)
    assert [one.preset_label for one in made] == ["ci"] * len(plain)


def test_runs_that_overrides_change_are_no_results_of_the_preset():
    made = PAPER.specs(NAME, "real", overrides={"rounds": 41})
    assert {one.preset_label for one in made} == {"real, changed"}
    split = papers.specs("fedpews/04_heterogeneity_and_scale", "quick", overrides={"rounds": 40})
    assert {one.changed for one in split if one.setting == "dirichlet"} == {False}, "has 40 of its own"
    assert {one.changed for one in split if one.setting == "many clients"} == {True}, "has 60"


@pytest.mark.parametrize("name", ["seed", "method", "preset", "paper", "setting", "changed"])
def test_what_a_run_is_cannot_be_overridden(name):
    with pytest.raises(ValueError, match=f"overrides cannot set '{name}'"):
        PAPER.specs(NAME, "ci", overrides={name: "fedavg"})


def test_committed_runs_are_judged_by_all_of_them_and_others_alone():
    paper = papers.paper("pfedgate")
    committed = paper.committed("paper", "real")
    assert set(committed["preset"]) == {"paper", "real"} and set(paper.committed("real")["preset"]) == {"real"}
    assert len(paper.with_committed(committed.head(3))) == len(committed)
    own = committed.head(3).assign(key=["own", *committed["key"][1:3]])
    small = committed.head(3).assign(preset=["real", "real", "quick"])
    assert paper.with_committed(own) is own and paper.with_committed(small) is small
