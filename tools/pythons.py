"""Run the tests on other Pythons from the wheel: ``pythons.py 3.15 --suites core``.

Each Python gets an environment with torch, the requirements of the tests, and the wheel. The
tests are copied there and run without the checkout and without Rust. The environment is made
from a Python of pyenv or of the path; otherwise in a root file system of Debian ``sid``, which
needs the superuser and debootstrap. If an environment cannot be made, the reason is printed
and the next Python is tried. ``newest`` is the newest Python that has an environment;
``3.11-torch-2.11`` is a Python with this torch.

    pythons.py newest --suites core          # what `make test-newest` does
    pythons.py 3.15 --run python -m benches.python --peer release

Suites are folders of ``tests/``, or names in ``SUITES``. The results are kept beside the
environments, where ``tools/pythons_table.py`` reads them.
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
"""The folders that tests read, except the package and its sources."""

SUITES = {
    "core": (
        *("ops", "containers", "storage", "native", "concurrent", "property"),
        *("nn", "data", "interop", "parallel", "test_examples.py"),
    ),
    "near": ("ops", "containers", "native", "concurrent"),
    "bare": ("bare",),
}
"""Names for several suites. ``all`` is every folder and file of ``tests``."""

OTHER = {
    "typing": "asks type checkers, whose answers do not depend on the Python that runs",
    "test_structure.py": "is about the folders of the checkout",
    "test_setting_up.py": "is about the commands of the checkout",
}
"""From tests that do not run from a wheel to the reason."""

SMOKE = (
    "test_examples.py",
    "test_cli.py",
    "storage/test_tree.py",
    "data/test_gather.py",
)
"""The smoke tests of a wheel: only the wheel on the path, no compiler, no shell."""


def folders(suites: list[str]) -> list[str]:
    """Return the folders and files of ``tests`` in the named suites."""
    names: list[str] = []
    for suite in suites:
        if suite == "all":
            tests = sorted((ROOT / "tests").iterdir())
            names += [path.name for path in tests if any(path.glob("**/test_*.py"))]
            names += [path.name for path in tests if path.match("test_*.py")]
        else:
            names += SUITES.get(suite, (suite,))
    return [name for name in dict.fromkeys(names) if name not in OTHER]


def wheel_of(environment: Environment, folder: Path | None) -> Path:
    """Return the wheel for an environment: from ``folder``, or built by make."""
    tag = f"-cp3{environment.minor}-"
    if folder is None:
        folder = ROOT / "build" / "pythons" / "wheels" / environment.machine
        target = f"{folder.relative_to(ROOT)}/3.{environment.minor}.built"
        make = ["make", "--silent"]
        # Missing build tools are no fault of the package: an index may lack them.
        if subprocess.run([*make, "release-tools"], cwd=ROOT, check=False).returncode:
            raise Unavailable("the tools that build wheels cannot be installed")
        subprocess.run([*make, target], cwd=ROOT, check=True)
    fitting = [path for path in folder.glob("*.whl") if tag in path.name]
    fitting = [path for path in fitting if environment.machine in path.name]
    if not fitting:
        raise Unavailable(f"{folder} has no wheel with {tag} and {environment.machine}")
    return max(fitting, key=lambda path: path.stat().st_mtime)


def copy_tests(environment: Environment) -> None:
    """Copy the current tests into the environment."""
    ignore = shutil.ignore_patterns("__pycache__", "_build", "*.so")
    for name in COPIED:
        target = environment.work / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(ROOT / name, target, ignore=ignore)
    for path in (*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"):
        shutil.copy(path, environment.work)


def test(environment: Environment, suite: str, options: list[str]) -> dict:
    """Run one folder of tests, and return its results."""
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
    """Return the passed, failed and skipped tests of a report."""
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
    """Store the results of a suite beside the environments."""
    path = environment.where / "results" / f"{environment.name}.json"
    path.parent.mkdir(exist_ok=True)
    results = json.loads(path.read_text("utf-8")) if path.exists() else {"suites": {}}
    results |= environment.versions()
    results["machine"] = f"{platform.system()}, {environment.machine}"
    results["suites"][suite] = {"date": time.strftime("%Y-%m-%d"), **result}
    path.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def prepare(name: str, arguments: argparse.Namespace) -> Environment:
    """Make the environment for a Python, and install the wheel there.

    Raises:
        Unavailable: the machine, its disk or its network does not allow it.
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
    """Run the suites or the program, and return whether all succeeded."""
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
    """Try one Python, or the newest available one; return whether all tests passed."""
    for version in reversed(supported) if name == "newest" else [name]:
        try:
            environment = prepare(version, arguments)
        except Unavailable as reason:
            print(f"{version} is not tried: {reason}", flush=True)
        except subprocess.CalledProcessError as error:
            print(f"{version}: its wheel cannot be built: {error}", flush=True)
            return False
        else:
            return try_on(environment, arguments)
    return True


def main() -> None:
    """Try each named Python; the exit status is 1 if a test failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pythons", nargs="*", help="3.15, 3.11-torch-2.11, newest")
    parser.add_argument(
        "--suites",
        nargs="*",
        default=["core"],
        help="names of suites, or folders of tests/ (default: core)",
    )
    parser.add_argument(
        "--where",
        type=Path,
        default=ROOT / "build" / "pythons",
        help="folder of the environments (default: build/pythons)",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        help="folder of built wheels (default: make builds them)",
    )
    parser.add_argument(
        "--libraries",
        action="store_true",
        help="also install the libraries of all extras",
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes of pytest (default: 2)"
    )
    parser.add_argument(
        "--run",
        nargs=argparse.REMAINDER,
        help="program to run instead of the tests, with its arguments",
    )
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
