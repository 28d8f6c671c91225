"""The implementation of ``map`` and ``map_iter`` with all their options."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Self

import torch

from tensordict.parallel.chunks import ChunkPlan
from tensordict.parallel.cluster import RayBackend, RayPool
from tensordict.parallel.cpus import num_cpus
from tensordict.parallel.errors import MapError
from tensordict.parallel.executors import ExecutorBackend
from tensordict.parallel.folder import Folder
from tensordict.parallel.jobs import Backend, Job
from tensordict.parallel.journal import Journal
from tensordict.parallel.pool import PassingPool
from tensordict.parallel.processes import ForkBackend, ProcessesBackend
from tensordict.parallel.results import Written, join, values, write_out
from tensordict.parallel.serial import SerialBackend
from tensordict.parallel.threads import ThreadsBackend
from tensordict.parallel.transport import share_memory
from tensordict.primitives import classes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Options", "map_chunks", "map_chunks_iter"]

OnError = Literal["raise", "skip", "collect"]

MSG_PARAMS = (
    "Cannot call {} on a TensorDictParams object. Convert it to a detached tensordict first "
    "(through ``tensordict.data`` or ``tensordict.to_tensordict()``) and call {} in a second "
    "time."
)
MSG_NO_WORKERS = (
    "Number of processes must be at least 1, got num_workers={}. backend='serial' calls the "
    "function in this process."
)
MSG_TIMEOUT = (
    "timeout needs worker processes: only a process can be stopped during a chunk. Pass no "
    "timeout, or backend='processes', or a tensordict.parallel.WorkerPool."
)
MSG_SEED = (
    "seed_per_chunk needs processes: threads share one random generator. Pass "
    "backend='processes', or seed_per_chunk=False."
)
BACKENDS = ("processes", "ray", "serial", "threads")


@dataclass(kw_only=True)
class Options:
    """The options of ``map`` and ``map_iter``. The docstrings of the two methods explain them."""

    name: str
    dim: int
    num_workers: int | None
    chunksize: int | None
    num_chunks: int | None
    pool: Any
    generator: torch.Generator | None
    max_tasks_per_child: int | None
    worker_threads: int
    index_with_generator: bool
    pbar: bool
    mp_start_method: str | None
    backend: str | None
    retries: int
    on_error: OnError
    timeout: float | None
    seed_per_chunk: bool
    journal: str | os.PathLike[str] | None
    shuffle: bool = False

    @classmethod
    def of(cls, name: str, arguments: Mapping[str, Any]) -> Self:
        """Take the options from the arguments of a method call; ignore other arguments."""
        options = {field.name for field in fields(cls)}.intersection(arguments)
        return cls(name=name, **{option: arguments[option] for option in options})


def map_chunks(
    source: CollectionProtocol,
    function: Callable[..., Any],
    out: object,
    options: Options,
) -> Any:
    """Call a function with each chunk and join the results."""
    backend = _backend(options)
    job = _job(source, function, options, backend)
    if isinstance(out, str | os.PathLike):
        job.folder = Folder(out, job.plan)
        try:
            return _mapped(job, backend, None, options)
        except BaseException:
            job.folder.discard()
            raise
    if out is not None and _reaches_workers(out, backend):
        job.target = out
    return _mapped(job, backend, out, options)


def _mapped(job: Job, backend: Backend, out: object, options: Options) -> Any:
    plan, folder = job.plan, job.folder
    results: list[Any] = [None] * len(plan)

    def keep(chunk: int, result: Any) -> None:
        if folder is None:
            results[chunk] = result
        elif result is not None and type(result) is not Written:
            folder.write(result, chunk)

    if job.journal is not None:
        for chunk in sorted(set(range(len(plan))).difference(job.todo)):
            keep(chunk, job.journal.read(chunk))
    errors: dict[int, BaseException] = {}
    outcomes = backend.run(job, lambda: 0)
    with contextlib.closing(outcomes), _progress(job, options, backend) as tell:
        for outcome in outcomes:
            tell(outcome.chunk)
            if outcome.error is None:
                keep(outcome.chunk, outcome.result)
            elif options.on_error == "raise":
                raise outcome.error
            else:
                errors[outcome.chunk] = outcome.error
    result: Any
    if folder is not None:
        result = folder.commit()
    elif out is None:
        result = join(results, plan)
    else:
        write_out(out, results, plan)
        result = out
    if errors and options.on_error == "collect":
        raise MapError([errors[chunk] for chunk in sorted(errors)], result)
    return result


def map_chunks_iter(
    source: CollectionProtocol, function: Callable[..., Any], options: Options
) -> Iterator[Any]:
    """Call a function with each chunk and yield the results in the order of the chunks."""
    backend = _backend(options)
    job = _job(source, function, options, backend)
    num_workers = getattr(backend, "num_workers", options.num_workers) or num_cpus()
    job.window = max(2, 2 * num_workers)
    return _results(job, backend, options)


def _results(job: Job, backend: Backend, options: Options) -> Iterator[Any]:
    num_taken = 0
    waiting: dict[int, Any] = {}
    errors: list[BaseException] = []
    todo = set(job.todo)
    outcomes = backend.run(job, lambda: num_taken)
    with contextlib.closing(outcomes), _progress(job, options, backend) as tell:
        for chunk in range(len(job.plan)):
            if chunk not in todo:
                if job.journal is not None:
                    yield job.journal.read(chunk)
                continue
            while chunk not in waiting:
                outcome = next(outcomes)
                # The earliest error is raised, even if its chunk is a later one.
                if outcome.error is not None and options.on_error == "raise":
                    raise outcome.error
                waiting[outcome.chunk] = outcome
            outcome = waiting.pop(chunk)
            num_taken += 1
            tell(chunk)
            if outcome.error is None:
                yield from values([outcome.result])
            else:
                errors.append(outcome.error)
        # Let the workers of a pool finish, so that the pool keeps them for the next call.
        for _ in outcomes:
            pass
    if errors and options.on_error == "collect":
        raise MapError(errors)


def _backend(options: Options) -> Backend:
    pool = options.pool
    if pool is not None and not isinstance(pool, (ProcessesBackend, RayPool)):
        return ExecutorBackend(pool)
    if pool is not None:
        return pool
    name = options.backend
    if name is not None and name not in BACKENDS:
        found = ", ".join(map(repr, BACKENDS))
        msg = f"backend must be one of {found}, got {name!r}."
        raise ValueError(msg)
    if name == "serial":
        return SerialBackend()
    if name == "ray":
        return RayBackend(options.num_workers)
    count = num_cpus() if options.num_workers is None else options.num_workers
    if count < 1:
        raise ValueError(MSG_NO_WORKERS.format(count))
    if name == "threads":
        return ThreadsBackend(count)
    context = multiprocessing.get_context(options.mp_start_method)
    method = context.get_start_method()
    return ForkBackend(count) if method == "fork" else PassingPool(count, method)


def _job(
    source: CollectionProtocol,
    function: Callable[..., Any],
    options: Options,
    backend: Backend,
) -> Job:
    if isinstance(source, classes.TensorDictParams):
        raise RuntimeError(MSG_PARAMS.format(options.name, options.name))
    if not callable(function):
        msg = f"{type(function).__name__!r} object is not callable"
        raise TypeError(msg)
    if options.on_error not in ("raise", "skip", "collect"):
        msg = (
            f"on_error must be 'raise', 'skip' or 'collect', got {options.on_error!r}."
        )
        raise ValueError(msg)
    is_forked = isinstance(backend, ProcessesBackend)
    is_in_processes = is_forked or isinstance(backend, RayPool)
    if options.timeout is not None and not is_in_processes:
        raise ValueError(MSG_TIMEOUT)
    if options.seed_per_chunk and isinstance(backend, ThreadsBackend):
        raise ValueError(MSG_SEED)
    if is_in_processes and options.worker_threads < 1:
        msg = "set_num_threads expects a positive integer"
        raise RuntimeError(msg)
    batch_size = source.batch_size
    count = options.num_workers or getattr(backend, "num_workers", None) or num_cpus()
    order = None
    if options.shuffle:
        order = torch.randperm(batch_size[options.dim])
    plan = ChunkPlan(
        batch_size,
        options.dim,
        options.chunksize,
        options.num_chunks,
        count,
        order,
        source.is_locked and not options.index_with_generator,
    )
    todo = list(range(len(plan)))
    journal = None
    if options.journal is not None:
        journal = Journal(options.journal, plan)
        done = set(journal.done(len(plan)))
        todo = [chunk for chunk in todo if chunk not in done]
    if is_forked and todo:
        share_memory(source)
    # Without a generator, every call uses the same seeds, as in the published package.
    generator = torch.Generator() if options.generator is None else options.generator
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
    return Job(
        function=function,
        source=source,
        plan=plan,
        todo=todo,
        seed=seed,
        seed_per_chunk=options.seed_per_chunk,
        num_threads=options.worker_threads,
        retries=options.retries,
        fails_fast=options.on_error == "raise",
        timeout_s=options.timeout,
        max_chunks=options.max_tasks_per_child,
        journal=journal,
    )


def _reaches_workers(out: Any, backend: Backend) -> bool:
    """Return whether the backend can write each result to ``out`` as soon as it arrives."""
    if isinstance(backend, RayPool):
        # The calling process writes the results of Ray's workers.
        return True
    if not isinstance(backend, ProcessesBackend):
        return False
    return bool(out.is_shared() or out.is_memmap())


@contextlib.contextmanager
def _progress(
    job: Job, options: Options, backend: Backend
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar of rows, and yield a function that takes each finished chunk."""
    if not options.pbar:
        yield lambda _: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        msg = "pbar=True needs tqdm: pip install tensordict-rs[progress]"
        raise ImportError(msg) from None
    plan = job.plan
    rows = [stop - start for start, stop in map(plan.rows, job.todo)]
    with tqdm(
        total=plan.num_rows, initial=plan.num_rows - sum(rows), unit="row"
    ) as bar:

        def advance(count: int) -> None:
            bar.update(min(count, bar.total - bar.n))

        def tell(chunk: int) -> None:
            start, stop = plan.rows(chunk)
            advance(stop - start)

        is_told = isinstance(backend, ProcessesBackend) and job.window is None
        if is_told:
            job.on_progress = advance
        yield (lambda _: None) if is_told else tell
