"""Star-PFL's client: its window, its local epochs on the active entries, and what Check makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pfl_core.algorithms.star_pfl.masks import Entries, Window, check
from pfl_core.algorithms.star_pfl.options import StarPFLOptions
from pfl_core.federation import Federation, LocalTraining, Trained


@dataclass(frozen=True)
class Client(StarPFLOptions):
    """The part of the method between a mask and what is sent; no field of its own."""

    def own_window(self, entries: Entries, carried: Window | None) -> Window:
        """A window to record a round into: what was ``carried`` over, or an empty one.

        An empty one in place of what would be filled anew anyway goes on counting; one that the method has cleared
        (``history_scope="round"``) does not.
        """
        if carried is not None:
            return carried.clone()
        window = self.empty_window(entries.score, self.history_len_local)
        return window if self.history_scope == "round" else replace(window, count=entries.count.clone())

    def train(
        self, fed: Federation, shared: Tensor, clients: Tensor, masks: list[Tensor], windows: list[Window], t: int
    ) -> Trained:
        """Local epochs from ``shared`` [e] on the entries ``masks`` [d] of each client.

        What the first epochs change goes into ``windows``, in place. One call for each of these epochs has the same
        batches, and gives the same bits, as one call for all.
        """
        d, num, epochs = fed.num_params, self.recorded(fed), fed.train.epochs
        theta, loss = fed.broadcast(shared, clients), torch.zeros(len(clients))
        velocity = torch.zeros_like(theta[:, :d]) if fed.train.momentum else None
        trainable = torch.stack(masks) | ~self.masked_in_training(fed)
        rest = [range(num, epochs)] if num < epochs or not epochs else []
        for span in (*(range(e, e + 1) for e in range(num)), *rest):
            training = LocalTraining(epochs=span, trainable=trainable)
            out = fed.sgd(theta, clients, training, key=t, velocity=velocity)
            if span.start < num:
                for after, before, mask, window in zip(out.theta, theta, masks, windows, strict=True):
                    self.record_(window, after[:d] - before[:d], mask)
            theta, velocity = out.theta, out.velocity
            loss += out.loss * (len(span) / max(1, epochs))
        return replace(out, loss=loss)

    def masked_in_training(self, fed: Federation) -> Tensor:
        """Bool [d], what masks hold back in training (A12); in aggregation they hold back everything."""
        mask = fed.layout.mask(lambda f: self.train_mask_scope == "all" or "weight" in f.name)
        return mask[: fed.num_params].to(fed.theta0.device)

    def checked(self, fed: Federation, entries: Entries, window: Window, active: Tensor) -> Entries:
        """A client's entries after a round in which ``active`` ones were trained and recorded."""
        score, count = self.scored(entries, window, active)
        rule = self.rules(fed)[1]
        return check(replace(entries, score=score, count=count), active, rule, self.interval_halving, self.thaw)
