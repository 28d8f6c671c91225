"""Arrays of other libraries, and tensors as such, over the same memory (DLPack)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.containers.dense import TensorDict
from tensordict.interop.leaves import check_collection, extra, path_of
from tensordict.primitives import special
from tensordict.primitives.arrays import is_constant, tensor_over
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["from_dlpack", "to_dlpack"]

MODULES = {"cupy": "cupy", "jax": "jax.numpy", "numpy": "numpy"}
"""The modules that have ``from_dlpack``, by the name of the library."""

MSG_NAMESPACE = (
    "to_dlpack expects {names} or a module with a from_dlpack function, got {given!r}."
)
MSG_TO_TENSOR = "from_dlpack cannot make a tensor of the {kind} of dtype {dtype} at {key!r}: {error}"
MSG_TO_ARRAY = (
    "to_dlpack cannot make an array of {library} of the dtype {dtype} at {key!r}: {error}. "
    "Convert the entry first."
)
MSG_NARROWED = (
    "to_dlpack got the dtype {dtype} at {key!r}, which {library} would make {found} in "
    "silence. Convert the entry first or, in JAX, set jax_enable_x64."
)
MSG_GRADIENT = (
    "to_dlpack got a tensor at {key!r} that requires gradients, which an array has not: "
    "detach it first, td.detach()."
)
MSG_RAGGED = (
    "to_dlpack got a nested tensor at {key!r}, whose rows differ in shape: pad it first, "
    "td.to_padded_tensor()."
)


def from_dlpack(
    obj: object,
    *,
    batch_size: Sequence[int] | None = None,
    auto_batch_size: bool | None = None,
    batch_dims: int | None = None,
    device: torch.device | str | int | None = None,
    names: Sequence[str | None] | None = None,
    copy: bool | None = None,
) -> Any:
    """Make a collection of arrays of JAX, CuPy, NumPy or any other library with DLPack.

    The tensors share the memory of the arrays, on the device where it is. An array that
    nobody may write to is copied: one of JAX, and one of NumPy that is read-only. So is
    one of NumPy that has negative strides.

    Args:
        obj: arrays in nested mappings, or one array. What is neither goes by the rules of
            :meth:`TensorDict.from_dict`.
        batch_size: see :meth:`TensorDict.from_dict`.
        auto_batch_size: see :meth:`TensorDict.from_dict`.
        batch_dims: see :meth:`TensorDict.from_dict`.
        device: where all entries are moved, which copies those that are elsewhere.
        names: see :meth:`TensorDict.from_dict`.
        copy: True copies each array, False shares those of JAX, too: write to nothing
            that shares their memory, since JAX expects that they never change.

    Returns:
        A :class:`TensorDict`; a tensor for one array.

    Raises:
        TypeError: torch lacks the dtype of an array, or does not reach its device.

    Examples:
        >>> array = np.arange(3)
        >>> td = from_dlpack({"a": array, "n": {"b": array}}, auto_batch_size=True)
        >>> array[0] = 5
        >>> td["n", "b"]
        tensor([5, 1, 2])
    """
    made = _tensors((), obj, copy)
    if not isinstance(made, dict):
        return made if device is None else made.to(device)
    return TensorDict.from_dict(
        made,
        batch_size=batch_size,
        auto_batch_size=auto_batch_size,
        batch_dims=batch_dims,
        device=device,
        names=names,
    )


def _tensors(path: tuple[str, ...], value: object, copy: bool | None) -> Any:
    """A value with tensors for its arrays; mappings become dictionaries."""
    if isinstance(value, (torch.Tensor, CollectionProtocol)):
        return value
    if isinstance(value, Mapping):
        return {key: _tensors((*path, key), each, copy) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            return value  # The rules of entries know structures and texts.
        if copy:
            value = value.copy()
    elif not hasattr(type(value), "__dlpack__"):
        return value
    try:
        if isinstance(value, np.ndarray):
            return tensor_over(value)
        tensor = torch.utils.dlpack.from_dlpack(value)
        is_copied = copy or (copy is None and is_constant(value))
        return tensor.clone() if is_copied else tensor
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        msg = MSG_TO_TENSOR.format(
            kind=type(value).__name__,
            dtype=getattr(value, "dtype", "?"),
            key=path_of(path) if path else path,
            error=error,
        )
        raise TypeError(msg) from error


def to_dlpack(td: CollectionProtocol, library: object = "numpy") -> dict[str, Any]:
    """Make nested dictionaries of arrays of another library, over the same memory.

    Args:
        td: a collection.
        library: ``"jax"``, ``"numpy"`` or ``"cupy"``, or a module with a function
            ``from_dlpack``, as the array API has it.

    Returns:
        Dictionaries with the keys of ``td``. Non-tensor data are the values themselves, a
        list where there is one for each element. JAX copies memory that it cannot share:
        rows with gaps, and data that is not aligned to its needs.

    Raises:
        TypeError: the library lacks a dtype, or would narrow it (JAX does without
            ``jax_enable_x64``); a tensor requires gradients or is nested.
        ImportError: the library is not installed.

    Examples:
        >>> td = TensorDict(a=torch.zeros(2), n={"b": torch.ones(2)})
        >>> to_dlpack(td)["n"]["b"]
        array([1., 1.], dtype=float32)
    """
    check_collection(td, "to_dlpack")
    if isinstance(library, str):
        if library not in MODULES:
            names = ", ".join(map(repr, MODULES))
            raise ValueError(MSG_NAMESPACE.format(names=names, given=library))
        install = "pip install " + ("cupy-cuda13x" if library == "cupy" else library)
        namespace = extra(MODULES[library], f"to_dlpack(td, {library!r})", install)
    elif hasattr(library, "from_dlpack"):
        namespace = library
    else:
        names = ", ".join(map(repr, MODULES))
        raise TypeError(MSG_NAMESPACE.format(names=names, given=library))
    return _arrays(namespace, (), td)


def _arrays(
    namespace: object, path: tuple[str, ...], td: CollectionProtocol
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in list(td.items()):
        inner = (*path, key)
        if isinstance(value, CollectionProtocol):
            held: Any = value
            if held._is_non_tensor:
                made[key] = held.tolist() if not held._is_one else held.data
            else:
                made[key] = _arrays(namespace, inner, value)
        elif isinstance(value, torch.Tensor):
            made[key] = _array(namespace, inner, value)
        else:
            made[key] = value
    return made


def _array(namespace: Any, path: tuple[str, ...], value: torch.Tensor) -> Any:
    key, library = path_of(path), namespace.__name__.partition(".")[0]
    if special.rows(value) is not None:
        raise TypeError(MSG_RAGGED.format(key=key))
    if value.requires_grad:
        raise TypeError(MSG_GRADIENT.format(key=key))
    value = value.resolve_conj().resolve_neg()
    if library == "jax" and not value.is_contiguous():
        # JAX takes no rows with gaps.
        value = value.contiguous()
    try:
        array = namespace.from_dlpack(value)
    except Exception as error:
        # Each library has classes of its own.
        msg = MSG_TO_ARRAY.format(
            library=library, dtype=value.dtype, key=key, error=error
        )
        raise TypeError(msg) from error
    found = array.dtype
    if getattr(found, "itemsize", value.element_size()) != value.element_size():
        raise TypeError(
            MSG_NARROWED.format(
                dtype=value.dtype, key=key, library=library, found=found
            )
        )
    return array
