"""Names to functions: what the package registers, and what a user brings as ``package.module:function``."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any


def find(kind: str, name: str, table: Mapping[str, Callable]) -> Callable:
    """The function that ``table`` registers under ``name``, or the one that ``package.module:function`` names.

    ``kind`` ("model", "partition", ...) is for the error only. Raises ValueError if nothing has that name.
    """
    if ":" not in name:
        if name in table:
            return table[name]
        known = ", ".join(table)
        raise ValueError(f"unknown {kind} {name!r}: use one of {known}, or package.module:function for one of your own")
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(f"{kind} {name!r}: {module_name!r} is no module's name; give package.module:function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module does when it is imported
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{kind} {name!r}: {module_name} cannot be imported ({why}); is it on the path?") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ValueError(f"{kind} {name!r}: module {module_name} has no function {attribute!r}")
    return function


def check_options(what: str, function: Callable, options: Mapping[str, Any], reserved: int) -> None:
    """Hold ``options`` against the parameters of ``function`` after its first ``reserved`` ones.

    Raises ValueError for an unknown option and for a value that is not of the annotated type.
    """
    parameters = list(inspect.signature(function).parameters.values())[reserved:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = {p.name: p.annotation for p in parameters}
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"{what} has no option {name!r}: it takes {', '.join(known) or 'none'}")
        if not _fits(value, known[name]):
            wanted = getattr(known[name], "__name__", None) or known[name]
            raise ValueError(f"{what}: {name}={value!r} is not of type {wanted}")


def _fits(value: object, annotation: Any) -> bool:
    """Whether the value is of the annotated type; what is not a plain type (a string, list[int], nothing) passes."""
    if annotation is inspect.Parameter.empty:
        return True
    if annotation is float:
        annotation = float | int
    try:
        return isinstance(value, annotation)
    except TypeError:
        return True
