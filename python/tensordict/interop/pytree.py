"""Tensordicts as nodes of :mod:`torch.utils._pytree`.

A dense tensordict is a node whose children are its direct entries: ``tree_map`` reaches
every leaf, and ``tree_flatten_with_path`` names leaves by their keys. The batch size of
a rebuilt tensordict follows from the new leaves: see :func:`_new_batch_size`. Non-tensor
data is a node without children, so functions of leaves and the transforms of
:mod:`torch.func` do not see it.

``torch.utils._cxx_pytree``, when imported, registers the nodes of
``torch.utils._pytree`` with ``optree`` in the namespace ``"torch"``. This module
imports it as soon as a program imports ``optree``, so that ``optree.tree_map(...,
namespace="torch")`` works.

If the environment variable ``EXCLUDE_TD_FROM_PYTREE`` is 1 when the package is
imported, tensordicts are leaves instead.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree

from tensordict import _rust
from tensordict.entries.unbatched import UnbatchedTensor
from tensordict.primitives import classes
from tensordict.primitives.after_import import after_import
from tensordict.primitives.deprecation import environment_flag
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "exclude_from_pytree",
    "install",
    "register_collection",
    "register_tensorclass",
    "register_value",
]

_EXCLUDED_FROM_THE_START = environment_flag("EXCLUDE_TD_FROM_PYTREE", deprecated=True)

_registered: dict[type, type] = {}
"""From classes that are nodes to the classes that are rebuilt from them."""


_set_aside: dict[type, Any] = {}
"""The node definitions of the classes that are excluded at the moment."""


class _BatchSize(NamedTuple):
    """A batch size in a tree spec, of which only the number of dims is compared.

    Two specs are equal if the trees have the same structure. A function that turns
    three rows into two, such as the body of a loop, keeps the structure. A size that is
    dynamic in an exported program is None. The compiler can write only constants, and
    named tuples of constants, into an exported program.
    """

    sizes: tuple[int | None, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BatchSize) and len(self.sizes) == len(other.sizes)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((_BatchSize, len(self.sizes)))


def _is_open(size: object) -> bool:
    """Return whether a size is dynamic in an exported program."""
    return type(size) is not int


def _is_open_while_traced(size: Any) -> bool:
    """Replace :func:`_is_open` under Dynamo: only an export has dynamic sizes."""
    if size is None:
        return True
    if not torch.compiler.is_exporting():
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(size)


def _size_in_spec(size: object) -> Any:
    """Return a size in the form that a tree spec holds."""
    return size


def _size_as_constant(size: object) -> Any:
    """Replace :func:`_size_in_spec` under Dynamo: a dynamic size becomes None."""
    return None if _is_open(size) else size


class _LeafInfo(NamedTuple):
    """Facts about leaves in a tree spec, which are ignored by comparisons of specs."""

    facts: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _LeafInfo)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_LeafInfo)


class _Constant(NamedTuple):
    """Non-tensor data in the spec of an exported program: constants only."""

    cls: Any
    data: Any
    batch_size: _BatchSize


def _value_in_spec(value: CollectionProtocol) -> _Value:
    """Return non-tensor data in the form that a tree spec holds."""
    return _Value(value)


def _value_as_constant(value: Any) -> _Constant | _Value:
    """Replace :func:`_value_in_spec` under Dynamo."""
    if torch.compiler.is_exporting() and value._is_one:
        return _Constant(
            type(value), value.data, _BatchSize(_sizes_of(value.batch_size))
        )
    return _Value(value)


TRACED = (
    (_is_open, _is_open_while_traced),
    (_size_in_spec, _size_as_constant),
    (_value_in_spec, _value_as_constant),
)
"""Functions with their replacements under Dynamo, for :mod:`.compile.registration`."""


def install() -> None:
    """Register tensordicts with ``optree``, once a program imports it."""
    classes.on_new_class(register)
    after_import("optree", _pass_on_to_optree)


def _pass_on_to_optree() -> None:
    # Torch raises ImportError for an old optree, and registers no nodes with it.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.utils._cxx_pytree")


def register_collection(cls: type, rebuilt_as: type | None = None) -> None:
    """Register a class as a node whose children are its direct entries.

    Subclasses are not registered.

    Args:
        cls: the class.
        rebuilt_as: the class of rebuilt tensordicts. Default: ``cls``.
    """
    was_registered = cls in _registered
    _registered[cls] = cls if rebuilt_as is None else rebuilt_as
    if was_registered or _EXCLUDED_FROM_THE_START:
        return
    _add_node(cls)


def register_tensorclass(cls: type) -> None:
    """Register a tensorclass as a node; subclasses are not registered."""
    was_registered = cls in _registered
    _registered[cls] = cls
    if not (was_registered or _EXCLUDED_FROM_THE_START):
        _register(cls, _flatten, _unflatten_class, _flatten_with_keys, _COLLECTION)


def register(cls: type, kind: str, rebuilt_as: type | None) -> None:
    """Register a class by its kind, as :func:`.classes.announce` passes it."""
    if kind == "value":
        register_value(cls)
    elif kind == "tensorclass":
        register_tensorclass(cls)
    else:
        register_collection(cls, rebuilt_as)


@classes.provided
def exclude_from_pytree(excluded: bool) -> None:
    """Make all tensordicts leaves of pytrees, or nodes again.

    The registry of ``optree`` is not changed.
    """
    for cls in _registered:
        if not excluded:
            if cls in _set_aside:
                _pytree.SUPPORTED_NODES[cls] = _set_aside.pop(cls)
        elif cls in _pytree.SUPPORTED_NODES:
            _set_aside[cls] = _pytree.SUPPORTED_NODES.pop(cls)


def register_stack(cls: type) -> None:
    """Register a class of lazy stacks as a node whose children are its members."""
    _registered[cls] = cls
    if cls not in _pytree.SUPPORTED_NODES:
        _register(
            cls, _flatten_stack, _unflatten_stack, _flatten_stack_with_keys, _STACK
        )


def register_value(cls: type) -> None:
    """Register a class of non-tensor data as a node without children."""
    _registered[cls] = cls
    if cls not in _pytree.SUPPORTED_NODES and not _EXCLUDED_FROM_THE_START:
        _pytree.register_pytree_node(
            cls, _flatten_value, _unflatten_value, flatten_with_keys_fn=_flatten_value
        )


# Saved exported programs ---------------------------------------------------------------

_Context = dict[str, Any]


def _collection_as_json(context: _Context) -> _Context:
    """Convert the context of a tensordict to JSON for a saved program."""
    device = context["device"]
    return {
        "keys": context["keys"],
        "unbatched": list(context["leaf"].facts[0]),
        "batch_size": [
            size if type(size) is int else None for size in context["batch_size"].sizes
        ],
        "names": list(context["names"]),
        "device": None if device is None else str(device),
    }


def _collection_from_json(cls: type, saved: _Context) -> _Context:
    device = saved["device"]
    return {
        "keys": saved["keys"],
        "leaf": _LeafInfo((tuple(saved.get("unbatched", ())), None, ())),
        "batch_size": _BatchSize(tuple(saved["batch_size"])),
        "names": saved["names"],
        "device": None if device is None else torch.device(device),
        "cls": cls,
    }


def _stack_as_json(context: _Context) -> _Context:
    return {name: context[name] for name in ("stack_dim", "stack_dim_name")}


def _stack_from_json(cls: type, saved: _Context) -> _Context:
    return {**saved, "cls": cls, "leaf": _LeafInfo(())}


_COLLECTION = (_collection_as_json, _collection_from_json)
_STACK = (_stack_as_json, _stack_from_json)


def _register(
    cls: type, flatten: Any, unflatten: Any, with_keys: Any, as_json: tuple[Any, Any]
) -> None:
    to_json, from_json = as_json
    _pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        flatten_with_keys_fn=with_keys,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        to_dumpable_context=to_json,
        from_dumpable_context=functools.partial(from_json, cls),
    )


class _Value:
    """Non-tensor data in a tree spec: specs with different values are not equal."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Value) or type(self.value) is not type(other.value):
            return False
        return bool(self.value._is_same_node(other.value))

    def __hash__(self) -> int:
        return hash(type(self.value))


