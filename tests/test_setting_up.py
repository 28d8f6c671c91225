"""The commands that set up an environment: ``make`` and ``tools/environment.py``."""

import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tensordict.cli import doctor

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", ["demo", "test", "dev"])
def test_make_leaves_an_environment_with_the_package(target, tmp_path):
    done = subprocess.run(
        ["make", "--dry-run", target, f"VENV={tmp_path / 'new'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    made = done.stdout.index("tools/environment.py")
    built = done.stdout.index("maturin develop")
    assert made < built < done.stdout.index("--editable .")


@pytest.fixture
def environment():
    path = ROOT / "tools" / "environment.py"
    spec = importlib.util.spec_from_file_location("environment", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_requirements_are_those_of_the_package_and_of_the_groups(environment):
    assert environment.requirements([]) == ["torch>=2.11", "numpy"]
    assert "ruff" in environment.requirements(["dev"])


def test_installing_says_which_files_and_how_large(environment, tmp_path, capfd):
    pip = tmp_path / "pip"
    pip.write_text(
        "#!/bin/sh\n"
        'echo "$@" > "$0.arguments"\n'
        "echo 'Collecting torch'\n"
        "echo '  Downloading torch-2.15.0-cp311-cp311-linux_x86_64.whl (915.3 MB)'\n"
        "echo '  Using cached numpy-2.4.6-cp311-cp311-linux_x86_64.whl (16.0 MB)'\n"
        "echo 'Requirement already satisfied: tqdm'\n"
        "echo 'Installing collected packages: torch, numpy'\n"
        "exit 3\n"
    )
    pip.chmod(0o755)
    assert environment.install([str(pip)], ["torch", "numpy"]) == 3
    assert capfd.readouterr().out == (
        "  torch 2.15.0, 915.3 MB\n  numpy 2.4.6, 16.0 MB\nunpacking packages: 2\n"
    )
    arguments = (tmp_path / "pip.arguments").read_text().split()
    assert arguments[arguments.index("--progress-bar") + 1] == "off"


def make_targets():
    return set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.stem
)
def test_workflows_call_targets_and_folders_that_exist(path):
    text = path.read_text()
    commands = re.findall(r"run: make ([a-z -]+)", text)
    assert commands
    called = {name for command in commands for name in command.split()}
    assert called - make_targets() == set()
    named = re.findall(r"\btests/[\w./]+", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_list_has_the_pythons_that_doctor_calls_tried():
    oldest, newest = doctor.TRIED["python"]
    minors = range(int(oldest[2:]), int(newest[2:]) + 1)
    tried = [f"3.{minor}" for minor in minors]
    lists = {
        "pyproject.toml": r'"Programming Language :: Python :: (3\.\d+)"',
        "Makefile": r"^PYTHONS \?= (.*)$",
        ".github/workflows/test.yml": r"python: \[(.*)\]",
        ".github/workflows/release.yml": r"python: \[(.*)\]",
    }
    for name, pattern in lists.items():
        found = re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)
        assert re.findall(r"3\.\d+", " ".join(found)) == tried, name
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # A newer one is not refused: nothing is known to break there.
    assert project["requires-python"] == f">={oldest}"
    assert f"torch>={doctor.TRIED['torch'][0]}" in project["dependencies"]
    assert (ROOT / "tools" / f"cpython-{newest}.txt").exists()


@pytest.mark.parametrize("name", ["operations", "loader"])
def test_measurements_name_machine_and_date(name):
    folder = ROOT / "docs" / "performance"
    machine = json.loads((folder / f"{name}.json").read_text())["machine"]
    assert set(machine) >= {"date", "processor", "cores", "load", "python", "torch"}
    # The picture is of these numbers: their date stands in it.
    assert machine["date"] in (folder / f"{name}.svg").read_text()


def test_the_page_of_performance_shows_every_plot():
    page = (ROOT / "docs" / "performance.md").read_text()
    plots = {path.name for path in (ROOT / "docs" / "performance").glob("*.svg")}
    assert set(re.findall(r"\(performance/([\w.]+)\)", page)) == plots
