"""What a client's gate is asked in evaluation: pFedGate's specification, sections 4.9 and 4.10."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithms.pfedgate.adapt import Adapter
from pfl_core.federation import Federation
from pfl_core.federation.federation import EVAL_BATCH
from pfl_core.seeding import generator

if TYPE_CHECKING:
    from pfl_core.algorithms.pfedgate.method import GateState


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
