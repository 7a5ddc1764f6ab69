"""In which respects a run differs from the paper's setting, in a word each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from functools import cache

from pfl_core.runs import RunSpec
from pfl_core.runs.spec import plain
from pfl_core.study.settings import PaperSettings, searched_values
from pfl_core.training import Training

OF_TRAINING = {
    "batch_size": "batch",
    "epochs": "epochs",
    "lr": "rate",
    "augment": "augmentation",
    "precision": "precision",
    "partial_batch": "batch",
    "milestones": "schedule",
    "decay": "schedule",
}
OF_RUN = {"clients": "clients", "participation": "participation", "sampling": "sampling", "novel": "novel clients"}
OF_COMPONENT = {"data": ("data", "images"), "model": ("network", "network"), "partition": ("partition", "partition")}


def differences(spec: RunSpec, rounds: int, settings: PaperSettings) -> list[str]:
    """The respects in which a run of ``rounds`` rounds differs from the preset ``paper`` of its setting.

    What a notebook varies within its setting (the alpha of a Dirichlet partition, the network) does not count, and
    neither do the method's fields, which the cells of a table name, except those that a search chose. A variant of a
    setting that the preset does not have ("sensitivity, rates") is compared with that setting; ``["setting"]`` if there
    is neither, or no preset ``paper``.
    """
    base, method = spec.setting.partition(",")[0], json.dumps(plain(spec.method))
    names = [name for name in (spec.setting, base) if name in settings.settings.get("paper", {})]
    if not names:
        return ["setting"]
    before_search = _before_search(settings.before_search)
    paper = _run(before_search.spec, "paper", names[0], method)
    unfinished = rounds < spec.rounds
    kept = next((name for name in (spec.setting, base) if name in settings.settings.get(spec.preset, {})), None)
    if kept is not None and not spec.changed:
        spec = _run(settings.spec, spec.preset, kept, method)
    words = []
    for kind, (other, changed) in OF_COMPONENT.items():
        if getattr(spec, kind)["name"] != getattr(paper, kind)["name"]:
            words.append(other)
        elif getattr(spec, kind) != getattr(paper, kind) and _written_out(spec, kind) != _written_out(paper, kind):
            words.append(changed)
    words += [word for field, word in OF_RUN.items() if getattr(spec, field) != getattr(paper, field)]
    words += ["rounds"] if unfinished or spec.rounds != paper.rounds else []
    trained = [f.name for f in fields(Training) if getattr(spec.train, f.name) != getattr(paper.train, f.name)]
    words += [OF_TRAINING.get(field, "optimizer") for field in trained]
    chosen = searched_values(settings.searched, spec.preset, spec.setting, spec.method["name"])
    strengths = [name for name in chosen if name in spec.method]
    if strengths:
        usual = _run(before_search.spec, "paper", names[0], json.dumps({"name": spec.method["name"]})).build_method()
        words += ["strengths"] * any(spec.method[name] != getattr(usual, name) for name in strengths)
    return list(dict.fromkeys(words))


# Runs of many seeds have the same settings and method. Bound methods are equal if they belong to the same object.


@cache
def _before_search(of_settings: Callable[[], PaperSettings]) -> PaperSettings:
    return of_settings()


@cache
def _run(of_settings: Callable[..., RunSpec], preset: str, setting: str, method: str) -> RunSpec:
    """A run of a method with its fields (JSON) in a setting, by ``PaperSettings.spec``."""
    method_fields = json.loads(method)
    return of_settings(method_fields.pop("name"), preset=preset, setting=setting, **method_fields)


def _written_out(spec: RunSpec, kind: str) -> object:
    return spec.identity(written_out=True)[kind]
