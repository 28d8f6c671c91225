"""Datasets of xarray: named dims and coordinates, both ways.

A leaf is a variable, a nested collection a group (``xarray.DataTree``). Coordinates of the
batch dims are entries under :data:`COORDINATES`, which follow the rows. What tensors cannot
say (names of the dims of features, coordinates of those, attributes) is non-tensor data under
:data:`LABELS`. :func:`to_xarray` takes both back.
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
"""The key of the coordinates that have a value for each element of the batch."""

LABELS = "_xarray"
"""The key of what else a dataset says beside its values."""

NUMBERS = "biufc"

OWN = "tensordict_batch"
"""The attribute of a dataset that tells :func:`from_xarray` the batch dims."""

MSG_KIND = "from_xarray expects a Dataset, DataArray or DataTree of xarray, got a {}."
MSG_BATCH = (
    "from_xarray got batch_dims={asked}, and the variable {name!r} has the dims {dims}: "
    "transpose it first, or name the dims that all variables begin with."
)
MSG_FEWER = (
    "from_xarray got batch_dims={asked}, and all variables begin with {shared} alone: "
    "transpose the others first, or ask for fewer."
)
MSG_DIMS = "to_xarray got dims={dims} for {key!r}, which has {ndim} dims after those of the batch."
MSG_UNKNOWN = "to_xarray got dims for {keys}, and the entries are {names}."
MSG_SIZE = (
    "to_xarray got a dim {dim!r} of size {size} at {key!r}, which has size {other} "
    "elsewhere: name it by dims=."
)
MSG_COORDINATE = (
    "to_xarray cannot keep the coordinate {name!r} of shape {shape}: its dims {dims} have "
    "the sizes {sizes} now. Index or drop it in td[{key!r}]."
)


def to_xarray(
    td: CollectionProtocol, *, dims: Mapping[NestedKey, Sequence[str]] | None = None
) -> xr.Dataset | xr.DataTree:
    """Make a dataset of xarray of a collection.

    Batch dims have the names of ``td``, or ``batch_0`` and so on where there are none.
    Tensors share their memory. Non-tensor data are arrays of texts, numbers or objects.

    Args:
        td: a collection.
        dims: names of the dims of features, by key. Default: those that
            :func:`from_xarray` has found, or ``<key>_0`` and so on.

    Returns:
        A ``Dataset``; a ``DataTree`` where there are nested collections.

    Raises:
        TypeError: NumPy lacks the dtype of an entry, or it is a nested tensor.
        ValueError: names of dims do not fit; a coordinate does not fit after an index.
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
    return [name or f"batch_{at}" for at, name in enumerate(names)]


def _add_groups(
    package: ModuleType,
    groups: dict[str, Any],
    path: tuple[str, ...],
    td: CollectionProtocol,
    chosen: dict[tuple[str, ...], list[str]],
    used: set[tuple[str, ...]],
) -> None:
    """Add the dataset of a collection, and those of nested ones."""
    entries = dict(td.items())
    labels = entries.pop(LABELS, None)
    labels = {} if labels is None else labels.data
    along = entries.pop(COORDINATES, None)
    batch = _batch_names(td)
    sizes: dict[str, int] = dict(zip(batch, td.batch_size, strict=True))
    variables: dict[str, Any] = {}
    nested = []
    for key, value in entries.items():
        here = (*path, key)
        if is_branch(value):
            nested.append((here, value))
            continue
        array = _array(here, value)
        used.add(here)
        names = chosen.get(here) or labels.get("dims", {}).get(key)
        count = array.ndim - len(batch)
        if names is None:
            names = [f"{key}_{at}" for at in range(count)]
        if len(names) != count:
            raise ValueError(MSG_DIMS.format(dims=names, key=path_of(here), ndim=count))
        for dim, size in zip(names, array.shape[len(batch) :], strict=True):
            if sizes.setdefault(dim, size) != size:
                raise ValueError(
                    MSG_SIZE.format(
                        dim=dim, size=size, key=path_of(here), other=sizes[dim]
                    )
                )
        attributes = labels.get("attrs_of", {}).get(key)
        variables[key] = _variable(package, [*batch, *names], array, attributes)
    coordinates = dict(_coordinates(labels.get("coords", {}), sizes, path))
    for name, value in () if along is None else along.items():
        array = _array((*path, COORDINATES, name), value)
        attributes = labels.get("attrs_of", {}).get(name)
        coordinates[name] = _variable(package, batch, array, attributes)
    groups["/" + "/".join(path)] = package.Dataset(
        variables, coordinates, {**labels.get("attrs", {}), **_own(td)}
    )
    for here, value in nested:
        _add_groups(package, groups, here, value, chosen, used)


