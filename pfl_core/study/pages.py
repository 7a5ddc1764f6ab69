"""The results pages of the papers, and the files that ``pfl report`` writes beside them.

A page depends on the committed records, the paper's folder and ``data/paper`` only, not on the machine or the day.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from pfl_core.data import data_dir
from pfl_core.files import checksum, read_cache, write_cache
from pfl_core.runs import Record, Store
from pfl_core.runs.index import code_digest
from pfl_core.runs.provenance import ROOT
from pfl_core.runs.store import RESULTS
from pfl_core.study import claims, conditions, frame, pictures, plots, search
from pfl_core.study.answers import answered
from pfl_core.study.claims import NOT_RUN, OPEN, OUTCOMES, REPRODUCED, SHOWN, Found, Judged, span
from pfl_core.study.compare import counts
from pfl_core.study.drawings import drawn
from pfl_core.study.frame import is_missing
from pfl_core.study.methods import NAMES
from pfl_core.study.names import plain
from pfl_core.study.paper import Paper, Study
from pfl_core.study.presets import DECIDING
from pfl_core.study.published import Miss, facts, method_of, panel_of, remarks

PAGE, OVERVIEW, ERRATA = "RESULTS.md", "REPRODUCTION.md", "ERRATA.md"
FEW = 2  # effects of a claim that are told with their numbers
KINDS = ("", "what follows from the algorithm and only tests this code", "what is not in the paper")  # of claims
BLOCK = re.compile(r"(<!-- answer(?: (?P<paper>\w+))? -->\n?).*?(\n?<!-- /answer -->)", re.DOTALL)
DPI = 120
DATA = re.compile(r'"data":\{"name":"([^"]+)"')  # in the spec of a record,
HEAD = 4000  # which stands within its first characters
UNEXPLAINED = Miss("Not looked into yet.")
RULE = Path(__file__).with_name("rule.md")  # what the words mean, for REPRODUCTION.md


@dataclass(frozen=True)
class Evidence:
    """A paper's committed runs, and what they say."""

    paper: Paper

    @cached_property
    def records(self) -> list[Record]:
        return committed(self.paper.name)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The frame of these runs."""
        rows = [frame.row_of(record, self.paper) for record in self.records]
        return frame.frame([*rows, *self.paper.measured_rows()])

    @cached_property
    def judged(self) -> list[Judged]:
        return claims.judge(self.paper, self.runs)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The cells of the paper's tables beside these runs, see ``compare``."""
        return self.paper.compare(self.runs)

    @property
    def any_cell(self) -> bool:
        return bool(self.cells["here"].notna().any())

    @cached_property
    def answer(self) -> list[str]:
        """The sentences of the hand-written answer, with the numbers of these runs."""
        return answered(self.paper, self.runs, self.judged)


def files(evidence: Evidence, draw: bool) -> dict[Path, bytes]:
    """All files of one paper: the page, the long tables as CSV, and with ``draw`` the pictures."""
    name, title, folder = evidence.paper.name, evidence.paper.title, ROOT / "figures"
    effects = pd.DataFrame(
        {"claim": claim.claim.number, "word": claim.word} | _row(replace(found, size=claim.size(found)))
        for claim in evidence.judged
        for found in claim.effects
    )
    tables = {
        f"claims/{name}": effects,
        f"cells/{name}": evidence.cells,
        f"claims/{name}_rates": search.table(name).query("preset in @DECIDING").drop(columns="hours"),
        f"claims/{name}_mechanism": conditions.mechanism(evidence.records, _run_name),
    }
    made = {ROOT / "notebooks" / name / PAGE: page(evidence).encode()}
    for file, table in tables.items():
        made[folder / f"{file}.csv"] = _csv(table)
    if draw:
        numbers, path = json.dumps([claim.to_json() for claim in evidence.judged]), folder / "claims" / f"{name}.png"
        heading = f"{title}: what was found"
        made[path] = _picture(path, numbers, lambda: pictures.claims_figure(evidence.judged, heading))
    if draw and evidence.any_cell:
        path, text = folder / "cells" / f"{name}.png", f"{title}: the printed cells that have runs here"
        numbers = evidence.cells.to_csv()
        made[path] = _picture(path, numbers, lambda: pictures.cells_figure(evidence.cells, text))
    return made


