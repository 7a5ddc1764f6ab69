"""Display names of methods, data sets and networks."""

from __future__ import annotations

import re
from collections.abc import Sequence

NAMES = {
    "local": "Local",
    "fedavg": "FedAvg",
    "fedavg_ft": "FedAvg + FT",
    "fedselect": "FedSelect",
    "fedselect_gradltn": "FedSelect (GradLTN)",
    "ditto": "Ditto",
    "fedpac": "FedPAC",
    "fedrep": "FedRep",
    "fedper": "FedPer",
    "fedbabu": "FedBABU",
    "lg_fedavg": "LG-FedAvg",
    "lotteryfl": "LotteryFL",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fednova": "FedNova",
    "moon": "MOON",
    "fedpews": "FedPeWS",
    "fedpews_fixed": "FedPeWS-Fixed",
    "star_pfl": "Star-PFL",
    "fedbn": "FedBN",
    "fedap": "FedAP",
    "pfedgate": "pFedGate",
    "pfedme": "pFedMe",
    "perfedavg": "Per-FedAvg",
    "fedem": "FedEM",
    "heterofl": "HeteroFL",
    "fedmask": "FedMask (as read here)",
    "fedmd": "FedMD",
}
DATA_SETS = {
    "digits": "Digits",
    "fashion_small": "Fashion-MNIST (small)",
    "synthetic_32k": "Synthetic-32K",
    "synthetic_3200": "Synthetic-3.2K",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar10_c": "CIFAR-10-C",
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
OPTIONS = {"lr_server=": "η_g = ", "lr_gate=": "gate's rate ", "augment=crop_flip": "crops and flips"}
WORDS = {  # what reads better than the names in code: pattern -> replacement
    r"\bCIFAR(10|100)\b": r"CIFAR-\1",  # as the papers print it
    r"\bworkshop s=(\d+)": r"\1 classes a client",
    r"\bsagital\b": "sagittal",
    r"[\w.]*\b(\w+)\.weight\b": r"weights of \1",
    r"\b([\w-]+): \1\b": r"\1",  # "CIFAR-10: CIFAR-10 (JPEG copy)"
    r"\b([\w-]+) \(\1 (\([^()]*\))\)": r"\1 \2",  # "CIFAR-10 (CIFAR-10 (JPEG copy))"
}
SUBSCRIPTS = (re.compile(r"\b([ηp])_(\w+)"), r"$\1_{\\mathrm{\2}}$")
_PLAIN = DATA_SETS | NETWORKS
_CODE = re.compile(rf"(?<![\w.])({'|'.join(sorted(_PLAIN, key=len, reverse=True))})(?!\w)")
# not the value of a field ("base=fedprox"), and not the word "local" in "local training"
_METHOD = re.compile(rf"(?<![\w.=])({'|'.join(NAMES)})(?!\w| training| epoch| step)")


def listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def plain(text: str) -> str:
    """The text with display names of data sets, networks and options: "CIFAR-MNIST" for ``cifar_mnist``."""
    for option, shown in OPTIONS.items():
        text = text.replace(option, shown)
    return _CODE.sub(lambda match: _PLAIN[match[0]], text)


def in_words(text: str) -> str:
    """``plain``, with words: "2 classes a client" for "workshop s=2"."""
    text = plain(text)
    for pattern, shown in WORDS.items():
        text = re.sub(pattern, shown, text)
    return text


def with_methods(text: str) -> str:
    """``in_words``, with the display names of methods: "FedAvg" for ``fedavg``. Values of fields keep theirs."""
    return _METHOD.sub(lambda match: NAMES[match[0]], in_words(text))


def in_figure(text: str) -> str:
    """``in_words``, with symbols as figures set them."""
    pattern, shown = SUBSCRIPTS
    return pattern.sub(shown, in_words(text))
