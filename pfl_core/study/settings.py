"""A paper's settings by preset: everything of a run but its method and its seed.

The presets differ in size: ``paper`` has the paper's values, each with its source; the smaller ones keep the paper's
clients, partition and optimizer, and say what they shrink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pfl_core.options import checked, did_you_mean
from pfl_core.runs.spec import TAGS, ComponentSpec, RunSpec
from pfl_core.study.presets import check_preset
from pfl_core.training import Training

PARTS = ("data", "partition", "model")
TRAINING = {f.name for f in fields(Training)}
GO_WITH = ("partition", "model")  # parts whose options may go with a method, see PaperSettings
NOT_OF_METHOD = TRAINING | {*GO_WITH}

Searched = Mapping[tuple[str, str], Mapping[str, Mapping[str, float]]]  # (preset, experiment) -> method -> values
Methods = Sequence[tuple[str, dict[str, Any]]]  # a method's registered name and its fields


@dataclass(frozen=True)
class Setting:
    """One experiment's setting; see RunSpec for the fields."""

    data: ComponentSpec
    partition: ComponentSpec
    model: ComponentSpec
    train: Training
    clients: int
    rounds: int
    participation: float = 1.0
    sampling: str = "each_round"
    eval_every: int = 1
    novel: float = 0.0


def searched_values(searched: Searched, preset: str, name: str, method: str) -> Mapping[str, float]:
    """What a search chose for a method in an experiment, or in the one that it varies ("cifar10, novel": "cifar10").

    Nothing where there was no search.
    """
    for place in (name, name.partition(",")[0]):
        if (preset, place) in searched:
            return searched[preset, place].get(method, {})
    return {}


def alike(method: Mapping[str, Any], preset: str, name: str) -> dict[str, Any]:
    """All methods train alike."""
    return {}


@dataclass(frozen=True)
class PaperSettings:
    """A paper's experiments at each preset, and its methods' fields.

    ``settings``: preset -> the paper's data set or experiment -> setting; the first one is the default.
    ``method_fields``: method -> fields where the paper's values differ from the class's defaults.
    ``with_method``: (method as it is asked for, preset, experiment) -> what goes with its reading, budget or options:
    fields of Training, options of the network and of the division under "model" and "partition", and fields of the
    method. What is asked for wins over it.
    ``searched``: (preset, experiment) -> method -> values that a search chose on validation images (``study.search``);
    they win over the others, see ``searched_values``.
    """

    paper: str
    settings: Mapping[str, Mapping[str, Setting]]
    method_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    with_method: Callable[[Mapping[str, Any], str, str], dict[str, Any]] = alike
    searched: Searched = field(default_factory=dict)

    def before_search(self) -> PaperSettings:
        """The same without what searches chose."""
        return replace(self, searched={})

    def suited(self, method: Mapping[str, Any], preset: str, name: str) -> dict[str, Any]:
        """What goes with a method in an experiment unless something else is asked for."""
        return self.with_method(method, preset, name) | searched_values(self.searched, preset, name, method["name"])

    def setting(self, preset: str, name: str | None = None) -> Setting:
        """One experiment's setting. Raises ValueError for an unknown preset or experiment."""
        check_preset(preset)
        known = self.settings[preset]
        name = name or next(iter(known))
        if name not in known:
            raise ValueError(f"{self.paper} has no data set {name!r} at preset {preset}; it has {', '.join(known)}")
        return known[name]

    def spec(
        self,
        method: str,
        *,
        preset: str,
        dataset: str | None = None,
        seed: int = 0,
        overrides: Mapping[str, Any] | None = None,
        **asked: Any,
    ) -> RunSpec:
        """A run of one of the experiments: its setting, the paper's fields of the method, then those ``asked`` for.

        ``overrides`` replaces fields of the setting (rounds, clients, participation, ...) or of its training (lr,
        epochs, ...) by name; parts take a name or a dictionary. Raises ValueError for unknown names.
        """
        setting = self.setting(preset, dataset)
        name = dataset or next(iter(self.settings[preset]))
        part = {"name": method} | dict(self.method_fields.get(method, {})) | asked
        suited = self.suited(part, preset, name)
        spec = RunSpec(
            method={k: v for k, v in suited.items() if k not in NOT_OF_METHOD} | part,
            **{f.name: getattr(setting, f.name) for f in fields(setting)},
            seed=seed,
            paper=self.paper,
            preset=preset,
            setting=name,
        )
        changes = {k: v for k, v in suited.items() if k in TRAINING}
        changes |= {part: {**getattr(setting, part), **suited[part]} for part in GO_WITH if part in suited}
        return override(spec, changes | dict(overrides or {}))

    def specs(
        self, name: str, preset: str, seeds: Sequence[int], overrides: Mapping[str, Any], methods: Methods
    ) -> list[RunSpec]:
        """Several methods in one experiment, each with every seed."""
        return [
            self.spec(method, preset=preset, dataset=name, seed=seed, overrides=overrides, **asked)
            for seed in seeds
            for method, asked in methods
        ]

    def fields_of(self, spec: RunSpec) -> dict[str, Any]:
        """The fields that a run's method has from these settings, unless others were asked for."""
        suited = self.suited(spec.method, spec.preset, spec.setting)
        own = self.method_fields.get(spec.method["name"], {})
        return {**own, **{k: v for k, v in suited.items() if k not in NOT_OF_METHOD}}


def override(spec: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    """``spec`` with fields of the run or of its training replaced; raises ValueError for unknown names."""
    own = {f.name for f in fields(RunSpec)} - {"train", "method", "seed", *TAGS}
    for name in changes:
        if name not in own | TRAINING:
            known = ", ".join(sorted(own | TRAINING))
            raise ValueError(f"no setting {name!r}{did_you_mean(name, own | TRAINING)}; overrides may set {known}")
    train = replace(spec.train, **checked(Training, {k: v for k, v in changes.items() if k in TRAINING}, "training"))
    rest = {k: {"name": v} if isinstance(v, str) and k in PARTS else v for k, v in changes.items() if k in own}
    return replace(spec, train=train, **checked(RunSpec, rest, "run"))
