"""Decode rows: images, arrays, samples of tar files."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict import NonTensorData, TensorDict
from tensordict.primitives.arrays import tensor_over
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["IMAGES", "as_row", "image", "read_file", "tar_samples"]

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""The suffixes of images."""

MSG_PILLOW = "Images need Pillow: pip install tensordict-rs[images]"


def as_row(item: Any) -> Any:
    """Convert an item of fields (numbers, arrays, images, texts) to a collection."""
    if isinstance(item, CollectionProtocol):
        return item
    return TensorDict({key: _as_value(value) for key, value in item.items()})


def _as_value(value: object) -> Any:
    if isinstance(value, (torch.Tensor, CollectionProtocol)):
        return value
    if isinstance(value, (bool, int, float, complex)):
        return torch.tensor(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        return tensor_over(np.array(value, subok=True))
    if hasattr(value, "getbands"):
        return image(value)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return as_row(value)
    if isinstance(value, list) and _are_numbers(value):
        return torch.tensor(value)
    return NonTensorData(value)


def _are_numbers(value: list[Any]) -> bool:
    """Tell whether a list, or lists in it of one length, are of numbers."""
    if not value:
        return False
    if all(isinstance(item, list) for item in value):
        sizes = {len(item) for item in value}
        return len(sizes) == 1 and all(map(_are_numbers, value))
    return all(isinstance(item, (bool, int, float)) for item in value)


def image(source: Any, size: tuple[int, int] | None = None) -> torch.Tensor:
    """Convert an image to uint8 of the shape ``[channels, height, width]``.

    Args:
        source: an image of Pillow, a file or its path.
        size: height and width that it is scaled to.
    """
    if hasattr(source, "getbands"):
        return _pixels(source, size)
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(MSG_PILLOW) from None
    with Image.open(source) as opened:
        return _pixels(opened, size)


def _pixels(opened: Any, size: tuple[int, int] | None) -> torch.Tensor:
    if opened.mode not in ("L", "RGB", "RGBA"):
        opened = opened.convert("RGB")
    if size is not None:
        opened = opened.resize((size[1], size[0]))
    pixels = torch.from_numpy(np.array(opened))
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    return pixels.permute(2, 0, 1).contiguous()


def read_file(path: Path, size: tuple[int, int] | None = None) -> torch.Tensor:
    """Read the tensor of a file: an image, or an array that NumPy saved."""
    if path.suffix.lower() == ".npy":
        return torch.from_numpy(np.load(path, allow_pickle=False))
    return image(path, size)


# Tar files ----------------------------------------------------------------------------


def tar_samples(paths: Iterable[str | Path]) -> Iterator[dict[str, bytes]]:
    """Read the samples of tar files: files of one name, by the suffix that follows it.

    ``cats/7.jpg`` and ``cats/7.cls`` are one sample, of the fields ``jpg`` and ``cls``.
    """
    for path in paths:
        name: str | None = None
        sample: dict[str, bytes] = {}
        with tarfile.open(path) as opened:
            for member in opened:
                file = opened.extractfile(member) if member.isfile() else None
                folder, _, base = member.name.rpartition("/")
                stem, dot, field = base.partition(".")
                if file is None or not dot or not stem:
                    continue
                key = f"{folder}/{stem}" if folder else stem
                if key != name and sample:
                    yield sample
                    sample = {}
                name = key
                sample["__key__"] = key.encode()
                sample[field.lower()] = file.read()
        if sample:
            yield sample


def decoded_sample(sample: Mapping[str, bytes]) -> Any:
    """Decode a sample of a tar file, each field by the suffix of its name."""
    return as_row({field: _decoded(field, data) for field, data in sample.items()})


def _decoded(field: str, data: bytes) -> Any:
    end = "." + field.rpartition(".")[2]
    if end in IMAGES:
        return image(io.BytesIO(data))
    if end == ".npy":
        return np.load(io.BytesIO(data), allow_pickle=False)
    if end in (".cls", ".cls2", ".index", ".inx", ".id"):
        return int(data)
    if end == ".json":
        value = json.loads(data)
        return value if isinstance(value, dict) else NonTensorData(value)
    if end in (".txt", ".text", ".transcript") or field == "__key__":
        return data.decode()
    return data
