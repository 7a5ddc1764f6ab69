"""FedSelect's tables, from frames and records with known numbers."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.papers.fedselect.results import limits, overlap, readings, rules, sizes, tables, workshop
from pfl_core.runs import Record
from pfl_core.study.frame import frame, row_of

OF_HEAD = np.array([[3, 3, 1, 1], [3, 3, 1, 1], [1, 1, 3, 2], [1, 1, 2, 3]])  # 6 entries, three personal in each mask
CLASSES = [[0, 5, 5, 0], [0, 5, 0, 0], [5, 0, 0, 5], [0, 0, 0, 5]]  # 0 and 1 have one in common, 2 and 3


def record(method="fedselect", setting="cifar10", **fields):
    made = replace(PAPER.settings.spec(method, preset="ci", **fields), setting=setting)
    arrays = {"overlap/head.weight": OF_HEAD, "size/head.weight": 6}
    series = {
        "upload": ([1, 2], [[12] * 4, [6, 6, 3, 9]]),
        "passes": ([1, 2], [[3.0] * 4, [6.0] * 4]),
    }
    return Record(f"{method}{setting}{fields}", made, series, arrays, clients={"train": CLASSES}, num_params=12)


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_runs_are_named_in_the_words_of_the_figures():
    runs = [record(alpha=0.3), record(alpha=0.5)]
    name = tables.namer(runs, ["a, cifar10", "b, workshop s=2"])
    assert [name(run) for run in runs] == ["a, CIFAR-10", "b, 2 classes a client"]


def test_cells_are_means_and_deviations_in_order():
    rows = [("x", "B", "r", 1.0), ("x", "B", "r", 3.0), ("x", "A", "g", 5.0)]
    cells = tables.mean_cells(pd.DataFrame(rows, columns=["where", "label", "color", "acc_mean"]), ["where"])
    assert cells.columns.tolist() == ["where", "label", "color", "value", "std"]
    assert cells["label"].tolist() == ["B", "A"] and cells["value"].tolist() == [2, 5]
    assert cells["std"][0] == pytest.approx(math.sqrt(2)) and math.isnan(cells["std"][1])


def test_costs_of_the_last_round_are_those_of_the_first_run_of_a_label():
    costs = tables.round_costs(["A", "A"], [record(alpha=0.3), record(alpha=0.5)])
    assert costs.loc["A"].tolist() == [6.0, 0.5] and len(costs) == 1


def test_the_papers_numbers_stand_beside_their_methods():
    """Table 1's for baselines, Table 2's for FedSelect at its limit; none for data or limits that are not printed."""
    labels = ["Local", "FedSelect, α = 0.3", "FedSelect, α = 0.1", "Local"]
    cells = pd.DataFrame({"dataset": ["cifar10", "cifar10_c", "cifar10", "digits"], "label": labels})
    values = tables.published_cells(cells, PAPER.table(1), PAPER.table(2))
    assert values.tolist()[:2] == [74.6, 70.6] and values[2:].isna().all()
    leads = tables.published_leads(cells, "FedSelect, α = 0.3", PAPER.table(1), PAPER.table(2))
    assert leads.round(2).tolist()[:2] == [7.65, 0.0] and leads[2:].isna().all()


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_a_limit_is_exceeded_by_less_than_an_update():
    shares = limits.final_shares([0.25], [0.05, 0.3])
    assert shares.loc["p = 0.25"].tolist() == ["0.250 (1)", "0.438 (2)"]


# ---- rules ----------------------------------------------------------------------------------------------------------


def of_rules(seeds=(0, 1, 2)):
    values = {
        rules.OWN: 70.0,
        "random, fixed": 68.0,
        "largest weights": 75.0,
        "random, growing": 71.0,
        "only fc1": 60.0,
    }
    rows = [
        (
            "cifar10",
            alpha,
            "layers" if label == "only fc1" else "grown",
            label,
            seed,
            value + seed + 0.1 * (seed == place),
        )
        for alpha in (0.3, 0.5)
        for place, (label, value) in enumerate(values.items())
        for seed in seeds
        if label != "only fc1" or alpha == 0.3
    ]
    return pd.DataFrame(rows, columns=["where", "alpha", "masks", "label", "seed", "acc_mean"])


def test_leads_are_for_each_limit_with_the_fixed_layers_in_all():
    leads = rules.limit_leads(of_rules())
    assert list(leads) == [("cifar10", 0.3), ("cifar10", 0.5)]
    for ahead in leads.values():
        assert set(ahead.index) == {"random, fixed", "largest weights", "random, growing", "only fc1"}


def test_the_papers_rules_and_the_best_other_are_in_colour():
    assert rules.highlighted(of_rules()) == [rules.OWN, "random, fixed", "largest weights"]


# ---- sizes ----------------------------------------------------------------------------------------------------------


def test_the_methods_that_lose_most_are_those_that_were_run():
    assert sizes.falling(pd.DataFrame({"method": ["fedselect", "fedper"]})) == ["FedPer"]


# ---- overlap --------------------------------------------------------------------------------------------------------


def test_runs_are_grouped_by_the_scope_of_their_ranking():
    own, tensors = record(alpha=0.3), record(alpha=0.3, selection_scope="per_tensor")
    assert overlap.by_scope([tensors, own]) == {"": [own], ", tensor by tensor": [tensors]}
    assert overlap.by_scope([own]) == {"": [own]}


def test_clients_are_sorted_by_their_classes():
    run = record(alpha=0.3)
    assert overlap.order(run) == [2, 1, 0, 3] and overlap.classes(run) == ["0,3", "1", "1,2", "3"]
    matrix = overlap.matrix(run, "head.weight", "iou_raw")
    assert matrix.index.tolist() == matrix.columns.tolist() == ["2 (0,3)", "1 (1)", "0 (1,2)", "3 (3)"]
    assert matrix.loc["1 (1)", "0 (1,2)"] == 1 and matrix.loc["2 (0,3)", "3 (3)"] == 0.5
    assert overlap.matrix(run, "head.weight", "iou_raw", numbered=False).index.tolist() == overlap.classes(run)


def test_matrices_become_rows():
    runs = [record(alpha=0.5), record(alpha=0.3)]
    matrices = overlap.by_limit(runs, "head.weight", "iou_raw")
    assert list(matrices) == [0.3, 0.5]
    rows = overlap.long(matrices, "alpha")
    assert rows.columns.tolist() == ["i", "j", "value", "alpha"] and len(rows) == 32
    assert rows["value"].tolist()[:2] == [1.0, 0.2]


def test_random_masks_overlap_by_chance_only():
    found = overlap.chance_check([0.3, 0.8])
    assert found["iou_raw"].tolist() == pytest.approx([0.3 / 1.7, 0.8 / 1.2], abs=0.01)
    assert found["iou_chance"].tolist() == pytest.approx([0, 0], abs=0.01)


def test_contrasts_have_a_row_for_each_run():
    """Pairs with a common class have an overlap of 1 and 1/2, all others 1/5."""
    (row,) = overlap.contrasts([record(alpha=0.3)], "head.weight").itertuples()
    assert (row.alpha, row.seed) == (0.3, 0) and row.iou_raw_contrast == pytest.approx(0.75 - 0.2)


# ---- workshop -------------------------------------------------------------------------------------------------------


def test_gradltn_is_labelled_by_p():
    table = workshop.labelled(pd.DataFrame({"method": ["fedselect_gradltn", "fedavg"], "keep_rate": [0.5, math.nan]}))
    assert table["label"].tolist() == [workshop.OWN, "FedAvg"] and table["color"][0] == workshop.SHADES[0.5]


def test_a_search_keeps_the_rate_in_each_iteration():
    assert workshop.kept_shares([0.5], 2).loc["p = 0.5"].tolist() == [1, 0.5, 0.25]


def test_the_first_runs_of_a_rate_are_in_the_order_of_the_settings():
    four, two = (record("fedselect_gradltn", keep_rate=0.5, setting=f"workshop s={s}") for s in (4, 2))
    runs = [four, two, record("fedselect_gradltn", keep_rate=0.25, setting="workshop s=2"), record("fedavg")]
    assert workshop.first_with(runs, 0.5, 0) == {"workshop s=2": two, "workshop s=4": four}
    assert workshop.first_with(runs, 0.5, 1) == {}
    assert workshop.overlaps([two], "head.weight")[["setting", "p"]].to_numpy().tolist() == [["workshop s=2", 0.5]]


# ---- the paper's text and the code ----------------------------------------------------------------------------------


def of_spec(method, dealt=False, **options):
    """The row of a run at preset quick, as the frame has it."""
    spec = PAPER.settings.spec(method, preset="quick", **options)
    partition = {**spec.partition, "allow_duplicate_classes": dealt}
    series = {name: ([1], [[1.0] * 4]) for name in ("correct", "count", "loss")}
    return row_of(Record(f"{method}{dealt}{options}", replace(spec, partition=partition), series, rounds_done=1), PAPER)


def test_fedselects_runs_are_labelled_by_what_differs_from_the_text():
    rows = {
        readings.TEXT: of_spec("fedselect"),
        "skip_empty_pass=False; mask_update_every=3": of_spec("fedselect", skip_empty_pass=False, mask_update_every=3),
        "reading=authors_code; tie_rule=index": of_spec("fedselect", reading="authors_code", tie_rule="index"),
        "Local": of_spec("local"),
        "Local; allow_duplicate_classes=True": of_spec("local", dealt=True),
    }
    assert readings.labels(frame(rows.values())).tolist() == list(rows)
    assert readings.setting_text("cifar10, epochs=15") == "epochs=15"


CODE = "reading=authors_code"


def scored():
    rows = [
        ("fedselect", readings.TEXT, readings.USUAL, 70.0, 71.0),
        ("fedselect", "p=0.25", readings.USUAL, 69.0, 71.0),
        ("fedselect", CODE, readings.USUAL, math.nan, 74.0),
        ("fedselect", "epochs=15", "cifar10, epochs=15", 75.0, 75.0),
        ("local", "Local", readings.USUAL, 72.0, 72.0),
        ("local", "Local", "cifar10, epochs=15", 76.0, 76.0),
        ("local", "Local", readings.TWICE, 73.0, 73.0),
        ("fedavg", "FedAvg", readings.USUAL, 30.0, 70.0),
    ]
    table = pd.DataFrame(rows, columns=["method", "label", "setting", "acc_mean", "acc_mean_trained"])
    return table.assign(seed=0, failed=False)


def test_runs_with_other_clients_come_last_in_a_colour_of_their_own():
    rows = [of_spec("local", dealt=True), of_spec("fedselect"), of_spec("local")]
    rows.append(of_spec("fedselect", aggregate_last_round=False))
    table = readings.table(frame(rows).assign(acc_mean=[1.0, 2.0, 3.0, 4.0]))
    assert table["dealt"].tolist() == [False, False, False, True]
    assert table["acc_mean"].tolist() == pytest.approx([2.0, 3.0, math.nan, 1.0], nan_ok=True), (
        "last round not averaged"
    )
    assert table["label"].tolist()[1:] == ["Local", "aggregate_last_round=False", "Local; allow_duplicate_classes=True"]
    assert table["color"].nunique() == 3


def test_effects_are_differences_of_means():
    table = scored()
    effects = readings.effects(table[table["method"] == "fedselect"], readings.by_passes(table))
    assert effects[readings.OPTION].to_dict() == {"p=0.25": -1, CODE: 3, "epochs=15": 5}
    assert effects[readings.POINT].to_dict() == {"Local": 0, "FedAvg": 40}
    assert effects[readings.DOUBLED].dropna().to_dict() == {"Local": 1}
    ends = readings.extremes(effects)
    assert ends.loc[readings.OPTION].tolist() == [-1, "p=0.25", 5, "epochs=15"]


def test_training_options_are_compared_without_combinations():
    tried = readings.training_options(scored(), ["local"])
    assert tried["setting"].tolist() == [readings.TEXT, "epochs=15", readings.TEXT, "epochs=15"]
    assert tried["method"].tolist() == ["FedSelect"] * 2 + ["Local"] * 2
