"""pFedGate's block layouts."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfl_core.algorithms.pfedgate.gate import balanced, build_blocks, equal, first_min_ratio, output_rows
from pfl_core.layout import Layout
from pfl_core.models import build
from pfl_core.seeding import generator
from tests.algorithms.two_nets import NoChain
from tests.helpers import cnn, mlp

MODES = ["first_min_ratio", "equal", "balanced", "output_rows"]
NETS = {
    "emnist": (("leaf_cnn", (1, 28, 28), 62), 2_278_334, 40),
    "cifar10": (("lenet_cifar", (3, 32, 32), 10), 256_830, 50),
    "cifar100": (("leaf_cnn_cifar", (3, 32, 32), 100), 3_537_444, 40),
}


@pytest.mark.parametrize(
    ("n", "same", "least_first"),
    [
        (800, [160] * 5, [160] * 5),
        (32, [7, 7, 7, 7, 4], [6, 7, 7, 7, 5]),
        (64, [13, 13, 13, 13, 12], [12, 13, 13, 13, 13]),
        (62, [13, 13, 13, 13, 10], [12, 13, 13, 13, 11]),
        (2_048, [410] * 4 + [408], [409, 410, 410, 410, 409]),
        (2_097_152, [419_431] * 4 + [419_428], [419_430] + [419_431] * 3 + [419_429]),
        (3, [1, 1, 1], [1, 1, 1]),
        (1, [1], [1]),
    ],
)
def test_block_sizes(n, same, least_first):
    assert equal(n, 5) == same
    assert first_min_ratio(n, 5, 0.2) == least_first


def test_more_block_sizes():
    assert equal(25, 10) == [3] * 8 + [1]
    assert output_rows(2_048, 5, 0.2) == [410, 410, 410, 409, 409]
    assert output_rows(5, 5, 0.2) == [1, 1, 1, 1, 1]
    assert output_rows(2, 5, 0.2) == [1, 1]
    assert output_rows(1, 5, 0.2) == [1]
    assert first_min_ratio(100, 5, 0.29)[0] == 29  # 0.29 x 100 is just below 29


@given(st.integers(1, 5_000), st.integers(2, 20), st.floats(0.001, 1.0))
def test_blocks_tile_a_tensor(n, num, least):
    for sizes in (first_min_ratio(n, num, least), equal(n, num), output_rows(n, num, least)):
        assert sum(sizes) == n
        assert min(sizes) >= 1
        assert len(sizes) <= num
    assert first_min_ratio(n, num, least)[0] <= max(1, least * n + 1e-6)


@given(st.integers(1, 5_000), st.floats(1.0, 6_000.0), st.floats(0.001, 0.9))
def test_balanced_blocks_tile_a_tensor_in_pieces_of_about_the_size(n, size, least):
    first, *rest = balanced(n, size, least)
    assert first + sum(rest) == n and min(first, *rest, n) >= 1
    if not rest:
        assert (1 - least) * n <= size / 2 + 1e-6 or n == 1  # too few entries for another block
    else:
        assert first == first_min_ratio(n, 5, least)[0]
        assert all(size / 2 - 1 <= piece <= 2 * size + 1 for piece in rest[:-1])
        assert max(rest[:-1], default=rest[0]) == min(rest[:-1], default=rest[0]) >= rest[-1]


def test_balanced_blocks_of_a_small_network():
    """30 + 5 + 15 + 3 entries in four tensors, B = 3: a quarter of each first, then pieces of about 53 / 12."""
    blocks = build_blocks(Layout.of(mlp()), 3, 0.25, "balanced")
    assert blocks.sizes.tolist() == [7, 5, 5, 5, 5, 3, 1, 4, 3, 4, 4, 4, 1, 2]
    assert np.flatnonzero(blocks.always).tolist() == [0, 6, 8, 12]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NETS)
def test_blocks_tile_the_papers_networks(name, mode):
    net, num_params, num_blocks = NETS[name]
    layout = Layout.of(build(*net, 0))
    blocks = build_blocks(layout, 5, 0.2, mode)
    assert layout.num_params == num_params == blocks.num_params == blocks.sizes.sum() == int(blocks.runs.sum())
    assert blocks.sizes.min() >= 1
    assert blocks.num_blocks == (num_blocks if mode != "output_rows" else 5 * (len(layout.params) // 2 - 1) + 1)
    numbers = blocks.expand(torch.arange(blocks.num_blocks))
    assert torch.equal(torch.bincount(numbers), torch.from_numpy(blocks.sizes))
    if mode != "output_rows":
        assert (numbers.diff() >= 0).all()
        firsts = {int(numbers[f.start]) for f in layout.params}
        assert firsts == set(np.flatnonzero(blocks.always).tolist())
        dense = [f.layer.startswith(("fc", "head")) for f in layout.params]
        for f, linear in zip(layout.params, dense, strict=True):
            assert set(blocks.linear[numbers[f.start : f.stop].unique().numpy()].tolist()) == {linear}


@pytest.mark.parametrize("bn", [True, False])
def test_a_group_of_neurons_has_all_parameters_that_feed_it(bn):
    """cnn: 3 channels in 1 + 1 + 1, 4 neurons in 1 + 1 + 1 + 1, the head: 8 blocks."""
    layout = Layout.of(cnn(bn=bn))
    blocks = build_blocks(layout, 5, 0.2, "output_rows")
    assert blocks.rows == ((1, 1, 1), (1, 1, 1, 1))
    numbers = layout.unflatten(blocks.expand(torch.arange(8)))
    for name, first, count in (("conv1", 0, 3), ("bn1", 0, 3), ("fc1", 3, 4)):
        for what in ("weight", "bias"):
            if f"{name}.{what}" in numbers:
                of = numbers[f"{name}.{what}"].flatten(1) if what == "weight" and name != "bn1" else None
                got = numbers[f"{name}.{what}"] if of is None else of[:, 0]
                assert got.tolist() == list(range(first, first + count))
                assert of is None or (of == of[:, :1]).all()
    assert set(numbers["head.weight"].flatten().tolist()) == set(numbers["head.bias"].tolist()) == {7}
    assert blocks.always.tolist() == [True, False, False, True, False, False, False, True]
    assert blocks.linear.tolist() == [False] * 3 + [True] * 5
    assert blocks.sizes[3] == 12 + 1


def test_groups_of_neurons_need_a_chain():
    with pytest.raises(ValueError, match=r"\A[^\n]*output_rows[^\n]*first_min_ratio[^\n]*\Z"):
        build_blocks(Layout.of(NoChain()), 5, 0.2, "output_rows")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("net", [mlp(), cnn(bn=True)], ids=["mlp", "cnn"])
def test_scaling_and_its_gradients(net, mode):
    """theta' = theta M'[block]: M' g for theta, the sum of g theta over the block for M'."""
    blocks = build_blocks(Layout.of(net), 3, 0.2, mode)
    stream = generator(0, "rows")
    theta, g = torch.randn(2, blocks.num_params, generator=stream, dtype=torch.float64)
    values = torch.rand(blocks.num_blocks, generator=stream, dtype=torch.float64)
    theta.requires_grad_()
    values.requires_grad_()
    numbers = blocks.expand(torch.arange(blocks.num_blocks))
    out, want = blocks.scale(theta, values), theta * values[numbers]
    assert torch.equal(out, want)
    got, expected = (torch.autograd.grad(each, (theta, values), g) for each in (out, want))
    torch.testing.assert_close(got, expected)
    assert torch.autograd.gradcheck(lambda a, b: blocks.scale(a, b), (theta, values))


def test_sums_of_large_blocks_are_exact_enough():
    """A running sum of 400,000 values in single precision would lose precision."""
    blocks = build_blocks(Layout.of(build("leaf_cnn", (1, 28, 28), 62, 0)), 5, 0.2, "equal")
    x = 1 + 1e-3 * torch.rand(blocks.num_params, generator=generator(0, "x"))
    want = torch.zeros(40, dtype=torch.float64).index_add_(0, blocks.expand(torch.arange(40)), x.double())
    torch.testing.assert_close(blocks.sums(x).double(), want, rtol=1e-6, atol=0)
