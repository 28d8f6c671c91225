"""Archives: one zip file that Python's zipfile and the published release read."""

import os
import resource
import shutil
import signal
import warnings
import zipfile
from pathlib import Path

import pytest
import torch

from tensordict import (
    MemoryMappedTensor,
    TensorDict,
    is_memmap_archive,
    pack_memmap,
    refresh_archive_checksums,
    unpack_memmap,
)
from tensordict.storage import verify

CHECKSUMS = ".tensordict-sums.json"
METHODS = ["stored", "deflate", "bzip2", "lzma"]
HERE = Path(__file__).parent.parent / "compat" / "archives_0_15_3"


def make() -> TensorDict:
    nested = TensorDict({"b": torch.arange(60_000), "e": torch.zeros(3, 0)}, [])
    return TensorDict(
        {
            "a": torch.arange(6.0).view(3, 2),
            "n": nested,
            "é/ %": torch.ones(3, dtype=torch.bfloat16),
            "page": torch.arange(70_000, dtype=torch.uint8),
            "f8": torch.ones(5).to(torch.float8_e5m2),
            "c": torch.tensor([1 + 2j, 3j]).conj(),
        },
        [],
    )


def zeros() -> TensorDict:
    return make().apply(torch.zeros_like)


def assert_same(left, right) -> None:
    assert set(left.keys(True, True)) == set(right.keys(True, True))
    assert left.batch_size == right.batch_size
    assert left.names == right.names
    for key in right.keys(True, True):
        assert left[key].dtype == right[key].dtype, key
        assert left[key].shape == right[key].shape, key
        assert torch.equal(left[key].view(-1).float(), right[key].view(-1).float()), key


@pytest.fixture(autouse=True)
def _complex_as_real():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Casting complex values to real")
        yield


# Saving and loading ---------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, *METHODS, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("mode", [None, "r"])
def test_loading_is_the_inverse_of_saving(compression, mode, tmp_path):
    saved = make().memmap(tmp_path / "x.tdz", compression=compression)
    assert_same(saved, make())
    assert_same(TensorDict.load_memmap(tmp_path / "x.tdz", mode=mode), make())
    assert [path.name for path in tmp_path.iterdir()] == ["x.tdz"]


@pytest.mark.parametrize("method", ["memmap", "save", "dumps"])
def test_state_of_the_container(method, tmp_path):
    saved = getattr(make(), method)(tmp_path / "x", archive=True)
    loaded = TensorDict.load(tmp_path / "x")
    for td in (saved, loaded):
        assert not td.is_locked
        assert not td.is_memmap()
        assert type(td["a"]) is torch.Tensor
        assert td.device == torch.device("cpu")
        with pytest.raises(AttributeError):
            td.saved_path  # noqa: B018 (the access is the test)
        td["a"][0] = 7  # Stays here.
    assert TensorDict.load(tmp_path / "x")["a"][0, 0] == 0


def test_stores_reach_the_archive_with_r_plus(tmp_path):
    path = tmp_path / "x.tdz"
    make().save(path)
    writable = TensorDict.load(path, mode="r+")
    writable["a"][0] = 7
    writable["f8"].fill_(0)
    loaded = TensorDict.load(path)
    assert loaded["a"][0, 0] == 7
    assert loaded["f8"].float().eq(0).all()
    assert zipfile.ZipFile(path).testzip() == "a.memmap"
    outcomes = {found.key: found.outcome for found in verify(path).findings}
    assert outcomes["'a'"] == "modified since the save"
    assert outcomes["('n', 'b')"] == "good"
    assert refresh_archive_checksums(path) == path
    assert zipfile.ZipFile(path).testzip() is None
    assert not verify(path).lines("modified since the save", "damaged")
    writable["a"][0] = 8
    outcomes = {found.key: found.outcome for found in verify(path).findings}
    assert outcomes["'a'"] == "modified since the save"


