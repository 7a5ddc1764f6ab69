"""The answer of FedSelect's results page, from the stored runs."""

from __future__ import annotations

from pfl_core.papers.fedselect.settings import VALIDATED
from pfl_core.study.report import Evidence


def answer(evidence: Evidence) -> list[str]:
    def lead(*setting: str) -> str:
        return evidence.difference((*setting, "fedselect"), (*setting, "local"))

    full, small, searched = ("paper", "cifar10"), ("real", "cifar10"), ("real", VALIDATED)
    scores = {name: evidence.number((*full, name)) for name in ("fedselect", "local", "fedper")}
    if len(evidence.values((*searched, "fedselect"))) and len(evidence.values((*searched, "local"))):
        tuned = f"With rates that validation images chose for each method, this lead is {lead(*searched)}."
    else:
        tuned = "Runs with rates that validation images chose for each method are not stored yet."
    return [
        "At the paper's setting (ResNet18), stopped after 60 of 200 rounds, FedSelect scores "
        f"{scores['fedselect']}, training alone {scores['local']} ({lead(*full)}) and FedPer {scores['fedper']}; "
        "the paper has 82.3 % and a lead of 7.7 points over training alone.",
        "With a small network, one learning rate for all methods and "
        f"{evidence.seeds((*small, 'fedselect'))}, FedSelect's lead over training alone is {lead(*small)}.",
        tuned,
    ]
