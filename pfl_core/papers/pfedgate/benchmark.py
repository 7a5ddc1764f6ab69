"""Measurements for pFedGate's Table 2: time, memory and counts of a client's steps on random images, by method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
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
from pfl_core.training import Training

SMALL = "pFedGate, s = 0.3"  # the published method: full-size kernels with a mask
SLICED = "whole neurons, s = 0.3, sliced"  # not in the paper
M_STEP = "FedEM, without its E step"
ROWS = {"block_layout": "output_rows", "straight_through": "kept"}
Modes = dict[str, tuple[str, dict[str, Any]]]  # label -> method and its fields
# Table 2's rows. "whole neurons" (not in the paper): the same blocks, with masked or with physically smaller layers.
MODES: Modes = {
    "FedAvg": ("fedavg", {"client_weighting": "samples"}),
    "FedEM": ("fedem", {}),
    "pFedGate, s = 1": ("pfedgate", {"keep_ratio": 1.0}),
    "pFedGate, s = 0.5": ("pfedgate", {"keep_ratio": 0.5}),
    SMALL: ("pfedgate", {"keep_ratio": 0.3}),
    "whole neurons, s = 0.3, masked": ("pfedgate", {"keep_ratio": 0.3, **ROWS}),
    SLICED: ("pfedgate", {"keep_ratio": 0.3, **ROWS, "execution": "sliced"}),
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


@dataclass(frozen=True)
class Bench:
    """One client with ``STEPS`` batches of random images, whose content does not affect the measurements."""

    batch: int
    network: str = NETWORK

    def federation(self) -> Federation:
        """A new federation: the optimizer of the paper's experiments; equal initial weights and images at each call."""
        stream, num = generator(0, "images"), STEPS * self.batch
        shape, classes = NETWORKS[self.network]
        x = torch.randn(num, *shape, generator=stream)
        split = Split.of([(x, torch.randint(0, classes, (num,), generator=stream))])
        train = Training(lr=0.03, batch_size=self.batch, momentum=0.9, weight_decay=5e-4, clip_norm=10.0)
        net = models.build(self.network, shape, classes, 0)
        return Federation(net, {"train": split, "test": split}, seed=0, rounds=1, train=train)

    def work(self, modes: Mapping[str, Algorithm]) -> dict[str, Callable[[], object]]:
        """label -> function that runs one client's round from the initial state, without scoring."""
        client, out = torch.arange(1), dict[str, Callable[[], object]]()
        for label, algorithm in modes.items():
            fed = self.federation()
            state = algorithm.init(fed, fed.theta0)
            out[label] = partial(algorithm.round, fed, state, client, 0)
            if isinstance(algorithm, FedEM):
                q = algorithm.e_step(fed, state, client)
                out[M_STEP] = partial(algorithm.m_step, fed, state, client, q, 0)
        return out

    def memory(self, modes: Mapping[str, Algorithm]) -> pd.Series:
        """label -> peak MB of the tensors that a client's first round creates, the method's state included."""
        client, peaks = torch.arange(1), {}
        for label, algorithm in modes.items():
            fed = self.federation()

            def first_round(algorithm: Algorithm = algorithm, fed: Federation = fed) -> object:
                return algorithm.round(fed, algorithm.init(fed, fed.theta0), client, 0)

            peaks[label] = profiling.peak_bytes(first_round) / 1e6
        return pd.Series(peaks, name="peak_mb")


def modes(preset: str) -> dict[str, Algorithm]:
    """label -> the method to measure."""
    chosen = MODES if preset in BATCHES else MODES | MORE_MODES
    return {label: build(name, options) for label, (name, options) in chosen.items()}


def _cached(name: str, work: Callable[[str], pd.DataFrame], preset: str) -> pd.DataFrame:
    """A measurement made once on a machine; at presets real and paper the committed one, if any."""
    committed = f"pfedgate/{preset}" if preset in ("real", "paper") else ""
    return profiling.once(f"{name}-{preset}", partial(work, preset), VERSION, committed)


def timed(preset: str) -> pd.DataFrame:
    """Processor time of a step. Columns: label, batch, turn, ms, ratio (to FedAvg in the same turn), processor.

    ``processor`` names the one that was measured; a stored measurement may come from another machine.
    """
    return _cached("gate-times", _timed, preset)


def _timed(preset: str) -> pd.DataFrame:
    torch.set_num_threads(1)
    frames = []
    for batch in batches(preset):
        frame = profiling.seconds(Bench(batch).work(modes(preset)), TURNS.get(preset, DEFAULT_TURNS)).assign(
            batch=batch
        )
        fedavg = frame[frame["label"] == "FedAvg"].set_index("turn")["seconds"]
        ratio = frame["seconds"] / frame["turn"].map(fedavg)
        frames.append(frame.assign(ms=1e3 * frame["seconds"] / STEPS, ratio=ratio))
    times = pd.concat(frames, ignore_index=True)[["label", "batch", "turn", "ms", "ratio"]]
    return times.assign(processor=provenance.processor())


def peak_memory(preset: str) -> pd.DataFrame:
    """Peak memory of a client's first round. Columns: label, batch, peak_mb, ratio (to FedAvg)."""
    return _cached("gate-memory", _peak_memory, preset)


def _peak_memory(preset: str) -> pd.DataFrame:
    frames = []
    for batch in batches(preset):
        peak = Bench(batch).memory(modes(preset))
        frames.append(pd.DataFrame({"batch": batch, "peak_mb": peak, "ratio": peak / peak["FedAvg"]}))
    return pd.concat(frames).rename_axis("label").reset_index()


def analytic(preset: str) -> pd.DataFrame:
    """Counted costs of each method's round of two steps: shares, multiply-adds and upload, a row per method."""
    return _cached("gate-counts", _analytic, preset)


def _analytic(preset: str) -> pd.DataFrame:
    fed = Bench(batches(preset)[0]).federation()
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
        fed = Bench(1, network).federation()
        macs = pd.Series(layer_macs(fed.layout, weight_uses(fed, fed.theta0)))
        sizes = pd.Series({f.layer: 0 for f in fed.layout.params})
        for f in fed.layout.params:  # weight and bias
            sizes[f.layer] += f.stop - f.start
        frame = pd.DataFrame({"network": network, "parameters": sizes / sizes.sum(), "MACs": macs / macs.sum()})
        frames.append(frame.rename_axis("layer").reset_index())
    return pd.concat(frames, ignore_index=True)


def kept_shares() -> pd.DataFrame:
    """Shares that a client keeps for its first batch. Columns: network, s, reading, parameters, MACs."""
    rows = []
    for network in NETWORKS:
        fed = Bench(2, network).federation()
        uses = weight_uses(fed, fed.theta0)
        for reading, s in product(("paper", "authors_code"), (0.5, 0.3)):
            adapter, kept = first_mask(PFedGate.reading(reading, keep_ratio=s), fed)
            shares = float(adapter.blocks.share(kept)), float(adapter.blocks.macs_share(kept, uses))
            rows.append((network, s, reading, *shares))
    return pd.DataFrame(rows, columns=["network", "s", "reading", "parameters", "MACs"])


def batches(preset: str) -> tuple[int, ...]:
    """The batch sizes of a preset."""
    return BATCHES.get(preset, PAPER_BATCHES)


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
    for preset in ("real", "paper"):
        files = (RESULTS / "pfedgate" / preset / f"{name}-{preset}.measured" for name in ("gate-times", "gate-memory"))
        times, memory = map(profiling.read, files)
        if times is not None and memory is not None:
            rows += measured_rows(times, memory, preset)
    return rows
