"""Tables that several notebooks of FedSelect share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from pfl_core.papers.fedselect.settings import VALIDATED
from pfl_core.runs import Record
from pfl_core.study.methods import NAMES
from pfl_core.study.names import in_words


def namer(records: Sequence[Record], labels: Iterable[str]) -> Callable[[Record], str]:
    """A function from a record to its label, in the words of the figures. ``labels``: one for each record."""
    names = {record.key: in_words(label) for record, label in zip(records, labels, strict=True)}
    return lambda record: names[record.key]


def mean_cells(table: pd.DataFrame, by: Sequence[str] = (), metric: str = "acc_mean") -> pd.DataFrame:
    """Mean and deviation of the ``metric`` over seeds, for ``plots.mean_dots``. A row for each label within ``by``.

    Columns of ``table``: label, color, those in ``by``, and the metric.
    """
    groups = table.groupby([*by, "label", "color"], sort=False)[metric]
    return groups.agg(value="mean", std="std").reset_index()


def published_cells(cells: pd.DataFrame, table1: pd.DataFrame, table2: pd.DataFrame) -> pd.Series:
    """The paper's accuracy for each row: Table 1, and for FedSelect Table 2's at its limit. NaN where none is printed.

    Columns: dataset (its name here), label (see ``labels.labelled``).
    """
    limit = table2["variant"].str.removeprefix("alpha=").astype(float)
    rows = [
        table1[table1["key"] != "fedselect"].assign(label=table1["key"].map(NAMES)),
        table2.assign(label="FedSelect, α = " + limit.map("{:g}".format)),
    ]
    printed = pd.concat(rows)
    values = dict(zip(zip(printed["dataset"], printed["label"], strict=True), printed["value"], strict=True))
    sets = cells["dataset"].map({"cifar10": "CIFAR-10", VALIDATED: "CIFAR-10", "cifar10_c": "CIFAR10-C"})
    return pd.Series([values.get(key, np.nan) for key in zip(sets, cells["label"], strict=True)], cells.index, float)


def published_leads(cells: pd.DataFrame, leader: str, table1: pd.DataFrame, table2: pd.DataFrame) -> pd.Series:
    """The paper's lead of ``leader`` over the label of each row, see ``published_cells``."""
    own = published_cells(cells.assign(label=leader), table1, table2)
    return own - published_cells(cells, table1, table2)


def round_costs(labels: Iterable[str], records: Sequence[Record]) -> pd.DataFrame:
    """Passes through a client's data and values sent in the last round, from the first run of each label."""
    rows: dict[str, tuple[float, float]] = {}
    for label, record in zip(labels, records, strict=True):
        sent = record.values("upload").iloc[-1].mean() / record.num_params
        rows.setdefault(label, (record.values("passes").iloc[-1].mean(), sent))
    return pd.DataFrame.from_dict(rows, orient="index", columns=["passes a round", "sent, of the whole model"])
