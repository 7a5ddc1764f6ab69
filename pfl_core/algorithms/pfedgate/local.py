"""A client's round of pFedGate: local training of the model and the gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfl_core.algorithms.pfedgate.adapt import Adapter, GateState
from pfl_core.algorithms.pfedgate.evaluation import client_vector, mean_image
from pfl_core.federation import DerivedWeights, Federation, LocalTraining, Output
from pfl_core.federation.types import WeightsFunction
from pfl_core.ops import take
from pfl_core.seeding import Key


@dataclass(eq=False)
class Log:
    """Statistics of the masks and scales in training, summed over batches. Updated in place while clients train."""

    used: np.ndarray  # [S, L] int, number of batches that kept each block
    scale: Tensor  # [S, L] sum of M' over the batches
    masks: set[bytes] = field(default_factory=set)  # distinct masks over all clients and batches

    @classmethod
    def empty(cls, rows: int, adapter: Adapter, like: Tensor) -> Log:
        shape = rows, adapter.blocks.num_blocks
        return cls(np.zeros(shape, dtype=np.int64), torch.zeros(shape).to(like))

    def scales(self) -> Tensor:
        """Mean and standard deviation of M [2, S] over the blocks that were kept in some batch.

        The M of a block is its mean over the batches that kept it. NaN for a client without batches.
        """
        used = torch.from_numpy(self.used)
        kept, scale = used > 0, self.scale.cpu().double() / used.clamp(min=1)
        num = kept.sum(1)
        mean = torch.where(kept, scale, 0.0).sum(1) / num
        variance = torch.where(kept, (scale - mean[:, None]) ** 2, 0.0).sum(1) / num
        return torch.stack([mean, variance.sqrt()])

    def add(self, s: int, scale: Tensor, kept: np.ndarray) -> None:
        """Add one batch of row s: M' [L] and I bool [L]."""
        self.used[s] += kept
        self.scale[s] += scale.detach()
        self.masks.add(kept.tobytes())


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """Result of local training of S clients."""

    theta: Tensor  # [S, e]
    gate: Tensor  # [S, v] parameters of the gates
    statistics: Tensor  # [S, q] running statistics of the gates
    velocity: Tensor | None  # [S, d]
    gate_velocity: Tensor | None  # [S, v]
    loss: Tensor  # [S] mean training loss
    steps: Tensor  # [S] number of batches
    log: Log


