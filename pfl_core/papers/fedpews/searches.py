"""FedPeWS: the searches of its comparisons. The grids were committed before the searches."""

from __future__ import annotations

from pfl_core.papers.fedpews.settings import TAU_FIGURE_5
from pfl_core.study.search import Search

# Paper: one rate for all methods (0.001 on the synthetic set, 0.01 on images), λ and τ of Table 7, no strengths of the
# baselines. Not in the paper: a tenth of each client's training samples for validation, on which no run trains.
MUS = (0.001, 0.01, 0.1, 1.0)  # the grid in FedProx's paper
LAMBDAS, TAUS = (0.5, 2.0, 10.0), (0.2, 0.5, 0.8)
_ON_POINTS, _ON_IMAGES = {"lr": (0.0003, 0.001, 0.003)}, {"lr": (0.003, 0.01, 0.03)}
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
        Search("fedpews", {**_ON_IMAGES, "lam": LAMBDAS, "tau": TAUS}),
    ),
}
