"""Docstrings of the package as reStructuredText: they are plain text in which ``...`` marks code."""

import re
from collections.abc import Iterator
from itertools import groupby
from textwrap import dedent
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import parser

CODE = re.compile(r"(``.+?``|`[^`\n]+`)")
ITEM = re.compile(r"(- |\d+\. )")
ENTRY = re.compile(r"\w+: ")
COLUMNS = re.compile(r"\S {3,}\S")


def to_rst(lines: list[str]) -> list[str]:
    """The same text as reStructuredText."""
    return [line for paragraph in paragraphs(lines) for line in [*convert(paragraph), ""]]


def paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """The blocks of lines between blank lines."""
    for blank, block in groupby(lines, key=lambda line: not line.strip()):
        if not blank:
            yield list(block)


def convert(paragraph: list[str]) -> list[str]:
    """Formulas (indented) and columns are kept as they are; text flows; items stay a list."""
    indented = [line.startswith(" ") for line in paragraph]
    if all(indented) or any(COLUMNS.search(line) for line in paragraph):
        lines = dedent("\n".join(paragraph)).splitlines()
        return [".. code-block:: none", "   :class: formula", "", *(f"   {line}" for line in lines)]
    if paragraph[0] == "Args:":
        return ["Arguments:", "", *convert(dedent("\n".join(paragraph[1:])).splitlines())]
    if ENTRY.match(paragraph[0]) and any(indented):  # "name: text" with hanging lines
        return [escape(f"  {line}" if line.startswith(" ") else f"- {line}") for line in paragraph]
    start = next((i for i, line in enumerate(paragraph) if ITEM.match(line)), len(paragraph))
    return [*map(escape, paragraph[:start]), "", *map(escape, paragraph[start:])]


def escape(line: str) -> str:
    """Code gets two backticks; no other character of the line has a meaning."""
    text = CODE.split(line)
    text[::2] = [re.sub(r"([\\*`_|])", r"\\\1", part) for part in text[::2]]
    text[1::2] = [f"``{part.strip('`')}``" for part in text[1::2]]
    return "".join(text)


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    made_by_dataclass = what == "class" and lines[:1] and lines[0].startswith(f"{obj.__name__}(")
    of_value = what == "property" and lines[:1] == str.__doc__.splitlines()[:1]  # of the text that it overrides
    lines[:] = [] if made_by_dataclass or of_value else to_rst(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    parser.comment_re = re.compile(r"^\s*#:? ?(.*)\r?\n?$")  # the comment behind a field documents it, as "#:" does
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
