"""Checks of FedPeWS's claims on results of ours: pure functions from a results frame to a verdict.

"A beats B" holds if the 95 % t-interval of the paired difference over seeds lies above 0, does not hold if it lies
below, and is undecided otherwise, or with fewer than two seeds; counts and bounds (claims 15 and 16) need one seed. A
claim on several settings (presets) must hold in each of them, and names the data that they were run on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps

import numpy as np
import pandas as pd

from pfl_core.paper.results import Interval, Missing, by_seed, data_label, interval, paired, settings
from pfl_core.paper.verdicts import Check, Verdict, above, all_hold, below, both, decides

COLUMNS = {  # Tables 2 and 6: setting -> lambda on FedAvg, lambda on FedProx, tau
    "lr_server=1": (5.0, 0.1, 0.125),
    "lr_server=0.5": (2.0, 0.1, 0.2),
    "lr_server=0.25": (1.0, 1.0, 0.1875),
    "lr_server=0.1": (2.0, 1.0, 0.1),
}
MORE_ACCURATE = 3  # of the four columns of Table 6
FIGURE_5 = {"lam": 0.0, "tau": 0.124}
THREE_CLASSES = 75.0  # percent: what a model that misses one of four classes can reach; "fails" is our reading
GRIDS = ("cifar_mnist", "path_oct_tissue")  # Tables 7 and 8
MAIN = {"cifar_mnist": (2.0, 0.5), "path_oct_tissue": (10.0, 0.2)}  # lambda and tau of Table 3 (ours: not stated)
BEST_TAUS = {"cifar_mnist": (0.4, 0.5), "path_oct_tissue": (0.2, 0.4)}
BEST_LAMBDAS = (2.0, 10.0)
LITTLE = 0.75  # of the cells above FedAvg; "depends little" is our reading
NEAR = 1.6  # points; the baselines of Table 3 are at most 1.55 from FedAvg
AS_GOOD = 0.5  # points, about one standard deviation of Table 7
ALIKE = 5.0  # Dirichlet alpha at which the gain is gone
CLIENTS = {"classes of cifar10": (5, 10), "classes of cifar100": (20,)}  # Figure 12
COUNTED = {  # (neurons, clients) -> share that FedPeWS-Fixed sends of the dense net: covered parameters, h mask bits
    (256, 2): (3860 + 256 / 32) / 14884,
    (256, 4): (1036 + 256 / 32) / 14884,
}

FEDAVG, FEDPROX = {"method": "fedavg"}, {"method": "fedprox"}


def pews(lam: float, tau: float, base: str = "fedavg") -> dict:
    return {"method": "fedpews", "base": base, "lam": lam, "tau": tau}


def fixed(tau: float, shares: str = "equal") -> dict:
    return {"method": "fedpews_fixed", "tau": tau, "shares": shares}


def decides_in(number: int, *names: str) -> Callable[[Callable[[pd.DataFrame, str], Verdict]], Check]:
    """Registers a check of one setting's rows, given the rows and the setting; it must hold in each that is named."""

    def register(check: Callable[[pd.DataFrame, str], Verdict]) -> Check:
        @wraps(check)
        def one(rows: pd.DataFrame, name: str) -> Verdict:
            status, numbers = check(rows, name)
            return Verdict(status, f"{status}, {numbers}" if len(names) > 1 else numbers)

        @decides("fedpews", number, names)
        @wraps(check)
        def judge(results: pd.DataFrame) -> Verdict:
            return on_their_data(results, all_hold((name, partial(one, of(results, name), name)) for name in names))

        return judge

    return register


def of(results: pd.DataFrame, setting: str) -> pd.DataFrame:
    return results[results["setting"] == setting]


def on_their_data(results: pd.DataFrame, verdict: Verdict) -> Verdict:
    """The verdict, with preset and data behind its numbers."""
    name, preset = results["dataset"], sorted(set(results.get("preset", ())))
    labels = [data_label(*pair) for pair in dict.fromkeys(zip(name, results.get("data", name), strict=True))]
    return Verdict(verdict.status, f"{verdict.numbers} [{': '.join([*preset, ', '.join(labels)])}]")


def lead(rows: pd.DataFrame, a: dict, b: dict) -> Interval:
    """Final accuracy of a minus that of b, percent."""
    return paired(rows, a, b, "acc_pooled")


