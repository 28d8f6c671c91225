"""Environments for other Python versions, on this machine.

An environment contains torch, NumPy, the requirements of the tests, and later a wheel
of this package. ``Local`` is a virtual environment of an installed Python. ``Debian``
is a virtual environment in a root file system of Debian ``sid``, which has the newest
Pythons. Programs in an environment see neither the checkout nor Rust. Runs on the
system's Python, so it uses only the standard library.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

sys.path.insert(0, str(Path(__file__).parent))

from environment import WITH_TORCH, requirements

NETWORK = ("PIP_", "SSL_CERT_", "REQUESTS_CA_", "http_proxy", "https_proxy", "no_proxy")
"""The prefixes of variables that a program needs to reach the package index."""

QUIETLY = ("--quiet", "--disable-pip-version-check", "--progress-bar", "off")

SPACE = 8e9
"""The bytes of disk space for a new environment, with torch and its unpacking."""

SPACE_TO_RUN = 2e9
"""The bytes of disk space for the wheel and the tests."""

PATIENCE = 1800
"""The timeout in seconds for one step: a network may never answer."""

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

# Child processes end with the program, and mounts end with the name space.
APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
IN_ROOT = """
mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; mount --rbind /sys "$0/sys"
root=$0; work=$1; shift; status=0
# This shell is the first process of the name space and adopts orphans.
chroot "$root" /bin/sh -c 'cd "$0" && exec "$@"' "$work" "$@" || status=$?
exit $status
"""

VERSIONS = """
import json, platform, numpy, torch
print(json.dumps({
    "python": platform.python_version(),
    "torch": torch.__version__,
    "numpy": numpy.__version__,
}))
"""


class Unavailable(Exception):  # noqa: N818 (it is no error: others are still tried)
    """The reason why this machine cannot provide an environment for a Python."""


class Environment(abc.ABC):
    """A Python with torch and the requirements of the tests.

    Args:
        name: such as ``3.15`` or ``3.11-torch-2.11``.
        where: the folder of all environments.
    """

    machine = platform.machine()

    def __init__(self, name: str, where: Path) -> None:
        version, *options = name.split("-")
        self.name = name
        self.where = where
        self.minor = int(version.removeprefix("3."))
        self.torch = options[1] if options[:1] == ["torch"] else None

    folder: Path
    """The path of the virtual environment on this machine."""

    @property
    def work(self) -> Path:
        """The folder in which programs run. It holds a copy of the tests."""
        return self.folder / "work"

    def make(self, *, libraries: bool) -> None:
        """Create the environment, or the missing parts of it.

        Args:
            libraries: whether to install the libraries of all extras, if they have a
                wheel.

        Raises:
            Unavailable: this machine cannot provide the environment.
            OSError: the disk is full or not writable.
            subprocess.SubprocessError: a step failed or timed out.
        """
        if refusal := self.refusal():
            raise Unavailable(refusal)
        # `lexists`: a link into another root file system looks broken from here.
        is_new = not os.path.lexists(self.folder / "bin" / "python")
        self.where.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.where).free
        if free < (needed := SPACE if is_new else SPACE_TO_RUN):
            raise Unavailable(
                f"{self.where} has {free / 1e9:.1f} GB of space, "
                f"and {needed / 1e9:.0f} are needed"
            )
        if is_new:
            print(f"creating {self.folder}", flush=True)
            try:
                self.create()
            except (OSError, subprocess.SubprocessError, Unavailable):
                # The next run would take a partial environment for a complete one.
                shutil.rmtree(self.folder, ignore_errors=True)
                raise
        self.work.mkdir(exist_ok=True)
        wanted = requirements(["test"])
        if self.torch:
            wanted[0] = f"torch=={self.torch}.*"
        self._install(wanted)
        without = self.folder / "without.json"
        if libraries and not without.exists():
            optional = requirements(["libraries"])[len(requirements([])) :]
            missing = [name for name in optional if not self._has_wheel(name)]
            without.write_text(json.dumps(missing), "utf-8")

    def refusal(self) -> str | None:
        """Return why this machine cannot provide the environment, or None."""
        return None

    @abc.abstractmethod
    def create(self) -> None:
        """Create an empty virtual environment."""

    @abc.abstractmethod
    def _command(self, program: list[str], variables: dict[str, str]) -> list[str]:
        """Return the command that runs a program in the environment."""

    @abc.abstractmethod
    def _path_of(self, path: Path) -> str:
        """Return the path of a file as a program in the environment sees it."""

    def run(
        self, program: list[str], *, bare: bool = False, **options: object
    ) -> subprocess.CompletedProcess:
        """Run a program in the folder of the tests, with clean variables.

        Args:
            program: the name and the arguments; ``python`` is the Python of the
                environment.
            bare: whether the path contains only the environment.
            options: options of :func:`subprocess.run`.
        """
        variables = {
            "HOME": self._path_of(self.folder),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "PATH": self._path_of(self.folder / "bin"),
        }
        if not bare:
            variables["PATH"] += ":/usr/bin:/bin:/usr/sbin:/sbin"
        if "CI" in os.environ:
            variables["CI"] = os.environ["CI"]
        command = self._command(program, variables)
        return subprocess.run(command, cwd=self.work, check=False, **options)

    def _pip(self, *arguments: str, **options: object) -> bool:
        network = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(NETWORK) and name != "PIP_FIND_LINKS"
        }
        variables = {"HOME": "/root", "PATH": "/usr/bin:/bin", **network}
        python = self._path_of(self.folder / "bin" / "python")
        program = [python, "-m", "pip", "install", *QUIETLY, *arguments]
        command = self._command(program, variables)
        done = subprocess.run(
            command, cwd=self.work, check=False, timeout=PATIENCE, **options
        )
        return done.returncode == 0

    def _install(self, wanted: list[str]) -> None:
        # Without an index first: the network is not used if nothing is missing.
        if self._pip("--no-index", *wanted, stderr=subprocess.DEVNULL):
            return
        print(f"installing into {self.folder}: {', '.join(wanted)}", flush=True)
        print(WITH_TORCH.splitlines()[0], flush=True)
        if not self._pip(*wanted):
            raise Unavailable(f"pip cannot install {', '.join(wanted)}")

    def _has_wheel(self, requirement: str) -> bool:
        """Install a library if it has a wheel for this Python; return whether so."""
        only = "--only-binary=:all:"
        return self._pip(only, requirement, stderr=subprocess.DEVNULL)

    def install_apart(self, folder: Path, wanted: Sequence[str]) -> bool:
        """Install packages into a separate folder; return whether this succeeded."""
        target = ("--target", self._path_of(folder))
        return self._pip("--no-deps", *target, *wanted)

    def install_wheel(self, wheel: Path) -> None:
        """Install a wheel of this package, and replace an installed one."""
        shutil.copy(wheel, self.work)
        copy = self._path_of(self.work / wheel.name)
        if not self._pip("--no-index", "--no-deps", "--force-reinstall", copy):
            raise Unavailable(f"pip cannot install {wheel.name}")
        (self.work / wheel.name).unlink()

    def versions(self) -> dict[str, object]:
        """Return the versions of Python, torch and NumPy, and missing wheels.

        Raises:
            Unavailable: torch cannot be imported.
        """
        program = ["python", "-c", VERSIONS]
        done = self.run(program, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            raise Unavailable(f"torch cannot be imported there: {' '.join(last)}")
        without = self.folder / "without.json"
        missing = json.loads(without.read_text("utf-8")) if without.exists() else None
        return {**json.loads(done.stdout), "without": missing}


class Local(Environment):
    """A virtual environment of an installed Python."""

    def __init__(self, name: str, where: Path, python: str) -> None:
        super().__init__(name, where)
        self.python = python
        self.folder = where / name

    def create(self) -> None:
        """Create the environment with the installed Python."""
        subprocess.run([self.python, "-m", "venv", self.folder], check=True)

    def _path_of(self, path: Path) -> str:
        return str(path)

    def _command(self, program: list[str], variables: dict[str, str]) -> list[str]:
        return [
            "env",
            "-i",
            *(f"{key}={value}" for key, value in variables.items()),
            *program,
        ]


class Debian(Environment):
    """A virtual environment in a root file system of Debian ``sid``."""

    def __init__(self, name: str, where: Path) -> None:
        super().__init__(name, where)
        self.root = where / "debian"
        self.folder = self.root / "environments" / name

    def create(self) -> None:
        """Create the root file system if it is missing, then the environment in it."""
        if not self._is_unpacked():
            self._bootstrap()
        shutil.copy(CERTIFICATES, self.root / CERTIFICATES.relative_to("/"))
        shutil.copy("/etc/resolv.conf", self.root / "etc" / "resolv.conf")
        python = f"python3.{self.minor}"
        if not (self.root / "usr" / "bin" / python).exists():
            wanted = (python, f"{python}-venv")
            self._install_packages(*wanted)
        self.work.mkdir(parents=True, exist_ok=True)
        if self._inside(python, "-m", "venv", self._path_of(self.folder)).returncode:
            raise Unavailable(f"{python} of Debian cannot make environments")

    def make(self, *, libraries: bool) -> None:
        """Create missing parts; with libraries, also the programs that tests use."""
        super().make(libraries=libraries)
        if libraries and not (self.root / "usr" / "bin" / "redis-server").exists():
            # Without these programs, their tests are skipped.
            with contextlib.suppress(Unavailable):
                self._install_packages("e2fsprogs", "make", "redis-server")

    def _is_unpacked(self) -> bool:
        return (self.root / "usr" / "bin" / "python3").exists()

    def refusal(self) -> str | None:
        """Return why this machine cannot have a root file system, or None."""
        here = "neither pyenv nor the path has it, and a root file system of Debian"
        if platform.system() != "Linux" or os.geteuid() != 0:
            return f"{here} can only be made by the superuser of a Linux"
        needed = (
            "unshare",
            "chroot",
            *(() if self._is_unpacked() else ("debootstrap",)),
        )
        for program in needed:
            if shutil.which(program) is None:
                return f"{here} needs {program} (apt-get install {program})"
        mount = "mount -t proc proc /proc"
        if self._step([*APART, "sh", "-c", mount]).returncode:
            return (
                f"{here} needs name spaces of mounts and processes, which are refused"
            )
        return None

    def _bootstrap(self) -> None:
        print(f"unpacking Debian into {self.root}: some minutes", flush=True)
        part = self.root.with_name("debian.part")
        shutil.rmtree(part, ignore_errors=True)
        include = "python3,python3-venv,ca-certificates,libgomp1"
        options = ["--variant=minbase", f"--include={include}"]
        command = [*APART, "debootstrap", *options, "sid", part]
        try:
            done = self._step(command)
            if done.returncode:
                last = (done.stdout + done.stderr).strip().splitlines()[-3:]
                raise Unavailable(f"debootstrap failed: {' / '.join(last)}")
            part.rename(self.root)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _step(self, command: list) -> subprocess.CompletedProcess:
        return subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=PATIENCE
        )

    def _install_packages(self, *names: str) -> None:
        self._apt("update", "-qq")
        self._apt("install", "-y", "-qq", "--no-install-recommends", *names)

    def _apt(self, *arguments: str) -> None:
        # A mirror may be weeks behind. Its lists have expired, but still work.
        stale = ["-o", "Acquire::Check-Valid-Until=false"]
        done = self._inside("apt-get", *stale, *arguments)
        if done.returncode:
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            raise Unavailable(f"apt-get {arguments[0]} in Debian: {' '.join(last)}")

    def _inside(self, *program: str) -> subprocess.CompletedProcess:
        variables = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND": "noninteractive",
        }
        return self._step(self._command(list(program), variables, work="/"))

    def _path_of(self, path: Path) -> str:
        return f"/{path.relative_to(self.root)}"

    def _command(
        self, program: list[str], variables: dict[str, str], work: str | None = None
    ) -> list[str]:
        return [
            *APART,
            *("sh", "-euc", IN_ROOT, str(self.root)),
            work or self._path_of(self.work),
            *("/usr/bin/env", "-i"),
            *(f"{name}={value}" for name, value in variables.items()),
            *program,
        ]


def installed(minor: int) -> str | None:
    """Return the path of an installed Python that can make environments, or None."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    # Skip free-threaded builds, whose names end with "t".
    versions = [
        path for path in root.glob(f"3.{minor}.*") if not path.name.endswith("t")
    ]
    paths = [str(path / "bin" / "python") for path in sorted(versions, reverse=True)]
    check = f"import sys, venv, ensurepip; sys.exit(sys.version_info[1] != {minor})"
    for path in (*paths, shutil.which(f"python3.{minor}")):
        # pyenv has shims of inactive versions, which fail.
        if (
            path
            and not subprocess.run(
                [path, "-c", check], check=False, capture_output=True
            ).returncode
        ):
            return path
    return None


def find(name: str, where: Path) -> Environment:
    """Return the environment of a name; it may have to be created.

    Raises:
        Unavailable: the name is invalid.
    """
    version = name.split("-", maxsplit=1)[0]
    if not version.startswith("3.") or not version[2:].isdigit():
        raise Unavailable(
            f"the name of a Python is such as 3.15 or 3.11-torch-2.11, got {name!r}"
        )
    if python := installed(int(version[2:])):
        return Local(name, where, python)
    return Debian(name, where)
