"""The flat vector of a model: order and kinds of entries, the head, and the neurons of each entry."""

from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pfl_core.layout import NORM, STATISTIC, WEIGHT, Layout
from pfl_core.models import build
from tests.helpers import cnn, coin, mlp


def test_parameters_come_first_in_named_order_then_the_floating_statistics():
    model = cnn(bn=True)
    layout = Layout.of(model)
    names = [name for name, _ in model.named_parameters()]
    assert [f.name for f in layout.fields] == [*names, "bn1.running_mean", "bn1.running_var"]
    assert layout.num_params == sum(p.numel() for p in model.parameters())
    assert layout.num_entries == layout.num_params + 6
    assert layout.num_statistics == 6
    assert [f.name for f in layout.params] == names


def test_fields_tile_the_vector():
    layout = Layout.of(cnn(bn=True))
    assert layout.fields[0].start == 0
    for before, after in zip(layout.fields, layout.fields[1:], strict=False):
        assert before.stop == after.start
    for f in layout.fields:
        assert f.stop - f.start == torch.Size(f.shape).numel()


def test_kinds_and_layers():
    layout = Layout.of(cnn(bn=True))
    kinds = {f.name: f.kind for f in layout.fields}
    assert {n for n, kind in kinds.items() if kind == NORM} == {"bn1.weight", "bn1.bias"}
    assert {n for n, kind in kinds.items() if kind == STATISTIC} == {"bn1.running_mean", "bn1.running_var"}
    assert kinds["conv1.weight"] == kinds["head.bias"] == WEIGHT
    assert layout.field("bn1.running_var").layer == "bn1"
    assert Layout.of(build("resnet18", (3, 32, 32), 10, 0)).field("layer1.0.conv1.weight").layer == "layer1.0.conv1"


def test_an_unknown_field_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no tensor 'fc9\.weight'.*fc1\.weight"):
        Layout.of(mlp()).field("fc9.weight")


def test_the_head_is_the_last_linear_layer():
    layout = Layout.of(mlp(bn=True))
    assert layout.head == "head"
    head = layout.mask(layout.in_head)
    assert head.shape == (layout.num_entries,)
    assert head.nonzero().squeeze(1).tolist() == list(range(layout.num_params - 18, layout.num_params))
    assert Layout.of(nn.Linear(2, 3)).mask(lambda f: True).sum() == 9


def test_a_single_layer_is_its_own_head():
    layout = Layout.of(nn.Linear(2, 3))
    assert layout.mask(layout.in_head).all()


def test_a_model_without_a_linear_layer_is_refused():
    with pytest.raises(ValueError, match="Conv2d has no linear layer"):
        Layout.of(nn.Conv2d(1, 2, 3))


def test_counts_of_resnet18():
    """D = 11,181,642 = 11,176,832 in 41 weight tensors and 4,810 in 21 biases."""
    layout = Layout.of(build("resnet18", (3, 32, 32), 10, 0))
    assert layout.num_params == 11_181_642
    weights = [f for f in layout.params if "weight" in f.name]
    biases = [f for f in layout.params if "weight" not in f.name]
    assert (len(weights), sum(f.stop - f.start for f in weights)) == (41, 11_176_832)
    assert (len(biases), sum(f.stop - f.start for f in biases)) == (21, 4_810)
    assert layout.head == "fc"
    assert layout.mask(layout.in_head).sum() == 5_130
    assert layout.num_statistics == 9_600  # mean and variance of the 4,800 normalised channels
    assert layout.chain is None


@settings(max_examples=30)
@given(seed=st.integers(0, 999), bn=st.booleans(), conv=st.booleans())
def test_flatten_and_unflatten_undo_each_other(seed, bn, conv):
    model = cnn(bn, seed) if conv else mlp(bn, seed)
    layout = Layout.of(model)
    state = dict(model.state_dict())
    vector = layout.flatten(state)
    named = layout.unflatten(vector)
    assert set(named) == {name for name in state if "num_batches" not in name}
    assert all(torch.equal(named[name], state[name]) for name in named)
    assert torch.equal(layout.flatten(named), vector)
    start = layout.unflatten(vector[: layout.num_params])
    assert set(start) == {name for name, _ in model.named_parameters()}


