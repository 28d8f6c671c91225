"""The defects of the published release's files, one test each, by their numbers.

``docs/differences/saving.md`` lists them under "Defects of files" with the same numbers.
"""

import hashlib
import json
import os
import resource
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    from_safetensors,
    lazy_stack,
    tensorclass,
    to_safetensors,
)
from tensordict.storage import verify

MODES = [None, "r", "r+"]


def make() -> TensorDict:
    return TensorDict(
        {"a": torch.arange(6.0).view(3, 2), "n": {"b": torch.ones(3)}}, [3]
    )


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def files(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("mode", MODES)
def test_d1_loading_a_short_file_writes_nothing(mode, tmp_path):
    make().memmap(tmp_path / "x")
    os.truncate(tmp_path / "x" / "a.memmap", 20)
    before = digest(tmp_path)
    with pytest.raises(RuntimeError, match=r"'a' is too short.*a\.memmap"):
        TensorDict.load_memmap(tmp_path / "x", mode=mode)
    assert digest(tmp_path) == before


@pytest.mark.parametrize("mode", MODES)
def test_d1_short_files_of_members_of_a_stack(mode, tmp_path):
    lazy_stack([TensorDict(x=torch.ones(i + 2)) for i in range(3)]).memmap(tmp_path)
    os.truncate(tmp_path / "1" / "x.memmap", 5)
    before = digest(tmp_path)
    with pytest.raises(RuntimeError, match=r"'x' is too short: '.*1/x\.memmap' has 5"):
        LazyStackedTensorDict.load_memmap(tmp_path, mode=mode)
    assert digest(tmp_path) == before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "field", [{"shape": [1 << 40]}, {"dtype": "torch.complex128"}], ids=str
)
def test_d2_metadata_that_does_not_fit_its_files_grows_none(mode, field, tmp_path):
    make().memmap(tmp_path / "x")
    path = tmp_path / "x" / "meta.json"
    meta = json.loads(path.read_text())
    meta["a"] |= field
    path.write_text(json.dumps(meta))
    before = digest(tmp_path)
    with pytest.raises(RuntimeError, match=r"'a' is too short"):
        TensorDict.load_memmap(tmp_path / "x", mode=mode)
    assert digest(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "message"), [("a.memmap", "'a' is missing"), ("n", "'n' is missing")]
)
def test_d3_what_is_missing_is_an_error(name, message, tmp_path):
    make().memmap(tmp_path / "x")
    path = tmp_path / "x" / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(FileNotFoundError, match=message):
        TensorDict.load_memmap(tmp_path / "x")


def test_d3_a_missing_value_is_an_error(tmp_path):
    TensorDict({"a": torch.ones(3), "s": "text"}).memmap(tmp_path / "x")
    shutil.rmtree(tmp_path / "x" / "s")
    with pytest.raises(FileNotFoundError, match=r"'s' is missing.*s/meta\.json"):
        TensorDict.load_memmap(tmp_path / "x")


@pytest.mark.parametrize("name", ["x", "x.tdz", "x.safetensors", "x.cons"])
def test_d4_flipped_bits_are_found(name, tmp_path):
    values = torch.full((5000,), 7, dtype=torch.int64)
    td = TensorDict({"a": values, "b": torch.ones(3)})
    path = tmp_path / name
    td.consolidate(path) if name.endswith(".cons") else td.save(path)
    assert not verify(path).is_damaged
    leaf = path / "a.memmap" if path.is_dir() else path
    content = bytearray(leaf.read_bytes())
    content[content.find(values.numpy().tobytes()) + 12_345] ^= 4
    times = leaf.stat()
    leaf.write_bytes(content)
    os.utime(leaf, ns=(times.st_atime_ns, times.st_mtime_ns))
    report = verify(path)
    assert report.is_damaged
    assert "'a'" in str(report)


