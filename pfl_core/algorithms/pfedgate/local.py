"""A client of pFedGate: training of its model and gate in a round, gate inference in evaluation, and diagnostics.

The diagnostics (``PFedGate(probe=True)``) score the final model without gates (Table 10), with the test samples in
other orders, and with the gates of other clients. They do not change the results of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfl_core.algorithms.pfedgate.adapt import Adapter, GateState
from pfl_core.algorithms.pfedgate.options import PFedGateOptions
from pfl_core.federation import DerivedWeights, Federation, LocalTraining, Output, Trained
from pfl_core.federation.federation import EVAL_BATCH
from pfl_core.federation.types import WeightsFunction
from pfl_core.ops import ABSENT, take
from pfl_core.seeding import Key, permutation

ORDERS = 5  # random orders of the test samples in the diagnostics
OTHERS = 3  # number of other clients whose gates are tried in the diagnostics


@dataclass(eq=False)
class Log:
    """Statistics of the masks and scales in training, summed over batches. Updated in place while clients train."""

    used: np.ndarray  # [N, L] int, number of batches that kept each block
    scale: Tensor  # [N, L] sum of M' over the batches
    masks: set[bytes] = field(default_factory=set)  # distinct masks over all clients and batches

    def scales(self, clients: Tensor) -> Tensor:
        """Mean and standard deviation of M [2, S] over the blocks that were kept in some batch.

        The M of a block is its mean over the batches that kept it. NaN for a client without batches.
        """
        used = torch.from_numpy(self.used)[clients]
        kept, scale = used > 0, self.scale[clients].cpu().double() / used.clamp(min=1)
        num = kept.sum(1)
        mean = torch.where(kept, scale, 0.0).sum(1) / num
        variance = torch.where(kept, (scale - mean[:, None]) ** 2, 0.0).sum(1) / num
        return torch.stack([mean, variance.sqrt()])

    def add(self, k: int, scale: Tensor, kept: np.ndarray) -> None:
        """Add one batch of client k: M' [L] and I bool [L]."""
        self.used[k] += kept
        self.scale[k] += scale.detach()
        self.masks.add(kept.tobytes())


@dataclass(frozen=True, eq=False)
class ClientUpdate(Trained):
    """Result of local training of S clients; ``variables`` [S, v] are the gates' parameters."""

    statistics: Tensor = ABSENT  # [S, q] running statistics of the gates
    log: Log = ABSENT  # of all clients that have been trained in this round so far, by their number


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

    @cached_property
    def log(self) -> Log:
        """The statistics of all clients that have been trained so far, by their number."""
        shape = self.fed.num_clients, self.adapter.blocks.num_blocks
        return Log(np.zeros(shape, dtype=np.int64), torch.zeros(shape).to(self.state.gate))

    def __call__(self, clients: Tensor, smallest_batch: int) -> ClientUpdate:
        """Train model and gate together, or the gate first and then the model (``alternates``).

        Batches with fewer than ``smallest_batch`` samples are skipped.
        """
        options, state = self.adapter.options, self.state
        gate, statistics = take(state.gate, clients), take(state.statistics, clients).clone()
        velocity: Tensor | None = None if state.velocity is None else take(state.velocity, clients)
        gate_velocity: Tensor | None = None if state.gate_velocity is None else take(state.gate_velocity, clients)
        theta = self.fed.broadcast(state.shared, clients)
        training = LocalTraining(loss=relu_loss if options.logit_relu else None, smallest_batch=smallest_batch)
        if options.alternates:
            gate, moving = self.gate_pass(clients, statistics, gate, gate_velocity, training, key=self.t)
            weights = DerivedWeights(self.fixed_gate(clients, gate, statistics))
            key = (self.t, "model")
            out = self.fed.sgd(theta, clients, replace(training, weights=weights), key=key, velocity=velocity)
            out = replace(out, variables=gate, velocity_variables=moving)
        else:
            weights = self.trained_gate(clients, statistics, self.log, gate, gate_velocity)
            out = self.fed.sgd(theta, clients, replace(training, weights=weights), key=self.t, velocity=velocity)
        return ClientUpdate(**vars(out), statistics=statistics, log=self.log)

    def gate_pass(
        self,
        clients: Tensor,
        statistics: Tensor,
        gate: Tensor,
        velocity: Tensor | None,
        training: LocalTraining,
        key: Key | tuple[Key, ...],
    ) -> tuple[Tensor, Tensor]:
        """Train only the gates, with the model frozen: gates [S, v] and their velocities. Updates ``statistics``."""
        training = replace(
            training,
            trainable=torch.zeros_like(self.fed.theta0, dtype=torch.bool),
            weights=self.trained_gate(clients, statistics, None, gate, velocity),
            norm_mode="eval",
        )
        out = self.fed.sgd(self.fed.broadcast(self.state.shared, clients), clients, training, key=key)
        return out.variables, out.velocity_variables

    def trained_gate(
        self, clients: Tensor, statistics: Tensor, log: Log | None, gate: Tensor, velocity: Tensor | None
    ) -> DerivedWeights:
        """theta' from theta and the gates [S, v], which train with a learning rate and weight decay of their own.

        Updates ``statistics`` [S, q] and adds to ``log``.
        """
        adapt, options = self.adaptation(clients, statistics, log), self.adapter.options

        def weights(theta_k: Tensor, gate_k: Tensor, x: Tensor, s: int) -> Tensor:
            return self.adapter.blocks.scale(theta_k, adapt(gate_k, x, s)[0])

        return DerivedWeights(weights, gate, options.lr_gate, velocity, options.gate_weight_decay)

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
                log.add(numbers[s], scale, kept)
            return scale, kept

        return adapt

    def fixed_gate(self, clients: Tensor, gate: Tensor, statistics: Tensor) -> WeightsFunction:
        """For ``DerivedWeights``: theta' [d] with gates that are not trained, in evaluation mode. Adds to ``log``."""
        adapter, numbers = self.adapter, clients.tolist()
        with torch.no_grad():
            fixed = [client_vector(adapter, self.fed, *row) for row in zip(gate, statistics, numbers, strict=True)]

        def weights(theta_k: Tensor, _: Tensor | None, x: Tensor, s: int) -> Tensor:
            with torch.no_grad():
                scale, kept = fixed[s] or adapter(gate[s], statistics[s], x, numbers[s], "eval")
            self.log.add(numbers[s], scale, kept)
            return adapter.blocks.scale(theta_k, scale)

        return weights


