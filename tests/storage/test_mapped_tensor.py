"""MemoryMappedTensor: a tensor over a file, or over shared memory without a name."""

import copy
import gc
import io
import mmap
import multiprocessing
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensordict
from tensordict import MemoryMappedTensor, TensorDict
from tensordict.storage.tensors import anonymous
from tensordict.storage.tensors.anonymous import FileHandler


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "x.memmap")


def values() -> torch.Tensor:
    return torch.arange(24).view(2, 3, 4)


# Making --------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
def test_from_tensor(named, path):
    source = values().transpose(0, 2)
    x = MemoryMappedTensor.from_tensor(source, filename=path if named else None)
    assert type(x) is MemoryMappedTensor
    assert torch.equal(x, source)
    x[0] = -1
    assert source.min() == 0
    if named:
        assert x.filename == path
        again = MemoryMappedTensor.from_filename(path, torch.int64, source.shape)
        assert torch.equal(again, x)
    else:
        with pytest.raises(RuntimeError, match="no file associated"):
            _ = x.filename


def test_from_tensor_refuses(path, tmp_path):
    x = MemoryMappedTensor.from_tensor(values(), filename=path)
    assert MemoryMappedTensor.from_tensor(x, filename=path) is x
    with pytest.raises(RuntimeError, match="already exists"):
        MemoryMappedTensor.from_tensor(values(), filename=path)
    with pytest.raises(RuntimeError, match="already has a file associated"):
        MemoryMappedTensor.from_tensor(x, filename=path + "2")
    with pytest.raises(RuntimeError, match=r"requires_grad"):
        MemoryMappedTensor.from_tensor(torch.ones(2, requires_grad=True))
    with pytest.raises(TypeError, match="Convert input"):
        MemoryMappedTensor.from_tensor(np.ones(2))
    with pytest.raises(NotImplementedError):
        MemoryMappedTensor.from_tensor(torch.ones(2, device="meta"))
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(RuntimeError, match="symlink"):
        MemoryMappedTensor.from_tensor(
            values(), filename=tmp_path / "link", existsok=True
        )
    assert sorted(os.listdir(tmp_path)) == ["link", "x.memmap"]


def test_from_tensor_replaces_its_own_source(path):
    x = MemoryMappedTensor.from_tensor(values(), filename=path)
    flipped = torch.Tensor.flip(x, (0,))
    y = MemoryMappedTensor.from_tensor(flipped, filename=path, existsok=True)
    assert torch.equal(y, values().flip(0))
    assert torch.equal(x, values())


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("method", "arguments", "value"),
    [
        ("empty", ((2, 3),), 0),
        ("zeros", (2, 3), 0),
        ("ones", ([2, 3],), 1),
        ("full", ((2, 3), 7), 7),
    ],
)
def test_new_tensors(method, arguments, value, named, path):
    make = getattr(MemoryMappedTensor, method)
    filename = path if named else None
    x = make(*arguments, dtype=torch.int16, filename=filename)
    assert x.dtype == torch.int16
    assert x.tolist() == [[value] * 3] * 2
    if named:
        assert os.stat(path).st_size == 12
        with pytest.raises(RuntimeError, match="already exists"):
            make(*arguments, filename=path)
        like = getattr(MemoryMappedTensor, f"{method}_like")
        more = (7,) if method == "full" else ()
        y = like(x, *more, filename=path + "2")
        assert torch.equal(x, y)


def test_full_of_more_than_a_block(path):
    x = MemoryMappedTensor.full(
        (1 << 20) + 3, fill_value=3, dtype=torch.int16, filename=path
    )
    assert x.eq(3).all()
    assert os.stat(path).st_size == 2 * ((1 << 20) + 3)


def test_new_tensors_over_files_that_exist(path):
    MemoryMappedTensor.ones(3, filename=path)
    assert MemoryMappedTensor.empty(3, filename=path, existsok=True).eq(1).all()
    assert MemoryMappedTensor.zeros(3, filename=path, existsok=True).eq(0).all()


