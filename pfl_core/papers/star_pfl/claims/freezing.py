"""Checks of Star-PFL's claims 6 and 9 to 12 on results of ours: what freezing is, and what it does.

"A beats B" is judged by the 95 % t-interval of the paired difference over seeds. What is counted over all parameters of
a run (claims 6 and 12) is judged seed by seed: it holds if all seeds say so, and does not hold if all say the reverse.
Runs are named by their ``variant``: how they differ from the paper's reading.
"""

from __future__ import annotations

from functools import partial

import pandas as pd

from pfl_core.papers.star_pfl.comparison import COMPARISON
from pfl_core.papers.star_pfl.criteria import CRITERIA
from pfl_core.study.claims import ClaimChecks
from pfl_core.study.statistics import Missing, by_seed, interval, paired
from pfl_core.study.verdicts import Verdict, above, all_hold, all_of, on_each_dataset

claim = ClaimChecks(COMPARISON, CRITERIA)

UNFROZEN = "threshold_global=None;threshold_local=None"
LOCAL_ONLY = "threshold_global=None"  # clients freeze, the server does not
NEVER_THAWED = "thaw=False"
NOTHING = 0.1  # a rank correlation below it tells nothing; ours
AS_GOOD = 0.5  # points of accuracy that count as no loss; ours
POINTS = {"after local training": "acc_mean_picked_trained", "after aggregation": "acc_mean_picked_merged"}
PARTIES = {"clients": "local", "server": "global"}


def star(variant: str = "") -> dict:
    """Star-PFL with the split of Table 3; the other alphas of Table 2 are stored beside it."""
    return {"method": "star_pfl", "variant": variant, "dirichlet": 0.1}


def named_variants(results: pd.DataFrame) -> pd.DataFrame:
    """The variant of the paper's reading is ''."""
    return results.assign(variant=results["variant"].fillna(""))


def unanimous(said: pd.Series) -> str:
    """Of one yes or no for each seed."""
    return "holds" if said.all() else "undecided" if said.any() else "does not hold"


@claim(6, ("traces",), rows=named_variants)
@on_each_dataset
def size_tells_nothing(results: pd.DataFrame) -> Verdict:
    """Where nothing is frozen, |rank correlation| of size and score is below 0.1: mean over clients, and the server's.

    Entries that never moved do not count: they have the score 0 by definition.
    """
    names = {"clients' mean": "size_correlation", "server": "size_correlation_global"}
    return all_hold((label, partial(_nothing, results, metric)) for label, metric in names.items())


def _nothing(results: pd.DataFrame, metric: str) -> Verdict:
    found = by_seed(results, star(UNFROZEN), metric)
    seeds = f"{len(found)} seed{'s' * (len(found) > 1)}"
    return Verdict(unanimous(found.abs() < NOTHING), f"|rank correlation| {found.abs().mean():.2f} ({seeds})")


@claim(9, ("axial",), rows=named_variants)
@on_each_dataset
def freezing_is_free(results: pd.DataFrame) -> Verdict:
    """With thresholds minus without, all else equal, scored at the same point: above -0.5 points at both points."""
    return all_hold((label, partial(_no_loss, results, metric)) for label, metric in POINTS.items())


def _no_loss(results: pd.DataFrame, metric: str) -> Verdict:
    lead = paired(results, star(), star(UNFROZEN), metric)
    return Verdict(above(lead, -AS_GOOD), f"{lead} points, {AS_GOOD} less count as equal")


@claim(10, ("axial",), rows=named_variants)
@on_each_dataset
def probing_matters(results: pd.DataFrame) -> Verdict:
    """As it is minus never thawed, both points: it must be ahead at one of them by its interval, behind at none."""
    leads = {label: paired(results, star(), star(NEVER_THAWED), metric) for label, metric in POINTS.items()}
    statuses = {lead.status for lead in leads.values()}
    frozen = [by_seed(results, star(variant), "frozen_local").mean() for variant in ("", NEVER_THAWED)]
    text = ", ".join(f"{label} {lead}" for label, lead in leads.items())
    status = next((s for s in ("does not hold", "holds") if s in statuses), "undecided")
    return Verdict(status, f"{text}; frozen by clients {frozen[0]:.0f} % with probes, {frozen[1]:.0f} % without")


@claim(11, ("axial",), rows=named_variants)
@on_each_dataset
def training_makes_it_personal(results: pd.DataFrame) -> Verdict:
    """Without any mask, local training gains over the received model, and more than the clients' mask changes."""
    gain = by_seed(results, star(UNFROZEN), "local_gain")
    masked, plain = (by_seed(results, star(v), POINTS["after local training"]) for v in (LOCAL_ONLY, UNFROZEN))
    mask = (masked - plain).dropna()
    more = interval((gain - mask.abs()).dropna())
    text = f"local training {interval(gain)}, the mask {interval(mask)}, the first minus the size of the second {more}"
    return Verdict(all_of([interval(gain).status, more.status]), text)


@claim(12, ("traces",), rows=named_variants)
@on_each_dataset
def more_than_noise(results: pd.DataFrame) -> Verdict:
    """Clients and server freeze more than the null model does of noise with the same thresholds and windows.

    What never moved is steady by definition: it is left out. Where no trace tells how much that is, freezing less than
    noise still decides, for without it there is less; freezing more does not.
    """
    return all_hold((label, partial(_beyond_chance, results, side)) for label, side in PARTIES.items())


def _beyond_chance(results: pd.DataFrame, side: str) -> Verdict:
    frozen, noise = (by_seed(results, star(), f"{kind}_{side}") for kind in ("frozen", "chance"))
    seeds = f"{len(noise)} seed{'s' * (len(noise) > 1)}"
    text = f"{frozen.mean():.1f} % frozen, of noise {noise.mean():.1f} % ({seeds})"
    try:
        cancelled = by_seed(results, star(), f"cancelled_{side}")
    except Missing:
        status = "undecided" if (frozen > noise).any() else "does not hold"
        return Verdict(status, f"{text}; how much of it never moved is not told")
    return Verdict(unanimous((cancelled - noise).dropna() > 0), f"{text}; of what moved {cancelled.mean():.1f} %")
