"""Gates and labels (Figure 4), and novel clients (Table 8), on hand-stored records."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pfl_core.papers.pfedgate.gate_tree import gate_rank
from pfl_core.papers.pfedgate.participation import novel
from pfl_core.papers.pfedgate.settings import SETTINGS
from pfl_core.runs import Record
from pfl_core.study import similarity as overlap
from pfl_core.study.published import FOLDER


def record(dataset="cifar10", correct=((1, 2), (3, 4)), arrays=None, **options):
    """Five clients, and as many rounds as there are rows of correct predictions out of 10."""
    spec = SETTINGS.spec("pfedgate", preset="quick", setting=dataset, seed=0, overrides={"clients": 5}, **options)
    rounds = list(range(1, len(correct) + 1))
    counts = [[10] * len(row) for row in correct]
    series = {"correct": (rounds, [list(row) for row in correct]), "count": (rounds, counts)}
    train = [[1, 0, 1], [0, 1, 1], [0, 0, 1], [1, 0, 0], [1, 1, 1]]
    return Record("key", spec, series, arrays or {}, {"train": train}, num_params=100)


def test_novel_clients_are_in_no_round():
    stored = record(dataset="cifar10, novel", correct=((0, 0, 0, 0, 0), (1, 2, 3, 4, 5)))
    never = set(range(5)) - set(stored.spec.schedule.clients(5, 0, 0).tolist())
    assert len(never) == 1
    (k,) = never
    known, new = 10 * (15 - (k + 1)) / 4, 10.0 * (k + 1)
    assert novel(stored) == {"acc_participating": known, "acc_novel": new, "novel_gap": known - new}
    assert novel(record()) == {}


def test_gates_and_labels():
    """Five clients in a line, labels as in ``record``: rank correlation of distance and share of common labels.

    Pairs 01, 02, 03, 04, 12, 13, 14, 23, 24, 34 have in common 1/3, 1/2, 1/2, 2/3, 1/2, 0, 2/3, 0, 1/3, 1/3 at the
    distances 1, 2, 3, 4, 1, 2, 3, 1, 2, 1. Ranks less their mean 5.5: common -4 (0), -1.5 (1/3), 1.5 (1/2), 4 (2/3),
    squares 77.5; distance -3, 0.5, 3, 4.5, squares 75; products 49.
    """
    place = np.arange(5.0)
    distance = np.abs(place[:, None] - place)
    stored = record(dataset="pathological", arrays={"gate_distances": distance}, keep_ratio=0.3)
    assert gate_rank(stored) == {"gate_rank": pytest.approx(49 / (77.5 * 75) ** 0.5)}
    assert gate_rank(record(arrays={"gate_distances": distance})) == {}  # only in the setting of Figure 4


def test_neighbouring_leaves_of_the_paper():
    leaves = pd.read_csv(FOLDER / "pfedgate_figure4.csv", dtype={"labels": str})["labels"].str.get_dummies(" ")
    assert leaves.shape == (10, 10) and leaves.to_numpy().sum() == 26
    neighbours, pairs, _ = overlap.neighbours(overlap.common_share(leaves.to_numpy(bool)))
    assert [round(neighbours, 3), round(pairs, 3)] == [0.296, 0.12]
