"""What makes each of Star-PFL's claims reproduced, not found, reversed or open, on invented runs."""

import math

import pytest

from pfl_core.papers.star_pfl.claims import MERGED, SENT, TRAINED
from pfl_core.papers.star_pfl.experiments import PARTS
from pfl_core.papers.star_pfl.paper import PAPER, nothing_frozen
from tests.papers.invented_runs import judged, word

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


def tells(number, score, expected, **options):
    assert word(PAPER, number, score, **options) == expected


def printed(number):
    """The printed numbers of a claim's effects, by setting; two scoring points have the same."""
    found = {}
    for effect in judged(PAPER, number, by_method(None)).effects:
        found.setdefault(effect.setting, []).extend(round(number, 2) for number in effect.printed)
    return found


@pytest.mark.parametrize(
    ("expected", "means", "options"),
    [
        ("reproduced", {"star_pfl": 90}, {}),
        ("reproduced", {"star_pfl": 90, "fedbn": 95}, {}),  # second
        ("not found", {"star_pfl": 90, "fedbn": 95, "fedap": 90}, {"seeds": 60}),  # second or third, by chance
        ("open", {"star_pfl": 90}, {"spread": 10}),
        ("open", {"star_pfl": 90}, {"seeds": 2}),
        ("reversed", {"star_pfl": 90, "fedbn": 95, "fedap": 95}, {}),
        ("not run", {"star_pfl": 90, "local": None}, {}),  # no rank among five
    ],
)
def test_1_rank(expected, means, options):
    tells(1, by_method(80, **means), expected, **options)


@pytest.mark.parametrize(
    ("expected", "lead", "options"),
    [
        ("reproduced", 2, {}),
        ("not found", 0, {}),
        ("open", 0, {"spread": 10}),
        ("open", 2, {"preset": "real", "late_change": 1.0}),  # still improving
        ("reversed", -2, {}),
    ],
)
def test_2_lead_over_the_mean(expected, lead, options):
    tells(2, by_method(80, star_pfl=80 + lead), expected, **options)


def test_2_needs_every_alpha():
    def score(setting, method, metric, fields):
        return None if fields["partition_alpha"] == 1.0 and method == "fedap" else 80

    tells(2, score, "not run")


@pytest.mark.parametrize(
    ("expected", "rounds", "sent", "options"),
    [
        ("reproduced", 10, 100, {}),
        ("not found", 20, 80, {}),  # the baselines' mean counts training alone as sending nothing
        ("open", 20, 80, {"spread": 10}),
        ("reversed", 20, 100, {}),  # one of two costs is enough
        ("reversed", 30, 100, {}),
    ],
)
def test_3_until_convergence(expected, rounds, sent, options):
    means = {"star_pfl": {ROUNDS: rounds, SENT: sent, FLOPS: 100}}
    others = {ROUNDS: 20, SENT: 100, FLOPS: 100}
    tells(3, lambda setting, method, metric, fields: means.get(method, others)[metric], expected, **options)


@pytest.mark.parametrize(
    ("expected", "means"),
    [("reproduced", {"star_pfl": 2}), ("reproduced", {"star_pfl": 2, "local": 0}), ("reversed", {"lotteryfl": 1})],
)
def test_4_costs_of_a_round(expected, means):
    tells(4, by_method(3, **means), expected, spread=0, seeds=1, inert=1.0, late_change=1.0)  # counts: no conditions


@pytest.mark.parametrize(
    ("expected", "means", "options"),
    [
        ("reproduced", {"fedbn": 40, "fedap": 40, "lotteryfl": 10}, {}),
        ("not found", {"fedbn": 20, "fedap": 40, "lotteryfl": 10}, {}),
        ("open", {"fedbn": 40, "fedap": 40, "lotteryfl": 10}, {"spread": 15}),
        ("reversed", {"fedbn": 10, "fedap": 40, "lotteryfl": 10}, {}),
        ("reversed", {"fedbn": 40, "fedap": 40, "lotteryfl": 30}, {}),
    ],
)
def test_5_rounds(expected, means, options):
    tells(5, by_method(20, **means), expected, **options)


@pytest.mark.parametrize(
    ("expected", "value", "spread"),
    [("reproduced", 0.05, 0.01), ("open", 0.1, 0.01), ("reversed", 0.2, 0.01), ("reversed", -0.2, 0.01)],
)
def test_6_size(expected, value, spread):
    tells(6, by_part(no_mask={"size_correlation": value}), expected, spread=spread)


