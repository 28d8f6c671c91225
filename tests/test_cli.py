"""``python -m tensordict``: doctor, demo, and what they say when something is wrong."""

import ctypes
import errno
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import tensordict
from tensordict import _rust, cli
from tensordict.cli import demo, doctor

TINY = ["--d-model", "16", "--layers", "1", "--images", "1500", "--side", "4"]
TINY += ["--batch", "8", "--batches", "4", "--threads", "2"]


def install(folder, name, version, *files):
    """Make ``folder`` look as if pip had installed a distribution with ``files``."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    info.joinpath("RECORD").write_text("".join(f"{file}\n" for file in files))


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Only what a test installs is installed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_doctor_names_versions_cores_and_limits(capsys):
    assert cli.main(["doctor", "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["tensordict"] == tensordict.__version__
    assert found["versions"]["tensordict-core (crate)"] == _rust.core_version
    assert found["versions"]["python"].startswith(f"{sys.version_info.major}.")
    assert found["build"]["profile"] in ("debug", "release")
    assert Path(found["build"]["package"]) == Path(tensordict.__file__).parent
    assert 1 <= found["cores"]["process"] <= found["cores"]["machine"]
    assert found["limits"]["RLIMIT_NOFILE"]
    assert found["filesystems"]["current directory"]["free_bytes"] > 0


@pytest.mark.parametrize(
    ("version", "is_tried"),
    [("3.10.9", False), ("3.11.0", True), ("3.15.2", True), ("3.16.0a1+", False)],
)
def test_doctor_says_whether_this_python_was_tried(
    version, is_tried, monkeypatch, capsys
):
    monkeypatch.setattr("platform.python_version", lambda: version)
    assert doctor.report()["tried"]["python"] is is_tried
    cli.main(["doctor"])
    said = "tried" if is_tried else "not among the tried"
    assert f"{version} ({said}: 3.11 to 3.15)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("version", "is_tried"), [("2.9.1", False), ("2.11.0+cpu", True), ("2.16.0", False)]
)
def test_doctor_says_whether_this_torch_was_tried(version, is_tried, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert doctor.is_tried("torch") is is_tried


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_doctor_knows_the_kernel_and_the_filesystem():
    assert doctor.limits()["vm.max_map_count"] > 0
    assert doctor.limits()["mappings now"] > 10
    assert doctor.filesystem(Path("/proc"))["type"] == "proc"


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_doctor_asks_the_kernel_for_io_uring(monkeypatch):
    answers = {
        errno.EINVAL: "allowed",
        errno.EPERM: "forbidden",
        errno.ENOSYS: "the kernel has none",
    }
    assert doctor.limits()["io_uring"] in answers.values()
    for refused, answer in answers.items():
        monkeypatch.setattr(ctypes, "get_errno", lambda refused=refused: refused)
        assert doctor.io_uring() == answer


def test_doctor_names_what_torch_was_built_for_and_each_device(monkeypatch, capsys):
    device = types.SimpleNamespace(name="Card", total_memory=80e9)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: device)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    found = doctor.accelerators()
    assert found["torch built for"] == "processors alone"
    assert found["cuda:1"] == "Card, 80.0 GB"
    cli.main(["doctor"])
    assert "Card, 80.0 GB" in capsys.readouterr().out


def test_doctor_names_every_shortcut(capsys):
    cli.main(["doctor"])
    out = capsys.readouterr().out
    assert doctor.shortcuts()
    for name in doctor.shortcuts():
        assert re.search(rf"^  {name} +(not )?taken$", out, re.MULTILINE)


def test_doctor_answers_with_an_extension_of_another_build(monkeypatch, capsys):
    monkeypatch.delattr(_rust, "shortcuts", raising=False)
    assert cli.main(["doctor"]) in (0, 1)
    assert tensordict.__version__ in capsys.readouterr().out


def test_doctor_prints_for_people(capsys, installed):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert tensordict.__version__ in out
    assert "belongs to this package alone" in out


def test_doctor_finds_nothing_where_nothing_is(installed):
    install(installed, "unrelated", "1.0", "unrelated/__init__.py")
    install(installed, "tensordict-plugin", "1.0", "tensordict_plugin/__init__.py")
    assert doctor.conflicts() == []


def test_doctor_finds_another_owner_of_the_import_name(installed, capsys):
    install(installed, "tensordict", "0.15.3", "tensordict/__init__.py")
    (conflict,) = doctor.conflicts()
    assert conflict["distribution"] == "tensordict"
    assert conflict["version"] == "0.15.3"
    assert conflict["location"] == str(installed)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "CONFLICT: tensordict 0.15.3" in out
    assert "pip uninstall -y tensordict tensordict-rs" in out


def test_doctor_finds_an_owner_without_a_record(installed):
    install(installed, "tensordict-nightly", "1.0")
    info = installed / "tensordict_nightly-1.0.dist-info"
    info.joinpath("RECORD").unlink()
    info.joinpath("top_level.txt").write_text("tensordict\n")
    (conflict,) = doctor.conflicts()
    assert conflict["distribution"] == "tensordict-nightly"


def test_doctor_accepts_an_empty_distribution_of_that_name(installed):
    # README.md, "If a library depends on the published package".
    install(installed, "tensordict", "0.15.3", "tensordict-0.15.3.dist-info/METADATA")
    assert doctor.conflicts() == []


def test_doctor_finds_files_of_ours_that_were_overwritten(installed):
    # The digest of the empty file, as pip writes it.
    empty = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    package = installed / "tensordict"
    package.mkdir()
    (package / "whole.py").touch()
    (package / "changed.py").write_text("import this\n")
    files = [f"tensordict/{name}.py,{empty},0" for name in ("whole", "changed", "gone")]
    install(installed, "tensordict-rs", "0.1.0", *files)
    (conflict,) = doctor.conflicts()
    assert conflict["problem"] == (
        "files were overwritten: tensordict/changed.py, tensordict/gone.py (missing)"
    )


def test_doctor_sees_that_another_package_is_imported(installed, monkeypatch):
    monkeypatch.setattr(tensordict, "__version__", "0.15.3")
    (conflict,) = doctor.conflicts()
    assert conflict["problem"] == "the package that is imported is not this one"


def test_demo_holds_its_checks_and_leaves_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.main(["demo", *TINY]) == 0
    out = capsys.readouterr().out
    assert "all 7 checks held" in out
    assert "the second model's output is the same after" in out
    assert "1,500 images of 4x4x3" in out
    # The code of each step, what a collection looks like, a comparison, what rates mean.
    assert '>>> loaded = TensorDict.load_memmap(path, mode="r")' in out
    assert ">>> dataset[rows] = batch" in out
    assert "images: MemoryMappedTensor(shape=torch.Size([1500, 4, 4, 3])" in out
    assert "in comparison: torch.save takes" in out
    assert "page cache" in out
    assert list(tmp_path.iterdir()) == []


def test_demo_draws_a_progress_bar_on_terminals_alone(capsys, monkeypatch):
    assert cli.main(["demo", *TINY]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert cli.main(["demo", *TINY]) == 0
    assert "filling" in capsys.readouterr().err


def test_demo_keeps_the_folder_it_is_given_and_works_there_again(tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    assert cli.main(["demo", str(folder), *TINY]) == 0
    assert tensordict.TensorDict.load_memmap(folder / "dataset").shape == (1500,)
    fewer = [*TINY, "--images", "700"]
    assert cli.main(["demo", str(folder), *fewer]) == 0
    assert tensordict.TensorDict.load_memmap(folder / "dataset").shape == (700,)


def test_demo_leaves_a_folder_with_other_files_alone(tmp_path, capsys):
    mine = tmp_path / "dataset" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    assert cli.main(["demo", str(tmp_path), *TINY]) == 1
    assert "no earlier demo wrote" in capsys.readouterr().err
    assert mine.read_text() == "years of work"


def test_demo_says_when_the_disk_is_too_small(tmp_path, capsys):
    assert cli.main(["demo", str(tmp_path), *TINY, "--images", "9" * 15]) == 1
    assert "pass another PATH or smaller sizes" in capsys.readouterr().err


def test_demo_fails_when_a_check_fails(tmp_path, capsys, monkeypatch):
    shade = demo.SHADE_STEP
    images = demo._images

    def wrong_on_the_second_look(rows, pattern):
        if len(rows) == 8:
            monkeypatch.setattr(demo, "SHADE_STEP", shade + 1)
        return images(rows, pattern)

    monkeypatch.setattr(demo, "_images", wrong_on_the_second_look)
    assert cli.main(["demo", str(tmp_path), *TINY]) == 1
    out = capsys.readouterr().out
    assert "FAILED  every random batch equals the written rows" in out
    assert "1 checks FAILED" in out


@pytest.mark.parametrize("text", ["0", "-1", "17", "x"])
def test_demo_refuses_a_wrong_width(text, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["demo", "--d-model", text])
    assert caught.value.code == 2
    assert "--d-model" in capsys.readouterr().err


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(command in out for command in cli.COMMANDS)


def test_runs_as_a_module_with_the_status_of_the_command(tmp_path):
    install(tmp_path, "tensordict", "0.15.3", "tensordict/__init__.py")
    path = os.pathsep.join([str(Path(tensordict.__file__).parents[1]), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-m", "tensordict", "doctor", "--json"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    conflicts = json.loads(done.stdout)["conflicts"]
    assert "tensordict" in [conflict["distribution"] for conflict in conflicts]
