"""Tensors in the Arrow types of Ray Data.

``ray.data.arrow_tensor`` and ``ray.data.arrow_tensor_v2`` hold tensors of one shape,
``ray.data.arrow_variable_shaped_tensor`` holds tensors that differ in shape. They are
recognized by name: the metadata of a field in a Parquet file that Ray wrote contains
the name, whether Ray is installed or not.
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
    """The array of a column of Ray Data tensors."""

    storage: Any
    """Lists of numbers; or structs of numbers (``data``) and sizes (``shape``)."""
    shape: tuple[int, ...] | None
    """The shape of each row; None if rows may differ."""


def is_ray_tensor(kind: object) -> bool:
    """Return whether an Arrow type is a tensor type of Ray Data."""
    name = getattr(kind, "extension_name", None)
    return name == VARIABLE or name in FIXED


def ray_tensors(pa: ModuleType, array: Any, field: Any = None) -> RayTensors | None:
    """Return the Ray Data tensors in an array; None if it holds something else.

    Args:
        pa: the module ``pyarrow``.
        array: the array.
        field: the field of the table. Its metadata names the type if Ray is not
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
                # Some versions of Ray wrote a pickle, which could run code.
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
    """Return the shapes of rows, int64 ``[N, dims]``; None if rows differ in dims.

    A null row has no elements.
    """
    counts = shapes.value_lengths()
    dim_counts = counts.drop_null().unique().to_pylist()
    if len(dim_counts) > 1:
        return None
    num_dims = dim_counts[0] if dim_counts else 1
    sizes = torch.tensor(shapes.flatten().to_numpy(), dtype=torch.int64)
    if not shapes.null_count:
        return sizes.reshape(len(shapes), num_dims)
    table = torch.zeros(len(shapes), num_dims, dtype=torch.int64)
    valid = torch.from_numpy(counts.is_valid().to_numpy(zero_copy_only=False))
    table[valid] = sizes.reshape(-1, num_dims)
    return table


def nested_rows(key: object, rows: Ragged) -> torch.Tensor:
    """Convert rows that may differ in shape to a nested tensor.

    Returns:
        A nested tensor of jagged layout, or of strided layout if rows differ in several
        dims. For rows without dims, a tensor ``[N]``.
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
