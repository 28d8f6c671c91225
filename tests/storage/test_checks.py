"""Sums: what is good, what is damaged, what was modified since the save."""

import json
import os
import shutil
import signal
import subprocess
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from tensordict import (
    NonTensorData,
    TensorDict,
    lazy_stack,
    tensorclass,
    to_safetensors,
)
from tensordict.storage import seal, verify
from tensordict.storage.future import TensorDictFuture

CHECKSUMS = ".tensordict-sums.json"


@tensorclass
class Data:
    a: torch.Tensor
    s: object


def make() -> TensorDict:
    nested = TensorDict({"b": torch.arange(300_000)}, [])
    return TensorDict(
        {"a": torch.arange(6.0).view(3, 2), "n": nested, "e": torch.ones(0)}
    )


def outcomes(path: Path) -> dict[str, str]:
    return {
        Path(found.path).relative_to(path).as_posix(): found.outcome
        for found in verify(path).findings
    }


def flip(path: Path, at: int, *, keep_time: bool = True) -> None:
    """Change one byte, as a failing disk does, or as a program does."""
    times = os.stat(path)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    if keep_time:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def on_disk_with_times(tmp_path: Path) -> bool:
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True
    )
    return kind.stdout.strip() in ("ext2/ext3", "xfs", "btrfs", "f2fs", "overlayfs")


@pytest.fixture(autouse=True)
def _skip_without_times(tmp_path):
    if not on_disk_with_times(tmp_path):
        pytest.skip("the file system does not tell when a mapped file was changed")


def test_a_save_is_good(tmp_path):
    make().memmap(tmp_path / "x")
    assert outcomes(tmp_path / "x") == {
        "meta.json": "good",
        "a.memmap": "good",
        "n/meta.json": "good",
        "n/b.memmap": "good",
    }
    assert verify(tmp_path / "x").layout == "tree"


def test_sums_are_json_with_the_sum_of_each_block(tmp_path):
    saved = make().memmap(tmp_path / "x")
    checksums = json.loads((tmp_path / "x" / CHECKSUMS).read_text())
    length, modified, whole, blocks = checksums["files"]["n/b.memmap"]
    assert length == saved["n", "b"].numel() * 8
    assert modified == os.stat(tmp_path / "x" / "n" / "b.memmap").st_mtime_ns
    assert len(whole) == 8
    assert len(blocks) == 8 * 3
    assert checksums["block_bytes"] == 1 << 20


@pytest.mark.parametrize("at", [0, 1 << 20, 2_399_999])
def test_damage_names_key_and_file(at, tmp_path):
    make().memmap(tmp_path / "x")
    flip(tmp_path / "x" / "n" / "b.memmap", at)
    report = verify(tmp_path / "x")
    assert report.is_damaged
    (line,) = report.lines("damaged")
    assert line.startswith("the entry ('n', 'b') ('")
    start = at // (1 << 20) * (1 << 20)
    assert f"b.memmap') is damaged: bytes {start} to " in line
    with pytest.raises(RuntimeError, match=r"\('n', 'b'\).*b\.memmap.*damaged"):
        TensorDict.load_memmap(tmp_path / "x", verify=True)
    TensorDict.load_memmap(tmp_path / "x")


def test_damaged_metadata_is_found(tmp_path):
    make().memmap(tmp_path / "x")
    meta = tmp_path / "x" / "meta.json"
    flip(meta, meta.read_bytes().index(b"[3, 2]") + 1)
    assert outcomes(tmp_path / "x")["meta.json"] == "damaged"


def test_a_store_right_after_the_save_is_no_damage(tmp_path):
    # The clock of times on disk has ticks: a file that is stored to within one tick
    # of being saved must not look untouched.
    for number in range(20):
        saved = make().memmap(tmp_path / str(number))
        saved["a"][0, 0] = -1.0
        found = outcomes(tmp_path / str(number))
        assert found["a.memmap"] == "modified since the save"
        assert found["n/b.memmap"] == "good"


def test_a_modified_leaf_is_a_warning(tmp_path):
    make().memmap(tmp_path / "x")["a"].fill_(2)
    with pytest.warns(UserWarning, match="'a'.*modified since the save"):
        loaded = TensorDict.load_memmap(tmp_path / "x", verify=True)
    assert loaded["a"].eq(2).all()