def earlier(rows: pd.DataFrame, a: dict, b: dict) -> tuple[Interval, str]:
    """How many rounds before b does a reach the target, paired by seed; and both means, in words.

    A run that never reaches it counts, in the difference alone, as reaching it one round after its last: later than
    any that does. The means are over the seeds that reach it.
    """
    first = on_common_seeds(rows, a, b, "rounds_to_target")
    late = first.fillna(rows["rounds"].max() + 1)
    ahead = interval(late["b"] - late["a"])
    return ahead, f"{reaching(first['a'])} against {reaching(first['b'])}, earlier by {ahead}"


def on_common_seeds(rows: pd.DataFrame, a: dict, b: dict, metric: str) -> pd.DataFrame:
    """Columns a and b, a row for each seed that both were run with; not numbers where a target is never reached."""
    runs = {"a": by_seed(rows, a, metric, unknown=True), "b": by_seed(rows, b, metric, unknown=True)}
    found = pd.concat(runs, axis=1, join="inner")
    if found.empty:
        raise Missing("no seed has the run with and the run without the warm-up")
    return found


def reaching(values: pd.Series, unit: str = "") -> str:
    """'115.0 (3 of 3 seeds)': the mean over the seeds that reach the target."""
    mean = f"{values.mean():.1f}{unit}" if values.notna().any() else "never"
    return f"{mean} ({values.count()} of {len(values)} seeds)"


@decides_in(1, *COLUMNS)
def fewer_rounds(rows: pd.DataFrame, name: str) -> Verdict:
    """Rounds to the target of Table 2, see `earlier`."""
    lam, _, tau = COLUMNS[name]
    ahead, text = earlier(rows, pews(lam, tau), FEDAVG)
    return Verdict(ahead.status, text)


@decides_in(2, *COLUMNS)
def at_least_as_accurate(rows: pd.DataFrame, name: str) -> Verdict:
    """The paired difference is nowhere below 0; equal on every seed is enough."""
    lam, _, tau = COLUMNS[name]
    gain = lead(rows, pews(lam, tau), FEDAVG)
    return Verdict("holds" if gain.low >= 0 else gain.status, str(gain))


@decides_in(3, "four clients")
def fedavg_fails_with_four(rows: pd.DataFrame, name: str) -> Verdict:
    """FedAvg ends below THREE_CLASSES, FedPeWS without diversity above; with it, and fixed masks, for comparison."""
    accuracy = {"fedavg": FEDAVG, "lambda=0": {"method": "fedpews", **FIGURE_5}}
    found = {label: interval(by_seed(rows, where, "acc_pooled")) for label, where in accuracy.items()}
    statuses = [below(found["fedavg"], THREE_CLASSES), above(found["lambda=0"], THREE_CLASSES)]
    texts = [f"{label} {value.mean:.1f}" for label, value in found.items()]
    others = {"lambda=5": pews(5.0, FIGURE_5["tau"]), "fixed masks": fixed(FIGURE_5["tau"])}
    for label, where in ({"lambda=0": accuracy["lambda=0"]} | others).items():
        try:
            texts.append(f"{label} over fedavg {lead(rows, where, FEDAVG)}")
        except Missing:
            texts.append(f"{label} not stored")
    return Verdict(both(statuses), ", ".join(texts))


@decides("fedpews", 4, tuple(COLUMNS))
def over_fedprox(results: pd.DataFrame) -> Verdict:
    """Earlier in every column of Table 6, and more accurate in MORE_ACCURATE of them."""
    faster = all_hold((name, partial(_earlier_than_fedprox, of(results, name), name)) for name in COLUMNS)
    gains = {}
    for name, (_, lam, tau) in COLUMNS.items():
        try:
            gains[name] = lead(of(results, name), pews(lam, tau, "fedprox"), FEDPROX)
        except Missing:
            continue
    won, lost = (sum(gain.status == status for gain in gains.values()) for status in ("holds", "does not hold"))
    can_win = len(COLUMNS) - lost >= MORE_ACCURATE
    accurate = "holds" if won >= MORE_ACCURATE else "undecided" if can_win else "does not hold"
    text = ", ".join(f"{name} {gain}" for name, gain in gains.items()) or "not stored"
    return on_their_data(results, Verdict(both([faster.status, accurate]), f"rounds {faster.numbers}; accuracy {text}"))


def _earlier_than_fedprox(rows: pd.DataFrame, name: str) -> Verdict:
    _, lam, tau = COLUMNS[name]
    ahead, text = earlier(rows, pews(lam, tau, "fedprox"), FEDPROX)
    return Verdict(ahead.status, text)


