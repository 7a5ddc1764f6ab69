"""What pFedGate's runs tell beyond accuracy: traffic, clients that never took part, gates and labels."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.papers.pfedgate.settings import FULL_GATE, GATE_PARTS
from pfl_core.runs import Record
from pfl_core.study import similarity as overlap
from pfl_core.study.frames import setting_label

UNDECAYED = "no weight decay on the gate"  # ours
MATCHED = "no sigmoid, starting as steep"  # ours: beside Table 4's gate without sigmoid, which is steeper
NAMES = {"fedavg": "FedAvg", "fedavg_ft": "FedAvg-FT", "fedem": "FedEM", "pfedgate": "pFedGate"}  # in its tables


def sent(record: Record) -> dict[str, object]:
    """A run's traffic: s' and q of the last round, megabytes of all uploads, and its accuracy."""
    sliced = getattr(record.spec.build_method(), "execution", "dense") == "sliced"
    kept = float(record.values("kept_ratio").iloc[-1].mean()) if "kept_ratio" in record.series else 1.0
    numbers = record.summary()
    return {
        "label": label(record) + (", sliced" if sliced else ""),
        "seed": record.spec.seed,
        "s'": kept,
        "q": float(record.values("upload").iloc[-1].mean() / record.num_params),
        "uploads, MB": numbers["upload_mb"],
        "accuracy": numbers["acc_pooled"],
    }


def novel(record: Record) -> dict[str, float]:
    """Where some clients never took part: pooled accuracies (percent) of those that did and of those that never did.

    And ``novel_gap``, the first minus the second.
    """
    spec = record.spec
    if not spec.novel:
        return {}
    count = record.values("count").iloc[-1].to_numpy()
    known = np.zeros(len(count), dtype=bool)
    known[np.concatenate([spec.schedule.clients(len(count), spec.seed, t) for t in range(record.rounds)])] = True
    correct = record.values("correct").iloc[-1].to_numpy()
    parts = {"acc_participating": known, "acc_novel": ~known}
    found = {name: float(100 * correct[here].sum() / count[here].sum()) for name, here in parts.items()}
    return found | {"novel_gap": found["acc_participating"] - found["acc_novel"]}


def labels_held(record: Record) -> np.ndarray:
    """[N, C] bool: which labels a client trains on."""
    return np.array(record.clients["train"]) > 0


def gate_rank(record: Record) -> dict[str, float]:
    """Figure 4 in a number: over pairs of clients, rank correlation of their gates' distance and common labels."""
    if record.spec.partition["name"] != "pathological" or "gate_distances" not in record.arrays:
        return {}
    common = overlap.common_share(labels_held(record))
    return {"gate_rank": overlap.mantel(common, np.array(record.arrays["gate_distances"]), draws=0, ranks=True)[0]}


def part(record: Record) -> str:
    """Which of Table 4's gates a run has: the full one, or one without a part, by its label there; or one of ours."""
    method, plain = record.spec.build_method(), PFedGate()
    if method.without_sigmoid != plain.without_sigmoid:
        return MATCHED
    if method.gate_weight_decay is not None:
        return UNDECAYED
    changed = [part for name, part in GATE_PARTS.items() if getattr(method, name) != getattr(plain, name)]
    return changed[0].label if changed else FULL_GATE


def ablation(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run: label, seed, setting, accuracy, rounds to 80 % of its best, and both against the full gate's."""
    rows = []
    for record in records:
        accuracy = record.curve()["acc_pooled"]
        reached = accuracy.index[accuracy >= 0.8 * accuracy.max()][0]
        rows.append((setting_label(record), part(record), record.spec.seed, accuracy.iloc[-1], reached))
    frame = pd.DataFrame(rows, columns=["setting", "label", "seed", "accuracy", "rounds"])
    full = frame[frame["label"] == FULL_GATE].set_index(["setting", "seed"])
    own = full.loc[list(zip(frame["setting"], frame["seed"], strict=True))]
    return frame.assign(
        lost=own["accuracy"].to_numpy() - frame["accuracy"], slower=frame["rounds"] / own["rounds"].to_numpy()
    )


def over_seeds(frame: pd.DataFrame, panels: dict[str, str], source: str) -> pd.DataFrame:
    """Mean and deviation over seeds as ``figures.beside_paper`` takes them; ``panels``: a column -> its panel."""
    parts = []
    for column, panel in panels.items():
        found = frame.groupby("label", sort=False)[column].agg(value="mean", std="std").reset_index()
        parts.append(found.assign(panel=panel, source=source))
    return pd.concat(parts, ignore_index=True)


def label(record: Record) -> str:
    """The method as the paper's tables name it, pFedGate with its budget."""
    method = record.spec.build_method()
    budget = f", s = {method.keep_ratio:g}" if isinstance(method, PFedGate) else ""
    return NAMES[record.spec.method["name"]] + budget


def participation(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run: label, seed, way ("all", "sampled", "novel"), accuracies, and those of both kinds of clients."""
    rows = []
    for record in records:
        base, _, way = setting_label(record).partition(", ")
        last = record.curve().iloc[-1]
        row = {"base": base, "label": label(record), "seed": record.spec.seed, "way": way or "all"}
        rows.append({**row, "mean": last["acc_pooled"], "worst tenth": last["acc_bottom_decile"], **novel(record)})
    return pd.DataFrame(rows)


def drops(frame: pd.DataFrame) -> pd.DataFrame:
    """Points lost with a fifth of the clients, by label and seed; ``frame`` as ``participation`` makes it."""
    keys, scores = ["base", "label", "seed"], ["mean", "worst tenth"]
    whole, few = (frame[frame["way"] == way].set_index(keys)[scores] for way in ("all", "sampled"))
    return (whole - few).dropna().reset_index()


def gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """Participating minus novel clients, by label and seed.

    FedAvg with its model as it is, and with novel clients that fine-tune it: those are in FedAvg-FT's run.
    """
    here = frame[frame["way"] == "novel"].set_index(["base", "seed"])
    tuned = here[here["label"] == NAMES["fedavg_ft"]]
    rows = here[here["label"] != NAMES["fedavg_ft"]].copy()
    plain = rows[rows["label"] == NAMES["fedavg"]]
    moved = plain.assign(acc_novel=tuned["acc_novel"].reindex(plain.index), label="FedAvg, novel clients fine-tune")
    rows = pd.concat([plain, moved, rows[rows["label"] != NAMES["fedavg"]]])
    return rows.assign(gap=rows["acc_participating"] - rows["acc_novel"]).reset_index()


def pairs(record: Record) -> pd.DataFrame:
    """Every pair of clients: the share of their labels that they have in common, and the distance of their gates."""
    distance, common = np.array(record.arrays["gate_distances"]), overlap.common_share(labels_held(record))
    i, j = np.triu_indices(len(distance), 1)
    return pd.DataFrame({"i": i, "j": j, "common": common[i, j], "distance": distance[i, j]})
