"""Results pages: what the committed records say about a paper's claims, as Markdown.

``pfl report`` writes them. A page depends on the committed records only, not on the machine or the day.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from pfl_core.runs import Record, RunSpec, Store
from pfl_core.runs.provenance import ROOT
from pfl_core.study import checks, frames, search
from pfl_core.study.checks import FLAT
from pfl_core.study.claims import FOLLOWS, in_short, parts
from pfl_core.study.compare import counts
from pfl_core.study.comparison import Miss
from pfl_core.study.criteria import DIFFERENCE, LEAST_SEEDS, MOST_SEEDS
from pfl_core.study.names import NAMES, in_words
from pfl_core.study.paper import Paper, Study
from pfl_core.study.statistics import agreement, interval

PRESETS = ("paper", "real")  # in the order in which they decide
OPEN = "undecided"
PAGE = "RESULTS.md"
OVERVIEW = "REPRODUCTION.md"
KEYS_A_LINE = 16
SENTENCES = 3  # of a paper's answer that every page shows; the results page has the others under a heading of their own
ADDED = "Not in the paper"  # how the text of a claim of this project begins
EQUAL = 0.05  # an interval of differences within these bounds, in points: its digits as text are all 0
NOT_RUN = "no run of it"
NEITHER = "neither clearly ahead of nor clearly behind"
BLOCK = re.compile(r"(<!-- answer -->\n).*?(\n<!-- /answer -->)", re.DOTALL)
ALONE = (
    "For each method, over clients and seeds: the correlation of its accuracies with those of Local (training alone) "
    "on the same clients, and the mean difference and mean absolute difference, in points. Runs with the paper's own "
    "fields, scored in their last round, where the method reports; if the methods of one federation report at "
    "different points, all are shown at each of them. Of runs that were stopped early, those of equal length are "
    "compared.\n\nA method with a correlation near 1 and small differences is hard to tell from training alone. Some "
    "clients are easier for every method, which alone gives a high correlation."
)
POINTS = {"": "after aggregation", "_trained": "after local training"}  # a series' suffix -> where it was scored
RULE = (
    "A claim that one method beats another is decided only by runs that converged and in which the method's mechanism "
    "had an effect, with learning rates that the same search chose for all methods, and with enough seeds. Otherwise "
    "it is undecided. A method with more rates or strengths has a larger grid in this search. A claim over several "
    "rivals or data sets does not hold once one of them refutes it in such runs (this rule was added after most runs)."
)
HOW_SURE = (
    "Intervals in brackets are 95 % t-intervals over seeds; those of a difference are paired by seed. *Converged*: "
    f"accuracy on validation images changes by less than {FLAT} points over the last fifth of the rounds, in the "
    f"mean over seeds. *Enough seeds*: at least {LEAST_SEEDS}, and as many as an interval of ± {DIFFERENCE:g} points "
    f"needs, estimated from the first {LEAST_SEEDS}, up to {MOST_SEEDS}. *does not hold* at preset `real` refutes "
    "the claim as a general statement, not the paper's number at its own setting.\n\n*By the numbers so far* leaves "
    "out these conditions: *ahead* and *behind* mean an interval without 0 (by Holm's method where several comparisons "
    "are named), and *neither* is not *equal*."
)
LEGEND = (
    "For each claim: the conditions that are not met, and the numbers. [a, b] is a 95 % interval over seeds. The "
    "*least lead* is the smallest lead over a rival. *By the numbers alone* is the verdict without the conditions. "
    "*3 of 10 seeds*: 3 are stored, about 10 are needed. *One part is enough*: the rival or data set that refutes the "
    "claim. A verdict on several rivals is corrected for their number by Holm's method."
)
SEARCHED = (
    "Chosen by one search for all methods, on validation images of seed 0 (the [method page](README.md#how-to-run) "
    "says which). One field is varied after another; a grid whose end is best is extended twice. *tried*: "
    "in brackets, the best validation accuracy with the value. *at an end*: the best value is still at an end of its "
    "grid."
)
RUNS = (
    "The beginnings of the runs' keys. `pfl runs list` shows each one's settings. Claims with the same runs share a "
    "line; those not named have none."
)

REPRODUCED = (
    "*reproduced*: whether the mean here is within 2 points of the paper's accuracy or within the paper's spread; the "
    "spread here does not count. It is empty where the runs are not at the paper's setting, or were stopped while "
    "their accuracy still changed, or where the paper gives no spread for a number that is not an accuracy. ± is one "
    "deviation over seeds. Cells of several tables may show the same run.\n\nOnly rows with the same preset, "
    "seeds and entry under *differs in* can be compared with each other: other seeds have other clients or other "
    "initial weights. So if the cells of one data set come from several presets or seeds, a cell has a row for each of "
    "these for which its runs are stored; *reproduced* is told for its best runs."
)
UNEXPLAINED = Miss("Not looked into yet.")


@dataclass(frozen=True)
class Evidence:
    """A paper's runs at the presets that decide: those stored and those missing."""

    paper: Paper
    records: Mapping[str, list[Record]]  # preset -> stored runs, partial ones included
    notebooks: Mapping[tuple[str, str], tuple[list[RunSpec], list[RunSpec]]]  # (notebook, preset) -> stored, missing

    @classmethod
    def of(cls, paper: Paper, store: Store) -> Evidence:
        records: dict[str, dict[str, Record]] = {preset: {} for preset in PRESETS}
        notebooks = {}
        for preset in PRESETS:
            for notebook in paper.experiments:
                specs = {spec.key(): spec for spec in paper.specs(notebook, preset)}
                found = {key: record for key in specs if (record := store.get(key)) is not None}
                records[preset] |= found
                complete = [spec for key, spec in specs.items() if key in found and not found[key].partial]
                missing = [spec for key, spec in specs.items() if key not in found or found[key].partial]
                notebooks[notebook, preset] = complete, missing
        return cls(paper, {preset: list(stored.values()) for preset, stored in records.items()}, notebooks)

    @cached_property
    def frames(self) -> dict[str, pd.DataFrame]:
        """Preset -> the metrics of its runs, see ``Paper.metrics_frame``."""
        return {preset: self.paper.metrics_frame(records) for preset, records in self.records.items()}

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The verdict on each claim, in order."""
        tables = {preset: self.paper.verdicts(preset, frame) for preset, frame in self.frames.items() if len(frame)}
        numbers = next(iter(tables.values())).index if tables else []
        return [_deciding({preset: table.loc[number] for preset, table in tables.items()}) for number in numbers]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The cells of the paper's tables beside the stored runs, see ``Paper.compare``; empty if no run is stored."""
        frames = [frame for frame in self.frames.values() if len(frame)]
        return self.paper.compare(pd.concat(frames, ignore_index=True)) if frames else pd.DataFrame()

    def cells_of(self, preset: str, seeds: Sequence[int]) -> pd.DataFrame:
        """``cells`` beside the runs with this preset and these seeds alone."""
        frame = self.frames[preset]
        return self.paper.compare(frame[frame["seed"].isin(seeds)])

    @cached_property
    def answer(self) -> list[str]:
        """The sentences of the answer; the first SENTENCES are the answer, the others more of its numbers."""
        return self.paper.answer(self)

    def where(self, **columns: float | str) -> Evidence:
        """The same evidence with the metrics of those runs only whose columns of ``frames`` have the given values."""
        made = replace(self)
        vars(made)["frames"] = {
            preset: frame[np.logical_and.reduce([frame[name] == value for name, value in columns.items()])]
            for preset, frame in self.frames.items()
            if len(frame)
        }
        return made

    # ---- numbers for the answer; ``runs`` is (preset, setting, method) or (preset, setting, method, variant) ------

    def values(self, runs: Sequence[str], metric: str = "acc_mean") -> pd.Series:
        """The metric of each of the runs, by seed; empty if none is stored."""
        preset, setting, method, variant = (*runs, "")[:4]
        frame = self.frames.get(preset, pd.DataFrame())
        if frame.empty:
            return pd.Series(dtype=float)
        columns = {"setting": setting, "method": method, "variant": variant, "metric": metric}
        selected = np.logical_and.reduce([frame[name] == value for name, value in columns.items()])
        return frame[selected].groupby("seed")["value"].first().dropna()

    def number(self, runs: Sequence[str], metric: str = "acc_mean", unit: str = " %", digits: int = 1) -> str:
        """The mean over seeds as text: "90.7 %"; "(not stored)" if there is no run."""
        values = self.values(runs, metric)
        return f"{values.mean():.{digits}f}{unit}" if len(values) else "(not stored)"

    def difference(self, a: Sequence[str], b: Sequence[str], metric: str = "acc_mean") -> str:
        """a minus b over common seeds, with its 95 % interval: "+2.8 [2.1, 3.4] points"."""
        difference = (self.values(a, metric) - self.values(b, metric)).dropna()
        return points(difference)

    def side(self, a: Sequence[str], b: Sequence[str], metric: str = "acc_mean") -> str:
        """The 95 % interval of ``difference`` in words: "ahead of" b, "behind" b, "equal to" it (EQUAL), or neither."""
        difference = (self.values(a, metric) - self.values(b, metric)).dropna()
        if difference.empty:
            return "not yet compared with"
        found = interval(difference)
        if np.isnan(found.low):
            return f"compared in {'one seed only' if found.seeds == 1 else 'two equal seeds'} with"
        if max(-found.low, found.high) < EQUAL:
            return "equal to"
        if found.low > 0 or found.high < 0:
            return "ahead of" if found.low > 0 else "behind"
        return NEITHER

    def seeds(self, runs: Sequence[str]) -> str:
        """ "3 seeds"."""
        count = len(self.values(runs))
        return f"{count} seed{'s' * (count != 1)}"


