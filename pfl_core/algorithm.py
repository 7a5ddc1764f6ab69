"""Base classes of all methods, ``Algorithm`` and ``State``, and the registry of methods."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

import numpy as np
from torch import Tensor

from pfl_core.federation import Federation
from pfl_core.ops import ABSENT, ClientRows
from pfl_core.options import check_fields, checked
from pfl_core.plugins import PACKAGE, find
from pfl_core.registry import INSTRUMENTS, METHODS
from pfl_core.training import Training

IN_CHECKPOINTS: dict[str, type] = {}  # class name -> class of a state, or of an object inside a state


def class_in_checkpoint(name: str) -> type:
    """The class stored under this name in checkpoints. Raises KeyError for an unknown name."""
    if name not in IN_CHECKPOINTS:
        methods()  # imports every method, and so its states
    return IN_CHECKPOINTS[name]


def in_checkpoints(cls: type) -> type:
    """Class decorator: checkpoints store the class by its name alone, so that its module may move.

    Applies to classes of this package only. Subclasses of State are registered automatically.
    Raises TypeError if another class has the same name.
    """
    if cls.__module__.partition(".")[0] == PACKAGE:
        other = IN_CHECKPOINTS.setdefault(cls.__name__, cls)
        if other.__module__ != cls.__module__:
            raise TypeError(
                f"{cls.__module__}: the name {cls.__name__} is taken by {other.__module__}; rename the class"
            )
    return cls


@in_checkpoints
@dataclass(frozen=True)
class State:
    """Everything that is carried from round to round. Methods add fields with the names of their paper.

    Tensors may be shared between states and notes, so they are never modified in place.
    """

    shared: Tensor = ABSENT  # [e], the server's model
    local: ClientRows = ABSENT  # [N, e], what each client keeps

    def __init_subclass__(cls) -> None:
        in_checkpoints(cls)


StateT = TypeVar("StateT", bound=State)


@dataclass(frozen=True, eq=False)
class ClientModel:
    """What a client predicts with, to be saved: a model of its own, or tensors that go with the shared models."""

    theta: Tensor = ABSENT  # [e]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


class MechanismCheck(NamedTuple):
    """Did the mechanism that distinguishes a method have an effect in a run? One value against a fixed bound."""

    what: str  # what is measured, e.g. "largest training loss while masks are chosen, over that of round 1"
    value: float
    bound: float
    acts: bool
    otherwise: str  # one sentence for ``acts=False``: what it means and what to try


@dataclass(frozen=True)
class Algorithm(Generic[StateT]):
    """A method. Its fields are the hyper-parameters; a comment on each gives its symbol in the paper.

    ``round`` returns the next state and a dictionary of notes. ``trained`` holds the clients' rows [S, e] before
    aggregation, or their ``Scores`` as ``fed.average`` returns them. Every other note is a number or a tensor [S] that
    is stored in the record: ``train_loss``, ``upload`` (values a client sends), ``upload_bits``, ``passes``, ... The
    engine sets ``fed.score`` and ``fed.keep_trained`` for the time of a round, see ``Federation``.
    """

    # Part of a run's key. Raised when the results of stored runs change, see runs/versions.py.
    version: ClassVar[int] = 1
    readings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}  # reading -> values of fields
    # How the saved models of ``client_model`` are used, in one or two sentences.
    usage: ClassVar[str] = "A client's file is the state dict of the network; the network's outputs are the logits."
    # The score to report: "after_merge" or "after_local_update". Both are always stored.
    reported: ClassVar[str] = "after_merge"

    def __post_init__(self) -> None:
        """Converts the fields to their types. Raises ValueError for a value of another type or out of bounds."""
        check_fields(self, type(self).__name__)

    def init(self, fed: Federation, theta0: Tensor) -> StateT:
        """The state before round 0; theta0 [e]."""
        return cast(StateT, State(shared=theta0))

    def round(self, fed: Federation, state: StateT, clients: Tensor, t: int) -> tuple[StateT, dict]:
        """Round t (from 0) with the sampled ``clients`` [S]. Pure: ``state`` is not modified."""
        raise NotImplementedError(f"{type(self).__name__}.round")

    def evaluation_models(self, fed: Federation, state: StateT, clients: Tensor, t: int) -> Tensor:
        """The models [S, e] that the clients are evaluated with after aggregation. Default: the shared model."""
        return fed.broadcast(state.shared, clients)

    def predict(self, fed: Federation, state: StateT, k: int, theta_k: Tensor, x: Tensor) -> Tensor:
        """Class scores [B, C] of client k. Methods that predict with mixtures or gates override this."""
        return fed.logits(theta_k, x)

    def shared_models(self, fed: Federation, state: StateT) -> dict[str, Tensor]:
        """The models [e] to save that belong to no single client, by name. Default: the server's model."""
        return {} if state.shared is None else {"shared": state.shared}

    def client_model(self, fed: Federation, state: StateT, k: int, theta_k: Tensor) -> ClientModel:
        """What client k predicts with, to be saved. ``theta_k`` [e] is its row of ``evaluation_models``.

        Default: that row. A method that overrides ``predict`` also overrides this method and ``predict_exported``.
        """
        return ClientModel(theta_k)

    def predict_exported(
        self, fed: Federation, k: int, model: ClientModel, shared: Mapping[str, Tensor], x: Tensor
    ) -> Tensor:
        """Class scores [B, C] of a saved client: equal to ``predict``, without state and training data.

        ``shared`` holds the ``shared_models``. ``fed`` has the network, the number of clients and the seed; no data.
        """
        return fed.logits(model.theta, x)

    def adapt(self, fed: Federation, state: StateT, clients: Tensor, t: int) -> StateT:
        """The state after adaptation of clients that have not yet taken part, for evaluation. Default: unchanged."""
        return state

    def artifacts(self, fed: Federation, state: StateT) -> dict[str, Tensor]:
        """Small arrays computed from the last state, e.g. overlaps of masks. They are stored in the record."""
        return {}

    def warnings(self, fed: Federation) -> list[str]:
        """Settings of the method that cannot have their effect in this federation, one line each. Default: none."""
        return []

    def mechanism(self, series: Mapping[str, np.ndarray], rounds: int, training: Training) -> list[MechanismCheck]:
        """Checks of a finished run: did the mechanism that distinguishes this method have an effect?

        ``series`` holds the notes of ``round`` by name: [recorded rounds, N] with NaN where a client was absent, or
        [recorded rounds, 1] for a note that is one number. It also holds the ``artifacts``. ``rounds`` is the planned
        number of rounds. Default: no checks.
        """
        return []

    def horizon_dependence(self) -> str:
        """Why rounds depend on the planned number of rounds, ``fed.rounds``, as one clause; "" if they do not.

        Only a run whose rounds do not depend on it can be continued to more rounds. Default: "" for the methods of this
        package, which a test checks. A method from outside must define it.
        """
        if type(self).__module__.partition(".")[0] == PACKAGE:
            return ""
        name = type(self).__name__
        return f"{name} does not say whether its rounds depend on the planned number; define {name}.horizon_dependence"

    @property
    def inner_algorithms(self) -> tuple[Algorithm, ...]:
        """The methods that this method calls. Their versions are part of a run's key."""
        return ()

    def shared_prefix(self, fed: Federation) -> tuple[Algorithm, int]:
        """Another method and the number of initial rounds in which both compute the same. Runs share these rounds."""
        return self, 0

    @classmethod
    def reading(cls, name: str, **changes: Any) -> Self:
        """The method in one reading: ``paper`` follows the paper's text, ``authors_code`` the released code.

        ``changes`` replace single fields. Raises ValueError for a reading that the method does not have.
        """
        if name not in tuple(cls.readings):
            raise ValueError(f"{cls.__name__}: no reading {name!r}; choose from {', '.join(cls.readings)}")
        return cls(**{**cls.readings[name], **changes})


