"""Metrics of Figure 2: contrasts computed by hand, overlaps compared with chance."""

import math
from dataclasses import replace

import numpy as np
import pytest

from pfl_core.papers.star_pfl import likeness
from pfl_core.papers.star_pfl.experiments import LIKENESS
from pfl_core.papers.star_pfl.null_model import stable_chance
from pfl_core.papers.star_pfl.paper import PAPER
from pfl_core.papers.star_pfl.settings import SETTINGS
from pfl_core.runs import Record
from pfl_core.study.network import network

D = 44_555


def similarity_record():
    """Two pairs of clients with a class each; three entries of the first tensor are stable, the same in each pair."""
    spec = SETTINGS.spec(LIKENESS, preset="paper", setting="labels")
    within = np.kron(np.eye(2), np.ones((2, 2)))
    ranks, both = 0.2 + 0.8 * within, (3 * within).astype(int)
    names = [f.name for f in network(Record("key", spec, {}, clients={"train": [[0] * 11]}, num_params=D))[0].params]
    empty, size = np.zeros((4, 4), dtype=int).tolist(), 10
    arrays = {"ranks": [ranks.tolist()] * 2, "both": [empty, both.tolist()], "sampled": [0, 149, 150, 44_000]}
    for name in names:
        mine = both.tolist() if name == "conv1.weight" else empty
        arrays |= {f"ranks/{name}": ranks.tolist(), f"overlap/{name}": mine, f"moving/{name}": empty,
                   f"size/{name}": size}  # fmt: skip
    clients = {"train": [[5] + [0] * 10] * 2 + [[0, 5] + [0] * 9] * 2}
    return Record("key", spec, {}, arrays=arrays, clients=clients, num_params=D)


def test_likeness_by_round_and_layer():
    metrics = likeness.likeness(similarity_record())
    assert list(metrics.index) == [1, 2] and metrics["rank_contrast"].tolist() == pytest.approx([0.8, 0.8])
    assert math.isnan(metrics["stable_contrast"][1]) and metrics["stable_contrast"][2] == pytest.approx(1, abs=1e-3)
    assert metrics["rank_mantel"][2] == pytest.approx(1) and metrics["stable_share"][2] == pytest.approx(3 / D)
    layers = likeness.likeness_by_layer(similarity_record()).set_index("tensor")
    assert list(layers.index) == ["conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight", "head.weight"]
    assert layers["stable"].tolist() == [0.3, 0, 0, 0, 0] and (layers["moving"] == 0).all()
    assert layers["stable_contrast"]["conv1.weight"] > 1 and layers["stable_contrast"].isna().sum() == 4


def test_stable_shares_of_noise():
    """Ten epochs a round fill a window of five in the first round; with two it takes three rounds."""
    stored = similarity_record()
    assert likeness.likeness(stored)["chance_share"].tolist() == pytest.approx([0.127, 0.127], abs=1e-3)
    assert likeness.likeness_by_layer(stored)["chance"].tolist() == pytest.approx([0.127] * 5, abs=1e-3)
    short = replace(stored, spec=replace(stored.spec, train=replace(stored.spec.train, epochs=2)))
    assert [likeness.by_chance(short, t) for t in (1, 2, 3)] == [stable_chance(n) for n in (2, 4, 5)]


def test_tensors_of_sampled_entries():
    assert likeness.sampled_tensors(similarity_record()) == [
        "conv1.weight",
        "conv1.weight",
        "conv1.bias",
        "head.weight",
    ]


def test_extra_metrics_are_in_the_frame():
    scored = {name: ([1, 2], [[5.0] * 4] * 2) for name in ("correct", "count", "loss")}
    metrics = likeness.extra_metrics(similarity_record())
    frame = PAPER.frame([replace(similarity_record(), series=scored)])
    assert metrics["stable_contrast"] == likeness.likeness(similarity_record())["stable_contrast"][2]
    assert frame["stable_contrast"].tolist() == [metrics["stable_contrast"]]
    assert likeness.extra_metrics(replace(similarity_record(), arrays={})) == {}
