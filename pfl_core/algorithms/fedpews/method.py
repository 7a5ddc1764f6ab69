r"""FedPeWS: W warm-up rounds in which each client trains a personalized subnetwork, then an ordinary base method.

Tastan et al., "FedPeWS: Personalized Warmup via Subnetworks for Enhanced Heterogeneous Federated Learning",
Algorithm 1.

    p_k = sigmoid(s_k)        m̃_k ~ Bernoulli(p_k)        m_k = expand(m̃_k)
    Procedure I   s_k ← s_k − η_s ∇_s [ f_k(θ_k ∘ m_k) − λ ‖p_k − p_others‖² ]
    Procedure II  θ_k ← θ_k − η ∇_θ f_k(θ_k ∘ m_k)
    server        θ_j ← θ_j + lr_server (Σ_k m_kj θ_kj / Σ_k m_kj − θ_j); θ_j is unchanged where no mask covers it

The result is one dense model. Where the paper is silent, each choice is a field. The method page
(``notebooks/fedpews/README.md``) lists the choices as A1 to A13.

Gradient of the scores. Eq. 6 and line 13 of Algorithm 1 differentiate f_k(θ_k ∘ G(s_k)), the loss of the masked
*parameters*. This is ``score_gradient="product"``. The default, ``"gate"``, is not in the paper: a gate multiplies the
activation of each hidden neuron, and the loss is differentiated with respect to the gate. The forward pass is the same,
the gradient is not. With ``expand_rule="both_ends"``, m̃_j multiplies the weights into neuron j and the weights out of
it. Each of the two contributes the gradient of the gate:

    product: ∂f/∂m̃_j = 2 · (gate: ∂f/∂m̃_j) where j is selected,  and 0 where it is not

An unselected neuron has pre-activation 0 and no outgoing weights. With the paper's equation the data give its score no
gradient, so they can never select it again. With gates they can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pfl_core.algorithm import (
    ABSENT,
    Algorithm,
    MechanismCheck,
    State,
    build,
    method,
    register,
)
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.momentum import MovingState
from pfl_core.federation import Batch, DerivedWeights, Federation, LocalTraining
from pfl_core.layout import Chain
from pfl_core.ops import counts_true, masked_mean, put, round_half_up, server_step, take
from pfl_core.options import Fraction, NonNegativeFloat
from pfl_core.seeding import generator
from pfl_core.training import Training

sigmoid_backward = torch.ops.aten.sigmoid_backward  # (g, p) -> g p (1 - p)

# Bounds of the mechanism checks (not in the paper)
LAST = 0.2  # masks must have settled in this last share of the warm-up rounds
# A mask has settled if at most this share of its entries flips from one round to the next. It was 0.01 until runs
# showed that a few neurons without gradient, which flip in half of the rounds, make up as much.
SETTLED = 0.02
SETTLED_SIZE = 0.01  # the same for the change of a mask's size
DENSE_LEFT = 0.2  # at least this share of all rounds must follow the warm-up
EXPLODED = 1.5  # largest allowed training loss, relative to round 1


@dataclass(frozen=True)
class WarmState(State):
    base: MovingState = ABSENT  # state of the base method, from round W on
    score: Tensor = ABSENT  # [N, h] s_k
    mask_prob: Tensor = ABSENT  # [N, h] p_k as the server last received it


WarmStateT = TypeVar("WarmStateT", bound=WarmState)


@dataclass(frozen=True)
class Warmup(Algorithm[WarmStateT]):
    """Warm-up rounds on subnetworks, then rounds of ``base``. Subclasses choose the subnetworks in ``warm_round``.

    ``base`` is any method built on FedAvg that trains the shared model only. Its memory (control variates, previous
    models) starts after the warm-up; the paper does not say. During the warm-up the server averages each entry over the
    clients that cover it, whatever the base. FedNova's normalisation, for example, starts after the warm-up.
    """

    base: str = "fedavg"
    base_options: Mapping[str, Any] = field(default_factory=dict)
    tau: Fraction = 0.125  # τ = W / T
    lr_server: NonNegativeFloat = 1.0  # η_g
    client_weighting: Literal["uniform", "samples"] = "uniform"  # client weights in the mean (A7)
    expand_rule: Literal["both_ends", "row"] = "both_ends"  # which parameters belong to a neuron (A1)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.inner

    @cached_property
    def inner(self) -> FedAvg:
        """The base method.

        Raises ValueError if it is not a subclass of FedAvg, or if it scores clients with other models than FedAvg's.
        """
        if not issubclass(method(self.base), FedAvg):
            raise ValueError(f"base={self.base!r} is not built on FedAvg; give a method that is, such as 'fedprox'")
        if method(self.base).evaluation_models is not FedAvg.evaluation_models:
            raise ValueError(
                f"base={self.base!r} trains more than the shared model; give a base such as 'fedavg' or 'scaffold'"
            )
        common = {"lr_server": self.lr_server, "client_weighting": self.client_weighting}
        if duplicates := common.keys() & self.base_options.keys():
            names = ", ".join(sorted(duplicates))
            raise ValueError(f"base_options: {names} cannot be set here; set it on {type(self).__name__} itself")
        inner = build(self.base, {**self.base_options, **common})
        assert isinstance(inner, FedAvg)
        return inner

    @property
    def inner_algorithms(self) -> tuple[Algorithm, ...]:
        return (self.inner,)

    def warmup_rounds(self, fed: Federation) -> int:
        """W, the number of warm-up rounds."""
        return self.num_warmup(fed.rounds)

    def num_warmup(self, rounds: int) -> int:
        """W of a run with this number of rounds."""
        return round_half_up(self.tau * rounds)

    def init_base(self, fed: Federation, theta0: Tensor) -> MovingState:
        """The first state of the base method.

        If there is a warm-up, raises ValueError for a network without hidden neurons to select, and for SGD with
        momentum, weight decay or clipping.
        """
        if self.warmup_rounds(fed):
            neuron_chain(fed)
            if fed.train.momentum or fed.train.weight_decay or fed.train.clip_norm:
                raise ValueError(
                    f"{type(self).__name__}: the warm-up is plain SGD; leave momentum, weight_decay and clip_norm at 0 "
                    "or none"
                )
        return self.inner.init(fed, theta0)

    def round(self, fed: Federation, state: WarmStateT, clients: Tensor, t: int) -> tuple[WarmStateT, dict]:
        warm = self.warmup_rounds(fed)
        if t < warm:
            return self.warm_round(fed, state, clients, t)
        # The base method starts in round W, from the model that the warm-up has trained.
        inner = self.inner.init(fed, state.shared) if t == warm else replace(state.base, shared=state.shared)
        inner, notes = self.inner.round(fed, inner, clients, t)
        return replace(state, shared=inner.shared, base=inner), notes

    def evaluation_models(self, fed: Federation, state: WarmStateT, clients: Tensor, t: int) -> Tensor:
        return self.inner.evaluation_models(fed, replace(state.base, shared=state.shared), clients, t)

    def warm_round(self, fed: Federation, state: WarmStateT, clients: Tensor, t: int) -> tuple[WarmStateT, dict]:
        """One warm-up round; same contract as ``round``."""
        raise NotImplementedError(f"{type(self).__name__}.warm_round")

    def merge(
        self, fed: Federation, state: WarmStateT, clients: Tensor, theta: Tensor, neurons: Tensor, loss: Tensor
    ) -> tuple[WarmStateT, dict]:
        """Server step of a warm-up round, and its notes.

        Each entry is averaged over the clients whose mask covers it. theta [S, e], neurons [S, h] bool, loss [S].
        """
        chain = neuron_chain(fed)
        active = expand(chain, neurons, self.expand_rule)  # [S, e]
        mean = masked_mean(theta, active, self.inner.weight(fed, clients), state.shared)
        covered, d = neurons.sum(0), fed.num_params  # [h] number of clients that selected each neuron
        notes = {
            "trained": theta * active,  # the uploaded subnetworks
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
        """Checks: there was a warm-up, enough dense rounds follow it, and the training loss did not explode."""
        warm = self.num_warmup(rounds)
        if not self.tau:
            return []
        if not warm:
            return [MechanismCheck("warm-up rounds", 0, 1, False, "τT rounds to 0; use more rounds or a larger τ")]
        left = (rounds - warm) / rounds
        checks = [
            MechanismCheck(
                "share of dense rounds after the warm-up", left, DENSE_LEFT, left >= DENSE_LEFT,
                "the dense model is hardly trained; use a smaller τ",
            )
        ]  # fmt: skip
        if "train_loss" in series:
            loss = _mean_of_clients(series["train_loss"])[:warm]
            top = float(np.max(loss) / loss[0])
            checks.append(
                MechanismCheck(
                    "largest training loss of the warm-up, relative to round 1", top, EXPLODED, top <= EXPLODED,
                    "training diverges while masks are chosen; use a lower learning rate",
                )
            )  # fmt: skip
        return checks

    def horizon_dependence(self) -> str:
        return f"the warm-up is the share tau={self.tau} of the planned rounds" if 0 < self.tau < 1 else ""

    def shared_prefix(self, fed: Federation) -> tuple[Algorithm, int]:
        """Runs that differ only in τ are equal up to the shorter warm-up."""
        return replace(self, tau=1.0), self.warmup_rounds(fed)


def neuron_chain(fed: Federation) -> Chain:
    """The hidden neurons of the network. Raises ValueError if it has none, or is not a plain chain of layers."""
    if fed.layout.chain is None or not fed.layout.chain.sizes:
        raise ValueError("FedPeWS selects neurons: it needs a plain chain of layers, the hidden ones with a ReLU each")
    return fed.layout.chain


def expand(chain: Chain, neurons: Tensor, rule: str) -> Tensor:
    """Neuron masks [..., h] to entry masks [..., e].

    ``rule`` "both_ends": an entry is active if the neurons at both of its ends are; "row": if the neuron it feeds is.
    """
    return chain.expand(neurons) if rule == "both_ends" else chain.expand_rows(neurons)


def _mean_of_clients(noted: np.ndarray) -> np.ndarray:
    """[rounds] mean over the clients that took part; noted [rounds, N] is NaN where a client was absent."""
    present = ~np.isnan(noted)
    with np.errstate(invalid="ignore"):  # NaN for a round without any value
        return np.where(present, noted, 0.0).sum(1) / present.sum(1)


class WarmupRows(NamedTuple):
    """A group of clients during local training. Training updates every tensor but ``prob_others`` in place."""

    theta: Tensor  # [R, e]
    score: Tensor  # [R, h]
    prob: Tensor  # [R, h], sigmoid of the scores
    prob_others: Tensor  # [R, h], p_others
    loss: Tensor  # [R], summed over the samples
    num_seen: Tensor  # [R], number of samples so far

    @classmethod
    def start(cls, theta: Tensor, score: Tensor, prob_others: Tensor) -> WarmupRows:
        loss, num_seen = torch.zeros(2, len(theta)).to(theta)
        return cls(theta, score, torch.sigmoid(score), prob_others, loss, num_seen)

    def first(self, num: int) -> WarmupRows:
        """Views of the first ``num`` rows."""
        return WarmupRows(*(part[:num] for part in self))


@register(
    "fedpews",
    papers=("fedpews",),
    shares="one model; in the warm-up each client trains and sends a subnetwork with a learned mask",
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
    trial={"tau": 0.3, "lr_mask": 1.5},  # with τ = 0.125, masks are still random after the warm-up
)
@dataclass(frozen=True)
class FedPeWS(Warmup[WarmState]):
    """Algorithm 1: masks are drawn from learned scores; the diversity term pushes the clients' masks apart."""

    lam: NonNegativeFloat = 5.0  # λ, weight of the diversity term
    lr_mask: NonNegativeFloat = 0.1  # η_s
    score_init: Literal["zeros", "uniform", "uniform_per_client"] = "zeros"  # initial scores (A3)
    prob_update: Literal["mean", "samples", "constant"] = "mean"  # what p_others is computed from (A2)
    prob_over: Literal["all", "participants"] = "all"  # the clients that p_others is a mean over (A8)
    straight_through: Literal["draw", "draw_and_sigmoid"] = "draw"  # what the backward pass skips (A4)
    draws: Literal["every", "one_per_step", "one_per_round"] = "every"  # how often a mask is drawn (A5)
    score_gradient: Literal["gate", "product"] = "gate"  # "product" is Eq. 6; see above

    def init(self, fed: Federation, theta0: Tensor) -> WarmState:
        base = self.init_base(fed, theta0)
        h = fed.layout.chain.num_neurons if fed.layout.chain else 0
        score = torch.zeros(fed.num_clients, h).to(theta0)
        if self.score_init != "zeros":
            rows = fed.num_clients if self.score_init == "uniform_per_client" else 1
            prob = 0.01 + 0.98 * torch.rand(rows, h, generator=generator(fed.seed, "score_init"))
            score = score + torch.logit(prob).to(theta0)
        return WarmState(shared=theta0, base=base, score=score, mask_prob=torch.sigmoid(score))

    def warm_round(self, fed: Federation, state: WarmState, clients: Tensor, t: int) -> tuple[WarmState, dict]:
        prob_others = self.others(fed, state, clients, t)
        theta, score, neurons, loss = self.train_masked(fed, state, prob_others, clients, t)
        prob = torch.sigmoid(score)
        new, notes = self.merge(fed, state, clients, theta, neurons, loss)
        uploaded = {"mean": prob, "samples": neurons.to(prob), "constant": take(state.mask_prob, clients)}
        new = replace(
            new,
            score=put(state.score, clients, score),
            mask_prob=put(state.mask_prob, clients, uploaded[self.prob_update]),
        )
        num_sent = notes["upload"] + (prob.shape[1] if self.prob_update == "mean" else 0)  # p_k: h more values
        flips = {"mask_flips": expected_flips(torch.sigmoid(take(state.score, clients)), prob)}
        costs = {"upload": num_sent, "passes": 2 * fed.train.epochs}
        return new, notes | self.diagnostics(prob, prob_others) | flips | costs

    def others(self, fed: Federation, state: WarmState, clients: Tensor, t: int) -> Tensor:
        """p_others [S, h]: mean probability of the other clients, as the server knows it at the start of the round."""
        if self.prob_update == "constant":
            return state.mask_prob.mean(0).expand(len(clients), -1)
        averaged = state.mask_prob if self.prob_over == "all" else take(state.mask_prob, clients)
        num, prob_mean = len(averaged), averaged.mean(0)
        prob = take(state.mask_prob, clients)
        return (num * prob_mean - prob) / (num - 1) if num > 1 else prob_mean.expand_as(prob)

    def train_masked(
        self, fed: Federation, state: WarmState, prob_others: Tensor, clients: Tensor, t: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Local training: Procedures I and II on every batch.

        Returns theta [S, e], the scores [S, h], the masks of the upload [S, h] bool, and the mean losses [S].
        """
        theta, score = fed.broadcast(state.shared, clients).clone(), take(state.score, clients).clone()
        upload_mask, loss = torch.zeros_like(score, dtype=torch.bool), torch.zeros(len(clients))
        base_state, lr = self.inner.init(fed, state.shared), fed.lr(t)

        def train_group(rows: slice | Tensor) -> None:
            group = WarmupRows.start(theta[rows], score[rows], prob_others[rows])
            training = self.inner.local_training(fed, base_state, clients[rows], t)
            # A mask is uniform < p. One [R, h] block of numbers for the upload, then two for each step of a client.
            numbers = uniform_numbers(fed, clients[rows], t)
            fixed = numbers[:, 0] < group.prob if self.draws == "one_per_round" else None
            own_step, num = torch.zeros(len(numbers), dtype=torch.int64, device=numbers.device), 0
            for batch in fed.batches(clients[rows], t):
                if len(batch.count) != num:  # the first rows have a batch left in this epoch
                    num = len(batch.count)
                    now, first = group.first(num), torch.arange(num, device=numbers.device)
                # Procedure I: a step on the scores
                place = 1 + 2 * own_step[:num]
                mask = numbers[first, place] < now.prob if fixed is None else fixed[:num]
                gradient = self.gradient_of_scores(fed, now.theta, now.prob, mask, now.prob_others, batch)
                now.score.sub_(gradient, alpha=self.lr_mask)
                torch.sigmoid(now.score, out=now.prob)
                # Procedure II: a step on the model, by default with a new mask from the new scores
                if self.draws == "every":
                    mask = numbers[first, place + 1] < now.prob
                self._model_step(fed, now, mask, batch, training, lr)
                own_step[:num] += 1
            theta[rows], score[rows], loss[rows] = group.theta, group.score, (group.loss / group.num_seen).to(loss)
            upload_mask[rows] = numbers[:, 0] < group.prob if fixed is None else fixed

        fed.each_group(train_group, clients)
        return theta, score, upload_mask, loss

    def _model_step(
        self, fed: Federation, rows: WarmupRows, mask: Tensor, batch: Batch, training: LocalTraining, lr: float
    ) -> None:
        """One SGD step of the base method on theta, with the activations gated by ``mask`` [R, h] bool; in place."""
        out = fed.grad(rows.theta, batch, gates=mask, loss=training.loss, copy=False)
        assert out.theta is not None and out.loss is not None
        params, gradient = rows.theta[:, : fed.num_params], out.theta
        if training.gradient is not None:
            each = zip(gradient, params, range(len(params)), strict=True)
            gradient = torch.stack([training.gradient(g, theta_k, r) for g, theta_k, r in each])
        params.sub_(gradient, alpha=lr)
        if fed.layout.num_statistics:
            rows.theta[:, fed.num_params :] = out.statistics
        rows.loss.addcmul_(out.loss, batch.weight)
        rows.num_seen.add_(batch.weight)

    def gradient_of_scores(
        self, fed: Federation, theta: Tensor, prob: Tensor, neurons: Tensor, prob_others: Tensor, batch: Batch
    ) -> Tensor:
        """dL_s / ds [R, h] (Eq. 6): straight-through gradient of the data loss, minus that of the diversity term.

        prob [R, h] is sigmoid(s), neurons [R, h] bool the mask that was drawn from it, prob_others [R, h].
        """
        if self.score_gradient == "gate":
            data = fed.grad(theta, batch, gates=neurons, of=("gates",)).gates
        else:
            chain = neuron_chain(fed)

            def product(theta_k: Tensor, neurons_k: Tensor | None, x: Tensor, r: int) -> Tensor:
                assert neurons_k is not None
                return theta_k * expand(chain, neurons_k, self.expand_rule)[: len(theta_k)]

            data = fed.grad(theta, batch, weights=DerivedWeights(product, neurons.to(theta)), of=()).variables
        assert data is not None  # [R, h] df / dm̃
        away = prob - prob_others  # half the gradient of ‖p - p_others‖² with respect to p
        if self.straight_through == "draw":
            return sigmoid_backward(data.sub_(away, alpha=2 * self.lam), prob)
        return data.sub_(sigmoid_backward(away, prob), alpha=2 * self.lam)

    def diagnostics(self, prob: Tensor, prob_others: Tensor) -> dict:
        """Statistics of the mask probabilities at the end of a warm-up round; prob and prob_others [S, h]."""
        pairs = torch.pdist(prob, p=1) / prob.shape[1]  # mean |p_i - p_j| for each pair of clients
        return {
            "mask_prob": float(prob.mean()),
            "mask_low": float((prob < 0.1).float().mean()),
            "mask_high": float((prob > 0.9).float().mean()),
            "mask_distance": float(pairs.mean()) if len(pairs) else 0.0,
            "diversity": (prob - prob_others).square().sum(1),  # ‖p_k - p_others‖²
        }

    def mechanism(self, series: Mapping[str, np.ndarray], rounds: int, training: Training) -> list[MechanismCheck]:
        """The checks of ``Warmup``, and whether the masks settled before the warm-up ended.

        Records without ``mask_flips`` are judged by the change of a mask's size, a lower bound of the share that flips.
        """
        checks, warm = super().mechanism(series, rounds, training), self.num_warmup(rounds)
        if len(series.get("selected", ())) < warm:  # the run stopped during the warm-up
            return checks
        if "mask_flips" in series:
            what, moved, bound = "share of a mask's entries that flip in a round", series["mask_flips"], SETTLED
        elif "selected" in series:
            what, moved = "change of the share of neurons in a mask", np.abs(np.diff(series["selected"], axis=0))
            bound = SETTLED_SIZE
        else:
            return checks
        late = moved[-max(1, round_half_up(LAST * warm)) :]
        if np.isnan(late).all():
            return checks
        mean = float(np.nanmean(late))
        settled = MechanismCheck(
            f"{what}, last fifth of the warm-up", mean, bound, mean <= bound,
            "the masks are still partly random; use a larger λ, a larger lr_mask or a longer warm-up",
        )  # fmt: skip
        return [settled, *checks]


def expected_flips(before: Tensor, after: Tensor) -> Tensor:
    """[S] expected share of a mask's entries that differ between a draw from ``before`` and one from ``after``.

    before, after [S, h] are probabilities. The result is 1/2 if all are 0.5, and 0 if all stay at 0 or at 1.
    """
    return (before * (1 - after) + (1 - before) * after).mean(1)


def uniform_numbers(fed: Federation, clients: Tensor, t: int) -> Tensor:
    """[R, 1 + 2 steps, h] random numbers in [0, 1): for the upload, then two for each step; padded with 0.

    Each (round, client) has its own random stream.
    """
    h = neuron_chain(fed).num_neurons
    streams = [(1 + 2 * fed.num_steps(k), generator(fed.seed, "mask", t, k)) for k in clients.tolist()]
    return pad_sequence([torch.rand(n, h, generator=s) for n, s in streams], batch_first=True).to(fed.theta0)
