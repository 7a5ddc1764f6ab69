"""What makes each of Star-PFL's claims reproduced, not found, reversed or open, on invented runs."""

import math

from pfl_core.papers.star_pfl.claims import MERGED, SENT, TRAINED
from pfl_core.papers.star_pfl.experiments import PARTS
from pfl_core.papers.star_pfl.paper import PAPER, removed
from pfl_core.study.claims import NOT_FOUND, NOT_RUN, OPEN, REPRODUCED, REVERSED
from tests.papers.invented_runs import printed

FLOPS, ROUNDS = "flops_1e10_per_round", "rounds_to_95_val"


def by_method(other, **means):
    """A mean for each method, at every metric and setting."""
    return lambda setting, method, metric, fields: means.get(method, other)


def by_metric(means):
    """A mean for each metric, whatever the method."""
    return lambda setting, method, metric, fields: means.get(metric)


def by_part(unchanged=None, **means):
    """A mean for each part that an ablation leaves out."""
    names = {tuple(options): name.replace(" ", "_") for name, options in PARTS.items()}

    def score(setting, method, metric, fields):
        mean = means.get(names.get(tuple(n for n in fields if n != "partition_alpha"), ""), unchanged)
        return mean.get(metric) if isinstance(mean, dict) else mean

    return score


def ahead(points, missing=lambda method, fields: False):
    """Star-PFL has this many points more than the others."""

    def score(setting, method, metric, fields):
        return None if missing(method, fields) else 80 + points * (method == "star_pfl")

    return score


def until_convergence(rounds, sent):
    """Of Star-PFL; the others need 20 rounds and send 100. All have the same operations."""
    own, others = {ROUNDS: rounds, SENT: sent, FLOPS: 100}, {ROUNDS: 20, SENT: 100, FLOPS: 100}
    return lambda setting, method, metric, fields: (own if method == "star_pfl" else others)[metric]


def slopes(**points):
    """Points of accuracy for each factor of ten in α, by method."""
    return lambda setting, method, metric, fields: 80 + points[method] * math.log10(fields["partition_alpha"])


def probes(trained, merged):
    """How much the probes gain, by the point of scoring."""
    plain, frozen = {TRAINED: 80 + trained, MERGED: 80 + merged}, {TRAINED: 80, MERGED: 80}
    return by_part(plain, never_thawed=frozen)


def choice(trained, merged):
    """How much more accurate the stable entries are than random ones, by the point of scoring."""
    return by_part({TRAINED: 80 + trained, MERGED: 80 + merged}, random_entries={TRAINED: 80, MERGED: 80})


def local_training(gain, of_mask):
    plain = {"local_gain": gain, TRAINED: 80}
    return by_part(no_mask=plain, local_mask_alone={TRAINED: 80 + of_mask})


def cancelled(clients, server):
    """The share of entries whose updates cancel; by chance 10."""
    return by_metric({"chance_local": 10, "chance_global": 10, "cancelled_local": clients, "cancelled_global": server})


COUNTS = {"spread": 0, "seeds": 1, "inert": 1.0, "late_change": 1.0}  # for which there are no conditions
CLOSE = {"spread": 0.01}

