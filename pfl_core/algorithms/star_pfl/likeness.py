r"""Similarity of the clients' stability scores without freezing: the measurement behind Star-PFL's Figure 2.

    client    W_i ← W_g;  each epoch: SGD on all entries, R_i records the updates
              score_i = |Σ R_i| / Σ |R_i|,   stable_i = {score_i ≤ T}
    server    W_g ← W_g + Σ_i p_i (W_i − W_g)                                    FedAvg: M_g and M_i are all 1

After every round, the scores of each two clients are compared: Spearman's correlation over all entries, and the number
of entries that are stable for both. A score covers the first ``history_len_local`` local epochs of the round. If a
round has fewer epochs, it covers several rounds. Scores are rounded before they are ranked. Otherwise rounding errors
would order the entries whose updates all have one sign and whose score is 1.

This is a measuring instrument of this project, not a method of the paper. With thresholds set, it measures Star-PFL
itself. Runs name it ``star_pfl_likeness``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import register
from pfl_core.algorithms.star_pfl.method import StarPFL, StarState
from pfl_core.federation import Federation
from pfl_core.ranks import rank_correlation
from pfl_core.seeding import permutation

DECIMALS = 5  # scores are rounded to this many decimals before they are ranked


@dataclass(frozen=True)
class LikenessState(StarState):
    """Adds one [N, N] matrix of each kind for every round so far."""

    ranks: tuple[Tensor, ...] = ()  # float64, Spearman's correlation of the clients' scores
    both: tuple[Tensor, ...] = ()  # int64, number of entries that are stable for both clients


@register("star_pfl_likeness", papers=("star_pfl",), shares="as Star-PFL that freezes nothing")
@dataclass(frozen=True)
class Likeness(StarPFL):
    """Star-PFL that freezes nothing and records how similar its clients' scores are. Used with full participation."""

    threshold_global: float | None = None
    threshold_local: float | None = None
    stable_at: float = 0.1  # T of the stable sets that are compared
    sampled: int = 240  # number of entries whose scores are stored, for a figure

    def init(self, fed: Federation, theta0: Tensor) -> LikenessState:
        return LikenessState(**vars(super().init(fed, theta0)))

    def round(self, fed: Federation, state: StarState, clients: Tensor, t: int) -> tuple[LikenessState, dict]:
        new, notes = super().round(fed, state, clients, t)
        assert isinstance(new, LikenessState)
        score = client_scores(new)
        stable = score <= self.stable_at
        ranks = torch.from_numpy(rank_correlation(score.numpy()))
        new = replace(new, ranks=(*new.ranks, ranks), both=(*new.both, in_common(stable)))
        return new, notes | {
            "stable_share": stable.double().mean(1)[clients],
            "never_moved_share": (score == 0).double().mean(1)[clients],
        }

    def artifacts(self, fed: Federation, state: StarState) -> dict[str, Tensor]:
        """Of all rounds: ``ranks`` and ``both`` [T, N, N]. Of the last round: the same by tensor, and sampled scores.

        ``moving/`` is ``overlap/`` without the entries that never moved, whose score is exactly 0.
        """
        assert isinstance(state, LikenessState)
        score = client_scores(state)
        out = {"ranks": torch.stack(state.ranks).round(decimals=DECIMALS), "both": torch.stack(state.both)}
        for f in fed.layout.params:
            part = score[:, f.start : f.stop]
            out[f"ranks/{f.name}"] = torch.from_numpy(np.round(rank_correlation(part.numpy()), DECIMALS))
            out[f"overlap/{f.name}"] = in_common(part <= self.stable_at)
            out[f"moving/{f.name}"] = in_common((part <= self.stable_at) & (part > 0))
            out[f"size/{f.name}"] = torch.tensor(f.stop - f.start)
        chosen = self.chosen(fed, score)
        return out | {"sampled": chosen, "scores": score[:, chosen].round(decimals=4)}

    def chosen(self, fed: Federation, score: Tensor) -> Tensor:
        """[n] indices of the entries to show, sorted: equally many of each weight tensor, moved by some client."""
        tensors, out = [f for f in fed.layout.params if len(f.shape) > 1], []
        for f in tensors:
            moved = (score[:, f.start : f.stop] > 0).any(0).nonzero().squeeze(1)
            order = permutation(len(moved), fed.seed, "sampled entries", f.name)
            out.append(f.start + moved[order[: self.sampled // len(tensors)]].sort().values)
        return torch.cat(out)


def client_scores(state: StarState) -> Tensor:
    """[N, d] the current scores of all clients, rounded."""
    return torch.stack([entries.score for entries in state.clients]).double().round(decimals=DECIMALS).cpu()


def in_common(sets: Tensor) -> Tensor:
    """[N, N] sizes of the pairwise intersections of the sets [N, n] bool."""
    return (sets.double() @ sets.double().T).long()
