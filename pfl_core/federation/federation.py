"""Federation: a model, its layout, every client's data, and the verbs that methods are written in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from pfl_core.federation.autograd_backend import Bound
from pfl_core.federation.batched_backend import Stack
from pfl_core.federation.local_step import Rows
from pfl_core.federation.types import (
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
    Wish,
)
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
    ``stacked``: whether clients train together in one batched computation or one by one; default: together where the
    network, the device and the training say that it pays (plain dense chains; on a GPU also with convolutions).
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
        stacked: bool | None = None,
    ) -> None:
        self._net = Bound(model, device, dtype)
        self.theta0 = self.layout.flatten(self._net.model.state_dict())  # [e] the initial model
        self.splits = {
            name: Split(s.x.to(device=device, dtype=dtype), s.y.to(device), s.bounds) for name, s in splits.items()
        }
        self.seed, self.rounds, self.train = seed, rounds, train or Training()
        suits = Stack.suits(self._net.model, self.layout, device) and self.train.augment == "none"
        stacked = suits if stacked is None else stacked
        self._backend = Stack(self._net.model, self.layout, self.theta0) if stacked else self._net
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
        in_place: bool = False,
    ) -> Trained:
        """Local training of every row by mini-batch SGD; the caller's tensors stay as they were, but for ``in_place``.

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
          reach theta and ``variables`` [S, v] together; these have their own rate and velocity;
        - ``in_place`` trains theta itself, which the caller gives up: the next pass over rows that a pass has made.
        """
        address = key if isinstance(key, tuple) else (key,)
        num, d = len(clients), self.num_params
        bases = lr.tolist() if isinstance(lr, Tensor) and lr.dim() else [None if lr is None else float(lr)] * num
        out = theta if in_place else torch.empty((num, self.num_entries)).to(theta)
        masks = None if trainable is None else trainable.expand(num, -1)[:, :d]
        own = None if variables is None else variables.clone()
        moving, moving_own = self._moving(velocity, out[:, :d]), self._moving(velocity_variables, own)
        losses, steps = torch.full((num,), torch.nan), torch.zeros(num, dtype=torch.int64)
        on = None
        for rows in self.groups(clients, data):
            parts = (None if each is None else each[rows] for each in (masks, moving, own, moving_own))
            mask, *carried = parts
            on = None if mask is None else bits(mask, out, on)
            numbers = torch.arange(num)[rows].tolist()
            group = Rows(
                numbers,
                out[rows] if in_place else out[rows].copy_(theta[rows]),
                [self.lr(address[0], bases[s]) for s in numbers],
                self.train,
                on,
                *carried,
                self.lr(address[0], lr_variables),
            )
            wanted = self._backend.want(len(numbers), True if mask is None or grad or weights else mask)
            samples = data if isinstance(data, str) else [data[s] for s in numbers]
            batches = self.batches(
                clients[rows], address, epochs=epochs, batch_size=batch_size, smallest=smallest, data=samples
            )
            losses[rows], steps[rows] = self._train(group, batches, wanted, grad, loss, weights, norm_mode)
            for whole, part in ((out, group.theta), (moving, carried[0]), (own, carried[1]), (moving_own, carried[2])):
                if whole is not None and not isinstance(rows, slice):  # taken out in another order, so put back
                    whole[rows] = part
        kept = (None if given is None else m for given, m in ((velocity, moving), (velocity_variables, moving_own)))
        return Trained(out, losses, steps, next(kept), own, next(kept))

    def groups(self, clients: Tensor, data: Samples = "train") -> Iterator[slice | Tensor]:
        """Which of the sampled clients to take together in an inner loop over ``batches``: places in ``clients``.

        As many as the network's backend takes at once; within a group those with most samples come first, so that at
        every step the rows that have a batch left are its first ones.
        """
        if isinstance(self._backend, Bound):
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
        batch_size: int | None = None,
        smallest: int = 1,
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
        cuts = [self._cuts(stop - start, batch_size or self.train.batch_size, smallest) for start, stop in bounds]
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
        weights: Weights | None = None,
        variables: Tensor | None = None,
        gates: Tensor | None = None,
        of: Collection[str] = ("loss", "theta"),
        norm_mode: str = "train",
        copy: bool = True,
    ) -> Grad:
        """Gradients of a batch's mean loss at theta [R, e], for inner loops that a method writes itself (plain SGD).

        Pure: batch norm's new statistics come back in the result. ``gates`` [R, h], real or bool, multiply the hidden
        neurons' activations (networks with a ``layout.chain``). ``of`` names what is wanted: the "loss", the gradients
        of "theta" and "gates"; the work of others is left out. ``weights`` and ``variables`` as in ``sgd``; variables
        always get gradients. The batch's R clients are the rows; hooks number them from 0. Without ``copy`` theta's
        gradient lies where the next one is written: for a step that is taken at once.
        """
        self._net.set_mode(norm_mode)
        num = len(batch.count)
        if num > 1 and self._backend is self._net:
            raise ValueError(f"grad was given {num} rows at once; take the rows of one of federation.groups(...)")
        self._backend.want(num, "theta" in of or weights is not None)
        statistics = theta[:, self.num_params :]
        statistics = statistics.clone() if self.layout.num_statistics else statistics
        wish = Wish(loss, weights, variables, gates, "gates" in of, "loss" in of)
        value, *slopes = self._backend.gradient(theta, statistics, batch, range(num), wish)
        slope = self._backend.slopes(num) if "theta" in of else None
        value = value if wish.with_loss else None
        return Grad(value, statistics, slope.clone() if copy and slope is not None else slope, *slopes)

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
        total, losses, scores = None, [], []
        for rows in self.chunks(clients):
            out = local(clients[rows], rows)
            total = torch.zeros_like(out.theta[0]) if total is None else total
            accumulate(total, out.theta, share[rows])
            losses.append(out.loss)
            scores += [self.score(out.theta, clients[rows], predict)] if self.score else []
        return total, {"train_loss": torch.cat(losses)} | ({"trained": Scores.join(scores)} if scores else {})

    # ---- inside -------------------------------------------------------------------------------------------------

    def _train(
        self, rows: Rows, batches: Iterator[Batch], wanted: bool, grad, loss, weights, norm_mode: str
    ) -> tuple[Tensor, Tensor]:
        """Run a group's batches; returns each row's mean loss per sample [R] and its steps [R]."""
        self._net.set_mode(norm_mode)
        params, statistics = rows.theta[:, : self.num_params], rows.theta[:, self.num_params :]
        total = torch.zeros(len(params), device=self.theta0.device)
        seen, steps = torch.zeros(len(params)), torch.zeros(len(params), dtype=torch.int64)
        counts: Counter[tuple[int, ...]] = Counter()  # how often rows had so many samples in a batch
        apart = rows.takes_parts and grad is None
        for batch in batches:
            num = len(batch.count)
            here = rows.theta[:num], statistics[:num], batch, rows.numbers
            if wanted:
                own = None if rows.variables is None else rows.variables[:num]
                value, of_own, _ = self._backend.gradient(*here, Wish(loss, weights, own, apart=apart))
                rows.step(self._backend.slopes(num), of_own, grad)
            else:  # nothing to train: the pass only moves batch-norm statistics
                value = self._backend.losses(*here, loss)
            counts[batch.count] += 1
            total[:num].addcmul_(value.to(total), batch.weight.to(total))
        for count, times in counts.items():
            seen[: len(count)] += times * torch.tensor(count)
            steps[: len(count)] += times
        return total.cpu() / seen, steps

    def _moving(self, velocity: Tensor | None, like: Tensor | None) -> Tensor | None:
        """Velocities to move: a copy of those carried in, or at rest where momentum is on."""
        if velocity is not None:
            return velocity.clone()
        return torch.zeros_like(like) if self.train.momentum and like is not None else None

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

    def _cuts(self, n: int, batch_size: int, smallest: int = 1) -> list[tuple[int, int]]:
        """Batch bounds; a last batch of one sample is left out where there is batch norm, which cannot use it."""
        smallest = max(smallest, 2 if self._net.has_batch_norm else 1)
        cuts = [(start, min(start + batch_size, n)) for start in range(0, n, batch_size)]
        return [(start, stop) for start, stop in cuts if stop - start >= smallest]

    @staticmethod
    def _hits(predict: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Per sample: correct? [n] and cross-entropy [n]."""
        hits, losses = [], []
        for part, labels in zip(x.split(EVAL_BATCH), y.split(EVAL_BATCH), strict=True):
            logits = predict(part)
            hits.append(logits.argmax(1) == labels)
            losses.append(cross_entropy(logits, labels, reduction="none"))
        return torch.cat(hits), torch.cat(losses)
