"""Which notebook draws which of the committed figures."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pfl_core.runs.provenance import ROOT

QUESTION = re.compile(r"\*\*Question:\*\* (.+?)(\n\n|$)", re.DOTALL)


@dataclass(frozen=True)
class Drawn:
    """A notebook and its committed figures, in the order of its cells."""

    path: Path
    title: str
    question: str
    figures: list[Path]


@dataclass(frozen=True)
class Drawing:
    """A place in a notebook that writes figures."""

    names: str  # pattern of the figures' names, "paper/figure"
    path: Path  # of the notebook


def drawn(paper: str, presets: Sequence[str]) -> list[Drawn]:
    """The notebooks of a paper with their figures; each figure once, of the first of ``presets`` that has it.

    A figure that no notebook draws any more is left out.
    """
    paths = sorted((ROOT / "notebooks" / paper).glob("*.ipynb"))
    places = [place for path in paths for place in read(path)]
    folders = [ROOT / "figures" / preset / paper for preset in reversed(presets)]
    figures = {path.stem: path for folder in folders for path in folder.glob("*.png")}
    place = {name: places.index(at) for name in sorted(figures) if (at := find(places, f"{paper}/{name}"))}
    order = sorted(place, key=place.__getitem__)
    return [
        Drawn(path, *heading(path), own)
        for path in paths
        if (own := [figures[name] for name in order if places[place[name]].path == path])
    ]


def heading(path: Path) -> tuple[str, str]:
    """A notebook's title and its question."""
    first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    question = QUESTION.search(first)
    text = question[1] if question else ""
    return first.splitlines()[0].removeprefix("# "), text[:1].upper() + text[1:]


def read(path: Path) -> Iterator[Drawing]:
    """The places of a notebook that name figures: strings "paper/figure", with {...} for parts that vary."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            for name in re.findall(rf'"({path.parent.name}/[^"]+)"', "".join(cell["source"])):
                yield Drawing(re.sub(r"\\?\{[^}]*\}", r"\\w*", name), path)


def find(places: Sequence[Drawing], name: str) -> Drawing | None:
    """The place that draws a figure: the most specific pattern. It may lack an ending of the name, e.g. a data set."""
    matches = [place for place in places if re.fullmatch(rf"{place.names}(_\w+)?", name)]
    return max(matches, key=lambda place: len(place.names), default=None)
