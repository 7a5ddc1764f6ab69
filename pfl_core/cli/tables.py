"""What commands print: tables as text or LaTeX, JSON, durations and sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Cells = Sequence[Sequence[object]]
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "−": "$-$",
        "±": r"$\pm$",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    }
)


def as_json(content: Any) -> str:
    """JSON on one line; NaN and infinities become null."""
    return json.dumps(json.loads(json.dumps(content), parse_constant=lambda name: None))


def table(columns: Sequence[str], rows: Cells) -> str:
    """A text table with aligned columns and a header line; empty cells are shown as '-'."""
    lines = [list(columns), *map(_texts, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def latex(columns: Sequence[str], rows: Cells) -> str:
    """The same table for a LaTeX document that loads the package booktabs; numbers are aligned on the right."""
    cells = [_texts(row) for row in rows]
    head, *body = [" & ".join(text.translate(LATEX) for text in line) + r" \\" for line in [list(columns), *cells]]
    sides = "".join("r" if all(map(_is_number, column)) else "l" for column in zip(*cells, strict=True))
    begin = rf"\begin{{tabular}}{{{sides or 'l' * len(columns)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])


def _texts(row: Sequence[object]) -> list[str]:
    return ["-" if cell in (None, "") else str(cell) for cell in row]


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-").replace(".", "", 1).isdecimal()


def duration(seconds: float) -> str:
    """Seconds in a readable unit: 0.4 s, 12 s, 3.5 min, 2.0 h, 1.5 days."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def size(num_bytes: float) -> str:
    """Bytes in a readable unit: 12 kB, 3.4 MB, 1.2 GB."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.0f} {unit}" if num_bytes >= 10 or unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"