def _flatten_value(value: CollectionProtocol) -> tuple[list[Any], Any]:
    return [], _value_in_spec(value)


def _unflatten_value(_: object, context: _Value | _Constant) -> Any:
    if isinstance(context, _Value):
        return context.value.copy()
    # The tensordict that holds this value replaces the dynamic sizes.
    sizes = [size or 0 for size in context.batch_size.sizes]
    return context.cls(context.data, batch_size=sizes)


def _flatten_stack(stack: Any) -> tuple[list[Any], dict[str, Any]]:
    context = {
        "stack_dim": stack.stack_dim,
        "stack_dim_name": stack._td_dim_name,
        "cls": type(stack),
        "leaf": _LeafInfo(_shapes_of_first(stack.tensordicts)),
    }
    return list(stack.tensordicts), context


def _shapes_of_first(members: Any) -> tuple[tuple[Any, ...], ...]:
    """Return batch size and tensor shapes of the first member, if it is dense."""
    if not members or not members[0]._is_dense:
        return ()
    values = [*members[0]._entries().values()]
    shapes = [tuple(value.shape) for value in values if type(value) is torch.Tensor]
    shapes = [tuple(members[0].batch_size), *shapes]
    is_static = not any(_is_open(size) for shape in shapes for size in shape)
    return tuple(shapes) if is_static else ()


