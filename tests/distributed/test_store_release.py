"""Stores of release 0.15.3 are read, and what is written is what it writes."""

import json
import os
from pathlib import Path

import pytest

from redis_server import RedisServer
from store_programs import PROGRAMS, bytes_on_server, content, load
from tensordict import TensorDict, is_tensorclass
from tensordict.store import LazyStackedTensorDictStore, TensorDictStore

redis = pytest.importorskip("redis")

ANSWERS = json.loads(
    (Path(__file__).parent / "answers" / "stores.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def server():
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
def client(server):
    client = redis.Redis(unix_socket_path=server.socket)
    client.flushall()
    yield client
    client.close()


def opened(name, address):
    is_stack = f"tensordict:{{{name}}}:__type__" in ANSWERS[name]["keys"]
    cls = LazyStackedTensorDictStore if is_stack else TensorDictStore
    return cls.from_store(td_id=name, **address)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_store_of_the_release_is_read(name, server, client):
    load(client, ANSWERS[name]["keys"])
    store = opened(name, server.address)
    assert content(store) == ANSWERS[name]["content"]
    assert is_tensorclass(store) == (name == "of_a_class")


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_written_is_what_the_release_writes(name, server, client):
    store = PROGRAMS[name]({**server.address, "td_id": name})
    written = bytes_on_server(client)
    for key, value in written.items():
        if isinstance(value, dict) and key.endswith("stack"):
            # The release guesses the number of dims.
            value.pop("batch_size", None)
    recorded = ANSWERS[name]["keys"]
    for value in recorded.values():
        if isinstance(value, dict) and value.get("homogeneous") == "1":
            # The release leaves the shapes that members had before.
            value.pop("shapes", None)
    offsets = {key for key in recorded if key.endswith(":idx")} - written.keys()
    assert all(recorded[key[:-4]] for key in offsets)
    assert written == {k: v for k, v in recorded.items() if k not in offsets}
    assert content(store) == ANSWERS[name]["content"]


def test_a_store_of_the_release_is_written_to(server, client):
    load(client, ANSWERS["shapes"]["keys"])
    store = opened("shapes", server.address)
    store.add_(1)
    store["n", "new"] = store["a"]
    store[0] = TensorDict(a=store["a"][2])
    again = opened("shapes", server.address)
    assert again["a"].tolist() == [3, 2, 3]
    assert again["n", "new"].tolist() == [1, 2, 3]
    assert again["n", "b"].tolist() == [[2.0, 2.0]] * 3


def test_what_the_release_is_given_to_read(server, client):
    """Write the file that ``record_stores.py --read`` compares, where it is asked for."""
    path = os.environ.get("TENSORDICT_STORES_FOR_RELEASE")
    if path is None:
        pytest.skip("TENSORDICT_STORES_FOR_RELEASE names no file")
    written = {}
    for name, program in PROGRAMS.items():
        client.flushall()
        store = program({**server.address, "td_id": name})
        written[name] = {"keys": bytes_on_server(client), "content": content(store)}
    Path(path).write_text(json.dumps(written), encoding="utf-8")
