r"""MOON: a contrastive loss pulls a client's features towards the shared model's, away from its previous model's.

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021. A baseline of FedPeWS.

    l_con = −log( e^{sim(z, z_g)/T} / (e^{sim(z, z_g)/T} + e^{sim(z, z_p)/T}) )        loss = CE + μ mean(l_con)

z, z_g, z_p: a sample's features under the model in training, the shared model and the client's previous model; sim is
the cosine similarity, T the temperature. In a client's first round the previous model is the initial one. In round 0
that is also the shared model: l_con = log 2 with zero gradient.

Differs from the paper: features are the input of the last linear layer, without a projection head, so that all methods
train the same network. z_g and z_p are computed without augmentation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, softplus

from pfl_core.algorithm import ABSENT, register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.momentum import MovingState
from pfl_core.federation import Federation, LocalTraining, Output, Trained
from pfl_core.ops import ClientRows, put, take
from pfl_core.options import NonNegativeFloat


@dataclass(frozen=True)
class MoonState(MovingState):
    previous: ClientRows = ABSENT  # [N, e] each client's model after its last local training


@register(
    "moon",
    papers=("fedpews",),
    shares="everything; one model for all",
    variants={"strong": {"mu_con": 5.0}},
    passes=1.7,
)
@dataclass(frozen=True)
class Moon(FedAvg[MoonState]):
    """FedAvg with a contrastive loss; mu_con = 0 is bitwise equal to FedAvg."""

    mu_con: NonNegativeFloat = 1.0  # μ, weight of the contrastive loss
    temperature: float = 0.5  # T (the paper's τ)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0:
            raise ValueError(f"MOON: temperature={self.temperature} is not above 0; the paper has 0.5")

    def init(self, fed: Federation, theta0: Tensor) -> MoonState:
        fed.check_features("MOON")
        return MoonState(shared=theta0, previous=theta0.repeat(fed.num_clients, 1))

    def local_training(self, fed: Federation, state: MoonState, clients: Tensor, t: int) -> LocalTraining:
        if self.mu_con == 0:
            return LocalTraining()
        models = fed.broadcast(state.shared, clients), take(state.previous, clients)
        z_shared, z_previous = (fed.forward(theta, clients, "train", layer="features") for theta in models)

        def loss(output: Output) -> Tensor:
            z_g, z_p = (z[output.row][output.index] for z in (z_shared, z_previous))  # [B, f] of the batch
            contrast = self.contrast(output.features, z_g, z_p)
            return cross_entropy(output.logits, output.labels) + self.mu_con * contrast.mean()

        return LocalTraining(loss=loss)

    def contrast(self, z: Tensor, z_g: Tensor, z_p: Tensor) -> Tensor:
        """l_con [B] of each sample; features [B, f]."""
        return softplus((cosine_similarity(z, z_p) - cosine_similarity(z, z_g)) / self.temperature)

    def after_training(
        self, fed: Federation, state: MoonState, new: MoonState, clients: Tensor, out: Trained, t: int
    ) -> MoonState:
        return replace(new, previous=put(new.previous, clients, out.theta))

    def round(self, fed: Federation, state: MoonState, clients: Tensor, t: int) -> tuple[MoonState, dict]:
        new, notes = super().round(fed, state, clients, t)
        return new, notes | {"passes": fed.train.epochs + (2 / 3 if self.mu_con else 0)}  # two more forward passes
