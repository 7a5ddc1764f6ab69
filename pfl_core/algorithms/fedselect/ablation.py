r"""FedSelect's ablations: other scores to rank the shared entries, and masks that are fixed from the start.

Tamirisa et al., "FedSelect", CVPR 2024, Table 3. Everything else is Algorithm 1.

    change          |θ_k⁺ − θ_k|, the paper's rule            least_change    −|θ_k⁺ − θ_k|
    random          a new uniform number for each entry       magnitude       |θ_k⁺|
    gradient        |∇f_k(θ_k)| on all of the client's data, at the start of its round
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pfl_core.federation import Federation
from pfl_core.ops import BLOCK, top_count
from pfl_core.seeding import generator, permutation


def ranking_scores(
    fed: Federation, ranking: str, reference: Tensor, start: Tensor, trained: Tensor, clients: Tensor, t: int
) -> Iterator[Tensor]:
    """The scores [e] or [d] of one client after another; the largest become personal. They share one buffer.

    The change is measured from ``reference``; the round went from ``start`` to ``trained``; all [S, e].
    """
    gradient = gradients(fed, start, clients, t) if ranking == "gradient" else None
    buffer = torch.empty_like(trained[0])
    for s, k in enumerate(clients.tolist()):
        if gradient is not None:
            yield gradient[s].abs_()
        elif ranking == "random":
            yield torch.rand(len(buffer), generator=generator(fed.seed, "ranking", t, k)).to(buffer)
        elif ranking == "magnitude":
            yield torch.abs(trained[s], out=buffer)
        else:
            blocks = (x.split(BLOCK) for x in (buffer, trained[s], reference[s]))
            for change, after, before in zip(*blocks, strict=True):
                torch.sub(after, before, out=change).abs_()  # Δu_k
            yield buffer.nan_to_num_(nan=torch.inf).neg_() if ranking == "least_change" else buffer


def tie_order(fed: Federation, ranking: str, size: int, t: int, k: int) -> Tensor | None:
    """The order [size] in which equal scores are taken: random for "least_change", else None, the order of indices.

    Many entries do not change at all, so with "least_change" many scores are equal.
    """
    return permutation(size, fed.seed, "ties", t, k) if ranking == "least_change" else None


def gradients(fed: Federation, theta: Tensor, clients: Tensor, t: int) -> Tensor:
    """[S, d] each client's gradient at its row of theta [S, e]: the mean over the samples of an epoch's batches."""
    out = torch.zeros_like(theta[:, : fed.num_params])

    def add_gradients(rows: slice | Tensor) -> None:
        total, seen = torch.zeros_like(out[rows]), torch.zeros(len(clients[rows]), 1).to(out)
        for batch in fed.batches(clients[rows], (t, "ranking"), epochs=1):
            num = len(batch.count)
            weight = batch.weight[:, None]
            total[:num].addcmul_(fed.grad(theta[rows][:num], batch).theta, weight)  # batch means times batch sizes
            seen[:num] += weight
        out[rows] = total / seen

    fed.each_group(add_gradients, clients)
    return out


def fixed_masks(
    fed: Federation, units: Sequence[slice | Tensor], masks: str, alpha: float, layers: tuple[str, ...]
) -> Tensor:
    """[N, d] bool, True on entries that are personal from round 0 on; all False for masks="grown".

    "layers": all tensors of ``layers``. "random": floor(α D) entries of each of ``units``, drawn for each client.
    "common_random": drawn once for all clients. Raises ValueError for an unknown layer.
    """
    if masks == "layers":
        return chosen_layers(fed, layers)[: fed.num_params].repeat(fed.num_clients, 1)
    out = torch.zeros(fed.num_clients, fed.num_params, dtype=torch.bool)
    for k in range(fed.num_clients if masks in ("random", "common_random") else 0):
        stream = generator(fed.seed, "masks", *([k] if masks == "random" else []))
        for unit in units:
            size = len(out[k, unit])
            everything = torch.ones(size, dtype=torch.bool)
            count = math.floor(alpha * size + 1e-9)  # 1e-9: alpha * size may be just below an integer
            out[k, unit] = top_count(torch.rand(size, generator=stream), everything, count)
    return out


def chosen_layers(fed: Federation, layers: tuple[str, ...]) -> Tensor:
    """[e] bool, True on the tensors of these layers; raises ValueError for a layer that the network does not have."""
    for layer in layers:
        if not any(_within(f.name, layer) for f in fed.layout.params):
            known = ", ".join(dict.fromkeys(f.layer for f in fed.layout.params))
            raise ValueError(f"FedSelect: the network has no layer {layer!r}; choose from {known}")
    return fed.layout.mask(lambda f: any(_within(f.name, layer) for layer in layers))


def _within(tensor: str, layer: str) -> bool:
    """Whether the tensor belongs to the layer or to a layer inside it; both are dotted names."""
    return f"{tensor}.".startswith(f"{layer}.")
