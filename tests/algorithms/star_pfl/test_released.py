"""The reading ``authors_code`` against a literal simulator of the released functions, on made-up updates.

The simulator works tensor by tensor and entry by entry. It stores what the released code stores: M, M', F, L and the
records of each entry. No network is trained. Updates are random, some with drift, so that entries freeze, are probed
and move again.
"""

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from pfl_core.algorithms.star_pfl.masks import Entries, measure
from pfl_core.algorithms.star_pfl.method import StarPFL
from pfl_core.seeding import generator
from tests.helpers import federation, mlp, seeded

ROUNDS = 40


def code(threshold, **changes):
    return StarPFL.reading("authors_code", threshold_global=threshold, threshold_local=threshold, **changes)


def wide():
    """6 features -> 100 neurons -> 3 classes: the first tensor is large enough for a quantile of 0.7 %."""
    return seeded(OrderedDict(fc1=nn.Linear(6, 100), relu1=nn.ReLU(), head=nn.Linear(100, 3)), 0)


class Released:
    """A server or a client; ``tensors`` are (size, whether the name contains "weight")."""

    def __init__(self, tensors, length, local, threshold):
        self.tensors, self.length, self.local, self.threshold = tensors, length, local, threshold
        self.M, self.probe, self.F, self.L = ([[x] * n for n, _ in tensors] for x in (1, 0, 1, 0))
        self.clear()

    def clear(self):
        self.R = [[[] for _ in range(n)] for n, _ in self.tensors]

    def mask(self, i, measured, percentile=None):
        """Which entries of tensor i are active. At least ``percentile`` percent of the ``measured`` scores are not."""
        if sum(map(sum, self.R[i])) == 0:
            return [1] * len(self.M[i])
        path = [sum(map(abs, r)) for r in self.R[i]]
        score = [abs(sum(r)) / p if p else 0.0 for r, p in zip(self.R[i], path, strict=True)]
        eligible, threshold = [s for s, on in zip(score, measured, strict=True) if on], self.threshold
        if percentile is not None and eligible:
            threshold = max(threshold, np.percentile(eligible, percentile))
        return [int(s >= threshold) for s in score]

    def measure(self):
        for i in range(len(self.tensors)):
            measured = [m == 1 and p == 0 for m, p in zip(self.M[i], self.probe[i], strict=True)]
            frozen = self.M[i].count(0) / sum(n for n, _ in self.tensors)
            if not self.local or frozen < 0.7:
                fresh = self.mask(i, measured, 0.7 - frozen if self.local else None)
                self.M[i] = [f if on else m for m, f, on in zip(self.M[i], fresh, measured, strict=True)]

    def trained(self, i, j):
        return self.M[i][j] == 1 or (self.local and not self.tensors[i][1])

    def record(self, updates):
        for i, tensor in enumerate(updates):
            for j, u in enumerate(tensor):
                if self.trained(i, j) and u != 0:
                    self.R[i][j] = [*self.R[i][j], u][-self.length :]

    def check(self):
        for i, (n, _) in enumerate(self.tensors):
            fresh = self.mask(i, [p == 1 for p in self.probe[i]])
            for j in range(n):
                self.L[i][j] += self.M[i][j] == 0
                if self.probe[i][j]:
                    self.F[i][j] = int(self.F[i][j] / 2) if fresh[j] else self.F[i][j] + 1
                self.probe[i][j] = int(max(self.F[i][j], 1) <= self.L[i][j])  # the clamp is not stored
                if self.probe[i][j]:
                    self.L[i][j], self.M[i][j] = 0, 1

    def cells(self):
        return torch.tensor([sum(x, []) for x in (self.M, self.probe, self.F, self.L)])


def drawn(fed, t, records):
    """[records, d] updates of round t: a tenth of the entries drift, a few never move, the rest are noise."""
    x = torch.randn(records, fed.num_params, generator=generator(1, "updates", t), dtype=torch.float64)
    x[:, 5::10] += 1.0
    x[:, 1::200] = 0.0
    x[:, -2:] = 0.0
    return x


def mismatches(algorithm, local, model, rounds=ROUNDS):
    """[rounds] number of values of M, M', F and L that differ from the released code's, and the simulator."""
    fed = federation(model, dtype=torch.float64)
    tensors = [(f.stop - f.start, "weight" in f.name) for f in fed.layout.params]
    length = algorithm.history_len_local if local else algorithm.history_len_global
    other = Released(tensors, length, local, algorithm.threshold_local)
    entries = Entries.start(fed.theta0[: fed.num_params])
    weights, rule = algorithm.masked_in_training(fed), algorithm.rules(fed)[local]
    window, wrong = algorithm.empty_window(entries.score, length), []
    for t in range(rounds):
        updates = drawn(fed, t, 6 if local else 1)
        other.measure()
        active = measure(entries, rule)
        if local:
            other.clear()
            window = algorithm.round_window(entries, None)
        trained = active | ~weights if local else active
        for update in updates:
            other.record([part.tolist() for part in update.split([n for n, _ in tensors])])
            algorithm.record_(window, update, active if algorithm.record_scope == "active" else trained)
        other.check()
        if local:
            entries = algorithm.checked(fed, entries, window, active, t, 0)
        else:
            state = algorithm.init(fed, fed.theta0)
            state = replace(state, server=entries, window=window)
            entries = served(algorithm, fed, state, active)
        mine = torch.stack([x.long() for x in (entries.active, entries.probe, entries.interval, entries.frozen)])
        wrong.append(int((mine != other.cells()).sum()))
    return wrong, other


def served(algorithm, fed, state, active):
    """The server's entries after Check; the window already has the record of the round."""
    zeros = torch.zeros(fed.num_params, dtype=torch.float64)  # zeros are skipped, so nothing more is recorded
    return algorithm.serve(fed, state, active, zeros, fed.theta0[fed.num_params :], algorithm.rules(fed)[0], 0).server


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("local", [False, True], ids=["server", "client"])
def test_the_reading_is_the_released_code_cell_by_cell(local, threshold):
    wrong, other = mismatches(code(threshold), local, mlp())
    assert sum(wrong) == 0
    if threshold == 0.3:
        waits = other.cells()[2]
        assert (waits == 0).any() and (waits > 2).any(), "F was stored as 0 somewhere, and grew elsewhere"


def test_the_quantile_equals_that_of_the_released_code():
    assert sum(mismatches(code(0.0), True, wide(), 12)[0]) == 0


def test_a_tensor_with_70_percent_of_the_model_frozen_freezes_no_more():
    """A model with one weight tensor and its bias; the threshold freezes nearly all entries."""
    flat = seeded(OrderedDict(head=nn.Linear(6, 3)), 0)
    assert sum(mismatches(code(0.9), True, flat)[0]) == 0
    ignored = code(0.9, stability_floor_cap="unmeasured")
    assert sum(mismatches(ignored, True, flat)[0]) > 0


@pytest.mark.parametrize(
    ("local", "threshold", "change"),
    [
        (False, 0.3, {"interval_halving": "floor"}),
        (True, 0.3, {"interval_halving": "floor"}),
        (True, 0.1, {"stability_floor_check": True}),
        (True, 0.6, {"record_scope": "active"}),
    ],
)
def test_without_one_of_its_choices_the_reading_differs(local, threshold, change):
    assert sum(mismatches(code(threshold, **change), local, mlp())[0]) > 0
