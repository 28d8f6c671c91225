"""Write steps in other formats: a Hugging Face folder, or a directory of DCP."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from tensordict import _rust
from tensordict.checkpoint.distributed import COULD_NOT_EXPORT, run_together
from tensordict.checkpoint.lazy_state import MSG_ITEM, LazyTensors, state_of_step
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.errors import MissingKeyError
from tensordict.storage.layouts.safetensors import in_shards, planned
from tensordict.storage.safetensors_levels import count_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.reading import StepFiles

__all__ = ["FORMATS", "Export", "export_items", "export_step"]

FORMATS = ("huggingface", "dcp")
SHARD_SIZE = "5GB"
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"

MSG_FORMAT = "format must be 'huggingface' or 'dcp', got {!r}."
MSG_SHARDS = "max_shard_size is only for format='huggingface', and the format is {!r}."
MSG_ONE = (
    "A Hugging Face folder holds one item, got {!r}. For several, pass format='dcp'."
)
MSG_NONE = (
    "Cannot export {item!r} to a Hugging Face folder: it contains no named tensors."
)
MSG_LEFT_OUT = "A Hugging Face folder holds only tensors, so these are left out: {}."
MSG_THERE = "It exists already, and is not replaced"


class Export(NamedTuple):
    """The options of an export."""

    item: str | Sequence[str] = "model"
    format: str = "huggingface"
    max_shard_size: int | str | None = None
    num_threads: int = 0
    durable: bool = False
    replace: bool = False
    """Whether an existing directory or file at the target is replaced."""

    def checked(self) -> Export:
        """Return the options, after a check that they can be combined.

        Raises:
            ValueError: they cannot be combined.
        """
        if self.format not in FORMATS:
            raise ValueError(MSG_FORMAT.format(self.format))
        if self.format == "huggingface":
            if not isinstance(self.item, str):
                raise ValueError(MSG_ONE.format(self.item))
            in_shards({}, self.max_shard_size or SHARD_SIZE, None)
        elif self.max_shard_size is not None:
            raise ValueError(MSG_SHARDS.format(self.format))
        return self


class _Source(NamedTuple):
    """A state to write, the same on all ranks."""

    state: Any
    tensors: LazyTensors
    config: bytes | None = None


_Load: TypeAlias = Callable[[], _Source]


def export_step(
    opened: tuple[StepFiles, Mapping[str, Any]] | Exception,
    target: Path,
    how: Export,
    group: Ranks | None = None,
) -> None:
    """Write items of a step as a directory of another format.

    Args:
        opened: the files and the description of a step, or this rank's error.
        target: the directory, which must not exist yet.
        how: the options.
        group: the ranks that write together; None if there is one process.

    Raises:
        FileExistsError: the target exists.
        KeyError: the step has no such item.
        RuntimeError: a file is damaged.
    """

    def load() -> _Source:
        if isinstance(opened, Exception):
            raise opened
        files, meta = opened
        tensors = LazyTensors(how.num_threads, files.names_in_errors, files.bring)
        state = _chosen(
            how.item, lambda name: state_of_step(files, meta, name, tensors)
        )
        config = files.root / CONFIG
        is_model = how.item == "model" and config.exists()
        return _Source(state, tensors, config.read_bytes() if is_model else None)

    _publish(load, target, how, group)


def export_items(
    source: str | Path,
    items: Mapping[str, tuple[str, Any]],
    target: Path,
    how: Export,
    tensors: LazyTensors | None = None,
) -> None:
    """Write a checkpoint of another program as a directory of another format.

    Args:
        source: the path of the checkpoint.
        items: its items, each with its kind.
        target: the directory, which must not exist yet.
        how: the options.
        tensors: the reader of tensors on ``meta``. Default: all tensors are in memory.

    Raises:
        FileExistsError: the target exists.
        KeyError: the checkpoint has no such item.
    """

    def load() -> _Source:
        def state_of(name: str) -> Any:
            if name not in items:
                raise MissingKeyError(MSG_ITEM.format(source, name, sorted(items)))
            return items[name][1]

        return _Source(_chosen(how.item, state_of), tensors or LazyTensors())

    _publish(load, target, how, None)


def _chosen(item: str | Sequence[str], state_of: Callable[[str], Any]) -> Any:
    """Return the state of one item, or a dictionary of the states of several."""
    if isinstance(item, str):
        return state_of(item)
    return {name: state_of(name) for name in item}


# The target directory -----------------------------------------------------------------


def _publish(load: _Load, target: Path, how: Export, group: Ranks | None) -> None:
    """Write a directory under a temporary name, then rename it to the target."""
    agreed = uuid.uuid4().hex[:12] if group is None else group.agree(uuid.uuid4().hex)
    folder = target.with_name(f".{target.name}.{agreed}")
    is_first = group is None or group.rank == 0
    source: Any = None

    def begin() -> None:
        nonlocal source
        source = load()
        if is_first:
            _refuse_present(target, how)
            folder.mkdir(parents=True)

    def end() -> None:
        if is_first:
            if how.durable:
                _sync(folder)
            _move(folder, target, how)
            if how.durable:
                _sync_one(target.parent)

    try:
        run_together(begin, group, COULD_NOT_EXPORT)
        if how.format == "dcp":
            from tensordict.checkpoint.export_dcp import write_dcp

            state: dict[str, Any] = (
                source.state
                if isinstance(source.state, dict)
                else {str(how.item): source.state}
            )
            write_dcp(state, source.tensors, folder, group)
        else:
            run_together(
                lambda: _write_shards(source, folder, how, group),
                group,
                COULD_NOT_EXPORT,
            )
        run_together(end, group, COULD_NOT_EXPORT)
    except BaseException:
        # Every rank removes it: rank 0 may have ended, or others may still write.
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _refuse_present(target: Path, how: Export) -> None:
    is_empty = target.is_dir() and not any(target.iterdir())
    if os.path.lexists(target) and not (how.replace or is_empty):
        raise FileExistsError(17, MSG_THERE, str(target))


def _move(folder: Path, target: Path, how: Export) -> None:
    """Rename a directory to the target; replace an existing target if that was asked."""
    _refuse_present(target, how)
    if not how.replace or not os.path.lexists(target):
        folder.rename(target)
        return
    old = folder.with_name(f"{folder.name}.old")
    target.rename(old)
    try:
        folder.rename(target)
    except OSError:
        old.rename(target)
        raise
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old)
    else:
        old.unlink()


def _sync(folder: Path) -> None:
    """Flush the files of a directory and their names to the disk."""
    for path in [*folder.iterdir(), folder]:
        _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Hugging Face folders -----------------------------------------------------------------


def _write_shards(
    source: _Source, folder: Path, how: Export, group: Ranks | None
) -> None:
    """Write this rank's shards, one at a time; the first rank also writes the index."""
    tensors = _named(source.state, how.item)
    shards = in_shards(tensors, how.max_shard_size or SHARD_SIZE, None)
    count = len(shards)
    names = [f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]
    if count == 1:
        names = ["model.safetensors"]
    rank, world = (0, 1) if group is None else (group.rank, group.world)
    for number in range(rank, count, world):
        _write_shard(source, shards[number], folder / names[number], how)
    if rank:
        return
    total = sum(map(count_bytes, tensors.values()))
    weights = {
        tensor: name
        for name, shard in zip(names, shards, strict=True)
        for tensor in shard
    }
    index = {"metadata": {"total_size": total}, "weight_map": weights}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    if source.config is not None:
        (folder / CONFIG).write_bytes(source.config)


