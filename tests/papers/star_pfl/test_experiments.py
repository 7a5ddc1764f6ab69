"""Which runs Star-PFL's notebooks of tables ask for."""

import pytest

from pfl_core.papers.star_pfl.experiments import LIKENESS, MORE_READINGS, PARTS, READINGS, SCOPES, named, options
from pfl_core.papers.star_pfl.paper import PAPER


@pytest.mark.parametrize("preset", ["ci", "quick", "real", "paper"])
def test_every_ablation_has_a_name_of_its_own(preset):
    made = [one for one in PAPER.specs("06_ablations", preset, [0]) if one.setting == "axial"]
    names = [named(one) for one in made if one.method["name"] == "star_pfl"]
    assert names == list(options(preset)) and len(set(names)) == len(names)
    assert {one.method["name"] for one in made if not named(one)} == {"local", "fedavg"}


def test_the_ablations_are_those_of_the_specification():
    assert {name.split()[0] for name in READINGS | MORE_READINGS | SCOPES} >= {
        f"A{n}" for n in (3, 5, 7, 8, 12, 13, 16)
    }
    assert {"local mask alone", "global mask alone", "no mask", "never thawed"} == set(PARTS)


def test_windows_of_one_round_are_compared_where_they_matter():
    """With as many local epochs as a window has places the option changes nothing."""
    short = [one for one in PAPER.specs("06_ablations", "quick", [0]) if one.setting == "axial, one epoch"]
    assert [(one.train.epochs, named(one)) for one in short] == [(1, "Star-PFL"), (1, "A7 windows of one round")]


def test_costs_are_runs_of_the_accuracy_table():
    for preset in ("ci", "quick", "real", "paper"):
        table = PAPER.specs("04_accuracy", preset, [0])
        assert all(one in table for one in PAPER.specs("05_costs", preset, [0]))


def test_likeness_is_watched_in_groups_and_on_the_dirichlet_split():
    made = PAPER.specs("02_mask_similarity", "quick", [0])
    assert {one.method["name"] for one in made} == {LIKENESS} and len({one.rounds for one in made}) == 1
    assert [one.setting for one in made] == ["labels", "labels", "labels, two each", "traces"]
    assert made[1].method["history_len_local"] == 2 * made[1].train.epochs
    assert made[2].partition["labels_per_group"] == 2


def test_the_methods_own_fields_are_overrides_of_its_runs_alone():
    changes = {"threshold_local": 0.2, "history_len_local": 4, "rounds": 2}
    made = {s.method["name"]: s for s in PAPER.specs("05_costs", "ci", (0,), changes)}
    star = made["star_pfl"].build_method()
    assert (star.threshold_local, star.history_len_local, made["star_pfl"].rounds) == (0.2, 4, 2)
    assert made["fedavg"].method == {"name": "fedavg", "client_weighting": "samples"} and made["fedavg"].rounds == 2
    frozen = PAPER.specs("01_stability_traces", "ci", (0,), {"threshold_local": 0.2})
    assert [s.method["threshold_local"] for s in frozen] == [0.2, None, None], "what an experiment varies stays varied"
