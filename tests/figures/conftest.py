"""Every test of a figure leaves none open; ``drawn`` draws one, so that what cannot be placed fails in the test."""

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def drawn(fig: Figure) -> Figure:
    assert isinstance(fig, Figure)
    fig.canvas.draw()
    return fig
