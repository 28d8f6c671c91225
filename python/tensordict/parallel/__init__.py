"""The engine of ``map`` and ``map_iter``: one function, many rows, several workers.

Start with :mod:`~tensordict.parallel.calling`: the two methods call this module.

- :mod:`~tensordict.parallel.chunks` divides rows into chunks.
- :mod:`~tensordict.parallel.jobs` defines a call (:class:`~tensordict.parallel.jobs.Job`) and
  the interface of backends (:class:`~tensordict.parallel.jobs.Backend`).
- :mod:`~tensordict.parallel.serial`, ``threads``, ``processes``, ``pool``, ``executors``
  and ``cluster`` are the backends. :mod:`~tensordict.parallel.worker` runs in a worker process.
- :mod:`~tensordict.parallel.results` joins results. Its shared block takes results of workers.
- :mod:`~tensordict.parallel.folder` writes results to a new memory-mapped folder.
- :mod:`~tensordict.parallel.transport` pickles everything else that is sent to workers and back;
  :mod:`~tensordict.parallel.descriptors` sends file descriptors.
- :mod:`~tensordict.parallel.parent` ends a worker process whose parent has ended.
- :mod:`~tensordict.parallel.errors` describes errors of workers; ``journal`` keeps finished
  chunks on disk.

``tensordict-core/src/schedule.rs`` decides which process takes which chunk.
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
