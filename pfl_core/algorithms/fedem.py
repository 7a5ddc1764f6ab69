r"""FedEM: each client's data are a mixture of a few distributions, its model is a mixture of shared components.

Marfoq, Neglia, Bellet, Kameni and Vidal, "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS
2021, Algorithm 1. A baseline of pFedGate.

    E step   l_m(i) = CE(h_m(x_i), y_i)        q_m(i) = softmax_m (log π_km − l_m(i))        π_km ← mean_i q_m(i)
    M step   θ_km ← θ_km − η ∇ Σ_{i in batch} q_m(i) CE(h_m(x_i), y_i) / |batch|             each component m
    server   θ_m ← θ_m + lr_server (Σ_k n_k θ_km / Σ_k n_k − θ_m)
    scored   p(y | x) = Σ_m π_km softmax(h_m(x))

Scores are log p, so that their cross-entropy is that of the mixture. As in the released code, the E step computes the
losses in evaluation mode. A client that never took part makes one E step from equal weights and trains nothing.

Not in the paper: all components see the same batches (the released code shuffles for each component separately). The
first component starts from the initial model, each other one from a copy whose weight and bias tensors are shuffled
inside, since equal components would stay equal. With one component, FedEM is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from pfl_core.algorithm import ABSENT, ClientModel, register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.algorithms.momentum import Momentum, MovingState
from pfl_core.federation import Federation, LocalTraining, Output, Scores, Trained
from pfl_core.layout import WEIGHT
from pfl_core.ops import accumulate, normalised, put, server_step
from pfl_core.options import NonNegativeFloat, PositiveInt
from pfl_core.seeding import generator


@dataclass(frozen=True)
class MixtureState(MovingState):
    components: Tensor = ABSENT  # [M, e] θ_m
    mixture: Tensor = ABSENT  # [N, M] π_k


@register(
    "fedem",
    papers=("pfedgate",),
    shares="a few models for all; each client mixes their predictions with its own weights",
    ci={"components": 2},
    trial_training={"lr": 0.1, "batch_size": 16, "momentum": 0.9},
    passes=4.0,
    step_seconds=0.001,
)
@dataclass(frozen=True)
class FedEM(Momentum[MixtureState]):
    """Costs M times as much as FedAvg: in training, traffic, memory and prediction."""

    usage = (
        "A client's file holds its mixture weights. Its class probabilities are the sum over the components m of "
        "mixture[m] * softmax(component_m(x))."
    )

    components: PositiveInt = 3  # M
    client_weighting: Literal["uniform", "samples"] = "samples"
    lr_server: NonNegativeFloat = 1.0

    def warnings(self, fed: Federation) -> list[str]:
        return ["FedEM: components=1, so all clients have one model, as with FedAvg"] if self.components == 1 else []

    def init(self, fed: Federation, theta0: Tensor) -> MixtureState:
        num, m = fed.num_clients, self.components
        mixture = torch.full((num, m), 1 / m).to(theta0)
        others = [shuffled_copy(fed, theta0, i) for i in range(1, m)]
        return MixtureState(components=torch.stack([theta0, *others]), mixture=mixture)

    def round(self, fed: Federation, state: MixtureState, clients: Tensor, t: int) -> tuple[MixtureState, dict]:
        share = normalised(client_weight(fed, clients, self.client_weighting))
        total = torch.zeros_like(state.components)
        new, losses, scores = state, [], []
        momentum = self.client_momentum(fed, state, self.components * fed.num_params)
        for places in self.chunks(fed, clients):
            chunk = clients[places]
            q = self.e_step(fed, state, chunk)
            new = replace(new, mixture=put(new.mixture, chunk, mean_responsibilities(q)))
            out = self.m_step(fed, state, chunk, q, t, momentum.take(chunk))
            if out.velocity is not None:
                momentum.put(chunk, out.velocity.view(len(chunk), -1))
            theta = out.theta.view(len(chunk), self.components, -1)  # [S, M, e]
            for m in range(self.components):
                accumulate(total[m], theta[:, m], share[places])  # total_m += Σ_k w_k θ_km
            losses.append(out.loss.view(len(chunk), -1).sum(1))
            if fed.score:
                scores.append(self.score_trained(fed, theta, new.mixture, chunk))
        components = server_step(state.components, total, self.lr_server)
        notes = {
            "train_loss": torch.cat(losses),
            "upload": torch.full((len(clients),), self.components * fed.num_params),
            "passes": self.components * (fed.train.epochs + 1 / 3),  # the E step's forward pass counts a third
        }
        new = momentum.into(replace(new, components=components))
        return new, notes | ({"trained": Scores.join(scores)} if scores else {})

    def chunks(self, fed: Federation, clients: Tensor) -> list[Tensor]:
        """Indices into ``clients``, in chunks to train together; M times shorter, since a client takes M rows."""
        places = torch.arange(len(clients))
        chunks = (places[rows] for rows in fed.chunks(clients))
        return [part for chunk in chunks for part in chunk.split(max(1, len(chunk) // self.components))]

    def e_step(self, fed: Federation, state: MixtureState, clients: Tensor) -> list[Tensor]:
        """The responsibilities q [n_k, M] of the components for each client's training samples."""
        losses = []  # for each component: S vectors [n_k]
        for theta in state.components:
            logits = fed.forward(fed.broadcast(theta, clients), clients, "train")
            labels = (fed.labels(k) for k in clients.tolist())
            losses.append([cross_entropy(a, y, reduction="none") for a, y in zip(logits, labels, strict=True)])
        log_prior = state.mixture[clients].log()
        return [torch.softmax(p - torch.stack(l_k, 1), 1) for p, *l_k in zip(log_prior, *losses, strict=True)]

    def m_step(
        self,
        fed: Federation,
        state: MixtureState,
        clients: Tensor,
        q: list[Tensor],
        t: int,
        velocity: Tensor | None = None,
    ) -> Trained:
        """Train the components: rows [S M, e], client by client; velocity [S, M d], or None to start at zero."""
        repeated = clients.repeat_interleave(self.components)

        def loss(output: Output) -> Tensor:
            s, m = divmod(output.row, self.components)
            losses = cross_entropy(output.logits, output.labels, reduction="none")  # [B]
            return (q[s][output.index, m] * losses).mean()

        plain = self.components == 1  # then every q is exactly 1
        theta = state.components.repeat(len(clients), 1)
        velocity = None if velocity is None else velocity.reshape(len(theta), -1)
        return fed.sgd(theta, repeated, LocalTraining(loss=None if plain else loss), key=t, velocity=velocity)

    def score_trained(self, fed: Federation, theta: Tensor, mixture: Tensor, clients: Tensor) -> Scores:
        """Scores of the clients' trained components [S, M, e], before they are averaged."""
        assert fed.score is not None  # the caller has checked that this round is scored
        place = {k: s for s, k in enumerate(clients.tolist())}
        return fed.score(theta[:, 0], clients, lambda k, _, x: log_mixture(fed, theta[place[k]], mixture[k], x))

    def evaluation_models(self, fed: Federation, state: MixtureState, clients: Tensor, t: int) -> Tensor:
        """The first component, as a placeholder: ``predict`` uses all components."""
        return fed.broadcast(state.components[0], clients)

    def predict(self, fed: Federation, state: MixtureState, k: int, theta_k: Tensor, x: Tensor) -> Tensor:
        return log_mixture(fed, state.components, state.mixture[k], x)

    def shared_models(self, fed: Federation, state: MixtureState) -> dict[str, Tensor]:
        return {f"component_{m}": theta for m, theta in enumerate(state.components)}

    def client_model(self, fed: Federation, state: MixtureState, k: int, theta_k: Tensor) -> ClientModel:
        return ClientModel(tensors={"mixture": state.mixture[k]})

    def predict_exported(
        self, fed: Federation, k: int, model: ClientModel, shared: Mapping[str, Tensor], x: Tensor
    ) -> Tensor:
        components = torch.stack([shared[f"component_{m}"] for m in range(self.components)])
        return log_mixture(fed, components, model.tensors["mixture"], x)

    def adapt(self, fed: Federation, state: MixtureState, clients: Tensor, t: int) -> MixtureState:
        equal = torch.full_like(state.mixture, 1 / self.components)
        q = self.e_step(fed, replace(state, mixture=equal), clients)
        return replace(state, mixture=put(state.mixture, clients, mean_responsibilities(q)))

    def artifacts(self, fed: Federation, state: MixtureState) -> dict[str, Tensor]:
        return {"mixture": state.mixture.cpu()}


def mean_responsibilities(q: list[Tensor]) -> Tensor:
    """[S, M] π_k = mean_i q(i) from each client's responsibilities [n_k, M]."""
    return torch.stack([q_k.mean(0) for q_k in q])


def log_mixture(fed: Federation, components: Tensor, mixture: Tensor, x: Tensor) -> Tensor:
    """log Σ_m π_m softmax(h_m(x)) [B, C]; components [M, e], mixture [M]. With one component: its logits."""
    if len(components) == 1:
        return fed.logits(components[0], x)
    logs = [log_softmax(fed.logits(theta, x), 1) + p for theta, p in zip(components, mixture.log(), strict=True)]
    return torch.logsumexp(torch.stack(logs), 0)


def shuffled_copy(fed: Federation, theta0: Tensor, m: int) -> Tensor:
    """[e] theta0 with the values inside each layer's tensors shuffled; norm layers and statistics are unchanged."""
    theta, stream = theta0.clone(), generator(fed.seed, "component", m)
    for f in fed.layout.params:
        if f.kind == WEIGHT:
            order = torch.randperm(f.stop - f.start, generator=stream).to(theta.device)
            theta[f.start : f.stop] = theta[f.start : f.stop][order]
    return theta
