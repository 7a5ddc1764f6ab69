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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, MechanismCheck, register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.algorithms.star_pfl.masks import Entries, Window, check, measure
from pfl_core.algorithms.star_pfl.mechanism import mechanism_checks
from pfl_core.algorithms.star_pfl.probe import Probe
from pfl_core.algorithms.star_pfl.round import ClientSteps, Collected, Rule
from pfl_core.algorithms.star_pfl.state import StarState, Trace, sampled
from pfl_core.costs import weight_uses
from pfl_core.federation import Federation, Trained
from pfl_core.ops import count_true, normalised
from pfl_core.training import Training


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
        probe = Probe(fed, self.probe, (self.history_len_global, self.history_len_local))

        def local(chunk: Tensor, rows: slice) -> Trained:
            masks = [measure(state.clients[k], client_rule, max_frozen) for k in chunk.tolist()]  # M_i
            carried = [state.windows[k] if state.windows else None for k in chunk.tolist()]
            windows = [self.round_window(state.clients[k], w) for k, w in zip(chunk.tolist(), carried, strict=True)]
            watch = partial(probe.after_epoch, chunk) if self.probe_epochs else None
            out = self.train(fed, state.shared, chunk, masks, windows, t, watch)
            for theta_k, k, mask, window, p in zip(out.theta, chunk.tolist(), masks, windows, share[rows], strict=True):
                entries = self.checked(fed, state.clients[k], window, mask)
                after.append((entries, window))
                sent = active & (mask if self.upload_mask_timing == "before_check" else entries.active)
                weight = 1.0 if self.masked_aggregation == "active_mean" else p
                collected.add_(theta_k[: fed.num_params] - state.shared[: fed.num_params], sent, weight)
                collected.note(mask, sent, state.uses, entries)
                probe.note(k, theta_k, entries)
            return out

        # The mean is used for batch-norm statistics only; parameters are averaged in ``collected``.
        mean, notes = fed.average(local, clients, client_weight(fed, clients, self.buffer_aggregation))
        update = collected.total if self.masked_aggregation == "zero_fill" else collected.mean()
        new = self.serve(state, active, update, mean[fed.num_params :], server_rule)
        new = replace(
            new,
            clients=_replaced(state.clients, clients, [entries for entries, _ in after]),
            windows=_replaced(state.windows, clients, [window for _, window in after]) if state.windows else (),
        )
        if self.probe:
            new = replace(new, trace=probe.added(state, new))
        if self.probe_epochs:
            new = replace(new, course=torch.cat([state.course, probe.course(state)]))
        return new, notes | probe.notes(new, clients) | collected.notes() | {
            "upload_bits": torch.full((len(clients),), fed.num_params),
            "active_share_global": count_true(active) / fed.num_params,
            "mean_score_global": float(new.server.score.double().mean()),
            "passes": fed.train.epochs,
        }

    def serve(self, state: StarState, active: Tensor, update: Tensor, statistics: Tensor, rule: Rule) -> StarState:
        """Server step: add ``update`` [d] where ``active``, record it, and apply Check."""
        params = state.shared[: len(update)]
        window = state.window.clone()
        self.record_(window, update, active)
        score, count = self.scored(state.server, window, active)
        entries = replace(state.server, score=score, count=count)
        return replace(
            state,
            shared=torch.cat([torch.where(active, params + update, params), statistics]),
            server=check(entries, active, rule, self.interval_halving, self.thaw),
            window=window,
        )

    def mechanism(self, series: Mapping[str, np.ndarray], rounds: int, training: Training) -> list[MechanismCheck]:
        return mechanism_checks(self, series, training)

    def artifacts(self, fed: Federation, state: StarState) -> dict[str, Tensor]:
        if state.trace is None:
            return {}
        course = {} if state.course is None else {"course": state.course.double().round(decimals=5)}
        return state.trace.arrays(fed, self.probe) | course


T = TypeVar("T")


def _replaced(items: tuple[T, ...], clients: Tensor, new: list[T]) -> tuple[T, ...]:
    """``items``, one for each client, with those of ``clients`` [S] replaced by ``new``."""
    by_client = dict(zip(clients.tolist(), new, strict=True))
    return tuple(by_client.get(k, item) for k, item in enumerate(items))
