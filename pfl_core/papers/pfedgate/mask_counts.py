"""How much a pFedGate knapsack has to choose from on a network, whatever a gate says (specification section 4.4)."""

from __future__ import annotations

import math

import numpy as np

from pfl_core import models
from pfl_core.algorithms.pfedgate.adapt import Adapter, least_ratio
from pfl_core.algorithms.pfedgate.blocks import build_blocks
from pfl_core.algorithms.pfedgate.gate import Gate
from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.layout import Layout
from pfl_core.seeding import numpy_generator

DRAWS = 20


def masks_possible(
    name: str, model: str, shape: tuple[int, ...], classes: int, budgets: tuple[float, ...] = (0.5, 0.3)
) -> list[dict[str, float | str]]:
    """A row for each budget: masks that DRAWS random importances give and their s'.

    By the paper, by the released code, and with blocks of about one size over the whole model (L of the paper's).
    ``gate / model``: the size of the gates' linear layers relative to the network.
    """
    layout, rows = Layout.of(models.build(model, shape, classes, seed=0)), []
    for s in budgets:
        row = {"network": name, "s": s}
        ways = {way: PFedGate.reading(way, keep_ratio=s) for way in ("paper", "authors_code")}
        for way, method in (ways | {"balanced": PFedGate(block_layout="balanced", keep_ratio=s)}).items():
            adapter = chooser(layout, method, shape)
            stream = numpy_generator(0, "importances", name)
            masks = [adapter.select(stream.random(adapter.blocks.num_blocks), 0) for _ in range(DRAWS)]
            row[f"masks, {way}"] = len({mask.tobytes() for mask in masks})
            row[f"s', {way}"] = float(np.mean([adapter.blocks.share(mask) for mask in masks]))
            row.setdefault("blocks L", adapter.blocks.num_blocks)
        rows.append(row | {"gate / model": 2 * math.prod(shape) * row["blocks L"] / layout.num_params})
    return rows


def chooser(layout: Layout, method: PFedGate, shape: tuple[int, ...]) -> Adapter:
    """The selection of one client, without a federation."""
    least = least_ratio(method, method.keep_ratio)
    blocks = build_blocks(layout, method.blocks_per_tensor, least, method.block_layout)
    return Adapter(method, blocks, Gate(shape, blocks.num_blocks, 2), np.array([method.keep_ratio]), least, 0)
