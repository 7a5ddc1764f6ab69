"""Checks of FedSelect's claims 18 to 22, on the workshop version, with 2 and with 4 classes per client.

Here p is the share that an iteration of the search keeps. Claim 18 must hold for one p at both numbers of classes.
Claims 20 and 21 are checked at p = 0.50, the value in Figure 1.
"""

from __future__ import annotations

from functools import partial

import pandas as pd

from pfl_core.papers.fedselect.claims.limits import against_stored, claim, stored_baselines, with_data
from pfl_core.papers.fedselect.settings import WORKSHOP_BASELINES as BASELINES
from pfl_core.study.statistics import Interval, Missing, by_seed, interval, paired
from pfl_core.study.verdicts import Verdict, above, ahead_of_all, all_hold, all_of, any_holds, below, telling

TWO, FOUR = SETTINGS = ("workshop s=2", "workshop s=4")
RATES = (0.25, 0.50, 0.75)  # p
ITERATIONS = 5  # L
# Not in the paper: the bounds SMALL_GAP, LIKE_FEDAVG and HALFWAY, and which methods are STRONGLY_PERSONAL.
SMALL_GAP = 2.0  # points
HURT = ("fedavg", "fedbabu", "fedper")
LIKE_FEDAVG = 0.5  # smallest loss that counts as losing like FedAvg, as a share of FedAvg's loss
STRONGLY_PERSONAL = ("fedselect_gradltn", "ditto", "fedrep", "lg_fedavg", "lotteryfl")  # all others
HALFWAY = 0.5  # overlap halfway between random masks of the same sizes (0) and equal ones (1)
ROUNDING = 0.002  # tolerance for p^L, since the search rounds in every iteration
MASK_BITS = 1 / 32  # size of a mask over the size of the model; a new mask is sent in every round


def gradltn(p: float, setting: str) -> dict:
    """Selects the runs of the workshop version with one p."""
    return {"method": "fedselect_gradltn", "keep_rate": float(p), "num_search_iters": 5.0, "setting": setting}


def method_at(name: str, setting: str) -> dict:
    """Selects a method's runs; the workshop version's at p = 0.50."""
    return gradltn(0.50, setting) if name == "fedselect_gradltn" else {"method": name, "setting": setting}


@claim(18, SETTINGS)
def beats_all(results: pd.DataFrame) -> Verdict:
    """With one p, every baseline is behind at both numbers of classes."""
    return with_data(results, any_holds((f"p={p:.2f}", partial(_beats_all_with, results, p)) for p in RATES))


def _beats_all_with(results: pd.DataFrame, p: float) -> Verdict:
    return all_hold((setting, partial(_beats_all_in, results, p, setting)) for setting in SETTINGS)


def _beats_all_in(results: pd.DataFrame, p: float, setting: str) -> Verdict:
    rows = results[results["setting"] == setting]
    rivals = stored_baselines(rows, BASELINES) if len(rows) else []
    if not rivals:
        raise Missing("no baseline is stored")
    leads = {name: paired(rows, gradltn(p, setting), method_at(name, setting)) for name in rivals}
    least, what = telling(leads)
    return against_stored(rows, ahead_of_all(leads), f"{what} {leads[least]} over {least}", BASELINES)


@claim(19, SETTINGS)
def p_matters_little(results: pd.DataFrame) -> Verdict:
    """With 2 classes any two p are within SMALL_GAP points; with 4, p = 0.50 is above both others (by any amount)."""
    parts = ((TWO, partial(_hardly_matters, results)), (FOUR, partial(_half_is_best, results)))
    return with_data(results, all_hold(parts))


def _hardly_matters(results: pd.DataFrame) -> Verdict:
    # All three pairs of p must differ by less than SMALL_GAP, in both directions.
    gaps = {(a, b): _lead(results, a, b, TWO) for a, b in ((0.50, 0.25), (0.50, 0.75), (0.75, 0.25))}
    status = all_of([side for gap in gaps.values() for side in (below(gap, SMALL_GAP), above(gap, -SMALL_GAP))])
    return Verdict(status, f"{_shown(gaps)}, for a bound of {SMALL_GAP:g} either way")


