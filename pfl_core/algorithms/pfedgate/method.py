r"""pFedGate: one shared dense model; the private gate of each client selects and scales its blocks for every batch.

Chen, Yao, Gao, Ding and Li, "Efficient Personalized Federated Learning via Sparse Model-Adaptation", ICML 2023,
Algorithm 1.

    gate      M, G = g(φ_k; batch)        I = knapsack(G; W, s_k d), the first block of each tensor always kept
    adapt     M' = (I − stop(G) + G) M        θ' = θ_k M', block by block
    client    θ_k ← θ_k − η_g ∂L(θ')/∂θ_k        φ_k ← φ_k − η ∂L(θ')/∂φ_k        U_k ← U_k ∪ I
    server    θ[j] ← θ[j] + Σ_k n_k (θ_k[j] − θ[j]) / Σ_k n_k over the clients with j ∈ U_k; unchanged if there is none

The "sparsity" s of the paper is the share that is *kept*. φ_k never leaves its client.

Differs from the paper: each batch starts from the parameters that the last batch left. (Algorithm 1 read literally
starts every batch from the received θ.)
Taken from the released code, where the paper is silent: the sigmoids are averaged over the batch; G ≥ s_min; at s = 1
nothing is selected; gates are scored in evaluation mode; a client keeps its momentum between rounds.
Not in the paper: the value of s_min (``min_keep_rule``); importances rounded to thousandths; a seeded random order of
the test samples (shuffled within the 256 that are scored at once); batch-norm statistics of the network averaged with
weights n_k; training batches of one sample are skipped; ``output_rows``. Momentum, weight decay, clipping (separate for
θ and φ) and milestones are training settings of the run.
``PFedGate.reading("authors_code")`` sets the choices of the released code; each is a field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, ClientModel, register
from pfl_core.algorithms.pfedgate.adapt import Adapter, GateState
from pfl_core.algorithms.pfedgate.gate import Blocks
from pfl_core.algorithms.pfedgate.local import (
    ClientUpdate,
    Trainer,
    adapted,
    batchwise,
    fixed_vector,
    logits_by_batch,
    probes,
    relu_loss,
    scored_masks,
)
from pfl_core.algorithms.pfedgate.options import PFedGateOptions
from pfl_core.algorithms.pfedgate.sliced import SlicedTrainer
from pfl_core.federation import Federation, LocalTraining, Scores
from pfl_core.ops import accumulate, normalised, put, select, take


@register(
    "pfedgate",
    papers=("pfedgate",),
    shares="one dense model; a client sends the blocks that it used, and its gate stays private",
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
    step_seconds=0.004,
    # The paper's gates start at M = 0.5 and need many more rounds. At lr_gate = 0.5 they hardly learn in 20 rounds.
    trial={"lr_gate": 1.0, "scale_bias_init": 3.0},
    trial_training={"lr": 0.05, "momentum": 0.9},
    passes=1.2,
)
@dataclass(frozen=True)
class PFedGate(PFedGateOptions):
    """Algorithm 1."""

    def init(self, fed: Federation, theta0: Tensor) -> GateState:
        """All clients start with the same gate. Raises ValueError for a batch size of 1."""
        adapter, num = Adapter.of(self, fed), fed.num_clients
        if fed.train.batch_size < 2:
            raise ValueError(
                f"PFedGate: batch_size={fed.train.batch_size} trains nothing: the gate's batch norm needs at least two "
                "samples, so smaller batches are skipped; use 2 or more"
            )
        copied = self.gate_init == "copied"
        gate, statistics = adapter.gate.start(fed.seed, copied=copied, scale_bias=self.scale_bias_init)
        gates = gate.to(theta0).repeat(num, 1)
        with_momentum = self.keep_momentum and fed.train.momentum > 0
        return GateState(
            shared=theta0,
            gate=gates,
            statistics=statistics.to(theta0).repeat(num, 1),
            velocity=theta0.new_zeros(num, fed.num_params) if with_momentum else ABSENT,
            gate_velocity=torch.zeros_like(gates) if with_momentum else ABSENT,
            gate_values=theta0.new_zeros(0, adapter.blocks.num_blocks),
        )

    def warnings(self, fed: Federation) -> list[str]:
        """A line if the budget of some clients is below the share of the model that is always kept."""
        adapter = Adapter.of(self, fed)
        below = int((adapter.spare < 0).sum())
        if not below:
            return []
        advice = "raise keep_ratio"
        if self.block_layout != "equal":  # whose first block is 1 / B of a tensor in any case
            advice += " or lower min_keep_ratio"
        return [
            f"pFedGate: keep_ratio={self.keep_ratio} has no effect for {below} of {fed.num_clients} clients: the "
            f"blocks that are always kept are {adapter.blocks.share(adapter.blocks.always):.1%} of the model; {advice}"
        ]

    def round(self, fed: Federation, state: GateState, clients: Tensor, t: int) -> tuple[GateState, dict]:
        adapter = Adapter.of(self, fed)
        trainer = (SlicedTrainer if self.execution == "sliced" else Trainer)(adapter, fed, state, t)
        log, blocks = trainer.log, adapter.blocks
        server = Server(blocks, self.aggregation, state.shared, *self._shares(fed, clients))
        new, places_of, losses, steps_of, scores = state, [], [], [], []
        for places, smallest_batch in self._parts(fed, clients):
            out = trainer(clients[places], smallest_batch)
            new = self._remember(new, clients[places], out)
            server.add(out.theta, log.used[clients[places].numpy()] > 0, places)
            places_of.append(places)
            losses.append(out.loss)
            steps_of.append(out.steps)
            if fed.score is not None:
                scores.append(fed.score(out.theta, clients[places], partial(self.predict, fed, new)))
        order = torch.cat(places_of).argsort()  # the parts' clients, in the order of ``clients``
        steps = torch.cat(steps_of)[order]
        # M', averaged over each client's batches, then over the clients that had a batch
        mean_scale = log.scale[clients] / steps.clamp(min=1)[:, None].to(log.scale)  # [S, L]
        values = mean_scale.sum(0) / max(int((steps > 0).sum()), 1)
        gate_scale, gate_spread = log.scales(clients)
        upload = torch.from_numpy(server.sent @ blocks.sizes)
        notes: dict[str, Any] = {
            "train_loss": torch.cat(losses)[order],
            "steps": steps,
            "gate_scale": gate_scale,
            "gate_spread": gate_spread,
            "upload": upload,
            "upload_bits": torch.full_like(upload, 0 if self.aggregation == "whole_models" else blocks.num_blocks),
            "upload_ratio": upload / blocks.num_params,
            "kept_ratio": torch.from_numpy(blocks.share(log.used[clients.numpy()])).float() / steps,  # NaN: no batch
            "distinct_masks": len(log.masks),
            "passes": fed.train.epochs * (2 if self.alternates else 1),
            "infeasible": torch.from_numpy(adapter.spare[clients.numpy()] < 0).float(),
        }
        if scores:
            joined = Scores.join(scores)
            notes["trained"] = Scores(joined.correct[order], joined.count[order], joined.loss[order])
        gate_values = torch.cat([state.gate_values[:t], values[None]])
        return replace(new, shared=server.merged(), gate_values=gate_values), notes

    def _shares(self, fed: Federation, clients: Tensor) -> tuple[Tensor, float]:
        """Weights [S] of the participants, and the total weight of the absent clients; their sum is 1."""
        absent = int(fed.num_train.sum() - fed.num_train[clients].sum())
        if self.averaged_over == "participants" or not absent:
            return normalised(fed.num_train[clients]), 0.0
        total = float(fed.num_train.sum())
        return fed.num_train[clients] / total, absent / total

    def _parts(self, fed: Federation, clients: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Positions in ``clients`` to train together, and the smallest batch size that they use (at least 2).

        With ``last_batch="dropped"``, clients with more than one batch use full batches only.
        """
        size = fed.train.batch_size
        for rows in fed.chunks(clients):
            places = torch.arange(len(clients))[rows]
            if self.last_batch == "kept":
                yield places, 2
                continue
            large = fed.num_train[clients[places]].cpu() > size
            for part, smallest_batch in ((places[large], max(size, 2)), (places[~large], 2)):
                if len(part):
                    yield part, smallest_batch

    def _remember(self, state: GateState, clients: Tensor, out: ClientUpdate) -> GateState:
        """``state`` with the gates, their statistics and the velocities of these clients replaced."""
        rows = {"gate": out.variables, "statistics": out.statistics}
        if state.velocity is not None:
            rows |= {"velocity": out.velocity, "gate_velocity": out.velocity_variables}
        return replace(state, **{name: put(getattr(state, name), clients, x) for name, x in rows.items()})

    def predict(self, fed: Federation, state: GateState, k: int, theta_k: Tensor, x: Tensor) -> Tensor:
        """Logits [B, C]. The gate is in evaluation mode. Samples are scored in random batches, each with its own M'."""
        adapter = Adapter.of(self, fed)
        return logits_by_batch(adapter, fed, theta_k, adapted(adapter, fed, state, k, x), x)

    @property
    def usage(self) -> str:  # type: ignore[override]  # a class variable elsewhere, here it depends on fields
        relu = " The logits go through a ReLU." if self.logit_relu else ""
        if self.gate_granularity != "batch" or self.eval_gate == "client_train_mean":
            return f"A client's file is the state dict of the network with the weights that its gate has adapted.{relu}"
        return (
            "A client's file holds its gate, which adapts the shared model to every batch. The prediction for a sample "
            f"depends on its batch: pfl_core.load_models(folder)[client].predict(x).{relu}"
        )

    def client_model(self, fed: Federation, state: GateState, k: int, theta_k: Tensor) -> ClientModel:
        adapter = Adapter.of(self, fed)
        fixed = fixed_vector(adapter, fed, state, k)
        if fixed is not None:
            return ClientModel(adapter.scaled(theta_k, fixed[0]))
        return ClientModel(tensors={"gate": state.gate[k], "statistics": state.statistics[k]})

    def predict_exported(
        self, fed: Federation, k: int, model: ClientModel, shared: Mapping[str, Tensor], x: Tensor
    ) -> Tensor:
        if model.theta is not None:
            out = fed.logits(model.theta, x)
            return out.relu() if self.logit_relu else out
        adapter = Adapter.of(self, fed)
        batches = batchwise(adapter, model.tensors["gate"], model.tensors["statistics"], k, x)
        return logits_by_batch(adapter, fed, shared["shared"], batches, x)

    def adapt(self, fed: Federation, state: GateState, clients: Tensor, t: int) -> GateState:
        """Novel clients train their gates for ``novel_epochs``; the model is frozen."""
        trainer = Trainer(Adapter.of(self, fed), fed, state, t)
        loss = relu_loss if self.logit_relu else None
        for places, smallest_batch in self._parts(fed, clients):
            chunk = clients[places]
            gate, statistics = take(state.gate, chunk), take(state.statistics, chunk).clone()
            training = LocalTraining(epochs=self.novel_epochs, loss=loss, smallest_batch=smallest_batch)
            gate, _ = trainer.gate_pass(chunk, statistics, gate, None, training, key=(t, "novel"))
            state = replace(
                state, gate=put(state.gate, chunk, gate), statistics=put(state.statistics, chunk, statistics)
            )
        return state

    @torch.no_grad()
    def artifacts(self, fed: Federation, state: GateState) -> dict[str, Tensor]:
        """Masks on the test data and the shares s' that they keep, distances between gates, and data of Figure 7."""
        adapter = Adapter.of(self, fed)
        scored = [scored_masks(adapter, fed, state, k) for k in range(fed.num_clients)]
        use = np.stack([sizes @ masks / sizes.sum() for masks, sizes in scored])  # weighted by batch size
        return {
            "test_masks": torch.from_numpy(use).float(),  # [N, L] share of the samples for which a block was kept
            "achieved_keep_ratio": torch.from_numpy(adapter.blocks.share(use)).float(),  # [N] s'
            "distinct_masks": torch.tensor([len({m.tobytes() for masks, _ in scored for m in masks})]),
            "block_sizes": torch.from_numpy(adapter.blocks.sizes),  # [L] W
            "gate_distances": torch.cdist(state.gate, state.gate).cpu(),  # [N, N] Euclidean, of the parameter vectors
            "gate_values": state.gate_values.cpu(),  # [t, L]
            **(probes(self, fed, state) if self.probe else {}),
        }


