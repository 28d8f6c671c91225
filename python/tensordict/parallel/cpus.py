"""The number of CPUs, which is the default number of workers."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["num_cpus"]


def num_cpus() -> int:
    """Return the number of CPUs that this process may use at once, at least 1.

    The number is the smaller of the process's CPU affinity and the CPU quota of its control
    groups (``cpu.max``, ``cpu.cfs_quota_us``), rounded up.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    limit = _group_limit(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, count if limit is None else min(count, limit))


def _group_limit(membership: Path, root: Path) -> int | None:
    """Return the smallest CPU quota of a process's control groups, rounded up."""
    limits: list[int | None] = []
    for line in _lines(membership):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder = root
            for part in ("", *path.strip("/").split("/")):
                folder /= part
                limits.extend(
                    _quotient(*words.split()) for words in _lines(folder / "cpu.max")
                )
        elif "cpu" in controllers.split(","):
            folder = root / "cpu" / path.strip("/")
            quota = _lines(folder / "cpu.cfs_quota_us")
            period = _lines(folder / "cpu.cfs_period_us")
            if quota and period:
                limits.append(_quotient(quota[0], period[0]))
    found = [limit for limit in limits if limit is not None]
    return min(found, default=None)


def _quotient(quota: str, period: str) -> int | None:
    if not quota.isdigit():
        return None
    return max(1, math.ceil(int(quota) / int(period)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
