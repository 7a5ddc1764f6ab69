r"""What pFedGate's masks save: multiply-adds (MACs), the paper's Table 5, and bytes; pfedgate.md section 7.

    forward    a convolution's weight is used once for each place of its map, a dense layer's once, a bias never
    training   3 times the forward pass (forward, slopes of weights, slopes of inputs), but for the images' own slopes
    kept       parameters and MACs are different things: convolutions have few of the first and most of the second

Masked dense kernels multiply by zero: they compute all MACs of the model, and the gate's on top. Sliced kernels leave
dropped neurons out, and the inputs that read them. The gate's own slopes of inputs are needed by its first norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pfl_core.algorithms.pfedgate.adapt import Adapter
from pfl_core.algorithms.pfedgate.blocks import Blocks
from pfl_core.algorithms.pfedgate.gate import Gate
from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.federation import Federation
from pfl_core.layout import Layout


def layer_macs(layout: Layout, uses: Tensor) -> dict[str, float]:
    """MACs of one sample's forward pass, layer by layer, from the first to the head; ``uses`` [d] of each weight."""
    macs: dict[str, float] = {}
    for f in layout.params:
        macs[f.layer] = macs.get(f.layer, 0.0) + float(uses[f.start : f.stop].sum())
    return macs


def training_macs(macs: Mapping[str, float]) -> float:
    """Of one sample's step, given its forward pass by layer: images have no slope, so the first layer counts twice."""
    return 3 * sum(macs.values()) - next(iter(macs.values()))


def sliced_macs(macs: Mapping[str, float], blocks: Blocks, kept: np.ndarray) -> dict[str, float]:
    """The forward pass by layer where whole neurons are left out (``output_rows``): rows kept times inputs kept."""
    firsts = np.cumsum([0, *map(len, blocks.rows)])
    shares = [
        np.array(sizes)[kept[first : first + len(sizes)]].sum() / sum(sizes)
        for first, sizes in zip(firsts, blocks.rows, strict=False)
    ]
    chain = [1.0, *map(float, shares), 1.0]  # of the images, the hidden layers' neurons, and the classes
    return {name: m * into * out for (name, m), (into, out) in zip(macs.items(), pairwise(chain), strict=True)}


def gate_macs(gate: Gate) -> tuple[float, float]:
    """Of one sample: the gate's forward pass d_X L for each path, and its training step."""
    _, _, _, _, weight, *_ = gate.sizes
    return float(weight), float(weight * (3 if gate.pre_norm else 2))


def first_mask(algorithm: PFedGate, fed: Federation) -> tuple[Adapter, np.ndarray]:
    """What client 0 keeps for its first batch, bool [L], and whose blocks these are."""
    adapter, state = Adapter.of(algorithm, fed), algorithm.init(fed, fed.theta0)
    batch = next(fed.batches(torch.arange(1), 0))
    with torch.no_grad():
        _, kept = adapter(state.gate[0], state.statistics[0].clone(), batch.x[0], 0, "train")
    return adapter, kept


def counted(algorithm: PFedGate, fed: Federation, uses: Tensor) -> dict[str, float]:
    """A client's first step: shares of parameters and of MACs that are kept, and MACs computed, FedAvg's being 1."""
    adapter, kept = first_mask(algorithm, fed)
    macs, (forward, gate) = layer_macs(fed.layout, uses), gate_macs(adapter.gate)
    really = sliced_macs(macs, adapter.blocks, kept) if algorithm.execution == "sliced" else macs
    return {
        "parameters kept": float(adapter.blocks.share(kept)),
        "MACs kept": float(adapter.blocks.macs_share(kept, uses)),
        "gate / model, parameters": sum(adapter.gate.sizes) / fed.num_params,
        "gate / model, MACs": forward / sum(macs.values()),
        "step computed": (training_macs(really) + gate) / training_macs(macs),
    }


def fedem_step(macs: Mapping[str, float], components: int) -> float:
    """MACs of FedEM's round a sample, FedAvg's being 1: each component is trained, and asked once for its losses."""
    return components * (1 + sum(macs.values()) / training_macs(macs))


def table5(keep: float, upload: float, gate: float, components: int = 3) -> pd.DataFrame:
    """The paper's Table 5 in units of d, and what its formulas give; ``keep`` s, ``upload`` q, ``gate`` s_phi.

    The paper prints orders for inference, O(d) for FedEM too, which runs k components; its numbers here are half of
    training's, as the formulas count (forward and backward alike). FedEM's k is ``components``. pFedHN's server keeps a
    network of its own; r, r' and r'' of the paper's peak memory are left open by it.
    """
    k = components
    rows = {
        "FedAvg": ("2d", 2.0, "d", 1.0, "d", 1.0, "rd", "d"),
        "pFedHN": ("2d", 2.0, "d", 1.0, "d", 1.0, "r'd", "d_v d_h + d_v N"),
        "FedEM": ("2kd", 2.0 * k, "kd", 1.0 * k, "kd", 1.0 * k, "krd", "kd"),
        "pFedGate": ("2d(s + s_φ)", 2 * (keep + gate), "qd", upload, "(1 + s_φ)d", 1 + gate, "d + r''s_φd", "d"),
    }
    columns = ["training", "= d times", "upload", "= d times", "disk", "= d times", "peak memory", "server"]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    table.insert(2, "inference", ["O(d)", "O(d)", "O(d)", "O(d(s + s_φ))"])
    table.insert(3, "inference, d times", table.iloc[:, 1] / 2)
    return table
