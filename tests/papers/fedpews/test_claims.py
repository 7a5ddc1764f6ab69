"""What makes each of FedPeWS's claims reproduced, not found, reversed and open, on invented runs."""

from pathlib import Path

import pandas as pd
import pytest

from pfl_core.papers.fedpews import claims
from pfl_core.papers.fedpews.experiments import ALPHAS, LAMBDAS, TAUS
from pfl_core.papers.fedpews.paper import PAPER
from pfl_core.papers.fedpews.settings import COLUMNS
from pfl_core.study import published
from pfl_core.study.claims import NOT_FOUND, NOT_RUN, OPEN, REPRODUCED, REVERSED
from pfl_core.study.claims import printed as numbers_of
from tests.papers.invented_runs import judged, printed

RATES = list(COLUMNS)
REGION = {"cifar_mnist": {0.4, 0.5}, "path_oct_tissue": {0.2, 0.4}}


def of_pair(metric, base, difference):
    """The method ``base`` has 100, the warm-up on it 100 + ``difference``; nothing else was run."""

    def score(setting, method, name, fields):
        of_base = {"fedpews": fields.get("base", "fedavg") == base, base: True}.get(method, False)
        return 100.0 + (difference if method == "fedpews" else 0) if name == metric and of_base else None

    return score


def outcomes(number, score, **runs):
    return {(found.setting, found.effect): found.outcome for found in judged(PAPER, number, score, **runs).effects}


def faster(saved):
    """The warm-up of FedAvg needs this many rounds less."""
    return of_pair("rounds_to_target", "fedavg", -saved)


def better(gain):
    return of_pair("acc_pooled", "fedavg", gain)


def four_clients(plain, unrewarded):
    """The late accuracy of FedAvg, and of the warm-up with λ = 0."""

    def score(setting, method, metric, fields):
        levels = {"fedavg": plain, "fedpews": unrewarded if fields.get("lam") == 0 else None}
        return levels[method] if metric == "acc_late" else None

    return score


def of_prox(saved, *gains):
    """Rounds saved by the warm-up of FedProx, and its gains by column."""

    def score(setting, method, metric, fields):
        if metric == "rounds_to_target":
            return of_pair(metric, "fedprox", -saved)(setting, method, metric, fields)
        gain = gains[RATES.index(setting)]
        return None if gain is None else of_pair(metric, "fedprox", gain)(setting, method, metric, fields)

    return score


def warm_up(others, gain):
    """How far the other methods are ahead of FedAvg, and the warm-up ahead of its base."""

    def score(setting, method, metric, fields):
        base = fields.get("base", "fedavg") if method == "fedpews" else method
        return 70 + (others if base != "fedavg" else 0) + (gain if method == "fedpews" else 0)

    return score


def grid(level):
    """FedAvg has 70, the cell at λ and τ level(λ, τ), and fixed masks level(None, τ)."""

    def score(setting, method, metric, fields):
        return 70.0 if method == "fedavg" else level(fields.get("lam"), fields["tau"], setting)

    return score


def above_from(least_lam):
    """Cells are above FedAvg from this λ on."""
    return grid(lambda lam, tau, setting: 72 if lam >= least_lam else 68)


def best_region(lead):
    return grid(lambda lam, tau, setting: 70 + (lead if lam in (2, 5, 10) and tau in REGION[setting] else 0))


def by_reward(unrewarded, rewarded):
    return grid(lambda lam, tau, setting: unrewarded if lam == 0 else rewarded)


def learned(points):
    """How far the best learned cell is ahead of the best fixed masks."""
    best = {None: {0.2: 74}, 2.0: {0.4: 74 + points}}
    return grid(lambda lam, tau, setting: best.get(lam, {}).get(tau, 60))


def over_alpha(*gains):
    def score(setting, method, metric, fields):
        return 70 + (gains[ALPHAS.index(fields["partition_alpha"])] if method == "fedpews" else 0)

    return score


def unequal(gain):
    """Of unequal shares."""
    return lambda setting, method, metric, fields: 73 + (gain if fields.get("shares") == (0.25, 0.75) else 0)


def in_time(*saved):
    """Seconds that the warm-up saves until the target, by column."""

    def score(setting, method, metric, fields):
        here = saved[RATES.index(setting)]
        if here is None:
            return None
        return {"run_time": 400, "time_to_target": 100 - (here if method == "fedpews" else 0)}[metric]

    return score


def ahead(points):
    return lambda setting, method, metric, fields: 60 + (points if method == "fedpews" else 0)


def own_group(after, rise, plain):
    """The share of activations in a client's own group in one layer after the warm-up, their rise, with FedAvg."""

    def score(setting, method, metric, fields):
        if fields["tau"] == 0:
            return plain if metric == "own_group_mean" else None
        known = {"own_group_1_2": after, "activation_rise": rise}
        return known.get(metric, 0.8)

    return score


