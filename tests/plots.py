"""What the tests of figures read of them; ``drawn`` draws one, so that what cannot be placed fails in the test."""

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text


def drawn(fig: Figure) -> Figure:
    assert isinstance(fig, Figure)
    fig.canvas.draw()
    return fig


def named(ax: Axes) -> dict[str, Line2D]:
    """The lines that a legend would name."""
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def data(line: Line2D) -> tuple[list, list]:
    return list(line.get_xdata()), list(line.get_ydata())


def texts(found: Iterable[Text]) -> list[str]:
    """Of tick labels, or of a legend's entries."""
    return [text.get_text() for text in found]
