"""The measurement behind Star-PFL's Figure 2: it changes no result, and its arrays are correct."""

import numpy as np
import pytest
import torch

from pfl_core import Schedule, run
from pfl_core.algorithms.star_pfl.likeness import DECIMALS, Likeness, client_scores, in_common
from pfl_core.algorithms.star_pfl.method import StarPFL
from pfl_core.ranks import rank_correlation
from pfl_core.runs import RunSpec
from tests.algorithms.star_pfl.plain import fed_of
from tests.helpers import same_bits

ROUNDS = 3
NEVER = {"threshold_global": None, "threshold_local": None}


def run_rounds(algorithm, fed):
    return run(algorithm, fed, Schedule(ROUNDS))


@pytest.mark.parametrize("options", [NEVER, {"threshold_global": 0.3, "threshold_local": 0.3}], ids=["fedavg", "star"])
def test_likeness_changes_no_result(options):
    """Models and scores are bitwise those of the measured method."""
    plain, _ = run_rounds(StarPFL(**options), fed_of())
    state, _ = run_rounds(Likeness(**options), fed_of())
    assert same_bits(state.shared, plain.shared) and same_bits(state.clients, plain.clients)
    assert Likeness() == Likeness(**NEVER)


def test_one_matrix_for_each_round():
    state, history = run_rounds(Likeness(stable_at=0.4), fed_of())
    score = client_scores(state)
    assert len(state.ranks) == len(state.both) == ROUNDS
    np.testing.assert_allclose(state.ranks[-1], rank_correlation(score.numpy()))
    assert torch.equal(state.both[-1], in_common(score <= 0.4))
    stable = history.series["stable_share"][1][-1]
    np.testing.assert_allclose(stable, np.diag(state.both[-1]) / score.shape[1])


def test_the_stored_arrays_are_consistent():
    algorithm, fed = Likeness(stable_at=0.4, sampled=10), fed_of()
    state, _ = run_rounds(algorithm, fed)
    kept, score = algorithm.artifacts(fed, state), client_scores(state)
    names = [f.name for f in fed.layout.params]
    assert torch.equal(sum(kept[f"overlap/{name}"] for name in names), state.both[-1])
    assert sum(int(kept[f"size/{name}"]) for name in names) == fed.num_params
    never = in_common(score == 0).diagonal()
    moving = sum(kept[f"moving/{name}"].diagonal() for name in names)
    assert torch.equal(moving + never, state.both[-1].diagonal())
    chosen = kept["sampled"]
    assert torch.equal(chosen, chosen.unique()) and torch.equal(kept["scores"], score[:, chosen].round(decimals=4))
    weights = torch.cat([torch.arange(f.start, f.stop) for f in fed.layout.params if len(f.shape) > 1])
    assert torch.isin(chosen, weights).all() and (score[:, chosen] > 0).any(0).all()


def test_in_common_by_hand():
    sets = torch.tensor([[True, True, False], [False, True, True], [False, False, False]])
    assert in_common(sets).tolist() == [[2, 1, 0], [1, 2, 0], [0, 0, 0]]


def test_scores_that_differ_in_the_last_bit_are_ranked_alike():
    state, _ = run_rounds(Likeness(), fed_of())
    entries = state.clients[0]
    nudged = torch.nextafter(entries.score, torch.ones_like(entries.score))
    before = (entries.score.double() * 10**DECIMALS).round()
    assert (before == (nudged.double() * 10**DECIMALS).round()).double().mean() > 0.99
    assert torch.equal(client_scores(state)[0], before / 10**DECIMALS)


def test_a_run_spec_can_name_it():
    spec = RunSpec(method={"name": "star_pfl_likeness", "history_len_local": 10})
    assert spec.build_method() == Likeness(history_len_local=10)
