r"""HeteroFL: clients train nested sub-networks of one model, the first neurons of every hidden layer.

Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021, Algorithm 1. A baseline of pFedGate.

    width r_k     the first ⌈r_k n⌉ of the n neurons of every hidden layer, with the inputs that they read; all classes
    client        θ_k ← SGD(θ ∘ m_k), entries outside m_k held at 0
    server        θ[j] ← Σ_k w_k θ_k[j] / Σ_k w_k over the participants with j in m_k; unchanged where there is none
    scored        θ ∘ m_k

As in pFedGate's comparison, a tenth of the clients, drawn once, have the whole network, and the others half of it. The
half is the width whose number of parameters is nearest to ``small`` d; with ``half="width"``, r = ``small``. Unless
``full_share`` is 0, at least one client has the whole network (not in the papers).

Differs from the paper, following pFedGate: w_k = n_k (in the paper and its code 1); no static batch norm; no scaler by
default. ``scaler=True`` divides the outputs of hidden layers by r in training.

``absent_labels="zero"``, the default of the paper's code: in training the logits of labels that a client does not have
are 0, and the server averages a class's weights only over clients that have the class. That code also zeroes these
logits in its local test, and scores the full model. Here each client is scored with its sub-network and all logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfl_core.algorithm import ABSENT, register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.algorithms.momentum import Momentum, MovingState
from pfl_core.federation import DerivedWeights, Federation, LocalTraining, Output, Trained
from pfl_core.layout import WEIGHT, Chain, Layout
from pfl_core.ops import bits, counts_true, keep_, round_half_up
from pfl_core.options import Fraction, Share
from pfl_core.seeding import permutation


@dataclass(frozen=True)
class HeteroState(MovingState):
    widths: Tensor = ABSENT  # [N] float64, r_k


@register(
    "heterofl",
    papers=("pfedgate",),
    shares="one model; most clients hold only the first neurons of each hidden layer",
    variants={
        "width": {"half": "width"},
        "scaler": {"scaler": True},
        "authors_code": {"reading": "authors_code"},
    },
    ci={"full_share": 0.25, "small": 0.6},
    trial_training={"lr": 0.3},  # small models learn slower
)
@dataclass(frozen=True)
class HeteroFL(Momentum[HeteroState]):
    """``shared`` [e] is the whole model."""

    readings: ClassVar = {
        "paper": {},
        "authors_code": {"client_weighting": "uniform", "absent_labels": "zero", "scaler": True},
    }

    full_share: Fraction = 0.1  # share of the clients that have the whole network
    small: Share = 0.5  # share of the network that the other clients have
    half: Literal["params", "width"] = "params"  # whether ``small`` is a share of the parameters, or the width r
    client_weighting: Literal["uniform", "samples"] = "samples"
    absent_labels: Literal["keep", "zero"] = "keep"
    scaler: bool = False

    def init(self, fed: Federation, theta0: Tensor) -> HeteroState:
        """Raises ValueError for a network that is not a plain chain of layers."""
        chain_of(fed.layout)
        return HeteroState(shared=theta0, widths=self.widths(fed))

    def widths(self, fed: Federation) -> Tensor:
        """[N] the width r_k of every client."""
        num = fed.num_clients
        full = min(max(1, round_half_up(self.full_share * num)), num) if self.full_share else 0
        order = permutation(num, fed.seed, "widths").tolist()
        small = width_for(fed.layout, self.small) if self.half == "params" else self.small
        widths = torch.full((num,), small, dtype=torch.float64)
        widths[order[:full]] = 1.0
        return widths

    def round(self, fed: Federation, state: HeteroState, clients: Tensor, t: int) -> tuple[HeteroState, dict]:
        widths = state.widths.tolist()
        masks = subnetworks(fed, widths)
        active_masks = [masks[widths[k]] for k in clients.tolist()]  # S masks [e]; clients of one width share a tensor
        weight = client_weight(fed, clients, self.client_weighting).tolist()
        covered = torch.zeros_like(state.shared)  # [e] Σ_k w_k over the participants that hold an entry
        for k, mask, w in zip(clients.tolist(), active_masks, weight, strict=True):
            covered.sub_(bits(self.averaged(fed, mask, k), covered).to(covered), alpha=w)  # a set bit is -1
        total, momentum = torch.zeros_like(state.shared), self.client_momentum(fed, state)

        def local(chunk: Tensor, rows: slice) -> Trained:
            active = torch.stack(active_masks[rows])
            training = replace(self.local_training(fed, chunk, widths), trainable=active)
            out = fed.sgd(state.shared * active, chunk, training, key=t, velocity=momentum.take(chunk))
            momentum.put(chunk, out.velocity)
            # total += m_k w_k θ_k / Σ_k w_k
            for k, theta, mask, w in zip(chunk.tolist(), out.theta, active, weight[rows], strict=True):
                total.add_(keep_(theta * (w / covered), bits(self.averaged(fed, mask, k), theta)))
            return out

        sizes = {r: int(counts_true(mask[None, : fed.num_params])) for r, mask in masks.items()}
        upload = torch.tensor([sizes[widths[k]] for k in clients.tolist()])
        notes = fed.in_chunks(local, clients) | {
            "upload": upload,
            "passes": fed.train.epochs,
            "kept_share": upload / fed.num_params,
        }
        shared = torch.where(covered > 0, total, state.shared)
        return momentum.into(replace(state, shared=shared)), notes

    def averaged(self, fed: Federation, mask: Tensor, k: int) -> Tensor:
        """The entries [e] of client k that count in the server's mean."""
        if self.absent_labels == "keep":
            return mask
        mask, absent = mask.clone(), self.absent(fed, k)
        for f in filter(fed.layout.in_head, fed.layout.params):
            mask[f.start : f.stop].view(f.shape)[absent] = False
        return mask

    def absent(self, fed: Federation, k: int) -> Tensor:
        """Bool [C], True on classes of which the client has no training sample."""
        head = next(filter(fed.layout.in_head, fed.layout.params))
        return torch.bincount(fed.labels(k), minlength=head.shape[0]) == 0

    def local_training(self, fed: Federation, clients: Tensor, widths: list[float]) -> LocalTraining:
        """Local training with the loss of ``absent_labels`` and the derived weights of ``scaler``."""
        loss, weights, numbers = None, None, clients.tolist()  # numbers[s] = k
        if self.absent_labels == "zero":
            absent = {k: self.absent(fed, k) for k in numbers}
            loss = partial(zeroed_loss, absent)
        if self.scaler:  # weights and biases of hidden layers divided by r divide their outputs by r
            hidden = fed.layout.mask(lambda f: f.kind == WEIGHT and not fed.layout.in_head(f))[: fed.num_params]
            scale = {r: torch.where(hidden.to(fed.theta0.device), 1 / r, 1.0).to(fed.theta0) for r in set(widths)}
            weights = DerivedWeights(lambda theta_k, _, x, s: theta_k * scale[widths[numbers[s]]])
        return LocalTraining(loss=loss, weights=weights)

    def evaluation_models(self, fed: Federation, state: HeteroState, clients: Tensor, t: int) -> Tensor:
        widths = state.widths.tolist()
        masks = subnetworks(fed, widths)
        return state.shared * torch.stack([masks[widths[k]] for k in clients.tolist()])


