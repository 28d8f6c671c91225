"""Helpers of the conversions: optional imports, leaves as arrays, errors with keys."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensordict.primitives import special
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = ["array_of", "check_collection", "extra", "path_of", "values_of"]

MSG_EXTRA = "{asked} needs {package}, which is not installed: {install}"
MSG_COLLECTION = "{asked} expects a tensor collection, got a {kind}."
MSG_RAGGED = (
    "{asked} got a nested tensor at {key!r}, whose rows differ in shape. Pad the rows "
    "first: td.to_padded_tensor()."
)
MSG_DTYPE = (
    "{asked} got the dtype {dtype} at {key!r}, which {target} lacks. Convert the entry "
    "first, for example with .float() or .view(torch.uint8)."
)


def extra(name: str, asked: str, install: str) -> Any:
    """Import an optional package for the function ``asked``.

    Raises:
        ImportError: the package is not installed. The message says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        msg = MSG_EXTRA.format(asked=asked, package=package, install=install)
        raise ImportError(msg) from error


def check_collection(td: CollectionProtocol, asked: str) -> None:
    """Raise an error unless ``td`` is a tensordict.

    Raises:
        TypeError: ``td`` is not a tensordict.
    """
    if not isinstance(td, CollectionProtocol):
        raise TypeError(MSG_COLLECTION.format(asked=asked, kind=type(td).__name__))


def path_of(path: tuple[str, ...]) -> Any:
    """Return a path of keys as a user writes it: a string, or a tuple of strings."""
    return path[0] if len(path) == 1 else path


def array_of(
    asked: str, path: tuple[str, ...], value: torch.Tensor, target: str = "NumPy"
) -> np.ndarray[Any, Any]:
    """Convert a leaf to a NumPy array that shares its memory, if it is on the CPU.

    Raises:
        TypeError: the leaf is a nested tensor, or NumPy lacks its dtype.
    """
    if special.rows(value) is not None:
        raise TypeError(MSG_RAGGED.format(asked=asked, key=path_of(path)))
    try:
        array: np.ndarray[Any, Any] = (
            value.detach().cpu().resolve_conj().resolve_neg().numpy()
        )
    except TypeError as error:
        msg = MSG_DTYPE.format(
            asked=asked, dtype=value.dtype, key=path_of(path), target=target
        )
        raise TypeError(msg) from error
    return array


def values_of(value: Any) -> list[Any]:
    """Return the objects of non-tensor data, one for each element."""
    return list(value._flat())
