r"""FedPer, FedRep, FedBABU and LG-FedAvg: part of the model is averaged, the rest never leaves its client.

They differ in which part stays, and in how the two parts are trained; θ = (u shared, v_k personal), head = last linear
layer, body = all below it.

    θ_k⁺ = train(u, v_k)        u ← mean_k u_k⁺        v_k ← v_k⁺

    FedPer      v = head    both at once                                     Arivazhagan et al., arXiv 1912.00818
    FedRep      v = head    v for some epochs, then u                        Collins et al., ICML 2021, Algorithm 1
    FedBABU     v = head    u only: the head keeps its random start;         Oh et al., ICLR 2022, Algorithm 1
                            a copy is fine-tuned before it is scored
    LG-FedAvg   v = body    both at once                                     Liang et al., arXiv 2001.01523, Algorithm 1

FedSelect, section 6 of its specification; pFedGate, section 8. Differs from the papers: all clients weigh the same by
default (``client_weighting="samples"``: n_k). FedRep trains 2 + 1 epochs, so that all methods have three (its code:
10 + 1). LG-FedAvg starts from scratch (its code: from a model that FedAvg trained; ``warm_start_rounds``) and shares
one layer (its code: two; ``shared_layers``). No momentum or decay beyond what all methods have.

Batches (ours): epoch i of a pass has the i-th order of the round, as FedAvg, Local and FedSelect have; FedRep's body
starts again with the orders that its head had. Batch-norm statistics (FedSelect's A13): a client that is scored with a
model of its own keeps them, of all layers (``buffer_policy="average"``: the mean, as for the body); with LG-FedAvg they
belong to the local body anyway. FedBABU, whose copies start from one shared model, averages them, as FedAvg does.
Clients that never took part (ours) train their personal part, the shared one fixed, before they are scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pfl_core.algorithm import Algorithm, check_choices, register
from pfl_core.algorithms.fedavg import FedAvg, client_weight
from pfl_core.algorithms.momentum import Momentum, MovingState
from pfl_core.federation import Federation, LocalTraining, Trained
from pfl_core.layout import STATISTIC, WEIGHT, Field, Layout
from pfl_core.ops import put, select
from pfl_core.options import NonNegativeFloat, NonNegativeInt


def taken(row: Tensor, parts: Sequence[slice]) -> Tensor:
    """These entries of one row, as a copy [p]."""
    return torch.cat([row[:0], *(row[part] for part in parts)])


def top(layout: Layout, count: int) -> set[str]:
    """The last ``count`` layers with weights, ending with the head, and the norms between them.

    Raises ValueError if the network has fewer.
    """
    layers = list(dict.fromkeys(f.layer for f in layout.params))
    layers = layers[: layers.index(layout.head) + 1]
    weighted = list(dict.fromkeys(f.layer for f in layout.params if f.kind == WEIGHT and f.layer in layers))
    if count > len(weighted):
        raise ValueError(f"the last {count} layers are asked for, the model has {len(weighted)}: name fewer")
    return set(layers[layers.index(weighted[-count]) :]) if count else set()


def at_least(made: Algorithm, **lowest: float) -> None:
    """Raise ValueError for a setting below its lowest value."""
    for name, low in lowest.items():
        if not getattr(made, name) >= low:
            raise ValueError(f"{type(made).__name__}: {name}={getattr(made, name)} is too small, give at least {low}")


@dataclass(frozen=True)
class PartialState(MovingState):
    """``shared`` [e] is u; its personal entries are those that all clients started from."""

    own: tuple[Tensor, ...] = ()  # N rows [p]: v_k, the personal entries in the layout's order


@dataclass(frozen=True)
class Partial(Momentum):
    """The round that they have in common."""

    client_weighting: Literal["uniform", "samples"] = "uniform"
    buffer_policy: Literal["local", "average"] = "local"

    def __post_init__(self) -> None:
        check_choices(self)

    def own_layers(self, layout: Layout) -> set[str]:
        """Names of the layers that a client keeps."""
        return {layout.head}

    def keeps(self, layout: Layout) -> Callable[[Field], bool]:
        """Whether a tensor stays with its client; statistics by policy alone."""
        layers, at_home = self.own_layers(layout), self.buffer_policy == "local"
        return lambda f: at_home if f.kind == STATISTIC else f.layer in layers

    def parts(self, layout: Layout) -> list[slice]:
        """What a client keeps, tensor by tensor."""
        keeps = self.keeps(layout)
        return [slice(f.start, f.stop) for f in layout.fields if keeps(f)]

    def personal(self, fed: Federation) -> Tensor:
        """The same as a mask, bool [e]."""
        return fed.layout.mask(self.keeps(fed.layout)).to(fed.theta0.device)

    def init(self, fed: Federation, theta0: Tensor) -> PartialState:
        own = taken(theta0, self.parts(fed.layout))
        return PartialState(shared=theta0, own=(own,) * fed.num_clients)

    def rows(self, fed: Federation, state: PartialState, clients: Tensor) -> Tensor:
        """[S, e]: (u, v_k) of these clients."""
        parts = self.parts(fed.layout)
        if not parts:
            return fed.broadcast(state.shared, clients)
        theta = state.shared.repeat(len(clients), 1)
        for row, k in zip(theta, clients.tolist(), strict=True):
            pieces = state.own[k].split([part.stop - part.start for part in parts])
            for part, piece in zip(parts, pieces, strict=True):
                row[part] = piece
        return theta

    def evaluation_models(self, fed: Federation, state: PartialState, clients: Tensor, t: int) -> Tensor:
        return self.rows(fed, state, clients)

    def train(self, fed: Federation, theta: Tensor, clients: Tensor, t: int, velocity: Tensor | None) -> Trained:
        """A round's local training of the rows [S, e]; ``velocity`` [S, d], None: at rest."""
        return fed.sgd(theta, clients, key=t, velocity=velocity)

    def train_own(
        self,
        fed: Federation,
        theta: Tensor,
        clients: Tensor,
        key: int | tuple[int | str, ...],
        velocity: Tensor | None = None,
    ) -> Trained:
        """The same, of the personal part alone."""
        training = replace(self.personal_training(), trainable=self.personal(fed))
        return fed.sgd(theta, clients, training, key=key, velocity=velocity)

    def personal_training(self) -> LocalTraining:
        """Epochs and rate of that, where they are not the federation's."""
        return LocalTraining()

    def round(self, fed: Federation, state: PartialState, clients: Tensor, t: int) -> tuple[PartialState, dict]:
        parts, own, momentum = self.parts(fed.layout), [], self.client_momentum(fed, state)

        def local(chunk: Tensor, rows: slice) -> Trained:
            out = self.train(fed, self.rows(fed, state, chunk), chunk, t, momentum.take(chunk))
            momentum.put(chunk, out.velocity)
            own.extend(taken(row, parts) for row in out.theta)
            return out

        mean, notes = fed.average(local, clients, client_weight(fed, clients, self.client_weighting))
        shared = select(self.personal(fed), state.shared, mean)
        count = sum(part.stop - part.start for part in parts if part.stop <= fed.num_params)
        new = momentum.into(replace(state, shared=shared, own=put(state.own, clients, own)))
        return new, notes | {
            "upload": torch.full((len(clients),), fed.num_params - count),
            "personal_share": count / fed.num_params,
            "passes": self.passes(fed),
        }

    def passes(self, fed: Federation) -> int:
        return fed.train.epochs

    def adapt(self, fed: Federation, state: PartialState, clients: Tensor, t: int) -> PartialState:
        parts = self.parts(fed.layout)
        for rows in fed.chunks(clients) if parts else ():
            chunk = clients[rows]
            out = self.train_own(fed, self.rows(fed, state, chunk), chunk, (t, "adapt"))
            state = replace(state, own=put(state.own, chunk, [taken(row, parts) for row in out.theta]))
        return state


