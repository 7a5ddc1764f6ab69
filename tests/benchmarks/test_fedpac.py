"""FedPAC's server: what 20 clients sent becomes prototypes and 20 mixtures of heads, in next to no time."""

from __future__ import annotations

import numpy as np
import torch

from pfl_core.algorithms.fedpac import FedPAC, quadratic
from pfl_core.ops import mix
from pfl_core.seeding import generator
from tests.benchmarks.conftest import ROWS

CLIENTS, CLASSES, FEATURES = 20, 10, 512  # ResNet18's features
SECONDS = 0.05  # of one server step
BOUND = 0.25  # this project's choice: share of the time of 20 general solvers


def sent() -> tuple[torch.Tensor, ...]:
    """Statistics of clients with two of the classes each, and their heads."""
    stream = generator(0, "sent")
    has = torch.stack([(torch.arange(CLASSES) - k % CLASSES) % CLASSES < 2 for k in range(CLIENTS)])
    counts = 50.0 * has.double()
    means = has[:, :, None] * torch.rand(CLIENTS, CLASSES, FEATURES, generator=stream, dtype=torch.float64)
    V = FEATURES / 300 * (0.5 + torch.rand(CLIENTS, generator=stream, dtype=torch.float64))
    return means / 2, V, means, counts, torch.randn(CLIENTS, CLASSES * (FEATURES + 1), generator=stream)


def slsqp(H: np.ndarray) -> np.ndarray:
    """One client's weights by scipy's general solver, slopes given."""
    from scipy.optimize import minimize

    found = minimize(
        lambda w: w @ H @ w,
        np.full(CLIENTS, 1 / CLIENTS),
        jac=lambda w: 2 * H @ w,
        bounds=[(0, None)] * CLIENTS,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
    )
    return found.x


def test_fedpacs_programmes_are_solved_together(compare):
    algorithm, (A, V, means, counts, heads) = FedPAC(), sent()
    H = quadratic(A, V).numpy()

    def project() -> None:
        mix(algorithm.head_weights(A, V), heads)
        algorithm.prototypes(means, counts)

    compare(
        f"FedPAC server step, {CLIENTS} clients",
        f"{CLIENTS} runs of SLSQP",
        lambda: [slsqp(each) for each in H],
        project,
        turns=20,
        bound=BOUND,
    )
    assert ROWS[-1].project <= SECONDS
