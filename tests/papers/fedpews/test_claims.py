"""What makes each of FedPeWS's claims reproduced, not found, reversed and open, on invented runs."""

from pathlib import Path

import pandas as pd
import pytest

from pfl_core.papers.fedpews import claims
from pfl_core.papers.fedpews.experiments import ALPHAS, LAMBDAS, TAUS
from pfl_core.papers.fedpews.paper import PAPER
from pfl_core.papers.fedpews.settings import COLUMNS
from pfl_core.study import published
from pfl_core.study.claims import printed as numbers_of
from tests.papers.invented_runs import judged, word

NOISY = 30.0  # deviation over the seeds
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


@pytest.mark.parametrize(
    ("saved", "spread", "expected"),
    [
        (50, 0.1, "reproduced"),
        (0, 0.1, "not found"),  # the interval falls short of each printed number
        (-20, 0.1, "reversed"),
        (10, 4 * NOISY, "open"),
        (-20, 4 * NOISY, "open"),
    ],
)
def test_1_rounds_to_the_target(saved, spread, expected):
    assert word(PAPER, 1, of_pair("rounds_to_target", "fedavg", -saved), spread=spread) == expected


@pytest.mark.parametrize(
    ("gain", "spread", "expected"),
    [(0, 0.1, "reproduced"), (-1, 0.1, "not found"), (-3, 0.1, "reversed"), (0, NOISY, "open")],
)
def test_2_at_least_as_accurate(gain, spread, expected):
    assert word(PAPER, 2, of_pair("acc_pooled", "fedavg", gain), spread=spread) == expected


@pytest.mark.parametrize(
    ("plain", "unrewarded", "spread", "expected"),
    [
        (58, 91, 0.1, "reproduced"),
        (58, 75, 0.1, "not found"),
        (58, 70, 0.1, "reversed"),
        (80, 91, 0.1, "reversed"),
        (58, 91, NOISY, "open"),
    ],
)
def test_3_four_clients(plain, unrewarded, spread, expected):
    def score(setting, method, metric, fields):
        levels = {"fedavg": plain, "fedpews": unrewarded if fields.get("lam") == 0 else None}
        return levels[method] if metric == "acc_late" else None

    assert word(PAPER, 3, score, spread=spread) == expected


@pytest.mark.parametrize(
    ("saved", "gains", "spread", "expected"),
    [
        (100, (1, 1, 1, -1), 0.1, "reproduced"),
        (100, (1, 1, -1, -1), 0.1, "reversed"),  # two columns at each seed
        (0, (1, 1, 1, 1), 0.1, "not found"),
        (-20, (1, 1, 1, 1), 0.1, "reversed"),
        (20, (1, 1, 1, 1), NOISY, "open"),
        (100, (1, 1, 1, None), 0.1, "reproduced"),  # the number of columns is not told
    ],
)
def test_4_fedprox(saved, gains, spread, expected):
    def score(setting, method, metric, fields):
        if metric == "rounds_to_target":
            return of_pair(metric, "fedprox", -saved)(setting, method, metric, fields)
        gain = gains[RATES.index(setting)]
        return None if gain is None else of_pair(metric, "fedprox", gain)(setting, method, metric, fields)

    assert word(PAPER, 4, score, spread=spread) == expected


@pytest.mark.parametrize(
    ("others", "gain", "spread", "expected"),
    [
        (0, 3, 0.1, "reproduced"),
        (1.6, 3, 0.01, "not found"),
        (0, 0, 0.1, "not found"),
        (2, 3, 0.1, "reversed"),
        (0, -1, 0.1, "reversed"),
        (0, 3, NOISY, "open"),
    ],
)
def test_5_only_the_warm_up_helps(others, gain, spread, expected):
    def score(setting, method, metric, fields):
        base = fields.get("base", "fedavg") if method == "fedpews" else method
        return 70 + (others if base != "fedavg" else 0) + (gain if method == "fedpews" else 0)

    assert word(PAPER, 5, score, spread=spread) == expected


def grid(level):
    """FedAvg has 70, the cell at λ and τ level(λ, τ), and fixed masks level(None, τ)."""

    def score(setting, method, metric, fields):
        return 70.0 if method == "fedavg" else level(fields.get("lam"), fields["tau"], setting)

    return score


@pytest.mark.parametrize(
    ("least_lam", "spread", "expected"),
    [(0.3, 0.1, "reproduced"), (2.0, 0.1, "not found"), (100.0, 0.1, "reversed")],  # 40, 25 and 10 of 50 cells above
)
def test_6_most_cells_above_fedavg(least_lam, spread, expected):
    assert word(PAPER, 6, grid(lambda lam, tau, setting: 72 if lam >= least_lam else 68), spread=spread) == expected


def test_6_open_and_missing():
    assert word(PAPER, 6, grid(lambda lam, tau, setting: 70.0)) == "open"
    assert word(PAPER, 6, grid(lambda lam, tau, setting: None if (lam, tau) == (1000, 0.8) else 72)) == "not run"


