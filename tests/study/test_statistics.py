"""Differences over seeds with confidence intervals, and the rows that claim checks receive."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_core.papers.fedselect.comparison import COMPARISON
from pfl_core.study.statistics import (
    ALIKE,
    Missing,
    agreement,
    aside,
    best_preset,
    by_seed,
    claim_rows,
    interval,
    lead_cells,
    leads,
    paired,
    reading,
)
from tests.papers.fedselect.invented import rows
from tests.study.invented import NOISE, frame

# paired differences


def test_paired_by_hand():
    """Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.3027, half width 2.4841."""
    results = frame(rows("local", (11.0, 22.0, 33.0)), rows("fedavg", (10.0, 20.0, 30.0)))
    lead = paired(results, {"method": "local"}, {"method": "fedavg"})
    assert (lead.mean, lead.seeds) == (2.0, 3)
    assert (lead.low, lead.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert lead.status == "undecided" and str(lead) == "+2.00 [-0.48, +4.48]"


def test_numbers_aside_are_no_part_of_what_decides():
    results = frame(rows("local", (11.0, 22.0, 33.0)), rows("fedavg", (10.0, 20.0, 30.0)))
    with reading() as used:
        with aside():
            interval(by_seed(results, {"method": "local"}, "acc_mean"))
        assert not used.keys and not used.differences and not used.metrics
        paired(results, {"method": "local"}, {"method": "fedavg"})
    assert used.metrics == {"acc_mean"} and len(used.differences) == 1


def test_paired_uses_common_seeds_only():
    results = frame(rows("local", (11.0, 22.0, 99.0), seeds=(0, 1, 7)), rows("fedavg", (10.0, 20.0, 0.0)))
    assert paired(results, {"method": "local"}, {"method": "fedavg"}).mean == 1.5


def test_one_seed_decides_nothing():
    results = frame(rows("local", (90.0,), seeds=(0,)), rows("fedavg", (10.0,), seeds=(0,)))
    lead = paired(results, {"method": "local"}, {"method": "fedavg"})
    assert lead.status == "undecided" and math.isnan(lead.low) and str(lead) == "+80.00 (1 seed, no interval)"


def test_two_seeds_that_agree_decide_nothing_three_do():
    found = [
        paired(frame(rows("local", (v,) * n), rows("fedavg", (10.0,) * n)), {"method": "local"}, {"method": "fedavg"})
        for v, n in ((90.0, 2), (90.0, 3))
    ]
    assert [lead.status for lead in found] == ["undecided", "holds"]
    assert [str(lead) for lead in found] == ["+80.00 (2 equal seeds, no interval)", "+80.00 [+80.00, +80.00]"]


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=6), st.floats(-20, 20))
def test_paired_turns_with_its_arguments(differences, shift):
    seeds = tuple(range(len(differences)))
    results = frame(
        rows("local", tuple(d + shift for d in differences), seeds=seeds), rows("fedavg", (shift,) * 6, seeds=seeds)
    )
    forth = paired(results, {"method": "local"}, {"method": "fedavg"})
    back = paired(results, {"method": "fedavg"}, {"method": "local"})
    bounds = (-forth.mean, -forth.high, -forth.low)
    assert (back.mean, back.low, back.high) == pytest.approx(bounds, nan_ok=True)
    alike = len(differences) == 2 and abs((differences[0] + shift) - (differences[1] + shift)) < ALIKE
    assert math.isnan(forth.low) if alike else forth.low <= forth.mean <= forth.high
    assert {forth.status, back.status} in ({"undecided"}, {"holds", "does not hold"})


def test_paired_reports_missing_and_duplicate_rows():
    results = frame(rows("local", 70.0), rows("local", 71.0, data="another copy"), rows("ditto", 70.0, seeds=(7, 8, 9)))
    with pytest.raises(ValueError, match="several results: acc_mean of local, seed 0"):
        paired(results, {"method": "local"}, {"method": "local"})
    with pytest.raises(Missing, match="acc_mean of fedavg is not stored"):
        paired(results, {"method": "ditto"}, {"method": "fedavg"})
    with pytest.raises(Missing, match="local beta=1 is not stored"):
        paired(results, {"method": "local", "beta": 1.0}, {"method": "ditto"})


# rows for the claims


def test_claims_keeps_the_default_of_what_is_not_varied():
    results = frame(
        rows("fedselect", 80.0, "alpha=0.3"),
        rows("fedselect", 60.0, "alpha=0.3;p=0.25"),
        rows("fedselect", 50.0, "alpha=0.3;stem=cifar"),
        rows("local", 70.0),
    )
    kept = claim_rows(results, COMPARISON)
    assert kept["value"].round().astype(int).unique().tolist() == [80, 70]


def test_claims_keeps_a_fixed_field_with_one_value():
    kept = claim_rows(frame(rows("fedselect", 80.0, "alpha=0.3;p=0.25"), rows("local", 70.0)), COMPARISON)
    assert len(kept) == 6


def test_claims_takes_the_best_preset_and_the_fresh_run():
    results = frame(
        rows("local", 10.0, preset="quick"),
        rows("local", 20.0, preset="real", stale=True),
        rows("local", 30.0, preset="real"),
        rows("local", 40.0, preset="ci"),
        rows("local", 50.0, preset="paper", paper="pfedgate"),
    )
    assert claim_rows(results, COMPARISON)["value"].tolist() == [30 + noise for noise in NOISE]


def test_claims_takes_the_longest_runs_of_a_data_set():
    results = frame(rows("local", 10.0), rows("local", 20.0), rows("local", 30.0, dataset="mnist", data="mnist"))
    assert claim_rows(results.assign(rounds=[5] * 3 + [60] * 3 + [5] * 3), COMPARISON)[
        "value"
    ].round().unique().tolist() == [20, 30]


def test_claims_on_changed_runs_alone_are_judged_but_never_before_a_presets_own():
    results = frame(rows("local", 70.0, seeds=(0,)), rows("local", 71.0, seeds=(1,)))
    results = results.assign(preset=["real, changed", "quick"], rounds=3)
    assert best_preset(results)["preset"].tolist() == ["quick"]
    assert best_preset(results.iloc[:1])["preset"].tolist() == ["real, changed"]


def test_agreement_with_local_client_by_client():
    """Two seeds of two clients: scores that are Local's and one more everywhere, and scores in the opposite order."""
    local = [60.0, 70.0, 80.0, 90.0]
    scores = {"Local": local, "more": [value + 1 for value in local], "reversed": local[::-1]}
    table = pd.DataFrame(
        [
            {"label": label, "seed": i // 2, "client": i % 2, "accuracy": value}
            for label, values in scores.items()
            for i, value in enumerate(values)
        ]
    )
    found = agreement(table, "Local")
    assert found.loc["more"].tolist() == pytest.approx([1.0, 1.0, 1.0, 4])
    assert found.loc["reversed"].tolist() == pytest.approx([-1.0, 0.0, 20.0, 4])
    assert agreement(table[table["label"] != "Local"], "Local").empty


def test_a_run_whose_training_failed_is_no_rival():
    rows = [("own", 0, 80.0, False), ("own", 1, 81.0, False), ("rival", 0, 78.0, False), ("rival", 1, 50.0, True)]
    rows += [("diverged", 0, 50.0, True), ("diverged", 1, 50.0, True)]
    found = leads(pd.DataFrame(rows, columns=["label", "seed", "acc_mean", "failed"]), "own")
    assert found.loc["rival", ["mean", "own leads by", "seeds"]].tolist() == [78.0, 2.0, 1]
    assert found.loc["diverged", ["mean", "own leads by"]].isna().all() and found.loc["diverged", "seeds"] == 0


def test_lead_cells_have_a_row_for_each_rival_in_each_data_set_that_shares_a_seed():
    rows = [("a", "own", 0, 80.0), ("a", "own", 1, 84.0), ("a", "rival", 0, 78.0), ("a", "rival", 1, 80.0)]
    rows += [("b", "own", 0, 70.0), ("b", "rival", 0, 71.0), ("b", "late", 1, 71.0)]
    table = pd.DataFrame(rows, columns=["where", "label", "seed", "acc_mean"])
    cells = lead_cells(table.assign(color=table["label"].str[0]), "own", "where")
    assert cells[["where", "label", "color", "lead", "seeds"]].values.tolist() == [
        ["a", "rival", "r", 3.0, 2], ["b", "rival", "r", -1.0, 1],
    ]  # fmt: skip
    low, high = cells.loc[0, ["low", "high"]]
    assert 3 - low == pytest.approx(high - 3) and low == pytest.approx(3 - 12.706, abs=0.01)
    assert cells.loc[1, ["low", "high"]].isna().all()
