"""Output of notebooks: figure files, captions, tables of settings."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import PIL.Image
from IPython.display import Image, display
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pfl_core.files import atomic_write
from pfl_core.runs import Record, RunSpec
from pfl_core.runs.provenance import ROOT, describe
from pfl_core.study.alt_text import alt_text
from pfl_core.study.frames import data_name, dataset
from pfl_core.study.names import plain
from pfl_core.study.style import styled

DPI = 200  # of image files
SHOWN = 110  # display size in a notebook, pixels per inch
COLORS = 256  # of a PNG without pictures or maps; all colours would double its size


def figures_dir() -> Path:
    """The folder of figures: PFL_FIGURES_DIR of the environment, else figures/ in the repository."""
    return Path(os.environ.get("PFL_FIGURES_DIR") or ROOT / "figures")


def show(figure: Figure, data: pd.DataFrame | None = None, name: str = "", preset: str = "") -> None:
    """Show a figure in the notebook, with alternative text, and close it. With a ``name``, also write it.

    ``name`` is ``paper/figure``, written to figures/<preset>/<name>.png, .pdf and .csv (its ``data``). Equal data give
    identical files. Give no name where too few runs are stored to show what the figure asks.
    """
    image = png(figure)
    if name:
        if data is None:
            raise ValueError(f"figure {name}: give the data frame that it was drawn from")
        path = figures_dir() / preset / name
        atomic_write(path.with_suffix(".png"), image)
        atomic_write(path.with_suffix(".pdf"), _pdf(figure))
        numbers = data.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        atomic_write(path.with_suffix(".csv"), numbers.encode())
    plt.close(figure)
    display(Image(image, width=round(figure.get_figwidth() * SHOWN), alt=alt_text(figure)))


def png(figure: Figure, dpi: int = DPI) -> bytes:
    """The figure as PNG. Also fixes the layout, which later drawings then do not compute again."""
    figure.set_dpi(dpi)
    canvas, file = FigureCanvasAgg(figure), io.BytesIO()
    canvas.draw()
    figure.set_layout_engine("none")
    image = PIL.Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    if not any(ax.images or ax.get_label() == "<colorbar>" for ax in figure.axes):
        image = image.quantize(COLORS, PIL.Image.Quantize.MEDIANCUT, dither=PIL.Image.Dither.NONE)
    image.save(file, format="png", dpi=(dpi, dpi), optimize=True)
    return file.getvalue()


@styled
def _pdf(figure: Figure) -> bytes:
    pdf = io.BytesIO()
    figure.savefig(pdf, format="pdf", metadata={"Creator": None, "Producer": None, "CreationDate": None})
    return pdf.getvalue()


def caption(records: Sequence[Record]) -> str:
    """The line below a figure: preset, data, clients, network, rounds, epochs, rate, seeds; ranges if runs differ."""
    specs = [record.spec for record in records]
    data = _data(records)
    networks = dict.fromkeys(spec.model["name"].rpartition(":")[2] for spec in specs)  # without the user's module
    epochs = _span(spec.train.epochs for spec in specs)
    devices = [kind for kind in dict.fromkeys(spec.device_kind for spec in specs) if kind != "cpu"]
    num_clients = _span(spec.clients for spec in specs)
    rates = sorted({spec.train.lr for spec in specs})
    return (
        f"preset {specs[0].preset_label}: {data}, {num_clients} clients, {' or '.join(map(plain, networks))}, "
        f"{_lengths(records)} rounds, {epochs} local epoch{'s' * (epochs != '1')}, "
        + (f"learning rate {rates[0]:g}, " if len(rates) == 1 else f"learning rates {rates[0]:g} to {rates[-1]:g}, ")
        + _seeds(specs)
        + (f", on {' + '.join(devices)}" if devices else "")
    )


def _seeds(specs: Sequence[RunSpec]) -> str:
    """'3 seeds (0, 1, 2)'; for each data set, if their seeds differ."""
    seeds_of: dict[str, set[int]] = {}
    for spec in specs:
        seeds_of.setdefault(plain(dataset(spec)), set()).add(spec.seed)
    names_of: dict[str, list[str]] = {}  # data sets with the same seeds
    for name, seeds in seeds_of.items():
        numbers = ", ".join(map(str, sorted(seeds)))
        text = f"{len(seeds)} seeds ({numbers})" if len(seeds) > 1 else f"one seed ({numbers})"
        names_of.setdefault(text, []).append(name)
    if len(names_of) == 1:
        return next(iter(names_of))
    return ", ".join(f"{text} on {' and '.join(names)}" for text, names in names_of.items())


def _data(records: Sequence[Record]) -> str:
    """Data sets with their descriptions: "CIFAR-10 and CIFAR-10-C from CIFAR-10 (JPEG copy)".

    Each description is given once. Where it has the set's name, it stands alone, as for a part of joined data sets.
    """
    described: dict[str, dict[str, None]] = {}  # names of the data sets that share a description
    for record in records:
        text = re.sub(r"(\S+): (?=\1)", "", plain(data_name(record)))
        described.setdefault(text, {})[plain(dataset(record.spec))] = None
    labels = []
    for text, names in described.items():
        label = " and ".join(names)
        if label.split(" (")[0] in text:
            labels.append(text)
        else:
            labels.append(f"{label} from {text}" if text.endswith(")") else f"{label} ({text})")
    return " + ".join(labels)


def _lengths(records: Sequence[Record]) -> str:
    """'40', '20 to 40', or '60 of 200' if runs were stopped early."""
    done = _span(record.rounds for record in records)
    return f"{done} of {_span(record.spec.rounds for record in records)}" if any(r.partial for r in records) else done


def _span(values: Iterable[int]) -> str:
    """'3', or '2 to 4'."""
    distinct = sorted(set(values))
    return " to ".join(map(str, distinct[:1] + distinct[1:][-1:]))


def about(specs: Iterable[RunSpec]) -> pd.DataFrame:
    """A table of the runs, with one column: number of runs, seeds, and all settings in common that are not empty."""
    specs = list(specs)
    plain = [spec.to_json() | {"preset": spec.preset_label} for spec in specs]
    for settings in plain:
        del settings["changed"]
    common = {k: v for k, v in plain[0].items() if all(other[k] == v for other in plain) and v != []}
    train = common.pop("train", {})
    rows = {"runs": len(specs), "seeds": sorted({spec.seed for spec in specs}), **common, **train}
    return pd.DataFrame({"setting": [str(value) for value in rows.values()]}, index=list(rows))


def provenance() -> pd.Series:
    """Versions, commit and machine of this session."""
    return pd.Series(describe(), name="provenance")
