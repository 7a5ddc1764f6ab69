"""Invented results of pFedGate's experiments, for the tests of its checks."""

import pandas as pd

from pfl_core.paper import claims
from pfl_core.results import TIDY

SEEDS = (0, 1, 2)
NOISE = (0.0, 0.2, -0.2)  # one number per seed, the same for all runs: paired differences are exact
NOISY = (0.0, 5.0, -5.0)


def rows(method, value, variant="", metric="acc_pooled", seeds=SEEDS, **fields):
    """A run's metric for each seed; `value` is one number, or one per seed."""
    values = value if isinstance(value, tuple) else tuple(value + noise for noise in NOISE)
    known = dict(
        paper="pfedgate", dataset="cifar10", setting="cifar10", model="lenet_cifar", preset="real", rounds=40,
        data="cifar10 (JPEG copy)", stale=False, dirichlet=0.4, epochs=1, participation=1.0, novel=0.0, clients=100,
    )  # fmt: skip
    return [
        known | dict(method=method, variant=variant, metric=metric, value=v, seed=s) | fields
        for s, v in zip(seeds, values, strict=False)
    ]


def exact(method, value, metric, variant="", **fields):
    """A metric that is the same for all seeds."""
    return rows(method, (value,) * len(SEEDS), variant, metric, **fields)


def gates(values, metric="acc_pooled", **fields):
    """pFedGate at several budgets: {s: value}."""
    return [row for s, v in values.items() for row in rows("pfedgate", v, f"keep_ratio={s:g}", metric, **fields)]


def noisy(value):
    return tuple(value + noise for noise in NOISY)


def frame(*runs):
    return pd.DataFrame([row for run in runs for row in run], columns=TIDY)


def verdict(number, *runs):
    return claims("pfedgate")[number - 1].verdict(frame(*runs))


def status(number, *runs):
    return verdict(number, *runs).status
