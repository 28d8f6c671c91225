"""Stores: what they keep, what one call writes at once, and how often they ask."""

import pickle
import threading

import pytest
import torch

from redis_server import RedisServer
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    UnbatchedTensor,
    lazy_stack,
)
from tensordict.store import LazyStackedTensorDictStore, TensorDictStore

redis = pytest.importorskip("redis")


class Point(TensorClass):
    x: torch.Tensor
    label: str = "origin"


@pytest.fixture(scope="module")
def server():
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
def address(server):
    return server.address


@pytest.fixture
def messages(monkeypatch):
    """The commands of each message that is sent to a server, from now on."""
    sent = []
    send = redis.connection.AbstractConnection.send_packed_command

    def counted(self, command, *args, **kwargs):
        sent.append(b"".join(map(bytes, command)))
        return send(self, command, *args, **kwargs)

    monkeypatch.setattr(
        redis.connection.AbstractConnection, "send_packed_command", counted
    )
    return sent


def many(size):
    return TensorDict(
        {f"leaf{i:03}": torch.full((2, 128), i) for i in range(size)}, batch_size=[2]
    )


def test_100_leaves_are_written_and_read_in_one_message_each(address, messages):
    store = TensorDictStore(batch_size=[2], **address)
    store["first"] = torch.zeros(2)
    del messages[:]
    store.update(many(100))
    assert len(messages) == 1
    del messages[:]
    found = store.to_tensordict()
    assert len(messages) == 1
    assert (found.exclude("first") == many(100)).all()
    del messages[:]
    store.update_(many(100))
    store.zero_()
    # One of them is read before it is written.
    assert len(messages) == 3


def test_a_collection_is_uploaded_in_one_message(address, messages):
    # A connection that is there says hello no more.
    client = redis.Redis(**address)
    client.ping()
    del messages[:]
    many(100).to_store(client=client)
    lazy_stack(list(many(100))).to_store(client=client)
    assert len(messages) == 2


def test_an_entry_is_read_in_one_message_and_alone(address, messages):
    store = many(100).to_store(**address)
    del messages[:]
    assert store["leaf007"].sum() == 7 * 256
    assert store.get_at("leaf007", 0).shape == (128,)
    assert store[0]["leaf007"].shape == (128,)
    store.set_at_("leaf007", torch.zeros(128), 1)
    store[1] = many(1)[0]
    assert len(messages) == 5
    assert b"leaf008" not in messages[0].replace(b"__", b"")


def test_only_the_bytes_of_an_index_are_sent(address, messages):
    store = TensorDict(a=torch.zeros(1000, 100), batch_size=[1000]).to_store(**address)
    del messages[:]
    store[17] = TensorDict(a=torch.ones(100))
    store.set_at_("a", torch.full((2, 100), 5.0), torch.tensor([999, 3]))
    assert max(map(len, messages)) < 3000
    found = store["a"]
    assert found[17].sum() == 100
    assert found[[3, 999]].sum() == 1000
    assert found.sum() == 1100


@pytest.mark.parametrize(
    "index",
    [
        *(0, -1, (1, 2), slice(1, None), (slice(None), 0), None, slice(None, None, 2)),
        *([0, 1], torch.tensor([1, 0, 1]), (..., -1), (torch.tensor([2, 0]), slice(1))),
        *(torch.tensor([True, False, True, False]), slice(0, 0)),
        *(torch.tensor([], dtype=torch.int64), torch.zeros(4, 3, dtype=torch.bool)),
    ],
    ids=str,
)
def test_an_index_reads_and_writes_what_it_means(index, address):
    local = TensorDict(
        a=torch.arange(24.0).reshape(4, 3, 2),
        n=TensorDict(b=torch.arange(12).reshape(4, 3), batch_size=[4, 3]),
        t=NonTensorData("text", batch_size=[4, 3]),
        empty=torch.zeros(4, 3, 0),
        batch_size=[4, 3],
    )
    store = local.to_store(**address)
    found, expected = store[index], local[index]
    assert found.batch_size == expected.batch_size
    assert (found == expected).all()
    assert found.get("t").batch_size == expected.batch_size
    value = expected.exclude("t") + 100
    local[index] = value
    store[index] = value
    assert (store.to_tensordict() == local).all()


