"""Tensors pickled as buffers, by protocol 5: a pickler may transfer them outside of the pickle.

torch pickles a tensor with its whole storage, and copies it several times. Here, a tensor is the
bytes that it views. A pickler with ``buffer_callback`` receives them without a copy, and the reader
uses them without a copy. Ray and Dask, for example, do so.
"""

from __future__ import annotations

import pickle
import weakref
from typing import Any

import numpy as np
import torch

from tensordict.primitives import special

__all__ = ["is_plain", "with_buffers"]


class _Leaf:
    """A tensor that is pickled as a buffer."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        tensor = self.tensor
        size, stride = tuple(tensor.shape), tensor.stride()
        if not tensor.numel():
            return _rebuild_leaf, (b"", tensor.dtype, size, stride)
        spans = zip(size, stride, strict=True)
        count = 1 + sum((length - 1) * step for length, step in spans)
        if count > tensor.numel():
            # The tensor is not dense: leave out the bytes that it does not view.
            tensor = tensor.contiguous()
            stride = tensor.stride()
            count = tensor.numel()
        content = torch.empty(0, dtype=torch.uint8).set_(
            tensor.untyped_storage(),
            tensor.storage_offset() * tensor.element_size(),
            (count * tensor.element_size(),),
            (1,),
        )
        array: Any = content.numpy()
        return _rebuild_leaf, (
            pickle.PickleBuffer(array),
            self.tensor.dtype,
            size,
            stride,
        )


_leaves: weakref.WeakValueDictionary[int, _Leaf] = weakref.WeakValueDictionary()
"""The substitutes for tensors in the current pickle, so that each tensor is pickled once."""


def _leaf_of(value: object) -> Any:
    if type(value) is not torch.Tensor or not is_plain(value):
        return value
    leaf = _leaves.get(id(value))
    if leaf is None or leaf.tensor is not value:
        leaf = _leaves[id(value)] = _Leaf(value)
    return leaf


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a dense CPU tensor and nothing more.

    Such a tensor requires no grad, is neither conjugated nor negated, and has no attributes.
    """
    return (
        tensor.device.type == "cpu"
        and special.is_strided(tensor)
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def with_buffers(arguments: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the arguments that rebuild a collection, with buffers for tensors."""
    first, second = arguments
    if isinstance(second, torch.Tensor):
        # The buffer of a consolidated collection.
        return first, _leaf_of(second)
    entries = second.get("_tensordict")
    if entries is not None:
        entries = {key: _leaf_of(value) for key, value in list(entries.items())}
        second = {**second, "_tensordict": entries}
    return first, second


def _rebuild_leaf(
    buffer: Any, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """Return a tensor over a buffer.

    A ``bytes`` object is copied, because Python forbids changing it. Other read-only buffers,
    for example of Ray's object store, are used without a copy.
    """
    view = memoryview(buffer)
    if view.nbytes == 0:
        return torch.empty_strided(size, stride, dtype=dtype)
    if view.readonly and isinstance(view.obj, bytes):
        view = memoryview(bytearray(view))
    array = np.frombuffer(view, np.uint8)
    if view.readonly:
        # torch has no read-only tensors, and warns of every read-only array.
        array = np.asarray(_Writable(array))
    storage = torch.from_numpy(array).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, size, stride)


class _Writable:
    """An array over the memory of another array, without the mark "read-only"."""

    def __init__(self, array: Any) -> None:
        self._array = array
        described = array.__array_interface__
        self.__array_interface__ = {
            **described,
            "data": (described["data"][0], False),
        }


_rebuild_leaf.__module__ = "tensordict._reductions"
