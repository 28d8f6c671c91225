"""Saving to directories and loading from them."""

import json
import os
import threading
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import tensordict
from separate_process import check_freshly
from tensordict import MemoryMappedTensor, TensorDict
from tensordict.storage import future, verify
from tensordict.storage.layouts import consolidated as storage_consolidated

KEYS = st.text(min_size=0, max_size=6).filter(
    lambda key: (
        key not in {"shape", "device", "_type", "_names", "meta.json"}
        and not any(0xD800 <= ord(character) <= 0xDFFF for character in key)
    )
)
DTYPES = [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64]


@st.composite
def trees(draw, batch_size=(2,), depth=0):
    """Trees with keys of any characters, of which file names may hold few."""
    td = TensorDict({}, batch_size)
    for key in draw(st.lists(KEYS, max_size=4, unique=True)):
        if depth < 2 and draw(st.booleans()):
            td._tensordict[key] = draw(trees(batch_size, depth + 1))
        else:
            shape = (*batch_size, *draw(st.lists(st.integers(0, 3), max_size=2)))
            dtype = draw(st.sampled_from(DTYPES))
            td._tensordict[key] = torch.randint(0, 2, shape).to(dtype)
    return td


def make() -> TensorDict:
    """A tree in which a nested collection stands between two leaves."""
    return TensorDict(
        {
            "a": torch.arange(6.0).view(3, 2),
            "n": {"b": torch.ones(3), "m": {"c": torch.zeros(3, dtype=torch.int8)}},
            "z": torch.tensor([True, False, True]),
        },
        [3],
        names=["t"],
    )


CHECKSUMS_FILE = ".tensordict-sums.json"


def files(folder) -> list[str]:
    """The files of the published format: all but the checksums."""
    return sorted(
        str(path.relative_to(folder))
        for path in Path(folder).rglob("*")
        if path.is_file() and path.name != CHECKSUMS_FILE
    )


def assert_same(left, right) -> None:
    assert list(left.keys()) == list(right.keys())
    assert left.batch_size == right.batch_size
    for key in left.keys():
        ours, theirs = left._tensordict[key], right._tensordict[key]
        if isinstance(ours, torch.Tensor):
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            assert torch.equal(ours, theirs), key
        else:
            assert_same(ours, theirs)


# Round trips ---------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(td=trees())
def test_loading_is_the_inverse_of_saving(td, tmp_path_factory):
    folder = tmp_path_factory.mktemp("td") / "x"
    saved = td.memmap(folder)
    assert_same(saved, td)
    assert_same(TensorDict.load_memmap(folder), td)
    assert_same(TensorDict.load_memmap(folder, mode="r"), td)
    again = saved.memmap(folder)
    assert_same(again, td)
    assert_same(TensorDict.load_memmap(folder), td)


@pytest.mark.parametrize("method", ["memmap", "memmap_", "save", "dumps"])
@pytest.mark.parametrize("prefix", [True, False])
def test_values_stay_with_their_keys(method, prefix, tmp_path):
    if not prefix and method in ("save", "dumps"):
        method = "memmap"
    saved = getattr(make(), method)(tmp_path / "x" if prefix else None)
    assert_same(saved, make())
    assert saved.names == ["t"]
    assert saved["n"].names == ["t"]
    for key, leaf in saved.items(True, True):
        assert type(leaf) is MemoryMappedTensor
        if prefix:
            parts = (key,) if isinstance(key, str) else key
            assert leaf.filename == str(tmp_path.joinpath("x", *parts)) + ".memmap"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_dtypes_that_the_release_cannot_load(dtype, tmp_path):
    values = torch.ones(2, 3).to(dtype)
    TensorDict({"a": values, "s": values[0, 0]}).memmap(tmp_path / "x")
    td = TensorDict.load_memmap(tmp_path / "x")
    assert td["a"].dtype == dtype
    assert torch.equal(td["a"].view(torch.uint8), values.view(torch.uint8))
    assert td["s"].shape == ()