def test_an_index_that_is_wrong_is_an_error(address):
    store = many(2).to_store(**address)
    with pytest.raises(IndexError):
        store[5]
    with pytest.raises(IndexError):
        store[0, 0]
    with pytest.raises(RuntimeError):
        store[0] = TensorDict(leaf000=torch.zeros(3))
    assert (store.to_tensordict() == many(2)).all()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        torch.complex128,
        torch.float8_e4m3fn,
        torch.uint16,
        torch.bool,
    ],
    ids=str,
)
def test_every_dtype_is_kept(dtype, address):
    value = torch.tensor([0, 1, 1]).to(dtype)
    store = TensorDict(a=value, batch_size=[3]).to_store(**address)
    assert store["a"].dtype == dtype
    found = store["a"].contiguous().view(torch.uint8)
    assert torch.equal(found, value.view(torch.uint8))


@pytest.mark.parametrize(
    "value",
    ["text", "ü\ud800", None, 1.5, {"a": [1, {"b": None}]}, {1: 2}, (1, "a"), 1 << 80],
    ids=repr,
)
def test_values_are_given_back_with_their_types(value, address):
    store = TensorDictStore(batch_size=[2], **address)
    store["a"] = NonTensorData(value, batch_size=[2])
    found = TensorDictStore.from_store(td_id=store._td_id, **address).get("a")
    assert found.data == value
    assert type(found.data) is type(value)
    assert found.batch_size == (2,)


def test_stacks_of_values_keep_their_dims(address):
    rows = NonTensorStack.from_list([["a", "b", "c"], ["d", "e", {"f": 1}]])
    store = TensorDict(s=rows, batch_size=[2]).to_store(**address)
    assert store.get("s").batch_size == (2, 3)
    assert store.get("s").tolist() == rows.tolist()
    store[1] = TensorDict(s=NonTensorStack("x", "y", 1j))
    assert store[1]["s"] == ["x", "y", 1j]
    assert store[0]["s"] == ["a", "b", "c"]


def test_pickles_are_refused_if_asked(address):
    store = TensorDictStore(**address)
    store["a"] = NonTensorData(1j)
    again = TensorDictStore.from_store(
        td_id=store._td_id, allow_pickle=False, **address
    )
    with pytest.raises(RuntimeError, match="'a'.*allow_pickle=False"):
        again.get("a")


def test_unbatched_tensors_stay_what_they_are(address):
    store = TensorDictStore(batch_size=[3], **address)
    store["u"] = UnbatchedTensor(torch.arange(7))
    assert isinstance(store.get("u"), UnbatchedTensor)
    assert store[1].get("u").data.shape == (7,)


def test_batch_sizes_names_and_empty_collections_are_kept(address):
    local = TensorDict(
        n=TensorDict(b=torch.zeros(3, 2), batch_size=[3, 2], names=["x", "y"]),
        e=TensorDict(batch_size=[3]),
        batch_size=[3],
        names=["x"],
    )
    store = TensorDictStore.from_store(
        td_id=local.to_store(**address)._td_id, **address
    )
    assert store.names == ["x"]
    assert store["n"].batch_size == (3, 2)
    assert store["n"].names == ["x", "y"]
    assert store["e"].batch_size == (3,)
    assert set(store.keys()) == {"n", "e"}
    del store["e"]
    store["n"] = TensorDict(c=torch.zeros(3), batch_size=[3])
    again = TensorDictStore.from_store(td_id=store._td_id, **address)
    assert set(again.keys(True)) == {"n", ("n", "c")}
    assert again["n"].batch_size == (3,)


def test_nested_collections_read_and_write_the_server(address):
    store = TensorDict(n=TensorDict(b=torch.zeros(3)), batch_size=[]).to_store(
        **address
    )
    nested = store["n"]
    nested["c"] = torch.ones(2)
    nested["m", "d"] = torch.ones(1)
    nested.add_(1)
    assert store["n", "m", "d"].tolist() == [2.0]
    assert store["n", "b"].tolist() == [1.0, 1.0, 1.0]
    nested["m"].clear_redis()
    assert set(store.keys(True, True)) == {("n", "b"), ("n", "c")}