def _flatten_stack_with_keys(
    stack: CollectionProtocol,
) -> tuple[list[Any], dict[str, Any]]:
    members, context = _flatten_stack(stack)
    keys: list[Any] = [_pytree.SequenceKey(index) for index in range(len(members))]
    return list(zip(keys, members, strict=True)), context


def _unflatten_stack(members: Any, context: dict[str, Any]) -> Any:
    members = list(members)
    if any(member is None for member in members):
        return None
    if not members:
        return context["cls"](
            stack_dim=context["stack_dim"], stack_dim_name=context["stack_dim_name"]
        )
    name, dim = context["stack_dim_name"], context["stack_dim"]
    added = _added_dims(members, context["leaf"].facts)
    if added:
        for member in members:
            member.batch_size = (*added, *context["leaf"].facts[0])
    dim = (
        dim + len(added)
        if added
        else _remaining_stack_dim(members, dim, context["leaf"].facts)
    )
    return context["cls"]._of(members, dim, name)


def _added_dims(members: list[Any], old_shapes: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the dims that all leaves gained; they go in front of the stack dim.

    :func:`torch.func.jacfwd` adds the dim that it maps over. A Jacobian adds the dims
    of the output.
    """
    shapes = _shapes_of_first(members)
    if len(old_shapes) < 2 or len(shapes) != len(old_shapes):
        return ()
    added = shapes[1][: len(shapes[1]) - len(old_shapes[1])]
    pairs = zip(shapes[1:], old_shapes[1:], strict=True)
    return added if all(new == (*added, *old) for new, old in pairs) else ()


def _remaining_stack_dim(
    members: list[Any], dim: int, old_shapes: tuple[Any, ...]
) -> int:
    """Return the stack dim after leaves may have lost dims in front of it."""
    shapes = _shapes_of_first(members)
    if [*map(len, shapes[1:])] != [*map(len, old_shapes[1:])] or len(shapes) < 2:
        size = tuple(members[0].batch_size)
        for num_lost in range(dim + 1 if old_shapes else 0):
            if size[: dim - num_lost] == old_shapes[0][num_lost:dim]:
                return dim - num_lost
    return min(dim, members[0].batch_dims)


def _add_node(cls: type) -> None:
    _register(cls, _flatten, _unflatten, _flatten_with_keys, _COLLECTION)


def _sizes_of(batch_size: torch.Size) -> tuple[int | None, ...]:
    return tuple([_size_in_spec(size) for size in batch_size])


def _flatten(td: CollectionProtocol) -> tuple[list[Any], dict[str, Any]]:
    entries = dict(td._entries())
    context = {
        "keys": list(entries),
        "batch_size": _BatchSize(_sizes_of(td.batch_size)),
        "names": td.names,
        "device": td.device,
        "cls": type(td),
        "leaf": _leaf_info(entries, td.batch_size),
    }
    return list(entries.values()), context


def _leaf_info(entries: dict[str, Any], batch_size: torch.Size) -> _LeafInfo:
    """Return the keys of unbatched tensors, and key and shape of a batched tensor."""
    unbatched = [k for k, value in entries.items() if type(value) is UnbatchedTensor]
    if batch_size:
        for key, value in entries.items():
            if isinstance(value, torch.Tensor) and key not in unbatched:
                return _LeafInfo((tuple(unbatched), key, _sizes_of(value.shape)))
    return _LeafInfo((tuple(unbatched), None, ()))


def _flatten_with_keys(td: CollectionProtocol) -> tuple[list[Any], dict[str, Any]]:
    values, context = _flatten(td)
    keys: list[Any] = [_pytree.MappingKey(key) for key in context["keys"]]
    return list(zip(keys, values, strict=True)), context


def _unflatten(values: Sequence[Any], context: dict[str, Any]) -> Any:
    values = list(values)
    if any(value is None for value in values):
        # The mapped function returned None for a leaf, so the result is None.
        return None
    entries = dict(zip(context["keys"], values, strict=True))
    unbatched, first_key, old_shape = context["leaf"].facts
    num_dims = len(context["batch_size"].sizes)
    for key, value in entries.items():
        # The derivative by a batched leaf that was multiplied by an unbatched tensor has
        # the class `UnbatchedTensor`.
        if (
            type(value) is UnbatchedTensor
            and key not in unbatched
            and value.shape[:num_dims] == context["batch_size"].sizes
        ):
            entries[key] = value._data
    tensors: list[Any] = [
        value
        for key, value in entries.items()
        if isinstance(value, (torch.Tensor, CollectionProtocol))
        and key not in unbatched
        and type(value) is not UnbatchedTensor
        and not _is_shared_value(value)
    ]
    shapes = [tensor.shape for tensor in tensors]
    old = _known_batch_size(context["batch_size"].sizes, shapes)
    has_added_dim = first_key is not None and _has_added_dim(
        entries[first_key], old_shape
    )
    batch_size = _new_batch_size(old, shapes, has_added_dim)
    is_open = any(map(_is_open, context["batch_size"].sizes))
    if batch_size != old or is_open:
        for key, value in entries.items():
            if isinstance(value, CollectionProtocol) and _is_shared_value(value):
                shared: Any = value
                entries[key] = shared._fitted(batch_size)
    for key, value in entries.items() if unbatched else ():
        # The transforms of torch.func return plain tensors.
        if key in unbatched and isinstance(value, torch.Tensor):
            entries[key] = UnbatchedTensor(value, batch_size)
    device = context["device"]
    if device is not None and any(tensor.device != device for tensor in tensors):
        device = None
    names = context["names"] if batch_size == old else None
    if names is not None:
        names = list(names) if any(name is not None for name in names) else None
    return _rust.new(_registered[context["cls"]], entries, batch_size, device, names)


def _is_shared_value(value: Any) -> bool:
    """Return whether this is one Python object for all elements, of any batch size."""
    return getattr(value, "_is_one", False)


def _unflatten_class(values: Sequence[Any], context: dict[str, Any]) -> Any:
    cls: Any = context["cls"]
    inner = _unflatten(values, {**context, "cls": CollectionProtocol._plain_type})
    return None if inner is None else _rust.wrap_fields(cls, inner)


def _known_batch_size(
    sizes: tuple[int | None, ...], shapes: list[torch.Size]
) -> torch.Size:
    """Return the old batch size, or the leading sizes of the leaves if it is dynamic.

    A comparison of a dynamic size with a number would make it static.
    """
    num_dims = len(sizes)
    if not shapes:
        num_known = sizes.index(None) if None in sizes else num_dims
        return torch.Size(sizes[:num_known])  # type: ignore[arg-type]
    first = shapes[0][:num_dims]
    if any(map(_is_open, sizes)) or any(map(_is_open, first)):
        return first
    return torch.Size(sizes)  # type: ignore[arg-type]


def _has_added_dim(value: object, old_shape: tuple[int | None, ...]) -> bool:
    """Return whether a leaf of the shape ``old_shape`` gained one dim in front."""
    if not isinstance(value, torch.Tensor):
        return False
    sizes = (*value.shape, *old_shape)
    return not any(map(_is_open, sizes)) and value.shape[1:] == old_shape


def _new_batch_size(
    old: torch.Size, shapes: list[torch.Size], has_added_dim: bool
) -> torch.Size:
    """Return the batch size for leaves of ``shapes``.

    The batch size stays if all leaves begin with it. If every leaf gained one dim in
    front of it, as :func:`torch.vmap` adds, this is a new batch dim; ``has_added_dim``
    says so if the sizes alone are ambiguous. Otherwise the batch size is the leading
    sizes that all leaves share, with at most as many dims as before.

    Args:
        old: the batch size before.
        shapes: the shapes of the leaves.
        has_added_dim: whether a leaf is known to have gained a dim.
    """
    if not shapes:
        return old
    num_dims = len(old)
    if not has_added_dim and all(shape[:num_dims] == old for shape in shapes):
        return old
    first = shapes[0]
    if all(
        shape[:1] == first[:1] and shape[1 : num_dims + 1] == old for shape in shapes
    ):
        return first[: num_dims + 1]
    num_common = 0
    while num_common < num_dims and all(
        len(shape) > num_common and shape[num_common] == first[num_common]
        if len(first) > num_common
        else False
        for shape in shapes
    ):
        num_common += 1
    return first[:num_common]
