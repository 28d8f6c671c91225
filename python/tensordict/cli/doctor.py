"""Show versions, limits of the machine, and whether the installation is intact.

The published package has the same import name as this one. If both are installed, the
files of one overwrite files of the other, and the import is a mixture. This module must
work in that state too, so it uses ``sys.modules`` and the installer's records, and
imports no other module of the package at its start.
"""

from __future__ import annotations

import base64
import csv
import ctypes
import errno
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

IMPORT_NAME: Final = "tensordict"
DISTRIBUTION: Final = "tensordict-rs"

TRIED: Final = {"python": ("3.11", "3.15"), "torch": ("2.11", "2.15")}
"""The oldest and newest versions with which the tests of this release ran.

Other versions are accepted, but untested.
"""

IO_URING_SETUP: Final = 425
"""The number of the system call, on every processor."""

OPTIONAL: Final = (
    "cloudpickle",
    "h5py",
    "pandas",
    "polars",
    "pyarrow",
    "safetensors",
    "tqdm",
    "zarr",
)

REMEDY: Final = """\
Another distribution has files under the import name 'tensordict', so the import may be a
mixture of the two. Remove both, then install this one alone:

    pip uninstall -y {others} tensordict-rs
    pip install tensordict-rs    # or `pip install .` in the folder of its source

README.md, "If a library depends on the published package", says how to keep libraries
from installing the published 'tensordict' again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``python -m tensordict doctor``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 1 if the installation is a mixture."""
    found = report()
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        for line in _lines(found):
            print(line)
    return 1 if found["conflicts"] else 0


def report() -> dict[str, Any]:
    """Return everything that ``doctor`` prints, as plain data."""
    return {
        "versions": versions(),
        "tried": {name: is_tried(name) for name in TRIED},
        "optional": {name: _distribution_version(name) for name in OPTIONAL},
        "build": build(),
        "shortcuts": shortcuts(),
        "cores": cores(),
        "accelerators": accelerators(),
        "limits": limits(),
        "filesystems": {
            "current directory": filesystem(Path.cwd()),
            "temporary files": filesystem(Path(tempfile.gettempdir())),
            "shared memory": filesystem(Path("/dev/shm")),  # noqa: S108 (asked, not used)
        },
        "conflicts": conflicts(),
    }


def versions() -> dict[str, str | None]:
    """Return the versions of the interpreter, of torch and of each part of the package."""
    native = _module("tensordict._rust")
    return {
        "python": platform.python_version(),
        "torch": _module_version("torch"),
        "numpy": _module_version("numpy"),
        "tensordict": _module_version(IMPORT_NAME),
        "tensordict-rs": _distribution_version(DISTRIBUTION),
        "tensordict-python (crate)": getattr(native, "__version__", None),
        "tensordict-core (crate)": getattr(native, "core_version", None),
    }


def is_tried(name: str) -> bool:
    """Return whether the tests ran with this minor version of Python or torch."""
    oldest, newest = (_minor(version) for version in TRIED[name])
    return oldest <= _minor(versions()[name] or "") <= newest


def build() -> dict[str, str | None]:
    """Return the paths of the imported package, and how its extension was built."""
    native = _module("tensordict._rust")
    package = sys.modules.get(IMPORT_NAME)
    profile = None
    if native is not None:
        profile = "debug" if native.is_debug_build else "release"
    return {
        "profile": profile,
        "package": str(Path(str(getattr(package, "__file__", "?"))).parent),
        "extension": getattr(native, "__file__", None),
        "platform": platform.platform(),
    }


def shortcuts() -> dict[str, bool]:
    """Return which shortcuts into CPython and torch are in use.

    ``TENSORDICT_SHORTCUTS=0`` in the environment turns all of them off.
    """
    # In a mixed installation, the extension may be of another build without this
    # function.
    ask = getattr(_module("tensordict._rust"), "shortcuts", None)
    return {} if ask is None else dict(ask())


def cores() -> dict[str, float | None]:
    """Return the number of cores of the machine, and how many this process may use."""
    torch = _module("torch")
    return {
        "machine": os.cpu_count(),
        "process": _affinity(),
        "cgroup quota": _cgroup_cores(),
        "torch threads": torch.get_num_threads() if torch is not None else None,
    }