def _row(found: Found) -> dict[str, object]:
    """An effect as a row of a CSV file."""
    printed = " ".join(f"{number:.6g}" for number in found.printed)
    return {**vars(found), "printed": printed, "keys": " ".join(found.keys)}


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, float_format="%.6g", lineterminator="\n").encode()


def _picture(path: Path, numbers: str, draw: Callable[[], Figure]) -> bytes:
    """The picture's file: the one at hand if this machine drew it from the same numbers, code and Matplotlib."""
    cache_file = data_dir() / "runs" / "cache" / f"picture-{path.parent.name}-{path.stem}.json"
    key = [code_digest(), mpl.__version__, checksum(numbers)]
    known = read_cache(cache_file, key)
    if known is not None and path.exists() and hashlib.sha256(file := path.read_bytes()).hexdigest() == known:
        return file
    figure = draw()
    file = plots.packed(plots.drawn(figure, DPI), DPI, small=True)
    plt.close(figure)
    write_cache(cache_file, key, hashlib.sha256(file).hexdigest())
    return file


def _run_name(record: Record) -> str:
    spec = record.spec
    method = NAMES[spec.method["name"]]
    return f"{spec.preset_label}: {plain(spec.setting)}, {method}"


# ---- one paper ------------------------------------------------------------------------------------------------------


def page(evidence: Evidence) -> str:
    """RESULTS.md of a paper."""
    name = evidence.paper.name
    missed = misses(evidence)
    parts = [
        f"# {evidence.paper.title}: results",
        "## Answer\n\n" + paragraphs(evidence.answer),
        f"Written by `pfl report {name}` from the records in `data/results/`; settings, sources and deviations are on "
        "the [method page](README.md). What the words mean: [rule](../REPRODUCTION.md#the-rule).",
        f"## Claims\n\n{tally(evidence.judged)} All effects, with the keys of their runs: "
        f"[{name}.csv](../../figures/claims/{name}.csv); [rates searched](../../figures/claims/{name}_rates.csv); "
        f"[did the mechanism act?](../../figures/claims/{name}_mechanism.csv)",
        _image(f"{evidence.paper.title}: the claims' effects", f"../../figures/claims/{name}.png"),
        *claims_tables(evidence.judged),
        f"## Printed cells\n\n{_listed(f'{of}: {text}.' for of, text in counts(evidence.cells).items())}\n\n"
        f"All cells: [{name}.csv](../../figures/cells/{name}.csv).",
        _image("printed cells beside those here", f"../../figures/cells/{name}.png") if evidence.any_cell else "",
        f"### Cells that are not reproduced\n\n{missed}" if missed else "",
        "## What could change a word\n\n" + missing(evidence),
        "## Figures\n\n" + gallery(name),
    ]
    return paragraphs(filter(None, parts)) + "\n"


def _image(text: str, path: str) -> str:
    return f"![{text}]({path})"


def paragraphs(texts: Iterable[str]) -> str:
    return "\n\n".join(texts)


def first_sentence(answer: Sequence[str]) -> str:
    """The first sentence of an answer, for the README."""
    return answer[0].split(". ")[0].removesuffix(".") + "."


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def kind(claim: Judged) -> str:
    """One of KINDS; "" for the paper's own claims."""
    return KINDS[1] if claim.claim.follows else KINDS[2] if claim.claim.source.startswith("not in the paper") else ""


def tally(judged: Sequence[Judged]) -> str:
    """How many claims have which word; those that are not the paper's apart."""
    words = {of: Counter(claim.word for claim in judged if kind(claim) == of) for of in KINDS}
    texts = {of: ", ".join(f"{n[word]} {word}" for word in OUTCOMES if n[word]) for of, n in words.items()}
    apart = "".join(f" Apart, {of}: {texts[of]}." for of in KINDS[1:] if texts[of])
    return f"The paper's {words[''].total()} claims: {texts['']}.{apart}"


def claims_tables(judged: Sequence[Judged]) -> list[str]:
    """A table for each of KINDS, a row per claim: its text, its word, its effects counted, and why some are open."""
    rows = []
    for claim in judged:
        effects = pictures.of_nearest(claim)
        reasons = Counter(f.why.partition(":")[0] for f in effects if f.outcome == OPEN)
        why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        text = f"{claim.claim.text} [{claim.claim.source}]"
        rows.append((kind(claim), claim.claim.number, text, verdict(claim), effects_in_short(claim), why))
    return by_kind(("claim", "says", "here", "effects", "open because"), rows)


