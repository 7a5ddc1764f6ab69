"""The diagram of a gate."""

from pfl_core.papers.pfedgate.scheme import gate_scheme
from tests.plots import drawn, texts


def test_the_diagram_names_the_steps_of_a_gate():
    left, right = drawn(gate_scheme()).axes
    assert (len(left.patches), len(right.patches)) == (7, 8)
    said = " ".join(texts([*left.texts, *right.texts]))
    assert all(word in said for word in ("knapsack", "switchable norm", "sigmoid", "upload", "download"))
