"""pFedGate's claims on invented runs: what makes each reproduced, not found, reversed or open."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from pfl_core.papers.pfedgate.benchmark import committed_rows
from pfl_core.papers.pfedgate.claims import BATCHES, MEAN, WORST
from pfl_core.papers.pfedgate.paper import PAPER, removed
from pfl_core.papers.pfedgate.settings import SETTINGS
from pfl_core.papers.pfedgate.theory import gate_bounds, loss_gap
from pfl_core.runs import Record
from pfl_core.study.claims import (
    NOT_FOUND,
    NOT_RUN,
    OPEN,
    REPRODUCED,
    REVERSED,
    Pick,
    by_standing,
    judge,
)
from pfl_core.study.claims import printed as numbers_of
from pfl_core.study.frame import frame
from tests.papers.invented_runs import judged, word

ONE_RUN = (15, 20, 21)  # the difference of two metrics of one run, in which the invented noise cancels


def picks(function):
    """A function of the level x that gives the score of each pick, from a function of x and the pick."""

    def at(x):
        def score(setting, method, metric, fields):
            s = fields.get("keep_ratio", 0.5)
            return function(x, SimpleNamespace(setting=setting, method=method, metric=metric, fields=fields, s=s))

        return score

    return at


def variant(setting, name, usual):
    """The number after "name=" in a setting's name."""
    return float(setting.partition(f"{name}=")[2] or usual)


def lead(x, p):
    """x points ahead of the others."""
    return 80.0 + x * (p.method == "pfedgate")


def parts(x, p):
    """Points lost: 1 without the norm after, x more without the norm before, again x more without the sigmoid."""
    lost = {"sigmoid": 1 + 2 * x, "pre_norm": 1 + x, "post_norm": 1}
    return 85.0 - sum(lost[name] for name, value in p.fields.items() if value is False)


def client_wise(x, p):
    """Faster by the factor 1 - x / 10, and x points worse."""
    x = x * (p.fields["gate_granularity"] == "client")
    return 10.0 * (1 - x / 10) if p.metric == "rounds_to_80" else 80.0 - x


def few(x, p):
    """x points less than 1.14 are lost with a fifth of the clients; by FedAvg 3 points."""
    lost = 3.0 if p.method == "fedavg" else 1.14 - x
    return 80.0 - lost * p.setting.endswith(", sampled")


def novel(x, p):
    """A gap of 1 - x points; with FedAvg and FedEM of 2."""
    return 80.0 - (1 - x if p.method == "pfedgate" else 2) * (p.metric == "acc_novel")


def rounds(x, p):
    """In the claimed order, x percent of the rounds after each other."""
    return 100.0 + x * (2 if p.method == "fedavg" else {1.0: 0, 0.5: 1, 0.3: 3}[p.s])


def epochs(x, p):
    """Eight epochs cost 1 + x points, two and four nothing."""
    return 80.0 - (1 + x) * (variant(p.setting, "epochs", 1) == 8)


def blocks(x, p):
    """x points more with five blocks; FedMask loses x points from s = 0.5 to 0.3."""
    if p.method == "fedmask":
        return 70.0 - x * (p.s == 0.3)
    return 80.0 - x * (p.fields.get("blocks_per_tensor", 5) != 5)


def budgets(x, p):
    """Half a point is lost to s = 0.3, x more points to s = 0.1."""
    return 80.0 - {1.0: 0, 0.5: 0.2, 0.3: 0.5, 0.1: 0.5 + x}[p.s]


def mixed(x, p):
    return (5 + x * (p.s == 0.1)) if p.metric == "client_spread" else 80.0 + x * (p.s == (0.5, 0.1))


def order(x, p):
    """Batches that follow the labels change the accuracy by x points more than a random order."""
    return 0.5 + x * (p.metric == "sorted_change")


def skew(x, p):
    """x points less at each step of α."""
    return 80.0 - x * (0.4, 0.2, 0.1, 0.01).index(variant(p.setting, "alpha", 0.4))


def sent(x, p):
    """x more of the model with each further epoch."""
    return 0.5 + x * (variant(p.setting, "epochs", 1) - 1) if p.metric == "upload_ratio" else 0.3


