"""Calling a function with the chunks of a collection, in several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    import torch

    from tensordict.containers.collection import TensorCollection

__all__ = ["MappingOps"]


class MappingOps(CollectionProtocol):
    """Calling a function with chunks of rows. The engine is :mod:`tensordict.parallel`."""

    def map(
        self,
        fn: Callable[[Self], TensorCollection | None],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        out: TensorCollection | str | os.PathLike[str] | None = None,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: torch.Generator | None = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = False,
        pbar: bool = False,
        mp_start_method: str | None = None,
        backend: str | None = None,
        retries: int = 0,
        on_error: Literal["raise", "skip", "collect"] = "raise",
        timeout: float | None = None,
        seed_per_chunk: bool = False,
        journal: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Call a function with each chunk of rows, in parallel, and join the results.

        The workers are processes. They are told which rows to take, and find the tensordict in
        memory that they share: it is moved there, unless it is in files. So what a function
        writes to its chunk is written to the tensordict. Results of the same keys, dtypes and shapes are written by
        the workers to where they belong in the whole, without a copy here. Results that are
        ``None`` are left out.

        Args:
            fn: is called with each chunk. It may be anything that can be called, lambdas and
                closures as well; where it has to be sent, cloudpickle helps.
            dim: the batch dim of the rows.
            num_workers: how many workers there are, by default as many as this process may
                use processors.
            out: a collection that results are written to, row by row. If that is in shared
                memory or in files, the workers write to it. Rows without a result stay as
                they are. Or the path of a new folder: workers write to a memory-mapped
                collection there, which appears when it is whole, and is returned.
            chunksize: the rows of a chunk. With 0, each row is given without ``dim``, and
                results are stacked along it.
            num_chunks: how many chunks there are, by default as many as workers.
            pool: a :class:`~tensordict.parallel.WorkerPool`, a pool of
                :mod:`multiprocessing` or an executor of :mod:`concurrent.futures`.
            generator: draws the seed of the workers; worker ``i`` starts with that plus
                ``i``. Without one all calls have the same.
            max_tasks_per_child: after how many chunks a worker is replaced by a new process.
            worker_threads: the threads that torch has in a worker.
            index_with_generator: whether chunks are pieces taken by index, which are unlocked,
                instead of those of :meth:`split`, locked as this tensordict is.
            pbar: whether to show the rows that are done.
            mp_start_method: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
            backend: ``"processes"``, ``"threads"`` for functions that release the
                interpreter, ``"serial"`` for this thread, or ``"ray"`` for the machines of
                a cluster, which are given copies of the rows.
            retries: how often a chunk is tried again that failed or whose worker died.
            on_error: what an error does. It is raised at once (``"raise"``), the chunk is
                left out (``"skip"``), or all others are done first, and then all errors are
                raised as one :class:`~tensordict.parallel.MapError` (``"collect"``).
            timeout: the seconds that one chunk may take.
            seed_per_chunk: whether chunk ``i`` starts with the seed plus ``i``, so that
                results are the same for any number of workers.
            journal: a folder that keeps the results of chunks. A second call, after the
                first was interrupted, does only what is missing.

        Raises:
            IndexError: ``dim`` is no batch dim.
            ValueError: both ``chunksize`` and ``num_chunks`` were given, or a number is too
                small.
            FileExistsError: ``out`` is a path where something is.
            DeadWorkerError: a worker was killed, or ended itself.
            TimeoutError: a chunk took longer than ``timeout``.
            TypeError: ``fn`` returned neither a collection, nor a tensor, nor None.
            Exception: what ``fn`` raises, with a note of the chunk, its rows and the worker.

        Examples:
            >>> td = TensorDict(a=torch.arange(4), batch_size=[4])
            >>> def double(chunk):
            ...     return chunk * 2
            >>> td.map(double, num_workers=2)["a"].tolist()
            [0, 2, 4, 6]
            >>> td.map(double, num_workers=2, chunksize=0).batch_size
            torch.Size([4])
        """
        arguments = locals()
        from tensordict.parallel.calling import Options, map_chunks

        options = Options.of("map", arguments)
        return map_chunks(self, fn, out, options)

    def map_iter(
        self,
        fn: Callable[[Self], TensorCollection | None],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        shuffle: bool = False,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: object = None,
        generator: torch.Generator | None = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = True,
        pbar: bool = False,
        mp_start_method: str | None = None,
        backend: str | None = None,
        retries: int = 0,
        on_error: Literal["raise", "skip", "collect"] = "raise",
        timeout: float | None = None,
        seed_per_chunk: bool = False,
        journal: str | os.PathLike[str] | None = None,
    ) -> Iterator[Any]:
        """Call a function with each chunk of rows, in parallel, and give the results in order.

        Only a few results wait to be taken at any time: two for each worker. Leaving the
        loop ends the work at once. The arguments are those of :meth:`map`, and

        Args:
            fn: is called with each chunk. Results may be anything that can be pickled.
            dim: the batch dim of the rows.
            num_workers: how many workers there are.
            shuffle: whether chunks take the rows in an order that is drawn from torch's
                global generator.
            chunksize: the rows of a chunk; with 0, each row is given without ``dim``.
            num_chunks: how many chunks there are.
            pool: the workers to use.
            generator: draws the seed of the workers.
            max_tasks_per_child: after how many chunks a worker is replaced.
            worker_threads: the threads that torch has in a worker.
            index_with_generator: must not be false where rows are shuffled.
            pbar: whether to show the rows that are done.
            mp_start_method: how processes start.
            backend: what kind of workers there are.
            retries: how often a chunk is tried again.
            on_error: what an error does.
            timeout: the seconds that one chunk may take.
            seed_per_chunk: whether each chunk has a seed of its own.
            journal: a folder that keeps the results of chunks.

        Raises:
            RuntimeError: rows are to be shuffled with ``index_with_generator=False``.
            Exception: as :meth:`map`.

        Examples:
            >>> td = TensorDict(a=torch.arange(4), batch_size=[4])
            >>> for total in td.map_iter(lambda c: int(c["a"].sum()), num_workers=2):
            ...     print(total)
            1
            5
        """
        arguments = locals()
        from tensordict.parallel.calling import Options, map_chunks_iter

        if shuffle and not index_with_generator:
            msg = (
                "Shuffling is not permitted unless use_generator is set to ``True`` for "
                "efficiency purposes."
            )
            raise RuntimeError(msg)
        options = Options.of("map_iter", arguments)
        return map_chunks_iter(self, fn, options)