def _own(td: CollectionProtocol) -> dict[str, Any]:
    """The batch dims as text, which every file takes for an attribute."""
    names = td.names if td.batch_dims else []
    return {OWN: json.dumps({"names": names, "size": list(td.batch_size)})}


def _variable(package: Any, dims: list[str], array: Any, attributes: Any) -> Any:
    # Objects are taken as they are: xarray makes NaN of None otherwise.
    return package.Variable(dims, array, attributes, fastpath=array.dtype.kind == "O")


def _array(path: tuple[str, ...], value: Any) -> np.ndarray[Any, Any]:
    """An entry as an array: a leaf as it is, values as texts, numbers or objects."""
    if isinstance(value, torch.Tensor):
        return array_of("to_xarray", path, value)
    cells = list(value._flat())
    kinds = {type(cell) for cell in cells}
    plain = (str, bytes, bool, int, float, complex, np.generic)
    made = None
    if len(kinds) == 1 and issubclass(next(iter(kinds)), plain) and kinds != {bytes}:
        made = np.array(cells)
    if made is None or made.dtype.kind in {"O", "S"}:
        made = np.empty(len(cells), dtype=object)
        for at, cell in enumerate(cells):
            made[at] = cell
    return made.reshape(tuple(value.batch_size))


def _coordinates(
    held: dict[str, Any], sizes: dict[str, int], path: tuple[str, ...]
) -> dict[str, Any]:
    """The coordinates that were kept, which still have the sizes of the dims."""
    for name, coordinate in held.items():
        found = {dim: sizes[dim] for dim in coordinate.dims if dim in sizes}
        if any(coordinate.sizes[dim] != size for dim, size in found.items()):
            raise ValueError(
                MSG_COORDINATE.format(
                    name=name,
                    shape=coordinate.shape,
                    dims=coordinate.dims,
                    sizes=found,
                    key=path_of((*path, LABELS)),
                )
            )
    return held


# Reading ------------------------------------------------------------------------------


