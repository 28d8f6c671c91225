"""Run the tests on other Pythons, from the wheel: ``pythons.py 3.15 ... --suites core``.

Each Python gets an environment with torch, what the tests need, and the wheel, but
nothing of the checkout: copies of the tests run, on a path without Rust. It is made
from pyenv or the path of this machine, otherwise in a root file system of Debian's
``sid``, which takes the superuser and debootstrap. Where none can be made, the
reason is printed, and the other Pythons are still tried. ``newest`` names the newest one
for which there is an environment, ``3.11-torch-2.11`` one with this torch.

    pythons.py newest --suites core          # what `make test-newest` does
    pythons.py 3.15 --run python -m benches.python --peer release

Suites are folders of ``tests/``, or one of the names in ``SUITES``. What they answered is kept
beside the environments, where ``tools/pythons_table.py`` reads it.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from python_environments import Environment, Unavailable, find

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("benches", "docs", "examples", "tests", "tools")
"""The folders that tests read, without the package and its sources."""

SUITES = {
    "core": (
        *("ops", "containers", "storage", "native", "concurrent", "property"),
        *("nn", "data", "interop", "parallel", "test_examples.py"),
    ),
    "near": ("ops", "containers", "native", "concurrent"),
    "bare": ("bare",),
}
"""Several suites under one name. ``all`` names every folder and file of ``tests``."""

OTHER = {
    "typing": "asks type checkers, whose answers do not depend on the Python that runs",
    "test_structure.py": "is about the folders of the checkout",
    "test_setting_up.py": "is about the commands of the checkout",
}
"""The tests that do not run from a wheel, with the reason."""

SMOKE = (
    "test_examples.py",
    "test_cli.py",
    "storage/test_tree.py",
    "data/test_gather.py",
)
"""The smoke suite of a wheel, with nothing else on the path, no compiler and no shell."""


def folders(suites: list[str]) -> list[str]:
    """Return the folders and files of ``tests`` that suites name."""
    found: list[str] = []
    for suite in suites:
        if suite == "all":
            tests = sorted((ROOT / "tests").iterdir())
            found += [path.name for path in tests if any(path.glob("**/test_*.py"))]
            found += [path.name for path in tests if path.match("test_*.py")]
        else:
            found += SUITES.get(suite, (suite,))
    return [name for name in dict.fromkeys(found) if name not in OTHER]


def wheel_of(environment: Environment, folder: Path | None) -> Path:
    """Return the wheel for an environment: of ``folder``, or one that make builds."""
    tag = f"-cp3{environment.minor}-"
    if folder is None:
        folder = ROOT / "build" / "pythons" / "wheels" / environment.machine
        target = f"{folder.relative_to(ROOT)}/3.{environment.minor}.built"
        make = ["make", "--silent"]
        # Without its tools nothing is said about the package: an index may lack them.
        if subprocess.run([*make, "release-tools"], cwd=ROOT, check=False).returncode:
            raise Unavailable("what builds wheels cannot be installed")
        subprocess.run([*make, target], cwd=ROOT, check=True)
    fitting = [path for path in folder.glob("*.whl") if tag in path.name]
    fitting = [path for path in fitting if environment.machine in path.name]
    if not fitting:
        raise Unavailable(f"{folder} has no wheel with {tag} and {environment.machine}")
    return max(fitting, key=lambda path: path.stat().st_mtime)


def copy_tests(environment: Environment) -> None:
    """Put the tests as they are now into the environment."""
    ignore = shutil.ignore_patterns("__pycache__", "_build", "*.so")
    for name in COPIED:
        to = environment.work / name
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(ROOT / name, to, ignore=ignore)
    for path in (*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"):
        shutil.copy(path, environment.work)


def test(environment: Environment, suite: str, options: list[str]) -> dict:
    """Run one folder of tests, and return what became of them."""
    report = environment.work / "report.xml"
    report.unlink(missing_ok=True)
    paths = [f"tests/{name}" for name in (SMOKE if suite == "bare" else (suite,))]
    command = ["python", "-m", "pytest", "-q", "--junitxml=report.xml"]
    started = time.monotonic()
    done = environment.run([*command, *options, *paths], bare=suite == "bare")
    result = {
        "seconds": round(time.monotonic() - started),
        "status": done.returncode,
        **counted(report),
    }
    if suite == "bare":
        program = environment.run(["python", "-m", "tensordict", "doctor"], bare=True)
        result["status"] = result["status"] or program.returncode
    return result


def counted(report: Path) -> dict:
    """Return how many tests of a report passed and failed, and why others were skipped."""
    result: dict = {"passed": 0, "failed": [], "skipped": {}}
    if not report.exists():
        return result
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 (written by pytest)
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result["failed"].append(f"{case.get('classname')}::{case.get('name')}")
        elif skipped is not None:
            reason = skipped.get("message") or "?"
            result["skipped"][reason] = result["skipped"].get(reason, 0) + 1
        else:
            result["passed"] += 1
    return result


def record(environment: Environment, suite: str, result: dict) -> None:
    """Keep the answers of a suite beside the environments."""
    path = environment.where / "results" / f"{environment.name}.json"
    path.parent.mkdir(exist_ok=True)
    known = json.loads(path.read_text("utf-8")) if path.exists() else {"suites": {}}
    known |= environment.versions()
    known["machine"] = f"{platform.system()}, {environment.machine}"
    known["suites"][suite] = {"date": time.strftime("%Y-%m-%d"), **result}
    path.write_text(json.dumps(known, indent=1) + "\n", "utf-8")


def prepare(name: str, arguments: argparse.Namespace) -> Environment:
    """Make the environment for one Python, and install the wheel there.

    Raises:
        Unavailable: this machine, its disk or its network does not allow it.
        subprocess.CalledProcessError: the wheel cannot be built.
    """
    try:
        environment = find(name, arguments.where.resolve())
        environment.make(libraries=arguments.libraries)
        environment.versions()
        environment.install_wheel(wheel_of(environment, arguments.wheels))
        copy_tests(environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from error
    return environment


def try_on(environment: Environment, arguments: argparse.Namespace) -> bool:
    """Run what was asked for, and return whether all of it went well."""
    if arguments.run:
        return environment.run(arguments.run).returncode == 0
    options = ["-n", str(arguments.workers), "--dist", "loadfile"]
    is_well = True
    for suite in folders(arguments.suites):
        print(f"{environment.name}: {suite}", flush=True)
        result = test(environment, suite, options)
        record(environment, suite, result)
        is_well &= result["status"] == 0
    return is_well


def first_that_can(
    name: str, supported: list[str], arguments: argparse.Namespace
) -> bool:
    """Try one Python, or the newest one that can be tried; return whether all went well."""
    for each in reversed(supported) if name == "newest" else [name]:
        try:
            environment = prepare(each, arguments)
        except Unavailable as reason:
            print(f"{each} is not tried: {reason}", flush=True)
        except subprocess.CalledProcessError as error:
            print(f"{each}: its wheel cannot be built: {error}", flush=True)
            return False
        else:
            return try_on(environment, arguments)
    return True


def main() -> None:
    """Try every Python that was named; the status is 1 where a test failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pythons", nargs="*", help="3.15, 3.11-torch-2.11, newest")
    parser.add_argument("--suites", nargs="*", default=["core"])
    parser.add_argument("--where", type=Path, default=ROOT / "build" / "pythons")
    parser.add_argument("--wheels", type=Path, help="has them; else make builds them")
    parser.add_argument("--libraries", action="store_true", help="those of all extras")
    parser.add_argument("--workers", type=int, default=2, help="of pytest")
    parser.add_argument("--run", nargs=argparse.REMAINDER, help="a program of your own")
    arguments = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    supported = re.findall(r":: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    tried = {
        asked: first_that_can(asked, supported, arguments)
        for asked in arguments.pythons
    }
    sys.exit(not all(tried.values()))


if __name__ == "__main__":
    main()
