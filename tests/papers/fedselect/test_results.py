"""FedSelect's tables and sentences, from frames and records with known numbers."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.papers.fedselect.results import limits, overlap, readings, rules, sizes, tables, workshop
from pfl_core.runs import Record

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


def test_the_answer_names_the_best_limit_the_range_and_the_baselines():
    rows = [(0.0, 0, 30.0), (0.3, 0, 70.0), (0.3, 1, 72.0), (0.8, 0, 68.0)]
    runs = pd.DataFrame(rows, columns=["alpha", "seed", "acc_mean"]).assign(where="cifar10")
    baselines = pd.DataFrame({"method": ["local"], "where": ["cifar10"], "acc_mean": [75.0]})
    assert limits.answer(runs, baselines) == [
        "CIFAR-10, 2 seeds: FedSelect is most accurate at α = 0.3, 71.0 %; from α = 0.3 to 0.8 its means differ by at "
        "most 3.0 points; α = 0 has 30.0 %; Local 75.0 %."
    ]
    assert limits.answer(runs[runs["alpha"] == 0.8], baselines.iloc[:0]) == [
        "CIFAR-10, 1 seed: FedSelect is most accurate at α = 0.8, 68.0 %."
    ]
    assert limits.answer(runs.iloc[:0], baselines) == []


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


def test_the_answer_has_the_place_of_the_papers_rule_and_what_is_decided():
    table = of_rules()
    first, second = rules.answer(table, rules.limit_leads(table))
    assert first == (
        "CIFAR-10, α = 0.3, 3 seeds: most change (FedSelect) 71.0 %, place 3 of 5; random, fixed 69.0 %; highest: "
        "largest weights 76.0 %; lowest: only fc1 61.0 %; 95 % interval of its lead above 0: random, fixed, only fc1; "
        "below 0: largest weights, random, growing."
    )
    assert second.startswith("CIFAR-10, α = 0.5, 3 seeds: ")
    (one, _) = rules.answer(of_rules((0,)), rules.limit_leads(of_rules((0,))))
    assert "1 seed: " in one and "interval" not in one
    without = table[table["label"] != rules.OWN]
    assert rules.answer(without, rules.limit_leads(without)) == []


def test_the_papers_rules_and_the_best_other_are_in_colour():
    assert rules.highlighted(of_rules()) == [rules.OWN, "random, fixed", "largest weights"]


def of_rounds(*correct):
    rounds = list(range(1, len(correct) + 1))
    series = {name: (rounds, [[value]] * len(rounds)) for name, value in (("count", 100), ("loss", 1.0))}
    series["correct"] = (rounds, [[value] for value in correct])
    return Record(f"{correct}", PAPER.settings.spec("fedselect", preset="ci"), series, rounds_done=len(rounds))


def test_longer_runs_are_shown_in_the_round_where_the_shorter_ones_end():
    runs = [of_rounds(40, 50), of_rounds(40, 50, 60), of_rounds(70, 70, 70), of_rounds(1, 2, 3)]
    table = pd.DataFrame(
        [("only fc1", "layers"), ("only fc1", "layers"), (rules.OWN, "grown"), ("least change", "grown")],
        columns=["label", "masks"],
    )
    assert rules.layers_over_rounds(runs, table) == [
        f"Effect of the rounds (the rate is {runs[0].spec.train.lr:g} in all runs): the runs of 3 rounds have in round "
        "2, where the others end, and in their last round: only fc1 50.0 and 60.0 %; most change (FedSelect) 70.0 and "
        "70.0 %."
    ]
    assert rules.layers_over_rounds(runs[1:], table[1:]) == rules.layers_over_rounds(runs[:1], table[:1]) == []
    assert rules.layers_over_rounds([runs[0], runs[2]], table.iloc[[0, 2]]) == []


# ---- sizes ----------------------------------------------------------------------------------------------------------


def test_leads_at_the_smallest_and_at_the_largest_size_are_those_of_the_best_limit():
    low, high = "FedSelect, α = 0.3", "FedSelect, α = 0.5"
    rows = [("fedselect", low, 50, 70.0), ("fedselect", high, 50, 72.0), ("fedselect", low, 20, 60.0)]
    rows += [("fedselect", high, 20, 50.0), ("fedper", "FedPer", 50, 73.0), ("fedper", "FedPer", 20, 40.0)]
    table = pd.DataFrame(rows, columns=["method", "label", "images", "acc_mean"]).assign(seed=0)
    table = pd.concat(
        [table, *(table.assign(seed=seed, acc_mean=table["acc_mean"] + seed) for seed in (1, 2))], ignore_index=True
    )
    table.loc[(table["seed"] == 2) & (table["method"] == "fedper"), "acc_mean"] -= 1
    assert sizes.lead_sentences(table) == [
        "Lead of FedSelect (its best limit at that size) over FedPer: "
        "+20.33 [+18.90, +21.77] points with 20 images (α = 0.3), -0.67 [-2.10, +0.77] points with 50 images "
        "(α = 0.5), the first minus the last +21.00 [+21.00, +21.00]."
    ]
    assert sizes.falling(table) == ["FedPer"]
    assert sizes.by_size(table)["where"].unique().tolist() == ["20 images a client", "50 images a client"]
    assert sizes.lead_sentences(table[table["method"] == "fedper"]) == []


# ---- overlap --------------------------------------------------------------------------------------------------------


def test_runs_are_grouped_by_the_scope_of_their_ranking():
    own, tensors = record(alpha=0.3), record(alpha=0.3, selection_scope="per_tensor")
    assert overlap.by_scope([tensors, own]) == {"": [own], ", tensor by tensor": [tensors]}
    assert overlap.by_scope([own]) == {"": [own]}
    assert [overlap.run_name(run) for run in (own, tensors)] == ["α = 0.3", "α = 0.3, tensor by tensor"]


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


def test_the_answer_has_the_range_of_the_contrast_over_the_limits():
    rows = [(0.3, 0, 0.1, 0.2, 0.001), (0.3, 1, 0.1, 0.4, 0.002), (0.8, 0, 0.3, -0.1, 0.5)]
    columns = ["alpha", "seed", "iou_chance_mean", "iou_chance_contrast", "iou_chance_p"]
    table = pd.DataFrame(rows, columns=columns)
    assert overlap.answer({"": table}, "head.weight") == [
        "Masks of the last layer (weights of head), 2 seeds: the contrast of the overlap corrected for chance is -0.10 "
        "(α = 0.8) to +0.30 (α = 0.3); largest p-value of a run: 0.500.",
        "Mean overlap of client pairs, corrected for chance: 0.10 at α = 0.3 and 0.30 at α = 0.8.",
    ]
    (single,) = overlap.answer({", tensor by tensor": table.iloc[:1]}, "head.weight")
    assert "tensor by tensor, 1 seed: the contrast of the overlap corrected for chance is +0.20 (α = 0.3); " in single
    assert overlap.answer({"": table.assign(iou_chance_mean=math.nan)}, "head.weight") == []


# ---- workshop -------------------------------------------------------------------------------------------------------


def test_gradltn_is_labelled_by_p():
    rows = pd.DataFrame(
        {"method": ["fedselect_gradltn", "fedavg"], "keep_rate": [0.5, math.nan], "setting": "workshop s=4"}
    )
    table = workshop.by_setting(workshop.labelled(rows))
    assert table["label"].tolist() == [workshop.OWN, "FedAvg"] and table["color"][0] == workshop.SHADES[0.5]
    assert table["where"].tolist() == ["4 classes a client"] * 2


def test_a_search_keeps_the_rate_in_each_iteration():
    assert workshop.kept_shares([0.5], 2).loc["p = 0.5"].tolist() == [1, 0.5, 0.25]


def test_the_first_runs_of_a_rate_are_in_the_order_of_the_settings():
    four, two = (record("fedselect_gradltn", keep_rate=0.5, setting=f"workshop s={s}") for s in (4, 2))
    runs = [four, two, record("fedselect_gradltn", keep_rate=0.25, setting="workshop s=2"), record("fedavg")]
    assert workshop.first_with(runs, 0.5, 0) == {"workshop s=2": two, "workshop s=4": four}
    assert workshop.first_with(runs, 0.5, 1) == {}
    assert workshop.overlaps([two], "head.weight")[["setting", "p"]].to_numpy().tolist() == [["workshop s=2", 0.5]]


# ---- the paper's text and the code ----------------------------------------------------------------------------------


def test_fedselects_runs_are_labelled_by_what_differs_from_the_text():
    one = PAPER.settings.spec("fedselect", preset="quick")
    specs = {
        readings.TEXT: one,
        "reading=authors_code; tie_rule=index": PAPER.settings.spec(
            "fedselect", preset="quick", reading="authors_code", tie_rule="index"
        ),
        "Local": PAPER.settings.spec("local", preset="quick"),
    }
    dealt = replace(specs["Local"], partition={**specs["Local"].partition, "allow_duplicate_classes": True})
    specs["Local; allow_duplicate_classes=True"] = dealt
    assert {name: readings.label(spec) for name, spec in specs.items()} == {name: name for name in specs}
    assert readings.setting_text("cifar10, epochs=15") == "epochs=15"


def scored():
    rows = [
        ("fedselect", readings.TEXT, readings.USUAL, 70.0, 71.0),
        ("fedselect", "p=0.25", readings.USUAL, 69.0, 71.0),
        ("fedselect", readings.CODE, readings.USUAL, math.nan, 74.0),
        ("fedselect", "epochs=15", "cifar10, epochs=15", 75.0, 75.0),
        ("local", "Local", readings.USUAL, 72.0, 72.0),
        ("local", "Local", "cifar10, epochs=15", 76.0, 76.0),
        ("local", "Local", readings.TWICE, 73.0, 73.0),
        ("fedavg", "FedAvg", readings.USUAL, 30.0, 70.0),
    ]
    table = pd.DataFrame(rows, columns=["method", "label", "setting", "acc_mean", "acc_mean_trained"])
    return table.assign(seed=0, failed=False)


def test_runs_with_other_clients_come_last_in_a_colour_of_their_own(monkeypatch):
    local, own = record("local"), record("fedselect")
    partition = {**local.spec.partition, "allow_duplicate_classes": True}
    runs = [replace(local, spec=replace(local.spec, partition=partition)), own, local]
    methods = pd.DataFrame({"method": [run.spec.method["name"] for run in runs], "aggregate_last_round": True})
    monkeypatch.setattr(readings.frames, "summaries", lambda records: methods.assign(acc_mean=[1.0, 2.0, 3.0]))
    table = readings.table(runs)
    assert table["dealt"].tolist() == [False, False, True] and table["acc_mean"].tolist() == [2.0, 3.0, 1.0]
    assert table["label"].tolist()[1:] == ["Local", "Local; allow_duplicate_classes=True"]
    assert table["color"].nunique() == 3


def test_effects_are_differences_of_means():
    table = scored()
    effects = readings.effects(table[table["method"] == "fedselect"], readings.by_passes(table))
    assert effects[readings.OPTION].to_dict() == {"p=0.25": -1, readings.CODE: 3, "epochs=15": 5}
    assert effects[readings.POINT].to_dict() == {"Local": 0, "FedAvg": 40}
    assert effects[readings.DOUBLED].dropna().to_dict() == {"Local": 1}
    ends = readings.extremes(effects)
    assert ends.loc[readings.OPTION].tolist() == [-1, "p=0.25", 5, "epochs=15"]


def test_the_answer_says_what_moves_the_score_most():
    table = scored()
    effects = readings.effects(table[table["method"] == "fedselect"], readings.by_passes(table))
    assert readings.answer(table, effects) == [
        "FedSelect's mean client accuracy by the paper's text: 70.0 % after aggregation, 71.0 % after local training; "
        "by the released code: 74.0 % after local training (1 seed).",
        "The released code's options, single or combined, change FedSelect's accuracy by -1.0 (p = 0.25) to +5.0 (15 "
        "local epochs) points.",
        '"15 local epochs" changes the accuracy of Local, too: by +4.0 points, of FedSelect +5.0. So the option helps '
        "without any sharing, and Local has most of FedSelect's gain.",
        "Scoring a baseline after local training, not after aggregation, changes its accuracy by +0.0 (Local) to +40.0 "
        "(FedAvg) points.",
        "Twice the passes change a baseline's accuracy by +1.0 (Local) to +1.0 (Local) points.",
    ]
    few = table[table["label"] == "FedAvg"]
    effects = readings.effects(few[few["method"] == "fedselect"], readings.by_passes(few))
    assert len(readings.answer(few, effects)) == 1, "without FedSelect's runs and twice the passes"


def test_an_assignment_that_helps_local_as_much_is_told():
    table = scored().replace({"cifar10, epochs=15": "cifar10, allow_duplicate_classes=True"})
    table = table.replace({"epochs=15": "allow_duplicate_classes=True"})
    effects = readings.effects(table[table["method"] == "fedselect"], readings.by_passes(table))
    (found,) = [text for text in readings.answer(table, effects) if "of Local, too" in text]
    assert found.endswith(
        "of FedSelect +5.0. So this assignment deals other classes, and Local has most of FedSelect's gain."
    )
    assert readings.answer(table, effects)[1].endswith(
        "deals the classes in another way; on these clients Local has 76.0 %."
    )
    table.loc[table["acc_mean"] == 76.0, "acc_mean"] = 73.0
    effects = readings.effects(table[table["method"] == "fedselect"], readings.by_passes(table))
    assert not any("deals other classes" in text for text in readings.answer(table, effects))


def test_training_options_are_compared_without_combinations():
    tried = readings.training_options(scored(), ["local"])
    assert tried["setting"].tolist() == [readings.TEXT, "epochs=15", readings.TEXT, "epochs=15"]
    assert tried["method"].tolist() == ["FedSelect"] * 2 + ["Local"] * 2