def from_xarray(
    data: object,
    *,
    batch_dims: Sequence[str] | int | None = None,
    device: torch.device | str | int | None = None,
) -> TensorDict:
    """Make a collection of a dataset, an array or a tree of xarray.

    Variables of numbers are tensors that share their memory, others (texts, times,
    objects) non-tensor data, one value for each element. Groups of a tree are nested
    collections. The batch dims have the names of the dims. Coordinates, attributes and the
    names of other dims are kept for :func:`to_xarray`, under ``"_coords"`` (those with a
    value for each element) and ``"_xarray"``.

    Args:
        data: a ``Dataset``, ``DataArray`` or ``DataTree``.
        batch_dims: the names of the batch dims, or their number. Default: what
            :func:`to_xarray` has written, or the dims that all variables begin with.
        device: where all entries are moved.

    Returns:
        A :class:`TensorDict`.

    Raises:
        ValueError: a variable does not begin with the batch dims.
        TypeError: ``data`` is none of these.
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
        and OWN not in dataset.attrs
        and children
        and td.is_empty()
    ):
        # A root of groups alone has the dims that they share.
        td = _with_shared_dims(td, list(children.values()))
    for name, child in children.items():
        td.set(name, child)
    return td


def _with_shared_dims(td: TensorCollection, children: list[Any]) -> Any:
    shared: list[tuple[str | None, int]] = []
    sized = [
        list(zip(child.names, child.batch_size, strict=True)) for child in children
    ]
    for dims in zip(*sized, strict=False):
        if any(dim != dims[0] for dim in dims) or dims[0][0] is None:
            break
        shared.append(dims[0])
    made = td.copy()
    if shared:
        made.batch_size = [size for _, size in shared]
        made.names = [name for name, _ in shared]
    return made


def _of_dataset(dataset: Any, batch_dims: Any) -> Any:
    arrays = dict(dataset.data_vars)
    leading = _leading([array.dims for array in arrays.values()])
    own = json.loads(dataset.attrs.get(OWN, "{}"))
    names, sizes = own.get("names", []), own.get("size", [])
    dims = [name or f"batch_{at}" for at, name in enumerate(names)]
    # After a selection in xarray a dim may be gone.
    fits = all(list(array.dims[: len(dims)]) == dims for array in arrays.values())
    if batch_dims is not None or not own or not fits:
        if batch_dims is None:
            dims = leading
        elif isinstance(batch_dims, int):
            dims = leading[:batch_dims]
            if len(dims) < batch_dims:
                raise ValueError(MSG_FEWER.format(asked=batch_dims, shared=leading))
        else:
            dims = list(batch_dims)
        names, sizes = [str(name) for name in dims], [0] * len(dims)
    # A dim without variables has the size that was written.
    size = [dataset.sizes.get(dim, at) for dim, at in zip(dims, sizes, strict=True)]
    labels: dict[str, Any] = {}
    td: Any = TensorDict({}, size, names=names or None)
    for name, array in arrays.items():
        if list(array.dims[: len(dims)]) != list(dims):
            raise ValueError(
                MSG_BATCH.format(asked=list(dims), name=name, dims=array.dims)
            )
        rest = [str(dim) for dim in array.dims[len(dims) :]]
        if rest != [f"{name}_{at}" for at in range(len(rest))]:
            labels.setdefault("dims", {})[name] = rest
        if array.attrs:
            labels.setdefault("attrs_of", {})[name] = dict(array.attrs)
        td.set(str(name), _entry(array.values, size, bool(rest)))
    attributes = {key: each for key, each in dataset.attrs.items() if key != OWN}
    if attributes:
        labels["attrs"] = attributes
    for name, each in dataset.coords.items():
        if size and list(each.dims) == list(dims):
            if each.attrs:
                labels.setdefault("attrs_of", {})[name] = dict(each.attrs)
            td.set((COORDINATES, str(name)), _entry(each.values, size, False))
        else:
            labels.setdefault("coords", {})[name] = each.variable
    if COORDINATES in td:
        td[COORDINATES].batch_size = size
    if labels:
        value: Any = CollectionProtocol._non_tensor_type
        td.set(LABELS, value(labels, batch_size=size))
    return td


def _leading(dims: list[tuple[Any, ...]]) -> list[Any]:
    """The dims that all variables begin with."""
    if not dims:
        return []
    shared = list(dims[0])
    for each in dims[1:]:
        count = 0
        while count < min(len(shared), len(each)) and shared[count] == each[count]:
            count += 1
        shared = shared[:count]
    return shared


def _entry(array: np.ndarray[Any, Any], size: list[int], has_features: bool) -> Any:
    """The values of a variable as a leaf, or as non-tensor data for each element."""
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
    """A text of NumPy as one of Python; times stay as exact as they are."""
    if isinstance(cell, np.ndarray) and cell.ndim == 0:
        cell = cell[()]
    return str(cell) if isinstance(cell, np.str_) else cell
