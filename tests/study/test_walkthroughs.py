"""Pictures of the walkthroughs draw what they are given."""

import numpy as np

from tests.plots import drawn, texts


def test_a_frame_marks_what_is_personal():
    values, personal = np.array([[1.0, -2.0], [0.0, 4.0]]), np.array([[True, False], [True, True]])
    fig = drawn(figures.partitions({"before": (values, ~personal), "after": (values, personal)}, ["a", "b"]))
    before, after, _ = fig.axes
    assert [ax.get_title(loc="left") for ax in (before, after)] == ["before", "after"]
    assert [[(round(p.get_x()), round(p.get_y())) for p in ax.patches] for ax in (before, after)] == [
        [(1, 0)], [(0, 0), (0, 1), (1, 1)],
    ]  # fmt: skip
    assert texts(after.get_xticklabels()) == ["a", "b"]
    (image,) = after.images
    assert image.get_array().tolist() == values.tolist() and image.get_clim() == (-4, 4)


def test_the_scheme_names_what_a_gate_does():
    left, right = drawn(figures.scheme.gate_scheme()).axes
    assert (len(left.patches), len(right.patches)) == (7, 8)
    said = " ".join(texts([*left.texts, *right.texts]))
    assert all(word in said for word in ("knapsack", "switchable norm", "sigmoid", "upload", "download"))
