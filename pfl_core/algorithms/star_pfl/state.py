"""The state of Star-PFL between rounds, and the records of its stability traces.

With ``probe``, a few sampled entries are traced in every round; ``probe.py`` collects the records of a round.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, State, in_checkpoints
from pfl_core.algorithms.star_pfl.masks import Entries, Window
from pfl_core.federation import Federation
from pfl_core.layout import Layout
from pfl_core.seeding import permutation

LONGEST_WAIT, BINS = 40, 50  # bins of the waiting times (longer ones in the last bin) and of the scores in [0, 1]


@dataclass(frozen=True)
class StarState(State):
    """``shared`` [e] is W_g."""

    server: Entries = ABSENT  # tensors [d]
    window: Window = ABSENT  # R_g
    clients: tuple[Entries, ...] = ()  # one for each of the N clients, tensors [d]
    windows: tuple[Window, ...] = ()  # R_i of the N clients, if windows are kept between rounds
    uses: Tensor = ABSENT  # [d] how often one image uses each weight, for counting FLOPs
    trace: Trace = ABSENT  # with ``probe``
    course: Tensor = ABSENT  # [t, 1 + E, p] with ``probe_epochs``: values in client 0 before and after each epoch


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
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out |= {name: out[name].double().round(decimals=5) for name in ("value", "score")}
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
