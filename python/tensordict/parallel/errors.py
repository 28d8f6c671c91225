"""Errors of workers, with the chunk and the rows on which they happened."""

# ruff: noqa: S301 (a process of the same call has pickled these bytes)
from __future__ import annotations

import pickle
import signal
import traceback
from typing import Any

__all__ = ["ChunkError", "DeadWorkerError", "MapError", "describe", "rebuild"]


class ChunkError(RuntimeError):
    """An error of a function in a worker that cannot be raised as it is in the caller."""


class DeadWorkerError(ChunkError):
    """A worker process ended while it worked on a chunk."""


class MapError(RuntimeError):
    """The errors of the chunks that failed in a call with ``on_error="collect"``.

    Attributes:
        errors: the errors, in the order of the chunks.
        result: the result of the other chunks.
    """

    def __init__(self, errors: list[BaseException], result: Any = None) -> None:
        self.errors = errors
        self.result = result
        count = "1 chunk" if len(errors) == 1 else f"{len(errors)} chunks"
        first = f"{type(errors[0]).__name__}: {errors[0]}"
        super().__init__(f"{count} failed, the first of them with {first}")


def describe(error: BaseException) -> tuple[bytes | None, str, str]:
    """Return an error as a pickle, as one line, and its traceback.

    The pickle is ``None`` if the error cannot be unpickled as the same class.
    """
    text = "".join(traceback.format_exception(error))
    line = traceback.format_exception_only(error)[-1].strip()
    if not isinstance(error, Exception):
        return None, line, text
    pickled: bytes | None = None
    try:
        pickled = content = pickle.dumps(error)
        # Some errors can be pickled, but not unpickled. The caller could not raise these.
        can_be_raised = type(pickle.loads(content)) is type(error)
    except Exception:  # noqa: BLE001 # a user's class may raise anything
        can_be_raised = False
    return pickled if can_be_raised else None, line, text


def rebuild(described: tuple[bytes | None, str, str], where: str) -> BaseException:
    """Return the described error again, with a note on the chunk that raised it."""
    sent, line, text = described
    error: BaseException | None = None
    if sent is not None:
        try:
            error = pickle.loads(sent)
        except Exception:  # noqa: BLE001 # a user's class may raise anything
            error = None
    if error is None:
        error = ChunkError(f"the function failed on {where}: {line}")
    note(error, f"raised on {where}", text)
    return error


def note(error: BaseException, *notes: str) -> None:
    """Add notes to an error. A traceback shows them below the error."""
    for text in notes:
        error.add_note(text)


def died(exit_code: int | None, where: str) -> DeadWorkerError:
    """Return the error for a worker process that has ended."""
    if exit_code is not None and exit_code < 0:
        try:
            how = f"was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            how = f"was killed by signal {-exit_code}"
    else:
        how = f"ended with exit code {exit_code}"
    return DeadWorkerError(f"a worker {how} while it worked on {where}")
