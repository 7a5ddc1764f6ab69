"""Checks of Star-PFL's claims 1 to 5, 7 and 8 on stored results: Tables 2 and 3, and Figure 2.

"A beats B" holds if the 95 % t-interval of the paired difference over seeds lies above 0, does not hold if it lies
below 0, and is undecided otherwise or with fewer than two seeds. Accuracies are those of the round with the best
validation accuracy. If that is a run's last round, the run is too short to show when it converges.

The authors' code scores Star-PFL after local training, and the baselines' code scores them before it. The paper does
not say how Table 2 scores the baselines. So claims on accuracy must hold in both ways: each method scored as its code
does, and all methods scored after local training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial, wraps

import pandas as pd

from pfl_core.papers.star_pfl.claims.freezing import claim
from pfl_core.papers.star_pfl.settings import BASELINES
from pfl_core.study.names import NAMES
from pfl_core.study.statistics import Interval, Missing, by_seed, each_dataset, interval, paired, slopes
from pfl_core.study.verdicts import Check, Verdict, all_hold, all_of, holm, on_each_dataset

TASKS = ("axial", "sagital")  # settings of Tables 2 and 3, as the paper's settings name them
ALPHAS = (0.01, 0.1, 1.0)
COSTS_AT = 0.1  # α of Table 3
FEDERATED = BASELINES[1:]
POINTS = {"as their code scores": "acc_mean_picked", "all after local training": "acc_mean_picked_trained"}
CONVERGED = "rounds_to_convergence"
UNITS = {  # of Table 3; the paper's text calls the first "MB per client"
    "comm_mb_per_client_per_round": "MiB of 20 clients in a round",
    "flops_1e10_per_round": "10¹⁰ operations of a client in a round",
}
LEVEL = 0.05  # significance level of a permutation test
LIKENESS = {"method": "star_pfl_likeness"}


def without_options(results: pd.DataFrame) -> pd.DataFrame:
    """Drops the ablations of Star-PFL, the runs with a variant."""
    plain = results["variant"].fillna("") == ""
    return results[plain | results["method"].isin(BASELINES)]


def at(method: str, alpha: float) -> dict:
    return {"method": method, "dirichlet": alpha}


def on_both_points(check: Callable[[pd.DataFrame, str], Verdict]) -> Check:
    """Applies a check at both scoring points of POINTS; it must hold at both."""

    @wraps(check)
    def judge(results: pd.DataFrame) -> Verdict:
        return all_hold((label, partial(check, results, metric)) for label, metric in POINTS.items())

    return judge


@claim(1, TASKS, rows=without_options)
@on_each_dataset
@on_both_points
def first_or_second(results: pd.DataFrame, metric: str) -> Verdict:
    """At each α it holds if Star-PFL beats four of the five baselines, and does not hold if two of them beat it."""
    return all_hold((f"alpha={alpha:g}", partial(_place, results, metric, alpha)) for alpha in ALPHAS)


def _place(results: pd.DataFrame, metric: str, alpha: float) -> Verdict:
    leads = {name: paired(results, at("star_pfl", alpha), at(name, alpha), metric) for name in BASELINES}
    statuses = list(holm(leads).values())
    ahead, behind = (statuses.count(status) for status in ("holds", "does not hold"))
    status = "does not hold" if behind > 1 else "holds" if ahead >= len(BASELINES) - 1 else "undecided"
    rank = 1 + sum(lead.mean < 0 for lead in leads.values())
    return Verdict(status, f"rank {rank}; clearly worse: {ahead} of {len(leads)}, clearly better: {behind}")


@claim(2, TASKS, rows=without_options)
@on_both_points
def above_the_mean(results: pd.DataFrame, metric: str) -> Verdict:
    """Star-PFL minus the mean of the five baselines, averaged over the stored data sets and α, is above 0.

    The size of the lead is not tested. A weak baseline raises it, so the lead over the best one is reported, too.
    """
    gains, leads = [], []
    for _, rows in each_dataset(results):
        for alpha in sorted(rows["dirichlet"].dropna().unique()):
            # a row per seed that has all six methods
            values = {name: by_seed(rows, at(name, alpha), metric) for name in ("star_pfl", *BASELINES)}
            wide = pd.DataFrame(values).dropna()
            gains.append(wide["star_pfl"] - wide[list(BASELINES)].mean(axis=1))
            leads.append(wide[list(BASELINES)].rsub(wide["star_pfl"], axis=0))
    if not gains or (common := pd.concat(gains, axis=1).dropna()).empty:
        raise Missing("no seed has Star-PFL and all five baselines")
    lead = interval(common.mean(axis=1))
    lead_over = sum(part.mean() for part in leads) / len(leads)  # by baseline
    best = f"over the best, {NAMES[lead_over.idxmin()]}, {lead_over.min():+.2f}"
    return Verdict(lead.status, f"{lead} points over {len(gains)} settings (paper: +3.14), {best}")


@claim(3, TASKS, rows=without_options)
def cheaper_until_convergence(results: pd.DataFrame) -> Verdict:
    """Traffic and operations until convergence, by the paper's count, are below the baselines' mean (Local sends 0).

    Judged by the mean over data sets. Bytes with downloads and mask bits are reported, not tested.
    """
    too_short = still_rising(results, ("star_pfl", *BASELINES))
    metrics = {"communication": "comm_total", "computation": "flops_total", "all bytes": "bytes_total"}
    paper = {"communication": " (paper: 36.3 % less)", "computation": " (paper: 18.3 % less)"}
    saved = {label: _saved(results, metric) for label, metric in metrics.items()}
    text = ", ".join(f"{label} {_less(lead)}{paper.get(label, '')}" for label, lead in saved.items())
    sets = "; ".join(label for label, _ in each_dataset(results))
    status = "undecided" if too_short else all_of([saved[label].status for label in paper])
    return Verdict(status, f"{text}{too_short} [{sets}]")


def _less(saved: Interval) -> str:
    """ "12.00 % less [+10.00, +14.00]", or "12.00 % more" with the interval of what is more."""
    more = saved.mean < 0
    shown = replace(saved, mean=-saved.mean, low=-saved.high, high=-saved.low) if more else saved
    number, _, rest = str(shown).partition(" ")
    return f"{number.removeprefix('+')} % {'more' if more else 'less'} {rest}"


def still_rising(results: pd.DataFrame, methods: Iterable[str]) -> str:
    """Text naming the methods that are best in the last round for some seed; '' if there are none."""
    rising = []
    for _, rows in each_dataset(results):
        end = rows["rounds"].max()
        rising += [name for name in methods if by_seed(rows, at(name, COSTS_AT), CONVERGED).max() >= end]
    return f"; too short, best in the last round: {', '.join(dict.fromkeys(rising))}" if rising else ""


def _saved(results: pd.DataFrame, metric: str) -> Interval:
    """How far Star-PFL is below the mean of the five baselines, in percent; mean over data sets."""
    parts = []
    for _, rows in each_dataset(results):
        values = pd.DataFrame({m: by_seed(rows, at(m, COSTS_AT), metric) for m in ("star_pfl", *BASELINES)}).dropna()
        parts.append(100 * (1 - values["star_pfl"] / values[list(BASELINES)].mean(axis=1)))
    common = pd.concat(parts, axis=1).dropna()
    if common.empty:
        raise Missing("no seed has Star-PFL and all five baselines")
    return interval(common.mean(axis=1))


@claim(4, TASKS, rows=without_options)
@on_each_dataset
def least_in_a_round(results: pd.DataFrame) -> Verdict:
    """Traffic and operations of a round, by the paper's count, are below those of each federated baseline."""
    metrics = {"communication": "comm_mb_per_client_per_round", "computation": "flops_1e10_per_round"}
    return all_hold(
        (f"{label} in {UNITS[metric]}", partial(_least, results, metric)) for label, metric in metrics.items()
    )


