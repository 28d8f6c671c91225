"""``map`` and ``map_iter``: calls of a function with chunks of rows in parallel."""

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
    """Calls of a function with chunks of rows, run by :mod:`tensordict.parallel`."""

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

        The workers are processes that share this tensordict's memory: unless it is
        memory-mapped, it is moved to shared memory first. If a function writes into its
        chunk, it writes into this tensordict. If all results have the same keys, dtypes
        and shapes, the workers write them straight into the joined result. Results that
        are None are left out.

        Args:
            fn: called with each chunk. A callable that must be sent to a worker and that
                pickle refuses, such as a lambda, needs cloudpickle.
            dim: the batch dimension to cut into chunks.
            num_workers: the number of workers. Default: the processors that this
                process may use.
            out: a tensordict to write the results into, row by row. Workers write into
                it directly if it is shared or memory-mapped. Rows without a result keep
                their values. Or the path of a new folder: workers write a memory-mapped
                tensordict there, which appears when it is complete and is returned.
            chunksize: the rows of a chunk. With 0, ``fn`` gets each row without
                ``dim``, and results are stacked along it.
            num_chunks: the number of chunks. Default: the number of workers.
            pool: a :class:`~tensordict.parallel.WorkerPool`, a pool of
                :mod:`multiprocessing` or an executor of :mod:`concurrent.futures`.
            generator: draws the base seed; worker ``i`` is seeded with the base seed
                plus ``i``. Without a generator, all calls have the same base seed.
            max_tasks_per_child: replace a worker process after this many chunks.
            worker_threads: the number of torch threads in a worker.
            index_with_generator: take chunks by index, unlocked. If False, chunks come
                from :meth:`split` and are locked as this tensordict is.
            pbar: show a progress bar, in rows.
            mp_start_method: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
            backend: ``"processes"``, ``"threads"`` for functions that release the GIL,
                ``"serial"`` for this thread, or ``"ray"`` for the machines of a
                cluster, which get copies of the rows.
            retries: how often a chunk is tried again if it fails or its worker dies.
            on_error: the effect of an error: raise it at once (``"raise"``), leave the
                chunk out (``"skip"``), or finish the other chunks and raise one
                :class:`~tensordict.parallel.MapError` with all errors
                (``"collect"``).
            timeout: the most seconds for one chunk.
            seed_per_chunk: seed chunk ``i`` with the base seed plus ``i``, so that the
                results do not depend on the number of workers.
            journal: a folder that keeps the results of chunks. After an interruption,
                call again with the same folder: only missing chunks are computed.

        Raises:
            IndexError: ``dim`` is no batch dimension.
            ValueError: both ``chunksize`` and ``num_chunks`` were passed, or a number
                is too small.
            FileExistsError: ``out`` is a path that exists.
            DeadWorkerError: a worker was killed, or ended itself.
            TimeoutError: a chunk took longer than ``timeout``.
            TypeError: ``fn`` returned neither a tensordict, nor a tensor, nor None.
            Exception: any error of ``fn``, with a note of the chunk, its rows and the
                worker.

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
        """Call a function with each chunk of rows, in parallel, and yield the results.

        Results come in the order of the chunks. At most two results for each worker
        wait at any time. Leaving the loop ends the work at once.

        Args:
            fn: called with each chunk. It may return anything that can be pickled.
            dim: the batch dimension to cut into chunks.
            num_workers: as for :meth:`map`, like all arguments without a text here.
            shuffle: take the rows in an order drawn from torch's global generator.
            chunksize: the rows of a chunk. With 0, ``fn`` gets each row without
                ``dim``.
            num_chunks: see :meth:`map`.
            pool: see :meth:`map`.
            generator: see :meth:`map`.
            max_tasks_per_child: see :meth:`map`.
            worker_threads: see :meth:`map`.
            index_with_generator: see :meth:`map`; must be true if ``shuffle`` is set.
            pbar: see :meth:`map`.
            mp_start_method: see :meth:`map`.
            backend: see :meth:`map`.
            retries: see :meth:`map`.
            on_error: see :meth:`map`.
            timeout: see :meth:`map`.
            seed_per_chunk: see :meth:`map`.
            journal: see :meth:`map`.

        Raises:
            RuntimeError: ``shuffle`` is set and ``index_with_generator`` is False.
            Exception: as for :meth:`map`.

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
