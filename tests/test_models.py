"""The networks: exact sizes, layer names, seeds, and error messages."""

import os

import pytest
import torch
from torch import nn

from pfl_core.models import MODELS, build, check_outputs
from pfl_core.seeding import generator
from tests.helpers import one_line

GREY, CIFAR = (1, 28, 28), (3, 32, 32)
SMALL_CLOTHES = (1, 14, 14)  # of the data set fashion_small
SIZES = [  # name, sample, classes, trainable parameters
    ("fc_pews", (5,), 4, 14_884),
    ("conv_pews", CIFAR, 10, 113_738),
    ("conv_pews", CIFAR, 20, 134_228),
    ("conv_pews", CIFAR, 21, 136_277),
    ("conv_pews", CIFAR, 100, 298_148),
    ("lenet_star", GREY, 11, 44_555),
    ("lenet_star", GREY, 10, 44_470),
    ("leaf_cnn", GREY, 62, 2_278_334),
    ("leaf_cnn", GREY, 10, 2_171_786),
    ("lenet_cifar", CIFAR, 10, 256_830),
    ("leaf_cnn_cifar", CIFAR, 100, 3_537_444),
    ("lenet_cifar_wide", CIFAR, 100, 4_146_300),
    ("resnet18", CIFAR, 10, 11_181_642),
    ("cnn_small", (1, 8, 8), 10, 160 + 4_640 + 128 * 64 + 64 + 650),
    ("cnn_small", SMALL_CLOTHES, 10, 160 + 4_640 + 288 * 64 + 64 + 650),
    ("cnn_small", CIFAR, 10, 448 + 4_640 + 2_048 * 64 + 64 + 650),
    ("lenet_small", (1, 8, 8), 10, 40 + 8 + 296 + 16 + 32 * 32 + 32 + 330),
    ("lenet_small", SMALL_CLOTHES, 10, 40 + 8 + 296 + 16 + 72 * 32 + 32 + 330),
    ("mlp", (1, 8, 8), 10, 64 * 64 + 64 + 650),
    ("mlp", SMALL_CLOTHES, 10, 196 * 64 + 64 + 650),
    ("linear", (5,), 4, 24),
]


def num_params(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "in_shape", "num_classes", "size"), SIZES)
def test_size_and_output(name, in_shape, num_classes, size):
    model = build(name, in_shape, num_classes, seed=0)
    assert num_params(model) == size
    assert model.eval()(torch.zeros(2, *in_shape)).shape == (2, num_classes)


def test_every_model_is_in_the_table_of_sizes():
    assert {name for name, *_ in SIZES} == set(MODELS)


def tensors(model):
    return [p.numel() for p in model.parameters()]


def test_sizes_of_single_tensors():
    """Parameters of single tensors, counted by hand."""
    assert tensors(build("leaf_cnn", GREY, 62, 0)) == [800, 32, 51_200, 64, 2_097_152, 2_048, 126_976, 62]
    assert tensors(build("lenet_cifar", CIFAR, 10, 0)) == [2_400, 32, 51_200, 64, 192_000, 120, 10_080, 84, 840, 10]
    assert tensors(build("leaf_cnn_cifar", CIFAR, 100, 0))[4:] == [3_276_800, 2_048, 204_800, 100]
    assert tensors(build("fc_pews", (5,), 4, 0)) == [160, 32, 2_048, 64, 8_192, 128, 4_096, 32, 128, 4]


def test_lenet_star_statistics_and_weights():
    """44 floating statistics (12 + 32); 44,296 weights and 259 biases."""
    model = build("lenet_star", GREY, 11, 0)
    assert sum(b.numel() for b in model.buffers() if b.is_floating_point()) == 44
    assert sum(p.numel() for n, p in model.named_parameters() if n.endswith("weight")) == 44_296
    assert sum(p.numel() for n, p in model.named_parameters() if n.endswith("bias")) == 259


PLAIN = [(n, s, c) for n, s, c, _ in SIZES if n != "resnet18"]


@pytest.mark.parametrize(("name", "in_shape", "num_classes"), PLAIN)
def test_plain_nets_are_chains_whose_hidden_layers_each_have_a_relu(name, in_shape, num_classes):
    model = build(name, in_shape, num_classes, seed=0)
    children = list(model.named_children())
    weighted = [n for n, m in children if isinstance(m, nn.Linear | nn.Conv2d)]
    kinds = "".join("w" if n in weighted else "r" if isinstance(m, nn.ReLU) else "" for n, m in children)
    assert isinstance(model, nn.Sequential)
    assert weighted[-1] == children[-1][0] == "head"
    assert kinds == "wr" * (len(weighted) - 1) + "w"
    assert [n for n, m in children if isinstance(m, nn.ReLU)] == [f"relu{i}" for i in range(1, len(weighted))]
    assert not any(m.inplace for m in model.modules() if isinstance(m, nn.ReLU))


