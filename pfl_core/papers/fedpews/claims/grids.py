"""Checks of FedPeWS's claims on lambda, tau and fixed masks: Tables 7 and 8 (6 to 9), unequal shares (11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter

import numpy as np
import pandas as pd

from pfl_core.papers.fedpews.claims.tables import FEDAVG, Selector, claim_in, fixed, lead, pews
from pfl_core.papers.fedpews.comparison import COMPARISON
from pfl_core.papers.fedpews.criteria import CRITERIA
from pfl_core.study.claims import parts
from pfl_core.study.criteria import Judgement
from pfl_core.study.statistics import Missing, by_seed, claim_rows, interval, reading, settings
from pfl_core.study.verdicts import Verdict, all_hold, all_of, below

GRIDS = ("cifar_mnist", "path_oct_tissue")  # Tables 7 and 8
BEST_TAUS = {"cifar_mnist": (0.4, 0.5), "path_oct_tissue": (0.2, 0.4)}
BEST_LAMBDAS = (2.0, 10.0)
LITTLE = 0.75  # share of cells above FedAvg; not in the paper: as the bound for "depends little"
AS_GOOD = 0.5  # points, about one standard deviation of Table 7


def learned(rows: pd.DataFrame) -> list[Selector]:
    """Selectors of the stored cells of Tables 7 and 8 with learned masks."""
    here = (rows["method"] == "fedpews") & (rows["base"] == "fedavg") & (rows["metric"] == "acc_pooled")
    cells = rows.loc[here & (rows["tau"].astype(float) > 0), ["lam", "tau"]].astype(float).drop_duplicates()
    return [pews(*cell) for cell in cells.sort_values(["lam", "tau"]).itertuples(index=False)]


def fixed_cells(rows: pd.DataFrame) -> list[Selector]:
    """Selectors of the stored cells with equal fixed masks."""
    return [fixed(tau) for tau in settings(rows[rows["shares"] == "equal"], "fedpews_fixed", "tau") if tau > 0]


def depends_little(rows: pd.DataFrame, name: str) -> Verdict:
    """At least LITTLE of the cells are above FedAvg, each by its interval.

    Does not hold if more than the share 1 - LITTLE is below. The numbers count cells by their means, split where the
    paper's tables change: at lambda 0.3 and at tau 0.4.
    """
    cells = learned(rows)
    if any(len({cell[field] for cell in cells}) < 2 for field in ("lam", "tau")):
        raise Missing("a grid of at least two lambda and two tau is not stored")
    # Status: by the intervals of the cells' gains over FedAvg.
    gains = [(cell, lead(rows, cell, FEDAVG)) for cell in cells]
    won, lost = (sum(gain.status == status for _, gain in gains) for status in ("holds", "does not hold"))
    may_lose = (1 - LITTLE) * len(gains)
    status = "holds" if won >= LITTLE * len(gains) else "does not hold" if lost > may_lose else "undecided"
    # Text: counts by the means, in parts of the grid.
    regions: dict[str, Callable[[Selector], bool]] = {
        "all": lambda cell: True,
        "lambda<0.3": lambda cell: float(cell["lam"]) < 0.3 - 1e-9,
        "lambda>=0.3": lambda cell: float(cell["lam"]) >= 0.3 - 1e-9,
        "tau<=0.4": lambda cell: float(cell["tau"]) <= 0.4 + 1e-9,
        "tau>=0.5": lambda cell: float(cell["tau"]) > 0.4 + 1e-9,
    }
    counts = {part: [gain.mean > 0 for cell, gain in gains if inside(cell)] for part, inside in regions.items()}
    counts["fixed masks"] = [lead(rows, cell, FEDAVG).mean > 0 for cell in fixed_cells(rows)]
    text = ", ".join(f"{part} {sum(above)} of {len(above)}" for part, above in counts.items() if above)
    return Verdict(status, f"cells above fedavg: {text}; by their intervals {won} above, {lost} below")


@claim_in(7, *GRIDS)
def best_region(rows: pd.DataFrame, name: str) -> Verdict:
    """The best cell of the region against the best cell outside it, both chosen by their mean over the seeds."""
    means = [(cell, by_seed(rows, cell, "acc_pooled").mean()) for cell in learned(rows)]
    # Pairs of (mean accuracy, cell) inside and outside the region.
    inside = [(value, cell) for cell, value in means if _in_best_region(cell, name)]
    outside = [(value, cell) for cell, value in means if not _in_best_region(cell, name)]
    if not (inside and outside):
        raise Missing("cells inside and outside the region are not stored")
    top_inside, best_inside = max(inside, key=itemgetter(0))
    top_outside, best_outside = max(outside, key=itemgetter(0))
    ahead = lead(rows, best_inside, best_outside)
    mean_inside, mean_outside = (float(np.mean([value for value, _ in part])) for part in (inside, outside))
    text = f"best inside {top_inside:.2f} ({label(best_inside)}), outside {top_outside:.2f} ({label(best_outside)})"
    text += f", difference {ahead}; mean inside {mean_inside:.2f}, outside {mean_outside:.2f}"
    return Verdict(ahead.status, text)


def _in_best_region(cell: Selector, name: str) -> bool:
    in_lambda = BEST_LAMBDAS[0] <= float(cell["lam"]) <= BEST_LAMBDAS[1]
    return in_lambda and bool(np.isclose(float(cell["tau"]), BEST_TAUS[name]).any())


def label(cell: Selector) -> str:
    return f"lambda={cell['lam']:g} tau={cell['tau']:g}"


def harm_without_diversity(rows: pd.DataFrame, name: str) -> Verdict:
    """At each tau FedAvg beats lambda = 0, and lambda = 0 is below the other lambda by more than their spread.

    Second part: at this tau the mean of the cells with lambda > 0, minus their sample deviation, is above the cell with
    lambda = 0. A loss that all lambda have in common is caused by the warm-up, not by the missing reward.
    """
    cells = learned(rows)
    statuses, texts = [], []
    for cell in (cell for cell in cells if cell["lam"] == 0):
        tau = cell["tau"]
        rewarded = [by_seed(rows, c, "acc_pooled") for c in cells if float(c["lam"]) > 0 and c["tau"] == tau]
        if len(rewarded) < 2:
            raise Missing(f"several lambda > 0 at tau={tau:g} are not stored")
        others = pd.concat(rewarded, axis=1, join="inner")  # seeds x cells
        unrewarded = by_seed(rows, cell, "acc_pooled")
        loss = lead(rows, FEDAVG, cell)
        margin = interval((others.mean(axis=1) - others.std(axis=1) - unrewarded).dropna())
        statuses += [loss.status, margin.status]
        texts.append(f"tau={tau:g} {loss}, below the lambda > 0 by their spread and {margin}")
    if not texts:
        raise Missing("fedpews with lambda = 0 is not stored")
    return Verdict(all_of(statuses), f"fedavg over lambda=0: {'; '.join(texts)}")


def fixed_masks_as_good(rows: pd.DataFrame, name: str) -> Verdict:
    """The best learned masks are less than AS_GOOD above the best fixed ones, both chosen by their means."""
    best = []
    for kind, cells in (("learned", learned(rows)), ("fixed", fixed_cells(rows))):
        if not cells:
            raise Missing(f"the grid with {kind} masks is not stored")
        best.append(max(cells, key=lambda cell: by_seed(rows, cell, "acc_pooled").mean()))
    best_learned, best_fixed = best
    behind = lead(rows, best_learned, best_fixed)
    text = f"best learned ({label(best_learned)}) minus best fixed (tau={best_fixed['tau']:g}) {behind}"
    return Verdict(below(behind, AS_GOOD), text)


claim_in(6, *GRIDS)(depends_little)
claim_in(8, "cifar_mnist")(harm_without_diversity)
claim_in(9, *GRIDS)(fixed_masks_as_good)


def grid_verdicts(results: pd.DataFrame, setting: str) -> dict[str, Judgement]:
    """The questions of claims 6, 8 and 9 on a grid that is not in the paper, such as that on Synthetic-32K."""
    questions = {
        (6, "It depends little on lambda and tau (as claim 6)."): depends_little,
        (8, "Without diversity reward it does harm (as claim 8)."): harm_without_diversity,
        (9, "Fixed masks are as good as the best learned ones (as claim 9)."): fixed_masks_as_good,
    }
    rows = claim_rows(results[~results["partial"].eq(True)], COMPARISON, (setting,))
    judgements = {}
    for (number, text), check in questions.items():
        with reading() as read:
            verdict = all_hold([(setting, partial(check, rows, setting))])
        judgements[text] = CRITERIA.judge(number, verdict, read, rows)
    return judgements


def in_short(judgements: Mapping[str, Judgement]) -> list[str]:
    """Each question of ``grid_verdicts`` with its status, and the first of the numbers or reasons behind it."""
    return [f"{text} {found.status.upper()} here: {parts(found.numbers)[0]}" for text, found in judgements.items()]


@claim_in(11, "cifar_mnist")
def unequal_masks_are_better(rows: pd.DataFrame, name: str) -> Verdict:
    """Shares 25/75 (the first client has MNIST) are above 50/50. The half point is reported, not tested."""
    ahead = lead(rows, fixed(0.4, "(0.25, 0.75)"), fixed(0.4))
    return Verdict(ahead.status, f"25/75 minus 50/50 {ahead}")
