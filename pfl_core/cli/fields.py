"""The fields of a class as its source declares them. Nothing is imported, and the comments are kept."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1]


class Field(NamedTuple):
    """A field of a dataclass, as text."""

    name: str
    type: str  # the annotation
    about: str  # the comment behind the field, else the line of comment above it


def declared(path: Path, cls: str) -> list[Field]:
    """The fields that a class itself declares, without those of its bases; none if the file has no such class."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == cls]
    return [
        Field(node.target.id, ast.unparse(node.annotation), _comment(lines, node))
        for found in classes
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def _comment(lines: list[str], node: ast.AnnAssign) -> str:
    last = lines[node.end_lineno - 1] if node.end_lineno else ""
    behind = last.encode()[node.end_col_offset :].decode()  # columns count bytes
    above = lines[node.lineno - 2]
    return (behind if "#" in behind else above if above.lstrip().startswith("#") else "").strip(" #")
