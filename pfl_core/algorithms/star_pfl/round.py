"""The parts of a Star-PFL round: the rule for stable entries, the client's local epochs, and the server's sums.

The readings of what surrounds the threshold are A2 to A5, A16 and A17.
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
    """``rule(score, count, among, frozen)``: bool [..., d], True where an entry is steady.

    ``frozen`` default: all that is not in ``among``. The two readings that go tensor by tensor (``floor``,
    ``empty_is_steady``) take [d] only.
    """

    threshold: float | None  # T; None: nothing ever is
    inclusive: bool = False  # at exactly T an entry is active (A3)
    min_history: int = 1  # so many records are needed (A4)
    floor: float | None = None  # at least this quantile of a tensor's scores is steady (A16)
    floor_cap: str = "unmeasured"  # what lowers that quantile: all that is not measured, or what is "frozen" alone
    empty_is_steady: bool = False  # no record counts as score 0 where the tensor has any (A5, "skip")
    tensors: tuple[slice, ...] = ()  # the model's tensors

    def __call__(self, score: Tensor, count: Tensor, among: Tensor, frozen: Tensor | None = None) -> Tensor:
        if self.threshold is None:
            return torch.zeros_like(among)
        cut = self.threshold
        if self.floor is not None:
            cut = self.raised(score, among, ~among if frozen is None or self.floor_cap == "unmeasured" else frozen)
        steady = score < cut if self.inclusive else score <= cut  # not-a-number never is
        known = count.bool() if self.min_history == 1 else count >= self.min_history  # the former is faster
        if self.empty_is_steady:
            for part in self.tensors:
                known[part] |= (count[part] == 0) & count[part].bool().any()
        return steady.logical_and_(known)

    def raised(self, score: Tensor, among: Tensor, apart: Tensor) -> Tensor:
        """[d] the released code's threshold: T, or a quantile of the tensor's scores if that is larger.

        Percent there is share here: its 0.7, less what part of the model the tensor's entries in ``apart`` are, is
        read as a percentile (0.007 less a hundredth of that part). Where nothing is left of it, the released code
        ("frozen") freezes nothing more of the tensor.
        """
        cut, calm = torch.full_like(score, self.threshold), (score <= self.threshold).logical_and_(among)
        for part in self.tensors:
            known = count_true(among[part])
            share = self.floor - count_true(apart[part]) / len(score) / 100
            enough = int(share * (known - 1)) + 2  # with so many at most T the quantile is, too, and is not looked for
            if known and share > 0 and count_true(calm[part]) < enough:
                cut[part] = max(self.threshold, quantile(score[part][among[part]], share))
            elif share <= 0 and self.floor_cap == "frozen":
                cut[part] = -torch.inf
        return cut


def quantile(x: Tensor, q: float) -> float:
    """The q-quantile of x [n], linear between neighbours; many times as fast as ``torch.quantile``."""
    place = q * (len(x) - 1)
    below, above = int(place), min(int(place) + 1, len(x) - 1)
    found = np.partition(x.cpu().numpy(), (below, above))
    low, high = found[below].item(), found[above].item()
    return low + (high - low) * (place - below)


@dataclass(frozen=True)
class ClientSteps(StarPFLOptions):
    """The client's part of the method, from its mask to what it sends; no field of its own."""

    def rules(self, fed: Federation) -> tuple[Rule, Rule]:
        """What is steady for the server, and for a client in Measure."""
        return self.rules_of(tuple(slice(f.start, f.stop) for f in fed.layout.params))

    def rules_of(self, tensors: tuple[slice, ...]) -> tuple[Rule, Rule]:
        """``rules`` for a model of these tensors."""
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
        """What is steady for a client in Check, where ``rule`` is that of Measure."""
        return rule if self.stability_floor_check else replace(rule, floor=None)

    def own_window(self, entries: Entries, carried: Window | None) -> Window:
        """A window to record a round into: what was ``carried`` over, or an empty one.

        An empty one in place of what would be filled anew anyway goes on counting; one that the method has cleared
        (``history_scope="round"``) does not.
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
        """Local epochs from ``shared`` [e] on the entries ``masks`` [d] of each client.

        What the first epochs change goes into ``windows``, in place. One call for each of these epochs has the same
        batches, and gives the same bits, as one call for all. ``watch`` is called with the rows [S, e] after every
        epoch.
        """
        d, num, epochs = fed.num_params, self.recorded(fed), fed.train.epochs
        theta, loss = fed.broadcast(shared, clients), torch.zeros(len(clients))
        velocity = torch.zeros_like(theta[:, :d]) if fed.train.momentum else None
        trainable = torch.stack(masks) | ~self.masked_in_training(fed)
        recorded = masks if self.record_scope == "active" else trainable
        apart = epochs if watch else num  # so many epochs have a call of their own
        rest = [range(apart, epochs)] if apart < epochs or not epochs else []
        for span in (*(range(e, e + 1) for e in range(apart)), *rest):
            training = LocalTraining(epochs=span, trainable=trainable)
            out = fed.sgd(theta, clients, training, key=t, velocity=velocity)
            if span.start < num:
                for after, before, mask, window in zip(out.theta, theta, recorded, windows, strict=True):
                    self.record_(window, after[:d] - before[:d], mask)
            if watch:
                watch(out.theta)
            theta, velocity = out.theta, out.velocity
            loss += out.loss * (len(span) / max(1, epochs))
        return replace(out, loss=loss)

    def masked_in_training(self, fed: Federation) -> Tensor:
        """Bool [d], what masks hold back in training (A12); in aggregation they hold back everything."""
        mask = fed.layout.mask(lambda f: self.train_mask_scope == "all" or "weight" in f.name)
        return mask[: fed.num_params].to(fed.theta0.device)

    def checked(self, fed: Federation, entries: Entries, window: Window, active: Tensor) -> Entries:
        """A client's entries after a round in which ``active`` ones were trained and recorded."""
        score, count = self.scored(entries, window, active)
        made = replace(entries, score=score, count=count)
        return check(made, active, self.check_rule(self.rules(fed)[1]), self.interval_halving, self.thaw)