def points(difference: pd.Series) -> str:
    """The mean of paired differences over seeds with its 95 % interval: "+2.8 [2.1, 3.4] points"."""
    if difference.empty:
        return "(not stored)"
    found = interval(difference)
    text = f"{found.mean:+.1f}"
    if np.isnan(found.low):
        return f"{text} points, {'1 seed' if found.seeds == 1 else '2 equal seeds'}"
    return f"{text} [{found.low:.1f}, {found.high:.1f}] points"


def page(evidence: Evidence, figures: Path | None = None) -> str:
    """The whole page. ``figures``: the folder with one folder per preset, default the repository's."""
    name = evidence.paper.name
    parts = [
        f"# {evidence.paper.title}: results",
        f"Written by `pfl report {name}` from the records in `data/results/`. "
        "Settings, sources and deviations are on the [method page](README.md).",
        "## Answer\n\n" + _listed(evidence.answer[:SENTENCES]),
        *(["### More numbers\n\n" + _listed(more)] if (more := evidence.answer[SENTENCES:]) else []),
        "## Verdicts\n\n" + verdicts(evidence),
        "## The paper's numbers beside those here\n\n" + comparison(evidence),
        *(["### Numbers that are not reproduced\n\n" + missed] if (missed := misses(evidence)) else []),
        "## Did the mechanism act?\n\n" + mechanism(evidence),
        *(["## Agreement with training alone\n\n" + agreed] if (agreed := local_agreement(evidence)) else []),
        *(["## Searched rates and strengths\n\n" + searched] if (searched := searches(evidence)) else []),
        "## Figures\n\n" + gallery(name, figures or ROOT / "figures"),
        "## What is missing\n\n" + missing(evidence),
    ]
    return "\n\n".join(parts) + "\n"