def diversity(largest):
    return lambda setting, method, metric, fields: {"diversity_max": largest, "neurons": 256}[metric]


def uploads(largest, off):
    """The largest upload, and how far the counted ones are off."""
    return lambda setting, method, metric, fields: claims.COUNTED[setting][1] + off if setting else largest


def overhead(cost):
    return lambda setting, method, metric, fields: cost if metric == "warmup_cost" else None


COUNT = {"spread": 0, "seeds": 1}

CASES = {
    1: [
        (REPRODUCED, faster(50), {}),
        (NOT_FOUND, faster(0), {}),  # the interval falls short of each printed number
        (REVERSED, faster(-20), {}),
        (OPEN, faster(-20), {"spread": 120.0}),
    ],
    2: [
        (REPRODUCED, better(0), {}),
        (NOT_FOUND, better(-1), {}),
        (REVERSED, better(-3), {}),
    ],
    3: [
        (REPRODUCED, four_clients(58, 91), {}),
        (NOT_FOUND, four_clients(58, 75), {}),
        (REVERSED, four_clients(58, 70), {}),
        (REVERSED, four_clients(80, 91), {}),
    ],
    4: [
        (REPRODUCED, of_prox(100, 1, 1, 1, -1), {}),
        (REVERSED, of_prox(100, 1, 1, -1, -1), {}),  # two columns at each seed
        (NOT_FOUND, of_prox(0, 1, 1, 1, 1), {}),
        (REVERSED, of_prox(-20, 1, 1, 1, 1), {}),
        (REPRODUCED, of_prox(100, 1, 1, 1, None), {}),  # the number of columns is not told
    ],
    5: [
        (REPRODUCED, warm_up(0, 3), {}),
        (NOT_FOUND, warm_up(1.6, 3), {"spread": 0.01}),
        (NOT_FOUND, warm_up(0, 0), {}),
        (REVERSED, warm_up(2, 3), {}),
        (REVERSED, warm_up(0, -1), {}),
    ],
    6: [  # 12, 7 or 8 by seed, and 3 of 15 cells are above
        (REPRODUCED, above_from(0.5), {}),
        (
            NOT_FOUND,
            grid(lambda lam, tau, setting: {0.2: 72, 0.4: 70}.get(tau, 68) if lam == 2 else 68 + 4 * (lam > 2)),
            {},
        ),
        (REVERSED, above_from(100.0), {}),
        (OPEN, grid(lambda lam, tau, setting: 70.0), {}),
        (REPRODUCED, grid(lambda lam, tau, setting: None if lam == 1000 else 72), {}),  # not compared
        (NOT_RUN, grid(lambda lam, tau, setting: None if (lam, tau) == (100, 0.6) else 72), {}),
    ],
    7: [
        (REPRODUCED, best_region(5), {}),
        (NOT_FOUND, best_region(0), {}),
        (REVERSED, best_region(-2), {}),
    ],
    8: [
        (REPRODUCED, by_reward(65, 75), {}),
        (NOT_FOUND, by_reward(70, 75), {}),
        (NOT_FOUND, by_reward(65, 65), {}),
        (REVERSED, by_reward(74, 75), {}),
    ],
    9: [
        (REPRODUCED, learned(0), {"spread": 0.05}),
        (NOT_FOUND, learned(0.5), {"spread": 0.02}),
        (REVERSED, learned(2), {}),
    ],
    10: [
        (REPRODUCED, over_alpha(3, 2, 1, 0.5, 0), {}),
        (NOT_FOUND, over_alpha(0, 0, 0, 0, 0), {}),
        (REVERSED, over_alpha(3, 3, 3, 3, 3), {}),  # at α = 5
        (REVERSED, over_alpha(0.1, 0.2, 0.3, 0.35, 0.4), {"spread": 0.01}),  # grows over α
    ],
    11: [
        (REPRODUCED, unequal(0.5), {}),
        (NOT_FOUND, unequal(0), {}),
        (REVERSED, unequal(-0.5), {}),
    ],
    12: [
        (REPRODUCED, in_time(9, 9, -9, -9), {}),
        (NOT_FOUND, in_time(9, -9, -9, -9), {}),
        (NOT_FOUND, in_time(9, 9, 9, -9), {}),
        (REVERSED, in_time(-9, -9, -9, -9), {}),
        (REVERSED, in_time(9, 9, 9, 9), {}),
        (NOT_RUN, in_time(9, 9, -9, None), {}),
    ],
    13: [
        (REPRODUCED, ahead(1), {}),
        (NOT_FOUND, ahead(0), {}),
        (REVERSED, ahead(-1), {}),
    ],
    14: [
        (REPRODUCED, own_group(0.8, 1.8, 0.5), {"spread": 0.01}),
        (NOT_FOUND, own_group(0.5, 1.8, 0.5), {"spread": 0.01}),
        (REVERSED, own_group(0.4, 1.8, 0.5), {"spread": 0.01}),
        (REVERSED, own_group(0.8, 0.9, 0.5), {"spread": 0.01}),
        (REVERSED, own_group(0.8, 1.8, 0.4), {"spread": 0.01}),
        (REVERSED, own_group(0.8, 1.8, 0.7), {"spread": 0.01}),
    ],
    15: [
        (REPRODUCED, diversity(256), COUNT),
        (REVERSED, diversity(257), COUNT),
        (NOT_RUN, diversity(None), COUNT),
    ],
    16: [
        (REPRODUCED, uploads(0.5, 0), COUNT),
        (REVERSED, uploads(1.1, 0), COUNT),
        (REVERSED, uploads(0.5, 0.01), COUNT),
    ],
    17: [
        (REPRODUCED, overhead(1.1), {"spread": 0.05}),
        (NOT_FOUND, overhead(1.5), {"spread": 0.05}),
        (REVERSED, overhead(2.4), {"spread": 0.05}),
    ],
}