def test_the_same_bytes_under_a_newer_time_are_good(tmp_path):
    make().memmap(tmp_path / "x")
    shutil.copytree(tmp_path / "x", tmp_path / "y", copy_function=shutil.copyfile)
    assert set(outcomes(tmp_path / "y").values()) == {"good"}


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda p: p.unlink(), "the file is missing"),
        (lambda p: os.truncate(p, 23), "has 23 bytes"),
    ],
)
def test_missing_and_short_files_are_damaged(damage, found, tmp_path):
    make().memmap(tmp_path / "x")
    damage(tmp_path / "x" / "a.memmap")
    (line,) = verify(tmp_path / "x").lines("damaged")
    assert found in line
    assert "'a'" in line


def test_a_linked_leaf_keeps_its_sum(tmp_path):
    make().memmap(tmp_path / "x")
    td = TensorDict.load_memmap(tmp_path / "x")
    td["new"] = torch.ones(3)
    td.memmap_(tmp_path / "x")
    assert set(outcomes(tmp_path / "x").values()) == {"good"}
    flip(tmp_path / "x" / "a.memmap", 0)
    assert outcomes(tmp_path / "x")["a.memmap"] == "damaged"
    td["n", "b"][0] = 7
    assert outcomes(tmp_path / "x")["n/b.memmap"] == "modified since the save"


def test_files_without_sums_are_unchecked(tmp_path):
    make().memmap(tmp_path / "x", checks=False)
    assert not (tmp_path / "x" / CHECKSUMS).exists()
    assert set(outcomes(tmp_path / "x").values()) == {"unchecked"}
    assert verify(tmp_path / "x").generation == ""


def test_seal(tmp_path):
    data = make().memmap_like(tmp_path / "x")
    assert set(outcomes(tmp_path / "x").values()) == {"unchecked"}
    data["a"].fill_(3)
    assert seal(tmp_path / "x") == 4
    assert set(outcomes(tmp_path / "x").values()) == {"good"}
    # The page is mapped, and was stored to: the next store must still be noticed.
    data["a"].fill_(4)
    assert outcomes(tmp_path / "x")["a.memmap"] == "modified since the save"
    seal(tmp_path / "x")
    flip(tmp_path / "x" / "a.memmap", 0)
    assert outcomes(tmp_path / "x")["a.memmap"] == "damaged"


@pytest.mark.parametrize("is_sparse", [False, True])
def test_seal_of_an_archive(is_sparse, tmp_path):
    path = tmp_path / "x.tdz"
    save = make().memmap_like if is_sparse else make().memmap
    save(path, archive=True)
    loaded = TensorDict.load(path, mode="r+")
    loaded["a"].fill_(3)
    assert {finding.outcome for finding in verify(path).findings} != {"good"}
    # A tensor, another, and the metadata of two levels.
    assert seal(path) == 4
    assert {finding.outcome for finding in verify(path).findings} == {"good"}
    assert TensorDict.load(path)["a"].eq(3).all()


def test_seal_takes_the_sums_of_values(tmp_path):
    td = TensorDict(n={"set": NonTensorData({1, 2}), "list": ["a", {3}], "t": "text"})
    td.memmap(tmp_path / "x", checks=False)
    names = {"n/set/other.pickle", "n/list/pickle.pkl", "n/t/meta.json"}
    assert names <= set(outcomes(tmp_path / "x"))
    seal(tmp_path / "x")
    assert set(outcomes(tmp_path / "x").values()) == {"good"}
    for name in names:
        flip(tmp_path / "x" / name, 12)
        (line,) = verify(tmp_path / "x").lines("damaged")
        assert line.startswith(f"the entry ('n', '{name.split('/')[1]}') (")
        flip(tmp_path / "x" / name, 12)


def test_seal_does_not_follow_links_out_of_the_save(tmp_path):
    make().memmap(tmp_path / "x")
    (tmp_path / "x" / "a.memmap").rename(tmp_path / "other")
    (tmp_path / "x" / "a.memmap").symlink_to(tmp_path / "other")
    before = os.stat(tmp_path / "other").st_mtime_ns
    with pytest.raises(RuntimeError, match="'a' is a symbolic link that leads out"):
        seal(tmp_path / "x")
    assert os.stat(tmp_path / "other").st_mtime_ns == before


