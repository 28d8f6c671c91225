"""A save that continues after the call: ``return_early=True``."""

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


MSG_CHILD = "The save runs in the process from which this process was forked. Call result() there."


class Progress(Protocol):
    """The progress of a save that can be cancelled."""

    def bytes(self) -> tuple[int, int]:
        """Return the bytes written and the bytes to write, both 0 before they are known."""
        ...

    def cancel(self) -> None:
        """Ask the save to stop soon."""


class TensorDictFuture:
    """The result of :meth:`memmap` with ``return_early=True``.

    The save writes the entries that exist at the time of the call. The caller may set, replace and
    delete entries at once. The caller must not change the values of the tensors in place until
    :meth:`result` returns or :meth:`done` is true. To change values at once, save a copy:
    ``td.clone().memmap(...)``. A collection that becomes the save itself (:meth:`memmap_`,
    ``inplace=True``) must also keep its entries: otherwise :meth:`result` raises an error.

    Args:
        futures: the work to wait for.
        resulting_td: the result of :meth:`result`. The default is the result of the last
            future.
    """

    def __init__(self, futures: list[Future[Any]], resulting_td: Any = None) -> None:
        self.futures = futures
        self.resulting_td: Any = resulting_td
        self._progress: Progress | None = None
        self._process = os.getpid()

    def result(self) -> Any:
        """Wait until the save has ended, and return the saved collection.

        Raises:
            OSError: the files could not be written.
            RuntimeError: the save was cancelled; or this process was forked from the process
                that saves.
        """
        if os.getpid() != self._process and not self.done():
            raise RuntimeError(MSG_CHILD)
        results = [future.result() for future in self.futures]
        if self.resulting_td is None and results:
            self.resulting_td = results[-1]
        return self.resulting_td

    def done(self) -> bool:
        """Return whether the save has ended, with or without an error."""
        return all(future.done() for future in self.futures)

    def cancel(self) -> bool:
        """Ask the save to stop. :meth:`result` then raises, and the target keeps its files.

        Returns:
            Whether the save was running. A save that is almost done may still succeed.
        """
        if self.done() or self._progress is None:
            return False
        self._progress.cancel()
        return True

    def progress(self) -> tuple[int, int]:
        """Return the bytes written and the bytes to write, both 0 before they are known."""
        return (0, 0) if self._progress is None else self._progress.bytes()


TensorDictFuture.__module__ = "tensordict.utils"


def in_background(
    td: CollectionProtocol, work: Callable[[], Any], progress: Progress
) -> TensorDictFuture:
    """Run ``work``, which saves ``td``, in a new thread."""
    settle(td)
    executor = ThreadPoolExecutor(1, "tensordict-save")
    future = executor.submit(work)
    executor.shutdown(wait=False)
    result = TensorDictFuture([future])
    result._progress = progress
    return result


def with_bar(work: Callable[[], Any], progress: Progress, doing: str = "saving") -> Any:
    """Run ``work`` and show a progress bar."""
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
    """Return a collection with the present entries of ``td`` that later changes do not reach."""
    return td.clone(False) if options.is_later else td


def now_or_later(
    td: CollectionProtocol,
    work: Callable[[], Any],
    options: SaveOptions,
    progress: Progress,
) -> Any:
    """Run ``work``, which saves ``td``: now or in the background, as the options say."""
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
