"""FedPeWS: options of the ambiguities of the method page (notebooks/fedpews/README.md), beside the plain reference.

A1, A2, A5, A7 and A10 are rounds against plain PyTorch (test_method.py, test_fixed.py).
"""

import pytest
import torch

from pfl_core import Schedule, run
from pfl_core.algorithms.fedpews.fixed import FedPeWSFixed
from pfl_core.algorithms.fedpews.method import FedPeWS
from tests.algorithms.fedpews.plain import F64, fed_of, first_batch, middle, some_scores
from tests.helpers import everyone


def a_round(algorithm, fed, state=None, clients=None, t=0):
    state = middle(algorithm, fed) if state is None else state
    return algorithm.round(fed, state, everyone(fed) if clients is None else torch.tensor(clients), t)


# ---- A3: the start of the scores ------------------------------------------------------------------------------------


def test_a3_initial_scores():
    def start(**options):
        fed = fed_of(sizes=(12, 9, 14))
        return FedPeWS(**options).init(fed, fed.theta0)

    zeros, uniform, own = (start(score_init=name) for name in ("zeros", "uniform", "uniform_per_client"))
    for state in (zeros, uniform, own):
        assert state.score.shape == (3, 9)
        assert torch.equal(state.mask_prob, torch.sigmoid(state.score))
        assert ((state.mask_prob > 0.0099) & (state.mask_prob < 0.9901)).all()
    assert not zeros.score.any()
    assert torch.equal(uniform.score, uniform.score[:1].expand(3, -1))
    assert len(uniform.score[0].unique()) == 9
    assert len({tuple(row.tolist()) for row in own.score}) == 3


def test_a3_the_uniform_start_is_uniform():
    fed = fed_of(sizes=(4,) * 300)
    prob = FedPeWS(score_init="uniform_per_client").init(fed, fed.theta0).mask_prob.flatten()
    counts = torch.histc(prob, 7, 0.01, 0.99) / len(prob)
    torch.testing.assert_close(counts, torch.full((7,), 1 / 7), rtol=0, atol=0.03)
    other = fed_of(sizes=(4,) * 300, seed=1)
    assert not torch.equal(FedPeWS(score_init="uniform").init(other, other.theta0).score[0], prob.logit()[:9])


# ---- A4: what the straight-through estimator skips ------------------------------------------------------------------


def test_a4_the_diversity_keeps_its_sigmoid():
    fed = fed_of(dtype=F64)
    prob, others = torch.sigmoid(some_scores(fed))[:1], torch.sigmoid(some_scores(fed, 1))[:1]
    nothing = torch.zeros_like(fed.theta0)[None]
    for over in ("draw", "draw_and_sigmoid"):
        got = FedPeWS(lam=3.0, straight_through=over).gradient_of_scores(
            fed, nothing, prob, torch.ones_like(prob, dtype=torch.bool), others, first_batch(fed)
        )
        torch.testing.assert_close(got, -6 * (prob - others) * prob * (1 - prob))


# ---- A8: absent clients ---------------------------------------------------------------------------------------------


def test_a8_the_mean_is_over_all_clients_or_over_those_that_take_part():
    fed, clients = fed_of(dtype=F64), torch.tensor([3, 1])
    state = middle(FedPeWS(), fed)
    of_all, of_some = (FedPeWS(prob_over=over).others(fed, state, clients, 0) for over in ("all", "participants"))
    p = state.mask_prob
    torch.testing.assert_close(of_all, torch.stack([(p[0] + p[1] + p[2]) / 3, (p[0] + p[2] + p[3]) / 3]))
    torch.testing.assert_close(of_some, torch.stack([p[1], p[3]]))
    alone = FedPeWS(prob_over="participants").others(fed, state, torch.tensor([2]), 0)
    assert torch.equal(alone, p[[2]])
    everybody = [FedPeWS(prob_over=over).others(fed, state, everyone(fed), 0) for over in ("all", "participants")]
    assert torch.equal(*everybody)


def test_a8_the_warm_up_counts_server_rounds():
    """A client that misses the whole warm-up trains the dense model in its first round."""
    fed, algorithm = fed_of(rounds=4), FedPeWS(tau=0.5)
    state = algorithm.init(fed, fed.theta0)
    for t in (0, 1):
        state, notes = a_round(algorithm, fed, state, [0, 1], t)
        assert notes["passes"] == 2
    new, notes = a_round(algorithm, fed, state, [2, 3], 2)
    assert notes["upload"].tolist() == [fed.num_params] * 2
    assert not new.score[2:].any()


# ---- A9: the scored model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warmup", [FedPeWS, FedPeWSFixed])
def test_a9_both_the_dense_model_and_the_subnetworks_are_scored(warmup):
    fed, algorithm = fed_of(), warmup(tau=1.0)
    state, history = run(algorithm, fed, Schedule(1))
    assert torch.equal(algorithm.evaluation_models(fed, state, everyone(fed), 0), state.shared.expand(4, -1))
    dense = fed.evaluate(state.shared.expand(4, -1), everyone(fed))
    assert history.series["correct"][1] == [dense.correct.tolist()]
    _, notes = a_round(algorithm, fed, algorithm.init(fed, fed.theta0))
    parts = fed.evaluate(notes["trained"], everyone(fed))
    assert history.series["correct_trained"][1] == [parts.correct.tolist()]
    assert (notes["trained"] == 0).any(1).all()