@pytest.mark.parametrize("name", ["x", "x.tdz"])
def test_findings_name_the_keys_of_every_class(name, tmp_path):
    td = TensorDict(
        {
            "odd key": torch.ones(2),
            "t": Data(a=torch.ones(2), s={1}, batch_size=[2]),
            "l": lazy_stack([TensorDict(b=torch.ones(1)) for _ in range(2)]),
        },
        [2],
    )
    td.memmap(tmp_path / name)
    root = str(tmp_path / name)
    found = {
        os.fspath(finding.path).removeprefix(root).lstrip(":/"): finding.key
        for finding in verify(tmp_path / name).findings
    }
    assert found == {
        "meta.json": "",
        "odd%20key.memmap": "'odd key'",
        "t/meta.json": "'t'",
        "t/_tensordict/meta.json": "'t'",
        "t/_tensordict/a.memmap": "('t', 'a')",
        "t/_tensordict/s/meta.json": "('t', 's')",
        "t/_tensordict/s/other.pickle": "('t', 's')",
        "l/meta.json": "'l'",
        "l/0/meta.json": "('l', '0')",
        "l/0/b.memmap": "('l', '0', 'b')",
        "l/1/meta.json": "('l', '1')",
        "l/1/b.memmap": "('l', '1', 'b')",
    }


def test_seal_of_what_is_no_save(tmp_path):
    with pytest.raises(FileNotFoundError):
        seal(tmp_path)


def test_an_entry_added_in_place_is_unchecked(tmp_path):
    td = make().memmap_(tmp_path / "x")
    td.make_memmap("later", (3,))
    found = outcomes(tmp_path / "x")
    assert found["later.memmap"] == "unchecked"
    assert found["meta.json"] == "modified since the save"


def test_unreadable_sums_are_an_error(tmp_path):
    make().memmap(tmp_path / "x")
    (tmp_path / "x" / CHECKSUMS).write_text('{"version": 1}')
    with pytest.raises(RuntimeError, match=CHECKSUMS):
        verify(tmp_path / "x")


@pytest.mark.parametrize("name", ["a.memmap", "meta.json"])
def test_a_pipe_is_not_waited_for(name, tmp_path):
    make().memmap(tmp_path / "x")
    path = tmp_path / "x" / "n" / name if name == "meta.json" else tmp_path / "x" / name
    path.unlink()
    os.mkfifo(path)
    if name == "meta.json":
        with pytest.raises(json.JSONDecodeError, match=str(path)):
            verify(tmp_path / "x")
    else:
        assert outcomes(tmp_path / "x")[name] == "damaged"


def test_a_pipe_in_the_place_of_a_shard_is_not_waited_for(tmp_path):
    to_safetensors(make(), tmp_path / "x.safetensors", shards=2)
    shard = next(path for path in tmp_path.iterdir() if path.suffix == ".safetensors")
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(OSError, match=shard.name):
        verify(tmp_path / "x.safetensors.index.json")


def test_each_save_has_a_generation_of_its_own(tmp_path):
    make().memmap(tmp_path / "x")
    first = verify(tmp_path / "x").generation
    make().memmap(tmp_path / "x")
    assert verify(tmp_path / "x").generation not in ("", first)


def test_memory_file_systems_do_not_tell_damage_from_change():
    folder = Path("/dev/shm")
    if not folder.is_dir():
        pytest.skip("there is no file system in memory")
    path = folder / f"tensordict-test-{os.getpid()}"
    try:
        make().memmap(path)
        flip(path / "a.memmap", 0)
        assert outcomes(path)["a.memmap"] == "changed or damaged"
        assert not verify(path).is_damaged
        with pytest.warns(UserWarning, match="changed or damaged"):
            TensorDict.load_memmap(path, verify=True)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def test_saving_in_place(tmp_path):
    make().memmap(tmp_path / "x")
    reader = TensorDict.load_memmap(tmp_path / "x")
    make().zero_().memmap(tmp_path / "x", atomic=False)
    assert reader["a"].eq(0).all()
    assert set(outcomes(tmp_path / "x").values()) == {"good"}
    make().memmap(tmp_path / "new", atomic=False)
    assert set(outcomes(tmp_path / "new").values()) == {"good"}


def test_saving_a_view_in_place_over_its_own_file(tmp_path):
    td = make().memmap(tmp_path / "x")
    values = td["a"].clone()
    TensorDict({"a": td["a"].flip(0), "n": td["n"]}).memmap(
        tmp_path / "x", atomic=False
    )
    assert TensorDict.load_memmap(tmp_path / "x")["a"].eq(values.flip(0)).all()
    TensorDict({"a": td["a"].mT}).memmap(tmp_path / "x", atomic=False)
    assert TensorDict.load_memmap(tmp_path / "x")["a"].eq(values.flip(0).mT).all()


def test_durable(tmp_path):
    make().memmap(tmp_path / "x", durable=True)
    make().memmap(tmp_path / "x", durable=True)
    many = TensorDict({str(i): torch.ones(2) for i in range(400)})
    many.memmap(tmp_path / "y", durable=True)
    assert set(outcomes(tmp_path / "x").values()) == {"good"}
    assert len(outcomes(tmp_path / "y")) == 401