@pytest.mark.parametrize("compression", METHODS[1:])
def test_compressed_archives_are_not_writable(compression, tmp_path):
    make().save(tmp_path / "x.tdz", compression=compression)
    message = r"mode='r\+': entry '.*\.memmap' is compressed, so in-place writes"
    with pytest.raises(RuntimeError, match=message):
        TensorDict.load(tmp_path / "x.tdz", mode="r+")


def test_memmap_like_is_stored_to_in_place(tmp_path):
    data = make().memmap_like(tmp_path / "x.tdz")
    assert_same(data, zeros())
    data["a"].fill_(3)
    assert TensorDict.load(tmp_path / "x.tdz")["a"].eq(3).all()
    refresh_archive_checksums(tmp_path / "x.tdz")
    assert zipfile.ZipFile(tmp_path / "x.tdz").testzip() is None


def test_memmap_like_takes_no_space(tmp_path):
    TensorDict({"a": torch.zeros(1).expand(1 << 30)}).memmap_like(tmp_path / "x.tdz")
    found = (tmp_path / "x.tdz").stat()
    assert found.st_size > 4 << 30
    assert found.st_blocks * 512 < 1 << 20
    assert TensorDict.load(tmp_path / "x.tdz")["a"].shape == (1 << 30,)


def test_nested_tensors(tmp_path):
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 4)])
    TensorDict({"a": ragged}).save(tmp_path / "x.tdz")
    loaded = TensorDict.load(tmp_path / "x.tdz")["a"]
    assert [part.tolist() for part in loaded.unbind(0)] == [
        part.tolist() for part in ragged.unbind(0)
    ]
    with pytest.raises(RuntimeError, match=r"mode='r\+'.*nested tensor"):
        TensorDict.load(tmp_path / "x.tdz", mode="r+")


@pytest.mark.parametrize(
    ("arguments", "check"),
    [
        ({"subpath": "n"}, lambda td: td["b"].shape == (60_000,)),
        ({"subpath": ("n",)}, lambda td: td["e"].shape == (3, 0)),
        ({"device": "cpu"}, lambda td: td["a"][2, 1] == 5),
        ({"device": "meta"}, lambda td: td["a"].is_meta and td["n", "b"].is_meta),
        ({"num_threads": 3}, lambda td: td["n", "b"][-1] == 59_999),
        ({"verify": True}, lambda td: td["a"][2, 1] == 5),
    ],
)
def test_arguments_of_load(arguments, check, tmp_path):
    make().save(tmp_path / "x.tdz")
    assert check(TensorDict.load_memmap(tmp_path / "x.tdz", **arguments))


def test_out(tmp_path):
    make().save(tmp_path / "x.tdz")
    td = TensorDict({"old": torch.zeros(2)})
    assert TensorDict.load(tmp_path / "x.tdz", out=td) is td
    assert_same(td, make())


def test_a_part(tmp_path):
    td = TensorDict({"a": torch.arange(6)}, [6])
    td._get_sub_tensordict(slice(1, 4)).memmap(tmp_path / "x.tdz")
    assert TensorDict.load(tmp_path / "x.tdz")["a"].tolist() == [1, 2, 3]


def test_a_mapped_container_can_become_an_archive(tmp_path):
    td = make().memmap(tmp_path / "x")
    assert_same(td.memmap(tmp_path / "x.tdz"), make())
    assert td["a"].filename == str(tmp_path / "x" / "a.memmap")


def test_an_archive_can_become_a_directory(tmp_path):
    make().save(tmp_path / "x.tdz")
    td = TensorDict.load(tmp_path / "x.tdz").memmap_(tmp_path / "x")
    assert isinstance(td["a"], MemoryMappedTensor)
    assert_same(TensorDict.load(tmp_path / "x"), make())


def test_memmap_in_place_writes_a_directory(tmp_path):
    make().memmap_(tmp_path / "x.tdz")
    assert (tmp_path / "x.tdz" / "meta.json").exists()