def test_tensors_that_are_not_plain_memory(tmp_path):
    base = torch.randn(4, 6)
    complex_ = torch.randn(4, dtype=torch.complex64)
    source = {
        "transposed": base.t(),
        "expanded": base[:, :1].expand(4, 3),
        "strided": base[::2, 1],
        "conjugated": complex_.conj(),
        "negated": complex_.conj().imag,
        "parameter": torch.nn.Parameter(base.clone()),
        "graph": (base.clone().requires_grad_() * 2),
        "empty": torch.zeros(0, 2),
        "scalar": torch.tensor(2.5),
    }
    saved = TensorDict(source).memmap(tmp_path / "x")
    loaded = TensorDict.load_memmap(tmp_path / "x")
    for key, value in source.items():
        assert torch.equal(saved[key], value.detach()), key
        assert torch.equal(loaded[key], value.detach()), key
        assert not loaded[key].requires_grad


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(tmp_path):
    td = TensorDict({}, [2])
    parts = [torch.arange(6.0).view(2, 3), torch.zeros(1, 4)]
    # Not by a constructor, which is another topic's business.
    td._tensordict["n"] = torch.nested.nested_tensor(parts)
    for saved in (
        td.memmap(tmp_path / "x"),
        TensorDict.load_memmap(tmp_path / "x"),
        td.memmap(),
    ):
        for part, expected in zip(saved._tensordict["n"].unbind(0), parts, strict=True):
            assert torch.equal(part, expected)
    zeros = td.memmap_like(tmp_path / "y")._tensordict["n"]
    assert [part.shape for part in zeros.unbind(0)] == [(2, 3), (1, 4)]


def test_tensors_without_values_are_refused(tmp_path):
    with pytest.raises(NotImplementedError):
        TensorDict({"a": torch.zeros(2, device="meta")}).memmap(tmp_path / "x")
    with pytest.raises(RuntimeError, match="sparse"):
        TensorDict({"a": torch.eye(2).to_sparse()}).memmap(tmp_path / "y")
    assert list(tmp_path.iterdir()) == []


# Contents of a save --------------------------------------------------------------------


def test_state_of_a_save(tmp_path):
    td = make()
    saved = td.memmap(tmp_path / "x")
    assert saved.is_memmap()
    assert saved.is_locked
    assert saved.device == torch.device("cpu")
    assert saved.saved_path == tmp_path / "x"
    assert saved["n", "m"].saved_path == tmp_path / "x" / "n" / "m"
    assert not td.is_memmap()
    assert not td.is_locked
    with pytest.raises(AttributeError, match="no saved path"):
        _ = td.saved_path
    with pytest.raises(RuntimeError, match="Cannot modify locked"):
        saved["new"] = torch.zeros(3)
    saved.unlock_()
    assert not saved.is_memmap()


def test_memmap_inplace_keeps_nested_collections(tmp_path):
    td = make()
    nested = td["n"]
    assert td.memmap_(tmp_path / "x") is td
    assert td["n"] is nested
    assert nested.is_memmap()
    td["a"].fill_(5)
    assert TensorDict.load_memmap(tmp_path / "x")["a"].eq(5).all()


def test_state_of_a_load(tmp_path):
    make().memmap(tmp_path / "x")
    td = TensorDict.load_memmap(tmp_path / "x")
    assert not td.is_locked
    assert not td.is_memmap()
    assert td._memmap_prefix == tmp_path / "x"
    assert td.memmap_().saved_path == tmp_path / "x"


def test_metadata_is_that_of_the_release(tmp_path):
    make().memmap(tmp_path / "x")
    text = (tmp_path / "x" / "meta.json").read_text()
    assert text == (
        '{"a": {"device": "cpu", "shape": [3, 2], "dtype": "torch.float32", '
        '"is_nested": false}, "n": {"type": "TensorDict"}, "z": {"device": "cpu", '
        '"shape": [3], "dtype": "torch.bool", "is_nested": false}, "shape": [3], '
        '"device": "cpu", "_type": "<class \'tensordict._td.TensorDict\'>", '
        '"_format_version": 1, "_class": "tensordict:TensorDict", "_names": ["t"]}'
    )
    assert (tmp_path / "x" / "a.memmap").stat().st_size == 24


def test_functions(tmp_path):
    for save, load in (
        (tensordict.save, tensordict.load),
        (tensordict.memmap, tensordict.load_memmap),
    ):
        save(make(), tmp_path / "x")
        assert_same(load(tmp_path / "x"), make())


def test_relative_paths_are_pickled_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved = make().memmap("x")
    assert saved.saved_path == Path("x")
    assert saved["a"].filename == str(tmp_path / "x" / "a.memmap")


# Saving over what is there -------------------------------------------------------------


