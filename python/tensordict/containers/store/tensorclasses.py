"""The tensorclass that a store is of."""

from __future__ import annotations

import importlib
from typing import Any

from tensordict.primitives.checks import is_tensorclass

__all__ = ["class_named", "name_of_class"]

MSG_NO_CLASS = (
    "The store is one of the tensorclass {!r}, which cannot be imported: {}. Import the "
    "module that defines it and pass tensorclass_cls=."
)
MSG_NO_TENSORCLASS = "{!r} is no tensorclass."


def name_of_class(cls: type) -> str:
    """Name a class as the server does."""
    return f"{cls.__module__}.{cls.__qualname__}"


def class_named(name: type | str) -> Any:
    """Find the tensorclass of a name ``module.ClassName``.

    Raises:
        ImportError: there is no such class.
        TypeError: it is no tensorclass.
    """
    found: Any = name
    if isinstance(name, str):
        parts = name.split(".")
        found = None
        failure: Exception | None = None
        for end in range(len(parts) - 1, 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:end]))
                for part in parts[end:]:
                    found = getattr(found, part)
                break
            except (ImportError, AttributeError) as error:
                failure = failure or error
                found = None
        if found is None:
            raise ImportError(MSG_NO_CLASS.format(name, failure))
    if not isinstance(found, type) or not is_tensorclass(found):
        raise TypeError(MSG_NO_TENSORCLASS.format(name))
    return found
