"""Star-PFL's state machine on made-up updates: a worked example, and patterns that a parameter may follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from pfl_core.algorithms.star_pfl.masks import average_, average_stability
from pfl_core.algorithms.star_pfl.probe import ACTIVE, FROZEN, PROBING
from pfl_core.papers.star_pfl.null_model import Simulated, Updates, simulate
from pfl_core.seeding import generator

# Entry -> its update in rounds 1 to 8, had it been trained: a oscillates, b drifts, c oscillates and then moves again,
# d never moves. Binary fractions, so that every score is exact.
EXAMPLE = {
    "a": (0.5, -0.5, 0.0, 0.5, -0.5, 0.0, 0.5, 0.0),
    "b": (0.25,) * 8,
    "c": (0.5, -0.5, 0.0, 1.0, 0.25, -0.5, 0.5, -0.25),
    "d": (0.0,) * 8,
}
NAMES = {ACTIVE: "active", FROZEN: "frozen", PROBING: "probing"}
WAKES = 20  # updates after which the last pattern stops going back and forth
# Pattern -> update number n (from 0) from noise(n)
PATTERNS: dict[str, Callable[[int, float], float]] = {
    "oscillation": lambda n, noise: 1.0 - 2.0 * (n % 2),
    "drift": lambda n, noise: 0.7 + noise,
    "noise": lambda n, noise: noise,
    "dead": lambda n, noise: 0.0,
    "wakes up": lambda n, noise: 1.0 - 2.0 * (n % 2) if n < WAKES else 0.7,
}


def worked_example(threshold: float = 0.1, length: int = 4) -> pd.DataFrame:
    """A row per round and entry, as the server would go through it; empty where an entry is not trained or measured.

    Columns: round, entry, state (in the round), score (that Measure sees), M, dW, W, score' (after the update), L, F,
    M' and M after (as Check leaves them).
    """

    def updates(t: int, record: int, entries: int) -> Tensor:
        return torch.tensor([given[t] if t < len(given) else 0.0 for given in EXAMPLE.values()])

    rounds = len(EXAMPLE["a"])
    course = simulate(updates, rounds + 1, threshold, length, 1, len(EXAMPLE))  # one more: it shows M' of the last
    rows = []
    for t in range(rounds):
        for j, entry in enumerate(EXAMPLE):
            on, probe = bool(course.active[t, j]), bool(course.probe[t, j])
            seen = t > 0 and bool(course.active[t - 1, j]) and not probe  # it was active, so that Measure looked at it
            rows.append(
                {
                    "round": t + 1,
                    "entry": entry,
                    "state": NAMES[PROBING if probe else ACTIVE if on else FROZEN],
                    "score": float(course.score[t - 1, j]) if seen else None,
                    "M": int(on),
                    "dW": EXAMPLE[entry][t] if on else None,
                    "W": float(course.value[t, j]),
                    "score'": float(course.score[t, j]) if on else None,
                    "L": int(course.waited[t, j]),
                    "F": int(course.interval[t, j]),
                    "M' after": int(course.probe[t + 1, j]),
                    "M after": int(on or course.probe[t + 1, j]),
                }
            )
    return pd.DataFrame(rows)


def updates_of(patterns: Sequence[str], recorded: int = 1, seed: int = 0) -> Updates:
    """One entry for each of PATTERNS that is named, all with the same noise."""

    def updates(t: int, record: int, entries: int) -> Tensor:
        number = t * recorded + record
        drawn = torch.randn((), generator=generator(seed, "patterns", number)).item()
        return torch.tensor([PATTERNS[name](number, drawn) for name in patterns])

    return updates


def courses(
    threshold: float,
    length: int,
    *,
    rounds: int = 40,
    recorded: int = 1,
    patterns: Sequence[str] = tuple(PATTERNS),
    decay: float | None = None,
    thaw: bool = True,
    seed: int = 0,
) -> pd.DataFrame:
    """What becomes of each pattern; ``decay``: APF's moving averages in place of a window.

    Columns: pattern, round, state (a number), score, wait (F).
    """
    rule = {} if decay is None else {"score": average_stability, "push": partial(average_, decay=decay)}
    size = length if decay is None else 2
    made = updates_of(patterns, recorded, seed)
    course = simulate(made, rounds, threshold, size, recorded, len(patterns), thaw=thaw, **rule)
    state = states(course)
    return pd.concat(
        pd.DataFrame(
            {
                "pattern": name,
                "round": range(1, rounds + 1),
                "state": state[:, j].numpy(),
                "score": course.score[:, j].numpy(),
                "wait": course.interval[:, j].numpy(),
            }
        )
        for j, name in enumerate(patterns)
    )


def states(course: Simulated) -> Tensor:
    """[rounds, entries], ACTIVE, FROZEN or PROBING."""
    thawed = torch.where(course.probe, PROBING, ACTIVE)
    return torch.where(course.active, thawed, FROZEN)


def trained_share(table: pd.DataFrame) -> pd.Series:
    """Percent of the rounds in which each pattern is trained (active or probing)."""
    return 100 * (table["state"] != FROZEN).groupby(table["pattern"], sort=False).mean()


def waiting_times(results: str) -> pd.DataFrame:
    """F after each probe, from 1; ``results``: "s" steady, "u" not. Columns: ceil, floor, real (not rounded at all)."""
    rules = {
        "ceil": lambda wait: max(1, -(-wait // 2)),
        "floor": lambda wait: max(1, wait // 2),
        "real": lambda wait: wait / 2,
    }
    rows = {}
    for name, half in rules.items():
        wait, rows[name] = 1, []
        for one in results:
            wait = wait + 1 if one == "s" else half(wait)
            rows[name].append(wait)
    return pd.DataFrame(rows, index=pd.Index([f"{k}: {one}" for k, one in enumerate(results, 1)], name="probe"))