@register(
    "fedper",
    papers=("fedselect",),
    shares="all but the head; head and body are trained together",
    variants={"two_layers": {"personal_layers": 2}, "average_statistics": {"buffer_policy": "average"}},
)
@dataclass(frozen=True)
class FedPer(Partial):
    """Personal top layers; none, with statistics averaged, is FedAvg to the bit."""

    personal_layers: int = 1  # counted from the head down

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, personal_layers=0)

    def own_layers(self, layout: Layout) -> set[str]:
        return top(layout, self.personal_layers)


@register(
    "fedrep",
    papers=("fedselect", "pfedgate"),
    shares="all but the head; the head is trained first, then the body",
    variants={
        "ten_head_epochs": {"head_epochs": 10},
        "one_head_epoch": {"head_epochs": 1},
        "average_statistics": {"buffer_policy": "average"},
    },
)
@dataclass(frozen=True)
class FedRep(Partial):
    """One epoch each, with one order of batches, is FedSelect with the head as everybody's fixed mask."""

    head_epochs: NonNegativeInt = 2  # pFedGate: 1
    body_epochs: NonNegativeInt = 1
    lr_head: NonNegativeFloat | None = None  # None: the federation's rate, as for the body

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, head_epochs=1, body_epochs=1, **({} if self.lr_head is None else {"lr_head": 0}))

    def train(self, fed: Federation, theta: Tensor, clients: Tensor, t: int, velocity: Tensor | None) -> Trained:
        head = self.personal(fed)
        first = self.train_own(fed, theta, clients, t, velocity)
        body = LocalTraining(epochs=self.body_epochs, trainable=~head)
        out = fed.sgd(first.theta, clients, body, key=t, velocity=velocity)
        if velocity is None:
            return out
        return replace(out, velocity=torch.where(head[: fed.num_params], first.velocity, out.velocity))

    def personal_training(self) -> LocalTraining:
        return LocalTraining(epochs=self.head_epochs, lr=self.lr_head)

    def passes(self, fed: Federation) -> int:
        return self.head_epochs + self.body_epochs


