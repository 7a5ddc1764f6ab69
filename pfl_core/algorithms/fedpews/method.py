r"""FedPeWS: for the first W rounds each client trains a subnetwork of its own; after that, the base method as it is.

Tastan et al., "FedPeWS: Personalized Warmup via Subnetworks for Enhanced Heterogeneous Federated Learning",
Algorithm 1.

    p_k = sigmoid(s_k)        m̃_k ~ Bernoulli(p_k)        m_k = expand(m̃_k)
    Procedure I   s_k ← s_k − η_s ∇_s [ f_k(θ_k ∘ m_k) − λ ‖p_k − p_others‖² ]
    Procedure II  θ_k ← θ_k − η ∇_θ f_k(θ_k ∘ m_k)
    server        θ_j ← θ_j + lr_server (Σ_k m_kj θ_kj / Σ_k m_kj − θ_j); θ_j stays where nobody covers it

The result is one dense model. Where the text is silent (the method page lists A1 to A13), each choice is a field.

The gradient of the scores. Eq. 6 and line 13 of Algorithm 1 differentiate f_k(θ_k ∘ G(s_k)), the loss of the masked
*parameters*: ``score_gradient="product"``. Our default differentiates the loss in a gate on each hidden neuron's
activation, ``"gate"``. The forward pass is the same, the gradient is not. With ``expand_rule="both_ends"`` m̃_j
multiplies the weights that enter neuron j and those that leave it, and each half contributes the gate's gradient:

    product: ∂f/∂m̃_j = 2 · (gate: ∂f/∂m̃_j) where j is selected,  and 0 where it is not

An unselected neuron has pre-activation 0 and no outgoing weight, so by the letter of the paper the data can never
call it back; by the gate they can. This is our deviation from the paper's equation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pfl_core.algorithm import ABSENT, Algorithm, MechanismCheck, State, build, check_choices, method, register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.federation import Batch, DerivedWeights, Federation
from pfl_core.layout import Chain
from pfl_core.ops import counts_true, masked_mean, put, round_half_up, server_step, take
from pfl_core.options import NonNegativeFloat
from pfl_core.seeding import generator
from pfl_core.training import Training

sigmoid_backward = torch.ops.aten.sigmoid_backward  # (g, p) -> g p (1 - p)
NO_NEURONS = "FedPeWS selects neurons: it needs a plain chain of layers, each with a ReLU of its own"

# Bounds of the mechanism checks (ours)
LAST = 0.2  # share of the warm-up's rounds in which masks must stand still
SETTLED = 0.01  # share of a mask's entries that may flip from one round to the next
DENSE_LEFT = 0.2  # share of all rounds that must follow the warm-up
EXPLODED = 1.5  # times the training loss of round 1


@dataclass(frozen=True)
class WarmState(State):
    base: State = ABSENT  # the base method's own, from round W on
    score: Tensor = ABSENT  # [N, h] s_k
    mask_prob: Tensor = ABSENT  # [N, h] what the server last heard of p_k


@dataclass(frozen=True)
class Warmup(Algorithm):
    """The frame: warm-up rounds on subnetworks, then the rounds of ``base``, any method built on FedAvg.

    The base's own memory (control variates, previous models) starts after the warm-up (ours). In the warm-up the server
    takes the mean over the clients that cover an entry, whatever the base: FedNova's normalisation, too, begins later.
    """

    base: str = "fedavg"
    base_options: Mapping[str, Any] = field(default_factory=dict)
    tau: float = 0.125  # τ = W / T
    lr_server: NonNegativeFloat = 1.0  # η_g
    client_weighting: Literal["uniform", "samples"] = "uniform"  # A7
    expand_rule: Literal["both_ends", "row"] = "both_ends"  # A1

    def __post_init__(self) -> None:
        check_choices(self)
        if not 0 <= self.tau <= 1:
            raise ValueError(f"{type(self).__name__}: tau={self.tau} is outside [0, 1]; it is the share W / T")
        _ = self.inner

    @cached_property
    def inner(self) -> FedAvg:
        """The base method. Raises ValueError unless it is FedAvg but for its local step or its server's."""
        if not issubclass(method(self.base), FedAvg):
            raise ValueError(f"base={self.base!r} is not built on FedAvg: its local step cannot run on a subnetwork")
        if method(self.base).evaluation_models is not FedAvg.evaluation_models:
            raise ValueError(f"base={self.base!r} trains more than the shared model, which is all that a warm-up has")
        common = {"lr_server": self.lr_server, "client_weighting": self.client_weighting}
        if twice := common.keys() & self.base_options.keys():
            raise ValueError(f"base_options: {', '.join(sorted(twice))} is a setting of {type(self).__name__} itself")
        return build(self.base, {**self.base_options, **common})

    @property
    def inner_algorithms(self) -> tuple[Algorithm, ...]:
        return (self.inner,)

    def warmup_rounds(self, fed: Federation) -> int:
        """W."""
        return self._length(fed.rounds)

    def _length(self, rounds: int) -> int:
        return round_half_up(self.tau * rounds)

    def init(self, fed: Federation, theta0: Tensor) -> WarmState:
        """Raises ValueError, if there is a warm-up, for a network without neurons to select and unless SGD is plain."""
        if self.warmup_rounds(fed):
            if fed.layout.chain is None:
                raise ValueError(NO_NEURONS)
            if fed.train.momentum or fed.train.weight_decay or fed.train.clip_norm:
                raise ValueError(
                    f"{type(self).__name__}: its warm-up is plain SGD; leave momentum, weight_decay and clip_norm at 0 "
                    "or none"
                )
        return WarmState(shared=theta0, base=self.inner.init(fed, theta0))

    def round(self, fed: Federation, state: WarmState, clients: Tensor, t: int) -> tuple[WarmState, dict]:
        warm = self.warmup_rounds(fed)
        if t < warm:
            return self.warm_round(fed, state, clients, t)
        inner = self.inner.init(fed, state.shared) if t == warm else replace(state.base, shared=state.shared)
        inner, notes = self.inner.round(fed, inner, clients, t)
        return replace(state, shared=inner.shared, base=inner), notes

    def evaluation_models(self, fed: Federation, state: WarmState, clients: Tensor, t: int) -> Tensor:
        return self.inner.evaluation_models(fed, replace(state.base, shared=state.shared), clients, t)

    def warm_round(self, fed: Federation, state: WarmState, clients: Tensor, t: int) -> tuple[WarmState, dict]:
        raise NotImplementedError(f"{type(self).__name__}.warm_round")

    def merge(
        self, fed: Federation, state: WarmState, clients: Tensor, theta: Tensor, neurons: Tensor, loss: Tensor
    ) -> tuple[WarmState, dict]:
        """The server's step over the entries that masks cover; theta [S, e], neurons [S, h] bool."""
        chain = fed.layout.chain
        active = expand(chain, neurons, self.expand_rule)
        mean = masked_mean(theta, active, self.inner.weight(fed, clients), state.shared)
        covered, d = neurons.sum(0), fed.num_params
        notes = {
            "trained": theta * active,  # the subnetworks that go up
            "train_loss": loss,
            "upload": counts_true(active[:, :d]),
            "upload_bits": torch.full((len(clients),), chain.num_neurons),
            "passes": fed.train.epochs,
            "selected": neurons.float().mean(1),
            "neurons_covered": float((covered >= 1).float().mean()),
            "neurons_shared": float((covered >= 2).float().mean()),
            "params_covered": int(active[:, :d].any(0).sum()) / d,
        }
        return replace(state, shared=server_step(state.shared, mean, self.lr_server)), notes

    def mechanism(self, series: Mapping[str, np.ndarray], rounds: int, training: Training) -> list[MechanismCheck]:
        """There was a warm-up; enough dense rounds follow it; its training loss did not explode."""
        warm = self._length(rounds)
        if not self.tau:
            return []
        if not warm:
            return [MechanismCheck("warm-up rounds", 0, 1, False, "τT rounds to 0: give more rounds or a larger τ")]
        left = (rounds - warm) / rounds
        checks = [
            MechanismCheck(
                "share of dense rounds after the warm-up", left, DENSE_LEFT, left >= DENSE_LEFT,
                "the dense model is hardly trained: take a smaller τ",
            )
        ]  # fmt: skip
        if "train_loss" in series:
            loss = _mean_of_clients(series["train_loss"])[:warm]
            top = float(np.max(loss) / loss[0])
            checks.append(
                MechanismCheck(
                    "largest training loss of the warm-up, over that of round 1", top, EXPLODED, top <= EXPLODED,
                    "training diverges while masks are chosen: lower the rate",
                )
            )  # fmt: skip
        return checks

    def shared_prefix(self, fed: Federation) -> tuple[Algorithm, int]:
        """Runs that differ in τ alone are equal until the earlier switch."""
        return replace(self, tau=1.0), self.warmup_rounds(fed)


