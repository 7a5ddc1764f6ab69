"""The networks of the four papers, and the small ones of the quick preset, all built by :func:`build`.

Every plain network is an ``nn.Sequential`` with named layers. Each hidden layer has its own ReLU (relu1, relu2, ...
from input to output), so that ``layout.Chain`` can number the neurons. The last linear layer is ``head`` (ResNet18:
``fc``). Initialisation is PyTorch's default, layers have biases, and outputs are logits.
"""

import math
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from pfl_core.layout import logits_of
from pfl_core.options import PositiveInt, check_options, parameters
from pfl_core.plugins import find, users_code
from pfl_core.pooling import MaxPool2x2
from pfl_core.seeding import seeded

Shape = tuple[int, ...]  # of one sample: (channels, height, width), or (features,)
TRAINING_BYTES = 16  # of a parameter: initial value, global value, a client's value and its gradient in float32
SMALL = 32  # pixels; up to this side, the last feature maps of ResNet18 with the full stem are 1x1


def build(name: str, in_shape: Shape, num_classes: int, seed: int, **options: Any) -> nn.Module:
    """The named network, or your own (``package.module:function`` with arguments in_shape, num_classes and options).

    ``in_shape`` is the shape of one sample. The initial weights depend on ``seed`` alone; the states of the global
    generators are restored. Raises ValueError for an unknown name or option, for an unsupported shape, and for a
    function of your own that fails or does not return a network of known size.
    """
    function = find("model", name, MODELS)
    if taken := {"name", "seed"} & parameters(function, 2)[0].keys():
        raise ValueError(f"model {name!r}: {min(taken)} cannot be an option; give it another name")
    check_options(f"model {name!r}", function, options, reserved=2)
    if num_classes < 1 or len(in_shape) not in (1, 3) or min(in_shape) < 1:
        raise ValueError(f"model {name!r}: no network has in_shape={tuple(in_shape)} and num_classes={num_classes}")
    with seeded(seed, "init"):
        try:
            with users_code("model", name, seed, "init"):
                model = function(tuple(in_shape), num_classes, **options)
        except ValueError as error:
            raise error if ":" in name else ValueError(f"model {name!r}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {name!r} returned a {type(model).__name__}; return a torch.nn.Module")
    if any(map(nn.parameter.is_lazy, model.parameters())):
        raise ValueError(f"model {name!r} has lazy layers, whose sizes are not known yet; give their sizes")
    return model


