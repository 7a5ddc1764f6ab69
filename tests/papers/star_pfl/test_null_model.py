"""The null model: the formula against random draws, the simulation against an independent Markov chain."""

import math

import numpy as np
import pytest
import torch

from pfl_core.papers.star_pfl.null_model import chance, noise, simulate, stable_chance
from pfl_core.seeding import generator


def drawn(records, threshold, draws=200_000):
    x = torch.randn(draws, records, generator=generator(7, "draws", records))
    return ((x.sum(1).abs() <= threshold * x.abs().sum(1)).double().mean()).item()


@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("records", [2, 3, 5, 10])
def test_stable_chance_matches_random_draws(records, threshold):
    probability, share = stable_chance(records, threshold), drawn(records, threshold)
    assert abs(probability - share) < 4 * math.sqrt(share * (1 - share) / 200_000) + 1e-3


def test_stable_chance_in_closed_form():
    """Two updates: opposite signs, and sizes within 11 / 9 of each other, (4 / pi) (atan(11 / 9) - pi / 4) / 2."""
    assert stable_chance(2, 0.1) == pytest.approx((math.atan(1.1 / 0.9) - math.pi / 4) * 2 / math.pi, abs=1e-3)
    assert stable_chance(1) == 0
    assert stable_chance(4, 1.0) == pytest.approx(1 - 2 / 2**4, abs=1e-3), "1 minus the chance that all signs are equal"


def by_chain(q, rounds=3000, longest=40):
    """Frozen share if an entry looks stable after every trained round with probability q: a Markov chain over F.

    A stable round is followed by F frozen rounds and a probe. After the probe F is F + 1 or ceil(F / 2).
    """
    active, probing, waiting = (
        np.zeros(longest),
        np.zeros(longest),
        np.zeros((longest, longest)),
    )  # by F; the wait
    active[1], shares = 1.0, []
    for _ in range(rounds):
        shares.append(waiting.sum())
        thawed, waiting = waiting[:, 1].copy(), np.roll(waiting, -1, axis=1)
        waiting[:, 0] = waiting[:, -1] = 0
        now = np.zeros(longest)
        for f in range(1, longest - 1):
            waiting[f, f] += q * active[f]
            now[f] += (1 - q) * active[f]
            waiting[f + 1, f + 1] += q * probing[f]
            now[max(1, math.ceil(f / 2))] += (1 - q) * probing[f]
        active, probing = now, thawed
    return np.mean(shares[rounds // 2 :])


def test_a_client_with_a_new_window_each_round_matches_the_chain():
    frozen = 1 - simulate(noise(0.0, 0, "t"), 120, 0.1, 5, 5, 5000).active[40:].double().mean().item()
    assert frozen == pytest.approx(by_chain(stable_chance(5)), abs=0.005)
    assert frozen == pytest.approx(0.128, abs=0.005)


def test_the_server_freezes_a_quarter_of_pure_noise():
    """27 % in the long run, and 25.5 % over the first 174 rounds."""
    shares = chance(400, entries=4000)
    assert shares.frozen_global[100:].mean() == pytest.approx(0.271, abs=0.006)
    assert shares.frozen_global[:174].mean() == pytest.approx(0.255, abs=0.006)
    assert shares.upload[:174].mean() == pytest.approx(0.648, abs=0.006)
    assert shares.upload == pytest.approx((1 - shares.frozen_global) * (1 - shares.frozen_local))
    assert shares.sent_local == pytest.approx(1 - shares.frozen_local)


def test_the_released_functions_send_four_fifths_of_noise():
    """They send by the mask after Check, where entries frozen for one round are active again."""
    shares = chance(174, entries=2000, reading="authors_code")
    assert shares.upload.mean() == pytest.approx(0.79, abs=0.01)
    assert shares.sent_local.mean() > 0.99 > 1 - shares.frozen_local.mean()


@pytest.mark.parametrize(("drift", "share"), [(0.2, 0.70), (0.5, 0.85), (1.0, 0.99)])
def test_upload_with_drift(drift, share):
    assert chance(174, drift=drift, entries=2000).upload.mean() == pytest.approx(share, abs=0.02)


def test_drift_keeps_entries_active():
    shares = [chance(60, drift=drift, entries=2000).upload[20:].mean() for drift in (0.0, 0.5, 1.0, 2.0)]
    assert sorted(shares) == shares and shares[-1] > 0.995
    assert chance(5, threshold_global=None, threshold_local=None, entries=50).upload.tolist() == [1.0] * 5
