"""Federation: a model, its layout, every client's data, and the verbs that methods are written in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_core.federation.bound import Bound
from pfl_core.federation.records import (
    Batch,
    Grad,
    GradHook,
    LossHook,
    Output,
    Predict,
    Samples,
    Scores,
    Split,
    Trained,
    Weights,
)
from pfl_core.federation.row import Row
from pfl_core.layout import Layout
from pfl_core.ops import accumulate, bits, normalised
from pfl_core.seeding import Key, generator
from pfl_core.training import AUGMENT, Training

__all__ = ["Batch", "Federation", "Grad", "Output", "Scores", "Split", "Trained"]

ROW_BUDGET = 2**28  # bytes of rows in a chunk; a constant, since the order of sums must not depend on the machine
EVAL_BATCH = 256  # samples of a forward pass when nothing is trained

Epochs = int | range | None  # how many passes, or which; None: as many as the federation's training says


class Federation:
    """N clients' data and one network.

    ``model`` is copied. ``splits`` has ``train`` and ``test``, and may have others (``val``, public data). ``score`` is
    how trained rows are scored while a round runs in chunks; the engine sets it for the rounds that it scores.
    """

    def __init__(
        self,
        model: nn.Module,
        splits: dict[str, Split],
        *,
        seed: int,
        rounds: int,
        train: Training | None = None,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._net = Bound(model, device, dtype)
        self.theta0 = self.layout.flatten(self._net.model.state_dict())  # [e] the initial model
        self.splits = {
            name: Split(s.x.to(device=device, dtype=dtype), s.y.to(device), s.bounds) for name, s in splits.items()
        }
        self.seed, self.rounds, self.train = seed, rounds, train or Training()
        self.score: Callable[[Tensor, Tensor, Predict | None], Scores] | None = None

    # ---- what a method may ask ----------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        return self._net.layout

    @property
    def num_clients(self) -> int:
        return len(self.splits["train"].bounds) - 1

    @property
    def num_params(self) -> int:
        return self.layout.num_params

    @property
    def num_entries(self) -> int:
        return self.layout.num_entries

    @property
    def num_train(self) -> Tensor:
        """[N] training samples of each client, as floats: they weigh averages."""
        return self.splits["train"].sizes.to(self.theta0)

    def labels(self, client: int, split: str = "train") -> Tensor:
        """[n_k] the client's labels."""
        return self.splits[split].client(client)[1]

    def num_steps(self, client: int, epochs: Epochs = None) -> int:
        """Mini-batches of ``epochs`` passes over the client's training data."""
        return len(self._passes(epochs)) * len(self._cuts(len(self.labels(client)), self.train.batch_size))

    def lr(self, t: int, base: float | None = None) -> float:
        """The rate of round t (from 0): ``base``, or the federation's own, times the schedule's factor."""
        return (self.train.lr if base is None else base) * self.train.factor(int(t), self.rounds)

    # ---- verbs --------------------------------------------------------------------------------------------------

    def broadcast(self, shared: Tensor, clients: Tensor) -> Tensor:
        """A row for each sampled client: [e] -> [S, e], without a copy."""
        return shared.expand(len(clients), -1)

    def sgd(
        self,
        theta: Tensor,
        clients: Tensor,
        *,
        key: Key | tuple[Key, ...],
        epochs: Epochs = None,
        lr: float | Tensor | None = None,
        trainable: Tensor | None = None,
        grad: GradHook | None = None,
        loss: LossHook | None = None,
        data: Samples = "train",
        batch_size: int | None = None,
        smallest: int = 1,
        velocity: Tensor | None = None,
        norm_mode: str = "train",
        weights: Weights | None = None,
        variables: Tensor | None = None,
        lr_variables: float | None = None,
        velocity_variables: Tensor | None = None,
    ) -> Trained:
        """Local training of every row by mini-batch SGD; the caller's tensors stay as they were.

        theta [S, e]; clients [S], repetitions allowed. ``key`` is the random address of the batches: the round t first
        (it is also the place in the learning-rate schedule), then whatever tells two calls of a round apart; equal keys
        give equal batches. Each further keyword is one place where papers differ:

        - ``epochs`` passes over the data (0: nothing happens), or which passes, where one round takes several calls:
          ``range(2, 3)`` has the third pass's batches; ``lr`` one rate, or one per row [S];
        - ``trainable`` bool [d] or [e], or a row of that for each client: other entries do not move by one bit;
        - ``grad(g, theta_k, s)`` changes a row's flat gradient [d]; ``loss(output)`` replaces mean cross-entropy;
        - ``data`` other than the client's training split; ``smallest`` batch that is used (2 at least, where there is
          batch norm); ``norm_mode`` "eval" freezes batch-norm statistics;
        - ``velocity`` [S, d]: momentum carried in and, in the result, out (else each call starts at rest);
        - ``weights(theta_k, variables_k, x, s)`` -> [d]: the forward pass runs through derived weights, and gradients
          reach theta and ``variables`` [S, v] together; these have their own rate and velocity.
        """
        address = key if isinstance(key, tuple) else (key,)
        num = len(clients)
        bases = lr.tolist() if isinstance(lr, Tensor) and lr.dim() else [None if lr is None else float(lr)] * num
        out = torch.empty((num, self.num_entries)).to(theta)
        masks = None if trainable is None else trainable.expand(num, -1)[:, : self.num_params]
        own = None if variables is None else variables.clone()
        moving, moving_own = self._moving(velocity, out[:, : self.num_params]), self._moving(velocity_variables, own)
        losses, steps = torch.full((num,), torch.nan), torch.zeros(num, dtype=torch.int64)
        for s, k in enumerate(clients.tolist()):
            mask, speed, v, speed_v = (None if each is None else each[s] for each in (masks, moving, own, moving_own))
            rates = self.lr(address[0], bases[s]), self.lr(address[0], lr_variables)
            wanted = self._net.want(mask if grad is None and weights is None else None)
            on = None if mask is None else bits(mask, out)
            row = Row(s, k, out[s].copy_(theta[s]), rates[0], self.train, on, speed, v, speed_v, rates[1])
            batches = self._batches(k, self._samples(data, s, k), address, epochs, batch_size, smallest)
            losses[s], steps[s] = self._train(row, batches, wanted, grad, loss, weights, norm_mode)
        carried = (None if given is None else m for given, m in ((velocity, moving), (velocity_variables, moving_own)))
        return Trained(out, losses, steps, next(carried), own, next(carried))

    def groups(self, clients: Tensor) -> Iterator[slice]:
        """Which of the sampled clients to take together in an inner loop over ``batches``: here one at a time."""
        return (slice(s, s + 1) for s in range(len(clients)))

    def batches(
        self,
        clients: Tensor,
        key: Key | tuple[Key, ...],
        *,
        epochs: Epochs = None,
        batch_size: int | None = None,
        smallest: int = 1,
        data: Samples = "train",
    ) -> Iterator[Batch]:
        """The batches of one of the ``groups``, the same that ``sgd`` takes at the same address."""
        address = key if isinstance(key, tuple) else (key,)
        (k,) = clients.tolist()
        for sample in self._batches(k, self._samples(data, 0, k), address, epochs, batch_size, smallest):
            yield Batch(*(part[None] for part in sample), clients)

    def grad(
        self,
        theta: Tensor,
        batch: Batch,
        *,
        loss: LossHook | None = None,
        weights: Weights | None = None,
        variables: Tensor | None = None,
        gates: Tensor | None = None,
        frozen: bool = False,
        norm_mode: str = "train",
    ) -> Grad:
        """Gradients of a batch's mean loss at theta [S, e], for inner loops that a method writes itself (plain SGD).

        Pure: batch norm's new statistics come back in the result. ``gates`` [S, h] multiply the hidden neurons'
        activations (networks with a ``layout.chain``) and get gradients; ``frozen`` leaves out theta's own gradient.
        ``weights`` and ``variables`` as in ``sgd``.
        """
        self._net.set_mode(norm_mode)
        self._net.want(torch.zeros(self.num_params, dtype=torch.bool) if frozen and weights is None else None)
        statistics = theta[:, self.num_params :].clone()
        losses, of_theta, of_variables, of_gates = [], [], [], []
        for s, k in enumerate(batch.clients.tolist()):
            leaf = None if gates is None else gates[s].detach().requires_grad_()
            own = None if variables is None else variables[s]
            sample = batch.x[s], batch.y[s], batch.index[s]
            with self._net.gated(leaf):
                value, slope = self._net.gradient(theta[s], statistics[s], sample, (s, k), loss, weights, own)
            losses.append(value)
            of_theta.append(None if frozen else self._net.flat_grad.clone())
            of_variables.append(slope)
            of_gates.append(None if leaf is None else leaf.grad)
        found = (_stack(parts) for parts in (of_theta, of_variables, of_gates))
        return Grad(torch.stack(losses), statistics, *found)

    def hessian_product(self, theta: Tensor, batch: Batch, vector: Tensor) -> Tensor:
        """Hessian of a batch's mean cross-entropy times ``vector`` [S, d], row by row -> [S, d]."""
        self._net.set_mode("train")
        rows = zip(theta, batch.x, batch.y, vector, strict=True)
        return torch.stack([self._net.hessian_product(*row) for row in rows])

    @torch.no_grad()
    def forward(
        self, theta: Tensor, clients: Tensor, data: Samples = "test", *, layer: str = "logits", mode: str = "eval"
    ) -> list[Tensor]:
        """Per-sample outputs of each row on its client's split, or on the samples given: a list of [n_k, ...].

        ``layer``: "logits", "features" (the head's input), or a module whose output (``name:input``: input) is wanted.
        ``mode`` "train" uses each batch's own statistics and leaves the row's as they are.
        """
        self._net.set_mode(mode)
        out = []
        for s, (row, k) in enumerate(zip(theta, clients.tolist(), strict=True)):
            self._net.bind(row[: self.num_params], row[self.num_params :].clone())
            with self._net.tapped(layer) as tap:
                x = self._samples(data, s, k)[0]
                parts = x.tensor_split(max(1, -(-len(x) // EVAL_BATCH)))  # even: batch norm takes no lone sample
                out.append(torch.cat([tap(self._net.model(part)) for part in parts]))
        return out

    def logits(self, theta_k: Tensor, x: Tensor) -> Tensor:
        """The default prediction: one row's forward pass in evaluation mode, [e] and [B, ...] -> [B, C]."""
        self._net.bind(theta_k[: self.num_params], theta_k[self.num_params :])
        self._net.set_mode("eval")
        return self._net.model(x)

    @torch.no_grad()
    def evaluate(self, theta: Tensor, clients: Tensor, split: str = "test", predict: Predict | None = None) -> Scores:
        """Score each row [S, e] on its client's split; rows that are one broadcast model run as one.

        ``predict(k, theta_k, x)`` replaces the forward pass (mixtures, gates).
        """
        data, numbers = self._split(split), clients.tolist()
        sizes = data.sizes[clients].tolist()
        one_model = predict is None and len(numbers) > 1 and theta.stride(0) == 0
        if one_model and numbers == list(range(numbers[0], numbers[-1] + 1)):
            span = slice(data.bounds[numbers[0]], data.bounds[numbers[-1] + 1])
            hits, losses = self._hits(lambda x: self.logits(theta[0], x), data.x[span], data.y[span])
        else:
            rule = predict or (lambda k, theta_k, x: self.logits(theta_k, x))
            found = [
                self._hits(lambda x, k=k, row=row: rule(k, row, x), *data.client(k))
                for row, k in zip(theta, numbers, strict=True)
            ]
            hits, losses = (torch.cat(parts) for parts in zip(*found, strict=True))
        correct = torch.stack([part.sum() for part in hits.split(sizes)])
        return Scores(
            correct.cpu(), torch.tensor(sizes), torch.stack([part.mean() for part in losses.split(sizes)]).cpu()
        )

    def chunks(self, clients: Tensor) -> Iterator[slice]:
        """Slices of the sampled clients whose rows together stay within ``ROW_BUDGET``."""
        size = max(1, ROW_BUDGET // (self.num_entries * self.theta0.element_size()))
        return (slice(s, min(s + size, len(clients))) for s in range(0, len(clients), size))

    def average(
        self,
        local: Callable[[Tensor, slice], Trained],
        clients: Tensor,
        weight: Tensor | None = None,
        predict: Predict | None = None,
    ) -> tuple[Tensor, dict]:
        """Train in chunks and reduce: the weighted mean [e] of what ``local`` trains, and the round's notes.

        ``local(chunk, rows)`` trains ``chunk`` = clients[rows]; only one chunk's rows exist at a time, and they are
        scored while they do (by ``predict``, where a row alone does not tell). ``weight`` [S], default all equal.
        """
        share = normalised(torch.ones(len(clients)).to(self.theta0) if weight is None else weight.to(self.theta0))
        total, losses, scores = None, [], []
        for rows in self.chunks(clients):
            out = local(clients[rows], rows)
            total = torch.zeros_like(out.theta[0]) if total is None else total
            accumulate(total, out.theta, share[rows])
            losses.append(out.loss)
            scores += [self.score(out.theta, clients[rows], predict)] if self.score else []
        return total, {"train_loss": torch.cat(losses)} | ({"trained": Scores.join(scores)} if scores else {})

    # ---- inside -------------------------------------------------------------------------------------------------

    def _train(self, row: Row, batches, wanted: bool, grad, loss, weights, norm_mode) -> tuple[float, int]:
        """Run one row's batches; returns its mean loss per sample and its steps."""
        self._net.set_mode(norm_mode)
        params, statistics = row.theta[: self.num_params], row.theta[self.num_params :]
        total, seen, steps = torch.zeros((), device=self.theta0.device), 0, 0
        for sample in batches:
            if wanted:
                found = self._net.gradient(row.theta, statistics, sample, (row.s, row.k), loss, weights, row.variables)
                row.step(self._net.flat_grad, found[1], grad)
                value = found[0]
            else:  # nothing to train: the pass only moves batch-norm statistics
                self._net.bind(params, statistics)
                with torch.no_grad():
                    value = self._net.loss(row.theta, sample, (row.s, row.k), loss)
            total += value * len(sample[1])
            seen, steps = seen + len(sample[1]), steps + 1
        return (total.item() / seen if seen else torch.nan), steps

    def _moving(self, velocity: Tensor | None, like: Tensor | None) -> Tensor | None:
        """Velocities to move: a copy of those carried in, or at rest where momentum is on."""
        if velocity is not None:
            return velocity.clone()
        return torch.zeros_like(like) if self.train.momentum and like is not None else None

    def _passes(self, epochs: Epochs) -> range:
        return epochs if isinstance(epochs, range) else range(self.train.epochs if epochs is None else epochs)

    def _samples(self, data: Samples, s: int, k: int) -> tuple[Tensor, Tensor]:
        return self._split(data).client(k) if isinstance(data, str) else data[s]

    def _split(self, name: str) -> Split:
        if name not in self.splits:
            raise ValueError(f"the federation has no split {name!r}, only {', '.join(self.splits)}")
        return self.splits[name]

    def _cuts(self, n: int, batch_size: int, smallest: int = 1) -> list[tuple[int, int]]:
        """Batch bounds; a last batch of one sample is left out where there is batch norm, which cannot use it."""
        smallest = max(smallest, 2 if self._net.has_batch_norm else 1)
        cuts = [(start, min(start + batch_size, n)) for start in range(0, n, batch_size)]
        return [(start, stop) for start, stop in cuts if stop - start >= smallest]

    def _batches(self, k, samples, address, epochs, batch_size, smallest) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        x, y = samples
        cuts = self._cuts(len(y), batch_size or self.train.batch_size, smallest)
        augment = AUGMENT[self.train.augment]
        for epoch in self._passes(epochs):
            stream = generator(self.seed, "batches", *address, k, epoch)
            order = torch.randperm(len(y), generator=stream).to(y.device)
            for start, stop in cuts:
                index = order[start:stop]
                yield augment(x[index], stream), y[index], index

    @staticmethod
    def _hits(predict: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Per sample: correct? [n] and cross-entropy [n]."""
        hits, losses = [], []
        for part, labels in zip(x.split(EVAL_BATCH), y.split(EVAL_BATCH), strict=True):
            logits = predict(part)
            hits.append(logits.argmax(1) == labels)
            losses.append(cross_entropy(logits, labels, reduction="none"))
        return torch.cat(hits), torch.cat(losses)


def _stack(parts: list[Tensor | None]) -> Tensor | None:
    return None if parts[0] is None else torch.stack(parts)
