"""Tensors in the types that Ray Data adds to Arrow.

``ray.data.arrow_tensor`` and ``ray.data.arrow_tensor_v2`` hold tensors of one shape,
``ray.data.arrow_variable_shaped_tensor`` those that differ in shape. They are known by their
names: in a file of Parquet that Ray wrote the metadata of a field has them, with or without
Ray.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict.containers.lazy.ragged_column import jagged

if TYPE_CHECKING:
    from types import ModuleType

    import pyarrow as pa

    from tensordict.storage.growing.rows import Ragged

__all__ = ["RayTensors", "is_ray_tensor", "nested_rows", "ray_tensors", "shapes_of"]

FIXED = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
VARIABLE = "ray.data.arrow_variable_shaped_tensor"


class RayTensors(NamedTuple):
    """The array of a column of tensors of Ray Data."""

    storage: Any
    """Lists of the items; or structs of them, ``data``, and of sizes, ``shape``."""
    shape: tuple[int, ...] | None
    """That of each row; None where rows may differ."""


def is_ray_tensor(kind: object) -> bool:
    """Return whether a type is one of Ray Data's for tensors."""
    name = getattr(kind, "extension_name", None)
    return name == VARIABLE or name in FIXED


def ray_tensors(pa: ModuleType, array: Any, field: Any = None) -> RayTensors | None:
    """Find the tensors of Ray Data in an array; None where it holds something else.

    Args:
        pa: the module ``pyarrow``.
        array: the array.
        field: the field of a table, whose metadata names the type where Ray is not
            imported.
    """
    kind, shape, storage = array.type, None, array
    if isinstance(kind, pa.BaseExtensionType):
        name, storage = kind.extension_name, array.storage
        if name in FIXED:
            shape = tuple(kind.shape)
    else:
        metadata = (field is not None and field.metadata) or {}
        name = metadata.get(b"ARROW:extension:name", b"").decode()
        if name in FIXED:
            try:
                shape = tuple(json.loads(metadata[b"ARROW:extension:metadata"]))
            except (KeyError, ValueError):
                # Some versions of Ray wrote a pickle, which is not loaded from a file.
                return None
    if name not in FIXED and name != VARIABLE:
        return None
    types, values = pa.types, storage.type
    if name == VARIABLE:
        values = values.field("data").type
    values = values.value_type
    is_number = (
        types.is_integer(values)
        or types.is_floating(values)
        or types.is_boolean(values)
    )
    return RayTensors(storage, shape) if is_number else None


def shapes_of(shapes: pa.ListArray) -> torch.Tensor | None:
    """Return the shapes of rows, int64 ``[N, dims]``; None if they differ in dims.

    A row that is null has no items.
    """
    counts = shapes.value_lengths()
    found = counts.drop_null().unique().to_pylist()
    if len(found) > 1:
        return None
    num_dims = found[0] if found else 1
    sizes = torch.tensor(shapes.flatten().to_numpy(), dtype=torch.int64)
    if not shapes.null_count:
        return sizes.reshape(len(shapes), num_dims)
    table = torch.zeros(len(shapes), num_dims, dtype=torch.int64)
    valid = torch.from_numpy(counts.is_valid().to_numpy(zero_copy_only=False))
    table[valid] = sizes.reshape(-1, num_dims)
    return table


def nested_rows(key: object, rows: Ragged) -> torch.Tensor:
    """Make a nested tensor of rows that may differ in shape.

    Returns:
        One of the jagged layout; of the strided one where rows differ in several dims. A
        tensor ``[N]`` of rows without dims.
    """
    table = rows.table
    if not table.shape[1]:
        return rows.values
    if len(table) and int((table != table[0]).any(0).sum()) > 1:
        sizes = table.prod(1).tolist()
        parts = zip(rows.values.split(sizes), table.tolist(), strict=True)
        views = [part.view(shape) for part, shape in parts]
        return torch.nested.as_nested_tensor(views, layout=torch.strided)
    return jagged(rows, key, 1)
