"""FedPeWS in plain PyTorch, without the package's engine, as a reference for the tests; and small networks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_core import Algorithm, Federation, Schedule, State
from pfl_core.algorithms.fedpews.method import FedPeWS, WarmState, uniform_numbers
from pfl_core.engine import rounds
from tests.helpers import cnn, federation, module_of, seeded, some_rows

F64 = torch.float64
both_nets = pytest.mark.parametrize("name", ["dense", "conv"])


def deep(seed: int = 0) -> nn.Sequential:
    """6 features -> 5 neurons -> 4 neurons -> 3 classes: weights between two masked layers."""
    first = OrderedDict(fc1=nn.Linear(6, 5), relu1=nn.ReLU(), fc2=nn.Linear(5, 4))
    return seeded(first | OrderedDict(relu2=nn.ReLU(), head=nn.Linear(4, 3)), seed)


def net(name: str) -> nn.Sequential:
    return deep() if name == "dense" else cnn(bn=False)


def fed_of(name: str = "dense", sizes: tuple[int, ...] = (12, 9, 14, 10), **options) -> Federation:
    """A federation with the dense or the convolutional chain of layers."""
    return federation(net(name), sizes, **{"shape": (6,) if name == "dense" else (1, 4, 4)} | options)


def with_scores(algorithm: FedPeWS, fed: Federation, score: Tensor) -> WarmState:
    """The initial state with these scores [N, h]."""
    return replace(algorithm.init(fed, fed.theta0), score=score, mask_prob=torch.sigmoid(score))


def some_scores(fed: Federation, key: int = 0) -> Tensor:
    """[N, h] scores of size about 1, different for every client."""
    stream = torch.Generator().manual_seed(key)
    return torch.randn(fed.num_clients, fed.layout.chain.num_neurons, generator=stream).to(fed.theta0)


def middle(algorithm: FedPeWS, fed: Federation) -> WarmState:
    """A state with scores, probabilities and a model that are not the initial ones."""
    state = with_scores(algorithm, fed, some_scores(fed))
    return replace(state, shared=some_rows(fed, torch.arange(1))[0])


def states(algorithm: Algorithm, fed: Federation, num: int, schedule: Schedule | None = None) -> list[State]:
    """The state before the first of ``num`` rounds, and after each."""
    start = algorithm.init(fed, fed.theta0)
    return [start, *(s.state for s in rounds(algorithm, fed, schedule or Schedule(num), start))]


def first_batch(fed: Federation, k: int = 0):
    return next(fed.batches(torch.tensor([k]), 0))


def shared_of(algorithm: Algorithm, fed: Federation, num: int = 3, **schedule) -> list[Tensor]:
    """The server's model after each round."""
    start = algorithm.init(fed, fed.theta0)
    return [s.state.shared for s in rounds(algorithm, fed, Schedule(num, **schedule), start)]


def plain_steps(
    fed: Federation,
    model: nn.Module,
    theta: Tensor,
    k: int,
    t: int,
    *,
    change: Callable | None = None,
    loss: Callable | None = None,
    epochs: int = 1,
) -> tuple[Tensor, int]:
    """Local training with plain autograd: (theta [d], steps).

    ``change(g, theta)`` of flat vectors; ``loss(module, x, y)`` in place of cross-entropy.
    """
    plain, steps = module_of(fed, model, theta), 0
    params = list(plain.parameters())
    for batch in fed.batches(torch.tensor([k]), t, epochs=epochs):
        x, y = batch.x[0], batch.y[0]
        value = cross_entropy(plain(x), y) if loss is None else loss(plain, x, y)
        g = torch.cat([part.flatten() for part in torch.autograd.grad(value, params)])
        now = nn.utils.parameters_to_vector(params).detach()
        nn.utils.vector_to_parameters(now - fed.lr(t) * (g if change is None else change(g, now)), params)
        steps += 1
    return nn.utils.parameters_to_vector(params).detach(), steps


class Draw(torch.autograd.Function):
    """Straight-through estimator: returns the bits, and passes the gradient on unchanged."""

    @staticmethod
    def forward(ctx, prob: Tensor, bits: Tensor) -> Tensor:
        return bits.to(prob)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def gated(model: nn.Sequential, x: Tensor, gates: Tensor) -> Tensor:
    """Logits with every hidden neuron's activation times its gate [h]."""
    after = ("pool1", "relu2") if hasattr(model, "pool1") else ("relu1", "relu2")
    for name, layer in model.named_children():
        x = layer(x)
        if name in after:
            gate, gates = gates[: x.shape[1]], gates[x.shape[1] :]
            x = x * gate.view(1, -1, *[1] * (x.dim() - 2))
    return x