@decides_in(5, *MAIN)
def only_the_warmup_helps(rows: pd.DataFrame, name: str) -> Verdict:
    """No baseline is NEAR points or more above FedAvg; the warm-up is above FedAvg, and above FedProx."""
    others = {base: lead(rows, {"method": base}, FEDAVG) for base in ("fedprox", "scaffold", "fednova", "moon")}
    gains = {base: lead(rows, pews(*MAIN[name], base), {"method": base}) for base in ("fedavg", "fedprox")}
    statuses = [below(gain, NEAR) for gain in others.values()] + [gain.status for gain in gains.values()]
    text = ", ".join(f"{base} {gain}" for base, gain in others.items())
    warm = ", ".join(f"{base} {gain}" for base, gain in gains.items())
    return Verdict(both(statuses), f"over fedavg: {text}; with the warm-up over without: {warm}")


def learned(rows: pd.DataFrame) -> list[dict]:
    """The stored cells of Tables 7 and 8 that have learned masks."""
    here = (rows["method"] == "fedpews") & (rows["base"] == "fedavg") & (rows["metric"] == "acc_pooled")
    found = rows.loc[here & (rows["tau"].astype(float) > 0), ["lam", "tau"]].astype(float).drop_duplicates()
    return [pews(*cell) for cell in found.sort_values(["lam", "tau"]).itertuples(index=False)]


def fixed_cells(rows: pd.DataFrame) -> list[dict]:
    """Those with equal fixed masks."""
    return [fixed(tau) for tau in settings(rows[rows["shares"] == "equal"], "fedpews_fixed", "tau") if tau > 0]


@decides_in(6, *GRIDS)
def depends_little(rows: pd.DataFrame, name: str) -> Verdict:
    """LITTLE of the cells are above FedAvg, each by its interval; fails once more than the rest of them is below.

    The numbers count cells by their means, split where the paper's tables are: at lambda 0.3 and at tau 0.4.
    """
    cells = learned(rows)
    if any(len({cell[field] for cell in cells}) < 2 for field in ("lam", "tau")):
        raise Missing("a grid of at least two lambda and two tau is not stored")
    gains = [(cell, lead(rows, cell, FEDAVG)) for cell in cells]
    won, lost = (sum(gain.status == status for _, gain in gains) for status in ("holds", "does not hold"))
    may_lose = (1 - LITTLE) * len(gains)
    status = "holds" if won >= LITTLE * len(gains) else "does not hold" if lost > may_lose else "undecided"
    parts = {
        "all": lambda cell: True,
        "lambda<0.3": lambda cell: cell["lam"] < 0.3 - 1e-9,
        "lambda>=0.3": lambda cell: cell["lam"] >= 0.3 - 1e-9,
        "tau<=0.4": lambda cell: cell["tau"] <= 0.4 + 1e-9,
        "tau>=0.5": lambda cell: cell["tau"] > 0.4 + 1e-9,
    }
    counts = {part: [gain.mean > 0 for cell, gain in gains if inside(cell)] for part, inside in parts.items()}
    counts["fixed masks"] = [lead(rows, cell, FEDAVG).mean > 0 for cell in fixed_cells(rows)]
    text = ", ".join(f"{part} {sum(found)} of {len(found)}" for part, found in counts.items() if found)
    return Verdict(status, f"cells above fedavg: {text}; by their intervals {won} above, {lost} below")


@decides_in(7, *GRIDS)
def best_region(rows: pd.DataFrame, name: str) -> Verdict:
    """The best cell of the region against the best outside it, both chosen by their mean over the seeds."""
    mean = [(cell, by_seed(rows, cell, "acc_pooled").mean()) for cell in learned(rows)]
    groups = {True: [], False: []}
    for cell, value in mean:
        groups[_in_best_region(cell, name)].append((value, cell))
    if not (groups[True] and groups[False]):
        raise Missing("cells inside and outside the region are not stored")
    (top, inside), (top_outside, outside) = (max(groups[part], key=lambda pair: pair[0]) for part in (True, False))
    ahead = lead(rows, inside, outside)
    means = [float(np.mean([value for value, _ in groups[part]])) for part in (True, False)]
    text = f"best inside {top:.2f} ({at(inside)}), outside {top_outside:.2f} ({at(outside)}), difference {ahead}"
    return Verdict(ahead.status, f"{text}; mean inside {means[0]:.2f}, outside {means[1]:.2f}")


def _in_best_region(cell: dict, name: str) -> bool:
    return BEST_LAMBDAS[0] <= cell["lam"] <= BEST_LAMBDAS[1] and bool(np.isclose(cell["tau"], BEST_TAUS[name]).any())


def at(cell: dict) -> str:
    return f"lambda={cell['lam']:g} tau={cell['tau']:g}"