def test_new_tensors_refuse():
    with pytest.raises(TypeError, match="shape argument"):
        MemoryMappedTensor.empty()
    with pytest.raises(RuntimeError, match="Only CPU"):
        MemoryMappedTensor.zeros(3, device="meta")
    with pytest.raises(TypeError, match="fill_value"):
        MemoryMappedTensor.full((3,))


def test_constructor(path):
    tensor = torch.ones(3)
    assert MemoryMappedTensor(tensor).data_ptr() == tensor.data_ptr()
    x = MemoryMappedTensor(tensor, filename=path)
    y = MemoryMappedTensor(path, dtype=torch.float32, shape=(3,), index=0)
    x[0] = 4
    assert y == 4
    storage = MemoryMappedTensor(x.untyped_storage(), dtype=torch.float32, shape=(3,))
    assert storage.filename == path
    with pytest.raises(TypeError, match="Cannot pass new dtype"):
        MemoryMappedTensor(tensor, filename=path + "2", dtype=torch.int8)
    with pytest.raises(TypeError, match="required to map a file"):
        MemoryMappedTensor(path)
    with pytest.raises(ValueError, match="device must be cpu"):
        MemoryMappedTensor(tensor, device="meta")


def test_tensors_without_items(path):
    x = MemoryMappedTensor.empty((0, 3), filename=path)
    assert x.filename == path
    assert not os.path.exists(path)
    assert MemoryMappedTensor.empty((0, 3)).shape == (0, 3)
    assert pickle.loads(pickle.dumps(x)).shape == (0, 3)


def test_names_of_the_class():
    assert tensordict.MemmapTensor is MemoryMappedTensor
    assert MemoryMappedTensor.__module__ == "tensordict.memmap"
    with pytest.warns(DeprecationWarning, match="from_handler"):
        MemoryMappedTensor.from_handler(
            MemoryMappedTensor.ones(3)._handler, torch.float32, torch.Size([3])
        )
    with pytest.warns(DeprecationWarning, match="index"):
        assert MemoryMappedTensor.ones(3)[1].index == 1
    with pytest.warns(DeprecationWarning, match="parent_shape"):
        assert MemoryMappedTensor.ones(3)[1].parent_shape == (3,)


# Using ---------------------------------------------------------------------------------


def test_what_stays_mapped(path):
    x = MemoryMappedTensor.from_tensor(values(), filename=path)
    for view in (
        x[0],
        x[:, 1:],
        x[..., None],
        x[None],
        x.unbind(1)[2],
        x.split(2, -1)[1],
    ):
        assert type(view) is MemoryMappedTensor
        assert view.filename == path
    for other in (
        x[[0]],
        x[x > 3],
        x + 1,
        x.view(-1),
        x.clone(),
        x.detach(),
        x.float(),
    ):
        assert type(other) is torch.Tensor
    assert x.contiguous() is x.cpu() is x
    assert type(x.zero_()) is MemoryMappedTensor
    assert torch.stack([x, x]).shape == (2, 2, 3, 4)


def test_modes(path):
    MemoryMappedTensor.from_tensor(torch.zeros(3), filename=path)
    private = MemoryMappedTensor.from_filename(path, torch.float32, (3,), mode="r")
    private.fill_(1)
    shared = MemoryMappedTensor.from_filename(path, torch.float32, (3,), mode="r+")
    assert shared.eq(0).all()
    shared.fill_(2)
    assert MemoryMappedTensor.from_filename(path, torch.float32, (3,)).eq(2).all()
    assert private.eq(1).all()
    with pytest.raises(ValueError, match="mode must be"):
        MemoryMappedTensor.from_filename(path, torch.float32, (3,), mode="w")


def test_storages_know_their_file(path, tmp_path):
    x = MemoryMappedTensor.from_tensor(torch.arange(3.0), filename=path)
    storage = x.untyped_storage()
    y = MemoryMappedTensor.from_storage(storage, shape=(3,), dtype=torch.float32)
    assert y.filename == path
    with pytest.raises(RuntimeError, match="associated filename"):
        MemoryMappedTensor.from_storage(storage, filename=tmp_path / "other")