def test_saving_over_a_save_replaces_it(tmp_path):
    make().memmap(tmp_path / "x")
    reader = TensorDict.load_memmap(tmp_path / "x")
    TensorDict({"a": torch.full((3, 2), 9.0)}, [3]).memmap(tmp_path / "x")
    assert files(tmp_path) == ["x/a.memmap", "x/meta.json"]
    assert TensorDict.load_memmap(tmp_path / "x")["a"].eq(9).all()
    # A reader that had the old data mapped keeps it.
    assert_same(reader, make())


def test_saving_beside_other_files_keeps_them(tmp_path):
    make().memmap(tmp_path / "x")
    (tmp_path / "x" / "notes.txt").write_text("mine")
    TensorDict({"b": torch.ones(2)}).memmap(tmp_path / "x" / "sub")
    TensorDict({"a": torch.full((3, 2), 9.0)}, [3]).memmap(tmp_path / "x")
    assert files(tmp_path) == [
        "x/a.memmap",
        "x/meta.json",
        "x/notes.txt",
        "x/sub/b.memmap",
        "x/sub/meta.json",
    ]
    assert list(TensorDict.load_memmap(tmp_path / "x").keys()) == ["a"]


def test_saving_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make().memmap(".")
    make().apply(lambda x: x.logical_not() if x.dtype == torch.bool else x + 1).memmap(
        "."
    )
    assert Path("meta.json").exists()
    assert TensorDict.load_memmap(".")["a"][0, 0] == 1
    assert [path.name for path in tmp_path.glob(".*")] == [CHECKSUMS_FILE]


