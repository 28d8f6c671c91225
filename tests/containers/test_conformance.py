"""The laws that every container obeys, whatever it is made of.

A container joins by a line in ``CONTAINERS``: a function that makes one of batch size
``[2, 3]`` with the leaves ``a`` (``[2, 3]``) and ``("n", "b")`` (``[2, 3, 4]``).
"""

import atexit
import functools
import pickle
import tempfile
import weakref

import pytest
import torch

from redis_server import RedisServer
from tensordict import (
    PersistentTensorDict,
    TensorClass,
    TensorDict,
    TensorDictParams,
    TypedTensorDict,
    is_tensorclass,
    lazy_stack,
    tensorclass,
)


class UserTensorDict(TensorDict):
    """A user's subclass."""


class Typed(TypedTensorDict):
    a: torch.Tensor
    n: TensorDict


class Inner(TensorClass):
    b: torch.Tensor
    y: torch.Tensor | None = None


class Outer(TensorClass):
    a: torch.Tensor
    n: Inner
    z: torch.Tensor | None = None


@tensorclass
class WithText:
    a: torch.Tensor
    n: TensorDict
    z: torch.Tensor | None = None
    text: str = "text"


@tensorclass(shadow=True)
class Shadowing:
    a: torch.Tensor
    n: Inner
    z: torch.Tensor | None = None
    names: torch.Tensor | None = None
    shape: torch.Tensor | None = None


def values(size, start=0):
    count = torch.Size(size).numel()
    return torch.arange(start, start + count, dtype=torch.float32).reshape(size)


def dense(kind=TensorDict):
    leaves = {"a": values([2, 3]), "n": {"b": values([2, 3, 4], 7)}}
    return kind(leaves, batch_size=[2, 3])


def mapped():
    # The directory goes with the collection, which its files outlive.
    directory = tempfile.TemporaryDirectory()
    td = dense().memmap_(directory.name)
    weakref.finalize(td, directory.cleanup)
    return td


def persistent(backend, source=None):
    pytest.importorskip({"h5": "h5py"}.get(backend, backend))
    directory = tempfile.TemporaryDirectory()
    path = f"{directory.name}/saved"
    source = dense() if source is None else source
    td = PersistentTensorDict.from_dict(source, path, backend=backend)
    weakref.finalize(td, directory.cleanup)
    return td


def view():
    parent = torch.cat([dense(), dense()])
    return parent._get_sub_tensordict(slice(1, 3))


def part_of_h5():
    return persistent("h5", torch.cat([dense(), dense()]))[1:3]


def lazy(dim):
    return lazy_stack(list(dense().unbind(dim)), dim)


def nested_lazy():
    td = dense()
    td["n"] = lazy_stack(list(td["n"].unbind(1)), 1)
    return td


def params():
    return TensorDictParams(dense(), no_convert=True)


def of_class(cls):
    inner = dense()["n"]
    if cls is not WithText:
        inner = Inner.from_tensordict(inner)
    return cls(a=values([2, 3]), n=inner, batch_size=[2, 3])


def holding():
    """A plain container of a tensorclass."""
    td = dense()
    td["n"] = Inner.from_tensordict(td["n"])
    return td


def store():
    return dense().to_store(**redis().address)


def lazy_store():
    return lazy(0).to_store(**redis().address)


def nested_store():
    """A nested collection of a store."""
    whole = TensorDict(inner=dense(), batch_size=[2, 3])
    return whole.to_store(**redis().address)["inner"]


@functools.cache
def redis():
    server = RedisServer()
    atexit.register(server.stop)
    return server


CONTAINERS = {
    "dense": dense,
    "subclass": lambda: dense(UserTensorDict),
    "locked": lambda: dense().lock_(),
    "named": lambda: dense().refine_names("x", "y"),
    "mapped": mapped,
    "h5": lambda: persistent("h5"),
    "zarr": lambda: persistent("zarr"),
    "part_of_h5": part_of_h5,
    "view": view,
    "params": params,
    "lazy": lambda: lazy(0),
    "lazy_last": lambda: lazy(1),
    "nested_lazy": nested_lazy,
    "typed": lambda: dense(Typed),
    "holding": holding,
    "tensorclass": lambda: of_class(Outer),
    "with_text": lambda: of_class(WithText),
    "shadowing": lambda: of_class(Shadowing),
    "locked_class": lambda: of_class(Outer).lock_(),
    "store": store,
    "nested_store": nested_store,
    "locked_store": lambda: store().lock_(),
    "named_store": lambda: dense().refine_names("x", "y").to_store(**redis().address),
    "lazy_store": lazy_store,
    "lazy_classes": lambda: lazy_stack(list(of_class(Outer).unbind(0))),
}


@pytest.fixture(params=CONTAINERS)
def td(request):
    return CONTAINERS[request.param]()


@pytest.fixture
def writable(td):
    if td.is_locked:
        pytest.skip("it is locked")
    return td


def plain(td):
    """What a container holds, as dictionaries of copies."""
    return td.to_tensordict().to_dict(retain_none=False)


def alike(first, second):
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(
            alike(first[key], second[key]) for key in first
        )
    if not isinstance(first, torch.Tensor):
        return first == second
    return first.shape == second.shape and bool((first == second).all())


def test_keys_and_batch_size(td):
    assert td.batch_size == torch.Size([2, 3])
    assert set(td.keys(True, True)) == {"a", ("n", "b")}
    assert ("n", "b") in td.keys(True)
    assert "missing" not in td.keys()


def test_get_agrees_with_items(td):
    for key, value in td.items(True, True):
        assert (td.get(key) == value).all()
    assert td.get("missing") is None
    # The fields of a tensorclass are attributes.
    with pytest.raises(ValueError if is_tensorclass(td) else KeyError):
        td["missing"]


