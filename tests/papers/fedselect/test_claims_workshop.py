"""Claims 18 to 22 on small synthetic results: each check can hold, fail, and stay undecided."""

import math

import numpy as np
import pytest

from pfl_core.papers.fedselect.claims.workshop import BASELINES, FOUR, RATES, SETTINGS, TWO
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.runs import Record
from tests.papers.fedselect.invented import exact, rows, status, verdict
from tests.study.invented import noisy

ALL = dict.fromkeys(BASELINES, 70.0)


def gradltn(values, setting, metric="acc_mean"):
    """The workshop version at several p: {p: value}; p = 0.50 is the method's default and has no variant."""
    names = {p: "" if p == 0.5 else f"keep_rate={p}" for p in values}
    return [row for p, v in values.items() for row in rows("fedselect_gradltn", v, names[p], metric, setting=setting)]


def others(values, setting):
    return [row for name, value in values.items() for row in rows(name, value, setting=setting)]


def test_18_one_p_beats_all_in_both():
    rivals = others(ALL, TWO), others(ALL, FOUR)
    own = {0.25: 60.0, 0.5: 80.0, 0.75: 60.0}
    found = verdict(18, *rivals, gradltn(own, TWO), gradltn(own, FOUR))
    assert found.status == "holds" and "p=0.50: workshop s=2: least lead +10.00 [+10.00, +10.00]" in found.numbers
    low = dict.fromkeys(RATES, 60.0)
    assert status(18, *rivals, gradltn(own, TWO), gradltn(low, FOUR)) == "does not hold"
    assert status(18, *rivals, gradltn(own, TWO), gradltn(low | {0.25: 80.0}, FOUR)) == "does not hold"  # not one p
    assert status(18, *rivals, gradltn(own, TWO), gradltn(low | {0.5: noisy(70.0)}, FOUR)) == "undecided"


def test_18_with_missing_results():
    own = gradltn({0.5: 80.0}, TWO), gradltn({0.5: 80.0}, FOUR)
    assert status(18, *own, others(ALL, TWO), others(ALL, FOUR)) == "holds"
    part = verdict(18, *own, others(ALL, TWO), others({"fedavg": 70.0}, FOUR))
    assert part.status == "undecided" and "without lotteryfl, fedbabu" in part.numbers
    assert status(18, *own, others(ALL, TWO)) == "undecided"
    lost = [gradltn(dict.fromkeys(RATES, 60.0), setting) for setting in SETTINGS]
    assert status(18, *lost, others({"fedavg": 70.0}, TWO)) == "does not hold"


def test_18_other_searches_are_other_experiments():
    own = [rows("fedselect_gradltn", 80.0, "num_search_iters=2", setting=setting) for setting in SETTINGS]
    assert status(18, *own, others(ALL, TWO), others(ALL, FOUR)) == "undecided"


def test_19_spread_over_p():
    alike, ahead = {0.25: 80.0, 0.5: 80.5, 0.75: 81.0}, {0.25: 70.0, 0.5: 71.0, 0.75: 70.5}
    assert status(19, gradltn(alike, TWO), gradltn(ahead, FOUR)) == "holds"
    assert status(19, gradltn(alike | {0.75: 83.0}, TWO), gradltn(ahead, FOUR)) == "does not hold"
    assert status(19, gradltn(alike | {0.25: 84.0}, TWO), gradltn(ahead, FOUR)) == "does not hold"
    assert status(19, gradltn(alike, TWO), gradltn(ahead | {0.75: 72.0}, FOUR)) == "does not hold"
    assert status(19, gradltn(alike | {0.75: noisy(81.0)}, TWO), gradltn(ahead, FOUR)) == "undecided"
    assert status(19, gradltn(alike, TWO), gradltn({0.5: 71.0}, FOUR)) == "undecided"
    assert status(19, gradltn(alike, TWO)) == "undecided"


HURT = {"fedavg": -9.0, "fedbabu": -8.0, "fedper": -8.0}
EASIER = {"ditto": 5.0, "fedrep": 5.0, "lg_fedavg": 5.0, "lotteryfl": 5.0}


def fewer(changes, own=5.0):
    """Accuracies of 70 with four classes, and with two classes 70 plus the changes."""
    with_two = {name: 70.0 + change for name, change in changes.items()}
    runs = others(dict.fromkeys(changes, 70.0), FOUR) + others(with_two, TWO)
    return runs + gradltn({0.5: 70.0}, FOUR) + gradltn({0.5: 70.0 + own}, TWO)


