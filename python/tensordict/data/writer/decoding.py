"""Decode rows: images, arrays, samples of tar files."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from tensordict import NonTensorData, TensorDict
from tensordict.primitives.arrays import tensor_over
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.growing.text import empty_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = [
    "IMAGES",
    "ListOf",
    "as_row",
    "class_names_of",
    "image",
    "kinds_of",
    "read_file",
    "row_of",
    "tar_samples",
]

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""The suffixes of images."""

MSG_ITEM = (
    "An item must be a tensordict or a dict of entries, got {}. Pass transform=, a function that "
    "makes one of an item, such as transform=lambda item: {{'image': item[0], 'label': item[1]}}."
)
MSG_PILLOW = "Images need Pillow: pip install tensordict-rs[images]"


def as_row(item: Any, kinds: Mapping[str, Any] | None = None) -> CollectionProtocol:
    """Convert a dictionary of fields (numbers, arrays, images, strings) to a tensordict.

    Args:
        item: the fields, or a tensordict, which is returned as it is.
        kinds: by field, the :class:`ListOf` for empty lists; for a field with nested
            fields, a dictionary of the same form.

    Raises:
        TypeError: the item is neither a tensordict nor a dictionary.
    """
    if isinstance(item, CollectionProtocol):
        return item
    if not isinstance(item, Mapping):
        raise TypeError(MSG_ITEM.format(type(item).__name__))
    kinds = kinds or {}
    return TensorDict(
        {key: _as_value(value, kinds.get(key)) for key, value in item.items()}
    )


def row_of(fields: Mapping[str, Any]) -> TensorDict:
    """Convert a dictionary to a row; lists without numbers get no dtype yet."""
    return TensorDict({key: _with_lists(value) for key, value in fields.items()})


def _with_lists(value: Any) -> Any:
    if type(value) is dict:
        return row_of(value)
    if type(value) is tuple and not value:
        value = []
    is_open = type(value) is list and (not value or isinstance(value[0], list))
    return _as_value(value) if is_open else value


class ListOf(NamedTuple):
    """The kind of a field whose values are lists of numbers."""

    dtype: torch.dtype
    """The dtype of the numbers."""
    num_dims: int
    """The number of nested levels of lists."""


def kinds_of(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of lists of numbers in the features of a Hugging Face dataset."""
    found: dict[str, Any] = {}
    for key, feature in features.items():
        if isinstance(feature, dict):
            found[key] = kinds_of(feature)
            continue
        num_dims, inner = _inside_lists(feature)
        name = str(getattr(inner, "dtype", ""))
        dtypes = {"int": torch.int64, "uint": torch.int64, "bool": torch.bool}
        dtypes["float"] = torch.get_default_dtype()
        dtype = dtypes.get(name.rstrip("0123456789"))
        if num_dims and dtype is not None:
            found[key] = ListOf(dtype, num_dims)
    return found


def class_names_of(
    features: Mapping[str, Any], key: tuple[str, ...] = ()
) -> dict[tuple[str, ...], list[str]]:
    """Return the class names by key, from the features of a Hugging Face dataset."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, feature in features.items():
        if isinstance(feature, dict):
            found |= class_names_of(feature, (*key, name))
            continue
        _, inner = _inside_lists(feature)
        if type(inner).__name__ == "ClassLabel":
            found[*key, name] = list(inner.names)
    return found


def _inside_lists(feature: Any) -> tuple[int, Any]:
    """Return the number of lists around a feature, and the inner feature."""
    num_dims = 0
    while isinstance(feature, list) or hasattr(feature, "feature"):
        feature = feature[0] if isinstance(feature, list) else feature.feature
        num_dims += 1
    return num_dims, feature


def _as_value(
    value: object, kind: Any = None
) -> torch.Tensor | CollectionProtocol | NonTensorData[Any]:
    if isinstance(kind, ListOf):
        if isinstance(value, (torch.Tensor, np.ndarray)) and not len(value):
            return torch.as_tensor(value).to(kind.dtype)
        shape = empty_shape(value)
        if shape is not None:
            shape += [0] * (kind.num_dims - len(shape))
            return torch.zeros(shape, dtype=kind.dtype)
    if isinstance(value, (torch.Tensor, CollectionProtocol)):
        return value
    if isinstance(value, (bool, int, float, complex)):
        return torch.tensor(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        return tensor_over(np.array(value, subok=True))
    if hasattr(value, "getbands"):
        return image(value)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return as_row(value, kind)
    if isinstance(value, list) and _are_numbers(value):
        return torch.tensor(value)
    return NonTensorData(value)


def _are_numbers(value: list[Any]) -> bool:
    """Return whether a list, or nested lists of one length, contain only numbers."""
    if not value:
        return False
    if all(isinstance(item, list) for item in value):
        sizes = {len(item) for item in value}
        return len(sizes) == 1 and all(map(_are_numbers, value))
    return all(isinstance(item, (bool, int, float)) for item in value)


def image(source: Any, size: tuple[int, int] | None = None) -> torch.Tensor:
    """Convert an image to uint8 of shape ``[channels, height, width]``.

    Args:
        source: a Pillow image, a file or its path.
        size: the height and width to which the image is scaled. Default: unscaled.
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
    """Read a file as a tensor: an image, or an array that NumPy saved."""
    if path.suffix.lower() == ".npy":
        return torch.from_numpy(np.load(path, allow_pickle=False))
    return image(path, size)


# Tar files ----------------------------------------------------------------------------


def tar_samples(paths: Iterable[str | Path]) -> Iterator[dict[str, bytes]]:
    """Yield the samples of tar files: files of one stem, by their suffixes.

    ``cats/7.jpg`` and ``cats/7.cls`` are one sample with the fields ``jpg`` and
    ``cls``.
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


def decoded_sample(sample: Mapping[str, bytes]) -> CollectionProtocol:
    """Decode a sample of a tar file, each field by its suffix."""
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
