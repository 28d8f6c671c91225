"""The tools that run the tests on other Pythons, and the table of what those answered."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="one"/>
<testcase classname="tests.a" name="two"><failure message="no">text</failure></testcase>
<testcase classname="tests.a" name="three"><skipped message="needs h5py"/></testcase>
<testcase classname="tests.b" name="four"><skipped message="needs h5py"/></testcase>
</testsuite></testsuites>"""


def tool(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module(name)


@pytest.fixture
def pythons(monkeypatch):
    return tool("pythons", monkeypatch)


@pytest.fixture
def environments(monkeypatch):
    return tool("python_environments", monkeypatch)


@pytest.fixture
def table(monkeypatch):
    return tool("pythons_table", monkeypatch)


@pytest.fixture
def elsewhere(environments, monkeypatch):
    """No Python is on this machine, and its user is not the superuser."""
    monkeypatch.setattr(environments, "installed", lambda minor: None)
    monkeypatch.setattr(environments.os, "geteuid", lambda: 1000)


def run(pythons, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["pythons.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        pythons.main()
    return int(ended.value.code)


def test_every_test_belongs_to_a_suite_or_has_a_reason(pythons):
    tests = {
        path.relative_to(ROOT / "tests") for path in ROOT.glob("tests/**/test_*.py")
    }
    named = {path.parts[0] for path in tests}
    assert set(pythons.folders(["all"])) | set(pythons.OTHER) == named
    for suite in ("core", "near"):
        assert set(pythons.folders([suite])) <= named
    assert all((ROOT / "tests" / name).exists() for name in pythons.SMOKE)


def test_where_no_environment_can_be_made_the_reason_is_said(
    pythons, elsewhere, monkeypatch, tmp_path, capsys
):
    assert run(pythons, monkeypatch, "3.15", "newest", "--where", tmp_path) == 0
    out = capsys.readouterr().out
    assert "3.15 is not tried: neither pyenv nor the path has it" in out
    assert "can only be made by the superuser" in out
    assert "3.11 is not tried" in out  # `newest` goes down to the oldest
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_no_python_is_refused(pythons, monkeypatch, tmp_path, capsys):
    assert run(pythons, monkeypatch, "python3", "--where", tmp_path) == 0
    assert (
        "python3 is not tried: the name of a Python is such as"
        in capsys.readouterr().out
    )


def test_newest_is_the_first_that_can_be_made(pythons, monkeypatch, tmp_path):
    tried = []

    def prepare(name, arguments):
        tried.append(name)
        if name == "3.15":
            raise pythons.Unavailable("there is no network")
        return name

    monkeypatch.setattr(pythons, "prepare", prepare)
    monkeypatch.setattr(pythons, "try_on", lambda name, arguments: name != "3.14")
    assert run(pythons, monkeypatch, "newest", "--where", tmp_path) == 1
    assert tried == ["3.15", "3.14"]


@pytest.fixture(autouse=True)
def space(environments, monkeypatch):
    """The disk has space for an environment, whatever else is on it."""
    found = shutil.disk_usage("/")._replace(free=10**11)
    monkeypatch.setattr(environments.shutil, "disk_usage", lambda path: found)


@pytest.fixture
def debian(environments, monkeypatch):
    """No Python is on this machine, and its user is the superuser."""
    monkeypatch.setattr(environments, "installed", lambda minor: None)
    monkeypatch.setattr(environments.os, "geteuid", lambda: 0)
    monkeypatch.setattr(environments.platform, "system", lambda: "Linux")
    monkeypatch.setattr(environments.shutil, "which", lambda name: f"/usr/bin/{name}")
    return environments.Debian


def ended(status, said=""):
    return lambda self, command: subprocess.CompletedProcess(command, status, said, "")


def test_refused_name_spaces_are_a_reason(
    pythons, debian, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(debian, "_step", ended(1))
    assert run(pythons, monkeypatch, "3.15", "--where", tmp_path) == 0
    assert "name spaces of mounts and processes, which are" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_fails_is_a_reason_and_leaves_nothing(
    pythons, debian, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(debian, "refusal", lambda self: None)
    monkeypatch.setattr(debian, "_step", ended(1, "E: cannot resolve the host"))
    assert run(pythons, monkeypatch, "3.15", "--where", tmp_path) == 0
    assert (
        "3.15 is not tried: debootstrap failed: E: cannot resolve the host"
        in capsys.readouterr().out
    )
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_never_answers_is_a_reason(
    pythons, debian, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(debian, "refusal", lambda self: None)
    step = debian._step
    monkeypatch.setattr(
        debian, "_step", lambda self, command: step(self, ["sleep", "60"])
    )
    monkeypatch.setattr(sys.modules[debian.__module__], "PATIENCE", 0.01)
    assert run(pythons, monkeypatch, "3.15", "--where", tmp_path) == 0
    assert (
        "3.15 is not tried: Command '['sleep', '60']' timed out"
        in capsys.readouterr().out
    )


def test_a_full_disk_is_a_reason(pythons, environments, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(environments, "installed", lambda minor: sys.executable)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        environments.shutil, "disk_usage", lambda path: usage._replace(free=10**9)
    )
    assert run(pythons, monkeypatch, "3.11", "--where", tmp_path) == 0
    assert "1.0 GB of space, and 8 are needed" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_an_index_without_a_wheel_is_a_reason(
    pythons, environments, monkeypatch, tmp_path, capsys
):
    local = environments.Local
    monkeypatch.setattr(environments, "installed", lambda minor: sys.executable)
    monkeypatch.setattr(local, "create", lambda self: None)
    monkeypatch.setattr(local, "work", tmp_path / "work")
    monkeypatch.setattr(local, "_pip", lambda self, *arguments, **options: False)
    assert run(pythons, monkeypatch, "3.11", "--where", tmp_path) == 0
    assert "3.11 is not tried: pip cannot install torch" in capsys.readouterr().out


def test_a_wheel_that_cannot_be_built_is_a_failure(
    pythons, environments, monkeypatch, tmp_path, capsys
):
    local = environments.Local
    monkeypatch.setattr(environments, "installed", lambda minor: sys.executable)
    for name in ("make", "versions"):
        monkeypatch.setattr(local, name, lambda self, **options: None)

    def make(command, *, check, **options):
        # The tools that build wheels are there: only the wheel fails.
        status = int("release-tools" not in command)
        if status and check:
            raise subprocess.CalledProcessError(status, command)
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(pythons.subprocess, "run", make)
    assert run(pythons, monkeypatch, "3.11", "--where", tmp_path) == 1
    assert "its wheel cannot be built" in capsys.readouterr().out


def test_programs_see_neither_the_checkout_nor_rust(
    environments, monkeypatch, tmp_path
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    local = environments.Local("3.11", tmp_path, sys.executable)
    local.work.mkdir(parents=True)
    # Without -S the packages of the Python that runs this test would be on the path: they may
    # lie in the checkout, and lead to it.
    show = [sys.executable, "-S", "-c", "import os, sys; print(os.environ, sys.path)"]
    said = local.run(show, capture_output=True, text=True)
    assert said.returncode == 0
    assert str(ROOT) not in said.stdout
    assert "cargo" not in said.stdout


def test_a_torch_that_a_name_asks_for_is_the_one_installed(
    environments, monkeypatch, tmp_path
):
    asked = []
    local = environments.Local("3.11-torch-2.11", tmp_path, sys.executable)
    monkeypatch.setattr(local, "create", lambda: local.work.mkdir(parents=True))
    monkeypatch.setattr(local, "_install", asked.extend)
    local.make(libraries=False)
    assert asked[:2] == ["torch==2.11.*", "numpy"]
    assert "pytest>=9" in asked


def test_a_report_is_counted_with_the_reasons(pythons, tmp_path):
    (tmp_path / "report.xml").write_text(REPORT)
    assert pythons.counted(tmp_path / "report.xml") == {
        "passed": 1,
        "failed": ["tests.a::two"],
        "skipped": {"needs h5py": 2},
    }


def test_the_table_has_what_is_known_and_nothing_skipped_without_a_reason(table):
    known = json.loads(table.KEPT.read_text())
    text = table.PAGE.read_text()
    assert table.page(text, known) == text, "run: make pythons-table"
    for name, found in known.items():
        for result in found["suites"].values():
            assert "?" not in result["skipped"], name


def test_the_table_keeps_what_others_answered(table, tmp_path):
    suite = {"passed": 3, "failed": [], "skipped": {}, "status": 0}
    old = {"python": "3.14.1", "torch": "2.14", "suites": {"ops": suite, "nn": suite}}
    new = {"python": "3.14.2", "torch": "2.15", "suites": {"nn": suite | {"passed": 4}}}
    (tmp_path / "3.14.json").write_text(json.dumps(new))
    merged = table.merged({"3.14": old, "3.9": old}, tmp_path)
    assert merged["3.14"]["suites"] == {"ops": suite, "nn": suite | {"passed": 4}}
    assert merged["3.14"]["python"] == "3.14.2"
    assert merged["3.9"] == old
    shown = table.tables(merged)
    assert shown.index("3.9") < shown.index("3.14")
    assert "4 passed" in shown


@pytest.fixture
def speed(monkeypatch):
    return tool("pythons_speed", monkeypatch)


def one(ours, peer, bare=None):
    sides = {"ours": ours, "peer": peer} | ({"bare": bare} if bare else {})
    return {side: {"min": seconds} for side, seconds in sides.items()}


MACHINE = {"python": "3.15.2", "torch": "2.15.0", "date": "today", "load": 0.1}
MEASURED = {
    "operations": {
        "trees": {
            "flat 4": {
                "view": one(1.0, 4.0, 2.0),
                "cat": one(8.0, 4.0, 4.0),
                "select": one(1.0, 9.0),
                "get": one(1.0, 4.0),
                "lost": {"error": "the process died"},
            }
        }
    },
    "tensorclass": {
        "ns": {
            "ours": {"read, batch []": 30.0, "a property by hand": 20.0},
            "peer": {"read, batch []": 120.0, "a property by hand": 20.0},
        }
    },
    "compilation": {
        "of_the_release": {
            "containers": {"compile_s": 0.5, "call_s": 0.25, "guards_s": 0.125}
        }
    },
    "loader": {"contestants": {"BatchLoader": {"rows_per_s": [9e3, 7e3, 8e3]}}},
    "storage": {
        "workloads": {
            "save": {
                "ours": {"s": [2.0, 3.0]},
                "limit": {"s": [1.0, 9.0]},
                "peer, 2 threads": {"s": [8.0]},
                "peer, 4 threads": {"s": [5.0]},
            }
        }
    },
    "checkpoint": {
        "rounds": {
            "restore": {
                "limit": "read",
                "s": {"read": [1.0], "Checkpointer": [3.0], "other": [9.0]},
            }
        }
    },
}
ROWS = {
    "Python": "3.15.2",
    "flat 4 leaves: tensor operations / bare loop, this package": "1.00",
    "flat 4 leaves: tensor operations / bare loop, published package": "1.41",
    "flat 4 leaves: structure operations, times as fast as the published package": "6.0",
    "flat 4 leaves: operations slower than in the published package": "`cat`",
    "tensorclass: reading a field / a hand-written property": "1.50",
    "tensorclass: times as fast as the published package": "4.0",
    "compile: a call / published package": "0.25",
    "loader: thousand rows a second, BatchLoader": "8",
    "storage, save / system calls": "2.00",
    "storage, save, times as fast as the published package": "2.50",
    "checkpoint, restore, Checkpointer / read": "3.00",
}


def test_the_table_of_speed_is_made_from_the_numbers(speed, tmp_path):
    assert set(MEASURED) == set(speed.BENCHES) == set(speed.ROWS)
    (tmp_path / "3.15").mkdir()
    for name, numbers in MEASURED.items():
        path = tmp_path / "3.15" / f"{name}.json"
        path.write_text(json.dumps({"machine": MACHINE, **numbers}))
    (tmp_path / "3.9").mkdir()
    (tmp_path / "3.9" / "loader.json").write_text(
        json.dumps({"machine": MACHINE, **MEASURED["loader"]})
    )
    shown = speed.table(tmp_path).splitlines()
    assert shown[0] == "| | 3.9 | 3.15 |"
    for title, value in ROWS.items():
        known = value if title.startswith(("Python", "loader")) else "-"
        assert f"| {title} | {known} | {value} |" in shown


def test_the_page_has_the_table_of_speed_that_is_kept(speed):
    text = speed.PAGE.read_text()
    assert speed.page(text, speed.KEPT) == text, "run: python tools/pythons_speed.py"


def test_a_benchmark_that_fails_keeps_the_numbers_of_before(
    speed, environments, monkeypatch, tmp_path, capsys
):
    local = environments.Local("3.11", tmp_path, sys.executable)
    (local.work / "release").mkdir(parents=True)
    monkeypatch.setattr(speed, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(local, "run", lambda program, **options: None)
    kept = tmp_path / "kept" / "3.11" / "loader.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    (local.work / "loader.json").write_text("of another run")
    assert not speed.measure(local, ["loader"], 1)
    assert kept.read_text() == "{}"
    assert "loader did not end" in capsys.readouterr().out
