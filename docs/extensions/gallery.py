"""The directive ``gallery``: the committed figures of a paper, under the question of the notebook that draws them.

A figure that is committed for several presets is shown for the one with the best evidence. The first figure of a
notebook is large.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PRESETS = ("paper", "real", "quick")  # the best evidence first


class Drawing(NamedTuple):
    """A place in a notebook that writes figures."""

    names: str  # pattern of the figures' names, "paper/figure"
    path: Path  # of the notebook
    cell: int


class Gallery(SphinxDirective):
    required_arguments = 1  # the name of the paper

    def run(self) -> list[nodes.Node]:
        root, paper = Path(self.env.srcdir), self.arguments[0]
        paths = sorted(root.glob(f"notebooks/{paper}/*.ipynb"))
        drawings = [drawing for path in paths for drawing in read(path)]
        names = {path.stem for preset in PRESETS for path in root.glob(f"figures/{preset}/{paper}/*.png")}
        place = {name: drawings.index(found) for name in sorted(names) if (found := find(drawings, f"{paper}/{name}"))}
        text = ""
        for path in paths:
            of_notebook = [n for n in sorted(place, key=place.__getitem__) if drawings[place[n]].path == path]
            if of_notebook:
                text += heading(root, path) + figure(root, paper, of_notebook[0])
                rest = "".join(figure(root, paper, name) for name in of_notebook[1:])
                text += f"````{{container}} gallery\n{rest}\n````\n" if rest else ""
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def heading(root: Path, path: Path) -> str:
    """A notebook's title, with a link to it, and its question."""
    first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    title = first.splitlines()[0].removeprefix("# ")
    question = re.search(r"\*\*Question:\*\* (.+?)(\n\n|$)", first, re.DOTALL)
    text = question[1] if question else ""
    return f"\n### [{title}](/{path.relative_to(root).as_posix()})\n\n{text[:1].upper()}{text[1:]}\n"


def figure(root: Path, paper: str, name: str) -> str:
    """One figure in Markdown, which opens at its full size; its caption is drawn in it."""
    preset = next(preset for preset in PRESETS if (root / f"figures/{preset}/{paper}/{name}.png").exists())
    return f"""
```{{image}} /figures/{preset}/{paper}/{name}.png
:name: {f"{paper}-{name}".replace("_", "-")}
:alt: {name.replace("_", " ")}, preset {preset}
:loading: lazy
:width: 100%
```
"""


def read(path: Path) -> Iterator[Drawing]:
    """The places of a notebook that name figures: strings "paper/figure", with {...} for parts that vary."""
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            for name in re.findall(rf'"({path.parent.name}/[^"]+)"', "".join(cell["source"])):
                yield Drawing(re.sub(r"\\?\{[^}]*\}", r"\\w*", name), path, number)


def find(drawings: list[Drawing], name: str) -> Drawing | None:
    """The place that draws a figure: the most specific pattern. It may lack an ending of the name, e.g. a data set.

    None for a figure that no notebook draws any more; the gallery leaves it out.
    """
    matches = [drawing for drawing in drawings if re.fullmatch(rf"{drawing.names}(_\w+)?", name)]
    return max(matches, key=lambda drawing: len(drawing.names), default=None)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("gallery", Gallery)
    return {"parallel_read_safe": True}
