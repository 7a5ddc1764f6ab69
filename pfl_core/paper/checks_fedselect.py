"""Checks of FedSelect's claims on results of ours: pure functions from a results frame to a verdict.

"A beats B" holds if the 95 % t-interval of the paired difference over seeds lies above 0, does not hold if it lies
below, and is undecided otherwise, or with fewer than two seeds. A verdict speaks of the data sets that are stored, and
names them. A claim over all baselines can fail against those that are stored, but holds only once all nine are.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pfl_core.paper.results import Missing, by_seed, each_dataset, interval, paired, settings
from pfl_core.paper.verdicts import Verdict, above, below, both, decides, either, on_each_dataset

BASELINES = ("local", "fedavg", "fedavg_ft", "ditto", "fedpac", "fedrep", "fedper", "fedbabu", "lg_fedavg")  # Table 1
MIDDLE, EXTREMES = (0.30, 0.50), (0.05, 0.80)  # limits of Table 2
FEATURE_SHIFT = ("office_home",)  # every client has every class; in the other sets labels differ between clients
FAR, CLOSE = 10.0, 3.0  # points; "by far the worst" is our reading, 3 points are the claim's own
TOLERANCE = 0.05  # of claim 17: the mask's bits (1/32 of the numbers) and the last mask update


def limit(alpha: float) -> dict:
    return {"method": "fedselect", "alpha": float(alpha)}


@decides("fedselect", 3)
def one_limit_wins(results: pd.DataFrame) -> Verdict:
    """Some middle limit beats all baselines on all data sets."""
    statuses, texts = zip(*(_wins_everywhere(results, alpha) for alpha in MIDDLE), strict=True)
    return Verdict(either(list(statuses)), "; ".join(texts))


def _wins_everywhere(results: pd.DataFrame, alpha: float) -> Verdict:
    leads = {
        f"{name} ({label})": paired(rows, limit(alpha), {"method": name})
        for label, rows in each_dataset(results)
        for name in stored_baselines(rows)
    }
    if not leads:
        raise Missing("no baseline is stored")
    least = min(leads, key=lambda name: leads[name].mean)
    status = both([lead.status for lead in leads.values()])
    return against_stored(results, status, f"alpha={alpha:.2f} least lead {leads[least]} over {least}")


@decides("fedselect", 4)
@on_each_dataset
def middle_beats_extremes(results: pd.DataFrame) -> Verdict:
    """Four paired differences: each middle limit against each extreme."""
    leads = {(a, b): paired(results, limit(a), limit(b)) for a in MIDDLE for b in EXTREMES}
    text = ", ".join(f"alpha={a:.2f} over {b:.2f} {lead}" for (a, b), lead in leads.items())
    return Verdict(both([lead.status for lead in leads.values()]), text)


@decides("fedselect", 5)
@on_each_dataset
def best_is_a_middle_limit(results: pd.DataFrame) -> Verdict:
    """The better middle limit against the better extreme, both chosen by their mean over the seeds."""
    mean = {alpha: by_seed(results, limit(alpha), "acc_mean").mean() for alpha in MIDDLE + EXTREMES}
    middle, extreme = (max(group, key=mean.__getitem__) for group in (MIDDLE, EXTREMES))
    lead = paired(results, limit(middle), limit(extreme))
    means = ", ".join(f"alpha={alpha:.2f}: {mean[alpha]:.2f}" for alpha in sorted(mean))
    return Verdict(lead.status, f"{means}; {middle:.2f} over {extreme:.2f} {lead}")


@decides("fedselect", 6)
@on_each_dataset
def ends_of_the_range(results: pd.DataFrame) -> Verdict:
    """alpha = 0 scores like FedAvg on every seed, and alpha = 1 leaves nothing shared (exact: one seed is enough).

    With batch norm the first half needs equal statistics: FedSelect's stay with the client by default.
    """
    gap = (by_seed(results, limit(0), "acc_mean") - by_seed(results, {"method": "fedavg"}, "acc_mean")).dropna().abs()
    if gap.empty:
        raise Missing("no seed has both fedselect alpha=0 and fedavg")
    share = by_seed(results, limit(1), "personal_share").min()
    halves = [
        "holds" if gap.max() < 1e-6 else "does not hold",
        "holds" if share > 1 - 1e-9 else "undecided",  # the limit is not reached within these rounds
    ]
    text = f"alpha=0 differs from fedavg by at most {gap.max():.2f}; alpha=1 ends with a personal share of {share:.4f}"
    return Verdict(both(halves), text)


@decides("fedselect", 7)
@on_each_dataset
def fedavg_fails_under_label_shift(results: pd.DataFrame) -> Verdict:
    """Every other baseline is FAR above FedAvg under label shift; none is under pure feature shift."""
    others = [name for name in stored_baselines(results) if name != "fedavg"]
    if not others:
        raise Missing("no other baseline is stored")
    leads = {name: paired(results, {"method": name}, {"method": "fedavg"}) for name in others}
    labels_differ = not results["dataset"].isin(FEATURE_SHIFT).any()
    extreme = (min if labels_differ else max)(leads, key=lambda name: leads[name].mean)
    status = both([(above if labels_differ else below)(lead, FAR) for lead in leads.values()])
    return against_stored(results, status, f"{extreme} minus fedavg {leads[extreme]}")


@decides("fedselect", 8)
def fine_tuning_is_competitive(results: pd.DataFrame) -> Verdict:
    """FedAvg-FT is less than CLOSE behind the best stored baseline, on small images with skewed labels."""
    return _competitive(results[~results["dataset"].isin((*FEATURE_SHIFT, "mini_imagenet"))])


@on_each_dataset
def _competitive(results: pd.DataFrame) -> Verdict:
    rivals = [name for name in stored_baselines(results) if name != "fedavg_ft"]
    if not rivals:
        raise Missing("no other baseline is stored")
    best = max(rivals, key=lambda name: by_seed(results, {"method": name}, "acc_mean").mean())
    behind = paired(results, {"method": best}, {"method": "fedavg_ft"})
    return against_stored(results, below(behind, CLOSE), f"{best} minus fedavg_ft {behind}")


@decides("fedselect", 15)
@on_each_dataset
def common_classes_overlap_more(results: pd.DataFrame) -> Verdict:
    """At each limit strictly between 0 and 1 the contrast is above 0."""
    contrast = {alpha: interval(by_seed(results, limit(alpha), "iou_contrast")) for alpha in inner_limits(results)}
    text = ", ".join(f"alpha={alpha:g} {value}" for alpha, value in contrast.items())
    return Verdict(both([value.status for value in contrast.values()]), f"contrast {text}")


@decides("fedselect", 16)
@on_each_dataset
def contrast_shrinks_overlap_grows(results: pd.DataFrame) -> Verdict:
    """Slopes over the limit, one line fitted for each seed: contrast down, raw overlap up."""
    contrast, raw = slope(results, "iou_contrast"), slope(results, "iou_raw")
    status = both([interval(-contrast).status, interval(raw).status])
    return Verdict(status, f"slope over alpha: contrast {interval(contrast)}, raw overlap {interval(raw)}")


@decides("fedselect", 17)
@on_each_dataset
def uplink_shrinks(results: pd.DataFrame) -> Verdict:
    """The last upload is within TOLERANCE of 1 - personal share, and below 0.5 for each limit above 0.5.

    These are counts, the same for all seeds but for rounding: one seed is enough.
    """
    limits, statuses, texts = settings(results, "fedselect", "alpha"), [], []
    if not any(alpha > 0.5 for alpha in limits):
        raise Missing("fedselect with a limit above 0.5 is not stored")
    for alpha in limits:
        sent, share = (by_seed(results, limit(alpha), metric) for metric in ("uplink_fraction", "personal_share"))
        statuses.append("holds" if (sent - (1 - share)).abs().max() <= TOLERANCE else "does not hold")
        if alpha > 0.5:
            large = "does not hold" if share.min() >= alpha else "undecided"  # undecided: limit not reached yet
            statuses.append("holds" if sent.max() < 0.5 else large)
        texts.append(f"alpha={alpha:g} sends {sent.mean():.3f} at share {share.mean():.3f}")
    return Verdict(both(statuses), ", ".join(texts))


def slope(results: pd.DataFrame, metric: str) -> pd.Series:
    """Least-squares slope of a metric over the limit, for each seed that has all inner limits."""
    limits = inner_limits(results)
    if len(limits) < 2:
        raise Missing("fewer than two limits between 0 and 1 are stored")
    values = pd.DataFrame({alpha: by_seed(results, limit(alpha), metric) for alpha in limits}).dropna()
    if values.empty:
        raise Missing(f"no seed has {metric} at all of alpha={', '.join(f'{alpha:g}' for alpha in limits)}")
    return pd.Series(np.polyfit(limits, values.to_numpy().T, 1)[0], index=values.index)


def inner_limits(results: pd.DataFrame) -> list[float]:
    """Limits strictly between 0 and 1: an empty and a full mask have no overlap to speak of."""
    limits = [alpha for alpha in settings(results, "fedselect", "alpha") if 0 < alpha < 1]
    if not limits:
        raise Missing("fedselect with a limit between 0 and 1 is not stored")
    return limits


def stored_baselines(results: pd.DataFrame) -> list[str]:
    """The baselines that have an accuracy on every data set of the frame."""
    scored = [set(rows.loc[rows["metric"] == "acc_mean", "method"]) for _, rows in each_dataset(results)]
    return [name for name in BASELINES if all(name in names for names in scored)]


def against_stored(results: pd.DataFrame, status: str, text: str) -> Verdict:
    """A lead over some baselines decides nothing about the others; a loss to one of them does."""
    absent = [name for name in BASELINES if name not in stored_baselines(results)]
    if not absent or status == "does not hold":
        return Verdict(status, text)
    return Verdict("undecided", f"{text}; {status} against those stored, without {', '.join(absent)}")
