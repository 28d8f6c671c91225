"""Results in a new folder: a memory-mapped dataset that appears when it is complete."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tensordict.parallel.errors import note
from tensordict.storage.locations import new_directory

if TYPE_CHECKING:
    from tensordict.parallel.chunks import ChunkPlan
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Folder"]

MSG_EXISTS = (
    "map writes its results to a new folder, but {} exists. Delete it, or pass another path. "
    "To write into its rows, pass TensorDict.load_memmap(path) as out."
)
MSG_OTHER = (
    "the result of {} differs from the first result in its keys, shapes or dtypes, but all "
    "rows of {} need the same ones. Let the function return results that are alike, or pass "
    "no out."
)


class Folder:
    """A memory-mapped collection of all rows, in a work folder until :meth:`commit`.

    The first result decides the keys, shapes and dtypes. Rows without a result are zero.

    Args:
        path: the path of the new folder.
        plan: the rows of each chunk.

    Raises:
        FileExistsError: ``path`` exists.
    """

    def __init__(self, path: str | os.PathLike[str], plan: ChunkPlan) -> None:
        self.path: Path = Path(new_directory(path)).absolute()
        self.plan: ChunkPlan = plan
        self.mapped: Any = None
        if os.path.lexists(self.path):
            raise FileExistsError(MSG_EXISTS.format(self.path))
        self._work: Path = self.path.with_name(f".{self.path.name}.map.{os.getpid()}")
        self._sweep()

    def prepare(self, result: CollectionProtocol) -> None:
        """Create the files for results like this one, unless they exist."""
        if self.mapped is not None:
            return
        plan = self.plan
        row = result.unsqueeze(plan.dim) if plan.drops_dim else result
        row = plan.place(row, 0, 1)
        sizes = list(row.batch_size)
        sizes[plan.dim] = plan.num_rows
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.mapped = row.expand(sizes).memmap_like(self._work)

    def write(self, result: CollectionProtocol, chunk: int) -> None:
        """Write the result of a chunk to its rows.

        Raises:
            ValueError: its keys, shapes or dtypes differ from the first result's.
        """
        self.prepare(result)
        rows = self.plan.take(self.mapped, chunk)
        try:
            fits = rows.batch_size == result.batch_size and _look(rows) == _look(result)
            if fits:
                # Assign by index: for non-tensor data, the index selects the values.
                self.plan.put(self.mapped, chunk, result)
        except Exception as error:
            note(error, f"raised on {self.plan.named(chunk)}")
            msg = MSG_OTHER.format(self.plan.named(chunk), self.path)
            raise ValueError(msg) from error
        if not fits:
            raise ValueError(MSG_OTHER.format(self.plan.named(chunk), self.path))

    def files(self, signature: object) -> list[str]:
        """Return the files of the leaves, in the order of a layout's signature."""
        return [leaf.filename for leaf in _leaves(self.mapped, signature)]

    def commit(self) -> Any:
        """Rename the work folder to ``path`` and load it.

        Returns:
            The memory-mapped collection, or ``None`` if no chunk had a result.
        """
        if self.mapped is None:
            return None
        cls = type(self.mapped)
        self._work.rename(self.path)
        return cls.load_memmap(self.path)

    def discard(self) -> None:
        """Remove the work folder of a call that failed."""
        shutil.rmtree(self._work, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove the work folders of processes that were killed."""
        for found in self.path.parent.glob(f".{self.path.name}.map.*"):
            owner = found.name.rpartition(".")[2]
            if owner == str(os.getpid()) or (owner.isdigit() and _is_dead(int(owner))):
                shutil.rmtree(found, ignore_errors=True)


def _look(result: CollectionProtocol) -> dict[Any, Any]:
    """Return the shape and the dtype of each leaf by its key."""
    return {
        key: (value.shape, value.dtype) if isinstance(value, torch.Tensor) else None
        for key, value in result.items(include_nested=True, leaves_only=True)
    }


def _leaves(mapped: Any, signature: Any) -> list[Any]:
    if len(signature) == 2:
        return _leaves(mapped._tensordict, signature[1])
    found: list[Any] = []
    for entry in signature[3]:
        value = mapped._tensordict[entry[0]]
        found += [value] if len(entry) == 3 else _leaves(value, entry[1])
    return found


def _is_dead(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