# claim -> score by x, spread, x of what is reproduced, not found and reversed
EFFECTS = {
    1: (lambda x, p: lead(x, p) if p.metric == MEAN else 0.0, 0.05, 10, 0, -5),
    2: (lambda x, p: lead(x, p) if p.metric == WORST else 0.0, 0.05, 10, 0, -5),
    4: (budgets, 0.1, 3, 0, -2),
    5: (lead, 0.1, 3, 0, -2),
    6: (mixed, 0.1, 3, 0, -3),
    7: (lambda x, p: 1 - x if p.metric == "step_ratio" else 0.5, 0.01, 0.3, 0, -0.3),
    8: (lambda x, p: x, 0.05, 3, 2.5, 4.5),
    9: (sent, 0.001, 0.05, 0, -0.02),
    10: (parts, 0.1, 2, 0, -2),
    11: (client_wise, 0.1, 3, 0, -3),
    12: (few, 0.02, 1, 0, -3),
    13: (novel, 0.05, 0.5, 0, -3),
    14: (rounds, 0.2, 20, 0, -20),
    15: (lambda x, p: 80.0 - x * p.metric.startswith("global_"), 0.1, 5, 0, -5),
    16: (epochs, 0.1, 2, 0, -2),
    17: (skew, 0.05, 2, 0, -1),
    18: (blocks, 0.1, 3, 0, -3),
    19: (lambda x, p: -x, 0.01, 0.4, 0, -0.4),
    20: (lambda x, p: 0.005 + x * (p.metric == "drift_first"), 1e-4, 0.003, 0, -0.003),
    21: (lambda x, p: 80.0 + x * p.metric.endswith("_trained"), 0.1, 3, 0, -3),
    23: (order, 0.05, 3, 0, -0.4),
    24: (lambda x, p: 0.1 + x * p.s, 0.002, 0.2, 0, -0.2),
}
COUNTS = {  # claim -> score by x, x of what is reproduced and reversed
    3: (lambda x, p: p.s - x, 0.05, -0.05),
    7: (lambda x, p: 1 - x if p.metric == "peak_ratio" else 0.5, 0.3, -0.3),
    22: (lambda x, p: 1 - x, 0, -1),
    25: (lambda x, p: 0.5 - x if p.metric == "gate_smallest" else 0.5 + x, 0.5, 0.6),
}


def cases_of_effects(number):
    score, spread, *levels = EFFECTS[number]
    score = picks(score)
    wide = {"seeds": 2} if number in (7, 9, *ONE_RUN) else {"spread": 1000 * spread}  # 7, 9: counts have no noise
    words = zip((REPRODUCED, NOT_FOUND, REVERSED), levels, strict=True)
    return [*((expected, score(x), {"spread": spread}) for expected, x in words), (OPEN, score(levels[0]), wide)]


def cases_of_counts(number):
    score, *levels = COUNTS[number]
    options = {"seeds": 3 if number == 7 else 1, "spread": 0.0}  # of claim 7, times are no counts
    return [(expected, picks(score)(x), options) for expected, x in zip((REPRODUCED, REVERSED), levels, strict=True)]


CASES = {
    number: (cases_of_effects(number) if number in EFFECTS else [])
    + (cases_of_counts(number) if number in COUNTS else [])
    for number in range(1, 26)
}


# ---- single claims --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["fedrep", "fedmask", "fedavg_ft"])
def test_one_better_baseline_is_enough(other):
    def score(setting, method, metric, fields):
        return {"pfedgate": 90.0, other: 95.0}.get(method, 70.0)

    assert word(PAPER, 1, score) == word(PAPER, 2, score) == REVERSED


def test_a_gate_that_did_not_act_decides_only_what_is_not_about_it():
    for number in (10, 20):
        score = picks(EFFECTS[number][0])(2.0)
        assert word(PAPER, number, score, spread=1e-4, inert=1.0) == OPEN
    assert word(PAPER, 15, picks(EFFECTS[15][0])(5.0), inert=1.0) == REPRODUCED


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"keep_ratio": 1.0}, False),
        ({"block_layout": "balanced"}, False),
        ({"post_norm": False}, True),
        ({"sigmoid": False, "without_sigmoid": "tangent"}, True),
        ({"gate_granularity": "client"}, True),
        ({"mask": "random"}, True),
        ({"gate_override": 1.0}, True),
    ],
)
def test_which_options_remove_the_gate(fields, expected):
    usual = dict(PAPER.usual_fields("pfedgate")) | {"gate_override": math.nan}  # as in a frame
    assert removed(usual | fields) is expected


