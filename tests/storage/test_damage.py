"""Damaged saves are refused by name, and nothing is written while they are read."""

import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tensordict import (
    MemoryMappedTensor,
    TensorDict,
    pack_memmap,
    refresh_archive_checksums,
    to_safetensors,
    unpack_memmap,
)
from tensordict.storage import seal, verify


def edit(folder: Path, **changes) -> None:
    """Change fields of the root's metadata; None removes one."""
    path = folder / "meta.json"
    meta = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del meta[key]
        else:
            meta[key] = value
    path.write_text(json.dumps(meta))


def leaf(**changes) -> dict:
    fields = {"device": "cpu", "shape": [3, 2], "dtype": "torch.float32"}
    return {**fields, "is_nested": False, **changes}


DAMAGE = {
    "short leaf": (
        lambda p: os.truncate(p / "a.memmap", 23),
        RuntimeError,
        r"'a' is too short: '.*a\.memmap' has 23 bytes.* need 24",
    ),
    "empty leaf": (
        lambda p: os.truncate(p / "a.memmap", 0),
        RuntimeError,
        r"'a' is too short: '.*a\.memmap' has 0 bytes",
    ),
    "missing leaf": (
        lambda p: (p / "a.memmap").unlink(),
        FileNotFoundError,
        r"'a' is missing\): '.*a\.memmap'",
    ),
    "missing nested leaf": (
        lambda p: (p / "n" / "b.memmap").unlink(),
        FileNotFoundError,
        r"\('n', 'b'\) is missing\): '.*b\.memmap'",
    ),
    "leaf is a directory": (
        lambda p: ((p / "a.memmap").unlink(), (p / "a.memmap").mkdir()),
        OSError,
        r"'a'.*a\.memmap",
    ),
    "missing child": (
        lambda p: shutil.rmtree(p / "n"),
        FileNotFoundError,
        r"'n' is missing\): '.*meta\.json'",
    ),
    "child without metadata": (
        lambda p: (p / "n" / "meta.json").unlink(),
        FileNotFoundError,
        r"'n' is missing\): '.*meta\.json'",
    ),
    "no metadata": (
        lambda p: (p / "meta.json").unlink(),
        FileNotFoundError,
        r"meta\.json",
    ),
    "cut metadata": (
        lambda p: os.truncate(p / "meta.json", 40),
        json.JSONDecodeError,
        r"meta\.json",
    ),
    "metadata is no text": (
        lambda p: (p / "meta.json").write_bytes(b"\xff\xfe{}"),
        RuntimeError,
        r"meta\.json' is damaged: it is not UTF-8",
    ),
    "metadata is a list": (
        lambda p: (p / "meta.json").write_text("[]"),
        RuntimeError,
        r"meta\.json' is damaged: it holds no JSON object",
    ),
    "metadata is deep": (
        lambda p: (p / "meta.json").write_text('{"a":' * 100_000),
        json.JSONDecodeError,
        r"meta\.json",
    ),
    "huge shape": (
        lambda p: edit(p, a=leaf(shape=[1 << 40])),
        RuntimeError,
        r"'a' is too short.* need 4398046511104",
    ),
    "shape beyond memory": (
        lambda p: edit(p, a=leaf(shape=[1 << 62, 1 << 62])),
        RuntimeError,
        r"'a': its shape is larger than any memory",
    ),
    "negative shape": (
        lambda p: edit(p, a=leaf(shape=[-3, 2])),
        RuntimeError,
        r"'a': its 'shape' is not a list of sizes",
    ),
    "shape of text": (
        lambda p: edit(p, a=leaf(shape="big")),
        RuntimeError,
        r"'a': its 'shape' is not a list of sizes",
    ),
    "other dtype": (
        lambda p: edit(p, a=leaf(dtype="torch.float64")),
        RuntimeError,
        r"'a' is too short.* need 48",
    ),
    "unknown dtype": (
        lambda p: edit(p, a=leaf(dtype="torch.float99")),
        KeyError,
        r"torch\.float99.*'a'.*meta\.json",
    ),
    "quantized dtype": (
        lambda p: edit(p, a=leaf(dtype="torch.qint8")),
        KeyError,
        r"torch\.qint8",
    ),
    "newer version": (
        lambda p: edit(p, _format_version=2),
        RuntimeError,
        r"meta\.json was saved in the format version 2",
    ),
    "batch size": (
        lambda p: edit(p, shape=[-1]),
        RuntimeError,
        r"its 'shape' is not a list of sizes",
    ),
}


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