def test_order_of_layers_as_in_the_papers():
    lenet = "conv1 bn1 relu1 pool1 conv2 bn2 relu2 pool2 flatten fc1 relu3 fc2 relu4 head"
    assert " ".join(dict(build("lenet_star", GREY, 11, 0).named_children())) == lenet
    small = "conv1 relu1 pool1 conv2 relu2 pool2 flatten fc1 relu3 head"
    assert " ".join(dict(build("cnn_small", (1, 8, 8), 10, 0).named_children())) == small


@pytest.mark.parametrize("name", sorted(MODELS))
def test_weights_depend_on_the_seed_alone(name):
    _, in_shape, num_classes, _ = next(row for row in SIZES if row[0] == name)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = nn.utils.parameters_to_vector(build(name, in_shape, num_classes, seed=3).parameters())
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    again = nn.utils.parameters_to_vector(build(name, in_shape, num_classes, seed=3).parameters())
    other = nn.utils.parameters_to_vector(build(name, in_shape, num_classes, seed=4).parameters())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("name", "in_shape", "message"),
    [
        ("fc_pews", (2,), "it needs samples of shape 5, not 2"),
        ("conv_pews", (1, 28, 28), "samples of shape 3x32x32, not 1x28x28; load with resize=32, channels=3"),
        ("lenet_star", (5,), "samples of shape 1x28x28, not 5"),
        ("leaf_cnn", CIFAR, "samples of shape 1x28x28, not 3x32x32"),
        ("cnn_small", (1, 3, 8), "1x3x8 are too small"),
        ("cnn_small", (5,), "images, not samples of shape 5; use mlp or linear"),
        ("resnet18", (5,), "images, not samples of shape 5; use mlp or linear"),
        (f"{__name__}:with_seed", CIFAR, "seed cannot be an option; give it another name"),
        ("resnet18", (1, 32, 32), "3 channels, not 1x32x32; load with channels=3"),
        ("mlp", (8, 8), "no network has in_shape=\\(8, 8\\)"),
        ("alexnet", CIFAR, "unknown model 'alexnet'; choose from fc_pews, "),
    ],
)
def test_refusals_are_one_clear_line(name, in_shape, message):
    with one_line(message):
        build(name, in_shape, 10, seed=0)


def with_seed(in_shape, num_classes, seed=1):
    """A network of a user."""


def test_options_are_checked():
    assert tensors(build("mlp", (5,), 4, 0, hidden=[3])) == [15, 3, 12, 4]
    with pytest.raises(ValueError, match="'leaf_cnn' has no option 'kernel'; there are none"):
        build("leaf_cnn", GREY, 10, 0, kernel=3)
    with pytest.raises(ValueError, match="pretrained='yes': input should be a valid boolean"):
        build("resnet18", CIFAR, 10, 0, pretrained="yes")
    for hidden, expected in (
        ([0], "greater than or equal to 1"),
        ([4, -3], "item 1: "),
        (7, "array"),
        ("abc", "array"),
    ):
        with pytest.raises(ValueError, match=f"'mlp': hidden=.*{expected}"):
            build("mlp", (4,), 2, 0, hidden=hidden)
    with pytest.raises(ValueError, match="stem='tiny' is not imagenet"):
        build("resnet18", CIFAR, 10, 0, stem="tiny")


@pytest.mark.parametrize(
    ("stem", "in_shape", "stride", "pool", "size"),
    [
        ("imagenet", CIFAR, 2, nn.MaxPool2d, 11_181_642),
        ("no_pool", CIFAR, 2, nn.Identity, 11_181_642),
        ("cifar", CIFAR, 1, nn.Identity, 11_173_962),
        (None, CIFAR, 2, nn.Identity, 11_181_642),
        (None, (3, 64, 64), 2, nn.MaxPool2d, 11_181_642),
    ],
)
def test_resnet18_stems(stem, in_shape, stride, pool, size):
    model = build("resnet18", in_shape, 10, 0, stem=stem)
    assert (model.conv1.stride, type(model.maxpool), num_params(model)) == ((stride, stride), pool, size)
    assert model.eval()(torch.zeros(1, *in_shape)).shape == (1, 10)


@pytest.mark.parametrize(("stem", "dead"), [("imagenet", 6_946_816), ("no_pool", 0)])
def test_resnet18_parameters_that_no_image_of_32_pixels_can_move(stem, dead):
    """Kernel taps of layer4 that only see zero padding have no gradient, whatever the data.

    A leaky ReLU lets a gradient through everywhere, so that no other entry is 0 by chance on a few random images.
    """
    model = build("resnet18", CIFAR, 10, 0, stem=stem)
    for module in model.modules():
        if hasattr(module, "relu"):
            module.relu = nn.LeakyReLU(0.1)
    x = torch.randn(8, *CIFAR, generator=generator(0, "x"))
    nn.functional.cross_entropy(model(x), torch.arange(8)).backward()
    still = {n.removesuffix(".weight"): float((p.grad == 0).float().mean()) for n, p in model.named_parameters()}
    assert sum(int((p.grad == 0).sum()) for p in model.parameters()) == dead
    if dead:
        expected = {"layer4.0.conv1": 5 / 9, "layer4.0.conv2": 8 / 9, "layer4.1.conv1": 8 / 9, "layer4.1.conv2": 8 / 9}
        assert {n: share for n, share in still.items() if share} == pytest.approx(expected)


