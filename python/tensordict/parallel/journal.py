"""Results of chunks on disk: a second call runs only the chunks that are missing."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensordict.parallel.transport import dumps, loads
from tensordict.storage.locations import local

if TYPE_CHECKING:
    from tensordict.parallel.chunks import ChunkPlan

__all__ = ["Journal"]


class Journal:
    """A folder with one file for each finished chunk.

    Each file is renamed to its name when it is complete: after a kill, every file is complete.
    ``journal.json`` in the folder holds the number of rows, the dimension, the chunk size and
    the order of the call.

    Args:
        folder: the folder. It is created if it does not exist.
        plan: the rows of each chunk.

    Raises:
        ValueError: the folder was written by a call with other chunks.
    """

    def __init__(self, folder: str | os.PathLike[str], plan: ChunkPlan) -> None:
        self.folder: Path = Path(local(folder))
        self.folder.mkdir(parents=True, exist_ok=True)
        wanted = {
            "rows": plan.num_rows,
            "dim": plan.dim,
            "chunk": 0 if plan.drops_dim else plan.size,
            "order": _digest(plan),
        }
        path = self.folder / "journal.json"
        if path.exists():
            found = json.loads(path.read_text())
            if found != wanted:
                msg = (
                    f"the journal in {self.folder} was written by a call with other chunks: "
                    f"{found}. This call has {wanted}. Delete the folder, or pass another."
                )
                raise ValueError(msg)
        else:
            self._put(path, json.dumps(wanted).encode())

    def done(self, num_chunks: int) -> list[int]:
        """Return the chunks whose results are on disk."""
        names = {entry.name for entry in os.scandir(self.folder)}
        return [chunk for chunk in range(num_chunks) if f"{chunk}.chunk" in names]

    def write(self, chunk: int, result: object) -> None:
        """Write the result of a chunk."""
        self._put(self.folder / f"{chunk}.chunk", dumps(result, is_result=True))

    def read(self, chunk: int) -> Any:
        """Read the result of a chunk."""
        return loads((self.folder / f"{chunk}.chunk").read_bytes())

    def _put(self, path: Path, content: bytes) -> None:
        work = path.with_name(f".{path.name}.{os.getpid()}")
        work.write_bytes(content)
        work.replace(path)


def _digest(plan: ChunkPlan) -> str | None:
    if plan.order is None:
        return None
    return hashlib.sha256(plan.order.numpy().tobytes()).hexdigest()
