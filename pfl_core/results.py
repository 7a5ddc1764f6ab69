"""From records to tidy data frames: what figures draw, claims are checked on, and tables show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from pfl_core import overlap, presets, star_results
from pfl_core.algorithms.fedpews import split_neurons
from pfl_core.costs import VALUE_BYTES, rounds_to
from pfl_core.results_gate import gate_numbers
from pfl_core.results_gate_parts import gate_rank, novel
from pfl_core.runs import Record, RunSpec

TIDY = (
    "paper dataset setting clients dirichlet epochs participation novel model method variant seed preset data rounds "
    "stale metric value"
).split()


def settings(spec: RunSpec) -> dict[str, object]:
    """The method's fields, defaults written out."""
    return dataclasses.asdict(spec.build_method())


def summaries(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run: method, its fields, seed, data, preset, setting, and the numbers of ``Record.summary``."""
    rows = []
    for record in records:
        spec = record.spec
        frame = {"method": spec.method["name"], "seed": spec.seed, "preset": spec.preset, "setting": spec.setting}
        rows.append({**frame, "data": data_name(record), **settings(record.spec), **record.summary()})
    return pd.DataFrame(rows)


def data_name(record: Record) -> str:
    """What the run was really made on: the set's own text if it has one, else its name."""
    return record.about or record.spec.data["name"]


def dataset(spec: RunSpec) -> str:
    """The data set as the papers' tables name it: corrupted CIFAR-10 is a set of its own."""
    return spec.data["name"] + ("_c" if spec.data.get("corrupt") else "")


def variant(spec: RunSpec) -> str:
    """The reading, and the fields in which the method differs from it and its paper's settings: "alpha=0.5;p=0.1".

    pFedGate's budgets are ``budgets`` if they are several; that a run is probed makes it no other one.
    """
    reading = spec.method.get("reading", "paper")
    plain = dataclasses.asdict(type(spec.build_method()).reading(reading)) | presets.own_fields(spec)
    parts = [] if reading == "paper" else [f"reading={reading}"]
    for name, value in settings(spec).items():
        if name == "keep_ratio" and isinstance(value, tuple):
            parts.append(f"budgets={' and '.join(map(str, value))}")
        elif value != plain[name] and name != "probe":
            parts.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
    return ";".join(parts)


def tidy(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run and metric, with the columns that ``paper.compare`` and the claims take.

    ``clients`` is their number, ``dirichlet`` the alpha of a Dirichlet split (else not a number), ``novel`` the share
    that never takes part. Metrics of the last
    round: those of ``Record.summary``; ``uplink_fraction``, what a client sends relative to the whole model; and where
    masks were kept, of the head's weights, ``iou_raw`` and ``iou_chance`` (chance-corrected; means over client pairs)
    and ``iou_contrast`` (chance-corrected, pairs with a common class minus pairs without). Of the whole run:
    ``train_images``, a client's, on average, and ``roughness``. FedPeWS's: those of ``to_target``, ``warmup``,
    ``own_groups``. pFedGate's: those of ``gate_numbers``, ``novel``, ``gate_rank``. Star-PFL's: of ``star_results``.
    """
    rows = []
    for record in records:
        spec = record.spec
        base = {
            "paper": spec.paper,
            "dataset": dataset(spec),
            "setting": spec.setting,
            "clients": spec.clients,
            "dirichlet": spec.identity()["partition"].get("alpha", math.nan),
            "epochs": spec.train.epochs,
            "participation": spec.participation,
            "novel": spec.novel,
            "model": spec.model["name"],
            "method": spec.method["name"],
            "variant": variant(spec),
            "seed": spec.seed,
            "preset": spec.preset,
            "data": data_name(record),
            "rounds": spec.rounds,
            "stale": record.stale,
        }
        numbers = record.summary()
        if "upload" in record.series:
            numbers["uplink_fraction"] = float(record.values("upload").iloc[-1].mean() / record.num_params)
        if "train" in record.clients:
            numbers["train_images"] = float(np.sum(record.clients["train"], axis=1).mean())
        numbers["roughness"] = roughness(record)
        numbers |= to_target(record) | warmup(record) | own_groups(record)
        if spec.paper == "star_pfl":
            numbers |= star_results.numbers(record)
        if spec.paper == "pfedgate":
            numbers |= gate_numbers(record) | novel(record) | gate_rank(record)
        if masks(record):
            found = overlap_contrast(record, head_weight(record))
            numbers |= {"iou_raw": found["iou_raw_mean"], "iou_chance": found["iou_chance_mean"]}
            numbers["iou_contrast"] = found["iou_chance_contrast"]
        rows += [{**base, "metric": metric, "value": value} for metric, value in numbers.items()]
    return pd.DataFrame(rows, columns=TIDY)


def roughness(record: Record) -> float:
    """Sample deviation (points) of the changes in ``acc_mean`` between scored rounds, from the middle of the run on.

    Not a number with fewer than two changes. Of runs that were scored equally often the smoother one has less.
    """
    curve = record.curve(trained=record.spec.build_method().reported == "after_local_update")["acc_mean"]
    return float(curve[curve.index >= record.spec.rounds / 2].diff().std())


def to_target(record: Record) -> dict[str, float]:
    """Where the paper's table has a target accuracy: the first round that reaches it, and the training seconds so far.

    ``rounds_to_target`` and ``seconds_to_target`` are not numbers if no round does; ``train_seconds``: of all rounds.
    """
    if (target := presets.target(record.spec)) is None:
        return {}
    accuracy, seconds = record.curve()["acc_pooled"], record.values("seconds")[0]
    reached = rounds_to(accuracy.tolist(), target)
    first = accuracy.index[reached - 1] if reached else math.nan
    spent = seconds.loc[:first].sum() if reached else math.nan
    return {"rounds_to_target": first, "seconds_to_target": spent, "train_seconds": seconds.sum()}


def warmup_rounds(record: Record) -> pd.Index:
    """The rounds, from 1, in which clients trained subnetworks."""
    return pd.Index(record.series.get("selected", ([], []))[0], dtype=int)


def warmup(record: Record) -> dict[str, float]:
    """The warm-up in a few numbers, if there was one.

    ``neurons``, h; ``selected``, the share of them in a mask; ``warmup_upload_fraction`` and ``warmup_upload_max``,
    what a client sends (h bits for the mask included) over the whole model, mean and largest; ``warmup_cost``, seconds
    of a warm-up round over those of a later one; of learned masks ``diversity_max``, the largest ||p_k - p_others||^2.
    """
    warm = warmup_rounds(record)
    if not len(warm):
        return {}
    neurons, seconds = record.values("upload_bits").max(axis=None), record.values("seconds")[0]
    sent = (record.values("upload").loc[warm] + neurons / (8 * VALUE_BYTES)).to_numpy() / record.num_params
    numbers = {
        "neurons": neurons,
        "selected": float(np.nanmean(record.values("selected"))),
        "warmup_upload_fraction": float(np.nanmean(sent)),
        "warmup_upload_max": float(np.nanmax(sent)),
        "warmup_cost": float(seconds.loc[warm].mean() / seconds.drop(warm).mean()),
    }
    if "diversity" in record.series:
        numbers["diversity_max"] = float(np.nanmax(record.values("diversity")))
    return numbers


def own_groups(record: Record) -> dict[str, float]:
    """Where activations were noted: how far each client's own group of neurons dominates a layer.

    ``own_group_warm`` and ``own_group_later``: the share of its own group in a client's summed activations of a layer,
    mean over the rounds of the warm-up and over those after it, in the client and layer where it is least.
    ``activation_rise``: a layer's activations in the first round without masks over those in the last with them, least.
    """
    if "activations" not in record.arrays:
        return {}
    sums, sizes = np.array(record.arrays["activations"]), [int(n) for n in record.arrays["layer_sizes"]]  # [T, N, h]
    shares = record.spec.build_method().shares or (1 / sums.shape[1],) * sums.shape[1]
    own, starts = split_neurons(tuple(sizes), shares).numpy(), np.cumsum([0, *sizes[:-1]])
    total = np.add.reduceat(sums, starts, axis=2)  # [T, N, layers]
    with np.errstate(divide="ignore", invalid="ignore"):  # a layer may be silent
        share = np.add.reduceat(sums * own, starts, axis=2) / total
        warm, numbers = len(warmup_rounds(record)), {}
        if warm:
            numbers["own_group_warm"] = float(share[:warm].mean(0).min())
        if warm < len(sums):
            numbers["own_group_later"] = float(share[warm:].mean(0).min())
        if 0 < warm < len(sums):
            numbers["activation_rise"] = float((total[warm] / total[warm - 1]).min())
    return numbers


def curves(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run, round and metric: accuracies after aggregation and (``_trained``) after local training, shares."""
    frames = []
    for record in records:
        frame = record.curve().join(record.curve(trained=True), rsuffix="_trained")
        for metric in ("personal_share", "movable_share", "train_loss", "upload"):
            if metric in record.series:
                frame[metric] = record.values(metric).mean(axis=1)
        spec = record.spec
        tags = {"method": spec.method["name"], **settings(spec), "seed": spec.seed, "setting": spec.setting}
        frames.append(_tagged(frame.reset_index().melt("round", var_name="metric"), tags))
    return pd.concat(frames, ignore_index=True)


def clients(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run and client: the accuracy (percent) of the last round."""
    frames = []
    for record in records:
        tags = {"method": record.spec.method["name"], **settings(record.spec), "seed": record.spec.seed}
        frames.append(_tagged(record.final().rename("accuracy").rename_axis("client").reset_index(), tags))
    return pd.concat(frames, ignore_index=True)


def _tagged(frame: pd.DataFrame, tags: dict[str, object]) -> pd.DataFrame:
    """``frame`` with a column for each tag; a tuple is one value."""
    return frame.assign(**{name: [value] * len(frame) for name, value in tags.items()})


def masks(record: Record) -> dict[str, tuple[np.ndarray, int]]:
    """Tensor -> (entries that two clients both have personal [N, N], entries of the tensor), where masks were kept."""
    names = [name.removeprefix("overlap/") for name in record.arrays if name.startswith("overlap/")]
    return {n: (np.array(record.arrays[f"overlap/{n}"]), int(record.arrays[f"size/{n}"])) for n in names}


def head_weight(record: Record) -> str:
    """The weights of the last linear layer, Figure 4's tensor."""
    return [name for name in masks(record) if name.endswith("weight")][-1]


def overlaps(record: Record, tensor: str) -> dict[str, np.ndarray]:
    """The three overlap matrices [N, N] of one tensor's masks."""
    both, entries = masks(record)[tensor]
    return {
        "iou_raw": overlap.iou_raw(both),
        "iou_minmax": overlap.iou_minmax(both),
        "iou_chance": overlap.iou_chance(both, entries),
    }


def overlap_contrast(record: Record, tensor: str) -> dict[str, float]:
    """For each normalisation of one tensor's overlap: its mean over pairs, contrast, and permutation p-value."""
    common = overlap.common_classes(np.array(record.clients["train"]))
    pairs = np.triu_indices(len(common), 1)
    out = {}
    for name, matrix in overlaps(record, tensor).items():
        values = matrix[pairs]
        out[f"{name}_mean"] = float(np.nanmean(values)) if not np.isnan(values).all() else np.nan
        out[f"{name}_contrast"], out[f"{name}_p"] = overlap.contrast(matrix, common)
    return out


def layer_contrasts(records: Sequence[Record], normalisation: str = "iou_chance") -> pd.DataFrame:
    """A row per run and weight tensor: alpha, seed, tensor, personal share of the tensor, contrast, p_value."""
    rows = []
    for record in records:
        for tensor, (both, entries) in masks(record).items():
            if not tensor.endswith("weight"):
                continue
            found = overlap_contrast(record, tensor)
            rows.append(
                {
                    "alpha": settings(record.spec)["alpha"],
                    "seed": record.spec.seed,
                    "tensor": tensor,
                    "personal": float(np.diag(both).mean() / entries),
                    "contrast": found[f"{normalisation}_contrast"],
                    "p_value": found[f"{normalisation}_p"],
                }
            )
    return pd.DataFrame(rows)
