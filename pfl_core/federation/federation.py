"""Federation: a model, the data of all clients, and the operations from which methods are built."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from pfl_core.federation.autograd_backend import AutogradBackend
from pfl_core.federation.batched_backend import BatchedBackend
from pfl_core.federation.local_step import TrainingGroup
from pfl_core.federation.threads import ClientThreads
from pfl_core.federation.trace import trace
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
from pfl_core.ops import ABSENT, accumulate, normalised
from pfl_core.seeding import Key, generator, seeded
from pfl_core.training import AUGMENT, Training

SMALL_BATCH = 8  # samples; smaller batches give a warning under batch norm
ROW_BUDGET = 2**29  # bytes of rows in a chunk; fixed, because the order of sums must not depend on the machine
EVAL_BATCH = 256  # samples of a forward pass without training
NO_WEIGHTS = DerivedWeights(None)  # the forward pass uses theta itself


class Federation:
    """The data of N clients and one network.

    - ``model`` is copied; its weights are the initial model ``theta0``.
    - ``splits`` has ``train`` and ``test``, and may have others (``val``, public data).
    - ``batched``: whether clients train together in one batched computation or one by one. Default: whichever is faster
      for the network and the device (together for plain dense chains; on a GPU also with convolutions). True raises
      ValueError for other networks, e.g. with batch norm.
    - ``threads``: how many clients are computed at the same time if they train one by one on the CPU. Results are
      bitwise the same for every number. Hooks of different rows then run at the same time. A network that draws random
      numbers, e.g. with dropout, takes one thread, because threads share the global generators.

    Raises ValueError for a network that fails on two samples, or that keeps values of one client for the next.

    Attributes: ``network`` is the module, for its structure only (its weights are those of the row that was used last);
    ``layout`` has the positions of its tensors in a row; ``traced`` is what a forward pass does (see ``trace``).

    The engine sets two attributes during a round. ``score`` evaluates trained rows, in rounds with evaluation.
    ``keep_trained`` is False: nothing but ``score`` needs the trained rows, so that a method may overwrite its own.
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
        threads: int = 1,
    ) -> None:
        self.splits = {
            name: Split(s.x.to(device=device, dtype=dtype), s.y.to(device), s.bounds) for name, s in splits.items()
        }
        self.seed, self.rounds, self.train = seed, rounds, train or Training()
        x = self.splits["train"].x
        if self.train.augment != "none" and x.dim() != 4:
            raise ValueError(f"augment={self.train.augment!r} needs images, not samples of shape {list(x.shape[1:])}")
        few = x if len(x) > 1 else x.new_zeros(2, *x.shape[1:])
        model, self.traced = trace(model, few[:2], few[-2:])
        precision = self.train.precision
        first = AutogradBackend(model, device, dtype, self.traced, precision)
        if precision != "float32":
            try:
                first.model(few[:2])
            except RuntimeError as error:
                raise ValueError(f"{type(model).__name__} cannot compute in {precision}: {error}") from None
        self.network, self.layout, self._has_batch_norm = first.model, first.layout, first.has_batch_norm
        self.theta0 = self.layout.flatten(dict([*model.named_parameters(), *model.named_buffers()])).to(x)  # [e]
        if batched is None:
            plain = self.train.augment == "none" and precision == "float32"
            batched = plain and BatchedBackend.suits(self.network, self.layout, device)
        elif batched and precision != "float32":
            raise ValueError(f"batched=True computes in float32; leave batched at None for precision={precision!r}")
        elif batched and not BatchedBackend.supports(self.network, self.layout):
            raise ValueError(
                "batched=True needs a plain chain of Linear, Conv2d, MaxPool2d (not overlapping), ReLU and Flatten, "
                "each with a bias; leave batched at None"
            )
        self.batched = batched
        self._batched_backend = BatchedBackend(self.network, self.layout, self.theta0) if batched else None
        if device != "cpu" or batched:  # one batched computation, or one stream of a GPU
            threads = 1
        self.draws = self.traced.draws
        if self.draws:
            threads = 1
        others = (AutogradBackend(model, device, dtype, self.traced, precision) for _ in range(threads - 1))
        self.threads = ClientThreads([first, *others])
        self.score: Callable[[Tensor, Tensor, Predict | None], Scores] | None = None
        self.keep_trained = True

    # ---- properties ---------------------------------------------------------------------------------------------

    @property
    def _net(self) -> AutogradBackend:
        """The network of the current thread."""
        return self.threads.own

    @property
    def _backend(self) -> AutogradBackend | BatchedBackend:
        return self._batched_backend or self._net

    @property
    def num_clients(self) -> int:
        return len(self.splits["train"].bounds) - 1

    @property
    def num_params(self) -> int:
        """d, the number of trainable parameters; frozen ones (``requires_grad=False``) are in no row."""
        return self.layout.num_params

    @property
    def num_entries(self) -> int:
        """e, the length of a row: parameters and batch-norm statistics."""
        return self.layout.num_entries

    @property
    def num_train(self) -> Tensor:
        """[N] training samples of each client, as floats, for weighted averages."""
        return self.splits["train"].sizes.to(self.theta0)

    def labels(self, client: int, split: str = "train") -> Tensor:
        """[n_k] labels of a client."""
        return self.splits[split].client(client)[1]

    def num_steps(self, client: int, epochs: Epochs = None) -> int:
        """Mini-batches of ``epochs`` passes over the client's training data."""
        return len(self._passes(epochs)) * len(self._batch_bounds(len(self.labels(client))))

    def small_batches(self) -> str:
        """A warning if, with batch norm, some clients have a very small last batch or no batch at all; else "".

        In training mode, batch norm computes its statistics from the batch. Those of few samples are mostly noise, and
        a single sample has none.
        """
        if not self._has_batch_norm:
            return ""
        last = [self._batch_bounds(n)[-1:] for n in self.splits["train"].sizes.tolist()]
        sizes = [stop - start for cuts in last for start, stop in cuts]
        few, untrained, warnings = [size for size in sizes if size < SMALL_BATCH], len(last) - len(sizes), []
        if few:
            warnings.append(
                f"batch norm: the last batch of {len(few)} of {len(last)} clients has fewer than {SMALL_BATCH} "
                f"samples (minimum {min(few)}), which can make training diverge; choose a batch size that divides the "
                'clients\' samples, or partial_batch="merge" or "drop"'
            )
        if untrained:
            warnings.append(
                f"batch norm: {untrained} of {len(last)} clients have no batch of two samples and do not train; FedAvg "
                "and methods based on it leave them out of the mean, others average their unchanged copies"
            )
        return "; ".join(warnings)

    def check_features(self, method: str) -> None:
        """Raise ValueError if the head's input is not one feature vector per sample, which ``method`` needs."""
        if len(shape := self.traced.inputs[self.layout.head]) != 1:
            raise ValueError(
                f"{method} needs a vector of features for each sample; the head {self.layout.head} is given {shape}"
            )

    def lr(self, t: int, base: float | None = None) -> float:
        """Learning rate of round t (from 0): ``base`` (default: that of ``Training``) times the schedule's factor."""
        return (self.train.lr if base is None else base) * self.train.factor(int(t), self.rounds)

    def start_velocity(self, velocity: Tensor | None, like: Tensor | None) -> Tensor:
        """Initial momentum: a copy of ``velocity``, else zeros in the shape of ``like`` with momentum, else None."""
        if velocity is not None:
            return velocity.clone()
        return torch.zeros_like(like) if self.train.momentum and like is not None else ABSENT

    def seeded(self, *key: Key) -> AbstractContextManager[object]:
        """In here, draws from global generators depend on the seed and the key alone; see ``one_by_one``."""
        return seeded(self.seed, *key) if self.draws else nullcontext()

    @contextmanager
    def one_by_one(self) -> Iterator[None]:
        """In here, clients are computed one after the other, for code that draws from global generators."""
        before = self.draws, self.batched, self._batched_backend, self.threads
        self.draws, self.batched, self._batched_backend, self.threads = True, False, None, ClientThreads([self._net])
        try:
            yield
        finally:
            self.draws, self.batched, self._batched_backend, self.threads = before

    # ---- operations ---------------------------------------------------------------------------------------------

    def broadcast(self, shared: Tensor, clients: Tensor) -> Tensor:
        """One row for each client: [e] -> [S, e], without a copy. Raises ValueError for another shape."""
        if shared.shape != (self.num_entries,):
            raise ValueError(f"the shared model is {list(shared.shape)}; it must be [e] = [{self.num_entries}]")
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
        """Train every row by mini-batch SGD on its client's data. The arguments are not modified.

        - ``theta`` [S, e]: one row for each of ``clients`` [S], which may repeat.
        - ``training``: how the method differs from plain SGD.
        - ``key``: key of the random batches. It begins with the round t, which also selects the learning rate of the
          schedule. More parts distinguish several calls in a round. Equal keys give equal batches.
        - ``data``: another split than the training data, or samples for each row.
        - ``velocity`` [S, d]: initial momentum; the result then contains the final momentum. Default: 0.
        - ``in_place``: train ``theta`` itself, e.g. in a second pass over the result of a first one.
        """
        training = training or LocalTraining()
        key = key if isinstance(key, tuple) else (key,)
        everyone = self._training_rows(theta, training, int(key[0]), velocity, in_place)
        function = None if training.weights is None else training.weights.function
        in_parts = everyone.accepts_parts and training.gradient is None
        # Hooks and derived weights need the whole gradient, not only that of trainable tensors.
        whole_gradient = everyone.trainable is None or training.gradient is not None or function is not None

        def train(rows: slice | Tensor) -> None:
            """Train the clients of one group: a step for each batch, on views of their rows or on copies."""
            group, backend = everyone.take(rows, None if in_place else theta), self._backend
            self._net.set_mode(training.norm_mode)
            any_trainable = backend.set_trainable(len(group.numbers), True if whole_gradient else group.trainable)
            samples = data if isinstance(data, str) else [data[s] for s in group.numbers]
            batches = self.batches(
                clients[rows], key, epochs=training.epochs, smallest_batch=training.smallest_batch, data=samples
            )
            with self.seeded("client", *key, *clients[rows].tolist()):
                for batch in batches:
                    num = len(batch.count)  # the first rows have a batch left
                    theta_here, statistics = group.theta[:num], group.theta[:num, self.num_params :]
                    if any_trainable:
                        variables = None if group.variables is None else group.variables[:num]
                        request = GradientRequest(training.loss, function, variables, in_parts=in_parts)
                        loss, variable_gradient, _ = backend.compute(
                            theta_here, statistics, batch, group.numbers, request
                        )
                        group.step(backend.gradients(num), variable_gradient, training.gradient)
                    else:  # the forward pass only updates batch-norm statistics
                        loss = backend.losses(theta_here, statistics, batch, group.numbers, training.loss)
                    group.record(loss, batch.count, batch.weight)
            everyone.put(rows, group)

        self.each_group(train, clients, data)
        return Trained(
            everyone.theta,
            everyone.loss,
            torch.tensor(everyone.steps),
            ABSENT if velocity is None else everyone.velocity,
            everyone.variables,
            ABSENT if training.weights is None or training.weights.velocity is None else everyone.velocity_variables,
        )

    def each_group(
        self, function: Callable[[slice | Tensor], object], clients: Tensor, data: Samples = "train"
    ) -> None:
        """Call ``function`` for each of ``groups(clients, data)``, several at the same time if there are threads.

        For methods that write their own loop over ``batches``. ``function`` may write only into rows of its group.
        """
        groups = list(self.groups(clients, data))
        sizes = self._sizes(clients, data)
        self.threads.map(function, groups, [int(sizes[rows].sum()) for rows in groups])

    def groups(self, clients: Tensor, data: Samples = "train") -> Iterator[slice | Tensor]:
        """Positions in ``clients`` of the clients that train together, group by group; see ``each_group``.

        The size of a group depends on the backend. Within a group, clients are sorted by decreasing number of samples,
        so that the clients that have a batch left are always the first ones.
        """
        if not self.batched:
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
        """The batches of one of the ``groups``, equal to those of ``sgd`` with the same key.

        Raises ValueError if the clients are not sorted by decreasing number of samples.
        """
        key = key if isinstance(key, tuple) else (key,)
        if isinstance(data, str):
            split = self._split(data)
            x, y, bounds = split.x, split.y, [(split.bounds[k], split.bounds[k + 1]) for k in clients.tolist()]
        else:
            joined = Split.of(data)
            x, y, bounds = joined.x, joined.y, list(pairwise(joined.bounds))
        if any(b[1] - b[0] > a[1] - a[0] for a, b in pairwise(bounds)):
            raise ValueError(
                f"clients {clients.tolist()} are not a group; pass the clients of one of federation.groups(...)"
            )
        cuts = [
            self._batch_bounds(stop - start, smallest_batch) for start, stop in bounds
        ]  # (start, stop) by row, step
        starts = torch.tensor([start for start, _ in bounds], device=y.device)[:, None]
        augment = AUGMENT[self.train.augment]
        for epoch in self._passes(epochs):
            # Each client shuffles its samples with its own stream; the permutations are the rows of one table.
            streams = [generator(self.seed, "batches", *key, k, epoch) for k in clients.tolist()]
            orders = [
                torch.randperm(stop - start, generator=stream)
                for (start, stop), stream in zip(bounds, streams, strict=True)
            ]
            order = pad_sequence(orders, batch_first=True).to(y.device)  # [R, most samples], padded with 0
            position = order + starts  # in x
            count: tuple[int, ...] = ()
            for step in range(len(cuts[0])):
                self.threads.check()
                bound = [cut[step] for cut in cuts if step < len(cut)]  # of the first rows, which have a batch left
                sizes = tuple(stop - start for start, stop in bound)
                if sizes != count:
                    count, weight = sizes, torch.tensor(sizes).to(self.theta0)
                # [R, B], as wide as the largest batch: with partial_batch="merge" a smaller client's last one can be it
                part = slice(len(bound)), slice(bound[0][0], bound[0][0] + max(count))
                samples = x[position[part]]
                if augment is not None:
                    for own, n, stream in zip(samples, count, streams, strict=False):
                        own[:n] = augment(own[:n], stream)
                yield Batch(samples, y[position[part]], order[part], clients[: len(bound)], count, weight)

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
        """Gradients of a batch's mean loss at theta [R, e], for methods that write their own inner loop.

        Pure: the result contains the new batch-norm statistics; theta is not modified.

        - ``batch``: its R clients are the rows; hooks number them from 0.
        - ``loss``, ``weights``, ``norm_mode``: as in ``LocalTraining``. Variables of ``weights`` always get gradients.
        - ``gates`` [R, h], real or bool, multiply the activations of the hidden neurons (see ``layout.chain``).
        - ``of``: what to compute, any of "loss", "theta" (its gradient) and "gates" (their gradient).
        - ``copy=False``: the next call overwrites the gradient of theta, so that it must be used at once.

        Raises ValueError for several rows if the backend computes one row at a time.
        """
        self._net.set_mode(norm_mode)
        num = len(batch.count)
        if num > 1 and not self.batched:
            raise ValueError(f"grad was given {num} rows at once; pass the rows of one of federation.groups(...)")
        self._backend.set_trainable(num, "theta" in of or weights is not None)
        statistics = theta[:, self.num_params :]
        statistics = statistics.clone() if self.layout.num_statistics else statistics
        derived = weights or NO_WEIGHTS
        request = GradientRequest(loss, derived.function, derived.variables, gates, "gates" in of, "loss" in of)
        value, variable_gradient, gate_gradient = self._backend.compute(theta, statistics, batch, range(num), request)
        theta_gradient = ABSENT
        if "theta" in of:
            gradient = self._backend.gradients(num)
            assert isinstance(gradient, Tensor)  # the request is not ``in_parts``
            theta_gradient = gradient.clone() if copy else gradient
        value = value if request.with_loss else ABSENT
        return Grad(value, statistics, theta_gradient, variable_gradient, gate_gradient)

    def hessian_product(self, theta: Tensor, batch: Batch, vector: Tensor) -> Tensor:
        """Hessian of a batch's mean cross-entropy times ``vector`` [S, d], row by row -> [S, d]."""
        self._net.set_mode("train")
        rows = zip(theta, batch.x, batch.y, batch.count, vector, strict=True)
        return torch.stack([self._net.hessian_product(row, x[:n], y[:n], v) for row, x, y, n, v in rows])

    @torch.no_grad()
    def forward(
        self, theta: Tensor, clients: Tensor, data: Samples = "test", *, layer: str = "logits", mode: str = "eval"
    ) -> list[Tensor]:
        """Outputs of each row for the samples of its client's split, or for the given samples: a list of [n_k, ...].

        ``layer``: "logits", "features" (input of the head), or the name of a module (``name:input`` for its input).
        ``mode="train"`` normalises with the statistics of each batch and does not change those of the row.
        """

        def outputs(s: int) -> Tensor:
            """The outputs of row s."""
            net, row, x = self._net, theta[s], self._samples(data, s, int(clients[s]))[0]
            net.set_mode(mode)
            net.bind(row[: self.num_params], row[self.num_params :].clone())
            with net.tapped(layer) as tap:
                parts = x.tensor_split(max(1, -(-len(x) // EVAL_BATCH)))  # equal sizes: batch norm needs two samples
                return torch.cat([tap(net.model(part)) for part in parts])

        return self.threads.map(outputs, range(len(clients)))

    def logits(self, theta_k: Tensor, x: Tensor) -> Tensor:
        """The default prediction, a forward pass in evaluation mode; theta_k [e], x [B, ...] -> [B, C]."""
        self._net.bind(theta_k[: self.num_params], theta_k[self.num_params :])
        self._net.set_mode("eval")
        return self._net.model(x)

    @torch.no_grad()
    def evaluate(self, theta: Tensor, clients: Tensor, split: str = "test", predict: Predict | None = None) -> Scores:
        """Evaluate each row [S, e] on its client's split. A broadcast row runs once on the data of all clients.

        ``predict(k, theta_k, x)`` replaces the forward pass, e.g. for mixtures and gates. Raises ValueError for rows of
        another shape.
        """
        if theta.shape != (len(clients), self.num_entries):
            wanted = [len(clients), self.num_entries]
            raise ValueError(f"the models to evaluate are {list(theta.shape)}; they must be [S, e] = {wanted}")
        data, numbers = self._split(split), clients.tolist()
        sizes = data.sizes[clients].tolist()
        one_model = predict is None and len(numbers) > 1 and theta.stride(0) == 0
        rule: Predict = predict or (lambda k, theta_k, x: self.logits(theta_k, x))
        # Runs of samples that one model predicts: (row, client, samples).
        if one_model and numbers == list(range(numbers[0], numbers[-1] + 1)):  # consecutive clients: one slice of data
            span = slice(data.bounds[numbers[0]], data.bounds[numbers[-1] + 1])
            spans = [(theta[0], numbers[0], (data.x[span], data.y[span]))]
        else:
            spans = [(row, k, data.client(k)) for row, k in zip(theta, numbers, strict=True)]
        parts = [(k, row, part) for row, k, (x, _) in spans for part in x.split(EVAL_BATCH)]
        logits = torch.cat(self.threads.map(lambda part: rule(*part), parts))  # [all samples, C]
        labels = torch.cat([y for _, _, (_, y) in spans])
        hits, losses = logits.argmax(1) == labels, cross_entropy(logits, labels, reduction="none")
        # Reduce [all samples] to [S].
        correct = torch.stack([part.sum() for part in hits.split(sizes)])
        loss = torch.stack([part.mean() for part in losses.split(sizes)])
        return Scores(correct.cpu(), torch.tensor(sizes), loss.cpu())

    def chunks(self, clients: Tensor) -> Iterator[slice]:
        """Slices of ``clients``; the rows of a slice take at most ``ROW_BUDGET`` bytes."""
        size = max(1, ROW_BUDGET // (self.num_entries * self.theta0.element_size()))
        return (slice(s, min(s + size, len(clients))) for s in range(0, len(clients), size))

    def average(
        self,
        local: Callable[[Tensor, slice], Trained],
        clients: Tensor,
        weight: Tensor | None = None,
        predict: Predict | None = None,
    ) -> tuple[Tensor, dict]:
        """Train in chunks; returns the weighted mean [e] of the trained rows, and notes for the round.

        ``local(chunk, rows)`` trains ``chunk`` = clients[rows], usually by ``sgd``. Only the rows of one chunk exist at
        a time, so they are evaluated before the next chunk (with ``predict``, default: the forward pass). ``weight``
        [S], default: equal.
        The notes are ``train_loss`` and, in rounds with evaluation, ``trained``.
        """
        share = normalised(torch.ones(len(clients)).to(self.theta0) if weight is None else weight.to(self.theta0))
        total: Tensor = ABSENT

        def add(chunk: Tensor, rows: slice) -> Trained:
            nonlocal total
            out = local(chunk, rows)
            total = torch.zeros_like(out.theta[0]) if total is None else total  # allocated after the first training
            self._accumulate(total, out.theta, share[rows])
            return out

        notes = self.in_chunks(add, clients, predict)
        return total, notes

    def in_chunks(
        self, local: Callable[[Tensor, slice], Trained], clients: Tensor, predict: Predict | None = None
    ) -> dict:
        """``average`` without the mean, for methods that keep the rows or aggregate them in another way."""
        losses, scores = [], []
        for rows in self.chunks(clients):
            out = local(clients[rows], rows)
            losses.append(out.loss)
            scores += [self.score(out.theta, clients[rows], predict)] if self.score else []
        return {"train_loss": torch.cat(losses)} | ({"trained": Scores.join(scores)} if scores else {})

    # ---- private ------------------------------------------------------------------------------------------------

    def _training_rows(
        self, theta: Tensor, training: LocalTraining, t: int, velocity: Tensor | None, in_place: bool
    ) -> TrainingGroup:
        """The rows of a call of ``sgd`` with their settings: rates [S], mask [S, d], momentum and variables."""
        num, d, lr, derived = len(theta), self.num_params, training.lr, training.weights or NO_WEIGHTS
        rates = lr.tolist() if isinstance(lr, Tensor) and lr.dim() else [None if lr is None else float(lr)] * num
        out = theta if in_place else torch.empty((num, self.num_entries)).to(theta)
        variables = ABSENT if derived.variables is None else derived.variables.clone()
        return TrainingGroup(
            numbers=list(range(num)),
            theta=out,
            lr=[self.lr(t, rate) for rate in rates],
            config=self.train,
            trainable=ABSENT if training.trainable is None else training.trainable.expand(num, -1)[:, :d],
            velocity=self.start_velocity(velocity, out[:, :d]),
            variables=variables,
            velocity_variables=self.start_velocity(derived.velocity, variables),
            lr_variables=self.lr(t, derived.lr),
            decay_variables=derived.weight_decay,
        )

    def _accumulate(self, total: Tensor, theta: Tensor, share: Tensor) -> None:
        """``ops.accumulate``; each thread adds a part of the columns, which does not change the order of sums."""
        size = -(-len(total) // self.threads.num)
        columns = [slice(start, start + size) for start in range(0, len(total), size)]
        self.threads.map(lambda part: accumulate(total[part], theta[:, part], share), columns)

    def _passes(self, epochs: Epochs) -> range:
        """The numbers of the passes over the data."""
        return epochs if isinstance(epochs, range) else range(self.train.epochs if epochs is None else epochs)

    def _samples(self, data: Samples, s: int, k: int) -> tuple[Tensor, Tensor]:
        """(x, y) of row s, client k."""
        return self._split(data).client(k) if isinstance(data, str) else data[s]

    def _sizes(self, clients: Tensor, data: Samples) -> Tensor:
        """[S] number of samples of each client."""
        return self._split(data).sizes[clients] if isinstance(data, str) else torch.tensor([len(y) for _, y in data])

    def _split(self, name: str) -> Split:
        if name not in self.splits:
            raise ValueError(f"the federation has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name]

    def _batch_bounds(self, n: int, smallest_batch: int = 1) -> list[tuple[int, int]]:
        """Bounds of the batches of n samples. With batch norm, a last batch of one sample is left out."""
        smallest = max(smallest_batch, 2 if self._has_batch_norm else 1)
        return [(start, stop) for start, stop in self.train.batch_bounds(n) if stop - start >= smallest]
