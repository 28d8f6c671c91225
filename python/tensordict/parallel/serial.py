"""The backend that calls the function in this process, one chunk after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict.parallel.errors import ChunkError, note
from tensordict.parallel.jobs import Job, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["SerialBackend", "attempt"]


class SerialBackend:
    """Runs one chunk after the other in this thread."""

    def run(
        self, job: Job, num_taken: Callable[[], int]
    ) -> Generator[Outcome, None, None]:
        """Run each chunk when the caller asks for its outcome."""
        del num_taken
        for chunk in job.todo:
            yield attempt(job, chunk)


def attempt(job: Job, chunk: int, where: str = "in this process") -> Outcome:
    """Return the outcome of a chunk: the result, or the error that was raised."""
    try:
        return Outcome(chunk, job.run(chunk))
    except (Exception, SystemExit) as error:  # noqa: BLE001 # the caller raises it
        place = f"{job.plan.named(chunk)} {where}"
        if isinstance(error, SystemExit):
            wrapped = ChunkError(f"the function failed on {place}: {error!r}")
            wrapped.__cause__ = error
            return Outcome(chunk, error=wrapped)
        note(error, f"raised on {place}")
        return Outcome(chunk, error=error)
