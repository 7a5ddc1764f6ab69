r"""FedMD: clients exchange no weights, only the logits of their models on public samples.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", 2019, Algorithm 1. A baseline of pFedGate.

    x_t       public samples of round t, the same for all clients
    server    f ← Σ_k w_k f_k(x_t) / Σ_k w_k             of the participants' logits
    digest    θ_k ← SGD(θ_k; mean (f_k(x_t) − f)²)       for ``digest_epochs``
    revisit   θ_k ← SGD(θ_k; D_k)                        local epochs

``public`` names a split of the federation or a data set. Of a split, all clients' samples are public. A data set can be
"far" from the clients' data or "near" to them, as in pFedGate's Table 6. Labels are never used. Images are resized to
the clients' size; grey is repeated over the channels, colour is converted to luminance.

Differs from the paper: all clients have the same architecture and the same initial model, as in pFedGate's comparison,
so there is no initial training on labelled public data. w_k = n_k, as everywhere in that comparison (in the paper 1).

Not in the paper: the squared error is a mean over samples and classes; logits on public samples are computed in
evaluation mode. So with batch norm, f comes from the running statistics of the clients' own images, but is digested
with the statistics of the public ones. With far public samples f can grow in every round until training breaks down.
A client that never took part has the initial model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from pfl_core.algorithm import register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.algorithms.momentum import Momentum, MovingState
from pfl_core.federation import Federation, LocalTraining, Output, Trained
from pfl_core.ops import normalised, put, take
from pfl_core.options import NonNegativeInt, PositiveInt
from pfl_core.seeding import permutation

if TYPE_CHECKING:
    from pfl_core.data import Dataset


@register(
    "fedmd",
    papers=("pfedgate",),
    shares="logits on public samples; every client keeps its whole model",
    variants={
        "cifar10_near": {"public": "cifar100", "public_normalise": "cifar10"},
        "cifar10_far": {"public": "femnist", "public_normalise": "cifar10"},
        "femnist_near": {"public": "emnist", "public_normalise": "mnist"},
        "femnist_far": {"public": "cifar10", "public_normalise": "mnist"},
        "uniform": {"client_weighting": "uniform"},
    },
    ci={"public": "train", "public_samples": 16},
    trial={"public": "train", "public_samples": 500},  # digits have no public set
    passes=3.0,
)
@dataclass(frozen=True)
class FedMD(Momentum[MovingState]):
    """``local``: N rows [e], the clients' models."""

    public: str = "public"  # a split of the federation, or a data set
    public_normalise: str = "unit"  # normalisation of a public data set; should be that of the clients' data
    public_samples: PositiveInt = 5000  # per round; all of them if there are fewer
    digest_epochs: NonNegativeInt = 1
    client_weighting: Literal["uniform", "samples"] = "samples"

    def init(self, fed: Federation, theta0: Tensor) -> MovingState:
        """Raises ValueError or FileNotFoundError if the public samples are missing or do not fit the network."""
        if self.public == "public" and self.public not in fed.splits:
            raise ValueError(
                "FedMD: there is no split 'public'; set public to a data set, or to 'train' for the clients' samples"
            )
        self.samples(fed, 0)
        return MovingState(local=(theta0,) * fed.num_clients)

    def samples(self, fed: Federation, t: int) -> Tensor:
        """[n, ...] the public samples of round t, drawn without replacement."""
        private = fed.splits["train"].x
        prepare: Callable[[Tensor], Tensor] | None = None
        if self.public in fed.splits:
            pool = fed.splits[self.public].x
        else:
            data = public_set(self.public, self.public_normalise, tuple(private.shape[1:]))
            pool, prepare = data.x, data.prepare
        order = permutation(len(pool), fed.seed, "public", t)[: self.public_samples]
        x = pool[order.to(pool.device)]
        return (prepare(x) if prepare else x).to(private)

    def round(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> tuple[MovingState, dict]:
        x = self.samples(fed, t)
        public = x, torch.zeros(len(x), dtype=torch.int64, device=x.device)  # labels are not used
        consensus = self.consensus(fed, state, clients, public)

        def digest(output: Output) -> Tensor:
            return mse_loss(output.logits, consensus[output.index])

        on_public = LocalTraining(epochs=self.digest_epochs, loss=digest)
        momentum = self.client_momentum(fed, state)
        trained: list[Tensor] = []  # S rows [e]

        def local(chunk: Tensor, rows: slice) -> Trained:
            data = [public] * len(chunk)
            digested = fed.sgd(take(state.local, chunk), chunk, on_public, key=(t, "digest"), data=data)
            out = fed.sgd(digested.theta, chunk, key=t, velocity=momentum.take(chunk))
            momentum.put(chunk, out.velocity)
            trained.extend(row.clone() for row in out.theta)
            return out

        notes = fed.in_chunks(local, clients)
        # Passes over a client's data: a forward pass over the public samples counts as a third of a training pass.
        public_passes = (self.digest_epochs + 1 / 3) * len(x) / float(fed.num_train[clients].mean())
        notes |= {
            "upload": torch.full((len(clients),), consensus.numel()),
            "passes": fed.train.epochs + public_passes,
        }
        return momentum.into(replace(state, local=put(state.local, clients, trained))), notes

    def consensus(self, fed: Federation, state: MovingState, clients: Tensor, public: tuple[Tensor, Tensor]) -> Tensor:
        """The weighted mean f [n, C] of the clients' logits on the public samples."""
        share = normalised(client_weight(fed, clients, self.client_weighting)).tolist()
        logits = (fed.forward(state.local[k][None], torch.tensor([k]), [public])[0] for k in clients.tolist())
        weighted = (w * logits_k for w, logits_k in zip(share, logits, strict=True))
        return sum(weighted, start=fed.theta0.new_zeros(()))

    def evaluation_models(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> Tensor:
        return take(state.local, clients)


@lru_cache(maxsize=1)
def public_set(name: str, normalise: str, shape: tuple[int, ...]) -> Dataset:
    """The data set of that name with samples of this shape.

    Raises ValueError if there is no such data set, or if its samples cannot be brought to this shape.
    """
    from pfl_core import data

    options: dict[str, Any] = {}
    if len(shape) == 3:
        options = {"channels": shape[0], "resize": shape[1], "normalise": normalise}
    public = data.load(name, **options)
    if (actual := tuple(public.x.shape[1:])) != shape:
        raise ValueError(
            f"FedMD: public={name!r} has samples of {actual}, the clients of {shape}; name another data set"
        )
    return public
