"""What the papers state of their experiments, once for those who make runs, compare them and judge claims on them."""

from __future__ import annotations

from typing import NamedTuple

FEDSELECT_BASELINES = (  # Table 1
    "local", "fedavg", "fedavg_ft", "ditto", "fedpac", "fedrep", "fedper", "fedbabu", "lg_fedavg",
)  # fmt: skip
WORKSHOP_BASELINES = ("fedavg", "lotteryfl", "fedbabu", "fedrep", "fedper", "ditto", "lg_fedavg")  # its Table 1
STAR_PFL_BASELINES = ("local", "fedavg", "fedbn", "fedap", "lotteryfl")  # Tables 2 and 3
PFEDGATE_BASELINES = (  # Table 1
    "local", "fedavg", "fedavg_ft", "pfedme", "lg_fedavg", "ditto", "fedem", "fedrep", "fedmask", "heterofl",
)  # fmt: skip

FEDSELECT_LAYERS = {  # Table 3's layers A to D by network; the paper's appendix that names them is not at hand
    "resnet18": {"A": "layer1", "B": "layer2", "C": "layer3", "D": "layer4"},
    "cnn_small": {"A": "conv1", "B": "conv2", "C": "fc1", "D": "head"},
    "mlp": {"A": "fc1", "D": "head"},
}


class Column(NamedTuple):
    """A setting of FedPeWS's Tables 2 and 6."""

    lr_server: float
    lam: float  # λ on FedAvg
    lam_fedprox: float
    tau: float


FEDPEWS_COLUMNS = {
    "lr_server=1": Column(1.0, 5.0, 0.1, 0.125),
    "lr_server=0.5": Column(0.5, 2.0, 0.1, 0.2),
    "lr_server=0.25": Column(0.25, 1.0, 1.0, 0.1875),
    "lr_server=0.1": Column(0.1, 2.0, 1.0, 0.1),
}
FEDPEWS_BEST = {  # λ and τ of Table 3, which states none: the best of Tables 7 and 8
    "cifar_mnist": (2.0, 0.5),
    "path_oct_tissue": (10.0, 0.2),
}


class Part(NamedTuple):
    """A part of pFedGate's gate that Table 4 takes away: the option without it, its name in our table, its label."""

    without: object
    variant: str
    label: str


FULL_GATE = "full gate"
GATE_PARTS = {  # field of pFedGate -> Table 4's row
    "pre_norm": Part(False, "no_pre_norm", "no norm before"),
    "post_norm": Part(False, "no_post_norm", "no norm after"),
    "sigmoid": Part(False, "no_sigmoid", "no sigmoid"),
    "gate_granularity": Part("client", "client_wise", "a gate per client"),
}
