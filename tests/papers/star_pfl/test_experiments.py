"""The runs of Star-PFL's notebooks."""

import pytest

from pfl_core.papers.star_pfl.experiments import (
    LIKENESS,
    MORE_READINGS,
    PARTS,
    READINGS,
    SCOPES,
    TASKS,
    ablation_name,
    options,
)
from pfl_core.papers.star_pfl.paper import PAPER


@pytest.mark.parametrize("preset", ["ci", "quick", "real", "paper"])
def test_ablation_names_are_unique(preset):
    specs = [spec for spec in PAPER.specs("06_ablations", preset, [0]) if spec.setting == "axial"]
    names = [ablation_name(spec) for spec in specs if spec.method["name"] == "star_pfl"]
    assert names == list(options(preset)) and len(set(names)) == len(names)
    assert {spec.method["name"] for spec in specs if not ablation_name(spec)} == {"local", "fedavg"}


def test_ablations_cover_the_parts_and_the_open_questions_of_the_method_page():
    assert {name.split()[0] for name in READINGS | MORE_READINGS | SCOPES} >= {
        f"A{n}" for n in (3, 5, 7, 8, 12, 13, 16)
    }
    chance = {"random entries", "never thawed, random entries"}
    assert {"local mask alone", "global mask alone", "no mask", "never thawed"} | chance == set(PARTS)


@pytest.mark.parametrize("preset", ["real", "paper"])
def test_parts_are_left_out_on_both_tasks(preset):
    specs = PAPER.specs("06_ablations", preset, [0])
    of_task = {task: [ablation_name(spec) for spec in specs if spec.setting == task] for task in TASKS}
    assert all(set(PARTS) <= set(names) for names in of_task.values())
    assert len(of_task["sagital"]) == len(PARTS) + 3, "Star-PFL, Local and FedAvg; readings run on one task"


def test_windows_of_one_round_are_run_with_one_local_epoch():
    """With at least as many local epochs as a window has slots the option makes no difference."""
    short = [spec for spec in PAPER.specs("06_ablations", "quick", [0]) if spec.setting == "axial, one epoch"]
    assert [(spec.train.epochs, ablation_name(spec)) for spec in short] == [
        (1, "Star-PFL"),
        (1, "A7 windows of one round"),
    ]


def test_costs_are_runs_of_the_accuracy_table():
    for preset in ("ci", "quick", "real", "paper"):
        table = PAPER.specs("04_accuracy", preset, [0])
        assert all(spec in table for spec in PAPER.specs("05_costs", preset, [0]))


def test_similarity_runs_cover_label_groups_and_the_dirichlet_split():
    specs = PAPER.specs("02_mask_similarity", "quick", [0])
    assert {spec.method["name"] for spec in specs} == {LIKENESS} and len({spec.rounds for spec in specs}) == 1
    assert [spec.setting for spec in specs] == ["labels", "labels", "labels, two each", "traces"]
    assert specs[1].method["history_len_local"] == 2 * specs[1].train.epochs
    assert specs[2].partition["labels_per_group"] == 2


def test_overrides_of_star_pfl_fields_apply_to_its_runs_only():
    changes = {"threshold_local": 0.2, "history_len_local": 4, "rounds": 2}
    specs = {s.method["name"]: s for s in PAPER.specs("05_costs", "ci", (0,), changes)}
    star = specs["star_pfl"].build_method()
    assert (star.threshold_local, star.history_len_local, specs["star_pfl"].rounds) == (0.2, 4, 2)
    assert specs["fedavg"].method == {"name": "fedavg", "client_weighting": "samples"} and specs["fedavg"].rounds == 2
    frozen = PAPER.specs("01_stability_traces", "ci", (0,), {"threshold_local": 0.2})
    assert [s.method["threshold_local"] for s in frozen] == [0.2, None, None], (
        "fields that the experiment varies win over the overrides"
    )