@torch.no_grad()
def check_outputs(name: str, model: nn.Module, in_shape: Shape, num_classes: int) -> None:
    """Run your own network on two samples. Raises ValueError if it fails or has not one output for each class.

    The network's state is not changed. Networks of this package are not run, because tests check them.
    """
    if ":" not in name:
        return
    was_training, dtype = model.training, next((p.dtype for p in model.parameters()), torch.float32)
    with users_code("model", name):
        output = logits_of(model.eval()(torch.zeros(2, *in_shape, dtype=dtype)))
    model.train(was_training)
    if not isinstance(output, torch.Tensor) or output.shape != (2, num_classes):
        what = f"shape {list(output.shape)}" if isinstance(output, torch.Tensor) else f"type {type(output).__name__}"
        raise ValueError(
            f"model {name!r}: for 2 samples the output has {what}, not [2, {num_classes}]; return one value for each "
            f"of the {num_classes} classes"
        )


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
    """Convolutions, each with batch norm (if ``norm``), ReLU and 2x2 max-pool; dense layers with ReLU; the head.

    ``only``: the only supported sample shape. Raises ValueError for other shapes and for images that are too small for
    the poolings.
    """
    if len(in_shape) != 3 or (only is not None and in_shape != only):
        raise ValueError(_wrong_shape(in_shape, only))
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width, sides = in_shape[0], tuple(in_shape[1:])
    for i, out in enumerate(channels, start=1):
        layers[f"conv{i}"] = nn.Conv2d(width, out, kernel, padding=padding)
        if norm:
            layers[f"bn{i}"] = nn.BatchNorm2d(out)
        layers[f"relu{i}"] = nn.ReLU()
        layers[f"pool{i}"] = MaxPool2x2()
        # Side of the feature maps: convolution at stride 1, then pooling by 2.
        width, sides = out, tuple((side + 2 * padding - kernel + 1) // 2 for side in sides)
    if min(sides) < 1:
        raise ValueError(f"images of {_text(in_shape)} are too small for {len(channels)} poolings; load with resize=28")
    layers["flatten"] = nn.Flatten()
    return _dense(layers, width * math.prod(sides), dense, num_classes, hidden=len(channels))


def dense_net(in_shape: Shape, num_classes: int, *, hidden: Sequence[int], only: Shape | None = None) -> nn.Sequential:
    """Dense layers with ReLU on the flattened sample, then the head. Raises ValueError if the shape is not ``only``."""
    if only is not None and in_shape != only:
        raise ValueError(_wrong_shape(in_shape, only))
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    return _dense(layers, math.prod(in_shape), hidden, num_classes, hidden=0)


def mlp(in_shape: Shape, num_classes: int, *, hidden: Sequence[PositiveInt] = (64,)) -> nn.Sequential:
    """A small dense network for samples of any shape; ``hidden``: widths of the hidden layers."""
    return dense_net(in_shape, num_classes, hidden=hidden)


def _dense(
    layers: OrderedDict[str, nn.Module], width: int, dense: Sequence[int], num_classes: int, hidden: int
) -> nn.Sequential:
    """Append fc1, its ReLU, fc2, ... and the head. ``hidden`` is the number of ReLUs in ``layers`` before.

    Raises ValueError if the layers do not fit into the memory of this machine.
    """
    _check_memory(sum(before * after for before, after in pairwise((width, *dense, num_classes))))
    for i, out in enumerate(dense, start=1):
        layers[f"fc{i}"] = nn.Linear(width, out)
        layers[f"relu{hidden + i}"] = nn.ReLU()
        width = out
    layers["head"] = nn.Linear(width, num_classes)
    return nn.Sequential(layers)


def _check_memory(num_params: int) -> None:
    """Raise ValueError for a network that this machine cannot train: a larger one could end other programs."""
    need, memory = num_params * TRAINING_BYTES, _memory()
    if memory and need > memory:
        raise ValueError(
            f"{num_params:,} parameters need {need / 1e9:,.0f} GB in training, this machine has {memory / 1e9:,.0f} "
            "GB; make the layers smaller"
        )


def _memory() -> int:
    """Bytes of memory of this machine; 0 where the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def resnet18(in_shape: Shape, num_classes: int, *, stem: str | None = None, pretrained: bool = False) -> nn.Module:
    """torchvision's ResNet18, the network of FedSelect; 11,181,642 parameters with 10 classes.

    ``stem``: "imagenet" (7x7 at stride 2, then max-pool), "no_pool" (the same without the max-pool) or "cifar" (3x3 at
    stride 1, no max-pool; 11,173,962 parameters). Default: "no_pool" up to 32x32 pixels, "imagenet" above. The paper
    does not name a stem; with the full stem, 62 % of the parameters never receive a gradient from 32x32 images.
    ``pretrained`` starts from ImageNet weights with a newly initialised ``fc``.

    Raises ValueError for images without three channels and for an unknown stem, ConnectionError if the weights are
    neither stored nor can be downloaded.
    """
    from pfl_core.vision import torchvision

    if len(in_shape) != 3:
        raise ValueError(f"it needs images, not samples of shape {_text(in_shape)}; use mlp or linear")
    if in_shape[0] != 3:
        raise ValueError(f"it needs images of 3 channels, not {_text(in_shape)}; load with channels=3")
    stem = stem or ("no_pool" if max(in_shape[1:]) <= SMALL else "imagenet")
    if stem not in ("imagenet", "no_pool", "cifar") or (pretrained and stem == "cifar"):
        raise ValueError(f"stem={stem!r} is not imagenet, no_pool or, with pretrained=False, cifar")
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
    """torchvision's ImageNet weights by name; downloaded once into the folder of torch.hub."""
    from pfl_core.vision import torchvision

    weights = torchvision().models.ResNet18_Weights.IMAGENET1K_V1
    try:
        return dict(weights.get_state_dict(progress=False, check_hash=True, weights_only=True))
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:  # no network, or a damaged file
        folder, file = torch.hub.get_dir(), weights.url.rpartition("/")[2]
        raise ConnectionError(
            f"resnet18: no pretrained weights ({error}); put {file} into {folder}/checkpoints, connect to a network, "
            f"or use pretrained=False"
        ) from error


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _wrong_shape(in_shape: Shape, only: Shape | None) -> str:
    if only is None:
        return f"it needs images, not samples of shape {_text(in_shape)}; use mlp or linear"
    hint = (
        f"load with resize={only[1]}, channels={only[0]}, or use cnn_small" if len(only) == 3 else "use mlp or linear"
    )
    return f"it needs samples of shape {_text(only)}, not {_text(in_shape)}; {hint}"


def _fixed(function: Callable[..., nn.Module], **settings: Any) -> Callable[[Shape, int], nn.Module]:
    """A builder without options: all settings are fixed."""
    return lambda in_shape, num_classes: function(in_shape, num_classes, **settings)


PEWS, STAR, GATE = (32, 64, 128), (6, 16), (32, 64)  # channels of the convolutions
GREY, CIFAR = (1, 28, 28), (3, 32, 32)

MODELS: dict[str, Callable[..., nn.Module]] = {
    # FedPeWS: the dense network for the synthetic sets, and that for CIFAR-MNIST and the MedMNIST sets (Table 5)
    "fc_pews": _fixed(dense_net, hidden=(32, 64, 128, 32), only=(5,)),
    "conv_pews": _fixed(convnet, channels=PEWS, dense=(), kernel=3, padding=1, only=CIFAR),
    # Star-PFL: LeNet-5 with batch norm (layers from the paper, sizes from its released code)
    "lenet_star": _fixed(convnet, channels=STAR, dense=(120, 84), kernel=5, norm=True, only=GREY),
    # pFedGate; lenet_cifar_wide is that of the released CIFAR-100 scripts
    "leaf_cnn": _fixed(convnet, channels=GATE, dense=(2048,), kernel=5, only=GREY),
    "lenet_cifar": _fixed(convnet, channels=GATE, dense=(120, 84), kernel=5, only=CIFAR),
    "leaf_cnn_cifar": _fixed(convnet, channels=GATE, dense=(2048,), kernel=5, only=CIFAR),
    "lenet_cifar_wide": _fixed(convnet, channels=GATE, dense=(1920, 504), kernel=5, only=CIFAR),
    # FedSelect
    "resnet18": resnet18,
    # Not in the papers, for small presets: LeNet with batch norm, CNN (images of at least 4x4), any sample shape
    "lenet_small": _fixed(convnet, channels=(4, 8), dense=(32,), kernel=3, padding=1, norm=True),
    "cnn_small": _fixed(convnet, channels=(16, 32), dense=(64,), kernel=3, padding=1),
    "mlp": mlp,
    "linear": _fixed(dense_net, hidden=()),
}
VERSIONS: dict[str, int] = {}  # network -> version, by default 1 (see runs/versions.py)