@pytest.mark.parametrize(
    ("lead", "spread", "expected"),
    [(5, 0.1, "reproduced"), (0, 0.1, "not found"), (-2, 0.1, "reversed"), (2, NOISY, "open")],
)
def test_7_best_region(lead, spread, expected):
    def level(lam, tau, setting):
        return 70 + (lead if lam in (2, 5, 10) and tau in REGION[setting] else 0)

    assert word(PAPER, 7, grid(level), spread=spread) == expected


@pytest.mark.parametrize(
    ("unrewarded", "rewarded", "spread", "expected"),
    [
        (65, 75, 0.1, "reproduced"),
        (70, 75, 0.1, "not found"),
        (65, 65, 0.1, "not found"),
        (74, 75, 0.1, "reversed"),
        (66, 74, NOISY, "open"),
    ],
)
def test_8_harm_without_diversity(unrewarded, rewarded, spread, expected):
    level = grid(lambda lam, tau, setting: unrewarded if lam == 0 else rewarded)
    assert word(PAPER, 8, level, spread=spread) == expected


def test_8_needs_all_lambda_of_a_tau():
    """A missing cell leaves one effect of ten."""
    found = outcomes(8, grid(lambda lam, tau, setting: None if (lam, tau) == (5, 0.4) else 75 if lam else 65))
    missing = [effect for (_, effect), outcome in found.items() if outcome == "not run"]
    assert (len(found), missing) == (10, ["mean of λ > 0 − λ = 0, τ = 0.4 > 0"])


@pytest.mark.parametrize(
    ("ahead", "spread", "expected"),
    [(0, 0.05, "reproduced"), (0.5, 0.02, "not found"), (2, 0.1, "reversed"), (0.5, NOISY, "open")],
)
def test_9_fixed_masks_as_good(ahead, spread, expected):
    """``ahead``: of the best learned cell."""
    best = {None: {0.2: 74}, 2.0: {0.5: 74 + ahead}}
    level = grid(lambda lam, tau, setting: best.get(lam, {}).get(tau, 60))
    assert word(PAPER, 9, level, spread=spread) == expected


@pytest.mark.parametrize(
    ("gains", "spread", "expected"),
    [
        ((3, 2, 1, 0.5, 0), 0.1, "reproduced"),
        ((0, 0, 0, 0, 0), 0.1, "not found"),
        ((3, 3, 3, 3, 3), 0.1, "reversed"),  # at α = 5
        ((0.1, 0.2, 0.3, 0.35, 0.4), 0.01, "reversed"),  # grows over α
        ((3, 2, 1, 0.5, 0), NOISY, "open"),
    ],
)
def test_10_gain_over_alpha(gains, spread, expected):
    def score(setting, method, metric, fields):
        return 70 + (gains[ALPHAS.index(fields["partition_alpha"])] if method == "fedpews" else 0)

    assert word(PAPER, 10, score, spread=spread) == expected


def test_10_the_slope_needs_every_alpha():
    found = outcomes(10, lambda setting, method, metric, fields: None if fields["partition_alpha"] == 2 else 70)
    assert [outcome for (_, effect), outcome in found.items() if "decade" in effect] == ["not run"]


@pytest.mark.parametrize(
    ("gain", "spread", "expected"),
    [(0.5, 0.1, "reproduced"), (0, 0.1, "not found"), (-0.5, 0.1, "reversed"), (0.5, 2.0, "open")],
)
def test_11_unequal_shares(gain, spread, expected):
    def score(setting, method, metric, fields):
        return 73 + (gain if fields.get("shares") == (0.25, 0.75) else 0)

    assert word(PAPER, 11, score, spread=spread) == expected


@pytest.mark.parametrize(
    ("saved", "spread", "expected"),
    [
        ((9, 9, -9, -9), 0.1, "reproduced"),
        ((9, -9, -9, -9), 0.1, "not found"),
        ((9, 9, 9, -9), 0.1, "not found"),
        ((-9, -9, -9, -9), 0.1, "reversed"),
        ((9, 9, 9, 9), 0.1, "reversed"),
        ((1, 1, -1, -1), NOISY, "open"),
        ((9, 9, -9, None), 0.1, "not run"),
    ],
)
def test_12_even_in_time(saved, spread, expected):
    def score(setting, method, metric, fields):
        here = saved[RATES.index(setting)]
        if here is None:
            return None
        return {"run_time": 400, "time_to_target": 100 - (here if method == "fedpews" else 0)}[metric]

    assert word(PAPER, 12, score, spread=spread) == expected


@pytest.mark.parametrize(("never", "expected"), [("fedavg", "reversed"), ("fedpews", "reversed"), ("none", "open")])
def test_12_a_target_that_is_not_reached(never, expected):
    """It counts as the longer of the two runs: the warm-up's run is longer than FedAvg's, and ahead of it."""

    def score(setting, method, metric, fields):
        if metric == "run_time":
            return 500 if method == "fedpews" else 400
        return None if method == never else 450 if never == "fedavg" else 100

    found = judged(PAPER, 12, score).effects
    assert [effect.mean for effect in found] == pytest.approx(
        [{"fedavg": 4, "fedpews": 0}.get(never, found[0].mean)] * 2
    )
    assert judged(PAPER, 12, score).word == expected


