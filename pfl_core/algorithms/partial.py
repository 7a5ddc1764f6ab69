r"""FedPer, FedRep, FedBABU and LG-FedAvg: one part of the model is averaged, the other never leaves its client.

The methods differ in which part is personal and in how the two parts are trained. θ = (u shared, v_k personal); the
head is the last linear layer, the body is everything below it.

    θ_k⁺ = train(u, v_k)        u ← mean_k u_k⁺        v_k ← v_k⁺

    FedPer      v = head    both parts together                              Arivazhagan et al., arXiv 1912.00818
    FedRep      v = head    v for some epochs, then u                        Collins et al., ICML 2021, Algorithm 1
    FedBABU     v = head    u only: the head keeps its random start;         Oh et al., ICLR 2022, Algorithm 1
                            a copy is fine-tuned for evaluation
    LG-FedAvg   v = body    both parts together                              Liang et al., arXiv 2001.01523, Algorithm 1

Baselines of FedSelect and pFedGate. Differs from the papers:

- All clients have equal weights by default (``client_weighting="samples"``: n_k).
- FedRep trains 2 + 1 epochs, so that all methods have three (its code: 10 + 1).
- LG-FedAvg starts from the initial model (its code: from a model trained by FedAvg, ``warm_start_rounds``) and shares
  one layer (its code: two, ``shared_layers``).
- No method has momentum or weight decay beyond the federation's.

Not in the papers:

- Batches: epoch i of a pass has the round's i-th order, as with FedAvg, Local and FedSelect. FedRep's body pass starts
  again with the orders of its head pass.
- Batch-norm statistics of all layers stay with a client that is scored with a personal model
  (``buffer_policy="average"``: averaged). FedBABU averages them, as FedAvg does, since its copies start from one
  shared model.
- A client that never took part trains its personal part, with the shared part fixed, before it is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast

import torch
from torch import Tensor

from pfl_core.algorithm import Algorithm, register
from pfl_core.algorithms.fedavg import FedAvg, client_weight
from pfl_core.algorithms.momentum import Momentum, MovingState
from pfl_core.federation import Federation, LocalTraining, Trained
from pfl_core.layout import STATISTIC, WEIGHT, Field, Layout
from pfl_core.ops import count_true, put, select
from pfl_core.options import NonNegativeFloat, NonNegativeInt, PositiveInt


def select_entries(row: Tensor, slices: Sequence[slice]) -> Tensor:
    """The entries of one row [e] in these slices, as a copy [p]."""
    return torch.cat([row[:0], *(row[part] for part in slices)])


def top_layers(layout: Layout, count: int) -> set[str]:
    """Names of the last ``count`` layers with weights, up to the head, and of the norm layers between them.

    Raises ValueError if the network has fewer.
    """
    layers = list(layout.order[: layout.order.index(layout.head) + 1])
    weighted = [layer for layer in layers if any(f.layer == layer and f.kind == WEIGHT for f in layout.params)]
    if count > len(weighted):
        raise ValueError(f"the last {count} layers are requested, but the model has {len(weighted)}; request fewer")
    return set(layers[layers.index(weighted[-count]) :]) if count else set()


@dataclass(frozen=True)
class PartialState(MovingState):
    """``shared`` [e] holds u; its personal entries keep their initial values."""

    own: tuple[Tensor, ...] = ()  # N rows [p]: v_k, the personal entries in the layout's order


PartialStateT = TypeVar("PartialStateT", bound=PartialState)


@dataclass(frozen=True)
class Partial(Momentum[PartialStateT]):
    """The round that these methods have in common."""

    client_weighting: Literal["uniform", "samples"] = "uniform"
    buffer_policy: Literal["local", "average"] = "local"

    def local_layers(self, layout: Layout) -> set[str]:
        """Names of the layers that stay with the client."""
        return {layout.head}

    def is_personal(self, layout: Layout) -> Callable[[Field], bool]:
        """A function that says whether a tensor stays with the client. For statistics only the policy counts."""
        layers, local_statistics = self.local_layers(layout), self.buffer_policy == "local"
        return lambda f: local_statistics if f.kind == STATISTIC else f.layer in layers

    def personal_slices(self, layout: Layout) -> list[slice]:
        """The entries that stay with the client, one slice per tensor."""
        is_personal = self.is_personal(layout)
        return [slice(f.start, f.stop) for f in layout.fields if is_personal(f)]

    def personal_mask(self, fed: Federation) -> Tensor:
        """The entries that stay with the client as a mask, bool [e]."""
        return fed.layout.mask(self.is_personal(fed.layout)).to(fed.theta0.device)

    def warnings(self, fed: Federation) -> list[str]:
        """A line if no parameter is personal, or every one."""
        share = count_true(self.personal_mask(fed)[: fed.num_params]) / fed.num_params
        if 0 < share < 1:
            return []
        what = "no parameter stays with a client" if not share else "no parameter is shared"
        layers = f"the network's layers are {', '.join(fed.layout.order)}, its head is {fed.layout.head}"
        return [f"{type(self).__name__}: {what}; {layers}"]

    def init(self, fed: Federation, theta0: Tensor) -> PartialStateT:
        v = select_entries(theta0, self.personal_slices(fed.layout))
        return cast(PartialStateT, PartialState(shared=theta0, own=(v,) * fed.num_clients))

    def client_models(self, fed: Federation, state: PartialStateT, clients: Tensor) -> Tensor:
        """[S, e] the models (u, v_k) of these clients."""
        slices = self.personal_slices(fed.layout)
        if not slices:
            return fed.broadcast(state.shared, clients)
        theta = state.shared.repeat(len(clients), 1)
        for row, k in zip(theta, clients.tolist(), strict=True):
            tensors = state.own[k].split([part.stop - part.start for part in slices])  # v_k, tensor by tensor
            for part, values in zip(slices, tensors, strict=True):
                row[part] = values
        return theta

    def evaluation_models(self, fed: Federation, state: PartialStateT, clients: Tensor, t: int) -> Tensor:
        return self.client_models(fed, state, clients)

    def train(self, fed: Federation, theta: Tensor, clients: Tensor, t: int, velocity: Tensor | None) -> Trained:
        """A round's local training of the rows [S, e]; velocity [S, d], or None to start at zero."""
        return fed.sgd(theta, clients, key=t, velocity=velocity)

    def train_personal(
        self,
        fed: Federation,
        theta: Tensor,
        clients: Tensor,
        key: int | tuple[int | str, ...],
        velocity: Tensor | None = None,
    ) -> Trained:
        """Train only the personal part of the rows [S, e]."""
        training = replace(self.personal_training(), trainable=self.personal_mask(fed))
        return fed.sgd(theta, clients, training, key=key, velocity=velocity)

    def personal_training(self) -> LocalTraining:
        """Epochs and learning rate of ``train_personal``, where they differ from the federation's."""
        return LocalTraining()

    def round(self, fed: Federation, state: PartialStateT, clients: Tensor, t: int) -> tuple[PartialStateT, dict]:
        slices, momentum = self.personal_slices(fed.layout), self.client_momentum(fed, state)
        personal: list[Tensor] = []  # S rows [p] v_k⁺

        def local(chunk: Tensor, rows: slice) -> Trained:
            out = self.train(fed, self.client_models(fed, state, chunk), chunk, t, momentum.take(chunk))
            momentum.put(chunk, out.velocity)
            personal.extend(select_entries(row, slices) for row in out.theta)
            return out

        mean, notes = fed.average(local, clients, client_weight(fed, clients, self.client_weighting))
        mask = self.personal_mask(fed)
        count, shared = count_true(mask[: fed.num_params]), select(mask, state.shared, mean)
        new = momentum.into(replace(state, shared=shared, own=put(state.own, clients, personal)))
        return new, notes | {
            "upload": torch.full((len(clients),), fed.num_params - count),
            "personal_share": count / fed.num_params,
            "passes": self.passes(fed),
        }

    def passes(self, fed: Federation) -> int:
        """Passes over a client's data in a round."""
        return fed.train.epochs

    def adapt(self, fed: Federation, state: PartialStateT, clients: Tensor, t: int) -> PartialStateT:
        slices = self.personal_slices(fed.layout)
        for rows in fed.chunks(clients) if slices else ():
            chunk = clients[rows]
            out = self.train_personal(fed, self.client_models(fed, state, chunk), chunk, (t, "adapt"))
            state = replace(state, own=put(state.own, chunk, [select_entries(row, slices) for row in out.theta]))
        return state


