"""Tables of the comparison of all methods: scores and costs, fronts, ranks, and what each paper compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import combinations

import pandas as pd

from pfl_core import papers
from pfl_core.papers.across.settings import SETTINGS
from pfl_core.papers.across.study import SCORE, STUDY, TRAINED
from pfl_core.registry import MODULES
from pfl_core.runs import Record
from pfl_core.study import frames, search
from pfl_core.study.claims import Found, judge
from pfl_core.study.method_comparison import passes
from pfl_core.study.methods import NAMES
from pfl_core.study.names import plain
from pfl_core.study.statistics import holm, interval
from pfl_core.study.style import COLORS

SCORES = {
    SCORE: "mean over clients",
    "acc_bottom_decile_merged": "worst tenth of the clients",
    TRAINED: "mean, after local training",
}
COSTS = {"upload_mb": "sent by all clients (MB)", "passes": "passes through a client's images"}
SHORT = {  # column -> its name in a table that is shown
    **dict(zip(SCORES, ("mean", "worst tenth", "after local training"), strict=True)),
    **{"upload_mb": "MB", "train_tflop": "GFLOP"},
}
SAME = 1e-5  # relative difference of two losses that are equal up to rounding
RIVALS = len(MODULES) - 1  # methods that are compared with REFERENCE
ALL = "all data sets"


def comparable(records: Iterable[Record]) -> tuple[list[Record], list[str]]:
    """For each data set, the runs of the methods and seeds that can be compared: every method has a run for every seed.

    Of all such sets the one with the most runs, of equal ones that with more seeds. Runs that were stopped early do not
    count. Also returns a line about the runs of each data set that are left out, if there are any.
    """
    kept: list[Record] = []
    lines = []
    for where, own in by_data_set(records).items():
        runs = {(NAMES[r.spec.method["name"]], r.spec.seed): r for r in own if not r.partial}
        methods, seeds = _largest_block(list(runs))
        kept += [run for (method, seed), run in runs.items() if method in methods and seed in seeds]
        used = {run.key for run in kept}
        if left := [f"{run_label(r)}, seed {r.spec.seed}" for r in own if r.key not in used]:
            lines.append(f"stored, but not for all seeds and rounds, so left out on {where}: {'; '.join(left)}")
    return kept, lines


def _largest_block(pairs: Sequence[tuple[str, int]]) -> tuple[set[str], set[int]]:
    """The methods and seeds of the largest set of pairs that has every method with every seed."""
    methods_of: dict[int, set[str]] = {}
    for method, seed in pairs:
        methods_of.setdefault(seed, set()).add(method)
    best: tuple[set[str], set[int]] = (set(), set())
    for count in range(1, len(methods_of) + 1):
        for seeds in combinations(sorted(methods_of), count):
            methods = set.intersection(*(methods_of[seed] for seed in seeds))
            if len(methods) * count >= len(best[0]) * len(best[1]):
                best = methods, set(seeds)
    return best


def by_data_set(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each data set, by its display name."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(plain(frames.setting_label(record)), []).append(record)
    return groups


def run_label(record: Record) -> str:
    """The method and the data set: "FedPeWS, Digits"."""
    return f"{NAMES[record.spec.method['name']]}, {plain(frames.setting_label(record))}"


def table(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run: method, label, color, where (the data set), seed, passes and ``Record.summary``."""
    rows = []
    for record in records:
        method = record.spec.method["name"]
        tags = {"method": method, "label": NAMES[method], "color": COLORS[method], "seed": record.spec.seed}
        tags |= {"where": plain(frames.setting_label(record)), "passes": passes(record)}
        rows.append({**tags, **record.summary()})
    return pd.DataFrame(rows)


def means(runs: pd.DataFrame) -> pd.DataFrame:
    """Scores and costs of each method, mean over seeds, most accurate first, and the number of ``seeds``.

    Columns of ``table``.
    """
    groups = runs.groupby(["where", "method", "label", "color"], sort=False)
    points = groups[[*SCORES, *COSTS, "train_tflop"]].mean().assign(seeds=groups["seed"].nunique()).reset_index()
    return points.sort_values(SCORE, ascending=False, kind="stable")