def _write_shard(
    source: _Source, shard: Mapping[str, Any], path: Path, how: Export
) -> None:
    # The values are released before the next shard is read.
    values = source.tensors.read(list(shard.values()))
    read: dict[str, Any] = dict(zip(shard, values, strict=True))
    texts = [("format", "pt")]
    _rust.write_safetensors(
        [(str(path), None, planned(read), texts)],
        None,
        None,
        (how.num_threads, False, True),
        _rust.SaveProgress(),
        False,
    )


def _named(state: object, item: object) -> dict[str, Any]:
    """Return the tensors by name. Tied tensors appear once, under their first name.

    Raises:
        ValueError: the state contains no tensors.
    """
    tensors: dict[str, torch.Tensor] = {}
    known_memory: set[Any] = set()
    left_out: list[str] = []
    for name, value in _flat(state):
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            left_out.append(name)
            continue
        place: Any = id(value)
        if not value.is_meta and value.numel():
            place = value.data_ptr(), value.shape, value.stride(), value.dtype
        if place not in known_memory:
            known_memory.add(place)
            tensors[name] = value
    if not tensors:
        raise ValueError(MSG_NONE.format(item=item))
    if left_out:
        warn_caller(MSG_LEFT_OUT.format(", ".join(map(repr, left_out))), UserWarning)
    return tensors


def _flat(value: object, name: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from _flat(inner, f"{name}.{key}" if name else str(key))
