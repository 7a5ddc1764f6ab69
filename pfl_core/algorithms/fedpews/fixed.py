r"""FedPeWS-Fixed: a warm-up on fixed, disjoint subnetworks, one for each client.

Tastan et al., "FedPeWS: Personalized Warmup via Subnetworks for Enhanced Heterogeneous Federated Learning", the
variant FedPeWS-Fixed.

    m̃_k = [neurons of block k of every layer]        m_k = expand(m̃_k)        θ_k ← SGD on f_k(θ_k ∘ m_k)

The server step and the rounds after the warm-up are those of FedPeWS (``method.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, register
from pfl_core.algorithms.fedpews.method import WarmState, Warmup, expand, neuron_chain
from pfl_core.federation import Federation
from pfl_core.ops import round_half_up
from pfl_core.options import NonNegativeInt
from pfl_core.seeding import permutation


@dataclass(frozen=True)
class FixedState(WarmState):
    activations: Tensor = ABSENT  # [t, v, N, h] sums over the probe samples; v: the client's model, the whole model


@register(
    "fedpews_fixed",
    papers=("fedpews",),
    shares="one model; in the warm-up each client trains and sends a fixed share of the neurons",
    variants={"unequal": {"shares": (0.1, 0.2, 0.3, 0.4)}, "row": {"expand_rule": "row"}},
    ci={"tau": 0.5},
    trial_training={"lr": 0.1},  # at 0.2 it stays at chance
)
@dataclass(frozen=True)
class FedPeWSFixed(Warmup[FixedState]):
    """The neurons of each layer are split into N disjoint blocks; block i belongs to client i."""

    shares: tuple[float, ...] | None = None  # |m_i| as shares of the neurons; None: 1/N each
    probe: NonNegativeInt = 0  # record activations on this many samples of each client (Figures 14 and 15)
    probe_whole: bool = False  # during the warm-up, record activations of the whole model too

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares is not None and not (min(self.shares, default=-1) >= 0 and abs(sum(self.shares) - 1) <= 1e-6):
            raise ValueError(f"FedPeWSFixed: shares={self.shares} must be at least 0 each and sum to 1")

    def neurons(self, fed: Federation) -> Tensor:
        """[N, h] bool, the neurons of each client.

        Raises ValueError if the network has no neurons to select, or if the number of shares is not N.
        """
        chain = neuron_chain(fed)
        shares = self.shares or (1 / fed.num_clients,) * fed.num_clients
        if len(shares) != fed.num_clients:
            raise ValueError(f"FedPeWSFixed: {len(shares)} shares for {fed.num_clients} clients; give one for each")
        return split_neurons(chain.sizes, shares)

    def init(self, fed: Federation, theta0: Tensor) -> FixedState:
        base, activations = self.init_base(fed, theta0), ABSENT
        if self.probe or self.warmup_rounds(fed):
            neurons = self.neurons(fed)
            if self.probe:
                activations = torch.zeros(0, 1 + self.probe_whole, *neurons.shape).to(theta0)
        return FixedState(shared=theta0, base=base, activations=activations)

    def round(self, fed: Federation, state: FixedState, clients: Tensor, t: int) -> tuple[FixedState, dict]:
        new, notes = super().round(fed, state, clients, t)
        if self.probe:
            new = replace(new, activations=torch.cat([state.activations, self.activations(fed, new, t)[None]]))
        return new, notes

    def activations(self, fed: Federation, state: FixedState, t: int) -> Tensor:
        """[1, N, h] activations of each neuron, summed over a client's probe samples (and positions).

        The model is x_g after round t; during the warm-up it is the client's subnetwork of x_g. (The paper does not say
        which model.) With ``probe_whole`` the shape is [2, N, h], and the second block is always that of x_g.
        """
        everyone = torch.arange(fed.num_clients)
        whole = fed.broadcast(state.shared, everyone)
        views = [whole, whole] if self.probe_whole else [whole]
        if t < self.warmup_rounds(fed):
            views[0] = state.shared * expand(neuron_chain(fed), self.neurons(fed), self.expand_rule)
        return torch.stack([self._sums(fed, theta) for theta in views])

    def _sums(self, fed: Federation, theta: Tensor) -> Tensor:
        """[N, h] summed activations of the models theta [N, e], each on its client's probe samples."""
        everyone, data = torch.arange(fed.num_clients), []
        for k in everyone.tolist():
            x, y = fed.splits["train"].client(k)
            index = permutation(len(y), fed.seed, "probe", k)[: self.probe].to(y.device)
            data.append((x[index], y[index]))
        # For each layer, one [samples, neurons, ...] per client.
        layers = [fed.forward(theta, everyone, data, layer=name) for name in neuron_chain(fed).activations]
        return torch.stack(
            [
                torch.cat([a[k].flatten(2).sum((0, 2)) if a[k].dim() > 2 else a[k].sum(0) for a in layers])
                for k in everyone
            ]
        )

    def artifacts(self, fed: Federation, state: FixedState) -> dict[str, Tensor]:
        if state.activations is None:
            return {}
        sizes = torch.tensor(neuron_chain(fed).sizes)
        views = state.activations.double().round(decimals=1).unbind(1)
        named = dict(zip(("activations", "activations_whole"), views, strict=False))
        return {**named, "layer_sizes": sizes}

    def warm_round(self, fed: Federation, state: FixedState, clients: Tensor, t: int) -> tuple[FixedState, dict]:
        neurons = self.neurons(fed)[clients]  # [S, h]
        active = expand(neuron_chain(fed), neurons, self.expand_rule)  # [S, e]
        inner = self.inner.init(fed, state.shared)
        training = replace(self.inner.local_training(fed, inner, clients, t), trainable=active)
        out = fed.sgd(state.shared * active, clients, training, key=t)  # x ∘ m: masked entries are 0 and stay 0
        return self.merge(fed, state, clients, out.theta, neurons, out.loss)


def split_neurons(sizes: tuple[int, ...], shares: tuple[float, ...]) -> Tensor:
    """[N, h] bool: contiguous blocks in every layer, from floor(n c_i + 0.5) to floor(n c_{i+1} + 0.5).

    n is the number of neurons of the layer, c the cumulative shares.
    """
    # Exact fractions: floating-point sums such as 0.7 + 0.2 could round a tie n c_i = m + 0.5 the wrong way.
    exact = [Fraction(share).limit_denominator(10**6) for share in shares]
    blocks = []
    for n in sizes:
        bounds = [round_half_up(float(n * sum(exact[:i], Fraction()))) for i in range(len(shares))] + [n]
        position = torch.arange(n)
        blocks.append(torch.stack([(position >= a) & (position < b) for a, b in zip(bounds, bounds[1:], strict=False)]))
    return torch.cat(blocks, 1)
