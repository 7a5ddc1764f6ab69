"""What the papers' settings and experiments have in common: variants of a setting, and plans of runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pfl_core.runs import RunSpec
from pfl_core.study.settings import PARTS, TRAINING, Methods, PaperSettings, Setting


def varied(setting: Setting, **changes: Any) -> Setting:
    """A setting with some fields replaced, its own or those of its training.

    A data set, partition or network without a name changes options of the one that the setting has.
    """
    train = replace(setting.train, **{name: value for name, value in changes.items() if name in TRAINING})
    rest = {name: value for name, value in changes.items() if name not in TRAINING}
    options = {
        name: {**getattr(setting, name), **rest[name]} for name in rest.keys() & PARTS if "name" not in rest[name]
    }
    return replace(setting, train=train, **{**rest, **options})


Overrides = Mapping[str, Any]  # fields of a run or its training that a user replaces


@dataclass(frozen=True)
class Group:
    """Methods in one setting.

    ``note``: what follows the comma in the setting's name if some of its fields are replaced: by ``changes``, over
    which a user's overrides win, or by ``fixed``, which win over the overrides. ``one_seed``: only the first seed is
    run, to save time.
    """

    setting: str
    methods: Methods
    note: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    one_seed: bool = False


Groups = Iterator[Group]
Plan = Callable[[str, Overrides], Groups]  # preset, overrides -> groups of runs


def experiments(
    settings: PaperSettings, plans: Mapping[str, Plan], own: Collection[str] = ()
) -> dict[str, Callable[[str, Sequence[int], Overrides], list[RunSpec]]]:
    """Notebook -> function of preset, seeds and overrides that lists its runs, equal ones once.

    ``own``: fields of the paper's method that overrides may contain, too. They apply to its runs, unless the plan sets
    them.
    """
    return {notebook: partial(_specs, settings, plan, own) for notebook, plan in plans.items()}


def _specs(
    settings: PaperSettings, plan: Plan, own: Collection[str], preset: str, seeds: Sequence[int], overrides: Overrides
) -> list[RunSpec]:
    of_method = {name: value for name, value in overrides.items() if name in own}
    of_run = {name: value for name, value in overrides.items() if name not in own}
    first: dict[str, RunSpec] = {}
    for group in plan(preset, overrides):
        asked = [(name, {**(of_method if name == settings.paper else {}), **fields}) for name, fields in group.methods]
        fields = {**group.changes, **of_run, **group.fixed}
        name = f"{group.setting}, {group.note}" if group.note else group.setting
        for spec in settings.specs(group.setting, preset, seeds[:1] if group.one_seed else seeds, fields, asked):
            first.setdefault(str(spec.identity()), spec.tagged(setting=name))
    return list(first.values())