def _least(results: pd.DataFrame, metric: str) -> Verdict:
    star_pfl = by_seed(results, at("star_pfl", COSTS_AT), metric).mean()
    excess = {name: paired(results, at(name, COSTS_AT), at("star_pfl", COSTS_AT), metric) for name in FEDERATED}
    text = ", ".join(f"{name} {lead.mean:+.2g}" for name, lead in excess.items())
    return Verdict(all_of([lead.status for lead in excess.values()]), f"{star_pfl:.4g}, the others minus it {text}")


@claim(5, TASKS, rows=without_options)
@on_each_dataset
def rounds_between(results: pd.DataFrame) -> Verdict:
    """Rounds to the best validation accuracy: fewer than FedBN and FedAP, more than LotteryFL."""
    rounds = {name: by_seed(results, at(name, COSTS_AT), CONVERGED).mean() for name in ("star_pfl", *FEDERATED)}
    expected = [("fedbn", "star_pfl"), ("fedap", "star_pfl"), ("star_pfl", "lotteryfl")]  # (later, earlier)
    leads = [paired(results, at(a, COSTS_AT), at(b, COSTS_AT), CONVERGED) for a, b in expected]
    too_short = still_rising(results, ("star_pfl", "fedbn", "fedap", "lotteryfl"))
    text = ", ".join(f"{a} after {b} by {lead}" for (a, b), lead in zip(expected, leads, strict=True))
    means = ", ".join(f"{name} {rounds[name]:.0f}" for name in rounds)
    status = "undecided" if too_short else all_of([lead.status for lead in leads])
    return Verdict(status, f"{text} (means: {means}){too_short}")


