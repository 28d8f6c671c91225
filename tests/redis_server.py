"""A Redis server of a test run: started on a socket of its own, without a port."""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest


class RedisServer:
    """A server that keeps nothing on disk.

    Args:
        options: what else its command line has.
    """

    def __init__(self, *options: str) -> None:
        if shutil.which("redis-server") is None:
            pytest.skip("redis-server is not installed")
        pytest.importorskip("redis")
        # The path of a socket has at most 107 bytes, which those of pytest may exceed.
        self._folder = tempfile.TemporaryDirectory(prefix="redis", dir="/tmp")
        self.socket = str(Path(self._folder.name) / "socket")
        self._options = options
        self.start()

    @property
    def address(self) -> dict[str, str]:
        """Return the arguments with which a store finds the server."""
        return {"unix_socket_path": self.socket}

    def start(self) -> None:
        """Start the server and wait until it answers."""
        Path(self.socket).unlink(missing_ok=True)
        command = ["redis-server", "--port", "0", "--unixsocket", self.socket]
        command += ["--save", "", "--appendonly", "no", "--dir", self._folder.name]
        self._process = subprocess.Popen(
            [*command, *self._options], stdout=subprocess.DEVNULL
        )
        end = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("redis-server does not start")
            time.sleep(0.01)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as peer:
            return peer.connect_ex(self.socket) == 0

    def kill(self) -> None:
        """End the server as a crash does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End the server, and remove its folder."""
        self.kill()
        self._folder.cleanup()
