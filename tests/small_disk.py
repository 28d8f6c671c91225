"""A file system of its own, which is soon full."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def four_megabytes() -> Iterator[Path]:
    """Mount one of that size for a test, which is skipped where that is not possible."""
    place = Path(tempfile.mkdtemp())
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root may mount")
    done = subprocess.run(mount, capture_output=True, check=False, timeout=120)
    if done.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=120)
        place.rmdir()
