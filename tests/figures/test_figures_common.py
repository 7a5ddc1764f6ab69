"""Figures that all papers share draw what they are given: dots, lines, bands, titles, colours, captions."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from pfl_core import figures, methods
from pfl_core.figures import common
from tests.figures.conftest import data, drawn, named, texts


def test_every_method_has_a_name_and_in_each_paper_a_colour_of_its_own():
    assert set(figures.NAMES) == set(figures.COLORS) == set(methods())
    for paper in ("fedselect", "star_pfl", "fedpews", "pfedgate"):
        colors = [figures.COLORS[name] for name, entry in methods().items() if paper in entry.papers]
        assert len(set(colors)) == len(colors)


def test_who_got_what_has_a_dot_for_each_class_of_a_client():
    """Area as samples: 160 for the most, 4."""
    fig = drawn(figures.who_got_what(np.array([[4, 0], [2, 1], [0, 3]]), "title"))
    (ax,) = fig.axes
    (dots,) = ax.collections
    assert dots.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1], [2, 1]]
    assert dots.get_sizes().tolist() == [160, 80, 40, 120]
    assert ax.get_title() == "title" and texts(fig.texts) == ["largest dot: 4 samples"]
    assert (texts(ax.get_xticklabels()), texts(ax.get_yticklabels())) == (["0", "1", "2"], ["0", "1"])


def test_curves_are_means_over_seeds_and_bands_their_span():
    """Seeds 2 below and 2 above 10, 20, 30 (FedAvg) and 50, 60, 70 (Local)."""
    rows = [
        (panel, label, color, seed, t, start + 10.0 * t + 4 * seed - 2)
        for panel in ("left", "right")
        for label, color, start in (("FedAvg", "b", 0), ("Local", "g", 40))
        for seed in (0, 1)
        for t in (1, 2, 3)
    ]
    runs = pd.DataFrame(rows, columns=["panel", "label", "color", "seed", "round", "value"])
    fig = drawn(figures.curve_panels(runs, "caption", "accuracy"))
    assert [ax.get_title() for ax in fig.axes] == ["left", "right"] and fig.axes[0].get_ylabel() == "accuracy"
    for ax in fig.axes:
        assert {name: (line.get_color(), *data(line)) for name, line in named(ax).items()} == {
            "FedAvg": ("b", [1, 2, 3], [10, 20, 30]),
            "Local": ("g", [1, 2, 3], [50, 60, 70]),
        }
        spans = [band.get_paths()[0].vertices[:, 1] for band in ax.collections]
        assert [(y.min(), y.max()) for y in spans] == [(8, 32), (48, 72)]
    assert texts(fig.axes[1].get_legend().get_texts()) == ["FedAvg", "Local"]
    (alone,) = figures.curve_panels(runs[runs["panel"] == "left"]).axes
    assert alone.get_title() == ""


def test_means_stand_below_each_other_beside_the_first_ones():
    rows = [("digits", "mean", "FedAvg", "b", 80.0, 2.0), ("digits", "mean", "Local", "g", 70.0, np.nan)]
    rows += [("digits", "worst", "Local", "g", 50.0, 1.0), ("mnist", "mean", "Local", "g", 90.0, 1.0)]
    table = pd.DataFrame(rows, columns=["dataset", "panel", "label", "color", "value", "std"])
    fig = drawn(figures.mean_dots(table, "caption"))
    first, second, third, empty = fig.axes
    assert [ax.get_title() for ax in (first, second, third)] == ["mean", "worst", "mean"] and not empty.axison
    assert [(data(bar.lines[0]), bar.lines[0].get_color()) for bar in first.containers] == [
        (([80], [0]), "b"), (([70], [-1]), "g"),
    ]  # fmt: skip
    assert [bar.lines[2][0].get_segments()[0][:, 0].tolist() for bar in first.containers] == [[78, 82], [70, 70]]
    assert data(third.containers[0].lines[0]) == ([90], [-1])
    assert texts(first.get_yticklabels()) == ["FedAvg", "Local"]
    assert [ax.lines[-1].get_xdata()[0] for ax in (first, second, third)] == [80, 50, 90]


@pytest.mark.parametrize("width", [3.0, 8.0])
def test_a_caption_is_broken_into_lines_that_fit(width):
    said = "preset quick, digits, seeds 0 to 2, " * 8
    fig = common.captioned(plt.figure(figsize=(width, 2)), f"{said}\nsecond")
    *first, second = fig.get_supxlabel().splitlines()
    assert " ".join(first) == said.strip() and second == "second"
    longest = max(map(len, first))
    assert width * common.CHARACTERS_PER_INCH - 12 < longest <= width * common.CHARACTERS_PER_INCH
    assert common.captioned(plt.figure(), "").get_supxlabel() == ""
