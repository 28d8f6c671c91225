"""Rows and windows that are copied out of a collection."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    NonTensorStack,
    TensorDict,
    _rust,
    lazy_stack,
    tensorclass,
)
from tensordict.data import BatchLoader, gather, gather_slices

NUM_ROWS = 50


@tensorclass
class Sample:
    a: torch.Tensor
    text: str


def plain_rows():
    return TensorDict(
        a=torch.arange(NUM_ROWS * 6, dtype=torch.uint8).view(NUM_ROWS, 2, 3),
        n=TensorDict(
            b=torch.randn(NUM_ROWS, 4), flag=torch.arange(NUM_ROWS) % 3 == 0
        ).auto_batch_size_(1),
        text=NonTensorStack(*[str(place) for place in range(NUM_ROWS)]),
        batch_size=[NUM_ROWS],
    )


SOURCES = {
    "plain": lambda path: plain_rows(),
    "tree": lambda path: plain_rows().memmap(path / "tree"),
    "loaded": lambda path: TensorDict.load_memmap(
        (plain_rows().save(path / "save"), path / "save")[1]
    ),
    "shared": lambda path: plain_rows().exclude("text").share_memory_(),
    "lazy": lambda path: lazy_stack([plain_rows()[i].clone() for i in range(NUM_ROWS)]),
    "tensorclass": lambda path: Sample(
        a=torch.arange(NUM_ROWS * 2).view(NUM_ROWS, 2), text="x", batch_size=[NUM_ROWS]
    ),
}


@pytest.fixture(params=SOURCES)
def source(request, tmp_path):
    return SOURCES[request.param](tmp_path)


INDICES = {
    "tensor": torch.tensor([3, -1, 3, 0]),
    "int32": torch.tensor([3, -1], dtype=torch.int32),
    "two dims": torch.tensor([[3, 4], [9, -9]]),
    "none": torch.tensor([], dtype=torch.int64),
    "list": [5, 2],
    "range": range(40, 2, -3),
    "array": np.array([7, 8]),
    "mask": torch.arange(NUM_ROWS) % 7 == 2,
    "slice": slice(1, 30, 4),
}


@pytest.mark.parametrize("name", INDICES)
def test_gather_is_the_index(source, name):
    index = INDICES[name]
    rows = gather(source, index)
    positions = np.arange(NUM_ROWS)[np.asarray(index) if name == "mask" else index]
    assert rows.batch_size == torch.Size(positions.shape)
    assert type(rows) is type(source[index])
    flat = [int(position) for position in np.asarray(positions).reshape(-1)]
    members = [source[position] for position in flat]
    got = rows.reshape(-1)
    assert len(got) == len(flat)
    for place, member in enumerate(members):
        assert (got[place] == member).all()


@pytest.mark.parametrize("index", [[NUM_ROWS], [-NUM_ROWS - 1], torch.tensor([0, 99])])
def test_an_index_out_of_range_is_an_error(source, index):
    with pytest.raises(IndexError, match="out of bounds|out of range"):
        gather(source, index)


def test_out_is_used_again(source):
    out = source[:3].clone()
    places = [
        leaf.data_ptr() for leaf in out.values(True, True) if torch.is_tensor(leaf)
    ]
    for index in ([4, 5, 6], torch.tensor([-1, 0, -1])):
        assert gather(source, index, out=out) is out
        assert (out == source[index]).all()
    now = [leaf.data_ptr() for leaf in out.values(True, True) if torch.is_tensor(leaf)]
    if not isinstance(source, LazyStackedTensorDict):
        assert places == now


def test_out_of_another_size_is_an_error(source):
    out = source[:3].clone()
    with pytest.raises(RuntimeError, match="batch size"):
        gather(source, [1, 2], out=out)


def test_out_may_be_shared_and_of_another_dtype():
    source = plain_rows().exclude("text")
    out = source[:2].clone().share_memory_()
    gather(source, [8, 9], out=out)
    assert (out == source[[8, 9]]).all()
    wide = TensorDict(a=torch.zeros(2, 2, 3), batch_size=[2])
    gather(source, [8, 9], out=wide, keys=["a"])
    assert (wide["a"] == source["a"][[8, 9]]).all()


def save_of(path):
    td = TensorDict(x=torch.arange(NUM_ROWS * 3000).view(NUM_ROWS, 3000))
    td["label"] = torch.arange(NUM_ROWS)
    return td.auto_batch_size_(1).memmap_(path)


@pytest.mark.skipif(
    not _rust.shortcuts()["tensors"],
    reason="without the shortcuts torch reads mapped rows",
)
@pytest.mark.parametrize("mode", [None, "r", "r+"])
@pytest.mark.parametrize("name", ["save", "save.tdz", "save.safetensors"])
def test_a_file_that_was_cut_is_an_exception_that_names_it(tmp_path, mode, name):
    rows = TensorDict(label=torch.arange(NUM_ROWS), batch_size=[NUM_ROWS])
    rows["x"] = torch.arange(NUM_ROWS * 3000).view(NUM_ROWS, 3000)
    path = tmp_path / name
    rows.save(path)
    td = TensorDict.load(path, mode=mode)
    cut = path / "x.memmap" if path.is_dir() else path
    os.truncate(cut, NUM_ROWS * 3000 * 8 // 2)
    for read in (td.__getitem__, lambda index: gather(td, index)):
        with pytest.raises(RuntimeError, match=rf"{re.escape(cut.name)}.*was cut"):
            read([NUM_ROWS - 1, 0])
        with pytest.raises(RuntimeError, match="was cut"):
            read(torch.tensor([NUM_ROWS - 1, 0], dtype=torch.int32))
    with pytest.raises(RuntimeError, match="was cut"):
        gather_slices(td, [NUM_ROWS - 4], 4)
    with pytest.raises(RuntimeError, match="was cut"):
        list(BatchLoader(td, 4))
    if path.is_dir():
        assert (gather(td, [3, 2])["label"] == torch.tensor([3, 2])).all()


@pytest.mark.parametrize("mode", [None, "r"])
def test_stores_are_seen_wherever_they_went(tmp_path, mode):
    save_of(tmp_path)
    td = TensorDict.load_memmap(tmp_path, mode=mode)
    td["x"][5] = -1
    assert (gather(td, [5, 6])["x"][0] == -1).all()
    on_disk = TensorDict.load_memmap(tmp_path)["x"][5]
    assert bool((on_disk == -1).all()) is (mode is None)


def test_rows_of_a_file_that_was_replaced_are_the_old_ones(tmp_path):
    td = save_of(tmp_path)
    expected = td[[3, 4]].clone()
    (tmp_path / "x.memmap").unlink()
    (tmp_path / "x.memmap").write_bytes(b"other")
    assert (gather(td, [3, 4]) == expected).all()


def test_what_is_not_in_memory_is_read(tmp_path):
    td = save_of(tmp_path)
    expected = td.clone()
    index = torch.randperm(NUM_ROWS)
    for _ in range(3):
        for path in tmp_path.glob("*.memmap"):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert (gather(td, index) == expected[index]).all()


def test_views_of_mapped_leaves(tmp_path):
    td = save_of(tmp_path)
    for part in (td[10:40], td[::3], td[:, None].expand(NUM_ROWS, 2), td.view(5, 10)):
        index = torch.tensor([2, -1, 0])
        assert (gather(part, index) == part.clone()[index]).all()
    columns = TensorDict(
        x=td["x"][:, ::2], y=td["x"].t()[:NUM_ROWS], batch_size=[NUM_ROWS]
    )
    assert (gather(columns, [7, 3]) == columns.clone()[[7, 3]]).all()


# The first dual number makes torch import what it says is deprecated.
@pytest.mark.filterwarnings("ignore:`torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning")
def test_gradients_go_through():
    source = TensorDict(x=torch.arange(5.0).requires_grad_(), batch_size=[5])
    rows = gather(source, torch.tensor([1, 1]))
    rows["x"].sum().backward()
    assert source["x"].grad.tolist() == [0, 2, 0, 0, 0]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))
        rows = gather(TensorDict(x=dual, batch_size=[3]), torch.tensor([0]))
        assert torch.autograd.forward_ad.unpack_dual(rows["x"]).tangent is not None
    assert torch.func.vmap(lambda td: gather(td, torch.tensor([1, 0])))(
        TensorDict(x=torch.arange(6).view(3, 2), batch_size=[3, 2])
    )["x"].tolist() == [[1, 0], [3, 2], [5, 4]]


def test_a_graph_notices_that_its_values_were_overwritten():
    source = plain_rows().select("n")
    out = source[:2].clone()
    weight = torch.ones(4, requires_grad=True)
    loss = (out["n", "b"] * weight).sum()
    gather(source, torch.tensor([4, 5]), out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_out_that_is_the_source_itself():
    td = TensorDict(x=torch.arange(4), batch_size=[4])
    assert gather(td, torch.tensor([3, 2, 1, 0]), out=td)["x"].tolist() == [3, 2, 1, 0]


def test_signs_and_conjugates():
    numbers = torch.arange(4) * (1 + 2j)
    td = TensorDict(c=numbers.conj(), i=numbers.conj().imag, batch_size=[4])
    rows = gather(td, torch.tensor([1, 3]))
    assert rows["c"].tolist() == [1 - 2j, 3 - 6j]
    assert rows["i"].tolist() == [-2, -6]


def test_a_tensor_that_was_resized_behind_the_collection():
    td = TensorDict(x=torch.arange(8), batch_size=[8])
    td["x"].resize_(2)
    with pytest.raises(IndexError):
        gather(td, torch.tensor([7]))


def test_names_and_other_dims():
    td = TensorDict(
        x=torch.arange(24).view(4, 3, 2), batch_size=[4, 3], names=["time", "agent"]
    )
    rows = gather(td, torch.tensor([3, 0]))
    assert rows.names == ["time", "agent"]
    assert rows.batch_size == (2, 3)
    assert (rows["x"] == td["x"][[3, 0]]).all()


def test_compiled():
    td = plain_rows().exclude("text")

    @torch.compile(backend="eager", fullgraph=True)
    def rows_at(td, index):
        return gather(td, index)

    index = torch.tensor([3, -2])
    assert (rows_at(td, index) == td[index]).all()


def test_a_child_of_a_fork_gathers_too(tmp_path):
    td = TensorDict(x=torch.arange(500 * 3000).view(500, 3000), batch_size=[500])
    td = td.memmap_(tmp_path)
    index = torch.arange(500).flip(0)
    gather(td, index)
    child = os.fork()
    if not child:
        # Torch's own threads are not there in a child: only single numbers are read.
        code = 1
        try:
            rows = gather(td, index)["x"]
            code = int(rows[0, 0].item() != 499 * 3000 or rows[-1, 5].item() != 5)
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_gather_at_the_same_time(tmp_path):
    td = save_of(tmp_path)

    def work(seed):
        index = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(seed))
        return bool((gather(td, index)["label"] == index).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(40)))


def test_keys_are_all_that_is_taken(source):
    assert set(gather(source, [1], keys=["a"]).keys()) >= {"a"}
    if "n" in source.keys():
        taken = gather(source, [1], keys=[("n", "b")])
        assert list(taken.keys(True, True)) == [("n", "b")]
    with pytest.raises(KeyError):
        gather(source, [1], keys=["absent"])


def test_members_of_a_stack_write_into_members(tmp_path):
    members = [
        TensorDict(
            a=torch.arange(20) + 100 * at, n={"b": torch.rand(20, 2)}
        ).auto_batch_size_(1)
        for at in range(3)
    ]
    for source in (
        lazy_stack(members, 1),
        lazy_stack(
            [each.memmap(tmp_path / str(at)) for at, each in enumerate(members)], 1
        ),
        lazy_stack([lazy_stack([each, each], 1) for each in members], 2),
    ):
        index = torch.tensor([3, -1, 3])
        out = source[:3].clone()
        out.zero_()
        assert gather(source, index, out) is out
        assert (out == source[index]).all()
        before = out.clone()
        with pytest.raises(IndexError):
            gather(source, torch.tensor([0, 0, 20]), out)
        with pytest.raises(KeyError, match="a"):
            gather(source, index, out.exclude("a"))
        with pytest.raises(RuntimeError, match="batch size"):
            gather(source, index[:2], out)
        assert (out == before).all()


def test_the_rows_are_a_copy(source):
    rows = gather(source, slice(0, 2))
    before = source[:2].clone()
    rows.zero_()
    assert (source[:2] == before).all()


def test_windows_are_stacked(source):
    windows = gather_slices(source, [0, -5], 5, layout="stacked")
    assert windows.batch_size == (2, 5)
    assert (windows[0] == source[:5]).all()
    assert (windows[1] == source[-5:]).all()
    with pytest.raises(ValueError, match="different lengths"):
        gather_slices(source, [0, 1], [2, 3], layout="stacked")


def test_windows_are_padded(source):
    starts, lengths = torch.tensor([4, 20, NUM_ROWS]), torch.tensor([1, 3, 0])
    # A tensorclass has only the fields that it declares.
    mask = None if isinstance(source, Sample) else "is_row"
    windows = gather_slices(source, starts, lengths, padding_value=1, mask=mask)
    assert windows.batch_size == (3, 3)
    is_row = torch.arange(3) < lengths.unsqueeze(1)
    assert mask is None or (windows.pop(mask) == is_row).all()
    assert (windows[0, :1] == source[4:5]).all()
    assert (windows[1] == source[20:23]).all()
    padded = windows.get("a")
    padded = padded if isinstance(padded, torch.Tensor) else padded.as_tensor()
    assert (padded[~is_row] == 1).all()


@pytest.mark.parametrize("layout", ["padded", "stacked"])
def test_windows_are_written_into_what_is_there(source, layout):
    lengths = [1, 3, 2] if layout == "padded" else [3, 3, 3]
    options = {"layout": layout, "padding_value": 7}
    expected = gather_slices(source, [4, 20, 9], lengths, **options)
    out = gather_slices(source, [0, 0, 0], 3).clone()
    places = [leaf.data_ptr() for leaf in _rust.leaves(out)]
    for _ in range(2):
        assert gather_slices(source, [4, 20, 9], lengths, out=out, **options) is out
        assert (out == expected).all()
    assert [leaf.data_ptr() for leaf in _rust.leaves(out)] == places


def test_windows_in_larger_ones_and_their_mask():
    source = TensorDict(x=torch.arange(10), y=torch.ones(10, 2), batch_size=[10])
    out = TensorDict({"x": torch.zeros(2, 5).long(), "other": torch.ones(2, 5)}, [2, 5])
    for start in (3, 5):
        gather_slices(source, [start, 0], [2, 4], out=out, mask="is_row", keys=["x"])
        assert out["x"].tolist() == [[start, start + 1, 0, 0, 0], [0, 1, 2, 3, 0]]
        assert out["is_row"].sum(1).tolist() == [2, 4]
    assert (out["other"] == 1).all()
    with pytest.raises(RuntimeError, match="batch size"):
        gather_slices(source, [0, 1], 6, out=out, keys=["x"])
    with pytest.raises(KeyError, match="y"):
        gather_slices(source, [0, 1], 5, out=out)
    with pytest.raises(ValueError, match="leave out out="):
        gather_slices(source, [0, 1], 5, out=out, layout="jagged")


def test_windows_are_jagged(source):
    windows = gather_slices(source, [4, 20], [1, 3], layout="jagged", keys=["a"])
    assert windows.batch_size == (2,)
    leaf = windows.get("a")
    assert leaf.layout is torch.jagged
    assert (leaf[0] == source[4:5].get("a")).all()
    assert (leaf[1] == source[20:23].get("a")).all()


def test_windows_without_tensors_are_not_jagged():
    with pytest.raises(ValueError, match="'text'"):
        gather_slices(plain_rows(), [0], [2], layout="jagged")


@pytest.mark.parametrize(
    ("starts", "lengths", "error"),
    [
        ([NUM_ROWS - 1], 2, IndexError),
        ([-NUM_ROWS - 1], 1, IndexError),
        ([0, 1], [1], ValueError),
        ([0], -1, ValueError),
        (0, 1, ValueError),
    ],
)
def test_windows_that_there_are_not_are_errors(source, starts, lengths, error):
    with pytest.raises(error):
        gather_slices(source, starts, lengths)


def test_no_windows_are_an_empty_batch(source):
    assert gather_slices(source, [], [], layout="padded").batch_size == (0, 0)


def test_layouts_are_named():
    with pytest.raises(ValueError, match="got 'ragged'"):
        gather_slices(plain_rows(), [0], 1, layout="ragged")
    with pytest.raises(ValueError, match="mask"):
        gather_slices(plain_rows(), [0], 1, layout="stacked", mask="mask")


def test_tensors_that_a_loader_reads_in_threads_keep_their_memory():
    size = 1 << 15
    values = torch.arange(size, dtype=torch.int64)
    wide = values[:, None] * torch.ones(16, dtype=torch.int64)
    td = TensorDict(x=wide, batch_size=[size])
    rows = []
    for batch in BatchLoader(td, 4096, shuffle=False):
        rows.append(batch["x"][:, 0].clone())
        if len(rows) == 1:
            with pytest.raises(RuntimeError, match="not resizable"):
                td["x"].resize_(2 * size, 16)
            # Batches that were begun have the rows of before.
            td["x"].data = torch.zeros_like(wide)
    taken = torch.cat(rows)
    begun = taken[taken != 0]
    assert torch.equal(begun, values[1 : len(begun) + 1])
