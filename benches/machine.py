"""Describe the machine of a measurement, for the files that ``make plots`` reads."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
from pathlib import Path


def about() -> dict[str, str | float | int]:
    """Return the machine, the versions, the date and the load, as plain data."""
    # Some benchmarks measure a process that has neither.
    import torch

    import tensordict

    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "load": round(os.getloadavg()[0], 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "tensordict": tensordict.__version__,
    }


def keep(path: str | None, numbers: dict[str, object]) -> None:
    """Write numbers with the machine and versions to the file of ``--json``."""
    if path:
        everything = {"machine": about(), **numbers}
        Path(path).write_text(json.dumps(everything, indent=1) + "\n", "utf-8")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()
