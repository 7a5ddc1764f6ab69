"""Figures of FedPeWS's masks, splits and activations draw what they are given."""

from collections import OrderedDict

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from torch import nn

from pfl_core.layout import Layout
from pfl_core.papers.fedpews import figures
from pfl_core.papers.fedpews.figures.accuracy import ON_FEDPROX
from pfl_core.papers.fedpews.figures.masks import BIAS
from pfl_core.study import plots
from tests.plots import data, drawn, named, texts

NET = Layout.of(nn.Sequential(OrderedDict(fc1=nn.Linear(2, 2), relu1=nn.ReLU(), head=nn.Linear(2, 1))))  # d = 9


def test_every_entry_is_an_edge_with_its_owner():
    """fc1.weight, fc1.bias, head.weight, head.bias: the owners are the entries' numbers."""
    graph = figures.masks.edges(NET, {"a": [str(i) for i in range(9)], "b": [""] * 9})
    assert graph["panel"].tolist() == ["a"] * 9 + ["b"] * 9 and set(graph["owner"][9:]) == {""}
    assert graph.loc[:8, ["layer", "source", "target", "owner"]].to_numpy().tolist() == [
        *([0, 0, 0, "0"], [0, 1, 0, "1"], [0, 0, 1, "2"], [0, 1, 1, "3"], [0, BIAS, 0, "4"], [0, BIAS, 1, "5"]),
        *([1, 0, 0, "6"], [1, 1, 0, "7"], [1, BIAS, 0, "8"]),
    ]


def test_edges_and_neurons_have_the_colours_of_their_owners():
    """Client 0 trains the first neuron of fc1 and what it feeds; nobody the rest. Inputs are at heights +-1/2."""
    mine = ["zero", "zero", "", "", "zero", "", "zero", "", ""]
    fig = drawn(
        figures.masks.networks(figures.masks.edges(NET, {"one": mine, "none": [""] * 9}), {"zero": "r", "one": "b"})
    )
    assert [ax.get_title() for ax in fig.axes] == ["one", "none"]
    assert texts(fig.legends[0].get_texts()) == ["zero", "one", "nobody"]
    nobody, zero = (part for part in fig.axes[0].collections if isinstance(part, LineCollection))
    assert [np.array(line).tolist() for line in zero.get_segments()] == [
        *([[0, 0.5], [1, 0.5]], [[0, -0.5], [1, 0.5]], [[1, 0.5], [2, 0]]),
    ]
    assert tuple(zero.get_color()[0]) == to_rgba("r") and len(nobody.get_segments()) == 3
    inputs, neurons = fig.axes[0].collections[2:]
    assert inputs.get_offsets().tolist() == [[0, 0.5], [0, -0.5]]
    assert neurons.get_offsets().tolist() == [[1, 0.5], [1, -0.5], [2, 0]]
    assert [tuple(color) for color in neurons.get_facecolor()] == [to_rgba(color) for color in "rww"]


def test_the_plane_has_a_colour_for_each_class():
    points = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [4.0, 5.0, 6.0], "class": [0, 1, 0]})
    fig = drawn(figures.masks.plane(points))
    (ax,) = fig.axes
    assert [dots.get_offsets().tolist() for dots in ax.collections] == [[[1, 4], [3, 6]], [[2, 5]]]
    assert [tuple(dots.get_facecolor()[0]) for dots in ax.collections] == [
        to_rgba(color) for color in figures.masks.OWNERS[:2]
    ]
    assert texts(fig.legends[0].get_texts()) == ["class 0", "class 1"]


def test_diversity_push_has_a_line_for_each_lambda():
    rows = [(lam, step, 0.5 + lam * step / 100) for lam in (5.0, 0.5) for step in (0, 1)]
    (ax,) = drawn(figures.masks.diversity_push(pd.DataFrame(rows, columns=["lam", "step", "prob"]))).axes
    assert {name: data(line) for name, line in named(ax).items()} == {
        "λ = 0.5": ([0, 1], [0.5, 0.505]), "λ = 5": ([0, 1], [0.5, 0.55]),
    }  # fmt: skip
    assert len({line.get_color() for line in named(ax).values()}) == 2


def test_the_warm_up_on_fedprox_is_darker():
    runs = pd.DataFrame({"method": ["fedavg", "fedpews", "fedpews"], "base": [None, "fedavg", "fedprox"]})
    table = figures.masks.labels_by_base(runs)
    assert table["label"].tolist() == ["FedAvg", "FedAvg + PeWS", "FedProx + PeWS"]
    assert table["color"].tolist() == [plots.COLORS["fedavg"], plots.COLORS["fedpews"], ON_FEDPROX]


