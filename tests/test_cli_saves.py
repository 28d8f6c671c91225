"""``tensordict inspect``, ``verify``, ``seal``, ``convert``, ``diff``."""

import json
import os
import pickle
import resource
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import tensordict
from tensordict import NonTensorData, TensorDict, cli, load
from tensordict.ops.display import readable

PACKAGE = Path(tensordict.__file__).parent
RELEASE = Path(__file__).parent / "compat"
NAMES = {
    "tree": "folder",
    "archive": "file.tdz",
    "safetensors": "file.safetensors",
    "consolidated": "file.consolidated",
}


def tree():
    nested = {"b": torch.zeros(3, dtype=torch.int16), "m": {"c": torch.ones(3)}}
    return TensorDict({"a": torch.ones(3, 2), "n": nested}, [3], names=["t"])


def call(capsys, *arguments):
    """The status of a command, and what it printed: as data with ``--json``."""
    status = cli.main([*map(str, arguments)])
    out, err = capsys.readouterr()
    return status, json.loads(out) if "--json" in arguments and out else out + err


@pytest.fixture
def saved(tmp_path):
    tree().save(tmp_path / "folder")
    return tmp_path / "folder"


def in_layout(saved, layout):
    path = saved.parent / NAMES[layout]
    if layout != "tree":
        assert cli.main(["convert", str(saved), str(path), "--layout", layout]) == 0
    return path


def flip_last_byte_of_a(path, layout):
    """Change a byte of the tensor "a", and leave the time of the file."""
    file = path / "a.memmap" if layout == "tree" else path
    times = os.stat(file)
    content = bytearray(file.read_bytes())
    at = content.index(struct.pack("<6f", *[1.0] * 6)) + 23
    content[at] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("layout", NAMES)
def test_inspect_lists_every_entry(layout, saved, capsys):
    path = in_layout(saved, layout)
    capsys.readouterr()
    status, found = call(capsys, "inspect", path, "--json")
    assert status == 0
    assert found["layout"] == layout
    assert found["num_bytes"] == 24 + 6 + 12
    tensors = {
        tuple(entry["key"]): (entry["dtype"], entry["shape"], entry["num_bytes"])
        for entry in found["entries"]
        if entry["kind"] == "tensor"
    }
    assert tensors == {
        ("a",): ("float32", [3, 2], 24),
        ("n", "b"): ("int16", [3], 6),
        ("n", "m", "c"): ("float32", [3], 12),
    }
    status, text = call(capsys, "inspect", path)
    assert "a: float32[3, 2] 24 B" in text


@pytest.mark.parametrize("layout", NAMES)
def test_convert_and_diff_every_layout(layout, saved, capsys):
    path = in_layout(saved, layout)
    back = saved.parent / "back"
    assert call(capsys, "convert", path, back)[0] == 0
    assert call(capsys, "diff", saved, back)[0] == 0
    found = load(back)
    assert (found == tree()).all()
    assert found.names == ["t"]


def convert(capsys, source, target, layout, *options):
    """Convert; what names the result."""
    further = ["--shards", "2"] if layout == "shards" else []
    name = "safetensors" if layout == "shards" else layout
    options = [*options, *further, "--layout", name, "--json"]
    status, found = call(capsys, "convert", source, target, *options)
    assert status == 0, found
    assert found["layout"] == name
    return target


@pytest.mark.parametrize("target", [*NAMES, "shards"])
@pytest.mark.parametrize("source", [*NAMES, "shards"])
def test_convert_any_layout_to_any(source, target, saved, capsys):
    names = NAMES | {"shards": "model.safetensors"}
    first = convert(capsys, saved, saved.parent / f"first.{names[source]}", source)
    second = convert(capsys, first, saved.parent / f"second.{names[target]}", target)
    for path in (first, second):
        assert call(capsys, "verify", path, "--deep")[0] == 0
    status, found = call(capsys, "diff", saved, second, "--json")
    assert (status, found["differences"]) == (0, [])
    assert (load(second) == tree()).all()
    assert load(second).names == ["t"]


