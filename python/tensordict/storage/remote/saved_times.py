"""The time at which a save was written, which its checksums have.

An object has no such time, and a copy of it has the time of the copy: bytes that differ would
then pass for a change since the save, and not for damage.
"""

from __future__ import annotations

import json
import os
import zipfile
from typing import TYPE_CHECKING, Any

from tensordict import _rust
from tensordict.storage.growing.publish import CHECKSUMS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["set_times"]


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
            found = _checksums_in(path)["files"]
            times = [(path, next(iter(found.values()))[1])]
        for each, time in times:
            if each.exists():
                os.utime(each, ns=(time, time))
    except Exception:  # noqa: BLE001 (`verify` tells of checksums that cannot be read)
        return


def _checksums_in(path: Path) -> Any:
    """Return the checksums of an archive, a safetensors file or a consolidated file."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read(CHECKSUMS))
    if _rust.is_safetensors(path):
        texts, *_ = _rust.safetensors_header(path)
        return json.loads(dict(texts)["tensordict.sums"])
    _, remarks, _ = _rust.read_consolidated(path)
    return json.loads(remarks)["sums"]
