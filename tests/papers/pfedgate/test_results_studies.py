"""Frames of pFedGate's notebooks 03 to 06, on hand-stored records."""

from __future__ import annotations

import numpy as np
import pytest

from pfl_core.papers.pfedgate.results import studies as parts
from pfl_core.papers.pfedgate.settings import SETTINGS
from pfl_core.runs import Record
from pfl_core.study import frames


def record(method="pfedgate", dataset="cifar10", correct=((1, 2), (3, 4)), seed=0, arrays=None, **options):
    """Two clients and as many rounds as there are rows of correct predictions out of 10."""
    spec = SETTINGS.spec(method, preset="quick", dataset=dataset, seed=seed, overrides={"clients": 5}, **options)
    rounds = list(range(1, len(correct) + 1))
    counts = [[10] * len(row) for row in correct]
    series = {"correct": (rounds, [list(row) for row in correct]), "count": (rounds, counts)}
    train = [[1, 0, 1], [0, 1, 1], [0, 0, 1], [1, 0, 0], [1, 1, 1]]
    return Record("key", spec, series, arrays or {}, {"train": train}, num_params=100)


def test_the_gate_of_a_run():
    assert parts.part(record()) == "full gate"
    assert parts.part(record(sigmoid=False)) == "no sigmoid"
    assert parts.part(record(gate_granularity="client")) == "a gate per client"
    assert parts.part(record(sigmoid=False, without_sigmoid="tangent")) == parts.MATCHED
    assert parts.part(record(gate_weight_decay=0.0)) == parts.UNDECAYED


def test_an_ablation_is_paired_with_the_full_gate():
    full = record(correct=((2, 2), (9, 9), (10, 10)))  # 80 % of its best in round 2
    less = record(correct=((5, 5), (6, 6), (5, 7)), post_norm=False)  # in round 1
    frame = parts.ablation([full, less])
    assert frame["setting"].tolist() == ["fashion_small", "fashion_small"]
    assert frame[["lost", "slower"]].values.tolist() == [[0.0, 1.0], [40.0, 0.5]]


def test_novel_clients_are_in_no_round():
    stored = record(dataset="cifar10, novel", correct=((0, 0, 0, 0, 0), (1, 2, 3, 4, 5)))
    never = set(range(5)) - set(stored.spec.schedule.clients(5, 0, 0).tolist())
    assert len(never) == 1
    (k,) = never
    known, new = 10 * (15 - (k + 1)) / 4, 10.0 * (k + 1)
    assert parts.novel(stored) == {"acc_participating": known, "acc_novel": new, "novel_gap": known - new}
    assert parts.novel(record()) == {}


def test_drops_and_gaps():
    few = record(dataset="cifar10, sampled", correct=((5, 5),))
    lost = parts.drops(parts.participation([record(correct=((9, 7),)), few]))
    assert lost[["mean", "worst tenth"]].values.tolist() == [[30.0, 20.0]]
    row = (5, 5, 5, 5, 5)
    known = [record(m, "cifar10, novel", (row,)) for m in ("fedavg", "fedem")]
    tuned = record("fedavg_ft", "cifar10, novel", ((9, 9, 9, 9, 9),))
    frame = parts.gaps(parts.participation([*known, tuned])).set_index("label")["gap"]
    assert frame.to_dict() == {"FedAvg": 0.0, "FedAvg, novel clients fine-tune": -40.0, "FedEM": 0.0}


def test_over_seeds():
    frame = parts.ablation([record(), record(seed=1, correct=((2, 2), (5, 6)))])
    row = parts.over_seeds(frame, {"accuracy": "a panel"}, "ours").iloc[0]
    assert (row["value"], row["std"]) == (45.0, pytest.approx(20 / 2**0.5)) and row["panel"] == "a panel"


def test_gates_and_labels():
    """Five clients in a line, labels as in ``record``: rank correlation of distance and share of common labels.

    Pairs 01, 02, 03, 04, 12, 13, 14, 23, 24, 34 have in common 1/3, 1/2, 1/2, 2/3, 1/2, 0, 2/3, 0, 1/3, 1/3 at the
    distances 1, 2, 3, 4, 1, 2, 3, 1, 2, 1. Ranks less their mean 5.5: common -4 (0), -1.5 (1/3), 1.5 (1/2), 4 (2/3),
    squares 77.5; distance -3, 0.5, 3, 4.5, squares 75; products 49.
    """
    place = np.arange(5.0)
    distance = np.abs(place[:, None] - place)
    stored = record(dataset="pathological", arrays={"gate_distances": distance}, keep_ratio=0.3)
    pairs = parts.pairs(stored)
    assert len(pairs) == 10 and pairs.loc[0, ["common", "distance"]].tolist() == [pytest.approx(1 / 3), 1.0]
    assert parts.gate_rank(stored) == {"gate_rank": pytest.approx(49 / (77.5 * 75) ** 0.5)}
    assert parts.gate_rank(record(arrays={"gate_distances": distance})) == {}  # only in the setting of Figure 4


def test_labels_contain_method_and_budget():
    assert parts.label(record(keep_ratio=0.3)) == "pFedGate, s = 0.3" and parts.label(record("fedem")) == "FedEM"
    assert frames.setting_label(record(dataset="cifar10, sampled")) == "fashion_small, sampled"
