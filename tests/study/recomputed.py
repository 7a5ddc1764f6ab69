"""Compares the numbers in a claim's text with numbers recomputed from the CSV files of the paper's tables."""

import re

import pandas as pd

from pfl_core.study.claims import claims
from pfl_core.study.paper import Paper
from pfl_core.study.published import parse_variant


def says(paper: Paper, number: int, supported: str, *parts: str) -> None:
    """Every recomputed part must be in the statement, and nothing with a digit may be left of it."""
    claim = claims(paper.claims)[number - 1]
    assert claim.supported == supported
    left = claim.published
    for part in sorted(parts, key=len, reverse=True):
        assert part in left, f"{part!r} is not in {left!r}"
        left = left.replace(part, "")
    assert not re.search(r"\d", left), f"not recomputed: {left!r}"


def grade(*holds: bool) -> str:
    """As in the claims' `supported`."""
    return "yes" if all(holds) else "partly" if any(holds) else "no"


def grid(paper: Paper, number: int, metric: str | None = None, *, rows="method", columns="dataset") -> pd.DataFrame:
    """A table as a matrix; `rows` and `columns` may name fields of the variant."""
    frame = paper.table(number)
    frame = frame if metric is None else frame[frame["metric"] == metric]
    fields = [parse_variant(text) for text in frame["variant"]]
    names = [name for name in (rows, columns) if name not in frame.columns]
    frame = frame.assign(**{name: [field.get(name) for field in fields] for name in names})
    return frame.pivot(index=rows, columns=columns, values="value")