@dataclass(frozen=True)
class MethodEntry:
    """A registered method."""

    name: str
    cls: type[Algorithm]
    papers: tuple[str, ...]
    shares: str  # which parameters are shared and which are personal, in one line
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # named settings of the fields
    ci: Mapping[str, Any] = field(default_factory=dict)  # small values of the fields, for the tests of all methods
    # Fields of the method and of ``Training`` for `pfl run` without a paper, where the defaults do not work on digits.
    # They are this project's choice.
    trial: Mapping[str, Any] = field(default_factory=dict)
    trial_training: Mapping[str, Any] = field(default_factory=dict)
    # For time estimates: gradient passes in a local epoch; seconds of a client's step that the network's size leaves
    # alone, in addition to those of plain SGD.
    passes: float = 1.0
    step_seconds: float = 0.0


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
    step_seconds: float = 0.0,
) -> Callable[[type[Algorithm]], type[Algorithm]]:
    """Class decorator: adds a method to the registry, which tests, command line and README read."""

    def add(cls: type[Algorithm]) -> type[Algorithm]:
        _REGISTRY[name] = MethodEntry(
            name, cls, papers, shares, variants or {}, ci or {}, trial or {}, trial_training or {}, passes, step_seconds
        )
        return cls

    return add


def registered() -> dict[str, type[Algorithm]]:
    """The classes that a run can name: methods and instruments."""
    methods()
    return _loaded()


def _loaded() -> dict[str, type[Algorithm]]:
    """The entries of ``registered`` whose modules are already imported."""
    return {name: entry.cls for name, entry in _REGISTRY.items()}


def name_of(cls: type[Algorithm]) -> str:
    """The registered name of a class, else the class's own name."""
    return next((name for name, other in _loaded().items() if other is cls), cls.__name__)


def methods() -> dict[str, MethodEntry]:
    """All registered methods by name, without the instruments."""
    for module in {**METHODS, **INSTRUMENTS}.values():
        importlib.import_module(module)
    # In the order of METHODS, whatever the order of imports.
    return {name: _REGISTRY[name] for name in (*METHODS, *(_REGISTRY.keys() - METHODS.keys() - INSTRUMENTS.keys()))}


def method(name: str) -> type[Algorithm]:
    """The class of a registered method, or the class ``module:Class`` of a user.

    Raises ValueError for an unknown name and for a class that is not an Algorithm.
    """
    module = METHODS.get(name) or INSTRUMENTS.get(name)
    if module:
        importlib.import_module(module)
    cls = find("method", name, _loaded() if module or ":" in name else registered())
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise ValueError(f"method {name!r} is not a subclass of pfl_core.Algorithm")
    return cls


def build(name: str, options: Mapping[str, Any], reading: str = "paper") -> Algorithm:
    """A method from plain data; types are checked and converted. Raises ValueError for bad options."""
    cls = method(name)
    return cls.reading(reading, **checked(cls, options, f"method {name}"))
