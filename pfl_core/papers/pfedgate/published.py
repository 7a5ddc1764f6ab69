"""pFedGate's Tables 2, 3, 4 and 8 and Figure 4 as frames for the figures: a row for each panel, label and source."""

from __future__ import annotations

import pandas as pd

from pfl_core.papers.pfedgate.settings import FULL_GATE, GATE_PARTS
from pfl_core.study.published import FOLDER, parse_variant, table

MEASURED = {"time_ms": "time of a step, FedAvg = 1", "peak_mem_mb": "peak memory, FedAvg = 1"}
DROPS = {"acc_mean": "mean accuracy lost, points", "acc_bottom_decile": "accuracy of the worst tenth lost, points"}
GAP = "participating minus novel clients, points"
LOST, SLOWER = "accuracy lost, points", "rounds to 80 % of its best, full gate = 1"
GATE_LABELS = {"full": FULL_GATE, **{part.variant: part.label for part in GATE_PARTS.values()}}  # Table 4's variants
SMALL = "pFedGate, s = 0.3"  # the published method: full-size kernels with a mask
SLICED = "whole neurons, s = 0.3, sliced"  # not in the paper
M_STEP = "FedEM, without its E step"


def cells(number: int) -> pd.DataFrame:
    """A table with a column for each field of its variants, and ``label``: the method, with s if given."""
    printed = table("pfedgate", number)
    fields = pd.DataFrame([parse_variant(text) for text in printed["variant"]], index=printed.index)
    budget = fields["s"].map(", s = {:g}".format).where(fields["s"].notna(), "") if "s" in fields else ""
    return printed.join(fields.drop(columns="alpha", errors="ignore")).assign(label=printed["method"] + budget)


def table2() -> pd.DataFrame:
    """Times and memory relative to FedAvg. Columns: panel, label, batch, ratio."""
    frame = cells(2).astype({"batch": int})
    fedavg = frame[frame["method"] == "FedAvg"].set_index(["metric", "batch"])["value"]
    ratio = [row.value / fedavg[row.metric, row.batch] for row in frame.itertuples()]
    return frame.assign(panel=frame["metric"].map(MEASURED), ratio=ratio)[["panel", "label", "batch", "ratio"]]


def table3() -> pd.DataFrame:
    """Points lost with a fifth of the clients: Table 1's accuracies minus Table 3's, since the printed drops differ."""
    keys = ["dataset", "label", "metric"]
    whole, few = (cells(n)[lambda f: f["metric"].isin(DROPS)].set_index(keys)["value"] for n in (1, 3))
    lost = (whole - few).dropna().rename("value").reset_index()
    return _sourced(lost.assign(panel=lost["metric"].map(DROPS)))


def table4() -> pd.DataFrame:
    """Losses of the gate without one of its parts, by data set."""
    frame = cells(4)
    full = frame[(frame["gate"] == "full") & (frame["metric"] == "acc_mean")].set_index("dataset")["value"]
    accuracy = frame["metric"] == "acc_mean"
    value = frame["value"].mask(accuracy, frame["dataset"].map(full) - frame["value"])
    panel = accuracy.map({True: LOST, False: SLOWER})
    return _sourced(frame.assign(value=value, panel=panel, label=frame["gate"].map(GATE_LABELS)))


def table8() -> pd.DataFrame:
    """Gaps between participating clients and clients that never took part."""
    return _sourced(cells(8).query("metric == 'gap'").assign(panel=GAP))


def _sourced(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(source="paper, " + frame["dataset"])[["panel", "label", "source", "value"]]


def figure4() -> pd.DataFrame:
    """Leaves of the dendrogram in their order. Columns: client, labels (a tuple)."""
    frame = pd.read_csv(FOLDER / "pfedgate_figure4.csv", dtype={"labels": str})
    return frame.assign(labels=frame["labels"].map(lambda text: tuple(map(int, text.split()))))
