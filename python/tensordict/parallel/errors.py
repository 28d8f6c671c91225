"""Errors of workers, told with the rows that the worker was at."""

# ruff: noqa: S301 (what is unpickled was pickled by a process of this call)
from __future__ import annotations

import pickle
import signal
import traceback
from typing import Any

__all__ = ["ChunkError", "DeadWorkerError", "MapError", "describe", "rebuild"]


class ChunkError(RuntimeError):
    """A function failed with something that cannot be raised where the results are."""


class DeadWorkerError(ChunkError):
    """A worker process ended in the middle of its work."""


class MapError(RuntimeError):
    """Some chunks failed, and all others were done (``on_error="collect"``).

    Attributes:
        errors: the errors, in the order of the chunks.
        result: what the other chunks gave.
    """

    def __init__(self, errors: list[BaseException], result: Any = None) -> None:
        self.errors = errors
        self.result = result
        count = "1 chunk" if len(errors) == 1 else f"{len(errors)} chunks"
        first = f"{type(errors[0]).__name__}: {errors[0]}"
        super().__init__(f"{count} failed, the first of them with {first}")


def describe(error: BaseException) -> tuple[bytes | None, str, str]:
    """An error as bytes if it can be sent, in one line, and its traceback."""
    text = "".join(traceback.format_exception(error))
    line = traceback.format_exception_only(error)[-1].strip()
    if not isinstance(error, Exception):
        return None, line, text
    pickled: bytes | None = None
    try:
        pickled = content = pickle.dumps(error)
        # Some are pickled and cannot be made again: better to learn that here.
        is_whole = type(pickle.loads(content)) is type(error)
    except Exception:  # noqa: BLE001 # it is the class of a user, who may raise anything
        is_whole = False
    return pickled if is_whole else None, line, text


def rebuild(described: tuple[bytes | None, str, str], where: str) -> BaseException:
    """The error again, with a note that says where it was raised."""
    sent, line, text = described
    error: BaseException | None = None
    if sent is not None:
        try:
            error = pickle.loads(sent)
        except Exception:  # noqa: BLE001 # as above
            error = None
    if error is None:
        error = ChunkError(f"the function failed on {where}: {line}")
    note(error, f"raised on {where}", text)
    return error


def note(error: BaseException, *notes: str) -> None:
    """Add what a traceback shows below an error."""
    for text in notes:
        error.add_note(text)


def died(exit_code: int | None, where: str) -> DeadWorkerError:
    """The error for a process that has ended."""
    if exit_code is not None and exit_code < 0:
        try:
            how = f"was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            how = f"was killed by signal {-exit_code}"
    else:
        how = f"ended with exit code {exit_code}"
    return DeadWorkerError(f"a worker {how} while it worked on {where}")
