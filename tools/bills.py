"""Write bills of materials (CycloneDX) of a release: ``bills.py --out dist``.

maturin put the bill of the crates into the wheel, from which it is copied. The bill of
the package lists the requirements at run time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CYCLONEDX = Path(sys.executable).with_name("cyclonedx-py")


def of_crates(out: Path) -> Path:
    """Copy the bill of the crates out of a wheel."""
    wheels = sorted(out.glob("tensordict_rs-*.whl"))
    if not wheels:
        sys.exit(
            f"{out} has no wheel, which contains the bill of the crates: make wheels"
        )
    with zipfile.ZipFile(wheels[-1]) as wheel:
        (name,) = (member for member in wheel.namelist() if "/sboms/" in member)
        path = out / "tensordict-rs-crates.cdx.json"
        path.write_bytes(wheel.read(name))
    return path


def of_package(out: Path) -> Path:
    """Write the bill of the requirements of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    path = out / "tensordict-rs.cdx.json"
    options = ["--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml")]
    subprocess.run(
        [str(CYCLONEDX), "requirements", *options, "--output-file", str(path), "-"],
        input="\n".join(project["project"]["dependencies"]),
        text=True,
        check=True,
    )
    return path


def main() -> None:
    """Write both bills."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    for path in (of_crates(out), of_package(out)):
        print(path)


if __name__ == "__main__":
    main()
