"""In which respects a run differs from the paper's setting, in a word each."""

from __future__ import annotations

from dataclasses import fields

from pfl_core.runs import RunSpec
from pfl_core.study.settings import PaperSettings, searched_values
from pfl_core.training import Training

OF_TRAINING = {
    "batch_size": "batch",
    "epochs": "epochs",
    "lr": "rate",
    "augment": "augmentation",
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
    base, method = spec.setting.partition(",")[0], dict(spec.method)
    names = [name for name in (spec.setting, base) if name in settings.settings.get("paper", {})]
    if not names:
        return ["setting"]
    method_name = method.pop("name")
    paper = settings.before_search().spec(method_name, preset="paper", dataset=names[0], **method)
    unfinished = rounds < spec.rounds
    kept = next((name for name in (spec.setting, base) if name in settings.settings.get(spec.preset, {})), None)
    if kept is not None and not spec.changed:
        spec = settings.spec(method_name, preset=spec.preset, dataset=kept, **method)
    words = []
    for kind, (other, changed) in OF_COMPONENT.items():
        if getattr(spec, kind)["name"] != getattr(paper, kind)["name"]:
            words.append(other)
        elif spec.identity(written_out=True)[kind] != paper.identity(written_out=True)[kind]:
            words.append(changed)
    words += [word for field, word in OF_RUN.items() if getattr(spec, field) != getattr(paper, field)]
    words += ["rounds"] if unfinished or spec.rounds != paper.rounds else []
    trained = [f.name for f in fields(Training) if getattr(spec.train, f.name) != getattr(paper.train, f.name)]
    words += [OF_TRAINING.get(field, "optimizer") for field in trained]
    chosen = searched_values(settings.searched, spec.preset, spec.setting, method_name)
    strengths = [name for name in chosen if name in spec.method]
    if strengths:
        usual = settings.before_search().spec(method_name, preset="paper", dataset=names[0]).build_method()
        words += ["strengths"] * any(spec.method[name] != getattr(usual, name) for name in strengths)
    return list(dict.fromkeys(words))