def test_memory_outlives_the_tensor_that_mapped_it(path):
    x = MemoryMappedTensor.from_tensor(torch.arange(1000.0), filename=path)
    part = x.view(10, 100)[3]
    os.unlink(path)
    del x
    assert part[0] == 300


# Pickling ------------------------------------------------------------------------------

PARTS = st.one_of(
    st.integers(-1, 0),
    st.builds(slice, st.none() | st.integers(-2, 2), st.none() | st.integers(-2, 4)),
    st.builds(slice, st.just(None), st.just(None), st.integers(1, 3)),
    st.none(),
    st.just(...),
)


@settings(max_examples=200, deadline=None)
@given(indices=st.lists(PARTS | st.tuples(PARTS) | st.tuples(PARTS, PARTS), max_size=4))
def test_pickled_views_come_back(indices, tmp_path_factory):
    """However a view was made, the file and one index give it again."""
    path = tmp_path_factory.getbasetemp() / "views.memmap"
    if not path.exists():
        MemoryMappedTensor.from_tensor(values(), filename=path)
    x = MemoryMappedTensor.from_filename(path, torch.int64, (2, 3, 4))
    for index in indices:
        try:
            x = x[index]
        except (IndexError, RuntimeError):
            break
    y = pickle.loads(pickle.dumps(x))
    assert torch.equal(x, y)
    assert x.shape == y.shape
    assert type(y) is MemoryMappedTensor


def test_pickles_hold_the_name_and_not_the_values(path):
    x = MemoryMappedTensor.from_tensor(torch.zeros(1 << 20), filename=path)
    for dump in (pickle.dumps(x), pickle.dumps(x[5:][0])):
        assert len(dump) < 1000
    y = pickle.loads(pickle.dumps(x))
    x[0] = 5
    assert y[0] == 5
    assert copy.copy(x).filename == path
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False).filename == path
    private = MemoryMappedTensor.from_filename(path, torch.float32, (3,), mode="r")
    assert pickle.loads(pickle.dumps(private))._mode == "r"


def test_pickles_of_release_0_15_3(path):
    """The exact call that the release pickles."""
    MemoryMappedTensor.from_tensor(values(), filename=path)
    pickled = (
        b"\x80\x04cbuiltins\ngetattr\n(ctensordict.memmap\nMemoryMappedTensor\n"
        b"V" + b"from_filename\ntR(V" + path.encode() + b"\nctorch\nint64\n"
        b"ctorch\nSize\n((K\x02K\x03K\x04ttRK\x01tR."
    )
    assert torch.equal(pickle.loads(pickled), values()[1])


# Other processes -----------------------------------------------------------------------


def add_one(queue, done) -> None:
    for tensor in iter(queue.get, None):
        if isinstance(tensor, TensorDict):
            tensor["a"].add_(1)
        else:
            tensor.add_(1)
        del tensor
        done.put(True)


@pytest.mark.filterwarnings("ignore:This process")
def test_other_processes_share_the_memory(path):
    context = multiprocessing.get_context("fork")
    queue, done = context.Queue(), context.Queue()
    process = context.Process(target=add_one, args=(queue, done))
    process.start()
    try:
        named = MemoryMappedTensor.from_tensor(torch.zeros(4), filename=path)
        nameless = MemoryMappedTensor.zeros(4)
        td = TensorDict({"a": torch.zeros(4)}, [4]).memmap_()
        for tensor in (named[1:], nameless, nameless[2:], td):
            queue.put(tensor)
            assert done.get(timeout=60)
        assert named.tolist() == [0, 1, 1, 1]
        assert nameless.tolist() == [1, 1, 2, 2]
        assert td["a"].tolist() == [1, 1, 1, 1]
    finally:
        queue.put(None)
        process.join(60)
    assert process.exitcode == 0


def test_views_that_are_plain_tensors_stay_shared(path):
    """Sending one does not cut its source off from the file."""
    named = MemoryMappedTensor.from_tensor(torch.zeros(2, 2), filename=path)
    pickled = ForkingPickler.dumps(named.view(-1)[1:])
    named.fill_(3)
    assert np.fromfile(path, dtype=np.float32).tolist() == [3] * 4
    view = pickle.loads(pickled)
    assert view.tolist() == [3] * 3
    view.fill_(4)
    assert named.tolist() == [[3, 4], [4, 4]]
    assert Path(path).stat().st_size == 16


