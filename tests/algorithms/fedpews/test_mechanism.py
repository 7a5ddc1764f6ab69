"""Mechanism checks of FedPeWS: masks settled, enough dense rounds, training that did not explode."""

import math

import numpy as np
import pytest
import torch

from pfl_core import Schedule, Training, run
from pfl_core.algorithms.fedpews.fixed import FedPeWSFixed
from pfl_core.algorithms.fedpews.method import FedPeWS, expected_flips
from tests.algorithms.fedpews.plain import F64, fed_of

PLAIN = Training(lr=0.1)


def checks(series, rounds=20, algorithm=None):
    """Short name of each check -> (value, acts)."""
    arrays = {name: np.array(values, dtype=float) for name, values in series.items()}
    if "mask_flips" in arrays:
        arrays.setdefault("selected", arrays["mask_flips"])  # every warm-up round has noted it
    found = (algorithm or FedPeWS(tau=0.5)).mechanism(arrays, rounds, PLAIN)
    words = {"flip": "settled", "change": "settled", "dense": "dense", "loss": "loss", "warm-up rounds": "none"}
    return {next(name for word, name in words.items() if word in c.what): (c.value, c.acts) for c in found}


def seeded(key):
    return torch.Generator().manual_seed(key)


def test_masks_are_settled_if_few_entries_flip_in_the_last_fifth_of_the_warm_up():
    """Of ten warm-up rounds, only the last two count."""
    early = [[0.5, 0.5]] * 8
    assert checks({"mask_flips": early + [[0.004, 0.006]] * 2})["settled"] == (pytest.approx(0.005), True)
    assert checks({"mask_flips": early + [[0.004, 0.04]] * 2})["settled"] == (pytest.approx(0.022), False)
    absent = [[0.004, math.nan], [math.nan, math.nan]]
    assert checks({"mask_flips": early + absent})["settled"] == (pytest.approx(0.004), True)


def test_records_without_flips_are_checked_by_the_size_of_the_masks():
    """A mask's size changes at most by the share that flips. Without any notes there is no such check."""
    steady = [[0.5, 0.5]] * 8 + [[0.5, 0.5], [0.505, 0.495]]
    assert checks({"selected": steady})["settled"] == (pytest.approx(0.0025), True)
    coins = [[0.5, 0.5], [0.55, 0.45]] * 5
    assert checks({"selected": coins})["settled"] == (pytest.approx(0.05), False)
    assert set(checks({})) == {"dense"}
    assert set(checks({"selected": coins}, algorithm=FedPeWSFixed(tau=0.5))) == {"dense"}, "fixed masks do not move"


def test_a_run_stopped_during_the_warm_up_has_no_check_of_its_masks():
    assert "settled" not in checks({"mask_flips": [[0.5, 0.5]] * 9})
    assert "settled" not in checks({"selected": [[0.5, 0.5]] * 9})


@pytest.mark.parametrize("algorithm", [FedPeWS, FedPeWSFixed])
def test_a_fifth_of_the_rounds_must_be_dense(algorithm):
    assert checks({}, 40, algorithm(tau=0.8))["dense"] == (pytest.approx(0.2), True)
    assert checks({}, 40, algorithm(tau=0.85))["dense"] == (pytest.approx(0.15), False)


def test_the_loss_of_the_warm_up_is_compared_with_round_1():
    """Mean over the clients that took part; what comes after the switch does not count."""
    calm = [[1.0, 1.0], [2.0, math.nan], *[[1.0, 1.0]] * 8]
    assert checks({"train_loss": calm + [[9.0, 9.0]] * 10})["loss"] == (2.0, False)
    calm[1] = [1.4, 1.6]
    assert checks({"train_loss": calm})["loss"] == (1.5, True)
    diverged = [[1.0, 1.0], [math.nan, math.nan], *[[1.0, 1.0]] * 8]
    assert checks({"train_loss": diverged})["loss"][1] is False, "a loss of NaN counts as exploded"


def test_without_a_warm_up_there_is_no_check_unless_tau_asks_for_one():
    assert checks({"train_loss": [[1.0]]}, algorithm=FedPeWS(tau=0.0)) == {}
    assert checks({"train_loss": [[1.0]]}, rounds=3, algorithm=FedPeWS(tau=0.1)) == {"none": (0, False)}


def test_expected_flips_against_many_draws():
    before, after = torch.rand(2, 1, 50, generator=seeded(0))
    draws = torch.rand(2, 4000, 50, generator=seeded(1))
    flipped = ((draws[0] < before) != (draws[1] < after)).float().mean()
    assert float(expected_flips(before, after)) == pytest.approx(float(flipped), abs=0.01)
    assert expected_flips(torch.full((1, 3), 0.5), after[:, :3]).item() == pytest.approx(0.5)
    settled = torch.tensor([[0.0, 1.0]])
    assert expected_flips(settled, settled).item() == 0


@pytest.mark.parametrize(("lam", "settles"), [(0.0, False), (1000.0, True)])
def test_runs_note_what_the_checks_need(lam, settles):
    """Without the diversity term the masks stay random; with a large one they settle in the first rounds."""
    fed = fed_of(dtype=F64, rounds=10)
    _, history = run(FedPeWS(tau=0.5, lam=lam, lr_mask=10.0 if lam else 1e-3), fed, Schedule(10))
    series = {name: values for name, (_, values) in history.series.items() if name in ("mask_flips", "train_loss")}
    assert checks(series, 10)["settled"][1] is settles
