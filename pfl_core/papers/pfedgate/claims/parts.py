"""Checks of pFedGate's claims on costs (7, 8), the gate's parts (10, 11), who takes part (12, 13) and its gates (19).

Accuracies are pooled over all test samples, as the paper weighs its clients. Metrics that only measurements have (a
turn is a seed): ``step_ratio`` and ``peak_ratio``, a step's processor time and peak memory over FedAvg's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import pandas as pd

from pfl_core.papers.pfedgate.claims.accuracy import FEDAVG, SETTINGS, claim, gate, usual
from pfl_core.papers.pfedgate.published import M_STEP, SLICED, SMALL
from pfl_core.study.statistics import Interval, Missing, by_seed, each_dataset, interval, settings
from pfl_core.study.verdicts import Verdict, above, all_hold, all_of, below, on_each_dataset

ACCURACY, WORST = "acc_pooled", "acc_bottom_decile"
BUDGETS = (1.0, 0.5, 0.3)
THREE = (2.5, 3.5)  # "about three times"
LITTLE = 1.14  # points; from its accuracies Table 3's largest average drop of pFedGate is 1.135
POINT = 1.0  # claim 13
PARTS = {"sigmoid": "sigmoid", "norm before": "pre_norm", "norm after": "post_norm"}  # by falling weight
CLIENT_WISE = {"gate_granularity": "client"}
SAMPLED, NOVEL = ", sampled", ", novel"  # ends of the settings' names


# ---- costs ----------------------------------------------------------------------------------------------------------


@claim(7)
@on_each_dataset
def cheaper_than_fedavg(results: pd.DataFrame) -> Verdict:
    """At every batch size that was timed; memory is counted exactly, so that one number decides."""
    return all_hold((name, partial(_cheaper, rows)) for name, rows in _timed(results))


def _cheaper(rows: pd.DataFrame) -> Verdict:
    time, memory = (_ratio(rows, SMALL, metric) for metric in ("step_ratio", "peak_ratio"))
    status = all_of([below(time, 1.0), "holds" if memory.mean < 1 else "does not hold"])
    text = f"{_times(time)} of FedAvg's time, {memory.mean:.2f} of its memory"
    try:
        ours = (_ratio(rows, SLICED, metric).mean for metric in ("step_ratio", "peak_ratio"))
        return Verdict(status, f"{text}; with whole neurons left out {next(ours):.2f} and {next(ours):.2f}")
    except Missing:
        return Verdict(status, text)


@claim(8)
@on_each_dataset
def fedem_takes_three_times(results: pd.DataFrame) -> Verdict:
    """FedEM's round with its E step, a step's share of it, between 2.5 and 3.5 times FedAvg's."""
    return all_hold((name, partial(_three, rows)) for name, rows in _timed(results))


def _three(rows: pd.DataFrame) -> Verdict:
    ratio, low, high = _ratio(rows, "FedEM", "step_ratio"), *THREE
    text = f"{_times(ratio)} times FedAvg's time"
    try:
        text += f", {_ratio(rows, M_STEP, 'step_ratio').mean:.2f} times without the E step"
    except Missing:
        pass
    return Verdict(all_of([above(ratio, low), below(ratio, high)]), text)


