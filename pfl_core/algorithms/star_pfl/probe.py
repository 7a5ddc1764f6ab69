"""What Star-PFL notes for its stability traces, where ``probe`` asks for it: values, scores and states, round by round.

Two parties are watched, the server and client 0: a few sampled entries of each; with ``probe_epochs`` those of client 0
after every local epoch, too. Of all parties, counts: of frozen entries by layer, of waiting times, of scores. A client
that did not take part keeps what it had.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfl_core.algorithm import in_checkpoints
from pfl_core.algorithms.star_pfl.masks import Entries
from pfl_core.federation import Federation
from pfl_core.layout import Layout
from pfl_core.ranks import rank_correlation
from pfl_core.seeding import generator

if TYPE_CHECKING:
    from pfl_core.algorithms.star_pfl.method import StarState

WATCHED = 0  # the client whose entries are traced
ACTIVE, FROZEN, PROBING = 0, 1, 2  # during a round
LONGEST_WAIT, BINS = 40, 50  # of waiting times, longer ones with the last; of scores in [0, 1]


@in_checkpoints
@dataclass(frozen=True)
class Trace:
    """[t, ...] of the t rounds so far; two parties: server and WATCHED."""

    value: Tensor  # [t, 2, p] W_g after the round; W_i after local training, NaN where the client was absent
    score: Tensor  # [t, 2, p]
    state: Tensor  # [t, 2, p] uint8, during the round
    frozen: Tensor  # [t, 1 + N, L] int32, entries frozen in the round by layer; the server comes first
    unmoved: Tensor  # [t, 1 + N] int32, of these, entries with score 0 to the bit: updates all 0, or cancelled exactly
    waits: Tensor  # [t, 2, LONGEST_WAIT] int32, entries with F = 1, 2, ... after the round: server; all clients
    scores: Tensor  # [t, 2, BINS] int32, entries that moved, full window, recorded in this round: server; all clients

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
        """With one more round."""
        return Trace(**{f.name: torch.cat([getattr(self, f.name), row[f.name][None]]) for f in fields(self)})

    def arrays(self, fed: Federation, num: int) -> dict[str, Tensor]:
        """To be stored with the run: all of it, rounded; which entries, and the sizes of the layers, by name."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out |= {name: out[name].double().round(decimals=5) for name in ("value", "score")}
        sizes = {f"layer/{name}": torch.tensor(part.stop - part.start) for name, part in layers(fed.layout).items()}
        return {"entries": sampled(fed, num), **out, **sizes}


def layers(layout: Layout) -> dict[str, slice]:
    """Layer -> its parameters, weights and biases together."""
    out: dict[str, slice] = {}
    for f in layout.params:
        out[f.layer] = slice(out[f.layer].start if f.layer in out else f.start, f.stop)
    return out


