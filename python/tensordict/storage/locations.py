"""The meaning of a path: a file of this machine, or a URL.

Every function that saves to a path, loads from one, or creates files there passes it through
:func:`local`. A function that creates a directory passes it through :func:`new_directory`.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final, TypeVar
from urllib.parse import unquote

__all__ = ["local", "new_directory", "scheme_of"]

_Path = TypeVar("_Path")

MSG_URL: Final = (
    "{path!r} is a URL of the scheme {scheme!r}, which is not supported here: the files must "
    "be in a file system of this machine, because they are mapped. {remedy}"
)
MSG_HOST: Final = (
    "{!r} names a file of the machine {!r}: a file:// URL of this machine has three slashes, "
    "such as 'file:///data/a'."
)
REMEDY_ELSEWHERE: Final = (
    "Save to a path such as '/tmp/save' and upload it with `tensordict cp`. To read, download "
    "the save with `tensordict cp`, or mount the store as a file system."
)
MSG_SUFFIX: Final = (
    "This call writes a directory of memory-mapped files, but {path!r} is the name of a "
    "{kind}: {call} writes one. For a directory pass a name without {suffix!r}, or create "
    "the directory of that name first."
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
"""The schemes to recognize without the second slash, which ``pathlib.Path`` removes."""

_OTHER_FORMATS: Final = {
    (".pt", ".pth"): ("torch.save file", "torch.save(td, {!r})"),
    (".pkl", ".pickle"): ("pickle", "pickle.dump(td, open({!r}, 'wb'))"),
    (".parquet", ".pq"): ("Parquet file", "td.to_parquet({!r})"),
    (".arrow", ".feather"): (
        "Arrow file",
        "pyarrow.feather.write_feather(tensordict.to_arrow(td), {!r})",
    ),
    (".csv",): ("CSV file", "td.to_csv({!r})"),
    (".json", ".jsonl", ".ndjson"): ("JSON file", "td.to_json({!r})"),
    (".h5", ".hdf5"): ("HDF5 file", "td.to_h5({!r})"),
    (".zarr",): ("Zarr store", "td.to_zarr({!r})"),
    (".npz",): ("NumPy file", "numpy.savez({!r}, **td.to_dict())"),
    (".npy",): ("NumPy file", "numpy.save({!r}, td['key'].numpy())"),
    (".zip",): ("zip file", "td.save({!r}, archive=True)"),
}
"""The suffixes of other formats, with the name of the format and a call that writes it."""


def scheme_of(path: object) -> str | None:
    """Return the scheme of a URL, or None for a path.

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
    """Return ``path`` if it is in a file system of this machine.

    A URL of the scheme ``file`` becomes its path. An object that is not text, bytes or a
    path is returned unchanged: the caller raises the error.

    Raises:
        ValueError: ``path`` is a URL of another scheme, or of another machine.

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
    url: Any = path
    text = os.fsdecode(url)
    if scheme.lower() == "file":
        return _of_file_url(text, url)
    raise ValueError(MSG_URL.format(path=text, scheme=scheme, remedy=REMEDY_ELSEWHERE))


def _of_file_url(text: str, url: Any) -> Any:
    """Return the path of a ``file`` URL, in the type of ``url``."""
    rest = text.partition(":")[2]
    if rest.startswith("//") and not rest.startswith("///"):
        host, slash, below = rest[2:].partition("/")
        if host != "localhost":
            raise ValueError(MSG_HOST.format(text, host))
        rest = slash + below
    path = unquote("/" + rest.lstrip("/"))
    if isinstance(url, bytes):
        return os.fsencode(path)
    return path if isinstance(url, str) else type(url)(path)


def new_directory(path: _Path) -> _Path:
    """Return ``path`` if a directory may be created there.

    Raises:
        ValueError: ``path`` is a URL, or has the suffix of another format and is not an
            existing directory.

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