def expanded(model: nn.Sequential, on: Tensor, rule: str = "both_ends") -> Tensor:
    """Neuron mask [h] -> parameter mask [d], layer by layer, in floats, so that it can be differentiated."""
    layers = [m for m in model if hasattr(m, "weight")]
    parts, before = [], torch.ones(layers[0].weight.shape[1]).to(on)
    for layer in layers:
        rows, columns = layer.weight.shape[:2]
        here, on = (torch.ones(rows).to(on), on) if layer is layers[-1] else (on[:rows], on[rows:])
        into = before.repeat_interleave(columns // len(before)) if rule == "both_ends" else torch.ones(columns).to(on)
        weight = (here[:, None] * into).view(rows, columns, *[1] * (layer.weight.dim() - 2))
        parts += [weight.expand_as(layer.weight).flatten(), here]
        before = here
    return torch.cat(parts)


def plain_local(
    algorithm: FedPeWS,
    fed: Federation,
    model: nn.Sequential,
    x_g: Tensor,
    score: Tensor,
    others: Tensor,
    k: int,
    t: int,
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Procedures I and II on every batch: theta [d], scores [h], the mask of the upload [h], the mean loss."""
    plain, numbers, total = module_of(fed, model, x_g), uniform_numbers(fed, torch.tensor([k]), t)[0], 0.0
    params = list(plain.parameters())
    anchor = [p.detach().clone() for p in params]
    mu = algorithm.base_options.get("mu", 0.01) if algorithm.base == "fedprox" else 0.0
    once = numbers[0] < torch.sigmoid(score) if algorithm.draws == "one_per_round" else None
    for step, batch in enumerate(fed.batches(torch.tensor([k]), t)):
        x, y = batch.x[0], batch.y[0]
        s = score.clone().requires_grad_()
        p = torch.sigmoid(s)
        on = numbers[1 + 2 * step] < p if once is None else once
        drawn = Draw.apply(s if algorithm.straight_through == "draw_and_sigmoid" else p, on)
        if algorithm.score_gradient == "gate":
            logits = gated(plain, x, drawn)
        else:
            flat = nn.utils.parameters_to_vector(params).detach()
            named = fed.layout.unflatten(flat * expanded(model, drawn, algorithm.expand_rule))
            logits = torch.func.functional_call(plain, named, x)
        value = cross_entropy(logits, y) - algorithm.lam * (p - others).square().sum()
        (gradient,) = torch.autograd.grad(value, s)
        score = score - algorithm.lr_mask * gradient  # Procedure I
        if algorithm.draws == "every":
            on = numbers[2 + 2 * step] < torch.sigmoid(score)
        value = cross_entropy(gated(plain, x, on.to(score)), y)
        total += value.item() * len(y)
        value = value + mu / 2 * sum((p - a).square().sum() for p, a in zip(params, anchor, strict=True))
        gradients = torch.autograd.grad(value, params)
        with torch.no_grad():
            for p, g in zip(params, gradients, strict=True):
                p -= fed.lr(t) * g  # Procedure II
    final = numbers[0] < torch.sigmoid(score) if once is None else once
    return nn.utils.parameters_to_vector(params).detach(), score, final, total / len(fed.labels(k))


def plain_round(
    algorithm: FedPeWS, fed: Federation, model: nn.Sequential, state: WarmState, clients: Tensor, t: int
) -> tuple[WarmState, dict[str, list[float]]]:
    """A warm-up round with learned masks, client by client; and the clients' notes."""
    score, mask_prob = state.score.clone(), state.mask_prob.clone()
    notes: dict[str, list[float]] = {"train_loss": [], "selected": [], "upload": []}
    top, bottom = torch.zeros_like(state.shared), torch.zeros_like(state.shared)
    averaged = list(range(fed.num_clients)) if algorithm.prob_over == "all" else clients.tolist()
    for k in clients.tolist():
        others = torch.stack([state.mask_prob[i] for i in averaged if i != k]).mean(0)
        others = state.mask_prob.mean(0) if algorithm.prob_update == "constant" else others
        theta, score[k], on, loss = plain_local(algorithm, fed, model, state.shared, state.score[k], others, k, t)
        if algorithm.prob_update != "constant":
            mask_prob[k] = torch.sigmoid(score[k]) if algorithm.prob_update == "mean" else on.to(mask_prob)
        weight = float(len(fed.labels(k))) if algorithm.client_weighting == "samples" else 1.0
        active = expanded(model, on.to(theta), algorithm.expand_rule)
        top, bottom = top + weight * active * theta, bottom + weight * active
        notes["train_loss"].append(loss)
        notes["selected"].append(float(on.double().mean()))
        notes["upload"].append(float(active.sum()) + len(on) * (algorithm.prob_update == "mean"))
    mean = torch.where(bottom > 0, top / bottom.clamp(min=1e-9), state.shared)
    shared = state.shared - algorithm.lr_server * (state.shared - mean)
    return replace(state, shared=shared, score=score, mask_prob=mask_prob), notes