def test_a_lock_holds_for_what_is_nested(address):
    store = TensorDict(n=TensorDict(b=torch.zeros(3))).to_store(**address).lock_()
    nested = store["n"]
    assert nested.is_locked
    with pytest.raises(RuntimeError, match="locked"):
        nested["new"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match="locked"):
        store.update({"n": {"new": torch.zeros(1)}})
    nested.set_("b", torch.ones(3))
    store.unlock_()
    assert not nested.is_locked
    nested["new"] = torch.zeros(1)


def test_a_part_of_a_store_writes_through(address):
    store = many(2).to_store(**address)
    part = store._get_sub_tensordict(0)
    part.zero_()
    assert store["leaf001"][0].sum() == 0
    assert store["leaf001"][1].sum() == 128


def test_an_update_that_fails_writes_nothing(address):
    store = many(2).to_store(**address)
    with pytest.raises(RuntimeError):
        store.update({"leaf000": torch.zeros(2), "new": torch.zeros(3)})
    with pytest.raises(RuntimeError):
        store.update_({"leaf000": torch.zeros(2, 128), "leaf001": torch.zeros(9)})
    with pytest.raises(TypeError, match="layout"):
        store["s"] = torch.eye(2).to_sparse()
    assert (store.to_tensordict() == many(2)).all()


def test_a_reader_sees_all_of_an_update_or_none(address):
    names = [f"k{i}" for i in range(50)]
    store = TensorDict({name: torch.zeros(8) for name in names}).to_store(**address)
    done = threading.Event()

    def write():
        writer = TensorDictStore.from_store(td_id=store._td_id, **address)
        for number in range(1, 30):
            writer.update_({name: torch.full((8,), number) for name in names})
            writer.update({name: torch.full((8,), float(number)) for name in names})
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        found = torch.stack(list(store.to_tensordict().values()))
        assert found.unique().numel() == 1
    thread.join()


def test_what_another_process_changes_is_seen(address):
    store = TensorDict(a=torch.zeros(4), batch_size=[4]).to_store(**address)
    other = TensorDictStore.from_store(td_id=store._td_id, **address)
    other["a"]
    # There are as many bytes as before: only the description tells them apart.
    store["a"] = torch.arange(4, dtype=torch.int32)
    assert other["a"].tolist() == [0, 1, 2, 3]
    store["a"] = torch.zeros(4, 2, dtype=torch.int64)
    assert other[1]["a"].tolist() == [0, 0]
    store["a"] = torch.arange(4.0)
    other[1] = TensorDict(a=torch.tensor(9))
    assert store["a"].tolist() == [0.0, 9.0, 2.0, 3.0]
    store["b"] = torch.ones(4)
    other.set_("b", torch.zeros(4))
    assert sorted(other.keys()) == ["a", "b"]
    del store["b"]
    assert "b" not in other.keys()
    with pytest.raises(KeyError):
        other["b"]


def test_without_metadata_in_the_process_all_is_the_same(address):
    store = many(3).to_store(cache_metadata=False, **address)
    store["leaf001"] = torch.zeros(2)
    store[0] = TensorDict(leaf001=torch.tensor(5.0))
    assert store["leaf001"].tolist() == [5.0, 0.0]
    assert len(store.to_tensordict().keys()) == 3


def test_keys_are_parts_between_dots(address):
    store = TensorDictStore(**address)
    store["layer.weight"] = torch.ones(2)
    assert store["layer", "weight"].sum() == 2
    assert store["layer.weight"].sum() == 2
    with pytest.raises(KeyError, match="has an empty part"):
        store[""] = torch.ones(2)
    with pytest.raises(KeyError, match="has an empty part"):
        store["a..b"] = torch.ones(2)


def test_renaming_replaces_what_is_there(address):
    store = TensorDict(
        a=torch.zeros(2), n=TensorDict(b=torch.ones(3), m=TensorDict(c=torch.ones(1)))
    ).to_store(**address)
    store.rename_key_("n", "a")
    assert set(store.keys(True, True)) == {("a", "b"), ("a", "m", "c")}
    store.rename_key_(("a", "m"), "m")
    assert set(store.keys(True, True)) == {("a", "b"), ("m", "c")}
    assert store.rename_key_("missing", "x") is store
    with pytest.raises(KeyError):
        store.rename_key_("a", "m", safe=True)


