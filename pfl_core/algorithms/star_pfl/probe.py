"""Stability traces of Star-PFL: values, scores and states of entries in every round, recorded if ``probe`` is set.

For the server and for client 0, the values of a few sampled entries are recorded. With ``probe_epochs``, those of
client 0 are also recorded after every local epoch. For all parties (the server and every client), the number of frozen
entries by layer is recorded, and histograms of waiting times and scores. An absent client keeps its last state.
"""

from __future__ import annotations

from functools import reduce
from operator import add

import torch
from torch import Tensor

from pfl_core.algorithms.star_pfl.masks import Entries
from pfl_core.algorithms.star_pfl.state import BINS, LONGEST_WAIT, StarState, Trace, layers, sampled
from pfl_core.federation import Federation
from pfl_core.ranks import rank_correlation

WATCHED = 0  # the client whose entries are traced
ACTIVE, FROZEN, PROBING = 0, 1, 2  # state of an entry during a round


def measured(entries: Entries, length: int) -> Tensor:
    """Bool [d], entries with a score from this round, from a full window of ``length``, and above 0."""
    return entries.trained & (entries.count >= length) & (entries.score > 0)


def size_correlation(params: Tensor, entries: Entries, length: int) -> float:
    """Spearman's correlation of |value| and score over the ``measured`` entries [d]; NaN for fewer than two."""
    on = measured(entries, length)
    size_and_score = torch.stack([params.abs()[on], entries.score[on]]).double().cpu().numpy()
    return float(rank_correlation(size_and_score)[0, 1]) if size_and_score.shape[1] > 1 else float("nan")


class Probe:
    """Collects one round's records for the trace. With ``num`` = 0 it records nothing.

    ``lengths`` are those of the windows of the server and of a client.
    """

    def __init__(self, fed: Federation, num: int, lengths: tuple[int, int]):
        self.fed, self.index, self.lengths = fed, sampled(fed, num) if num else None, lengths
        self.correlation: dict[int, float] = {}  # client -> size_correlation
        self.value: Tensor | None = None  # [p] of WATCHED
        self.epochs: list[Tensor] = []  # [p] of WATCHED after each local epoch

    def after_epoch(self, clients: Tensor, theta: Tensor) -> None:
        """Record the models [S, e] of these clients [S] after one more local epoch."""
        self.epochs += [row[self.index].cpu() for k, row in zip(clients.tolist(), theta, strict=True) if k == WATCHED]

    def course(self, before: StarState) -> Tensor:
        """[1, 1 + E, p] entries of WATCHED as received and after each local epoch; NaN if it was absent."""
        received = before.shared[self.index].cpu()
        after = self.epochs or [torch.full_like(received, torch.nan)] * self.fed.train.epochs
        return torch.stack([received, *after])[None]

    def note(self, k: int, theta_k: Tensor, entries: Entries) -> None:
        """Record client k: its model [e] after local training, and its entries after Check."""
        if self.index is None:
            return
        self.correlation[k] = size_correlation(theta_k[: self.fed.num_params], entries, self.lengths[1])
        if k == WATCHED:
            self.value = theta_k[self.index].clone()

    def added(self, before: StarState, after: StarState) -> Trace:
        """The trace with one more round, which led from ``before`` to ``after``."""
        parties, groups = [after.server, *after.clients], ([after.server], after.clients)
        frozen = torch.stack([~entries.trained for entries in parties])  # [1 + N, d]
        zero_score = torch.stack([(entries.score == 0) & (entries.count > 0) for entries in parties])
        traced = [(before.server, after.server), (before.clients[WATCHED], after.clients[WATCHED])]
        shared = after.shared[self.index]
        absent = torch.full_like(shared, torch.nan)
        return before.trace.then(
            value=torch.stack([shared, absent if self.value is None else self.value]).cpu(),
            score=torch.stack([entries.score[self.index] for _, entries in traced]).cpu(),
            state=torch.stack([entry_states(*pair)[self.index] for pair in traced]).cpu(),
            frozen=torch.stack([frozen[:, part].sum(1) for part in layers(self.fed.layout).values()], 1).int().cpu(),
            unmoved=(frozen & zero_score).sum(1).int().cpu(),
            waits=torch.stack([reduce(add, map(wait_counts, group)) for group in groups]),
            scores=torch.stack(
                [
                    reduce(add, [score_counts(e, n) for e in group])
                    for group, n in zip(groups, self.lengths, strict=True)
                ]
            ),
        )

    def notes(self, after: StarState, clients: Tensor) -> dict[str, float | Tensor]:
        """The round's notes: ``size_correlation`` of the server and of each client; none without a probe."""
        if self.index is None:
            return {}
        params = after.shared[: self.fed.num_params]
        return {
            "size_correlation_global": size_correlation(params, after.server, self.lengths[0]),
            "size_correlation": torch.tensor([self.correlation[k] for k in clients.tolist()]),
        }


def entry_states(before: Entries, after: Entries) -> Tensor:
    """[d] uint8: ACTIVE, FROZEN or PROBING during the round; for an absent client, during its last round."""
    thawed = torch.where(before.probe, PROBING, ACTIVE)
    return torch.where(after.trained, thawed, FROZEN).to(torch.uint8)


def wait_counts(entries: Entries) -> Tensor:
    """[LONGEST_WAIT] number of entries by F."""
    return torch.bincount(entries.interval.long().clamp(1, LONGEST_WAIT) - 1, minlength=LONGEST_WAIT).int().cpu()


def score_counts(entries: Entries, length: int) -> Tensor:
    """[BINS] number of ``measured`` entries by score."""
    return torch.histc(entries.score[measured(entries, length)].cpu(), BINS, 0, 1).int()
