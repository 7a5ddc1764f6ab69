"""Settings by paper, data set and preset: what differs between ``ci``, ``quick``, ``real`` and ``paper``.

A setting is everything of a run but its method and seed. Every paper value says where it comes from; the smaller
presets keep the paper's clients, partition and optimizer, and say what they shrink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from pfl_core.algorithm import checked, did_you_mean
from pfl_core.presets import fedpews, fedselect, star_pfl
from pfl_core.presets.frame import Setting
from pfl_core.runs.spec import RunSpec
from pfl_core.training import Training

PRESETS = ("ci", "quick", "real", "paper")

SETTINGS: dict[tuple[str, str], dict[str, Setting]] = {  # (paper, preset) -> the paper's data set or experiment
    (paper, preset): settings
    for paper, module in (("fedselect", fedselect), ("fedpews", fedpews), ("star_pfl", star_pfl))
    for preset, settings in module.SETTINGS.items()
}

# A method's own settings where a paper uses others than the class's defaults: (paper, method) -> fields.
METHODS: dict[tuple[str, str], dict[str, Any]] = {
    ("fedselect", "fedavg_ft"): {"finetune_epochs": 3},  # not stated; as many as its local epochs (ours)
    ("fedpews", "fedavg"): {"client_weighting": "uniform"},
    ("pfedgate", "fedavg"): {"client_weighting": "samples"},
    ("pfedgate", "fedavg_ft"): {"client_weighting": "samples", "finetune_epochs": 1},
    **{("star_pfl", method): own for method, own in star_pfl.METHODS.items()},
}
# Training that goes with a reading: (paper, reading) -> fields of Training.
READINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("fedselect", "authors_code"): {"epochs": 15, "lr": 0.05, "batch_size": 32, "augment": "crop_flip"},
}
TRAINING = {f.name for f in fields(Training)}


def target(spec: RunSpec) -> float | None:
    """The accuracy (percent) whose first round the paper's tables give for this run's column; None if they do not."""
    return fedpews.TARGETS.get(spec.setting) if spec.paper == "fedpews" else None


def check_preset(preset: str) -> None:
    """Raise ValueError if there is no such preset."""
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}{did_you_mean(preset, PRESETS)}; choose from {', '.join(PRESETS)}")


def setting(paper: str, preset: str, dataset: str | None = None) -> Setting:
    """The frame of a paper's experiment; ``dataset`` is the paper's, default its first.

    Raises ValueError for an unknown paper, preset or data set.
    """
    check_preset(preset)
    papers = sorted({name for name, _ in SETTINGS})
    if paper not in papers:
        raise ValueError(f"no settings for paper {paper!r}{did_you_mean(paper, papers)}; there are {', '.join(papers)}")
    known = SETTINGS[paper, preset]
    name = dataset or next(iter(known))
    if name not in known:
        raise ValueError(f"{paper} has no data set {name!r} at preset {preset}; it has {', '.join(known)}")
    return known[name]


def spec(
    paper: str,
    method: str,
    *,
    preset: str,
    dataset: str | None = None,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RunSpec:
    """A run of a paper's experiment: its frame, the paper's fields of the method, then ``settings`` of ours.

    ``overrides`` replaces fields of the frame (rounds, clients, participation, ...) or of its training (lr, epochs,
    ...) by name; parts take a name or a dictionary. Raises ValueError for unknown names.
    """
    name = dataset or next(iter(SETTINGS.get((paper, preset), [""])))
    frame = setting(paper, preset, dataset)
    part = {"name": method} | METHODS.get((paper, method), {}) | settings
    made = RunSpec(
        method=part,
        **{f.name: getattr(frame, f.name) for f in fields(frame)},
        seed=seed,
        paper=paper,
        preset=preset,
        setting=name,
    )
    training = READINGS.get((paper, settings.get("reading", "paper")), {}) if preset == "paper" else {}
    return override(made, {**training, **(overrides or {})})


def override(made: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    """``made`` with fields of the run or of its training replaced; raises ValueError for unknown names."""
    own = {f.name for f in fields(RunSpec)} - {"train"}
    for name in changes:
        if name not in own | TRAINING:
            known = ", ".join(sorted(own | TRAINING))
            raise ValueError(f"no setting {name!r}{did_you_mean(name, own | TRAINING)}; overrides may set {known}")
    train = replace(made.train, **checked(Training, {k: v for k, v in changes.items() if k in TRAINING}, "training"))
    rest = {k: {"name": v} if isinstance(v, str) and k in PARTS else v for k, v in changes.items() if k in own}
    return replace(made, train=train, **checked(RunSpec, rest, "run"))


PARTS = ("method", "data", "partition", "model")