@register(
    "fedbabu",
    papers=("fedselect",),
    shares="all but the head, which nobody trains; each client is scored with its own fine-tuned copy",
    variants={
        "head_only": {"finetune_part": "head"},
        "body_only": {"finetune_part": "body"},
        "ten_epochs": {"finetune_epochs": 10},
    },
    passes=2.7,
)
@dataclass(frozen=True)
class FedBABU(Partial):
    """The fine-tuned copies are never fed back."""

    buffer_policy: Literal["local", "average"] = "average"
    finetune_epochs: NonNegativeInt = 5
    finetune_part: Literal["all", "head", "body"] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, finetune_epochs=0)

    def train(self, fed: Federation, theta: Tensor, clients: Tensor, t: int, velocity: Tensor | None) -> Trained:
        return fed.sgd(theta, clients, LocalTraining(trainable=~self.personal(fed)), key=t, velocity=velocity)

    def evaluation_models(self, fed: Federation, state: PartialState, clients: Tensor, t: int) -> Tensor:
        head = self.personal(fed)
        part = {"all": None, "head": head, "body": ~head}[self.finetune_part]
        training = LocalTraining(epochs=self.finetune_epochs, trainable=part)
        return fed.sgd(self.rows(fed, state, clients), clients, training, key=(t, "finetune")).theta

    def adapt(self, fed: Federation, state: PartialState, clients: Tensor, t: int) -> PartialState:
        """Nothing: every client's copy is fine-tuned anyway."""
        return state


@register(
    "lg_fedavg",
    papers=("fedselect", "pfedgate"),
    shares="the head; every client keeps its body",
    variants={"two_layers": {"shared_layers": 2}},
)
@dataclass(frozen=True)
class LGFedAvg(Partial):
    """Shared top layers; none is Local to the bit."""

    shared_layers: int = 1  # counted from the head down
    warm_start_rounds: int = 0  # so many of the rounds are FedAvg's; then every client's body starts from its model

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, shared_layers=0, warm_start_rounds=0)

    def own_layers(self, layout: Layout) -> set[str]:
        return {f.layer for f in layout.params} - top(layout, self.shared_layers)

    def round(self, fed: Federation, state: PartialState, clients: Tensor, t: int) -> tuple[PartialState, dict]:
        if t >= self.warm_start_rounds:
            return super().round(fed, state, clients, t)
        common = FedAvg(self.client_weighting, keep_momentum=self.keep_momentum)
        new, notes = common.round(fed, MovingState(shared=state.shared, velocity=state.velocity), clients, t)
        return replace(self.init(fed, new.shared), velocity=new.velocity), notes | {"personal_share": 0.0}

    def adapt(self, fed: Federation, state: PartialState, clients: Tensor, t: int) -> PartialState:
        return state if t < self.warm_start_rounds else super().adapt(fed, state, clients, t)