def test_flatten_copies_and_unflatten_views():
    layout = Layout.of(mlp())
    vector = torch.zeros(layout.num_entries)
    layout.unflatten(vector)["head.bias"].fill_(1.0)
    assert vector.sum() == 3
    again = layout.flatten(layout.unflatten(vector))
    again.zero_()
    assert vector.sum() == 3


# ---- neurons --------------------------------------------------------------------------------------------------------


def test_neurons_of_a_chain_by_hand():
    """fc1 4 -> 5 neurons 0..4, head 5 -> 3: the two neurons of each entry."""
    chain = Layout.of(mlp()).chain
    none = 5
    assert (chain.activations, chain.sizes, chain.num_neurons) == (("relu1",), (5,), none)
    out = [j for j in range(5) for _ in range(6)] + list(range(5)) + [none] * 18
    into = [none] * 35 + [j for _ in range(3) for j in range(5)] + [none] * 3
    assert chain.out.tolist() == out
    assert chain.into.tolist() == into


def test_gates_come_after_the_pooling():
    """After pooling, a zero gate does not tie the values of a window. For values >= 0 the output is the same."""
    assert Layout.of(cnn(bn=True)).chain.activations == ("pool1", "relu2")


def test_columns_of_a_channel_after_flattening():
    """Channel c of 3 with 4 remaining positions has the columns 4 c .. 4 c + 3 of the next layer."""
    layout = Layout.of(cnn(bn=False))
    into = layout.unflatten(layout.chain.into)["fc1.weight"]
    assert into.tolist() == [[c for c in range(3) for _ in range(4)]] * 4
    assert layout.unflatten(layout.chain.out)["fc1.weight"].tolist() == [[3 + j] * 12 for j in range(4)]


def test_batch_norm_belongs_to_the_neuron_that_it_normalises():
    layout = Layout.of(cnn(bn=True))
    out = layout.unflatten(layout.chain.out)
    for name in ("bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"):
        assert out[name].tolist() == [0, 1, 2]
    assert len(layout.chain.out) == layout.num_entries


def test_batch_norm_after_flattening_is_counted_by_channel():
    first = {"conv1": nn.Conv2d(1, 2, 3, padding=1), "relu1": nn.ReLU(), "flatten": nn.Flatten()}
    model = nn.Sequential(OrderedDict(first | {"bn1": nn.BatchNorm1d(8), "head": nn.Linear(8, 2)}))
    layout = Layout.of(model)
    assert layout.unflatten(layout.chain.out)["bn1.weight"].tolist() == [0] * 4 + [1] * 4


def test_expand_takes_rows():
    chain = Layout.of(mlp()).chain
    masks = coin(4, 5)
    assert torch.equal(chain.expand(masks), torch.stack([chain.expand(row) for row in masks]))


def test_pews_nets_have_the_neurons_of_the_paper():
    assert Layout.of(build("fc_pews", (5,), 4, 0)).chain.sizes == (32, 64, 128, 32)
    assert Layout.of(build("conv_pews", (3, 32, 32), 10, 0)).chain.sizes == (32, 64, 128)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(2, 3), nn.Linear(3, 2)],
        [nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)],
        [nn.Linear(2, 3), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)],
        [nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Linear(3, 2)],
    ],
    ids=["no activation", "another activation", "one of two", "nested"],
)
def test_other_networks_have_no_chain(layers):
    assert Layout.of(nn.Sequential(*layers)).chain is None
    assert Layout.of(nn.ModuleDict({"a": nn.Linear(2, 3)})).chain is None