def by_kind(head: Sequence[str], rows: Iterable[tuple]) -> list[str]:
    """A table for each of KINDS, from rows that begin with it; all but the first under a heading."""
    parts = {of: [row for of_row, *row in rows if of_row == of] for of in KINDS}
    headed = {of: f"### {of.capitalize()}\n\n" if of else "" for of in KINDS}
    return [headed[of] + markdown(head, part) for of, part in parts.items() if part]


def verdict(claim: Judged) -> str:
    """The word (bold if decided), on which data, and how many effects are not run."""
    effects = pictures.of_nearest(claim)
    word = f"**{claim.word}**" if claim.decided else claim.word
    data = pictures.data_of(found for found in effects if found.outcome == claim.word and found.seeds)
    missing = sum(found.outcome == NOT_RUN for found in effects)
    if not data:
        return word
    return f"{word} on {data}" + (f"; {missing} of {len(effects)} effects not run" if missing else "")


def effects_in_short(claim: Judged) -> str:
    """The effects that were run: one or two with their numbers, of more how many have which outcome.

    "FedAvg < 75: 61.5 (57.9 to 65.1), reproduced", or "option 0.3: reproduced 3 (2 smaller), open 2".
    """
    effects = [found for found in pictures.of_nearest(claim) if found.outcome != NOT_RUN]
    if claim.nearest is None and len(effects) <= FEW:
        several = len({found.setting for found in effects}) > 1
        words = (claim.size(found) or found.outcome for found in effects)
        return "; ".join(_in_numbers(f, word, several * f.setting) for f, word in zip(effects, words, strict=True))
    sizes = Counter(claim.size(found) for found in effects)
    shown = ", ".join(f"{sizes[size]} {size}" for size in ("smaller", "larger") if sizes[size])
    counts = Counter(found.outcome for found in effects)
    texts = {outcome: f"{outcome} {counts[outcome]}" for outcome in (*OUTCOMES, SHOWN) if counts[outcome]}
    texts |= {REPRODUCED: f"{texts[REPRODUCED]} ({shown})"} if shown else {}
    option = f"option {claim.nearest}: " if claim.nearest is not None and effects else ""
    return option + ", ".join(texts.values())


def _in_numbers(found: Found, word: str, setting: str) -> str:
    interval = "" if math.isnan(found.low) else f" ({span([found.low, found.high], '.3g')})"
    paper = f", in the paper {span(found.printed, '.3g')}" if found.printed else ""
    numbers = f"{round(found.mean, 9) + 0.0:.3g}{interval}{paper}".replace("-", "−")
    return f"{plain(f'{setting}: {found.effect}' if setting else found.effect)}: {numbers}, {word}"


def misses(evidence: Evidence) -> str:
    """The cells that are not reproduced, grouped by what explains them or would; "" if there are none."""
    known = [Miss(**item) for item in facts(evidence.paper.name).get("miss", [])]
    groups: dict[Miss, list[str]] = {}
    for cell in evidence.cells.itertuples():
        if cell.reproduced is False:
            miss = next((miss for miss in known if miss.covers(cell)), UNEXPLAINED)
            name = f"{panel_of(cell)}, {cell.dataset}, {method_of(cell)}"
            groups.setdefault(miss, []).append(f"{name}: {cell.here:.4g} here, {cell.paper:.4g} in the paper")
    lines = []
    for miss, texts in groups.items():
        lines.append(f"- {miss.why}" + (f" Run: `{miss.run}` ({miss.hours:g} core hours)." if miss.run else ""))
        lines += [f"  - {text}" for text in texts]
    return "\n".join(lines)