def test_a_progress_bar(tmp_path, capsys):
    make().memmap(tmp_path / "x", pbar=True)
    assert "saving" in capsys.readouterr().err


def test_a_future_can_be_cancelled(tmp_path):
    large = TensorDict({str(i): torch.ones(8 << 20) for i in range(8)})
    future = large.memmap(tmp_path / "x", num_threads=2, return_early=True)
    assert future.cancel()
    with pytest.raises(RuntimeError, match="cancelled"):
        future.result()
    assert list(tmp_path.iterdir()) == []
    assert future.done()
    assert not future.cancel()


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_does_not_wait_for_the_save_of_its_parent():
    saving = Future()
    future = TensorDictFuture([saving])
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        try:
            future.result()
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    saving.set_result(3)
    assert future.result() == 3


def test_a_future_tells_how_far_it_is(tmp_path):
    future = make().memmap(tmp_path / "x", num_threads=2, return_early=True)
    future.result()
    done, total = future.progress()
    assert done == total >= 300_000 * 8


def test_a_lazy_stack_that_is_filled_has_sums_once_it_is_sealed(tmp_path):
    members = [TensorDict(a=torch.zeros(3000), n={"b": torch.zeros(2)}) for _ in "ab"]
    path = tmp_path / "x"
    filled = lazy_stack(members).memmap_like(path)
    assert set(outcomes(path).values()) == {"unchecked"}
    for value, member in enumerate(filled.tensordicts):
        member["a"].fill_(value + 1)
        member["n", "b"].fill_(value + 1)
    seal(path)
    files = outcomes(path)
    assert set(files.values()) == {"good"}
    # Two leaves and two levels for each member, and the level of the stack.
    assert len(files) == 9
    leaf = path / "1" / "n" / "b.memmap"
    times = os.stat(leaf)
    leaf.write_bytes(bytes(8))
    os.utime(leaf, ns=(times.st_atime_ns, times.st_mtime_ns))
    (line,) = verify(path).lines("damaged", "changed or damaged")
    assert "'b'" in line
    assert str(leaf) in line
    assert TensorDict.load(path)["a"][:, 0].tolist() == [1, 2]


PARTS = {
    "n": ("n", ("n", "b")),
    "n/m": ("n", ("n", "m", "c")),
    ("s", "1"): ("s", ("s", "1", "x")),
    "it's/a": ("it's", ("it's", "a", "y")),
}


def in_parts() -> TensorDict:
    """Every leaf has other values, so that each can be found in a file."""
    values = iter(torch.arange(100.0).view(10, 10))
    members = [TensorDict(x=next(values)) for _ in range(2)]
    return TensorDict(
        {
            "a": next(values),
            "n": {"b": next(values), "m": {"c": next(values)}},
            "nn": {"b": next(values)},
            "s": lazy_stack(members),
            "it's": {"a": {"y": next(values)}},
        }
    )


def flip_values(save: Path, values: torch.Tensor) -> None:
    """Change a bit of these values, in whichever file of the save they are."""
    wanted = values.numpy().tobytes()
    for path in [save, *save.rglob("*")]:
        if path.is_file() and wanted in path.read_bytes():
            flip(path, path.read_bytes().index(wanted) + 5)


@pytest.mark.parametrize("name", ["tree", "x.tdz", "x.safetensors", "consolidated"])
@pytest.mark.parametrize("subpath", PARTS, ids=str)
def test_of_a_part_only_that_part_is_checked(tmp_path, name, subpath):
    path, td = tmp_path / name, in_parts()
    (td.consolidate if name == "consolidated" else td.save)(path)
    if name == "x.safetensors" and "s" in subpath[:1]:
        pytest.skip("a stack is dense there, so a member is no part of the file")
    within = PARTS[subpath][1]
    flip_values(path, td["a"])
    flip_values(path, td["nn", "b"])
    with pytest.raises(RuntimeError, match="is damaged"):
        TensorDict.load_memmap(path, verify=True)
    loaded = TensorDict.load_memmap(path, verify=True, subpath=subpath)
    keys = within[len(subpath if isinstance(subpath, tuple) else subpath.split("/")) :]
    leaf = td["s"].tensordicts[1]["x"] if within[0] == "s" else td[within]
    assert torch.equal(loaded[keys], leaf)
    flip_values(path, leaf)
    with pytest.raises(RuntimeError, match="is damaged"):
        TensorDict.load_memmap(path, verify=True, subpath=subpath)
