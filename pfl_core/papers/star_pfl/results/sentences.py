"""The answers on the first screens of Star-PFL's notebooks: sentences from the data frames of the runs."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from pfl_core.papers.star_pfl.experiments import MORE_READINGS, PARTS, READINGS
from pfl_core.papers.star_pfl.results.rounds import POINTS, SPELLED, below_baselines
from pfl_core.papers.star_pfl.settings import BASELINES
from pfl_core.study.frames import standings
from pfl_core.study.names import NAMES

TYPICAL_ALPHA = 0.1  # of Table 3, and of the runs with most seeds
OWN = NAMES["star_pfl"]
PUBLISHED, MIXED = "the paper", "mixed"  # panels beside POINTS: the printed table, and each method as its code scores


def num_seeds(number: int) -> str:
    return f"{number} seed{'s' * (number != 1)}"


def paired(runs: pd.DataFrame, values: Iterable[str]) -> pd.DataFrame:
    """The runs of the seeds for which all labels have all ``values``. Columns: label, seed."""
    kept = runs.dropna(subset=list(values))
    complete = kept.groupby("seed")["label"].nunique() == kept["label"].nunique()
    return kept[kept["seed"].isin(complete.index[complete])]


# ---- 01: stability traces -------------------------------------------------------------------------------------------


def frozen(shares: pd.DataFrame) -> list[str]:
    """What is frozen, compared with noise. ``shares``: see ``freezing.by_seed``, of runs that freeze."""
    sentences = []
    for party, side in (("clients", "local"), ("server", "global")):
        means = shares.reindex([f"{kind}_{side}" for kind in ("frozen", "chance", "cancelled")]).mean(axis=1)
        text = [f"{means.iloc[0]:.1f} % of the entries are frozen"]
        text += [f"updates of noise alone would freeze {means.iloc[1]:.1f} %"] * bool(means.notna().iloc[1])
        text += [f"without entries that never moved, {means.iloc[2]:.1f} % are frozen"] * bool(means.notna().iloc[2])
        sentences.append(f"On the {party}, mean over rounds, {num_seeds(shares.shape[1])}: {'; '.join(text)}.")
    return sentences


def size_and_score(shares: pd.DataFrame) -> list[str]:
    """Rank correlation of size and score. ``shares``: see ``freezing.by_seed``, of runs in which nothing is frozen."""
    means = shares.reindex(["size_correlation", "size_correlation_global"]).mean(axis=1)
    labels = ("on the clients (mean absolute value)", "on the server")
    shown = [f"{mean:+.2f} {label}" for mean, label in zip(means, labels, strict=True) if mean == mean]  # not NaN
    text = f"Rank correlation of an entry's size and its score, nothing frozen, {num_seeds(shares.shape[1])}: "
    return [f"{text}{', '.join(shown)}; 0 means that size says nothing about stability."] if shown else []


# ---- 02: mask similarity --------------------------------------------------------------------------------------------


def similarity(last: pd.DataFrame, sets: pd.DataFrame, split: str = "one label a group") -> list[str]:
    """Whether labels explain the similarity. ``last``: see ``similarity.last_round``.

    ``sets``: ``similarity.stable_sets`` of the split's runs, joined with the seed as a further level.
    """
    if split not in last.index:
        return []
    runs = last.loc[[split]]
    means, largest = runs.mean(), runs.filter(regex="_p$").max()
    overlaps = sets.groupby(level=["sets", "common class"], sort=False)["corrected"].mean()
    moved = overlaps["those that moved"]
    return [
        f"{split.capitalize()}, {num_seeds(len(runs))}, pairs of clients with a common class minus pairs without: "
        f"Spearman correlation of scores {means['rank_contrast']:+.2f} (p at most {largest['rank_contrast_p']:.3f}), "
        f"overlap of stable sets corrected for chance {means['stable_contrast']:+.2f} "
        f"(p at most {largest['stable_contrast_p']:.3f}).",
        "The corrected overlap is {yes:.2f} with a common class and {no:.2f} without.".format(**overlaps["all stable"])
        + " Of the entries that ever moved, it is {yes:.2f} and {no:.2f}.".format(**moved) * bool(moved.notna().all()),
        f"{100 * means['stable_share']:.1f} % of the entries are stable; of updates of noise alone it would be "
        f"{100 * means['chance_share']:.1f} %.",
    ]


# ---- 03: state machine ----------------------------------------------------------------------------------------------


def patterns(trained: pd.DataFrame, threshold: float, rounds: int) -> list[str]:
    """How often each pattern is trained. ``trained``: percent of the rounds; a row per pattern, a column per H."""
    lines = [f"Share of {rounds} rounds in which an entry is trained (active or probing), at T = {threshold:g}:"]
    for setting, shares in trained.items():
        lines.append(f"  {setting}: " + ", ".join(f"{name} {share:.0f} %" for name, share in shares.items()))
    frozen = 100 - trained.loc["noise"]
    if frozen.min() > 0:
        lines.append(
            f"Noise has not converged, and is frozen in {frozen.min():.0f} to {frozen.max():.0f} % of the rounds. "
            "So a frozen entry need not have converged."
        )
    return lines


# ---- 04: accuracy ---------------------------------------------------------------------------------------------------


def accuracy(table: pd.DataFrame) -> list[str]:
    """Standings of the methods at α = 0.1, for each task and scoring point. ``table``: see ``rounds.accuracies``."""
    alphas = sorted(table["alpha"].unique())
    alpha = TYPICAL_ALPHA if TYPICAL_ALPHA in alphas else alphas[0]
    sentences = []
    for task, runs in table[table["alpha"] == alpha].groupby("task", sort=False):
        for score, point in POINTS.items():
            where = f"{task}, α = {alpha:g}, {point}"
            sentences += standings(paired(runs, [score]).assign(where=where), "star_pfl", score)
    return sentences


def near_the_top(table: pd.DataFrame, cells: pd.DataFrame) -> list[str]:
    """In how many settings Star-PFL is first or second, with mixed scoring points and with one point for all methods.

    ``table``: see ``rounds.accuracies``; ``cells``: the data of ``figures.tables.by_method``.
    """
    mixed = table.assign(panel=MIXED, value=table["acc_mean_picked"])
    columns = ["task", "alpha", "panel", "label", "seed", "value"]
    every = pd.concat([mixed[columns], cells[columns]]).fillna({"seed": -1})
    top: dict[str, list[bool]] = {panel: [] for panel in dict.fromkeys(every["panel"])}
    for (_, _, panel), runs in every.groupby(["task", "alpha", "panel"], sort=False):
        top[str(panel)].append(_rank(paired(runs, ["value"])) in ("1", "2"))
    counts = {panel: f"{sum(found)} of {len(found)}" for panel, found in top.items()}
    points = [name for name in POINTS.values() if name in top]
    mainly = all(sum(top[MIXED]) > sum(top[name]) for name in points)
    first = "The paper's order appears mainly where scoring points are mixed: " * mainly
    parts = [f"in {counts[MIXED]} settings if each method is scored as its code does"]
    parts += [f"in {counts[name]} if all are scored {name}" for name in points]
    of_paper = f" (the paper's Table 2: {counts[PUBLISHED]})" if PUBLISHED in counts else ""
    methods = cells["label"].nunique()
    return [f"{first}{OWN} is first or second of {methods} methods {', '.join(parts)}{of_paper}."]


def ranks(cells: pd.DataFrame) -> list[str]:
    """Star-PFL's rank by mean, for each task, panel and α. ``cells``: the data of ``figures.tables.by_method``.

    Seeds that not all methods have are left out.
    """
    lines, alphas = [], sorted(cells["alpha"].unique())
    for task, rows in cells.groupby("task", sort=False):
        ranked = []
        for panel, runs in rows.assign(seed=rows["seed"].fillna(-1)).groupby("panel", sort=False):
            places = [_rank(paired(runs[runs["alpha"] == alpha], ["value"])) for alpha in alphas]
            ranked.append(f"{panel} {', '.join(places)}")
        lines.append(f"  {task}: {'; '.join(ranked)}.")
    at = ", ".join(f"{alpha:g}" for alpha in alphas)
    return [f"Rank of {OWN} among {cells['label'].nunique()} methods at α = {at}:", *lines]


def _rank(runs: pd.DataFrame) -> str:
    means = runs.groupby("label")["value"].mean()
    return str(1 + int((means > means[OWN]).sum())) if OWN in means.index else "-"


# ---- 05: costs ------------------------------------------------------------------------------------------------------


def costs(table: pd.DataFrame, noise: dict[str, float]) -> list[str]:
    """Costs in a round and until convergence, a sentence for each task. ``table``: see ``rounds.cost_table``.

    ``noise``: task -> percent of the parameters that would be sent on noise.
    """
    sentences = []
    for task, every in table.groupby("task", sort=False):
        runs = paired(every, ["comm_total", "flops_total"])
        means = runs.groupby("method").mean(numeric_only=True)
        if not {"star_pfl", "fedavg"} <= set(means.index):
            continue
        shown, seeds = str(task), num_seeds(runs["seed"].nunique())
        bytes_ = means[["upload_bytes", "mask_bytes", "download_bytes"]].sum(axis=1)
        per_round = {
            "sends {:.1f} % of the values (as the paper counts)": means["comm_mb_per_client_per_round"],
            "moves {:.1f} % of all bytes (with masks and downloads)": bytes_,
            "computes {:.1f} % of the operations": means["flops_1e10_per_round"],
        }
        parts = [part.format(100 * of["star_pfl"] / of["fedavg"]) for part, of in per_round.items()]
        text = f"{shown}, {seeds}: in a round, compared with FedAvg, {OWN} {', '.join(parts)}."
        if str(task) in noise:
            text += f" Noise alone would send {noise[str(task)]:.1f} % of the values."
        sentences += [text, *_until_convergence(shown, runs, means)]
    return sentences


def _until_convergence(task: str, runs: pd.DataFrame, means: pd.DataFrame) -> list[str]:
    """The totals compared with the baselines' mean; nothing if a baseline is missing."""
    if set(means.index) != {"star_pfl", *BASELINES}:
        return []
    totals = ["comm_total", "flops_total"]
    less = below_baselines(means[totals])
    by_seed = [below_baselines(every.set_index("method")[totals]) for _, every in runs.groupby("seed")]
    spread = [f"{_less(max(values))} to {_less(min(values))}" for values in zip(*by_seed, strict=True)]
    late = runs[runs["rounds_to_convergence"] >= runs["rounds"]]["method"].nunique()
    text = f"{task}, until the best round: {OWN} sends {_less(less.iloc[0])} and computes {_less(less.iloc[1])} "
    text += f"than the mean of the {len(BASELINES)} baselines"
    if len(by_seed) > 1:
        text += f" (seed by seed, it sends {spread[0]}, and computes {spread[1]})"
    too_short = f"; {late} of {len(means)} methods are best in the last round, so more rounds may change this"
    return [text + too_short * (late > 0) + "."]


