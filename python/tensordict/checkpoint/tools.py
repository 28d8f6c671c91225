"""Functions for the command line: list, verify, load, export and convert checkpoints."""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensordict import _rust
from tensordict.checkpoint.export import export_items, export_step
from tensordict.checkpoint.files import fields_in, missing_parts
from tensordict.checkpoint.foreign import (
    as_items,
    is_foreign,
    open_foreign,
    read_foreign,
    read_safetensors,
)
from tensordict.checkpoint.items import Described
from tensordict.checkpoint.kinds import loading_kind
from tensordict.checkpoint.kinds.module import describe_state
from tensordict.checkpoint.lazy_state import LazyTensors
from tensordict.checkpoint.loading import as_entry, load_step
from tensordict.checkpoint.optimizer_forms import by_number
from tensordict.checkpoint.reading import StepFiles
from tensordict.checkpoint.remote_files import RemoteStepFiles
from tensordict.checkpoint.shares import Sharer
from tensordict.checkpoint.steps import (
    META,
    Step,
    Steps,
    is_description,
    is_meta,
    read_meta,
    step_number,
)
from tensordict.checkpoint.writing import plan_step
from tensordict.storage import layouts
from tensordict.storage.encoding import Encoder
from tensordict.storage.locations import local
from tensordict.storage.remote.manifests import read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensordict.checkpoint.export import Export
    from tensordict.storage.remote.place import Place

__all__ = [
    "convert_to_step",
    "directory_on_disk",
    "export",
    "is_checkpoint",
    "load",
    "outline",
    "steps_at",
    "survey",
    "verify",
    "verify_place",
]


def is_step(path: str | Path) -> bool:
    """Return whether a directory is a step of a checkpointer, under any name."""
    return is_meta(Path(path) / META)


def is_checkpoint(path: str | Path) -> bool:
    """Return whether a path is a step, or a folder of steps."""
    folder = Path(local(path))
    if not folder.is_dir() or (folder / ".metadata").exists():
        return False
    return is_step(folder) or any(
        step_number(child.name) is not None for child in folder.iterdir()
    )


def steps_at(path: str | Path) -> list[tuple[Path, int]]:
    """Return the steps of a folder in the order of their saves, damaged ones first.

    If the path is a step itself, return only this step.
    """
    folder = Path(path)
    if is_step(folder):
        return [(folder, read_meta(folder)["step"])]
    saved_numbers = [step.number for step in Steps(folder).saved()]
    numbers_found = [step_number(child.name) for child in folder.iterdir()]
    others = sorted(
        child
        for child in numbers_found
        if child is not None and child not in saved_numbers
    )
    return [(folder / f"step-{number}", number) for number in [*others, *saved_numbers]]


def survey(path: str | Path) -> dict[str, Any]:
    """Return a summary of a step as plain data: its items, metrics and sizes."""
    directory = Path(path)
    size = sum(file.stat().st_size for file in directory.iterdir() if file.is_file())
    found: dict[str, Any] = {"path": str(directory), "num_bytes": size}
    try:
        meta = read_meta(directory)
    except (OSError, RuntimeError, ValueError) as error:
        return {**found, "problem": str(error)}
    files = StepFiles(directory)
    items = {}
    try:
        parts = files.parts(meta)
        if "ranks" in meta:
            found["elsewhere"] = sorted(meta["ranks"][meta["world"] :])
        for name, metadata in meta["items"].items():
            headers = [
                _rust.safetensors_header(path)
                for part in parts
                for path in files.paths(part["items"].get(name, {"files": []}))
            ]
            tensors = [tensor for header in headers for tensor in header[1]]
            items[name] = {
                "kind": metadata["kind"],
                "files": len(headers),
                "tensors": len(tensors),
                "num_bytes": sum(tensor[4] for tensor in tensors),
            }
    except (OSError, RuntimeError) as error:
        found["problem"] = str(error).replace(str(files.root), str(directory))
    finally:
        files.close()
    return {
        **found,
        "step": meta["step"],
        "time": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(meta["time"])),
        "metrics": meta["metrics"],
        "items": items,
    }


def verify(path: str | Path, num_threads: int = 0) -> list[str]:
    """Return one line for each damage of a step."""
    directory = Path(path)
    try:
        meta = read_meta(directory)
    except (OSError, RuntimeError, ValueError) as error:
        return [str(error)]
    return _verified(StepFiles(directory, num_threads), meta)


def verify_place(place: Place, num_threads: int = 0) -> dict[str, list[str]] | None:
    """Return the damage of one step, or of all steps of a folder, in an object store.

    The files of one item at a time are downloaded.

    Returns:
        One line for each damage, by the URL of the step; None if there are no steps.
    """
    try:
        names = [listed.name for listed in place.list()]
    except OSError:
        # An HTTP server cannot list, so the URL may only be that of one step.
        names = [META] if place.exists(META) else []
    steps = [
        place / folder
        for folder, _, file in (name.rpartition("/") for name in names)
        if file == META and step_number(folder) is not None
    ]
    if META in names and not steps:
        content = place.get(META)
        manifest = read_manifest(content)
        text = content if manifest is None else manifest.text.encode()
        steps = [place] if is_description(text) else []
    listed: dict[str, list[str]] = {}
    for step in sorted(steps, key=lambda step: step_number(step.name) or 0):
        try:
            files = RemoteStepFiles(step, num_threads)
            meta = read_meta(files.root)
        except (OSError, RuntimeError, ValueError) as error:
            listed[str(step)] = [str(error)]
        else:
            listed[str(step)] = _verified(files, meta)
    return listed or None


