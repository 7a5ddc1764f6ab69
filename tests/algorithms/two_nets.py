"""Networks for the tests of methods: a dense one, which can train batched over clients, and a convolutional one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pfl_core import Federation
from tests.helpers import cnn, federation, mlp

F64 = torch.float64
SIZES = (12, 9, 14, 10)  # samples of the four clients; the last batch of one of them has one sample
SOME = [[0, 1, 2, 3], [3, 1], [2, 1, 0]]  # participants of each round
both_nets = pytest.mark.parametrize("net", ["mlp", "cnn"])
both_backends = pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "one by one"])
NETS = {  # name -> (network, shape of a sample, whether clients train stacked)
    "mlp, stacked": (mlp, (6,), True),
    "mlp": (mlp, (6,), False),
    "mlp with batch norm": (lambda: mlp(bn=True), (6,), False),
    "cnn": (lambda: cnn(bn=False), (1, 4, 4), False),
    "cnn with batch norm": (lambda: cnn(bn=True), (1, 4, 4), False),
}
every_net = pytest.mark.parametrize("name", NETS)
simplest_and_fullest = pytest.mark.parametrize("name", ["mlp, stacked", "cnn with batch norm"])


class NoChain(nn.Module):
    """A chain of layers that is not written as ``nn.Sequential``."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.fc1(x).relu())


def net_of(net: str, bn: bool = True) -> nn.Module:
    return mlp() if net == "mlp" else cnn(bn=bn)


def fed_of(net: str = "mlp", bn: bool = True, **options) -> Federation:
    return federation(net_of(net, bn), **{"shape": (6,) if net == "mlp" else (1, 4, 4), "epochs": 2} | options)


def named_fed(name: str, **options) -> Federation:
    """A federation on one of ``NETS``."""
    make, shape, stacked = NETS[name]
    return federation(make(), **{"shape": shape, "stacked": stacked, "epochs": 2} | options)


def head_of(fed: Federation) -> Tensor:
    """Bool [e]: the last layer's entries."""
    return fed.layout.mask(fed.layout.in_head)


def wrong(margin: float | Tensor) -> Tensor:
    """Probability of the wrong class, of two classes, for this margin of the logits."""
    return 1 / (1 + torch.as_tensor(margin, dtype=F64).exp())