@register(
    "fedper",
    papers=("fedselect",),
    shares="all but the head; head and body are trained together",
    variants={"two_layers": {"personal_layers": 2}, "average_statistics": {"buffer_policy": "average"}},
)
@dataclass(frozen=True)
class FedPer(Partial[PartialState]):
    """Personal top layers. With none of them and averaged statistics it is bitwise equal to FedAvg."""

    personal_layers: NonNegativeInt = 1  # counted from the head down

    def local_layers(self, layout: Layout) -> set[str]:
        return top_layers(layout, self.personal_layers)


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
class FedRep(Partial[PartialState]):
    """With one epoch each it is FedSelect whose mask is fixed to the head on every client."""

    head_epochs: PositiveInt = 2  # as a baseline of pFedGate: 1
    body_epochs: PositiveInt = 1
    lr_head: NonNegativeFloat | None = None  # None: the federation's rate, as for the body

    def train(self, fed: Federation, theta: Tensor, clients: Tensor, t: int, velocity: Tensor | None) -> Trained:
        head = self.personal_mask(fed)
        head_pass = self.train_personal(fed, theta, clients, t, velocity)
        body = LocalTraining(epochs=self.body_epochs, trainable=~head)
        out = fed.sgd(head_pass.theta, clients, body, key=t, velocity=velocity)
        if velocity is None:
            return out
        return replace(out, velocity=torch.where(head[: fed.num_params], head_pass.velocity, out.velocity))

    def personal_training(self) -> LocalTraining:
        return LocalTraining(epochs=self.head_epochs, lr=self.lr_head)

    def passes(self, fed: Federation) -> int:
        return self.head_epochs + self.body_epochs