def published_costs(less: pd.DataFrame) -> str:
    """The abstract's percentages, from the printed table. ``less``: see ``rounds.published_savings``."""
    means = less.mean()
    return (
        f"The paper's Table 3, until convergence: {OWN} sends {_less(means['communication'])} and computes "
        f"{_less(means['computation'])} than the mean of the {len(BASELINES)} baselines "
        f"(mean of {' and '.join(SPELLED.get(name, name) for name in less.index)})."
    )


def _less(percent: float) -> str:
    return f"{abs(percent):.1f} % {'less' if percent >= 0 else 'more'}"


# ---- 06: ablations --------------------------------------------------------------------------------------------------


def ablations(runs: pd.DataFrame) -> list[str]:
    """The method without its parts and in other readings, and what is frozen. ``runs``: see ``ablations.table``."""
    sentences, chosen = [], paired(runs, list(POINTS))
    seeds = num_seeds(chosen["seed"].nunique())
    for score, point in POINTS.items():
        means = chosen.groupby("label", sort=False)[score].mean()
        if OWN not in means.index:
            continue
        shown = [name for name in (OWN, *PARTS, NAMES["local"], NAMES["fedavg"]) if name in means.index]
        text = f"Accuracy {point}, {seeds}: " + "; ".join(f"{name} {means[name]:.1f} %" for name in shown) + "."
        others = means[means.index.isin([*READINGS, *MORE_READINGS])] - means[OWN]
        if len(others):
            text += f" {len(others)} other readings: {others.min():+.1f} ({others.idxmin()}) to {others.max():+.1f} "
            text += f"({others.idxmax()}) points."
        sentences.append(text)
    own = runs[runs["label"] == OWN].reindex(columns=["frozen_local", "chance_local", "frozen_global", "chance_global"])
    if len(own) and own.notna().all(axis=None):
        sentences.append(
            "Share of the parameters of {} that is frozen by clients: {:.1f} % (noise alone {:.1f} %); frozen by the "
            "server: {:.1f} % (noise alone {:.1f} %).".format(OWN, *own.mean())
        )
    return sentences
