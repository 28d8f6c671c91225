"""Stores and their server: lost connections, passwords, TLS, and stores that are not there."""

import shutil
import socket
import subprocess

import pytest
import torch

from redis_server import RedisServer
from tensordict import TensorDict
from tensordict.store import LazyStackedTensorDictStore, TensorDictStore

redis = pytest.importorskip("redis")


def served(*options):
    server = RedisServer(*options)
    yield server
    server.stop()


@pytest.fixture
def server():
    yield from served()


@pytest.fixture(scope="module")
def secured():
    yield from served("--requirepass", "secret")


def test_a_lost_connection_is_opened_again(server):
    store = TensorDict(a=torch.zeros(2)).to_store(**server.address)
    client = redis.Redis(**server.address)
    client.client_kill_filter(_type="normal", skipme=True)
    assert store["a"].tolist() == [0.0, 0.0]
    client.client_kill_filter(_type="normal", skipme=True)
    store["a"] = torch.ones(2)
    client.client_kill_filter(_type="normal", skipme=True)
    store.rename_key_("a", "b")
    assert store["b"].tolist() == [1.0, 1.0]


def test_a_server_that_came_back_is_used(server):
    store = TensorDict(a=torch.zeros(2)).to_store(**server.address)
    server.kill()
    server.start()
    with pytest.raises(KeyError, match="a"):
        store["a"]
    store["a"] = torch.ones(2)
    assert store["a"].tolist() == [1.0, 1.0]


def test_a_server_that_is_gone_is_named(server):
    store = TensorDict(a=torch.zeros(2)).to_store(**server.address)
    server.kill()
    for use in (
        lambda: store["a"],
        lambda: store.set("a", torch.zeros(2)),
        lambda: store.add_(1),
        lambda: store.keys().__len__(),
        lambda: TensorDictStore(**server.address),
        lambda: TensorDictStore.from_store(td_id="x", **server.address),
    ):
        with pytest.raises(redis.ConnectionError, match=f"{server.socket} db=0"):
            use()


def test_an_address_where_nobody_listens_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(redis.ConnectionError, match=f"127.0.0.1:{port} db=3"):
            TensorDictStore(host="127.0.0.1", port=port, db=3)


def test_what_is_not_there_is_named(server):
    for cls in (TensorDictStore, LazyStackedTensorDictStore):
        with pytest.raises(KeyError, match="'nope'.*db=0.*'tensordict'"):
            cls.from_store(td_id="nope", **server.address)


def test_a_closed_store_says_how_to_open_it(server):
    store = TensorDict(a=torch.zeros(2)).to_store(td_id="mine", **server.address)
    store.close()
    store.close()
    with pytest.raises(RuntimeError, match=r"from_store\(td_id='mine'\)"):
        store["a"]
    again = TensorDictStore.from_store(td_id="mine", **server.address)
    assert again["a"].tolist() == [0.0, 0.0]


def test_a_password_is_asked_for(secured):
    store = TensorDict(a=torch.zeros(2)).to_store(password="secret", **secured.address)
    assert store["a"].sum() == 0
    for wrong in ({}, {"password": "wrong"}):
        with pytest.raises(redis.RedisError):
            TensorDictStore(**wrong, **secured.address)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_client_gives_the_address(asynchronous, secured):
    module = redis.asyncio if asynchronous else redis
    client = module.Redis(password="secret", **secured.address)
    store = TensorDictStore(client=client, batch_size=[2])
    store["a"] = torch.ones(2)
    found = TensorDictStore.from_store(client=client, td_id=store._td_id)
    assert found["a"].sum() == 2
    store.close()
    assert found["a"].sum() == 2


def test_a_client_that_decodes_is_refused(server):
    client = redis.Redis(decode_responses=True, **server.address)
    with pytest.raises(ValueError, match="decode_responses"):
        TensorDictStore(client=client)


def test_options_that_there_are_not_are_refused(server):
    with pytest.raises(TypeError, match="foo"):
        TensorDictStore(foo=1, **server.address)


def test_prefixes_and_databases_are_apart(server):
    first = TensorDictStore(td_id="x", prefix="one", **server.address)
    second = TensorDictStore(td_id="x", prefix="two", **server.address)
    third = TensorDictStore(td_id="x", prefix="one", db=1, **server.address)
    first["a"] = torch.zeros(1)
    assert list(second.keys()) == list(third.keys()) == []


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("d:a", ("SET", b"123")),
        ("d:a", ("DEL",)),
        ("m:a", ("HSET", "dtype", "torch.nonsense")),
        ("m:a", ("HSET", "dtype", "torch.zeros")),
        ("m:a", ("HDEL", "shape")),
        ("m:a", ("HSET", "shape", "[1, 2")),
        ("m:a", ("HSET", "shape", "[1152921504606846976]")),
    ],
    ids=str,
)
def test_damage_on_the_server_is_an_error(key, command, server):
    store = TensorDict(a=torch.zeros(2), b=torch.zeros(2)).to_store(**server.address)
    client = redis.Redis(**server.address)
    name, *rest = command
    client.execute_command(name, store._server.key(key), *rest)
    with pytest.raises((RuntimeError, ValueError)):
        store["a"]
    with pytest.raises((RuntimeError, ValueError)):
        store.to_tensordict()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_tls(certificate):
    cert, key = certificate
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--tls-port", str(port), "--bind", "127.0.0.1"]
    options += ["--tls-cert-file", str(cert), "--tls-key-file", str(key)]
    options += ["--tls-ca-cert-file", str(cert), "--tls-auth-clients", "no"]
    try:
        server = RedisServer(*options)
    except RuntimeError:
        pytest.skip("redis-server was built without TLS, or the port was taken")
    try:
        address = {"host": "127.0.0.1", "port": port}
        secure = {"ssl": True, "ssl_ca_certs": str(cert)}
        store = TensorDict(a=torch.ones(3)).to_store(**address, **secure)
        found = TensorDictStore.from_store(td_id=store._td_id, **address, **secure)
        assert found["a"].sum() == 3
        # A certificate that nobody vouches for.
        with pytest.raises(redis.ConnectionError, match=f"127.0.0.1:{port}"):
            TensorDictStore(**address, ssl=True)
    finally:
        server.stop()
