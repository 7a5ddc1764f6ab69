"""Star-PFL's mechanism checks: frozen share differs from that of noise, is not too large, and scores have settled."""

import numpy as np
import pytest

from pfl_core.algorithms.star_pfl.likeness import Likeness
from pfl_core.algorithms.star_pfl.method import StarPFL
from pfl_core.algorithms.star_pfl.options import NEARLY_ALL, NOISE
from pfl_core.papers.star_pfl.null_model import chance
from pfl_core.training import Training
from tests.algorithms.star_pfl.plain import fed_of, steps

TRAINING = Training(epochs=10)


def checked(method=None, local=0.3, server=0.1, rounds=60, score=0.5, training=TRAINING, **series):
    """Check -> whether it passed, for a run with these frozen shares in every round; client 0 is sometimes absent."""
    active = np.full((rounds, 2), 1 - local)
    active[::3, 0] = np.nan
    notes = {"active_share": active, "active_share_global": np.full((rounds, 1), 1 - server)}
    notes |= {"mean_score": active * 0 + score, "mean_score_global": np.full((rounds, 1), score)} | series
    return {c.what.split(",")[0]: c.acts for c in (method or StarPFL()).mechanism(notes, rounds, training)}


def test_a_run_with_all_checks():
    assert checked() == {
        "frozen share of the server": True,
        "largest frozen share of the server": True,
        "change of the mean score of the server": True,
        "frozen share of the clients": True,
        "largest frozen share of the clients": True,
        "change of the mean score of the clients": True,
    }


@pytest.mark.parametrize("reading", NOISE)
def test_a_frozen_share_like_that_of_noise_fails(reading):
    noise, method = NOISE[reading], StarPFL.reading(reading)
    found = checked(method, local=noise["local"] + 0.015, server=noise["global"] - 0.015)
    assert not found["frozen share of the clients"] and not found["frozen share of the server"]
    found = checked(method, local=noise["local"] - 0.025, server=noise["global"] + 0.025)
    assert found["frozen share of the clients"] and found["frozen share of the server"]


@pytest.mark.parametrize("reading", NOISE)
def test_the_stored_noise_shares_are_those_of_the_null_model(reading):
    found = chance(130, entries=2500, reading=reading)
    assert found.frozen_global[60:].mean() == pytest.approx(NOISE[reading]["global"], abs=0.006)
    assert found.frozen_local[60:].mean() == pytest.approx(NOISE[reading]["local"], abs=0.006)


@pytest.mark.parametrize(
    "method", [StarPFL(threshold_local=0.2), StarPFL(history_len_local=4), StarPFL(thaw=False)], ids=str
)
def test_noise_is_known_for_the_papers_settings_only(method):
    assert not any("frozen share" in name and "largest" not in name for name in checked(method))


def test_noise_is_not_compared_in_short_runs_or_with_windows_that_a_round_does_not_fill():
    assert "frozen share of the server" not in checked(rounds=48) and "frozen share of the clients" in checked(
        rounds=49
    )
    assert "frozen share of the clients" not in checked(training=Training(epochs=4))
    assert "frozen share of the clients" in checked(StarPFL(threshold_global=None, probe=3))


@pytest.mark.parametrize(("cap", "share"), [(None, NEARLY_ALL), (0.5, 0.5)])
def test_a_frozen_share_of_nearly_all_fails(cap, share):
    method = StarPFL(max_frozen_fraction=cap)
    for local, acts in ((share - 0.01, True), (share, False), (1.0, False)):
        assert checked(method, local=local)["largest frozen share of the clients"] is acts


def test_the_last_fifth_counts():
    late = np.full((60, 1), 0.0)
    late[:48] = 1.0
    assert not checked(active_share_global=late)["largest frozen share of the server"]
    assert checked(active_share_global=1 - late)["largest frozen share of the server"]


def test_the_mean_score_must_settle():
    rising = np.linspace(0.2, 0.8, 60)[:, None]
    assert not checked(mean_score=rising)["change of the mean score of the clients"]
    assert checked(mean_score=np.minimum(rising, 0.5))["change of the mean score of the clients"]
    assert "change of the mean score of the clients" not in checked(rounds=10), "two rounds are too few"


def test_an_old_record_has_the_checks_that_its_notes_allow():
    shares = {"active_share": np.full((60, 2), 0.9), "active_share_global": np.full((60, 1), 0.9)}
    assert len(StarPFL().mechanism(shares, 60, TRAINING)) == 4
    assert StarPFL().mechanism({}, 60, TRAINING) == []


def test_without_thresholds_there_is_no_mechanism():
    assert checked(StarPFL(threshold_global=None, threshold_local=None)) == checked(Likeness()) == {}
    assert set(checked(StarPFL(threshold_local=None))) == {
        "frozen share of the server",
        "largest frozen share of the server",
        "change of the mean score of the server",
    }


def test_a_round_notes_the_mean_scores():
    (_, after, notes, clients), *_ = steps(StarPFL(), fed_of("mlp"), [[0, 2]])
    assert notes["mean_score"].tolist() == pytest.approx([float(after.clients[k].score.mean()) for k in clients])
    assert notes["mean_score_global"] == pytest.approx(float(after.server.score.mean()))
