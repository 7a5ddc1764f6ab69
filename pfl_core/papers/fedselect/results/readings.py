"""FedSelect's text against its released code: labels of the runs, and what moves the score most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from pfl_core.papers.fedselect.experiments import ALTERNATION
from pfl_core.papers.fedselect.labels import option_text
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.papers.fedselect.results.tables import seeds_text
from pfl_core.runs import Record, RunSpec
from pfl_core.study import frames
from pfl_core.study.names import NAMES
from pfl_core.study.style import COLORS, WINE

TEXT = "the paper's text"
CODE = "reading=authors_code"
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


def label(spec: RunSpec) -> str:
    """The method; for FedSelect the options in which the run differs from the paper's text.

    Another method with the code's deal of classes has that option in its label, because its clients are others.
    """
    if spec.method["name"] != "fedselect":
        return NAMES[spec.method["name"]] + f"; {CLASSES}" * _dealt(spec)
    variant = PAPER.variant(spec) if spec.setting == USUAL else ""
    return variant.replace(";", "; ") or setting_text(spec.setting)


def _dealt(spec: RunSpec) -> bool:
    """Whether the run has the released code's deal of classes, and so other clients."""
    return bool(spec.partition.get("allow_duplicate_classes"))


def table(records: Sequence[Record]) -> pd.DataFrame:
    """``frames.summaries`` with label, color, state, dealt, and merged: whether the last round is averaged.

    Without that average there is no score after aggregation: ``acc_mean`` is NaN. ``dealt``: whether the run has the
    code's deal of classes, and so other clients; these rows come last, in a colour of their own.
    """
    rows = frames.summaries(records)
    merged = rows["aggregate_last_round"].ne(False)
    dealt = pd.Series([_dealt(record.spec) for record in records], rows.index)
    color = rows["method"].eq("fedselect").map({True: COLORS["fedselect"], False: COLORS["local"]}).mask(dealt, WINE)
    labels = [label(record.spec) for record in records]
    states = [record.state for record in records]
    rows = rows.assign(label=labels, state=states, color=color, merged=merged, dealt=dealt)
    return rows.assign(acc_mean=rows["acc_mean"].where(merged)).sort_values("dealt", kind="stable")


def by_passes(table: pd.DataFrame) -> pd.DataFrame:
    """The runs of ALTERNATION that trained, with ``passes``: "L epochs", "2 L epochs", or NaN for other settings."""
    chosen = table[table["method"].isin(ALTERNATION) & ~table["failed"]]
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


def answer(table: pd.DataFrame, points: Mapping[str, pd.Series]) -> list[str]:
    """The scores of the paper's text and of the released code, and the range of each of ``effects``."""
    means = table[table["method"] == "fedselect"].groupby("label")[["acc_mean", "acc_mean_trained"]].mean()
    ways = {"acc_mean": "after aggregation", "acc_mean_trained": "after local training"}
    scores = []
    for name in (TEXT, CODE):
        if name in means.index:
            known = means.loc[name].dropna()
            shown = ", ".join(f"{value:.1f} % {ways[metric]}" for metric, value in known.items())
            scores.append(f"{option_text(name)}: {shown}")
    sentences = [f"FedSelect's mean client accuracy by {'; by '.join(scores)} ({seeds_text(table)})."] if scores else []
    alone = table[(table["method"] == "local") & (table["setting"] == f"{USUAL}, {CLASSES}")]["acc_mean"]
    if CODE in means.index and len(alone):
        sentences.append(
            f"The released code deals the classes in another way; on these clients Local has {alone.mean():.1f} %."
        )
    starts = {
        OPTION: "The released code's options, single or combined, change FedSelect's accuracy by",
        POINT: "Scoring a baseline after local training, not after aggregation, changes its accuracy by",
        DOUBLED: "Twice the passes change a baseline's accuracy by",
    }
    for what, start in starts.items():
        if (each := points[what].dropna()).size:
            ends = [
                f"{value:+.1f} ({option_text(name)})"
                for name, value in ((each.idxmin(), each.min()), (each.idxmax(), each.max()))
            ]
            sentences.append(f"{start} {' to '.join(ends)} points.")
            if what == OPTION and (gain := local_gain(table, most := each.idxmax())) is not None:
                sentences.append(_also_of_local(most, each.max(), gain))
    return sentences


def _also_of_local(option: str, own: float, gain: float) -> str:
    """That an option changes Local's accuracy, too, and so says little about FedSelect."""
    text = (
        f'"{option_text(option)}" changes the accuracy of Local, too: by {gain:+.1f} points, of FedSelect {own:+.1f}.'
    )
    if not gain > own / 2 > 0:
        return text
    why = "this assignment deals other classes" if option == CLASSES else "the option helps without any sharing"
    how_much = "all" if gain >= own - 0.5 else "most"
    return f"{text} So {why}, and Local has {how_much} of FedSelect's gain."


def local_gain(table: pd.DataFrame, option: str) -> float | None:
    """By how many points a training option changes Local's mean accuracy; None if Local was not run with it."""
    local = table[table["method"] == "local"].groupby("setting")["acc_mean"].mean()
    settings = [setting for setting in local.index if setting_text(setting) == option and setting != USUAL]
    return float(local[settings[0]] - local[USUAL]) if settings and USUAL in local.index else None
