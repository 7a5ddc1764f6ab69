"""Comparisons of methods (Table 3), and the gain of the warm-up (Figures 8, 12, 13)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from pfl_core.papers.fedpews.results.metrics import warmup_rounds
from pfl_core.papers.fedpews.settings import data_title, method_title
from pfl_core.runs import Record
from pfl_core.study.names import plain

BASELINES = ("fedprox", "scaffold", "fednova", "moon")
DATASETS = {"CIFAR-MNIST": "cifar_mnist", "{Path-OCT-Tissue}MNIST": "path_oct_tissue"}  # in Table 3 -> setting
CURVES = [  # columns of ``curves``
    *("round", "value", "method", "base", "seed", "setting", "data", "clients", "alpha", "participation", "switch"),
]


def final_accuracies(runs: pd.DataFrame, data: dict[str, str]) -> pd.DataFrame:
    """The final accuracy of each run, ``value``, with base (fedavg or fedprox), label and where (setting and data).

    runs: a frame, see ``study.frame``. data: setting -> the data set that was used.
    """
    final = runs.reindex(columns=["setting", "method", "base", "seed", "acc_pooled"])
    final = final.rename(columns={"acc_pooled": "value"}).fillna({"base": "fedavg"})
    label = [method_title(*pair) for pair in zip(final["method"], final["base"], strict=True)]
    used = final["setting"].map(data)
    stand_in = (" (stand-in: " + used.map(data_title) + ")").where(used != final["setting"], "")
    return final.assign(label=label, where=final["setting"] + stand_in)


def beside_table_3(final: pd.DataFrame, data: dict[str, str], published: pd.DataFrame) -> pd.DataFrame:
    """Table 3 and the reproduced means, a row per cell: dataset, panel, method, base, value, std, seeds."""
    groups = final.groupby(["setting", "method", "base"], sort=False)["value"]
    reproduced = groups.agg(value="mean", std="std", seeds="count").reset_index()
    used = reproduced["setting"].map(data).map(data_title)
    reproduced = reproduced.assign(panel="here: " + used)
    base = published["method"].map(lambda name: "fedprox" if name == "FedProx+PeWS" else "fedavg")
    setting = published["dataset"].map(DATASETS)
    paper = published.assign(panel="paper", seeds=3, base=base, setting=setting, method=published["key"])
    cells = pd.concat([paper, reproduced])[["setting", "panel", "method", "base", "value", "std", "seeds"]]
    return cells.rename(columns={"setting": "dataset"})


def as_texts(cells: pd.DataFrame) -> pd.DataFrame:
    """``beside_table_3`` with a label, as a table of "mean ± deviation"; no deviation for one seed."""
    spread = cells["std"].map(" ± {:.2f}".format).where(cells["std"].notna(), "")
    texts = cells.assign(text=cells["value"].map("{:.2f}".format) + spread)
    table = texts.pivot_table("text", "label", ["dataset", "panel"], aggfunc="first", sort=False)
    return table.fillna("").sort_index(axis=1, ascending=[True, False])  # paper, then here


def differences(final: pd.DataFrame) -> pd.DataFrame:
    """Each method minus FedAvg, and the warm-up minus its base, paired by seed: mean, lowest and highest seed.

    Index: where, difference ("MOON − FedAvg"). NaN where no seed has both runs.
    """
    pairs = [((name, "fedavg"), ("fedavg", "fedavg")) for name in BASELINES]
    pairs += [(("fedpews", base), (base, "fedavg")) for base in ("fedavg", "fedprox")]
    rows = []
    for where, group in final.groupby("where", sort=False):
        runs = group.set_index(["method", "base", "seed"])["value"]
        by_method = {key: values.droplevel([0, 1]) for key, values in runs.groupby(level=[0, 1])}
        none = pd.Series(dtype=float)
        for one, other in pairs:
            gap = (by_method.get(one, none) - by_method.get(other, none)).dropna()
            title = f"{method_title(*one)} − {method_title(*other)}"
            rows.append((plain(str(where)), title, *gap.agg(["mean", "min", "max"])))
    columns = ["setting", "difference", "mean", "lowest seed", "highest seed"]
    return pd.DataFrame(rows, columns=columns).set_index(["setting", "difference"])


def nova_gaps(records: Iterable[Record]) -> pd.DataFrame:
    """For each setting and seed: the largest difference of FedNova to FedAvg in any round, in test samples."""
    runs = {(r.spec.setting, r.spec.seed, r.spec.method["name"]): r for r in records}
    rows = []
    for setting, seed in sorted({key[:2] for key in runs}):
        if not {(setting, seed, "fednova"), (setting, seed, "fedavg")} <= runs.keys():
            continue
        nova, plain_run = runs[setting, seed, "fednova"], runs[setting, seed, "fedavg"]
        gap = (nova.values("correct").sum(axis=1) - plain_run.values("correct").sum(axis=1)).abs()
        sizes = [sum(row) for row in plain_run.clients["train"]]
        rows.append((setting, seed, sizes, int(gap.max()), int(plain_run.values("count").iloc[-1].sum())))
    columns = ["setting", "seed", "samples of the clients", "largest gap in any round (test samples)", "test samples"]
    return pd.DataFrame(rows, columns=columns).set_index(["setting", "seed"])


def curves(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run and scored round, with CURVES as columns.

    value: accuracy (percent); alpha: of a Dirichlet split; switch: the last round of the warm-up, 0 without one.
    """
    tagged = []
    for record in records:
        spec = record.spec
        tags = {"method": spec.method["name"], "base": spec.method.get("base", "fedavg"), "seed": spec.seed}
        tags |= {"setting": spec.setting, "data": data_title(spec.data["name"]), "clients": spec.clients}
        tags |= {"alpha": spec.partition.get("alpha", np.nan), "participation": spec.participation}
        value = record.curve()["acc_pooled"].rename("value").reset_index()
        tagged.append(value.assign(**tags, switch=len(warmup_rounds(record))))
    return pd.concat(tagged, ignore_index=True) if tagged else pd.DataFrame(columns=CURVES)


