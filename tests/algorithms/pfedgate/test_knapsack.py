"""pFedGate's block selection."""

import itertools
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_core.algorithms.pfedgate.adapt import Adapter
from pfl_core.algorithms.pfedgate.gate import Gate, build_blocks
from pfl_core.algorithms.pfedgate.knapsack import _by_value, exact, fill, greedy
from pfl_core.algorithms.pfedgate.options import PFedGateOptions
from pfl_core.layout import Layout
from pfl_core.models import build

NETS = {"emnist": ("leaf_cnn", (1, 28, 28), 62), "cifar10": ("lenet_cifar", (3, 32, 32), 10)}
NETS["cifar100"] = ("leaf_cnn_cifar", (3, 32, 32), 100)
LAYOUTS = {name: Layout.of(build(*net, 0)) for name, net in NETS.items()}


def adapter(name: str, s: float, least: float = 0.2, num: int = 5, **options) -> Adapter:
    """One client with budget s."""
    made = PFedGateOptions(keep_ratio=s, **options)
    blocks = build_blocks(LAYOUTS[name], num, least, made.block_layout)
    return Adapter(made, blocks, Gate((3, 32, 32), blocks.num_blocks, 2), np.array([s]), least, 0)


@st.composite
def problems(draw, most=10, sizes=50, values=30):
    n = draw(st.integers(1, most))
    size = draw(st.lists(st.integers(1, sizes), min_size=n, max_size=n))
    value = draw(st.lists(st.integers(0, values), min_size=n, max_size=n))
    return np.array(value), np.array(size), draw(st.integers(0, sum(size) + 3))


def best(value, size, capacity):
    """Brute force: largest value, then smallest size, then lower indices."""
    options = (np.array(bits, dtype=bool) for bits in itertools.product([True, False], repeat=len(value)))
    inside = [o for o in options if size[o].sum() <= capacity]
    return max(inside, key=lambda o: (value[o].sum(), -size[o].sum(), tuple(o)))


@settings(deadline=None, max_examples=500)
@given(st.one_of(problems(), problems(sizes=4, values=2)))
def test_exact_is_the_brute_force_optimum(problem):
    """The second kind has many ties."""
    assert exact(*problem).tolist() == best(*problem).tolist()


@settings(deadline=None, max_examples=100)
@given(problems(most=45, sizes=5000, values=1000))
def test_deciding_items_by_a_bound_changes_nothing(problem):
    value, size, capacity = problem
    assert exact(value, size, capacity).tolist() == _by_value(value, size, capacity).tolist()


@given(problems(most=45, sizes=5000, values=1000) | problems(most=15))
def test_fill_and_greedy_equal_a_loop_over_items(problem):
    value, size, capacity = problem
    order, taken = np.argsort(-value, kind="stable"), []
    for i in order:
        if size[i] <= capacity:
            taken.append(i)
            capacity -= size[i]
    assert fill(order, size, problem[2]).tolist() == taken
    assert greedy(*problem).nonzero()[0].tolist() == sorted(taken)


def test_an_example_where_greedy_is_worse():
    value, size = np.rint(1000 * np.array([0.9, 0.5, 0.5, 0.3])).astype(int), np.array([6, 3, 3, 2])
    assert exact(value, size, 6).tolist() == [False, True, True, False]
    assert greedy(value, size, 6).tolist() == [True, False, False, False]


@pytest.mark.parametrize("name", NETS)
def test_first_blocks_are_kept_and_the_budget_holds(name):
    modes = ("first_min_ratio", "equal", "balanced", "output_rows")
    for case in product(modes, ("exact", "greedy"), (0.3, 0.5, 0.9)):
        mode, selector, s = case
        made = adapter(name, s, selector=selector, block_layout=mode)
        blocks, rng = made.blocks, np.random.default_rng(0)
        assert made.spare[0] >= 0, case
        for low in (0.2, 0.499):
            kept = made.select(rng.uniform(low, 1 - low / 2, blocks.num_blocks), 0)
            assert kept[blocks.always].all(), (case, low)
            assert blocks.share(blocks.always) <= blocks.share(kept) <= s, (case, low)


def test_a_budget_that_first_blocks_exceed_is_infeasible():
    made = adapter("cifar10", 0.1, block_layout="equal")
    kept = made.select(np.ones(50), 0)
    assert made.spare[0] < 0
    assert kept.tolist() == made.blocks.always.tolist()
    assert made.blocks.share(kept) == pytest.approx(0.2, abs=0.001)


@pytest.mark.parametrize(
    ("name", "s", "num", "share"),
    [
        ("emnist", 0.5, 5, 0.434),
        ("emnist", 0.3, 5, 0.246),
        ("emnist", 0.1, 5, 0.200),
        ("cifar10", 0.5, 5, 0.432),
        ("cifar10", 0.3, 5, 0.242),
        ("cifar100", 0.5, 5, 0.436),
        ("cifar100", 0.3, 5, 0.247),
        ("cifar10", 0.3, 2, 0.50),
    ],
)
def test_the_released_code_keeps_the_papers_shares_for_any_importances(name, s, num, share):
    """Kept shares and numbers of masks. At B = 2 and s = 0.3 the first blocks alone exceed the budget."""
    options = {"block_layout": "equal", "selector": "greedy_groups", "blocks_per_tensor": num}
    made, rng = adapter(name, s, num=num, **options), np.random.default_rng(1)
    masks = [made.select(rng.uniform(0.2, 1, made.blocks.num_blocks), 0) for _ in range(300)]
    assert made.blocks.share(np.stack(masks)) == pytest.approx(np.full(300, share), abs=0.0006)
    distinct = len({kept.tobytes() for kept in masks})
    assert distinct == (16 if s == 0.5 else 1)


def test_importances_may_be_nan_or_huge():
    made = adapter("cifar10", 0.5)
    importance = np.full(50, 1e30)
    importance[::2] = np.nan
    assert made.blocks.share(made.select(importance, 0)) <= 0.5


def test_importances_are_rounded_to_thousandths_or_tenths():
    """Among importances that round to the same number, the lower index wins; one of fc1's four blocks fits."""
    for selector, step in (("exact", 1e-4), ("greedy_groups", 1e-2)):
        made = adapter("cifar10", 0.5, selector=selector, block_layout="equal")
        sizes = made.blocks.sizes
        large = np.flatnonzero((sizes == sizes.max()) & ~made.blocks.always)
        importance = np.full(50, 0.2)
        importance[large] = 0.9 + step * np.arange(4)
        chosen = [i for i in large if made.select(importance, 0)[i]]
        assert chosen == [large[0]]
        importance[large] = 0.5 + 10 * step * np.arange(4)
        chosen = [i for i in large if made.select(importance, 0)[i]]
        assert chosen == [large[3]]
