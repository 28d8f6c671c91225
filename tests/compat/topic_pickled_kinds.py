"""Write ``pickled_kinds_0_15_3.zip`` with the published release: what pickles hold.

It has a pickle of each kind of container, memory-mapped ones included, what
``torch.save`` writes, and the names of the package that all of these name.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from kinds import KINDS, PICKLED_KINDS

FILE = Path(__file__).parent / "pickled_kinds_0_15_3.zip"
FOLDER = "/recorded"
"""The text that stands in the pickles for the folder of the memory-mapped ones."""


# Protocol 2, in which a text can be replaced by one of another length.
WAYS: dict[str, Any] = {
    "pickle": lambda td, _: pickle.dumps(td, 2),
    "torch": lambda td, _: torch_saved(td),
    "mapped": lambda td, folder: pickle.dumps(td.memmap(folder), 2),
    "consolidated": lambda td, _: pickle.dumps(td.consolidate(metadata=True), 2),
}
KNOWN_WAYS = ("pickle", "consolidated")
"""The ways of the other kinds that ``kinds_0_15_3.zip`` has."""

MAPPED_KINDS = ("typed", "stack", "base", "values", "params", "part", "nested")


def torch_saved(td: Any) -> bytes:
    """Return what ``torch.save`` writes."""
    file = io.BytesIO()
    torch.save(td, file)
    return file.getvalue()


def moved(data: bytes, old: str, new: str) -> bytes:
    """Return a pickle with other beginnings of the texts that begin with ``old``."""
    parts, last = [], 0
    for operation, text, place in pickletools.genops(data):
        if operation.name != "BINUNICODE" or not text.startswith(old):
            continue
        longer = (new + text.removeprefix(old)).encode()
        parts += [data[last:place], b"X", len(longer).to_bytes(4, "little"), longer]
        last = place + 5 + len(text.encode())
    return b"".join([*parts, data[last:]])


def named(data: bytes) -> set[str]:
    """Return the globals that a pickle, or what ``torch.save`` wrote, names."""
    if data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as saved:
            inside = next(
                name for name in saved.namelist() if name.endswith("data.pkl")
            )
            data = saved.read(inside)
    found: set[str] = set()
    texts: list[str] = []
    for operation, argument, _ in pickletools.genops(data):
        if operation.name == "GLOBAL":
            found.add(argument.replace(" ", "."))
        elif operation.name == "STACK_GLOBAL":
            found.add(".".join(texts[-2:]))
        elif isinstance(argument, str):
            texts.append(argument)
    return found


def main() -> None:
    """Write the file anew. What the release cannot load again is left out."""
    names: set[str] = set()
    with zipfile.ZipFile(FILE, "w", zipfile.ZIP_DEFLATED) as packed:
        for kind, make in PICKLED_KINDS.items():
            for way, write in WAYS.items():
                if way in KNOWN_WAYS and kind in KINDS:
                    continue
                if way == "mapped" and not kind.startswith(MAPPED_KINDS):
                    continue
                folder = Path(tempfile.mkdtemp()) / f"{kind}.{way}"
                try:
                    data = write(make(), folder)
                    if way == "torch":
                        torch.load(io.BytesIO(data), weights_only=False)
                    else:
                        pickle.loads(data)
                except Exception:  # noqa: BLE001, S112 - of whatever kind: it cannot
                    continue
                names |= named(data)
                if way == "mapped":
                    data = moved(data, str(folder.parent), FOLDER)
                files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
                contents = {f"{kind}.{way}.pickle": data}
                for path in files:
                    contents[str(path.relative_to(folder.parent))] = path.read_bytes()
                for name, content in contents.items():
                    info = zipfile.ZipInfo(name)
                    packed.writestr(info, content, zipfile.ZIP_DEFLATED)
        ours = sorted(name for name in names if name.startswith("tensordict"))
        info = zipfile.ZipInfo("names.json")
        packed.writestr(info, json.dumps(ours), zipfile.ZIP_DEFLATED)
