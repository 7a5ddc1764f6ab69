"""Checks of FedPeWS's claims on skew (10), numbers of clients (13), activations (14), diversity (15), uploads (16)."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from pfl_core.papers.fedpews.claims.grids import AS_GOOD
from pfl_core.papers.fedpews.claims.tables import (
    FEDAVG,
    FEDPROX,
    Selector,
    claim,
    claim_in,
    fixed,
    lead,
    on_their_data,
    pews,
)
from pfl_core.study.statistics import Missing, by_seed, interval, settings, slopes
from pfl_core.study.verdicts import Verdict, above, all_of, below

ALIKE = 5.0  # Dirichlet alpha without a gain
CLIENTS = {"classes of cifar10": (5, 10), "classes of cifar100": (20,)}  # Figure 12
# (neurons, clients) -> share of the dense network that FedPeWS-Fixed sends: covered parameters and h mask bits
COUNTED = {
    (256, 2): (3860 + 256 / 32) / 14884,
    (256, 4): (1036 + 256 / 32) / 14884,
}


@claim_in(10, "dirichlet")
def gain_shrinks(rows: pd.DataFrame, name: str) -> Verdict:
    """The smallest alpha has a gain; it falls over log alpha (one fitted line per seed) and is below AS_GOOD at 5."""
    alphas = sorted(rows["dirichlet"].dropna().unique()) if "dirichlet" in rows.columns else []
    if len(alphas) < 2 or not np.isclose(alphas[-1], ALIKE):
        raise Missing(f"several Dirichlet alphas, the largest {ALIKE:g}, are not stored")
    # Rows: seeds; columns: alphas. The fall is per decade of alpha.
    gains = pd.DataFrame({alpha: _gain_at(rows, alpha) for alpha in alphas}).dropna()
    if gains.empty:
        raise Missing("no seed has fedpews and fedavg at every Dirichlet alpha")
    fall = interval(-slopes(gains.rename(columns=math.log10)))
    first, last = interval(gains[alphas[0]]), interval(gains[alphas[-1]])
    text = ", ".join(f"alpha={alpha:g} {interval(gains[alpha])}" for alpha in alphas)
    return Verdict(
        all_of([first.status, fall.status, below(last, AS_GOOD)]), f"gain at {text}; falls by {fall} a decade"
    )


def _gain_at(rows: pd.DataFrame, alpha: float) -> pd.Series:
    split: Selector = {"dirichlet": float(alpha)}
    return by_seed(rows, pews(5.0, 0.4) | split, "acc_pooled") - by_seed(rows, FEDAVG | split, "acc_pooled")


@claim_in(13, *CLIENTS, "many clients")
def more_clients(rows: pd.DataFrame, name: str) -> Verdict:
    """A gain over FedProx for each number of clients in Figure 12, and over FedAvg for the many of Figure 13."""
    if name == "many clients":
        number = int(rows["clients"].max()) if "clients" in rows.columns and len(rows) else 0
        gain = lead(rows, pews(0.5, 0.05), FEDAVG)
        return Verdict(gain.status, f"{number} clients over fedavg {gain}")
    gains = {}
    for number in CLIENTS[name]:
        clients: Selector = {"clients": float(number)}
        gains[number] = lead(rows, pews(5.0, 0.2, "fedprox") | clients, FEDPROX | clients)
    text = ", ".join(f"{number} clients {gain}" for number, gain in gains.items())
    return Verdict(all_of([gain.status for gain in gains.values()]), f"over fedprox: {text}")


@claim_in(14, "activations")
def own_group_dominates(rows: pd.DataFrame, name: str) -> Verdict:
    """A client's group has over half of each layer's activations, for all clients, during and after the warm-up.

    The activations of all layers rise at the switch. With FedAvg (tau = 0) a client's group has less than half in at
    least one client and layer.
    """
    warm = next((fixed(tau) for tau in settings(rows, "fedpews_fixed", "tau") if tau > 0), None)
    if warm is None:
        raise Missing("fedpews_fixed with a warm-up is not stored")
    before, after, none = (
        interval(by_seed(rows, selector, metric))
        for selector, metric in ((warm, "own_group_warm"), (warm, "own_group_later"), (fixed(0.0), "own_group_later"))
    )
    rise = interval(by_seed(rows, warm, "activation_rise"))
    # The last one is FedAvg: its lowest share must be below one half.
    statuses = [above(before, 0.5), above(after, 0.5), above(rise, 1.0), below(none, 0.5)]
    text = f"least share of the own group: {before.mean:.2f} before, {after.mean:.2f} after; fedavg {none.mean:.2f}"
    few = " (1 seed)" if after.seeds < 2 else ""
    return Verdict(all_of(statuses), f"{text}; activations rise by a factor of at least {rise.mean:.2f}{few}")


@claim(15)
def diversity_is_bounded(results: pd.DataFrame) -> Verdict:
    """||p_k - p_others||^2 <= h in every warm-up round of every run (a bound: one seed is enough)."""
    share = metrics(results, "diversity_max", "neurons").eval("diversity_max / neurons")
    text = f"at most {share.max():.2f} h in {len(share)} runs"
    return on_their_data(results, Verdict("holds" if share.max() <= 1 else "does not hold", text))


@claim(16)
def upload_is_smaller(results: pd.DataFrame) -> Verdict:
    """Every upload of a warm-up round is smaller than the model (counts: one seed is enough).

    FedPeWS-Fixed with equal shares must send the share in COUNTED. A learned mask of nearly all neurons, with its h
    probabilities, can be larger than the model.
    """
    sent = metrics(results, "warmup_upload_max", "warmup_upload_fraction", "neurons")
    # Fixed masks with equal shares have a known size.
    counted = sent[(sent["method"] == "fedpews_fixed") & (sent["shares"] == "equal")]
    statuses = ["holds" if sent["warmup_upload_max"].max() < 1 else "does not hold"]
    for row in counted.to_dict("records"):
        largest_upload = row["warmup_upload_max"]
        expected = COUNTED.get((row["neurons"], row.get("clients", -1)), largest_upload)  # unknown networks pass
        statuses.append("holds" if abs(largest_upload - expected) < 1e-4 else "does not hold")
    text = [f"{name} {rows['warmup_upload_fraction'].mean():.3f}" for name, rows in sent.groupby("method")]
    largest = f"largest {sent['warmup_upload_max'].max():.3f} in {len(sent)} runs"
    return on_their_data(results, Verdict(all_of(statuses), f"mean share of the model: {', '.join(text)}; {largest}"))


def metrics(results: pd.DataFrame, *names: str) -> pd.DataFrame:
    """One row per run that has all these metrics, one column per metric."""
    rest = [name for name in results.columns if name not in ("metric", "value")]
    # From one row per run and metric to one row per run.
    values = results[results["metric"].isin(names)].groupby([*rest, "metric"], dropna=False)["value"].first()
    wide = values.unstack("metric").reindex(columns=list(names)).dropna().reset_index()
    if wide.empty:
        raise Missing(f"{names[0]} is not stored")
    return wide
