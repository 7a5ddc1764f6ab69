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
    """Two clients that are alike, but for the losses: the second one's is a tenth larger."""
    both = np.column_stack([share, share]).astype(float)
    return {
        "train_loss": np.column_stack([loss, np.multiply(loss, 1.1)]),
        "personal_share": both,
        "movable_share": both if movable is None else np.column_stack([movable, movable]).astype(float),
    }


def checks(rule, *given, **more):
    return {check.what: check for check in rule.mechanism(series(*given, **more), 4, Training())}


GROWING = [0.1, 0.2, 0.3, 0.3]


def test_a_run_that_learns_acts():
    found = checks(FedSelect(), [1.0, 0.6, 0.4, 0.2], GROWING)
    assert list(found) == [RISE, LOSS, PART] and all(check.acts for check in found.values())
    assert [check.value for check in found.values()] == pytest.approx([1.0, 0.66, 0.3])
    assert [check.bound for check in found.values()] == [1.5, math.log(100), 0.0]


def test_a_rise_counts_while_masks_are_chosen_and_not_later():
    """Round 3 chooses, round 4 does not."""
    assert not checks(FedSelect(), [1.0, 0.6, 1.6, 0.2], GROWING)[RISE].acts
    assert checks(FedSelect(), [1.0, 0.6, 0.4, 9.0], GROWING)[RISE].acts
    assert checks(FedSelect(), [1.0, 0.6, LARGEST_RISE, 0.2], GROWING)[RISE].acts
    waiting = FedSelect(mask_update_start=2)
    assert checks(waiting, [1.0, 9.0, 0.4, 0.2], [0, 0, 0.1, 0.1])[RISE].value == pytest.approx(0.4)


def test_one_client_is_enough_and_a_loss_that_is_high_from_the_start_is_seen():
    """2.4 in round 1, then 4.5 on the other client: no rise of the mean, as in the run with a last batch of 4."""
    values = series([2.4, 1.0, 1.0, 0.2], GROWING)
    values["train_loss"][1] = [0.1, LARGEST_LOSS + 0.1]
    rise, loss, _ = FedSelect().mechanism(values, 4, Training())
    assert rise.acts and not loss.acts
    values["train_loss"][[0, 1]] = values["train_loss"][[1, 0]]
    assert FedSelect().mechanism(values, 4, Training())[1].acts  # round 1 starts from an untrained network


def test_a_loss_that_is_no_number_is_divergence_and_an_absent_client_is_not():
    values = series([1.0, 0.6, 0.4, 0.2], GROWING)
    values["train_loss"][1, 0] = np.nan
    assert [check.acts for check in FedSelect().mechanism(values, 4, Training())] == [False, False, True]
    values["personal_share"][1, 0] = values["movable_share"][1, 0] = np.nan
    assert all(check.acts for check in FedSelect().mechanism(values, 4, Training()))


def test_an_absent_clients_mask_has_not_changed_when_it_is_back():
    """It grew in round 1 and is back in round 3: only round 1 chose."""
    values = series([1.0, 0.6, 5.0, 0.2], [0.3, 0.3, 0.3, 0.3])
    for name in ("personal_share", "movable_share", "train_loss"):
        values[name][1, 0] = np.nan
    rise, part = FedSelect().mechanism(values, 4, Training())
    assert (rise.what, rise.value, part.what) == (RISE, 1.0, PART)


@pytest.mark.parametrize(("movable", "acts"), [(0.0, False), (1.0, False), (0.88, True), (0.001, True)])
def test_something_must_be_personal_and_something_shared_of_what_moves(movable, acts):
    last = checks(FedSelect(), [1.0, 0.6, 0.4, 0.2], GROWING, movable=[0.1, 0.2, 0.3, movable])[PART]
    assert last.acts == acts and last.value == pytest.approx(min(movable, 1 - movable))


def test_without_a_mask_there_is_only_the_last_check():
    found = checks(FedSelect(mask_update_start=9), [1.0, 9.0, 0.4, 0.2], [0.0] * 4)
    assert list(found) == [PART] and not found[PART].acts


def test_ends_of_the_range_and_fixed_masks_have_less_to_check():
    given = ([1.0, 0.6, 0.4, 0.2], GROWING)
    assert list(checks(FedSelect(alpha=1.0), *given)) == [RISE, LOSS]
    assert checks(FedSelect(alpha=0.0), given[0], [0.0] * 4) == {}
    assert checks(FedSelect(p=0.0), *given) == checks(FedSelect(masks="random"), *given) == {}


@pytest.mark.parametrize("rule", [FedSelect(), FedSelectGradLTN()], ids=["fedselect", "gradltn"])
def test_a_record_without_these_notes_has_nothing_to_check(rule):
    assert rule.mechanism({"train_loss": np.ones((4, 2))}, 4, Training()) == []


def test_gradltn_chooses_in_every_round():
    steady = [0.03] * 4
    assert all(check.acts for check in checks(FedSelectGradLTN(), [1.0, 0.6, 0.4, 0.2], steady).values())
    assert not checks(FedSelectGradLTN(), [1.0, 0.6, 0.4, 1.6], steady)[RISE].acts
    assert not checks(FedSelectGradLTN(), [1.0, 0.6, 0.4, 0.2], [0.0] * 4)[PART].acts
    assert checks(FedSelectGradLTN(keep_rate=0.0), [1.0] * 4, steady) == {}


@pytest.mark.parametrize(("lr", "acts"), [(0.05, True), (200.0, False)])
@pytest.mark.parametrize("rule", [FedSelect(p=0.1), FedSelectGradLTN(num_search_iters=2)], ids=["fedselect", "gradltn"])
def test_of_a_run(rule, lr, acts):
    """What the rounds note is enough; at a rate of 200 training diverges."""
    _, history = run(rule, federation(mlp(), rounds=4, lr=lr), Schedule(4))
    noted = {name: np.atleast_2d(np.array(values, float).T).T for name, (_, values) in history.series.items()}
    found = rule.mechanism(noted, 4, Training())
    assert [check.acts for check in found] == [acts, acts, True]
