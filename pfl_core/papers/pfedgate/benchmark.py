"""Measurements for pFedGate's Table 2: time, memory and counts of a client's steps on random images, by method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial, wraps
from itertools import product
from typing import Any

import pandas as pd
import torch

from pfl_core import models
from pfl_core.algorithm import Algorithm, build
from pfl_core.algorithms.fedem import FedEM
from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.costs import payload_bytes, weight_uses
from pfl_core.federation import Federation, Split
from pfl_core.papers.pfedgate.costs import fedem_step, first_mask, layer_macs, step_counts
from pfl_core.papers.pfedgate.settings import METHOD_FIELDS
from pfl_core.runs import RESULTS, provenance
from pfl_core.seeding import generator
from pfl_core.study import profiling
from pfl_core.study.frame import Row
from pfl_core.study.presets import DECIDING
from pfl_core.training import Training

M_STEP = "FedEM, without its E step"
ROWS = {"block_layout": "output_rows", "straight_through": "kept"}
Modes = dict[str, tuple[str, dict[str, Any]]]  # label -> method and its fields
Measurement = Callable[[str], pd.DataFrame]  # of a preset
# Table 2's rows. "whole neurons" (not in the paper): the same blocks, with masked or with physically smaller layers.
MODES: Modes = {
    "FedAvg": ("fedavg", {"client_weighting": "samples"}),
    "FedEM": ("fedem", {}),
    "pFedGate, s = 1": ("pfedgate", {"keep_ratio": 1.0}),
    "pFedGate, s = 0.5": ("pfedgate", {"keep_ratio": 0.5}),
    "pFedGate, s = 0.3": ("pfedgate", {"keep_ratio": 0.3}),
    "whole neurons, s = 0.3, masked": ("pfedgate", {"keep_ratio": 0.3, **ROWS}),
    "whole neurons, s = 0.3, sliced": ("pfedgate", {"keep_ratio": 0.3, **ROWS, "execution": "sliced"}),
}
MORE_MODES: Modes = {  # only at presets real and paper
    "whole neurons, s = 1, sliced": ("pfedgate", {"keep_ratio": 1.0, **ROWS, "execution": "sliced"}),
    "whole neurons, s = 0.5, masked": ("pfedgate", {"keep_ratio": 0.5, **ROWS}),
    "whole neurons, s = 0.5, sliced": ("pfedgate", {"keep_ratio": 0.5, **ROWS, "execution": "sliced"}),
}
STEPS = 2  # in a round
VERSION = 2  # raised when the measured work or the way of measuring changes
NETWORK = "lenet_cifar"
NETWORKS = {  # the paper's three networks: image shape, classes
    "leaf_cnn": ((1, 28, 28), 62),
    "lenet_cifar": ((3, 32, 32), 10),
    "leaf_cnn_cifar": ((3, 32, 32), 100),
}
BATCHES = {"ci": (4,), "quick": (32,)}  # batch sizes of the small presets
PAPER_BATCHES = (32, 128, 512)  # of the others: Table 2's columns
TURNS, DEFAULT_TURNS = {"ci": 2}, 10  # ten turns are twenty steps of each method
COUNT_BYTES = 4  # n_k, sent with pFedGate's blocks


def federation(batch: int, network: str = NETWORK) -> Federation:
    """A new client with ``STEPS`` batches of random images, whose content does not affect the measurements.

    The optimizer is that of the paper's experiments; initial weights and images are equal at each call.
    """
    stream, num = generator(0, "images"), STEPS * batch
    shape, classes = NETWORKS[network]
    x = torch.randn(num, *shape, generator=stream)
    split = Split.of([(x, torch.randint(0, classes, (num,), generator=stream))])
    train = Training(lr=0.03, batch_size=batch, momentum=0.9, weight_decay=5e-4, clip_norm=10.0)
    net = models.build(network, shape, classes, 0)
    return Federation(net, {"train": split, "test": split}, seed=0, rounds=1, train=train)


def modes(preset: str) -> dict[str, Algorithm]:
    """label -> the method to measure."""
    chosen = MODES if preset in BATCHES else MODES | MORE_MODES
    return {label: build(name, options) for label, (name, options) in chosen.items()}


def batches(preset: str) -> tuple[int, ...]:
    """The batch sizes of a preset."""
    return BATCHES.get(preset, PAPER_BATCHES)


def measured(name: str) -> Callable[[Measurement], Measurement]:
    """Makes a measurement once on a machine; at presets real and paper the committed one is used, if any."""

    def cached(measure: Measurement) -> Measurement:
        @wraps(measure)
        def of_preset(preset: str) -> pd.DataFrame:
            committed = f"pfedgate/{preset}" if preset in DECIDING else ""
            return profiling.once(f"{name}-{preset}", partial(measure, preset), VERSION, committed)

        return of_preset

    return cached


@measured("gate-times")
def timed(preset: str) -> pd.DataFrame:
    """Processor time of a step of one client's round, which starts from the initial state and is not scored.

    Columns: label, batch, turn, ms, ratio (to FedAvg in the same turn), processor: the one that was measured; a stored
    measurement may come from another machine.
    """
    torch.set_num_threads(1)
    frames, client = [], torch.arange(1)
    for batch in batches(preset):
        work: dict[str, Callable[[], object]] = {}
        for label, algorithm in modes(preset).items():
            fed = federation(batch)
            state = algorithm.init(fed, fed.theta0)
            work[label] = partial(algorithm.round, fed, state, client, 0)
            if isinstance(algorithm, FedEM):
                work[M_STEP] = partial(algorithm.m_step, fed, state, client, algorithm.e_step(fed, state, client), 0)
        frame = profiling.seconds(work, TURNS.get(preset, DEFAULT_TURNS))
        fedavg = frame[frame["label"] == "FedAvg"].set_index("turn")["seconds"]
        ratio = frame["seconds"] / frame["turn"].map(fedavg)
        frames.append(frame.assign(batch=batch, ms=1e3 * frame["seconds"] / STEPS, ratio=ratio))
    times = pd.concat(frames, ignore_index=True)[["label", "batch", "turn", "ms", "ratio"]]
    return times.assign(processor=provenance.processor())


@measured("gate-memory")
def peak_memory(preset: str) -> pd.DataFrame:
    """Peak memory of the tensors that a client's first round creates, the method's state included.

    Columns: label, batch, peak_mb, ratio (to FedAvg).
    """

    def first_round(algorithm: Algorithm, fed: Federation) -> object:
        return algorithm.round(fed, algorithm.init(fed, fed.theta0), torch.arange(1), 0)

    frames = []
    for batch in batches(preset):
        work = {label: partial(first_round, algorithm, federation(batch)) for label, algorithm in modes(preset).items()}
        peak = pd.Series({label: profiling.peak_bytes(function) / 1e6 for label, function in work.items()})
        frames.append(pd.DataFrame({"batch": batch, "peak_mb": peak, "ratio": peak / peak["FedAvg"]}))
    return pd.concat(frames).rename_axis("label").reset_index()


@measured("gate-counts")
def analytic(preset: str) -> pd.DataFrame:
    """Counted costs of each method's round of two steps: shares, multiply-adds and upload, a row per method."""
    fed = federation(batches(preset)[0])
    uses, rows = weight_uses(fed, fed.theta0), {}
    for label, algorithm in modes(preset).items():
        _, notes = algorithm.round(fed, algorithm.init(fed, fed.theta0), torch.arange(1), 0)
        sent = payload_bytes(float(notes["upload"][0]), float(notes.get("upload_bits", torch.zeros(1))[0]))
        counts = {"step computed": 1.0}
        if isinstance(algorithm, PFedGate):
            counts, sent = step_counts(algorithm, fed, uses), sent + COUNT_BYTES
        if isinstance(algorithm, FedEM):
            counts["step computed"] = fedem_step(layer_macs(fed.layout, uses), algorithm.components)
        rows[label] = {**counts, "upload, kB": sent / 1e3, "upload / d": float(notes["upload"][0]) / fed.num_params}
    return pd.DataFrame.from_dict(rows, orient="index")


