r"""How much Star-PFL would freeze by chance: its state machine on updates that are pure noise (star_pfl.md 6.6).

An entry whose updates are independent N(drift, 1) has no direction to lose, yet of n of them

    P(|Σ x| ≤ T Σ |x|) = Σ_k C(n, k) 2^-n P(A_k (1 − T) ≤ B_{n−k} (1 + T),  B_{n−k} (1 − T) ≤ A_k (1 + T))

look steady (drift 0; A_k, B_k sums of k half-normals: the positive and the negative updates). What is measured in turn
shares records with what was measured before, so shares of frozen entries come from ``simulate``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import comb

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithms.star_pfl.masks import Entries, Window, check, measure, push_, stability
from pfl_core.algorithms.star_pfl.method import StarPFL
from pfl_core.algorithms.star_pfl.round import Rule
from pfl_core.seeding import generator

STEP, REACH = 0.002, 8.0  # of the grid on which densities are added: width, and where a half-normal ends


@cache
def steady_chance(records: int, threshold: float = 0.1) -> float:
    """P(score <= threshold) of that many normal updates without drift; good to three digits up to 20 records."""
    if records < 2:
        return 0.0  # one update never cancels
    one = np.exp(-0.5 * np.arange(STEP / 2, REACH, STEP) ** 2)
    sums = [one / one.sum()]
    while len(sums) < records - 1:
        sums.append(_added(sums[-1], sums[0]))
    return sum(
        comb(records, k) * 0.5**records * _balanced(sums[k - 1], sums[records - k - 1], k, records - k, threshold)
        for k in range(1, records)
    )


def _added(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Distribution of a sum on the grid."""
    size = len(first) + len(second) - 1
    padded = 1 << (size - 1).bit_length()
    return np.fft.irfft(np.fft.rfft(first, padded) * np.fft.rfft(second, padded), padded)[:size].clip(0)


def _balanced(up: np.ndarray, down: np.ndarray, k: int, m: int, threshold: float) -> float:
    """P(down is within (1 - T) / (1 + T) and (1 + T) / (1 - T) times up), of sums of k and m cells' middles."""
    value = (np.arange(len(up)) + k / 2) * STEP
    upto = np.concatenate([[0.0], np.cumsum(down)])
    edges = (np.arange(len(upto)) + (m - 1) / 2) * STEP
    ratio = (1 + threshold) / max(1 - threshold, 1e-9)
    return float(up @ (np.interp(value * ratio, edges, upto) - np.interp(value / ratio, edges, upto)))


@dataclass(frozen=True)
class Chance:
    """What noise alone does in round t = 1, 2, ...; shares of the entries, [rounds] each."""

    frozen_global: np.ndarray
    frozen_local: np.ndarray
    sent_local: np.ndarray  # what a client's own mask lets through: that of training, or with A13 that after Check

    @property
    def upload(self) -> np.ndarray:
        """The share that a client sends: by its own mask and by the server's, which know nothing of each other."""
        return (1 - self.frozen_global) * self.sent_local


def chance(
    rounds: int,
    *,
    threshold_global: float | None = 0.1,
    threshold_local: float | None = 0.1,
    history_len_global: int = 10,
    history_len_local: int = 5,
    epochs: int = 10,
    drift: float = 0.0,
    entries: int = 20_000,
    seed: int = 0,
    reading: str = "paper",
) -> Chance:
    """The machine on noise: a server that records once a round, a client that does in its first epochs.

    ``reading``: by the text ("paper"), or by the released functions ("authors_code"); each side is one tensor.
    """
    lengths = {"history_len_global": history_len_global, "history_len_local": history_len_local}
    method = StarPFL.reading(reading, threshold_global=threshold_global, threshold_local=threshold_local, **lengths)
    recorded = min(epochs, method.record_epochs or history_len_local)
    server, client = method.rules_of((slice(0, entries),))
    server = simulate(
        noise(drift, seed, "server"), rounds, server, history_len_global, 1, entries, halving=method.interval_halving
    )
    client = simulate(
        noise(drift, seed, "client"),
        rounds,
        client,
        history_len_local,
        recorded,
        entries,
        check_rule=method.check_rule(client),
        halving=method.interval_halving,
        cleared=method.history_scope == "round",
    )
    sent = client.active if method.upload_mask_timing == "before_check" else client.waited == 0
    frozen = ((~side.active).double().mean(1).numpy() for side in (server, client))
    return Chance(*frozen, sent.double().mean(1).numpy())


@dataclass(frozen=True)
class Simulated:
    """The machine's course, round by round; [rounds, entries] each."""

    active: Tensor  # bool M, in training
    probe: Tensor  # bool M', in training
    score: Tensor  # after the round, of the record as it stands then
    interval: Tensor  # F after the round
    waited: Tensor  # L after the round
    value: Tensor  # sum of the updates taken


Updates = Callable[[int, int, int], Tensor]  # (round from 0, record within it, entries) -> [entries]


def noise(drift: float, seed: int, name: str) -> Updates:
    """Independent normal updates of variance 1 and mean ``drift``."""

    def updates(t: int, record: int, entries: int) -> Tensor:
        return drift + torch.randn(entries, generator=generator(seed, "null model", name, t, record))

    return updates


def simulate(
    updates: Updates,
    rounds: int,
    rule: Rule | float | None,
    length: int,
    recorded: int = 1,
    entries: int = 1,
    *,
    check_rule: Rule | None = None,
    halving: str = "ceil",
    cleared: bool = False,
    score: Callable[[Window], Tensor] = stability,
    push: Callable[[Window, Tensor, Tensor], None] = push_,
    thaw: bool = True,
) -> Simulated:
    """The state machine on given updates, ``recorded`` of them a round; ``score`` and ``push`` for another measure.

    ``rule``: Measure's, or its threshold; ``check_rule``: Check's, if it is another; ``halving``: of F, a key of
    ``HALVED``; ``cleared``: the window is emptied before each round.
    """
    start = torch.zeros(entries)
    rule = rule if isinstance(rule, Rule) else Rule(rule)
    state, window, empty = Entries.start(start), Window.empty(start, length), Window.empty(start, length)
    value, course = start, []
    for t in range(rounds):
        active, probe = measure(state, rule), state.probe
        window = empty.clone() if cleared else window
        for record in range(recorded):
            update = updates(t, record, entries)
            push(window, update, active)
            value = torch.where(active, value + update, value)
        fresh = torch.where(active, score(window), state.score)
        state = check(
            replace(state, score=fresh, count=window.count.clone()), active, check_rule or rule, halving, thaw
        )
        course.append((active, probe, state.score, state.interval, state.frozen, value))
    return Simulated(*map(torch.stack, zip(*course, strict=True)))