def test_saving_over_an_archive(tmp_path):
    path = tmp_path / "x.tdz"
    make().save(path)
    reader = TensorDict.load(path)
    path.chmod(0o640)
    zeros().save(path)
    assert reader["a"][2, 1] == 5
    assert TensorDict.load(path)["a"].eq(0).all()
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(RuntimeError, match="already exists at"):
        make().memmap(path, existsok=False)


def test_saving_over_other_files(tmp_path):
    (tmp_path / "x.tdz").write_text("junk")
    make().save(tmp_path / "x.tdz")
    assert is_memmap_archive(tmp_path / "x.tdz")
    (tmp_path / "y.tdz").mkdir()
    with pytest.raises(ValueError, match="it is an existing directory"):
        make().save(tmp_path / "y.tdz")


def test_a_future(tmp_path):
    future = make().memmap(tmp_path / "x.tdz", num_threads=2, return_early=True)
    assert_same(future.result(), make())
    done, total = future.progress()
    assert done == total > 0


def test_options_that_make_no_sense(tmp_path):
    with pytest.raises(ValueError, match="A path is required"):
        make().memmap(archive=True)
    with pytest.raises(ValueError, match="Unknown compression 'zip'"):
        make().memmap(tmp_path / "x.tdz", compression="zip")
    with pytest.raises(NotImplementedError, match="compression method"):
        make().memmap(tmp_path / "x.tdz", compression=99)
    with pytest.raises(ValueError, match="compression is only supported"):
        make().memmap(tmp_path / "x.tdz", archive=False, compression="deflate")
    assert list(tmp_path.iterdir()) == []


# The format -----------------------------------------------------------------------------


def test_the_layout_is_that_of_the_release(tmp_path):
    make().save(tmp_path / "x.tdz")
    infos = zipfile.ZipFile(tmp_path / "x.tdz").infolist()
    assert [info.filename for info in infos] == [
        "meta.json",
        "a.memmap",
        "c.memmap",
        "f8.memmap",
        "page.memmap",
        "é%2F%20%25.memmap",
        "n/meta.json",
        "n/b.memmap",
        CHECKSUMS,
    ]
    data = (tmp_path / "x.tdz").read_bytes()
    for info in infos:
        header = data[info.header_offset : info.header_offset + 30]
        name_bytes, extra_bytes = (
            int.from_bytes(header[at : at + 2], "little") for at in (26, 28)
        )
        offset = info.header_offset + 30 + name_bytes + extra_bytes
        if info.filename.endswith(".memmap"):
            assert offset % (4096 if info.file_size >= 65536 else 64) == 0
        assert info.external_attr == 0o644 << 16
        assert info.compress_type == zipfile.ZIP_STORED
        assert (
            data[offset : offset + 3]
            == zipfile.ZipFile(tmp_path / "x.tdz").read(info)[:3]
        )


@pytest.mark.parametrize("compression", METHODS)
def test_zipfile_reads_every_entry(compression, tmp_path):
    make().save(tmp_path / "x.tdz", compression=compression)
    with zipfile.ZipFile(tmp_path / "x.tdz") as archive:
        assert archive.testzip() is None
        values = torch.frombuffer(
            bytearray(archive.read("n/b.memmap")), dtype=torch.int64
        )
        assert torch.equal(values, torch.arange(60_000))


@pytest.mark.parametrize("compression", METHODS)
def test_archives_that_zipfile_wrote(compression, tmp_path):
    make().save(tmp_path / "x")
    number = {"stored": 0, "deflate": 8, "bzip2": 12, "lzma": 14}[compression]
    with zipfile.ZipFile(tmp_path / "x.tdz", "w", number) as archive:
        for path in sorted((tmp_path / "x").rglob("*")):
            archive.write(path, path.relative_to(tmp_path / "x"))
    assert_same(TensorDict.load(tmp_path / "x.tdz"), make())


