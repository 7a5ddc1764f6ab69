"""Metrics and frames of pFedGate's studies: traffic, novel clients, gates and labels, the gate's parts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.papers.pfedgate.experiments import SLOW
from pfl_core.papers.pfedgate.settings import FULL_GATE, GATE_PARTS
from pfl_core.runs import Record
from pfl_core.study import similarity as overlap
from pfl_core.study.frames import setting_label
from pfl_core.study.names import plain

UNDECAYED = "no weight decay on the gate"  # not in the paper
MATCHED = "no sigmoid, starting as steep"  # not in the paper; Table 4's gate without sigmoid has a steeper start
NAMES = {"fedavg": "FedAvg", "fedavg_ft": "FedAvg-FT", "fedem": "FedEM", "pfedgate": "pFedGate"}  # as in the paper


def traffic(record: Record) -> dict[str, object]:
    """A run's traffic: s' and q of the last round, megabytes of all uploads, and the accuracy."""
    sliced = getattr(record.spec.build_method(), "execution", "dense") == "sliced"
    kept = float(record.values("kept_ratio").iloc[-1].mean()) if "kept_ratio" in record.series else 1.0
    summary = record.summary()
    return {
        "label": label(record) + (", sliced" if sliced else ""),
        "seed": record.spec.seed,
        "s'": kept,
        "q": float(record.values("upload").iloc[-1].mean() / record.num_params),
        "uploads, MB": summary["upload_mb"],
        "accuracy": summary["acc_pooled"],
    }


def novel(record: Record) -> dict[str, float]:
    """Pooled accuracies (percent) of participating and of novel clients, and ``novel_gap``, their difference.

    Empty for runs without novel clients.
    """
    spec = record.spec
    if not spec.novel:
        return {}
    correct, count = record.last("correct"), record.last("count")
    participating = np.zeros(len(count), dtype=bool)  # took part in some round
    participating[np.concatenate([spec.schedule.clients(len(count), spec.seed, t) for t in range(record.rounds)])] = (
        True
    )
    groups = {"acc_participating": participating, "acc_novel": ~participating}
    accuracy = {name: float(100 * correct[group].sum() / count[group].sum()) for name, group in groups.items()}
    return accuracy | {"novel_gap": accuracy["acc_participating"] - accuracy["acc_novel"]}


def labels_held(record: Record) -> np.ndarray:
    """[N, C] bool: which labels a client trains on."""
    return np.array(record.clients["train"]) > 0


def gate_rank(record: Record) -> dict[str, float]:
    """``gate_rank``: rank correlation of gate distance and common labels over pairs of clients (Figure 4)."""
    if record.spec.partition["name"] != "pathological" or "gate_distances" not in record.arrays:
        return {}
    common = overlap.common_share(labels_held(record))
    return {"gate_rank": overlap.mantel(common, np.array(record.arrays["gate_distances"]), draws=0, ranks=True)[0]}


def part(record: Record) -> str:
    """Label of the run's gate: one of Table 4's, MATCHED or UNDECAYED."""
    method, default = record.spec.build_method(), PFedGate()
    assert isinstance(method, PFedGate)
    if method.without_sigmoid != default.without_sigmoid:
        return MATCHED
    if method.gate_weight_decay is not None:
        return UNDECAYED
    changed = [part for name, part in GATE_PARTS.items() if getattr(method, name) != getattr(default, name)]
    return changed[0].label if changed else FULL_GATE


def part_and_rate(record: Record) -> str:
    """``part``, with the gate's rate if it is the small one: "full gate, gate's rate 0.05"."""
    return part(record) + (f", {plain(SLOW)}" if SLOW in record.spec.setting else "")


