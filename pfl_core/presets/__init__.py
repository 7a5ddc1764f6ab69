"""Settings by paper, data set and preset: what differs between ``ci``, ``quick``, ``real`` and ``paper``.

A setting is everything of a run but its method and seed. Every paper value says where it comes from; the smaller
presets keep the paper's clients, partition and optimizer, and say what they shrink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from pfl_core.options import checked, did_you_mean
from pfl_core.presets import fedpews, fedselect, pfedgate, star_pfl
from pfl_core.presets.frame import Setting
from pfl_core.runs.spec import TAGS, RunSpec
from pfl_core.training import Training

PRESETS = ("ci", "quick", "real", "paper")

# Each paper's module has SETTINGS (preset -> the paper's data set or experiment -> frame), METHODS (method -> fields
# where the paper uses others than the class's defaults) and training(method, preset, dataset): what goes with a method
# as it is asked for, its reading, budget or options. Its result names fields of Training, options of the model under
# "model", and fields of the method itself where a rate is one; what is asked for wins over all of them.
PAPERS = {"fedselect": fedselect, "fedpews": fedpews, "pfedgate": pfedgate, "star_pfl": star_pfl}

SETTINGS: dict[tuple[str, str], dict[str, Setting]] = {
    (paper, preset): settings for paper, module in PAPERS.items() for preset, settings in module.SETTINGS.items()
}
METHODS: dict[tuple[str, str], dict[str, Any]] = {
    (paper, method): own for paper, module in PAPERS.items() for method, own in module.METHODS.items()
}
TRAINING = {f.name for f in fields(Training)}
NOT_OF_METHOD = TRAINING | {"model"}  # in what ``training`` returns


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
    suited = PAPERS[paper].training(part, preset, name)
    made = RunSpec(
        method={k: v for k, v in suited.items() if k not in NOT_OF_METHOD} | part,
        **{f.name: getattr(frame, f.name) for f in fields(frame)},
        seed=seed,
        paper=paper,
        preset=preset,
        setting=name,
    )
    changes = {k: v for k, v in suited.items() if k in TRAINING}
    if "model" in suited:
        changes["model"] = {**frame.model, **suited["model"]}
    return override(made, changes | dict(overrides or {}))


def own_fields(made: RunSpec) -> dict[str, Any]:
    """The fields of its method that a run has from its paper's settings, unless others were asked for."""
    if made.paper not in PAPERS:
        return {}
    suited = PAPERS[made.paper].training(made.method, made.preset, made.setting)
    own = METHODS.get((made.paper, made.method["name"]), {})
    return {**own, **{k: v for k, v in suited.items() if k not in NOT_OF_METHOD}}


def override(made: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    """``made`` with fields of the run or of its training replaced; raises ValueError for unknown names."""
    own = {f.name for f in fields(RunSpec)} - {"train", "method", "seed", *TAGS}
    for name in changes:
        if name not in own | TRAINING:
            known = ", ".join(sorted(own | TRAINING))
            raise ValueError(f"no setting {name!r}{did_you_mean(name, own | TRAINING)}; overrides may set {known}")
    train = replace(made.train, **checked(Training, {k: v for k, v in changes.items() if k in TRAINING}, "training"))
    rest = {k: {"name": v} if isinstance(v, str) and k in PARTS else v for k, v in changes.items() if k in own}
    return replace(made, train=train, **checked(RunSpec, rest, "run"))


PARTS = ("data", "partition", "model")
