"""Programs that write stores, whose bytes on the server are recorded from release 0.15.3.

``python tests/distributed/record_stores.py`` under the release writes
``answers/stores.json``: for each program all keys that are then on the server. Each program
is given ``make``, which takes a class and gives the arguments of its server.
"""

import torch

from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    lazy_stack,
)
from tensordict.store import LazyStackedTensorDictStore, TensorDictStore


class Point(TensorClass):
    """A tensorclass that the release finds by its path, too."""

    x: torch.Tensor
    label: str = "origin"


def dtypes(address):
    """Entries of every dtype that both have."""
    store = TensorDictStore(batch_size=[2], **address)
    for dtype in (
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.float32, torch.float64, torch.bool, torch.complex64),
    ):
        store[str(dtype)[6:]] = torch.tensor([0, 1]).to(dtype)
    return store


def shapes(address):
    """Nested entries, empty ones, and ones without dims."""
    td = TensorDict(
        a=torch.arange(3),
        none=torch.zeros(3, 0),
        n=TensorDict(b=torch.ones(3, 2), m=TensorDict(c=torch.zeros(3))),
    )
    td = TensorDict(td.to_dict(), batch_size=[3])
    return TensorDictStore.from_tensordict(td, **address)


def scalars(address):
    """A store without batch dims."""
    return TensorDictStore.from_dict({"a": torch.tensor(3.0)}, **address)


def on_a_device(address):
    """A store with a device."""
    td = TensorDict(a=torch.zeros(2), batch_size=[2], device="cpu")
    return td.to_store(**address)


def values(address):
    """Non-tensor data, as JSON and as pickles."""
    store = TensorDictStore(batch_size=[2], **address)
    store["text"] = "hello"
    store["stack"] = NonTensorStack("a", "b")
    store["nothing"] = NonTensorData(None, batch_size=[2])
    store["complex"] = NonTensorData(1j, batch_size=[2])
    return store


def of_a_class(address):
    """A tensorclass."""
    point = Point(x=torch.arange(2.0), batch_size=[2])
    return TensorDictStore.from_tensordict(point, **address)


def from_schema(address):
    """Zeros that the server allocates."""
    schema = {"a": ([2], torch.uint8), ("n", "b"): ([], torch.float32)}
    return TensorDictStore.from_schema(schema, batch_size=[2], **address)


def changed(address):
    """Parts that were written, entries that were renamed and removed."""
    store = TensorDictStore(batch_size=[4], **address)
    store["a"] = torch.arange(4)
    store["n", "b"] = torch.zeros(4, 2)
    store["gone"] = torch.zeros(4)
    store[1] = TensorDict(a=torch.tensor(9), n=TensorDict(b=torch.ones(2)))
    store[torch.tensor([3, 0])] = TensorDict(a=torch.tensor([7, 8]), batch_size=[2])
    store.rename_key_("n", "m")
    del store["gone"]
    store.batch_size = [4]
    return store


def stack(address):
    """A lazy stack with entries of different shapes."""
    members = [
        TensorDict(x=torch.arange(3.0), y=torch.ones(2), n=TensorDict(z=torch.ones(1))),
        TensorDict(
            x=torch.arange(5.0), y=torch.zeros(2), n=TensorDict(z=torch.ones(1))
        ),
    ]
    store = TensorDictStore.from_tensordict(lazy_stack(members), **address)
    store[1]["x"] = torch.arange(5.0) * 2
    store[0]["new"] = torch.ones(3)
    return store


def stack_inside(address):
    """A stack along an inner dim, written as a whole and by member."""
    members = [TensorDict(x=torch.full((2, 3), i), batch_size=[2]) for i in range(2)]
    whole = LazyStackedTensorDict(*members, stack_dim=1)
    store = LazyStackedTensorDictStore.from_lazy_stack(whole, **address)
    store["y"] = torch.arange(4).reshape(2, 2)
    return store


def empty_stack(address):
    """A stack without entries."""
    return LazyStackedTensorDictStore(
        count=3, stack_dim=1, inner_batch_size=[2], **address
    )


PROGRAMS = {
    program.__name__: program
    for program in (
        *(dtypes, shapes, scalars, on_a_device, values, of_a_class, from_schema),
        *(changed, stack, stack_inside, empty_stack),
    )
}


def plain(value):
    """Describe the content of a store as JSON: dictionaries of lists."""
    if isinstance(value, torch.Tensor):
        if value.is_complex():
            value = torch.view_as_real(value)
        return value.tolist()
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        # The release leaves entries out whose value is None.
        pairs = sorted((key, item) for key, item in value.items() if item is not None)
        return {key: plain(item) for key, item in pairs}
    return value


def content(store):
    """Return what reading a store gives: of a stack the entries of each member."""
    if isinstance(store, LazyStackedTensorDictStore):
        if store._stack_dim == 0:
            members = [store[i].to_tensordict() for i in range(store._count)]
        else:
            members = [store[:, i].to_tensordict() for i in range(store._count)]
        return [plain(member.to_dict()) for member in members]
    return plain(store.to_tensordict().to_dict())


def bytes_on_server(client):
    """All keys of a server, as JSON has them."""
    found = {}
    for key in sorted(client.scan_iter("*")):
        kind = client.type(key)
        if kind == b"hash":
            fields = client.hgetall(key)
            value = {k.decode(): v.decode("latin-1") for k, v in sorted(fields.items())}
        elif kind == b"set":
            value = sorted(member.decode() for member in client.smembers(key))
        else:
            value = client.get(key).decode("latin-1")
        found[key.decode()] = value
    return found


def load(client, keys):
    """Write what was recorded of a server to another one."""
    client.flushall()
    for key, value in keys.items():
        if isinstance(value, dict):
            client.hset(key, mapping={k: v.encode("latin-1") for k, v in value.items()})
        elif isinstance(value, list):
            client.sadd(key, *value)
        else:
            client.set(key, value.encode("latin-1"))