def test_a_key_reads_what_get_reads(td):
    if is_tensorclass(td):
        assert (td.a == td.get("a")).all()
        assert (td.n.get("b") == td.get(("n", "b"))).all()
        return
    for key, value in td.items(True, True):
        assert (td[key] == value).all()


@pytest.mark.parametrize(
    "index",
    [
        0, -1, (0, 1), slice(1, None), (slice(None), 0), ..., None, (..., slice(0, 2)),
        torch.tensor([1, 0]), (slice(None), torch.tensor([[0, 2]])), [0, 1],
        torch.tensor([[True, False, True], [False, True, True]]),
    ],
    ids=str,
)  # fmt: skip
def test_an_index_is_that_of_each_leaf(td, index):
    found, expected = td[index], td.to_tensordict()[index]
    assert found.batch_size == expected.batch_size
    assert alike(plain(found), plain(expected))


@pytest.mark.parametrize(
    "change",
    [
        lambda td: td.reshape(-1),
        lambda td: td.expand(2, 2, 3),
        lambda td: td.gather(0, torch.zeros(1, 3, dtype=torch.int64)),
        lambda td: td.flatten(0, 1),
        lambda td: td.repeat(2, 1),
        lambda td: td.flip(0),
        lambda td: td.roll(1, 1),
        lambda td: td.split(1, 1)[2],
        lambda td: td.unbind(1)[1],
        lambda td: torch.stack([td, td], 1),
        lambda td: torch.cat([td, td], 1),
        lambda td: td.sum(0),
        lambda td: td.max(1)[0],
        lambda td: td + 1,
        lambda td: td * torch.tensor([[1.0], [2.0]]),
        lambda td: td + td.to_tensordict(),
        lambda td: td.to_tensordict() + td,
        lambda td: td > 3,
        lambda td: td.exp(),
        lambda td: td.double(),
        lambda td: td.clone(),
        lambda td: td.apply(lambda leaf: leaf - 1),
        lambda td: td.apply(lambda one, other: one + other, td.to_tensordict()),
        lambda td: td.select("n"),
        lambda td: td.exclude("a"),
        lambda td: td.to_tensordict().flatten_keys("."),
        lambda td: td.masked_fill(torch.tensor([[True], [False]]).expand(2, 3), 0),
        lambda td: td.where(torch.ones(2, 3, dtype=torch.bool), 0),
        lambda td: td.contiguous(),
        lambda td: torch.zeros_like(td),
        lambda td: td.empty(),
    ],
)
def test_an_operation_is_that_of_the_dense_container(td, change):
    expected = change(td.to_tensordict())
    found = change(td)
    assert found.batch_size == expected.batch_size
    assert alike(plain(found), plain(expected))


def test_an_operation_leaves_its_container_alone(td):
    before = plain(td)
    td.clone().apply_(lambda leaf: leaf * 0)
    (td + 1).zero_()
    assert alike(plain(td), before)


def test_what_is_set_is_read(writable):
    writable.set("z", values([2, 3, 2]))
    writable.set(("n", "y"), values([2, 3]))
    assert (writable.get("z") == values([2, 3, 2])).all()
    assert (writable.get(("n", "y")) == values([2, 3])).all()


def test_what_is_written_in_place_is_read(td):
    td.update_(td.to_tensordict().apply(lambda leaf: leaf + 1))
    assert (td.get("a") == values([2, 3]) + 1).all() or td.get("a").min() >= 0
    td.set_("a", torch.zeros(2, 3))
    td.set_(("n", "b"), torch.zeros(2, 3, 4))
    assert all(not leaf.any() for leaf in td.values(True, True))


def test_what_is_written_at_an_index_is_read(td):
    td[0] = td[1].clone()
    assert (td.get("a")[0] == td.get("a")[1]).all()
    td[:, 1] = td[:, 1] * 0 + 5
    assert (td.get(("n", "b"))[:, 1] == 5).all()


def test_a_value_that_does_not_fit_changes_nothing(writable):
    before = plain(writable)
    with pytest.raises(RuntimeError):
        writable.set("a", torch.zeros(7))
    with pytest.raises((RuntimeError, ValueError)):
        writable.update({"a": torch.zeros(2, 3), "z": torch.zeros(7)})
    assert alike(plain(writable), before)


def test_a_locked_container_takes_no_entry(td):
    copy = td.to_tensordict().lock_() if td.is_locked else td
    if not copy.is_locked:
        try:
            copy.lock_()
        except RuntimeError:
            pytest.skip("its lock is that of its parent")
    with pytest.raises(RuntimeError):
        copy.set("z", torch.zeros(2, 3))
    copy.set_("a", torch.ones(2, 3))
    assert (copy.get("a") == 1).all()


def test_a_pickle_is_the_same(td):
    other = pickle.loads(pickle.dumps(td))
    assert other.batch_size == td.batch_size
    assert alike(plain(other), plain(td))


def test_a_directory_is_the_same(td, tmp_path):
    td.memmap(tmp_path / "saved", copy_existing=True)
    other = TensorDict.load_memmap(tmp_path / "saved")
    assert is_tensorclass(other) == is_tensorclass(td)
    assert alike(plain(other), plain(td))


def test_the_text_names_every_entry(td):
    text = repr(td)
    if "Store(" in text:
        # One line for all of them, without asking the server for more.
        assert "keys=['a', 'n']" in text
        return
    assert ("a=" if is_tensorclass(td) else "a: ") in text
    assert "batch_size=torch.Size([2, 3])" in text
