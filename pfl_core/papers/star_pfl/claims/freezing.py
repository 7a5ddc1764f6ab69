"""Checks of Star-PFL's claims 6 and 9 to 12 on stored results: what is frozen, and the effect of freezing.

All are judged by 95 % t-intervals over seeds, of paired differences where two numbers are compared. ``variant`` names
the fields in which a run differs from the paper's reading.
"""

from __future__ import annotations

from functools import partial

import pandas as pd

from pfl_core.papers.star_pfl.comparison import COMPARISON
from pfl_core.papers.star_pfl.criteria import CRITERIA
from pfl_core.study.claims import ClaimChecks
from pfl_core.study.statistics import Missing, by_seed, interval, paired
from pfl_core.study.verdicts import Verdict, above, all_hold, all_of, below, on_each_dataset

claim = ClaimChecks(COMPARISON, CRITERIA)

UNFROZEN = "threshold_global=None;threshold_local=None"
LOCAL_ONLY = "threshold_global=None"  # clients freeze, the server does not
NEVER_THAWED = "thaw=False"
NO_CORRELATION = 0.1  # rank correlations below it in absolute value count as none (not in the paper)
NO_LOSS = 0.5  # points of accuracy; a smaller loss counts as none (not in the paper)
POINTS = {"after local training": "acc_mean_picked_trained", "after aggregation": "acc_mean_picked_merged"}
PARTIES = {"clients": "local", "server": "global"}


def star_pfl(variant: str = "") -> dict:
    """Selects Star-PFL's runs with Table 3's split, α = 0.1."""
    return {"method": "star_pfl", "variant": variant, "dirichlet": 0.1}


def named_variants(results: pd.DataFrame) -> pd.DataFrame:
    """Replaces a missing variant (NaN) by '', the paper's reading."""
    return results.assign(variant=results["variant"].fillna(""))


@claim(6, ("traces",), rows=named_variants)
@on_each_dataset
def size_does_not_predict_stability(results: pd.DataFrame) -> Verdict:
    """With nothing frozen, |rank correlation| of size and score is below 0.1 for the clients' mean and for the server.

    Entries that never moved are left out: their score is 0 by definition.
    """
    metrics = {"clients' mean": "size_correlation", "server": "size_correlation_global"}
    verdict = all_hold((label, partial(_no_correlation, results, metric)) for label, metric in metrics.items())
    return verdict._replace(numbers=verdict.numbers.replace("; ", " and "))  # one text, which is shown as a whole


def _no_correlation(results: pd.DataFrame, metric: str) -> Verdict:
    correlation = interval(by_seed(results, star_pfl(UNFROZEN), metric))
    status = all_of([above(correlation, -NO_CORRELATION), below(correlation, NO_CORRELATION)])
    return Verdict(status, f"rank correlation {correlation.text(3)} (within ± {NO_CORRELATION} counts as none)")


def _num_seeds(values: pd.Series) -> str:
    return f"{len(values)} seed{'s' * (len(values) > 1)}"


@claim(9, ("axial",), rows=named_variants)
@on_each_dataset
def freezing_is_free(results: pd.DataFrame) -> Verdict:
    """Accuracy with thresholds minus without: above -0.5 points at both scoring points."""
    return all_hold((label, partial(_no_loss, results, metric)) for label, metric in POINTS.items())


def _no_loss(results: pd.DataFrame, metric: str) -> Verdict:
    lead = paired(results, star_pfl(), star_pfl(UNFROZEN), metric)
    return Verdict(above(lead, -NO_LOSS), f"{lead} points; a loss up to {NO_LOSS} counts as none")


@claim(10, ("axial",), rows=named_variants)
@on_each_dataset
def probing_matters(results: pd.DataFrame) -> Verdict:
    """Accuracy with probes minus without: significantly better at one scoring point at least, and worse at none."""
    leads = {label: paired(results, star_pfl(), star_pfl(NEVER_THAWED), metric) for label, metric in POINTS.items()}
    statuses = {lead.status for lead in leads.values()}
    frozen = [by_seed(results, star_pfl(variant), "frozen_local").mean() for variant in ("", NEVER_THAWED)]
    text = ", ".join(f"{label} {lead}" for label, lead in leads.items())
    status = next((s for s in ("does not hold", "holds") if s in statuses), "undecided")
    return Verdict(status, f"{text}; frozen by clients {frozen[0]:.0f} % with probes, {frozen[1]:.0f} % without")


@claim(11, ("axial",), rows=named_variants)
@on_each_dataset
def training_makes_it_personal(results: pd.DataFrame) -> Verdict:
    """Without masks, local training improves the received model, and by more than the clients' mask changes it."""
    training_gain = by_seed(results, star_pfl(UNFROZEN), "local_gain")
    masked, plain = (by_seed(results, star_pfl(v), POINTS["after local training"]) for v in (LOCAL_ONLY, UNFROZEN))
    mask_gain = (masked - plain).dropna()
    excess = interval((training_gain - mask_gain.abs()).dropna())
    text = f"gain of local training {interval(training_gain)}, of the mask {interval(mask_gain)}"
    text += f", the first minus the absolute value of the second {excess}"
    return Verdict(all_of([interval(training_gain).status, excess.status]), text)


@claim(12, ("traces",), rows=named_variants)
@on_each_dataset
def more_than_noise(results: pd.DataFrame) -> Verdict:
    """Clients and server freeze a larger share than the null model, with the same thresholds and windows.

    Entries that never moved are stable by definition and left out. Where their share is not stored, freezing less than
    noise still refutes the claim, since leaving them out lowers the share further; freezing more is undecided.
    """
    return all_hold((label, partial(_beyond_chance, results, side)) for label, side in PARTIES.items())


def _beyond_chance(results: pd.DataFrame, side: str) -> Verdict:
    frozen, noise = (by_seed(results, star_pfl(), f"{kind}_{side}") for kind in ("frozen", "chance"))
    text = f"{frozen.mean():.1f} % frozen, of noise {noise.mean():.1f} % ({_num_seeds(noise)})"
    try:
        cancelled = by_seed(results, star_pfl(), f"cancelled_{side}")
    except Missing:
        status = "undecided" if (frozen > noise).any() else "does not hold"
        return Verdict(status, f"{text}; the share that never moved is not stored")
    excess = interval((cancelled - noise).dropna())
    return Verdict(
        excess.status, f"{text}; of the entries that moved {cancelled.mean():.1f} %, {excess} points above noise"
    )