@pytest.mark.parametrize(
    ("expected", "value", "options"),
    [
        ("reproduced", 0.1, {"spread": 0.01}),
        ("not found", 0.0, {"spread": 0.005}),
        ("open", 0.0, {"spread": 0.1}),
        ("open", 0.1, {"spread": 0.01, "seeds": 1}),
        ("reversed", -0.1, {"spread": 0.01}),
    ],
)
def test_7_like_labels(expected, value, options):
    tells(7, by_metric({"stable_contrast": value}), expected, **options)


@pytest.mark.parametrize(
    ("expected", "local", "fedavg", "options"),
    [
        ("reproduced", -2, 1, {}),
        ("not found", -2, 0, {}),
        ("open", -2, 0, {"spread": 5}),
        ("reversed", -2, -1, {}),
        ("reversed", 2, 1, {}),
    ],
)
def test_8_alpha(expected, local, fedavg, options):
    slopes = {"local": local, "fedavg": fedavg}

    def score(setting, method, metric, fields):
        return 80 + slopes[method] * math.log10(fields["partition_alpha"])

    tells(8, score, expected, **options)


@pytest.mark.parametrize(
    ("expected", "gain", "options"),
    [
        ("reproduced", 0, {}),
        ("open", -0.5, {}),  # the bound is a tolerance, so there is no margin
        ("open", -0.5, {"spread": 5}),
        ("open", 0, {"inert": 1.0}),
        ("reversed", -2, {}),
    ],
)
def test_9_freezing(expected, gain, options):
    tells(9, by_part(80 + gain, no_mask=80), expected, **options)


@pytest.mark.parametrize(
    ("expected", "trained", "merged", "options"),
    [
        ("reproduced", 2, -2, {}),  # one scoring point is enough
        ("not found", 0, -2, {}),
        ("open", 0, -2, {"spread": 5}),
        ("open", 2, 2, {"inert": 1.0}),
        ("reversed", -2, -2, {}),
    ],
)
def test_10_probes(expected, trained, merged, options):
    plain, frozen = {TRAINED: 80 + trained, MERGED: 80 + merged}, {TRAINED: 80, MERGED: 80}
    tells(10, by_part(plain, never_thawed=frozen), expected, **options)


@pytest.mark.parametrize(
    ("expected", "gain", "of_mask", "options"),
    [
        ("reproduced", 5, 1, {}),
        ("not found", 5, 5, {}),
        ("open", 5, 5, {"spread": 3}),
        ("reversed", 5, -8, {}),  # the mask changes more, to the worse
        ("reversed", -5, 0, {}),
    ],
)
def test_11_local_training(expected, gain, of_mask, options):
    plain = {"local_gain": gain, TRAINED: 80}
    tells(11, by_part(no_mask=plain, local_mask_alone={TRAINED: 80 + of_mask}), expected, **options)


@pytest.mark.parametrize(
    ("expected", "clients", "server", "options"),
    [
        ("reproduced", 30, 30, {}),
        ("not found", 30, 10, {}),
        ("open", 30, 30, {"seeds": 2}),
        ("reversed", 30, 0, {}),
        ("reproduced", 30, 30, {"inert": 1.0}),  # the claim asks whether the mechanism acts
    ],
)
def test_12_noise(expected, clients, server, options):
    frozen = {"cancelled_local": clients, "cancelled_global": server}
    tells(12, by_metric({"chance_local": 10, "chance_global": 10} | frozen), expected, **options)


def test_printed_effects():
    assert printed(1) == {"axial": [1, 1, 2, 2, 2, 2], "sagital": [1] * 6}
    assert printed(2) == {"axial": [1.88] * 2, "sagital": [4.4] * 2}
    assert printed(3) == {"axial": [40.96, 26.43], "sagital": [31.70, 10.11]}
    assert printed(5) == {"axial": [2.24, 1.34, 1.78], "sagital": [2.26, 1.74, 1.63]}
    assert printed(8) == {"axial": [-2.84, 0.55], "sagital": [-5.56, 1.32]}
    assert all(not any(printed(number).values()) for number in (6, 7, 9, 10, 11, 12))


def test_the_mechanism_is_removed_without_thresholds():
    both = ["threshold_global", "threshold_local"]
    assert nothing_frozen({"changed": both, "threshold_global": math.nan, "threshold_local": None})
    assert not nothing_frozen({"changed": both, "threshold_global": 0.2, "threshold_local": 0.2})
    assert not nothing_frozen({"changed": both[:1], "threshold_global": None, "threshold_local": 0.1})
    assert not nothing_frozen({"changed": [], "threshold_global": 0.1, "threshold_local": 0.1})
