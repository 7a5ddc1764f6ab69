"""The directive ``gallery``: the committed figures of a paper, under the question of the notebook that draws them.

A figure that is committed for several presets is shown for the one with the best evidence. The first figure of a
notebook is large.
"""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from pfl_core.runs.provenance import ROOT
from pfl_core.study.drawings import drawn

PRESETS = ("paper", "real", "quick")  # the best evidence first


class Gallery(SphinxDirective):
    required_arguments = 1  # the name of the paper

    def run(self) -> list[nodes.Node]:
        text = ""
        for notebook in drawn(self.arguments[0], PRESETS):
            link = notebook.path.relative_to(ROOT).as_posix()
            first, *rest = [figure(path, notebook.title.replace("*", "")) for path in notebook.figures]
            text += f"\n### [{notebook.title}](/{link})\n\n{notebook.question}\n{first}"
            text += f"````{{container}} gallery\n{''.join(rest)}\n````\n" if rest else ""
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def figure(path: Path, title: str) -> str:
    """One figure in Markdown, which opens at its full size; its caption is drawn in it."""
    preset, paper = path.parts[-3:-1]
    return f"""
```{{image}} /{path.relative_to(ROOT).as_posix()}
:name: {f"{paper}-{path.stem}".replace("_", "-")}
:alt: "{title} Figure {path.stem.replace("_", " ")}, preset {preset}."
:loading: lazy
:width: 100%
```
"""


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("gallery", Gallery)
    return {"parallel_read_safe": True}
