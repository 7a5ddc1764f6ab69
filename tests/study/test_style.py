"""Looks of methods (distinct in grey and with a colour vision deficiency), display names, alternative text."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from pfl_core import methods
from pfl_core.papers import PAPERS
from pfl_core.study import style
from pfl_core.study.alt_text import alt_text
from pfl_core.study.methods import COLORS, METHODS, label_looks
from pfl_core.study.names import plain

LOOKS = {name: method.look for name, method in METHODS.items()}
# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB
DEFICIENCIES = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
GREYS = [0.2126, 0.7152, 0.0722]


def linear(color) -> np.ndarray:
    rgb = np.array(to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def test_methods_of_a_paper_differ_in_marker_and_all_methods_in_their_look():
    assert set(LOOKS) == set(methods())
    assert len({look[:2] for look in LOOKS.values()}) == len(LOOKS)
    for paper in PAPERS:
        markers = [LOOKS[name].marker for name, entry in methods().items() if paper in entry.papers]
        assert len(set(markers)) == len(markers), paper


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_colours_of_a_paper_differ_for_a_reader_with_a_colour_vision_deficiency(deficiency):
    for paper in PAPERS:
        names = [name for name, entry in methods().items() if paper in entry.papers]
        seen = {name: np.array(DEFICIENCIES[deficiency]) @ linear(COLORS[name]) for name in names}
        distances = {(a, b): np.abs(seen[a] - seen[b]).max() for a in names for b in names if a < b}
        assert min(distances.values()) > 0.02, min(distances, key=distances.get)


def test_colours_are_visible_on_white():
    assert max(np.dot(GREYS, linear(color)) for color in COLORS.values()) < 0.5


def test_a_label_has_the_look_of_its_method():
    labels = ["FedAvg", "FedAvg + FT", "FedAvg + PeWS", "FedSelect, α = 0.3", "FedSelect, α = 0.5", "a rule", "another"]
    looks = label_looks(labels, {"another": "red"})
    of = [LOOKS[name] for name in ("fedavg", "fedavg_ft", "fedpews", "fedselect", "fedselect")]
    assert [looks[label][:2] for label in labels[:5]] == [look[:2] for look in of]
    assert looks[labels[3]].dash == LOOKS["fedselect"].dash != looks[labels[4]].dash
    assert looks["another"].color == "red" and len(set(looks.values())) == 7


def test_code_names_become_display_names():
    text = "cifar10_c and cifar10, resnet18; lr_server=0.5, mnist_like, my.mnist"
    assert plain(text) == "CIFAR10-C and CIFAR-10, ResNet18; η_g = 0.5, mnist_like, my.mnist"
    assert plain(plain(text)) == plain(text)


def figure() -> plt.Figure:
    fig, axes = plt.subplots(1, 2, figsize=(style.DOUBLE, 2), layout="constrained")
    axes[0].plot([1, 2], label="FedAvg")
    axes[0].set(title="CIFAR-10", xlabel="round", ylabel="accuracy")
    axes[1].set_yticks([0, 1], ["Local", "Ditto"])
    axes[0].legend()
    fig.supxlabel("two\nlines")
    return fig


def test_alternative_text_has_titles_axes_rows_legend_and_caption():
    assert alt_text(figure()) == (
        "Figure. 2 panels: CIFAR-10. Horizontal: round. Vertical: accuracy. Rows: Local; Ditto. Legend: FedAvg. "
        "Caption: two lines."
    )


def test_labels_keep_the_look_that_another_figure_gave_them():
    first = label_looks(["a", "b", "c"])
    assert label_looks(["c", "b"], first) == {"c": first["c"], "b": first["b"]}
    assert label_looks(["d"], {"c": first["a"]})["d"].color != first["a"].color