def missing(evidence: Evidence) -> str:
    """For each claim that is open or not run: what its effects lack, and the core hours of more seeds of its runs.

    Seeds are named only where they can change the word: a condition that the runs do not meet comes first.
    """
    seconds = {record.key: record.core_seconds for record in evidence.records}
    rows = []
    for claim in evidence.judged:
        if claim.word not in (OPEN, NOT_RUN):
            continue
        hours: dict[str, float] = {}  # by configuration
        needs: Counter[str] = Counter()
        absent: set[str] = set()
        for found in claim.effects:
            if found.outcome == NOT_RUN and (data := _not_at_hand(evidence.paper, found.setting)):
                absent.add(plain(data))
            elif found.outcome == NOT_RUN:
                needs[f"runs of {plain(found.setting or 'all settings')}"] += 1
            elif found.outcome == OPEN and found.blocked:
                needs[found.blocked] += 1
            elif found.outcome == OPEN and (more := _more_seeds(found.reason, found.seeds)):
                needs["1 more seed" if more == 1 else f"{more} more seeds"] += 1
                for key in found.keys:
                    hours[key] = max(hours.get(key, 0.0), more * seconds.get(key, 0.0) / 3600 / max(found.seeds, 1))
            elif found.outcome == OPEN:
                needs[re.sub(".*: over", "over", found.reason)] += 1
        most = needs.most_common(4)
        lacks = [f"{need} ({count})" for need, count in most]
        if rest := needs.total() - sum(count for _, count in most):
            lacks.append(f"others ({rest})")
        if absent:
            lacks.append(f"data not at hand: {', '.join(sorted(absent))}")
        cost = f"{max(sum(hours.values()), 0.1):.1f}" if hours else ""
        rows.append((claim.claim.number, claim.word, ", ".join(lacks), cost))
    if not rows:
        return "Nothing: all are decided."
    intro = (
        "What each claim still lacks; in brackets, for how many effects of all its options. Core hours: of the "
        "further seeds, estimated from the stored runs; `pfl figures PAPER/NOTEBOOK --preset P --dry-run` estimates "
        "missing runs."
    )
    return f"{intro}\n\n{markdown(('claim', 'here', 'lacks', 'core hours'), rows)}"


def _not_at_hand(paper: Paper, setting: str) -> str:
    """The data set of a setting if no committed run of any study has it, at no preset that decides; else ""."""
    known = [paper.settings.settings[preset] for preset in DECIDING if preset in paper.settings.settings]
    base = setting.partition(", ")[0]
    names = [settings[base].data["name"] for settings in known if base in settings]
    at_hand = any(set(name.split("+")) <= _data_at_hand() for name in names)
    return "" if at_hand or not names else names[0]


@cache
def _data_at_hand() -> set[str]:
    """The data sets of all committed records."""
    names = set()
    for path in RESULTS.glob("*/*/*.json"):
        with path.open(encoding="utf-8") as file:
            found = DATA.search(file.read(HEAD))
        names |= {found[1]} if found else set()
    return names


def _more_seeds(reason: str, seeds: int) -> int:
    """How many more seeds an open effect needs; 0 if seeds are not what it lacks, or too many."""
    if reason in ("one seed", "two seeds"):
        return claims.LEAST_SEEDS - seeds
    found = re.search(r"about (\d+) seeds", reason)
    return int(found[1]) - seeds if found else 0


def gallery(name: str) -> str:
    """The committed figures of the paper at the deciding presets, by the notebook that draws them."""
    parts = []
    for notebook in drawn(name, DECIDING):
        parts.append(f"### [{notebook.title}]({notebook.path.name})")
        for path in notebook.figures:
            link = Path(os.path.relpath(path, notebook.path.parent)).as_posix()
            parts.append(_image(f"{path.stem.replace('_', ' ')}, preset {path.parts[-3]}", link))
    return paragraphs(parts) or "No figure is stored."


# ---- all papers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """One study, a paper or another, as the pages of all take it. Plain data, so that a process can send it."""

    name: str
    answer: list[str]
    section: str  # of REPRODUCTION.md
    rows: list[tuple[str, str, int, str, str]] = field(default_factory=list)  # claims: kind, paper, number, text, word
    errata: str = ""
    files: dict[Path, bytes] = field(default_factory=dict)
    title: str = ""  # of the paper's method, and its question
    headline: list[Found] = field(default_factory=list)  # see ``Paper.headline``; each effect in words


def report(study: Study, draw: bool = True) -> Report:
    """Judge the committed records of a study, and make its files; pictures only with ``draw``."""
    name, head = study.name, f"## {study.title}\n\n*{study.question}*"
    if not isinstance(study, Paper):
        answer = answered(study, study.frame(committed(name)))
        links = f"[Settings and limits]({name}/README.md)"
        image = _image(study.title, f"../figures/{study.figure}.png")
        return Report(name, answer, paragraphs([head, *answer, links, image]))
    evidence = Evidence(study)
    links = f"{tally(evidence.judged)} [All results]({name}/{PAGE})."
    image = _image(f"{study.title}: the claims' effects", f"../figures/claims/{name}.png")
    section = paragraphs([head, *evidence.answer, links, image])
    rows = [
        (kind(claim), study.title, claim.claim.number, claim.claim.text, verdict(claim)) for claim in evidence.judged
    ]
    made, title = files(evidence, draw), f"{study.title}: {study.question}"
    return Report(name, evidence.answer, section, rows, _errata(evidence), made, title, headline(evidence))


