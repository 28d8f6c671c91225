"""Write bills of materials (CycloneDX) of what is released: ``bills.py --out dist``.

That of the crates in the extension is the one which maturin put into the wheel; that of the
package has what it asks of Python at run time.
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
    """Take the bill of the crates out of a wheel."""
    wheels = sorted(out.glob("tensordict_rs-*.whl"))
    if not wheels:
        sys.exit(f"{out} has no wheel to take the bill of the crates from: make wheels")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        (name,) = (each for each in wheel.namelist() if "/sboms/" in each)
        path = out / "tensordict-rs-crates.cdx.json"
        path.write_bytes(wheel.read(name))
    return path


def of_package(out: Path) -> Path:
    """Write the bill of what the package depends on."""
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
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    for path in (of_crates(out), of_package(out)):
        print(path)


if __name__ == "__main__":
    main()
