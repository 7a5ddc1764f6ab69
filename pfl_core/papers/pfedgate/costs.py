r"""Multiply-adds (MACs) that pFedGate's masks save, and the formulas of the paper's Table 5.

    forward    a convolution uses each weight once per output position, a dense layer once; a bias needs no MAC
    training   3 times the forward pass (forward, gradient of the weights, gradient of the inputs), without the
               gradient of the images

Convolutions have few of the parameters but most of the MACs. Masked dense kernels multiply by zero: they compute all
MACs of the model, and the gate's in addition. Sliced kernels leave out dropped neurons and the inputs that read them.
The gate needs the gradient of its inputs for the norm before its linear layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pfl_core.algorithms.pfedgate.adapt import Adapter
from pfl_core.algorithms.pfedgate.gate import Blocks
from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.federation import Federation
from pfl_core.layout import Layout


def layer_macs(layout: Layout, uses: Tensor) -> dict[str, float]:
    """MACs of one sample's forward pass by layer, in the model's order. ``uses`` [d]: how often each weight is used."""
    macs: dict[str, float] = {}
    for f in layout.params:  # weight and bias of a layer are separate tensors
        macs[f.layer] = macs.get(f.layer, 0.0) + float(uses[f.start : f.stop].sum())
    return macs


def training_macs(macs: Mapping[str, float]) -> float:
    """MACs of one sample's training step, from those of its forward pass by layer.

    The first layer counts twice, not three times: the gradient of the images is not needed.
    """
    return 3 * sum(macs.values()) - next(iter(macs.values()))


def sliced_macs(macs: Mapping[str, float], blocks: Blocks, kept: np.ndarray) -> dict[str, float]:
    """MACs of the forward pass by layer without the dropped neurons (``output_rows``): rows kept times inputs kept."""
    # share of the rows kept in each hidden layer
    firsts = np.cumsum([0, *map(len, blocks.rows)])
    shares = [
        np.array(sizes)[kept[first : first + len(sizes)]].sum() / sum(sizes)
        for first, sizes in zip(firsts, blocks.rows, strict=False)
    ]
    chain = [1.0, *map(float, shares), 1.0]  # shares kept of the image, the hidden layers, and the classes
    return {name: m * into * out for (name, m), (into, out) in zip(macs.items(), pairwise(chain), strict=True)}


def first_mask(algorithm: PFedGate, fed: Federation) -> tuple[Adapter, np.ndarray]:
    """Client 0's adapter, and the blocks that it keeps for its first batch, bool [L]."""
    adapter, state = Adapter.of(algorithm, fed), algorithm.init(fed, fed.theta0)
    batch = next(fed.batches(torch.arange(1), 0))
    with torch.no_grad():
        _, kept = adapter(state.gate[0], state.statistics[0].clone(), batch.x[0], 0, "train")
    return adapter, kept


def step_counts(algorithm: PFedGate, fed: Federation, uses: Tensor) -> dict[str, float]:
    """Counts of a client's first step: shares of parameters and MACs kept, and MACs computed relative to FedAvg."""
    adapter, kept = first_mask(algorithm, fed)
    macs, (_, _, _, _, forward, *_) = layer_macs(fed.layout, uses), adapter.gate.sizes  # d_X L for each path
    gate = forward * (3 if adapter.gate.pre_norm else 2)  # of a training step
    computed = sliced_macs(macs, adapter.blocks, kept) if algorithm.execution == "sliced" else macs
    return {
        "parameters kept": float(adapter.blocks.share(kept)),
        "MACs kept": float(adapter.blocks.macs_share(kept, uses)),
        "gate / model, parameters": sum(adapter.gate.sizes) / fed.num_params,
        "gate / model, MACs": forward / sum(macs.values()),
        "step computed": (training_macs(computed) + gate) / training_macs(macs),
    }


def fedem_step(macs: Mapping[str, float], components: int) -> float:
    """MACs of FedEM's round relative to FedAvg: each component is trained, and evaluated once for the E step."""
    return components * (1 + sum(macs.values()) / training_macs(macs))


def table5(keep: float, upload: float, gate: float, components: int = 3) -> pd.DataFrame:
    """The paper's Table 5 in units of d, with the values of its formulas.

    ``keep``: s; ``upload``: q; ``gate``: s_φ; ``components``: FedEM's k. For inference the paper prints only orders,
    and O(d) for FedEM, which runs k components. The numbers here are half of training's, because the formulas count
    forward and backward alike. pFedHN's server keeps an additional network. The paper does not define r, r' and r'' of
    the peak memory.
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
