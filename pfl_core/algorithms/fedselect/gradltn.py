r"""FedSelect's workshop version: in every round a lottery-ticket search chooses each client's personal parameters.

Tamirisa et al., "FedSelect: Customized Selection of Parameters for Fine-Tuning during Personalized Federated Learning",
ICML 2023 workshop on federated learning: Algorithm 1 (GradLTN), Algorithm 2 (the round).

    search    m ← 1;  L times:  train the entries of m from θ_k for E epochs,  keep in m the share p that changed most
    client    θ_k⁺ = LocalAlt(θ_k, m_k)
    server    θ_g[j] = mean of θ_k⁺[j] over the sampled clients that share j
    client    θ_k = θ_k⁺ on m_k, θ_g elsewhere; clients that were not sampled receive θ_g where they share

The search starts from a full mask in every round. Only its mask is kept, about p^L of the model; its trained values are
discarded.

Differs from the paper: L trainings, not L + 1, since the last one would be unused; training continues over the E epochs
of a search iteration; all methods of its comparison share one learning rate, where the paper takes each method's
recommended one.

Where the paper is silent: the search uses the shared entries' learning rate; batch-norm statistics stay with their
client; an entry that no client shares keeps its last global value; of equal changes, the lower index is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import MechanismCheck, register
from pfl_core.algorithms.fedselect.alternating import NOTES, Alternating, MaskState, loss_checks, part_check
from pfl_core.federation import Federation, LocalTraining
from pfl_core.ops import count_true, counts_true, put, round_half_up, take, top_count
from pfl_core.options import Fraction, NonNegativeInt
from pfl_core.training import Training


@register(
    "fedselect_gradltn",
    papers=("fedselect",),
    shares="all but the parameters that a search chooses for each client in every round",
    variants={
        "keep_0.25": {"keep_rate": 0.25},
        "keep_0.50": {"keep_rate": 0.50},
        "keep_0.75": {"keep_rate": 0.75},
        "return_trained": {"return_trained": True},
    },
    ci={"keep_rate": 0.5, "num_search_iters": 2},
    passes=7.0,
)
@dataclass(frozen=True)
class FedSelectGradLTN(Alternating[MaskState]):
    """Algorithm 2. All epochs default to the federation's local epochs; the paper has five everywhere."""

    keep_rate: Fraction = 0.50  # p, share of the active entries that stays in the mask per iteration
    num_search_iters: NonNegativeInt = 5  # L
    search_epochs: NonNegativeInt | None = None  # E
    local_alt_epochs: NonNegativeInt | None = None
    rate_basis: Literal["active", "all"] = "active"  # what keep_rate is a share of; with "all" only iteration 1 acts
    return_trained: bool = False  # start LocalAlt from the trained subnetwork (the paper: future work)

    def round(self, fed: Federation, state: MaskState, clients: Tensor, t: int) -> tuple[MaskState, dict]:
        start = take(state.local, clients)  # [S, e]
        active, search_passes = self.grad_ltn(fed, start, clients, t)
        personal = active.clone()
        personal[:, fed.num_params :] = self.buffer_policy == "local"
        if self.return_trained:
            start = self.search(fed, start, active, clients, (t, "subnetwork")).clone()
            search_passes += fed.train.epochs if self.search_epochs is None else self.search_epochs
        epochs = fed.train.epochs if self.local_alt_epochs is None else self.local_alt_epochs
        trained, loss = self.local_alt(fed, start, personal, clients, t, epochs)
        movable = self.update_movable(fed, state, take(state.local, clients), trained)
        scored, free = self.note_trained(fed, clients, start, trained)
        new = self.merge(fed, state, clients, trained, personal, in_place=free)
        masks = put(state.personal, clients, personal)
        count = counts_true(personal[:, : fed.num_params])
        return replace(new, personal=masks, in_force=masks, movable=movable), {
            **scored,
            "train_loss": loss,
            "upload": fed.num_params - count,
            "upload_bits": torch.full_like(count, fed.num_params),
            "passes": search_passes + self.passes(count, fed, epochs),
            **self.shares(fed, personal, movable),
        }

    def mechanism(self, series: Mapping[str, np.ndarray], rounds: int, training: Training) -> list[MechanismCheck]:
        """Did LocalAlt diverge in a round (each round chooses masks), and are final masks neither empty nor full?"""
        if self.keep_rate in (0, 1) or not series.keys() >= NOTES:
            return []
        return [*loss_checks(series, np.ones(len(series["train_loss"]), dtype=bool)), part_check(series)]

    def grad_ltn(self, fed: Federation, start: Tensor, clients: Tensor, t: int) -> tuple[Tensor, int]:
        """Algorithm 1: the final masks [S, e] bool of the search, and its passes over the data; start [S, e].

        The tail of a mask is False: every iteration starts from the same batch-norm statistics and discards its own.
        """
        active = torch.zeros_like(start, dtype=torch.bool)
        active[:, : fed.num_params] = True
        for i in range(self.num_search_iters):
            trained = self.search(fed, start, active, clients, (t, "search", i))
            active = torch.stack(
                [self.shrink(fed, m, (b - a).abs_()) for m, a, b in zip(active, start, trained, strict=True)]
            )
        return active, self.num_search_iters * (fed.train.epochs if self.search_epochs is None else self.search_epochs)

    def search(self, fed: Federation, start: Tensor, active: Tensor, clients: Tensor, key: tuple) -> Tensor:
        """[S, e] ``start`` after E epochs of training of the active entries [S, e] bool."""
        training = LocalTraining(epochs=self.search_epochs, lr=self.lr_shared, trainable=active)
        return fed.sgd(start, clients, training, key=key).theta

    def shrink(self, fed: Federation, active: Tensor, change: Tensor) -> Tensor:
        """The entries of ``active`` [e] bool that changed most; change [e] >= 0."""
        basis = count_true(active) if self.rate_basis == "active" else fed.num_params
        return top_count(change, active, round_half_up(self.keep_rate * basis))