def test_a_tensorclass_is_given_back(address):
    point = Point(x=torch.arange(2.0), batch_size=[2])
    assert isinstance(point.to_store(**address), Point)
    store = TensorDictStore.from_tensordict(point, **address)
    assert isinstance(store, TensorDictStore)
    found = TensorDictStore.from_store(td_id=store._td_id, **address)
    assert isinstance(found, Point)
    assert found.label == "origin"
    found.x = torch.ones(2)
    assert store["x"].tolist() == [1.0, 1.0]
    other = TensorDictStore.from_store(
        td_id=store._td_id, tensorclass_cls=Point, **address
    )
    assert isinstance(other, Point)
    with pytest.raises(TypeError, match="not a tensorclass"):
        TensorDictStore.from_store(
            td_id=store._td_id, tensorclass_cls="builtins.dict", **address
        )
    with pytest.raises(ImportError, match="tensorclass_cls="):
        TensorDictStore.from_store(
            td_id=store._td_id, tensorclass_cls="missing.Class", **address
        )


def test_from_schema_makes_zeros_on_the_server(address, messages):
    schema = {"a": ([100, 100], torch.float32), ("n", "b"): ([], torch.bool)}
    store = TensorDict.from_schema(schema, batch_size=[10], storage="redis", **address)
    assert max(map(len, messages)) < 2000
    assert store["a"].shape == (10, 100, 100)
    assert not store["n", "b"].any()
    with pytest.raises(TypeError, match="'x'"):
        TensorDictStore.from_schema({"x": 3}, **address)


def test_copies_are_stores_of_their_own(address):
    store = many(2).to_store(**address)
    copy, same = store.clone(), store.clone(False)
    assert copy._td_id != store._td_id == same._td_id
    store.zero_()
    assert same["leaf001"].sum() == 0
    assert copy["leaf001"].sum() == 256


@pytest.mark.parametrize("locked", [False, True])
def test_a_pickle_opens_the_store_again(locked, address):
    store = many(2).to_store(**address)
    if locked:
        store.lock_()
    found = pickle.loads(pickle.dumps(store))
    assert found.is_locked == locked
    store.fill_("leaf001", 7)
    assert found["leaf001"].unique().tolist() == [7]


def test_the_device_is_where_tensors_are_read_to(address):
    store = TensorDictStore.from_tensordict(many(1), device="cpu", **address)
    assert store.device == torch.device("cpu")
    again = TensorDictStore.from_store(td_id=store._td_id, **address)
    assert again.device == torch.device("cpu")
    again.clear_device_()
    assert TensorDictStore.from_store(td_id=store._td_id, **address).device is None


def test_what_is_refused_says_what_to_do(address):
    store = many(1).to_store(**address)
    for refused in (
        lambda: store.view(-1),
        lambda: store.unsqueeze(0),
        lambda: store.permute(0),
        lambda: store.memmap_(),
        lambda: store.pin_memory(),
        lambda: store.make_memmap("a", [2]),
    ):
        with pytest.raises(RuntimeError, match="TensorDictStore"):
            refused()
    for refused in (
        lambda: store.share_memory_(),
        lambda: store.select("leaf000", inplace=True),
    ):
        with pytest.raises(NotImplementedError, match="to_tensordict"):
            refused()
    with pytest.raises(ValueError, match="TensorDictStore"):
        store.flatten_keys(inplace=True)


def test_clearing_leaves_nothing(address, server):
    store = TensorDict(n=TensorDict(batch_size=[]), a=torch.zeros(2)).to_store(
        **address
    )
    other = lazy_stack([TensorDict(x=torch.zeros(i + 1)) for i in range(2)])
    other = other.to_store(**address)
    store.clear_redis()
    other.clear_redis()
    client = redis.Redis(**address)
    for each in (store, other):
        assert not list(client.scan_iter(f"*{each._td_id}*"))
    store["a"] = torch.ones(2)
    assert store["a"].sum() == 2


# Stacks ----------------------------------------------------------------------------------


def ragged(address):
    members = [
        TensorDict(x=torch.arange(float(i + 2)), y=torch.ones(2), t=f"text{i}")
        for i in range(3)
    ]
    return lazy_stack(members).to_store(**address)


