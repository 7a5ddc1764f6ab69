"""What a method is: frozen hyper-parameters, a pure round on a small frozen state, and its line in the registry."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar, cast, get_args, get_origin

import numpy as np
from torch import Tensor

from pfl_core.federation import Federation
from pfl_core.ops import ABSENT, ClientRows
from pfl_core.options import checked, field_types
from pfl_core.plugins import PACKAGE, find
from pfl_core.registry import INSTRUMENTS, MODULES
from pfl_core.training import Training

IN_CHECKPOINTS: dict[str, type] = {}  # name -> class of a state, or of a part of one


def class_in_checkpoint(name: str) -> type:
    """The class that checkpoints know by that name. Raises KeyError if there is none."""
    if name not in IN_CHECKPOINTS:
        methods()  # imports every method, and so its states
    return IN_CHECKPOINTS[name]


def in_checkpoints(cls: type) -> type:
    """Class decorator: checkpoints name this package's class by its name alone, so that its module may move.

    Subclasses of State have it from there. Raises TypeError for a name that is taken.
    """
    if cls.__module__.partition(".")[0] == PACKAGE:
        other = IN_CHECKPOINTS.setdefault(cls.__name__, cls)
        if other.__module__ != cls.__module__:
            raise TypeError(f"{cls.__module__}: checkpoints know a {cls.__name__} of {other.__module__} already")
    return cls


@in_checkpoints
@dataclass(frozen=True)
class State:
    """Everything that outlives a round; methods add fields named after their paper.

    Tensors may be shared between states and notes: nothing writes into them.
    """

    shared: Tensor = ABSENT  # [e], the server's model
    local: ClientRows = ABSENT  # [N, e], what each client keeps

    def __init_subclass__(cls) -> None:
        in_checkpoints(cls)


StateT = TypeVar("StateT", bound=State)


class MechanismCheck(NamedTuple):
    """Whether a method's own mechanism acted in a run: one number against a bound that was stated before the run."""

    what: str  # "largest training loss while masks are chosen, over that of round 1"
    value: float
    bound: float
    acts: bool
    otherwise: str  # what it means if it did not act, and what to try; one sentence


@dataclass(frozen=True)
class Algorithm(Generic[StateT]):
    """A method. Its fields are the hyper-parameters, each with its paper's symbol.

    ``round`` returns the next state and the round's notes: ``trained`` (the rows [S, e] before aggregation, or the
    ``Scores`` of ``fed.average``), and any number or tensor [S] worth a line in the record (``train_loss``, ``upload``
    in values, ``upload_bits``, ``passes``, ``personal_share``, ...).
    """

    version: ClassVar[int] = (
        1  # part of a run's key; raised when the results of stored runs change, see runs/versions.py
    )
    readings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}
    reported: ClassVar[str] = "after_merge"  # or "after_local_update": the score to report; both are always noted

    def init(self, fed: Federation, theta0: Tensor) -> StateT:
        """The state before round 0; theta0 [e]."""
        return cast(StateT, State(shared=theta0))

    def round(self, fed: Federation, state: StateT, clients: Tensor, t: int) -> tuple[StateT, dict]:
        """Round t (from 0) with the sampled ``clients`` [S]. Pure: the state it is given stays as it was."""
        raise NotImplementedError(f"{type(self).__name__}.round")

    def evaluation_models(self, fed: Federation, state: StateT, clients: Tensor, t: int) -> Tensor:
        """The model [S, e] that each client is scored with after aggregation. Default: the shared model."""
        return fed.broadcast(state.shared, clients)

    def predict(self, fed: Federation, state: StateT, k: int, theta_k: Tensor, x: Tensor) -> Tensor:
        """Scores [B, C] of client k; mixtures and gates override this."""
        return fed.logits(theta_k, x)

    def adapt(self, fed: Federation, state: StateT, clients: Tensor, t: int) -> StateT:
        """The state after clients that never took part have adapted, before they are scored. Default: unchanged."""
        return state

    def artifacts(self, fed: Federation, state: StateT) -> dict[str, Tensor]:
        """Small arrays of the last state that figures need, such as overlaps of masks; stored in the record."""
        return {}

    def mechanism(self, series: Mapping[str, np.ndarray], rounds: int, training: Training) -> list[MechanismCheck]:
        """Checks of a run that is over: did what makes this method different do anything?

        ``series``: what ``round`` noted, by name, [noted rounds, N], or [noted rounds, 1] of a number for all; not a
        number where a client was absent; and what ``artifacts`` kept, under names that no note has. ``rounds``:
        planned. Default: nothing to check.
        """
        return []

    @property
    def inner_algorithms(self) -> tuple[Algorithm, ...]:
        """The methods that this one runs inside itself. Their versions are part of a run's key."""
        return ()

    def shared_prefix(self, fed: Federation) -> tuple[Algorithm, int]:
        """Another method, and the number of first rounds in which both compute the same; runs share these rounds."""
        return self, 0

    @classmethod
    def reading(cls, name: str, **changes: Any) -> Self:
        """A specification's column of options: ``paper`` (the default) or ``authors_code``; ``changes`` on top.

        Raises ValueError for a reading that the method does not have.
        """
        if name not in cls.readings:
            raise ValueError(f"{cls.__name__}: no reading {name!r}; there is {', '.join(cls.readings)}")
        return cls(**{**cls.readings[name], **changes})


