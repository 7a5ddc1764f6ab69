"""The directive ``gallery``: the committed figures of a paper, each with a link to the notebook that draws it.

A figure that is committed for several presets is shown for the one with the best evidence. A figure that no notebook
draws any more is shown without a link.
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
    notebook: str
    section: str  # the heading above


class Gallery(SphinxDirective):
    required_arguments = 1  # the name of the paper

    def run(self) -> list[nodes.Node]:
        root, paper = Path(self.env.srcdir), self.arguments[0]
        drawings = [drawing for path in root.glob(f"notebooks/{paper}/*.ipynb") for drawing in read(path)]
        names = sorted({path.stem for preset in PRESETS for path in root.glob(f"figures/{preset}/{paper}/*.png")})
        figures = "".join(figure(root, paper, name, find(drawings, f"{paper}/{name}")) for name in names)
        return self.parse_text_to_nodes(f"````{{container}} gallery\n{figures}\n````\n")


def figure(root: Path, paper: str, name: str, drawing: Drawing | None) -> str:
    """One figure with its caption, in Markdown."""
    preset = next(preset for preset in PRESETS if (root / f"figures/{preset}/{paper}/{name}.png").exists())
    image = f"/figures/{preset}/{paper}/{name}.png"
    title = name.replace("_", " ")
    link = f"[{drawing.section}](/notebooks/{drawing.notebook}.ipynb)" if drawing else "Of an earlier version."
    return f"""
```{{figure}} {image}
:name: {f"{paper}-{name}".replace("_", "-")}
:alt: {title}, preset {preset}
:loading: lazy
:width: 100%

**{title}** (preset `{preset}`). {link}
```
"""


def read(path: Path) -> Iterator[Drawing]:
    """The places of a notebook that name figures: strings "paper/figure", with {...} for parts that vary."""
    section = ""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            section = next(reversed(re.findall(r"^#+ (.*)$", text, re.MULTILINE)), section)
        else:
            for name in re.findall(rf'"({path.parent.name}/[^"]+)"', text):
                yield Drawing(re.sub(r"\\?\{[^}]*\}", r"\\w*", name), f"{path.parent.name}/{path.stem}", section)


def find(drawings: list[Drawing], name: str) -> Drawing | None:
    """The place that draws a figure: the most specific pattern. It may lack an ending of the name, e.g. a data set."""
    matches = [drawing for drawing in drawings if re.fullmatch(rf"{drawing.names}(_\w+)?", name)]
    return max(matches, key=lambda drawing: len(drawing.names), default=None)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("gallery", Gallery)
    return {"parallel_read_safe": True}
