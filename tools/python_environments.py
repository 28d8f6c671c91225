"""Environments for the Pythons that others have, made where it can be done.

An environment has torch, NumPy, what the tests need, and later a wheel of this package.
``Local`` is a virtual environment of a Python of this machine, ``Debian`` one in a root file system
of Debian, where ``sid`` has Pythons that no other place has yet. Programs that run there see neither
the checkout nor Rust. Runs on the system's Python, so it uses only the standard library.
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
"""The variables with which a program reaches the package index."""

QUIETLY = ("--quiet", "--disable-pip-version-check", "--progress-bar", "off")

SPACE = 8e9
"""The bytes that a new environment takes, with torch and what unpacks it."""

SPACE_TO_RUN = 2e9
"""The bytes that its tests take, and the wheel."""

PATIENCE = 1800
"""The seconds for one step of making an environment: a network may never answer."""

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

# The processes of a program end with it, and its mounts with its name space.
APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
IN_ROOT = """
mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; mount --rbind /sys "$0/sys"
root=$0; work=$1; shift; status=0
# This shell is the first process of the name space, which orphans become children of.
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
    """The reason why there is no environment for a Python here."""


class Environment(abc.ABC):
    """One Python, with torch and what the tests need.

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
    """The virtual environment, as this machine sees it."""

    @property
    def work(self) -> Path:
        """The folder in which programs run, with a copy of the tests."""
        return self.folder / "work"

    def make(self, *, libraries: bool) -> None:
        """Create what is missing of the environment.

        Args:
            libraries: install those of all extras for which there is a wheel, too.

        Raises:
            Unavailable: it cannot be made here.
            OSError: the disk is full, or may not be written.
            subprocess.SubprocessError: a step failed, or did not end.
        """
        if refusal := self.refusal():
            raise Unavailable(refusal)
        # A link that leads nowhere, as this machine sees it, is one inside of another root.
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
                # Half of an environment would be taken for one the next time.
                shutil.rmtree(self.folder, ignore_errors=True)
                raise
        self.work.mkdir(exist_ok=True)
        wanted = requirements(["test"])
        if self.torch:
            wanted[0] = f"torch=={self.torch}.*"
        self._install(wanted)
        without = self.folder / "without.json"
        if libraries and not without.exists():
            each = requirements(["libraries"])[len(requirements([])) :]
            missing = [name for name in each if not self._has_wheel(name)]
            without.write_text(json.dumps(missing), "utf-8")

    def refusal(self) -> str | None:
        """Return the reason why such an environment cannot be here, if there is one."""
        return None

    @abc.abstractmethod
    def create(self) -> None:
        """Create the virtual environment, with nothing in it."""

    @abc.abstractmethod
    def _command(self, program: list[str], variables: dict[str, str]) -> list[str]:
        """Return the command of this machine that runs a program there."""

    @abc.abstractmethod
    def _path_of(self, path: Path) -> str:
        """Return the name of a file of the environment, for a program that runs there."""

    def run(
        self, program: list[str], *, bare: bool = False, **options: object
    ) -> subprocess.CompletedProcess:
        """Run a program in the folder of the tests, with a clean environment.

        Args:
            program: its name and arguments; ``python`` is that of the environment.
            bare: nothing is on the path but the environment itself.
            options: those of :func:`subprocess.run`.
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
        # Asks no index where everything is there.
        if self._pip("--no-index", *wanted, stderr=subprocess.DEVNULL):
            return
        print(f"installing into {self.folder}: {', '.join(wanted)}", flush=True)
        print(WITH_TORCH.splitlines()[0], flush=True)
        if not self._pip(*wanted):
            raise Unavailable(f"pip cannot install {', '.join(wanted)}")

    def _has_wheel(self, requirement: str) -> bool:
        """Install a library, unless it has no wheel for this Python."""
        only = "--only-binary=:all:"
        return self._pip(only, requirement, stderr=subprocess.DEVNULL)

    def install_apart(self, folder: Path, wanted: Sequence[str]) -> bool:
        """Install packages into a folder of their own, and return whether that went well."""
        target = ("--target", self._path_of(folder))
        return self._pip("--no-deps", *target, *wanted)

    def install_wheel(self, wheel: Path) -> None:
        """Install a wheel of this package in place of any other."""
        shutil.copy(wheel, self.work)
        copy = self._path_of(self.work / wheel.name)
        if not self._pip("--no-index", "--no-deps", "--force-reinstall", copy):
            raise Unavailable(f"pip cannot install {wheel.name}")
        (self.work / wheel.name).unlink()

    def versions(self) -> dict[str, object]:
        """Return the versions of Python, torch and NumPy, and what has no wheel.

        Raises:
            Unavailable: torch cannot be imported, whatever this package does.
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
    """A virtual environment of a Python of this machine."""

    def __init__(self, name: str, where: Path, python: str) -> None:
        super().__init__(name, where)
        self.python = python
        self.folder = where / name

    def create(self) -> None:
        """Create it with the Python that was found."""
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
    """A virtual environment in a root file system of Debian's ``sid``."""

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
        """Create what is missing; with the libraries come the programs that tests use."""
        super().make(libraries=libraries)
        if libraries and not (self.root / "usr" / "bin" / "redis-server").exists():
            # Their tests are skipped without them, and say so.
            with contextlib.suppress(Unavailable):
                self._install_packages("e2fsprogs", "make", "redis-server")

    def _is_unpacked(self) -> bool:
        return (self.root / "usr" / "bin" / "python3").exists()

    def refusal(self) -> str | None:
        """Return the reason why there can be no root file system here."""
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
        # A mirror may be some weeks behind: its lists say that they are too old, and still serve.
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
    """Return the path of a Python of this machine that can make environments."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    # A name that ends with "t" is a build without a global lock.
    found = [path for path in root.glob(f"3.{minor}.*") if not path.name.endswith("t")]
    paths = [str(path / "bin" / "python") for path in sorted(found, reverse=True)]
    check = f"import sys, venv, ensurepip; sys.exit(sys.version_info[1] != {minor})"
    for path in (*paths, shutil.which(f"python3.{minor}")):
        # The shim of a version that is not chosen is there, and fails.
        if (
            path
            and not subprocess.run(
                [path, "-c", check], check=False, capture_output=True
            ).returncode
        ):
            return path
    return None


def find(name: str, where: Path) -> Environment:
    """Return the environment of a name, which need not be there yet.

    Raises:
        Unavailable: the name is none.
    """
    version = name.split("-", maxsplit=1)[0]
    if not version.startswith("3.") or not version[2:].isdigit():
        raise Unavailable("the name of a Python is such as 3.15 or 3.11-torch-2.11")
    if python := installed(int(version[2:])):
        return Local(name, where, python)
    return Debian(name, where)
