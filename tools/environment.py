"""Makes a virtual environment fit for this project: ``environment.py VENV``.

Creates it where it does not exist and installs what ``pyproject.toml`` lists, the
development group included. Where everything is there already, nothing is installed and
nothing is asked of the network. Runs on the system's Python, so it uses only the
standard library.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 (whatever python3 is on the machine)
    sys.exit(f"{sys.executable} is too old: make ... PYTHON=python3.11 or newer")

import tomllib

ROOT = Path(__file__).resolve().parent.parent
NO_VENV = """\
{python} cannot create virtual environments (on Debian and Ubuntu: apt install python3-venv).
Or give one that exists: make ... VENV=/path/to/environment"""


def create(environment: Path) -> None:
    """Create the virtual environment at ``environment`` with this interpreter."""
    print(f"creating {environment} with Python {sys.version.split()[0]}", flush=True)
    for module in ("venv", "virtualenv"):
        command = [sys.executable, "-m", module, str(environment)]
        if subprocess.run(command, check=False).returncode == 0:
            return
    sys.exit(NO_VENV.format(python=sys.executable))


def requirements(groups: list[str]) -> list[str]:
    """Return the requirements of the package, of its build and of ``groups``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    result = [*project["project"]["dependencies"]]
    for group in groups:
        result += project["dependency-groups"][group]
    return result


def main() -> None:
    """Create the environment if it is missing, then install what it lacks."""
    environment, *groups = sys.argv[1:]
    python = Path(environment) / "bin" / "python"
    if not python.exists():
        create(Path(environment))
    pip = [str(python), "-m", "pip"]
    if subprocess.run([*pip, "--version"], check=False, capture_output=True).returncode:
        subprocess.run([str(python), "-m", "ensurepip"], check=True)
    install = [*pip, "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*install, *requirements(groups or ["dev"])], check=True)


if __name__ == "__main__":
    main()