class Server:
    """Adds up the clients' updates of a round: every block is averaged over the clients that used it.

    ``shared`` [e] is θ. ``share`` [S] are the weights of the participants and ``absent`` is the total weight of the
    absent clients, which count with θ; together they sum to 1. Options of ``aggregation``:

    - "by_index", Algorithm 1: a block is averaged over its senders.
    - "dense", not in the paper: a block that a client did not use counts as θ[j].
    - "whole_models", as in the released code: clients send all of θ_k. Blocks that a client did not use have moved by
      weight decay and momentum.
    """

    def __init__(self, blocks: Blocks, aggregation: str, shared: Tensor, share: Tensor, absent: float = 0.0) -> None:
        self.blocks, self.shared, self.share = blocks, shared, share
        self.by_index, self.whole = aggregation == "by_index", aggregation == "whole_models"
        self.total = absent * shared if absent else torch.zeros_like(shared)  # [e] weighted sum so far
        self.sent = np.zeros((len(share), blocks.num_blocks), dtype=bool)  # [S, L]

    def add(self, theta: Tensor, used: np.ndarray, places: Tensor) -> None:
        """Add the models theta [R, e] of some clients, and the blocks that they used, bool [R, L].

        ``places`` are their positions among the S participants.
        """
        fallback = torch.zeros_like(self.shared) if self.by_index else self.shared
        self.sent[places.numpy()] = used | self.whole
        for row, place in zip(theta, places.tolist(), strict=True):
            sent = self.sent[place]
            counted = row if sent.all() else select(self.entries(sent), row, fallback)
            accumulate(self.total, counted[None], self.share[place : place + 1])

    def entries(self, kept: np.ndarray) -> Tensor:
        """Block mask [L] -> entry mask bool [e], True on batch-norm statistics."""
        params = self.blocks.expand(torch.from_numpy(kept).to(self.shared.device))
        return torch.cat([params, torch.ones_like(params[:1]).expand(len(self.shared) - len(params))])

    def merged(self) -> Tensor:
        """The next model [e]."""
        if not self.by_index or self.sent.all():
            return self.total
        cover = torch.from_numpy(self.sent).to(self.share).T @ self.share  # [L] total weight of the senders
        cover[torch.from_numpy(self.sent.all(0))] = 1.0  # without rounding error
        d = self.blocks.num_params
        weight = self.blocks.expand(cover)  # [d]
        mean = torch.where(weight > 0, self.total[:d] / weight, self.shared[:d])
        return torch.cat([mean, self.total[d:]])
