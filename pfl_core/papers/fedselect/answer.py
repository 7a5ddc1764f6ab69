"""The answer of FedSelect's results page, from the stored runs."""

from __future__ import annotations

from pfl_core.papers.fedselect.settings import SETTINGS, VALIDATED
from pfl_core.study.report import Evidence

COMPARED = ("fedselect", "local", "fedper")
TUNED = {"local": "training alone", "fedper": "FedPer", "fedavg_ft": "FedAvg with fine-tuning"}
NOT_REPRODUCED = " The paper's lead over it is not reproduced so far."


def _completed(evidence: Evidence, setting: tuple[str, str]) -> str:
    """How many rounds the stored runs of the compared methods have: "60", or "60 to 200" if they differ."""
    frame = evidence.frames[setting[0]]
    runs = frame[(frame["setting"] == setting[1]) & frame["method"].isin(COMPARED) & (frame["variant"] == "")]
    rounds = sorted({int(count) for count in runs["rounds"]})
    return " to ".join(map(str, rounds[:1] + rounds[1:][-1:])) or "0"


def answer(evidence: Evidence) -> list[str]:
    def lead(*setting: str) -> str:
        return evidence.difference((*setting, "fedselect"), (*setting, "local"))

    full, small, searched = ("paper", "cifar10"), ("real", "cifar10"), ("real", VALIDATED)
    planned = SETTINGS.setting(*full).rounds
    scores = {name: evidence.number((*full, name)) for name in COMPARED}
    by_tensor = evidence.number((*full, "fedselect", "selection_scope=per_tensor"))
    uneven = ("paper", "cifar10, batch_size=32")
    against_tuned = ""
    if len(evidence.values((*searched, "fedselect"))) and len(evidence.values((*searched, "local"))):
        fairest = searched
        leads = [
            f"{evidence.difference((*searched, 'fedselect'), (*searched, name))} over {title} "
            f"({evidence.number((*searched, name))})"
            for name, title in TUNED.items()
        ]
        tuned = (
            "With rates that validation images chose for each method, and more rounds, FedSelect scores "
            f"{evidence.number((*searched, 'fedselect'))}. Its lead is {', '.join(leads[:-1])} and {leads[-1]}."
        )
        if evidence.side((*searched, "fedselect"), (*searched, "fedavg_ft")) == "behind":
            against_tuned = " It is behind FedAvg with fine-tuning."
    else:
        fairest = small
        tuned = "Runs with rates that validation images chose for each method are not stored yet."
    against_local = evidence.side((*fairest, "fedselect"), (*fairest, "local"))
    return [
        f"In short, by the numbers so far: on CIFAR-10 with a small network, FedSelect is {against_local} "
        f"training alone.{'' if against_local == 'ahead of' else NOT_REPRODUCED}{against_tuned}",
        f"At the paper's setting (ResNet18), after {_completed(evidence, full)} of {planned} rounds, FedSelect scores "
        f"{scores['fedselect']}, training alone {scores['local']} ({lead(*full)}) and FedPer {scores['fedper']}. "
        "The paper has 82.3 % and a lead of 7.7 points over training alone.",
        tuned,
        f"At the paper's setting with each tensor ranked by itself, FedSelect scores {by_tensor}. With batches of 32, "
        "whose last batch of 4 images makes training diverge while masks are chosen, it scores "
        f"{evidence.number((*uneven, 'fedselect'))} after {_completed(evidence, uneven)} rounds.",
        "With a small network, one learning rate for all methods and "
        f"{evidence.seeds((*small, 'fedselect'))}, FedSelect's lead over training alone is {lead(*small)}.",
    ]