def test_8_needs_all_compared_lambda_of_a_tau():
    """A missing cell leaves one effect of seven."""
    found = outcomes(8, grid(lambda lam, tau, setting: None if (lam, tau) == (2, 0.4) else 75 if lam else 65))
    missing = [effect for (_, effect), outcome in found.items() if outcome == NOT_RUN]
    assert (len(found), missing) == (7, ["mean of λ > 0 − λ = 0, τ = 0.4 > 0"])


def test_10_the_slope_needs_every_alpha():
    found = outcomes(10, lambda setting, method, metric, fields: None if fields["partition_alpha"] == 2 else 70)
    assert [outcome for (_, effect), outcome in found.items() if "decade" in effect] == [NOT_RUN]


@pytest.mark.parametrize(("never", "expected"), [("fedavg", REVERSED), ("fedpews", REVERSED), ("none", OPEN)])
def test_12_a_target_that_is_not_reached(never, expected):
    """It counts as the longer of the two runs: the warm-up's run is longer than FedAvg's, and ahead of it."""

    def score(setting, method, metric, fields):
        if metric == "run_time":
            return 500 if method == "fedpews" else 400
        return None if method == never else 450 if never == "fedavg" else 100

    found = judged(PAPER, 12, score)
    assert [effect.mean for effect in found.effects] == pytest.approx(
        [{"fedavg": 4, "fedpews": 0}.get(never, found.effects[0].mean)] * 2
    )
    assert found.word == expected


def test_13_is_asked_with_more_clients():
    asked = set()
    judged(PAPER, 13, lambda setting, method, metric, fields: asked.add((setting, fields.get("clients"))))
    assert asked == {(f"classes of cifar{n}", k) for n, k in ((10, 5), (10, 10), (100, 20))} | {("many clients", None)}


# ---- the paper's own numbers ----------------------------------------------------------------------------------------


def test_printed_effects():
    """A target that is not reached counts as T + 1 rounds: 401 − 286."""
    assert printed(PAPER, 1) == dict(zip(RATES, ([33], [17], [115], [70]), strict=True))
    assert printed(PAPER, 2) == dict(zip(RATES, ([0.02], [8.09], [15.86], [2.33]), strict=True))
    assert printed(PAPER, 3) == {"four clients": [58.4, 91.13]}
    assert printed(PAPER, 4) == dict(zip([*RATES, ""], ([23], [40], [87], [18], [3]), strict=True))
    assert printed(PAPER, 6) == {"cifar_mnist": [0.8], "path_oct_tissue": [0.67]}  # of all 50 cells 0.78 and 0.52
    assert printed(PAPER, 7) == {"cifar_mnist": [2.78], "path_oct_tissue": [2.97]}
    assert printed(PAPER, 9) == {"cifar_mnist": [-0.25], "path_oct_tissue": [1.43]}
    assert printed(PAPER, 5)["path_oct_tissue"] == [-1.55, 0.22, 0.22, -0.73, 2.29, 3.39]
    assert len(printed(PAPER, 8)["cifar_mnist"]) == len(TAUS) - 1 + len(claims.JUDGED_TAUS)


def test_every_cell_of_tables_7_and_8_is_found():
    source = numbers_of(PAPER, (7, 8))
    cells = [source.find("cifar_mnist", "fedpews", "acc_pooled", {"lam": x, "tau": y}) for x in LAMBDAS for y in TAUS]
    assert all(cells)
    assert source.find("cifar_mnist", "fedavg", "acc_pooled", {}).mean == 71.23


def test_figure_5_is_no_table():
    """Its two numbers are for claims alone: `pfl compare` and its counts do not have them."""
    assert "figure5" not in set(published.table("fedpews")["table"])
    assert list(pd.read_csv(Path(published.FOLDER) / "fedpews_figure5.csv")["value"]) == [58.4, 91.13]


def test_removed_by_construction():
    assert PAPER.removed({"lam": 0.0})
    assert not PAPER.removed({"lam": 5.0})
