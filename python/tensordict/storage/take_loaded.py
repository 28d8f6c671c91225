"""Loading into an existing collection: ``out``.

The functions ``*_dense`` are for dense collections. Other classes override the methods that call
them.
"""

from __future__ import annotations

from typing import Any

import torch

from tensordict.primitives.checks import is_branch
from tensordict.primitives.errors import locked_error
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.tensors.mapped import MemoryMappedTensor

__all__ = ["check_fit", "check_out", "load_into", "mark_mapped", "take_loaded_dense"]


def check_out(out: CollectionProtocol, loaded: Any) -> None:
    """Check that the loaded entries fit into ``out``, and keep the names of ``out``."""
    if out._is_dense and loaded._is_dense and not _brings_collection(out, loaded):
        # `out` keeps its names, as in the published package. Only a new nested collection
        # has the names of the save.
        names = out._td_dim_names
        if loaded._has_names() and (names is None or len(names) == loaded.batch_dims):
            loaded.names = names
    # The lock of a memory-mapped collection keeps it in line with its directory, and the
    # directory changes here. Any other lock protects the entries.
    if out.is_locked and not out.is_memmap():
        raise locked_error(out)
    check_fit(out, loaded)


def _brings_collection(out: CollectionProtocol, loaded: CollectionProtocol) -> bool:
    """Return whether a nested collection in ``loaded`` is not in ``out``."""
    return any(
        is_branch(value)
        and not isinstance(out._get_entry(key, None), CollectionProtocol)
        for key, value in loaded.items()
    )


def load_into(out: Any, loaded: object) -> Any:
    """Replace the entries of ``out`` by the entries of ``loaded``."""
    check_out(out, loaded)
    filled = out._take_loaded(loaded)
    if filled._is_dense and filled.is_memmap():
        mark_mapped(filled)
    return filled


def check_fit(out: Any, loaded: Any) -> None:
    """Check, before anything changes, that the loaded entries fit."""
    if not out._is_dense:
        return
    batch_size = out.batch_size
    for key, value in loaded.items():
        # A strided nested tensor has no shape, only a number of components.
        is_ragged = isinstance(value, torch.Tensor) and _is_strided_nested(value)
        shape = torch.Size([value.size(0)]) if is_ragged else value.shape
        if shape[: len(batch_size)] != batch_size:
            raise RuntimeError(
                f"the {type(value).__name__} {key} has shape {shape} which is "
                f"incompatible with the batch-size {batch_size}."
            )
        present = out._get_entry(key, None)
        if isinstance(present, CollectionProtocol) and not isinstance(
            value, torch.Tensor
        ):
            check_fit(present, value)
    names, loaded_names = out._td_dim_names, loaded._td_dim_names
    is_both = names is not None and loaded_names is not None
    if is_both and any(
        old not in (None, new) for old, new in zip(names, loaded_names, strict=False)
    ):
        raise RuntimeError(
            f"refine_names: cannot coerce TensorDict names {loaded_names} with {names}."
        )


def _is_loaded_already(present: object, value: object) -> bool:
    """Return whether a memory-mapped leaf has no bytes, so that there is nothing to load."""
    return (
        isinstance(present, MemoryMappedTensor)
        and not present.numel()
        and isinstance(value, torch.Tensor)
        and value.dtype == present.dtype
        and not value.is_nested
        and value.shape == present.shape
    )


def take_loaded_dense(out: Any, loaded: CollectionProtocol) -> Any:
    """Replace the entries of a dense collection by loaded ones; keep nested collections."""
    if loaded._is_non_tensor:
        return loaded
    entries: dict[str, Any] = {}
    for key, value in loaded.items():
        present = out._get_entry(key, None)
        is_pair = isinstance(present, CollectionProtocol) and isinstance(
            value, CollectionProtocol
        )
        if is_pair:
            value = present._take_loaded(value)
        elif _is_loaded_already(present, value):
            value = present
        entries[key] = value
    out._tensordict.clear()
    out._tensordict.update(entries)
    names = loaded._td_dim_names
    if names is not None and len(names) == len(out.batch_size):
        out._td_dim_names = list(names)
    out._memmap_prefix = loaded._memmap_prefix
    return out


def mark_mapped(td: Any) -> None:
    """Mark a loaded collection and its nested collections as memory-mapped."""
    td._is_memmap = True
    td._is_shared = False
    td._is_locked = True
    for value in td._children():
        mark_mapped(value)


def _is_strided_nested(value: torch.Tensor) -> bool:
    return value.is_nested and value.layout is torch.strided
