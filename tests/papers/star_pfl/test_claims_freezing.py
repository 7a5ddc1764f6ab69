"""Checks of Star-PFL's claims on freezing: each can hold, fail, and stay undecided."""

import math
from functools import partial

from pfl_core.papers.star_pfl.claims.freezing import LOCAL_ONLY, NEVER_THAWED, UNFROZEN
from pfl_core.papers.star_pfl.paper import PAPER
from tests.study import invented
from tests.study.invented import NOISY, SEEDS, spread

verdict, status = partial(invented.verdict, PAPER), partial(invented.status, PAPER)
BOTH = ("acc_mean_picked_trained", "acc_mean_picked_merged")


def rows(name, metric, value, setting="axial", seeds=SEEDS, **fields):
    """A run's metric for each seed; ``value`` is one number for all, or one per seed."""
    known = dict(
        paper="star_pfl", dataset="mnist", setting=setting, clients=20, dirichlet=0.1, model="lenet_star",
        method="star_pfl", variant=name, preset="real", data="mnist", rounds=15, stale=False, metric=metric,
    )  # fmt: skip
    return invented.each_seed(known | fields, value if isinstance(value, tuple) else (value,) * len(seeds), seeds)


def accuracies(name, trained, merged=None):
    values = (trained, trained if merged is None else merged)
    return [row for metric, value in zip(BOTH, values, strict=True) for row in rows(name, metric, value)]


def test_the_checked_variants_are_runs_of_the_notebooks():
    traces = PAPER.specs("01_stability_traces", "quick", [0])
    assert [PAPER.variant(spec) for spec in traces] == ["", UNFROZEN, UNFROZEN]
    ablations = {PAPER.variant(spec) for spec in PAPER.specs("06_ablations", "quick", [0])}
    assert {"", UNFROZEN, LOCAL_ONLY, NEVER_THAWED} <= ablations


def correlations(client, server):
    names = ("size_correlation", "size_correlation_global")
    return [r for n, value in zip(names, (client, server), strict=True) for r in rows(UNFROZEN, n, value, "traces")]


def test_6_size_and_score():
    assert status(6, correlations(0.02, -0.05)) == "holds"
    assert status(6, correlations(0.02, -0.3)) == "does not hold"
    assert status(6, correlations((0.02, 0.3, 0.02), 0.0)) == "undecided"
    assert status(6, correlations(0.0, (0.095, 0.088, 0.096))) == "undecided", "each below 0.1, their interval is not"
    text = "server: rank correlation -0.300 [-0.300, -0.300] (within ± 0.1 counts as none)"
    assert text in verdict(6, correlations(0.0, -0.3)).numbers
    assert status(6, rows("", "size_correlation", 0.0, "traces")) == "undecided", "only runs with nothing frozen count"


def test_9_freezing_is_free():
    free = accuracies(UNFROZEN, spread(90.0))
    assert status(9, accuracies("", spread(89.9)), free) == "holds", "a loss of a tenth of a point counts as none"
    assert status(9, accuracies("", spread(88.0)), free) == "does not hold"
    assert status(9, accuracies("", spread(90.0), spread(85.0)), free) == "does not hold", "at either point"
    assert status(9, accuracies("", spread(90.0, NOISY)), free) == "undecided"
    assert status(9, accuracies("", spread(90.0))) == "undecided"


def thawed(trained, merged, never=80.0):
    frozen = rows("", "frozen_local", 10.0) + rows(NEVER_THAWED, "frozen_local", 90.0)
    return accuracies("", trained, merged) + accuracies(NEVER_THAWED, never) + frozen


def test_10_probing():
    assert status(10, thawed(spread(90.0), spread(80.0, NOISY))) == "holds"
    assert status(10, thawed(spread(90.0), spread(70.0))) == "does not hold", "behind at one point"
    assert status(10, thawed(spread(80.0, NOISY), spread(80.0, NOISY))) == "undecided"
    assert "10 % with probes, 90 % without" in verdict(10, thawed(90.0, 90.0)).numbers
    assert status(10, accuracies("", 90.0)) == "undecided"


def personal(gain, mask):
    trained = BOTH[0]
    runs = rows(UNFROZEN, "local_gain", gain) + rows(UNFROZEN, trained, 90.0)
    return runs + rows(LOCAL_ONLY, trained, tuple(90.0 + m for m in mask))


def test_11_training_and_mask():
    assert status(11, personal(spread(5.0), spread(0.0))) == "holds"
    assert status(11, personal(spread(-2.0), spread(0.0))) == "does not hold", "training does not help"
    assert status(11, personal(spread(2.0), spread(-6.0))) == "does not hold", "the mask changes more"
    assert status(11, personal(spread(1.0, NOISY), spread(0.0))) == "undecided"
    assert status(11, rows(UNFROZEN, "local_gain", 5.0)) == "undecided"


def frozen(local, server, names=("frozen", "cancelled")):
    """Frozen share, and frozen share of the entries that moved, on clients and server; on noise 12.0 %."""
    runs = []
    for side, values in (("local", local), ("global", server)):
        seen = dict(zip(names, values, strict=False)) | {"chance": 12.0}
        runs += [row for kind, value in seen.items() for row in rows("", f"{kind}_{side}", value, "traces")]
    return runs


def test_12_more_than_noise():
    more, less = (16.0, 14.0), (10.0, 8.0)
    assert status(12, frozen(more, more)) == "holds"
    assert status(12, frozen(more, less)) == status(12, frozen(less, more)) == "does not hold"
    assert status(12, frozen((16.0, (14.0, 11.0, 13.0)), more)) == "undecided"
    text = (
        "10.0 % frozen, of noise 12.0 % (3 seeds); of the entries that moved 8.0 %, -4.00 [-4.00, -4.00] points above"
    )
    assert f"{text} noise" in verdict(12, frozen(less, more)).numbers
    assert status(12, rows("", "frozen_local", 9.0, "traces")) == "undecided"


def test_12_entries_that_never_moved_do_not_count():
    dead = (40.0, 5.0)
    assert status(12, frozen(dead, dead)) == "does not hold", "more is frozen than on noise, but most of it never moved"
    unknown = verdict(12, frozen((16.0,), (16.0,)))
    assert unknown.status == "undecided" and "is not stored" in unknown.numbers
    assert status(12, frozen((16.0,), (10.0,))) == "does not hold", (
        "without entries that never moved it would be even less"
    )


def test_without_results_every_claim_is_undecided():
    for number in (6, 9, 10, 11, 12):
        assert status(number, rows("", "acc_mean", 90.0, "elsewhere")) == "undecided", number


def test_a_missing_variant_is_the_paper_reading():
    plain = [row | {"variant": math.nan} for row in accuracies("", spread(90.0))]
    assert status(9, plain, accuracies(UNFROZEN, spread(90.0))) == "holds"