CASES = {
    1: [
        (REPRODUCED, by_method(80, star_pfl=90), {}),
        (REPRODUCED, by_method(80, star_pfl=90, fedbn=95), {}),  # second
        (NOT_FOUND, by_method(80, star_pfl=90, fedbn=95, fedap=90), {"seeds": 60}),  # second or third, by chance
        (OPEN, by_method(80, star_pfl=90), {"spread": 10}),
        (REVERSED, by_method(80, star_pfl=90, fedbn=95, fedap=95), {}),
        (NOT_RUN, by_method(80, star_pfl=90, local=None), {}),  # no rank among five
    ],
    2: [
        (REPRODUCED, ahead(2), {}),
        (NOT_FOUND, ahead(0), {}),
        (OPEN, ahead(2), {"preset": "real", "late_change": 1.0}),  # still improving
        (REVERSED, ahead(-2), {}),
        (NOT_RUN, ahead(0, lambda method, fields: fields["partition_alpha"] == 1.0 and method == "fedap"), {}),
    ],
    3: [
        (REPRODUCED, until_convergence(10, 100), {}),
        (NOT_FOUND, until_convergence(20, 80), {}),  # the baselines' mean counts training alone as sending nothing
        (REVERSED, until_convergence(20, 100), {}),  # one of two costs is enough
        (REVERSED, until_convergence(30, 100), {}),
    ],
    4: [
        (REPRODUCED, by_method(3, star_pfl=2), COUNTS),
        (REPRODUCED, by_method(3, star_pfl=2, local=0), COUNTS),
        (REVERSED, by_method(3, lotteryfl=1), COUNTS),
    ],
    5: [
        (REPRODUCED, by_method(20, fedbn=40, fedap=40, lotteryfl=10), {}),
        (NOT_FOUND, by_method(20, fedbn=20, fedap=40, lotteryfl=10), {}),
        (OPEN, by_method(20, fedbn=40, fedap=40, lotteryfl=10), {"spread": 15}),
        (REVERSED, by_method(20, fedbn=10, fedap=40, lotteryfl=10), {}),
        (REVERSED, by_method(20, fedbn=40, fedap=40, lotteryfl=30), {}),
    ],
    6: [
        (REPRODUCED, by_part(no_mask={"size_correlation": 0.05}), CLOSE),
        (OPEN, by_part(no_mask={"size_correlation": 0.1}), CLOSE),
        (REVERSED, by_part(no_mask={"size_correlation": 0.2}), CLOSE),
    ],
    7: [
        (REPRODUCED, by_metric({"stable_contrast": 0.1}), CLOSE),
        (NOT_FOUND, by_metric({"stable_contrast": 0.0}), {"spread": 0.005}),
        (OPEN, by_metric({"stable_contrast": 0.0}), {}),
        (OPEN, by_metric({"stable_contrast": 0.1}), CLOSE | {"seeds": 1}),
        (REVERSED, by_metric({"stable_contrast": -0.1}), CLOSE),
    ],
    8: [
        (REPRODUCED, slopes(local=-2, fedavg=1), {}),
        (NOT_FOUND, slopes(local=-2, fedavg=0), {}),
        (REVERSED, slopes(local=-2, fedavg=-1), {}),
        (REVERSED, slopes(local=2, fedavg=1), {}),
    ],
    9: [
        (REPRODUCED, by_part(80, no_mask=80), {}),
        (OPEN, by_part(79.5, no_mask=80), {}),  # the bound is a tolerance, so there is no margin
        (REVERSED, by_part(78, no_mask=80), {}),
    ],
    10: [
        (REPRODUCED, probes(2, -2), {}),  # one scoring point is enough
        (NOT_FOUND, probes(0, -2), {}),
        (REVERSED, probes(-2, -2), {}),
    ],
    11: [
        (REPRODUCED, local_training(5, 1), {}),
        (NOT_FOUND, local_training(5, 5), {}),
        (REVERSED, local_training(5, -8), {}),  # the mask changes more, to the worse
        (REVERSED, local_training(-5, 0), {}),
    ],
    12: [
        (REPRODUCED, cancelled(30, 30), {}),
        (NOT_FOUND, cancelled(30, 10), {}),
        (OPEN, cancelled(30, 30), {"seeds": 2}),
        (REVERSED, cancelled(30, 0), {}),
        (REPRODUCED, cancelled(30, 30), {"inert": 1.0}),  # the claim asks whether the mechanism acts
    ],
    13: [
        (REPRODUCED, choice(2, -2), {}),  # one scoring point is enough
        (REPRODUCED, choice(2, 2), {"inert": 1.0}),  # asked of what was frozen, whether or not scores have settled
        (NOT_FOUND, choice(0, 0), {}),
        (REVERSED, choice(-2, -2), {}),
    ],
}


def test_printed_effects():
    assert printed(PAPER, 1) == {"axial": [1, 1, 2, 2, 2, 2], "sagital": [1] * 6}
    assert printed(PAPER, 2) == {"axial": [1.88] * 2, "sagital": [4.4] * 2}
    assert printed(PAPER, 3) == {"axial": [40.96, 26.43], "sagital": [31.70, 10.11]}
    assert printed(PAPER, 5) == {"axial": [2.24, 1.34, 1.78], "sagital": [2.26, 1.74, 1.63]}
    assert printed(PAPER, 8) == {"axial": [-2.84, 0.55], "sagital": [-5.56, 1.32]}
    assert all(not any(printed(PAPER, number).values()) for number in (6, 7, 9, 10, 11, 12, 13))


def test_the_mechanism_is_removed_without_thresholds_or_probes():
    assert removed({"changed": ["freeze", "thaw"], "thaw": False})
    assert not removed({"changed": ["freeze"], "freeze": "random"})
    both = ["threshold_global", "threshold_local"]
    assert removed({"changed": both, "threshold_global": math.nan, "threshold_local": None})
    assert not removed({"changed": both, "threshold_global": 0.2, "threshold_local": 0.2})
    assert not removed({"changed": both[:1], "threshold_global": None, "threshold_local": 0.1})
    assert not removed({"changed": [], "threshold_global": 0.1, "threshold_local": 0.1})
