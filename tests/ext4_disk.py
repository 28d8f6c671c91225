"""A file system of its own, which can lose its power."""

import array
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHUTDOWN = 0x8004587D
"""The ioctl that ends an ext4 file system as it is: nothing more reaches the disk."""

WITHOUT_LOG = 2
"""A way to shut down: lose what the journal has not written yet, too."""

SECONDS = 120
"""The longest time that a command, and a child that is killed, may take."""


class Disk:
    """An ext4 file system in a file, which can lose its power."""

    def __init__(self, folder: Path) -> None:
        self.image = folder / "image"
        self.place = folder / "disk"

    def call(self, *command: str) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        if done.returncode:
            pytest.skip(f"{command[0]} is not possible here: {done.stderr.strip()}")

    def make(self) -> None:
        if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
            pytest.skip("only root may mount, and mkfs.ext4 is needed")
        self.place.mkdir()
        with self.image.open("wb") as file:
            file.truncate(48 << 20)
        self.call("mkfs.ext4", "-q", "-F", str(self.image))
        self.mount()

    def mount(self) -> None:
        self.call("mount", "-o", "loop", str(self.image), str(self.place))

    def cut(self) -> None:
        """Lose the power."""
        folder = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, SHUTDOWN, array.array("I", [WITHOUT_LOG]))
        except OSError as error:
            pytest.skip(f"the power cannot be cut here: {error}")
        finally:
            os.close(folder)

    def unmount(self) -> None:
        """Unmount, which needs that nobody has a file of it open or mapped.

        The loop device goes with the mount.
        """
        for _ in range(600):
            command = ["umount", str(self.place)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=SECONDS
            )
            if not os.path.ismount(self.place):
                return
            time.sleep(0.1)
        raise AssertionError(done.stderr)

    def restart(self) -> None:
        self.unmount()
        self.mount()


@contextmanager
def ext4_disk() -> Iterator[Disk]:
    """Mount one for a test, which is skipped where that is not possible."""
    folder = Path(tempfile.mkdtemp())
    disk = Disk(folder)
    try:
        disk.make()
        yield disk
    finally:
        if os.path.ismount(disk.place):
            disk.unmount()
        shutil.rmtree(folder)