def headline(evidence: Evidence) -> list[Found]:
    """The paper's main effects in words, each with its size. Raises KeyError for an effect that no claim has."""
    known = {
        (claim.claim.number, found.setting, found.effect): replace(found, size=claim.size(found))
        for claim in evidence.judged
        for found in claim.effects
    }
    return [replace(known[of, on, effect], effect=words) for of, on, effect, words in evidence.paper.headline]


def committed(name: str) -> list[Record]:
    """The committed records of a study's own runs at the deciding presets."""
    store = Store(root=Path(os.devnull))
    paths = [path for paths in store.files().values() for path in paths if path.parent.parent.name == name]
    records = [record for path in paths if (record := store.read(path)) is not None]
    return [record for record in records if record.spec.preset_label in DECIDING]


def _errata(evidence: Evidence) -> str:
    """What ERRATA.md has of a paper: its contradictions, remarks on cells, and claims that its own numbers miss."""
    name = evidence.paper.name
    parts = [f"## {evidence.paper.title}\n\n" + _listed(item["text"] for item in facts(name).get("erratum", []))]
    if notes := remarks(name):
        parts.append("Remarks on cells:\n\n" + _listed(notes))
    rows = [
        (claim.claim.number, plain(found.effect), plain(found.setting), " ".join(f"{n:.4g}" for n in found.printed))
        for claim in evidence.judged
        for found in claim.effects
        if found.misses and found.setting.partition(", ")[0] not in evidence.paper.stands_for
    ]
    if rows:
        head = ("claim", "effect", "on", "in the paper")
        parts.append("Effects that the paper's own numbers miss:\n\n" + markdown(head, rows))
    return paragraphs(parts)


def overview(reports: Sequence[Report]) -> str:
    """REPRODUCTION.md: answer and picture of each study, the rule, and the table of all claims."""
    parts = ["# Do the papers' claims hold?"]
    parts.append(_image("the papers' main effects, printed and here", "../figures/claims/all.png"))
    parts.append("Written by `pfl report` from the records in `data/results/`.")
    parts += [own.section for own in reports]
    parts.append("## The rule\n\n" + RULE.read_text(encoding="utf-8"))
    rows = [row for own in reports for row in own.rows]
    return paragraphs([*parts, "## All claims", *by_kind(("paper", "claim", "says", "here"), rows)]) + "\n"


def of_all(reports: Sequence[Report], draw: bool = True) -> dict[Path, bytes]:
    """The files of all studies together: two pages, the papers' main effects, and with ``draw`` their picture."""
    notebooks, path = ROOT / "notebooks", ROOT / "figures" / "claims" / "all.png"
    made = {notebooks / OVERVIEW: overview(reports).encode(), notebooks / ERRATA: errata(reports).encode()}
    shown = {own.title: own.headline for own in reports if own.headline}
    rows = [{"paper": title.partition(":")[0]} | _row(found) for title, effects in shown.items() for found in effects]
    made[path.with_suffix(".csv")] = _csv(pd.DataFrame(rows))
    if draw:
        numbers = json.dumps({title: [vars(found) for found in effects] for title, effects in shown.items()})
        made[path] = _picture(path, numbers, lambda: pictures.headline_figure(shown))
    return made


def errata(reports: Sequence[Report]) -> str:
    """ERRATA.md: where a paper contradicts itself or its code, and claims that its own tables miss."""
    parts = [
        "# Errata",
        "Where the papers contradict themselves or their released code. Written by `pfl report` from "
        "`data/paper/*.toml` and from the papers' own tables, which `data/paper/` has as printed.",
    ]
    return paragraphs([*parts, *(own.errata for own in reports if own.errata)]) + "\n"


def with_answer(text: str, answers: Mapping[str, str]) -> str:
    """The text with each block ``<!-- answer NAME -->`` filled. Raises ValueError without a block."""

    def filled(match: re.Match[str]) -> str:
        return f"{match[1]}{answers[match['paper'] or next(iter(answers))]}{match[3]}"

    replaced, count = BLOCK.subn(filled, text)
    if not count:
        raise ValueError("the page needs a block <!-- answer --> ... <!-- /answer -->")
    return replaced


def markdown(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; bars within cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    cells = (["" if is_missing(cell) else str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)
