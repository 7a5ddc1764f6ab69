"""Mechanism checks of FedSelect and GradLTN on invented series, and on a run that diverges."""

import math

import numpy as np
import pytest

from pfl_core import Schedule, Training, run
from pfl_core.algorithms.fedselect.alternating import LARGEST_LOSS, LARGEST_RISE
from pfl_core.algorithms.fedselect.gradltn import FedSelectGradLTN
from pfl_core.algorithms.fedselect.method import FedSelect
from tests.helpers import federation, mlp

RISE, LOSS, PART = (
    "training loss while masks are chosen, relative to round 1",
    "largest loss of one client while masks are chosen",
    "smaller part of the movable entries, personal or shared",
)


def series(loss, share, movable=None):
    """Two clients with equal shares; the second one's loss is a tenth larger."""
    both = np.column_stack([share, share]).astype(float)
    return {
        "train_loss": np.column_stack([loss, np.multiply(loss, 1.1)]),
        "personal_share": both,
        "movable_share": both if movable is None else np.column_stack([movable, movable]).astype(float),
    }


def checks(rule, *given, **more):
    return {check.what: check for check in rule.mechanism(series(*given, **more), 4, Training())}


GROWING = [0.1, 0.2, 0.3, 0.3]


def test_a_run_that_learns_passes_all_checks():
    found = checks(FedSelect(), [1.0, 0.6, 0.4, 0.2], GROWING)
    assert list(found) == [RISE, LOSS, PART] and all(check.acts for check in found.values())
    assert [check.value for check in found.values()] == pytest.approx([1.0, 0.66, 0.3])
    assert [check.bound for check in found.values()] == [1.5, math.log(100), 0.0]


def test_the_loss_counts_only_while_masks_are_chosen():
    """Masks grow in round 3, not in round 4."""
    assert not checks(FedSelect(), [1.0, 0.6, 1.6, 0.2], GROWING)[RISE].acts
    assert checks(FedSelect(), [1.0, 0.6, 0.4, 9.0], GROWING)[RISE].acts
    assert checks(FedSelect(), [1.0, 0.6, LARGEST_RISE, 0.2], GROWING)[RISE].acts
    waiting = FedSelect(mask_update_start=2)
    assert checks(waiting, [1.0, 9.0, 0.4, 0.2], [0, 0, 0.1, 0.1])[RISE].value == pytest.approx(0.4)


def test_the_largest_loss_of_a_single_client_is_detected():
    """2.4 in round 1, then 4.5 on the other client: no rise of the mean, as in the run with a last batch of 4."""
    values = series([2.4, 1.0, 1.0, 0.2], GROWING)
    values["train_loss"][1] = [0.1, LARGEST_LOSS + 0.1]
    rise, loss, _ = FedSelect().mechanism(values, 4, Training())
    assert rise.acts and not loss.acts
    values["train_loss"][[0, 1]] = values["train_loss"][[1, 0]]
    assert FedSelect().mechanism(values, 4, Training())[1].acts  # round 1 starts from an untrained network


def test_a_nan_loss_is_divergence_and_an_absent_client_is_not():
    values = series([1.0, 0.6, 0.4, 0.2], GROWING)
    values["train_loss"][1, 0] = np.nan
    assert [check.acts for check in FedSelect().mechanism(values, 4, Training())] == [False, False, True]
    values["personal_share"][1, 0] = values["movable_share"][1, 0] = np.nan
    assert all(check.acts for check in FedSelect().mechanism(values, 4, Training()))


def test_the_mask_of_an_absent_client_does_not_count_as_changed():
    """The client takes part in rounds 1 and 3; its mask grew only in round 1."""
    values = series([1.0, 0.6, 5.0, 0.2], [0.3, 0.3, 0.3, 0.3])
    for name in ("personal_share", "movable_share", "train_loss"):
        values[name][1, 0] = np.nan
    rise, part = FedSelect().mechanism(values, 4, Training())
    assert (rise.what, rise.value, part.what) == (RISE, 1.0, PART)


@pytest.mark.parametrize(("movable", "acts"), [(0.0, False), (1.0, False), (0.88, True), (0.001, True)])
def test_some_movable_entries_must_be_personal_and_some_shared(movable, acts):
    last = checks(FedSelect(), [1.0, 0.6, 0.4, 0.2], GROWING, movable=[0.1, 0.2, 0.3, movable])[PART]
    assert last.acts == acts and last.value == pytest.approx(min(movable, 1 - movable))


def test_if_no_mask_grew_only_the_last_check_remains():
    found = checks(FedSelect(mask_update_start=9), [1.0, 9.0, 0.4, 0.2], [0.0] * 4)
    assert list(found) == [PART] and not found[PART].acts


def test_fewer_checks_for_alpha_0_or_1_and_for_fixed_masks():
    given = ([1.0, 0.6, 0.4, 0.2], GROWING)
    assert list(checks(FedSelect(alpha=1.0), *given)) == [RISE, LOSS]
    assert checks(FedSelect(alpha=0.0), given[0], [0.0] * 4) == {}
    assert checks(FedSelect(p=0.0), *given) == checks(FedSelect(masks="random"), *given) == {}


@pytest.mark.parametrize("rule", [FedSelect(), FedSelectGradLTN()], ids=["fedselect", "gradltn"])
def test_no_checks_without_the_notes_of_a_round(rule):
    assert rule.mechanism({"train_loss": np.ones((4, 2))}, 4, Training()) == []


def test_gradltn_chooses_masks_in_every_round():
    steady = [0.03] * 4
    assert all(check.acts for check in checks(FedSelectGradLTN(), [1.0, 0.6, 0.4, 0.2], steady).values())
    assert not checks(FedSelectGradLTN(), [1.0, 0.6, 0.4, 1.6], steady)[RISE].acts
    assert not checks(FedSelectGradLTN(), [1.0, 0.6, 0.4, 0.2], [0.0] * 4)[PART].acts
    assert checks(FedSelectGradLTN(keep_rate=0.0), [1.0] * 4, steady) == {}


@pytest.mark.parametrize(("lr", "acts"), [(0.05, True), (200.0, False)])
@pytest.mark.parametrize("rule", [FedSelect(p=0.1), FedSelectGradLTN(num_search_iters=2)], ids=["fedselect", "gradltn"])
def test_checks_of_real_runs(rule, lr, acts):
    """The notes of the rounds suffice for the checks; at a rate of 200 training diverges."""
    _, history = run(rule, federation(mlp(), rounds=4, lr=lr), Schedule(4))
    noted = {name: np.atleast_2d(np.array(values, float).T).T for name, (_, values) in history.series.items()}
    found = rule.mechanism(noted, 4, Training())
    assert [check.acts for check in found] == [acts, acts, True]
