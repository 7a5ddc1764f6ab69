"""FedPeWS-Fixed: in the warm-up each client trains a fixed share of the neurons, disjoint from the others'.

Tastan et al., "FedPeWS: Personalized Warmup via Subnetworks for Enhanced Heterogeneous Federated Learning", the
variant FedPeWS-Fixed.

    m̃_k = [neurons of block k of every layer]        m_k = expand(m̃_k)        θ_k ← SGD on f_k(θ_k ∘ m_k)

The frame, the server's step and what follows the warm-up are those of FedPeWS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from pfl_core.algorithm import register
from pfl_core.algorithms.fedpews.method import NO_NEURONS, WarmState, Warmup, expand
from pfl_core.federation import Federation
from pfl_core.ops import round_half_up
from pfl_core.options import NonNegativeInt
from pfl_core.seeding import generator


@dataclass(frozen=True)
class FixedState(WarmState):
    activations: Tensor | None = None  # [t, v, N, h] sums over the probe samples, round by round: own part, whole model


@register(
    "fedpews_fixed",
    papers=("fedpews",),
    shares="one model; in the warm-up each client trains and sends its own fixed share of the neurons",
    variants={"unequal": {"shares": (0.1, 0.2, 0.3, 0.4)}, "row": {"expand_rule": "row"}},
    ci={"tau": 0.5},
    trial_training={"lr": 0.2, "momentum": 0.0},  # its warm-up is plain SGD
)
@dataclass(frozen=True)
class FedPeWSFixed(Warmup):
    """Disjoint groups of neurons, layer by layer, group i to client i."""

    shares: tuple[float, ...] | None = None  # |m_i| as shares of the neurons; None: 1/N each
    probe: NonNegativeInt = 0  # samples of each client whose activations are noted every round (Figures 14 and 15)
    probe_whole: bool = False  # in the warm-up those of the whole model, too

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares is not None and not (min(self.shares, default=-1) >= 0 and abs(sum(self.shares) - 1) <= 1e-6):
            raise ValueError(f"FedPeWSFixed: shares={self.shares} are no shares; they must sum to 1")

    def neurons(self, fed: Federation) -> Tensor:
        """[N, h] bool, client by client.

        Raises ValueError unless the network has neurons to select and there is one share for each client.
        """
        if fed.layout.chain is None:
            raise ValueError(NO_NEURONS)
        shares = self.shares or (1 / fed.num_clients,) * fed.num_clients
        if len(shares) != fed.num_clients:
            raise ValueError(f"FedPeWSFixed: {len(shares)} shares for {fed.num_clients} clients; give one for each")
        return split_neurons(fed.layout.chain.sizes, shares)

    def init(self, fed: Federation, theta0: Tensor) -> FixedState:
        state, seen = super().init(fed, theta0), None
        if self.probe or self.warmup_rounds(fed):
            neurons = self.neurons(fed)
            seen = torch.zeros(0, 1 + self.probe_whole, *neurons.shape).to(theta0) if self.probe else None
        return FixedState(shared=theta0, base=state.base, activations=seen)

    def round(self, fed: Federation, state: FixedState, clients: Tensor, t: int) -> tuple[FixedState, dict]:
        new, notes = super().round(fed, state, clients, t)
        if self.probe:
            new = replace(new, activations=torch.cat([state.activations, self.activations(fed, new, t)[None]]))
        return new, notes

    def activations(self, fed: Federation, state: FixedState, t: int) -> Tensor:
        """[1, N, h] each neuron's activations, summed over a client's probe samples (and positions).

        Of x_g after round t; in the warm-up of each client's own part of it. (The paper does not say of which model.)
        With ``probe_whole`` [2, N, h], the second of all of x_g in the warm-up, too.
        """
        everyone = torch.arange(fed.num_clients)
        views = [fed.broadcast(state.shared, everyone)] * (1 + self.probe_whole)
        if t < self.warmup_rounds(fed):
            views[0] = state.shared * expand(fed.layout.chain, self.neurons(fed), self.expand_rule)
        return torch.stack([self._sums(fed, theta) for theta in views])

    def _sums(self, fed: Federation, theta: Tensor) -> Tensor:
        everyone, data = torch.arange(fed.num_clients), []
        for k in everyone.tolist():
            x, y = fed.splits["train"].client(k)
            index = torch.randperm(len(y), generator=generator(fed.seed, "probe", k))[: self.probe].to(y.device)
            data.append((x[index], y[index]))
        layers = [fed.forward(theta, everyone, data, layer=name) for name in fed.layout.chain.activations]
        return torch.stack(
            [
                torch.cat([a[k].flatten(2).sum((0, 2)) if a[k].dim() > 2 else a[k].sum(0) for a in layers])
                for k in everyone
            ]
        )

    def artifacts(self, fed: Federation, state: FixedState) -> dict[str, Tensor]:
        if state.activations is None:
            return {}
        sizes = torch.tensor(fed.layout.chain.sizes)
        views = state.activations.double().round(decimals=1).unbind(1)
        named = dict(zip(("activations", "activations_whole"), views, strict=False))
        return {**named, "layer_sizes": sizes}

    def warm_round(self, fed: Federation, state: WarmState, clients: Tensor, t: int) -> tuple[WarmState, dict]:
        neurons = self.neurons(fed)[clients]
        active = expand(fed.layout.chain, neurons, self.expand_rule)
        inner = self.inner.init(fed, state.shared)
        training = replace(self.inner.local_training(fed, inner, clients, t), trainable=active)
        out = fed.sgd(state.shared * active, clients, training, key=t)  # x ∘ m: the others deleted
        return self.merge(fed, state, clients, out.theta, neurons, out.loss)


def split_neurons(sizes: tuple[int, ...], shares: tuple[float, ...]) -> Tensor:
    """[N, h] bool: contiguous blocks in every layer, from floor(n c_i + 0.5) to floor(n c_{i+1} + 0.5)."""
    exact = [
        Fraction(share).limit_denominator(10**6) for share in shares
    ]  # 0.7 + 0.2 is 0.9, also where n c_i is a tie
    blocks = []
    for n in sizes:
        ends = [round_half_up(n * sum(exact[:i])) for i in range(len(shares))] + [n]
        place = torch.arange(n)
        blocks.append(torch.stack([(place >= a) & (place < b) for a, b in zip(ends, ends[1:], strict=False)]))
    return torch.cat(blocks, 1)
