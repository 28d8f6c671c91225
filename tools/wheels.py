"""Build and check a release: ``wheels.py --targets T ... --pythons 3.11 ...``.

Builds a wheel for each target and Python with maturin. zig is the linker, so that a
wheel needs no newer C library than its tag says; auditwheel checks this. ``--sdist``
builds the source archive and, from the archive only, one wheel. Builds are
reproducible: archives have the time of the commit, and the code contains no path of the
machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPATIBILITY = "manylinux_2_28"


def environment() -> dict[str, str]:
    """Return the variables of a build that depends on the commit only."""
    cargo = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    renamed = {str(ROOT): "/source", f"{cargo}/registry": "/registry"}
    flags = [f"--remap-path-prefix={old}={new}" for old, new in renamed.items()]
    ask = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(ask, cwd=ROOT, check=False, capture_output=True, text=True)
    time = {"SOURCE_DATE_EPOCH": done.stdout.strip()} if done.stdout.strip() else {}
    return {**os.environ, **time, "RUSTFLAGS": " ".join(flags)}


def maturin(*arguments: str, folder: Path = ROOT) -> None:
    """Run maturin."""
    command = [sys.executable, "-m", "maturin", *arguments]
    print("$", " ".join(command), flush=True)
    subprocess.run(command, cwd=folder, check=True, env=environment())


def wheel(target: str, python: str, out: Path) -> None:
    """Build one wheel."""
    maturin(
        "build",
        *("--release", "--locked", "--zig"),
        *("--compatibility", COMPATIBILITY),
        *("--target", target),
        *("--interpreter", f"python{python}"),
        *("--out", str(out)),
    )


def sdist(out: Path) -> None:
    """Build the source archive, and from the archive only a wheel for this Python."""
    maturin("sdist", "--out", str(out))
    archive = max(out.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
        unpacked = next(Path(folder).iterdir())
        options = ("--release", "--locked", "--interpreter", sys.executable)
        maturin("build", *options, "--out", folder, folder=unpacked)
        (built,) = Path(folder).glob("*.whl")
        print(f"{archive.name} builds {built.name}")


def check(path: Path) -> bool:
    """Return whether a wheel needs no newer symbol or library than its tag says."""
    command = [sys.executable, "-m", "auditwheel", "show", str(path)]
    report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    words = " ".join(report.split())
    fits = f'"{COMPATIBILITY}_' in words or '"manylinux_2_17_' in words
    print(
        f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {'' if fits else 'NOT '}clean"
    )
    if not fits:
        print(report)
    return fits


def main() -> None:
    """Build the requested files; exit with 1 if a wheel fails its check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", nargs="*", default=[])
    parser.add_argument("--pythons", nargs="*", default=[])
    parser.add_argument("--sdist", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    if arguments.sdist:
        sdist(out)
    for target in arguments.targets:
        for python in arguments.pythons:
            wheel(target, python, out)
    if not all([check(path) for path in sorted(out.glob("*-manylinux*.whl"))]):
        sys.exit(1)


if __name__ == "__main__":
    main()
