"""Recognition of files and directories of other programs: their kind, and how to read them."""

from __future__ import annotations

import os
import re
import zipfile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MSG_NO_LAYOUT", "explain", "kind_of"]

MSG_NO_LAYOUT: Final = (
    "It is neither an archive, nor a safetensors or consolidated file, or its end was cut "
    "off."
)

EXPLANATIONS: Final = {
    "torch": "It was written by torch.save: read it with torch.load(path, "
    "weights_only=True). To use it here, save the result: "
    "TensorDict(state_dict).unflatten_keys('.').save(...).",
    "numpy": "It was written by NumPy: read it with numpy.load. To use it here, save the "
    "result: TensorDict({key: array}).save(...).",
    "pickle": "It is a pickle: if you trust its author, read it with pickle.load or "
    "torch.load.",
    "h5": "It is an HDF5 file: TensorDict.from_h5(path) opens it, with h5py.",
    "zarr": "It is a Zarr store: TensorDict.from_zarr(path) opens it.",
    "parquet": "It is a Parquet file: TensorDict.from_parquet(path) reads it.",
    "arrow": "It is an Arrow file: read it with pyarrow.feather.read_table(path), and convert "
    "the table with tensordict.from_arrow(table).",
    "csv": "By its name it is a CSV file: TensorDict.from_csv(path) reads it.",
    "json": "By its name it is a JSON file: TensorDict.from_json(path) reads it.",
    "jsonl": "By its name it is a JSON Lines file: "
    "TensorDict.from_json(path, lines=True) reads it.",
    "checkpointer": "It is the directory of a checkpointer: "
    "tensordict.checkpoint.Checkpointer(path) restores and loads its steps.",
    "step": "It is a step of a checkpointer: tensordict.checkpoint.Checkpointer(parent) "
    "restores and loads it, where parent is its parent directory.",
    "safetensors": "It contains safetensors files, like a Hugging Face model: "
    "tensordict.from_safetensors(path) reads it.",
    "datasets": "It is a Hugging Face dataset: datasets.load_from_disk(path) reads it, "
    "and tensordict.from_hf(dataset) converts it.",
    "splits": "It contains several Hugging Face datasets: datasets.load_from_disk(path) "
    "returns a dict of them, and tensordict.from_hf(dataset) converts one.",
    "mds": "It is a MosaicML dataset: TensorDict.from_mds(path) reads it.",
    "dcp": "It was written by torch.distributed.checkpoint: `tensordict convert` converts it "
    "to a save.",
}
"""The kinds of files and directories of other programs, with a text on how to read them."""

# The first bytes of files. torch.save without zip begins with the pickle of a magic number.
BEGINNINGS: Final = (
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "torch"),
    (b"\x93NUMPY", "numpy"),
    (b"\x89HDF\r\n\x1a\n", "h5"),
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    *((bytes([0x80, protocol]), "pickle") for protocol in range(2, 6)),
)
SUFFIXES: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
"""The kinds of text files, which have no typical first bytes, by their suffixes."""

# The kinds of directories by a file that they contain. The first match counts.
MEMBERS: Final = (
    (".metadata", "dcp"),
    ("zarr.json", "zarr"),
    (".zgroup", "zarr"),
    ("dataset_info.json", "datasets"),
    ("dataset_dict.json", "splits"),
    ("index.json", "mds"),
)
_STEP: Final = re.compile(r"step-[0-9]+")
_BEGINNING_OF_A_STEP: Final = b'{"sha256": "'


def explain(path: str | Path) -> str | None:
    """Return what another program's file is and how to read it, or None if unknown.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/x.pt"
        >>> torch.save({"a": torch.zeros(3)}, path)
        >>> explain(path)
        "It was written by torch.save: read it with torch.load(...)..."
    """
    return EXPLANATIONS.get(kind_of(path) or "")


def kind_of(path: str | Path) -> str | None:
    """Return the kind of a file or directory of another program, or None.

    The kinds are the keys of :data:`EXPLANATIONS`.
    """
    try:
        if os.path.isdir(path):
            return _kind_of_directory(os.fspath(path))
        return _kind_of_file(path) if os.path.isfile(path) else None
    except (OSError, zipfile.BadZipFile):
        return None


def _kind_of_directory(path: str) -> str | None:
    names = os.listdir(path)
    if "meta.json" in names:
        with open(os.path.join(path, "meta.json"), "rb") as file:
            start = file.read(len(_BEGINNING_OF_A_STEP))
        return "step" if start == _BEGINNING_OF_A_STEP else None
    for name, kind in MEMBERS:
        if name in names:
            return kind
    if any(map(_STEP.fullmatch, names)):
        return "checkpointer"
    if any(
        name.endswith((".safetensors", ".safetensors.index.json")) for name in names
    ):
        return "safetensors"
    return None


def _kind_of_file(path: str | Path) -> str | None:
    with open(path, "rb") as file:
        beginning = file.read(16)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return _kind_of_zip(archive.namelist())
    by_name = SUFFIXES.get(os.path.splitext(path)[1].lower())
    # A truncated safetensors file: a length, which may be any bytes, and a JSON header.
    if beginning[8:9] == b"{":
        return by_name
    for start, kind in BEGINNINGS:
        if beginning.startswith(start):
            return kind
    return by_name


def _kind_of_zip(names: list[str]) -> str | None:
    if "meta.json" in names:
        return None
    if any(name.endswith("/data.pkl") for name in names):
        return "torch"
    if names and all(name.endswith(".npy") for name in names):
        return "numpy"
    return None