@pytest.mark.parametrize("name", ["stored", "deflate", "bzip2", "lzma"])
def test_archives_of_the_release(name):
    loaded = TensorDict.load(HERE / f"{name}.tdz")
    assert loaded["obs"].tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert loaded["nested", "r"].tolist() == [0, 1, 2]
    assert loaded.names == ["time"]
    assert loaded["ragged"].unbind(0)[1].tolist() == [[1.0, 1.0, 1.0, 1.0]]
    assert not verify(HERE / f"{name}.tdz").is_damaged


def test_more_entries_than_16_bits_count(tmp_path):
    td = TensorDict({f"k{i}": torch.full((1,), i) for i in range(66_000)})
    td.save(tmp_path / "x.tdz")
    loaded = TensorDict.load(tmp_path / "x.tdz")
    assert loaded["k65999"].item() == 65999
    assert len(zipfile.ZipFile(tmp_path / "x.tdz").infolist()) == 66_002
    # One mapping, whatever the kernel's limit for them is.
    loaded = TensorDict.load(tmp_path / "x.tdz", mode="r+")
    loaded["k0"].fill_(5)


# Packing --------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, *METHODS])
def test_packing_and_unpacking(compression, tmp_path):
    make().save(tmp_path / "x")
    (tmp_path / "x" / "extra.txt").write_text("mine")
    target = tmp_path / "x.tdz"
    assert pack_memmap(str(tmp_path / "x"), target, compression=compression) == target
    names = zipfile.ZipFile(target).namelist()
    assert names[0] == "meta.json"
    assert "extra.txt" in names
    assert names[-1] == CHECKSUMS
    assert unpack_memmap(target, str(tmp_path / "y")) == tmp_path / "y"
    assert_same(TensorDict.load(tmp_path / "y"), make())
    assert (tmp_path / "y" / "extra.txt").read_text() == "mine"
    assert not verify(tmp_path / "y").lines("unchecked", "damaged")
    unpack_memmap(target, tmp_path / "y")


def test_packing_what_is_no_save(tmp_path):
    with pytest.raises(ValueError, match="does not look like a memory-mapped"):
        pack_memmap(tmp_path, tmp_path.parent / "y.tdz")
    make().save(tmp_path / "x")
    with pytest.raises(ValueError, match="must be outside the source directory"):
        pack_memmap(tmp_path / "x", tmp_path / "x" / "in.tdz")
    for function in (
        lambda p: unpack_memmap(p, tmp_path / "z"),
        refresh_archive_checksums,
    ):
        for path in (tmp_path / "x", tmp_path / "none", __file__):
            with pytest.raises(ValueError, match="is not a memory-mapped"):
                function(path)
    assert not is_memmap_archive(tmp_path)
    assert not is_memmap_archive(__file__)


# Damage ---------------------------------------------------------------------------------


def rewrite(path: Path, change) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def cut(count):
    def change(data):
        del data[len(data) - count :]

    return change


def replace(old: bytes, new: bytes, *, last: bool = False):
    def change(data):
        at = data.rindex(old) if last else data.index(old)
        data[at : at + len(old)] = new

    return change


