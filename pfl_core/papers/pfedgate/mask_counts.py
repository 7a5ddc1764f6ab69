"""Number of different masks that pFedGate's knapsack can select on a network, for random importances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pfl_core import models
from pfl_core.algorithms.pfedgate.adapt import Adapter, least_ratio
from pfl_core.algorithms.pfedgate.gate import Gate, build_blocks
from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.layout import Layout
from pfl_core.seeding import numpy_generator

DRAWS = 20  # random importance vectors


def masks_possible(
    name: str, model: str, shape: tuple[int, ...], classes: int, budgets: tuple[float, ...] = (0.5, 0.3)
) -> list[dict[str, Any]]:
    """Different masks and the mean s' over DRAWS random importance vectors, a row for each budget.

    For the paper's reading, the released code's, and blocks of about one size over the whole model ("balanced").
    ``gate / model``: size of the gate's linear layers, 2 d_X L, relative to the network.
    """
    layout, rows = Layout.of(models.build(model, shape, classes, seed=0)), []
    for s in budgets:
        row: dict[str, Any] = {"network": name, "s": s}
        readings = {way: PFedGate.reading(way, keep_ratio=s) for way in ("paper", "authors_code")}
        for way, method in (readings | {"balanced": PFedGate(block_layout="balanced", keep_ratio=s)}).items():
            adapter = selection(layout, method, shape)
            stream = numpy_generator(0, "importances", name)
            masks = [adapter.select(stream.random(adapter.blocks.num_blocks), 0) for _ in range(DRAWS)]
            row[f"masks, {way}"] = len({mask.tobytes() for mask in masks})
            row[f"s', {way}"] = float(np.mean([adapter.blocks.share(mask) for mask in masks]))
            row.setdefault("blocks L", adapter.blocks.num_blocks)
        rows.append(row | {"gate / model": 2 * math.prod(shape) * row["blocks L"] / layout.num_params})
    return rows


def selection(layout: Layout, method: PFedGate, shape: tuple[int, ...]) -> Adapter:
    """The adapter of one client, without a federation."""
    assert not isinstance(method.keep_ratio, tuple)
    least = least_ratio(method, method.keep_ratio)
    blocks = build_blocks(layout, method.blocks_per_tensor, least, method.block_layout)
    return Adapter(method, blocks, Gate(shape, blocks.num_blocks, 2), np.array([method.keep_ratio]), least, 0)
