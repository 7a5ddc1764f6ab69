r"""Star-PFL: entries whose recent updates cancel out are frozen. A client trains and sends only its active entries.

Guo, Liu, Zhou, Cai and Xiao, "Efficient Personalized Federated Learning on Selective Model Training", ICASSP 2023,
Algorithms 1 (the round) and 2 (Measure and Check, in ``masks.py``). g is the server, i a client, p_i = n_i / n:

    server    M_g ← Measure(R_g)                                     except for probing entries
    client    W_i ← W_g,   M_i ← Measure(R_i)
              each epoch: SGD on the entries M_i;   R_i records the updates of the first |R_i| epochs
              send ΔW_i = W_i − W_g on M_g ∧ M_i;   Check(i)
    server    ΔW = Σ_i p_i ΔW_i,   W_g ← W_g + ΔW on M_g;   R_g records ΔW;   Check(g)

A client keeps its masks between rounds, not its model. It is scored with W_i after local training; W_g is scored too.
Memory between rounds, in bytes per parameter: 11 for a client and 12 + 4 |R_g| for the server. A client's window, 1 + 4
|R_i| more bytes, is kept only if needed: with at least |R_i| local epochs, every round refills it.

Differs from the paper: M starts at 1 (the paper's text says 0, but means 1: A1); 0 / 0 counts as stable (A2).
Not in the paper: weights are normalised over the participants of a round; absent clients keep their masks; batch-norm
statistics are averaged with the weights p_i and never frozen; momentum, which the paper does not use, carries over the
epochs of a round; NaN counts as moving. With ``stability_floor_quantile``, Check measures the entries that were active
in its round, and the 0.7 % of the released code is a quantile.
``StarPFL.reading("authors_code")`` sets the choices of the released code; each is a field (A3 to A16).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, State, register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.algorithms.star_pfl.masks import Entries, StabilityRule, Window, check, measure
from pfl_core.algorithms.star_pfl.options import StarPFLOptions
from pfl_core.algorithms.star_pfl.probe import Probe, Trace, sampled
from pfl_core.costs import weight_uses
from pfl_core.federation import Federation, LocalTraining, Trained
from pfl_core.ops import bits, count_true, keep_, normalised, put


@dataclass(frozen=True)
class StarState(State):
    """``shared`` [e] is W_g."""

    server: Entries = ABSENT  # tensors [d]
    window: Window = ABSENT  # R_g
    clients: tuple[Entries, ...] = ()  # one for each of the N clients, tensors [d]
    windows: tuple[Window, ...] = ()  # R_i of the N clients, if windows are kept between rounds
    uses: Tensor = ABSENT  # [d] how often one image uses each weight, for counting FLOPs
    trace: Trace = ABSENT  # with ``probe``
    course: Tensor = ABSENT  # [t, 1 + E, p] with ``probe_epochs``: values in client 0 before and after each epoch


@dataclass(frozen=True)
class ClientSteps(StarPFLOptions):
    """The client side of a round: stability rules, local training and Check. Adds no field."""

    def rules(self, fed: Federation) -> tuple[StabilityRule, StabilityRule]:
        """The stability rules of the server (Measure and Check) and of a client (Measure)."""
        return self.rules_of(tuple(slice(f.start, f.stop) for f in fed.layout.params))

    def rules_of(self, tensors: tuple[slice, ...]) -> tuple[StabilityRule, StabilityRule]:
        """``rules`` for a model with these tensors."""

        def rule(threshold: float | None, length: int, floor: float | None) -> StabilityRule:
            return StabilityRule(
                threshold,
                self.threshold_rule == "inclusive",
                length if self.min_history == "full" else self.min_history,
                floor,
                self.stability_floor_cap,
                self.zero_update_policy == "skip",
                tensors,
            )

        server = rule(self.threshold_global, self.history_len_global, None)
        return server, rule(self.threshold_local, self.history_len_local, self.stability_floor_quantile)

    def check_rule(self, rule: StabilityRule) -> StabilityRule:
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

    def checked(self, fed: Federation, entries: Entries, window: Window, active: Tensor, t: int, k: int) -> Entries:
        """Client k's entries after Check, for round t, in which ``active`` [d] was trained and recorded."""
        score, count = self.scored(fed, entries, window, active, t, k)
        scored = replace(entries, score=score, count=count)
        return check(scored, active, self.check_rule(self.rules(fed)[1]), self.interval_halving, self.thaw)


