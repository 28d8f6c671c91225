"""The places that the tests of object stores run over."""

from collections.abc import Iterator

import pytest

from object_stores import BUCKET, S3Server

pytest.importorskip("obstore")


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """Start an S3 for all tests of this process."""
    server = S3Server()
    yield server
    server.stop()


def _place(kind, request, tmp_path, monkeypatch) -> str:
    unique = f"{tmp_path.parent.name}-{tmp_path.name}"
    if kind == "file":
        return (tmp_path / "store").as_uri()
    if kind == "memory":
        return f"memory:///{unique}"
    server = request.getfixturevalue("s3")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{unique}"


@pytest.fixture(params=["file", "memory", "s3"])
def url(request, tmp_path, monkeypatch) -> str:
    """Return a URL below which nothing is; its credentials are in the environment."""
    return _place(request.param, request, tmp_path, monkeypatch)


@pytest.fixture(params=["memory", "s3"])
def remote(request, tmp_path, monkeypatch) -> str:
    """Return a URL of an object store below which nothing is."""
    return _place(request.param, request, tmp_path, monkeypatch)