def by_layer() -> pd.DataFrame:
    """Parameters and MACs of the paper's networks by layer. Columns: network, layer, parameters, MACs (shares)."""
    frames = []
    for network in NETWORKS:
        fed = federation(1, network)
        macs = pd.Series(layer_macs(fed.layout, weight_uses(fed, fed.theta0)))
        sizes = pd.Series(layer_macs(fed.layout, torch.ones(fed.num_params)))  # weight and bias
        frame = pd.DataFrame({"network": network, "parameters": sizes / sizes.sum(), "MACs": macs / macs.sum()})
        frames.append(frame.rename_axis("layer").reset_index())
    return pd.concat(frames, ignore_index=True)


def kept_shares() -> pd.DataFrame:
    """Shares that a client keeps for its first batch. Columns: network, s, reading, parameters, MACs."""
    rows = []
    for network in NETWORKS:
        fed = federation(2, network)
        uses = weight_uses(fed, fed.theta0)
        for reading, s in product(("paper", "authors_code"), (0.5, 0.3)):
            adapter, kept = first_mask(PFedGate.reading(reading, keep_ratio=s), fed)
            shares = float(adapter.blocks.share(kept)), float(adapter.blocks.macs_share(kept, uses))
            rows.append((network, s, reading, *shares))
    return pd.DataFrame(rows, columns=["network", "s", "reading", "parameters", "MACs"])


def measured_rows(times: pd.DataFrame, memory: pd.DataFrame, preset: str) -> Iterator[Row]:
    """The measurements as rows of the frame (``study.frame``), for the claims: turns are seeds, batch sizes settings.

    Metrics: ``step_ratio``, a step's processor time relative to FedAvg's in the same turn; ``peak_ratio``, the peak
    memory relative to FedAvg's, a count, in the first turn. ``e_step``: whether FedEM's E step is counted.
    """
    peaks = memory.assign(turn=times["turn"].min()).set_index(["label", "batch", "turn"])["ratio"]
    for row in times.itertuples():
        name, options = (MODES | MORE_MODES).get(row.label, ("fedem", {}))
        usual = asdict(build(name, {})) | METHOD_FIELDS.get(name, {}) | {"e_step": True}
        fields = options | {"e_step": row.label != M_STEP}
        yield {
            "method": name,
            **usual,
            **fields,
            "changed": [field for field, value in fields.items() if value != usual[field]],
            **{"seed": int(row.turn), "rounds": 1, "preset": preset, "setting": f"batch {row.batch}"},
            **{"dataset": "random images", "data": f"random images, {NETWORK}", "differs": "data"},
            **{"key": f"{row.label}, batch {row.batch}, turn {row.turn}", "where": f"random images, batch {row.batch}"},
            **{"partial": False, "stale": False, "failed": 0.0, "step_ratio": float(row.ratio)},
            "peak_ratio": float(peaks.get((row.label, row.batch, row.turn), math.nan)),
        }


def committed_rows() -> list[Row]:
    """The rows of the committed times and peaks of all presets."""
    rows: list[Row] = []
    for preset in DECIDING:
        files = (RESULTS / "pfedgate" / preset / f"{name}-{preset}.measured" for name in ("gate-times", "gate-memory"))
        times, memory = map(profiling.read, files)
        if times is not None and memory is not None:
            rows += measured_rows(times, memory, preset)
    return rows
