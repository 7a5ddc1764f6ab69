"""The parts of a Star-PFL round: the rule for stable entries, a client's local epochs, and the server's sums.

Codes such as A16 are those of the method page, ``notebooks/star_pfl/README.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithms.star_pfl.masks import Entries, Window, check
from pfl_core.algorithms.star_pfl.options import StarPFLOptions
from pfl_core.federation import Federation, LocalTraining, Trained
from pfl_core.ops import bits, count_true, keep_


@dataclass(frozen=True)
class Rule:
    """The rule for stable entries: ``rule(score, count, measured, frozen)`` -> bool [..., d].

    ``measured`` [..., d] bool: the entries whose result is used. ``frozen`` defaults to all others. With ``floor`` or
    ``empty_is_stable``, which work tensor by tensor, all shapes must be [d].
    """

    threshold: float | None  # T; None: no entry is ever stable
    inclusive: bool = False  # an entry with score exactly T is active (A3)
    min_history: int = 1  # an entry with fewer records is active (A4)
    floor: float | None = None  # at least this lowest share of a tensor's scores is stable (A16)
    floor_cap: str = "unmeasured"  # entries that lower the quantile: all "unmeasured" ones, or only the "frozen" ones
    empty_is_stable: bool = False  # an entry without records is stable if another of its tensor has any (A5, "skip")
    tensors: tuple[slice, ...] = ()  # the tensors of the model

    def __call__(self, score: Tensor, count: Tensor, measured: Tensor, frozen: Tensor | None = None) -> Tensor:
        if self.threshold is None:
            return torch.zeros_like(measured)
        cutoff: float | Tensor = self.threshold
        if self.floor is not None:
            excluded = ~measured if frozen is None or self.floor_cap == "unmeasured" else frozen
            cutoff = self.raised_threshold(score, measured, excluded)
        stable = score < cutoff if self.inclusive else score <= cutoff  # False for NaN
        enough = count.bool() if self.min_history == 1 else count >= self.min_history  # the first form is faster
        if self.empty_is_stable:
            for part in self.tensors:
                enough[part] |= (count[part] == 0) & count[part].bool().any()
        return stable.logical_and_(enough)

    def raised_threshold(self, score: Tensor, measured: Tensor, excluded: Tensor) -> Tensor:
        """[d] threshold of the released code: T, or a quantile of the tensor's measured scores if that is larger.

        The released code computes 0.7 − (excluded entries of the tensor) / d and uses it as a percentile, from 0 to
        100. Here it is a quantile, so ``floor`` is 0.007 and the second term is divided by 100. If the result is not
        positive, the released code (``floor_cap="frozen"``) freezes nothing more of the tensor.
        """
        assert self.threshold is not None and self.floor is not None
        cutoff = torch.full_like(score, self.threshold)
        below_threshold = (score <= self.threshold).logical_and_(measured)
        for part in self.tensors:
            num_measured = count_true(measured[part])
            q = self.floor - count_true(excluded[part]) / len(score) / 100
            # With this many scores at or below T the quantile is at most T and need not be computed.
            enough = int(q * (num_measured - 1)) + 2
            if num_measured and q > 0 and count_true(below_threshold[part]) < enough:
                cutoff[part] = max(self.threshold, quantile(score[part][measured[part]], q))
            elif q <= 0 and self.floor_cap == "frozen":
                cutoff[part] = -torch.inf
        return cutoff


def quantile(x: Tensor, q: float) -> float:
    """The q-quantile of x [n], with linear interpolation; many times as fast as ``torch.quantile``."""
    position = q * (len(x) - 1)
    below, above = int(position), min(int(position) + 1, len(x) - 1)
    partitioned = np.partition(x.cpu().numpy(), (below, above))
    low, high = partitioned[below].item(), partitioned[above].item()
    return low + (high - low) * (position - below)


@dataclass(frozen=True)
class ClientSteps(StarPFLOptions):
    """The client side of a round: stability rules, local training and Check. Adds no field."""

    def rules(self, fed: Federation) -> tuple[Rule, Rule]:
        """The stability rules of the server (Measure and Check) and of a client (Measure)."""
        return self.rules_of(tuple(slice(f.start, f.stop) for f in fed.layout.params))

    def rules_of(self, tensors: tuple[slice, ...]) -> tuple[Rule, Rule]:
        """``rules`` for a model with these tensors."""
        local = (self.threshold_local, self.history_len_local, self.stability_floor_quantile)
        server, client = (
            Rule(
                threshold,
                self.threshold_rule == "inclusive",
                length if self.min_history == "full" else self.min_history,
                floor,
                self.stability_floor_cap,
                self.zero_update_policy == "skip",
                tensors,
            )
            for threshold, length, floor in ((self.threshold_global, self.history_len_global, None), local)
        )
        return server, client

    def check_rule(self, rule: Rule) -> Rule:
        """A client's rule in Check; ``rule`` is its rule in Measure."""
        return rule if self.stability_floor_check else replace(rule, floor=None)

    def round_window(self, entries: Entries, carried: Window | None) -> Window:
        """The window that a client records a round into: a copy of ``carried``, or an empty one.

        If a window is empty only because every round refills it, its counts continue from ``entries``. With
        ``history_scope="round"`` the records are cleared, and the counts start at 0.
        """
        if carried is not None:
            return carried.clone()
        window = self.empty_window(entries.score, self.history_len_local)
        return window if self.history_scope == "round" else replace(window, count=entries.count.clone())

    def train(
        self,
        fed: Federation,
        shared: Tensor,
        clients: Tensor,
        masks: list[Tensor],
        windows: list[Window],
        t: int,
        watch: Callable[[Tensor], None] | None = None,
    ) -> Trained:
        """Train the clients from ``shared`` [e], each on the entries of its mask [d].

        The update of each of the first epochs is recorded into ``windows``, in place. These epochs need one call of
        ``fed.sgd`` each. Batches and results are bitwise those of a single call for all epochs. ``watch`` is called
        after every epoch with the rows [S, e].
        """
        d, num_recorded, epochs = fed.num_params, self.recorded(fed), fed.train.epochs
        theta, loss = fed.broadcast(shared, clients), torch.zeros(len(clients))
        velocity = torch.zeros_like(theta[:, :d]) if fed.train.momentum else None
        trainable = torch.stack(masks) | ~self.masked_in_training(fed)  # [S, d]
        recorded = masks if self.record_scope == "active" else trainable
        # One call for each epoch that is recorded or watched, then one call for the rest.
        single = epochs if watch else num_recorded
        rest = [range(single, epochs)] if single < epochs or not epochs else []
        for span in (*(range(e, e + 1) for e in range(single)), *rest):
            training = LocalTraining(epochs=span, trainable=trainable)
            out = fed.sgd(theta, clients, training, key=t, velocity=velocity)
            if span.start < num_recorded:
                for after, before, mask, window in zip(out.theta, theta, recorded, windows, strict=True):
                    self.record_(window, after[:d] - before[:d], mask)
            if watch:
                watch(out.theta)
            theta, velocity = out.theta, out.velocity
            loss += out.loss * (len(span) / max(1, epochs))
        return replace(out, loss=loss)

    def masked_in_training(self, fed: Federation) -> Tensor:
        """Bool [d], the entries that a mask can freeze in training (A12). In aggregation it is all entries."""
        mask = fed.layout.mask(lambda f: self.train_mask_scope == "all" or "weight" in f.name)
        return mask[: fed.num_params].to(fed.theta0.device)

    def checked(self, fed: Federation, entries: Entries, window: Window, active: Tensor) -> Entries:
        """A client's entries after Check, for a round in which ``active`` [d] was trained and recorded."""
        score, count = self.scored(entries, window, active)
        scored = replace(entries, score=score, count=count)
        return check(scored, active, self.check_rule(self.rules(fed)[1]), self.interval_halving, self.thaw)


