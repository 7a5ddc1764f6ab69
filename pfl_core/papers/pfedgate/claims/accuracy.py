"""Checks of pFedGate's claims 1 to 6, 14 and 21: comparison with other methods, and accuracy over the budget s.

"A beats B" holds if the 95 % t-interval of the paired difference over seeds lies above 0, does not hold if it lies
below 0, and is undecided otherwise or with fewer than two seeds. A claim must hold on every stored data set. The
paper's mean accuracy weights clients by their test samples, which is the pooled accuracy.
This module also has the helpers of the other claim modules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd

from pfl_core.papers.pfedgate.comparison import COMPARISON, DEFAULTS, RENAMED
from pfl_core.papers.pfedgate.criteria import CRITERIA, PROBED
from pfl_core.papers.pfedgate.settings import BASELINES
from pfl_core.study.claims import ClaimChecks
from pfl_core.study.names import NAMES
from pfl_core.study.statistics import Interval, Missing, Selector, by_seed, each_dataset, interval, paired
from pfl_core.study.verdicts import (
    UNDECIDED,
    Check,
    Verdict,
    above,
    ahead_of_all,
    all_hold,
    all_of,
    below,
    holm,
    lacking,
    on_each_dataset,
    telling,
)

claim = ClaimChecks(COMPARISON, CRITERIA)

SETTINGS = ("emnist", "femnist", "cifar10", "cifar100", "fashion_mnist", "mnist")  # Table 1; the last two are stand-ins
STUDIED = ("emnist", "cifar10", "fashion_mnist", "mnist")  # Tables 10 to 12, Figure 5: s = 0.1, epochs, skew
BUDGETS, SMALL = (1.0, 0.5, 0.3), 0.1
SEARCHED = PROBED["keep_ratio"]  # the budget of the search for pFedGate's rates
SMALL_LOSS = 2.5  # points; the paper's largest loss from s = 1 to 0.3 is 2.48
MEAN, DECILE = "acc_pooled", "acc_bottom_decile"
ROUNDING = 1e-6


class GateRuns(Selector):
    """Selects runs of pFedGate; messages name only the budget and the changed options."""

    usual = {name: value for name, value in DEFAULTS.items() if name != "keep_ratio"}
    renamed = RENAMED


class BaselineRuns(Selector):
    """Selects runs of a baseline; messages name only the method and the changed options."""

    usual = {name: DEFAULTS[name] for name in ("keep_ratio", "keep_momentum")}
    renamed = RENAMED


def gate(s: float = 0.5, **changed: float | str) -> GateRuns:
    """pFedGate at budget ``s``, as in the paper except for the ``changed`` options."""
    return GateRuns({"method": "pfedgate", **DEFAULTS, "keep_ratio": s, **changed})


def baseline(method: str) -> BaselineRuns:
    """A baseline with the paper's settings; FedMask at s = 0.5."""
    return BaselineRuns({"method": method, **BaselineRuns.usual})


FEDAVG = baseline("fedavg")
MIXED = gate(budgets="0.5 and 0.1")


def means(rows: pd.DataFrame, metric: str, **named: dict) -> str:
    """'s=1: 90.12, FedAvg: 88.00': means over seeds."""
    return ", ".join(f"{name}: {by_seed(rows, where, metric).mean():.2f}" for name, where in named.items())


def _rival(case: tuple[float, str]) -> str:
    """A baseline and pFedGate's budget, and what is unequal between them."""
    s, name = case
    notes = ["two passes a round"] * (name == "fedrep") + ["pFedGate's rates are those of s=0.5"] * (s != SEARCHED)
    return f"{NAMES[name]} at s={s:g}" + f" ({', '.join(notes)})" * bool(notes)


def _beats_all(metric: str, rows: pd.DataFrame) -> Verdict:
    stored = [name for name in BASELINES if (rows.loc[rows["metric"] == metric, "method"] == name).any()]
    if not stored:
        raise Missing("no baseline is stored")
    leads = {(s, name): paired(rows, gate(s), baseline(name), metric) for s in BUDGETS for name in stored}
    # a loss counts only at a budget for which pFedGate's rates were chosen; at preset paper those of Table 7 were
    at_paper = set(rows["preset"]) == {"paper"}
    tuned = {case: lead for case, lead in leads.items() if at_paper or case[0] == SEARCHED}
    status, shown = ahead_of_all(tuned, _rival), tuned
    if status == "holds":
        status, shown = "holds" if set(holm(leads).values()) == {"holds"} else UNDECIDED, leads
    case, what = telling(shown)
    text = f"{what} {leads[case]}, over {_rival(case)}"
    absent = [name for name in BASELINES if name not in stored]
    if not absent or status == "does not hold":  # a single loss refutes the claim
        return Verdict(status, text)
    return lacking(text, f"{status} against those stored, without {', '.join(absent)}")


claim(1, SETTINGS)(on_each_dataset(partial(_beats_all, MEAN)))
claim(2, SETTINGS)(on_each_dataset(partial(_beats_all, DECILE)))


