r"""Which entries are steady for which clients, while nothing is frozen: the measurement behind Star-PFL's Figure 2.

    client    W_i ← W_g;  each epoch: SGD on all entries, R_i gets what it changed
              score_i = |Σ R_i| / Σ |R_i|,   stable_i = {score_i ≤ T}
    server    W_g ← W_g + Σ_i p_i (W_i − W_g)                                    FedAvg: M_g and M_i are all 1

After every round the clients' scores are compared, pair by pair: Spearman's correlation over all entries, and how many
entries two clients both have stable. A score covers the first ``history_len_local`` local epochs of the round; a window
that is longer than a round has epochs reaches back over several. Scores are rounded before they are ranked: an entry
that only ever moved one way has 1 up to the last bit, and that bit would rank it.

An instrument of ours, not a method; with thresholds set it watches Star-PFL itself. Runs name it ``star_pfl_likeness``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import instrument
from pfl_core.algorithms.star_pfl.method import StarPFL, StarState
from pfl_core.federation import Federation
from pfl_core.ranks import rank_correlation
from pfl_core.seeding import generator

DECIMALS = 5  # of the scores that are ranked


@dataclass(frozen=True)
class LikenessState(StarState):
    """One [N, N] for each round so far."""

    ranks: tuple[Tensor, ...] = ()  # float64, Spearman's correlation of the clients' scores
    both: tuple[Tensor, ...] = ()  # int64, entries that two clients both have stable


@instrument("star_pfl_likeness")
@dataclass(frozen=True)
class Likeness(StarPFL):
    """Star-PFL that freezes nothing and keeps what its clients' scores have in common; all clients in every round."""

    threshold_global: float | None = None
    threshold_local: float | None = None
    stable_at: float = 0.1  # T of the stable sets that are compared
    sampled: int = 240  # entries whose scores are kept, for a picture

    def init(self, fed: Federation, theta0: Tensor) -> LikenessState:
        plain = super().init(fed, theta0)
        return LikenessState(**{f.name: getattr(plain, f.name) for f in fields(plain)})

    def round(self, fed: Federation, state: LikenessState, clients: Tensor, t: int) -> tuple[LikenessState, dict]:
        new, notes = super().round(fed, state, clients, t)
        score = scores(new)
        stable = score <= self.stable_at
        ranks = torch.from_numpy(rank_correlation(score.numpy()))
        new = replace(new, ranks=(*state.ranks, ranks), both=(*state.both, in_common(stable)))
        return new, notes | {
            "stable_share": stable.double().mean(1)[clients],
            "never_moved_share": (score == 0).double().mean(1)[clients],
        }

    def artifacts(self, fed: Federation, state: LikenessState) -> dict[str, Tensor]:
        """All rounds: ``ranks`` and ``both`` [T, N, N]; the last one: the same for each tensor, and sampled scores.

        ``moving/`` is ``overlap/`` without the entries that never moved, whose score is 0 to the bit.
        """
        score = scores(state)
        out = {"ranks": torch.stack(state.ranks).round(decimals=DECIMALS), "both": torch.stack(state.both)}
        for f in fed.layout.params:
            of = score[:, f.start : f.stop]
            out[f"ranks/{f.name}"] = torch.from_numpy(np.round(rank_correlation(of.numpy()), DECIMALS))
            out[f"overlap/{f.name}"] = in_common(of <= self.stable_at)
            out[f"moving/{f.name}"] = in_common((of <= self.stable_at) & (of > 0))
            out[f"size/{f.name}"] = torch.tensor(f.stop - f.start)
        chosen = self.chosen(fed, score)
        return out | {"sampled": chosen, "scores": score[:, chosen].round(decimals=4)}

    def chosen(self, fed: Federation, score: Tensor) -> Tensor:
        """[n] entries to show, in the model's order: as many of each weight tensor, of those that some client moved."""
        tensors, out = [f for f in fed.layout.params if len(f.shape) > 1], []
        for f in tensors:
            moved = (score[:, f.start : f.stop] > 0).any(0).nonzero().squeeze(1)
            order = torch.randperm(len(moved), generator=generator(fed.seed, "sampled entries", f.name))
            out.append(f.start + moved[order[: self.sampled // len(tensors)]].sort().values)
        return torch.cat(out)


def scores(state: StarState) -> Tensor:
    """[N, d] every client's scores as they stand, rounded."""
    return torch.stack([entries.score for entries in state.clients]).double().round(decimals=DECIMALS).cpu()


def in_common(sets: Tensor) -> Tensor:
    """[N, N] entries that two of the sets [N, n] both have."""
    return (sets.double() @ sets.double().T).long()