def test_20_losses_and_gains_from_fewer_classes():
    found = verdict(20, fewer(HURT | EASIER))
    assert found.status == "holds" and "fedavg: -9.00 [-9.00, -9.00]" in found.numbers
    assert "fedper: -8.00 [-8.00, -8.00], more than 0.5 of fedavg's loss by +3.50" in found.numbers
    assert status(20, fewer(HURT | EASIER | {"fedper": 1.0})) == "does not hold"
    assert status(20, fewer(HURT | EASIER | {"fedper": -4.0})) == "does not hold"  # a loss, but not like FedAvg's
    assert status(20, fewer({"fedper": -8.0, "fedbabu": -8.0} | EASIER)) == "undecided"
    assert status(20, fewer(HURT | EASIER | {"ditto": -1.0})) == "does not hold"
    assert status(20, fewer(HURT | EASIER, own=-1.0)) == "does not hold"
    assert status(20, fewer(HURT | {"ditto": 5.0})) == "undecided"
    mixed = others(ALL, FOUR) + others(ALL | {"fedavg": noisy(69.0)}, TWO)
    assert status(20, mixed) == "undecided"


def test_21_overlap_against_chance():
    def found(two, four=0.1):
        raw = [gradltn({0.5: 0.9}, setting, "iou_raw") for setting in SETTINGS]
        corrected = (exact("fedselect_gradltn", v, "iou_chance", setting=s) for s, v in ((TWO, two), (FOUR, four)))
        return status(21, *raw, *corrected)

    assert (found(0.2), found(0.7), found(0.2, 0.7)) == ("holds", "does not hold", "does not hold")
    assert found(math.nan) == "undecided"
    raw = [gradltn({0.5: 0.1}, setting, "iou_raw") for setting in SETTINGS]
    spread = [rows("fedselect_gradltn", (0.1, 0.5, 0.6), metric="iou_chance", setting=setting) for setting in SETTINGS]
    assert status(21, *raw, *spread) == status(21, *raw) == "undecided"


def sends(shares, setting):
    return [
        row
        for p, share in shares.items()
        for row in exact("fedselect_gradltn", share, "uplink_fraction", f"keep_rate={p}", setting=setting)
    ]


def test_22_upload():
    counted = {0.25: 0.9990, 0.5: 0.9688, 0.75: 0.7627}
    found = verdict(22, sends(counted, TWO), sends(counted, FOUR))
    assert found.status == "holds"
    assert "p=0.50 0.9688 (1.0000 with the mask)" in found.numbers
    assert status(22, sends(counted | {0.75: 0.5}, TWO), sends(counted, FOUR)) == "does not hold"
    turned = dict(zip(counted, reversed(counted.values()), strict=True))
    assert status(22, sends(turned, TWO), sends(counted, FOUR)) == "does not hold"
    assert status(22, sends(counted, TWO)) == "undecided"
    assert status(22, sends({0.5: 0.9688}, TWO), sends(counted, FOUR)) == "undecided"


def test_the_methods_and_rates_are_those_of_the_experiment():
    made = PAPER.specs("06_workshop_gradltn", "real", [0])
    assert {one.setting for one in made} == set(SETTINGS)
    assert {one.method["name"] for one in made} == {"fedselect_gradltn", *BASELINES}
    assert {one.method.get("keep_rate") for one in made} - {None} == set(RATES)
    runs = [rows(one.method["name"], 70.0, PAPER.variant(one), setting=one.setting) for one in made]
    for number in (18, 19, 20):
        assert "not stored" not in verdict(number, *runs).numbers


def test_overlap_in_the_metrics_frame_by_hand(monkeypatch):
    """Masks of two of four entries with one in common: 1/3 raw; chance has 1/3 too (densities 1/2), so 0 corrected."""
    monkeypatch.setattr(Record, "stale", False)
    spec = PAPER.settings.spec("fedselect_gradltn", preset="ci", dataset="workshop s=2")
    series = {name: ([1], [[1, 1]]) for name in ("correct", "count", "loss")}
    arrays = {"overlap/head.weight": np.array([[2, 1], [1, 2]]), "size/head.weight": 4}
    frame = PAPER.metrics_frame([Record("", spec, series, arrays, clients={"train": [[1, 0], [1, 0]]}, num_params=4)])
    found = frame.set_index("metric")["value"]
    assert (found["iou_raw"], found["iou_chance"]) == (pytest.approx(1 / 3), pytest.approx(0.0))
