"""Conversion to and from xarray: named dims and coordinates.

A leaf is a variable, a nested tensordict a group (``xarray.DataTree``). Coordinates of
the batch dims are entries under :data:`COORDINATES` and are indexed with the rows.
Names of feature dims, coordinates of feature dims and attributes are non-tensor data
under :data:`LABELS`. :func:`to_xarray` restores both.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.containers.dense import TensorDict
from tensordict.interop.leaves import array_of, check_collection, extra, path_of
from tensordict.primitives.arrays import tensor_over
from tensordict.primitives.checks import is_branch
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    import xarray as xr

    from tensordict._nestedkey import NestedKey
    from tensordict.containers.collection import TensorCollection

__all__ = ["COORDINATES", "LABELS", "from_xarray", "to_xarray"]

INSTALL = "pip install 'tensordict-rs[xarray]'"

COORDINATES = "_coords"
"""The key of the coordinates with one value for each element of the batch."""

LABELS = "_xarray"
"""The key of names of feature dims, their coordinates and attributes."""

NUMBERS = "biufc"

BATCH_ATTRIBUTE = "tensordict_batch"
"""The attribute of a dataset that holds the batch dims for :func:`from_xarray`."""

MSG_KIND = "from_xarray expects a Dataset, DataArray or DataTree of xarray, got a {}."
MSG_BATCH = (
    "from_xarray got batch_dims={asked}, but the variable {name!r} has the dims {dims}: "
    "transpose it first, or pass the leading dims of all variables."
)
MSG_FEWER = (
    "from_xarray got batch_dims={asked}, but the variables only share the leading dims "
    "{shared}: transpose variables first, or pass fewer batch dims."
)
MSG_DIMS = "to_xarray got dims={dims} for {key!r}, which has {ndim} feature dims."
MSG_UNKNOWN = "to_xarray got dims for {keys}, but the entries are {names}."
MSG_SIZE = (
    "to_xarray got a dim {dim!r} of size {size} at {key!r}, but another entry has it in "
    "size {other}: pass another name in dims=."
)
MSG_COORDINATE = (
    "to_xarray cannot keep the coordinate {name!r} of shape {shape}: its dims {dims} now "
    "have the sizes {sizes}. Index or remove it in td[{key!r}]."
)


def to_xarray(
    td: CollectionProtocol, *, dims: Mapping[NestedKey, Sequence[str]] | None = None
) -> xr.Dataset | xr.DataTree:
    """Convert a tensordict to an xarray dataset.

    The batch dims have the names of ``td``, or else ``batch_0`` and so on. Tensors on
    the CPU share their memory. Non-tensor data becomes arrays of texts, numbers or
    objects.

    Args:
        td: the tensordict.
        dims: from keys to the names of feature dims. Default: the names that
            :func:`from_xarray` stored, or ``<key>_0`` and so on.

    Returns:
        A ``Dataset``; with nested tensordicts, a ``DataTree``.

    Raises:
        TypeError: NumPy lacks the dtype of an entry, or an entry is a nested tensor.
        ValueError: names of dims do not match an entry, or a coordinate no longer has
            the sizes of its dims.
        ImportError: xarray is not installed.
    """
    check_collection(td, "to_xarray")
    package = extra("xarray", "to_xarray", INSTALL)
    chosen = {
        (key,) if isinstance(key, str) else tuple(key): list(names)
        for key, names in (dims or {}).items()
    }
    groups: dict[str, Any] = {}
    used: set[tuple[str, ...]] = set()
    _add_groups(package, groups, (), td, chosen, used)
    unknown = [path_of(path) for path in chosen if path not in used]
    if unknown:
        raise ValueError(MSG_UNKNOWN.format(keys=unknown, names=list(td.keys())))
    if len(groups) == 1:
        return groups["/"]
    return package.DataTree.from_dict(groups)


def _batch_names(td: CollectionProtocol) -> list[str]:
    names = td.names if td.batch_dims else []
    return [name or f"batch_{dim}" for dim, name in enumerate(names)]


def _add_groups(
    package: ModuleType,
    groups: dict[str, Any],
    path: tuple[str, ...],
    td: CollectionProtocol,
    chosen: dict[tuple[str, ...], list[str]],
    used: set[tuple[str, ...]],
) -> None:
    """Add the datasets of a tensordict and of its nested tensordicts to ``groups``."""
    entries = dict(td.items())
    labels = entries.pop(LABELS, None)
    labels = {} if labels is None else labels.data
    batch_coordinates = entries.pop(COORDINATES, None)
    batch = _batch_names(td)
    sizes: dict[str, int] = dict(zip(batch, td.batch_size, strict=True))
    variables: dict[str, Any] = {}
    nested = []
    for key, value in entries.items():
        key_path = (*path, key)
        if is_branch(value):
            nested.append((key_path, value))
            continue
        array = _array(key_path, value)
        used.add(key_path)
        names = chosen.get(key_path) or labels.get("dims", {}).get(key)
        count = array.ndim - len(batch)
        if names is None:
            names = [f"{key}_{dim_index}" for dim_index in range(count)]
        if len(names) != count:
            raise ValueError(
                MSG_DIMS.format(dims=names, key=path_of(key_path), ndim=count)
            )
        for dim, size in zip(names, array.shape[len(batch) :], strict=True):
            if sizes.setdefault(dim, size) != size:
                raise ValueError(
                    MSG_SIZE.format(
                        dim=dim, size=size, key=path_of(key_path), other=sizes[dim]
                    )
                )
        attributes = labels.get("attrs_of", {}).get(key)
        variables[key] = _variable(package, [*batch, *names], array, attributes)
    coordinates = dict(_coordinates(labels.get("coords", {}), sizes, path))
    for name, value in () if batch_coordinates is None else batch_coordinates.items():
        array = _array((*path, COORDINATES, name), value)
        attributes = labels.get("attrs_of", {}).get(name)
        coordinates[name] = _variable(package, batch, array, attributes)
    groups["/" + "/".join(path)] = package.Dataset(
        variables, coordinates, {**labels.get("attrs", {}), **_batch_attribute(td)}
    )
    for key_path, value in nested:
        _add_groups(package, groups, key_path, value, chosen, used)


def _batch_attribute(td: CollectionProtocol) -> dict[str, Any]:
    """Return the batch dims as JSON, which every file format stores as text."""
    names = td.names if td.batch_dims else []
    return {BATCH_ATTRIBUTE: json.dumps({"names": names, "size": list(td.batch_size)})}


def _variable(package: Any, dims: list[str], array: Any, attributes: Any) -> Any:
    # With `fastpath`, xarray does not convert None to NaN.
    return package.Variable(dims, array, attributes, fastpath=array.dtype.kind == "O")


def _array(path: tuple[str, ...], value: Any) -> np.ndarray[Any, Any]:
    """Convert a leaf, or the objects of non-tensor data, to an array."""
    if isinstance(value, torch.Tensor):
        return array_of("to_xarray", path, value)
    cells = list(value._flat())
    kinds = {type(cell) for cell in cells}
    plain = (str, bytes, bool, int, float, complex, np.generic)
    array = None
    if len(kinds) == 1 and issubclass(next(iter(kinds)), plain) and kinds != {bytes}:
        array = np.array(cells)
    if array is None or array.dtype.kind in {"O", "S"}:
        array = np.empty(len(cells), dtype=object)
        for index, cell in enumerate(cells):
            array[index] = cell
    return array.reshape(tuple(value.batch_size))


def _coordinates(
    stored: dict[str, Any], sizes: dict[str, int], path: tuple[str, ...]
) -> dict[str, Any]:
    """Return the stored coordinates, after a check of their sizes.

    Raises:
        ValueError: a coordinate no longer has the size of a dim.
    """
    for name, coordinate in stored.items():
        new_sizes = {dim: sizes[dim] for dim in coordinate.dims if dim in sizes}
        if any(coordinate.sizes[dim] != size for dim, size in new_sizes.items()):
            raise ValueError(
                MSG_COORDINATE.format(
                    name=name,
                    shape=coordinate.shape,
                    dims=coordinate.dims,
                    sizes=new_sizes,
                    key=path_of((*path, LABELS)),
                )
            )
    return stored


# Reading ------------------------------------------------------------------------------


def from_xarray(
    data: object,
    *,
    batch_dims: Sequence[str] | int | None = None,
    device: torch.device | str | int | None = None,
) -> TensorDict:
    """Convert an xarray dataset, array or tree to a tensordict.

    Numeric variables become tensors that share their memory. Other variables (texts,
    times, objects) become non-tensor data with one value for each element. Groups of a
    tree become nested tensordicts. The names of batch dims are the names of the dims.
    Coordinates of all batch dims are stored under ``"_coords"``; other coordinates,
    attributes and names of feature dims under ``"_xarray"``. :func:`to_xarray` restores
    them.

    Args:
        data: a ``Dataset``, ``DataArray`` or ``DataTree``.
        batch_dims: the names of the batch dims, or their number. Default: the batch
            dims that :func:`to_xarray` stored, or the leading dims that all variables
            share.
        device: the device to move all entries to.

    Returns:
        A :class:`TensorDict`.

    Raises:
        ValueError: a variable does not begin with the batch dims.
        TypeError: ``data`` is of another type.
        ImportError: xarray is not installed.
    """
    package = extra("xarray", "from_xarray", INSTALL)
    if isinstance(data, package.DataArray):
        data = data.to_dataset(name=data.name or "data")
    if isinstance(data, package.DataTree):
        td = _of_tree(data, batch_dims)
    elif isinstance(data, package.Dataset):
        td = _of_dataset(data, batch_dims)
    else:
        raise TypeError(MSG_KIND.format(type(data).__name__))
    return td if device is None else td.to(device)


def _of_tree(tree: Any, batch_dims: Any) -> Any:
    dataset = tree.to_dataset(inherit=False)
    td = _of_dataset(dataset, batch_dims)
    children = {
        name: _of_tree(child, batch_dims) for name, child in tree.children.items()
    }
    if (
        not dataset.data_vars
        and BATCH_ATTRIBUTE not in dataset.attrs
        and children
        and td.is_empty()
    ):
        # A root that contains only groups gets their common leading dims.
        td = _with_shared_dims(td, list(children.values()))
    for name, child in children.items():
        td.set(name, child)
    return td


def _with_shared_dims(td: TensorCollection, children: list[Any]) -> TensorCollection:
    shared: list[tuple[str | None, int]] = []
    sized = [
        list(zip(child.names, child.batch_size, strict=True)) for child in children
    ]
    for dims in zip(*sized, strict=False):
        if any(dim != dims[0] for dim in dims) or dims[0][0] is None:
            break
        shared.append(dims[0])
    result = td.copy()
    if shared:
        result.batch_size = [size for _, size in shared]
        result.names = [name for name, _ in shared]
    return result


def _of_dataset(dataset: Any, batch_dims: Any) -> Any:
    arrays = dict(dataset.data_vars)
    leading = _common_leading_dims([array.dims for array in arrays.values()])
    stored = json.loads(dataset.attrs.get(BATCH_ATTRIBUTE, "{}"))
    names, sizes = stored.get("names", []), stored.get("size", [])
    dims = [name or f"batch_{index}" for index, name in enumerate(names)]
    # A selection in xarray may have removed a dim.
    fits = all(list(array.dims[: len(dims)]) == dims for array in arrays.values())
    if batch_dims is not None or not stored or not fits:
        if batch_dims is None:
            dims = leading
        elif isinstance(batch_dims, int):
            dims = leading[:batch_dims]
            if len(dims) < batch_dims:
                raise ValueError(MSG_FEWER.format(asked=batch_dims, shared=leading))
        else:
            dims = list(batch_dims)
        names, sizes = [str(name) for name in dims], [0] * len(dims)
    # No variable has this dim: its size is the stored size.
    size = [dataset.sizes.get(dim, old) for dim, old in zip(dims, sizes, strict=True)]
    labels: dict[str, Any] = {}
    td: Any = TensorDict({}, size, names=names or None)
    for name, array in arrays.items():
        if list(array.dims[: len(dims)]) != list(dims):
            raise ValueError(
                MSG_BATCH.format(asked=list(dims), name=name, dims=array.dims)
            )
        feature_dims = [str(dim) for dim in array.dims[len(dims) :]]
        if feature_dims != [f"{name}_{index}" for index in range(len(feature_dims))]:
            labels.setdefault("dims", {})[name] = feature_dims
        if array.attrs:
            labels.setdefault("attrs_of", {})[name] = dict(array.attrs)
        td.set(str(name), _entry(array.values, size, bool(feature_dims)))
    attributes = dict(dataset.attrs)
    attributes.pop(BATCH_ATTRIBUTE, None)
    if attributes:
        labels["attrs"] = attributes
    for name, coordinate in dataset.coords.items():
        if size and list(coordinate.dims) == list(dims):
            if coordinate.attrs:
                labels.setdefault("attrs_of", {})[name] = dict(coordinate.attrs)
            td.set((COORDINATES, str(name)), _entry(coordinate.values, size, False))
        else:
            labels.setdefault("coords", {})[name] = coordinate.variable
    if COORDINATES in td:
        td[COORDINATES].batch_size = size
    if labels:
        value: Any = CollectionProtocol._non_tensor_type
        td.set(LABELS, value(labels, batch_size=size))
    return td


def _common_leading_dims(dims: list[tuple[Any, ...]]) -> list[Any]:
    """Return the leading dims that all variables share."""
    if not dims:
        return []
    shared = list(dims[0])
    for other in dims[1:]:
        count = 0
        while count < min(len(shared), len(other)) and shared[count] == other[count]:
            count += 1
        shared = shared[:count]
    return shared


def _entry(array: np.ndarray[Any, Any], size: list[int], has_features: bool) -> Any:
    """Convert a variable to a leaf or, with one value per element, non-tensor data."""
    if array.dtype.kind in NUMBERS:
        return tensor_over(array)
    flat = array.reshape(-1, *array.shape[len(size) :]) if size else array[None]
    cells = list(flat) if has_features else [_plain(cell) for cell in flat]
    stack: Any = CollectionProtocol._non_tensor_stack_type
    if not size:
        value: Any = CollectionProtocol._non_tensor_type
        return value(cells[0])
    return stack._of_cells(cells, torch.Size(size))


def _plain(cell: object) -> Any:
    """Convert a NumPy text to a Python text; times keep their precision."""
    if isinstance(cell, np.ndarray) and cell.ndim == 0:
        cell = cell[()]
    return str(cell) if isinstance(cell, np.str_) else cell