def _timed(results: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each batch size."""
    here = results[results["metric"] == "step_ratio"]
    if here.empty:
        raise Missing("no timed steps are stored")
    return [(name, results[results["setting"] == name]) for name in dict.fromkeys(here["setting"])]


def _ratio(rows: pd.DataFrame, mode: str, metric: str) -> Interval:
    return interval(by_seed(rows, {"mode": mode}, metric))


def _times(ratio: Interval) -> str:
    return f"{ratio.mean:.2f}" + ("" if math.isnan(ratio.low) else f" [{ratio.low:.2f}, {ratio.high:.2f}]")


# ---- the gate's parts -----------------------------------------------------------------------------------------------


@claim(10, SETTINGS)
@on_each_dataset
def sigmoid_then_first_norm_then_second(results: pd.DataFrame) -> Verdict:
    """What is lost without each part, in this order, and each next to the other; paired over seeds."""
    full = by_seed(results, gate(0.5), ACCURACY)
    lost = {name: full - by_seed(results, _without(field), ACCURACY) for name, field in PARTS.items()}
    sigmoid, before, after = (values.dropna() for values in lost.values())
    leads = [interval((sigmoid - before).dropna()), interval((before - after).dropna())]
    texts = [f"without {name} {interval(v.dropna())}{_slower(results, PARTS[name])}" for name, v in lost.items()]
    order = f"sigmoid over norm before {leads[0]}, norm before over norm after {leads[1]}"
    return Verdict(all_of([lead.status for lead in leads]), f"points lost {', '.join(texts)}; {order}")


def _without(field: str) -> dict:
    return gate(0.5, **{field: "False"})


def _slower(results: pd.DataFrame, field: str) -> str:
    """Rounds to 80 % of the best, over the full gate's; nothing where they are not known."""
    try:
        return f" ({_relative_rounds(results, _without(field)).mean:.2f} times the rounds)"
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
    """Fewer rounds to 80 % of its own best than the gate for each batch, and a lower accuracy."""
    lost = by_seed(results, gate(0.5), ACCURACY) - by_seed(results, gate(0.5, **CLIENT_WISE), ACCURACY)
    points, rounds = interval(lost.dropna()), _relative_rounds(results, gate(0.5, **CLIENT_WISE))
    status = all_of([points.status, below(rounds, 1.0)])
    return Verdict(status, f"{_times(rounds)} times the rounds, points lost {points}")


# ---- who takes part -------------------------------------------------------------------------------------------------


@claim(12, (*SETTINGS, *(name + SAMPLED for name in SETTINGS)))
def few_clients_cost_little(results: pd.DataFrame) -> Verdict:
    """The drop from all clients to a fifth of them, of the mean and of the worst tenth, averaged over the data sets.

    pFedGate's is below LITTLE, FedAvg's is larger.
    """
    sets = [(name, rows) for name, rows in each_dataset(results) if rows["setting"].str.endswith(SAMPLED).any()]
    if not sets:
        raise Missing("no data set is stored with a fifth of the clients")
    names, frames = zip(*sets, strict=True)
    found = all_hold((name, partial(_drops, frames, metric)) for name, metric in _SCORES.items())
    return Verdict(found.status, f"{' and '.join(names)}: {found.numbers}; little is below {LITTLE:g}")


_SCORES = {"mean": ACCURACY, "worst tenth": WORST}


def _drops(frames: Sequence[pd.DataFrame], metric: str) -> Verdict:
    plain = _drop(frames, FEDAVG, metric)
    statuses, texts = [], [f"fedavg loses {interval(plain)}"]
    for s in _budgets(pd.concat(frames), SAMPLED):
        own = _drop(frames, gate(s), metric)
        statuses += [below(interval(own), LITTLE), interval((plain - own).dropna()).status]
        texts.append(f"s={s:g} {interval(own)}")
    return Verdict(all_of(statuses), ", ".join(texts))


def _drop(frames: Sequence[pd.DataFrame], where: dict, metric: str) -> pd.Series:
    """Points lost by seed, all clients minus a fifth of them; the mean over the data sets, a frame each."""
    drops = []
    for rows in frames:
        sampled = rows["setting"].str.endswith(SAMPLED)
        drops.append(by_seed(rows[~sampled], where, metric) - by_seed(rows[sampled], where, metric))
    drop = pd.concat(drops, axis=1).mean(axis=1, skipna=False).dropna()
    if drop.empty:
        raise Missing(f"no seed has {where} with all clients and with a fifth of them")
    return drop


@claim(13, tuple(name + NOVEL for name in SETTINGS))
@on_each_dataset
def novel_clients_are_close(results: pd.DataFrame) -> Verdict:
    """Clients that trained minus those that never did: below a point, and below FedAvg's and FedEM's gap.

    FedAvg's is the smaller of two: its model as it is, or fine-tuned by the novel clients (as in FedAvg-FT's run).
    """
    gaps = [_gap(results, FEDAVG, usual(name)) for name in ("fedavg", "fedavg_ft")]
    plain = min(gaps, key=pd.Series.mean)
    mixture = _gap(results, usual("fedem"), usual("fedem"))
    statuses, texts = [], [f"gap of fedavg {interval(plain)}", f"fedem {interval(mixture)}"]
    for s in _budgets(results, NOVEL):
        own = _gap(results, gate(s), gate(s))
        statuses.append(below(interval(own), POINT))
        statuses += [interval((other - own).dropna()).status for other in (plain, mixture)]
        texts.append(f"s={s:g} {interval(own)}")
    return Verdict(all_of(statuses), ", ".join(texts))


def _gap(results: pd.DataFrame, known: dict, novel: dict) -> pd.Series:
    gap = by_seed(results, known, "acc_participating") - by_seed(results, novel, "acc_novel")
    if gap.dropna().empty:
        raise Missing(f"no seed has both {known} and {novel}")
    return gap.dropna()


def _budgets(results: pd.DataFrame, end: str) -> list[float]:
    """Table 3's and Table 8's s that are stored for such a setting, the largest first."""
    stored = settings(results[results["setting"].str.endswith(end)], "pfedgate", "keep_ratio")
    found = [s for s in BUDGETS if s in stored]
    if not found:
        raise Missing(f"pfedgate is not stored in a setting '...{end}'")
    return found


# ---- gates ----------------------------------------------------------------------------------------------------------


@claim(19, ("pathological",))
@on_each_dataset
def common_labels_bring_gates_near(results: pd.DataFrame) -> Verdict:
    """A negative rank correlation at s = 0.3, Figure 4's, over the seeds."""
    found = interval(by_seed(results, gate(0.3), "gate_rank"))
    return Verdict(below(found, 0.0), f"rank correlation {found}")
