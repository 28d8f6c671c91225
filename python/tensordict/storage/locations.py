"""Decide what a path stands for: the first question of whoever takes one.

Every function that saves to a path, loads from one, or makes files there passes it
through :func:`local`, and where it makes a directory through :func:`new_directory`. What
is to be reached in another way than through the file system of this machine is told
apart here.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final, TypeVar
from urllib.parse import unquote

__all__ = ["local", "new_directory", "scheme_of"]

_Path = TypeVar("_Path")

MSG_URL: Final = (
    "{path!r} is a URL of the scheme {scheme!r}, which is not supported here: files are "
    "mapped, so they have to be in a file system of this machine. {remedy}"
)
MSG_HOST: Final = (
    "{!r} is a file of the machine {!r}: a file:// URL of this machine has three slashes, "
    "such as 'file:///data/a'."
)
REMEDY_ELSEWHERE: Final = (
    "Write to a path such as '/tmp/save' and bring that up with `tensordict cp`, which also "
    "brings here what is to be read; or mount the place as a file system."
)
MSG_SUFFIX: Final = (
    "This writes a directory of memory-mapped files, and {path!r} is the name of a {kind}: "
    "{call} writes one. For a directory give a name without {suffix!r}, or make the "
    "directory of that name first."
)

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_WITHOUT_A_SLASH: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")

_SCHEMES: Final = frozenset(
    [
        "abfs",
        "abfss",
        "adl",
        "az",
        "azure",
        "file",
        "ftp",
        "gcs",
        "gs",
        "hdfs",
        "hf",
        "http",
        "https",
        "memory",
        "r2",
        "s3",
        "s3a",
        "sftp",
        "ssh",
        "webdav",
    ]
)
"""The schemes that are known without the second slash, which ``pathlib.Path`` drops."""

_OTHER_FORMATS: Final = {
    (".pt", ".pth"): ("file of torch.save", "torch.save(td, {!r})"),
    (".pkl", ".pickle"): ("pickle", "pickle.dump(td, open({!r}, 'wb'))"),
    (".parquet", ".pq"): ("Parquet file", "td.to_parquet({!r})"),
    (".arrow", ".feather"): (
        "file of Arrow",
        "pyarrow.feather.write_feather(tensordict.to_arrow(td), {!r})",
    ),
    (".csv",): ("file of comma-separated values", "td.to_csv({!r})"),
    (".json", ".jsonl", ".ndjson"): ("JSON file", "td.to_json({!r})"),
    (".h5", ".hdf5"): ("HDF5 file", "td.to_h5({!r})"),
    (".zarr",): ("store of Zarr", "td.to_zarr({!r})"),
    (".npz",): ("file of NumPy", "numpy.savez({!r}, **td.to_dict())"),
    (".npy",): ("file of NumPy", "numpy.save({!r}, td['key'].numpy())"),
    (".zip",): ("zip file", "td.save({!r}, archive=True)"),
}
"""The ends of names that stand for another format, what it is, and what writes it."""


def scheme_of(path: object) -> str | None:
    """Return the scheme of a URL, and None for a path.

    Examples:
        >>> import pathlib
        >>> scheme_of("s3://bucket/a"), scheme_of(pathlib.Path("s3://bucket/a"))
        ('s3', 's3')
        >>> scheme_of("/data/a"), scheme_of("run:/1"), scheme_of("C:/data")
        (None, None, None)
    """
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    text = os.fsdecode(path)
    if found := _URL.match(text):
        return found[1]
    found = _WITHOUT_A_SLASH.match(text)
    return found[1] if found and found[1].lower() in _SCHEMES else None


def local(path: _Path) -> _Path:
    """Return ``path``, which is one of a file system of this machine.

    A URL of the scheme ``file`` becomes its path. Anything that is no text, bytes or path
    is returned as well: its owner refuses it.

    Raises:
        ValueError: it is a URL of another scheme, or of another machine.

    Examples:
        >>> local("/data/a"), local("file:///data/a%20b")
        ('/data/a', '/data/a b')
        >>> local("s3://bucket/a")
        Traceback (most recent call last):
        ...
        ValueError: 's3://bucket/a' is a URL of the scheme 's3', ...
    """
    scheme = scheme_of(path)
    if scheme is None:
        return path
    given: Any = path
    text = os.fsdecode(given)
    if scheme.lower() == "file":
        return _of_file_url(text, given)
    raise ValueError(MSG_URL.format(path=text, scheme=scheme, remedy=REMEDY_ELSEWHERE))


def _of_file_url(text: str, given: Any) -> Any:
    """Return the path of a ``file`` URL, as what it was given."""
    rest = text.partition(":")[2]
    if rest.startswith("//") and not rest.startswith("///"):
        host, slash, below = rest[2:].partition("/")
        if host != "localhost":
            raise ValueError(MSG_HOST.format(text, host))
        rest = slash + below
    path = unquote("/" + rest.lstrip("/"))
    if isinstance(given, bytes):
        return os.fsencode(path)
    return path if isinstance(given, str) else type(given)(path)


def new_directory(path: _Path) -> _Path:
    """Return ``path``, at which a directory may be made.

    Raises:
        ValueError: it is a URL; its end is that of another format, and there is no
            directory of that name yet.

    Examples:
        >>> new_directory("rollouts")
        'rollouts'
        >>> new_directory("rollouts.parquet")
        Traceback (most recent call last):
        ...
        ValueError: ... td.to_parquet('rollouts.parquet') writes one. ...
    """
    path = local(path)
    if not isinstance(path, str | bytes | os.PathLike):
        return path
    text = os.fsdecode(path)
    suffix = os.path.splitext(text)[1]
    for suffixes, (kind, call) in _OTHER_FORMATS.items():
        if suffix.lower() in suffixes and not os.path.isdir(text):
            msg = MSG_SUFFIX.format(
                path=text, kind=kind, call=call.format(text), suffix=suffix
            )
            raise ValueError(msg)
    return path