@decides_in(8, "cifar_mnist")
def harm_without_diversity(rows: pd.DataFrame, name: str) -> Verdict:
    """FedAvg beats the warm-up with lambda = 0 at each tau."""
    losses = {cell["tau"]: lead(rows, FEDAVG, cell) for cell in learned(rows) if cell["lam"] == 0}
    if not losses:
        raise Missing("fedpews with lambda = 0 is not stored")
    text = ", ".join(f"tau={tau:g} {loss}" for tau, loss in losses.items())
    return Verdict(both([loss.status for loss in losses.values()]), f"fedavg over lambda=0: {text}")


@decides_in(9, *GRIDS)
def fixed_masks_as_good(rows: pd.DataFrame, name: str) -> Verdict:
    """The best learned masks are less than AS_GOOD above the best fixed ones, both chosen by their mean."""
    best = []
    for kind, cells in (("learned", learned(rows)), ("fixed", fixed_cells(rows))):
        if not cells:
            raise Missing(f"the grid with {kind} masks is not stored")
        best.append(max(cells, key=lambda cell: by_seed(rows, cell, "acc_pooled").mean()))
    behind = lead(rows, *best)
    text = f"best learned ({at(best[0])}) minus best fixed (tau={best[1]['tau']:g}) {behind}"
    return Verdict(below(behind, AS_GOOD), text)


@decides_in(10, "dirichlet")
def gain_shrinks(rows: pd.DataFrame, name: str) -> Verdict:
    """There is a gain at the least alpha, it falls over log alpha (a line for each seed), and is below AS_GOOD at 5."""
    alphas = sorted(rows["dirichlet"].dropna().unique()) if "dirichlet" in rows.columns else []
    if len(alphas) < 2 or not np.isclose(alphas[-1], ALIKE):
        raise Missing(f"several Dirichlet alphas, the largest {ALIKE:g}, are not stored")
    gains = pd.DataFrame({alpha: _gain_at(rows, alpha) for alpha in alphas}).dropna()
    if gains.empty:
        raise Missing("no seed has fedpews and fedavg at every Dirichlet alpha")
    fall = interval(-pd.Series(np.polyfit(np.log10(alphas), gains.to_numpy().T, 1)[0], index=gains.index))
    first, last = interval(gains[alphas[0]]), interval(gains[alphas[-1]])
    text = ", ".join(f"alpha={alpha:g} {interval(gains[alpha])}" for alpha in alphas)
    return Verdict(both([first.status, fall.status, below(last, AS_GOOD)]), f"gain at {text}; falls by {fall} a decade")


def _gain_at(rows: pd.DataFrame, alpha: float) -> pd.Series:
    split = {"dirichlet": float(alpha)}
    return by_seed(rows, pews(5.0, 0.4) | split, "acc_pooled") - by_seed(rows, FEDAVG | split, "acc_pooled")


@decides_in(11, "cifar_mnist")
def unequal_masks_are_better(rows: pd.DataFrame, name: str) -> Verdict:
    """Shares 25/75 (the first client has MNIST) above 50/50; the half point is reported, not tested."""
    ahead = lead(rows, fixed(0.4, "(0.25, 0.75)"), fixed(0.4, "(0.5, 0.5)"))
    return Verdict(ahead.status, f"25/75 minus 50/50 {ahead}")


@decides("fedpews", 12, tuple(COLUMNS))
def even_in_seconds(results: pd.DataFrame) -> Verdict:
    """Seconds of training until the target: ahead in two columns of Table 2, behind in two, each by its interval.

    A run that never reaches it counts as no earlier than either run's last round, see `earlier`.
    """
    found, texts = [], []
    for name, (lam, _, tau) in COLUMNS.items():
        try:
            ahead, text = _seconds_ahead(of(results, name), pews(lam, tau))
        except Missing as missing:
            ahead, text = None, str(missing)
        found.append(ahead.status if ahead else "undecided")
        texts.append(f"{name}: {text}")
    ahead, behind = found.count("holds"), found.count("does not hold")
    status = "holds" if ahead == behind == 2 else "does not hold" if max(ahead, behind) > 2 else "undecided"
    return on_their_data(results, Verdict(status, "; ".join(texts)))


def _seconds_ahead(rows: pd.DataFrame, warm: dict) -> tuple[Interval, str]:
    spent = on_common_seeds(rows, warm, FEDAVG, "seconds_to_target")
    last = on_common_seeds(rows, warm, FEDAVG, "train_seconds").max(axis=1)
    late = spent.apply(lambda column: column.fillna(last))
    ahead, cost = interval(late["b"] - late["a"]), by_seed(rows, warm, "warmup_cost").mean()
    text = f"{reaching(spent['a'], ' s')} against {reaching(spent['b'], ' s')}, earlier by {ahead}"
    return ahead, f"{text}; a warm-up round takes {cost:.2f} of a later one"


