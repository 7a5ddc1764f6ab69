"""The answer of FedSelect's results page, from the stored runs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pfl_core.papers.fedselect.settings import BASELINES, SETTINGS, VALIDATED
from pfl_core.runs import Record
from pfl_core.study.names import NAMES, listed
from pfl_core.study.report import Evidence
from pfl_core.study.statistics import interval
from pfl_core.study.verdicts import holm

COMPARED = ("fedselect", "local", "fedper")
RULES = {  # other parameters -> the variant, and FedSelect's lead over it in the paper's Table 3
    "the least changed": ("ranking=least_change", 2.4),
    "random, as its masks grow": ("ranking=random", 2.5),
}
LAST_LAYER = "masks=layers;layers=('head',)"


def _completed(evidence: Evidence, setting: tuple[str, str], variant: str = "") -> str:
    """How many rounds the stored runs of the compared methods have: "60", or "60 to 200" if they differ."""
    frame = evidence.frames[setting[0]]
    runs = frame[(frame["setting"] == setting[1]) & frame["method"].isin(COMPARED) & (frame["variant"] == variant)]
    rounds = sorted({int(count) for count in runs["rounds"]})
    return " to ".join(map(str, rounds[:1] + rounds[1:][-1:])) or "0"


def _runs(evidence: Evidence, setting: tuple[str, str], method: str) -> list[Record]:
    """The stored runs of the method's own fields in this setting."""
    return [
        record
        for record in evidence.records.get(setting[0], ())
        if record.spec.method["name"] == method
        and record.spec.setting == setting[1]
        and not evidence.paper.variant(record.spec)
    ]


def _after_equal_rounds(evidence: Evidence, setting: tuple[str, str]) -> str:
    """FedSelect and training alone in this setting: means over common seeds, after the rounds that all runs have."""
    own, alone = (
        {record.spec.seed: record for record in _runs(evidence, setting, method)} for method in ("fedselect", "local")
    )
    if not (seeds := sorted(own.keys() & alone.keys())):
        return "FedSelect and training alone are not both stored"
    rounds = min(runs[seed].rounds for runs in (own, alone) for seed in seeds)
    means = [
        np.mean([runs[seed].reported_curve()["acc_mean"].loc[:rounds].iloc[-1] for seed in seeds])
        for runs in (own, alone)
    ]
    return (
        f"FedSelect scores {means[0]:.1f} % and training alone {means[1]:.1f} % after {rounds} rounds "
        f"({len(seeds)} seed{'s' * (len(seeds) > 1)})"
    )


def _fine_tuned_peak(evidence: Evidence) -> str:
    """FedAvg + FT at the paper's setting: its best round, its last one, and its losses in both."""
    runs = _runs(evidence, ("paper", "cifar10"), "fedavg_ft")
    if not runs:
        return "At the paper's setting, FedAvg with fine-tuning is not stored."
    run = max(runs, key=lambda record: record.rounds)
    curve = run.reported_curve()["acc_mean"]
    best, last = curve.idxmax(), curve.index[-1]
    text = (
        f"At the paper's setting, FedAvg with fine-tuning reaches {curve.max():.1f} % in round {best} and "
        f"ends at {curve.iloc[-1]:.1f} % in round {last}."
    )
    if best == last or "train_loss" not in run.series:
        return text
    training, test = (run.values(name).mean(axis=1) for name in ("train_loss", "loss" + run.reported_suffix))
    return (
        f"{text} Between these rounds its training loss goes from {training[best]:.2f} to {training[last]:.2f}, its "
        f"test loss from {test[best]:.2f} to {test[last]:.2f}{_cause(training[best], training[last])}."
    )


def _cause(before: float, after: float) -> str:
    """What the training loss says about a fall of the test accuracy."""
    return ": training does not diverge; why the test accuracy falls is not known" if after <= before else ""


def _rate_of_local(evidence: Evidence) -> str:
    """Training alone with the common rate and with the searched one; "" unless both are stored."""
    shown = []
    for setting, name in (("cifar10", "common"), (VALIDATED, "searched")):
        runs = _runs(evidence, ("real", setting), "local")
        if not runs:
            return ""
        scores = evidence.values(("real", setting, "local"))
        rate = f"the {name} rate of {runs[0].spec.train.lr:g}"
        shown.append(f"{scores.mean():.1f} % with {rate} after {runs[0].rounds} rounds")
    return f" Training alone has {' and '.join(shown)}."


def _deal(evidence: Evidence) -> str:
    """What changes if a client may get one class twice, as in the released code."""
    small, dealt = ("real", "cifar10"), ("real", "cifar10, allow_duplicate_classes=True")
    tests = [
        np.array(record.clients["test"])  # [clients, classes]
        for record in evidence.records.get("real", ())
        if record.spec.setting == dealt[1] and record.spec.method["name"] == "fedselect"
    ]
    single, clients = sum(int(((images > 0).sum(axis=1) == 1).sum()) for images in tests), sum(map(len, tests))
    return (
        "If a client may get one class twice, as the released code deals them "
        f"({evidence.seeds((*dealt, 'fedselect'))}; {single} of {clients} clients then have one class only), "
        f"FedSelect changes by {evidence.difference((*dealt, 'fedselect'), (*small, 'fedselect'))} and training alone "
        f"by {evidence.difference((*dealt, 'local'), (*small, 'local'))}."
    )


