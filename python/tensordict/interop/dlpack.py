"""Exchange of arrays with other libraries through DLPack, without copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.containers.dense import TensorDict
from tensordict.interop.leaves import check_collection, extra, path_of
from tensordict.primitives import special
from tensordict.primitives.arrays import is_constant, tensor_over
from tensordict.primitives.checks import is_branch
from tensordict.primitives.common import python_value
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["from_dlpack", "to_dlpack"]

MODULES = {"cupy": "cupy", "jax": "jax.numpy", "numpy": "numpy"}
"""From names of libraries to their modules with a function ``from_dlpack``."""

MSG_NAMESPACE = (
    "to_dlpack expects {names} or a module with a from_dlpack function, got {given!r}."
)
MSG_TO_TENSOR = (
    "from_dlpack cannot convert the {kind} of dtype {dtype} at {key!r}: {error}"
)
MSG_TO_ARRAY = (
    "to_dlpack cannot convert the dtype {dtype} at {key!r} to {library}: {error}. Convert "
    "the entry to another dtype first."
)
MSG_NARROWED = (
    "to_dlpack got the dtype {dtype} at {key!r}, which {library} would silently convert to "
    "{found}. Convert the entry first or, in JAX, set jax_enable_x64."
)
MSG_GRADIENT = (
    "to_dlpack got a tensor at {key!r} that requires grad. An array has no gradient: call "
    "td.detach() first."
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
    """Make a tensordict of arrays of JAX, CuPy, NumPy or any other DLPack library.

    The tensors share the memory of the arrays, on their device. Arrays that must not be
    written to are copied: JAX arrays and read-only NumPy arrays. NumPy arrays with
    negative strides are copied, too.

    Args:
        obj: nested mappings of arrays, or one array. Other values follow the rules of
            :meth:`TensorDict.from_dict`.
        batch_size: see :meth:`TensorDict.from_dict`.
        auto_batch_size: see :meth:`TensorDict.from_dict`.
        batch_dims: see :meth:`TensorDict.from_dict`.
        device: the device to move all entries to. Entries on other devices are copied.
        names: see :meth:`TensorDict.from_dict`.
        copy: if true, copy each array. If false, share the memory of JAX arrays, too:
            then never write to the tensors, because JAX assumes that its arrays do not
            change.

    Returns:
        A :class:`TensorDict`; for a single array, a tensor.

    Raises:
        TypeError: torch lacks the dtype of an array or cannot access its device.

    Examples:
        >>> array = np.arange(3)
        >>> td = from_dlpack({"a": array, "n": {"b": array}}, auto_batch_size=True)
        >>> array[0] = 5
        >>> td["n", "b"]
        tensor([5, 1, 2])
    """
    converted = _tensors((), obj, copy)
    if not isinstance(converted, dict):
        return converted if device is None else converted.to(device)
    return TensorDict.from_dict(
        converted,
        batch_size=batch_size,
        auto_batch_size=auto_batch_size,
        batch_dims=batch_dims,
        device=device,
        names=names,
    )


def _tensors(path: tuple[str, ...], value: object, copy: bool | None) -> Any:
    """Convert arrays in nested mappings to tensors in nested dictionaries."""
    if isinstance(value, (torch.Tensor, CollectionProtocol)):
        return value
    if isinstance(value, Mapping):
        return {key: _tensors((*path, key), item, copy) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            return value  # `TensorDict` converts structured and text arrays.
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
    """Convert a tensordict to nested dictionaries of arrays that share its memory.

    Args:
        td: the tensordict.
        library: ``"jax"``, ``"numpy"`` or ``"cupy"``, or a module with a function
            ``from_dlpack`` as in the array API standard.

    Returns:
        Dictionaries with the keys of ``td``. Non-tensor data become their Python
        objects, or a list with one object for each element. JAX copies tensors that are
        not contiguous or not aligned to its needs.

    Raises:
        TypeError: the library lacks a dtype or would convert it to a narrower one (JAX
            without ``jax_enable_x64``), a tensor requires grad or is nested, or
            ``library`` has no ``from_dlpack``.
        ValueError: ``library`` is an unknown name.
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
    arrays: dict[str, Any] = {}
    for key, value in list(td.items()):
        inner = (*path, key)
        if is_branch(value):
            arrays[key] = _arrays(namespace, inner, value)
        elif isinstance(value, torch.Tensor):
            arrays[key] = _array(namespace, inner, value)
        else:
            arrays[key] = python_value(value)
    return arrays


def _array(namespace: Any, path: tuple[str, ...], value: torch.Tensor) -> Any:
    key, library = path_of(path), namespace.__name__.partition(".")[0]
    if special.rows(value) is not None:
        raise TypeError(MSG_RAGGED.format(key=key))
    if value.requires_grad:
        raise TypeError(MSG_GRADIENT.format(key=key))
    value = value.resolve_conj().resolve_neg()
    if library == "jax" and not value.is_contiguous():
        # JAX takes contiguous tensors only.
        value = value.contiguous()
    try:
        array = namespace.from_dlpack(value)
    except Exception as error:
        # Each library has its own exception classes.
        msg = MSG_TO_ARRAY.format(
            library=library, dtype=value.dtype, key=key, error=error
        )
        raise TypeError(msg) from error
    array_dtype = array.dtype
    if getattr(array_dtype, "itemsize", value.element_size()) != value.element_size():
        raise TypeError(
            MSG_NARROWED.format(
                dtype=value.dtype, key=key, library=library, found=array_dtype
            )
        )
    return array