def _half_is_best(results: pd.DataFrame) -> Verdict:
    leads = {(0.50, b): _lead(results, 0.50, b, FOUR) for b in (0.25, 0.75)}
    return Verdict(all_of([lead.status for lead in leads.values()]), _shown(leads))


def _lead(results: pd.DataFrame, a: float, b: float, setting: str) -> Interval:
    return paired(results, gradltn(a, setting), gradltn(b, setting))


def _shown(gaps: dict[tuple[float, float], Interval]) -> str:
    return ", ".join(f"p={a:.2f} over {b:.2f} {gap}" for (a, b), gap in gaps.items())


@claim(20, SETTINGS)
def who_suffers_from_fewer_classes(results: pd.DataFrame) -> Verdict:
    """From 4 classes to 2 the methods of HURT lose accuracy and the STRONGLY_PERSONAL ones gain (an easier task).

    FedBABU and FedPer lose at least LIKE_FEDAVG of what FedAvg loses.
    """
    parts = [(name, partial(_loses, results, name)) for name in HURT]
    parts += [(name, partial(_gains, results, name)) for name in STRONGLY_PERSONAL]
    return with_data(results, all_hold(parts))


def _loses(results: pd.DataFrame, name: str) -> Verdict:
    gain = _gain(results, name)
    if name == HURT[0]:
        return Verdict(interval(-gain).status, str(interval(gain)))
    # With losses as positive numbers: loss − LIKE_FEDAVG · FedAvg's loss.
    if (beyond := (LIKE_FEDAVG * _gain(results, HURT[0]) - gain).dropna()).empty:
        raise Missing(f"no seed has both numbers of classes for {HURT[0]}, too")
    status = all_of([interval(-gain).status, interval(beyond).status])
    return Verdict(status, f"{interval(gain)}, more than {LIKE_FEDAVG:g} of {HURT[0]}'s loss by {interval(beyond)}")


def _gains(results: pd.DataFrame, name: str) -> Verdict:
    gain = interval(_gain(results, name))
    return Verdict(gain.status, str(gain))


def _gain(results: pd.DataFrame, name: str) -> pd.Series:
    """Points from 4 classes to 2, for each seed that has both."""
    gain = by_seed(results, method_at(name, TWO), "acc_mean") - by_seed(results, method_at(name, FOUR), "acc_mean")
    if (gain := gain.dropna()).empty:
        raise Missing("no seed has both numbers of classes")
    return gain


@claim(21, SETTINGS)
def masks_differ(results: pd.DataFrame) -> Verdict:
    """The mean overlap over client pairs, corrected for random masks of the same sizes, is below HALFWAY."""
    return with_data(results, all_hold((setting, partial(_masks_differ_in, results, setting)) for setting in SETTINGS))


def _masks_differ_in(results: pd.DataFrame, setting: str) -> Verdict:
    corrected, raw = (interval(by_seed(results, gradltn(0.50, setting), name)) for name in ("iou_chance", "iou_raw"))
    return Verdict(
        below(corrected, HALFWAY),
        f"overlap {raw.mean:.3f}, corrected for chance {corrected}, for a bound of {HALFWAY:g}",
    )


@claim(22, SETTINGS)
def larger_p_sends_less(results: pd.DataFrame) -> Verdict:
    """The upload falls with p, and is 1 - p^L within ROUNDING (counts: one seed is enough)."""
    return with_data(results, all_hold((setting, partial(_sends_less_in, results, setting)) for setting in SETTINGS))


def _sends_less_in(results: pd.DataFrame, setting: str) -> Verdict:
    sent = {p: by_seed(results, gradltn(p, setting), "uplink_fraction") for p in RATES}
    # A larger p sends less in every seed, and each upload is 1 - p^L up to rounding.
    falls = all(sent[b].max() < sent[a].min() for a, b in zip(RATES, RATES[1:], strict=False))
    exact = all((sent[p] - (1 - p**ITERATIONS)).abs().max() <= ROUNDING for p in RATES)
    texts = [f"p={p:.2f} {sent[p].mean():.4f} ({sent[p].mean() + MASK_BITS:.4f} with the mask)" for p in RATES]
    return Verdict("holds" if falls and exact else "does not hold", f"sends {', '.join(texts)} of the model")