@claim(3, SETTINGS)
@on_each_dataset
def stays_within_its_budget(rows: pd.DataFrame) -> Verdict:
    """s' of every run is at most s (a bound, so one seed is enough).

    The paper's 0.43 and 0.25 belong to the released code's greedy groups on one network; a test checks them.
    """
    largest, kept = [], "achieved_keep_ratio"
    here = rows[(rows["method"] == "pfedgate") & (rows["metric"] == kept) & (rows["budgets"] == "equal")]
    for s in sorted(here["keep_ratio"].astype(float).unique(), reverse=True):
        largest.append((s, float(here.loc[here["keep_ratio"] == s, "value"].max())))
    if not largest:
        raise Missing(f"{kept} of pfedgate is not stored")
    status = "holds" if all(share <= s + ROUNDING for s, share in largest) else "does not hold"
    return Verdict(status, "largest s' " + ", ".join(f"{share:.3f} at s={s:g}" for s, share in largest))


@claim(4, STUDIED)
@on_each_dataset
def falls_slowly_then_clearly(rows: pd.DataFrame) -> Verdict:
    """From s = 1 to 0.3 less than SMALL_LOSS is lost, to 0.1 more."""
    to = {s: paired(rows, gate(1.0), gate(s), MEAN) for s in (0.3, SMALL)}
    text = f"from s=1 to 0.3 it loses {to[0.3]}, to 0.1 {to[SMALL]}"
    return Verdict(all_of([below(to[0.3], SMALL_LOSS), above(to[SMALL], SMALL_LOSS)]), text)


@claim(5, STUDIED)
@on_each_dataset
def a_tenth_beats_fedavg(rows: pd.DataFrame) -> Verdict:
    """pFedGate at s = 0.1 beats FedAvg."""
    lead = paired(rows, gate(SMALL), FEDAVG, MEAN)
    return Verdict(lead.status, f"s=0.1 minus fedavg {lead}")


@claim(6, STUDIED)
@on_each_dataset
def clients_differ_more(rows: pd.DataFrame) -> Verdict:
    """The spread over clients is larger at s = 0.1 than at 1, and mixed budgets beat 0.1 for all clients.

    The second part is this project's reading of "remains usable".
    """
    wider = paired(rows, gate(SMALL), gate(1.0), "client_spread")
    usable = paired(rows, MIXED, gate(SMALL), MEAN)
    text = f"spread over clients at s=0.1 minus s=1 {wider}; mixed budgets minus s=0.1 for all {usable}"
    return Verdict(all_of([wider.status, usable.status]), text)


@claim(14, SETTINGS)
@on_each_dataset
def rounds_to_nine_tenths(rows: pd.DataFrame) -> Verdict:
    """Rounds to 90 % of the own best accuracy: fewest at s = 1, fewer than FedAvg at 0.5, more at 0.3.

    FedEM's rounds are reported for comparison.
    """
    later = {s: paired(rows, gate(s), FEDAVG, "rounds_to_90") for s in BUDGETS}
    first = paired(rows, gate(0.5), gate(1.0), "rounds_to_90")
    status = all_of([first.status, below(later[1.0], 0), below(later[0.5], 0), above(later[0.3], 0)])
    text = "rounds more than fedavg: " + ", ".join(f"s={s:g} {_in_rounds(gap)}" for s, gap in later.items())
    text += f"; s=0.5 after s=1 by {_in_rounds(first)}"
    try:
        text += f"; fedem after fedavg by {_in_rounds(paired(rows, baseline('fedem'), FEDAVG, 'rounds_to_90'))}"
    except Missing:
        pass
    return Verdict(status, text)


def _in_rounds(difference: Interval) -> str:
    """Rounds are multiples of the distance of two scored rounds, so all seeds can be equal, which is no interval."""
    if difference.seeds > 1 and difference.low == difference.high:
        return f"{difference.mean:+g} in each of {difference.seeds} seeds"
    return str(difference)


@claim(21, SETTINGS)
@on_each_dataset
def the_lead_depends_on_the_weights(rows: pd.DataFrame) -> Verdict:
    """The lead over FedAvg is larger with the client's own weights; the lead over FedAvg-FT is reported."""
    trained, merged = (by_seed(rows, gate(), f"acc_pooled_{name}") for name in ("trained", "merged"))
    more = interval((trained - merged).dropna())
    rivals = {"fedavg": (merged, "global"), "fedavg_ft": (trained, "own")}
    texts = [f"own minus global weights {more}"]
    for name, (accuracy, weights) in rivals.items():
        try:
            lead = interval((accuracy - by_seed(rows, baseline(name), MEAN)).dropna())
        except Missing as missing:
            return Verdict("undecided", str(missing))
        texts.append(f"{weights} weights minus {NAMES[name]} {lead}")
    return Verdict(more.status, "; ".join(texts))


def in_each_study(check: Callable[[pd.DataFrame, str], Verdict]) -> Check:
    """Applies a check to each stored setting of STUDIED, with the rows of the setting and its variations."""

    def judge(results: pd.DataFrame) -> Verdict:
        parts = []
        for name in STUDIED:
            rows = results[(results["setting"] == name) | results["setting"].str.startswith(f"{name}, ")]
            if (rows["method"] == "pfedgate").any():
                label = next(label for label, _ in each_dataset(rows))
                parts.append((label, partial(check, rows, name)))
        if not parts:
            raise Missing("no run of pfedgate is stored")
        return all_hold(parts)

    return judge
