"""The laws that every container obeys, whatever it is made of.

A container joins by a line in ``CONTAINERS``: a function that makes one of batch size
``[2, 3]`` with the leaves ``a`` (``[2, 3]``) and ``("n", "b")`` (``[2, 3, 4]``).
"""

import pickle
import tempfile
import weakref

import pytest
import torch

from tensordict import TensorDict, TensorDictParams, lazy_stack


class UserTensorDict(TensorDict):
    """A user's subclass."""


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


def view():
    parent = torch.cat([dense(), dense()])
    return parent._get_sub_tensordict(slice(1, 3))


def lazy(dim):
    return lazy_stack(list(dense().unbind(dim)), dim)


def nested_lazy():
    td = dense()
    td["n"] = lazy_stack(list(td["n"].unbind(1)), 1)
    return td


def params():
    return TensorDictParams(dense(), no_convert=True)


CONTAINERS = {
    "dense": dense,
    "subclass": lambda: dense(UserTensorDict),
    "locked": lambda: dense().lock_(),
    "named": lambda: dense().refine_names("x", "y"),
    "mapped": mapped,
    "view": view,
    "params": params,
    "lazy": lambda: lazy(0),
    "lazy_last": lambda: lazy(1),
    "nested_lazy": nested_lazy,
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
    return td.to_tensordict().to_dict()


def alike(first, second):
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(
            alike(first[key], second[key]) for key in first
        )
    return first.shape == second.shape and bool((first == second).all())


def test_keys_and_batch_size(td):
    assert td.batch_size == torch.Size([2, 3])
    assert set(td.keys(True, True)) == {"a", ("n", "b")}
    assert ("n", "b") in td.keys(True)
    assert "missing" not in td.keys()


def test_get_agrees_with_items(td):
    for key, value in td.items(True, True):
        assert (td.get(key) == value).all()
        assert (td[key] == value).all()
    assert td.get("missing") is None
    with pytest.raises(KeyError):
        td["missing"]


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
        lambda td: td.flatten_keys("."),
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
    writable["z"] = values([2, 3, 2])
    writable["n", "y"] = values([2, 3])
    assert (writable["z"] == values([2, 3, 2])).all()
    assert (writable.get(("n", "y")) == values([2, 3])).all()


def test_what_is_written_in_place_is_read(td):
    td.update_(td.to_tensordict().apply(lambda leaf: leaf + 1))
    assert (td["a"] == values([2, 3]) + 1).all() or td["a"].min() >= 0
    td.set_("a", torch.zeros(2, 3))
    td.set_(("n", "b"), torch.zeros(2, 3, 4))
    assert all(not leaf.any() for leaf in td.values(True, True))


def test_what_is_written_at_an_index_is_read(td):
    td[0] = td[1].clone()
    assert (td["a"][0] == td["a"][1]).all()
    td[:, 1] = 5
    assert (td["n", "b"][:, 1] == 5).all()


def test_a_value_that_does_not_fit_changes_nothing(writable):
    before = plain(writable)
    with pytest.raises(RuntimeError):
        writable["a"] = torch.zeros(7)
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
        copy["z"] = torch.zeros(2, 3)
    copy.set_("a", torch.ones(2, 3))
    assert (copy["a"] == 1).all()


def test_a_pickle_is_the_same(td):
    other = pickle.loads(pickle.dumps(td))
    assert other.batch_size == td.batch_size
    assert alike(plain(other), plain(td))


def test_a_directory_is_the_same(td, tmp_path):
    td.memmap(tmp_path / "saved", copy_existing=True)
    other = TensorDict.load_memmap(tmp_path / "saved")
    assert alike(plain(other), plain(td))


def test_the_text_names_every_entry(td):
    text = repr(td)
    assert "a: " in text
    assert "batch_size=torch.Size([2, 3])" in text
