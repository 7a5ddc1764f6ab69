"""The networks of the four papers, and the small ones of the quick preset, all built by :func:`build`.

Every plain network is an ``nn.Sequential`` with readable names. Each hidden weight layer has a ReLU of its own (relu1,
relu2, ... from input to output), so that neurons and gates can be read off the chain. The last linear layer is ``head``
(ResNet18: ``fc``). Initialisation is PyTorch's, biases are on, logits are plain.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pickle import UnpicklingError
from threading import Lock
from typing import Any

import torch
from torch import nn

from pfl_core.options import PositiveInt, check_options
from pfl_core.plugins import find
from pfl_core.seeding import generator

_ONE_AT_A_TIME = Lock()  # of the threads of a process: PyTorch's initialisation draws from the process's one generator

Shape = tuple[int, ...]  # of one sample: (channels, height, width), or (features,)
SMALL = 32  # up to this side, ResNet18's full stem leaves maps of 1 x 1 (fedselect.md A22)


def build(name: str, in_shape: Shape, num_classes: int, seed: int, **options: Any) -> nn.Module:
    """The named network, or one of your own (``package.module:function`` taking in_shape, num_classes and options).

    ``in_shape`` is that of one sample. The initial weights depend on ``seed`` alone; no global generator moves.
    Raises ValueError for an unknown name or option, and for a shape that the network does not take.
    """
    function = find("model", name, MODELS)
    check_options(f"model {name!r}", function, options, reserved=2)
    if num_classes < 1 or len(in_shape) not in (1, 3) or min(in_shape) < 1:
        raise ValueError(f"model {name!r}: no network has in_shape={tuple(in_shape)} and num_classes={num_classes}")
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator(seed, "init").initial_seed())
        try:
            return function(tuple(in_shape), num_classes, **options)
        except ValueError as error:
            raise ValueError(f"model {name!r}: {error}") from error


def convnet(
    in_shape: Shape,
    num_classes: int,
    *,
    channels: Sequence[int],
    dense: Sequence[int],
    kernel: int,
    padding: int = 0,
    norm: bool = False,
    only: Shape | None = None,
) -> nn.Sequential:
    """Convolutions, each with (batch norm,) ReLU and 2 x 2 max-pool; then dense layers with ReLU; then the head.

    ``only`` is the sample's shape in the paper, where a network is one fixed size. Raises ValueError for another shape
    and for images that shrink to nothing.
    """
    if len(in_shape) != 3 or (only is not None and in_shape != only):
        raise ValueError(_wrong_shape(in_shape, only))
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width, sides = in_shape[0], in_shape[1:]
    for i, out in enumerate(channels, start=1):
        layers[f"conv{i}"] = nn.Conv2d(width, out, kernel, padding=padding)
        if norm:
            layers[f"bn{i}"] = nn.BatchNorm2d(out)
        layers[f"relu{i}"] = nn.ReLU()
        layers[f"pool{i}"] = nn.MaxPool2d(2)
        width, sides = out, tuple((side + 2 * padding - kernel + 1) // 2 for side in sides)
    if min(sides) < 1:
        raise ValueError(f"images of {_text(in_shape)} are too small for {len(channels)} poolings; load with resize=28")
    layers["flatten"] = nn.Flatten()
    return _dense(layers, width * math.prod(sides), dense, num_classes, hidden=len(channels))


def dense_net(in_shape: Shape, num_classes: int, *, hidden: Sequence[int], only: Shape | None = None) -> nn.Sequential:
    """Dense layers with ReLU on the flattened sample, then the head; ValueError for a shape other than ``only``."""
    if only is not None and in_shape != only:
        raise ValueError(_wrong_shape(in_shape, only))
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    return _dense(layers, math.prod(in_shape), hidden, num_classes, hidden=0)


def mlp(in_shape: Shape, num_classes: int, *, hidden: Sequence[PositiveInt] = (64,)) -> nn.Sequential:
    """A small dense net for samples of any shape; ``hidden``: widths of its layers."""
    return dense_net(in_shape, num_classes, hidden=hidden)


def _dense(
    layers: OrderedDict[str, nn.Module], width: int, dense: Sequence[int], num_classes: int, hidden: int
) -> nn.Sequential:
    """Append fc1, its ReLU, fc2, ... and the head; ``hidden`` layers with a ReLU come before."""
    for i, out in enumerate(dense, start=1):
        layers[f"fc{i}"] = nn.Linear(width, out)
        layers[f"relu{hidden + i}"] = nn.ReLU()
        width = out
    layers["head"] = nn.Linear(width, num_classes)
    return nn.Sequential(layers)


def resnet18(in_shape: Shape, num_classes: int, *, stem: str | None = None, pretrained: bool = False) -> nn.Module:
    """torchvision's ResNet18 (fedselect.md section 8 and A22); 11,181,642 parameters with 10 classes.

    ``stem``: "imagenet" (7x7 at stride 2, then max-pool), "no_pool" (the same without the max-pool) or "cifar" (3x3 at
    stride 1, no max-pool; 11,173,962 parameters). With the full stem, 62 % of the parameters never receive a gradient
    from 32x32 images; so the default (None) is "no_pool" up to 32x32 and "imagenet" above. ``pretrained`` starts from
    ImageNet weights with a fresh ``fc``.
    Raises ValueError for images that do not have three channels and for an impossible stem, ConnectionError if the
    weights are neither stored nor to be had.
    """
    from pfl_core.vision import torchvision

    if len(in_shape) != 3 or in_shape[0] != 3:
        raise ValueError(f"it takes images of 3 channels, not {_text(in_shape)}; load with channels=3")
    stem = stem or ("no_pool" if max(in_shape[1:]) <= SMALL else "imagenet")
    if stem not in ("imagenet", "no_pool", "cifar") or (pretrained and stem == "cifar"):
        raise ValueError(f"stem={stem!r} is not imagenet, no_pool or (without pretrained weights) cifar")
    model = torchvision().models.resnet18(num_classes=num_classes)
    if pretrained:
        model.load_state_dict(_imagenet_weights() | {f"fc.{n}": p for n, p in model.fc.state_dict().items()})
    if stem == "cifar":
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    if stem != "imagenet":
        model.maxpool = nn.Identity()
    return model


def _imagenet_weights() -> dict[str, torch.Tensor]:
    """torchvision's ImageNet weights by name, fetched once into torch's hub folder."""
    from pfl_core.vision import torchvision

    weights = torchvision().models.ResNet18_Weights.IMAGENET1K_V1
    try:
        return dict(weights.get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:  # no network, or a damaged file
        folder, file = torch.hub.get_dir(), weights.url.rpartition("/")[2]
        raise ConnectionError(
            f"resnet18: no pretrained weights ({error}); put {file} into {folder}/checkpoints, come back with a "
            f"network, or use pretrained=False"
        ) from error


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _wrong_shape(in_shape: Shape, only: Shape | None) -> str:
    if only is None:
        return f"it takes images, not samples of shape {_text(in_shape)}; use mlp or linear"
    hint = (
        f"load with resize={only[1]}, channels={only[0]}, or use cnn_small" if len(only) == 3 else "use mlp or linear"
    )
    return f"it takes samples of {_text(only)}, not {_text(in_shape)}; {hint}"


def _fixed(function: Callable[..., nn.Module], **settings: Any) -> Callable[[Shape, int], nn.Module]:
    """A network of one size: nothing about it is an option."""
    return lambda in_shape, num_classes: function(in_shape, num_classes, **settings)


PEWS, STAR, GATE = (32, 64, 128), (6, 16), (32, 64)  # channels of the convolutions
GREY, CIFAR = (1, 28, 28), (3, 32, 32)

MODELS: dict[str, Callable[..., nn.Module]] = {
    # FedPeWS section 6: the dense net for five synthetic features, and the net for CIFAR-MNIST and the medical set
    "fc_pews": _fixed(dense_net, hidden=(32, 64, 128, 32), only=(5,)),
    "conv_pews": _fixed(convnet, channels=PEWS, dense=(), kernel=3, padding=1, only=CIFAR),
    # Star-PFL section 8: LeNet-5 with batch norm
    "lenet_star": _fixed(convnet, channels=STAR, dense=(120, 84), kernel=5, norm=True, only=GREY),
    # pFedGate section 9; the wide one is that of the released CIFAR-100 scripts
    "leaf_cnn": _fixed(convnet, channels=GATE, dense=(2048,), kernel=5, only=GREY),
    "lenet_cifar": _fixed(convnet, channels=GATE, dense=(120, 84), kernel=5, only=CIFAR),
    "leaf_cnn_cifar": _fixed(convnet, channels=GATE, dense=(2048,), kernel=5, only=CIFAR),
    "lenet_cifar_wide": _fixed(convnet, channels=GATE, dense=(1920, 504), kernel=5, only=CIFAR),
    # FedSelect section 8
    "resnet18": resnet18,
    # ours: Star-PFL's at the small presets, with batch norm; images from 4x4 on, and samples of any shape
    "lenet_small": _fixed(convnet, channels=(4, 8), dense=(32,), kernel=3, padding=1, norm=True),
    "cnn_small": _fixed(convnet, channels=(16, 32), dense=(64,), kernel=3, padding=1),
    "mlp": mlp,
    "linear": _fixed(dense_net, hidden=()),
}
VERSIONS: dict[str, int] = {}  # network -> version; 1 where not listed (see runs/versions.py)
