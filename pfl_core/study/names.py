"""Display names of data sets and networks. Those of methods: ``study.methods``."""

from __future__ import annotations

import re

DATA_SETS = {
    "digits": "Digits",
    "fashion_small": "Fashion-MNIST (small)",
    "synthetic_32k": "Synthetic-32K",
    "synthetic_3200": "Synthetic-3.2K",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar10_c": "CIFAR10-C",
    "cifar100": "CIFAR-100",
    "emnist": "EMNIST",
    "femnist": "FEMNIST",
    "mini_imagenet": "Mini-ImageNet",
    "office_home": "OfficeHome",
    "cifar_mnist": "CIFAR-MNIST",
    "path_oct_tissue": "{Path-OCT-Tissue}MNIST",
    "pathmnist": "PathMNIST",
    "octmnist": "OCTMNIST",
    "tissuemnist": "TissueMNIST",
    "organamnist": "OrganAMNIST",
    "organsmnist": "OrganSMNIST",
}
NETWORKS = {
    "fc_pews": "dense network",
    "conv_pews": "CNN of FedPeWS",
    "lenet_star": "LeNet-5 with batch norm",
    "leaf_cnn": "LEAF CNN",
    "leaf_cnn_cifar": "LEAF CNN for colour images",
    "lenet_cifar": "LeNet",
    "lenet_cifar_wide": "wide LeNet",
    "lenet_small": "small LeNet",
    "cnn_small": "small CNN",
    "resnet18": "ResNet18",
    "mlp": "MLP",
}
SPELLED = {"sagital": "sagittal"}  # settings keep the spelling of the stored runs
OPTIONS = {  # parts of settings' and effects' names -> in words
    ", with validation": ", rates searched",
    "lr_server=": "η_g = ",
    "lr_gate=": "gate's rate ",
    "augment=crop_flip": "crops and flips",
    "precision=bf16": "bfloat16",
    "ranking = least_change": "least changed",
    "ranking = random": "random choice",
    "masks = random": "random masks",
    "masks = layers, group = ": "layer ",
    "E step = True": "E step",
    "E step = False": "no E step",
    "gate per = ": "gate by ",
    "model = local": "gated",
    "model = global": "global model",
    "rounds to 80:": "rounds to 80 %:",
    "step ratio": "time of a step / FedAvg's",
    "peak ratio": "memory / FedAvg's",
}
_PLAIN = DATA_SETS | NETWORKS | SPELLED
_CODE = re.compile(rf"(?<![\w.])({'|'.join(sorted(_PLAIN, key=len, reverse=True))})(?!\w)")


def plain(text: str) -> str:
    """The text with display names of data sets, networks and options: "CIFAR-MNIST" for ``cifar_mnist``."""
    for option, shown in OPTIONS.items():
        text = text.replace(option, shown)
    return _CODE.sub(lambda match: _PLAIN[match[0]], text)


def in_figure(text: str) -> str:
    """``plain``, with symbols as figures set them."""
    return re.sub(r"\b([ηp])_(\w+)", r"$\1_{\\mathrm{\2}}$", plain(text))