def test_saving_through_a_link_to_a_directory(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    make().memmap(tmp_path / "link")
    make().memmap(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert_same(TensorDict.load_memmap(tmp_path / "real"), make())


@pytest.mark.parametrize("name", ["a.memmap", "n"])
def test_links_inside_are_not_followed(name, tmp_path):
    target = tmp_path / "x"
    target.mkdir()
    (tmp_path / "other").mkdir()
    (target / name).symlink_to(tmp_path / "other")
    with pytest.raises(RuntimeError, match="symlink"):
        make().memmap(target)
    assert files(tmp_path / "other") == []


def test_adding_an_entry_writes_only_that(tmp_path):
    td = make().memmap_(tmp_path / "x")
    inode = (tmp_path / "x" / "a.memmap").stat().st_ino
    leaf = td["a"]
    td.unlock_()["new"] = torch.ones(3)
    td.memmap_(tmp_path / "x")
    assert (tmp_path / "x" / "a.memmap").stat().st_ino == inode
    assert td["a"] is leaf
    leaf.fill_(4)
    loaded = TensorDict.load_memmap(tmp_path / "x")
    assert loaded["a"].eq(4).all()
    assert loaded["new"].eq(1).all()


def test_a_view_saved_over_its_own_file(tmp_path):
    td = make().memmap(tmp_path / "x")
    td[1:].memmap(tmp_path / "x")
    assert TensorDict.load_memmap(tmp_path / "x")["a"].tolist() == [[2, 3], [4, 5]]


def test_private_changes_saved_over_their_file(tmp_path):
    make().memmap(tmp_path / "x")
    td = TensorDict.load_memmap(tmp_path / "x", mode="r")
    td["a"].fill_(3)
    assert TensorDict.load_memmap(tmp_path / "x")["a"][0, 0] == 0
    td.memmap(tmp_path / "x")
    assert TensorDict.load_memmap(tmp_path / "x")["a"].eq(3).all()


def test_a_save_of_a_replaced_save(tmp_path):
    """The tensors name a path where another save is by now: their values are written."""
    first = make().memmap(tmp_path / "x")
    make().zero_().memmap(tmp_path / "x")
    first.memmap(tmp_path / "x")
    assert_same(TensorDict.load_memmap(tmp_path / "x"), make())


def test_copying_a_save(tmp_path):
    saved = make().memmap(tmp_path / "x")
    with pytest.raises(RuntimeError, match="already has a file associated"):
        saved.memmap(tmp_path / "y")
    assert not (tmp_path / "y").exists()
    copy = saved.memmap(tmp_path / "y", copy_existing=True)
    assert copy["a"].filename == str(tmp_path / "y" / "a.memmap")
    assert_same(copy, make())


def test_existsok(tmp_path):
    make().memmap(tmp_path / "x", existsok=False)
    before = {name: (tmp_path / "x" / name).stat() for name in files(tmp_path / "x")}
    for method in ("memmap", "memmap_", "memmap_like"):
        with pytest.raises(RuntimeError, match=r"a\.memmap already exists"):
            getattr(make(), method)(tmp_path / "x", existsok=False)
    assert {name: (tmp_path / "x" / name).stat() for name in before} == before


def test_existsok_of_its_own_files(tmp_path):
    saved = make().memmap_(tmp_path / "x")
    assert saved.memmap_(tmp_path / "x", existsok=False) is saved
    assert_same(TensorDict.load_memmap(tmp_path / "x"), make())
    other = make().memmap_(tmp_path / "y")
    with pytest.raises(RuntimeError, match=r"a\.memmap already exists"):
        other.memmap(tmp_path / "x", copy_existing=True, existsok=False)


def test_permissions_of_the_target_stay(tmp_path):
    make().memmap(tmp_path / "x")
    (tmp_path / "x").chmod(0o750)
    make().memmap(tmp_path / "x")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o750


# Arguments -----------------------------------------------------------------------------


def test_futures(tmp_path):
    future = make().memmap(tmp_path / "x", num_threads=2, return_early=True)
    assert_same(future.result(), make())
    assert future.result() is future.result()
    td = make()
    assert td.memmap_(tmp_path / "y", num_threads=2, return_early=True).result() is td
    # With one thread there is nothing to wait for, as in the release.
    assert make().memmap(tmp_path / "z", return_early=True).is_memmap()


@pytest.mark.parametrize(
    "name", ["x", "x.tdz", "x.safetensors", "x.consolidated", "like"]
)
def test_a_future_goes_by_the_working_directory_of_the_call(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    td = TensorDict({f"k{number}": torch.ones(4) for number in range(50)})
    how = {"return_early": True, "num_threads": 2}
    begins = threading.Event()
    work = future.in_background

    def wait_to_begin(td, do, progress):
        return work(td, lambda: begins.wait(60) and do(), progress)

    monkeypatch.setattr(future, "in_background", wait_to_begin)
    monkeypatch.setattr(storage_consolidated, "in_background", wait_to_begin)
    if name == "like":
        saving = td.memmap_like(name, **how)
    elif name.endswith("consolidated"):
        saving = td.consolidate(name, **how)
    else:
        saving = td.memmap(name, **how)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    begins.set()
    saving.result()
    assert (tmp_path / name).exists()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_future_raises_what_went_wrong(tmp_path):
    (tmp_path / "file").write_text("")
    future = make().memmap(tmp_path / "file", num_threads=2, return_early=True)
    with pytest.raises(NotADirectoryError):
        future.result()


@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_num_threads(num_threads, tmp_path):
    td = TensorDict({f"k{i}": torch.full((1000,), i) for i in range(300)})
    td.memmap(tmp_path / "x", num_threads=num_threads)
    assert_same(TensorDict.load_memmap(tmp_path / "x", num_threads=num_threads), td)


def test_combinations_that_make_no_sense(tmp_path):
    with pytest.raises(ValueError, match="needs a prefix"):
        make().memmap(atomic=True)
    with pytest.raises(ValueError, match="compression is only supported"):
        make().memmap(tmp_path / "x", compression="deflate")
    with pytest.raises(RuntimeError, match="mutually exclusive"):
        make().share_memory_().memmap_(tmp_path / "x")
    with pytest.raises(TypeError, match="int"):
        make().memmap(3)
    with pytest.raises(ValueError, match="mode must be"):
        TensorDict.load_memmap(make().memmap(tmp_path / "y").saved_path, mode="w")
    make().memmap(tmp_path / "z", atomic=True)


def test_subpath(tmp_path):
    make().memmap(tmp_path / "x")
    for subpath in ("n/m", ("n", "m")):
        td = TensorDict.load_memmap(tmp_path / "x", subpath=subpath)
        assert list(td.keys()) == ["c"]
    for subpath in ("n/b", "zz", "../x"):
        with pytest.raises(ValueError, match="No tensordict found under subpath"):
            TensorDict.load_memmap(tmp_path / "x", subpath=subpath)


def test_loading_without_values(tmp_path):
    make().memmap(tmp_path / "x")
    for path in (tmp_path / "x").rglob("*.memmap"):
        path.unlink()
    td = TensorDict.load_memmap(tmp_path / "x", device="meta")
    assert td.device.type == td["n", "b"].device.type == "meta"
    assert td["a"].shape == (3, 2)
    with FakeTensorMode():
        fake = TensorDict.load_memmap(tmp_path / "x")["n", "m", "c"]
    assert isinstance(fake, FakeTensor)
    assert fake.dtype == torch.int8
    assert fake.device.type == "cpu"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_files_that_are_not_writable(tmp_path):
    make().memmap(tmp_path / "x")
    (tmp_path / "x" / "a.memmap").chmod(0o444)
    TensorDict.load_memmap(tmp_path / "x")["a"].fill_(1)
    assert TensorDict.load_memmap(tmp_path / "x", mode="r")["a"][0, 0] == 0
    with pytest.raises(PermissionError, match="'a'"):
        TensorDict.load_memmap(tmp_path / "x", mode="r+")


def test_out(tmp_path):
    make().memmap(tmp_path / "x")
    td = TensorDict({"n": {"b": torch.zeros(3)}, "old": torch.zeros(3)}, [3])
    nested = td["n"]
    assert TensorDict.load_memmap(tmp_path / "x", out=td) is td
    assert td["n"] is nested
    assert_same(td, make())
    assert td.names == [None]  # its own, as in the release
    assert make().zero_().load_memmap_(tmp_path / "x")["a"][1, 0] == 2
    with pytest.warns(DeprecationWarning, match="load_memmap_"):
        make().load_(tmp_path / "x")


def test_out_that_does_not_fit_stays(tmp_path):
    make().memmap(tmp_path / "x")
    small = TensorDict({"k": torch.zeros(2)}, [2])
    with pytest.raises(RuntimeError, match="incompatible with the batch-size"):
        small.load_memmap_(tmp_path / "x")
    assert list(small.keys()) == ["k"]
    locked = make().zero_().lock_()
    with pytest.raises(RuntimeError, match="Cannot modify locked"):
        locked.load_memmap_(tmp_path / "x")


# Classes -------------------------------------------------------------------------------


class Mine(TensorDict):
    """A subclass that only this test knows."""


def test_subclasses(tmp_path):
    saved = Mine({"a": torch.ones(2)}, [2]).memmap(tmp_path / "x")
    assert type(saved) is Mine
    assert type(Mine.load_memmap(tmp_path / "x")) is Mine
    assert type(TensorDict.load_memmap(tmp_path / "x")) is Mine
    TensorDict({"sub": Mine({"a": torch.ones(2)}, [2])}, [2]).memmap(tmp_path / "y")
    assert type(TensorDict.load_memmap(tmp_path / "y")["sub"]) is Mine


def test_unknown_classes_are_named(tmp_path):
    make().memmap(tmp_path / "x")
    path = tmp_path / "x" / "meta.json"
    text = path.read_text().replace("tensordict:TensorDict", "os:system")
    path.write_text(text.replace("tensordict._td.TensorDict", "os.system"))
    with pytest.raises(RuntimeError, match=r"Could not find the class os\.system"):
        TensorDict.load_memmap(tmp_path / "x")


# Files of zeros ------------------------------------------------------------------------


def test_memmap_like(tmp_path):
    source = make().to("meta")
    td = source.memmap_like(tmp_path / "x")
    assert td["a"].eq(0).all()
    assert td.is_memmap()
    assert td.device.type == "cpu"
    td["a"].fill_(1)
    assert TensorDict.load_memmap(tmp_path / "x")["a"].eq(1).all()
    assert (tmp_path / "x" / "a.memmap").stat().st_size == 24


@pytest.mark.parametrize("preallocate", [False, True])
def test_memmap_like_over_a_save_is_of_zeros_and_who_has_it_keeps_it(
    preallocate, tmp_path
):
    path = tmp_path / "x"
    older = TensorDict(a=torch.ones(3), b=torch.ones(2), n=TensorDict(c=torch.ones(1)))
    older.save(path)
    old = TensorDict.load_memmap(path)
    like = TensorDict(a=torch.empty(5), n=TensorDict(c=torch.empty(1)))
    made = like.memmap_like(path, preallocate=preallocate)
    assert made["a"].tolist() == [0] * 5
    assert made["n", "c"].tolist() == [0]
    made["a"][:] = 7
    made["n", "c"][:] = 7
    assert_same(old, older)
    assert TensorDict.load_memmap(path)["a"].tolist() == [7] * 5
    assert sorted(TensorDict.load_memmap(path).keys()) == ["a", "n"]
    # The checksums of the older save went with it.
    assert not verify(path).is_damaged


def test_memmap_like_where_a_collection_is_mapped_leaves_that_as_it_was(tmp_path):
    data = TensorDict(a=torch.ones(3)).memmap_(tmp_path / "x")
    made = data.memmap_like(tmp_path / "x")
    made["a"][:] = 7
    assert data["a"].tolist() == [1, 1, 1]


def test_memmap_like_beside_other_files_keeps_them(tmp_path):
    TensorDict(a=torch.ones(3)).save(tmp_path / "x")
    (tmp_path / "x" / "notes.txt").write_text("mine")
    old = TensorDict.load_memmap(tmp_path / "x")
    made = TensorDict(a=torch.ones(3)).memmap_like(tmp_path / "x")
    made["a"][0] = 7
    assert old["a"].tolist() == [1, 1, 1]
    assert TensorDict.load_memmap(tmp_path / "x")["a"].tolist() == [7, 0, 0]
    assert (tmp_path / "x" / "notes.txt").read_text() == "mine"


def test_memmap_like_of_a_huge_shape_takes_no_space(tmp_path):
    row = TensorDict({"image": torch.zeros(3, 64, 64, dtype=torch.uint8)})
    td = row.expand(1_000_000).memmap_like(tmp_path / "x")
    assert td["image"].shape == (1_000_000, 3, 64, 64)
    assert (tmp_path / "x" / "image.memmap").stat().st_blocks < 100
    td[123_456] = row + 1
    assert TensorDict.load_memmap(tmp_path / "x")[123_456]["image"].eq(1).all()


# Adding to a save ----------------------------------------------------------------------


def test_make_memmap(tmp_path):
    td = make().memmap_(tmp_path / "x")
    leaf = td.make_memmap("q", (3, 4), dtype=torch.int8)
    assert td["q"] is leaf
    assert td.is_locked
    assert td.make_memmap(("n", "k", "q"), (3,)).dtype == torch.float32
    td.make_memmap_from_tensor("w", torch.arange(3)).add_(1)
    loaded = TensorDict.load_memmap(tmp_path / "x")
    assert loaded["q"].shape == (3, 4)
    assert loaded["n", "k", "q"].tolist() == [0, 0, 0]
    assert loaded["w"].tolist() == [1, 2, 3]
    assert list(json.loads((tmp_path / "x" / "meta.json").read_text()))[-2:] == [
        "q",
        "w",
    ]


def test_make_memmap_that_fails_changes_nothing(tmp_path):
    td = make().memmap_(tmp_path / "x")
    with pytest.raises(RuntimeError, match="already exists within"):
        td.make_memmap("a", (3,))
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        td.make_memmap("q", (2,))
    with pytest.raises(RuntimeError, match="memory-mapped tensordict"):
        make().make_memmap("q", (3,))
    assert_same(td, make())
    assert_same(TensorDict.load_memmap(tmp_path / "x"), make())


def test_make_memmap_does_not_show_the_bytes_of_an_old_file(tmp_path):
    td = make().memmap_(tmp_path / "x")
    (tmp_path / "x" / "q.memmap").write_bytes(b"\1" * 12)
    assert td.make_memmap("q", (3,), dtype=torch.int32).eq(0).all()


def test_make_memmap_from_storage(tmp_path):
    td = make().memmap_(tmp_path / "x")
    path = str(tmp_path / "x" / "q.memmap")
    values = MemoryMappedTensor.from_tensor(torch.arange(3.0), filename=path)
    made = td.make_memmap_from_storage("q", values.untyped_storage(), (3,))
    assert made.filename == path
    assert TensorDict.load_memmap(tmp_path / "x")["q"].tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="associated filename"):
        td.make_memmap_from_storage("p", values.untyped_storage(), (3,))
    with pytest.warns(FutureWarning, match="without a file"):
        td.make_memmap_from_storage("r", torch.ones(3).untyped_storage(), (3,))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("shape", [(3,), torch.tensor([[1, 2], [1, 1]])])
def test_make_memmap_from_storage_of_a_file_that_a_save_replaced(tmp_path, shape):
    path = tmp_path / "x"
    old = TensorDict().memmap_(path)
    values = old.make_memmap_from_tensor("q", torch.arange(3.0))
    td = TensorDict(note="x").memmap_(path)
    made = td.make_memmap_from_storage("q", values.untyped_storage(), shape)
    assert made.filename == str(path / "q.memmap")
    found = TensorDict.load_memmap(path)["q"]
    assert torch.cat([row.flatten() for row in found]).tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_rows_of_a_nested_tensor_over_a_storage(tmp_path):
    td = TensorDict().memmap_()
    sizes = torch.tensor([[1, 2], [2, 2]])
    made = td.make_memmap_from_storage("q", torch.arange(6.0).untyped_storage(), sizes)
    assert [row.tolist() for row in made.unbind()] == [[[0, 1]], [[2, 3], [4, 5]]]


def test_refresh(tmp_path):
    td = make().memmap_(tmp_path / "x")
    nested = td["n"]
    other = TensorDict.load_memmap(tmp_path / "x").memmap_()
    other.make_memmap_from_tensor(("n", "new"), torch.ones(3))
    assert td.memmap_refresh_() is td
    assert td["n"] is nested
    assert td["n", "new"].eq(1).all()
    assert td.is_memmap()
    assert td.is_locked
    for not_saved in (make(), make().memmap_()):
        with pytest.raises(RuntimeError, match="Cannot refresh"):
            not_saved.memmap_refresh_()


# Names of files ------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["shape", "device", "_type"])
def test_keys_that_the_format_would_lose_are_refused(key, tmp_path):
    td = TensorDict({"n": {key: torch.ones(2)}}, [2])
    with pytest.raises(RuntimeError, match=rf"\('n', '{key}'\) cannot be saved"):
        td.memmap(tmp_path / "x")
    assert files(tmp_path) == []
    # Without files nothing is lost.
    assert td.memmap()["n", key].eq(1).all()


def test_names_that_are_too_long(tmp_path):
    with pytest.raises(OSError, match="File name too long"):
        TensorDict({"x" * 250: torch.ones(2)}).memmap(tmp_path / "x")
    assert files(tmp_path) == []


def test_raw_names(tmp_path):
    TensorDict({"a b": torch.ones(2)}).memmap(tmp_path / "x", robust_key=False)
    assert files(tmp_path) == ["x/a b.memmap", "x/meta.json"]
    assert TensorDict.load_memmap(tmp_path / "x", robust_key=False)["a b"].eq(1).all()
    odd = TensorDict({"a\\b": torch.ones(2), "c:": {"d*": torch.ones(2)}})
    odd.memmap(tmp_path / "odd", robust_key=False)
    loaded = TensorDict.load_memmap(tmp_path / "odd", robust_key=False)
    assert (loaded == odd).all()
    # A reader that expects escaped names finds them too.
    assert TensorDict.load_memmap(tmp_path / "x")["a b"].eq(1).all()
    with pytest.raises(FileNotFoundError):
        TensorDict({"../a": torch.ones(2)}).memmap(tmp_path / "y", robust_key=False)


# The process ---------------------------------------------------------------------------


def test_import_and_saving_leave_no_thread_but_those_of_the_pool(tmp_path):
    code = f"""
import os, pathlib, torch
def others():
    names = [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    return len(names) - names.count("td-storage")
before = others()
from tensordict import TensorDict
assert len(os.listdir("/proc/self/task")) == before
TensorDict({{str(i): torch.ones(1000) for i in range(100)}}).memmap({str(tmp_path / "x")!r})
assert others() == before
"""
    check_freshly(code)


def test_saving_in_a_forked_child(tmp_path):
    td = TensorDict({str(i): torch.ones(1000) for i in range(100)})
    td.memmap(tmp_path / "parent")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            td.memmap(tmp_path / "child")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert_same(TensorDict.load_memmap(tmp_path / "child"), td)


def test_mappings_are_released(tmp_path):
    td = TensorDict({str(i): torch.ones(10) for i in range(200)})

    def count() -> int:
        maps = Path("/proc/self/maps").read_text()
        return sum(str(tmp_path) in line for line in maps.splitlines())

    saved = td.memmap(tmp_path / "x")
    view = saved["0"][2:]
    assert count() == 200
    del saved
    assert count() == 1
    assert view.eq(1).all()
    del view
    assert count() == 0
