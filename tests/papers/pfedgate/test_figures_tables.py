"""Tables behind pFedGate's figures: labels, means and curves of hand-stored records."""

from dataclasses import replace

import pandas as pd

from pfl_core.papers.pfedgate import figures
from pfl_core.papers.pfedgate.paper import PAPER
from pfl_core.papers.pfedgate.results import studies
from tests.papers.pfedgate.test_results_studies import record as hand_stored


def record(*args, **options):
    """As that of ``test_results_studies``, with the series that the frame needs."""
    run = hand_stored(*args, **options)
    rounds, _ = run.series["correct"]
    more = {"loss": (rounds, [[1, 1]] * len(rounds)), "passes": ([2], [[1, 1]]), "upload": ([2], [[50, 100]])}
    return replace(run, series={**run.series, **more}, clients={"train": run.clients["train"][:2]})


def compared():
    runs = [record(keep_ratio=0.5), record(keep_ratio=0.5, keep_momentum=False), record(reading="authors_code")]
    runs += [record(name) for name in ("fedavg", "fedavg_ft", "local", "ditto")] + [
        record("fedavg", keep_momentum=False)
    ]
    return runs, figures.tables.comparison(PAPER.frame(runs), runs)


def test_labels_of_the_comparison():
    _, table = compared()
    assert table["label"].tolist() == [
        *("pFedGate, s = 0.5", "pFedGate, s = 0.5 (momentum restarts)", "pFedGate, s = 0.5 (released code)"),
        *("FedAvg", "FedAvg + FT", "Local", "Ditto", "FedAvg (momentum restarts)"),
    ]
    assert set(table["setting"]) == {"fashion_small"} and set(table["passes"]) == {1} and set(table["sent"]) == {0.75}


def test_per_fedavg_has_no_scores_after_local_training():
    """They are without the step that a client takes before use."""
    runs = [record(keep_ratio=0.5), record("perfedavg"), record("fedavg")]
    table = figures.tables.comparison(PAPER.frame(runs), runs)
    scores = table.set_index("method")[["acc_pooled_merged", "acc_pooled_trained"]].notna()
    assert scores["acc_pooled_merged"].all() and scores["acc_pooled_trained"].tolist() == [True, False, True]


def test_leads_of_the_comparison_are_over_other_methods_alone():
    """The released code's reading and other momentum are no rivals of pFedGate's own run."""
    cells = figures.tables.leads(compared()[1], "pFedGate, s = 0.5")
    assert cells["label"].tolist() == ["FedAvg", "FedAvg + FT", "Local", "Ditto", "FedAvg (momentum restarts)"]
    assert set(cells["dataset"]) == {"fashion_small"} and set(cells["lead"]) == {0.0}


def test_curves_of_the_comparison_have_the_references_and_no_variants():
    by_round = figures.tables.comparison_curves(*compared())
    assert list(dict.fromkeys(by_round["label"])) == ["pFedGate, s = 0.5", "FedAvg", "FedAvg + FT", "Local"]
    assert by_round.groupby("label")["value"].apply(list)["Local"] == [15.0, 35.0]


def test_means_over_seeds():
    rows = [("digits", "a", "k", seed, float(seed), 1.0) for seed in (1, 3)] + [("digits", "b", "r", 1, 5.0, 2.0)]
    table = pd.DataFrame(rows, columns=["setting", "label", "color", "seed", "x", "y"])
    cells = figures.tables.means(table, {"first": "x", "second": "y"})
    assert list(cells.columns) == ["dataset", "label", "color", "value", "std", "panel"]
    assert cells["value"].tolist() == [2.0, 5.0, 1.0, 2.0] and cells["std"].isna().tolist() == [False, True] * 2


def test_layouts_have_a_panel_for_each_budget_and_metric():
    table = pd.DataFrame(
        {
            "setting": "digits",
            "label": ["s = 0.5", "s = 0.3"],
            "selector": "exact",
            "block_layout": "output_rows",
            "x": 1.0,
        }
    )
    cells = figures.tables.layouts(table, {"mean": "x"})
    assert cells["panel"].tolist() == ["s = 0.5, mean", "s = 0.3, mean"]
    assert set(cells["label"]) == {"exact, output rows"} and set(cells["metric"]) == {"x"}


def test_captions_have_a_line_for_each_data_set():
    runs = [replace(record(), about="one"), replace(record(seed=1), about="two")]
    both = figures.tables.captions(runs)
    assert len(both.splitlines()) == 2 and "one" in both.splitlines()[0]
    assert figures.tables.captions_of(runs, [pd.DataFrame(index=[1])]) == both.splitlines()[1]
    assert figures.tables.captions_of(runs, []) == ""


def test_a_gate_has_one_colour_and_a_budget_has_its_label():
    runs = [record(), record(seed=1), record(sigmoid=False)]
    by_round = figures.tables.gate_curves(runs)
    assert by_round.groupby("label")["color"].nunique().to_dict() == {"full gate": 1, "no sigmoid": 1}
    runs = [record(keep_ratio=0.3), record("fedavg")]
    by_budget = figures.tables.budget_curves(runs, PAPER.frame(runs))
    assert set(by_budget["label"]) == {"pFedGate, s = 0.3", "FedAvg"}


def test_rows_over_budgets_have_the_columns_that_are_stored():
    table = pd.DataFrame({name: [1.0] for name in ("label", "seed", *figures.tables.OVER_BUDGETS, "order_range", "lr")})
    columns = figures.tables.over_budgets(table).columns
    assert "order_range" in columns and "lr" not in columns and "sorted_change" not in columns


def test_a_small_rate_is_part_of_the_label():
    slow = replace(record(), spec=replace(record().spec, setting="cifar10, lr_gate=0.05"))
    assert studies.part_and_rate(slow) == "full gate, gate's rate 0.05"
    assert studies.part_and_rate(record()) == "full gate"