def overview(papers: Sequence[Evidence], others: Mapping[str, tuple[Study, str]]) -> str:
    """All papers on one page: question, answer and main figure of each, and the table of all claims.

    ``others``: the studies that are no papers, by name, and the answer of each.
    """
    parts = [
        "# Do the papers' claims hold?",
        "Written by `pfl report` from the records in `data/results/`. " + RULE,
        HOW_SURE,
        "Preset `paper` is the paper's own setting; `real` uses fewer rounds and a smaller network or other images.",
    ]
    rows = []
    for evidence in papers:
        paper = evidence.paper
        parts += [
            f"## {paper.title}\n\n*{paper.question}*",
            short_answer(evidence),
            f"{_decided(evidence.verdicts)} ([all results]({paper.name}/{PAGE})).",
            _main_figure(paper),
        ]
        rows += [(paper.title, v.claim.name, v.claim["text"], v.text, v.where) for v in evidence.verdicts]
    for name, (study, answer) in others.items():
        parts += [
            f"## {study.title}\n\n*{study.question}*",
            answer,
            f"[Settings and limits]({name}/README.md)",
            _main_figure(study),
        ]
    about = "*Preset*: the runs that decide the claim or, if it is undecided, the preset with the most runs for it."
    parts.append(f"## All claims\n\n{about}\n\n" + markdown(("paper", "claim", "text", "here", "preset"), rows))
    return "\n\n".join(parts) + "\n"


