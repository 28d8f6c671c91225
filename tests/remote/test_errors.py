"""What a user reads when a store cannot be read: one sentence with what to do."""

from datetime import timedelta
from http.server import BaseHTTPRequestHandler

import pytest
import torch

import tensordict
from object_stores import Nginx, Proxy, Threaded, http_server
from tensordict import TensorDict
from tensordict.storage.remote import place_of

RETRY = {"max_retries": 2, "backoff": {"init_backoff": timedelta(milliseconds=1)}}


def answering(status, code, message, **headers):
    """Start a server that gives the same answer to every request."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()

    class Same(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_GET(self):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

    return Threaded(Same)


def options(endpoint, **others):
    return {
        "aws_access_key_id": "key", "aws_secret_access_key": "secret",
        "aws_region": "us-east-1", "aws_endpoint": endpoint, "allow_http": True,
        "retry_config": RETRY, **others,
    }  # fmt: skip


ANSWERS = [
    (403, "AccessDenied", "Access Denied", PermissionError, "credentials"),
    (403, "InvalidAccessKeyId", "does not exist", PermissionError, "InvalidAccessKeyId"),
    (403, "SignatureDoesNotMatch", "no match", PermissionError, "aws_secret_access_key"),
    (400, "ExpiredToken", "has expired.", PermissionError, "ExpiredToken.*credentials"),
    (400, "AuthorizationHeaderMalformed", "the region 'a' is wrong; expecting 'b'",
     OSError, "another region.*expecting 'b'.*aws_region"),
    (301, "PermanentRedirect", "elsewhere", OSError, "another region.*aws_region"),
    (404, "NoSuchBucket", "none", FileNotFoundError, "no bucket of s3://bucket"),
    (404, "NoSuchKey", "none", FileNotFoundError, "no save at s3://bucket/data"),
    (503, "SlowDown", "Reduce your rate.", OSError,
     r"status 503 .*: Reduce your rate, after 3 tries\. Check the network"),
    (500, "InternalError", "broken", OSError, "status 500 .*after 3 tries"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "code", "said", "kind", "match"), ANSWERS)
def test_an_answer_of_a_store_is_explained(status, code, said, kind, match):
    server = answering(status, code, said)
    try:
        with pytest.raises(kind, match=match) as caught:
            tensordict.load(
                "s3://bucket/data", storage_options=options(server.endpoint)
            )
        assert "s3://bucket/data" in str(caught.value)
        assert "\n" not in str(caught.value)
    finally:
        server.stop()


def test_a_server_that_is_down_is_named_with_the_range(tmp_path):
    TensorDict(a=torch.arange(100), batch_size=[100]).memmap(tmp_path / "data")
    server = Nginx(tmp_path)
    tmp_path.chmod(0o755)
    url = f"{server.endpoint}/data"
    try:
        remote = tensordict.load(url, storage_options={"retry_config": RETRY})
        with pytest.raises(FileNotFoundError, match=f"no save at {url}/none"):
            tensordict.load(f"{url}/none")
    finally:
        server.stop()
    match = rf"{url}/a\.memmap, bytes 24 to 31: .*after 3 tries"
    with pytest.raises(OSError, match=match):
        remote[3]
    with pytest.raises(OSError, match=r"meta\.json: .*after 3 tries"):
        tensordict.load(url, storage_options={"retry_config": RETRY})


def test_an_endpoint_without_tls_has_to_be_allowed():
    given = options("http://127.0.0.1:1", allow_http=False)
    with pytest.raises(OSError, match=r"s3://bucket/data.*allow_http"):
        tensordict.load("s3://bucket/data", storage_options=given)


@pytest.mark.parametrize(
    ("fault", "kind", "match"),
    [
        ("cut", OSError, r"a\.memmap, bytes 0 to 7: the answer broke off .* 3 tries"),
        ("reset", OSError, r"a\.memmap, bytes 0 to 7: .*after 3 tries"),
        ("503", OSError, r"a\.memmap, bytes 0 to 7: status 503 .*after 3 tries"),
        ("changed", RuntimeError, r"a\.memmap changed since the metadata was read"),
    ],
)
def test_a_network_that_always_fails(fault, kind, match, tmp_path):
    td = TensorDict(a=torch.arange(100), batch_size=[100])
    td.memmap(tmp_path / "data")
    server = http_server(tmp_path)
    proxy = Proxy(server.endpoint, rate=0, faults=(fault,))
    try:
        url = f"{proxy.endpoint}/data"
        remote = tensordict.load(url, storage_options={"retry_config": RETRY})
        assert remote[[3]]["a"].tolist() == [3]
        proxy.rate = 1.0
        with pytest.raises(kind, match=match):
            remote[0]
        with pytest.raises((OSError, RuntimeError, ValueError), match="a.memmap"):
            remote.to_tensordict()
        proxy.rate = 0.0
        assert (remote[[5, 6]] == td[[5, 6]]).all()
    finally:
        proxy.stop()
        server.stop()


def test_metadata_that_is_no_text_is_no_save():
    place_of("memory:///no-text").put("meta.json", bytes(range(128, 256)))
    with pytest.raises(ValueError, match="memory:///no-text is not a save"):
        tensordict.load("memory:///no-text")
