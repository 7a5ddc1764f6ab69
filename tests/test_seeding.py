"""Keys of random streams."""

import numpy as np
import pytest
import torch

from pfl_core.seeding import generator, numpy_generator


def draw(*key):
    return torch.rand(4, generator=generator(*key)).tolist()


@pytest.mark.parametrize("three", [3, np.int64(3), np.uint8(3), torch.tensor(3), torch.arange(4)[3]])
def test_equal_integers_of_any_type_give_one_stream(three):
    assert draw(three, "batches", three) == draw(3, "batches", 3)
    assert numpy_generator(three, "a", three).random() == numpy_generator(3, "a", 3).random()


def test_equal_strings_of_any_type_give_one_stream():
    assert draw(0, np.str_("a")) == draw(0, "a")


def test_each_part_of_the_key_changes_the_stream():
    addresses = [
        (0,),
        (1,),
        (0, "a"),
        (0, "b"),
        (0, "a", 1),
        (0, "a", 2),
        (0, 1, "a"),
        (0, "1"),
        (0, 1),
        (0, 1, 2),
        (0, 12),
    ]
    assert len({tuple(draw(*address)) for address in addresses}) == len(addresses)


def test_streams_do_not_depend_on_what_was_drawn_before_nor_on_the_global_generator():
    torch.manual_seed(0)
    before, first = torch.random.get_rng_state(), draw(5, "a")
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(3)
    assert draw(5, "a") == first


def test_a_stream_is_the_same_on_every_machine():
    """Golden values of blake2b and torch's Mersenne twister; stored runs depend on them."""
    assert generator(0, "batches", 1, 2).initial_seed() == 5064132702661461346
    assert torch.randperm(8, generator=generator(0, "batches", 1, 2)).tolist() == [0, 6, 3, 4, 1, 5, 2, 7]


@pytest.mark.parametrize("part", [1.5, 3.0, None, torch.tensor(1.0)])
def test_only_integers_and_strings_are_keys(part):
    with pytest.raises(TypeError):
        generator(0, part)