@claim(7, ("labels",), rows=without_options)
@on_each_dataset
def like_labels_like_sets(results: pd.DataFrame) -> Verdict:
    """Permutation test over clients: p <= 0.05 in all seeds holds, in no seed does not hold.

    Tests the overlap of stable sets, corrected for chance. Scores, and sets without entries that never moved, are only
    reported.
    """
    p_values = by_seed(results, LIKENESS, "stable_contrast_p")
    significant = (p_values <= LEVEL).mean()
    status = {1.0: "holds", 0.0: "does not hold"}.get(significant, "undecided")
    text = [f"same label minus other, sets {by_seed(results, LIKENESS, 'stable_contrast').mean():+.3f}"]
    text += [f"p at most {p_values.max():.3f} in {len(p_values)} seed{'s' * (len(p_values) > 1)}"]
    for label, metric in {"scores": "rank_contrast", "sets of entries that moved": "moving_contrast"}.items():
        text += _mean_if_stored(results, label, metric)
    return Verdict(status, ", ".join(text))


def _mean_if_stored(results: pd.DataFrame, label: str, metric: str) -> Iterable[str]:
    """Text with the mean over seeds; nothing if the metric is not stored."""
    try:
        return [f"{label} {by_seed(results, LIKENESS, metric).mean():+.3f}"]
    except Missing:
        return []


@claim(8, TASKS, rows=without_options)
@on_each_dataset
def larger_alpha_is_more_balanced(results: pd.DataFrame) -> Verdict:
    """Slope of the accuracy over log α, one line for each seed: negative for Local, positive for FedAvg."""
    # points per decade of α, by seed
    slopes = {name: _slope(results, name) for name in ("local", "fedavg")}
    statuses = [interval(-slopes["local"]).status, interval(slopes["fedavg"]).status]
    text = ", ".join(f"{name} {interval(slope)}" for name, slope in slopes.items())
    return Verdict(all_of(statuses), f"points per decade of alpha: {text}")


def _slope(results: pd.DataFrame, method: str) -> pd.Series:
    """Slope for each seed that has all three α, in points per decade."""
    values = pd.DataFrame({a: by_seed(results, at(method, a), "acc_mean_picked") for a in ALPHAS}).dropna()
    if values.empty:
        raise Missing(f"no seed has {method} at all of alpha={', '.join(f'{a:g}' for a in ALPHAS)}")
    return slopes(values.rename(columns=math.log10))
