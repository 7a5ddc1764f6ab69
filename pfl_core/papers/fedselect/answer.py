"""The answer of FedSelect's results page, from the stored runs."""

from __future__ import annotations

from pfl_core.papers.fedselect.settings import VALIDATED
from pfl_core.study.report import Evidence


def answer(evidence: Evidence) -> list[str]:
    def lead(*setting: str) -> str:
        return evidence.difference((*setting, "fedselect"), (*setting, "local"))

    full, small, searched = ("paper", "cifar10"), ("real", "cifar10"), ("real", VALIDATED)
    scores = {name: evidence.number((*full, name)) for name in ("fedselect", "local", "fedper")}
    seeds = {setting: evidence.seeds((*setting, "fedselect")) for setting in (full, small)}
    return [
        f"At the paper's own setting (ResNet18, 60 of 200 rounds, {seeds[full]}), FedSelect scores "
        f"{scores['fedselect']}, training alone {scores['local']} ({lead(*full)}) and FedPer {scores['fedper']}; "
        "the paper has 82.3 % and a lead of 7.7 points over training alone.",
        f"With a small network, one rate for all methods and {seeds[small]}, its lead over training alone is "
        f"{lead(*small)}.",
        f"With rates that validation images chose for each method, its lead over training alone is {lead(*searched)}.",
    ]
