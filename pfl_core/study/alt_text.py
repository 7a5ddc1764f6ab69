"""Alternative text of figures, for readers who cannot see them."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def alt_text(fig: Figure) -> str:
    """What a figure shows: its panels' titles, axes, legend entries, and its caption."""
    panels = [ax for ax in fig.axes if ax.axison]
    parts = [
        (f"{len(panels)} panels" if len(panels) > 1 else "One panel", [ax.get_title() for ax in panels]),
        ("Horizontal", [ax.get_xlabel() for ax in panels]),
        ("Vertical", [ax.get_ylabel() for ax in panels]),
        ("Rows", _rows(panels)),
        ("Legend", _legend(fig)),
        ("Caption", [fig.get_supxlabel()]),
    ]
    texts = {name: "; ".join(dict.fromkeys(" ".join(text.split()) for text in found if text)) for name, found in parts}
    return "Figure. " + " ".join(f"{name}: {text}." for name, text in texts.items() if text)


def _rows(panels: Iterable[Axes]) -> list[str]:
    """Tick labels of vertical axes that are words, such as methods."""
    labels = [label.get_text() for ax in panels for label in ax.get_yticklabels()]
    return [text for text in labels if text[:1].isalpha()]


def _legend(fig: Figure) -> list[str]:
    legends = [*fig.legends, *(ax.get_legend() for ax in fig.axes)]
    return [text.get_text() for legend in legends if legend is not None for text in legend.get_texts()]