def expand(chain: Chain, neurons: Tensor, rule: str) -> Tensor:
    """Neuron masks [..., h] to entry masks [..., e]: both ends must be active, or (row) the neuron that it feeds."""
    return chain.expand(neurons) if rule == "both_ends" else chain.expand_rows(neurons)


def _mean_of_clients(noted: np.ndarray) -> np.ndarray:
    """[rounds] mean over the clients that took part; noted [rounds, N], not a number where a client was absent."""
    present = ~np.isnan(noted)
    with np.errstate(invalid="ignore"):  # a round in which nobody has a number has none
        return np.where(present, noted, 0.0).sum(1) / present.sum(1)


class Learning(NamedTuple):
    """The rows of a group while they learn; all but ``others`` are written into."""

    theta: Tensor  # [R, e]
    score: Tensor  # [R, h]
    prob: Tensor  # [R, h], sigmoid of the scores
    others: Tensor  # [R, h], p_others
    loss: Tensor  # [R], summed over the samples
    seen: Tensor  # [R] samples

    @classmethod
    def start(cls, theta: Tensor, score: Tensor, others: Tensor) -> Learning:
        loss, seen = torch.zeros(2, len(theta)).to(theta)
        return cls(theta, score, torch.sigmoid(score), others, loss, seen)

    def first(self, num: int) -> Learning:
        return Learning(*(part[:num] for part in self))


