"""Gate inference at evaluation time, and diagnostics of the final model; specification sections 4.9 and 4.10.

The diagnostics (``PFedGate(probe=True)``) score the final model without gates (Table 10), with the test samples in
other orders, and with gates that are not the client's own. They change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithms.pfedgate.adapt import Adapter
from pfl_core.federation import Federation, LocalTraining
from pfl_core.federation.federation import EVAL_BATCH
from pfl_core.seeding import generator

if TYPE_CHECKING:
    from pfl_core.algorithms.pfedgate.method import GateState, PFedGate

ORDERS = 5  # random orders of the test samples in the diagnostics
OTHERS = 3  # gates of other clients in the diagnostics: those of the next ones of the list


def mean_image(fed: Federation, k: int) -> Tensor:
    """[1, ...] mean of the client's training samples."""
    return fed.splits["train"].client(k)[0].mean(0, keepdim=True)


def client_vector(
    adapter: Adapter, fed: Federation, gate: Tensor, statistics: Tensor, k: int, *, average: bool = False
) -> tuple[Tensor, np.ndarray] | None:
    """M' [L] and I of client k where they do not depend on the batch; else None. ``average``: see ``eval_gate``."""
    granularity = adapter.options.gate_granularity
    if granularity == "client":
        return adapter(gate, statistics, mean_image(fed, k), k, "client")
    if granularity == "batch" and not average:
        return None
    batches = fed.splits["train"].client(k)[0].split(fed.train.batch_size)
    if granularity == "client_masked_mean":
        masked = torch.stack([adapter(gate, statistics, x, k, "eval")[0] for x in batches]).mean(0)
        return masked, (masked != 0).cpu().numpy()
    both = [torch.stack(adapter.gate(gate, statistics, x, "eval")) for x in batches]
    return adapter.combine(*torch.stack(both).mean(0), k)


def scored_batches(adapter: Adapter, k: int, num: int) -> Iterator[Tensor]:
    """Indices of the batches that ``num`` samples of client k are scored in: a random order, whatever the labels."""
    options = adapter.options
    order = torch.randperm(num, generator=generator(adapter.seed, "evaluation", k, options.eval_order))
    yield from order.split(1 if options.eval_gate == "sample" else options.eval_batch_size)


def adapted(
    adapter: Adapter, fed: Federation, state: GateState, k: int, x: Tensor
) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
    """(indices, M' [L], I) of each batch in which client k's samples x [B, ...] are scored together."""
    gate, statistics = state.gate[k], state.statistics[k]
    average = adapter.options.eval_gate == "client_train_mean"
    fixed = client_vector(adapter, fed, gate, statistics, k, average=average)
    if fixed is not None:
        yield torch.arange(len(x)), *fixed
        return
    for at in scored_batches(adapter, k, len(x)):
        yield at, *adapter(gate, statistics, x[at], k, "eval")


def scored_masks(
    adapter: Adapter, fed: Federation, state: GateState, k: int, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """I bool [batches, L] and samples [batches] of the batches in which ``fed.evaluate`` scores client k's split."""
    x, masks, sizes = fed.splits[split].client(k)[0], [], []
    for part in x.split(EVAL_BATCH):
        for at, _, kept in adapted(adapter, fed, state, k, part):
            masks.append(kept)
            sizes.append(len(at))
    return np.stack(masks), np.array(sizes)


def probes(method: PFedGate, fed: Federation, state: GateState) -> dict[str, Tensor]:
    """Correct test predictions of each client [N]: of the global model, and (a row each) of ways to make batches."""
    ways = [replace(method, eval_order=i) for i in range(ORDERS)]
    ways += [replace(method, eval_gate="sample"), replace(method, eval_gate="client_train_mean")]
    everyone = torch.arange(fed.num_clients)
    theta = fed.broadcast(state.shared, everyone)
    rows = [fed.evaluate(theta, everyone, predict=partial(way.predict, fed, state)) for way in ways]
    return {
        "global_correct": fed.evaluate(fed.broadcast(ungated(fed, state), everyone), everyone).correct,
        "order_correct": torch.stack([scores.correct for scores in rows[:ORDERS]]),  # [ORDERS, N]
        "sample_correct": rows[ORDERS].correct,
        "client_mean_correct": rows[ORDERS + 1].correct,
        "sorted_correct": sorted_by_label(method, fed, state),
        "test_count": rows[0].count,
        **gate_swaps(ways[0], fed, state),
    }


def gate_swaps(method: PFedGate, fed: Federation, state: GateState) -> dict[str, Tensor]:
    """Correct test predictions of each client [N] with a gate that is not its own; ``order_correct[0]`` is its own's.

    ``other_gates_correct`` [OTHERS, N]: client k with the gate of client k + 1, k + 2, ... (the first follows the last;
    fewer in small federations). ``mean_gate_correct``: with the mean of all clients' parameters and statistics.
    ``constant_scales_correct``: with its own mask, but one scale for all blocks and clients. A budget stays with its
    client. Empty with fewer than two clients.
    """
    if fed.num_clients < 2:
        return {}
    everyone = torch.arange(fed.num_clients)
    theta = fed.broadcast(state.shared, everyone)

    def correct(gates: GateState, way: PFedGate = method) -> Tensor:
        return fed.evaluate(theta, everyone, predict=partial(way.predict, fed, gates)).correct

    def with_gates(change: Callable[[Tensor], Tensor]) -> GateState:
        return replace(state, gate=change(state.gate), statistics=change(state.statistics))

    places = range(1, min(OTHERS, fed.num_clients - 1) + 1)
    others = [with_gates(lambda rows, i=i: rows.roll(-i, 0)) for i in places]
    mean_gate = with_gates(lambda rows: rows.mean(0, keepdim=True).expand_as(rows))
    constant = replace(method, gate_override=mean_scale(method, fed, state))
    return {
        "other_gates_correct": torch.stack([correct(gates) for gates in others]),
        "mean_gate_correct": correct(mean_gate),
        "constant_scales_correct": correct(state, constant),
    }


def mean_scale(method: PFedGate, fed: Federation, state: GateState) -> float:
    """Mean of M over kept blocks, then over the client's batches of training samples, then over clients."""
    adapter, means = Adapter.of(method, fed), []
    for k in range(fed.num_clients):
        found = adapted(adapter, fed, state, k, fed.splits["train"].client(k)[0])
        means.append(torch.stack([scale.sum() / int(kept.sum()) for _, scale, kept in found]).mean())
    return float(torch.stack(means).mean())


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