def gains(curves: pd.DataFrame, by: str) -> pd.DataFrame:
    """The last round's accuracy without and with the warm-up, and ``gain``, paired by seed. Index: ``by``, seed.

    ``gain`` is NaN where one of the runs is missing. curves: of ``curves``, with a label.
    """
    last = curves[curves["round"] == curves.groupby(by)["round"].transform("max")]
    cells = last.pivot(index=[by, "seed"], columns="label", values="value")
    cells = cells[sorted(cells.columns, key=lambda label: "PeWS" in label)]
    both = cells.shape[1] == 2
    return cells.assign(gain=cells.iloc[:, 1] - cells.iloc[:, 0] if both else np.nan)


def held(records: Sequence[Record]) -> pd.DataFrame:
    """The training samples of each client and class, for each Dirichlet α: columns alpha, client, class, samples.

    Of the first seed in ``records``.
    """
    seed = records[0].spec.seed
    counts = {r.spec.partition["alpha"]: np.array(r.clients["train"]) for r in records if r.spec.seed == seed}
    rows = [(alpha, k, c, int(n)) for alpha, table in counts.items() for (k, c), n in np.ndenumerate(table)]
    return pd.DataFrame(rows, columns=["alpha", "client", "class", "samples"])


def skew(held: pd.DataFrame) -> pd.DataFrame:
    """For each α: smallest and largest client, mean share of a client's largest class, mean number of its classes."""
    of_client = held.groupby(["alpha", "client"])["samples"]
    sizes = of_client.sum()
    table = pd.DataFrame(
        {"size": sizes, "share": of_client.max() / sizes, "classes": of_client.agg(lambda n: (n > 0).sum())}
    )
    columns = {
        "smallest client": ("size", "min"),
        "largest client": ("size", "max"),
        "share of a client's largest class": ("share", "mean"),
        "classes of a client": ("classes", "mean"),
    }
    return table.groupby("alpha").agg(**columns).astype(float).rename_axis("α")


def warmup_participants(record: Record) -> str:
    """A line: how many clients took part in the warm-up."""
    warm, spec = len(warmup_rounds(record)), record.spec
    took_part = {int(k) for t in range(warm) for k in spec.schedule.clients(spec.clients, spec.seed, t)}
    return f"W = {warm}: {len(took_part)} of {spec.clients} clients took part in the warm-up"