def _main_figure(study: Study) -> str:
    return f"![{study.title}: {Path(study.figure).stem.replace('_', ' ')}](../figures/{study.figure}.png)"


def _decided(verdicts: Sequence[Verdict]) -> str:
    """How many of the paper's and of this project's claims are decided, and how many of these by definition."""
    counted = []
    for of, ours in (("of the paper", False), ("added by this project", True)):
        claims = [v.claim for v in verdicts if v.claim["text"].startswith(ADDED) is ours]
        decided = [claim for claim in claims if claim["ours"] != OPEN]
        obvious = sum(FOLLOWS in claim["in the paper's tables"] for claim in decided)
        note = f" ({obvious} of them by the algorithm's definition)" if obvious else ""
        counted += [f"{len(decided)} of {len(claims)} claims {of}{note}"] if claims else []
    return "Decided so far: " + ", ".join(counted)


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def with_answer(name: str, answer: str, text: str) -> str:
    """The text of a method page with the answer, see ``short_answer``, between its markers.

    Raises ValueError if it has no place for it.
    """
    replaced, count = BLOCK.subn(lambda match: f"{match[1]}{answer}{match[2]}", text)
    if count != 1:
        raise ValueError(f"{name}: the method page needs one block <!-- answer --> ... <!-- /answer -->")
    return replaced


def short_answer(evidence: Evidence) -> str:
    """The answer that every page of a paper shows, as a list."""
    return _listed(evidence.answer[:SENTENCES])


def study_answer(study: Study, store: Store) -> str:
    """The answer of a study that is no paper, from its stored runs at the first of PRESETS that has any."""
    for preset in PRESETS:
        specs = [spec for name in study.experiments if preset in study.presets for spec in study.specs(name, preset)]
        records = [record for spec in specs if (record := store.get(spec.key())) is not None]
        if records:
            heads = [text.splitlines() for text in study.answer(records)]
            return "\n\n".join(f"**{first}**\n\n{_listed(others)}" for first, *others in heads)
    return "No run is stored."


# ---- verdicts -------------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """A claim's judgement at the preset that decides it."""

    preset: str
    claim: pd.Series  # a row of ``Paper.claims_table``; its name is the claim's number

    @property
    def text(self) -> str:
        """The verdict, in bold if the claim is decided."""
        verdict = str(self.claim["ours"])
        return verdict if verdict == OPEN else f"**{verdict}**"

    @property
    def where(self) -> str:
        """The preset whose runs were judged; NOT_RUN without any. Measured times are no runs, but decide claims."""
        return self.preset if len(self.claim["runs"]) or self.claim["ours"] != OPEN else NOT_RUN


def verdicts(evidence: Evidence) -> str:
    """A table of all claims, then, folded, all numbers or reasons behind each verdict, and its runs."""
    if not evidence.verdicts:
        return "No run is stored."
    head = ("claim", "text", "in the paper's own tables", "here", "first reason or number", "preset")
    rows = [
        (
            verdict.claim.name,
            verdict.claim["text"],
            verdict.claim["in the paper's tables"],
            verdict.text,
            in_short(verdict.claim["numbers"]),
            verdict.where,
        )
        for verdict in evidence.verdicts
    ]
    claims = [verdict.claim for verdict in evidence.verdicts]
    reasons = [line for claim in claims for line in _reasons(claim)]
    runs = [line for same in _by_runs(claims) for line in _runs(same)]
    return "\n\n".join(
        [
            RULE,
            HOW_SURE,
            "*In the paper's own tables*: whether the paper's printed numbers support the claim. A claim that follows "
            "from the algorithm holds with any right code: its verdict checks this project, not the paper.",
            markdown(head, rows),
            _folded("All numbers and reasons behind each verdict", LEGEND, reasons),
            _folded("The runs behind each verdict", RUNS, runs),
        ]
    )


def _folded(summary: str, text: str, lines: Iterable[str]) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n" + "\n".join(lines) + "\n\n</details>"


def _reasons(claim: pd.Series) -> list[str]:
    """The numbers or reasons behind a verdict, as a list of short lines."""
    lines = [f"- **{claim.name}** ({claim['source']}), {claim['ours']}"]
    return lines + [f"  - {part}" for part in parts(claim["numbers"])]


