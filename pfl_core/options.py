"""Checks of user options with pydantic: values for the fields of a dataclass or the parameters of a function.

Bounds are part of a field's type, e.g. ``lr: NonNegativeFloat``. pydantic is imported at the first check.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from annotated_types import Ge

if TYPE_CHECKING:
    from pydantic import TypeAdapter

NonNegativeFloat = Annotated[float, Ge(0)]  # learning rates, weights of a penalty
NonNegativeInt = Annotated[int, Ge(0)]  # numbers of epochs
PositiveInt = Annotated[int, Ge(1)]  # widths of layers


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the most similar known name, for error messages; "" if none is similar."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def field_types(cls: type) -> dict[str, Any]:
    """Field name -> type of a dataclass, with bounds and with annotations evaluated."""
    return _field_types(cls)


@cache
def _field_types(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def checked(cls: type, options: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """``options`` converted to the types of the dataclass's fields.

    Raises ValueError for an unknown name, a wrong type, and a number that is not finite or is out of bounds.
    """
    types, out = field_types(cls), {}
    for name, value in options.items():
        if name not in types:
            names = ", ".join(types) or "none"
            raise ValueError(f"{owner}: no setting {name!r}{did_you_mean(name, types)}; it has {names}")
        adapter = _adapter(types[name])
        out[name] = _validated(owner, name, value, adapter.validate_python) if adapter else value
    return out


def check_options(what: str, function: Callable, options: Mapping[str, Any], reserved: int) -> None:
    """Check ``options`` against the parameters of ``function`` after its first ``reserved`` ones, without converting.

    Values are checked as JSON: a list is accepted for a tuple and 1 for 1.0, but "1" is not a number. Parameters
    without a type, or with a type that pydantic does not know, accept any value.
    Raises ValueError for an unknown option, a wrong type and a number out of bounds.
    """
    known = _parameters(function, reserved)
    if known is None:
        return
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"{what} has no option {name!r}: it takes {', '.join(known) or 'none'}")
        adapter = None if isinstance(known[name], str) else _adapter(known[name])
        if adapter:
            _validated(what, name, value, partial(_validate_json, adapter))


@cache
def _parameters(function: Callable, reserved: int) -> dict[str, Any] | None:
    """Name -> type of the parameters after the ``reserved`` ones; None if the function has ``**kwargs``."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation imported under TYPE_CHECKING: string annotations are not checked
        signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[reserved:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name: Any if p.annotation is p.empty else p.annotation for p in parameters}


@cache
def _adapter(annotation: Any) -> TypeAdapter | None:
    """The pydantic validator of a type; None if pydantic does not know the type."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False))
    except PydanticUserError:
        return None


def _validate_json(adapter: TypeAdapter, value: Any) -> Any:
    try:
        text = json.dumps(value)
    except TypeError:
        return adapter.validate_python(value, strict=True)
    return adapter.validate_json(text, strict=True)


def _validated(owner: str, name: str, value: Any, validate: Callable[[Any], Any]) -> Any:
    from pydantic import ValidationError

    try:
        return validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        at = "".join(f"item {place}: " for place in first["loc"] if isinstance(place, int))
        raise ValueError(f"{owner}: {name}={value!r}: {at}{first['msg'].lower()}") from None
