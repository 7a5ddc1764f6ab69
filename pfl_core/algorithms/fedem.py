r"""FedEM: every client's data are a mixture of a few distributions, so its model is a mixture of a few shared ones.

Marfoq, Neglia, Bellet, Kameni and Vidal, "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS
2021, Algorithm 1. pFedGate, section 8 of its specification.

    E step   l_m(i) = CE(h_m(x_i), y_i)        q_m(i) = softmax_m (log π_km − l_m(i))        π_km ← mean_i q_m(i)
    M step   θ_km ← θ_km − η ∇ Σ_{i in batch} q_m(i) CE(h_m(x_i), y_i) / |batch|             each component m
    server   θ_m ← θ_m + lr_server (Σ_k n_k θ_km / Σ_k n_k − θ_m)
    scored   p(y | x) = Σ_m π_km softmax(h_m(x))

Scores are the logarithms of p, so that their cross-entropy is the mixture's. A client that never took part makes one E
step from equal weights and trains nothing (section 4.11). As in the released code the losses of the E step are those of
the network in evaluation mode. Ours: all components take the same batches (the released code trains each one on a
shuffled pass of its own); components start from the initial model,
the first as it is, each other one with the values inside every weight and bias tensor shuffled: alike components would
stay alike. With one component it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from pfl_core.algorithm import ABSENT, check_choices, register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.algorithms.momentum import Momentum, MovingState
from pfl_core.federation import Federation, LocalTraining, Output, Scores, Trained
from pfl_core.layout import WEIGHT
from pfl_core.ops import accumulate, normalised, put, server_step
from pfl_core.options import NonNegativeFloat
from pfl_core.seeding import generator


@dataclass(frozen=True)
class MixtureState(MovingState):
    components: Tensor = ABSENT  # [M, e] θ_m
    mixture: Tensor = ABSENT  # [N, M] π_k


@register(
    "fedem",
    papers=("pfedgate",),
    shares="a few models for all; each client mixes their predictions with weights of its own",
    ci={"components": 2},
    passes=4.0,
)
@dataclass(frozen=True)
class FedEM(Momentum):
    """Costs M times FedAvg: in training, in traffic, in memory and in prediction."""

    components: int = 3  # M
    client_weighting: Literal["uniform", "samples"] = "samples"
    lr_server: NonNegativeFloat = 1.0

    def __post_init__(self) -> None:
        check_choices(self)
        if self.components < 1:
            raise ValueError(f"FedEM: components={self.components} is below 1; the paper has 3")

    def init(self, fed: Federation, theta0: Tensor) -> MixtureState:
        num, m = fed.num_clients, self.components
        mixture = torch.full((num, m), 1 / m).to(theta0)
        others = [shuffled(fed, theta0, i) for i in range(1, m)]
        return MixtureState(components=torch.stack([theta0, *others]), mixture=mixture)

    def round(self, fed: Federation, state: MixtureState, clients: Tensor, t: int) -> tuple[MixtureState, dict]:
        share = normalised(client_weight(fed, clients, self.client_weighting))
        total = torch.zeros_like(state.components)
        new, losses, scores = state, [], []
        momentum = self.client_momentum(fed, state, self.components * fed.num_params)
        for places in self.parts(fed, clients):
            chunk = clients[places]
            duties = self.duties(fed, state, chunk)
            new = replace(new, mixture=put(new.mixture, chunk, torch.stack([q.mean(0) for q in duties])))
            out = self.maximise(fed, state, chunk, duties, t, momentum.take(chunk))
            if out.velocity is not None:
                momentum.put(chunk, out.velocity.view(len(chunk), -1))
            theta = out.theta.view(len(chunk), self.components, -1)  # [S, M, e]
            for m in range(self.components):
                accumulate(total[m], theta[:, m], share[places])
            losses.append(out.loss.view(len(chunk), -1).sum(1))
            scores += [self.trained(fed, theta, new.mixture, chunk)] if fed.score else []
        components = server_step(state.components, total, self.lr_server)
        notes = {
            "train_loss": torch.cat(losses),
            "upload": torch.full((len(clients),), self.components * fed.num_params),
            "passes": self.components * (fed.train.epochs + 1 / 3),  # and a forward pass
        }
        new = momentum.into(replace(new, components=components))
        return new, notes | ({"trained": Scores.join(scores)} if scores else {})

    def parts(self, fed: Federation, clients: Tensor) -> list[Tensor]:
        """Places in ``clients`` to train together: M rows each, so M times fewer than usual."""
        places = torch.arange(len(clients))
        chunks = (places[rows] for rows in fed.chunks(clients))
        return [part for chunk in chunks for part in chunk.split(max(1, len(chunk) // self.components))]

    def duties(self, fed: Federation, state: MixtureState, clients: Tensor) -> list[Tensor]:
        """The E step: q [n_k, M] of every client's training samples."""
        losses = []
        for theta in state.components:
            logits = fed.forward(fed.broadcast(theta, clients), clients, "train")
            labels = (fed.labels(k) for k in clients.tolist())
            losses.append([cross_entropy(a, y, reduction="none") for a, y in zip(logits, labels, strict=True)])
        prior = state.mixture[clients].log()
        return [torch.softmax(p - torch.stack(own, 1), 1) for p, *own in zip(prior, *losses, strict=True)]

    def maximise(
        self,
        fed: Federation,
        state: MixtureState,
        clients: Tensor,
        duties: list[Tensor],
        t: int,
        velocity: Tensor | None = None,
    ) -> Trained:
        """The M step: rows [S M, e], each client's components one after the other; velocity [S, M d], or at rest."""
        repeated = clients.repeat_interleave(self.components)

        def loss(output: Output) -> Tensor:
            s, m = divmod(output.row, self.components)
            each = cross_entropy(output.logits, output.labels, reduction="none")
            return (duties[s][output.index, m] * each).mean()

        alone = self.components == 1  # all duties are exactly 1
        theta = state.components.repeat(len(clients), 1)
        velocity = None if velocity is None else velocity.reshape(len(theta), -1)
        return fed.sgd(theta, repeated, LocalTraining(loss=None if alone else loss), key=t, velocity=velocity)

    def trained(self, fed: Federation, theta: Tensor, mixture: Tensor, clients: Tensor) -> Scores:
        """Scores with the clients' own components [S, M, e], before they are averaged."""
        place = {k: s for s, k in enumerate(clients.tolist())}
        return fed.score(theta[:, 0], clients, lambda k, _, x: mixed(fed, theta[place[k]], mixture[k], x))

    def evaluation_models(self, fed: Federation, state: MixtureState, clients: Tensor, t: int) -> Tensor:
        """The first component; what counts is ``predict``, which asks all of them."""
        return fed.broadcast(state.components[0], clients)

    def predict(self, fed: Federation, state: MixtureState, k: int, theta_k: Tensor, x: Tensor) -> Tensor:
        return mixed(fed, state.components, state.mixture[k], x)

    def adapt(self, fed: Federation, state: MixtureState, clients: Tensor, t: int) -> MixtureState:
        equal = torch.full_like(state.mixture, 1 / self.components)
        duties = self.duties(fed, replace(state, mixture=equal), clients)
        return replace(state, mixture=put(state.mixture, clients, torch.stack([q.mean(0) for q in duties])))

    def artifacts(self, fed: Federation, state: MixtureState) -> dict[str, Tensor]:
        return {"mixture": state.mixture.cpu()}


def mixed(fed: Federation, components: Tensor, mixture: Tensor, x: Tensor) -> Tensor:
    """log Σ_m π_m softmax(h_m(x)) [B, C]; components [M, e], mixture [M]. With one component: its logits."""
    if len(components) == 1:
        return fed.logits(components[0], x)
    logs = [log_softmax(fed.logits(theta, x), 1) + p for theta, p in zip(components, mixture.log(), strict=True)]
    return torch.logsumexp(torch.stack(logs), 0)


def shuffled(fed: Federation, theta0: Tensor, m: int) -> Tensor:
    """[e]: theta0 with the values inside each layer's tensors in another order; norms and statistics as they are."""
    theta, stream = theta0.clone(), generator(fed.seed, "component", m)
    for f in fed.layout.params:
        if f.kind == WEIGHT:
            order = torch.randperm(f.stop - f.start, generator=stream).to(theta.device)
            theta[f.start : f.stop] = theta[f.start : f.stop][order]
    return theta
