"""Record what release 0.15.3 writes to a Redis server, and reads of it.

``PYTHONPATH=/path/to/the/release:tests python \
tests/distributed/record_stores.py`` writes ``answers/stores.json``. With ``--read FILE``
the release reads what :mod:`test_store_release` has written, and checks it.
"""

import json
import sys
from pathlib import Path

import redis

import tensordict
from redis_server import RedisServer
from store_programs import PROGRAMS, bytes_on_server, content, load
from tensordict.store import LazyStackedTensorDictStore, TensorDictStore

ANSWERS = Path(__file__).parent / "answers" / "stores.json"


def record(server, client):
    """All keys of each program, and what reading them gives."""
    answers = {}
    for name, program in PROGRAMS.items():
        client.flushall()
        store = program({**server.address, "td_id": name})
        keys = bytes_on_server(client)
        answers[name] = {"keys": keys, "content": content(store)}
    return answers


def read(client, server, path):
    """Compare what is read of keys with what was read by who wrote them."""
    for name, answer in json.loads(Path(path).read_text()).items():
        load(client, answer["keys"])
        is_stack = f"tensordict:{{{name}}}:__type__" in answer["keys"]
        cls = LazyStackedTensorDictStore if is_stack else TensorDictStore
        found = content(cls.from_store(td_id=name, **server.address))
        assert found == answer["content"], (name, found, answer["content"])


if __name__ == "__main__":
    assert tensordict.__version__.startswith("0.15.3"), tensordict.__version__
    server = RedisServer()
    client = redis.Redis(unix_socket_path=server.socket)
    try:
        if sys.argv[1:2] == ["--read"]:
            read(client, server, sys.argv[2])
        else:
            ANSWERS.write_text(json.dumps(record(server, client), indent=1) + "\n")
    finally:
        server.stop()
