"""A save that goes on after the call: ``return_early=True``."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TensorDictFuture", "in_background"]


class TensorDictFuture:
    """What :meth:`memmap` gives with ``return_early=True``.

    Args:
        futures: the work to wait for.
        resulting_td: what :meth:`result` returns. Default: what the last one returns.
    """

    def __init__(self, futures: list[Future[Any]], resulting_td: Any = None) -> None:
        self.futures = futures
        self.resulting_td = resulting_td

    def result(self) -> Any:
        """Wait for the end of the work and return the collection.

        Raises:
            OSError: the files could not be written.
        """
        results = [future.result() for future in self.futures]
        if self.resulting_td is None and results:
            self.resulting_td = results[-1]
        return self.resulting_td


TensorDictFuture.__module__ = "tensordict.utils"


def in_background(work: Callable[[], Any]) -> TensorDictFuture:
    """Do ``work`` in a thread that ends with it."""
    executor = ThreadPoolExecutor(1, "tensordict-save")
    future = executor.submit(work)
    executor.shutdown(wait=False)
    return TensorDictFuture([future])
