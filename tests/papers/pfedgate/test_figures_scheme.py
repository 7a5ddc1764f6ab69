"""The picture of what a gate does."""

from pfl_core.papers.pfedgate import figures
from tests.plots import drawn, texts


def test_the_scheme_names_what_a_gate_does():
    left, right = drawn(figures.scheme.gate_scheme()).axes
    assert (len(left.patches), len(right.patches)) == (7, 8)
    said = " ".join(texts([*left.texts, *right.texts]))
    assert all(word in said for word in ("knapsack", "switchable norm", "sigmoid", "upload", "download"))