def test_members_are_views(address):
    store = ragged(address)
    assert [store[i]["x"].shape[0] for i in range(3)] == [2, 3, 4]
    member = store[1]
    member["x"] = torch.ones(3)
    member.update({"y": torch.zeros(2)})
    member["t"] = "new"
    member.add_(1)
    assert store[1]["x"].tolist() == [2.0, 2.0, 2.0]
    assert store[1]["y"].tolist() == [1.0, 1.0]
    assert [store[i]["t"] for i in range(3)] == ["text0", "new", "text2"]
    assert store[0]["y"].tolist() == [1.0, 1.0]
    store[-1] = TensorDict(x=torch.zeros(4))
    assert store[2]["x"].sum() == 0
    with pytest.raises(RuntimeError, match="delete"):
        del member["x"]
    with pytest.raises(RuntimeError):
        member["x"] = torch.zeros(9)
    with pytest.raises(IndexError):
        store[3]


def test_a_new_entry_of_a_member_is_zero_in_the_others(address):
    store = ragged(address)
    store[1]["new"] = torch.ones(4)
    assert store["new"].sum(-1).tolist() == [0.0, 4.0, 0.0]
    store.lock_()
    store[1]["new"] = torch.zeros(4)
    with pytest.raises(RuntimeError, match="locked"):
        store[1]["other"] = torch.zeros(4)


def test_members_of_different_shapes_are_no_tensor(address):
    store = ragged(address)
    with pytest.raises(RuntimeError, match="'x'.*store"):
        store["x"]
    assert isinstance(store + 1, LazyStackedTensorDict)
    assert (store + 1)[2]["x"].tolist() == [1.0, 2.0, 3.0, 4.0]
    store.apply_(lambda leaf: leaf * 2)
    assert store[2]["x"].tolist() == [0.0, 2.0, 4.0, 6.0]
    store.zero_()
    assert store[2]["x"].sum() == 0


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_stack_along_any_dim(dim, address):
    local = TensorDict(
        a=torch.arange(24).reshape(2, 3, 4),
        n=TensorDict(b=torch.zeros(2, 3, 4, 5), batch_size=[2, 3, 4]),
        batch_size=[2, 3, 4],
    )
    stack = LazyStackedTensorDict(*local.unbind(dim), stack_dim=dim)
    store = stack.to_store(**address)
    assert store.batch_size == (2, 3, 4)
    assert (store.to_tensordict() == local).all()
    index = (slice(None),) * dim + (1,)
    assert (store[index].to_tensordict() == local[index]).all()
    store[index] = local[index] + 5
    local[index] = local[index] + 5
    store["n", "c"] = torch.ones(2, 3, 4)
    local["n", "c"] = torch.ones(2, 3, 4)
    assert (store.to_tensordict() == local).all()
    again = LazyStackedTensorDictStore.from_store(td_id=store._td_id, **address)
    assert (again.to_tensordict() == local).all()
    assert (pickle.loads(pickle.dumps(again)).clone().to_tensordict() == local).all()


def test_stacks_that_would_lose_something_are_refused(address):
    one, other = TensorDict(a=torch.zeros(1)), TensorDict(a=torch.zeros(1), b="text")
    with pytest.raises(RuntimeError, match="'b'"):
        lazy_stack([one, other]).to_store(**address)
    with pytest.raises(TypeError, match="int64"):
        lazy_stack([one, one.to(torch.int64)]).to_store(**address)
    with pytest.raises(TypeError, match="Expected LazyStackedTensorDict"):
        LazyStackedTensorDictStore.from_lazy_stack(one, **address)
    with pytest.raises(NotImplementedError, match="from_lazy_stack"):
        LazyStackedTensorDictStore.from_dict({}, **address)


def test_renaming_and_removing_entries_of_a_stack(address):
    store = ragged(address)
    store.rename_key_("x", ("n", "x"))
    assert [store[i]["n", "x"].shape[0] for i in range(3)] == [2, 3, 4]
    del store["n"]
    assert set(store.keys()) == {"t", "y"}
    client = redis.Redis(**address)
    assert not list(client.scan_iter(f"*{store._td_id}*:idx"))
