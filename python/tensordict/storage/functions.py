"""The functions ``tensordict.save``, ``tensordict.load`` and their relatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.primitives.signatures import with_parameters_of
from tensordict.storage import layouts
from tensordict.storage.layouts import consolidated
from tensordict.storage.layouts.safetensors import from_safetensors, to_safetensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from tensordict.primitives.protocol import NestedKeyLike

__all__ = [
    "from_consolidated",
    "from_safetensors",
    "load",
    "load_memmap",
    "memmap",
    "save",
    "to_safetensors",
]


def memmap(
    data: Any,
    prefix: str | Path | None = None,
    copy_existing: bool = False,
    *,
    num_threads: int = 0,
    return_early: bool = False,
    share_non_tensor: bool = False,
    existsok: bool = True,
    robust_key: bool | None = True,
    archive: bool | None = None,
    compression: str | int | None = None,
    atomic: bool | None = None,
    durable: bool = False,
    pbar: bool = False,
    checks: bool = True,
    ragged: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Save a collection: :meth:`TensorDictBase.memmap` as a function."""
    return data.memmap(
        prefix,
        copy_existing,
        num_threads=num_threads,
        return_early=return_early,
        share_non_tensor=share_non_tensor,
        existsok=existsok,
        robust_key=robust_key,
        archive=archive,
        compression=compression,
        atomic=atomic,
        durable=durable,
        pbar=pbar,
        checks=checks,
        ragged=ragged,
        storage_options=storage_options,
    )


def save(
    data: object,
    prefix: str | Path | None = None,
    copy_existing: bool = False,
    *,
    num_threads: int = 0,
    return_early: bool = False,
    share_non_tensor: bool = False,
    robust_key: bool | None = True,
    archive: bool | None = None,
    compression: str | int | None = None,
    atomic: bool | None = None,
    durable: bool = False,
    pbar: bool = False,
    checks: bool = True,
    ragged: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Save a collection: :meth:`TensorDictBase.save` as a function."""
    return memmap(
        data,
        prefix,
        copy_existing,
        num_threads=num_threads,
        return_early=return_early,
        share_non_tensor=share_non_tensor,
        robust_key=robust_key,
        archive=archive,
        compression=compression,
        atomic=atomic,
        durable=durable,
        pbar=pbar,
        checks=checks,
        ragged=ragged,
        storage_options=storage_options,
    )


def load_memmap(
    prefix: str | Path,
    device: torch.device | None = None,
    non_blocking: bool = False,
    *,
    out: object = None,
    robust_key: bool | None = True,
    subpath: NestedKeyLike | None = None,
    mode: str | None = None,
    num_threads: int = 0,
    allow_pickle: bool | None = None,
    verify: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | Path | None = None,
    cache_limit: int | None = None,
    download: bool | str | Path | None = None,
    read_limit: int | None = None,
) -> Any:
    """Load a save as the class it was saved from: :meth:`TensorDictBase.load_memmap`."""
    return layouts.load(
        None,
        prefix,
        device,
        non_blocking,
        out=out,
        robust_key=robust_key,
        subpath=subpath,
        mode=mode,
        num_threads=num_threads,
        allow_pickle=allow_pickle,
        verify=verify,
        storage_options=storage_options,
        cache_dir=cache_dir,
        cache_limit=cache_limit,
        download=download,
        read_limit=read_limit,
    )


@with_parameters_of(load_memmap)
def load(*args: Any, **kwargs: Any) -> Any:
    """Load a save as the class it was saved from: :meth:`TensorDictBase.load`."""
    return load_memmap(*args, **kwargs)


def from_consolidated(filename: Path | str) -> Any:
    """Load a consolidated file: :meth:`TensorDictBase.from_consolidated`."""
    return consolidated.load(filename)
