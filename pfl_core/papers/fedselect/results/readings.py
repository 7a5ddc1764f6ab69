"""FedSelect's text against its released code: labels of the runs, and what moves the score most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from pfl_core.papers.fedselect.experiments import ALTERNATION
from pfl_core.study.frame import variant
from pfl_core.study.methods import NAMES
from pfl_core.study.style import COLORS, WINE

TEXT = "the paper's text"
CLASSES = "allow_duplicate_classes=True"  # its assignment of classes
USUAL, TWICE = "cifar10", "cifar10, twice the epochs"  # settings
PASSES = {USUAL: "L epochs", TWICE: "2 L epochs"}
OPTION, POINT, DOUBLED = (  # what is changed
    "an option of the code",
    "the evaluation point, of a baseline",
    "twice the passes, of a baseline",
)


def setting_text(setting: str) -> str:
    """The training option that a setting has: "epochs=15" for "cifar10, epochs=15"."""
    return TEXT if setting == USUAL else setting.removeprefix(f"{USUAL}, ")


def labels(runs: pd.DataFrame) -> pd.Series:
    """The method of each run; for FedSelect the options in which the run differs from the paper's text.

    Another method with the code's deal of classes has that option in its label, because its clients are others.
    """
    dealt = _dealt(runs).map({True: f"; {CLASSES}", False: ""})
    return runs.apply(_options, axis=1).where(runs["method"] == "fedselect", runs["method"].map(NAMES) + dealt)


def _options(run: pd.Series) -> str:
    text = variant({name: run[name] for name in run["changed"]}) if run["setting"] == USUAL else ""
    return text.replace(";", "; ") or setting_text(run["setting"])


def _dealt(runs: pd.DataFrame) -> pd.Series:
    """Which runs have the released code's deal of classes, and so other clients."""
    return runs["partition_allow_duplicate_classes"].eq(True)


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """``runs`` with label, color, dealt, and merged: whether the last round is averaged.

    Without that average there is no score after aggregation: ``acc_mean`` is NaN. ``dealt``: whether the run has the
    code's deal of classes, and so other clients; these rows come last, in a colour of their own.
    """
    merged, dealt = runs["aggregate_last_round"].ne(False), _dealt(runs)
    color = runs["method"].eq("fedselect").map({True: COLORS["fedselect"], False: COLORS["local"]}).mask(dealt, WINE)
    rows = runs.assign(label=labels(runs), color=color, merged=merged, dealt=dealt)
    return rows.assign(acc_mean=rows["acc_mean"].where(merged)).sort_values("dealt", kind="stable")


def by_passes(table: pd.DataFrame) -> pd.DataFrame:
    """The runs of ALTERNATION that trained, with ``passes``: "L epochs", "2 L epochs", or NaN for other settings."""
    chosen = table[table["method"].isin(ALTERNATION) & (table["failed"] == 0)]
    return chosen.assign(passes=chosen["setting"].map(PASSES))


def training_options(table: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """The runs of ``methods`` and of FedSelect's text, without and with each training option of the code alone.

    ``setting`` is the option (``setting_text``), ``method`` the display name.
    """
    settings = [name for name in dict.fromkeys(table["setting"]) if name != TWICE and " code " not in name]
    texts = {name: setting_text(name) for name in settings}
    chosen = table["method"].isin(methods) | table["label"].isin(texts.values())
    tried = table[chosen & table["setting"].isin(settings)].replace({"setting": texts})
    return tried.assign(method=tried["method"].map(NAMES))


def effects(fedselect: pd.DataFrame, baselines: pd.DataFrame) -> dict[str, pd.Series]:
    """What is changed -> by how many points the score changes, a value per label (means over seeds).

    An option is measured after aggregation, or after local training where it has no other score.
    fedselect: rows of ``table`` with an effect, and the paper's text; baselines: see ``by_passes``.
    """
    means = fedselect.groupby("label", sort=False)[["acc_mean", "acc_mean_trained"]].mean()
    gains = means - means.loc[TEXT] if TEXT in means.index else means.iloc[:0]
    option = gains["acc_mean"].fillna(gains["acc_mean_trained"])
    by_pass = baselines.pivot_table(index="label", columns="passes", values="acc_mean", sort=False)
    by_pass = by_pass.reindex(columns=list(PASSES.values()))
    scores = baselines[baselines["passes"] == PASSES[USUAL]]
    scores = scores.groupby("label")[["acc_mean_trained", "acc_mean"]].mean()
    return {
        OPTION: option.drop(TEXT, errors="ignore"),
        POINT: scores["acc_mean_trained"] - scores["acc_mean"],
        DOUBLED: by_pass[PASSES[TWICE]] - by_pass[PASSES[USUAL]],
    }


def extremes(points: Mapping[str, pd.Series]) -> pd.DataFrame:
    """The least and the largest change, with its label, for each of ``effects`` that has any."""
    rows = {
        what: {"least": each.min(), "": each.idxmin(), "most": each.max(), " ": each.idxmax()}
        for what, each in points.items()
        if each.notna().any()
    }
    return pd.DataFrame(rows).T