@dataclass
class Collected:
    """Sums over the clients so far; written into by ``add_`` and ``note``."""

    total: Tensor  # [d] sum of w_i delta_i over those that sent an entry
    weight: Tensor  # [d] sum of w_i over the same
    sent: list[int] = field(default_factory=list)  # values of each client
    trained: list[int] = field(default_factory=list)  # entries that each trained
    macs: list[int] = field(default_factory=list)  # multiply-adds of an image in each one's weight gradients
    scores: list[float] = field(default_factory=list)  # mean over each one's entries, after the round

    @classmethod
    def empty(cls, like: Tensor) -> Collected:
        return cls(torch.zeros_like(like), torch.zeros_like(like))

    def add_(self, delta: Tensor, sent: Tensor, weight: float) -> None:
        """A client's ``delta`` [d], which may be written into, on the entries ``sent``."""
        on = bits(sent, delta)
        self.total.add_(keep_(delta, on), alpha=weight)
        self.weight.sub_(on.to(delta.dtype), alpha=weight)  # on = -1 where sent

    def mean(self) -> Tensor:
        """[d] weighted mean over those that sent an entry, 0 where nobody did."""
        return self.total / torch.where(self.weight > 0, self.weight, 1.0)

    def note(self, active: Tensor, sent: Tensor, uses: Tensor, entries: Entries) -> None:
        """Count a client's masks [d]; ``uses`` [d] of each weight by an image; ``entries`` after Check."""
        self.sent.append(count_true(sent))
        self.trained.append(count_true(active))
        self.macs.append(int((uses * active).sum()))
        self.scores.append(float(entries.score.double().mean()))

    def notes(self) -> dict[str, Tensor]:
        """One value a client, [S]."""
        return {
            "upload": torch.tensor(self.sent),
            "active_share": torch.tensor(self.trained) / len(self.total),
            "weight_macs": torch.tensor(self.macs),
            "mean_score": torch.tensor(self.scores, dtype=torch.float64),
        }
