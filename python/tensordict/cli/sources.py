"""Read files that are not saves of this package, with the library's readers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from tensordict.primitives import special
from tensordict.storage import layouts
from tensordict.storage.foreign import explain, kind_of
from tensordict.storage.inspect import Entry, Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensordict.containers.dense import TensorDict

__all__ = ["is_of_others", "read", "survey"]


def _dataset(path: str) -> TensorDict:
    from tensordict import from_hf

    return from_hf(importlib.import_module("datasets").load_from_disk(path))


def _safetensors(path: str) -> Any:
    from tensordict import from_safetensors

    return from_safetensors(path)


def _checkpoint(path: str) -> Any:
    from tensordict.checkpoint import tools

    return tools.load(path)


def _outline(path: str) -> Any:
    from tensordict.checkpoint import tools

    try:
        return tools.outline(path)
    except READING_FAILS as error:
        msg = f"{path} is not a save. {explain(path)} Reading it failed: {error}"
        raise ValueError(msg) from error


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
"""The reader of each kind of file or directory; it returns a tensordict."""


READING_FAILS: Final = (
    *(OSError, RuntimeError, ValueError, KeyError, TypeError, ImportError),
)


def kind_of_others(path: str) -> str | None:
    """Return the kind of a file that a reader supports; None for saves and others."""
    layout = layouts.find(path)
    if layout not in (None, layouts.DIRECTORY, layouts.ARCHIVE):
        return None
    kind = kind_of(path)
    return kind if kind in READERS else None


def is_of_others(path: str) -> bool:
    """Return whether a path is not a save, and :func:`read` can read it."""
    return kind_of_others(path) is not None


def read(path: str) -> Any:
    """Read a file or directory for which :func:`is_of_others` is true, as a tensordict.

    Raises:
        ValueError: it cannot be read.
        ImportError: the library that reads it is not installed.
    """
    try:
        return READERS[kind_of_others(path) or ""](path)
    except READING_FAILS as error:
        msg = f"{path} is not a save. {explain(path)} Reading it failed: {error}"
        kind = ImportError if isinstance(error, ImportError) else ValueError
        raise kind(msg) from error


def survey(path: str) -> Survey:
    """Return the entries of a file.

    HDF5, Zarr and directories of ``torch.distributed.checkpoint`` need only metadata, tables
    are read.
    """
    kind = kind_of_others(path) or ""
    opened = _outline(path) if kind == "dcp" else read(path)
    return Survey(path, kind, list(_entries(opened, ())))


def _entries(td: Any, key: tuple[str, ...]) -> Iterator[Entry]:
    yield Entry(key, "collection", shape=list(td.batch_size))
    for name in list(td.keys()):
        yield from _entry(td, name, (*key, name))


def _entry(td: Any, name: str, key: tuple[str, ...]) -> Iterator[Entry]:
    import torch

    # Only the shape and the dtype are needed, so values are not read.
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