def _by_runs(claims: Iterable[pd.Series]) -> list[list[pd.Series]]:
    """The claims, those with the same runs together; claims without runs are left out unless measured times decide."""
    groups: dict[tuple[str, ...], list[pd.Series]] = {}
    for claim in claims:
        if len(claim["runs"]) or claim["ours"] != OPEN:
            groups.setdefault(tuple(claim["runs"]), []).append(claim)
    return list(groups.values())


def _runs(claims: Sequence[pd.Series]) -> list[str]:
    """The runs behind the verdicts on claims that have the same runs, as a list of short lines."""
    keys = [f"`{key[:8]}`" for key in claims[0]["runs"]]
    count = f"{len(keys)} run{'s' * (len(keys) != 1)}" if keys else "measured times, no runs"
    lines = [f"- {', '.join(f'**{claim.name}**' for claim in claims)}: {count}"]
    return lines + [f"  - {', '.join(keys[i : i + KEYS_A_LINE])}" for i in range(0, len(keys), KEYS_A_LINE)]


def _deciding(claims: Mapping[str, pd.Series]) -> Verdict:
    """The first preset that decides the claim, else the one with the most runs for it."""
    for preset, claim in claims.items():
        if claim["ours"] != OPEN:
            return Verdict(preset, claim)
    preset = max(claims, key=lambda name: len(claims[name]["runs"]))
    return Verdict(preset, claims[preset])


# ---- tables ---------------------------------------------------------------------------------------------------------


def comparison(evidence: Evidence) -> str:
    """For each of the paper's tables, the cells that have runs, after a legend."""
    cells, parts = evidence.cells, []
    if cells.empty:
        return "No run is stored."
    elsewhere = {source: evidence.cells_of(*source) for source in set(_sources(cells[cells["here"].notna()]))}
    for (name, text), (_, group) in zip(counts(cells).items(), cells.groupby("table", sort=False), strict=True):
        rows: list[tuple] = []
        notes: dict[str, None] = {}  # an ordered set
        for r in _comparable(group, elsewhere).itertuples():
            data = frames.in_brief(r.data)
            if note := r.data.removeprefix(data).removeprefix(": "):
                notes[f"*{data}*: {note}."] = None
            rows.append(
                (r.dataset, r.method, r.variant, r.metric, _text(r.paper) + _spread(r.paper_spread))
                + (
                    _text(r.here) + _spread(r.spread),
                    r.preset,
                    in_words(data),
                    r.differs or ("nothing else" if note else "nothing"),
                )
                + (", ".join(map(str, r.seeds)), _mark(r.reproduced))
            )
        head = (
            "data",
            "method",
            "variant",
            "metric",
            "paper",
            "here",
            "preset",
            "data here",
            "differs in",
            "seeds",
            "reproduced",
        )
        if rows:
            below = "".join(f" {note}" for note in notes) + f"\n\n{markdown(head, rows)}"
        else:
            file = f"data/paper/{evidence.paper.name}_{group['table'].iloc[0]}.csv"
            below = f" The paper's numbers: [`{file}`](../../{file})."
        parts.append(f"**{name}**: {text}.{below}")
    return "\n\n".join([REPRODUCED, *parts])


Source = tuple[str, tuple[int, ...]]  # preset and seeds


def _sources(cells: pd.DataFrame) -> list[Source]:
    return [(cell.preset, tuple(cell.seeds)) for cell in cells.itertuples()]


def _comparable(cells: pd.DataFrame, elsewhere: Mapping[Source, pd.DataFrame]) -> pd.DataFrame:
    """The cells of a table that have runs, each also beside its runs of the other sources of its data set's cells.

    ``elsewhere``: the cells beside the runs of one source alone.
    """
    stored = cells[cells["here"].notna()]
    parts = [stored]
    for _, group in stored.groupby("dataset", sort=False):
        own = _sources(group)
        for source in dict.fromkeys(own):
            others = elsewhere[source].loc[group.index[[other != source for other in own]]]
            others = others[others["here"].notna()]
            with_all_seeds = [found == source for found in _sources(others)]
            parts.append(others[with_all_seeds].assign(reproduced=None))  # that is for a cell's best runs
    return pd.concat(parts).sort_index(kind="stable")


