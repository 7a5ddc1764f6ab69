"""Sentences of the notebooks' answers, from the data frames of the notebooks. What is not stored is left out."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from pfl_core.papers.pfedgate.published import MEASURED, SMALL
from pfl_core.papers.pfedgate.settings import FULL_GATE
from pfl_core.study.names import plain

SIGNIFICANT = 0.05


def over_budgets(gated: pd.DataFrame, rivals: pd.DataFrame) -> list[str]:
    """pFedGate's accuracy at s = 1, 0.3 and 0.1, then that of the ``rivals``; one sentence each.

    Columns: where, label, seed, acc_pooled; of ``gated`` also s. Rows of one data set.
    """
    accuracy = gated.groupby("s")["acc_pooled"].mean()
    own = [f"{accuracy[s]:.1f} % at s = {s}" for s in ("1", "0.3", "0.1") if s in accuracy.index]
    others = rivals.groupby("label", sort=False)["acc_pooled"].mean()
    sentences = [f"{_data(gated['where'], gated)}: the accuracy of pFedGate is {'; '.join(own)}."] if own else []
    if len(others):
        sentences.append(f"For comparison: {'; '.join(f'{name} {value:.1f} %' for name, value in others.items())}.")
    return sentences


def kept_blocks(gated: pd.DataFrame) -> list[str]:
    """The share that is kept and the number of different masks, at s = 0.5 and 0.3. Columns of ``gates.gate_table``."""
    if "distinct_masks" not in gated:
        return []
    means = gated.groupby("s")[["achieved_keep_ratio", "distinct_masks"]].mean().dropna()
    parts = []
    for s in ("0.5", "0.3"):
        if s in means.index:
            kept, masks = means.loc[s]
            which = "one mask" if masks == 1 else f"{masks:.2g} different masks"
            parts.append(f"{100 * kept:.0f} % of the parameters are kept at s = {s}, with {which}")
    return [f"Over the test batches of all clients (mean over seeds), {'; '.join(parts)}."] if parts else []


def controls(tried: pd.DataFrame) -> list[str]:
    """The accuracy of each control. Columns of ``figures.budgets.controls``."""
    accuracy = tried[tried["block_layout"] == "balanced"].groupby("label", sort=False)["acc_pooled"].mean()
    parts = [f"{name} ({value:.1f} %)" for name, value in accuracy.items()]
    return [f"Mask or scales? With blocks of one size, s = 0.5: {'; '.join(parts)}."] if parts else []


def measured(pairs: pd.DataFrame) -> list[str]:
    """Time and memory of a step at s = 0.3 relative to FedAvg, here and in the paper; a sentence for each batch size.

    ``pairs``: see ``benchmark.beside_table2``.
    """
    wide = pairs[pairs["label"] == SMALL].pivot(index="source", columns="panel", values="value")[[*MEASURED.values()]]
    sentences = []
    for source in dict.fromkeys(pairs["source"]):
        here, _, batch = source.partition(", ")
        if here == "here":
            time, memory = wide.loc[source]
            ratios = f"{time:.2f} of FedAvg's time (median) and {memory:.2f} of its peak memory"
            text = f"{batch.capitalize()}: a step of {SMALL} takes {ratios}"
            if (printed := f"paper, {batch}") in wide.index:
                text += "; in the paper {:.2f} and {:.2f}".format(*wide.loc[printed])
            sentences.append(f"{text}.")
    return sentences


def counted(counts: pd.DataFrame) -> str:
    """Multiply-adds kept and computed, and upload, relative to FedAvg. ``counts``: see ``benchmark.analytic``."""
    small = counts.loc[SMALL]
    sparse = counts[counts.index.str.startswith("pFedGate, s = ") & (counts["parameters kept"] < 1)]
    kept = [
        f"{row['parameters kept']:.2f} of the parameters and {row['MACs kept']:.2f} of the multiply-adds "
        f"({str(label).removeprefix('pFedGate, ')})"
        for label, row in sparse.iterrows()
    ]
    return (
        f"Counted: a client keeps {', '.join(kept)}; few blocks hold most of the work. Masked kernels multiply by "
        f"zero, so a step at s = 0.3 computes {small['step computed']:.2f} of FedAvg's multiply-adds. Its upload is "
        f"{small['upload / d']:.2f} of the model."
    )


def ablation(frame: pd.DataFrame) -> list[str]:
    """Points lost by each gate relative to the full one, by data set. ``frame``: see ``studies.ablation``."""
    sentences = []
    for where, part in frame.groupby("setting", sort=False):
        lost = part[part["label"] != FULL_GATE].groupby("label", sort=False)["lost"].mean()
        full = part.loc[part["label"] == FULL_GATE, "accuracy"].mean()
        if len(lost):
            start = f"{_data([where], part)}: the {FULL_GATE} has {full:.1f} %. Points lost"
            sentences.append(f"{start}: {_listed(lost)}.")
    return sentences


def drops(lost: pd.DataFrame) -> list[str]:
    """Points lost with a fifth of the clients in each round, by data set. ``lost``: see ``studies.drops``."""
    return [
        f"{_data([where], part)}: points lost with a fifth of the clients in each round: "
        f"{_listed(part.groupby('label', sort=False)['mean'].mean())}."
        for where, part in lost.groupby("base", sort=False)
    ]


def gaps(gap: pd.DataFrame) -> list[str]:
    """Participating minus novel clients in points, by data set. ``gap``: see ``studies.gaps``."""
    return [
        f"{_data([where], part)}: points by which novel clients are behind participating ones: "
        f"{_listed(part.groupby('label', sort=False)['gap'].mean())}."
        for where, part in gap.groupby("base", sort=False)
    ]


def correlations(table: pd.DataFrame) -> list[str]:
    """Rank correlations of common labels with the distance of gates and of masks at each budget.

    ``table``: see ``labels.correlations``.
    """
    sentences = []
    for run, part in table.dropna(subset="gates").groupby("run", sort=False):
        of = [_correlation(part, *columns) for columns in (("gates", "p"), ("masks", "p "))]
        sentences.append(
            f"{run}: the rank correlation with common labels is, on average, {of[0]} for the distance of gates and "
            f"{of[1]} for the distance of masks. A negative one means that clients with common labels are nearer."
        )
    return sentences


def _correlation(part: pd.DataFrame, name: str, p: str) -> str:
    """ "-0.18 (below 0 with p < 0.05 in 1 of 3 runs)"; without a correlation, why there is none."""
    if part[name].isna().all():
        return "undefined, because all are equal,"
    found = int(((part[name] < 0) & (part[p] < SIGNIFICANT)).sum())
    runs = f"{len(part)} run{'s' * (len(part) > 1)}"
    return f"{part[name].mean():+.2f} (below 0 with p < {SIGNIFICANT:g} in {found} of {runs})"


def swapped(swaps: pd.DataFrame) -> list[str]:
    """Accuracy with the own gate and with others' gates. Columns: gate, accuracy; see ``gates.gate_swaps``."""
    if swaps.empty:
        return []
    own = swaps["gate"] == "own"
    others = swaps["gate"].str.startswith("client k + ")
    accuracy = [swaps.loc[rows, "accuracy"].mean() for rows in (own, others)]
    return ["A client scores {:.1f} % with its own gate, and {:.1f} % with another client's.".format(*accuracy)]


def _data(names: Iterable[str], runs: pd.DataFrame) -> str:
    """The data sets and the number of seeds: "Fashion-MNIST, 3 seeds"."""
    seeds = runs["seed"].nunique()
    return f"{', '.join(map(plain, dict.fromkeys(names)))}, {seeds} seed{'s' * (seeds > 1)}"


def _listed(points: pd.Series) -> str:
    """The labels with their numbers: "no norm before (+0.2); no sigmoid (+3.7)"."""
    rounded = points.round(1) + 0.0  # no "-0.0"
    return "; ".join(f"{label} ({value:+.1f})" for label, value in rounded.items())
