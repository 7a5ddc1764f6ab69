"""Operations on rows: properties with hypothesis, and hand-computed cases."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_core import ops
from pfl_core.seeding import generator

SEED, ROWS = st.integers(0, 999), st.integers(1, 12)
DTYPE = st.sampled_from([torch.float32, torch.float64])
WIDTH = 9


def rows(seed, num, dtype=torch.float32):
    """theta [num, 9], weight [num], active [num, 9]."""
    stream = generator(seed, "rows", num)
    theta = torch.randn(num, WIDTH, generator=stream, dtype=dtype)
    weight = 0.1 + torch.rand(num, generator=stream, dtype=dtype)
    return theta, weight, torch.rand(num, WIDTH, generator=stream) < 0.5


def otherwise(theta):
    return torch.full_like(theta[0], 7.0)


# ---- means ----------------------------------------------------------------------------------------------------------


@given(SEED, ROWS, DTYPE)
def test_mean_is_the_weighted_mean(seed, num, dtype):
    theta, weight, _ = rows(seed, num, dtype)
    torch.testing.assert_close(ops.mean(theta), theta.mean(0))
    torch.testing.assert_close(ops.mean(theta, weight), (weight[:, None] * theta).sum(0) / weight.sum())
    torch.testing.assert_close(ops.mean(theta, 1000 * weight), ops.mean(theta, weight))


@given(SEED, ROWS, DTYPE, st.booleans())
def test_masked_mean_with_everything_active_is_the_mean_bit_for_bit(seed, num, dtype, weighted):
    theta, weight, _ = rows(seed, num, dtype)
    weight = weight if weighted else None
    got = ops.masked_mean(theta, torch.ones_like(theta, dtype=torch.bool), weight, otherwise(theta))
    assert torch.equal(got, ops.mean(theta, weight))


@given(SEED, ROWS, DTYPE, st.booleans())
def test_masked_mean_is_the_mean_over_the_active(seed, num, dtype, weighted):
    theta, weight, active = rows(seed, num, dtype)
    got = ops.masked_mean(theta, active, weight if weighted else None, otherwise(theta))
    for j in range(WIDTH):
        who = active[:, j]
        w = (weight if weighted else torch.ones_like(weight))[who]
        want = (w * theta[who, j]).sum() / w.sum() if who.any() else torch.tensor(7.0, dtype=dtype)
        torch.testing.assert_close(got[j], want)


@given(SEED, ROWS, DTYPE, st.booleans())
def test_an_entry_with_one_active_client_is_bitwise_unchanged(seed, num, dtype, weighted):
    theta, weight, _ = rows(seed, num, dtype)
    active = torch.zeros_like(theta, dtype=torch.bool)
    who = torch.arange(WIDTH) % num
    active[who, torch.arange(WIDTH)] = True
    got = ops.masked_mean(theta, active, weight if weighted else None, otherwise(theta))
    assert torch.equal(got, theta[who, torch.arange(WIDTH)])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_is_ignored_unless_it_is_active(bad):
    theta, weight, active = rows(3, 5)
    clean = ops.masked_mean(theta, active, weight, otherwise(theta))
    spoilt = ops.masked_mean(torch.where(active, theta, bad), active, weight, otherwise(theta))
    assert torch.equal(clean, spoilt)
    theta[active] = bad
    assert not ops.masked_mean(theta, active, weight, otherwise(theta))[active.any(0)].isfinite().any()


@given(SEED, ROWS, DTYPE)
def test_a_mean_of_equal_weights_needs_no_weights(seed, num, dtype):
    theta, _, active = rows(seed, num, dtype)
    ones = torch.ones(num)
    assert torch.equal(ops.mean(theta), ops.mean(theta, ones))
    none = ops.masked_mean(theta, active, None, otherwise(theta))
    assert torch.equal(none, ops.masked_mean(theta, active, ones, otherwise(theta)))


def test_means_do_not_modify_their_arguments():
    given_ = rows(1, 4)
    theta, weight, active = (x.clone() for x in given_)
    ops.mean(theta, weight), ops.masked_mean(theta, active, weight, otherwise(theta))
    assert all(torch.equal(a, b) for a, b in zip((theta, weight, active), given_, strict=True))


def test_accumulate_adds_in_place():
    total = torch.ones(WIDTH)
    theta, weight, _ = rows(0, 3)
    assert ops.accumulate(total, theta, weight) is total
    torch.testing.assert_close(total, 1 + weight @ theta)


def test_mix_averages_by_rows_of_the_matrix():
    theta, _, _ = rows(0, 3)
    matrix = torch.tensor([[1.0, 0, 0], [0, 0.5, 0.5], [0.2, 0.3, 0.5]], dtype=torch.float64)
    got = ops.mix(matrix, theta)
    assert torch.equal(got[0], theta[0])
    torch.testing.assert_close(got[1], (theta[1] + theta[2]) / 2)
    torch.testing.assert_close(got[2], 0.2 * theta[0] + 0.3 * theta[1] + 0.5 * theta[2])


@given(SEED, st.floats(0, 2), DTYPE)
def test_server_step(seed, lr_server, dtype):
    old, new = rows(seed, 2, dtype)[0]
    torch.testing.assert_close(ops.server_step(old, new, lr_server), old + lr_server * (new - old))


@given(SEED, DTYPE)
def test_a_server_step_of_one_is_exactly_the_mean_and_of_zero_exactly_the_old_model(seed, dtype):
    old, new = rows(seed, 2, dtype)[0]
    old[0], new[0], old[1], new[1] = 1e8, 1e-8, -3e-30, 1 / 3
    assert torch.equal(ops.server_step(old, new, 1.0), new)
    assert torch.equal(ops.server_step(old, new, 0.0), old)


# ---- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_sequence", [False, True])
def test_take_and_put(as_sequence):
    block = torch.arange(12.0).view(4, 3)
    x = tuple(block) if as_sequence else block
    clients, new = torch.tensor([2, 0]), torch.tensor([[-1.0] * 3, [-2.0] * 3])
    assert torch.equal(ops.take(x, clients), block[[2, 0]])
    changed = ops.put(x, clients, new)
    assert isinstance(changed, tuple if as_sequence else torch.Tensor)
    assert [row[0].item() for row in changed] == [-2.0, 3.0, -1.0, 9.0]
    assert [row[0].item() for row in x] == [0.0, 3.0, 6.0, 9.0]
    assert torch.equal(ops.take(changed, clients), new)


def test_put_returns_a_copy():
    block = torch.zeros(3, 2)
    ops.put(block, torch.tensor([0]), torch.ones(1, 2))[1] = 5.0
    assert not block.any()


@pytest.mark.parametrize("as_sequence", [False, True])
def test_take_and_put_without_clients(as_sequence):
    block = torch.zeros(3, 2)
    x = tuple(block) if as_sequence else block
    none = torch.tensor([], dtype=torch.int64)
    assert len(ops.put(x, none, torch.zeros(0, 2))) == 3
    if not as_sequence:
        assert ops.take(x, none).shape == (0, 2)


def test_select():
    own, shared = torch.ones(2, 3), torch.zeros(3)
    personal = torch.tensor([[True, False, True], [False, False, True]])
    assert torch.equal(ops.select(personal, own, shared), personal.float())
    assert torch.equal(ops.select(personal[0], own, shared), personal[0].float().expand(2, 3))


@pytest.mark.parametrize("block", [1, 4, 9])
def test_the_block_size_does_not_change_results(monkeypatch, block):
    theta, weight, active = rows(5, 4)
    active[:, 3:5] = False
    last = torch.arange(9.0)
    whole = ops.masked_mean(theta, active, weight, last), ops.select(active, theta, theta[0])
    monkeypatch.setattr(ops, "BLOCK", block)
    parts = ops.masked_mean(theta, active, weight, last), ops.select(active, theta, theta[0])
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))
    assert torch.equal(whole[1], torch.where(active, theta, theta[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_select_is_bitwise_exact(dtype):
    own = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-42, 1 / 3], dtype=dtype)
    personal = torch.arange(7) % 2 == 0
    for mask in (personal, ~personal):
        got = ops.select(mask, own[None], own.flip(0))
        want = torch.where(mask, own[None], own.flip(0))
        assert got.numpy().tobytes() == want.numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_reuses_its_output_tensor(dtype):
    first, second = torch.tensor([True, False, True]), torch.tensor([False, False, True])
    x = torch.tensor([1.5, torch.nan, -2.0], dtype=dtype)
    buffer = ops.bits(first, x)
    on = ops.bits(second, x, buffer)
    assert on is buffer
    assert ops.keep_(x.clone(), on).tolist() == [0.0, 0.0, -2.0]
    assert ops.bits(first[:2], x, buffer) is not buffer  # another shape does not fit


# ---- counts and ranks -----------------------------------------------------------------------------------------------


def test_masks_are_counted_and_vectors_compared():
    masks = torch.tensor([[True, False, True], [False, False, False]])
    assert ops.counts_true(masks).tolist() == [2, 0]
    assert ops.counts_true(row & masks[0] for row in masks).tolist() == [2, 0]
    assert [ops.any_true(row) for row in masks] == [True, False]
    x = torch.tensor([0.0, 1.0, torch.nan, 2.0])
    assert ops.differ(x, torch.tensor([-0.0, 1.5, torch.nan, 2.0])).tolist() == [False, True, True, False]


@given(SEED, st.integers(1, 40), st.integers(-1, 45), st.integers(1, 50))
@settings(max_examples=300)
def test_top_count_equals_a_stable_sort(seed, size, count, levels):
    """Few distinct scores give many ties. The reference sorts by decreasing score, then by index."""
    stream = generator(seed, "scores")
    score = torch.randint(0, levels, (size,), generator=stream) / 7.0
    among = torch.rand(size, generator=stream) < 0.7
    got = ops.top_count(score, among, count)
    assert torch.equal(got, sorted_top(score, among, count))
    assert got.sum() == min(max(0, count), int(among.sum()))


def sorted_top(score: torch.Tensor, among: torch.Tensor, count: int) -> torch.Tensor:
    eligible = among.nonzero().squeeze(1).numpy()
    order = eligible[np.argsort(-score.numpy()[eligible], kind="stable")]
    want = torch.zeros_like(among)
    want[torch.from_numpy(order[: max(0, count)].copy())] = True
    return want


LONG = 3 * ops.BLOCK + 11
SCORES = {  # long enough for the sample to tell something, right or wrong
    "spread": lambda x, every: x,
    "rising": lambda x, every: x.sort().values,
    "levels": lambda x, every: (4 * x).round() / 4,
    "all equal": lambda x, every: torch.zeros_like(x),
    "the sample is high": lambda x, every: x + 9 * every,
    "the sample is low": lambda x, every: x - 9 * every,
    "infinities": lambda x, every: torch.where(x > 2, torch.inf, x),
}


@pytest.mark.parametrize("scores", SCORES)
def test_top_count_is_exact_for_any_sample(scores):
    stream = generator(0, "scores")
    every = torch.arange(LONG) % ops.SAMPLED == 0
    score = SCORES[scores](torch.randn(LONG, generator=stream), every)
    chance = torch.rand(LONG, generator=stream)
    for count, share in product([1, 100, LONG // 20, LONG // 2, LONG - 1], [0.3, 1.0]):
        among = chance < share
        assert torch.equal(ops.top_count(score, among, count), sorted_top(score, among, count)), (count, share)


def test_nan_ranks_first():
    score = torch.tensor([3.0, math.nan, 5.0, math.inf, math.nan])
    everything = torch.ones(5, dtype=torch.bool)
    assert ops.top_count(score, everything, 2).nonzero().squeeze(1).tolist() == [1, 4]
    assert ops.top_count(score, everything, 3).nonzero().squeeze(1).tolist() == [1, 3, 4]
    assert ops.top_count(score, everything, 4).nonzero().squeeze(1).tolist() == [1, 2, 3, 4]


def test_top_count_does_not_modify_its_arguments():
    score, among = torch.tensor([math.nan, 1.0]), torch.tensor([True, True])
    ops.top_count(score, among, 2).logical_not_()
    ops.top_count(score, among, 1).logical_not_()
    assert among.all()
    assert score.isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("x", "rounded"), [(0.5, 1), (1.5, 2), (2.5, 3), (2.4999, 2), (0.0, 0), (-0.5, 0), (3, 3), (559082.1, 559082)]
)
def test_round_half_up(x, rounded):
    assert ops.round_half_up(x) == rounded
    assert isinstance(ops.round_half_up(x), int)