# ---- gate inference in evaluation -----------------------------------------------------------------------------------


def mean_image(fed: Federation, k: int) -> Tensor:
    """[1, ...] mean of the client's training samples."""
    return fed.splits["train"].client(k)[0].mean(0, keepdim=True)


def client_vector(
    adapter: Adapter, fed: Federation, gate: Tensor, statistics: Tensor, k: int, *, average: bool = False
) -> tuple[Tensor, np.ndarray] | None:
    """M' [L] and I bool [L] of client k if they are the same for all batches, else None.

    ``average``: M and G are averaged over the client's training batches before the selection
    (``eval_gate="client_train_mean"``).
    """
    granularity = adapter.options.gate_granularity
    if granularity == "client":
        return adapter(gate, statistics, mean_image(fed, k), k, "client")
    if granularity == "batch" and not average:
        return None
    batches = fed.splits["train"].client(k)[0].split(fed.train.batch_size)
    if granularity == "client_masked_mean":
        masked = torch.stack([adapter(gate, statistics, x, k, "eval")[0] for x in batches]).mean(0)
        return masked, (masked != 0).cpu().numpy()
    outputs = [torch.stack(adapter.gate(gate, statistics, x, "eval")) for x in batches]  # M and G, [2, L] each
    scale, importance = torch.stack(outputs).mean(0)
    return adapter.combine(scale, importance, k)


def fixed_vector(adapter: Adapter, fed: Federation, state: GateState, k: int) -> tuple[Tensor, np.ndarray] | None:
    """M' [L] and I bool [L] with which client k is scored if they do not depend on the test batch, else None."""
    average = adapter.options.eval_gate == "client_train_mean"
    return client_vector(adapter, fed, state.gate[k], state.statistics[k], k, average=average)


def batchwise(
    adapter: Adapter, gate: Tensor, statistics: Tensor, k: int, x: Tensor
) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
    """(indices, M' [L], I bool [L]) of every batch of x [B, ...], computed by client k's gate [v], statistics [q].

    The order is random, because batches sorted by label would leak the labels into the gate.
    """
    options = adapter.options
    order = permutation(len(x), adapter.seed, "evaluation", k, options.eval_order)
    for index in order.split(1 if options.eval_gate == "sample" else options.eval_batch_size):
        yield index, *adapter(gate, statistics, x[index], k, "eval")


def adapted(
    adapter: Adapter, fed: Federation, state: GateState, k: int, x: Tensor
) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
    """(indices, M' [L], I bool [L]) of every batch in which client k's samples x [B, ...] are scored."""
    fixed = fixed_vector(adapter, fed, state, k)
    if fixed is None:
        yield from batchwise(adapter, state.gate[k], state.statistics[k], k, x)
    else:
        yield torch.arange(len(x)), *fixed


def logits_by_batch(
    adapter: Adapter, fed: Federation, theta_k: Tensor, batches: Iterable[tuple[Tensor, Tensor, np.ndarray]], x: Tensor
) -> Tensor:
    """Logits [B, C] of x, whose ``batches`` (indices, M', I) have their own M'."""
    order, logits = [], []
    for index, scale, _ in batches:
        order.append(index)
        logits.append(adapter.logits(fed, theta_k, scale, x[index]))
    return torch.cat(logits)[torch.cat(order).argsort()]


# ---- diagnostics ----------------------------------------------------------------------------------------------------


