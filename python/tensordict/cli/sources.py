"""Read what is no save of this package, with the reader that the library has for it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from tensordict.primitives import special
from tensordict.storage import layouts
from tensordict.storage.foreign import explain, kind_of
from tensordict.storage.inspect import Entry, Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["is_of_others", "read", "survey"]


def _dataset(path: str) -> Any:
    from tensordict import from_hf

    return from_hf(importlib.import_module("datasets").load_from_disk(path))


def _safetensors(path: str) -> Any:
    from tensordict import from_safetensors

    return from_safetensors(path)


def _checkpoint(path: str) -> Any:
    from tensordict.checkpoint import tools

    return tools.load(path)


def _method(name: str, **options: Any) -> Callable[[str], Any]:
    def read_with(path: str) -> Any:
        from tensordict import TensorDict

        return getattr(TensorDict, name)(path, **options)

    return read_with


READERS: Final[dict[str, Callable[[str], Any]]] = {
    "h5": _method("from_h5"),
    "zarr": _method("from_zarr", allow_pickle=False),
    "parquet": _method("from_parquet"),
    "csv": _method("from_csv"),
    "json": _method("from_json"),
    "jsonl": _method("from_json", lines=True),
    "mds": _method("from_mds"),
    "safetensors": _safetensors,
    "datasets": _dataset,
    "dcp": _checkpoint,
    "torch": _checkpoint,
}
"""The function that makes a collection of a file or directory, by its kind."""


READING_FAILS: Final = (
    *(OSError, RuntimeError, ValueError, KeyError, TypeError, ImportError),
)


def kind_of_others(path: str) -> str | None:
    """Return the kind of what a reader is for; None for a save and for anything else."""
    layout = layouts.find(path)
    if layout not in (None, layouts.DIRECTORY, layouts.ARCHIVE):
        return None
    kind = kind_of(path)
    return kind if kind in READERS else None


def is_of_others(path: str) -> bool:
    """Return whether a path is no save, and :func:`read` reads it."""
    return kind_of_others(path) is not None


def read(path: str) -> Any:
    """Make a collection of a file or directory for which :func:`is_of_others` is true.

    Raises:
        ValueError: it cannot be read.
        ImportError: the library that reads it is not installed.
    """
    try:
        return READERS[kind_of_others(path) or ""](path)
    except READING_FAILS as error:
        msg = f"{path} is not a save. {explain(path)} That fails: {error}"
        kind = ImportError if isinstance(error, ImportError) else ValueError
        raise kind(msg) from error


def survey(path: str) -> Survey:
    """List what such a file holds. Tables are read; of HDF5 and Zarr the metadata is."""
    kind = kind_of_others(path) or ""
    return Survey(path, kind, list(_entries(read(path), ())))


def _entries(td: Any, key: tuple[str, ...]) -> Iterator[Entry]:
    yield Entry(key, "collection", shape=list(td.batch_size))
    for name in list(td.keys()):
        yield from _entry(td, name, (*key, name))


def _entry(td: Any, name: str, key: tuple[str, ...]) -> Iterator[Entry]:
    import torch

    # The shape and the dtype alone: the values of a file are not read.
    value = td._sample_entry(name)
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        rows = special.rows(value)
        if rows is None:
            size = value.numel() * value.element_size()
            yield Entry(key, "tensor", dtype, list(value.shape), size)
        else:
            size = value.values().numel() * value.element_size()
            yield Entry(key, "tensor", dtype, None, size, "ragged")
    elif value._is_non_tensor:
        note = layouts.short(value.tolist() if value.batch_dims else value.data)
        yield Entry(key, "value", note=note)
    else:
        yield from _entries(value, key)
