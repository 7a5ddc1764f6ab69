"""Two questions to the end of a pFedGate run: without gates (Table 10), and in other orders of the test samples (4.9).

Both score what is there and change nothing; ``PFedGate(probe=True)`` keeps the answers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfl_core.algorithms.pfedgate.adapt import Adapter
from pfl_core.federation import Federation, LocalTraining

if TYPE_CHECKING:
    from pfl_core.algorithms.pfedgate.method import GateState, PFedGate

ORDERS = 5  # random ones


def probes(method: PFedGate, fed: Federation, state: GateState) -> dict[str, Tensor]:
    """Correct test predictions of each client [N]: of the global model, and (a row each) of ways to make batches."""
    ways = [replace(method, eval_order=i) for i in range(ORDERS)]
    ways += [replace(method, eval_gate="sample"), replace(method, eval_gate="client_train_mean")]
    rows = [fed.evaluate(*_everyone(fed, state.shared), predict=partial(way.predict, fed, state)) for way in ways]
    return {
        "global_correct": fed.evaluate(*_everyone(fed, ungated(fed, state))).correct,
        "order_correct": torch.stack([scores.correct for scores in rows[:ORDERS]]),  # [ORDERS, N]
        "sample_correct": rows[ORDERS].correct,
        "client_mean_correct": rows[ORDERS + 1].correct,
        "sorted_correct": sorted_by_label(method, fed, state),
        "test_count": rows[0].count,
    }


def ungated(fed: Federation, state: GateState) -> Tensor:
    """θ [e] after one more local epoch without gates and a mean by n_k."""
    clients = torch.arange(fed.num_clients)

    def local(chunk: Tensor, rows: slice):
        return fed.sgd(fed.broadcast(state.shared, chunk), chunk, LocalTraining(epochs=1), key=(fed.rounds, "ungated"))

    with torch.enable_grad():
        return fed.average(local, clients, fed.num_train[clients])[0]


def sorted_by_label(method: PFedGate, fed: Federation, state: GateState) -> Tensor:
    """Correct predictions [N] where test batches follow the labels, which leaks them into the gate."""
    adapter, found = Adapter.of(method, fed), []
    for k in range(fed.num_clients):
        x, y = fed.splits["test"].client(k)
        right = 0
        for at in y.argsort(stable=True).split(method.eval_batch_size):
            scale, _ = adapter(state.gate[k], state.statistics[k], x[at], k, "eval")
            logits = method.logits(fed, adapter, state.shared, scale, x[at])
            right += int((logits.argmax(1) == y[at]).sum())
        found.append(right)
    return torch.tensor(found)


def _everyone(fed: Federation, theta: Tensor) -> tuple[Tensor, Tensor]:
    clients = torch.arange(fed.num_clients)
    return fed.broadcast(theta, clients), clients
