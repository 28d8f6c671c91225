"""Results of chunks on disk, so that a second call does only what is missing."""

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
    """A folder with one file for each chunk that is done.

    A file appears under its name in one step, so a call that was killed leaves whole results
    only. The plan of the chunks lies beside them: a call with other chunks is refused.
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
                    f"the journal in {self.folder} is of a call with other chunks: it has "
                    f"{found}, and this call {wanted}. Delete the folder or give another."
                )
                raise ValueError(msg)
        else:
            self._put(path, json.dumps(wanted).encode())

    def done(self, num_chunks: int) -> list[int]:
        """The chunks that need not be run again."""
        names = {entry.name for entry in os.scandir(self.folder)}
        return [chunk for chunk in range(num_chunks) if f"{chunk}.chunk" in names]

    def write(self, chunk: int, result: object) -> None:
        """Keep a result."""
        self._put(self.folder / f"{chunk}.chunk", dumps(result, is_result=True))

    def read(self, chunk: int) -> Any:
        """A result that an earlier call has kept."""
        return loads((self.folder / f"{chunk}.chunk").read_bytes())

    def _put(self, path: Path, content: bytes) -> None:
        work = path.with_name(f".{path.name}.{os.getpid()}")
        work.write_bytes(content)
        work.replace(path)


def _digest(plan: ChunkPlan) -> str | None:
    if plan.order is None:
        return None
    return hashlib.sha256(plan.order.numpy().tobytes()).hexdigest()