def misses(evidence: Evidence) -> str:
    """The cells that are not reproduced, grouped by what explains them or would; "" if there are none."""
    if evidence.cells.empty:
        return ""
    missed = [cell for cell in evidence.cells.itertuples() if cell.reproduced is False]
    known = evidence.paper.comparison.misses
    groups: dict[Miss, list[str]] = {}
    for cell in missed:
        miss = next((miss for miss in known if miss.covers(cell)), UNEXPLAINED)
        table = str(cell.table).replace("table", "Table ")
        name = " ".join(filter(None, (table, cell.dataset, cell.method, cell.variant)))
        groups.setdefault(miss, []).append(f"{name}: {_text(cell.here)} here, {_text(cell.paper)} in the paper")
    lines = []
    for miss, texts in groups.items():
        lines.append(f"- {miss.why}" + (f" Run: `{miss.run}` ({miss.hours:g} core hours)." if miss.run else ""))
        lines += [f"  - {text}" for text in texts]
    return "\n".join(lines)


def _text(value: float | None) -> str:
    return "" if value is None or np.isnan(value) else f"{value:.4g}"


def _spread(value: float | None) -> str:
    return "" if value is None or np.isnan(value) else f" ± {float(f'{value:.2g}'):g}"


def _mark(reproduced: object) -> str:
    return "yes" if reproduced is True else "no" if reproduced is False else ""


def mechanism(evidence: Evidence) -> str:
    """Each method's checks, by preset and setting."""
    records = [record for stored in evidence.records.values() for record in stored]

    def label(record: Record) -> str:
        method = record.spec.method["name"]
        return f"{record.spec.preset_label}: {_where(record.spec)}, {NAMES.get(method, method)}"

    table = checks.mechanism(records, label)
    if table.empty:
        return "No stored run has a mechanism to check."
    rows = [(r.run, r.check, f"{r.median:.3g}", f"{r.bound:g}", r.acted) for r in table.itertuples()]
    intro = (
        "Each check tests whether the method's mechanism had an effect in a run. *acted* counts the runs that pass. A "
        "run that fails decides no claim but those about the mechanism itself. A bound is a minimum or a maximum, "
        "depending on the check; the [method page](README.md#does-the-mechanism-act) explains the checks and says when "
        "the bounds were set.\n\n"
    )
    return intro + markdown(("runs", "check", "median", "bound", "acted"), rows)


def _where(spec: RunSpec) -> str:
    """The setting of a run, with its data if the name of the setting does not tell them: "MNIST (for axial)"."""
    setting, data = in_words(spec.setting), in_words(spec.data["name"])
    return setting if data in setting else f"{data} (for {setting})"


def searches(evidence: Evidence) -> str:
    """The results of the searches at the deciding presets; "" if there was none."""
    table = search.table(evidence.paper.name)
    table = table[table["preset"].isin(PRESETS)].assign(setting=table["setting"].map(in_words))
    table = table.assign(method=table["method"].map(NAMES), validation=table["validation"].map("{:.1f}".format))
    rows = table.drop(columns="hours").to_numpy().tolist()
    head = ("preset", "setting", "method", "chosen", "validation accuracy (%)", "tried", "at an end", "runs")
    return f"{SEARCHED}\n\n{markdown(head, rows)}" if rows else ""


def local_agreement(evidence: Evidence) -> str:
    """How closely each method's clients score as under Local in the same federation; "" without runs of both."""
    runs: dict[tuple[str, ...], list[Record]] = {}  # by federation, and by length for runs that were stopped early
    for record in (record for stored in evidence.records.values() for record in stored):
        if not (checks.failed(record) or evidence.paper.variant(record.spec)):
            length = f", {record.rounds} of {record.spec.rounds} rounds" if record.partial else ""
            runs.setdefault((*_federation(record.spec), length), []).append(record)
    rows = []
    for (preset, setting, *_, length), records in runs.items():
        points = sorted({record.reported_suffix for record in records})
        for suffix in points:
            tables = [
                frames.client_scores(record, suffix).assign(label=record.spec.method["name"], seed=record.spec.seed)
                for record in records
                if "correct" + suffix in record.series
            ]
            if not any((table["label"] == "local").any() for table in tables):
                continue
            place = f", {POINTS[suffix]}" if len(points) > 1 else ""
            for method, (r, mean, size, count) in agreement(pd.concat(tables), "local").iterrows():
                if count:
                    run = f"{preset}: {setting}{length}, {NAMES.get(str(method), method)}{place}"
                    rows.append((run, _two_digits(r), f"{mean:+.2f}", f"{size:.2f}", f"{count:.0f}"))
    head = ("runs", "correlation", "mean difference", "mean absolute difference", "scores")
    return f"{ALONE}\n\n{markdown(head, rows)}" if rows else ""


