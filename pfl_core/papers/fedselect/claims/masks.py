"""Checks of FedSelect's claims 12 to 17, on its masks: the ablations of Table 3, overlap between clients, traffic."""

from __future__ import annotations

from functools import partial

import pandas as pd

from pfl_core.papers.fedselect.claims.limits import (
    COMPARED,
    MIDDLE,
    SETTINGS,
    claim,
    compared,
    limit,
    validated,
    without_ablations,
)
from pfl_core.papers.fedselect.settings import VALIDATED
from pfl_core.study.statistics import Missing, by_seed, interval, paired, settings, slopes
from pfl_core.study.verdicts import Verdict, all_hold, all_of, on_each_dataset, on_stored_datasets

LAYERS = 4  # A to D
EQUAL_SHARE = 0.03  # personal shares that differ by less count as equal; a limit of 0.50 ends at 0.512
TOLERANCE = 0.05  # claim 17: for the mask's bits (1/32 of the values) and the last mask update


@claim(12, COMPARED, rows=validated)
@on_stored_datasets
def most_change_beats_least(results: pd.DataFrame) -> Verdict:
    """At each stored limit of Table 3."""
    return _above_ablations(results, {"least change": {"ranking": "least_change"}})


@claim(13, COMPARED, rows=validated)
@on_stored_datasets
def ablations_are_worse(results: pd.DataFrame) -> Verdict:
    """The two other rules, and each group of layers, at each stored limit of Table 3."""
    rules = {"least change": {"ranking": "least_change"}, "random": {"masks": "random"}}
    layers = sorted(results.loc[results["masks"] == "layers", "layers"].unique())
    layers = [name for name in layers if "." not in name]  # single convolutions are another reading of A to D
    rules |= {f"layer {_plain(name)}": {"masks": "layers", "layers": name} for name in layers}
    verdict = _above_ablations(results, rules)
    if len(layers) >= LAYERS or verdict.status == "does not hold":
        return verdict
    return Verdict("undecided", f"{verdict.numbers}; {len(layers)} of {LAYERS} groups of layers are stored")


def _plain(names: str) -> str:
    """A layer tuple as text: "('conv1',)" gives "conv1"."""
    return names.strip("()").replace("'", "").rstrip(",")


@claim(14, COMPARED, rows=validated)
@on_stored_datasets
def random_masks_are_worse(results: pd.DataFrame) -> Verdict:
    """Masks drawn before the first round (the paper's words), and random masks that grow as FedSelect's do."""
    return _above_ablations(results, {"random": {"masks": "random"}, "random growth": {"ranking": "random"}})


def _above_ablations(results: pd.DataFrame, rules: dict[str, dict]) -> Verdict:
    ablated = (results["ranking"] != "change") | (results["masks"] == "random")
    # Limits at which ablations are stored.
    limits = [alpha for alpha in settings(results[ablated], "fedselect", "alpha") if alpha in MIDDLE]
    if not limits:
        raise Missing("the ablations of Table 3 are not stored")
    return all_hold(
        (f"alpha={alpha:.2f} over {name}", partial(_above, results, alpha, rule))
        for alpha in limits
        for name, rule in rules.items()
    )


def _above(results: pd.DataFrame, alpha: float, rule: dict) -> Verdict:
    """The lead over one ablation, at an equal personal share (for layers, at the share of the layers)."""
    fedselect = {**limit(alpha), "ranking": "change", "masks": "grown"}
    if "layers" in rule:
        lead = paired(results, fedselect, {"method": "fedselect", **rule})
    else:
        lead = paired(results, fedselect, fedselect | rule)
        gap = paired(results, fedselect, fedselect | rule, "personal_share").mean
        if abs(gap) > EQUAL_SHARE:
            raise Missing(f"{lead}, but the personal shares differ by {gap:+.3f}")
    return Verdict(lead.status, str(lead))


@claim(15, ("cifar10", VALIDATED), rows=compared)
@on_each_dataset
def common_classes_overlap_more(results: pd.DataFrame) -> Verdict:
    """At each limit strictly between 0 and 1 the contrast is above 0."""
    contrast = {alpha: interval(by_seed(results, limit(alpha), "iou_contrast")) for alpha in inner_limits(results)}
    text = ", ".join(f"alpha={alpha:g} {value}" for alpha, value in contrast.items())
    return Verdict(all_of([value.status for value in contrast.values()]), f"contrast {text}")


@claim(16, ("cifar10", VALIDATED), rows=compared)
@on_each_dataset
def contrast_shrinks_overlap_grows(results: pd.DataFrame) -> Verdict:
    """Slopes over the limit, one fitted line per seed: the contrast falls and the raw overlap rises."""
    contrast, raw = slope(results, "iou_contrast"), slope(results, "iou_raw")
    status = all_of([interval(-contrast).status, interval(raw).status])
    return Verdict(status, f"slope over alpha: contrast {interval(contrast)}, raw overlap {interval(raw)}")


@claim(17, SETTINGS, rows=without_ablations)
@on_stored_datasets
def uplink_shrinks(results: pd.DataFrame) -> Verdict:
    """The last upload is within TOLERANCE of 1 - personal share, and below 0.5 for each limit above 0.5.

    These are counts, equal for all seeds up to rounding: one seed is enough.
    """
    limits, statuses, texts = settings(results, "fedselect", "alpha"), [], []
    for alpha in limits:
        # The share of values sent should be 1 - personal share.
        sent, share = (by_seed(results, limit(alpha), metric) for metric in ("uplink_fraction", "personal_share"))
        statuses.append("holds" if (sent - (1 - share)).abs().max() <= TOLERANCE else "does not hold")
        if alpha > 0.5:
            otherwise = "does not hold" if share.min() >= alpha else "undecided"  # undecided: limit not reached yet
            statuses.append("holds" if sent.max() < 0.5 else otherwise)
        texts.append(f"alpha={alpha:g} sends {sent.mean():.3f} at share {share.mean():.3f}")
    if all_of(statuses) != "does not hold" and not any(alpha > 0.5 for alpha in limits):
        raise Missing("fedselect with a limit above 0.5 is not stored")
    return Verdict(all_of(statuses), ", ".join(texts))


def slope(results: pd.DataFrame, metric: str) -> pd.Series:
    """Least-squares slope of a metric over the limit, for each seed that has all inner limits."""
    limits = inner_limits(results)
    if len(limits) < 2:
        raise Missing("fewer than two limits between 0 and 1 are stored")
    # Rows: seeds; columns: limits.
    values = pd.DataFrame({alpha: by_seed(results, limit(alpha), metric) for alpha in limits}).dropna()
    if values.empty:
        raise Missing(f"no seed has {metric} at all of alpha={', '.join(f'{alpha:g}' for alpha in limits)}")
    return slopes(values)


def inner_limits(results: pd.DataFrame) -> list[float]:
    """Stored limits strictly between 0 and 1; the overlap of empty or full masks has no meaning."""
    limits = [alpha for alpha in settings(results, "fedselect", "alpha") if 0 < alpha < 1]
    if not limits:
        raise Missing("fedselect with a limit between 0 and 1 is not stored")
    return limits
