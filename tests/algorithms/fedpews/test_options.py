"""FedPeWS: every option of the ambiguities A1 to A10 of the method page, notebooks/fedpews/README.md."""

from dataclasses import replace

import pytest
import torch

from pfl_core import Schedule, run
from pfl_core.algorithms.fedpews.fixed import FedPeWSFixed
from pfl_core.algorithms.fedpews.method import FedPeWS, uniform_numbers
from pfl_core.engine import rounds
from tests.algorithms.fedpews.plain import F64, both_nets, fed_of, first_batch, middle, some_scores, with_scores
from tests.helpers import everyone, some_rows


def a_round(algorithm, fed, state=None, clients=None, t=0):
    state = middle(algorithm, fed) if state is None else state
    return algorithm.round(fed, state, everyone(fed) if clients is None else torch.tensor(clients), t)


# ---- A1: weights between two masked layers --------------------------------------------------------------------------


@both_nets
def test_a1_rows_have_the_same_training_and_another_average(name):
    """Under disjoint masks, one client trains a column of the last layer and N - 1 send it unchanged: update / N."""
    fed = fed_of(name, dtype=F64)
    both, row = FedPeWSFixed(tau=1.0), FedPeWSFixed(tau=1.0, expand_rule="row")
    start = replace(both.init(fed, fed.theta0), shared=some_rows(fed, torch.arange(1))[0])
    (one, notes), (other, of_row) = (a_round(algorithm, fed, start) for algorithm in (both, row))
    own = notes["trained"] != 0
    torch.testing.assert_close(of_row["trained"][own], notes["trained"][own])
    torch.testing.assert_close(of_row["train_loss"], notes["train_loss"])
    head = fed.layout.mask(lambda f: f.name == "head.weight")
    torch.testing.assert_close((other.shared - start.shared)[head], (one.shared - start.shared)[head] / 4)
    first = fed.layout.mask(lambda f: f.name == fed.layout.fields[0].name)
    torch.testing.assert_close(other.shared[first], one.shared[first])
    assert (of_row["upload"] > notes["upload"]).all()


@both_nets
def test_a1_learned_rows_have_the_same_scores(name):
    """Forward pass and gradients are the same. In the first round only the average differs."""
    fed = fed_of(name, dtype=F64)
    (one, _), (other, _) = (a_round(FedPeWS(tau=1.0, expand_rule=rule), fed) for rule in ("both_ends", "row"))
    torch.testing.assert_close(one.score, other.score)
    assert not torch.allclose(one.shared, other.shared)


# ---- A2: what p_others is computed from ------------------------------------------------------------------------------


def test_a2_the_mean_of_the_last_probabilities():
    fed, algorithm = fed_of(), FedPeWS(tau=1.0)
    new, notes = a_round(algorithm, fed)
    assert torch.equal(new.mask_prob, torch.sigmoid(new.score))
    want = torch.stack([new.mask_prob[[i for i in range(4) if i != k]].mean(0) for k in range(4)])
    torch.testing.assert_close(algorithm.others(fed, new, everyone(fed), 1), want)
    active = notes["trained"] != 0
    assert (notes["upload"] >= active.sum(1) + fed.layout.chain.num_neurons).all()  # h floats more


