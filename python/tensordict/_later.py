"""List what tensordict 0.15 has and this version has not yet.

Each name can be imported, and each method is there; calling it is an error that says so.
To land one of them, write it and delete its name here: a method in a topic of
:mod:`tensordict.ops`, a function where ``tensordict`` imports it from, a class where it
derives from :class:`Later` now.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn, Self

__all__ = ["CLASSES", "FUNCTIONS", "METHODS", "Later", "function", "give_methods"]

MESSAGES = (
    "Send the leaves with torch.distributed, or the whole as a pickle: "
    "torch.distributed.send_object_list([td], dst)."
)

METHODS: dict[str, str] = {
    "arecv": MESSAGES,
    "asend": MESSAGES,
}
"""Methods of every collection, and what to do meanwhile."""

FUNCTIONS: dict[str, str] = {
    "recv_tensordict": MESSAGES,
    "send_tensordict": MESSAGES,
}
"""Functions of the package, and what to do meanwhile."""

CLASSES: dict[str, tuple[str, str]] = {
    "TensorDictPipe": ("tensordict._ucxx", MESSAGES),
    "TensorDictServer": ("tensordict._ucxx", MESSAGES),
}
"""Classes that have no instances yet: where they are, and what to do meanwhile."""


class Later:
    """A class that is there for its name and for ``isinstance``, and has no instances."""

    __slots__ = ()

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Say that this version has no instances of the class yet.

        Raises:
            NotImplementedError: always.
        """
        name = next(base.__name__ for base in cls.__mro__ if base.__name__ in CLASSES)
        _refuse(name, CLASSES[name][1])

    @classmethod
    def from_dict(cls, *_: Any, **__: Any) -> Self:
        """Say so, too."""
        return cls()


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        return function(name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def _refuse(name: str, advice: str) -> NoReturn:
    """Say that something waits for a later version.

    Raises:
        NotImplementedError: always.
    """
    from tensordict import __version__

    msg = f"{name} is not in this version ({__version__}) yet. {advice}"
    raise NotImplementedError(msg)


@functools.cache
def function(name: str) -> Any:
    """The function of that name, which says that this version has it not yet."""
    return _refusing(name, name, FUNCTIONS[name])


def give_methods(cls: type) -> None:
    """Give a class those methods of :data:`METHODS` that it has not."""
    for name, advice in METHODS.items():
        if not hasattr(cls, name):
            method = _refusing(name, f"TensorDict.{name}", advice)
            is_constructor = name.startswith("from_")
            setattr(cls, name, staticmethod(method) if is_constructor else method)


def _refusing(name: str, shown: str, advice: str) -> Any:
    def refusing(*_: Any, **__: Any) -> NoReturn:
        _refuse(shown, advice)

    refusing.__name__ = refusing.__qualname__ = name
    refusing.__doc__ = f"Say that this version has no ``{shown}`` yet.\n\n{advice}"
    return refusing