def test_every_split_is_drawn_above_its_curves():
    """Areas as samples, 50 for the most of all splits, 30; classes without samples have no dot."""
    held = [(0.1, 0, 0, 30), (0.1, 1, 0, 0), (0.1, 1, 1, 20), (5.0, 0, 0, 10), (5.0, 1, 1, 10)]
    rows = [(a, label, c, s, t, t + a + s, w) for a in (0.1, 5.0) for label, c, w in (("A", "r", 0), ("B", "b", 2))
            for s in (0, 1) for t in (1, 2, 3)]  # fmt: skip
    fig = drawn(
        figures.masks.splits_and_curves(
            pd.DataFrame(held, columns=["alpha", "client", "class", "samples"]),
            pd.DataFrame(rows, columns=["alpha", "label", "color", "seed", "round", "value", "switch"]),
        )
    )
    above, below = fig.axes[:2], fig.axes[2:]
    assert [ax.get_title() for ax in fig.axes] == ["α = 0.1", "α = 5", "", ""]
    (few, many) = (ax.collections[0] for ax in above)
    assert few.get_offsets().tolist() == [[0, 0], [1, 1]] == many.get_offsets().tolist()
    assert few.get_sizes().tolist() == pytest.approx([50, 100 / 3])
    assert many.get_sizes().tolist() == pytest.approx([50 / 3] * 2)
    for ax, alpha in zip(below, (0.1, 5.0), strict=True):
        assert [(name, line.get_color()) for name, line in named(ax).items()] == [("A", "r"), ("B", "b")]
        assert list(named(ax)["B"].get_ydata()) == pytest.approx([1.5 + alpha, 2.5 + alpha, 3.5 + alpha])
        assert [list(line.get_xdata()) for line in ax.lines[2:]] == [[2, 2]], "one dashed line, at the switch"


def test_gains_have_a_dot_for_each_seed_and_their_mean():
    table = pd.DataFrame({"x": [10, 2, 10, 2], "seed": [0, 0, 1, 1], "gain": [4.0, 1.0, 6.0, -2.0]})
    (ax,) = drawn(figures.masks.gains(table, "clients", log=True)).axes
    *seeds, mean, zero = ax.lines
    assert [data(line) for line in seeds] == [([2, 2], [1, -2]), ([10, 10], [4, 6])]
    assert data(mean) == ([2, 10], [-0.5, 5]) and list(zero.get_ydata()) == [0, 0]
    assert mean.get_color() == plots.COLORS["fedpews"]
    assert (texts(ax.get_xticklabels()), ax.get_xlabel(), ax.get_xscale()) == (["2", "10"], "clients", "log")


def test_activations_have_a_panel_for_each_client_and_layer():
    """Three neurons, of which the last one is group 1; a value is 100 client + 10 neuron + round, twice that in fc2."""
    rows = [
        (k, layer, n, int(n == 2), t, scale * (100 * k + 10 * n + t))
        for layer, scale in (("fc1", 1), ("fc2", 2))
        for k in (0, 1)
        for n in range(3)
        for t in (1, 2)
    ]
    columns = ["client", "layer", "neuron", "group", "round", "value"]
    fig = drawn(figures.masks.activation_maps(pd.DataFrame(rows, columns=columns), switch=1))
    assert [ax.get_title() for ax in fig.axes] == ["fc1\n(black 0, white 122)", "fc2\n(black 0, white 244)", "", ""]
    assert [ax.get_ylabel() for ax in fig.axes] == ["data of client 0\nneurons", "", "data of client 1\nneurons", ""]
    for ax, start, scale in zip(fig.axes, (0, 0, 100, 100), (1, 2, 1, 2), strict=True):
        (image,) = ax.images
        assert image.get_array().tolist() == [[scale * (start + 10 * n + t) for t in (1, 2)] for n in range(3)]
        assert image.get_clim() == (0, scale * 122)
        group, switch = ax.lines
        assert (group.get_ydata()[0], switch.get_xdata()[0]) == (1.5, 1.5)
    assert len(figures.masks.activation_maps(pd.DataFrame(rows, columns=columns)).axes[0].lines) == 1, (
        "no warm-up, no line"
    )


def test_summed_activations_have_a_line_for_each_group():
    rows = [(k, layer, g, t, 100 * k + 10 * g + t) for k in (0, 1) for layer in ("fc1", "fc2") for g in (0, 1)
            for t in (1, 2)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["client", "layer", "group", "round", "value"])
    fig = drawn(figures.masks.group_activations(table, switch=1))
    assert [ax.get_title() for ax in fig.axes] == ["fc1", "fc2", "", ""]
    for ax, start in zip(fig.axes, (0, 0, 100, 100), strict=True):
        assert {name: (line.get_color(), *data(line)) for name, line in named(ax).items()} == {
            f"neurons of client {g}": (figures.masks.OWNERS[g], [1, 2], [start + 10 * g + t for t in (1, 2)])
            for g in (0, 1)
        }
        assert ax.lines[-1].get_xdata()[0] == 1.5
