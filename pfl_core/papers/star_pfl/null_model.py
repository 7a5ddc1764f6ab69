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

    @property
    def upload(self) -> np.ndarray:
        """The share that a client sends: active for itself and for the server, which know nothing of each other."""
        return (1 - self.frozen_global) * (1 - self.frozen_local)


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
) -> Chance:
    """The paper's machine on noise: a server that records once a round, a client that does in its first epochs."""
    recorded = min(epochs, history_len_local)
    server = simulate(noise(drift, seed, "server"), rounds, threshold_global, history_len_global, 1, entries)
    client = simulate(noise(drift, seed, "client"), rounds, threshold_local, history_len_local, recorded, entries)
    return Chance(*((~active).double().mean(1).numpy() for active in (server.active, client.active)))


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
    threshold: float | None,
    length: int,
    recorded: int = 1,
    entries: int = 1,
    *,
    score: Callable[[Window], Tensor] = stability,
    push: Callable[[Window, Tensor, Tensor], None] = push_,
    thaw: bool = True,
) -> Simulated:
    """The state machine on given updates, ``recorded`` of them a round; ``score`` and ``push`` for another measure."""
    start = torch.zeros(entries)
    state, window, rule = Entries.start(start), Window.empty(start, length), Rule(threshold)
    value, course = start, []
    for t in range(rounds):
        active, probe = measure(state, rule), state.probe
        for record in range(recorded):
            update = updates(t, record, entries)
            push(window, update, active)
            value = torch.where(active, value + update, value)
        fresh = torch.where(active, score(window), state.score)
        state = check(replace(state, score=fresh, count=window.count.clone()), active, rule, thaw=thaw)
        course.append((active, probe, state.score, state.interval, state.frozen, value))
    return Simulated(*map(torch.stack, zip(*course, strict=True)))
