"""Collections in files of HDF5 and Zarr: what both have."""

import copy
import gc
import io
import os
import pickle
import sys
import weakref
from multiprocessing import context
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from separate_process import check_separately
from tensordict import (
    NonTensorStack,
    PersistentTensorDict,
    TensorClass,
    TensorDict,
    TensorDictParams,
    UnbatchedTensor,
    from_h5,
    from_zarr,
    lazy_stack,
)

LIBRARIES = {"h5": "h5py", "zarr": "zarr"}
OPENERS = {"h5": from_h5, "zarr": from_zarr}
KINDS = {"h5": "HDF5", "zarr": "Zarr"}


@pytest.fixture(params=LIBRARIES)
def backend(request):
    pytest.importorskip(LIBRARIES[request.param])
    return request.param


@pytest.fixture
def path(backend, tmp_path):
    return str(tmp_path / f"data.{backend}")


@pytest.fixture
def opened(backend):
    return OPENERS[backend]


def some(rows=6):
    return TensorDict(
        a=torch.arange(rows * 4.0).reshape(rows, 4),
        n=TensorDict(b=torch.arange(rows), batch_size=[rows]),
        batch_size=[rows],
    )


def write(td, path, backend, **kwargs):
    return getattr(td, f"to_{backend}")(path, **kwargs)


def same(first, second):
    assert first.batch_size == second.batch_size
    first, second = first.to_dict(), second.to_dict()
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def reads(monkeypatch, backend):
    """The number of elements that each read of an array gave."""
    from tensordict.storage import arrays

    counts = []
    module = arrays.backend_of(backend).__module__
    kind = getattr(
        sys.modules[module], {"h5": "Hdf5Array", "zarr": "ZarrArray"}[backend]
    )
    for name in ("read", "read_rows"):
        original = getattr(kind, name)

        def counted(self, *args, original=original, name=name):
            data = original(self, *args)
            if name == "read_rows" or not any(
                frame == "read_rows" for frame in _callers()
            ):
                counts.append(data.size)
            return data

        monkeypatch.setattr(kind, name, counted)
    return counts


def _callers():
    frame = sys._getframe(2)
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


# Round trips -----------------------------------------------------------------------


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
]  # fmt: skip


SHAPES = [(), (3,), (3, 0), (0,), (2, 3)]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_tensors_come_back_as_they_were(path, backend, opened):
    td = TensorDict()
    for dtype in DTYPES:
        for shape in SHAPES:
            leaf = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
            td[str(dtype), str(shape)] = leaf
    odd = [float("nan"), float("-inf"), -0.0]
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        td[str(dtype), "odd"] = torch.tensor(odd, dtype=dtype)
    write(td, path, backend).close()
    with opened(path, batch_size=[]) as found:
        for key, leaf in td.items(True, True):
            stored = found[key]
            assert stored.dtype is leaf.dtype
            assert stored.shape == leaf.shape
            if leaf.dtype in {torch.bfloat16, torch.complex32}:
                stored, leaf = (each.to(torch.complex64) for each in (stored, leaf))
                torch.testing.assert_close(stored, leaf, rtol=0, atol=0, equal_nan=True)
            else:
                assert stored.numpy().tobytes() == leaf.numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_a_dtype_that_files_lack_is_refused_by_its_key(path, backend, dtype):
    td = TensorDict(n={"a": torch.zeros(3).to(dtype)})
    with pytest.raises(TypeError, match=r"\('n', 'a'\).*float8.*" + KINDS[backend]):
        write(td, path, backend)
    assert not os.path.exists(path)


@pytest.mark.parametrize(
    "leaf",
    [
        torch.eye(2).to_sparse(),
        torch.nested.nested_tensor(
            [torch.zeros(1), torch.zeros(2)], layout=torch.jagged
        ),
    ],
    ids=["sparse", "jagged"],
)
def test_a_layout_that_files_lack_is_refused_by_its_key(path, backend, leaf):
    with pytest.raises(TypeError, match="'a'"):
        write(TensorDict(a=leaf), path, backend)


def test_a_tensor_with_history_is_refused_by_its_key(path, backend):
    params = TensorDictParams(TensorDict(w=torch.zeros(2)))
    with pytest.raises(RuntimeError, match="requires_grad=True. The entry 'w'"):
        write(params, path, backend)
    write(params.data, path, backend).close()


def test_parts_with_gaps_are_written(path, backend):
    whole = torch.arange(24).reshape(4, 6)
    td = TensorDict(
        a=whole.t(), b=whole[:, ::2], c=whole[:, :1].expand(4, 6),
        d=torch.ones(2, dtype=torch.complex64).conj() * 1j,
    )  # fmt: skip
    with write(td, path, backend) as found:
        same(found, td)