@register(
    "fedbabu",
    papers=("fedselect",),
    shares="all but the head, which keeps its initial values; each client is scored with a fine-tuned copy",
    variants={
        "head_only": {"finetune_part": "head"},
        "body_only": {"finetune_part": "body"},
        "ten_epochs": {"finetune_epochs": 10},
    },
    passes=2.7,
)
@dataclass(frozen=True)
class FedBABU(Partial[PartialState]):
    """The fine-tuned copies are used for evaluation only."""

    buffer_policy: Literal["local", "average"] = "average"
    finetune_epochs: NonNegativeInt = 5
    finetune_part: Literal["all", "head", "body"] = "all"

    def train(self, fed: Federation, theta: Tensor, clients: Tensor, t: int, velocity: Tensor | None) -> Trained:
        return fed.sgd(theta, clients, LocalTraining(trainable=~self.personal_mask(fed)), key=t, velocity=velocity)

    def evaluation_models(self, fed: Federation, state: PartialState, clients: Tensor, t: int) -> Tensor:
        head = self.personal_mask(fed)
        part = {"all": None, "head": head, "body": ~head}[self.finetune_part]
        training = LocalTraining(epochs=self.finetune_epochs, trainable=part)
        return fed.sgd(self.client_models(fed, state, clients), clients, training, key=(t, "finetune")).theta

    def adapt(self, fed: Federation, state: PartialState, clients: Tensor, t: int) -> PartialState:
        """Unchanged: every client's copy is fine-tuned for evaluation in any case."""
        return state


@register(
    "lg_fedavg",
    papers=("fedselect", "pfedgate"),
    shares="the head; every client keeps its body",
    variants={"two_layers": {"shared_layers": 2}},
)
@dataclass(frozen=True)
class LGFedAvg(Partial[PartialState]):
    """Shared top layers. With none of them it is bitwise equal to Local."""

    shared_layers: NonNegativeInt = 1  # counted from the head down
    warm_start_rounds: NonNegativeInt = 0  # first rounds of plain FedAvg, with whose model every client's body starts

    @property
    def inner_algorithms(self) -> tuple[Algorithm, ...]:
        return (FedAvg(),) if self.warm_start_rounds else ()

    def local_layers(self, layout: Layout) -> set[str]:
        return {f.layer for f in layout.params} - top_layers(layout, self.shared_layers)

    def round(self, fed: Federation, state: PartialState, clients: Tensor, t: int) -> tuple[PartialState, dict]:
        if t >= self.warm_start_rounds:
            return super().round(fed, state, clients, t)
        fedavg: FedAvg[MovingState] = FedAvg(self.client_weighting, keep_momentum=self.keep_momentum)
        new, notes = fedavg.round(fed, MovingState(shared=state.shared, velocity=state.velocity), clients, t)
        return replace(self.init(fed, new.shared), velocity=new.velocity), notes | {"personal_share": 0.0}

    def adapt(self, fed: Federation, state: PartialState, clients: Tensor, t: int) -> PartialState:
        return state if t < self.warm_start_rounds else super().adapt(fed, state, clients, t)