def sampled(fed: Federation, num: int) -> Tensor:
    """[p] entries to trace, in the model's order: ``num``, from each layer as many as it has or its share allows."""
    parts = layers(fed.layout)
    left, chosen = num, []
    for place, (name, part) in enumerate(sorted(parts.items(), key=lambda item: item[1].stop - item[1].start)):
        size = part.stop - part.start
        share = min(size, left // (len(parts) - place))
        order = torch.randperm(size, generator=generator(fed.seed, "traced entries", name))
        chosen.append(part.start + order[:share])
        left -= share
    return torch.cat(chosen).sort().values


def judged(entries: Entries, length: int) -> Tensor:
    """Bool [d], entries whose score is of this round, of a full window, and of updates that are not all 0."""
    return entries.trained & (entries.count >= length) & (entries.score > 0)


def size_correlation(params: Tensor, entries: Entries, length: int) -> float:
    """Spearman's correlation of |value| and score over the ``judged`` entries [d]; NaN for fewer than two."""
    on = judged(entries, length)
    both = torch.stack([params.abs()[on], entries.score[on]]).double().cpu().numpy()
    return float(rank_correlation(both)[0, 1]) if both.shape[1] > 1 else float("nan")


class Probe:
    """A round's notes on their way into the trace; ``num`` = 0 notes nothing."""

    def __init__(self, fed: Federation, num: int, lengths: tuple[int, int]):
        self.fed, self.where, self.lengths = fed, sampled(fed, num) if num else None, lengths  # lengths of windows
        self.correlation: dict[int, float] = {}
        self.value: Tensor | None = None  # [p] of WATCHED
        self.epochs: list[Tensor] = []  # [p] of WATCHED after each local epoch

    def after_epoch(self, clients: Tensor, theta: Tensor) -> None:
        """The rows [S, e] of these clients [S] after one more local epoch."""
        self.epochs += [row[self.where].cpu() for k, row in zip(clients.tolist(), theta, strict=True) if k == WATCHED]

    def course(self, before: StarState) -> Tensor:
        """[1, 1 + E, p] of WATCHED: its entries as received, and after each local epoch; NaN if it was absent."""
        received = before.shared[self.where].cpu()
        after = self.epochs or [torch.full_like(received, torch.nan)] * self.fed.train.epochs
        return torch.stack([received, *after])[None]

    def note(self, k: int, theta_k: Tensor, entries: Entries) -> None:
        """Client k's model [e] after local training, and its entries after Check."""
        if self.where is None:
            return
        self.correlation[k] = size_correlation(theta_k[: self.fed.num_params], entries, self.lengths[1])
        if k == WATCHED:
            self.value = theta_k[self.where].clone()

    def added(self, before: StarState, after: StarState) -> Trace:
        """The trace with the round between the two states."""
        parties, groups = [after.server, *after.clients], ([after.server], after.clients)
        frozen = torch.stack([~entries.trained for entries in parties])
        still = torch.stack([(entries.score == 0) & (entries.count > 0) for entries in parties])
        two = [(before.server, after.server), (before.clients[WATCHED], after.clients[WATCHED])]
        shared = after.shared[self.where]
        absent = torch.full_like(shared, torch.nan)
        return before.trace.then(
            value=torch.stack([shared, absent if self.value is None else self.value]).cpu(),
            score=torch.stack([entries.score[self.where] for _, entries in two]).cpu(),
            state=torch.stack([states(*pair)[self.where] for pair in two]).cpu(),
            frozen=torch.stack([frozen[:, part].sum(1) for part in layers(self.fed.layout).values()], 1).int().cpu(),
            unmoved=(frozen & still).sum(1).int().cpu(),
            waits=torch.stack([sum(map(waits, group)) for group in groups]),
            scores=torch.stack(
                [sum(scores(one, n) for one in group) for group, n in zip(groups, self.lengths, strict=True)]
            ),
        )

    def notes(self, after: StarState, clients: Tensor) -> dict[str, float | Tensor]:
        """Of the server and of each client, how size and score go together; nothing without a probe."""
        if self.where is None:
            return {}
        params = after.shared[: self.fed.num_params]
        return {
            "size_correlation_global": size_correlation(params, after.server, self.lengths[0]),
            "size_correlation": torch.tensor([self.correlation[k] for k in clients.tolist()]),
        }


def states(before: Entries, after: Entries) -> Tensor:
    """[d] uint8, ACTIVE, FROZEN or PROBING in the round between the two; absent clients look as in their last one."""
    thawed = torch.where(before.probe, PROBING, ACTIVE)
    return torch.where(after.trained, thawed, FROZEN).to(torch.uint8)


def waits(entries: Entries) -> Tensor:
    """[LONGEST_WAIT] entries by F."""
    return torch.bincount(entries.interval.long().clamp(1, LONGEST_WAIT) - 1, minlength=LONGEST_WAIT).int().cpu()


def scores(entries: Entries, length: int) -> Tensor:
    """[BINS] ``judged`` entries by score."""
    return torch.histc(entries.score[judged(entries, length)].cpu(), BINS, 0, 1).int()
