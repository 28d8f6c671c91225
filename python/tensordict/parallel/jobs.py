"""One call of ``map``: what its workers have to know, and what they do with a chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from tensordict.parallel.seeding import seed_chunk
from tensordict.primitives.checks import is_tensor_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tensordict.parallel.chunks import ChunkPlan
    from tensordict.parallel.folder import Folder
    from tensordict.parallel.journal import Journal

__all__ = ["Backend", "Job", "Outcome", "kept"]

MSG_RESULT = (
    "map: the function returned {} for {}. Return a tensordict, a tensor, or None to leave "
    "them out; map_iter takes results of any kind."
)


@dataclass
class Job:
    """A function and the chunks that it is called with.

    Args:
        function: is called with each chunk.
        source: the collection.
        plan: says which rows are in which chunk.
        todo: the chunks, without those that an earlier call has done.
        seed: worker ``i`` starts with ``seed + i``.
        seed_per_chunk: whether chunk ``i`` starts with ``seed + i`` instead.
        num_threads: the threads that torch has in a worker.
        retries: how often a chunk is tried again.
        fails_fast: whether the first error ends the call.
        timeout_s: how long one chunk may take.
        max_chunks: after how many chunks a worker process is replaced.
        window: how many results may wait to be taken, where they are taken in order.
        target: the collection in shared memory whose rows workers write.
        folder: where results go, if that is a new folder. The caller alone has it.
        journal: keeps the results of chunks on disk.
        copies_rows: whether a chunk is copied, since its memory must not be written to.
        on_progress: is called with the number of rows that have been done since.
    """

    function: Callable[[Any], Any]
    source: Any
    plan: ChunkPlan
    todo: list[int]
    seed: int
    seed_per_chunk: bool = False
    num_threads: int = 1
    retries: int = 0
    fails_fast: bool = True
    timeout_s: float | None = None
    max_chunks: int | None = None
    window: int | None = None
    target: Any = None
    folder: Folder | None = None
    journal: Journal | None = None
    copies_rows: bool = False
    on_progress: Callable[[int], None] | None = None

    def run(self, chunk: int) -> Any:
        """Call the function with a chunk, again if it fails and may be tried again."""
        for _ in range(self.retries):
            try:
                return self._run_once(chunk)
            except Exception:  # noqa: BLE001, S112 # the last attempt raises it
                continue
        return self._run_once(chunk)

    def _run_once(self, chunk: int) -> Any:
        if self.seed_per_chunk:
            seed_chunk(self.seed, chunk)
        rows = self.plan.take(self.source, chunk)
        if self.copies_rows:
            is_locked = rows.is_locked
            rows = rows.clone()
            if is_locked:
                rows.lock_()
        return kept(self, chunk, self.function(rows))


def kept(job: Job, chunk: int, result: object) -> Any:
    """Write a result to its rows of the target, if there is one, and to the journal.

    Returns:
        What is left of the result.

    Raises:
        TypeError: it is nothing that results can be joined to.
    """
    if job.window is None and not _is_joined(result):
        rows = job.plan.named_rows(chunk)
        raise TypeError(MSG_RESULT.format(type(result).__name__, rows))
    if job.target is not None and result is not None:
        job.plan.take(job.target, chunk).update_(result)
        result = None
    if job.journal is not None:
        job.journal.write(chunk, result)
    return result


def _is_joined(result: object) -> bool:
    """Return whether results such as this one are joined to one collection or tensor."""
    return (
        result is None
        or is_tensor_collection(result)
        or isinstance(result, torch.Tensor)
        or hasattr(result, "__torch_function__")
    )


class Outcome(NamedTuple):
    """The outcome of a chunk: a result, or an error."""

    chunk: int
    result: Any = None
    error: BaseException | None = None


class Backend(Protocol):
    """Calls the function of a job with its chunks, somewhere."""

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Give the outcome of each chunk as soon as there is one, in any order.

        Closing the iterator ends the work at once. Where the job has a window, no chunk is
        begun that is further than that from the ``num_taken()`` results taken so far.
        """
        ...  # pragma: no cover
