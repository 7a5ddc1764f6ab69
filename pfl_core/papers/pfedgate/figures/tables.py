"""Tables that the figures of pFedGate's notebooks are drawn from: runs, means and curves, with labels and colours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from pfl_core.papers.pfedgate.figures import budgets
from pfl_core.papers.pfedgate.figures.studies import COLORS
from pfl_core.papers.pfedgate.results import studies
from pfl_core.papers.pfedgate.settings import FULL_GATE, GATE_PARTS
from pfl_core.runs import Record
from pfl_core.study import frames, output, statistics

MOMENTUM = ("pfedgate", "fedavg", "perfedavg")  # methods that also run with momentum that restarts
OVER_ROUNDS = (*frames.REFERENCES, "fedem", "heterofl", "fedrep", "pfedgate")  # in the figure of accuracy by round
KEYS = ("setting", "label", "color")
OVER_BUDGETS = {  # columns in the table and in the figure over s -> their names in the table
    "acc_pooled": "acc_pooled",
    "acc_bottom_decile": "worst tenth",
    "client_spread": "client_spread",
    "achieved_keep_ratio": "kept",
    "kept_macs": "MACs",
    "upload_ratio": "sent",
    "infeasible": "infeasible",
    "upload_mb": "upload_mb",
    "acc_pooled_trained": "own weights",
}
PROBED = ("order_range", "sorted_change", "sample_change", "client_mean_change")  # further columns of the figure's rows


def comparison(runs: pd.DataFrame, records: Sequence[Record]) -> pd.DataFrame:
    """``budgets.gates`` of the main comparison. Labels also name the released code's reading and restarting momentum.

    ``runs``: the frame of ``records``. ``setting`` names the data that were used. ``passes``: number of passes over a
    client's data in the last round; ``sent``: upload of that round, relative to the whole model. Per-FedAvg has no
    scores after local training: they are without the step that a client takes before use, so they do not show its
    models.
    """
    table = budgets.gates(runs)
    trained = [name for name in table if name.endswith("_trained")]
    table.loc[table["method"].eq("perfedavg"), trained] = math.nan
    code = table["method"].eq("pfedgate") & table["block_layout"].eq("equal")  # the released code's reading
    restarted = table["method"].isin(MOMENTUM) & table["keep_momentum"].eq(False)
    label = table["label"].mask(code, table["label"] + " (released code)")
    return table.assign(
        label=label.mask(restarted, label + " (momentum restarts)"),
        setting=table["where"],
        passes=[record.values("passes").iloc[-1].mean() for record in records],
        sent=table["uplink_fraction"],
    )


def means(table: pd.DataFrame, panels: Mapping[str, str], keys: Sequence[str] = KEYS) -> pd.DataFrame:
    """Mean and deviation over seeds for ``plots.mean_dots``. ``panels``: title -> column; ``keys``: columns of a row.

    Columns: dataset (from ``setting``), the other keys, value, std, panel.
    """
    groups = table.groupby(list(keys), sort=False)
    parts = [groups[column].agg(value="mean", std="std").assign(panel=panel) for panel, column in panels.items()]
    return pd.concat(parts).reset_index().rename(columns={"setting": "dataset"})


def leads(table: pd.DataFrame, leader: str) -> pd.DataFrame:
    """The lead of ``leader`` over each other method after aggregation, for ``plots.lead_dots``."""
    rivals = table[table["method"].ne("pfedgate") | table["label"].eq(leader)]
    cells = statistics.lead_cells(rivals, leader, "setting", "acc_pooled_merged")
    return cells.rename(columns={"setting": "dataset"})


def captions(records: Iterable[Record]) -> str:
    """``output.caption`` of the runs on each data set, a line each."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(frames.data_name(record), []).append(record)
    return "\n".join(map(output.caption, groups.values()))


def captions_of(records: Sequence[Record], parts: Iterable[pd.DataFrame]) -> str:
    """``captions`` of the runs that have a row in one of the ``parts``; their index is the place in ``records``."""
    return captions([records[i] for i in dict.fromkeys(i for part in parts for i in part.index)])


def over_budgets(gated: pd.DataFrame) -> pd.DataFrame:
    """The rows behind the figure over s: label, seed, and the columns of OVER_BUDGETS and PROBED that are stored."""
    return gated[["label", "seed", *OVER_BUDGETS, *(name for name in PROBED if name in gated)]]


def layouts(chosen: pd.DataFrame, panels: Mapping[str, str]) -> pd.DataFrame:
    """``means`` of selectors and layouts, a panel for each budget and column of ``panels`` (title -> column).

    Columns: dataset, budget, label ("exact, output rows"), value, std, metric, panel.
    """
    rules = (chosen["selector"] + ", " + chosen["block_layout"]).str.replace("_", " ")
    cells = means(chosen.assign(budget=chosen["label"], label=rules), panels, ("setting", "budget", "label"))
    metric, panel = cells["panel"].map(dict(panels)), cells["budget"] + ", " + cells["panel"]
    return cells.drop(columns="panel").assign(metric=metric, panel=panel)


# ---- accuracy by round ----------------------------------------------------------------------------------------------


def curves(records: Iterable[Record], labels: Iterable[str], colors: Iterable) -> pd.DataFrame:
    """Pooled accuracy by round for ``plots.curve_panels``, a panel for each data set. One label and colour per run.

    Columns: round, value, seed, panel, label, color.
    """
    parts = []
    for record, label, color in zip(records, labels, colors, strict=True):
        curve = record.curve()["acc_pooled"].rename("value").reset_index()
        tags = {"seed": record.spec.seed, "panel": frames.setting_label(record), "label": label}
        parts.append(curve.assign(**tags, color=[color] * len(curve)))
    return pd.concat(parts, ignore_index=True)


def comparison_curves(records: Sequence[Record], table: pd.DataFrame) -> pd.DataFrame:
    """``curves`` of OVER_ROUNDS as in the paper, without restarts and the released code. ``table``: ``comparison``."""
    plain = budgets.gates(table)["label"] == table["label"]
    shown = table[table["method"].isin(OVER_ROUNDS) & plain]
    return curves([records[i] for i in shown.index], shown["label"], shown["color"])


def gate_curves(records: Sequence[Record]) -> pd.DataFrame:
    """``curves`` of the gate without its parts, with one colour for each gate."""
    gates_shown = [FULL_GATE, *(part.label for part in GATE_PARTS.values()), studies.MATCHED, studies.UNDECAYED]
    color = dict(zip(gates_shown, COLORS, strict=True))
    labels = [studies.part(record) for record in records]
    return curves(records, labels, map(color.__getitem__, labels))


def budget_curves(records: Sequence[Record], runs: pd.DataFrame) -> pd.DataFrame:
    """``curves`` of each method, and of pFedGate at each budget. ``runs``: the frame of ``records``."""
    return curves(records, map(studies.label, records), budgets.gates(runs)["color"])