DAMAGE = {
    "no end": (cut(22), ValueError, "not a memory-mapped tensordict archive"),
    "half": (cut(1_200_000), ValueError, "not a memory-mapped tensordict archive"),
    "renamed in the directory": (
        replace(b"a.memmap", b"b.memmap", last=True),
        (OSError, RuntimeError),
        "'a' is missing",
    ),
    "renamed in its header": (
        replace(b"a.memmap", b"b.memmap"),
        RuntimeError,
        "'a.memmap' .* names another entry",
    ),
    "no header": (
        lambda data: replace(b"PK\3\4", b"PK\3\5")(data) or None,
        RuntimeError,
        "'meta.json' .* header is invalid",
    ),
    "encrypted": (
        lambda data: data.__setitem__(
            data.rindex(b"PK\1\2", 0, data.rindex(b"a.memmap")) + 8, 1
        ),
        RuntimeError,
        "encrypted",
    ),
    "other method": (
        lambda data: data.__setitem__(
            data.rindex(b"PK\1\2", 0, data.rindex(b"a.memmap")) + 10, 99
        ),
        RuntimeError,
        "method of compression is not known",
    ),
    "larger shape": (
        replace(b"[3, 2]", b"[9, 9]"),
        RuntimeError,
        "'a' is too short",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_by_name(damage, tmp_path):
    change, error, message = DAMAGE[damage]
    path = tmp_path / "x.tdz"
    make().save(path)
    rewrite(path, change)
    before = path.read_bytes()
    with pytest.raises(error, match=message):
        TensorDict.load(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("compression", METHODS)
def test_flipped_bits_are_found(compression, tmp_path):
    path = tmp_path / "x.tdz"
    make().save(path, compression=compression)
    times = os.stat(path)
    info = zipfile.ZipFile(path).getinfo("n/b.memmap")
    at = info.header_offset + 4096 + info.compress_size // 2

    def flip(data):
        data[at] ^= 64

    rewrite(path, flip)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    (line,) = verify(path).lines("damaged")
    assert line.startswith("the entry ('n', 'b')")
    with pytest.raises(RuntimeError, match=r"\('n', 'b'\)"):
        TensorDict.load(path, verify=True)
    if compression != "stored":
        with pytest.raises(RuntimeError, match=r"n/b\.memmap"):
            TensorDict.load(path)


def test_names_that_lead_out_are_not_unpacked(tmp_path):
    make().save(tmp_path / "x")
    shutil.rmtree(tmp_path / "y", ignore_errors=True)
    with zipfile.ZipFile(tmp_path / "x.tdz", "w") as archive:
        archive.write(tmp_path / "x" / "meta.json", "meta.json")
        archive.writestr("../out.txt", "out")
    with pytest.raises(RuntimeError, match="leads out"):
        unpack_memmap(tmp_path / "x.tdz", tmp_path / "y")
    assert not (tmp_path / "out.txt").exists()


def test_what_a_killed_save_left_is_swept(tmp_path):
    left = tmp_path / ".x.tdz.tdtmp" / "0-0-1-0-0"
    left.mkdir(parents=True)
    (left / "new").write_text("half")
    make().save(tmp_path / "x.tdz")
    assert [path.name for path in tmp_path.iterdir()] == ["x.tdz"]


def test_unpack_sweeps_what_a_killed_one_left(tmp_path):
    archive = tmp_path / "x.tdz"
    TensorDict({"a": torch.arange(3), "n": {"b": torch.ones(2)}}).save(archive)
    target = tmp_path / "x"
    child = os.fork()
    if child == 0:
        # Killed in the middle: the work directory stays.
        left = target / ".tdtmp"
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        assert not left.exists()
        unpack_memmap(archive, target)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.listdir(target / ".tdtmp")
    assert not (target / "meta.json").exists()
    unpack_memmap(archive, target)
    assert not (target / ".tdtmp").exists()
    loaded = TensorDict.load(target)
    assert loaded["a"].tolist() == [0, 1, 2]
    assert loaded["n", "b"].tolist() == [1, 1]


def test_a_damaged_archive_is_not_unpacked_in_part(tmp_path):
    archive = tmp_path / "x.tdz"
    TensorDict({"a": torch.arange(3), "b": torch.arange(4)}).save(archive)
    target = tmp_path / "x"
    TensorDict({"a": torch.zeros(1)}).save(target)
    content = archive.read_bytes()
    place = content.index(torch.arange(4).numpy().tobytes())
    archive.write_bytes(content[:place] + b"\1" + content[place + 1 :])
    with pytest.raises(RuntimeError, match="b.memmap"):
        unpack_memmap(archive, target)
    assert TensorDict.load(target)["a"].tolist() == [0.0]