@register(
    "fedpews",
    papers=("fedpews",),
    shares="one model; in the warm-up each client trains and sends a subnetwork that it learns",
    variants={
        "no_diversity": {"lam": 0.0},
        "fedprox": {"base": "fedprox"},
        "product": {"score_gradient": "product"},
        "samples": {"prob_update": "samples"},
        "one_draw": {"draws": "one_per_round", "straight_through": "draw_and_sigmoid"},
        "uniform": {"score_init": "uniform_per_client"},
    },
    ci={"tau": 0.5, "lam": 1.0},
    passes=1.3,
    trial_training={"lr": 0.2, "momentum": 0.0},  # its warm-up is plain SGD
)
@dataclass(frozen=True)
class FedPeWS(Warmup):
    """Algorithm 1: masks drawn from learned scores, pushed apart by the diversity term."""

    lam: NonNegativeFloat = 5.0  # λ
    lr_mask: NonNegativeFloat = 0.1  # η_s
    score_init: Literal["zeros", "uniform", "uniform_per_client"] = "zeros"  # A3
    prob_update: Literal["mean", "samples", "constant"] = "mean"  # A2: what the others are taken to be
    prob_over: Literal["all", "participants"] = "all"  # A8
    straight_through: Literal["draw", "draw_and_sigmoid"] = "draw"  # A4
    draws: Literal["every", "one_per_step", "one_per_round"] = "every"  # A5
    score_gradient: Literal["gate", "product"] = "gate"  # "product": Eq. 6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam < 0 or self.lr_mask < 0:
            raise ValueError(f"FedPeWS: lam={self.lam}, lr_mask={self.lr_mask}: both must be at least 0")

    def init(self, fed: Federation, theta0: Tensor) -> WarmState:
        state = super().init(fed, theta0)
        h = fed.layout.chain.num_neurons if fed.layout.chain else 0
        score = torch.zeros(fed.num_clients, h).to(theta0)
        if self.score_init != "zeros":
            rows = fed.num_clients if self.score_init == "uniform_per_client" else 1
            prob = 0.01 + 0.98 * torch.rand(rows, h, generator=generator(fed.seed, "score_init"))
            score = score + torch.logit(prob).to(theta0)
        return replace(state, score=score, mask_prob=torch.sigmoid(score))

    def warm_round(self, fed: Federation, state: WarmState, clients: Tensor, t: int) -> tuple[WarmState, dict]:
        others = self.others(fed, state, clients, t)
        theta, score, neurons, loss = self.learn(fed, state, others, clients, t)
        prob = torch.sigmoid(score)
        new, notes = self.merge(fed, state, clients, theta, neurons, loss)
        heard = {"mean": prob, "samples": neurons.to(prob), "constant": take(state.mask_prob, clients)}
        new = replace(
            new,
            score=put(state.score, clients, score),
            mask_prob=put(state.mask_prob, clients, heard[self.prob_update]),
        )
        sent = notes["upload"] + (prob.shape[1] if self.prob_update == "mean" else 0)
        flips = {"mask_flips": expected_flips(torch.sigmoid(take(state.score, clients)), prob)}
        return new, notes | self.diagnostics(prob, others) | flips | {"upload": sent, "passes": 2 * fed.train.epochs}

    def others(self, fed: Federation, state: WarmState, clients: Tensor, t: int) -> Tensor:
        """p_others [S, h]: the mean probability of the other clients, as the server knows it at the round's start."""
        if self.prob_update == "constant":
            return state.mask_prob.mean(0).expand(len(clients), -1)
        heard = state.mask_prob if self.prob_over == "all" else take(state.mask_prob, clients)
        num, everyone = len(heard), heard.mean(0)
        own = take(state.mask_prob, clients)
        return (num * everyone - own) / (num - 1) if num > 1 else everyone.expand_as(own)

    def learn(
        self, fed: Federation, state: WarmState, others: Tensor, clients: Tensor, t: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Procedures I and II on every batch: theta [S, e], scores [S, h], the masks that go up [S, h], losses [S]."""
        theta, score = fed.broadcast(state.shared, clients).clone(), take(state.score, clients).clone()
        neurons, loss = torch.zeros_like(score, dtype=torch.bool), torch.zeros(len(clients))
        inner, lr, d = self.inner.init(fed, state.shared), fed.lr(t), fed.num_params
        for rows in fed.groups(clients):
            group = Learning.start(theta[rows], score[rows], others[rows])
            training = self.inner.local_training(fed, inner, clients[rows], t)
            first, *numbers = uniform_numbers(fed, clients[rows], t).unbind(1)  # two for each step
            fixed = first < group.prob if self.draws == "one_per_round" else None
            num = 0
            for step, batch in enumerate(fed.batches(clients[rows], t)):
                if len(batch.count) != num:  # the rows that have a batch left
                    num = len(batch.count)
                    now = group.first(num)
                neuron = numbers[2 * step][:num] < now.prob if fixed is None else fixed[:num]
                of_score = self.gradient_of_scores(fed, now.theta, now.prob, neuron, now.others, batch)
                now.score.sub_(of_score, alpha=self.lr_mask)  # Procedure I
                torch.sigmoid(now.score, out=now.prob)
                if self.draws == "every":
                    neuron = numbers[2 * step + 1][:num] < now.prob
                found = fed.grad(now.theta, batch, gates=neuron, loss=training.loss, copy=False)
                params, g = now.theta[:, :d], found.theta
                if training.gradient is not None:
                    g = torch.stack([training.gradient(*each) for each in zip(g, params, range(num), strict=True)])
                params.sub_(g, alpha=lr)  # Procedure II
                if fed.layout.num_statistics:
                    now.theta[:, d:] = found.statistics
                now.loss.addcmul_(found.loss, batch.weight)
                now.seen.add_(batch.weight)
            theta[rows], score[rows], loss[rows] = group.theta, group.score, (group.loss / group.seen).to(loss)
            neurons[rows] = first < group.prob if fixed is None else fixed
        return theta, score, neurons, loss

    def gradient_of_scores(
        self, fed: Federation, theta: Tensor, prob: Tensor, neuron: Tensor, others: Tensor, batch: Batch
    ) -> Tensor:
        """dL_s / ds [R, h] (Eq. 6): the gradient of the data's loss, straight through, minus the diversity's.

        prob [R, h] is sigmoid(s), neuron [R, h] bool the mask drawn from it.
        """
        if self.score_gradient == "gate":
            data = fed.grad(theta, batch, gates=neuron, of=("gates",)).gates
        else:
            chain = fed.layout.chain

            def product(theta_k: Tensor, neuron_k: Tensor, x: Tensor, r: int) -> Tensor:
                return theta_k * expand(chain, neuron_k, self.expand_rule)[: len(theta_k)]

            data = fed.grad(theta, batch, weights=DerivedWeights(product, neuron.to(theta)), of=()).variables
        away = prob - others
        if self.straight_through == "draw":
            return sigmoid_backward(data.sub_(away, alpha=2 * self.lam), prob)
        return data.sub_(sigmoid_backward(away, prob), alpha=2 * self.lam)

    def diagnostics(self, prob: Tensor, others: Tensor) -> dict:
        """What the masks are like at the end of a warm-up round; prob and others [S, h]."""
        pairs = torch.pdist(prob, p=1) / prob.shape[1]
        return {
            "mask_prob": float(prob.mean()),
            "mask_low": float((prob < 0.1).float().mean()),
            "mask_high": float((prob > 0.9).float().mean()),
            "mask_distance": float(pairs.mean()) if len(pairs) else 0.0,
            "diversity": (prob - others).square().sum(1),  # ‖p_k - p_others‖²
        }

    def mechanism(self, series: Mapping[str, np.ndarray], rounds: int, training: Training) -> list[MechanismCheck]:
        """The warm-up's checks, and whether the masks settled before the switch.

        Records without ``mask_flips`` are judged by how much a mask's size changes: at most the share that flips.
        """
        checks, warm = super().mechanism(series, rounds, training), self._length(rounds)
        if len(series.get("selected", ())) < warm:  # stopped before the switch
            return checks
        if "mask_flips" in series:
            what, moved = "share of a mask's entries that flip in a round", series["mask_flips"]
        elif "selected" in series:
            what, moved = "change of the share of neurons in a mask", np.abs(np.diff(series["selected"], axis=0))
        else:
            return checks
        late = moved[-max(1, round_half_up(LAST * warm)) :]
        if np.isnan(late).all():
            return checks
        mean = float(np.nanmean(late))
        settled = MechanismCheck(
            f"{what}, last fifth of the warm-up", mean, SETTLED, mean <= SETTLED,
            "the masks are still drawn by chance: give a larger λ, a larger lr_mask or a longer warm-up",
        )  # fmt: skip
        return [settled, *checks]


def expected_flips(before: Tensor, after: Tensor) -> Tensor:
    """[S] expected share of a mask's entries that differ between a draw from ``before`` and one from ``after``.

    before, after [S, h]: probabilities. One half where every neuron is a tossed coin, 0 where all have settled.
    """
    return (before * (1 - after) + (1 - before) * after).mean(1)


def uniform_numbers(fed: Federation, clients: Tensor, t: int) -> Tensor:
    """[R, 1 + 2 steps, h] in [0, 1): for the upload, then two for each step; filled up with 0.

    Each round and client has a stream of its own.
    """
    h = fed.layout.chain.num_neurons
    streams = [(1 + 2 * fed.num_steps(k), generator(fed.seed, "mask", t, k)) for k in clients.tolist()]
    return pad_sequence([torch.rand(n, h, generator=s) for n, s in streams], batch_first=True).to(fed.theta0)