@dataclass(frozen=True)
class MethodEntry:
    """A method's line in the registry."""

    name: str
    cls: type[Algorithm]
    papers: tuple[str, ...]
    shares: str  # the personal/shared rule in one line
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # named settings of the fields
    ci: Mapping[str, Any] = field(default_factory=dict)  # a configuration small enough for the common tests
    trial: Mapping[str, Any] = field(default_factory=dict)  # fields of `pfl run` without a paper, where defaults fail
    trial_training: Mapping[str, Any] = field(default_factory=dict)  # of its training, likewise
    passes: float = 1.0  # gradient passes in a local epoch, to estimate times by


_REGISTRY: dict[str, MethodEntry] = {}


def register(
    name: str,
    *,
    papers: tuple[str, ...],
    shares: str,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    ci: Mapping[str, Any] | None = None,
    trial: Mapping[str, Any] | None = None,
    trial_training: Mapping[str, Any] | None = None,
    passes: float = 1.0,
) -> Callable[[type[Algorithm]], type[Algorithm]]:
    """Class decorator: a method that is not registered does not exist for tests, command line and README."""

    def add(cls: type[Algorithm]) -> type[Algorithm]:
        _REGISTRY[name] = MethodEntry(
            name, cls, papers, shares, variants or {}, ci or {}, trial or {}, trial_training or {}, passes
        )
        return cls

    return add


_INSTRUMENTS: dict[str, type[Algorithm]] = {}


def instrument(name: str) -> Callable[[type[Algorithm]], type[Algorithm]]:
    """Class decorator: a run can name it, but it measures something and is none of the methods."""

    def add(cls: type[Algorithm]) -> type[Algorithm]:
        _INSTRUMENTS[name] = cls
        return cls

    return add


def registered() -> dict[str, type[Algorithm]]:
    """The classes that a run can name: methods and instruments."""
    methods()
    return _loaded()


def _loaded() -> dict[str, type[Algorithm]]:
    """Those of ``registered`` whose modules are imported."""
    return {name: entry.cls for name, entry in _REGISTRY.items()} | _INSTRUMENTS


def name_of(cls: type[Algorithm]) -> str:
    """The registered name of a class, else the class's own name."""
    return next((name for name, other in _loaded().items() if other is cls), cls.__name__)


def methods() -> dict[str, MethodEntry]:
    """All registered methods by name."""
    for module in {**MODULES, **INSTRUMENTS}.values():
        importlib.import_module(module)
    return {name: _REGISTRY[name] for name in (*MODULES, *(_REGISTRY.keys() - MODULES.keys()))}  # not by import


def method(name: str) -> type[Algorithm]:
    """The class of a registered method, or of ``module:Class`` from outside the package.

    Raises ValueError for an unknown name.
    """
    module = MODULES.get(name) or INSTRUMENTS.get(name)
    if module:
        importlib.import_module(module)
    cls = find("method", name, _loaded() if module or ":" in name else registered())
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise ValueError(f"method {name!r} is not a subclass of pfl_core.Algorithm")
    return cls


def build(name: str, options: Mapping[str, Any], reading: str = "paper") -> Algorithm:
    """A method from plain data, types checked and converted; raises ValueError in one line."""
    cls = method(name)
    return cls.reading(reading, **checked(cls, options, f"method {name}"))


def check_choices(made: Algorithm) -> None:
    """Raise ValueError if a field that offers a choice has another value."""
    for name, hint in field_types(type(made)).items():
        if get_origin(hint) is Literal and getattr(made, name) not in get_args(hint):
            known = ", ".join(get_args(hint))
            raise ValueError(f"{type(made).__name__}: {name}={getattr(made, name)!r} is none of {known}")