def _federation(spec: RunSpec) -> tuple[str, ...]:
    """Preset, setting (with the alpha of a Dirichlet partition), and what else makes runs have the same clients."""
    plain = spec.identity(written_out=True)
    alpha = plain["partition"].get("alpha")
    setting = _where(spec) if alpha is None else f"{_where(spec)}, alpha={alpha:g}"
    return spec.preset_label, setting, *(str(plain[name]) for name in ("data", "partition", "model", "clients"))


def _two_digits(value: float) -> str:
    """Two digits; "" for a correlation that does not exist, because all scores are equal."""
    return "" if np.isnan(value) else f"{value:.2f}"


def gallery(name: str, figures: Path) -> str:
    """All committed figures of the paper at the deciding presets."""
    parts = []
    for preset in PRESETS:
        for path in sorted((figures / preset / name).glob("*.png")):
            text = path.stem.replace("_", " ")
            link = Path(os.path.relpath(path, ROOT / "notebooks" / name)).as_posix()
            parts.append(f"**{text}** (preset `{preset}`)\n\n![{text}, preset {preset}]({link})")
    return "\n\n".join(parts) or "No figure is stored."


def missing(evidence: Evidence) -> str:
    """Notebooks with missing runs, and the core hours that these take, as far as similar runs are stored."""
    seconds: dict[tuple, list[float]] = {}
    for stored in evidence.records.values():
        for record in stored:
            seconds.setdefault(_kind(record.spec), []).append(record.core_seconds / record.rounds)
    rows, totals = [], dict.fromkeys(evidence.records, (0.0, 0))
    for (notebook, preset), (complete, absent) in evidence.notebooks.items():
        known = [statistics.median(seconds[_kind(spec)]) * spec.rounds for spec in absent if _kind(spec) in seconds]
        unknown = len(absent) - len(known)
        hours = f"{sum(known) / 3600:.1f}" if known else ""
        total, open_runs = totals.get(preset, (0.0, 0))
        totals[preset] = (total + sum(known) / 3600, open_runs + unknown)
        rows.append((notebook, preset, len(complete), len(absent), hours, unknown or ""))
    head = ("notebook", "preset", "stored runs", "missing runs", "core hours", "runs of unknown length")
    costs = [
        _cost(hours, unknown) + f" at preset `{preset}`"
        for preset, (hours, unknown) in totals.items()
        if hours or unknown
    ]
    return (
        "To decide the undecided claims, these are needed:\n\n"
        f"1. The missing runs of the table. `pfl figures {evidence.paper.name}/NOTEBOOK --preset PRESET` computes "
        f"those of a notebook. Together they take {', and '.join(costs) or 'no time'}. A run that several notebooks "
        "show is counted for each; one that was stopped early counts as missing.\n"
        "2. For claims without missing runs, what the reasons behind the verdict name: learning rates chosen by "
        f"`pfl search {evidence.paper.name} METHOD` for the method and its rivals; more rounds; more seeds (in the "
        "notebook: `SEEDS`); a setting with validation images, where there are none; for a mechanism that did not act, "
        "other settings of the method (the [method page](README.md#does-the-mechanism-act) says what its checks ask "
        "for).\n\n"
        "Core hours are estimated from stored runs of the same method, data and network; runs without such a record "
        "have unknown length.\n\n" + markdown(head, rows)
    )


def _cost(hours: float, unknown: int) -> str:
    """ "about 5 core hours", and the number of runs whose length is unknown."""
    known = f"about {hours:.{1 if hours < 10 else 0}f} core hours" if hours else ""
    runs = f"the time of {unknown} run{'s' * (unknown != 1)} of unknown length" if unknown else ""
    return " plus ".join(filter(None, (known, runs)))


def _kind(spec: RunSpec) -> tuple:
    return spec.method["name"], spec.data["name"], spec.model["name"], spec.clients


def markdown(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; bars within cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
