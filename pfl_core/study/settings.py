"""A paper's settings by preset: everything in a run except its method and seed.

The presets differ in size. ``paper`` has the paper's values, each with its source. The smaller presets keep the paper's
clients, partition and optimizer, and state what they reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pfl_core.options import checked, choices
from pfl_core.runs.spec import TAGS, ComponentSpec, RunSpec
from pfl_core.training import Training

PARTS = ("data", "partition", "model")
TRAINING = {f.name for f in fields(Training)}
METHOD_DEPENDENT = ("partition", "model")  # components with options that may depend on the method, see PaperSettings
NOT_OF_METHOD = TRAINING | {*METHOD_DEPENDENT}

Searched = Mapping[tuple[str, str], Mapping[str, Mapping[str, float]]]  # (preset, setting) -> method -> values
Methods = Sequence[tuple[str, dict[str, Any]]]  # a method's registered name and its fields


@dataclass(frozen=True)
class Setting:
    """One setting of a paper, e.g. a data set with its partition and training; see RunSpec for the fields."""

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
    """The values that a search chose for a method in a setting; empty if there was no search.

    A variant of a setting has the values of that setting: "cifar10, novel" those of "cifar10".
    """
    for setting in (name, name.partition(",")[0]):
        if (preset, setting) in searched:
            return searched[preset, setting].get(method, {})
    return {}


@dataclass(frozen=True)
class PaperSettings:
    """A paper's settings at each preset, and the fields of its methods.

    ``settings``: preset -> name (a data set or experiment of the paper) -> setting; the first one is the default.
    ``method_fields``: method -> fields whose values in the paper differ from the class's defaults.
    ``with_method``: function of (requested method, preset, setting's name) to values that depend on the method's
    reading, budget or options: fields of Training, fields of the method, and options of the network and partition under
    "model" and "partition". Requested fields have priority over them.
    ``searched``: (preset, setting) -> method -> values that a search chose on validation images (``study.search``).
    They have priority over ``with_method``, see ``searched_values``.
    """

    paper: str
    settings: Mapping[str, Mapping[str, Setting]]
    method_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    with_method: Callable[[Mapping[str, Any], str, str], dict[str, Any]] = lambda method, preset, name: {}
    searched: Searched = field(default_factory=dict)

    def before_search(self) -> PaperSettings:
        """The settings without the values that searches chose."""
        return replace(self, searched={})

    def suited(self, method: Mapping[str, Any], preset: str, name: str) -> dict[str, Any]:
        """The method-dependent values in a setting: from ``with_method`` and from the search."""
        return {
            **self.with_method(method, preset, name),
            **searched_values(self.searched, preset, name, method["name"]),
        }

    def of(self, preset: str) -> Mapping[str, Setting]:
        """The settings of a preset. Raises ValueError if this study does not have it."""
        if preset not in self.settings:
            raise ValueError(f"{self.paper} has no preset {preset!r}{choices(preset, self.settings)}")
        return self.settings[preset]

    def setting(self, preset: str, name: str | None = None) -> Setting:
        """A setting by name, default the first. Raises ValueError for an unknown preset or setting."""
        known = self.of(preset)
        name = name or next(iter(known))
        if name not in known:
            raise ValueError(
                f"{self.paper} has no data set {name!r} at preset {preset}; choose from {', '.join(known)}"
            )
        return known[name]

    def spec(
        self,
        method: str,
        *,
        preset: str,
        setting: str | None = None,
        seed: int = 0,
        overrides: Mapping[str, Any] | None = None,
        **asked: Any,
    ) -> RunSpec:
        """A run in a setting (default: the first). Fields of the method: the paper's, replaced by those ``asked``.

        ``overrides`` replaces fields of the setting (rounds, clients, participation, ...) or of its training (lr,
        epochs, ...) by name. A component is given as its name or a dictionary. Raises ValueError for unknown names.
        """
        values, name = self.setting(preset, setting), setting or next(iter(self.settings[preset]))
        fixed = {"name": method, **self.method_fields.get(method, {})}
        suited = self.suited(fixed | asked, preset, name)
        changes = {k: v for k, v in suited.items() if k in TRAINING}
        changes |= {kind: {**getattr(values, kind), **suited[kind]} for kind in METHOD_DEPENDENT if kind in suited}
        changes |= dict(overrides or {})
        return RunSpec(
            method=fixed | {k: v for k, v in suited.items() if k not in NOT_OF_METHOD} | asked,
            **{f.name: getattr(values, f.name) for f in fields(values)} | _overridden(values.train, changes),
            seed=seed,
            paper=self.paper,
            preset=preset,
            setting=name,
        )

    def specs(
        self, name: str, preset: str, seeds: Sequence[int], overrides: Mapping[str, Any], methods: Methods
    ) -> list[RunSpec]:
        """The runs of several methods in one setting, each with every seed."""
        return [
            self.spec(method, preset=preset, setting=name, seed=seed, overrides=overrides, **asked)
            for seed in seeds
            for method, asked in methods
        ]

    def fields_of(self, spec: RunSpec) -> dict[str, Any]:
        """The fields that these settings give to a run's method."""
        suited = self.suited(spec.method, spec.preset, spec.setting)
        fixed = self.method_fields.get(spec.method["name"], {})
        return {**fixed, **{k: v for k, v in suited.items() if k not in NOT_OF_METHOD}}


def override(spec: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    """``spec`` with fields of the run or of its training replaced. Raises ValueError for unknown names."""
    return replace(spec, **_overridden(spec.train, changes)) if changes else spec


def _overridden(train: Training, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run that ``changes`` replaces. Raises ValueError for unknown names."""
    run_fields = {f.name for f in fields(RunSpec)} - {"train", "method", "seed", *TAGS}
    known = run_fields | TRAINING
    for name in changes:
        if name not in known:
            raise ValueError(f"overrides cannot set {name!r}{choices(name, sorted(known))}")
    train = replace(train, **checked(Training, {k: v for k, v in changes.items() if k in TRAINING}, "training"))
    rest = {k: {"name": v} if isinstance(v, str) and k in PARTS else v for k, v in changes.items() if k in run_fields}
    return {"train": train, **checked(RunSpec, rest, "run")}