@pytest.mark.parametrize("mode", [None, "r", "r+"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_by_name(damage, mode, tmp_path):
    break_it, error, message = DAMAGE[damage]
    make().memmap(tmp_path / "x")
    break_it(tmp_path / "x")
    before = digest(tmp_path / "x")
    with pytest.raises(error) as raised:
        TensorDict.load_memmap(tmp_path / "x", mode=mode)
    assert re.search(message, str(raised.value)), str(raised.value)
    assert digest(tmp_path / "x") == before


def test_longer_leaves_load(tmp_path):
    make().memmap(tmp_path / "x")
    with (tmp_path / "x" / "a.memmap").open("ab") as file:
        file.write(b"more")
    assert TensorDict.load_memmap(tmp_path / "x")["a"].shape == (3, 2)


def test_names_in_metadata_cannot_lead_out(tmp_path):
    make().memmap(tmp_path / "x")
    (tmp_path / "secret.memmap").write_bytes(b"\0" * 24)
    edit(tmp_path / "x", **{"../secret": leaf()})
    with pytest.raises(FileNotFoundError, match=r"\.\.%2Fsecret"):
        TensorDict.load_memmap(tmp_path / "x")


def test_files_of_one_tensor(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(FileNotFoundError):
        MemoryMappedTensor.from_filename(path, torch.float32, torch.Size([3]))
    assert not path.exists()
    path.write_bytes(b"\0" * 11)
    with pytest.raises(RuntimeError, match="too short"):
        MemoryMappedTensor.from_filename(path, torch.float32, torch.Size([3]))
    assert path.stat().st_size == 11


# A full disk ---------------------------------------------------------------------------


@pytest.fixture
def file_size_limit():
    """No file may have more than a megabyte, as if the disk were full."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("method", ["memmap", "memmap_", "memmap_like"])
def test_a_file_that_cannot_grow(method, tmp_path, file_size_limit):
    td = TensorDict({"small": torch.ones(3), "n": {"big": torch.ones(1 << 20)}})
    big = td["n", "big"]
    with pytest.raises(OSError, match="File too large.*'big'"):
        getattr(td, method)(tmp_path / "x")
    assert td["n", "big"] is big
    assert not td.is_memmap()
    if method != "memmap_like":
        assert list(tmp_path.iterdir()) == []


def test_a_save_that_fails_leaves_the_old_one(tmp_path, file_size_limit):
    make().memmap(tmp_path / "x")
    before = digest(tmp_path)
    with pytest.raises(OSError, match="File too large"):
        TensorDict({"a": torch.ones(1 << 20)}).memmap(tmp_path / "x")
    assert digest(tmp_path) == before
    (tmp_path / "x" / "notes").write_text("not of a save")
    before = digest(tmp_path)
    with pytest.raises(OSError, match="File too large"):
        TensorDict({"a": torch.ones(1 << 20)}).memmap(tmp_path / "x")
    assert digest(tmp_path) == before


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of four megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root may mount")
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_an_exception(tiny_disk):
    make().memmap(tiny_disk / "x")
    before = digest(tiny_disk)
    with pytest.raises(OSError, match="No space left on device.*'a'"):
        TensorDict({"a": torch.ones(2 << 20)}).memmap(tiny_disk / "x")
    assert digest(tiny_disk) == before
    with pytest.raises(OSError, match="No space left"):
        MemoryMappedTensor.from_tensor(torch.ones(2 << 20), filename=tiny_disk / "t")
    with pytest.raises(OSError, match="No space left"):
        MemoryMappedTensor.ones(2 << 20, filename=tiny_disk / "t")
    assert digest(tiny_disk) == before


def test_a_mount_point_is_a_target(tiny_disk):
    make().update({"gone": {"c": torch.ones(3), "d": {}}}).memmap(tiny_disk)
    make().zero_().memmap(tiny_disk)
    assert TensorDict.load_memmap(tiny_disk)["a"].eq(0).all()
    assert not (tiny_disk / "gone").exists()
    assert sorted(digest(tiny_disk)) == [
        ".tensordict-sums.json",
        "a.memmap",
        "meta.json",
        "n/b.memmap",
        "n/meta.json",
    ]


@pytest.fixture
def bind_mount():
    """Mounts directories and files at others until the test is done."""
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root may mount")
    places = []

    def mount(source, place):
        command = ["mount", "--bind", str(source), str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting is not allowed here")
        places.append(place)

    yield mount
    for place in reversed(places):
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("below", ["", "n"])
def test_a_directory_mounted_on_the_same_disk_is_a_target(below, bind_mount, tmp_path):
    make().memmap(tmp_path / "source")
    make().memmap(tmp_path / "x")
    bind_mount(tmp_path / "source" / below, tmp_path / "x" / below)
    before = digest(tmp_path)
    if below:
        # Its files would have to get there from another mount.
        with pytest.raises(OSError, match="cross-device") as raised:
            make().zero_().memmap(tmp_path / "x")
        assert raised.value.filename == str(tmp_path / "x" / "n")
        assert digest(tmp_path) == before
        return
    make().zero_().memmap(tmp_path / "x")
    assert sorted(digest(tmp_path / "x")) == sorted(digest(tmp_path / "source"))
    assert TensorDict.load(tmp_path / "source", verify=True)["n", "b"].eq(0).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "x"]


@pytest.mark.parametrize("name", ["x.tdz", "x.safetensors", "x.consolidated"])
def test_a_file_in_a_mounted_directory_is_a_target(name, bind_mount, tmp_path):
    for folder in ["source", "place"]:
        (tmp_path / folder).mkdir()
    bind_mount(tmp_path / "source", tmp_path / "place")
    for td in [make(), make().zero_()]:
        if name == "x.consolidated":
            td.consolidate(tmp_path / "place" / name)
        else:
            td.save(tmp_path / "place" / name)
    assert TensorDict.load(tmp_path / "source" / name, verify=True)["a"].eq(0).all()
    assert os.listdir(tmp_path / "source") == [name]


@pytest.mark.parametrize("name", ["x.tdz", "x.safetensors", "x.consolidated"])
def test_a_file_that_is_mounted_is_refused(name, bind_mount, tmp_path):
    def save(td):
        if name == "x.consolidated":
            td.consolidate(tmp_path / name)
        else:
            td.save(tmp_path / name)

    save(make())
    (tmp_path / name).rename(tmp_path / "source")
    (tmp_path / name).touch()
    bind_mount(tmp_path / "source", tmp_path / name)
    before = digest(tmp_path)
    with pytest.raises(OSError, match="busy") as raised:
        save(make().zero_())
    assert raised.value.filename == str(tmp_path / name)
    assert digest(tmp_path) == before


# Kills ---------------------------------------------------------------------------------

ROUNDS = int(os.environ.get("TENSORDICT_KILLS", "20"))
"""The number of times that a save is killed, per layout. `make torture` sets more."""

KILLED = {
    "tree of large leaves": ("x", [400_000, 300_000]),
    "tree of small leaves": ("x", [50] * 60),
    "archive": ("x.tdz", [400_000, *[50] * 60]),
}


def save_for_ever(target: Path, sizes: list[int], report: int) -> None:
    """Save one value after the other over the same target; tell which are done."""
    # OpenMP's threads of the parent are not here, and would be waited for.
    torch.set_num_threads(1)
    value = 0
    while True:
        value += 1
        leaves = {f"k{i}": torch.full((size,), value) for i, size in enumerate(sizes)}
        leaves["n"] = {"last": torch.full((10,), value)}
        TensorDict(leaves).memmap(target)
        os.write(report, b".")


def start_saving(target: Path, sizes: list[int]) -> tuple[int, int]:
    return start(lambda report: save_for_ever(target, sizes, report))


def start(work: Callable[[int], None]) -> tuple[int, int]:
    """A process that works for ever, forked so that it imports nothing, and its report."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    return child, read_end


def values_of(td: TensorDict) -> set[int]:
    # The least and the largest: where they are one, all are.
    leaves = list(td.values(True, True))
    return {int(v) for leaf in leaves for v in (leaf.min(), leaf.max())}


@pytest.mark.parametrize("layout", KILLED)
@pytest.mark.filterwarnings("ignore:This process")
def test_a_kill_leaves_the_old_save_or_the_new(layout, tmp_path):
    name, sizes = KILLED[layout]
    target = tmp_path / name
    chance = random.Random(0)
    for _ in range(ROUNDS):
        child, report = start_saving(target, sizes)
        # At least one save is whole, and the kill comes somewhere in a later one.
        done = len(os.read(report, 1))
        time.sleep(chance.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done += len(os.read(report, 1 << 16))
        os.close(report)
        td = TensorDict.load_memmap(target)
        values = values_of(td)
        assert len(values) == 1, "leaves of two saves"
        assert values.pop() in (done, done + 1)
        assert len(list(td.keys())) == len(sizes) + 1
        assert not verify(target).is_damaged
    # The next save deletes what the killed ones left behind.
    TensorDict({"a": torch.ones(2)}).memmap(target)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if target.is_dir():
        assert sorted(digest(target)) == [
            ".tensordict-sums.json",
            "a.memmap",
            "meta.json",
        ]


def save_files_for_ever(target: Path, report: int) -> None:
    """Save for ever to a file of the layout of its suffix."""
    torch.set_num_threads(1)
    value = 0
    while True:
        value += 1
        leaves = {f"k{i}": torch.full((200_000,), value) for i in range(3)}
        td = TensorDict({**leaves, "n": {"last": torch.full((10,), value)}})
        save_file(td, target)
        os.write(report, b".")


INDEX = ".safetensors.index.json"


def save_file(td: TensorDict, target: Path) -> None:
    if target.suffix == ".cons":
        td.consolidate(target)
    elif target.name.endswith(INDEX):
        name = target.name.removesuffix(".index.json")
        to_safetensors(td, target.with_name(name), shards=3)
    else:
        td.save(target)


@pytest.mark.parametrize("name", ["x.safetensors", "x.cons", f"x{INDEX}"])
@pytest.mark.filterwarnings("ignore:This process")
def test_a_kill_leaves_the_old_file_or_the_new(name, tmp_path):
    target = tmp_path / name
    chance = random.Random(2)
    for _ in range(ROUNDS):
        child, read_end = start(lambda report: save_files_for_ever(target, report))
        done = len(os.read(read_end, 1))
        time.sleep(chance.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done += len(os.read(read_end, 1 << 16))
        os.close(read_end)
        values = values_of(TensorDict.load(target))
        assert len(values) == 1, "leaves of two saves"
        assert values.pop() in (done, done + 1)
        assert not verify(target).is_damaged
    save_file(make(), target)
    names = {path.name for path in tmp_path.iterdir()}
    assert name in names
    # Its two shards, where there are some.
    assert len(names) == (3 if name.endswith(INDEX) else 1)
    save_file(make(), target)
    assert len(list(tmp_path.iterdir())) == len(names)


def fill_for_ever(target: Path, report: int) -> None:
    """Change a save in place in every way that is not a save."""
    torch.set_num_threads(1)
    number = 0
    while True:
        number += 1
        like = make().memmap_like(target / "like")
        like.make_memmap_from_tensor(f"k{number % 7}", torch.full((3,), number))
        like["a"].fill_(number)
        seal(target / "like")
        archive = TensorDict.load(target / "x.tdz", mode="r+")
        archive["a"].fill_(number)
        refresh_archive_checksums(target / "x.tdz")
        pack_memmap(target / "tree", target / "packed.tdz")
        unpack_memmap(target / "packed.tdz", target / "unpacked")
        os.write(report, b".")


@pytest.mark.filterwarnings("ignore:This process")
def test_kills_of_what_works_in_place_leave_readable_saves(tmp_path):
    make().save(tmp_path / "tree")
    make().save(tmp_path / "x.tdz")
    chance = random.Random(3)
    for _ in range(ROUNDS):
        child, report = start(lambda report: fill_for_ever(tmp_path, report))
        os.read(report, 1)
        time.sleep(chance.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(report)
        for name in ("like", "x.tdz", "packed.tdz", "unpacked", "tree"):
            td = TensorDict.load(tmp_path / name)
            assert set(td.keys()) >= {"a", "n"}
            assert not verify(tmp_path / name).is_damaged
        assert (TensorDict.load(tmp_path / "packed.tdz") == make()).all()
        assert (TensorDict.load(tmp_path / "unpacked") == make()).all()
    seal(tmp_path / "like")
    seal(tmp_path / "x.tdz")
    for name in ("like", "x.tdz"):
        assert {found.outcome for found in verify(tmp_path / name).findings} == {"good"}


@pytest.mark.filterwarnings("ignore:This process")
def test_kills_of_saves_in_place_leave_readable_saves(tmp_path):
    def work(report: int) -> None:
        torch.set_num_threads(1)
        while True:
            for value in range(5):
                td = TensorDict(
                    {f"k{i}": torch.full((9_000,), value) for i in range(9)}
                )
                td.memmap(tmp_path / "x", atomic=False)
                os.write(report, b".")

    chance = random.Random(4)
    for _ in range(ROUNDS):
        child, report = start(work)
        os.read(report, 1)
        time.sleep(chance.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(report)
        # The one form that is asked to mix old and new bytes: sizes and keys hold.
        td = TensorDict.load(tmp_path / "x")
        assert len(td.keys()) == 9
        assert values_of(td) <= set(range(5))
        assert not verify(tmp_path / "x").is_damaged


@pytest.mark.filterwarnings("ignore:This process")
def test_kills_beside_other_files_leave_whole_leaves(tmp_path):
    target = tmp_path / "x"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    chance = random.Random(1)
    for _ in range(ROUNDS):
        child, report = start_saving(target, [100_000, 50, 50])
        os.read(report, 1)
        time.sleep(chance.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(report)
        td = TensorDict.load_memmap(target)
        assert all(len(leaf.unique()) == 1 for leaf in td.values(True, True))
        assert (target / "notes.txt").read_text() == "mine"
    TensorDict({"a": torch.ones(2)}).memmap(target)
    assert not (target / ".tdtmp").exists()


@pytest.mark.parametrize("layout", KILLED)
@pytest.mark.filterwarnings("ignore:This process")
def test_a_reader_beside_a_writer_sees_one_save(layout, tmp_path):
    name, sizes = KILLED[layout]
    child, report = start_saving(tmp_path / name, sizes)
    try:
        os.read(report, 1)
        seen = set()
        end = time.monotonic() + 1.0
        # On a busy machine longer: until the writer had its turn.
        while time.monotonic() < end or len(seen) < 2:
            values = values_of(TensorDict.load_memmap(tmp_path / name))
            assert len(values) == 1, "leaves of two saves"
            seen |= values
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(report)


@pytest.mark.parametrize("name", ["LazyStackedTensorDict", "NonTensorData"])
@pytest.mark.parametrize("suffix", ["", ".tdz"])
def test_a_class_that_has_no_such_directory_is_damage(name, suffix, tmp_path):
    nested = TensorDict({"n": {"a": torch.ones(3)}}, [3])
    nested.save(tmp_path / "x")
    edit(tmp_path / "x" / "n", _class=f"tensordict:{name}")
    if suffix:
        pack_memmap(tmp_path / "x", tmp_path / f"x{suffix}")
    with pytest.raises(RuntimeError, match=rf"n/meta.json is damaged: .*{name}"):
        TensorDict.load(tmp_path / f"x{suffix}")