def _verified(files: StepFiles, meta: dict[str, Any]) -> list[str]:
    """Return one line for each damage of the files of a step, and close them."""
    lines: list[str] = []
    try:
        parts = files.parts(meta)
        for metadata in [item for part in parts for item in part["items"].values()]:
            try:
                lines += files.problems(metadata)
            except (OSError, RuntimeError) as error:
                lines.append(str(error))
        lines += missing_parts(files, meta)
    except (OSError, RuntimeError) as error:
        lines.append(str(error))
    finally:
        files.close()
    return [line.replace(str(files.root), str(files.directory)) for line in lines]


def load(path: str | Path) -> Any:
    """Load a step, the latest step of a folder, or another program's checkpoint.

    Returns:
        A tensordict.
    """
    if is_foreign(path):
        return as_entry(read_foreign(path))
    directory, _ = steps_at(path)[-1]
    files = StepFiles(directory)
    try:
        with files.names_in_errors():
            return load_step(files, read_meta(files.root))
    finally:
        files.close()


def outline(path: str | Path) -> Any:
    """Return a directory of ``torch.distributed.checkpoint`` with its tensors unread.

    Returns:
        A tensordict whose larger tensors are on ``meta``.
    """
    state, _ = open_foreign(path)
    return as_entry(state)


@contextmanager
def directory_on_disk(path: str | Path, near: str | Path) -> Iterator[Any]:
    """Open a directory of ``torch.distributed.checkpoint`` as a memory-mapped tensordict.

    The directory is rewritten as temporary files, which are deleted when the context
    ends. At most a part of a tensor is in memory meanwhile.

    Args:
        path: the directory.
        near: a path; the temporary files are next to it.
    """
    state, tensors = open_foreign(path)
    folder = Path(near).absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tensordict-", dir=folder) as temporary:
        step = Path(temporary) / "step-0"
        _write_step({"state": ("value", state)}, tensors, step, 0, durable=False)
        files = StepFiles(step)
        try:
            yield load_step(files, read_meta(files.root)).get("state")
        finally:
            files.close()


def export(path: str | Path, target: Path, how: Export) -> None:
    """Write a step, or the latest of a folder, as a directory of another format.

    A checkpoint of another program, a safetensors file and a save of a tensordict have
    the same items as in :func:`convert_to_step`.
    """
    if not is_checkpoint(path):
        items, tensors = _items_of(path)
        export_items(path, items, target, how, tensors)
        return
    directory, _ = steps_at(path)[-1]
    files = StepFiles(directory, how.num_threads)
    try:
        with files.names_in_errors():
            export_step((files, read_meta(files.root)), target, how)
    finally:
        files.close()


def _items_of(
    source: str | Path,
) -> tuple[dict[str, tuple[str, Any]], LazyTensors]:
    """Return the items of a checkpoint, and the reader of its tensors on ``meta``."""
    if is_foreign(source):
        obj, tensors = open_foreign(source)
        return as_items(obj), tensors
    if is_checkpoint(source):
        raise ValueError(f"'{source}' is a checkpoint already: copy its directory.")
    state = read_safetensors(source)
    if state is not None:
        return {"model": ("module", state)}, LazyTensors()
    data = layouts.load(None, source, mode="r")
    return {"data": ("collection", data)}, LazyTensors()


def _shapes(items: Mapping[str, tuple[str, Any]]) -> dict[str, list[int]]:
    """Return the shapes of model tensors by name, if all models agree on the name."""
    shapes: dict[str, list[int]] = {}
    differing: set[str] = set()
    for kind, value in items.values():
        for name, tensor in value.items() if kind == "module" else ():
            shape = list(tensor.shape)
            if shapes.setdefault(name, shape) != shape:
                differing.add(name)
    return {name: shape for name, shape in shapes.items() if name not in differing}


def convert_to_step(source: str | Path, target: str | Path, *, durable: bool) -> None:
    """Write a checkpoint of another program as a step, for models and optimizers.

    The tensors of a safetensors file become the item ``model``, a tensordict becomes
    ``data``.
    """
    target = Path(target).absolute()
    number = step_number(target.name)
    if number is None:
        raise ValueError(f"'{target}' is not the name of a step, such as step-100.")
    items, tensors = _items_of(source)
    _write_step(items, tensors, target, number, durable=durable)


def _write_step(
    items: Mapping[str, tuple[str, Any]],
    tensors: LazyTensors,
    target: Path,
    number: int,
    *,
    durable: bool,
) -> None:
    """Write items as a step."""
    described = []
    shapes = _shapes(items)
    for name, (kind, value) in items.items():
        encoder = Encoder(name)
        if kind == "module":
            metadata = describe_state(value, encoder)
        elif kind == "optimizer":
            state, names = by_number(value)
            metadata = {"value": encoder.encode(state)}
            if names is not None:
                metadata["parameters"] = [[name, shapes.get(name)] for name in names]
        else:
            metadata = {"value": encoder.encode(value)}
        metadata["kind"] = kind
        for fields in fields_in(metadata, "tensor"):
            # A tensor on meta stands for values on the CPU.
            if fields.get("device") == "meta":
                del fields["device"]
        leaves = {key: tensors.written(leaf) for key, leaf in encoder.tensors.items()}
        described.append(Described(name, loading_kind(kind), metadata, leaves))
    existing = Steps(target.parent).saved()
    order = max((step.order for step in existing), default=-1) + 1
    fields = {"order": order, "time": time.time(), "metrics": {}}
    retired: list[Step] = []
    shared = Sharer(None).share(described)
    plan = plan_step(
        target.parent, number, shared, fields, shards=None, retired=retired
    )
    _rust.save_step(plan.arguments(), (0, durable, True), _rust.SaveProgress())
