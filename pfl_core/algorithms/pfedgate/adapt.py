r"""From a batch to an adapted model: pFedGate's gate, selection and straight-through combination.

Specification sections 4.2 (the clamp), 4.4 and 4.5:

    I = knapsack(round(1000 G), W, s)        M' = (I − stop(G) + G) M        θ' = θ M'[block]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithms.pfedgate.blocks import Blocks, build_blocks
from pfl_core.algorithms.pfedgate.gate import Gate
from pfl_core.algorithms.pfedgate.knapsack import exact, greedy
from pfl_core.federation import Federation
from pfl_core.seeding import generator, numpy_generator

if TYPE_CHECKING:
    from pfl_core.algorithms.pfedgate.options import PFedGateOptions

FINE, COARSE = 1000, 10  # integer importances: thousandths (ours), tenths (the released code's)
LARGEST = 10.0  # importances are cut off here before they are rounded: only without sigmoids do they come so far


def budgets(ratio: float | tuple[float, ...], num_clients: int, seed: int) -> np.ndarray:
    """s_i [N]: one for all, one for each in order, or fewer, dealt at random in parts as equal as can be."""
    given = np.atleast_1d(np.asarray(ratio, dtype=float))
    if len(given) in (1, num_clients):
        return np.broadcast_to(given, (num_clients,))
    if len(given) > num_clients:
        raise ValueError(
            f"PFedGate: {len(given)} values of keep_ratio for {num_clients} clients; give at most one each"
        )
    out = np.empty(num_clients)
    order = torch.randperm(num_clients, generator=generator(seed, "budgets")).numpy()
    for value, part in zip(given, np.array_split(order, len(given)), strict=True):
        out[part] = value
    return out


def least_ratio(options: PFedGateOptions, budget: float) -> float:
    """s_min of a client with this budget (section 4.1)."""
    if options.min_keep_ratio is not None:
        return options.min_keep_ratio
    if options.min_keep_rule == "authors_code":
        return authors_least(options.blocks_per_tensor, budget)
    return 1 / options.blocks_per_tensor if 1 / options.blocks_per_tensor < budget else budget / 2


def authors_least(num: int, budget: float) -> float:
    return min(max(1 / num, 0.1), budget)


def tangent(options: PFedGateOptions) -> tuple[float, ...]:
    """Biases at which the paths start, where lines through these points replace the sigmoids."""
    if options.without_sigmoid != "tangent":
        return ()
    return (options.scale_bias_init, 0.0) if options.gate_paths == "two" else (options.scale_bias_init,)


@dataclass(frozen=True, eq=False)
class Adapter:
    """What all clients' adaptations have in common."""

    options: PFedGateOptions
    blocks: Blocks
    gate: Gate
    budget: np.ndarray  # [N] s_i
    least: float  # s_min
    seed: int

    @classmethod
    def of(cls, options: PFedGateOptions, fed: Federation) -> Adapter:
        """Raises ValueError for a network or samples that the options do not fit."""
        budget = budgets(options.keep_ratio, fed.num_clients, fed.seed)
        least = min(least_ratio(options, s) for s in set(budget.tolist()))
        blocks = build_blocks(fed.layout, options.blocks_per_tensor, least, options.block_layout)
        gate = Gate(
            tuple(fed.splits["train"].x.shape[1:]),
            blocks.num_blocks,
            2 if options.gate_paths == "two" else 1,
            options.pre_norm,
            options.post_norm,
            options.sigmoid,
            tangent(options),
        )
        return cls(options, blocks, gate, budget, least, fed.seed)

    # ---- from the gate to M' --------------------------------------------------------------------------------------

    def __call__(self, params: Tensor, statistics: Tensor, x: Tensor, k: int, mode: str) -> tuple[Tensor, np.ndarray]:
        """M' [L] and I, bool [L], of client k for a batch x [N, ...]; "train" moves ``statistics``."""
        scale, importance = self.gate(params, statistics, x, mode)
        return self.combine(scale, importance, k)

    def combine(self, scale: Tensor, importance: Tensor, k: int) -> tuple[Tensor, np.ndarray]:
        """M' [L] and I from M and G as the gate gives them; values exactly 0 or M_b, gradients: section 4.5."""
        if self.options.gate_override is not None:
            scale = torch.full_like(scale, self.options.gate_override)
        if self.budget[k] == 1:
            return scale, np.ones(self.blocks.num_blocks, dtype=bool)
        importance = importance.clamp(min=self.least)
        learned = self.options.mask == "learned"
        kept = self.select(importance.detach().cpu().double().numpy() if learned else self.fixed(k), k)
        on = torch.from_numpy(kept).to(scale)
        if not learned:
            return on * scale, kept
        through = importance if self.options.straight_through == "all" else importance * on
        return (on + (through - through.detach())) * scale, kept

    def fixed(self, k: int) -> np.ndarray:
        """Importances [L] of the controls: all equal, so that small blocks win, or drawn once for the client."""
        if self.options.mask == "small_blocks":
            return np.ones(self.blocks.num_blocks)
        return numpy_generator(self.seed, "mask", k).random(self.blocks.num_blocks)

    # ---- the selection --------------------------------------------------------------------------------------------

    def select(self, importance: np.ndarray, k: int) -> np.ndarray:
        """I, bool [L], of client k for importances G [L]: first blocks always, others within the budget."""
        blocks, selector = self.blocks, self.options.selector
        grouped = selector == "greedy_groups"
        value = np.rint(np.nan_to_num(importance).clip(0, LARGEST) * (COARSE if grouped else FINE)).astype(np.int64)
        kept = blocks.always.copy()
        solve = exact if selector == "exact" else greedy
        for items, capacity in self._groups[float(self.budget[k])] if grouped else [self._whole(k)]:
            if capacity > 0:
                kept[items] = solve(value[items], blocks.sizes[items], capacity)
        return kept

    def feasible(self, k: int) -> bool:
        """Whether the blocks that are always kept fit into client k's budget."""
        return self._whole(k)[1] >= 0

    def _whole(self, k: int) -> tuple[np.ndarray, int]:
        """The blocks to choose from, and how many entries of them may be kept, in the model as a whole."""
        capacity = int(np.floor(self.budget[k] * self.blocks.num_params + 1e-6)) - self._first
        return self._others, capacity

    @cached_property
    def _others(self) -> np.ndarray:
        return np.flatnonzero(~self.blocks.always)

    @cached_property
    def _first(self) -> int:
        return int(self.blocks.sizes[self.blocks.always].sum())

    @cached_property
    def _groups(self) -> dict[float, list[tuple[np.ndarray, int]]]:
        """The released code's two groups by budget: linear layers, all others; capacity (s - s_min) of their blocks."""
        found = {}
        for s in set(self.budget.tolist()):
            spare = s - authors_least(self.options.blocks_per_tensor, s)
            parts = [self._others[self.blocks.linear[self._others] == dense] for dense in (True, False)]
            found[s] = [(items, round(spare * int(self.blocks.sizes[items].sum()))) for items in parts]
        return found
