r"""Null model of Star-PFL: how much its state machine freezes when the updates are pure noise.

Independent N(drift, 1) updates have no structure. Still, n of them without drift look stable with probability

    P(|Σ x| ≤ T Σ |x|) = Σ_k C(n, k) 2^-n P(A_k (1 − T) ≤ B_{n−k} (1 + T),  B_{n−k} (1 − T) ≤ A_k (1 + T))

A_k and B_k are sums of k half-normal variables: the sizes of the positive and of the negative updates
(``stable_chance``). Consecutive windows of a run share updates, so shares of frozen entries are simulated (``chance``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import comb
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithms.star_pfl.masks import Entries, StabilityRule, Window, check, measure, push_, stability
from pfl_core.algorithms.star_pfl.method import StarPFL
from pfl_core.seeding import generator

GRID_STEP, GRID_END = 0.002, 8.0  # grid of the densities: cell width, and where a half-normal is cut off


@cache
def stable_chance(records: int, threshold: float = 0.1) -> float:
    """P(score <= threshold) for ``records`` normal updates without drift; accurate to three digits up to 20 records."""
    if records < 2:
        return 0.0  # a single update cannot cancel
    half_normal = np.exp(-0.5 * np.arange(GRID_STEP / 2, GRID_END, GRID_STEP) ** 2)
    sums = [half_normal / half_normal.sum()]  # sums[k - 1]: distribution of a sum of k half-normals
    while len(sums) < records - 1:
        sums.append(_convolve(sums[-1], sums[0]))
    # k updates are positive, the others negative
    return sum(
        comb(records, k) * 0.5**records * _balanced(sums[k - 1], sums[records - k - 1], k, records - k, threshold)
        for k in range(1, records)
    )


def _convolve(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Distribution of the sum of two variables on the grid, by FFT."""
    size = len(first) + len(second) - 1
    padded = 1 << (size - 1).bit_length()
    return np.fft.irfft(np.fft.rfft(first, padded) * np.fft.rfft(second, padded), padded)[:size].clip(0)


def _balanced(up: np.ndarray, down: np.ndarray, k: int, m: int, threshold: float) -> float:
    """P((1 - T) / (1 + T) <= down / up <= (1 + T) / (1 - T)) for sums of k positive and m negative updates.

    ``up`` and ``down``: their distributions; cell i of a sum of k terms has its middle at (i + k / 2) steps.
    """
    value = (np.arange(len(up)) + k / 2) * GRID_STEP
    cumulative = np.concatenate([[0.0], np.cumsum(down)])
    edges = (np.arange(len(cumulative)) + (m - 1) / 2) * GRID_STEP
    ratio = (1 + threshold) / max(1 - threshold, 1e-9)
    return float(up @ (np.interp(value * ratio, edges, cumulative) - np.interp(value / ratio, edges, cumulative)))


@dataclass(frozen=True)
class Chance:
    """Shares of the entries that are frozen or sent on pure noise, in round t = 1, 2, ...; each [rounds]."""

    frozen_global: np.ndarray
    frozen_local: np.ndarray
    sent_local: np.ndarray  # share that the client's mask lets through: the mask of training, or of after Check (A13)

    @property
    def upload(self) -> np.ndarray:
        """Share that a client sends. The client's and the server's mask are independent on noise."""
        return (1 - self.frozen_global) * self.sent_local


def chance(
    rounds: int,
    *,
    epochs: int = 10,
    drift: float = 0.0,
    entries: int = 20_000,
    seed: int = 0,
    reading: str = "paper",
    **fields: Any,
) -> Chance:
    """Simulates Star-PFL on noise: the server records one update a round, a client one in each of its first epochs.

    ``reading``: the paper's text ("paper") or the released functions ("authors_code"). ``fields``: thresholds and
    lengths of the windows; a side without threshold freezes nothing. Each side is a single tensor.
    """
    method = StarPFL.reading(reading, **fields)
    server_rule, client_rule = method.rules_of((slice(0, entries),))
    halving, length = method.interval_halving, method.history_len_local
    frozen_global, frozen_local, sent_local = np.zeros(rounds), np.zeros(rounds), np.ones(rounds)
    if method.threshold_global is not None:
        updates = noise(drift, seed, "server")
        server = simulate(updates, rounds, server_rule, method.history_len_global, 1, entries, halving=halving)
        frozen_global = _shares(~server.active)
    if method.threshold_local is not None:
        ways: dict[str, Any] = {"halving": halving, "clear_window": method.history_scope == "round"}
        ways["check_rule"] = method.check_rule(client_rule)
        updates, recorded = noise(drift, seed, "client"), min(epochs, method.record_epochs or length)
        client = simulate(updates, rounds, client_rule, length, recorded, entries, **ways)
        frozen_local = _shares(~client.active)
        sent_local = _shares(client.active if method.upload_mask_timing == "before_check" else client.waited == 0)
    return Chance(frozen_global, frozen_local, sent_local)


def _shares(mask: Tensor) -> np.ndarray:
    """[rounds] share of the entries in a mask [rounds, entries]."""
    return mask.double().mean(1).numpy()


@dataclass(frozen=True)
class Simulated:
    """States of the machine, round by round; each [rounds, entries]."""

    active: Tensor  # bool M, during training
    probe: Tensor  # bool M', during training
    score: Tensor  # after the round, of the record as it is then
    interval: Tensor  # F after the round
    waited: Tensor  # L after the round
    value: Tensor  # sum of the updates taken so far


Updates = Callable[[int, int, int], Tensor]  # (round from 0, record within it, number of entries) -> [entries]


def noise(drift: float, seed: int, name: str) -> Updates:
    """Independent normal updates with variance 1 and mean ``drift``."""

    def updates(t: int, record: int, entries: int) -> Tensor:
        return drift + torch.randn(entries, generator=generator(seed, "null model", name, t, record))

    return updates


def simulate(
    updates: Updates,
    rounds: int,
    rule: StabilityRule | float | None,
    length: int,
    recorded: int = 1,
    entries: int = 1,
    *,
    check_rule: StabilityRule | None = None,
    halving: str = "ceil",
    clear_window: bool = False,
    score: Callable[[Window], Tensor] = stability,
    push: Callable[[Window, Tensor, Tensor], None] = push_,
    thaw: bool = True,
) -> Simulated:
    """Runs the state machine on given updates, ``recorded`` of them a round.

    ``rule``: Measure's rule, or its threshold. ``check_rule``: Check's rule, if different. ``halving``: how F is
    halved, a key of ``HALVED``. ``clear_window``: empties the window before each round. ``score`` and ``push``: another
    stability measure.
    """
    start = torch.zeros(entries)
    rule = rule if isinstance(rule, StabilityRule) else StabilityRule(rule)
    state, window, empty = Entries.start(start), Window.empty(start, length), Window.empty(start, length)
    value, steps = start, []
    for t in range(rounds):
        active, probe = measure(state, rule), state.probe
        window = empty.clone() if clear_window else window
        # training: an active entry takes and records each update
        for record in range(recorded):
            update = updates(t, record, entries)
            push(window, update, active)
            value = torch.where(active, value + update, value)
        new_score = torch.where(active, score(window), state.score)
        state = check(
            replace(state, score=new_score, count=window.count.clone()), active, check_rule or rule, halving, thaw
        )
        steps.append((active, probe, state.score, state.interval, state.frozen, value))
    return Simulated(*map(torch.stack, zip(*steps, strict=True)))