def ablation(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run: label, seed, setting, accuracy, rounds to 80 % of its best, and both relative to the full gate.

    ``lost``: accuracy of the full gate minus the run's, same setting and seed. ``slower``: ratio of the rounds. NaN if
    the full gate is not stored for that seed.
    """
    rows = []
    for record in records:
        accuracy = record.curve()["acc_pooled"]
        reached = accuracy.index[accuracy >= 0.8 * accuracy.max()][0]
        rows.append((setting_label(record), part(record), record.spec.seed, accuracy.iloc[-1], reached))
    frame = pd.DataFrame(rows, columns=["setting", "label", "seed", "accuracy", "rounds"])
    # the full gate's run with the same setting and seed, for each row
    full = frame[frame["label"] == FULL_GATE].set_index(["setting", "seed"])
    reference = full.reindex(pd.MultiIndex.from_frame(frame[["setting", "seed"]]))
    return frame.assign(
        lost=reference["accuracy"].to_numpy() - frame["accuracy"],
        slower=frame["rounds"] / reference["rounds"].to_numpy(),
    )


def over_seeds(frame: pd.DataFrame, panels: dict[str, str], source: str) -> pd.DataFrame:
    """Mean and deviation over seeds for ``figures.studies.beside_paper``. ``panels``: column -> title of its panel."""
    parts = []
    for column, panel in panels.items():
        cells = frame.groupby("label", sort=False)[column].agg(value="mean", std="std").reset_index()
        parts.append(cells.assign(panel=panel, source=source))
    return pd.concat(parts, ignore_index=True)


def beside_paper(frame: pd.DataFrame, data: str, panels: dict[str, str], published: pd.DataFrame) -> pd.DataFrame:
    """``over_seeds`` for each data set (the column ``data``), then the paper's rows, ``published``."""
    parts = [over_seeds(part, panels, f"here, {name}") for name, part in frame.groupby(data, sort=False)]
    return pd.concat([*parts, published], ignore_index=True)


def label(record: Record) -> str:
    """The method's name in the paper's tables; pFedGate with its budget."""
    method = record.spec.build_method()
    budget = f", s = {method.keep_ratio:g}" if isinstance(method, PFedGate) else ""
    return NAMES[record.spec.method["name"]] + budget


def participation(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run: label, seed, way ("all", "sampled", "novel"), accuracies, and the metrics of ``novel``."""
    rows = []
    for record in records:
        base, _, way = setting_label(record).partition(", ")
        last = record.curve().iloc[-1]
        row = {"base": base, "label": label(record), "seed": record.spec.seed, "way": way or "all"}
        rows.append({**row, "mean": last["acc_pooled"], "worst tenth": last["acc_bottom_decile"], **novel(record)})
    return pd.DataFrame(rows)


def drops(frame: pd.DataFrame) -> pd.DataFrame:
    """Points lost with a fifth of the clients, by label and seed. ``frame``: see ``participation``."""
    keys, scores = ["base", "label", "seed"], ["mean", "worst tenth"]
    whole, few = (frame[frame["way"] == way].set_index(keys)[scores] for way in ("all", "sampled"))
    return (whole - few).dropna().reset_index()


def gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy of participating minus novel clients, by label and seed.

    FedAvg has two rows: its model as it is, and with novel clients that fine-tune it, taken from FedAvg-FT's run.
    """
    novel_runs = frame[frame["way"] == "novel"].set_index(["base", "seed"])
    tuned = novel_runs[novel_runs["label"] == NAMES["fedavg_ft"]]
    rows = novel_runs[novel_runs["label"] != NAMES["fedavg_ft"]].copy()
    fedavg = rows[rows["label"] == NAMES["fedavg"]]
    fedavg_tuned = fedavg.assign(
        acc_novel=tuned["acc_novel"].reindex(fedavg.index), label="FedAvg, novel clients fine-tune"
    )
    rows = pd.concat([fedavg, fedavg_tuned, rows[rows["label"] != NAMES["fedavg"]]])
    return rows.assign(gap=rows["acc_participating"] - rows["acc_novel"]).reset_index()


def pairs(record: Record) -> pd.DataFrame:
    """All pairs of clients: the share of common labels, and the distance of the two gates."""
    distance, common = np.array(record.arrays["gate_distances"]), overlap.common_share(labels_held(record))
    i, j = np.triu_indices(len(distance), 1)  # pairs i < j
    return pd.DataFrame({"i": i, "j": j, "common": common[i, j], "distance": distance[i, j]})
