"""What a notebook prints about itself, and where its figures go."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Image, display
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave

from pfl_core.runs import Record, RunSpec
from pfl_core.runs.provenance import ROOT, describe
from pfl_core.runs.store import atomic_write
from pfl_core.study.criteria import SHOWN_ONLY
from pfl_core.study.frames import data_name, dataset
from pfl_core.study.statistics import data_label

DPI = 120  # of the files
SHOWN = 80  # pixels an inch in a notebook


def figures_dir() -> Path:
    """Where figures go: the environment's PFL_FIGURES_DIR, else the repository's figures/."""
    return Path(os.environ.get("PFL_FIGURES_DIR") or ROOT / "figures")


def show(figure: Figure, data: pd.DataFrame | None = None, name: str = "", preset: str = "") -> None:
    """Show a figure; with a ``name``, also write it and, beside it, the numbers that it was drawn from.

    ``name`` is ``paper/figure``: figures/<preset>/<name>.png and .csv. The figure is drawn once, for both, and closed.
    The same numbers give the same bytes.
    """
    png = _png(figure)
    plt.close(figure)
    if name:
        path = figures_dir() / preset / name
        atomic_write(path.with_suffix(".png"), png)
        numbers = data.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        atomic_write(path.with_suffix(".csv"), numbers.encode())
    display(Image(png, width=round(figure.get_figwidth() * SHOWN)))


def _png(figure: Figure) -> bytes:
    """What ``savefig`` writes, a fifth faster: that one draws twice, at first for sizes that are not asked for."""
    figure.set_dpi(DPI)
    canvas, png = FigureCanvasAgg(figure), io.BytesIO()
    canvas.draw()
    imsave(png, canvas.buffer_rgba(), format="png", dpi=DPI, metadata={"Software": None})
    return png.getvalue()


def caption(records: Sequence[Record]) -> str:
    """One line below a figure: preset, data, network, rounds, seeds; "2 to 4 clients" where runs differ."""
    specs = [record.spec for record in records]
    seeds = sorted({spec.seed for spec in specs})
    data = " + ".join(dict.fromkeys(data_label(dataset(r.spec), data_name(r)) for r in records))
    networks = dict.fromkeys(spec.model["name"].rpartition(":")[2] for spec in specs)  # no outside module's name
    epochs = _span(spec.train.epochs for spec in specs)
    devices = [kind for kind in dict.fromkeys(spec.device_kind for spec in specs) if kind != "cpu"]
    return (
        f"preset {specs[0].preset_label}: {data}, {_span(spec.clients for spec in specs)} clients, {' + '.join(networks)}, "
        f"{_lengths(records)} rounds, {epochs} local epoch{'s' * (epochs != '1')}, "
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        + (f", on {' + '.join(devices)}" if devices else "")
    )


def _lengths(records: Sequence[Record]) -> str:
    """'40', '20 to 40', or '60 of 200' where runs were stopped early."""
    done = _span(record.rounds for record in records)
    return f"{done} of {_span(record.spec.rounds for record in records)}" if any(r.partial for r in records) else done


def _span(values: Iterable[int]) -> str:
    """'3', or '2 to 4'."""
    found = sorted(set(values))
    return " to ".join(map(str, found[:1] + found[1:][-1:]))


def about(specs: Iterable[RunSpec]) -> pd.DataFrame:
    """What is going to be run, one column: every setting that the runs have in common, and how many runs."""
    specs = list(specs)
    plain = [spec.to_json() | {"preset": spec.preset_label} for spec in specs]
    for one in plain:
        del one["changed"]
    common = {k: v for k, v in plain[0].items() if all(other[k] == v for other in plain)}
    train = common.pop("train", {})
    rows = {"runs": len(specs), "seeds": sorted({spec.seed for spec in specs}), **common, **train}
    return pd.DataFrame({"setting": [str(value) for value in rows.values()]}, index=list(rows))


def provenance() -> pd.Series:
    """Versions, commit and machine of this session."""
    return pd.Series(describe(), name="provenance")


def show_claims(claims: pd.DataFrame) -> None:
    """Print a table of claims, one block each: the claim, what the paper's tables say, and what these runs say."""
    for row in claims.reset_index().itertuples(index=False):
        number, text, source, supported, published, ours, numbers, runs = row
        print(f"{number}. {text} [{source}]")
        print(f"   in the paper's own tables: {supported} ({published})")
        print(f"   here: {ours.upper()} ({numbers})")
        if ours != SHOWN_ONLY and runs:
            print(f"   runs: {', '.join(key[:8] for key in runs)}")
        print()
