"""Artificial results of pFedGate's experiments, for the tests of its claim checks."""

from functools import partial

from pfl_core.papers.pfedgate.paper import PAPER
from tests.study import invented
from tests.study.invented import SEEDS

verdict, status = partial(invented.verdict, PAPER), partial(invented.status, PAPER)


def rows(method, value, variant="", metric="acc_pooled", seeds=SEEDS, **fields):
    """A run's metric for each seed; `value` is one number, or one per seed."""
    known = dict(
        paper="pfedgate", dataset="cifar10", setting="cifar10", model="lenet_cifar", preset="real", rounds=40,
        data="cifar10 (JPEG copy)", stale=False, dirichlet=0.4, epochs=1, participation=1.0, novel=0.0, clients=100,
    )  # fmt: skip
    return invented.each_seed(known | dict(method=method, variant=variant, metric=metric) | fields, value, seeds)


def exact(method, value, metric, variant="", **fields):
    """A metric that is the same for all seeds."""
    return rows(method, (value,) * len(SEEDS), variant, metric, **fields)


def gates(values, metric="acc_pooled", **fields):
    """pFedGate at several budgets: {s: value}."""
    return [row for s, v in values.items() for row in rows("pfedgate", v, f"keep_ratio={s:g}", metric, **fields)]
