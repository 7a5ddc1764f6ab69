"""Checks of pFedGate's claims on costs (7, 8), the gate's parts (10, 11), participation (12, 13) and gates (19).

Accuracies are pooled over all test samples, because the paper weights clients by their test samples. Measurements have
the metrics ``step_ratio`` and ``peak_ratio``: a step's processor time and peak memory relative to FedAvg's. Their turns
are treated as seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import pandas as pd

from pfl_core.papers.pfedgate.claims.accuracy import FEDAVG, SETTINGS, baseline, claim, gate
from pfl_core.papers.pfedgate.published import M_STEP, SLICED, SMALL
from pfl_core.study.statistics import Interval, Missing, aside, by_seed, each_dataset, interval, named, settings
from pfl_core.study.verdicts import Verdict, above, all_hold, all_of, below, on_each_dataset

ACCURACY, WORST = "acc_pooled", "acc_bottom_decile"
BUDGETS = (1.0, 0.5, 0.3)
ABOUT_THREE = (2.5, 3.5)  # bounds of "about three times"
LITTLE = 1.14  # points; pFedGate's largest average drop in Table 3, computed from its accuracies, is 1.135
POINT = 1.0  # points, the bound of claim 13
PARTS = {  # the gate without one of its parts, in the claimed order of importance
    "sigmoid": gate(0.5, sigmoid="False"),
    "norm before": gate(0.5, pre_norm="False"),
    "norm after": gate(0.5, post_norm="False"),
}
TANGENT = gate(0.5, sigmoid="False", without_sigmoid="tangent")
CLIENT_WISE = {"gate_granularity": "client"}
SAMPLED, NOVEL = ", sampled", ", novel"  # suffixes of the settings' names


# ---- costs ----------------------------------------------------------------------------------------------------------


@claim(7)
@on_each_dataset
def cheaper_than_fedavg(results: pd.DataFrame) -> Verdict:
    """Time and memory are below FedAvg's at every measured batch size; memory is exact, so one number decides."""
    return all_hold((name, partial(_cheaper, rows)) for name, rows in _timed(results))


def _cheaper(rows: pd.DataFrame) -> Verdict:
    time, memory = _ratio(rows, SMALL), _peak(rows, SMALL)
    status = all_of([below(time, 1.0), "holds" if memory < 1 else "does not hold"])
    text = f"{_times(time)} of FedAvg's time, {memory:.2f} of its memory"
    try:
        sliced_time, sliced_memory = _ratio(rows, SLICED).mean, _peak(rows, SLICED)
        return Verdict(status, f"{text}; with whole neurons left out {sliced_time:.2f} and {sliced_memory:.2f}")
    except Missing:
        return Verdict(status, text)


@claim(8)
@on_each_dataset
def fedem_takes_three_times(results: pd.DataFrame) -> Verdict:
    """FedEM's time of a step, including its share of the E step, is between 2.5 and 3.5 times FedAvg's."""
    return all_hold((name, partial(_about_three, rows)) for name, rows in _timed(results))


def _about_three(rows: pd.DataFrame) -> Verdict:
    ratio, low, high = _ratio(rows, "FedEM"), *ABOUT_THREE
    text = f"{_times(ratio)} times FedAvg's time"
    try:
        text += f", {_ratio(rows, M_STEP).mean:.2f} times without the E step"
    except Missing:
        pass
    return Verdict(all_of([above(ratio, low), below(ratio, high)]), text)