@register(
    "star_pfl",
    papers=("star_pfl",),
    shares="one model; a client trains its active entries and sends those that are active on the server too",
    variants={
        "authors_code": {"reading": "authors_code"},
        "never_frozen": {"threshold_global": None, "threshold_local": None},
        "local_only": {"threshold_global": None},
        "global_only": {"threshold_local": None},
        "never_thawed": {"thaw": False},
        "random_entries": {"freeze": "random"},
        "inclusive": {"threshold_rule": "inclusive"},
        "full_history": {"min_history": "full"},
        "skip_zeros": {"zero_update_policy": "skip"},
        "floor": {"interval_halving": "floor"},
        "round_history": {"history_scope": "round"},
        "active_mean": {"masked_aggregation": "active_mean"},
        "active_weighted": {"masked_aggregation": "active_weighted"},
        "weights_only": {"train_mask_scope": "weights"},
        "after_check": {"upload_mask_timing": "after_check"},
        "floor_quantile": {"stability_floor_quantile": 0.007},
        "capped": {"max_frozen_fraction": 0.7},
        "ema": {"stability_measure": "ema"},
    },
    ci={"threshold_global": 0.5, "threshold_local": 0.5},
)
@dataclass(frozen=True)
class StarPFL(ClientSteps):
    """Algorithm 1. The fields are those of ``StarPFLOptions``."""

    def init(self, fed: Federation, theta0: Tensor) -> StarState:
        entries = Entries.start(theta0[: fed.num_params])
        window = self.empty_window(entries.score, self.history_len_local)
        return StarState(
            shared=theta0,
            server=entries,
            window=self.empty_window(entries.score, self.history_len_global),
            clients=(entries,) * fed.num_clients,
            windows=(window,) * fed.num_clients if self.carries_windows(fed) else (),
            uses=weight_uses(fed, theta0),
            trace=Trace.empty(fed, self.probe) if self.probe else ABSENT,
            course=torch.zeros(0, 1 + fed.train.epochs, len(sampled(fed, self.probe))) if self.probe_epochs else ABSENT,
        )

    def round(self, fed: Federation, state: StarState, clients: Tensor, t: int) -> tuple[StarState, dict]:
        (server_rule, client_rule), max_frozen = self.rules(fed), self.most_frozen(fed)
        active = measure(state.server, server_rule, max_frozen)  # M_g
        collected = Collected.empty(state.shared[: fed.num_params])
        share = normalised(client_weight(fed, clients, "samples")).tolist()  # p_i
        after: list[tuple[Entries, Window]] = []  # the clients' entries and windows after the round
        # Entries sent and trained, multiply-adds of an image's weight gradients, and mean score over all entries
        noted: list[tuple[int, int, int, float]] = []
        probe = Probe(fed, self.probe, (self.history_len_global, self.history_len_local))

        def local(chunk: Tensor, rows: slice) -> Trained:
            masks = [measure(state.clients[k], client_rule, max_frozen) for k in chunk.tolist()]  # M_i
            carried = [state.windows[k] if state.windows else None for k in chunk.tolist()]
            windows = [self.round_window(state.clients[k], w) for k, w in zip(chunk.tolist(), carried, strict=True)]
            watch = partial(probe.after_epoch, chunk) if self.probe_epochs else None
            out = self.train(fed, state.shared, chunk, masks, windows, t, watch)
            for theta_k, k, mask, window, p in zip(out.theta, chunk.tolist(), masks, windows, share[rows], strict=True):
                entries = self.checked(fed, state.clients[k], window, mask, t, k)
                after.append((entries, window))
                sent = active & (mask if self.upload_mask_timing == "before_check" else entries.active)
                weight = 1.0 if self.masked_aggregation == "active_mean" else p
                collected.add_(theta_k[: fed.num_params] - state.shared[: fed.num_params], sent, weight)
                macs, score = int((state.uses * mask).sum()), float(entries.score.double().mean())
                noted.append((count_true(sent), count_true(mask), macs, score))
                probe.note(k, theta_k, entries)
            return out

        # The mean is used for batch-norm statistics only; parameters are averaged in ``collected``.
        mean, notes = fed.average(local, clients, client_weight(fed, clients, self.buffer_aggregation))
        update = collected.total if self.masked_aggregation == "zero_fill" else collected.mean()
        new = self.serve(fed, state, active, update, mean[fed.num_params :], server_rule, t)
        new = replace(
            new,
            clients=put(state.clients, clients, [entries for entries, _ in after]),
            windows=put(state.windows, clients, [window for _, window in after]) if state.windows else (),
        )
        if self.probe:
            parties = [state.server, *state.clients], [new.server, *new.clients]
            new = replace(new, trace=probe.added(state.trace, new.shared, *parties))
        if self.probe_epochs:
            new = replace(new, course=torch.cat([state.course, probe.course(state.shared)]))
        upload, trained, macs, scores = zip(*noted, strict=True)
        return new, notes | probe.notes(new.shared, new.server, clients) | {
            "upload": torch.tensor(upload),
            "active_share": torch.tensor(trained) / fed.num_params,
            "weight_macs": torch.tensor(macs),
            "mean_score": torch.tensor(scores, dtype=torch.float64),
            "upload_bits": torch.full((len(clients),), fed.num_params),
            "active_share_global": count_true(active) / fed.num_params,
            "mean_score_global": float(new.server.score.double().mean()),
            "passes": fed.train.epochs,
        }

    def serve(
        self,
        fed: Federation,
        state: StarState,
        active: Tensor,
        update: Tensor,
        statistics: Tensor,
        rule: StabilityRule,
        t: int,
    ) -> StarState:
        """Server step of round t: add ``update`` [d] where ``active``, record it, and apply Check."""
        params = state.shared[: len(update)]
        window = state.window.clone()
        self.record_(window, update, active)
        score, count = self.scored(fed, state.server, window, active, t)
        entries = replace(state.server, score=score, count=count)
        return replace(
            state,
            shared=torch.cat([torch.where(active, params + update, params), statistics]),
            server=check(entries, active, rule, self.interval_halving, self.thaw),
            window=window,
        )

    def artifacts(self, fed: Federation, state: StarState) -> dict[str, Tensor]:
        if state.trace is None:
            return {}
        course = {} if state.course is None else {"course": state.course.double().round(decimals=5)}
        return state.trace.arrays(fed, self.probe) | course


@dataclass
class Collected:
    """Sums over the clients of a round. ``add_`` adds one client each time, in place."""

    total: Tensor  # [d] sum of w_i delta_i over the clients that sent the entry
    weight: Tensor  # [d] sum of w_i over the same clients

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
