"""Invented results for the tests of every paper's claims: rows for three seeds, and the verdicts on them."""

import pandas as pd

from pfl_core.study.claims import claims
from pfl_core.study.metrics import COLUMNS
from pfl_core.study.paper import Paper

SEEDS = (0, 1, 2)
NOISE = (0.0, 0.2, -0.2)  # one number per seed, the same for all runs: paired differences are exact
NOISY = (0.0, 5.0, -5.0)  # differences from a run with NOISE have intervals of about 12 points to both sides


def spread(value, noise=NOISE):
    """One number per seed."""
    return tuple(value + one for one in noise)


def noisy(value):
    return spread(value, NOISY)


def each_seed(known, value, seeds=SEEDS):
    """A row for each seed; ``value`` is one number, or one per seed."""
    values = value if isinstance(value, tuple) else spread(value)
    return [known | dict(seed=s, value=v) for s, v in zip(seeds, values, strict=False)]


def frame(*runs):
    return pd.DataFrame([{"differs": ""} | row for run in runs for row in run], columns=COLUMNS)


def verdict(paper: Paper, number: int, *runs):
    return claims(paper.claims)[number - 1].check(frame(*runs))


def status(paper: Paper, number: int, *runs):
    return verdict(paper, number, *runs).status