def _scores(evidence: Evidence, setting: tuple[str, str]) -> dict[str, pd.Series]:
    """The stored baselines' accuracies by seed."""
    return {name: values for name in BASELINES if len(values := evidence.values((*setting, name)))}


def _standing(evidence: Evidence, setting: tuple[str, str]) -> str:
    """The baselines that FedSelect is clearly ahead of and behind, after Holm's correction."""
    own = evidence.values((*setting, "fedselect"))
    leads = {name: interval((own - values).dropna()) for name, values in _scores(evidence, setting).items()}
    if not leads or len(own) < 2:
        return "not yet compared with the baselines"
    statuses = holm(leads)
    sides = []
    for status, side in (("does not hold", "behind"), ("holds", "ahead of")):
        names = [NAMES[name] for name in leads if statuses[name] == status]
        sides += [f"{side} {listed(names)}"] if names else []
    return f"clearly {' and '.join(sides)}" if sides else "neither clearly ahead of nor clearly behind any baseline"


def _rules(evidence: Evidence, setting: tuple[str, str]) -> str:
    """FedSelect beside itself with other parameters personal: as many of them, or the last layer."""
    own = (*setting, "fedselect")
    sides = {words: evidence.side(own, (*own, variant)) for words, (variant, _) in RULES.items()}
    leads = " and ".join(
        f"{evidence.difference(own, (*own, variant))} ({words}; the paper has {printed:+.1f})"
        for words, (variant, printed) in RULES.items()
    )
    same = len(set(sides.values())) == 1
    placed = (
        next(iter(sides.values())) if same else " and ".join(f"{side} it ({words})" for words, side in sides.items())
    )
    seeds = evidence.seeds((*own, RULES["random, as its masks grow"][0]))
    rate = "its searched rate" if setting[1] == VALIDATED else "one rate for all"
    layer = evidence.difference(own, (*own, LAST_LAYER))
    return (
        f"with a small network on CIFAR-10, {rate} and {_completed(evidence, setting)} rounds ({seeds}), FedSelect "
        f"(α = 0.30), whose most changed parameters are personal, is {placed}{' itself' * same} with as many others "
        f"personal: {leads}; with the last layer personal instead, its lead is {layer}."
    )


def _against_all(evidence: Evidence, setting: tuple[str, str]) -> str:
    """FedSelect beside training alone, the best stored baseline and all of them."""
    own, scores = evidence.values((*setting, "fedselect")), _scores(evidence, setting)
    means = {name: values.mean() for name, values in scores.items()}
    best = max(means, key=means.__getitem__)
    lead = evidence.difference((*setting, "fedselect"), (*setting, "local"))
    return (
        "With the small network, rates that validation images chose for each method and "
        f"{_completed(evidence, setting)} rounds ({evidence.seeds((*setting, 'fedselect'))}), FedSelect scores "
        f"{own.mean():.1f} %, {lead} over training alone, and is {_standing(evidence, setting)}; the best is "
        f"{NAMES[best]} with {means[best]:.1f} %.{_rate_of_local(evidence)}"
    )


def answer(evidence: Evidence) -> list[str]:
    def lead(*setting: str) -> str:
        return evidence.difference((*setting, "fedselect"), (*setting, "local"))

    full, small, searched = ("paper", "cifar10"), ("real", "cifar10"), ("real", VALIDATED)
    planned = SETTINGS.setting(*full).rounds
    scores = {name: evidence.number((*full, name)) for name in COMPARED}
    each_tensor = "selection_scope=per_tensor"
    by_tensor = (*full, "fedselect", each_tensor)
    uneven, own = ("paper", "cifar10, batch_size=32"), (*small, "fedselect")
    tuned = len(evidence.values((*searched, "fedselect"))) and len(evidence.values((*searched, "local")))
    return [
        f"In short, by the numbers so far: {_rules(evidence, searched if tuned else small)}",
        f"At the paper's setting (ResNet18), after {_completed(evidence, full)} of {planned} rounds, FedSelect (α = "
        f"0.30) scores {scores['fedselect']}, training alone {scores['local']} ({lead(*full)}) and FedPer "
        f"{scores['fedper']}; the paper has 82.3 % and a lead of 7.7 points over training alone.",
        _against_all(evidence, searched)
        if tuned
        else "Runs with rates that validation images chose for each method are not stored yet.",
        f"With one learning rate for all methods, {_completed(evidence, small)} rounds and "
        f"{evidence.seeds((*small, 'fedselect'))}, FedSelect's lead over training alone is {lead(*small)}, over itself "
        f"with the last layer personal {evidence.difference(own, (*own, LAST_LAYER))}; it is "
        f"{_standing(evidence, small)}.",
        _deal(evidence),
        f"At the paper's setting with each tensor ranked by itself, FedSelect scores {evidence.number(by_tensor)} "
        f"after {_completed(evidence, full, each_tensor)} rounds ({evidence.seeds(by_tensor)}). With batches of 32, "
        "whose last batch of 4 images makes training diverge while masks are chosen, "
        f"{_after_equal_rounds(evidence, uneven)}.",
        _fine_tuned_peak(evidence),
    ]
