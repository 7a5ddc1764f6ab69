"""Stability traces of Star-PFL: values, scores and states of entries in every round, recorded if ``probe`` is set.

For the server and for client 0, the values of a few sampled entries are recorded. With ``probe_epochs``, those of
client 0 are also recorded after every local epoch. For all parties (the server and every client), the number of frozen
entries by layer is recorded, and histograms of waiting times and scores. An absent client keeps its last state.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce
from operator import add

import torch
from torch import Tensor

from pfl_core.algorithm import in_checkpoints
from pfl_core.algorithms.star_pfl.masks import Entries
from pfl_core.federation import Federation
from pfl_core.layout import Layout
from pfl_core.ranks import rank_correlation
from pfl_core.seeding import permutation

LONGEST_WAIT, BINS = 40, 50  # bins of the waiting times (longer ones in the last bin) and of the scores in [0, 1]
WATCHED = 0  # the client whose entries are traced
ACTIVE, FROZEN, PROBING = 0, 1, 2  # state of an entry during a round


@in_checkpoints
@dataclass(frozen=True)
class Trace:
    """Records of the t rounds so far, for p entries. An axis of size 2 is (server, WATCHED) unless noted."""

    value: Tensor  # [t, 2, p] W_g after the round; W_i after local training, NaN if the client was absent
    score: Tensor  # [t, 2, p] after the round
    state: Tensor  # [t, 2, p] uint8, state during the round
    frozen: Tensor  # [t, 1 + N, L] int32, number of frozen entries in each layer; the server comes first
    unmoved: Tensor  # [t, 1 + N] int32, frozen entries with score exactly 0: updates are all 0, or sum to exactly 0
    waits: Tensor  # [t, 2, LONGEST_WAIT] int32, number of entries by F after the round: server, all clients
    scores: Tensor  # [t, 2, BINS] int32, number of ``measured`` entries by score: server, all clients

    @classmethod
    def empty(cls, fed: Federation, num: int) -> Trace:
        parties, counts = 1 + fed.num_clients, torch.zeros(0, dtype=torch.int32)
        of_two = torch.zeros(0, 2, len(sampled(fed, num)))
        return cls(
            value=of_two,
            score=of_two,
            state=of_two.to(torch.uint8),
            frozen=counts.new_zeros(0, parties, len(layers(fed.layout))),
            unmoved=counts.new_zeros(0, parties),
            waits=counts.new_zeros(0, 2, LONGEST_WAIT),
            scores=counts.new_zeros(0, 2, BINS),
        )

    def then(self, **row: Tensor) -> Trace:
        """The trace with one more round; ``row`` has the fields of this round."""
        return Trace(**{f.name: torch.cat([getattr(self, f.name), row[f.name][None]]) for f in fields(self)})

    def arrays(self, fed: Federation, num: int) -> dict[str, Tensor]:
        """Arrays to store with the run: the trace, rounded; the indices of the entries; the size of each layer."""
        out = vars(self) | {name: getattr(self, name).double().round(decimals=5) for name in ("value", "score")}
        sizes = {f"layer/{name}": torch.tensor(part.stop - part.start) for name, part in layers(fed.layout).items()}
        return {"entries": sampled(fed, num), **out, **sizes}


def layers(layout: Layout) -> dict[str, slice]:
    """Layer name -> slice of its parameters, weights and biases together."""
    out: dict[str, slice] = {}
    for f in layout.params:
        out[f.layer] = slice(out[f.layer].start if f.layer in out else f.start, f.stop)
    return out


def sampled(fed: Federation, num: int) -> Tensor:
    """[p] indices of the entries to trace, sorted: ``num`` in total, split evenly over the layers.

    A layer that is too small gives all its entries; larger layers share the rest.
    """
    parts = layers(fed.layout)
    left, chosen = num, []
    for i, (name, part) in enumerate(sorted(parts.items(), key=lambda item: item[1].stop - item[1].start)):
        size = part.stop - part.start
        share = min(size, left // (len(parts) - i))
        order = permutation(size, fed.seed, "traced entries", name)
        chosen.append(part.start + order[:share])
        left -= share
    return torch.cat(chosen).sort().values


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

    def course(self, shared: Tensor) -> Tensor:
        """[1, 1 + E, p] entries of WATCHED as received, ``shared`` [e], and after each local epoch; NaN if absent."""
        received = shared[self.index].cpu()
        after = self.epochs or [torch.full_like(received, torch.nan)] * self.fed.train.epochs
        return torch.stack([received, *after])[None]

    def note(self, k: int, theta_k: Tensor, entries: Entries) -> None:
        """Record client k: its model [e] after local training, and its entries after Check."""
        if self.index is None:
            return
        self.correlation[k] = size_correlation(theta_k[: self.fed.num_params], entries, self.lengths[1])
        if k == WATCHED:
            self.value = theta_k[self.index].clone()

    def added(self, trace: Trace, shared: Tensor, before: list[Entries], after: list[Entries]) -> Trace:
        """The trace with one more round, after which the server's model is ``shared`` [e].

        ``before`` and ``after`` are the entries of the server and of all clients, at the start and at its end.
        """
        groups = after[:1], after[1:]
        frozen = torch.stack([~entries.trained for entries in after])  # [1 + N, d]
        zero_score = torch.stack([(entries.score == 0) & (entries.count > 0) for entries in after])
        traced = [(before[i], after[i]) for i in (0, 1 + WATCHED)]
        value = shared[self.index]
        absent = torch.full_like(value, torch.nan)
        return trace.then(
            value=torch.stack([value, absent if self.value is None else self.value]).cpu(),
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

    def notes(self, shared: Tensor, server: Entries, clients: Tensor) -> dict[str, float | Tensor]:
        """The round's notes: ``size_correlation`` of the server and of each client; none without a probe.

        ``shared`` [e] and ``server`` are the server's model and entries after the round.
        """
        if self.index is None:
            return {}
        return {
            "size_correlation_global": size_correlation(shared[: self.fed.num_params], server, self.lengths[0]),
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
