"""Star-PFL's settings: the paper's, the readings of what it leaves open (A1 to A19), and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from pfl_core.algorithm import Algorithm, check_choices
from pfl_core.algorithms.star_pfl.masks import (
    LONGEST,
    Entries,
    Window,
    average_,
    average_stability,
    overwrite_,
    push_,
    stability,
)
from pfl_core.federation import Federation
from pfl_core.options import NonNegativeInt


@dataclass(frozen=True)
class StarPFLOptions(Algorithm):
    """Fields; A1, A2, A9, A11, A14, A17 to A19 leave no choice and are as the specification resolves them."""

    threshold_global: float | None = 0.1  # T of the server; None: it freezes nothing
    threshold_local: float | None = 0.1  # T of the clients
    history_len_global: int = 10  # |R| of the server: rounds
    history_len_local: int = 5  # |R| of a client: local epochs
    threshold_rule: Literal["strict", "inclusive"] = "strict"  # A3
    min_history: int | Literal["full"] = 1  # A4; "full": as many as the window takes
    zero_update_policy: Literal["record", "skip"] = "record"  # A5
    interval_halving: Literal["ceil", "floor", "truncate"] = "ceil"  # A6; "truncate": F may be stored as 0
    history_scope: Literal["rolling", "round"] = "rolling"  # A7, of the clients' windows
    masked_aggregation: Literal["zero_fill", "active_mean", "active_weighted"] = "zero_fill"  # A8
    buffer_aggregation: Literal["samples", "uniform"] = "samples"  # A10
    train_mask_scope: Literal["all", "weights"] = "all"  # A12
    record_scope: Literal["active", "trained"] = "active"  # A12: "trained" records frozen biases that train on, too
    upload_mask_timing: Literal["before_check", "after_check"] = "before_check"  # A13
    record_epochs: NonNegativeInt | None = None  # A15: the first so many epochs are recorded; None: history_len_local
    stability_floor_quantile: float | None = None  # A16, of the clients
    stability_floor_check: bool = True  # A16: False: the floor raises Measure's threshold alone, not Check's
    stability_floor_cap: Literal["unmeasured", "frozen"] = "unmeasured"  # A16: the entries that lower the quantile
    max_frozen_fraction: float | None = None  # A16 as it was probably meant: server and clients freeze no more
    stability_measure: Literal["window", "ema"] = "window"  # "ema": APF's moving averages in place of windows
    ema_decay: float = 0.99  # APF's code
    thaw: bool = True  # False: what is frozen stays frozen (ours, an ablation)
    probe: NonNegativeInt = 0  # entries noted for the stability traces (``probe.py``); changes no number
    probe_epochs: bool = False  # their values in client 0 are noted after each local epoch, too; changes no number

    readings: ClassVar = {
        "paper": {},
        "authors_code": {
            "threshold_rule": "inclusive",
            "zero_update_policy": "skip",
            "interval_halving": "truncate",
            "history_scope": "round",
            "masked_aggregation": "active_mean",
            "buffer_aggregation": "uniform",
            "train_mask_scope": "weights",
            "record_scope": "trained",
            "upload_mask_timing": "after_check",
            "record_epochs": 6,
            "stability_floor_quantile": 0.007,
            "stability_floor_check": False,
            "stability_floor_cap": "frozen",
        },
    }
    reported: ClassVar[str] = "after_local_update"  # A11

    def __post_init__(self) -> None:
        check_choices(self)
        shares = ("threshold_global", "threshold_local", "stability_floor_quantile", "max_frozen_fraction", "ema_decay")
        for name in shares:
            if (given := getattr(self, name)) is not None and not 0 <= given <= 1:
                raise ValueError(f"StarPFL: {name}={given} is outside [0, 1]; for {given} percent give {given / 100:g}")
        if self.probe_epochs and not self.probe:
            raise ValueError("StarPFL: probe_epochs=True without probe; give a number of entries, such as probe=200")
        if self.probe < 0:
            raise ValueError(f"StarPFL: probe={self.probe}; give a number of entries, or 0 for no traces")
        lengths = (self.history_len_global, self.history_len_local)
        for name, high in (
            ("history_len_global", LONGEST),
            ("history_len_local", LONGEST),
            ("record_epochs", None),
            ("min_history", min(lengths)),
        ):
            given = getattr(self, name)
            if isinstance(given, int) and not 1 <= given <= (high or given):
                upper = f"at most {high}" if high and given > high else "at least 1"
                raise ValueError(f"StarPFL: {name}={given}; give {upper}")

    def most_frozen(self, fed: Federation) -> int | None:
        """Entries that may be frozen at once."""
        return None if self.max_frozen_fraction is None else int(self.max_frozen_fraction * fed.num_params)

    def recorded(self, fed: Federation) -> int:
        """Local epochs whose updates a client records (A15)."""
        return min(fed.train.epochs, self.record_epochs or self.history_len_local)

    def carries_windows(self, fed: Federation) -> bool:
        """Whether a client's window must outlive the round; not if every active entry fills its own anew each time."""
        if self.history_scope == "round":
            return False
        refilled = self.zero_update_policy == "record" and self.recorded(fed) >= self.history_len_local
        return self.stability_measure == "ema" or not refilled

    def empty_window(self, like: Tensor, length: int) -> Window:
        """For ``length`` updates of entries like ``like`` [d], or for their averages."""
        return Window.empty(like, length if self.stability_measure == "window" else 2)

    def record_(self, window: Window, update: Tensor, where: Tensor) -> None:
        """Note an update [d] of the entries in ``where``; in place."""
        if self.zero_update_policy == "skip":
            where = where & update.bool()
        if self.stability_measure == "window":
            push_(window, update, where)
        else:
            average_(window, update, where, self.ema_decay)

    def scored(self, entries: Entries, window: Window, active: Tensor) -> tuple[Tensor, Tensor]:
        """Score and count after a round in which ``active`` entries were recorded."""
        fresh = stability(window) if self.stability_measure == "window" else average_stability(window)
        return overwrite_(entries.score.clone(), active, fresh), window.count
