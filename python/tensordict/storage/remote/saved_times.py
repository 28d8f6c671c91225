"""The time at which a save was written, which its checksums have.

An object has no such time, and a copy of it has the time of the copy: bytes that differ would
then pass for a change since the save, and not for damage.
"""

from __future__ import annotations

import json
import os
import zipfile
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tensordict.storage.growing.publish import CHECKSUMS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["set_times"]

_LONGEST: Final = 1 << 30
_REMARKS: Final = b"tdremark"


def set_times(path: Path) -> None:
    """Give a file, or the files below a folder, the times that their checksums have.

    Files without checksums keep their time.
    """
    try:
        if path.is_dir():
            found = json.loads((path / CHECKSUMS).read_bytes())["files"]
            times = [
                (path / name, each[1])
                for name, each in found.items()
                if ".." not in name.split("/")
            ]
        else:
            with path.open("rb") as file:
                found = _checksums_in(file)["files"]
            times = [(path, next(iter(found.values()))[1])]
        for each, time in times:
            if each.exists():
                os.utime(each, ns=(time, time))
    except Exception:  # noqa: BLE001 (`verify` tells of checksums that cannot be read)
        return


def _checksums_in(file: BinaryIO) -> Any:
    """Return the checksums of an archive, a safetensors file or a consolidated file."""
    head = file.read(9)
    if head[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(file) as archive:
            return json.loads(archive.read(CHECKSUMS))
    if head[8:] == b"{":
        header = json.loads(_bytes_at(file, 8, int.from_bytes(head[:8], "little")))
        return json.loads(header["__metadata__"]["tensordict.sums"])
    end = file.seek(0, os.SEEK_END) - 8
    start = end - int.from_bytes(_bytes_at(file, end, 8), "little")
    if _bytes_at(file, start - 8, 8) != _REMARKS:
        raise ValueError("There are no checksums.")
    size = int.from_bytes(_bytes_at(file, start - 16, 8), "little")
    return json.loads(_bytes_at(file, start - 16 - size, size))["sums"]


def _bytes_at(file: BinaryIO, start: int, count: int) -> bytes:
    if start < 0 or count > _LONGEST:
        raise ValueError("There are no checksums.")
    file.seek(start)
    return file.read(count)
