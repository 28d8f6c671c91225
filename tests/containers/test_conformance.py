"""Every collection obeys the laws of ``tensordict.testing``.

A collection joins by a line in ``COLLECTIONS``: a function that puts the entries of a
tensordict into one.
"""

import atexit
import functools
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
    lazy_stack,
    tensorclass,
)
from tensordict.testing import check_collection, laws


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


def of_kind(source, kind):
    return kind(source.to_dict(), batch_size=source.batch_size)


def mapped(source):
    # The directory goes with the collection, which its files outlive.
    directory = tempfile.TemporaryDirectory()
    td = source.memmap_(directory.name)
    weakref.finalize(td, directory.cleanup)
    return td


def persistent(source, backend):
    pytest.importorskip({"h5": "h5py"}.get(backend, backend))
    directory = tempfile.TemporaryDirectory()
    path = f"{directory.name}/saved"
    td = PersistentTensorDict.from_dict(source, path, backend=backend)
    weakref.finalize(td, directory.cleanup)
    return td


def between_zeros(source):
    return torch.cat([torch.zeros_like(source), source, torch.zeros_like(source)])


def view(source):
    return between_zeros(source)._get_sub_tensordict(slice(2, 4))


def part_of_h5(source):
    return persistent(between_zeros(source), "h5")[2:4]


def lazy(source, dim):
    return lazy_stack(list(source.unbind(dim)), dim)


def nested_lazy(source):
    source["n"] = lazy(source["n"], 1)
    return source


def of_class(source, cls):
    inner = source["n"] if cls is WithText else Inner.from_tensordict(source["n"])
    return cls(a=source["a"], n=inner, batch_size=source.batch_size)


def holding(source):
    """Put an instance of a tensorclass into a tensordict."""
    source["n"] = Inner.from_tensordict(source["n"])
    return source


def store(source):
    return source.to_store(**redis().address)


def nested_store(source):
    """Make a nested collection of a store."""
    return store(TensorDict(inner=source, batch_size=source.batch_size))["inner"]


def remote(source):
    stores = pytest.importorskip("obstore.store")
    directory = tempfile.TemporaryDirectory()
    source.save(f"{directory.name}/saved")
    td = type(source).load(stores.LocalStore(f"{directory.name}/saved"))
    weakref.finalize(td, directory.cleanup)
    return td


@functools.cache
def redis():
    server = RedisServer()
    atexit.register(server.stop)
    return server


COLLECTIONS = {
    "dense": lambda source: source,
    "subclass": lambda source: of_kind(source, UserTensorDict),
    "locked": lambda source: source.lock_(),
    "named": lambda source: source.refine_names("x", "y"),
    "mapped": mapped,
    "h5": lambda source: persistent(source, "h5"),
    "zarr": lambda source: persistent(source, "zarr"),
    "part_of_h5": part_of_h5,
    "view": view,
    "params": lambda source: TensorDictParams(source, no_convert=True),
    "lazy": lambda source: lazy(source, 0),
    "lazy_last": lambda source: lazy(source, 1),
    "nested_lazy": nested_lazy,
    "typed": lambda source: of_kind(source, Typed),
    "holding": holding,
    "tensorclass": lambda source: of_class(source, Outer),
    "with_text": lambda source: of_class(source, WithText),
    "shadowing": lambda source: of_class(source, Shadowing),
    "locked_class": lambda source: of_class(source, Outer).lock_(),
    "store": store,
    "nested_store": nested_store,
    "locked_store": lambda source: store(source).lock_(),
    "named_store": lambda source: store(source.refine_names("x", "y")),
    "lazy_store": lambda source: store(lazy(source, 0)),
    "lazy_classes": lambda source: lazy(of_class(source, Outer), 0),
}

# They take no value, and obey every other law.
READ_ONLY = {
    "remote": remote,
    "named_remote": lambda source: remote(source.refine_names("x", "y")),
    "lazy_remote": lambda source: remote(lazy(source, 0)),
    "nested_lazy_remote": lambda source: remote(nested_lazy(source)),
    "remote_class": lambda source: remote(of_class(source, Outer)),
    "holding_remote": lambda source: remote(holding(source)),
}

WRITES = {
    "an entry that is written in place is read",
    "rows that are written are read",
    "a locked collection takes no entry",
}


@pytest.mark.parametrize("kind", COLLECTIONS)
@pytest.mark.parametrize("law", laws(), ids=str)
def test_a_collection_obeys(kind, law):
    law(COLLECTIONS[kind])


@pytest.mark.parametrize("kind", READ_ONLY)
@pytest.mark.parametrize("law", laws(), ids=str)
def test_a_collection_that_is_read_obeys(kind, law):
    if str(law) not in WRITES:
        law(READ_ONLY[kind])
        return
    with pytest.raises(RuntimeError, match="cannot be written to|a copy with"):
        law(READ_ONLY[kind])


@pytest.mark.parametrize(
    ("name", "change", "broken"),
    [
        ("exp", lambda td: td + 1, "exp is that of a tensordict"),
        ("flip", lambda td, dim: td.clone(), "flip is that of a tensordict"),
        ("set_", lambda td, key, value: td, "written in place is read"),
        ("get", lambda td, key, default=None: td["a"], "get reads the entries"),
        ("__repr__", lambda td: "a", "the text names every entry"),
    ],
)
def test_a_broken_collection_does_not(name, change, broken, monkeypatch):
    monkeypatch.setattr(UserTensorDict, name, change)
    with pytest.raises(AssertionError, match=broken):
        check_collection(COLLECTIONS["subclass"])


def test_a_collection_that_takes_entries_despite_its_lock_does_not(monkeypatch):
    def put(td, key, value, **options):
        return TensorDict.set(td.unlock_(), key, value, **options)

    monkeypatch.setattr(UserTensorDict, "set", put)
    with pytest.raises(AssertionError, match="takes no entry"):
        check_collection(COLLECTIONS["subclass"])