def _timed(results: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Name and rows of each measured batch size."""
    here = results[results["metric"] == "step_ratio"]
    if here.empty:
        raise Missing("no timed steps are stored")
    return [(name, results[results["setting"] == name]) for name in dict.fromkeys(here["setting"])]


def _ratio(rows: pd.DataFrame, mode: str) -> Interval:
    """A step's time relative to FedAvg's."""
    return interval(by_seed(rows, {"mode": mode}, "step_ratio"))


def _peak(rows: pd.DataFrame, mode: str) -> float:
    """The peak memory relative to FedAvg's: a sum of tensor sizes, so there is one number and no interval."""
    return float(by_seed(rows, {"mode": mode}, "peak_ratio").mean())


def _times(ratio: Interval) -> str:
    return f"{ratio.mean:.2f}" + ("" if math.isnan(ratio.low) else f" [{ratio.low:.2f}, {ratio.high:.2f}]")


# ---- the gate's parts -----------------------------------------------------------------------------------------------


@claim(10, SETTINGS)
@on_each_dataset
def sigmoid_then_first_norm_then_second(results: pd.DataFrame) -> Verdict:
    """The loss without the sigmoid exceeds that without the norm before, which exceeds that without the norm after.

    With a large initial bias the sigmoid is flat; without it the gate learns much faster at the same rate, and training
    may fail. Where a straight line with the sigmoid's value and slope at the start was run, it is compared instead.
    """
    full, gates, removed = by_seed(results, gate(0.5), ACCURACY), dict(PARTS), ""
    if (results["without_sigmoid"] == TANGENT["without_sigmoid"]).any():
        with aside():  # that gate does not train
            alone = interval((full - by_seed(results, gates.pop("sigmoid"), ACCURACY)).dropna())
        removed = f"; without sigmoid and without such a line, at the same rate, {alone}"
        gates = {"sigmoid, but with a line of its value and slope": TANGENT} | gates
    lost = {name: (full - by_seed(results, runs, ACCURACY)).dropna() for name, runs in gates.items()}
    sigmoid, before, after = lost.values()
    leads = [interval((sigmoid - before).dropna()), interval((before - after).dropna())]
    texts = [f"without {name} {interval(v)}{_slower(results, gates[name])}" for name, v in lost.items()]
    order = f"sigmoid over norm before {leads[0]}, norm before over norm after {leads[1]}"
    return Verdict(all_of([lead.status for lead in leads]), f"points lost {', '.join(texts)}{removed}; {order}")


def _slower(results: pd.DataFrame, other: dict) -> str:
    """Text with the rounds to 80 % of the best, relative to the full gate; '' if they are not stored."""
    try:
        return f" ({_relative_rounds(results, other).mean:.2f} times the rounds)"
    except Missing:
        return ""


def _relative_rounds(results: pd.DataFrame, other: dict) -> Interval:
    rounds = by_seed(results, other, "rounds_to_80") / by_seed(results, gate(0.5), "rounds_to_80")
    if rounds.dropna().empty:
        raise Missing("no seed has the rounds of both gates")
    return interval(rounds.dropna())


@claim(11, SETTINGS)
@on_each_dataset
def client_wise_is_faster_and_worse(results: pd.DataFrame) -> Verdict:
    """The client-wise gate needs fewer rounds to 80 % of its own best accuracy, and is less accurate."""
    lost = by_seed(results, gate(0.5), ACCURACY) - by_seed(results, gate(0.5, **CLIENT_WISE), ACCURACY)
    points, rounds = interval(lost.dropna()), _relative_rounds(results, gate(0.5, **CLIENT_WISE))
    status = all_of([points.status, below(rounds, 1.0)])
    return Verdict(status, f"{_times(rounds)} times the rounds, points lost {points}")


# ---- participation --------------------------------------------------------------------------------------------------


@claim(12, (*SETTINGS, *(name + SAMPLED for name in SETTINGS)))
def few_clients_cost_little(results: pd.DataFrame) -> Verdict:
    """The drop from all clients to a fifth of them is below LITTLE for pFedGate, and larger for FedAvg.

    Averaged over the data sets, for the mean and for the worst tenth.
    """
    sets = [(name, rows) for name, rows in each_dataset(results) if rows["setting"].str.endswith(SAMPLED).any()]
    if not sets:
        raise Missing("no data set is stored with a fifth of the clients")
    names, frames = zip(*sets, strict=True)
    verdict = all_hold((name, partial(_drops, frames, metric)) for name, metric in _SCORES.items())
    return Verdict(verdict.status, f"{' and '.join(names)}: {verdict.numbers}; little is below {LITTLE:g}")


_SCORES = {"mean": ACCURACY, "worst tenth": WORST}


def _drops(frames: Sequence[pd.DataFrame], metric: str) -> Verdict:
    fedavg = _drop(frames, FEDAVG, metric)
    statuses, texts = [], [f"fedavg loses {interval(fedavg)}"]
    for s in _budgets(pd.concat(frames), SAMPLED):
        pfedgate = _drop(frames, gate(s), metric)
        statuses += [below(interval(pfedgate), LITTLE), interval((fedavg - pfedgate).dropna()).status]
        texts.append(f"s={s:g} {interval(pfedgate)}")
    return Verdict(all_of(statuses), ", ".join(texts))


def _drop(frames: Sequence[pd.DataFrame], where: dict, metric: str) -> pd.Series:
    """Points lost by seed, all clients minus a fifth of them, averaged over the data sets (a frame for each)."""
    drops = []
    for rows in frames:
        sampled = rows["setting"].str.endswith(SAMPLED)
        drops.append(by_seed(rows[~sampled], where, metric) - by_seed(rows[sampled], where, metric))
    drop = pd.concat(drops, axis=1).mean(axis=1, skipna=False).dropna()
    if drop.empty:
        raise Missing(f"no seed has {named(where)} with all clients and with a fifth of them")
    return drop


@claim(13, tuple(name + NOVEL for name in SETTINGS))
@on_each_dataset
def novel_clients_are_close(results: pd.DataFrame) -> Verdict:
    """The gap between participating and novel clients is below a point, and below FedAvg's and FedEM's.

    FedAvg's gap is the smaller of two: its model as it is, or fine-tuned by the novel clients (FedAvg-FT's run).
    """
    gaps = [_gap(results, FEDAVG, baseline(name)) for name in ("fedavg", "fedavg_ft")]
    fedavg = min(gaps, key=pd.Series.mean)
    fedem = _gap(results, baseline("fedem"), baseline("fedem"))
    statuses, texts = [], [f"gap of FedAvg {interval(fedavg)}", f"FedEM {interval(fedem)}"]
    for s in _budgets(results, NOVEL):
        pfedgate = _gap(results, gate(s), gate(s))
        statuses.append(below(interval(pfedgate), POINT))
        statuses += [interval((other - pfedgate).dropna()).status for other in (fedavg, fedem)]
        texts.append(f"s={s:g} {interval(pfedgate)}")
    return Verdict(all_of(statuses), ", ".join(texts))


def _gap(results: pd.DataFrame, known: dict, novel: dict) -> pd.Series:
    gap = by_seed(results, known, "acc_participating") - by_seed(results, novel, "acc_novel")
    if gap.dropna().empty:
        raise Missing(f"no seed has both {known} and {novel}")
    return gap.dropna()


def _budgets(results: pd.DataFrame, suffix: str) -> list[float]:
    """Stored budgets of Tables 3 and 8 in the settings with this suffix, the largest first."""
    stored = settings(results[results["setting"].str.endswith(suffix)], "pfedgate", "keep_ratio")
    budgets = [s for s in BUDGETS if s in stored]
    if not budgets:
        raise Missing(f"pfedgate is not stored in a setting '...{suffix}'")
    return budgets


# ---- gates ----------------------------------------------------------------------------------------------------------


@claim(19, ("pathological",))
@on_each_dataset
def common_labels_give_similar_gates(results: pd.DataFrame) -> Verdict:
    """The rank correlation of gate distance and common labels is negative at s = 0.3, the budget of Figure 4."""
    correlation = interval(by_seed(results, gate(0.3), "gate_rank"))
    return Verdict(below(correlation, 0.0), f"rank correlation of gate distance and common labels {correlation}")
