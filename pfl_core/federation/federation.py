"""Federation: a model, its layout, every client's data, and the verbs that methods are written in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from pfl_core.federation.autograd_backend import AutogradBackend
from pfl_core.federation.batched_backend import BatchedBackend
from pfl_core.federation.local_step import TrainingGroup
from pfl_core.federation.types import (
    Batch,
    DerivedWeights,
    Epochs,
    Grad,
    GradientRequest,
    LocalTraining,
    LossHook,
    Predict,
    Samples,
    Scores,
    Split,
    Trained,
)
from pfl_core.layout import Layout
from pfl_core.ops import accumulate, bits, normalised
from pfl_core.seeding import Key, generator
from pfl_core.training import AUGMENT, Training

SMALL_BATCH = 8  # samples; below it batch norm warns
ROW_BUDGET = 2**28  # bytes of rows in a chunk; a constant, since the order of sums must not depend on the machine
EVAL_BATCH = 256  # samples of a forward pass when nothing is trained
NO_WEIGHTS = DerivedWeights(None)  # the parameters themselves


class Federation:
    """N clients' data and one network.

    ``model`` is copied. ``splits`` has ``train`` and ``test``, and may have others (``val``, public data). ``score`` is
    how trained rows are scored while a round runs in chunks; the engine sets it for the rounds that it scores.
    ``batched``: whether clients train together in one batched computation or one by one. Default: together where this
    is faster for the network and the device (plain dense chains; on a GPU also with convolutions).
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
        batched: bool | None = None,
    ) -> None:
        self._net = AutogradBackend(model, device, dtype)
        self.theta0 = self.layout.flatten(self._net.model.state_dict())  # [e] the initial model
        self.splits = {
            name: Split(s.x.to(device=device, dtype=dtype), s.y.to(device), s.bounds) for name, s in splits.items()
        }
        self.seed, self.rounds, self.train = seed, rounds, train or Training()
        if batched is None:
            batched = BatchedBackend.suits(self._net.model, self.layout, device) and self.train.augment == "none"
        self._backend = BatchedBackend(self._net.model, self.layout, self.theta0) if batched else self._net
        self.score: Callable[[Tensor, Tensor, Predict | None], Scores] | None = None

    # ---- what a method may ask ----------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        return self._net.layout

    @property
    def network(self) -> nn.Module:
        """The module itself, bound to whichever row was used last: for its structure, not for its values."""
        return self._net.model

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
        return len(self._passes(epochs)) * len(self._cuts(len(self.labels(client))))

    def small_batches(self) -> str:
        """A warning, or "": under batch norm some clients end their passes with a batch of few samples, or have none.

        In training mode batch norm takes its statistics from the batch; from few samples they are mostly noise, and
        from one there are none.
        """
        if not self._net.has_batch_norm:
            return ""
        last = [self._cuts(n)[-1:] for n in self.splits["train"].sizes.tolist()]
        sizes = [stop - start for cuts in last for start, stop in cuts]
        few, idle, found = [size for size in sizes if size < SMALL_BATCH], len(last) - len(sizes), []
        if few:
            found.append(
                f"batch norm: the last batch of {len(few)} of {len(last)} clients has fewer than {SMALL_BATCH} "
                f"samples ({min(few)} at least), which can make training diverge; choose a batch size that divides the "
                'clients\' samples, or partial_batch="merge" or "drop"'
            )
        if idle:
            found.append(
                f"batch norm: {idle} of {len(last)} clients have no batch of two samples and train nothing; FedAvg and "
                "the methods built on it leave them out of the mean, others average their unchanged copies"
            )
        return "; ".join(found)

    def lr(self, t: int, base: float | None = None) -> float:
        """The rate of round t (from 0): ``base``, or the federation's own, times the schedule's factor."""
        return (self.train.lr if base is None else base) * self.train.factor(int(t), self.rounds)

    def start_velocity(self, velocity: Tensor | None, like: Tensor | None) -> Tensor | None:
        """A copy of the velocity that is carried in, or zeros where momentum is on; else None."""
        if velocity is not None:
            return velocity.clone()
        return torch.zeros_like(like) if self.train.momentum and like is not None else None

    # ---- verbs --------------------------------------------------------------------------------------------------

    def broadcast(self, shared: Tensor, clients: Tensor) -> Tensor:
        """A row for each sampled client: [e] -> [S, e], without a copy."""
        return shared.expand(len(clients), -1)

    def sgd(
        self,
        theta: Tensor,
        clients: Tensor,
        training: LocalTraining | None = None,
        *,
        key: Key | tuple[Key, ...],
        data: Samples = "train",
        velocity: Tensor | None = None,
        in_place: bool = False,
    ) -> Trained:
        """Local training of every row by mini-batch SGD. The caller's tensors stay as they were.

        - ``theta`` [S, e], a row for each of ``clients`` [S], which may repeat.
        - ``training``: where the method differs from plain SGD.
        - ``key``: the random address of the batches. It begins with the round t, which is also the place in the
          learning-rate schedule; more parts tell two calls of a round apart. Equal keys give equal batches.
        - ``data``: another split than the clients' training data, or samples for each row.
        - ``velocity`` [S, d]: momentum carried in and, in the result, out. Without it every call starts at rest.
        - ``in_place`` trains ``theta`` itself, which the caller gives up: a second pass over rows that a pass has made.
        """
        training = training or LocalTraining()
        address = key if isinstance(key, tuple) else (key,)
        num, d = len(clients), self.num_params
        lr, trainable = training.lr, training.trainable
        rates = lr.tolist() if isinstance(lr, Tensor) and lr.dim() else [None if lr is None else float(lr)] * num
        out = theta if in_place else torch.empty((num, self.num_entries)).to(theta)
        masks = None if trainable is None else trainable.expand(num, -1)[:, :d]
        velocities = self.start_velocity(velocity, out[:, :d])
        derived = training.weights or NO_WEIGHTS
        variables = None if derived.variables is None else derived.variables.clone()
        variable_velocities = self.start_velocity(derived.velocity, variables)
        carried = velocities, variables, variable_velocities  # what steps write into, beside the rows
        losses, steps = torch.full((num,), torch.nan), torch.zeros(num, dtype=torch.int64)
        mask_bits = None
        for rows in self.groups(clients, data):
            mask, *parts = (None if each is None else each[rows] for each in (masks, *carried))
            mask_bits = None if mask is None else bits(mask, out, mask_bits)
            numbers = torch.arange(num)[rows].tolist()
            group = TrainingGroup(
                numbers,
                out[rows] if in_place else out[rows].copy_(theta[rows]),
                [self.lr(address[0], rates[s]) for s in numbers],
                self.train,
                mask_bits,
                *parts,
                self.lr(address[0], derived.lr),
                derived.weight_decay,
            )
            whole_gradient = mask is None or training.gradient or training.weights
            any_trainable = self._backend.want(len(numbers), True if whole_gradient else mask)
            samples = data if isinstance(data, str) else [data[s] for s in numbers]
            batches = self.batches(
                clients[rows], address, epochs=training.epochs, smallest_batch=training.smallest_batch, data=samples
            )
            losses[rows], steps[rows] = self._train(group, batches, any_trainable, training)
            for whole, part in zip((out, *carried), (group.theta, *parts), strict=True):
                if whole is not None and not isinstance(rows, slice):  # taken out in another order, so put back
                    whole[rows] = part
        return Trained(
            out,
            losses,
            steps,
            None if velocity is None else velocities,
            variables,
            None if derived.velocity is None else variable_velocities,
        )

    def groups(self, clients: Tensor, data: Samples = "train") -> Iterator[slice | Tensor]:
        """Which of the sampled clients to take together in an inner loop over ``batches``: places in ``clients``.

        As many as the network's backend takes at once; within a group those with most samples come first, so that at
        every step the rows that have a batch left are its first ones.
        """
        if isinstance(self._backend, AutogradBackend):
            yield from (slice(s, s + 1) for s in range(len(clients)))
            return
        for rows in self.chunks(clients):
            sizes = self._sizes(clients, data)[rows]
            order = torch.argsort(sizes, descending=True, stable=True)
            yield rows if bool((order.diff() == 1).all()) else order + rows.start

    def batches(
        self,
        clients: Tensor,
        key: Key | tuple[Key, ...],
        *,
        epochs: Epochs = None,
        smallest_batch: int = 1,
        data: Samples = "train",
    ) -> Iterator[Batch]:
        """The batches of one of the ``groups``, the same that ``sgd`` takes at the same address.

        Raises ValueError for clients that are no group, since those with most samples must come first.
        """
        address = key if isinstance(key, tuple) else (key,)
        if isinstance(data, str):
            split = self._split(data)
            x, y, bounds = split.x, split.y, [(split.bounds[k], split.bounds[k + 1]) for k in clients.tolist()]
        else:
            joined = Split.of(data)
            x, y, bounds = joined.x, joined.y, list(pairwise(joined.bounds))
        if any(b[1] - b[0] > a[1] - a[0] for a, b in pairwise(bounds)):
            raise ValueError(f"clients {clients.tolist()} are no group; take the rows of one of federation.groups(...)")
        cuts = [self._cuts(stop - start, smallest_batch) for start, stop in bounds]
        starts = torch.tensor([start for start, _ in bounds], device=y.device)[:, None]
        augment = AUGMENT[self.train.augment]
        for epoch in self._passes(epochs):
            streams = [generator(self.seed, "batches", *address, k, epoch) for k in clients.tolist()]
            orders = [
                torch.randperm(stop - start, generator=stream)
                for (start, stop), stream in zip(bounds, streams, strict=True)
            ]
            order = pad_sequence(orders, batch_first=True).to(y.device)  # [R, most samples], filled up with 0
            place = order + starts
            count: tuple[int, ...] = ()
            for step in range(len(cuts[0])):
                bound = [cut[step] for cut in cuts if step < len(cut)]  # of the first rows, which have one left
                sizes = tuple(stop - start for start, stop in bound)
                if sizes != count:
                    count, weight = sizes, torch.tensor(sizes).to(self.theta0)
                part = slice(len(bound)), slice(bound[0][0], bound[0][0] + count[0])
                at = place[part]
                taken = x[at]
                if augment is not None:
                    taken = torch.stack([augment(*each) for each in zip(taken, streams, strict=True)])
                yield Batch(taken, y[at], order[part], clients[: len(bound)], count, weight)

    def grad(
        self,
        theta: Tensor,
        batch: Batch,
        *,
        loss: LossHook | None = None,
        weights: DerivedWeights | None = None,
        gates: Tensor | None = None,
        of: Collection[str] = ("loss", "theta"),
        norm_mode: str = "train",
        copy: bool = True,
    ) -> Grad:
        """Gradients of a batch's mean loss at theta [R, e], for inner loops that a method writes itself (plain SGD).

        Pure: batch norm's new statistics come back in the result. ``gates`` [R, h], real or bool, multiply the hidden
        neurons' activations (networks with a ``layout.chain``). ``of`` names what is wanted: the "loss", the gradients
        of "theta" and "gates"; the work of others is left out. The variables of ``weights`` always get gradients. The
        batch's R clients are the rows; hooks number them from 0. Without ``copy`` theta's gradient lies where the next
        one is written: for a step that is taken at once.
        """
        self._net.set_mode(norm_mode)
        num = len(batch.count)
        if num > 1 and self._backend is self._net:
            raise ValueError(f"grad was given {num} rows at once; take the rows of one of federation.groups(...)")
        self._backend.want(num, "theta" in of or weights is not None)
        statistics = theta[:, self.num_params :]
        statistics = statistics.clone() if self.layout.num_statistics else statistics
        derived = weights or NO_WEIGHTS
        request = GradientRequest(loss, derived.function, derived.variables, gates, "gates" in of, "loss" in of)
        value, of_variables, of_gates = self._backend.compute(theta, statistics, batch, range(num), request)
        of_theta = self._backend.gradients(num) if "theta" in of else None
        if copy and of_theta is not None:
            of_theta = of_theta.clone()
        return Grad(value if request.with_loss else None, statistics, of_theta, of_variables, of_gates)

    def hessian_product(self, theta: Tensor, batch: Batch, vector: Tensor) -> Tensor:
        """Hessian of a batch's mean cross-entropy times ``vector`` [S, d], row by row -> [S, d]."""
        self._net.set_mode("train")
        rows = zip(theta, batch.x, batch.y, batch.count, vector, strict=True)
        return torch.stack([self._net.hessian_product(row, x[:n], y[:n], v) for row, x, y, n, v in rows])

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
        total: Tensor | None = None

        def add(chunk: Tensor, rows: slice) -> Trained:
            nonlocal total
            out = local(chunk, rows)
            total = torch.zeros_like(out.theta[0]) if total is None else total  # not held while the first rows train
            accumulate(total, out.theta, share[rows])
            return out

        notes = self.in_chunks(add, clients, predict)  # adds to the total
        return total, notes

    def in_chunks(
        self, local: Callable[[Tensor, slice], Trained], clients: Tensor, predict: Predict | None = None
    ) -> dict:
        """``average`` without the mean: for methods that keep the rows, or reduce them in their own way."""
        losses, scores = [], []
        for rows in self.chunks(clients):
            out = local(clients[rows], rows)
            losses.append(out.loss)
            scores += [self.score(out.theta, clients[rows], predict)] if self.score else []
        return {"train_loss": torch.cat(losses)} | ({"trained": Scores.join(scores)} if scores else {})

    # ---- inside -------------------------------------------------------------------------------------------------

    def _train(
        self, group: TrainingGroup, batches: Iterator[Batch], any_trainable: bool, training: LocalTraining
    ) -> tuple[Tensor, Tensor]:
        """Run a group's batches; returns each row's mean loss per sample [R] and its steps [R]."""
        self._net.set_mode(training.norm_mode)
        params, statistics = group.theta[:, : self.num_params], group.theta[:, self.num_params :]
        total = torch.zeros(len(params), device=self.theta0.device)
        seen, steps = torch.zeros(len(params)), torch.zeros(len(params), dtype=torch.int64)
        counts: Counter[tuple[int, ...]] = Counter()  # how often rows had so many samples in a batch
        function = (training.weights or NO_WEIGHTS).function
        in_parts = group.takes_parts and training.gradient is None
        for batch in batches:
            num = len(batch.count)
            here = group.theta[:num], statistics[:num], batch, group.numbers
            if any_trainable:
                variables = None if group.variables is None else group.variables[:num]
                request = GradientRequest(training.loss, function, variables, in_parts=in_parts)
                value, of_variables, _ = self._backend.compute(*here, request)
                group.step(self._backend.gradients(num), of_variables, training.gradient)
            else:  # nothing to train: the pass only moves batch-norm statistics
                value = self._backend.losses(*here, training.loss)
            counts[batch.count] += 1
            total[:num].addcmul_(value.to(total), batch.weight.to(total))
        for count, times in counts.items():
            seen[: len(count)] += times * torch.tensor(count)
            steps[: len(count)] += times
        return total.cpu() / seen, steps

    def _passes(self, epochs: Epochs) -> range:
        return epochs if isinstance(epochs, range) else range(self.train.epochs if epochs is None else epochs)

    def _samples(self, data: Samples, s: int, k: int) -> tuple[Tensor, Tensor]:
        return self._split(data).client(k) if isinstance(data, str) else data[s]

    def _sizes(self, clients: Tensor, data: Samples) -> Tensor:
        """[S] samples of each."""
        return self._split(data).sizes[clients] if isinstance(data, str) else torch.tensor([len(y) for _, y in data])

    def _split(self, name: str) -> Split:
        if name not in self.splits:
            raise ValueError(f"the federation has no split {name!r}, only {', '.join(self.splits)}")
        return self.splits[name]

    def _cuts(self, n: int, smallest_batch: int = 1) -> list[tuple[int, int]]:
        """Batch bounds; a last batch of one sample is left out where there is batch norm, which cannot use it."""
        smallest = max(smallest_batch, 2 if self._net.has_batch_norm else 1)
        return [(start, stop) for start, stop in self.train.batch_bounds(n) if stop - start >= smallest]

    @staticmethod
    def _hits(predict: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Per sample: correct? [n] and cross-entropy [n]."""
        hits, losses = [], []
        for part, labels in zip(x.split(EVAL_BATCH), y.split(EVAL_BATCH), strict=True):
            logits = predict(part)
            hits.append(logits.argmax(1) == labels)
            losses.append(cross_entropy(logits, labels, reduction="none"))
        return torch.cat(hits), torch.cat(losses)