@pytest.fixture
def file_size_limit():
    """No file may have more than a megabyte, as if the disk were full."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", ["x", "x.tdz", "x.safetensors", "x.cons"])
def test_d5_a_file_that_cannot_grow_is_an_exception(name, tmp_path, file_size_limit):
    td = TensorDict({"a": torch.rand(1 << 20)})
    path = tmp_path / name
    with pytest.raises(OSError, match="File too large"):
        td.consolidate(path) if name.endswith(".cons") else td.save(path)
    assert files(tmp_path) == []


def test_d6_a_save_over_a_save_is_one_step(tmp_path):
    # Kills at random moments are in test_damage.py; here readers tell.
    make().memmap(tmp_path / "x")
    reader = TensorDict.load_memmap(tmp_path / "x")
    inode = (tmp_path / "x").stat().st_ino
    make().zero_().memmap(tmp_path / "x")
    assert (tmp_path / "x").stat().st_ino != inode
    assert (reader == make()).all()
    assert (TensorDict.load_memmap(tmp_path / "x") == 0).all()


@pytest.mark.parametrize("key", ["shape", "device", "_type"])
@pytest.mark.parametrize("suffix", ["", ".tdz"])
def test_d7_keys_of_fields_are_refused(key, suffix, tmp_path):
    td = TensorDict({"n": {key: torch.ones(2)}}, [2])
    with pytest.raises(RuntimeError, match=rf"\('n', '{key}'\) cannot be saved"):
        td.save(tmp_path / f"x{suffix}")
    assert files(tmp_path) == []


@pytest.mark.parametrize("key", ["_names", "_class", "_format_version"])
@pytest.mark.parametrize("names", [None, ["t"]])
def test_d7_keys_of_optional_fields_are_kept_or_refused(key, names, tmp_path):
    td = TensorDict({key: torch.arange(2.0)}, [2], names=names)
    if names and key == "_names":
        with pytest.raises(RuntimeError, match=f"'{key}' cannot be saved"):
            td.save(tmp_path / "x")
        assert files(tmp_path) == []
        return
    td.save(tmp_path / "x")
    loaded = TensorDict.load(tmp_path / "x")
    assert torch.equal(loaded[key], torch.arange(2.0))
    assert loaded.names == (names or [None])


@pytest.mark.parametrize("suffix", ["", ".tdz"])
def test_d8_a_stack_of_lists_keeps_its_batch_size(suffix, tmp_path):
    stack = NonTensorStack(NonTensorData([1, 2]), NonTensorData([3, 4]))
    TensorDict({"v": stack}, [2]).save(tmp_path / f"x{suffix}")
    loaded = TensorDict.load(tmp_path / f"x{suffix}")
    found = loaded.get("v")
    assert found.batch_size == stack.batch_size == (2,)
    assert found.tolist() == [[1, 2], [3, 4]]


def test_d8_the_dim_of_a_stack_of_values_stays(tmp_path):
    rows = [
        NonTensorStack(*[NonTensorData(f"{i}{j}") for j in range(3)]) for i in (0, 1)
    ]
    stack = NonTensorStack(*rows, stack_dim=1)
    TensorDict({"v": stack}, [3, 2]).save(tmp_path / "x")
    found = TensorDict.load(tmp_path / "x").get("v")
    assert found.batch_size == stack.batch_size == (3, 2)
    assert found.tolist() == stack.tolist()


def test_d9_a_shorter_stack_over_a_longer_one(tmp_path):
    members = [TensorDict({"a": torch.full((i + 1,), float(i))}) for i in range(3)]
    lazy_stack(members).memmap(tmp_path / "x")
    lazy_stack(members[1:]).memmap(tmp_path / "x")
    loaded = TensorDict.load_memmap(tmp_path / "x")
    assert isinstance(loaded, LazyStackedTensorDict)
    assert [member["a"].tolist() for member in loaded.tensordicts] == [[1, 1], [2] * 3]
    assert not (tmp_path / "x" / "2").exists()


def test_d9_a_shorter_stack_in_a_collection(tmp_path):
    members = [TensorDict({"a": torch.full((i + 1,), float(i))}) for i in range(4)]
    for count in (4, 2):
        td = TensorDict({"s": lazy_stack(members[:count])}, [count])
        td.memmap(tmp_path / "x")
    loaded = TensorDict.load_memmap(tmp_path / "x")
    assert loaded.batch_size == (2,)
    assert [member["a"].numel() for member in loaded["s"].tensordicts] == [1, 2]


def test_d10_entries_that_need_one_file_are_refused(tmp_path):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    td = TensorDict({"a": nested, "a.shape": torch.ones(2, 1)}, [2])
    with pytest.raises(RuntimeError, match=r"'a'.*'a\.shape'|'a\.shape'.*'a'"):
        td.memmap(tmp_path / "x")
    assert files(tmp_path) == []


def test_d11_nested_tensors_without_elements(tmp_path):
    nested = torch.nested.nested_tensor([torch.zeros(0, 4), torch.zeros(0, 4)])
    TensorDict({"a": nested, "b": torch.ones(2)}, [2]).memmap(tmp_path / "x")
    loaded = TensorDict.load_memmap(tmp_path / "x")
    assert [part.shape for part in loaded["a"].unbind(0)] == [(0, 4), (0, 4)]


FLOAT8 = [
    dtype
    for name in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
    if (dtype := getattr(torch, f"float8_{name}", None)) is not None
]


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("name", ["x", "x.tdz", "x.cons"])
def test_d12_float8(dtype, name, tmp_path):
    values = torch.arange(8, dtype=torch.uint8).view(dtype)
    td = TensorDict({"a": values, "none": values[:, None][:, :0]}, [8])
    path = tmp_path / name
    td.consolidate(path) if name.endswith(".cons") else td.save(path)
    load = TensorDict.from_consolidated if name.endswith(".cons") else TensorDict.load
    loaded = load(path)["a"]
    assert loaded.dtype == load(path)["none"].dtype == dtype
    assert load(path)["none"].shape == (8, 0)
    assert torch.equal(loaded.view(torch.uint8), values.view(torch.uint8))


def test_d13_an_archive_of_many_leaves_is_one_mapping(tmp_path):
    # The tree of more leaves than mappings is in test_full.py.
    td = TensorDict({f"k{i}": torch.tensor(i) for i in range(2000)})
    td.save(tmp_path / "x.tdz")

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(tmp_path / "x.tdz"))

    loaded = TensorDict.load(tmp_path / "x.tdz")
    assert mappings() == 1
    assert loaded["k1999"] == 1999
    kept = loaded["k7"]
    del loaded
    assert (kept, mappings()) == (7, 1)
    del kept
    assert mappings() == 0


@pytest.mark.parametrize("dtype", [*FLOAT8[:1], torch.int16])
def test_an_archive_is_unmapped_with_its_last_tensor(dtype, tmp_path):
    path = tmp_path / "x.tdz"
    TensorDict({f"k{i}": torch.zeros(3, dtype=dtype) for i in range(300)}).save(path)
    loaded = TensorDict.load(path)
    assert str(path) in Path("/proc/self/maps").read_text()
    del loaded
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_d14_tuples_metadata_and_parameters_stay(tmp_path):
    td = TensorDict({"t": NonTensorData((1, (2, 3))), "m": MetaData({"k": (1,)})})
    td.memmap(tmp_path / "x")
    loaded = TensorDict.load_memmap(tmp_path / "x")
    assert loaded["t"] == (1, (2, 3))
    assert loaded["m"] == {"k": (1,)}
    td.consolidate(tmp_path / "c")
    loaded = TensorDict.from_consolidated(tmp_path / "c")
    assert loaded["t"] == (1, (2, 3))
    assert type(loaded.get("m")) is MetaData


def test_d15_the_order_of_keys(tmp_path):
    td = TensorDict({"z": torch.ones(1), "n": {"b": torch.ones(1)}, "a": torch.ones(1)})
    for name in ("x", "x.tdz", "x.safetensors"):
        td.save(tmp_path / name)
        loaded = TensorDict.load(tmp_path / name)
        assert list(loaded.keys()) == ["z", "n", "a"]


def test_d16_conjugated_views_in_safetensors(tmp_path):
    values = torch.tensor([1 + 2j, 3 - 4j])
    td = TensorDict({"a": values.conj()}, [2])
    to_safetensors(td, tmp_path / "x.safetensors")
    loaded = from_safetensors(tmp_path / "x.safetensors")
    assert torch.equal(loaded["a"], torch.tensor([1 - 2j, 3 + 4j]))


def test_d16_negated_views_in_safetensors(tmp_path):
    values = torch.tensor([1 + 2j, 3 - 4j])
    td = TensorDict({"n": {"a": values.conj().imag, "b": values.conj()[::2]}})
    to_safetensors(td, tmp_path / "x.safetensors")
    loaded = from_safetensors(tmp_path / "x.safetensors")
    assert loaded["n", "a"].tolist() == [-2, 4]
    assert loaded["n", "b"].tolist() == [1 - 2j]


def test_d17_the_name_of_the_stack_dim_in_safetensors(tmp_path):
    members = [TensorDict({"a": torch.ones(2)}) for _ in range(3)]
    stack = LazyStackedTensorDict(*members, stack_dim=0, stack_dim_name="time")
    to_safetensors(stack, tmp_path / "x.safetensors")
    loaded = from_safetensors(tmp_path / "x.safetensors")
    assert loaded.names == ["time"]


def test_d18_strings_are_saved_alike_by_any_number_of_threads(tmp_path):
    td = TensorDict({"s": NonTensorData("text"), "a": torch.ones(2)})
    for threads in (0, 4):
        td.memmap(tmp_path / str(threads), num_threads=threads)
    assert files(tmp_path / "0") == files(tmp_path / "4")
    assert not list(tmp_path.rglob("other.pickle"))


@tensorclass
class Point:
    x: torch.Tensor


def test_d19_consolidate_keeps_values_and_classes(tmp_path):
    td = TensorDict({"d": NonTensorData({1: "one"}), "a": torch.ones(2)})
    td.consolidate(tmp_path / "d")
    assert TensorDict.from_consolidated(tmp_path / "d")["d"] == {1: "one"}
    Point(x=torch.ones(3), batch_size=[3]).consolidate(tmp_path / "p")
    found = TensorDict.from_consolidated(tmp_path / "p")
    assert type(found) is Point
    assert torch.equal(found.x, torch.ones(3))


@dataclass
class Loud:
    """A value that tells when it is unpickled."""

    value: int

    def __setstate__(self, state):
        raise AssertionError("unpickled")


def test_d19_a_lone_value(tmp_path):
    NonTensorData("lone").consolidate(tmp_path / "x")
    assert TensorDict.from_consolidated(tmp_path / "x").data == "lone"
    # The release reads the value where the level says what every level says.
    *_, description = (tmp_path / "x").read_bytes()[:-8].partition(b'{"cls"')
    metadata = json.loads(b'{"cls"' + description)["cls_metadata"]
    assert metadata == {
        "device": None,
        "names": [],
        "batch_size": [],
        "is_locked": False,
    }


def test_d20_saving_an_archive_unpickles_nothing(tmp_path):
    td = TensorDict({"v": NonTensorData(Loud(1)), "a": torch.ones(2)})
    td.save(tmp_path / "x.tdz")
    assert (tmp_path / "x.tdz").stat().st_size


@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_d20_quantized_tensors_are_refused(tmp_path):
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)
    td = TensorDict({"q": quantized}, [3])
    with pytest.raises(NotImplementedError, match="dequantize"):
        td.consolidate(tmp_path / "c")
    with pytest.raises(NotImplementedError, match="dequantize"):
        td.memmap(tmp_path / "x")
    assert files(tmp_path) == []


def save_and_die(name: str, target: Path) -> None:
    """Save in a process that dies where the file is about to be put in its place."""
    td = TensorDict({"a": torch.ones(1 << 22)})
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, b".")
        while True:
            td.consolidate(target) if name.endswith(".cons") else td.save(target)
    os.read(read_end, 1)
    try:
        # Until something of the save that is not its target is there.
        while not any(path != target for path in target.parent.iterdir()):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read_end)
        os.close(write_end)


@pytest.mark.skipif(sys.platform != "linux", reason="the owner is found in /proc")
@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize("name", ["x", "x.tdz", "x.safetensors", "x.cons"])
def test_d21_what_a_killed_save_left_is_swept(name, tmp_path):
    for _ in range(5):
        save_and_die(name, tmp_path / name)
        if any(path.name != name for path in tmp_path.iterdir()):
            break
    td = make()
    path = tmp_path / name
    td.consolidate(path) if name.endswith(".cons") else td.save(path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