def accelerators() -> dict[str, str | None]:
    """Return the toolkit for which torch was built, and each device that torch finds."""
    torch = _module("torch")
    if torch is None:
        return {}
    built_for = torch.version.cuda or torch.version.hip
    result: dict[str, str | None] = {"torch built for": built_for or "processors alone"}
    for number in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(number)
        memory = found.total_memory / 1e9
        result[f"cuda:{number}"] = f"{found.name}, {memory:.1f} GB"
    if torch.backends.mps.is_available():
        result["mps"] = "available"
    return result


def io_uring() -> str | None:
    """Return whether this process may use ``io_uring``; None on other systems than Linux.

    The test asks the kernel for a ring without entries, which it always refuses.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(IO_URING_SETUP, 0, None)
    refused = ctypes.get_errno()
    if refused in (errno.EINVAL, errno.EFAULT):
        return "allowed"
    return "the kernel has none" if refused == errno.ENOSYS else "forbidden"


def limits() -> dict[str, int | str | None]:
    """Return the kernel limits that a large tensordict reaches first."""
    result: dict[str, int | str | None] = {
        # Each leaf that is loaded from a directory needs one mapping.
        "vm.max_map_count": _number("/proc/sys/vm/max_map_count"),
        "mappings now": _count_lines("/proc/self/maps"),
        "vm.overcommit_memory": _number("/proc/sys/vm/overcommit_memory"),
        "io_uring": io_uring(),
    }
    try:
        import resource
    except ImportError:  # Not a Unix.
        return result
    names = {
        "RLIMIT_NOFILE": resource.RLIMIT_NOFILE,
        "RLIMIT_AS": resource.RLIMIT_AS,
        "RLIMIT_FSIZE": resource.RLIMIT_FSIZE,
    }
    for name, which in names.items():
        soft, hard = (
            "unlimited" if value == resource.RLIM_INFINITY else value
            for value in resource.getrlimit(which)
        )
        result[name] = soft
        result[f"{name} (hard)"] = hard
    return result


def filesystem(path: Path) -> dict[str, Any] | None:
    """Return the file system of ``path`` and its space; None if there is no such path.

    ``type`` and ``mount`` are None if the kernel does not report them.
    """
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    mount, kind = _mount_of(path.resolve())
    return {
        "path": str(path),
        "type": kind,
        "mount": mount,
        "free_bytes": usage.free,
        "total_bytes": usage.total,
    }


def conflicts() -> list[dict[str, str]]:
    """Return the other distributions with files under the import name; usually none.

    Each has ``distribution``, ``version``, ``location`` and ``problem``.
    """
    result: list[dict[str, str]] = []
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or "?"
        if _normalized(name) == DISTRIBUTION:
            overwritten = list(_overwritten(distribution))
            if overwritten:
                problem = "files were overwritten: " + ", ".join(overwritten[:5])
                result.append(_conflict(distribution, name, problem))
        elif _owns_import_name(distribution):
            problem = f"has files under the import name {IMPORT_NAME!r}"
            result.append(_conflict(distribution, name, problem))
    version = _module_version(IMPORT_NAME)
    if version is None or "+rs." not in version:
        result.append(
            {
                "distribution": IMPORT_NAME,
                "version": version or "?",
                "location": str(build()["package"]),
                "problem": "the package that is imported is not this one",
            }
        )
    # A folder that is twice on the path lists its distributions twice.
    return [row for number, row in enumerate(result) if row not in result[:number]]


def _conflict(
    distribution: importlib.metadata.Distribution, name: str, problem: str
) -> dict[str, str]:
    return {
        "distribution": name,
        "version": distribution.version,
        "location": str(distribution.locate_file("")),
        "problem": problem,
    }


def _owns_import_name(distribution: importlib.metadata.Distribution) -> bool:
    # A broken installation may have no record. Setuptools still writes the older list
    # of top-level names.
    if distribution.read_text("RECORD") is not None:
        return any(path.parts[0] == IMPORT_NAME for path, _ in _recorded(distribution))
    names = distribution.read_text("top_level.txt") or ""
    return IMPORT_NAME in names.split()


def _overwritten(distribution: importlib.metadata.Distribution) -> Iterator[str]:
    """Yield our files whose bytes differ from the installer's record."""
    for file, recorded in _recorded(distribution):
        if file.parts[0] != IMPORT_NAME or not recorded:
            continue
        path = Path(str(distribution.locate_file(file)))
        if not path.is_file():
            yield f"{file} (missing)"
            continue
        algorithm, _, expected = recorded.partition("=")
        digest = hashlib.new(algorithm, path.read_bytes()).digest()
        found = base64.urlsafe_b64encode(digest).decode()
        if found.rstrip("=") != expected.rstrip("="):
            yield str(file)


