"""Checks of user options with pydantic: values for the fields of a dataclass or the parameters of a function.

Bounds are part of a field's type, e.g. ``lr: NonNegativeFloat``. pydantic is imported at the first check.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache, partial
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

if TYPE_CHECKING:
    from pydantic import TypeAdapter

LARGEST = 3.4028234663852886e38  # of a float32
NonNegativeFloat = Annotated[float, Ge(0)]  # learning rates, weights of a penalty
NonNegativeInt = Annotated[int, Ge(0)]  # numbers of epochs
PositiveInt = Annotated[int, Ge(1)]  # widths of layers
Fraction = Annotated[float, Ge(0), Le(1)]
Share = Annotated[float, Gt(0), Le(1)]
Part = Annotated[float, Ge(0), Lt(1)]  # what is held out; something is left
PositiveFloat = Annotated[float, Gt(0)]  # concentrations of a Dirichlet draw


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the most similar known name, for error messages; "" if none is similar."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def choices(name: str, known: Iterable[str]) -> str:
    """The end of an error message on an unknown name: the most similar known name; if none is similar, a list of names.

    A long list is cut after about 120 characters, and the message says how many names there are.
    """
    known = list(known)
    if hint := did_you_mean(name, known):
        return hint
    text = textwrap.shorten(", ".join(known), 120, placeholder=f" ... ({len(known)} names)")
    return f"; choose from {text}" if known else "; there are none"


def percent_hint(value: float) -> str:
    """The end of an error message on a fraction out of range, if the value can be a percentage."""
    return f"; for {value:g} percent give {value / 100:g}" if 1 < value <= 100 else ""


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
            raise ValueError(f"{owner}: no setting {name!r}{choices(name, types)}")
        check = _checked_plain if type(value) in (bool, int, float, str, NoneType) else _checked
        out[name] = check(owner, name, types[name], value)
    return out


def _checked(owner: str, name: str, annotation: Any, value: Any) -> Any:
    """The value of a field converted to its type."""
    adapter = _adapter(annotation)
    return _validated(owner, name, value, partial(_converted, adapter)) if adapter else value


_checked_plain = lru_cache(maxsize=10_000, typed=True)(_checked)  # thousands of specs have the same few values


def check_fields(instance: Any, owner: str) -> None:
    """Convert all fields of a frozen dataclass to their types; for ``__post_init__``.

    Raises ValueError as ``checked`` does. Values taken from NumPy become plain Python numbers.
    """
    values = {f.name: getattr(instance, f.name) for f in dataclasses.fields(instance)}
    for name, value in checked(type(instance), values, owner).items():
        object.__setattr__(instance, name, value)


def check_options(
    what: str,
    function: Callable,
    options: Mapping[str, Any],
    reserved: int,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Check ``options`` against the parameters of ``function`` after its first ``reserved`` ones, without converting.

    Values are checked as JSON: a list is accepted for a tuple and 1 for 1.0, but "1" is not a number. Parameters
    without a type, or with a type that pydantic does not know, accept any value. ``more``: further options, name ->
    type. If the function has ``**kwargs``, other options are not checked.
    Raises ValueError for an unknown option, a wrong type and a number out of bounds.
    """
    types, others_allowed = parameters(function, reserved)
    known = {**types, **more}
    for name, value in options.items():
        if name not in known and not others_allowed:
            raise ValueError(f"{what} has no option {name!r}{choices(name, known)}")
        annotation = known.get(name, Any)
        adapter = None if isinstance(annotation, str) else _adapter(annotation)
        if adapter:
            _validated(what, name, value, partial(_validate_json, adapter))


@cache
def parameters(function: Callable, reserved: int) -> tuple[dict[str, Any], bool]:
    """Name -> type of the parameters after the ``reserved`` ones, and whether the function has ``**kwargs``."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation imported under TYPE_CHECKING: string annotations are not checked
        signature = inspect.signature(function)
    given = list(signature.parameters.values())[reserved:]
    named = [p for p in given if p.kind is not p.VAR_KEYWORD]
    types = {p.name: Any if p.annotation is p.empty else p.annotation for p in named}
    return types, len(named) < len(given)


def needed(function: Callable) -> list[str]:
    """The options that a function cannot do without: keyword-only parameters without a default."""
    given = inspect.signature(function).parameters.values()
    return [p.name for p in given if p.kind is p.KEYWORD_ONLY and p.default is p.empty]


@cache
def _adapter(annotation: Any) -> TypeAdapter | None:
    """The pydantic validator of a type; None if pydantic does not know the type."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False))
    except PydanticUserError:
        return None


def _converted(adapter: TypeAdapter, value: Any) -> Any:
    """The value in the adapter's type. "3" is accepted for a number, but True is not."""
    return adapter.validate_python(value, strict=isinstance(value, bool))


def _validate_json(adapter: TypeAdapter, value: Any) -> Any:
    try:
        text = json.dumps(value)
    except TypeError:
        return adapter.validate_python(value, strict=True)
    return adapter.validate_json(text, strict=True)


def _validated(owner: str, name: str, value: Any, validate: Callable[[Any], Any]) -> Any:
    from pydantic import ValidationError

    try:
        result = validate(value)
        if any(
            isinstance(v, float) and abs(v) > LARGEST
            for v in (result if isinstance(result, list | tuple) else [result])
        ):
            raise ValueError(f"{owner}: {name}={shown(value)}: beyond single precision, at most {LARGEST:.2g}")
        return result
    except ValidationError as error:
        first = error.errors()[0]
        at = "".join(f"item {place}: " for place in first["loc"] if isinstance(place, int))
        hint = percent_hint(float(first["input"])) if first.get("ctx") in ({"le": 1.0}, {"lt": 1.0}) else ""
        raise ValueError(f"{owner}: {name}={shown(value)}: {at}{first['msg'].lower()}{hint}") from None


def shown(value: Any) -> str:
    """``repr`` on one line, with at most 80 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