def relu_loss(output: Output) -> Tensor:
    """Cross-entropy of the logits after a ReLU, as in the released code."""
    return cross_entropy(output.logits.relu(), output.labels)


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains clients in round t, starting from ``state``."""

    adapter: Adapter
    fed: Federation
    state: GateState
    t: int

    def __call__(self, clients: Tensor, smallest_batch: int) -> ClientUpdate:
        """Train model and gate together, or the gate first and then the model (``alternates``).

        Batches with fewer than ``smallest_batch`` samples are skipped.
        """
        options, state = self.adapter.options, self.state
        gate, statistics = take(state.gate, clients), take(state.statistics, clients).clone()
        velocity: Tensor | None = None if state.velocity is None else take(state.velocity, clients)
        gate_velocity: Tensor | None = None if state.gate_velocity is None else take(state.gate_velocity, clients)
        theta, log = self.fed.broadcast(state.shared, clients), Log.empty(len(clients), self.adapter, gate)
        training = LocalTraining(loss=relu_loss if options.logit_relu else None, smallest_batch=smallest_batch)
        if not options.alternates:
            weights = self.trained_gate(self.with_gate(clients, statistics, log), gate, gate_velocity)
            out = self.fed.sgd(theta, clients, replace(training, weights=weights), key=self.t, velocity=velocity)
            assert out.variables is not None
            gate, gate_velocity = out.variables, out.velocity_variables
        else:
            gate, gate_velocity = self.gate_pass(clients, statistics, gate, gate_velocity, training, key=self.t)
            weights = DerivedWeights(self.fixed_gate(clients, gate, statistics, log))
            key = (self.t, "model")
            out = self.fed.sgd(theta, clients, replace(training, weights=weights), key=key, velocity=velocity)
        return ClientUpdate(out.theta, gate, statistics, out.velocity, gate_velocity, out.loss, out.steps, log)

    def trained_gate(self, with_gate: WeightsFunction, gate: Tensor, velocity: Tensor | None) -> DerivedWeights:
        """The gates [S, v] as trained variables, with the gate's learning rate and weight decay."""
        options = self.adapter.options
        return DerivedWeights(with_gate, gate, options.lr_gate, velocity, options.gate_weight_decay)

    def gate_pass(
        self,
        clients: Tensor,
        statistics: Tensor,
        gate: Tensor,
        velocity: Tensor | None,
        training: LocalTraining,
        key: Key | tuple[Key, ...],
    ) -> tuple[Tensor, Tensor | None]:
        """Train only the gates, with the model frozen: gates [S, v] and their velocities. Updates ``statistics``."""
        with_gate = self.with_gate(clients, statistics, None)
        training = replace(
            training,
            trainable=torch.zeros_like(self.fed.theta0, dtype=torch.bool),
            weights=self.trained_gate(with_gate, gate, velocity),
            norm_mode="eval",
        )
        out = self.fed.sgd(self.fed.broadcast(self.state.shared, clients), clients, training, key=key)
        assert out.variables is not None
        return out.variables, out.velocity_variables

    def with_gate(self, clients: Tensor, statistics: Tensor, log: Log | None) -> WeightsFunction:
        """For ``DerivedWeights``: theta' [d] from theta and the gate in training. Updates ``statistics`` [S, q]."""
        adapt = self.adaptation(clients, statistics, log)

        def weights(theta_k: Tensor, gate_k: Tensor | None, x: Tensor, s: int) -> Tensor:
            assert gate_k is not None
            return self.adapter.blocks.scale(theta_k, adapt(gate_k, x, s)[0])

        return weights

    def adaptation(
        self, clients: Tensor, statistics: Tensor, log: Log | None
    ) -> Callable[[Tensor, Tensor, int], tuple[Tensor, np.ndarray]]:
        """A function (gate [v], x [N, ...], row) -> M' [L] and I bool [L] for one training step.

        Each call updates ``statistics`` [S, q] and adds to ``log``.
        """
        numbers, images = clients.tolist(), None
        if self.adapter.options.gate_granularity == "client":
            images = [mean_image(self.fed, k) for k in numbers]

        def adapt(gate_k: Tensor, x: Tensor, s: int) -> tuple[Tensor, np.ndarray]:
            batch, mode = (x, "train") if images is None else (images[s], "client")
            updated = statistics[s].clone()  # autograd does not allow changing an input of the forward pass in place
            scale, kept = self.adapter(gate_k, updated, batch, numbers[s], mode)
            statistics[s] = updated
            if log is not None:
                log.add(s, scale, kept)
            return scale, kept

        return adapt

    def fixed_gate(self, clients: Tensor, gate: Tensor, statistics: Tensor, log: Log) -> WeightsFunction:
        """For ``DerivedWeights``: theta' [d] with gates that are not trained, in evaluation mode. Adds to ``log``."""
        adapter, numbers = self.adapter, clients.tolist()
        with torch.no_grad():
            fixed = [client_vector(adapter, self.fed, *row) for row in zip(gate, statistics, numbers, strict=True)]

        def weights(theta_k: Tensor, _: Tensor | None, x: Tensor, s: int) -> Tensor:
            with torch.no_grad():
                scale, kept = fixed[s] or adapter(gate[s], statistics[s], x, numbers[s], "eval")
            log.add(s, scale, kept)
            return adapter.blocks.scale(theta_k, scale)

        return weights