@dataclass
class Collected:
    """Sums over the clients of a round. ``add_`` and ``note`` add one client each time, in place."""

    total: Tensor  # [d] sum of w_i delta_i over the clients that sent the entry
    weight: Tensor  # [d] sum of w_i over the same clients
    sent: list[int] = field(default_factory=list)  # [S] entries sent
    trained: list[int] = field(default_factory=list)  # [S] entries trained
    macs: list[int] = field(default_factory=list)  # [S] multiply-adds of the weight gradients, for one image
    scores: list[float] = field(default_factory=list)  # [S] mean score over all entries, after the round

    @classmethod
    def empty(cls, like: Tensor) -> Collected:
        return cls(torch.zeros_like(like), torch.zeros_like(like))

    def add_(self, delta: Tensor, sent: Tensor, weight: float) -> None:
        """Add a client's update ``delta`` [d] on the entries ``sent`` [d] bool. ``delta`` is overwritten."""
        on = bits(sent, delta)
        self.total.add_(keep_(delta, on), alpha=weight)
        self.weight.sub_(on.to(delta.dtype), alpha=weight)  # on = -1 where sent

    def mean(self) -> Tensor:
        """[d] weighted mean over the clients that sent an entry, 0 where no client did."""
        return self.total / torch.where(self.weight > 0, self.weight, 1.0)

    def note(self, active: Tensor, sent: Tensor, uses: Tensor, entries: Entries) -> None:
        """Count a client's masks ``active`` and ``sent`` [d]; ``entries`` are those after Check.

        uses [d]: how often one image uses each weight.
        """
        self.sent.append(count_true(sent))
        self.trained.append(count_true(active))
        self.macs.append(int((uses * active).sum()))
        self.scores.append(float(entries.score.double().mean()))

    def notes(self) -> dict[str, Tensor]:
        """The round's notes: one value for each client, [S]."""
        return {
            "upload": torch.tensor(self.sent),
            "active_share": torch.tensor(self.trained) / len(self.total),
            "weight_macs": torch.tensor(self.macs),
            "mean_score": torch.tensor(self.scores, dtype=torch.float64),
        }
