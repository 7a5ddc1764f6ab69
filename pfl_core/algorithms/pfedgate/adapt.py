r"""pFedGate's adaptation: from a batch to the scale of every block, by gate, selection and straight-through estimator.

    M, G = gate(batch)        I = knapsack(round(1000 G), W, s)        M' = (I − stop(G) + G) M        θ' = θ M'[block]

Taken from the released code, not in the paper: G is at least s_min.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, State
from pfl_core.algorithms.pfedgate.gate import Blocks, Gate, build_blocks
from pfl_core.algorithms.pfedgate.knapsack import exact, greedy
from pfl_core.algorithms.pfedgate.options import PFedGateOptions
from pfl_core.federation import Federation
from pfl_core.seeding import numpy_generator, permutation

FINE, COARSE = 1000, 10  # importances are rounded to thousandths (not in the paper), or to tenths (released code)
LARGEST = 10.0  # importances are clipped to this value before rounding; matters only without sigmoid


@dataclass(frozen=True)
class GateState(State):
    """``shared`` [e] is θ."""

    gate: Tensor = ABSENT  # [N, v] φ_k
    statistics: Tensor = ABSENT  # [N, q] running statistics of the gates' norms
    velocity: Tensor = ABSENT  # [N, d], if clients keep their momentum
    gate_velocity: Tensor = ABSENT  # [N, v], likewise
    gate_values: Tensor = ABSENT  # [t, L] M' in each round so far, mean over batches, then over clients


def budgets(ratio: float | tuple[float, ...], num_clients: int, seed: int) -> np.ndarray:
    """Budgets s_i [N] of the clients.

    ``ratio`` is one value for all clients, one value for each client in order, or fewer values than clients. Fewer
    values are assigned at random, each to an equal part of the clients. Raises ValueError for more values than clients.
    """
    values = np.atleast_1d(np.asarray(ratio, dtype=float))
    if len(values) in (1, num_clients):
        return np.broadcast_to(values, (num_clients,))
    if len(values) > num_clients:
        raise ValueError(
            f"PFedGate: {len(values)} values of keep_ratio for {num_clients} clients; give at most one for each"
        )
    out = np.empty(num_clients)
    order = permutation(num_clients, seed, "budgets").numpy()
    for value, part in zip(values, np.array_split(order, len(values)), strict=True):
        out[part] = value
    return out


def least_ratio(options: PFedGateOptions, budget: float) -> float:
    """s_min, the share of every tensor that is always kept, for a client with this budget.

    The paper gives no value. The default rule of this project is 1/B if that is below the budget, else half the budget.
    """
    if options.min_keep_ratio is not None:
        return options.min_keep_ratio
    if options.min_keep_rule == "authors_code":
        return authors_least(options.blocks_per_tensor, budget)
    return 1 / options.blocks_per_tensor if 1 / options.blocks_per_tensor < budget else budget / 2


def authors_least(num: int, budget: float) -> float:
    """s_min of the released code, with ``num`` = B."""
    return min(max(1 / num, 0.1), budget)


@dataclass(frozen=True, eq=False)
class Adapter:
    """Computes M' and I for any client; holds what is the same for all clients."""

    options: PFedGateOptions
    blocks: Blocks
    gate: Gate
    budget: np.ndarray  # [N] s_i
    min_ratio: float  # s_min
    seed: int

    @classmethod
    def of(cls, options: PFedGateOptions, fed: Federation) -> Adapter:
        """The adapter of a federation. Raises ValueError if the network does not fit the options.

        All clients share one block layout; it uses the s_min of the smallest budget.
        """
        budget = budgets(options.keep_ratio, fed.num_clients, fed.seed)
        min_ratio = min(least_ratio(options, s) for s in set(budget.tolist()))
        blocks = build_blocks(fed.layout, options.blocks_per_tensor, min_ratio, options.block_layout)
        gate = Gate(
            tuple(fed.splits["train"].x.shape[1:]),
            blocks.num_blocks,
            2 if options.gate_paths == "two" else 1,
            options.pre_norm,
            options.post_norm,
            options.sigmoid,
            options.tangent,
        )
        return cls(options, blocks, gate, budget, min_ratio, fed.seed)

    # ---- from the gate to M' --------------------------------------------------------------------------------------

    def __call__(self, params: Tensor, statistics: Tensor, x: Tensor, k: int, mode: str) -> tuple[Tensor, np.ndarray]:
        """M' [L] and I bool [L] of client k for a batch x [N, ...].

        params [v] and statistics [q] are those of the client's gate. ``mode`` "train" updates ``statistics`` in place.
        """
        scale, importance = self.gate(params, statistics, x, mode)
        return self.combine(scale, importance, k)

    def combine(self, scale: Tensor, importance: Tensor, k: int) -> tuple[Tensor, np.ndarray]:
        """M' [L] and I from the gate's outputs M and G [L].

        The values of M' are exactly 0 or M_b. With g = ∂L/∂θ', block by block, the gradients are I_b <g_b, θ_b> for M_b
        and M_b <g_b, θ_b> for G_b. With ``straight_through="kept"`` the latter is 0 for dropped blocks.
        """
        if self.options.gate_override is not None:
            scale = torch.full_like(scale, self.options.gate_override)
        if self.budget[k] == 1:  # the whole model is kept, and G is not used
            return scale, np.ones(self.blocks.num_blocks, dtype=bool)
        importance = importance.clamp(min=self.min_ratio)
        learned = self.options.mask == "learned"
        kept = self.select(importance.detach().cpu().double().numpy() if learned else self.fixed(k), k)
        on = torch.from_numpy(kept).to(scale)
        if not learned:
            return on * scale, kept
        through = importance if self.options.straight_through == "all" else importance * on
        return (on + (through - through.detach())) * scale, kept

    # ---- from M' to the model ---------------------------------------------------------------------------------------

    def scaled(self, theta_k: Tensor, scale: Tensor) -> Tensor:
        """θ' [e] from ``theta_k`` [e] and M', ``scale`` [L]."""
        d = self.blocks.num_params
        return torch.cat([self.blocks.scale(theta_k[:d], scale), theta_k[d:]])

    def logits(self, fed: Federation, theta_k: Tensor, scale: Tensor, x: Tensor) -> Tensor:
        """Logits [B, C] of the model ``theta_k`` [e] adapted by M', ``scale`` [L]."""
        out = fed.logits(self.scaled(theta_k, scale), x)
        return out.relu() if self.options.logit_relu else out

    # ---- the selection ----------------------------------------------------------------------------------------------

    def fixed(self, k: int) -> np.ndarray:
        """Importances [L] of the controls: all equal, which favours small blocks, or drawn once for each client."""
        if self.options.mask == "small_blocks":
            return np.ones(self.blocks.num_blocks)
        return numpy_generator(self.seed, "mask", k).random(self.blocks.num_blocks)

    def select(self, importance: np.ndarray, k: int) -> np.ndarray:
        """I bool [L] of client k for importances G [L]: first blocks are always kept, others within the budget."""
        blocks, selector = self.blocks, self.options.selector
        grouped = selector == "greedy_groups"
        value = np.rint(np.nan_to_num(importance).clip(0, LARGEST) * (COARSE if grouped else FINE)).astype(np.int64)
        kept = blocks.always.copy()
        solve = exact if selector == "exact" else greedy
        whole = [(self._optional, int(self.spare[k]))]
        for items, capacity in self._groups[float(self.budget[k])] if grouped else whole:
            if capacity > 0:
                kept[items] = solve(value[items], blocks.sizes[items], capacity)
        return kept

    @cached_property
    def spare(self) -> np.ndarray:
        """[N] entries that a client can keep beside the blocks that are always kept; below 0 if these do not fit."""
        always_size = self.blocks.sizes[self.blocks.always].sum()
        return np.floor(self.budget * self.blocks.num_params + 1e-6).astype(np.int64) - always_size

    @cached_property
    def _optional(self) -> np.ndarray:
        """Indices of the blocks that may be dropped."""
        return np.flatnonzero(~self.blocks.always)

    @cached_property
    def _groups(self) -> dict[float, list[tuple[np.ndarray, int]]]:
        """The released code's two knapsacks for each budget s: linear layers, and all other layers.

        The capacity of each is a share s - s_min of its optional entries.
        """
        groups = {}
        for s in set(self.budget.tolist()):
            spare = s - authors_least(self.options.blocks_per_tensor, s)
            parts = [self._optional[self.blocks.linear[self._optional] == linear] for linear in (True, False)]
            groups[s] = [(items, round(spare * int(self.blocks.sizes[items].sum()))) for items in parts]
        return groups