def subnetworks(fed: Federation, widths: list[float]) -> dict[float, Tensor]:
    """width r -> mask of its sub-network, bool [e]."""
    return {r: nested(fed.layout, r).to(fed.theta0.device) for r in set(widths)}


def zeroed_loss(absent: dict[int, Tensor], output: Output) -> Tensor:
    """Cross-entropy with the logits of absent classes set to 0."""
    return cross_entropy(output.logits.masked_fill(absent[output.client], 0.0), output.labels)


def nested(layout: Layout, r: float) -> Tensor:
    """The mask, bool [e], of the sub-network of width r: the first ⌈r n⌉ neurons of every hidden layer."""
    chain = chain_of(layout)
    counts = [math.ceil(r * n - 1e-9) for n in chain.sizes]  # in floats 0.55 * 100 is above 55
    neurons = [torch.arange(n) < count for n, count in zip(chain.sizes, counts, strict=True)]
    return chain.expand(torch.cat([*neurons, torch.zeros(0, dtype=torch.bool)]))


def width_for(layout: Layout, share: float) -> float:
    """The width whose number of parameters is nearest to ``share`` d; of two equally near ones the narrower.

    The number only changes at widths j / n, for a layer of n neurons, and grows with the width: bisection over these.
    """
    widths = sorted({j / n for n in chain_of(layout).sizes for j in range(1, n + 1)}) or [1.0]
    target, low, high = share * layout.num_params, 0, len(widths) - 1

    def size(i: int) -> int:
        return int(counts_true(nested(layout, widths[i])[None, : layout.num_params]))

    while low < high:  # ends at the first width with at least ``target`` parameters
        middle = (low + high) // 2
        low, high = (low, middle) if size(middle) >= target else (middle + 1, high)
    return widths[min(range(max(low - 1, 0), low + 1), key=lambda i: (abs(size(i) - target), i))]


def chain_of(layout: Layout) -> Chain:
    """The network's chain of hidden neurons; raises ValueError if it is not a plain chain of layers."""
    if layout.chain is None:
        raise ValueError(
            "HeteroFL removes neurons: it needs a network that is a plain chain of layers, each with its own ReLU"
        )
    return layout.chain
