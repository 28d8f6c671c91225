"""A save that goes on after the call: ``return_early=True``."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from tensordict.storage.devices import settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.primitives.protocol import CollectionProtocol
    from tensordict.storage.layouts import SaveOptions

__all__ = [
    "Progress",
    "TensorDictFuture",
    "in_background",
    "now_or_later",
    "of_now",
    "with_bar",
]


MSG_CHILD = (
    "The save runs in the process that this one was forked from: ask for its result "
    "there."
)


class Progress(Protocol):
    """The progress of a save, which can be cancelled."""

    def bytes(self) -> tuple[int, int]:
        """Bytes written, and bytes to write; both 0 before that is known."""
        ...

    def cancel(self) -> None:
        """Have the save stop soon."""


class TensorDictFuture:
    """The result of :meth:`memmap` with ``return_early=True``.

    The save is of the entries at the time of the call: from then on entries may be set,
    replaced and deleted. The values of the tensors are read until the save is done: they
    must not change in place before :meth:`result`, or :meth:`done`, says so. To go on at
    once, save a snapshot: ``td.clone().memmap(...)``. A collection that becomes the save
    itself (:meth:`memmap_`, ``inplace=True``) must keep its entries, too: where it does not,
    :meth:`result` says so.

    Args:
        futures: the work to wait for.
        resulting_td: what :meth:`result` returns. Default: what the last one returns.
    """

    def __init__(self, futures: list[Future[Any]], resulting_td: Any = None) -> None:
        self.futures = futures
        self.resulting_td: Any = resulting_td
        self._progress: Progress | None = None
        self._process = os.getpid()

    def result(self) -> Any:
        """Wait for the end of the work and return the collection.

        Raises:
            OSError: the files could not be written.
            RuntimeError: the save was cancelled; or this is a child of the process that
                saves, where nobody would ever say that it is done.
        """
        if os.getpid() != self._process and not self.done():
            raise RuntimeError(MSG_CHILD)
        results = [future.result() for future in self.futures]
        if self.resulting_td is None and results:
            self.resulting_td = results[-1]
        return self.resulting_td

    def done(self) -> bool:
        """Return whether the work has ended, well or not."""
        return all(future.done() for future in self.futures)

    def cancel(self) -> bool:
        """Ask the save to stop: :meth:`result` then raises, and files stay as they were.

        Returns:
            Whether it was still running. One that was about to end may end well.
        """
        if self.done() or self._progress is None:
            return False
        self._progress.cancel()
        return True

    def progress(self) -> tuple[int, int]:
        """Bytes written, and bytes to write; both 0 before that is known."""
        return (0, 0) if self._progress is None else self._progress.bytes()


TensorDictFuture.__module__ = "tensordict.utils"


def in_background(
    td: CollectionProtocol, work: Callable[[], Any], progress: Progress
) -> TensorDictFuture:
    """Do ``work``, which saves ``td``, in a thread that ends with it."""
    settle(td)
    executor = ThreadPoolExecutor(1, "tensordict-save")
    future = executor.submit(work)
    executor.shutdown(wait=False)
    made = TensorDictFuture([future])
    made._progress = progress
    return made


def with_bar(work: Callable[[], Any], progress: Progress, doing: str = "saving") -> Any:
    """Do ``work`` and show how far it is."""
    from tqdm.auto import tqdm

    ended = threading.Event()

    def watch() -> None:
        with tqdm(unit="B", unit_scale=True, unit_divisor=1024, desc=doing) as bar:
            while True:
                is_last = ended.wait(0.1)
                bar.n, bar.total = progress.bytes()
                bar.refresh()
                if is_last:
                    return

    watcher = threading.Thread(target=watch, name="tensordict-progress")
    watcher.start()
    try:
        return work()
    finally:
        ended.set()
        watcher.join()


def of_now(td: CollectionProtocol, options: SaveOptions) -> Any:
    """Keep the entries that a save is about, whatever becomes of ``td`` afterwards."""
    return td.clone(False) if options.is_later else td


def now_or_later(
    td: CollectionProtocol,
    work: Callable[[], Any],
    options: SaveOptions,
    progress: Progress,
) -> Any:
    """Do ``work``, which saves ``td``, in the way that the options say."""
    if options.share_non_tensor:
        unshared, work = work, lambda: _with_shared_values(unshared())
    if options.pbar:
        watched, work = work, lambda: with_bar(watched, progress)
    if options.is_later:
        return in_background(td, work, progress)
    return work()


def _with_shared_values(saved: Any) -> Any:
    saved._share_values()
    return saved