def test_a_line_in_place_of_the_sigmoid_comes_first():
    def score(tangent):
        def of(setting, method, metric, fields):
            if fields.get("without_sigmoid") == "tangent":
                return tangent
            return 30.0 if "sigmoid" in fields else 85.0 - 2 * ("pre_norm" in fields)

        return of

    assert judged(PAPER, 10, score(84.0)).effects[0].outcome == REVERSED
    assert judged(PAPER, 10, score(None)).effects[0].outcome == REPRODUCED


def test_gates_with_a_large_bias_that_decays_say_nothing_on_the_histogram():
    def score(*named):
        def of(setting, method, metric, fields):
            given = any(fields.get(name) == 0 for name in named)
            return (0.005 + 0.003 * (metric == "drift_first")) if given else None

        return of

    assert word(PAPER, 20, score(), spread=1e-4) == NOT_RUN
    for names in (("scale_bias_init",), ("gate_weight_decay",), ("scale_bias_init", "gate_weight_decay")):
        assert word(PAPER, 20, score(*names), spread=1e-4) == REPRODUCED


def test_the_smaller_gap_of_fedavg_counts():
    def score(as_it_is, tuned):
        def of(setting, method, metric, fields):
            gap = {"fedavg": as_it_is, "fedavg_ft": tuned, "fedem": 3.0}.get(method, 0.5)
            return 80.0 - gap * (metric == "acc_novel")

        return of

    assert word(PAPER, 13, score(3.0, 2.0)) == word(PAPER, 13, score(2.0, 3.0)) == REPRODUCED
    assert word(PAPER, 13, score(3.0, 0.0)) == word(PAPER, 13, score(0.0, 3.0)) == REVERSED


def test_one_way_to_count_a_step_is_enough():
    def score(setting, method, metric, fields):
        return 4.0 if fields["e_step"] else 3.0

    assert word(PAPER, 8, score) == REPRODUCED
    assert {found.outcome for found in judged(PAPER, 8, score).effects if found.option == "with its E step"} == {
        REPRODUCED,
        REVERSED,
    }


def test_rounds_of_a_stand_in_are_those_of_runs_scored_in_each_round():
    asked = set()
    word(PAPER, 14, lambda setting, *pick: asked.add(setting))
    assert asked == {"cifar10", "emnist", "femnist", "cifar100", "fashion_mnist, each round", "mnist, each round"}


# ---- printed numbers ------------------------------------------------------------------------------------------------


def printed(*tables, at="cifar10", instead=None):
    base = at.partition(", ")[0]
    return Pick(PAPER, numbers_of(PAPER, tables, base, instead or base), at)


def test_printed_numbers():
    assert printed(13, 1)("fedmask").mean == 70.54  # Table 1 repeats FedEM's row
    assert printed(1)("fedmask").mean == printed(1)("fedem").mean == 72.43
    assert printed(1)("heterofl").mean == 70.97
    assert printed(10, at="emnist")(metric="global_acc_pooled", keep_ratio=0.1).mean == 76.45
    assert printed(10, at="emnist")(keep_ratio=0.1).mean == 83.58
    assert printed(11, at="emnist, epochs=4")(keep_ratio=1.0) and not printed(11, at="emnist, epochs=3")()
    assert printed(12, at="cifar10, alpha=0.1")() and printed(3, at="cifar10, sampled")("fedavg").mean == 66.31
    assert printed(13)(keep_ratio=0.3, blocks_per_tensor=10).mean == 72.48
    assert printed(6)("fedmd", public="cifar100", public_normalise="cifar10").mean == 67.52
    assert printed(8, at="cifar10, novel")("fedavg", "acc_participating").mean == 67.78
    for name in ("fedavg", "fedavg_ft"):
        assert printed(8, at="cifar10, novel")(name, "acc_novel").mean == 66.15
    assert not printed(7)(metric="lr_gate")


