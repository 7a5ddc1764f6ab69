"""The word of a claim on invented runs: give the mean that every pick of the claim has."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from pfl_core.study.claims import Judged, Values, judge_claim
from pfl_core.study.frame import Row
from pfl_core.study.paper import Paper

Score = Callable[[str, str, str, Mapping[str, Any]], float | None]  # setting, method, metric, fields -> mean


@dataclass(frozen=True)
class Invented:
    """Runs in place of those of a ``claims.Source``."""

    score: Score
    seeds: int
    spread: float
    preset: str
    suffix: str
    decides: bool
    row_fields: Mapping[str, Any]
    columns: frozenset[str] = frozenset()

    def find(self, setting: str, method: str, metric: str, fields: Mapping[str, Any]) -> Values:
        mean = self.score(setting, method, metric, fields)
        if mean is None:
            return Values({})
        noise = pattern(f"{setting} {method} {sorted(fields.items())}", self.seeds)
        rows = {seed: self._row(setting, method, fields, seed) for seed in range(self.seeds)}
        values = {seed: mean + self.spread * noise[seed] for seed in rows}
        return Values(values, {row["key"]: row for row in rows.values()})

    def every(self, metric: str) -> Values:
        """As one run per seed; ``score`` is asked with no setting and no method."""
        mean = self.score("", "", metric, {})
        rows = [] if mean is None else [self._row("", "", {}, seed) for seed in range(self.seeds)]
        return Values({row["key"]: mean for row in rows}, {row["key"]: row for row in rows})

    def _row(self, setting: str, method: str, fields: Mapping[str, Any], seed: int) -> Row:
        known = {"key": f"{setting} {method} {dict(fields)} {seed}", "setting": setting + self.suffix}
        known |= {"method": method, "seed": seed, "preset": self.preset, "changed": list(fields), **fields}
        known |= {"rounds": 100, "partial": False, "failed": 0.0, "inert": 0.0, "late_change": 0.0, "data": setting}
        return known | dict(self.row_fields)


def pattern(name: str, seeds: int) -> list[float]:
    """Numbers with mean 0 and standard deviation 1, others for another name."""
    drawn = [random.Random(f"{name} {seed}").gauss(0, 1) for seed in range(seeds)]
    return [(number - fmean(drawn)) / (pstdev(drawn) or 1.0) for number in drawn]


def word(paper: Paper, number: int, score: Score, *args: Any, **kwargs: Any) -> str:
    """The word of the claim. ``score``: see ``Score``; None for a pick that was not run.

    Each pick has the same mean plus a noise of its own, with standard deviation ``spread`` (0 for counts and
    identities) and mean 0 over the seeds. ``row_fields``: of every run's row, such as ``inert=1.0``.
    """
    return judged(paper, number, score, *args, **kwargs).word


def judged(
    paper: Paper,
    number: int,
    score: Score,
    seeds: int = 4,
    spread: float = 0.1,
    preset: str = "paper",
    **row_fields: Any,
) -> Judged:
    """The claim with its effects, see ``word``."""
    suffix = paper.searched_first[0] if preset == "real" else ""
    source = Invented(score, seeds, spread, preset, suffix, preset in ("paper", "real"), row_fields)
    return judge_claim(paper, paper.claims[number], [source])  # type: ignore[list-item]


def printed(paper: Paper, number: int) -> dict[str, list[float]]:
    """The printed numbers of a claim's effects, by setting."""
    found: dict[str, list[float]] = {}
    for effect in judged(paper, number, lambda *pick: None).effects:
        found.setdefault(effect.setting, []).extend(round(value, 2) for value in effect.printed)
    return found