@pytest.mark.parametrize("layout", NAMES)
def test_convert_refuses_what_is_damaged(layout, saved, capsys):
    path = in_layout(saved, layout)
    flip_last_byte_of_a(path, layout)
    if call(capsys, "verify", path)[0] == 3:
        pytest.skip("this file system does not tell a damage from a change")
    target = saved.parent / "copy"
    assert cli.main(["convert", str(path), str(target)]) == 2
    assert "bytes" in capsys.readouterr().err
    assert not target.exists()
    assert call(capsys, "convert", path, target, "--no-verify")[0] == 0
    assert call(capsys, "verify", target)[0] == 0


def convert_within(num_bytes, action, arguments):
    """Convert in a process whose files may have so many bytes; how it ended."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, action)
            resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
            os._exit(cli.main([*map(str, arguments)]))
        finally:
            os._exit(99)
    return os.waitpid(child, 0)[1]


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("layout", [*NAMES, "shards"])
def test_a_convert_that_ends_early_leaves_the_old_save(layout, is_killed, tmp_path):
    TensorDict(a=torch.ones(50_000), b=torch.ones(300_000)).save(tmp_path / "source")
    target = tmp_path / "there" / (NAMES | {"shards": "m.safetensors"})[layout]
    options = ["--layout", "safetensors" if layout == "shards" else layout, "--force"]
    options += ["--shards", "2"] if layout == "shards" else []
    TensorDict(z=torch.ones(2)).save(tmp_path / "old")
    assert cli.main(["convert", str(tmp_path / "old"), str(target), *options]) == 0
    before = sorted(os.listdir(target.parent))
    action = signal.SIG_DFL if is_killed else signal.SIG_IGN
    arguments = ["convert", tmp_path / "source", target, *options]
    status = convert_within(1 << 20, action, arguments)
    if is_killed:
        assert os.WTERMSIG(status) == signal.SIGXFSZ
    else:
        assert os.waitstatus_to_exitcode(status) == 2
        assert sorted(os.listdir(target.parent)) == before
    assert list(load(target).keys()) == ["z"]
    assert cli.main(["verify", str(target), "--deep"]) == 0
    # The next one sweeps what the killed one left.
    assert cli.main([*map(str, arguments)]) == 0
    assert list(load(target).keys()) == ["a", "b"]
    assert not [name for name in os.listdir(target.parent) if "tmp" in name]


@pytest.mark.parametrize("options", [(), ("--deep",)])
@pytest.mark.parametrize("layout", NAMES)
def test_verify_finds_a_flipped_bit(layout, options, saved, capsys):
    path = in_layout(saved, layout)
    capsys.readouterr()
    assert call(capsys, "verify", path, *options)[0] == 0
    flip_last_byte_of_a(path, layout)
    status, found = call(capsys, "verify", path, *options, "--json")
    # The file may have been changed if the file system does not tell.
    assert status in (1, 3)
    (line,) = found["damaged"] + found["modified"]
    assert "the entry 'a' (" in line
    assert "bytes" in line


@pytest.mark.parametrize("layout", NAMES)
def test_verify_tells_what_was_modified(layout, saved, capsys):
    path = in_layout(saved, layout)
    flip_last_byte_of_a(path, layout)
    os.utime(path / "a.memmap" if layout == "tree" else path)
    capsys.readouterr()
    status, found = call(capsys, "verify", path, "--json")
    assert (status, found["damaged"]) == (3, [])
    (line,) = found["modified"]
    assert "the entry 'a' (" in line


def test_deep_looks_at_what_other_tools_go_by(saved, capsys):
    path = in_layout(saved, "archive")
    times = os.stat(path)
    content = bytearray(path.read_bytes())
    record = content.rindex(b"n/b.memmap") - 46
    content[record + 16] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    capsys.readouterr()
    assert call(capsys, "verify", path)[0] == 0
    status, found = call(capsys, "verify", path, "--deep", "--json")
    assert status in (1, 3)
    (line,) = found["damaged"] + found["modified"]
    assert "the entry ('n', 'b') (" in line
    assert "not those of its checksum" in line


@pytest.mark.parametrize("layout", ["tree", "archive"])
def test_deep_goes_through_pickles_without_running_them(layout, tmp_path, capsys):
    class Loud:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "it was run"),)

    path = tmp_path / NAMES[layout]
    data = TensorDict(n={"loud": NonTensorData(Loud())})
    data.memmap(path, checks=False)
    assert call(capsys, "verify", path, "--deep")[0] == 0
    assert not (tmp_path / "it was run").exists()
    if layout == "tree":
        file = path / "n" / "loud" / "other.pickle"
        os.truncate(file, file.stat().st_size - 1)
    else:
        with zipfile.ZipFile(path) as archive:
            read = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in read.items():
                cut = content[:-1] if name.endswith("pickle") else content
                archive.writestr(name, cut)
    assert call(capsys, "verify", path)[0] == 0
    status, found = call(capsys, "verify", path, "--deep", "--json")
    assert status == 1
    (line,) = found["damaged"]
    assert "the entry ('n', 'loud') (" in line
    assert "not a complete pickle" in line


@pytest.mark.parametrize("command", ["verify", "seal", "convert", "diff"])
def test_long_work_shows_a_bar_on_terminals(command, saved, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    further = {"convert": [saved.parent / "x"], "diff": [saved]}.get(command, [])
    assert cli.main([command, str(saved), *map(str, further)]) == 0
    assert "%" in capsys.readouterr().err
    further = {"convert": [saved.parent / "y"], "diff": [saved]}.get(command, [])
    assert cli.main([command, str(saved), *map(str, further), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_verify_finds_what_is_cut_or_missing(saved, capsys):
    os.truncate(saved / "a.memmap", 23)
    os.unlink(saved / "n" / "b.memmap")
    shutil.rmtree(saved / "n" / "m")
    status, found = call(capsys, "verify", saved, "--json")
    assert status == 1
    assert [line.split(":")[0] for line in found["damaged"]] == [
        "the entry 'a'",
        "the entry ('n', 'b')",
        "the entry ('n', 'm')",
    ]
    status, text = call(capsys, "inspect", saved)
    assert status == 1
    assert "its file has 23 bytes and its shape and dtype need 24" in text


def test_seal_a_dataset_that_was_filled(tmp_path, capsys):
    data = tree().memmap_like(tmp_path / "data")
    data["a"].fill_(1)
    assert call(capsys, "seal", tmp_path / "data")[0] == 0
    assert call(capsys, "verify", tmp_path / "data", "--deep")[0] == 0
    assert call(capsys, "seal", tmp_path / "nothing")[0] == 2


@pytest.mark.parametrize("layout", ["safetensors", "consolidated"])
def test_files_with_sums_of_their_own_are_written_again(layout, saved, capsys):
    path = in_layout(saved, layout)
    flip_last_byte_of_a(path, layout)
    os.utime(path)
    capsys.readouterr()
    status, text = call(capsys, "seal", path)
    assert status == 2
    assert f"{path} is a {layout} file, whose checksums are part of it" in text
    assert call(capsys, "verify", path)[0] == 3
    again = "convert", path, path, "--force", "--layout", layout
    assert call(capsys, *again)[0] == 0
    assert call(capsys, "verify", path)[0] == 0
    assert load(path)["a"].flatten()[-1] != 1
    assert (load(path).exclude("a") == tree().exclude("a")).all()


def test_diff_says_where_and_how_much(saved, capsys):
    other = tree()
    other["a"][1, 0] += 0.5
    other["n", "b"] = other["n", "b"].int()
    other["new"] = torch.ones(3)
    del other["n", "m"]
    other.save(saved.parent / "other")
    status, found = call(capsys, "diff", saved, saved.parent / "other", "--json")
    assert status == 1
    what = {tuple(one["key"]): one for one in found["differences"]}
    assert what[("a",)]["what"] == "values"
    assert what[("a",)]["deviation"] == 0.5
    assert what[("a",)]["detail"] == "1 of 6 items differ, by at most 0.5"
    assert what[("n", "b")]["what"] == "metadata"
    assert what[("new",)]["what"] == "only in second"
    assert what[("n", "m", "c")]["what"] == "only in first"
    assert len(what) == 5
    loose = "diff", saved, saved.parent / "other", "--atol", 1, "--json"
    assert ["a"] not in [one["key"] for one in call(capsys, *loose)[1]["differences"]]
    names = "diff", saved, saved.parent / "other", "--metadata", "--json"
    assert ["a"] not in [one["key"] for one in call(capsys, *names)[1]["differences"]]


def test_diff_of_values_that_are_no_numbers(tmp_path, capsys):
    one = TensorDict(a=torch.tensor([float("nan"), 1.0]), b=torch.tensor([True, False]))
    two = TensorDict(a=torch.tensor([float("nan"), 1.0]), b=torch.tensor([True, True]))
    one.save(tmp_path / "one")
    two.save(tmp_path / "two")
    status, found = call(capsys, "diff", tmp_path / "one", tmp_path / "two", "--json")
    assert status == 1
    assert [each["key"] for each in found["differences"]] == [["b"]]


def test_convert_to_shards(saved, capsys):
    target = saved.parent / "model.safetensors"
    assert call(capsys, "convert", saved, target, "--shards", 2)[0] == 0
    files = sorted(path.name for path in saved.parent.glob("model*"))
    assert files == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert call(capsys, "verify", target, "--deep")[0] == 0
    assert call(capsys, "diff", saved, target)[0] == 0
    status, text = call(capsys, "convert", saved, saved.parent / "x", "--shards", 2)
    assert status == 2
    assert "need safetensors" in text


def test_convert_to_an_index(saved, capsys):
    index = saved.parent / "model.safetensors.index.json"
    status, out = call(capsys, "convert", saved, index)
    assert (status, "safetensors" in out) == (0, True)
    assert sorted(path.name for path in saved.parent.glob("model*")) == [
        "model-00001-of-00001.safetensors",
        "model.safetensors.index.json",
    ]
    assert call(capsys, "diff", saved, index)[0] == 0
    status, err = call(capsys, "convert", saved, index)
    assert (status, "exists already" in err) == (2, True)
    status, err = call(capsys, "convert", saved, index, "--layout", "tree", "--force")
    assert (status, "name for safetensors files" in err) == (2, True)
    assert call(capsys, "convert", saved, index, "--force", "--shards", 2)[0] == 0
    assert call(capsys, "diff", saved, index)[0] == 0


def test_convert_replaces_only_when_told(saved, capsys):
    other = saved.parent / "other"
    TensorDict(z=torch.ones(1)).save(other)
    status, text = call(capsys, "convert", saved, other)
    assert status == 2
    assert "--force" in text
    assert list(load(other).keys()) == ["z"]
    assert call(capsys, "convert", saved, other, "--force")[0] == 0
    assert list(load(other).keys()) == ["a", "n"]


def test_what_safetensors_cannot_hold_says_what_can(tmp_path, capsys):
    members = [TensorDict(a=torch.zeros(n)) for n in (2, 3)]
    TensorDict.lazy_stack(members).save(tmp_path / "ragged")
    target = tmp_path / "x.safetensors"
    status, text = call(capsys, "convert", tmp_path / "ragged", target)
    assert status == 2
    assert "'a'" in text
    assert "archive (`.tdz`)" in text
    assert not target.exists()
    assert call(capsys, "convert", tmp_path / "ragged", tmp_path / "x.tdz")[0] == 0


def test_convert_names_the_index_that_is_in_the_way(saved, capsys):
    target = saved.parent / "x.safetensors"
    assert call(capsys, "convert", saved, target)[0] == 0
    assert call(capsys, "convert", saved, target, "--shards", 2, "--force")[0] == 0
    assert not target.exists()
    status, text = call(capsys, "convert", saved, target)
    assert status == 2
    assert "x.safetensors.index.json" in text
    assert call(capsys, "convert", saved, target, "--force")[0] == 0
    assert [path.name for path in saved.parent.glob("x*")] == ["x.safetensors"]


def test_files_of_the_release(tmp_path, capsys):
    folder = RELEASE / "memmap_0_15_3" / "plain"
    file = RELEASE / "consolidated_0_15_3" / "plain"
    assert call(capsys, "inspect", folder)[0] == 0
    assert call(capsys, "verify", folder, "--deep")[0] == 0
    assert call(capsys, "verify", file, "--deep")[0] == 0
    assert call(capsys, "convert", folder, tmp_path / "x.safetensors")[0] == 0
    found = load(tmp_path / "x.safetensors")
    assert found["nested", "r"].tolist() == [0, 1, 2]


def test_safetensors_of_anybody(tmp_path, capsys):
    package = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    package.save_file({"layer.weight": torch.ones(2, 2), "bias": torch.ones(2)}, path)
    status, found = call(capsys, "inspect", path, "--json")
    assert status == 0
    keys = [entry["key"] for entry in found["entries"] if entry["kind"] == "tensor"]
    assert sorted(keys) == [["bias"], ["layer", "weight"]]
    assert call(capsys, "convert", path, tmp_path / "folder")[0] == 0
    assert load(tmp_path / "folder")["layer", "weight"].shape == (2, 2)


@pytest.mark.parametrize("command", ["inspect", "verify", "seal"])
def test_what_is_no_save(command, tmp_path, capsys):
    assert call(capsys, command, tmp_path / "nothing")[0] == 2
    (tmp_path / "notes.txt").write_text("not a save at all")
    status, text = call(capsys, command, tmp_path / "notes.txt")
    assert status == 2
    assert "notes.txt" in text


def write_numpy(save, path):
    with open(path, "wb") as file:  # a path would get a suffix
        save(file, np.zeros(3))


WRITERS = {
    "torch.load": lambda path: torch.save({"a": torch.zeros(3)}, path),
    "torch.load(path": lambda path: torch.save(
        {"a": torch.zeros(3)}, path, _use_new_zipfile_serialization=False
    ),
    "numpy.load": lambda path: write_numpy(np.savez, path),
    "by NumPy": lambda path: write_numpy(np.save, path),
    "pickle.load": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
    "h5py": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(20)),
}


@pytest.mark.parametrize("command", ["inspect", "verify", "seal", "convert", "diff"])
@pytest.mark.parametrize("advice", WRITERS)
def test_files_of_other_programs_are_named(advice, command, tmp_path, capsys):
    path = tmp_path / "their file"
    WRITERS[advice](path)
    further = {"convert": [tmp_path / "x"], "diff": [path]}.get(command, [])
    status, text = call(capsys, command, path, *further)
    if advice == "torch.load" and command in ("convert", "diff", "inspect"):
        # These read it, without running its pickle.
        assert status == 0
        return
    assert status == 2
    assert "their file is" in text
    assert advice in text
    assert "meta.json:" not in text


@pytest.mark.parametrize("command", ["inspect", "verify", "convert", "diff"])
def test_files_of_other_programs_are_named_without_the_library(
    command, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.delitem(sys.modules, "tensordict.storage.arrays.hdf5", raising=False)
    path = tmp_path / "their file"
    WRITERS["h5py"](path)
    further = {"convert": [tmp_path / "x"], "diff": [path]}.get(command, [])
    status, text = call(capsys, command, path, *further)
    assert status == 2
    assert "their file is" in text
    assert "TensorDict.from_h5(path) opens it, with h5py" in text
    assert not (tmp_path / "x").exists()


def test_the_advice_on_a_file_of_torch_is_right(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    path = tmp_path / "x.pt"
    torch.save(model.state_dict(), path)
    state_dict = torch.load(path, weights_only=True)
    TensorDict(state_dict).unflatten_keys(".").save(tmp_path / "save")
    assert (load(tmp_path / "save") == TensorDict.from_module(model).data).all()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_nobody_reads_on(options, saved):
    # More output than a pipe holds, and a reader that stops after the first line.
    td = TensorDict({f"entry {n}": torch.zeros(1) for n in range(3000)})
    td.save(saved.parent / "large.safetensors")
    command = [sys.executable, "-m", "tensordict", "inspect"]
    command += [str(saved.parent / "large.safetensors"), *options]
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_class_that_is_not_here(saved, capsys):
    meta = saved / "meta.json"
    text = meta.read_text().replace("tensordict._td.TensorDict'>", "their.Thing'>")
    meta.write_text(text.replace("tensordict:TensorDict", "their:Thing"))
    status, text = call(capsys, "convert", saved, saved.parent / "x")
    assert status == 2
    assert "their.Thing" in text
    assert "--import MODULE" in text
    # Listing needs no class.
    assert call(capsys, "inspect", saved)[0] == 0


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")],
)
def test_readable_sizes(num_bytes, text):
    assert readable(num_bytes) == text


@pytest.mark.parametrize("layout", ["archive", "safetensors"])
def test_verify_names_a_file_that_was_cut_off(layout, saved, capsys):
    path = in_layout(saved, layout)
    os.truncate(path, path.stat().st_size // 2)
    capsys.readouterr()
    status, found = call(capsys, "verify", path, "--json")
    assert (status, found["layout"]) == (1, layout)
    (line,) = found["damaged"]
    assert "the end of the file is missing" in line


def test_metadata_that_is_no_json_is_damage_that_names_the_file(saved, capsys):
    (saved / "meta.json").write_text('{"a": ')
    status, text = call(capsys, "verify", saved)
    assert status == 1
    assert "meta.json, is not JSON" in text


def test_an_error_is_json_where_json_is_asked_for(tmp_path, capsys):
    status, found = call(capsys, "inspect", tmp_path, "--json")
    assert status == 2
    assert found["error"] == f"{tmp_path} is not a save: it has no meta.json."


def test_a_save_without_sums_is_not_said_to_be_compared(capsys):
    path = next(RELEASE.glob("memmap_0_15_3/*/meta.json")).parent
    status, text = call(capsys, "verify", path, "--deep")
    assert status == 0
    assert "no checksums to compare" in text


@pytest.mark.parametrize("layout", NAMES)
def test_inspect_shows_batch_sizes(layout, saved, capsys):
    path = in_layout(saved, layout)
    capsys.readouterr()
    assert "./ TensorDict [3]" in call(capsys, "inspect", path)[1]


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"tensordict {tensordict.__version__}\n"


@pytest.mark.parametrize("name", ["folder", "x.tdz"])
def test_a_nested_tensor_without_items_has_no_file(name, tmp_path, capsys):
    path = tmp_path / name
    ragged = torch.nested.nested_tensor
    td = TensorDict(
        none=ragged([torch.ones(0, 3), torch.ones(4, 0)]),
        some=ragged([torch.ones(0, 3), torch.ones(4, 1)]),
    )
    td.save(path)
    for command in ("inspect", "verify"):
        assert call(capsys, command, path)[0] == 0
    if name == "folder":
        (path / "some.memmap").unlink()
        status, text = call(capsys, "inspect", path)
        assert status == 1
        assert text.count("its file is missing") == 1


def test_show_writes_a_page(capsys, tmp_path):
    TensorDict({"<key>": torch.arange(100.0)}).save(tmp_path / "save")
    page = tmp_path / "page.html"
    arguments = ["--output", page, "--histograms", "--no-images"]
    status, text = call(capsys, "show", tmp_path / "save", *arguments)
    assert (status, text) == (0, f"{page}\n")
    written = page.read_text()
    assert "&lt;key&gt;" in written
    assert "<svg" in written


def test_show_opens_a_browser(capsys, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    TensorDict(a=1).save(tmp_path / "save")
    status, text = call(capsys, "show", tmp_path / "save")
    assert status == 0
    assert opened == [f"file://{text.strip()}"]


def test_inspect_draws_bars(capsys, tmp_path):
    TensorDict(a=torch.zeros(3), b=torch.zeros(1), c=torch.zeros(0)).save(
        tmp_path / "x"
    )
    _, text = call(capsys, "inspect", tmp_path / "x", "--bars")
    lines = text.splitlines()
    assert lines[2:] == [
        "  a: float32[3] 12 B ████████████",
        "  b: float32[1] 4 B ████",
        "  c: float32[0] 0 B",
    ]


# Files of others, and what is no save --------------------------------------------------


def rows():
    return TensorDict(a=torch.arange(3), b=torch.ones(3), batch_size=[3])


def write_folder(path, **options):
    path.mkdir()
    tensordict.to_safetensors(tree(), path / "model.safetensors", **options)
    (path / "config.json").write_text("{}")


def write_checkpoint(path):
    with tensordict.checkpoint.Checkpointer(path) as checkpointer:
        checkpointer.save(3, data=tree())


def write_dataset(path):
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"a": [0, 1, 2], "b": [1.0] * 3}).save_to_disk(path)


OTHERS = {
    "x.h5": ("h5py", lambda path: tree().to_h5(path).close()),
    "x.zarr": ("zarr", lambda path: tree().to_zarr(path).close()),
    "x.parquet": ("pyarrow", lambda path: rows().to_parquet(path)),
    "x.csv": ("pandas", lambda path: rows().to_csv(path)),
    "x.json": ("pandas", lambda path: rows().to_json(path)),
    "x.jsonl": ("pandas", lambda path: rows().to_json(path, lines=True)),
    "x.pt": ("torch", lambda path: torch.save({"a": torch.ones(3)}, path)),
    "model": ("torch", write_folder),
    "shards": ("torch", lambda path: write_folder(path, shards=2)),
    "steps": ("torch", write_checkpoint),
    "dataset": ("datasets", write_dataset),
}


def test_short_lines_of_json_are_no_safetensors_that_were_cut_off(tmp_path, capsys):
    pytest.importorskip("pandas")
    path = tmp_path / "x.jsonl"
    # The ninth byte is a brace, as it is in files of safetensors.
    path.write_text('{"a":1}\n{"a":2}\n')
    status, text = call(capsys, "inspect", path)
    assert (status, "jsonl" in text) == (0, True)


def test_a_load_of_a_dict_of_splits_says_what_reads_one(tmp_path):
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(FileNotFoundError, match="several Hugging Face datasets"):
        load(tmp_path)


@pytest.mark.parametrize("name", OTHERS)
def test_commands_read_what_the_library_reads(name, tmp_path, capsys):
    library, write = OTHERS[name]
    pytest.importorskip(library)
    path = tmp_path / name
    write(path)
    status, text = call(capsys, "inspect", path)
    assert status == 0
    assert str(path) in text
    if name != "steps":
        found = call(capsys, "inspect", path, "--json")[1]
        tensors = {tuple(entry["key"]): entry for entry in found["entries"]}
        assert tensors["a",]["shape"][0] == 3
    assert call(capsys, "show", path, "--output", tmp_path / "x.html")[0] == 0
    assert "float" in (tmp_path / "x.html").read_text()
    assert call(capsys, "convert", path, tmp_path / "tree")[0] == 0
    saved = load(tmp_path / "tree")
    saved = saved["data"] if name == "steps" else saved
    assert saved["a"].shape[0] == 3
    assert call(capsys, "diff", path, tmp_path / "tree", "--metadata")[0] in (0, 1)


ADVICE = {
    "x.h5": "from_h5", "x.zarr": "from_zarr", "x.parquet": "from_parquet",
    "x.pt": "torch.load", "x.csv": "from_csv", "x.json": "from_json", "x.jsonl": "lines=True",
    "model": "from_safetensors", "shards": "from_safetensors", "steps": "Checkpointer",
    "dataset": "load_from_disk",
}  # fmt: skip


@pytest.mark.parametrize("name", ADVICE)
def test_a_load_says_what_reads_it(name, tmp_path):
    library, write = OTHERS[name]
    pytest.importorskip(library)
    path = tmp_path / name
    write(path)
    for each in [path, *path.glob("step-3")]:
        for read in (load, TensorDict.load, TensorDict.load_memmap):
            with pytest.raises((OSError, ValueError), match=ADVICE[name]) as caught:
                read(each)
            assert str(each) in str(caught.value)


@pytest.mark.parametrize("name", ["nope.safetensors", "nope.tdz", "nope.h5"])
def test_a_load_of_a_file_that_is_missing_names_it(name, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        TensorDict.load(tmp_path / name)
    assert caught.value.filename == str(tmp_path / name)
    assert "meta.json" not in str(caught.value)


def test_what_cannot_be_read_says_why(tmp_path, capsys):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and no more")
    status, text = call(capsys, "inspect", tmp_path / "x.parquet")
    assert status == 2
    assert "from_parquet" in text
