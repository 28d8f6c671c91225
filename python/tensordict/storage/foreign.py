"""Recognise files and directories of others, to say what they are and what reads them."""

from __future__ import annotations

import os
import re
import zipfile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MSG_NO_LAYOUT", "explain", "kind_of"]

MSG_NO_LAYOUT: Final = (
    "Neither an archive, nor a safetensors or consolidated file. One that was cut off is "
    "not recognised either."
)

EXPLANATIONS: Final = {
    "torch": "It was written by torch.save: read it with torch.load(path, "
    "weights_only=True), and save what that gives, "
    "TensorDict(state_dict).unflatten_keys('.').save(...), to use it here.",
    "numpy": "It was written by NumPy: read it with numpy.load, and save what that gives, "
    "TensorDict({key: array}).save(...), to use it here.",
    "pickle": "It is a pickle: if you trust who wrote it, read it with pickle.load, or with "
    "torch.load.",
    "h5": "It is an HDF5 file: TensorDict.from_h5(path) opens it, with h5py.",
    "zarr": "It is a store of Zarr: TensorDict.from_zarr(path) opens it.",
    "parquet": "It is a Parquet file: TensorDict.from_parquet(path) reads it.",
    "arrow": "It is a file of Arrow: read it with pyarrow.feather.read_table(path), and "
    "make a collection of that, tensordict.from_arrow(table).",
    "csv": "By its name it has comma-separated values: TensorDict.from_csv(path) reads it.",
    "json": "By its name it is a JSON file: TensorDict.from_json(path) reads it.",
    "jsonl": "By its name it has a record in each line: "
    "TensorDict.from_json(path, lines=True) reads it.",
    "checkpointer": "It is the folder of a checkpointer: "
    "tensordict.checkpoint.Checkpointer(path) restores and loads its steps.",
    "step": "It is a step of a checkpointer: tensordict.checkpoint.Checkpointer, of the "
    "folder that it is in, restores and loads it.",
    "safetensors": "It has safetensors files, as models of Hugging Face have: "
    "tensordict.from_safetensors(path) reads it.",
    "datasets": "It is a dataset of Hugging Face: datasets.load_from_disk(path) reads it, "
    "and tensordict.from_hf(dataset) makes a collection of that.",
    "splits": "It has several datasets of Hugging Face, each in a folder: "
    "datasets.load_from_disk(path) gives a dict of them, and tensordict.from_hf(dataset) "
    "makes a collection of one.",
    "mds": "It is a dataset of MosaicML: TensorDict.from_mds(path) reads it.",
    "dcp": "It was written by torch.distributed.checkpoint: `tensordict convert` makes a "
    "save of it.",
}
"""The text that says what a file or directory is, and what reads it, by its kind."""

# The first bytes of files. torch.save without zip begins with a pickle of its own number.
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
"""Texts have no first bytes of their own: they are told by their names."""

# The names in a directory that tell its kind, the first that is there.
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
    """Say what another program's file or directory is, and what reads it; None if unknown.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/x.pt"
        >>> torch.save({"a": torch.zeros(3)}, path)
        >>> explain(path)
        "It was written by torch.save: read it with torch.load(...)..."
    """
    return EXPLANATIONS.get(kind_of(path) or "")


def kind_of(path: str | Path) -> str | None:
    """Return the kind of a file or a directory of others, or None.

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
    # A safetensors file that was cut off: a length, of any bytes, and a header of JSON.
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
