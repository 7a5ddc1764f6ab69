"""The network of a stored run, built anew: its layout, and how often an image uses each of its parameters."""

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

SIDES = (28, 8, 14, 32)  # of images; a record does not tell, but the number of parameters does


def network(record: Record) -> tuple[Layout, Tensor]:
    """The layout of the run's network, and [d] the multiply-adds of one image with each parameter.

    Raises ValueError if images of no known size give the record's number of parameters.
    """
    return _network(json.dumps(dict(record.spec.model)), len(record.clients["train"][0]), record.num_params)


@cache
def _network(model: str, num_classes: int, num_params: int) -> tuple[Layout, Tensor]:
    part = json.loads(model)
    for shape in ((channels, side, side) for channels in (1, 3) for side in SIDES):
        try:
            net = models.build(part["name"], shape, num_classes, 0, **options(part))
        except ValueError:  # a network of one size
            continue
        if sum(p.numel() for p in net.parameters()) == num_params:
            few = Split.of([(torch.zeros(2, *shape), torch.tensor([0, 0]))])
            fed = Federation(net, {"train": few, "test": few}, seed=0, rounds=1)
            return fed.layout, weight_uses(fed, fed.theta0)
    raise ValueError(f"model {part['name']!r} has {num_params} parameters for no image side of {SIDES}")
