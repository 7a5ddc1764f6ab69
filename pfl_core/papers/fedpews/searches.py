"""FedPeWS: the searches of its comparisons. The grids were committed before the searches."""

from __future__ import annotations

from pfl_core.papers.fedpews.settings import BEST, TAU_FIGURE_5
from pfl_core.study.search import Search

# Paper: one rate for all methods (0.001 on the synthetic set, 0.01 on images), no strengths of the baselines. Not in
# the paper: a tenth of each client's training samples for validation, on which no run trains.
MUS = (0.001, 0.01, 0.1, 1.0)  # the grid in FedProx's paper
_ON_POINTS, _ON_IMAGES = {"lr": (0.0003, 0.001, 0.003)}, {"lr": (0.01, 0.03, 0.1)}
SEARCHES = {
    # Only the rate, at one cell of the grid of λ and τ; the values are used for all cells.
    ("real", "sensitivity"): (
        Search("fedavg", _ON_POINTS),
        Search("fedpews_fixed", _ON_POINTS, {"tau": 0.2}),
        Search("fedpews", _ON_POINTS, {"lam": 5.0, "tau": 0.2}),
    ),
    # At the paper's λ and τ; λ = 5 then has the same rate.
    ("real", "four clients"): (
        Search("fedavg", _ON_POINTS),
        Search("fedpews_fixed", _ON_POINTS, {"tau": TAU_FIGURE_5}),
        Search("fedpews", _ON_POINTS, {"lam": 0.0, "tau": TAU_FIGURE_5}),
    ),
    ("real", "cifar_mnist"): (
        Search("fedavg", _ON_IMAGES),
        Search("fedprox", {**_ON_IMAGES, "mu": MUS}),
        Search("scaffold", _ON_IMAGES),
        Search("fednova", _ON_IMAGES),
        Search("moon", {**_ON_IMAGES, "mu_con": (0.1, 1.0, 5.0, 10.0)}),
        # As on the points: only the rate, at the best cells of Table 7, for all cells.
        Search("fedpews_fixed", _ON_IMAGES, {"tau": 0.4}),
        Search("fedpews", _ON_IMAGES, dict(zip(("lam", "tau"), BEST["cifar_mnist"], strict=True))),
    ),
    # At Figure 8's λ and τ and a Dirichlet α of 0.5, for all α.
    ("real", "dirichlet"): (
        Search("fedavg", _ON_IMAGES),
        Search("fedpews", _ON_IMAGES, {"lam": 5.0, "tau": 0.4}),
    ),
    # At Figure 12's base, λ and τ and five clients, for ten clients, too.
    ("real", "classes of cifar10"): (
        Search("fedprox", _ON_IMAGES),
        Search("fedpews", _ON_IMAGES, {"base": "fedprox", "lam": 5.0, "tau": 0.2}),
    ),
}
