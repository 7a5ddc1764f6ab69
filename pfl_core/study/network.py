"""The network of a stored run: its parameter layout, and the multiply-adds of each parameter."""

from __future__ import annotations

import json
from functools import cache

import torch
from torch import Tensor

from pfl_core import models
from pfl_core.costs import weight_uses
from pfl_core.federation import Federation, Split
from pfl_core.layout import Layout
from pfl_core.runs import Record
from pfl_core.runs.spec import options

SIDES = (28, 8, 14, 32)  # image sizes to try: a record has no image size, but it follows from the parameter count


def network(record: Record) -> tuple[Layout, Tensor]:
    """The layout of the run's network, and the multiply-adds per image of each parameter [d].

    Raises ValueError if no known image size gives the record's number of parameters.
    """
    return _network(json.dumps(dict(record.spec.model)), len(record.clients["train"][0]), record.num_params)


@cache
def _network(model: str, num_classes: int, num_params: int) -> tuple[Layout, Tensor]:
    component = json.loads(model)
    for shape in ((channels, side, side) for channels in (1, 3) for side in SIDES):
        try:
            net = models.build(component["name"], shape, num_classes, 0, **options(component))
        except ValueError:  # the network does not accept this image size
            continue
        if sum(p.numel() for p in net.parameters()) == num_params:
            two_samples = Split.of([(torch.zeros(2, *shape), torch.tensor([0, 0]))])
            fed = Federation(net, {"train": two_samples, "test": two_samples}, seed=0, rounds=1)
            return fed.layout, weight_uses(fed, fed.theta0)
    raise ValueError(f"model {component['name']!r}: none of the image sizes {SIDES} gives {num_params} parameters")