def scored_masks(adapter: Adapter, fed: Federation, state: GateState, k: int) -> tuple[np.ndarray, np.ndarray]:
    """I bool [batches, L] and the batch sizes [batches] with which ``fed.evaluate`` scores client k's test data."""
    x, masks, sizes = fed.splits["test"].client(k)[0], [], []
    for part in x.split(EVAL_BATCH):
        for index, _, kept in adapted(adapter, fed, state, k, part):
            masks.append(kept)
            sizes.append(len(index))
    return np.stack(masks), np.array(sizes)


def probes(method: PFedGateOptions, fed: Federation, state: GateState) -> dict[str, Tensor]:
    """Number of correct test predictions of each client [N], for different ways to score the final model.

    Without gates, with test batches in ``ORDERS`` random orders and sorted by label, sample by sample, with one model
    for each client, and with swapped gates. ``test_count`` [N] is the number of test samples.
    """
    variants = [replace(method, eval_order=i) for i in range(ORDERS)]
    variants += [replace(method, eval_gate="sample"), replace(method, eval_gate="client_train_mean")]
    everyone = torch.arange(fed.num_clients)
    theta = fed.broadcast(state.shared, everyone)
    scores = [fed.evaluate(theta, everyone, predict=partial(variant.predict, fed, state)) for variant in variants]
    return {
        "global_correct": fed.evaluate(fed.broadcast(ungated(fed, state), everyone), everyone).correct,
        "order_correct": torch.stack([s.correct for s in scores[:ORDERS]]),  # [ORDERS, N]
        "sample_correct": scores[ORDERS].correct,
        "client_mean_correct": scores[ORDERS + 1].correct,
        "sorted_correct": sorted_by_label(method, fed, state),
        "test_count": scores[0].count,
        **gate_swaps(variants[0], fed, state),
    }


def gate_swaps(method: PFedGateOptions, fed: Federation, state: GateState) -> dict[str, Tensor]:
    """Number of correct test predictions of each client [N] with another gate; ``order_correct[0]`` is with its own.

    ``other_gates_correct`` [OTHERS, N]: client k has the gate of client k + 1, k + 2, ... (cyclic; fewer rows in small
    federations). ``mean_gate_correct``: all clients have the mean of all gates' parameters and statistics.
    ``constant_scales_correct``: clients keep their masks, but all blocks and clients have the same scale. Every client
    keeps its budget. Empty with fewer than two clients.
    """
    if fed.num_clients < 2:
        return {}
    everyone = torch.arange(fed.num_clients)
    theta = fed.broadcast(state.shared, everyone)

    def correct(gates: GateState, variant: PFedGateOptions = method) -> Tensor:
        return fed.evaluate(theta, everyone, predict=partial(variant.predict, fed, gates)).correct

    def with_gates(change: Callable[[Tensor], Tensor]) -> GateState:
        return replace(state, gate=change(state.gate), statistics=change(state.statistics))

    shifts = range(1, min(OTHERS, fed.num_clients - 1) + 1)
    shifted = [with_gates(partial(torch.roll, shifts=-i, dims=0)) for i in shifts]  # client k has the gate of k + i
    mean_gate = with_gates(lambda rows: rows.mean(0, keepdim=True).expand_as(rows))
    constant = replace(method, gate_override=mean_scale(method, fed, state))
    return {
        "other_gates_correct": torch.stack([correct(gates) for gates in shifted]),
        "mean_gate_correct": correct(mean_gate),
        "constant_scales_correct": correct(state, constant),
    }


def mean_scale(method: PFedGateOptions, fed: Federation, state: GateState) -> float:
    """Mean of M over the kept blocks, then over a client's training batches, then over the clients."""
    adapter, means = Adapter.of(method, fed), []
    for k in range(fed.num_clients):
        batches = adapted(adapter, fed, state, k, fed.splits["train"].client(k)[0])
        means.append(torch.stack([scale.sum() / int(kept.sum()) for _, scale, kept in batches]).mean())
    return float(torch.stack(means).mean())


def ungated(fed: Federation, state: GateState) -> Tensor:
    """θ [e] after one more local epoch without gates, averaged with weights n_k."""
    clients = torch.arange(fed.num_clients)

    def local(chunk: Tensor, rows: slice) -> Trained:
        return fed.sgd(fed.broadcast(state.shared, chunk), chunk, LocalTraining(epochs=1), key=(fed.rounds, "ungated"))

    with torch.enable_grad():
        return fed.average(local, clients, fed.num_train[clients])[0]


def sorted_by_label(method: PFedGateOptions, fed: Federation, state: GateState) -> Tensor:
    """Number of correct predictions [N] with test batches sorted by label, which leaks the labels into the gate."""
    adapter, correct = Adapter.of(method, fed), []
    for k in range(fed.num_clients):
        x, y = fed.splits["test"].client(k)
        count = 0
        for index in y.argsort(stable=True).split(method.eval_batch_size):
            scale, _ = adapter(state.gate[k], state.statistics[k], x[index], k, "eval")
            logits = adapter.logits(fed, state.shared, scale, x[index])
            count += int((logits.argmax(1) == y[index]).sum())
        correct.append(count)
    return torch.tensor(correct)