def test_sharing_a_plain_view_keeps_the_file(path):
    named = MemoryMappedTensor.from_tensor(torch.zeros(4), filename=path)
    assert named.share_memory_() is named
    assert named.is_shared()
    named.fill_(1)
    assert np.fromfile(path, dtype=np.float32).tolist() == [1] * 4


def test_pickle_of_memory_without_a_name_has_the_values():
    tensor = MemoryMappedTensor.from_tensor(torch.arange(6.0).view(2, 3))
    for source in (tensor, tensor[1], MemoryMappedTensor(torch.ones(2))):
        loaded = pickle.loads(pickle.dumps(source))
        assert type(loaded) is MemoryMappedTensor
        assert torch.equal(loaded, source)
        loaded += 1
        assert not torch.equal(loaded, source)
        # A tensor that came back can be sent on.
        assert torch.equal(pickle.loads(pickle.dumps(loaded)), loaded)


def test_a_collection_mapped_without_a_path_is_pickled_and_saved_by_torch():
    parts = [torch.ones(2, 4), torch.ones(3, 5)]
    td = TensorDict(
        a=torch.arange(2.0),
        none=torch.zeros(2, 0),
        nested=torch.nested.nested_tensor(parts),
        text="x",
        batch_size=[2],
    ).memmap_()
    loaded = pickle.loads(pickle.dumps(td))
    assert loaded.is_memmap()
    assert loaded.is_locked
    assert type(loaded["a"]) is MemoryMappedTensor
    assert [part.shape for part in loaded["nested"].unbind()] == [(2, 4), (3, 5)]
    del td, parts
    source = TensorDict(a=torch.arange(2.0), text="x", batch_size=[2]).memmap_()
    file = io.BytesIO()
    torch.save(source, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded.is_memmap()
    # It is mapped again, so that processes can share it.
    assert loaded["a"]._handler is not None
    assert loaded["a"].tolist() == [0, 1]
    assert loaded["text"] == "x"


def test_a_safe_load_maps_no_file_that_a_pickle_names(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(8))

    class Named:
        def __reduce__(self):
            return MemoryMappedTensor, (str(tmp_path / "secret"),)

    file = io.BytesIO()
    torch.save(Named(), file)
    file.seek(0)
    with pytest.raises(TypeError, match="Only a plain tensor"):
        torch.load(file, weights_only=True)
    tensor = MemoryMappedTensor.from_tensor(torch.ones(2), filename=tmp_path / "x")
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="getattr"):
        torch.load(file, weights_only=True)


def test_copies_of_a_mapped_tensor(tmp_path):
    named = MemoryMappedTensor.from_tensor(torch.ones(2), filename=tmp_path / "x")
    nameless = MemoryMappedTensor.from_tensor(torch.ones(2))
    for tensor in (named, nameless, MemoryMappedTensor(torch.ones(2))):
        deep = copy.deepcopy(tensor)
        shallow = copy.copy(tensor)
        shallow += 1
        assert tensor.tolist() == [2, 2]
        assert type(shallow) is MemoryMappedTensor
        assert type(deep) is torch.Tensor
        assert deep.tolist() == [1, 1]
    pair = copy.deepcopy([named, named])
    assert pair[0] is pair[1]


def test_memory_that_could_not_be_had_closes_its_descriptor_once(monkeypatch):
    closed, close = [], os.close
    monkeypatch.setattr(os, "close", lambda fd: (closed.append(fd), close(fd)))
    monkeypatch.setattr(mmap, "mmap", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        FileHandler(8)
    # The error holds it until here.
    gc.collect()
    (fd,) = closed
    with pytest.raises(OSError):
        os.fstat(fd)
    monkeypatch.setattr(anonymous, "_open_nameless", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        FileHandler(8)
    gc.collect()
    assert closed == [fd]
