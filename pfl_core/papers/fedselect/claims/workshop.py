"""Checks of FedSelect's claims 18 to 22, of the workshop version, with 2 and with 4 classes per client.

Here p is the share that an iteration of the search keeps. A claim that does not speak of p must be borne out by one p
for both numbers of classes (claim 18), or is checked at p = 0.50, that of Figure 1 (claims 20 and 21).
"""

from __future__ import annotations

from functools import partial

import pandas as pd

from pfl_core.papers.fedselect.claims.limits import against_stored, claim, one_holds, stored_baselines, with_data
from pfl_core.papers.fedselect.settings import WORKSHOP_BASELINES as BASELINES
from pfl_core.study.statistics import Interval, Missing, by_seed, interval, paired
from pfl_core.study.verdicts import Verdict, above, all_hold, all_of, below, holm, telling

TWO, FOUR = SETTINGS = ("workshop s=2", "workshop s=4")
RATES = (0.25, 0.50, 0.75)  # p
ITERATIONS = 5  # L
HARDLY = 2.0  # points; our reading
HURT = ("fedavg", "fedbabu", "fedper")
LIKE = 0.5  # of FedAvg's loss, at least: our reading of suffering like FedAvg
STRONGLY_PERSONAL = ("fedselect_gradltn", "ditto", "fedrep", "lg_fedavg", "lotteryfl")  # ours: all the others
HALFWAY = 0.5  # between random masks of the same sizes (0) and equal ones (1); "differ strongly" is our reading
ROUNDING = 0.002  # of p^L: the search rounds in every iteration
MASK_BITS = 1 / 32  # of the model's numbers; a new mask goes up in every round


def found(p: float, setting: str) -> dict:
    return {"method": "fedselect_gradltn", "keep_rate": float(p), "num_search_iters": 5.0, "setting": setting}


def plain(name: str, setting: str) -> dict:
    return found(0.50, setting) if name == "fedselect_gradltn" else {"method": name, "setting": setting}


@claim(18, SETTINGS)
def beats_all(results: pd.DataFrame) -> Verdict:
    """With one p, every baseline is behind at both numbers of classes."""
    return with_data(results, one_holds((f"p={p:.2f}", partial(_beats_all_with, results, p)) for p in RATES))


def _beats_all_with(results: pd.DataFrame, p: float) -> Verdict:
    return all_hold((setting, partial(_beats_all_in, results, p, setting)) for setting in SETTINGS)


def _beats_all_in(results: pd.DataFrame, p: float, setting: str) -> Verdict:
    rows = results[results["setting"] == setting]
    rivals = stored_baselines(rows, BASELINES) if len(rows) else []
    if not rivals:
        raise Missing("no baseline is stored")
    leads = {name: paired(rows, found(p, setting), plain(name, setting)) for name in rivals}
    (least, what), status = telling(leads), all_of(list(holm(leads).values()))
    return against_stored(rows, status, f"{what} {leads[least]} over {least}", BASELINES)


@claim(19, SETTINGS)
def p_matters_little(results: pd.DataFrame) -> Verdict:
    """With 2 classes any two p are within HARDLY points; with 4, p = 0.50 is above both others (by any amount)."""
    parts = ((TWO, partial(_hardly_matters, results)), (FOUR, partial(_half_is_best, results)))
    return with_data(results, all_hold(parts))


def _hardly_matters(results: pd.DataFrame) -> Verdict:
    gaps = {(a, b): _lead(results, a, b, TWO) for a, b in ((0.50, 0.25), (0.50, 0.75), (0.75, 0.25))}
    status = all_of([side for gap in gaps.values() for side in (below(gap, HARDLY), above(gap, -HARDLY))])
    return Verdict(status, f"{_shown(gaps)}, for a bound of {HARDLY:g} either way")


