"""Synthetic results of FedSelect's experiments, for the tests of its checks."""

from functools import partial

from pfl_core.papers.fedselect.claims.limits import BASELINES
from pfl_core.papers.fedselect.paper import PAPER
from tests.study import invented
from tests.study.invented import SEEDS

verdict, status = partial(invented.verdict, PAPER), partial(invented.status, PAPER)
ALL = dict.fromkeys(BASELINES, 70.0) | {"fedavg": 30.0}
OFFICE = dict(dataset="office_home", data="office_home", setting="office_home")
CORRUPT = dict(dataset="cifar10_c", data="cifar10_c", setting="cifar10_c")
MINI = dict(dataset="mini_imagenet", data="mini_imagenet", setting="mini_imagenet")

SETS = ({}, CORRUPT, MINI, OFFICE)  # Tables 1 to 3


def rows(method, value, variant="", metric="acc_mean", seeds=SEEDS, **fields):
    """A run's metric for each seed; `value` is one number, or one per seed."""
    known = dict(
        paper="fedselect", dataset="cifar10", setting="cifar10", model="cnn_small", preset="real", rounds=40,
        data="cifar10 (JPEG copy)", stale=False,
    )  # fmt: skip
    return invented.each_seed(known | dict(method=method, variant=variant, metric=metric) | fields, value, seeds)


def exact(method, value, metric, variant="", **fields):
    """A metric that is the same for all seeds."""
    return rows(method, (value,) * len(SEEDS), variant, metric, **fields)


def limits(values, metric="acc_mean", **fields):
    """FedSelect at several limits: {alpha: value}."""
    return [row for a, v in values.items() for row in rows("fedselect", v, f"alpha={a}", metric, **fields)]


def baselines(values, metric="acc_mean", **fields):
    return [row for name, value in values.items() for row in rows(name, value, "", metric, **fields)]


def everywhere(*runs, sets=SETS):
    """The same results on several data sets."""
    return [row | fields for fields in sets for run in runs for row in run]
