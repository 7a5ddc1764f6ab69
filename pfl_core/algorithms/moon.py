r"""MOON: a client's representations stay close to the shared model's and away from its own last ones.

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021. A baseline of FedPeWS.

    l_con = −log( e^{sim(z, z_g)/T} / (e^{sim(z, z_g)/T} + e^{sim(z, z_p)/T}) )        loss = CE + μ mean(l_con)

z, z_g, z_p: a sample's representation under the model in training, the shared one and the client's previous one; sim is
the cosine, T the temperature. Differs from the paper: the representation is the input of the last linear layer, without
a projection head, so that all methods train the same network; z_g and z_p are those of the images as they are, without
augmentation. Before a client's first round its previous model is the initial one: then l_con = log 2, without gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, softplus

from pfl_core.algorithm import register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.momentum import MovingState
from pfl_core.federation import Federation, LocalTraining, Output, Trained
from pfl_core.ops import ClientRows, put, take
from pfl_core.options import NonNegativeFloat


@dataclass(frozen=True)
class MoonState(MovingState):
    previous: ClientRows | None = None  # [N, e] each client's model after its last training


@register(
    "moon",
    papers=("fedpews",),
    shares="everything; one model for all",
    variants={"strong": {"mu_con": 5.0}},
    passes=1.7,
)
@dataclass(frozen=True)
class Moon(FedAvg):
    """FedAvg with a contrastive loss; mu_con = 0 is FedAvg to the bit."""

    mu_con: NonNegativeFloat = 1.0  # μ
    temperature: float = 0.5  # T (the paper's τ)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0:
            raise ValueError(f"MOON: temperature={self.temperature} is not above 0")

    def init(self, fed: Federation, theta0: Tensor) -> MoonState:
        return MoonState(shared=theta0, previous=theta0.repeat(fed.num_clients, 1))

    def local_training(self, fed: Federation, state: MoonState, clients: Tensor, t: int) -> LocalTraining:
        if self.mu_con == 0:
            return LocalTraining()
        rows = fed.broadcast(state.shared, clients), take(state.previous, clients)
        of_shared, of_previous = (fed.forward(theta, clients, "train", layer="features") for theta in rows)

        def loss(output: Output) -> Tensor:
            near, far = (z[output.row][output.index] for z in (of_shared, of_previous))
            contrast = self.contrast(output.features, near, far)
            return cross_entropy(output.logits, output.labels) + self.mu_con * contrast.mean()

        return LocalTraining(loss=loss)

    def contrast(self, z: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """l_con of each sample [B]; representations [B, f]."""
        return softplus((cosine_similarity(z, far) - cosine_similarity(z, near)) / self.temperature)

    def remember(
        self, fed: Federation, state: MoonState, new: MoonState, clients: Tensor, out: Trained, t: int
    ) -> MoonState:
        return replace(new, previous=put(new.previous, clients, out.theta))

    def round(self, fed: Federation, state: MoonState, clients: Tensor, t: int) -> tuple[MoonState, dict]:
        new, notes = super().round(fed, state, clients, t)
        return new, notes | {"passes": fed.train.epochs + (2 / 3 if self.mu_con else 0)}  # two more forward passes
