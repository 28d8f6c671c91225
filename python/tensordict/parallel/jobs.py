"""One call of ``map``: the data that its workers need, and their work on a chunk."""

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

__all__ = ["Backend", "Job", "Outcome", "store_result"]

MSG_RESULT = (
    "map: the function returned {} for {}. Return a tensordict or a tensor, or None to leave "
    "out these rows. map_iter takes results of any type."
)


@dataclass
class Job:
    """A function and the chunks of a collection with which it is called.

    Args:
        function: the function to call with each chunk.
        source: the collection.
        plan: the rows of each chunk.
        todo: the chunks to run, without the chunks that the journal holds.
        seed: worker ``i`` starts with the seed ``seed + i``.
        seed_per_chunk: whether chunk ``i`` starts with the seed ``seed + i`` instead.
        num_threads: the number of torch threads in a worker.
        retries: the number of further attempts for a chunk that fails.
        fails_fast: whether the first error ends the call.
        timeout_s: the time that one chunk may take.
        max_chunks: the number of chunks after which a worker process is replaced.
        window: the number of chunks that may run ahead of the results taken, if results
            are taken in order.
        target: the collection in shared memory into whose rows workers write.
        folder: the new folder for the results. Only the calling process has it.
        journal: the folder that keeps the results of chunks on disk.
        copies_rows: whether to copy a chunk, because its memory is read-only.
        on_progress: a function to call with the number of rows done since its last call.
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
        """Call the function with a chunk; try again up to ``retries`` times if it fails."""
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
        return store_result(self, chunk, self.function(rows))


def store_result(job: Job, chunk: int, result: object) -> Any:
    """Write a result to its rows of the target, if there is a target, and to the journal.

    Returns:
        The result, or ``None`` if it was written to the target.

    Raises:
        TypeError: ``map`` cannot join results of this type.
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
    """Return whether ``map`` can join results of this type."""
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
    """The interface of backends: a backend calls the function of a job with its chunks."""

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Yield the outcome of each chunk as soon as it arrives, in any order.

        Closing the iterator ends the work at once. If the job has a window, at most
        ``num_taken() + window`` chunks are begun: ``num_taken()`` results are taken so far.
        """
        ...  # pragma: no cover