def test_a2_the_mean_of_the_uploaded_samples():
    fed, algorithm = fed_of(), FedPeWS(tau=1.0, prob_update="samples")
    state = middle(algorithm, fed)
    new, notes = a_round(algorithm, fed, state)
    assert set(new.mask_prob.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(new.mask_prob.mean(1), notes["selected"])
    assert torch.equal(notes["upload"], fed.layout.chain.expand(new.mask_prob.bool()).sum(1))  # no floats
    want = torch.stack([new.mask_prob[[i for i in range(4) if i != k]].mean(0) for k in range(4)])
    torch.testing.assert_close(algorithm.others(fed, new, everyone(fed), 1), want)
    before = algorithm.others(fed, state, everyone(fed), 0)
    torch.testing.assert_close(before, FedPeWS().others(fed, state, everyone(fed), 0))


@pytest.mark.parametrize("score_init", ["zeros", "uniform"])
def test_a2_constant_initial_probabilities(score_init):
    fed, algorithm = fed_of(), FedPeWS(tau=1.0, prob_update="constant", score_init=score_init)
    start = algorithm.init(fed, fed.theta0)
    for snapshot in rounds(algorithm, fed, Schedule(3), start):
        others = algorithm.others(fed, snapshot.state, torch.tensor([2, 0]), snapshot.t)
        torch.testing.assert_close(others, torch.sigmoid(start.score)[:2])
        assert not torch.equal(snapshot.state.score, start.score)
    plain = FedPeWS(tau=1.0, score_init=score_init)
    assert a_round(plain, fed)[1]["upload"].sum() > a_round(algorithm, fed)[1]["upload"].sum()


def test_a2_options_differ_from_the_second_round_on():
    scores = {}
    for update in ("mean", "samples", "constant"):
        fed, algorithm = fed_of(), FedPeWS(tau=1.0, prob_update=update)
        scores[update] = [s.state.score for s in rounds(algorithm, fed, Schedule(2), middle(algorithm, fed))]
    assert torch.equal(scores["mean"][0], scores["samples"][0])
    assert not torch.equal(scores["mean"][1], scores["samples"][1])
    assert not torch.equal(scores["mean"][0], scores["constant"][0])  # middle: the start is each client's own


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


@both_nets
def test_a4_straight_through_the_draw_or_the_sigmoid_as_well(name):
    """Without diversity the two differ by the factor p (1 - p), which is 0 for a saturated score."""
    fed = fed_of(name, dtype=F64)
    prob = torch.sigmoid(some_scores(fed))[:1]
    bits = prob > 0.5
    draw, both = (FedPeWS(lam=0.0, straight_through=name) for name in ("draw", "draw_and_sigmoid"))

    def gradient(algorithm, prob):
        return algorithm.gradient_of_scores(fed, fed.theta0[None], prob, bits, prob, first_batch(fed))

    assert (gradient(both, prob) != 0).any()
    torch.testing.assert_close(gradient(draw, prob), gradient(both, prob) * prob * (1 - prob))
    assert (gradient(draw, bits.to(prob)) == 0).all()
    torch.testing.assert_close(gradient(both, bits.to(prob)), gradient(both, prob))


def test_a4_the_diversity_keeps_its_sigmoid():
    fed = fed_of(dtype=F64)
    prob, others = torch.sigmoid(some_scores(fed))[:1], torch.sigmoid(some_scores(fed, 1))[:1]
    nothing = torch.zeros_like(fed.theta0)[None]
    for over in ("draw", "draw_and_sigmoid"):
        got = FedPeWS(lam=3.0, straight_through=over).gradient_of_scores(
            fed, nothing, prob, torch.ones_like(prob, dtype=torch.bool), others, first_batch(fed)
        )
        torch.testing.assert_close(got, -6 * (prob - others) * prob * (1 - prob))


# ---- A5: when to sample ---------------------------------------------------------------------------------------------


def drawn(draws, name="dense"):
    """Masks of Procedures I and II at every step of client 0, scores before and after, notes and federation."""
    fed, seen = fed_of(name, (12,), stacked=False), []
    algorithm = FedPeWS(tau=1.0, draws=draws, lam=0.0)
    state, grad = with_scores(algorithm, fed, 0.3 * some_scores(fed)), fed.grad

    def spy(theta, batch, *, gates=None, **options):
        seen.append(gates[0].clone())
        return grad(theta, batch, gates=gates, **options)

    fed.grad = spy
    new, notes = a_round(algorithm, fed, state)
    assert len(seen) == 6
    return seen[::2], seen[1::2], state.score[0], new.score[0], notes, fed


@both_nets
def test_a5_every_mask_is_a_new_draw(name):
    first, second, before, after, notes, fed = drawn("every", name)
    numbers = uniform_numbers(fed, torch.tensor([0]), 0)[0]
    assert torch.equal(first[0], (numbers[1] < torch.sigmoid(before)).float())
    assert torch.equal(second[-1], (numbers[6] < torch.sigmoid(after)).float())
    up = numbers[0] < torch.sigmoid(after)
    assert notes["selected"].item() == pytest.approx(up.float().mean().item())
    assert not notes["trained"][0][~fed.layout.chain.expand(up)].any()
    assert len({tuple(x.tolist()) for x in (*first, *second)}) == 6


@both_nets
def test_a5_one_draw_a_step(name):
    first, second, before, after, notes, fed = drawn("one_per_step", name)
    numbers = uniform_numbers(fed, torch.tensor([0]), 0)[0]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert len({tuple(x.tolist()) for x in first}) == 3
    assert torch.equal(first[0], (numbers[1] < torch.sigmoid(before)).float())
    up = numbers[0] < torch.sigmoid(after)  # and one of its own for the upload
    assert notes["selected"].item() == pytest.approx(up.float().mean().item())


@both_nets
def test_a5_one_draw_a_round(name):
    first, second, before, _, notes, fed = drawn("one_per_round", name)
    once = uniform_numbers(fed, torch.tensor([0]), 0)[0, 0] < torch.sigmoid(before)
    assert all(torch.equal(x.bool(), once) for x in (*first, *second))
    assert notes["selected"].item() == pytest.approx(once.float().mean().item())
    assert notes["upload"].item() == fed.layout.chain.expand(once).sum() + fed.layout.chain.num_neurons


# ---- A7: weights of clients -----------------------------------------------------------------------------------------


@both_nets
@pytest.mark.parametrize(("weighting", "weight"), [("uniform", (1.0, 1.0, 1.0)), ("samples", (12.0, 6.0, 9.0))])
@pytest.mark.parametrize("warmup", [FedPeWS, FedPeWSFixed])
def test_a7_equal_client_weights_or_by_samples(name, weighting, weight, warmup):
    fed = fed_of(name, (12, 6, 9), dtype=F64)
    algorithm = warmup(tau=1.0, client_weighting=weighting)
    state = algorithm.init(fed, fed.theta0)
    if warmup is FedPeWS:
        state = with_scores(algorithm, fed, torch.full_like(some_scores(fed), 50.0))
    new, notes = a_round(algorithm, fed, state)
    share = torch.tensor(weight).double() / sum(weight)
    last = fed.layout.mask(lambda f: f.name == "head.bias")
    torch.testing.assert_close(new.shared[last], share @ notes["trained"][:, last])
    if warmup is FedPeWS:
        torch.testing.assert_close(new.shared, share @ notes["trained"])


# ---- A8: absent clients ---------------------------------------------------------------------------------------------


def test_a8_absent_clients_keep_score_and_probability():
    fed, algorithm = fed_of(), FedPeWS(tau=1.0)
    state = middle(algorithm, fed)
    new, _ = a_round(algorithm, fed, state, [3, 1])
    for now, before in ((new.score, state.score), (new.mask_prob, state.mask_prob)):
        assert torch.equal(now[[0, 2]], before[[0, 2]])
        assert (now[[1, 3]] != before[[1, 3]]).any(1).all()


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


def test_a8_clients_that_never_took_part_count_with_their_initial_probability():
    fed, algorithm = fed_of(dtype=F64), FedPeWS(tau=1.0)
    state, _ = a_round(algorithm, fed, algorithm.init(fed, fed.theta0), [0])
    got = algorithm.others(fed, state, torch.tensor([1]), 1)[0]
    torch.testing.assert_close(got, (torch.sigmoid(state.score[0]) + 2 * 0.5) / 3)


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


# ---- A9 and A10: the scored model, and the length of an epoch -------------------------------------------------------


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


def test_a10_the_last_short_batch_is_kept():
    """12, 9, 14 and 10 samples in batches of 4: 3, 3, 4 and 3 steps, each with two draws, and one for the upload."""
    fed = fed_of()
    assert [len(uniform_numbers(fed, torch.tensor([k]), 0)[0]) for k in range(4)] == [7, 7, 9, 7]
    one = FedPeWS(tau=1.0, lr_mask=0.0)
    seen, grad = [], fed.grad
    fed.grad = lambda theta, batch, **options: (seen.append(batch.count), grad(theta, batch, **options))[1]
    a_round(one, fed)
    assert sum(sum(count) for count in seen) == 2 * (12 + 9 + 14 + 10)