@pytest.mark.parametrize(
    ("gain", "spread", "expected"),
    [(1, 0.1, "reproduced"), (0, 0.1, "not found"), (-1, 0.1, "reversed"), (1, NOISY, "open")],
)
def test_13_more_clients(gain, spread, expected):
    asked = set()

    def score(setting, method, metric, fields):
        asked.add((setting, fields.get("clients")))
        return 60 + (gain if method == "fedpews" else 0)

    assert word(PAPER, 13, score, spread=spread) == expected
    assert asked == {(f"classes of cifar{n}", k) for n, k in ((10, 5), (10, 10), (100, 20))} | {("many clients", None)}


@pytest.mark.parametrize(
    ("before", "after", "rise", "plain", "spread", "expected"),
    [
        (1.0, 0.8, 1.8, 0.4, 0.01, "reproduced"),
        (1.0, 0.5, 1.8, 0.4, 0.01, "not found"),
        (1.0, 0.4, 1.8, 0.4, 0.01, "reversed"),
        (1.0, 0.8, 0.9, 0.4, 0.01, "reversed"),
        (1.0, 0.8, 1.8, 0.7, 0.01, "reversed"),
        (1.0, 0.6, 1.8, 0.4, 0.3, "open"),
    ],
)
def test_14_own_group(before, after, rise, plain, spread, expected):
    def score(setting, method, metric, fields):
        if fields["tau"] == 0:
            return plain if metric == "own_group_later" else None
        return {"own_group_warm": before, "own_group_later": after, "activation_rise": rise}[metric]

    assert word(PAPER, 14, score, spread=spread) == expected


@pytest.mark.parametrize(
    ("diversity", "seeds", "expected"), [(256, 1, "reproduced"), (257, 1, "reversed"), (None, 1, "not run")]
)
def test_15_diversity(diversity, seeds, expected):
    def score(setting, method, metric, fields):
        return {"diversity_max": diversity, "neurons": 256}[metric]

    assert word(PAPER, 15, score, seeds=seeds, spread=0) == expected


@pytest.mark.parametrize(
    ("largest", "off", "expected"), [(0.5, 0, "reproduced"), (1.1, 0, "reversed"), (0.5, 0.01, "reversed")]
)
def test_16_uploads(largest, off, expected):
    def score(setting, method, metric, fields):
        return claims.COUNTED[setting][1] + off if setting else largest

    assert word(PAPER, 16, score, seeds=1, spread=0) == expected


@pytest.mark.parametrize(
    ("cost", "spread", "expected"),
    [(1.1, 0.05, "reproduced"), (1.5, 0.05, "not found"), (2.4, 0.05, "reversed"), (1.4, 0.5, "open")],
)
def test_17_overhead(cost, spread, expected):
    def score(setting, method, metric, fields):
        return cost if metric == "warmup_cost" else None

    assert word(PAPER, 17, score, spread=spread) == expected


@pytest.mark.parametrize("number", [n for n in PAPER.claims if not PAPER.claims[n].follows])
def test_one_seed_is_open(number):
    assert word(PAPER, number, lambda setting, method, metric, fields: 1.0, seeds=1) == "open"


@pytest.mark.parametrize("number", PAPER.claims)
def test_nothing_run(number):
    assert word(PAPER, number, lambda setting, method, metric, fields: None) == "not run"


# ---- the paper's own numbers ----------------------------------------------------------------------------------------


def printed(number):
    """Effects with printed numbers: setting -> these numbers."""
    nothing = judged(PAPER, number, lambda setting, method, metric, fields: None)
    found = {}
    for effect in nothing.effects:
        found.setdefault(effect.setting, []).extend(round(value, 2) for value in effect.printed)
    return found


def test_printed_effects():
    """A target that is not reached counts as T + 1 rounds: 401 − 286."""
    assert printed(1) == dict(zip(RATES, ([33], [17], [115], [70]), strict=True))
    assert printed(2) == dict(zip(RATES, ([0.02], [8.09], [15.86], [2.33]), strict=True))
    assert printed(3) == {"four clients": [58.4, 91.13]}
    assert printed(4) == dict(zip([*RATES, ""], ([23], [40], [87], [18], [3]), strict=True))
    assert printed(6) == {"cifar_mnist": [0.78], "path_oct_tissue": [0.52]}
    assert printed(9) == {"cifar_mnist": [0.13], "path_oct_tissue": [1.43]}
    assert printed(5)["path_oct_tissue"] == [-1.55, 0.22, 0.22, -0.73, 2.29, 3.39]
    assert len(printed(8)["cifar_mnist"]) == 2 * len(TAUS)


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
