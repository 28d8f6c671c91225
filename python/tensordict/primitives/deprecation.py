"""Warnings about deprecated names and settings."""

from __future__ import annotations

import importlib
import numbers
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

__all__ = [
    "deprecated_names",
    "environment_flag",
    "warn_caller",
    "warn_deprecated",
    "warn_of_cast",
]

REMOVAL = "TensorDict 0.17"

MSG_CAST_AT = (
    "The {} written at an index of the non-tensor entry {!r} is cast to a tensor today. "
    f"Starting with {REMOVAL}, the default will change to storing it as non-tensor data. "
    "Write torch.tensor(value) to keep the tensor, or NonTensorData(value) to store it as "
    "non-tensor data now."
)
MSG_CAST_IN = (
    "The {} written with [index] = value is cast to a tensor in the non-tensor entries "
    f"today. Starting with {REMOVAL}, the default will change to leaving the non-tensor "
    "entries unchanged, as a TensorDictStore does for a number. Write into "
    "td.exclude(<non-tensor keys>)[index] to leave them unchanged now."
)

# Packages that may stand between this package and the caller's line.
BETWEEN = frozenset(
    {"tensordict", "torch", "importlib", "contextlib", "functools", "threading"}
    | {"concurrent", "copy", "copyreg", "pickle", "dataclasses", "runpy"}
)

TRUE_WORDS = frozenset({"y", "yes", "t", "true", "on", "1"})
FALSE_WORDS = frozenset({"n", "no", "f", "false", "off", "0"})


def deprecation_message(name: str, advice: str | None = None) -> str:
    """Return the message about a deprecated name; ``advice`` names the replacement."""
    message = f"{name} is deprecated and will be removed in {REMOVAL}."
    return message if advice is None else f"{message} Use {advice} instead."


def warn_deprecated(
    name: str,
    advice: str | None = None,
    *,
    category: type[Warning] = DeprecationWarning,
) -> None:
    """Warn the calling code that it uses a deprecated name."""
    warn_caller(deprecation_message(name, advice), category)


def warn_caller(message: str, category: type[Warning] = FutureWarning) -> None:
    """Warn at the line of the caller's code, however deep in this package the call is.

    The warning names the innermost line outside of this package and of packages that
    may stand in between (torch and some modules of Python). If there is no such line,
    it names the line that called this package.
    """
    outside = sys._getframe(1)
    while outside.f_back and _package_of(outside) == "tensordict":
        outside = outside.f_back
    caller: FrameType | None = outside
    while caller and _package_of(caller) in BETWEEN:
        caller = caller.f_back
    named = caller or outside
    # `warnings.warn` counts frames, and skips some of them.
    warnings.warn_explicit(
        message,
        category,
        named.f_code.co_filename,
        named.f_lineno,
        module=named.f_globals.get("__name__") or "<unknown>",
        registry=named.f_globals.setdefault("__warningregistry__", {}),
    )


# The compiler calls it during tracing: a compiled function warns once, when it
# compiles.
warn_caller._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _package_of(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__") or ""
    return name.partition(".")[0]


def warn_of_cast(value: object, key: str | None = None) -> None:
    """Warn that a number becomes a tensor in non-tensor data, at ``key`` or in all."""
    if isinstance(value, numbers.Number):
        kind = type(value).__name__
        warn_caller(
            MSG_CAST_IN.format(kind) if key is None else MSG_CAST_AT.format(kind, key)
        )


def deprecated_names(
    module: str,
    table: Mapping[str, tuple[Callable[[], Any], str | None]],
    later: Mapping[str, str] | None = None,
    otherwise: Callable[[str], Any] | None = None,
) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module whose deprecated names are in ``table``.

    Args:
        module: the name of the module.
        table: for each deprecated name a function that returns its value, so that
            nothing is imported before the name is used, and its replacement.
        later: names that are not deprecated and imported on first use: for each the
            module that it is, or that contains it.
        otherwise: called with any other name; it raises an AttributeError for a missing
            one.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 (it becomes the module's own)
        if later is not None and name in later:
            found = importlib.import_module(later[name])
            return found if later[name].endswith(f".{name}") else getattr(found, name)
        if name in table:
            value, advice = table[name]
            warn_deprecated(f"{module}.{name}", advice)
            return value()
        if otherwise is not None and not name.startswith("_"):
            try:
                return otherwise(name)
            except AttributeError:
                pass
        msg = f"module {module!r} has no attribute {name!r}"
        raise AttributeError(msg)

    return __getattr__


def strtobool(value: str) -> bool:
    """Convert a word such as ``"yes"`` or ``"0"`` to a bool.

    Raises:
        ValueError: the word is unknown.
    """
    word = value.lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    msg = f"invalid truth value {value!r}"
    raise ValueError(msg)


def environment_flag(
    name: str, *, deprecated: bool | None = None, advice: str | None = None
) -> bool | None:
    """Return the bool of an environment variable; None if it is not set.

    Args:
        name: the name of the variable.
        deprecated: the value that gives a warning, if any.
        advice: the replacement to name in the warning.
    """
    text = os.environ.get(name)
    if not text:
        return None
    value = strtobool(text)
    if value is deprecated:
        warn_deprecated(f"{name}={text}", advice, category=FutureWarning)
    return value
