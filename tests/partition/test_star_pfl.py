"""Star-PFL's splits for smaller runs and for Figure 2."""

import pytest
import torch

from pfl_core import data
from pfl_core.partition import partition

SAMPLE = "paired_sample"
GROUPS = "label_groups"


def indices(part):
    return torch.cat([*part.train, *part.val, *part.test])


def test_paired_sample_gives_each_client_the_requested_images_in_60_20_20():
    digits = data.load("digits")
    part = partition(SAMPLE, digits, 6, 3, images=100, alpha=0.1)
    sizes = torch.tensor([[len(split[k]) for split in (part.train, part.val, part.test)] for k in range(6)])
    assert sizes.sum(1).tolist() == [100] * 6 and len(indices(part).unique()) == 600
    assert (sizes[:, 0] - 60).abs().max() <= 10 and bool((sizes[:, 1] >= sizes[:, 2]).all())
    assert not torch.equal(indices(part), indices(partition(SAMPLE, digits, 6, 4, images=100)))


def test_paired_sample_of_all_images_is_the_paired_partition():
    digits = data.load("digits")
    each = len(digits.y) // 4
    short, full = partition(SAMPLE, digits, 4, 0, images=each), partition("paired_dirichlet", digits, 4, 0)
    left_out = len(digits.y) - 4 * each
    assert abs(len(indices(short)) - len(indices(full))) <= left_out
    same = [partition(SAMPLE, digits, 4, seed, images=50, split_seed=5) for seed in (0, 1)]
    assert torch.equal(indices(same[0]), indices(same[1])), "the images drawn go with the split"


def test_groups_of_clients_share_labels_that_no_other_group_has(pool):
    toy = pool([60] * 10)
    part = partition(GROUPS, toy, 12, 0, groups=4)
    held = part.table(toy)["train"] > 0
    assert held.sum(1).tolist() == [1] * 12 and int(held.any(0).sum()) == 4
    for g in range(4):
        assert len(held[3 * g : 3 * g + 3].unique(dim=0)) == 1, "a group has one label"
    two = partition(GROUPS, toy, 6, 0, groups=3, labels_per_group=2, images=10)
    assert ((two.table(toy)["train"] > 0).sum(1) == 2).all()
    assert [sum(len(s[k]) for s in (two.train, two.val, two.test)) for k in range(6)] == [10] * 6


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        (SAMPLE, {"images": 400}, "has 1797 in all"),
        (SAMPLE, {"images": 0}, "images=0"),
        (GROUPS, {"groups": 5}, "do not divide"),
        (GROUPS, {"groups": 6, "labels_per_group": 2}, "use fewer groups"),
    ],
)
def test_impossible_groups_are_refused(name, options, match):
    with pytest.raises(ValueError, match=match):
        partition(name, data.load("digits"), 6, 0, **options)
