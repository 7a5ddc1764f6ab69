"""Invented results of FedSelect's experiments, for the tests of its checks."""

import pandas as pd

from pfl_core.paper import claims
from pfl_core.paper.checks_fedselect import BASELINES
from pfl_core.results import TIDY

SEEDS = (0, 1, 2)
NOISE = (0.0, 0.2, -0.2)  # one number per seed, the same for all methods: paired differences are exact
NOISY = (0.0, 5.0, -5.0)  # differences from a method with NOISE have intervals of about 12 points to both sides
ALL = dict.fromkeys(BASELINES, 70.0) | {"fedavg": 30.0}
OFFICE = dict(dataset="office_home", data="office_home", setting="office_home")
CORRUPT = dict(dataset="cifar10_c", data="cifar10_c", setting="cifar10_c")
MINI = dict(dataset="mini_imagenet", data="mini_imagenet", setting="mini_imagenet")


def rows(method, value, variant="", metric="acc_mean", seeds=SEEDS, **fields):
    """A run's metric for each seed; `value` is one number, or one per seed."""
    values = value if isinstance(value, tuple) else tuple(value + noise for noise in NOISE)
    known = dict(
        paper="fedselect", dataset="cifar10", setting="cifar10", model="cnn_small", preset="real", rounds=40,
        data="cifar10 (JPEG copy)", stale=False,
    )  # fmt: skip
    return [
        known | dict(method=method, variant=variant, metric=metric, value=v, seed=s) | fields
        for s, v in zip(seeds, values, strict=False)
    ]


def exact(method, value, metric, variant="", **fields):
    """A metric that is the same for all seeds."""
    return rows(method, (value,) * len(SEEDS), variant, metric, **fields)


def noisy(value):
    return tuple(value + noise for noise in NOISY)


def frame(*runs):
    return pd.DataFrame([row for run in runs for row in run], columns=TIDY)


def limits(values, metric="acc_mean", **fields):
    """FedSelect at several limits: {alpha: value}."""
    return [row for a, v in values.items() for row in rows("fedselect", v, f"alpha={a}", metric, **fields)]


def baselines(values, metric="acc_mean", **fields):
    return [row for name, value in values.items() for row in rows(name, value, "", metric, **fields)]


def verdict(number, *runs):
    return claims("fedselect")[number - 1].verdict(frame(*runs))


def status(number, *runs):
    return verdict(number, *runs).status
