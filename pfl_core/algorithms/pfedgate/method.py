r"""pFedGate: all clients share one dense model; each has a private gate that keeps and scales its blocks, by the batch.

Chen, Yao, Gao, Ding and Li, "Efficient Personalized Federated Learning via Sparse Model-Adaptation", ICML 2023,
Algorithm 1; the section numbers here are those of its specification.

    gate      M, G = g(φ_k; batch)        I = knapsack(G; W, s_k d), the first block of each tensor always kept
    adapt     M' = (I − stop(G) + G) M        θ' = θ_k M', block by block
    client    θ_k ← θ_k − η_g ∂L(θ')/∂θ_k        φ_k ← φ_k − η ∂L(θ')/∂φ_k        U_k ← U_k ∪ I
    server    θ[j] ← θ[j] + Σ_k n_k (θ_k[j] − θ[j]) / Σ_k n_k over the clients with j ∈ U_k; no sender: unchanged

"Sparsity" s is the share that is *kept*. φ_k never leaves its client.

Differs from the paper: batches follow each other (read literally, each would start from the received θ).
Taken from the released code where the paper is silent: the mean of sigmoids makes one vector of a batch; G ≥ s_min; at
s = 1 nothing is selected; the gate is in evaluation mode when it is scored; momentum stays with its client over rounds.
Ours: s_min (``min_keep_rule``), importances in thousandths, a seeded order of the test samples (shuffled within the 256
that are scored at once), batch-norm statistics of the network averaged by n_k, no sample is used alone in training,
``output_rows``. Momentum, decay, clipping (of θ and φ apart) and milestones are the run's training settings.
``PFedGate.reading("authors_code")`` sets the released code's choices; each is a field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, MechanismCheck, State, register
from pfl_core.algorithms.pfedgate.adapt import Adapter
from pfl_core.algorithms.pfedgate.evaluation import adapted, probes, scored_masks
from pfl_core.algorithms.pfedgate.local import ClientUpdate, Trainer, relu_loss
from pfl_core.algorithms.pfedgate.mechanism import mechanism_checks
from pfl_core.algorithms.pfedgate.options import PFedGateOptions
from pfl_core.algorithms.pfedgate.server import Server
from pfl_core.algorithms.pfedgate.sliced import SlicedTrainer
from pfl_core.federation import Federation, LocalTraining, Scores
from pfl_core.ops import normalised, put, take
from pfl_core.training import Training


@dataclass(frozen=True)
class GateState(State):
    """``shared`` [e] is θ."""

    gate: Tensor = ABSENT  # [N, v] φ_k
    statistics: Tensor = ABSENT  # [N, q] running statistics of the gates' norms
    velocity: Tensor = ABSENT  # [N, d], where momentum is kept
    gate_velocity: Tensor = ABSENT  # [N, v]
    gate_values: Tensor = ABSENT  # [T, L] M' of each round so far, mean over batches, then over clients


@register(
    "pfedgate",
    papers=("pfedgate",),
    shares="one dense model, of which each client sends the blocks that it used; gates stay with their clients",
    variants={
        "authors_code": {"reading": "authors_code"},
        "s=1": {"keep_ratio": 1.0},
        "s=0.3": {"keep_ratio": 0.3},
        "mixed": {"keep_ratio": (0.5, 0.1)},
        "no_pre_norm": {"pre_norm": False},
        "no_post_norm": {"post_norm": False},
        "no_sigmoid": {"sigmoid": False},
        "client_wise": {"gate_granularity": "client"},
        "local_weights": {"eval_weights": "local"},
        "structured": {"block_layout": "output_rows", "straight_through": "kept", "execution": "sliced"},
        "fixed_mask": {"mask": "small_blocks"},
        "random_mask": {"mask": "random"},
        "scales_1": {"gate_override": 1.0},
    },
    ci={"keep_ratio": 0.85, "lr_gate": 0.5, "scale_bias_init": 3.0},
    trial={"lr_gate": 0.5, "scale_bias_init": 3.0},  # the paper's gates start half closed: they need many more rounds
    passes=1.2,
)
@dataclass(frozen=True)
class PFedGate(PFedGateOptions):
    """Algorithm 1."""

    def init(self, fed: Federation, theta0: Tensor) -> GateState:
        """All clients start with the same gate."""
        adapter, num = Adapter.of(self, fed), fed.num_clients
        if fed.train.batch_size < 2:
            raise ValueError(
                f"PFedGate: batch_size={fed.train.batch_size} trains nothing: the gate's batch norm needs at least two "
                "samples, and smaller batches are left out; take 2 or more"
            )
        copied = self.gate_init == "copied"
        gate, statistics = adapter.gate.start(fed.seed, copied=copied, scale_bias=self.scale_bias_init)
        gates = gate.to(theta0).repeat(num, 1)
        with_momentum = self.keep_momentum and fed.train.momentum > 0
        return GateState(
            shared=theta0,
            gate=gates,
            statistics=statistics.to(theta0).repeat(num, 1),
            velocity=theta0.new_zeros(num, fed.num_params) if with_momentum else None,
            gate_velocity=torch.zeros_like(gates) if with_momentum else None,
            gate_values=theta0.new_zeros(fed.rounds, adapter.blocks.num_blocks),
        )

    def round(self, fed: Federation, state: GateState, clients: Tensor, t: int) -> tuple[GateState, dict]:
        adapter = Adapter.of(self, fed)
        train = (SlicedTrainer if self.execution == "sliced" else Trainer)(adapter, fed, state, t)
        server = Server(adapter.blocks, self.aggregation, state.shared, *self._shares(fed, clients))
        new, scores = state, []
        for places, smallest_batch in self._parts(fed, clients):
            out = train(clients[places], smallest_batch)
            new = self._remember(new, clients[places], out)
            server.add(out, places)
            if fed.score is not None:
                predict = partial(self.predict, fed, new)
                scores.append((places, fed.score(out.theta, clients[places], predict)))
        values = state.gate_values.clone()
        values[t] = server.gate_values()
        feasible = torch.tensor([adapter.feasible(k) for k in clients.tolist()])
        notes = server.notes() | {
            "passes": fed.train.epochs * (2 if self.alternates else 1),
            "infeasible": (~feasible).float(),
        }
        if scores:
            notes["trained"] = _in_order(scores)
        return replace(new, shared=server.merged(), gate_values=values), notes

    def _shares(self, fed: Federation, clients: Tensor) -> tuple[Tensor, float]:
        """Weights [S] of the participants, n_k over all that are averaged, and the weight of the absent ones."""
        absent = int(fed.num_train.sum() - fed.num_train[clients].sum())
        if self.averaged_over == "participants" or not absent:
            return normalised(fed.num_train[clients]), 0.0
        total = float(fed.num_train.sum())
        return fed.num_train[clients] / total, absent / total

    def _parts(self, fed: Federation, clients: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Places in ``clients`` to train together, and the smallest batch that they use (of one sample never)."""
        size = fed.train.batch_size
        for rows in fed.chunks(clients):
            places = torch.arange(len(clients))[rows]
            if self.last_batch == "kept":
                yield places, 2
                continue
            large = fed.num_train[clients[places]].cpu() > size
            for some, smallest in ((places[large], max(size, 2)), (places[~large], 2)):
                if len(some):
                    yield some, smallest

    def _remember(self, state: GateState, clients: Tensor, out: ClientUpdate) -> GateState:
        news = {name: getattr(out, name) for name in ("gate", "statistics", "velocity", "gate_velocity")}
        kept = {n: put(getattr(state, n), clients, v) for n, v in news.items() if getattr(state, n) is not None}
        return replace(state, **kept)

    def predict(self, fed: Federation, state: GateState, k: int, theta_k: Tensor, x: Tensor) -> Tensor:
        """Section 4.9: gate in evaluation mode; one adapted model for each batch of samples in a random order."""
        adapter, places, logits = Adapter.of(self, fed), [], []
        for at, scale, _ in adapted(adapter, fed, state, k, x):
            places.append(at)
            logits.append(self.logits(fed, adapter, theta_k, scale, x[at]))
        return torch.cat(logits)[torch.cat(places).argsort()]

    def logits(self, fed: Federation, adapter: Adapter, theta_k: Tensor, scale: Tensor, x: Tensor) -> Tensor:
        """Of the model that M' [L] makes of ``theta_k``."""
        d = fed.num_params
        out = fed.logits(torch.cat([adapter.blocks.scale(theta_k[:d], scale), theta_k[d:]]), x)
        return out.relu() if self.logit_relu else out

    def adapt(self, fed: Federation, state: GateState, clients: Tensor, t: int) -> GateState:
        """Section 4.11: novel clients train their gates alone, the model frozen."""
        train = Trainer(Adapter.of(self, fed), fed, state, t)
        loss = relu_loss if self.logit_relu else None
        for places, smallest_batch in self._parts(fed, clients):
            chunk = clients[places]
            gate, statistics = take(state.gate, chunk), take(state.statistics, chunk).clone()
            training = LocalTraining(epochs=self.novel_epochs, loss=loss, smallest_batch=smallest_batch)
            gate, _ = train.gate_pass(chunk, statistics, gate, None, training, key=(t, "novel"))
            gates, kept = put(state.gate, chunk, gate), put(state.statistics, chunk, statistics)
            state = replace(state, gate=gates, statistics=kept)
        return state

    @torch.no_grad()
    def artifacts(self, fed: Federation, state: GateState) -> dict[str, Tensor]:
        """Masks on the test data and what is kept by them (s' as section 4.9 has it), gates' distances, Figure 7."""
        adapter = Adapter.of(self, fed)
        found = [scored_masks(adapter, fed, state, k, "test") for k in range(fed.num_clients)]
        use = np.stack([sizes @ masks / sizes.sum() for masks, sizes in found])
        return {
            "test_masks": torch.from_numpy(use).float(),  # [N, L] share of the samples for which a block was kept
            "achieved_keep_ratio": torch.from_numpy(adapter.blocks.share(use)).float(),  # [N]
            "distinct_masks": torch.tensor([len({m.tobytes() for masks, _ in found for m in masks})]),
            "block_sizes": torch.from_numpy(adapter.blocks.sizes),  # [L] W
            "gate_distances": torch.cdist(state.gate, state.gate).cpu(),  # [N, N] Euclidean, of the flattened gates
            "gate_values": state.gate_values.cpu(),  # [T, L]
            **(probes(self, fed, state) if self.probe else {}),
        }

    def mechanism(self, series: Mapping[str, np.ndarray], rounds: int, training: Training) -> list[MechanismCheck]:
        return mechanism_checks(self, series, rounds, training)


def _in_order(parts: list[tuple[Tensor, Scores]]) -> Scores:
    """Scores of all sampled clients, in their order."""
    order = torch.cat([places for places, _ in parts]).argsort()
    joined = Scores.join([scores for _, scores in parts])
    return Scores(joined.correct[order], joined.count[order], joined.loss[order])