def _recorded(
    distribution: importlib.metadata.Distribution,
) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield each file of the installer's record, with its hash.

    From Python 3.12 on, ``distribution.files`` leaves out missing files.
    """
    for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        if not row:
            continue
        # Some tools record names without hashes.
        yield PurePosixPath(row[0]), row[1] if len(row) > 1 else ""


def _normalized(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _minor(version: str) -> list[int]:
    """Return the first two numbers of a version, such as ``2.15.0a0+git1234``."""
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def _module(name: str) -> Any | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _module_version(name: str) -> str | None:
    version = getattr(_module(name), "__version__", None)
    return None if version is None else str(version)


def _distribution_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _affinity() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _cgroup_cores() -> float | None:
    """Return the cores that the cgroup of a container grants; None without a limit."""
    quota, _, period = _text("/sys/fs/cgroup/cpu.max").partition(" ")
    if not quota or quota == "max":
        return None
    return round(int(quota) / int(period), 2)


def _mount_of(path: Path) -> tuple[str | None, str | None]:
    """Return the mount point and the type of the file system of ``path``."""
    mount: str | None = None
    kind: str | None = None
    for line in _text("/proc/self/mountinfo").splitlines():
        fields = line.split(" ")
        point = fields[4].encode().decode("unicode_escape")  # "\040" is a space
        deeper = mount is None or len(point) >= len(mount)
        if deeper and path.is_relative_to(point):
            mount, kind = point, fields[fields.index("-") + 1]
    return mount, kind


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text else None


def _count_lines(path: str) -> int | None:
    return _text(path).count("\n") + 1 if Path(path).exists() else None


def _lines(found: dict[str, Any]) -> Iterator[str]:
    for title in ("versions", "optional", "build", "cores", "accelerators", "limits"):
        yield title
        for name, value in found[title].items():
            shown = "-" if value is None else value
            if title == "versions" and name in TRIED:
                oldest, newest = TRIED[name]
                among = "" if found["tried"][name] else "not among the "
                shown = f"{shown} ({among}tried: {oldest} to {newest})"
            yield f"  {name:<26} {shown}"
    yield "shortcuts (TENSORDICT_SHORTCUTS=0 turns them off)"
    for name, is_taken in found["shortcuts"].items():
        yield f"  {name:<26} {'taken' if is_taken else 'not taken'}"
    yield "filesystems"
    for name, value in found["filesystems"].items():
        if value is None:
            yield f"  {name:<26} -"
            continue
        free, total = value["free_bytes"] / 1e9, value["total_bytes"] / 1e9
        kind = value["type"] or "unknown type"
        yield (
            f"  {name:<26} {value['path']} ({kind}), {free:.1f} of {total:.1f} GB free"
        )
    if found["build"]["profile"] == "debug":
        yield ""
        yield "This is a debug build: build with --release before measuring anything."
    yield ""
    if not found["conflicts"]:
        yield f"The import name {IMPORT_NAME!r} belongs to this package alone."
        return
    for conflict in found["conflicts"]:
        yield "CONFLICT: {distribution} {version}, {location}: {problem}".format(
            **conflict
        )
    yield ""
    others = {conflict["distribution"] for conflict in found["conflicts"]}
    yield REMEDY.format(others=" ".join(sorted(others - {DISTRIBUTION})) or IMPORT_NAME)