@decides_in(13, *CLIENTS, "many clients")
def more_clients(rows: pd.DataFrame, name: str) -> Verdict:
    """Over FedProx for each number of clients of Figure 12; over FedAvg for the many of Figure 13."""
    if name == "many clients":
        number = int(rows["clients"].max()) if "clients" in rows.columns and len(rows) else 0
        gain = lead(rows, pews(0.5, 0.05), FEDAVG)
        return Verdict(gain.status, f"{number} clients over fedavg {gain}")
    gains = {}
    for number in CLIENTS[name]:
        many = {"clients": float(number)}
        gains[number] = lead(rows, pews(5.0, 0.2, "fedprox") | many, FEDPROX | many)
    text = ", ".join(f"{number} clients {gain}" for number, gain in gains.items())
    return Verdict(both([gain.status for gain in gains.values()]), f"over fedprox: {text}")


@decides_in(14, "activations")
def own_group_dominates(rows: pd.DataFrame, name: str) -> Verdict:
    """The own group has over half of a layer's activations, in each client and layer, in and after the warm-up.

    All layers rise at the switch. FedAvg (tau = 0): in some client and layer the own group has less than half.
    """
    warm = next((fixed(tau) for tau in settings(rows, "fedpews_fixed", "tau") if tau > 0), None)
    if warm is None:
        raise Missing("fedpews_fixed with a warm-up is not stored")
    before, after, none = (
        interval(by_seed(rows, where, metric))
        for where, metric in ((warm, "own_group_warm"), (warm, "own_group_later"), (fixed(0.0), "own_group_later"))
    )
    rise = interval(by_seed(rows, warm, "activation_rise"))
    statuses = [above(before, 0.5), above(after, 0.5), above(rise, 1.0), below(none, 0.5)]
    text = f"least share of the own group: {before.mean:.2f} before, {after.mean:.2f} after; fedavg {none.mean:.2f}"
    few = " (1 seed)" if after.seeds < 2 else ""
    return Verdict(both(statuses), f"{text}; activations rise by a factor of at least {rise.mean:.2f}{few}")


@decides("fedpews", 15)
def diversity_is_bounded(results: pd.DataFrame) -> Verdict:
    """||p_k - p_others||^2 <= h in every warm-up round of every run (a bound: one seed is enough)."""
    share = metrics(results, "diversity_max", "neurons").eval("diversity_max / neurons")
    text = f"at most {share.max():.2f} h in {len(share)} runs"
    return on_their_data(results, Verdict("holds" if share.max() <= 1 else "does not hold", text))


@decides("fedpews", 16)
def upload_is_smaller(results: pd.DataFrame) -> Verdict:
    """Every upload of a warm-up round is below the whole model (counts: one seed is enough).

    FedPeWS-Fixed with equal shares must send what COUNTED says. A learned mask of nearly all neurons, with its h
    probabilities, can be larger than the model.
    """
    sent = metrics(results, "warmup_upload_max", "warmup_upload_fraction", "neurons")
    counted = sent[(sent["method"] == "fedpews_fixed") & (sent["shares"] == "equal")]
    statuses = ["holds" if sent["warmup_upload_max"].max() < 1 else "does not hold"]
    for row in counted.itertuples():
        expected = COUNTED.get((row.neurons, getattr(row, "clients", None)), row.warmup_upload_max)
        statuses.append("holds" if abs(row.warmup_upload_max - expected) < 1e-4 else "does not hold")
    text = [f"{name} {rows['warmup_upload_fraction'].mean():.3f}" for name, rows in sent.groupby("method")]
    largest = f"largest {sent['warmup_upload_max'].max():.3f} in {len(sent)} runs"
    return on_their_data(results, Verdict(both(statuses), f"mean share of the model: {', '.join(text)}; {largest}"))


def metrics(results: pd.DataFrame, *names: str) -> pd.DataFrame:
    """A row for each run that has all these metrics, a column for each."""
    rest = [name for name in results.columns if name not in ("metric", "value")]
    found = results[results["metric"].isin(names)].groupby([*rest, "metric"], dropna=False)["value"].first()
    found = found.unstack("metric").reindex(columns=list(names)).dropna().reset_index()
    if found.empty:
        raise Missing(f"{names[0]} is not stored")
    return found
