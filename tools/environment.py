"""Make a virtual environment for this project: ``environment.py VENV [GROUP ...]``.

Creates the environment if it does not exist, and installs the missing requirements of
``pyproject.toml``: of the package and of the groups, by default the group for
development. If nothing is missing, the network is not used. Runs on the system's
Python, so it uses only the standard library.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 (whatever python3 is on the machine)
    sys.exit(f"{sys.executable} is too old: make ... PYTHON=python3.11 or newer")

import tomllib

ROOT = Path(__file__).resolve().parent.parent
NO_VENV = """\
{python} cannot create virtual environments (on Debian and Ubuntu: apt install python3-venv).
Or pass an existing environment: make ... VENV=/path/to/environment"""
WITH_TORCH = """\
PyTorch for Linux comes with CUDA: about 3 GB to download and 6 GB on disk, some minutes.
To use an environment that has it already: make ... VENV=/path/to/environment"""
# Run in the environment: print the arguments that are not installed there.
LIST_MISSING = """
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        print(name)
"""
# pip prints a line for each file, with its size: "Downloading x.whl (1.5 MB)".
FILE = re.compile(
    r"(?:Downloading|Using cached) (?:\S*/)?(\S+?)(\.whl|\.tar\.gz) \((.*)\)"
)


def create(environment: Path) -> None:
    """Create the virtual environment at ``environment`` with this interpreter."""
    print(f"creating {environment} with Python {sys.version.split()[0]}", flush=True)
    for module in ("venv", "virtualenv"):
        command = [sys.executable, "-m", module, str(environment)]
        if subprocess.run(command, check=False).returncode == 0:
            return
    sys.exit(NO_VENV.format(python=sys.executable))


def requirements(groups: list[str]) -> list[str]:
    """Return the requirements of the package and of ``groups``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    result = [*project["project"]["dependencies"]]
    todo = [*groups]
    for group in todo:
        for requirement in project["dependency-groups"][group]:
            if isinstance(requirement, dict):
                todo.append(requirement["include-group"])
            else:
                result.append(requirement)
    return result


def are_met(pip: list[str], wanted: list[str]) -> bool:
    """Return whether ``wanted`` and its dependencies are installed (no index)."""
    ask = ["install", "--quiet", "--dry-run", "--no-index", "--report", "-", *wanted]
    done = subprocess.run([*pip, *ask], check=False, capture_output=True)
    return done.returncode == 0 and not json.loads(done.stdout)["install"]


def install(pip: list[str], wanted: list[str]) -> int:
    """Install ``wanted`` with one line for each file, and return pip's exit status.

    There is no progress bar, so that the output of a terminal and of a pipe is the
    same.
    """
    command = [*pip, "install", "--disable-pip-version-check", "--progress-bar", "off"]
    with subprocess.Popen(
        [*command, *wanted], stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            if found := FILE.search(line):
                name, version, *_ = found[1].split("-")
                print(f"  {name} {version}, {found[3]}", flush=True)
            elif line.startswith("Installing collected packages"):
                print(f"unpacking packages: {line.count(',') + 1}", flush=True)
    return process.returncode


def main() -> None:
    """Create the environment if it is missing, then install missing requirements."""
    environment, *groups = sys.argv[1:]
    python = Path(environment) / "bin" / "python"
    if not python.exists():
        create(Path(environment))
    pip = [str(python), "-m", "pip"]
    if subprocess.run([*pip, "--version"], check=False, capture_output=True).returncode:
        subprocess.run([str(python), "-m", "ensurepip"], check=True)
    wanted = requirements(groups or ["dev"])
    if are_met(pip, wanted):
        return
    names = [re.split(r"[^\w.-]", requirement)[0] for requirement in wanted]
    missing = subprocess.run(
        [str(python), "-c", LIST_MISSING, *names],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    what = ", ".join(missing) or "newer versions of installed packages"
    print(f"installing into {environment}: {what}", flush=True)
    if "torch" in missing:
        print(WITH_TORCH, flush=True)
    if status := install(pip, wanted):
        sys.exit(status)


if __name__ == "__main__":
    main()
