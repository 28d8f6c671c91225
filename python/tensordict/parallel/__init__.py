"""One function, many rows, several workers: the engine of ``map`` and ``map_iter``.

- :mod:`~tensordict.parallel.calling` is what the two methods call; start there;
- :mod:`~tensordict.parallel.chunks` says which rows are in which chunk;
- :mod:`~tensordict.parallel.jobs` has a call (:class:`~tensordict.parallel.jobs.Job`) and the
  interface of what runs it (:class:`~tensordict.parallel.jobs.Backend`);
- :mod:`~tensordict.parallel.serial`, ``threads``, ``processes``, ``pool``, ``executors``
  and ``cluster`` are the backends, :mod:`~tensordict.parallel.worker` is what runs in a process;
- :mod:`~tensordict.parallel.results` has the shared block that processes write to;
- :mod:`~tensordict.parallel.folder` has the new folder that results may go to instead;
- :mod:`~tensordict.parallel.transport` is how everything else gets there and back,
  :mod:`~tensordict.parallel.descriptors` how descriptors do;
- :mod:`~tensordict.parallel.parent` ends a process whose parent is gone;
- :mod:`~tensordict.parallel.errors` and ``journal`` are for what goes wrong.

Which process takes which chunk is decided in ``tensordict-core/src/schedule.rs``.
"""

from __future__ import annotations

from tensordict.parallel.cluster import RayPool
from tensordict.parallel.cpus import num_cpus
from tensordict.parallel.errors import ChunkError, DeadWorkerError, MapError
from tensordict.parallel.pool import WorkerPool

__all__ = [
    "ChunkError",
    "DeadWorkerError",
    "MapError",
    "RayPool",
    "WorkerPool",
    "num_cpus",
]