def test_pretrained_weights_without_network_are_one_clear_line(monkeypatch, tmp_path):
    from pfl_core.vision import torchvision

    def offline(*args, **kwargs):
        raise OSError("no network")

    torchvision()
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with one_line("no pretrained weights .*no network.*resnet18-f37072fd.pth", ConnectionError):
        build("resnet18", CIFAR, 10, 0, pretrained=True)
    with pytest.raises(ValueError, match="stem='cifar'"):
        build("resnet18", CIFAR, 10, 0, pretrained=True, stem="cifar")


class Planted:
    """Unpickling it creates a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_a_file_of_weights_runs_no_code(monkeypatch, tmp_path):
    from pfl_core.vision import torchvision

    torchvision()
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    torch.save(Planted(str(tmp_path / "planted")), tmp_path / "checkpoints" / "resnet18-f37072fd.pth")
    with pytest.raises(ConnectionError, match="no pretrained weights"):
        build("resnet18", CIFAR, 10, 0, pretrained=True)
    assert not (tmp_path / "planted").exists()


def test_pretrained_weights_come_with_a_fresh_head(monkeypatch):
    from pfl_core import models

    stored = {n: torch.full_like(p, 0.5) for n, p in build("resnet18", (3, 64, 64), 1000, 0).state_dict().items()}
    monkeypatch.setattr(models, "_imagenet_weights", lambda: stored)
    model = build("resnet18", (3, 64, 64), 65, 0, pretrained=True)
    assert bool((model.layer4[1].conv2.weight == 0.5).all()) and bool((model.bn1.running_mean == 0.5).all())
    assert model.fc.weight.shape == (65, 512) and not bool((model.fc.weight == 0.5).any())


def test_a_model_from_outside(monkeypatch, tmp_path):
    lines = (
        "from torch import nn",
        "def tiny(in_shape, num_classes, width=2):",
        "    return nn.Linear(in_shape[0], width)",
    )
    (tmp_path / "my_nets.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert build("my_nets:tiny", (5,), 4, 0, width=3).weight.shape == (3, 5)
    with pytest.raises(ValueError, match="'my_nets:huge': module my_nets has no class or function 'huge'"):
        build("my_nets:huge", (5,), 4, 0)
    with pytest.raises(ValueError, match="no_such_module cannot be imported"):
        build("no_such_module:tiny", (5,), 4, 0)
    with pytest.raises(ValueError, match="has no option 'depth' .did you mean 'width'"):
        build("my_nets:tiny", (5,), 4, 0, depth=3)


OUTSIDE = """
import sys
from torch import nn

def fails(in_shape, num_classes):
    raise RuntimeError("no memory\\nfor this")

def exits(in_shape, num_classes):
    sys.exit("bye")

def nothing(in_shape, num_classes):
    return None

class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x

def pair(in_shape, num_classes):
    return Pair(in_shape[0], num_classes)

def linear(in_shape, num_classes, width=4, takes=5):
    return nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(takes), nn.Linear(takes, width))
"""


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fails", {}, r"failed \(RuntimeError: no memory\); correct the function"),
        ("exits", {}, r"failed \(SystemExit: bye\)"),
        ("nothing", {}, "returned a NoneType; return a torch.nn.Module"),
        ("pair", {}, r"for 2 samples the output has type tuple, not \[2, 4\]"),
        ("linear", {"width": 3}, r"for 2 samples the output has shape \[2, 3\], not \[2, 4\]; return one value"),
        ("linear", {"takes": 6}, r"failed \(\w+: "),
    ],
)
def test_errors_of_a_users_network(monkeypatch, tmp_path, name, options, message):
    (tmp_path / "wrong_nets.py").write_text(OUTSIDE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    name = f"wrong_nets:{name}"
    with one_line(f"model '{name}'.*{message}"):
        check_outputs(name, build(name, (5,), 4, 0, **options), (5,), 4)


def test_the_check_of_a_users_network_does_not_change_it(monkeypatch, tmp_path):
    (tmp_path / "right_nets.py").write_text(OUTSIDE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    model = build("right_nets:linear", (5,), 4, 0)
    before, random_state = {n: v.clone() for n, v in model.state_dict().items()}, torch.get_rng_state()
    check_outputs("right_nets:linear", model, (5,), 4)
    assert model.training and torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_a_network_that_does_not_fit_into_memory_is_refused(monkeypatch):
    """At once, and not by the system, which would end this or another process."""
    monkeypatch.setattr("pfl_core.models._memory", lambda: 25 * 10**9)
    with pytest.raises(
        ValueError, match="model 'mlp': 10,000,000,000 parameters need 160 GB in training, this machine has 25 GB"
    ):
        build("mlp", (6,), 4, 0, hidden=[10**9])
    monkeypatch.setattr("pfl_core.models._memory", lambda: 0)  # Windows
    assert num_params(build("mlp", (6,), 4, 0, hidden=[5])) == 59