def _half_is_best(results: pd.DataFrame) -> Verdict:
    leads = {(0.50, b): _lead(results, 0.50, b, FOUR) for b in (0.25, 0.75)}
    return Verdict(all_of([lead.status for lead in leads.values()]), _shown(leads))


def _lead(results: pd.DataFrame, a: float, b: float, setting: str) -> Interval:
    return paired(results, found(a, setting), found(b, setting))


def _shown(gaps: dict[tuple[float, float], Interval]) -> str:
    return ", ".join(f"p={a:.2f} over {b:.2f} {gap}" for (a, b), gap in gaps.items())


@claim(20, SETTINGS)
def who_suffers_from_fewer_classes(results: pd.DataFrame) -> Verdict:
    """From 4 classes to 2 each method of HURT loses accuracy, and no less than LIKE of what FedAvg loses; the strongly
    personal ones gain: an easier task."""
    parts = [(name, partial(_suffers, results, name)) for name in HURT]
    parts += [(name, partial(_has_it_easier, results, name)) for name in STRONGLY_PERSONAL]
    return with_data(results, all_hold(parts))


def _suffers(results: pd.DataFrame, name: str) -> Verdict:
    gain = _gain(results, name)
    if name == HURT[0]:
        return Verdict(interval(-gain).status, str(interval(gain)))
    if (beyond := (LIKE * _gain(results, HURT[0]) - gain).dropna()).empty:
        raise Missing(f"no seed has both numbers of classes for {HURT[0]}, too")
    status = all_of([interval(-gain).status, interval(beyond).status])
    return Verdict(status, f"{interval(gain)}, more than {LIKE:g} of {HURT[0]}'s loss by {interval(beyond)}")


def _has_it_easier(results: pd.DataFrame, name: str) -> Verdict:
    gain = interval(_gain(results, name))
    return Verdict(gain.status, str(gain))


def _gain(results: pd.DataFrame, name: str) -> pd.Series:
    """Points from 4 classes to 2, for each seed that has both."""
    gain = by_seed(results, plain(name, TWO), "acc_mean") - by_seed(results, plain(name, FOUR), "acc_mean")
    if (gain := gain.dropna()).empty:
        raise Missing("no seed has both numbers of classes")
    return gain


@claim(21, SETTINGS)
def masks_differ(results: pd.DataFrame) -> Verdict:
    """Mean overlap over client pairs, corrected for what random masks of the same sizes share: below HALFWAY."""
    return with_data(results, all_hold((setting, partial(_masks_differ_in, results, setting)) for setting in SETTINGS))


def _masks_differ_in(results: pd.DataFrame, setting: str) -> Verdict:
    corrected, raw = (interval(by_seed(results, found(0.50, setting), name)) for name in ("iou_chance", "iou_raw"))
    return Verdict(
        below(corrected, HALFWAY),
        f"overlap {raw.mean:.3f}, corrected for chance {corrected}, for a bound of {HALFWAY:g}",
    )


@claim(22, SETTINGS)
def larger_p_sends_less(results: pd.DataFrame) -> Verdict:
    """What goes up falls with p, and is 1 - p^L within ROUNDING; counts, so one seed is enough."""
    return with_data(results, all_hold((setting, partial(_sends_less_in, results, setting)) for setting in SETTINGS))


def _sends_less_in(results: pd.DataFrame, setting: str) -> Verdict:
    sent = {p: by_seed(results, found(p, setting), "uplink_fraction") for p in RATES}
    falls = all(sent[b].max() < sent[a].min() for a, b in zip(RATES, RATES[1:], strict=False))
    exact = all((sent[p] - (1 - p**ITERATIONS)).abs().max() <= ROUNDING for p in RATES)
    texts = [f"p={p:.2f} {sent[p].mean():.4f} ({sent[p].mean() + MASK_BITS:.4f} with the mask)" for p in RATES]
    return Verdict("holds" if falls and exact else "does not hold", f"sends {', '.join(texts)} of the model")
