"""Output of notebooks: figure files, captions, tables of settings, claims."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Image, display
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave

from pfl_core.files import atomic_write
from pfl_core.runs import Record, RunSpec
from pfl_core.runs.provenance import ROOT, describe
from pfl_core.study.criteria import SHOWN_ONLY
from pfl_core.study.frames import data_name, dataset
from pfl_core.study.statistics import data_label

DPI = 120  # of image files
SHOWN = 80  # display size in a notebook, pixels per inch


def figures_dir() -> Path:
    """The folder of figures: PFL_FIGURES_DIR of the environment, else figures/ in the repository."""
    return Path(os.environ.get("PFL_FIGURES_DIR") or ROOT / "figures")


def show(figure: Figure, data: pd.DataFrame | None = None, name: str = "", preset: str = "") -> None:
    """Show a figure in the notebook and close it. With a ``name``, also write the figure and its ``data``.

    ``name`` is ``paper/figure``, written to figures/<preset>/<name>.png and .csv. Equal data give identical files.
    """
    png = _png(figure)
    plt.close(figure)
    if name:
        if data is None:
            raise ValueError(f"figure {name}: give the data frame that it was drawn from")
        path = figures_dir() / preset / name
        atomic_write(path.with_suffix(".png"), png)
        numbers = data.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        atomic_write(path.with_suffix(".csv"), numbers.encode())
    display(Image(png, width=round(figure.get_figwidth() * SHOWN)))


def _png(figure: Figure) -> bytes:
    """The same image as ``savefig``, but a fifth faster: ``savefig`` draws the figure twice."""
    figure.set_dpi(DPI)
    canvas, png = FigureCanvasAgg(figure), io.BytesIO()
    canvas.draw()
    metadata: dict[str, Any] = {"Software": None}  # leaves out Matplotlib's version
    imsave(png, canvas.buffer_rgba(), format="png", dpi=DPI, metadata=metadata)
    return png.getvalue()


def caption(records: Sequence[Record]) -> str:
    """The line below a figure: preset, data, clients, network, rounds, epochs, seeds. Ranges if the runs differ."""
    specs = [record.spec for record in records]
    seeds = sorted({spec.seed for spec in specs})
    data = " + ".join(dict.fromkeys(data_label(dataset(r.spec), data_name(r)) for r in records))
    networks = dict.fromkeys(spec.model["name"].rpartition(":")[2] for spec in specs)  # without the user's module
    epochs = _span(spec.train.epochs for spec in specs)
    devices = [kind for kind in dict.fromkeys(spec.device_kind for spec in specs) if kind != "cpu"]
    num_clients = _span(spec.clients for spec in specs)
    return (
        f"preset {specs[0].preset_label}: {data}, {num_clients} clients, {' + '.join(networks)}, "
        f"{_lengths(records)} rounds, {epochs} local epoch{'s' * (epochs != '1')}, "
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        + (f", on {' + '.join(devices)}" if devices else "")
    )


def _lengths(records: Sequence[Record]) -> str:
    """'40', '20 to 40', or '60 of 200' if runs were stopped early."""
    done = _span(record.rounds for record in records)
    return f"{done} of {_span(record.spec.rounds for record in records)}" if any(r.partial for r in records) else done


def _span(values: Iterable[int]) -> str:
    """'3', or '2 to 4'."""
    distinct = sorted(set(values))
    return " to ".join(map(str, distinct[:1] + distinct[1:][-1:]))


def about(specs: Iterable[RunSpec]) -> pd.DataFrame:
    """A table of the runs, with one column: number of runs, seeds, and all settings that the runs have in common."""
    specs = list(specs)
    plain = [spec.to_json() | {"preset": spec.preset_label} for spec in specs]
    for settings in plain:
        del settings["changed"]
    common = {k: v for k, v in plain[0].items() if all(other[k] == v for other in plain)}
    train = common.pop("train", {})
    rows = {"runs": len(specs), "seeds": sorted({spec.seed for spec in specs}), **common, **train}
    return pd.DataFrame({"setting": [str(value) for value in rows.values()]}, index=list(rows))


def provenance() -> pd.Series:
    """Versions, commit and machine of this session."""
    return pd.Series(describe(), name="provenance")


def show_claims(claims: pd.DataFrame) -> None:
    """Print each claim with the verdict from the paper's tables and the verdict from the runs."""
    for row in claims.reset_index().itertuples(index=False):
        number, text, source, supported, published, ours, numbers, runs = row
        print(f"{number}. {text} [{source}]")
        print(f"   in the paper's own tables: {supported} ({published})")
        print(f"   here: {ours.upper()} ({numbers})")
        if ours != SHOWN_ONLY and runs:
            print(f"   runs: {', '.join(key[:8] for key in runs)}")
        print()
