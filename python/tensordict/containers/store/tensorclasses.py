"""The tensorclass of a store, by name."""

from __future__ import annotations

import importlib
from typing import Any

from tensordict.primitives.checks import is_tensorclass

__all__ = ["class_named", "name_of_class"]

MSG_NO_CLASS = (
    "The store holds the tensorclass {!r}, which cannot be imported: {}. Import the module "
    "that defines it and pass tensorclass_cls=."
)
MSG_NO_TENSORCLASS = "{!r} is not a tensorclass. Pass one as tensorclass_cls=."


def name_of_class(cls: type) -> str:
    """Return the name of a class as the server records it."""
    return f"{cls.__module__}.{cls.__qualname__}"


def class_named(name: type | str) -> Any:
    """Return the tensorclass with a name ``module.ClassName``.

    Raises:
        ImportError: the class cannot be imported.
        TypeError: the class is not a tensorclass.
    """
    tensorclass: Any = name
    if isinstance(name, str):
        parts = name.split(".")
        tensorclass = None
        failure: Exception | None = None
        for end in range(len(parts) - 1, 0, -1):
            try:
                tensorclass = importlib.import_module(".".join(parts[:end]))
                for part in parts[end:]:
                    tensorclass = getattr(tensorclass, part)
                break
            except (ImportError, AttributeError) as error:
                failure = failure or error
                tensorclass = None
        if tensorclass is None:
            raise ImportError(MSG_NO_CLASS.format(name, failure))
    if not isinstance(tensorclass, type) or not is_tensorclass(tensorclass):
        raise TypeError(MSG_NO_TENSORCLASS.format(name))
    return tensorclass
