"""Prints the newest Python of the machine that is newer than this one, if there is any.

Looks for ``python3.14``, ``python3.13`` and so on, on the path and among the versions of
pyenv. Runs on the system's Python, so it uses only the standard library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NEWEST = 14  # torch is built for, and this package is made for, 3.11 to this one


def candidates(minor: int) -> list[str]:
    """Return what may be Python 3.``minor``, the best one first."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    # A name that ends with "t" is a build without a global lock.
    found = [path for path in root.glob(f"3.{minor}.*") if not path.name.endswith("t")]
    paths = [str(path / "bin" / "python") for path in sorted(found, reverse=True)]
    return [path for path in (*paths, shutil.which(f"python3.{minor}")) if path]


def is_usable(python: str, minor: int) -> bool:
    """Return whether it is Python 3.``minor``, and can make environments."""
    program = (
        f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, {minor}))"
    )
    try:
        done = subprocess.run([python, "-c", program], check=False, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def main() -> None:
    """Print its path, or nothing."""
    for minor in range(NEWEST, sys.version_info.minor, -1):
        for python in candidates(minor):
            if is_usable(python, minor):
                print(python)
                return


if __name__ == "__main__":
    main()
