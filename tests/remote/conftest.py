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


@pytest.fixture(params=["file", "memory", "s3"])
def url(request, tmp_path, monkeypatch) -> str:
    """Return a URL below which nothing is; its credentials are in the environment."""
    unique = f"{tmp_path.parent.name}-{tmp_path.name}"
    if request.param == "file":
        return (tmp_path / "store").as_uri()
    if request.param == "memory":
        return f"memory:///{unique}"
    server = request.getfixturevalue("s3")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{unique}"
