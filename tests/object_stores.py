"""Object stores of a test run, and a proxy that is as bad as a network can be.

S3 is that of moto, in a process of its own; HTTP is nginx where there is one, or a small
server of Python's. All listen on the loopback interface, at a port that was free.
"""

from __future__ import annotations

import http.client
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from http.server import ThreadingHTTPServer as ThreadingServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

BUCKET = "bucket"
LOCAL = "127.0.0.1"


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as free:
        free.bind((LOCAL, 0))
        return free.getsockname()[1]


def wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until a server that was started listens on its port."""
    end = time.monotonic() + 60
    while True:
        with socket.socket() as peer:
            if not peer.connect_ex((LOCAL, port)):
                return
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            process.wait()
            raise RuntimeError(f"{process.args} does not start")
        time.sleep(0.005)


class S3Server:
    """The S3 of moto, with one bucket, which keeps all in memory."""

    def __init__(self) -> None:
        pytest.importorskip("moto.server", reason="moto[server] is not installed")
        port = free_port()
        command = [sys.executable, "-W", "ignore", "-m", "moto.server"]
        self._process = subprocess.Popen(
            [*command, "-H", LOCAL, "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.endpoint = f"http://{LOCAL}:{port}"
        wait_for(self._process, port)
        bucket = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(bucket).close()

    def options(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the ``storage_options`` of a client, by way of a proxy maybe."""
        return {
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "aws_region": "us-east-1",
            "aws_endpoint": endpoint or self.endpoint,
            "allow_http": "true",
        }

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the same as variables of an environment."""
        found = self.options(endpoint)
        allow = found.pop("allow_http")
        return {name.upper(): value for name, value in found.items()} | {
            "AWS_ALLOW_HTTP": allow
        }

    def stop(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()


class Threaded:
    """A server of Python's with a thread for each connection."""

    def __init__(self, handler: Any) -> None:
        self._server = ThreadingServer((LOCAL, 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None
        self.endpoint = f"http://{LOCAL}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the server; connections that are open end by themselves."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Ranges(SimpleHTTPRequestHandler):
    """Serves files, and the one range of them that is asked for."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET(has_body=False)

    def do_GET(self, *, has_body: bool = True) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        size = len(content)
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        first, last = 0, size - 1
        if asked and asked[1]:
            first, last = int(asked[1]), min(int(asked[2] or last), last)
        elif asked:
            first = max(0, size - int(asked[2]))
        tag = f'"{path.stat().st_mtime_ns:x}-{size:x}"'
        wanted = self.headers.get("If-Match")
        if wanted and wanted != tag:
            self.send_error(412)
            return
        if asked and first > last:
            self.send_error(416)
            return
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(last - first + 1))
        modified = self.date_time_string(path.stat().st_mtime)
        self.send_header("Last-Modified", modified)
        self.end_headers()
        if has_body:
            self.wfile.write(content[first : last + 1])


def http_server(folder: Path) -> Threaded:
    """Serve the files of a folder, and ranges of them."""
    return Threaded(partial(_Ranges, directory=str(folder)))


class Nginx:
    """The files of a folder by nginx; the test is skipped where there is none."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
        if program is None:
            pytest.skip("nginx is not installed")
        self._own = tempfile.TemporaryDirectory(prefix="nginx")
        own = Path(self._own.name)
        port = free_port()
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {own}/{kind};" for kind in kinds)
        (own / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {own}/pid; events {{}}\n"
            f"http {{ access_log off; {temporary}\n"
            f"server {{ listen {LOCAL}:{port}; root {folder}; }} }}\n"
        )
        command = [program, "-c", str(own / "nginx.conf"), "-e", str(own / "errors")]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.endpoint = f"http://{LOCAL}:{port}"
        wait_for(self._process, port)

    def stop(self) -> None:
        """End the server, and remove its folder."""
        self._process.kill()
        self._process.wait()
        self._own.cleanup()


FAULTS = ("delay", "cut", "reset", "500", "503")
"""The fates of requests; ``"changed"`` is another, for answers that must not pass."""


class Fault(NamedTuple):
    """A request that met with something."""

    kind: str
    method: str
    path: str


class Proxy(Threaded):
    """A server between a client and another one, where some requests meet with faults.

    Args:
        upstream: the address of the server.
        rate: the part of the requests that do.
        faults: what they meet with, one of these each.
        seed: what decides which; the order of requests in several threads does, too.
        latency: how many seconds later every answer comes.
        methods: the requests that count.
    """

    def __init__(
        self,
        upstream: str,
        rate: float = 0.05,
        faults: tuple[str, ...] = FAULTS,
        seed: int = 0,
        latency: float = 0.0,
        methods: tuple[str, ...] = ("GET", "PUT", "POST", "HEAD", "DELETE"),
    ) -> None:
        self.upstream = upstream.removeprefix("http://")
        self.rate = rate
        self.faults = faults
        self.latency = latency
        self.methods = methods
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and range of each."""
        self.met: list[Fault] = []
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        super().__init__(partial(_Between, self))

    def fault(self, method: str, path: str, asked: str | None) -> str | None:
        """Note a request, and decide what it meets with."""
        with self._lock:
            self.requests.append((method, path, asked))
            if method not in self.methods or self._random.random() >= self.rate:
                return None
            kind = self._random.choice(self.faults)
            self.met.append(Fault(kind, method, path))
            return kind


class _Between(BaseHTTPRequestHandler):
    """Passes a request on, and its answer back."""

    protocol_version = "HTTP/1.1"

    def __init__(self, proxy: Proxy, *args: Any) -> None:
        self.proxy = proxy
        super().__init__(*args)

    def log_message(self, *args: object) -> None:
        pass

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        proxy = self.proxy
        fault = proxy.fault(self.command, self.path, self.headers.get("Range"))
        if proxy.latency:
            time.sleep(proxy.latency)
        if fault == "delay":
            time.sleep(0.05)
        if fault == "reset":
            self._reset()
            return
        if fault in ("500", "503"):
            self.send_response(int(fault))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        upstream = http.client.HTTPConnection(proxy.upstream)
        upstream.request(self.command, self.path, body, dict(self.headers))
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        headers = [
            (name, value)
            for name, value in answer.getheaders()
            if name.lower() not in ("connection", "transfer-encoding", "content-length")
        ]
        size = answer.getheader("Content-Length", str(len(content)))
        if fault == "changed":
            content = bytes(255 - byte for byte in content)
            headers = [
                (name, f'"other{value[1:]}' if name.lower() == "etag" else value)
                for name, value in headers
            ]
        self.send_response(answer.status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", size)
        self.end_headers()
        if fault == "cut":
            # The request was done, and nobody hears all of that.
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self._reset()
            return
        self.wfile.write(content)

    def _reset(self) -> None:
        now = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
        self.close_connection = True
        self.connection.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on  # noqa: N815


def bytes_read(proxy: Proxy) -> int:
    """Count the bytes of the files of tensors that were asked for."""
    count = 0
    for method, path, asked in proxy.requests:
        if method == "GET" and ".safetensors" in path and "index" not in path:
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            count += last - first + 1
    return count
