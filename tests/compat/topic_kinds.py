"""Write ``kinds_0_15_3.zip`` with the published release: each kind of container, saved
in each way that the release can.
"""

from __future__ import annotations

import pickle
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from kinds import KINDS

from tensordict import TensorDict, from_consolidated

FILE = Path(__file__).parent / "kinds_0_15_3.zip"

SAVES: dict[str, Any] = {
    "tree": lambda td, path: td.memmap(path),
    "archive": lambda td, path: td.memmap(path, archive=True),
    "consolidated": lambda td, path: td.consolidate(path),
    "buffer": lambda td, path: path.write_bytes(
        pickle.dumps(td.consolidate(metadata=True))
    ),
    "pickle": lambda td, path: path.write_bytes(pickle.dumps(td)),
}
LOADS: dict[str, Any] = {
    "tree": lambda path: TensorDict.load_memmap(path, allow_pickle=True),
    "archive": lambda path: TensorDict.load_memmap(path, allow_pickle=True),
    "consolidated": from_consolidated,
    "buffer": lambda path: pickle.loads(path.read_bytes()),
    "pickle": lambda path: pickle.loads(path.read_bytes()),
}


LOST = {"value.consolidated"}
"""The cases that are loaded without an error, and without the value."""


def main() -> None:
    """Write the file anew. What the release cannot load again is left out."""
    with zipfile.ZipFile(FILE, "w", zipfile.ZIP_DEFLATED) as packed:
        for kind, make in KINDS.items():
            for way, save in SAVES.items():
                path = Path(tempfile.mkdtemp()) / f"{kind}.{way}"
                try:
                    save(make(), path)
                    LOADS[way](path)
                except Exception:  # noqa: BLE001, S112 - of whatever kind: it cannot
                    continue
                if path.name not in LOST:
                    for file in sorted([path, *path.rglob("*")]):
                        if file.is_file():
                            name = str(file.relative_to(path.parent))
                            info, content = zipfile.ZipInfo(name), file.read_bytes()
                            packed.writestr(info, content, zipfile.ZIP_DEFLATED)
