r"""FedMD: clients exchange no weights but what their models say about public samples.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", 2019, Algorithm 1. pFedGate, section 8 of
its specification.

    x_t       public samples of round t, the same for all clients
    server    f ← Σ_k w_k f_k(x_t) / Σ_k w_k             of the participants' logits
    digest    θ_k ← SGD(θ_k; mean (f_k(x_t) − f)²)       for ``digest_epochs``
    revisit   θ_k ← SGD(θ_k; D_k)                        local epochs

``public`` names a split of the federation, of which all clients' samples are public ("public"; labels are never
looked at), or a data set: "far" from the clients' own or "near" to it in pFedGate's Table 6. Images are resized to the
clients' size; grey is repeated over the channels, colour becomes its luminance.

Differs from the paper: all clients have the same architecture and the same start (section 8), so there is no training
on labelled public data beforehand; w_k = n_k, as everything in pFedGate's comparison is (there: 1). Ours: the squared
error is a mean over samples and classes; networks are in evaluation mode when they give their opinion. A client that
never took part has the initial model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from pfl_core.algorithm import check_choices, register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.algorithms.momentum import Momentum, MovingState
from pfl_core.federation import Federation, LocalTraining, Output, Trained
from pfl_core.ops import normalised, put, take
from pfl_core.options import NonNegativeInt
from pfl_core.seeding import generator

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
    trial_training={"lr": 0.3, "batch_size": 32, "momentum": 0.0},
    passes=3.0,
)
@dataclass(frozen=True)
class FedMD(Momentum):
    """``local``: N rows [e]."""

    public: str = "public"
    public_normalise: str = "unit"  # how a data set's images are scaled: as the clients' own
    public_samples: int = 5000  # in a round; all there are, if fewer
    digest_epochs: NonNegativeInt = 1
    client_weighting: Literal["uniform", "samples"] = "samples"

    def __post_init__(self) -> None:
        check_choices(self)
        for name, low in (("public_samples", 1), ("digest_epochs", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"FedMD: {name}={getattr(self, name)} is too small, give at least {low}")

    def init(self, fed: Federation, theta0: Tensor) -> MovingState:
        """Raises ValueError or FileNotFoundError if the public samples are not there or do not fit the network."""
        if self.public == "public" and self.public not in fed.splits:
            raise ValueError(
                "FedMD: no public samples in this split; name a data set or the clients' own, public=train"
            )
        self.samples(fed, 0)
        return MovingState(local=(theta0,) * fed.num_clients)

    def samples(self, fed: Federation, t: int) -> Tensor:
        """[n, ...] the public samples of round t, without replacement."""
        own = fed.splits["train"].x
        if self.public in fed.splits:
            pool, prepare = fed.splits[self.public].x, lambda x: x
        else:
            data = public_set(self.public, self.public_normalise, tuple(own.shape[1:]))
            pool, prepare = data.x, data.prepare
        order = torch.randperm(len(pool), generator=generator(fed.seed, "public", t))[: self.public_samples]
        return prepare(pool[order.to(pool.device)]).to(own)

    def round(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> tuple[MovingState, dict]:
        x = self.samples(fed, t)
        public = x, torch.zeros(len(x), dtype=torch.int64, device=x.device)  # labels are not used
        consensus = self.consensus(fed, state, clients, public)

        def digest(output: Output) -> Tensor:
            return mse_loss(output.logits, consensus[output.index])

        on_public = LocalTraining(epochs=self.digest_epochs, loss=digest)
        new, momentum = [], self.client_momentum(fed, state)

        def local(chunk: Tensor, rows: slice) -> Trained:
            data = [public] * len(chunk)
            digested = fed.sgd(take(state.local, chunk), chunk, on_public, key=(t, "digest"), data=data)
            out = fed.sgd(digested.theta, chunk, key=t, velocity=momentum.take(chunk))
            momentum.put(chunk, out.velocity)
            new.extend(row.clone() for row in out.theta)
            return out

        notes = fed.in_chunks(local, clients) | {
            "upload": torch.full((len(clients),), consensus.numel()),
            "passes": fed.train.epochs + (self.digest_epochs + 1 / 3) * len(x) / float(fed.num_train[clients].mean()),
        }
        return momentum.into(replace(state, local=put(state.local, clients, new))), notes

    def consensus(self, fed: Federation, state: MovingState, clients: Tensor, public: tuple[Tensor, Tensor]) -> Tensor:
        """f [n, C]."""
        share = normalised(client_weight(fed, clients, self.client_weighting)).tolist()
        opinions = (fed.forward(state.local[k][None], torch.tensor([k]), [public])[0] for k in clients.tolist())
        return sum(w * logits for w, logits in zip(share, opinions, strict=True))

    def evaluation_models(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> Tensor:
        return take(state.local, clients)


@lru_cache(maxsize=1)
def public_set(name: str, normalise: str, shape: tuple[int, ...]) -> Dataset:
    """The data set of that name with samples of this shape.

    Raises ValueError if there is none, or its samples cannot be made to fit.
    """
    from pfl_core import data

    images: dict[str, Any] = (
        {"channels": shape[0], "resize": shape[1], "normalise": normalise} if len(shape) == 3 else {}
    )
    found = data.load(name, **images)
    if tuple(found.x.shape[1:]) != shape:
        raise ValueError(f"FedMD: public={name!r} has samples of {tuple(found.x.shape[1:])}, the clients of {shape}")
    return found
