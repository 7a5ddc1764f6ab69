"""The graph of a network: every parameter is an edge in the colour of its client."""

from collections import OrderedDict

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from torch import nn

from pfl_core.layout import Layout
from pfl_core.papers.fedpews.networks import BIAS, edges, networks
from tests.plots import texts

NET = Layout.of(nn.Sequential(OrderedDict(fc1=nn.Linear(2, 2), relu1=nn.ReLU(), head=nn.Linear(2, 1))))  # d = 9


def test_every_entry_is_an_edge_with_its_owner():
    """fc1.weight, fc1.bias, head.weight, head.bias: the owners are the entries' numbers."""
    graph = edges(NET, {"a": [str(i) for i in range(9)], "b": [""] * 9})
    assert graph["panel"].tolist() == ["a"] * 9 + ["b"] * 9 and set(graph["owner"][9:]) == {""}
    assert graph.loc[:8, ["layer", "source", "target", "owner"]].to_numpy().tolist() == [
        *([0, 0, 0, "0"], [0, 1, 0, "1"], [0, 0, 1, "2"], [0, 1, 1, "3"], [0, BIAS, 0, "4"], [0, BIAS, 1, "5"]),
        *([1, 0, 0, "6"], [1, 1, 0, "7"], [1, BIAS, 0, "8"]),
    ]


def test_edges_and_neurons_have_the_colours_of_their_owners():
    """Client 0 trains the first neuron of fc1 and what it feeds; nobody the rest. Inputs are at heights +-1/2."""
    mine = ["zero", "zero", "", "", "zero", "", "zero", "", ""]
    fig = networks(edges(NET, {"one": mine, "none": [""] * 9}), {"zero": "r", "one": "b"})
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