def shown(points: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``means`` as a table to show, one data set after the other, with GFLOP in place of TFLOP."""
    columns = [*SCORES, *COSTS, "train_tflop"]
    by_set = pd.concat(part for _, part in points.groupby("where", sort=False))
    indexed = by_set.assign(train_tflop=1000 * by_set["train_tflop"]).set_index(["where", "label"])
    return indexed[columns].rename(columns=SHORT)


def same_scores(runs: pd.DataFrame, label: str) -> str:
    """The other labels with the mean test loss of ``label`` for every seed, up to rounding; "none" without any.

    Columns: label, seed, loss; every label has every seed.
    """
    losses = runs.pivot(index="seed", columns="label", values="loss")
    if label not in losses:
        return f"{label} is not stored"
    same = losses.sub(losses[label], axis=0).abs().le(SAME * losses[label], axis=0).all()
    return ", ".join(other for other in same.index[same] if other != label) or "none"


def front(points: pd.DataFrame, cost: str) -> list[str]:
    """The labels on the Pareto front of SCORE and a cost, cheapest first.

    A label is on it if every other label that costs at most as much is less accurate. Columns: label, ``cost``, SCORE.
    """
    best, labels = float("-inf"), []
    # at equal cost the most accurate label comes first, so the others are not above `best`
    for row in points.sort_values([cost, SCORE], ascending=[True, False]).to_dict("records"):
        if row[SCORE] > best:
            best = row[SCORE]
            labels.append(row["label"])
    return labels


def ranks(runs: pd.DataFrame) -> pd.DataFrame:
    """The rank of each method by SCORE, 1 for the most accurate; equal scores share the mean of their ranks.

    A row per data set and method, and per method for ALL data sets together, best mean rank over ALL first. Columns:
    where, label, color, rank (mean over seeds), low, high (95 % interval, NaN for one seed), runs. Every pair of data
    set and seed counts once. ALL takes them as independent, and has the ranks among the methods of all data sets.
    """
    ranked = _with_ranks(runs)
    shared = set.intersection(*(set(part["label"]) for _, part in runs.groupby("where")))
    overall = _with_ranks(runs[runs["label"].isin(shared)]).assign(where=ALL)
    both = pd.concat([ranked, overall]) if ranked["where"].nunique() > 1 and len(shared) > 1 else ranked
    rows = []
    for (where, label, color), group in both.groupby(["where", "label", "color"], sort=False):
        found = interval(group["rank"])
        rows.append((where, label, color, found.mean, found.low, found.high, found.seeds))
    columns = ["where", "label", "color", "rank", "low", "high", "runs"]
    order = ranked.groupby("label")["rank"].mean()
    return pd.DataFrame(rows, columns=columns).sort_values("label", key=lambda label: label.map(order), kind="stable")


def _with_ranks(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with a column ``rank`` among the runs of their data set and seed."""
    return runs.assign(rank=runs.groupby(["where", "seed"])[SCORE].rank(ascending=False))


def clients(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run and client for ``statistics.agreement``: where, label, seed, client, accuracy (percent)."""
    frame = frames.clients(records)
    return frame.assign(label=frame["method"].map(NAMES), where=frame["where"].map(plain))


def against_local(runs: pd.DataFrame) -> pd.DataFrame:
    """The lead of each method over Local in SCORE, best first. ``runs``: the frame of one data set.

    Columns: label, lead, low, high, seeds, side ("ahead" or "behind" after Holm's method over all RIVALS, stored or
    not, else "unclear"), outcome and why (see ``study.claims``: "reproduced" is ahead, "reversed" behind).
    """
    found = [f for claim in judge(STUDY, runs, [1]) for f in claim.effects if f.seeds]
    table = pd.DataFrame([vars(f) for f in found], columns=[f.name for f in fields(Found)])
    table = table.assign(label=table["effect"].str.split(" − ").str[0], lead=table["mean"])
    kept = pd.Series(holm(table["p"].tolist(), RIVALS), table.index)
    side = table["lead"].gt(0).map({True: "ahead", False: "behind"}).where(kept, "unclear")
    columns = ["label", "lead", "low", "high", "seeds", "side", "outcome", "why"]
    table = table.assign(side=side, why=table["reason"])[columns]
    return table.sort_values("lead", ascending=False, kind="stable", ignore_index=True)


def shown_leads(judged: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``against_local`` as a table to show; of a data set with one seed only the leads."""
    table = judged.set_index("label")
    return table[["lead", "seeds"]] if table["low"].isna().all() else table


def searches(preset: str) -> pd.DataFrame:
    """The searches of a preset as a table to show, the data sets in the order of the settings."""
    found = search.table("across").query("preset == @preset").drop(columns="preset")
    order = {name: place for place, name in enumerate(SETTINGS.settings[preset])}
    found = found.sort_values("setting", key=lambda names: names.map(order), kind="stable")
    names = found.assign(method=found["method"].map(NAMES), setting=found["setting"].map(plain))
    return names.set_index(["setting", "method"])


def compared() -> pd.DataFrame:
    """Which method is in the printed tables of which paper: a row per method, a column per paper, values bool."""
    tables = {name: set(papers.paper(name).table()["key"]) for name in papers.PAPERS}
    rows = {NAMES[name]: [name in keys for keys in tables.values()] for name in MODULES}
    return pd.DataFrame.from_dict(rows, orient="index", columns=[NAMES[name] for name in tables])


def left_out(points: pd.DataFrame) -> pd.DataFrame:
    """For each paper: how many methods its tables have and lack, and which have a higher mean here than its own.

    A paper whose own method is not stored has no accuracy and no such methods.

    ``points``: rows of ``means`` for one data set. The names of the papers are those of their own methods.
    """
    score, tables = points.set_index("label")[SCORE], compared()
    rows = {}
    for own, has in tables.items():
        parts = [[label for label in score.index if has[label] == printed] for printed in (True, False)]
        ahead = [
            ", ".join(label for label in part if score[label] > score[own]) or "none" if own in score else "not stored"
            for part in parts
        ]
        rows[own] = (score.get(own), int(has.sum()), ahead[0], len(parts[1]), ahead[1])
    columns = [
        "accuracy here", "in its tables", "higher mean, in its tables", "not in its tables",
        "higher mean, not in its tables",
    ]  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)