def test_printed_numbers_of_gates_without_a_part():
    pick = printed(4, at="emnist")
    found = {name: pick(**{name: False}).mean for name in ("sigmoid", "pre_norm", "post_norm")}
    assert found == {"sigmoid": 83.55, "pre_norm": 86.25, "post_norm": 87.14}
    assert pick(sigmoid=False, without_sigmoid="tangent").mean == 83.55
    assert pick(metric="rounds_to_80", gate_granularity="client").mean == 0.74 and pick().mean == 87.28


def test_printed_numbers_for_a_stand_in():
    later = printed(9, at="fashion_mnist, each round", instead="emnist")
    assert later("fedavg", "rounds_to_90").mean == 72.3
    assert printed(9)("fedavg", "rounds_to_90").mean == 253.1


def test_printed_costs_are_relative_to_fedavg():
    pick = printed(2, at=BATCHES[1])
    assert pick(metric="step_ratio", keep_ratio=0.3).mean == pytest.approx(0.72, abs=0.005)
    assert pick(metric="peak_ratio", keep_ratio=0.3).mean == pytest.approx(0.66, abs=0.005)
    assert pick("fedavg", "step_ratio").mean == 1
    ratios = {pick("fedem", "step_ratio", e_step=counted).mean for counted in (True, False)}
    assert len(ratios) == 1 and ratios.pop() == pytest.approx(2.93, abs=0.005)


# ---- measurements and metrics ---------------------------------------------------------------------------------------


def test_the_committed_measurements_decide_claims_7_and_8():
    runs = frame(committed_rows())
    assert set(runs["setting"]) == set(BATCHES) and set(runs["preset"]) == {"real"}
    cheaper, three = judge(PAPER, runs, [7, 8])
    assert {found.preset for found in (*cheaper.effects, *three.effects)} == {"real"}
    times = {found.setting: found for found in cheaper.effects if not found.exact}
    of = runs[(runs["method"] == "pfedgate") & (runs["keep_ratio"] == 0.3) & (runs["changed"] == ("keep_ratio",))]
    for name, rows in of.groupby("setting"):
        assert times[name].seeds == len(rows) == 10
        assert times[name].mean == pytest.approx(rows["step_ratio"].mean())
    assert all(found.seeds == 1 for found in cheaper.effects if found.exact)


def test_no_method_is_measured_twice_in_a_turn():
    real = next(found for found in by_standing(PAPER, frame(committed_rows())) if found.preset == "real")
    for setting in BATCHES:
        pick = Pick(PAPER, real, setting)
        assert len(pick(metric="step_ratio", keep_ratio=0.5).by_seed) == 10  # not the other layouts of blocks
        assert pick("fedem", "step_ratio", e_step=True).mean > pick("fedem", "step_ratio", e_step=False).mean


def record(**changes) -> Record:
    """Three clients; the second one has no test images, the third one did not take part in round 4."""
    nan = math.nan
    series = {
        "loss": ([2, 4], [[3.0, nan, 3.0], [0.9, nan, 0.8]]),
        "train_loss": ([1, 2, 3, 4], [[2.0, 2.0, 2.0]] * 3 + [[0.5, 0.4, nan]]),
    }
    return Record("", SETTINGS.spec("pfedgate", preset="ci"), series | changes.pop("series", {}), **changes)


def test_the_gap_of_test_and_training_loss():
    assert loss_gap(record())["loss_gap"] == pytest.approx(0.4)
    assert loss_gap(Record("", SETTINGS.spec("local", preset="ci"), {"loss": ([1], [[1.0]])})) == {}


def test_bounds_of_the_gate_values():
    values = np.array([[0.0, 0.5], [0.25, 0.9]])
    assert gate_bounds(record(arrays={"gate_values": values})) == {"gate_smallest": 0.0, "gate_largest": 0.9}
    assert gate_bounds(record()) == {}
    assert {loss_gap, gate_bounds} <= set(PAPER.extra_metrics)


def test_committed_measurements_are_rows_of_the_frame():
    measured = frame(PAPER.measured_rows())
    assert (
        set(measured["setting"]) == set(BATCHES)
        and len(measured) == len(committed_rows())
        and not measured["key"].duplicated().any()
    )