def test_sizes_and_names_are_kept(path, backend, opened):
    td = TensorDict(
        a=torch.zeros(2, 3, 4),
        n=TensorDict(b=torch.zeros(2, 3, 5), batch_size=[2, 3, 5]),
        e=TensorDict(batch_size=[2, 3]),
        batch_size=[2, 3],
        names=["time", None],
    )
    write(td, path, backend).close()
    with opened(path) as found:
        assert found.batch_size == (2, 3)
        assert found.names == ["time", None]
        assert found["n"].batch_size == (2, 3, 5)
        assert found["n"].names == ["time", None, None]
        assert found["e"].batch_size == (2, 3)
        same(found, td)


VALUES = {
    "text": "text", "no_text": "", "unicode": "é☃", "nul": "a\0b", "half": "\ud800",
    "bytes": b"bytes\0", "no_bytes": b"", "int": 3, "large": 2**70, "float": 2.5,
    "nan": float("nan"), "bool": True, "complex": 1 + 2j, "none": None,
    "dict": {"k": [1, None, "x"]}, "list": [1, "a"], "numbers": [1, 2], "empty": [], "tuple": (1, 2),
    "texts": ("a", None), "no_tuple": (), "truths": [True, False], "mixed": [1, 2.0],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The entry .* is a pickle")
def test_values_come_back_as_they_were(path, backend, opened):
    td = TensorDict(a=torch.zeros(3), batch_size=[3])
    for name, value in VALUES.items():
        td.set_non_tensor(name, value)
    write(td, path, backend).close()
    with opened(path) as found:
        for name, expected in VALUES.items():
            value = found[name]
            assert type(value) is type(expected)
            assert repr(value) == repr(expected)
            assert found.get(name).batch_size == (3,)
            assert repr(found[1][name]) == repr(expected)


@pytest.mark.filterwarnings("ignore:The entry .* is a pickle")
def test_arrays_that_are_values_stay_that(path, backend, opened):
    td = TensorDict(a=torch.zeros(3), batch_size=[3])
    arrays = {
        dtype: np.array([[0, 1], [1, 0]]).astype(dtype)
        for dtype in ("i4", ">i2", "f8", "?", "U3")
    }
    for dtype, array in arrays.items():
        td.set_non_tensor(dtype, array)
    write(td, path, backend).close()
    with opened(path) as found:
        for dtype, array in arrays.items():
            assert isinstance(found[dtype], np.ndarray)
            assert (found[dtype] == array).all()


COLUMNS = [
    ["a", "b", ""], ["é", "b\0", "c"], [1, 2, 3], [1.5, 2.5, -0.0], [True, False, True],
    [1, "a", None], [{"k": 1}, {"k": 2}, {}], [[1], [2, 3], []], [2**70, 1, 2],
]  # fmt: skip


def test_values_for_each_row_come_back(path, backend, opened):
    td = TensorDict(a=torch.zeros(3), batch_size=[3])
    for position, values in enumerate(COLUMNS):
        td[str(position)] = NonTensorStack(*values)
    write(td, path, backend).close()
    with opened(path) as found:
        for position, values in enumerate(COLUMNS):
            key = str(position)
            assert list(found[key]) == values
            assert list(map(type, found[key])) == list(map(type, values))
            assert found[2][key] == values[2]
            assert list(found[1:][key]) == values[1:]


def test_values_of_several_dims_come_back(path, backend, opened):
    td = TensorDict(batch_size=[2, 2])
    td["v"] = NonTensorStack.from_list([["a", "b"], ["c", "d"]])
    td["w"] = NonTensorStack.from_list([["a", 1], [None, "d"]])
    write(td, path, backend).close()
    with opened(path) as found:
        assert found["v"].tolist() == [["a", "b"], ["c", "d"]]
        assert found["w"].tolist() == [["a", 1], [None, "d"]]


def test_an_unbatched_tensor_comes_back(path, backend, opened):
    td = TensorDict(
        a=torch.zeros(3), u=UnbatchedTensor(torch.arange(5)), batch_size=[3]
    )
    write(td, path, backend).close()
    with opened(path) as found:
        assert isinstance(found["u"], UnbatchedTensor)
        assert found[1]["u"].tolist() == [0, 1, 2, 3, 4]
        assert found.batch_size == (3,)


class Point(TensorClass):
    x: torch.Tensor
    label: str
    y: torch.Tensor | None = None


def test_a_tensorclass_has_its_fields_in_the_file(path, backend):
    point = Point(x=torch.arange(3), label="p", batch_size=[3])
    made = write(point, path, backend)
    assert isinstance(made, Point)
    made.x += 1
    found = getattr(Point, f"from_{backend}")(path, mode="r+")
    assert isinstance(found, Point)
    assert found.x.tolist() == [1, 2, 3]
    assert found.label == "p"


def test_a_lazy_stack_is_written_as_what_it_shows(path, backend):
    stack = lazy_stack([some(2), some(2)], 0)
    with write(stack, path, backend) as found:
        same(found, stack.contiguous())


def test_a_key_that_is_no_name_is_refused(path, backend):
    keys = ["a/b", "", ".", "..", "a\0"]
    for key in keys:
        with pytest.raises(ValueError, match="cannot be the name"):
            write(TensorDict({"n": {key: torch.zeros(2)}}), path, backend)
    with write(some(), path, backend) as found:
        for key in keys:
            with pytest.raises(ValueError, match="cannot be the name"):
                found[key] = torch.zeros(6)
            assert found.get(key) is None
        assert set(found.keys()) == {"a", "n"}


def test_a_value_alone_is_refused(path, backend):
    with pytest.raises(TypeError, match="alone"):
        write(TensorDict(v="x").get("v"), path, backend)


def test_a_call_that_fails_leaves_the_file_as_it_was(path, backend, opened):
    write(some(), path, backend).close()
    bad = TensorDict(a=torch.zeros(2), z=torch.zeros(2).to(torch.float8_e5m2))
    with pytest.raises(TypeError):
        write(bad, path, backend)
    with opened(path) as found:
        same(found, some())
    assert len(os.listdir(os.path.dirname(path))) == 1


def test_a_file_takes_the_place_of_the_one_that_it_was_read_from(path, backend, opened):
    write(some(), path, backend).close()
    with opened(path) as found:
        other = found + 1
    write(other, path, backend).close()
    with opened(path) as found:
        same(found, some() + 1)


# Opening ---------------------------------------------------------------------------


def test_the_batch_size_is_as_asked(path, backend, opened):
    td = some()
    td["n"] = TensorDict(b=torch.zeros(6, 4, 2), batch_size=[6])
    write(td, path, backend).close()
    with opened(path) as found:
        assert found.batch_size == found["n"].batch_size == (6,)
    with opened(path, auto_batch_size=True) as found:
        assert found.batch_size == (6, 4)
        assert found["n"].batch_size == (6, 4, 2)
    with opened(path, auto_batch_size=True, batch_dims=1) as found:
        assert found.batch_size == found["n"].batch_size == (6,)
    with opened(path, batch_size=[6, 4]) as found:
        assert found.batch_size == found["n"].batch_size == (6, 4)
    with PersistentTensorDict(filename=path, backend=backend) as found:
        assert found.batch_size == ()


def test_sizes_that_contradict_each_other_are_refused(path, backend, opened):
    write(some(), path, backend).close()
    with pytest.raises(TypeError, match="Conflicting batch sizes in from_"):
        opened(path, auto_batch_size=True, batch_size=[6])
    with pytest.raises(ValueError, match=r"\(6, 4\), batch_size=torch.Size\(\[5\]\)"):
        opened(path, batch_size=[5])
    with pytest.warns(FutureWarning, match="ignores batch_dims=1"):
        opened(path, batch_size=[6], batch_dims=1).close()


def test_a_file_that_is_not_there_is_named(path, opened):
    with pytest.raises(FileNotFoundError, match="data"):
        opened(path)


def test_a_mode_that_is_none_is_refused(path, opened):
    with pytest.raises(ValueError, match="Invalid mode 'zz'"):
        opened(path, mode="zz")


def test_modes(path, backend, opened):
    for mode in ("w", "a", "r+"):
        with PersistentTensorDict(
            filename=path, mode=mode, backend=backend, batch_size=[2]
        ) as td:
            td[mode] = torch.ones(2)
            assert td.mode == mode
    with opened(path, batch_size=[2]) as td:
        assert set(td.keys()) == {"w", "a", "r+"}
    for mode in ("w-", "x"):
        with pytest.raises(FileExistsError, match="data"):
            PersistentTensorDict(filename=path, mode=mode, backend=backend)
    with PersistentTensorDict(filename=path, mode="w", backend=backend) as td:
        assert not list(td.keys())


def test_a_source_is_one_of_both(path, backend):
    for given in ({}, {"filename": path, "group": object()}):
        with pytest.raises(RuntimeError, match="Either group or filename"):
            PersistentTensorDict(backend=backend, **given)
    with pytest.raises(NotImplementedError, match="Unknown backend 'other'"):
        PersistentTensorDict(filename=path, backend="other")


def test_a_file_for_reading_is_not_changed(path, backend, opened):
    write(some(), path, backend).close()
    with opened(path) as td:
        for change in (
            lambda: td.set("a", torch.zeros(6, 4)),
            lambda: td.set("z", torch.zeros(6)),
            lambda: td.set_("a", torch.zeros(6, 4)),
            lambda: td.del_("a"),
            lambda: td.rename_key_("a", "z"),
            lambda: td.add_(1),
            lambda: td.zero_(),
            lambda: td.clear(),
            lambda: td.update({"a": torch.zeros(6, 4)}),
            lambda: td.__setitem__(0, td[1]),
            lambda: td[0].set_("a", torch.zeros(4)),
            lambda: td["n"].set("c", torch.zeros(6)),
        ):
            with pytest.raises(io.UnsupportedOperation, match="open for reading only"):
                change()
        same(td, some())
        # These say something of the collection, and leave the file alone.
        td.batch_size = []
        td.names = None
        td.lock_()


def test_what_is_closed_says_so(path, backend):
    td = write(some(), path, backend)
    part, nested = td[:2], td["n"]
    td.close()
    td.close()
    for read in (lambda: td["a"], lambda: part["a"], lambda: nested["b"], td.keys):
        with pytest.raises(ValueError, match="is closed: open it again"):
            read()
    assert "closed file" in repr(td)


def test_a_block_closes_the_file(path, backend, opened):
    with write(some(), path, backend) as td:
        with td.lock_():
            assert td.is_locked
        assert not td.is_locked
    with pytest.raises(ValueError, match="is closed"):
        td["a"]
    with pytest.raises(KeyError), opened(path) as td:
        td["missing"]
    assert "closed file" in repr(td)


# Reading ---------------------------------------------------------------------------


ROWS = [
    2, -1, slice(1, 4), slice(0, 6, 2), slice(4, 2), [3, 1, 1], torch.tensor([[5], [-6]]),
    torch.tensor([True, False, True, False, False, True]), torch.zeros(6, dtype=torch.bool),
    None, ..., (None, 2), range(2, 5), np.array([4, 0]),
]  # fmt: skip


def test_rows_are_those_of_the_collection(path, backend):
    td = TensorDict(a=torch.rand(6, 3, 2), b=torch.arange(6), batch_size=[6])
    for options in ({"chunks": (4,)}, {}):
        with write(td, path, backend, **options) as found:
            for index in ROWS:
                same(found[index].to_tensordict(), td[index])
                assert torch.equal(found[index]["a"], td[index]["a"])
                assert torch.equal(found[index].get("b"), td[index]["b"])


INDICES = [
        (0, 1), (slice(1, 3), 2), (slice(None), slice(1, 3)), (..., 0), (1, ..., None),
        (torch.tensor([0, 2]), torch.tensor([1, 3])), (slice(None), [3, 0, 0]),
        (torch.tensor([[0], [1]]), slice(2)), (2, torch.tensor([1, -1])),
        torch.rand(3, 4) > 0.5, (slice(0, 0), [1]), (slice(None), torch.tensor([], dtype=int)),
        (torch.tensor([2, 0]), None, 1),
    ]  # fmt: skip


def test_an_index_of_two_dims_is_that_of_the_collection(path, backend):
    td = TensorDict(a=torch.rand(3, 4, 2), n={"b": torch.rand(3, 4)}, batch_size=[3, 4])
    with write(td, path, backend, chunks=(2, 3)) as found:
        for index in INDICES:
            same(found[index].to_tensordict(), td[index])
            value = torch.rand(td[index]["a"].shape)
            part = found[index]
            part.set_("a", value)
            td[index] = td[index].set("a", value)
            same(found, td)


def test_an_index_beyond_the_rows_is_an_error(path, backend):
    with write(some(), path, backend) as td:
        for index in (6, -7, [0, 6], (0, 0)):
            with pytest.raises(IndexError):
                td[index]["a"]


def test_a_part_reads_no_more_than_it_is(path, backend, reads):
    with write(some(100), path, backend, chunks=(10,)) as td:
        reads.clear()
        assert td[20:30]["a"].shape == (10, 4)
        assert reads == [40]
        reads.clear()
        assert td[7]["n", "b"] == 7
        assert td.get_at("a", 3).shape == (4,)
        assert td.get_at(("n", "b"), [1, 5]).tolist() == [1, 5]
        assert reads == [1, 4, 2]
        reads.clear()
        td[[90, 3, 4, 3]].to_tensordict()
        assert sum(reads) == 3 * 5
        reads.clear()
        assert td.select("a")["a"].shape == (100, 4)
        assert reads == [400]


def test_questions_about_shapes_read_nothing(path, backend, reads):
    with write(some(), path, backend) as td:
        td["v"] = NonTensorStack(*"abcdef")
        reads.clear()
        assert set(td.keys(True, True)) == {"a", ("n", "b")}
        td.set("z", torch.zeros(6))
        td.set("a", torch.zeros(6, 4))
        td.rename_key_("z", ("n", "z"))
        assert ("n", "b") in td.keys(True)
        assert "v" in td
        repr(td)
        td.lock_().unlock_()
        td.names = ["x"]
        td.batch_size = []
        td.auto_batch_size_(1)
        assert td.names == [None]
        assert not td.is_empty()
        assert td.get_item_shape("a") == (6, 4)
        assert td.entry_class("v") is NonTensorStack
        assert td.entry_class("n") is PersistentTensorDict
        assert td.numel() == len(td) == 6
        td.del_("a")
        td[2:]
        assert not reads


def test_what_is_read_is_a_copy(path, backend):
    with write(some(), path, backend) as td:
        td["a"].zero_()
        td[:2]["a"].zero_()
        td.to_tensordict().zero_()
        same(td, some())


def test_a_device_is_where_entries_are_read_to(path, backend):
    with write(some(), path, backend) as td:
        moved = td.to("meta")
        assert isinstance(moved, PersistentTensorDict)
        assert moved.device == moved["a"].device == moved["n", "b"].device
        assert moved[0]["a"].device.type == "meta"
        assert td.device is None
        assert td.to(torch.float64)["a"].dtype is torch.float64
        assert td.to(device="cpu").device.type == "cpu"


# Writing ---------------------------------------------------------------------------


def test_what_is_changed_is_in_the_file(path, backend, opened):
    with write(some(), path, backend) as td:
        td["z"] = torch.ones(6, 2)
        td["n", "c"] = torch.ones(6)
        td["m", "k", "d"] = torch.ones(6, dtype=torch.int8)
        td["a"] = torch.zeros(6)
        td["t"] = "text"
        td["s"] = NonTensorStack(*range(6))
        td.update({"n": {"b": torch.zeros(6)}})
        td.rename_key_("z", ("n", "z"))
        td.rename_key_("m", "l")
        td[0] = TensorDict(a=torch.tensor(5.0), n={"b": torch.tensor(7.0)})
        td[1:3]["n"].set_("c", torch.tensor([8.0, 9.0]))
        td["n"].add_(1)
        td.pop("t")
        td.names = ["rows"]
        expected = td.to_tensordict()
    with opened(path) as found:
        same(found, expected)
        assert found.names == ["rows"]
        assert set(found.keys(True, True)) == {
            "a", ("n", "b"), ("n", "c"), ("n", "z"), ("l", "k", "d"),
        }  # fmt: skip
        assert list(found["s"]) == list(range(6))
        assert found["n", "b"].tolist() == [8, 1, 1, 1, 1, 1]
        assert found["n", "c"].tolist() == [2, 9, 10, 2, 2, 2]
        assert found["a"].tolist() == [5, 0, 0, 0, 0, 0]
        assert found["l", "k"].batch_size == (6,)


def test_an_entry_is_replaced_whole_or_not_at_all(path, backend):
    with write(some(), path, backend) as td:
        for bad in (torch.zeros(6, 1).to(torch.float8_e5m2), torch.zeros(5)):
            with pytest.raises((TypeError, RuntimeError)):
                td["a"] = bad
            with pytest.raises((TypeError, RuntimeError)):
                td["n"] = {"b": torch.zeros(6), "c": bad}
            with pytest.raises((TypeError, RuntimeError)):
                td.update({"n": {"b": torch.zeros(6)}, "y": bad})
        same(td, some())
        td["n"] = {"c": torch.zeros(6)}
        assert list(td["n"].keys()) == ["c"]


def test_a_collection_of_a_file_is_an_entry_of_another(path, backend):
    with write(some(), path, backend) as td:
        with write(some() + 1, path + "2", backend) as other:
            td["other"] = other
            td["n"] = td["n"]
            td["again"] = td["n"]
        same(td["other"], some() + 1)
        td["other", "n", "b"] = torch.zeros(6)
        assert td["again", "b"].tolist() == list(range(6))
        with pytest.raises(ValueError, match="inside itself"):
            td["n", "self"] = td


def test_a_lock_covers_what_is_nested(path, backend):
    with write(some(), path, backend) as td:
        td.lock_()
        assert td["n"].is_locked
        for change in (
            lambda: td["n"].set("c", torch.zeros(6)),
            lambda: td.set(("n", "c"), torch.zeros(6)),
            lambda: td.del_("a"),
            lambda: td["n"].unlock_(),
            lambda: td.rename_key_("a", "b"),
        ):
            with pytest.raises(RuntimeError, match="lock"):
                change()
        td["n"].add_(1)
        td[0] = td[1]
        td.unlock_()
        td["n", "c"] = torch.zeros(6)
        assert not td["n"].is_locked


def test_a_number_is_written_to_tensors_and_not_to_values(path, backend):
    with write(some(), path, backend) as td:
        td["t"] = "text"
        td[1:3] = 0
        assert td["a"][1:3].sum() == td["n", "b"][1:3].sum() == 0
        assert td["t"] == "text"


def test_a_widened_dtype_is_written_in_parts(path, backend):
    td = TensorDict(a=torch.rand(4, 2).bfloat16(), batch_size=[4])
    with write(td, path, backend) as found:
        found[1] = TensorDict(a=torch.tensor([1 / 3, 2]).bfloat16())
        td[1] = TensorDict(a=torch.tensor([1 / 3, 2]).bfloat16())
        same(found, td)
        found.add_(1)
        same(found, td + 1)


def test_chunks_are_of_the_leading_dims(path, backend):
    td = TensorDict(
        a=torch.rand(20, 3),
        b=torch.rand(20),
        s=torch.tensor(1).expand(20),
        batch_size=[20],
    )
    td["t"] = "text"
    with write(td, path, backend, chunks=(8, 2)) as found:
        assert found.kwargs == {"chunks": (8, 2)}
        assert found.file["a"].chunks == (8, 2)
        assert found.file["b"].chunks == (8,)
        same(found.exclude("t"), td.exclude("t"))
        found["c"] = torch.rand(20, 3, 2)
        assert found.file["c"].chunks == (8, 2, 2)


# Copies ----------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [lambda td: td.clone(), copy.deepcopy])
def test_a_copy_is_another_file(path, backend, copied):
    td = write(some(), path, backend)
    other = copied(td)
    file = other.filename
    other["a"] = torch.zeros(6)
    same(td, some())
    td.close()
    assert other["n", "b"].tolist() == list(range(6))
    del other
    gc.collect()
    assert not os.path.exists(file)


@pytest.mark.parametrize("copied", [lambda td: td.clone(False), copy.copy])
def test_a_shallow_copy_is_the_same_file(path, backend, copied):
    with write(some(), path, backend) as td:
        other = copied(td)
        other["z"] = torch.ones(6)
        assert "z" in td
        td["n", "c"] = torch.ones(6)
        assert other["n", "c"].sum() == 6


def test_a_pickle_opens_the_file_for_reading(path, backend):
    td = write(some(), path, backend)
    td.names = ["x"]
    other = pickle.loads(pickle.dumps(td))
    nested = pickle.loads(pickle.dumps(td["n"].lock_()))
    assert other.mode == "r"
    assert other.names == ["x"]
    same(other, td)
    assert nested["b"].tolist() == list(range(6))
    assert nested.is_locked
    with pytest.raises(io.UnsupportedOperation):
        other["a"] = torch.zeros(6)
    pickled = pickle.dumps(td)
    for each in (td, other, nested):
        each.close()
    os.rename(path, path + "2")
    with pytest.raises(FileNotFoundError, match="data"):
        pickle.loads(pickled)


def same_rows(batch):
    return batch.to_tensordict()


def test_workers_of_a_loader_read_the_file(path, backend, opened):
    write(some(), path, backend, chunks=(2,)).close()
    with opened(path) as td:
        loader = DataLoader(
            td,
            batch_size=4,
            num_workers=2,
            collate_fn=same_rows,
            multiprocessing_context="fork",
            timeout=60,
        )
        same(torch.cat(list(loader)), some())


def test_a_save_is_of_what_is_in_the_file(path, backend, tmp_path):
    with write(some(), path, backend) as td:
        td["t"] = "text"
        same(td.memmap(tmp_path / "saved").exclude("t"), some())
        held = TensorDict(inner=td, batch_size=[6])
        held.memmap(tmp_path / "held")
    found = TensorDict.load_memmap(tmp_path / "held")
    same(found["inner"].exclude("t"), some())
    assert found["inner", "t"] == "text"


def test_what_a_file_cannot_do_says_so(path, backend):
    with write(some(), path, backend) as td:
        for refused in (
            lambda: td.view(2, 3), lambda: td.permute(0), lambda: td.unsqueeze(0),
            lambda: td.squeeze(), lambda: td.transpose(0, 0).unsqueeze(0), td.memmap_,
            td.pin_memory, lambda: td.make_memmap("q", (6,)),
        ):  # fmt: skip
            with pytest.raises(RuntimeError, match="PersistentTensorDict"):
                refused()
        for refused in (
            td.share_memory_,
            lambda: td.select("a", inplace=True),
            lambda: td.exclude("a", inplace=True),
            lambda: td.masked_select(torch.ones(6, dtype=torch.bool), inplace=True),
            lambda: td.unflatten(0, (2, 3), inplace=True),
        ):
            with pytest.raises(NotImplementedError, match="PersistentTensorDict"):
                refused()
        for refused in (td.flatten_keys, td.unflatten_keys):
            with pytest.raises(ValueError, match="in_place"):
                refused(".", inplace=True)
        same(td, some())


def test_without_the_libraries_errors_say_what_to_install(tmp_path):
    check_separately(
        """
        assert not sys.modules.keys() & {"h5py", "zarr", "tensordict.containers.persistent"}
        sys.modules["h5py"] = sys.modules["zarr"] = None
        td = TensorDict(a=torch.zeros(2))
        for call, extra in (
            (td.to_h5, "h5"), (TensorDict.from_h5, "h5"),
            (td.to_zarr, "zarr"), (TensorDict.from_zarr, "zarr"),
        ):
            with pytest.raises(ImportError, match=f"pip install 'tensordict-rs.{extra}.'"):
                call("file")
        """,
        tmp_path,
    )


def test_rows_of_texts_and_numbers_are_read_alone(path, backend, opened, monkeypatch):
    td = TensorDict(
        text=NonTensorStack(*"abcdef"),
        number=NonTensorStack(*range(6)),
        object=NonTensorStack(*[{"at": at} for at in range(6)]),
        n=TensorDict(text=NonTensorStack(*"ghijkl"), batch_size=[6]),
        batch_size=[6],
        names=["time"],
    )
    write(td, path, backend).close()
    with opened(path, batch_size=[6]) as ptd:
        read = []
        kind = type(ptd._file)
        decode = kind.decode

        def watched(self, key, array, rows=None):
            found = decode(self, key, array, rows)
            read.append((key, len(found.values)))
            return found

        monkeypatch.setattr(kind, "decode", watched)
        part = ptd[1:5:2]
        assert part["text"] == ["b", "d"]
        assert list(part.get("text").tolist()) == ["b", "d"]
        assert part["n", "text"] == ["h", "j"]
        expected = td[1:5:2].to_dict()
        assert part.to_tensordict().to_dict() == expected
        assert part.to_tensordict()["text"] == ["b", "d"]
        assert part.to_tensordict().names == ["time"]
        assert {number for key, number in read if key == "text"} == {2}
        assert ptd[torch.tensor([4, 0])]["text"] == ["e", "a"]
        assert ptd[3]["text"] == "d"


# Files that nobody uses any more ----------------------------------------------------

USES = {
    "an entry": lambda data: data["a"],
    "a nested entry": lambda data: data["n"]["b"],
    "some rows": lambda data: data[1:]["n", "b"],
    "all": lambda data: data.to_tensordict(),
    "shown": repr,
    "walked": lambda data: list(data.items(True, True)),
    "locked": lambda data: data.lock_()["n"],
    "shared": lambda data: data.clone(False)["n", "b"],
    "pickled": lambda data: pickle.loads(pickle.dumps(data))["a"],
}
CHANGES = {
    "written": lambda data: data.set("c", torch.ones(6)),
    "in place": lambda data: data.add_(1),
    "removed": lambda data: (data["a"], data.del_("a")),
    "renamed": lambda data: (data["a"], data.rename_key_("a", "z")["z"]),
}


@pytest.mark.parametrize("use", [*USES, *CHANGES])
def test_a_file_is_closed_with_the_collection_that_opened_it(
    use, path, backend, opened
):
    if backend == "zarr" and use in CHANGES:
        # The library keeps an exception for what is missing, in a cycle of its own. No
        # file stays open.
        return
    write(some(), path, backend).close()
    gc.collect()
    gc.disable()
    try:
        data = opened(path, mode="r+" if use in CHANGES else "r")
        file = weakref.ref(data._file)
        (USES | CHANGES)[use](data)
        del data
        assert file() is None
    finally:
        gc.enable()


def test_a_file_that_was_read_can_be_opened_for_writing(tmp_path):
    pytest.importorskip("h5py")
    path = str(tmp_path / "a.h5")
    some().to_h5(path).close()
    assert TensorDict.from_h5(path)["n", "b"].tolist() == [0, 1, 2, 3, 4, 5]
    with TensorDict.from_h5(path, mode="r+") as data:
        data["a"] = torch.ones(6, 4)
    assert TensorDict.from_h5(path)["a"].sum() == 24


def test_what_was_renamed_or_replaced_is_found_anew(path, backend, opened):
    with write(some(), path, backend) as data:
        data["n", "b"], data["a"]
        data["n"].rename_key_("b", "c")
        data.rename_key_("a", "b")
        del data["b"]
        data["a"] = torch.zeros(6)
        data["n", "b"] = torch.full((6,), 7)
        assert data["a"].shape == (6,)
        assert data["n", "c"].tolist() == [0, 1, 2, 3, 4, 5]
        assert data["n", "b"].tolist() == [7] * 6
        assert "b" not in data.keys()


# Sent to another process ------------------------------------------------------------


class Opens(Dataset):
    """Gives a part of a file, a whole file, or parts somewhere inside."""

    def __init__(self, path, backend, what):
        self.path, self.backend, self.what = path, backend, what

    def __len__(self):
        return 3

    def __getitem__(self, row):
        data = OPENERS[self.backend](self.path)
        if self.what == "whole":
            return data
        part = data[2 * row : 2 * row + 2]
        return {"part": part, "inside": {"x": [part["n"]]}}[self.what]


def itself(value):
    return value


def changed(path, backend, *held):
    for data in held:
        data.close()
    with OPENERS[backend](path, mode="r+") as data:
        data["n", "b"] = torch.full((6,), -1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_of_a_data_loader_with_workers_is_data(path, backend, opened, workers):
    write(some(), path, backend).close()
    data = opened(path)
    loader = DataLoader(data, batch_size=2, num_workers=workers, collate_fn=itself)
    batches = list(loader)
    changed(path, backend, data)
    assert [type(batch) for batch in batches] == [TensorDict] * 3
    assert [batch["n", "b"].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
    assert batches[0].batch_size == batches[0]["n"].batch_size == (2,)


@pytest.mark.parametrize("what", ["part", "whole", "inside"])
def test_what_a_dataset_opens_in_a_worker_arrives_as_data(path, backend, what):
    write(some(), path, backend).close()
    dataset = Opens(path, backend, what)
    batches = list(DataLoader(dataset, None, num_workers=1, collate_fn=itself))
    changed(path, backend)
    if what == "inside":
        batches = [TensorDict(n=batch["x"][0]) for batch in batches]
    assert [type(batch) for batch in batches] == [TensorDict] * 3
    rows = [list(range(6))] * 3 if what == "whole" else [[0, 1], [2, 3], [4, 5]]
    assert [batch["n", "b"].tolist() for batch in batches] == rows


@pytest.mark.parametrize("index", [slice(1, 3), [1, 2], torch.tensor([1, 2])])
def test_the_pickle_of_a_part_is_data(path, backend, opened, index):
    write(some(), path, backend).close()
    data = opened(path)
    part = data[index]
    made = [
        pickle.loads(pickle.dumps(part)),
        pickle.loads(pickle.dumps(part[:])),
        pickle.loads(pickle.dumps(lazy_stack([part, part])))[0],
        pickle.loads(bytes(ForkingPickler.dumps(part))),
    ]
    inside = pickle.loads(pickle.dumps({"x": part["n"]}))["x"]
    changed(path, backend, data)
    assert [type(each) for each in (*made, inside)] == [TensorDict] * 5
    assert [each["n", "b"].tolist() for each in made] == [[1, 2]] * 4
    assert inside["b"].tolist() == [1, 2]


def test_a_process_that_is_started_with_a_part_reads_it_itself(
    path, backend, opened, monkeypatch
):
    write(some(), path, backend).close()
    data = opened(path)
    part = data[2:]
    monkeypatch.setattr(context, "_tls", type("Started", (), {"spawning_popen": 1}))
    sent = bytes(ForkingPickler.dumps(part))
    monkeypatch.undo()
    changed(path, backend, data)
    assert pickle.loads(sent)["n", "b"].tolist() == [-1] * 4


def test_chunks_of_map_are_read_by_workers_and_results_are_data(path, backend, opened):
    write(some(), path, backend).close()
    data = opened(path)
    kinds, batches = [], []
    for chunk in data.map_iter(itself, dim=0, num_workers=1, chunksize=2):
        kinds.append(type(chunk))
        batches.append(chunk)
    changed(path, backend, data)
    assert kinds == [TensorDict] * 3
    assert sorted(b for each in batches for b in each["n", "b"].tolist()) == [*range(6)]


def test_rows_are_sent_to_an_executor_by_the_path_of_their_file(path, backend, opened):
    from tensordict.parallel.transport import Rows

    write(some(), path, backend).close()
    sent = pickle.dumps(Rows.of(opened(path)[2:4]))
    changed(path, backend)
    assert pickle.loads(sent).take()["n", "b"].tolist() == [-1, -1]
    assert Rows.of(some()[2:4])["n", "b"].tolist() == [2, 3]


# Made of a schema -------------------------------------------------------------------


def test_from_schema_makes_the_file(path, backend, opened):
    schema = {"a": ([2], torch.float32), ("n", "b"): ([], torch.int64)}
    made = TensorDict.from_schema(
        schema, batch_size=[3], storage=backend, filename=path, chunks=(1,)
    )
    with made:
        assert type(made) is PersistentTensorDict
        assert made.batch_size == made["n"].batch_size == (3,)
        assert made["a"].tolist() == [[0.0, 0.0]] * 3
        made["n", "b"] = torch.arange(3)
        assert (made.file["a"].chunks, made.backend) == ((1, 2), backend)
    again = opened(path)
    assert again["n", "b"].tolist() == [0, 1, 2]
    assert again["a"].dtype is torch.float32


def test_from_schema_of_a_tensorclass_makes_one_over_the_file(path, backend):
    class Sample(TensorClass):
        a: torch.Tensor

    made = Sample.from_schema(
        {"a": ([2], torch.float32)}, batch_size=[3], storage=backend, filename=path
    )
    assert type(made) is Sample
    assert type(made._tensordict) is PersistentTensorDict
    with made._tensordict:
        assert made.a.shape == (3, 2)


def test_from_schema_of_a_file_needs_its_path(backend):
    with pytest.raises(TypeError, match=f"filename='data.{backend}'"):
        TensorDict.from_schema({"a": ([], torch.float32)}, storage=backend)
