"""Collections as nodes of :mod:`torch.utils._pytree`.

A dense collection is a node whose children are its direct entries, so that ``tree_map``
reaches every leaf and ``tree_flatten_with_path`` names them by their keys. What it
rebuilds has the batch size that the new leaves allow: see :func:`_new_batch_size`. A value
that is no tensor is a node without children: functions of leaves do not meet it, and
:mod:`torch.func` differentiates beside it.

``torch.utils._pytree`` passes its nodes on to ``optree``, in the namespace ``"torch"``, when
somebody imports ``torch.utils._cxx_pytree``. Here that happens as soon as ``optree`` itself
is imported by somebody, so that ``optree.tree_map(..., namespace="torch")`` knows them.

With the environment variable ``EXCLUDE_TD_FROM_PYTREE`` set to 1 when the package is
imported, collections are leaves instead.
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
"""Each class that is a node, and the class of what is rebuilt from it."""


_set_aside: dict[type, Any] = {}
"""The nodes of the classes that are excluded at the moment."""


class _BatchSize(NamedTuple):
    """A batch size in a tree spec, where only the number of dims counts.

    Two specs are equal where trees have the same structure. A function that turns
    three rows into two, such as the body of a loop, does not change the structure.
    Sizes that an exported program leaves open are None. What the compiler writes into
    an exported program must be made of constants: a named tuple of such is one.
    """

    sizes: tuple[int | None, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BatchSize) and len(self.sizes) == len(other.sizes)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((_BatchSize, len(self.sizes)))


def _is_open(size: object) -> bool:
    """Tell whether an exported program takes any number of rows here."""
    return type(size) is not int


def _is_open_while_traced(size: Any) -> bool:
    """Answer :func:`_is_open` for Dynamo: a compiled function keeps its sizes."""
    if size is None:
        return True
    if not torch.compiler.is_exporting():
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(size)


def _noted(size: object) -> Any:
    """A size as it stands in a tree spec."""
    return size


def _noted_as_constant(size: object) -> Any:
    """Answer :func:`_noted` for Dynamo: an exported program has no symbols."""
    return None if _is_open(size) else size


class _Beside(NamedTuple):
    """The leaves in a tree spec: trees with other leaves may be of one structure."""

    noted: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Beside)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_Beside)


class _Constant(NamedTuple):
    """A value in the spec of an exported program, which is made of constants."""

    cls: Any
    data: Any
    batch_size: _BatchSize


def _value_in_spec(held: CollectionProtocol) -> Any:
    """A value that is no tensor as it stands in a tree spec."""
    return _Value(held)


def _value_as_constant(held: Any) -> Any:
    """Answer :func:`_value_in_spec` for Dynamo."""
    if torch.compiler.is_exporting() and held._is_one:
        return _Constant(type(held), held.data, _BatchSize(_sizes_of(held.batch_size)))
    return _Value(held)


TRACED = (
    (_is_open, _is_open_while_traced),
    (_noted, _noted_as_constant),
    (_value_in_spec, _value_as_constant),
)
"""The classes that :mod:`tensordict.compile.registration` registers."""


def install() -> None:
    """Have ``optree`` know what is registered here, once somebody imports it."""
    classes.on_new_class(register)
    after_import("optree", _pass_on_to_optree)


def _pass_on_to_optree() -> None:
    # Torch refuses a version of optree that is too old for it, and then has no nodes there.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.utils._cxx_pytree")


def register_collection(cls: type, rebuilt_as: type | None = None) -> None:
    """Make the instances of exactly ``cls`` nodes of a pytree."""
    is_known = cls in _registered
    _registered[cls] = cls if rebuilt_as is None else rebuilt_as
    if is_known or _EXCLUDED_FROM_THE_START:
        return
    _add_node(cls)


def register_tensorclass(cls: type) -> None:
    """Make the instances of a tensorclass, of exactly ``cls``, nodes of a pytree."""
    is_known = cls in _registered
    _registered[cls] = cls
    if not (is_known or _EXCLUDED_FROM_THE_START):
        _register(cls, _flatten, _unflatten_class, _flatten_with_keys, _COLLECTION)


def register(cls: type, kind: str, rebuilt_as: type | None) -> None:
    """Make a class known by what it is, as :func:`.classes.announce` tells it."""
    if kind == "value":
        register_value(cls)
    elif kind == "tensorclass":
        register_tensorclass(cls)
    else:
        register_collection(cls, rebuilt_as)


@classes.provided
def exclude_from_pytree(excluded: bool) -> None:
    """Take all collections out of the pytree registry, or put them back.

    What ``optree`` knows stays as it is.
    """
    for cls in _registered:
        if not excluded:
            if cls in _set_aside:
                _pytree.SUPPORTED_NODES[cls] = _set_aside.pop(cls)
        elif cls in _pytree.SUPPORTED_NODES:
            _set_aside[cls] = _pytree.SUPPORTED_NODES.pop(cls)


def register_stack(cls: type) -> None:
    """Make a class of lazy stacks known: its children are its members."""
    _registered[cls] = cls
    if cls not in _pytree.SUPPORTED_NODES:
        _register(
            cls, _flatten_stack, _unflatten_stack, _flatten_stack_with_keys, _STACK
        )


def register_value(cls: type) -> None:
    """Make a class of values that are no tensors known: nodes without children."""
    _registered[cls] = cls
    if cls not in _pytree.SUPPORTED_NODES and not _EXCLUDED_FROM_THE_START:
        _pytree.register_pytree_node(
            cls, _flatten_value, _unflatten_value, flatten_with_keys_fn=_flatten_value
        )


# Exported programs that are saved -------------------------------------------------------

_Context = dict[str, Any]


def _collection_as_json(context: _Context) -> _Context:
    """Describe a collection for a saved program: the class goes by its name."""
    device = context["device"]
    return {
        "keys": context["keys"],
        "unbatched": list(context["beside"].noted[0]),
        "batch_size": [
            size if type(size) is int else None for size in context["batch_size"].sizes
        ],
        "names": list(context["names"]),
        "device": None if device is None else str(device),
    }


def _collection_of_json(cls: type, saved: _Context) -> _Context:
    device = saved["device"]
    return {
        "keys": saved["keys"],
        "beside": _Beside((tuple(saved.get("unbatched", ())), None, ())),
        "batch_size": _BatchSize(tuple(saved["batch_size"])),
        "names": saved["names"],
        "device": None if device is None else torch.device(device),
        "cls": cls,
    }


def _stack_as_json(context: _Context) -> _Context:
    return {name: context[name] for name in ("stack_dim", "stack_dim_name")}


def _stack_of_json(cls: type, saved: _Context) -> _Context:
    return {**saved, "cls": cls, "leaf": _Beside(())}


_COLLECTION = (_collection_as_json, _collection_of_json)
_STACK = (_stack_as_json, _stack_of_json)


def _register(
    cls: type, flatten: Any, unflatten: Any, with_keys: Any, as_json: tuple[Any, Any]
) -> None:
    to_json, of_json = as_json
    _pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        flatten_with_keys_fn=with_keys,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        to_dumpable_context=to_json,
        from_dumpable_context=functools.partial(of_json, cls),
    )


class _Value:
    """A value in a tree spec: two trees with other values are of another structure."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Value) or type(self.held) is not type(other.held):
            return False
        return bool(self.held._is_same_node(other.held))

    def __hash__(self) -> int:
        return hash(type(self.held))


def _flatten_value(held: CollectionProtocol) -> tuple[list[Any], Any]:
    return [], _value_in_spec(held)


def _unflatten_value(_: object, context: _Value | _Constant) -> Any:
    if isinstance(context, _Value):
        return context.held.copy()
    # The collection that has this value sets the sizes that are left open.
    sizes = [size or 0 for size in context.batch_size.sizes]
    return context.cls(context.data, batch_size=sizes)


def _flatten_stack(stack: Any) -> tuple[list[Any], dict[str, Any]]:
    context = {
        "stack_dim": stack.stack_dim,
        "stack_dim_name": stack._td_dim_name,
        "cls": type(stack),
        "leaf": _Beside(_shapes_in(stack.tensordicts)),
    }
    return list(stack.tensordicts), context


def _shapes_in(members: Any) -> tuple[tuple[Any, ...], ...]:
    """The batch size and the shapes of the tensors of the first member, if it is dense."""
    if not members or not members[0]._is_dense:
        return ()
    values = [*members[0]._entries().values()]
    shapes = [tuple(value.shape) for value in values if type(value) is torch.Tensor]
    shapes = [tuple(members[0].batch_size), *shapes]
    is_known = not any(_is_open(size) for shape in shapes for size in shape)
    return tuple(shapes) if is_known else ()


def _flatten_stack_with_keys(
    stack: CollectionProtocol,
) -> tuple[list[Any], dict[str, Any]]:
    members, context = _flatten_stack(stack)
    keys: list[Any] = [_pytree.SequenceKey(at) for at in range(len(members))]
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
    front = _dims_in_front(members, context["leaf"].noted)
    if front:
        for member in members:
            member.batch_size = (*front, *context["leaf"].noted[0])
    dim = dim + len(front) if front else _dim_left(members, dim, context["leaf"].noted)
    return context["cls"]._of(members, dim, name)


def _dims_in_front(members: list[Any], before: tuple[Any, ...]) -> tuple[int, ...]:
    """The dims that all leaves have got in front: they are in front of the stack.

    Such are the dim that :func:`torch.func.jacfwd` maps over, and those of the output in
    a Jacobian.
    """
    now = _shapes_in(members)
    if len(before) < 2 or len(now) != len(before):
        return ()
    front = now[1][: len(now[1]) - len(before[1])]
    pairs = zip(now[1:], before[1:], strict=True)
    return front if all(new == (*front, *old) for new, old in pairs) else ()


def _dim_left(members: list[Any], dim: int, before: tuple[Any, ...]) -> int:
    """The stack dim where leaves may have lost dims in front of it."""
    now = _shapes_in(members)
    if [*map(len, now[1:])] != [*map(len, before[1:])] or len(now) < 2:
        size = tuple(members[0].batch_size)
        for lost in range(dim + 1 if before else 0):
            if size[: dim - lost] == before[0][lost:dim]:
                return dim - lost
    return min(dim, members[0].batch_dims)


def _add_node(cls: type) -> None:
    _register(cls, _flatten, _unflatten, _flatten_with_keys, _COLLECTION)


def _sizes_of(batch_size: torch.Size) -> tuple[int | None, ...]:
    return tuple([_noted(size) for size in batch_size])


def _flatten(td: CollectionProtocol) -> tuple[list[Any], dict[str, Any]]:
    entries = dict(td._entries())
    context = {
        "keys": list(entries),
        "batch_size": _BatchSize(_sizes_of(td.batch_size)),
        "names": td.names,
        "device": td.device,
        "cls": type(td),
        "beside": _noted_beside(entries, td.batch_size),
    }
    return list(entries.values()), context


def _noted_beside(entries: dict[str, Any], batch_size: torch.Size) -> _Beside:
    """The keys of what is unbatched, and the key and the shape of a tensor that is not."""
    unbatched = [k for k, value in entries.items() if type(value) is UnbatchedTensor]
    if batch_size:
        for key, value in entries.items():
            if isinstance(value, torch.Tensor) and key not in unbatched:
                return _Beside((tuple(unbatched), key, _sizes_of(value.shape)))
    return _Beside((tuple(unbatched), None, ()))


def _flatten_with_keys(td: CollectionProtocol) -> tuple[list[Any], dict[str, Any]]:
    values, context = _flatten(td)
    keys: list[Any] = [_pytree.MappingKey(key) for key in context["keys"]]
    return list(zip(keys, values, strict=True)), context


def _unflatten(values: Sequence[Any], context: dict[str, Any]) -> Any:
    values = list(values)
    if any(value is None for value in values):
        # A function without a result gives None for a leaf: there is no collection
        # to make of that.
        return None
    entries = dict(zip(context["keys"], values, strict=True))
    unbatched, first, before = context["beside"].noted
    num_dims = len(context["batch_size"].sizes)
    for key, value in entries.items():
        # A derivative is of the class of what the leaf was multiplied with.
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
        and not _is_one_value(value)
    ]
    shapes = [tensor.shape for tensor in tensors]
    old = _closed(context["batch_size"].sizes, shapes)
    has_more = first is not None and _has_one_more(entries[first], before)
    batch_size = _new_batch_size(old, shapes, has_more)
    is_open = any(map(_is_open, context["batch_size"].sizes))
    if batch_size != old or is_open:
        for key, value in entries.items():
            if isinstance(value, CollectionProtocol) and _is_one_value(value):
                value_of_all: Any = value
                entries[key] = value_of_all._fitted(batch_size)
    for key, value in entries.items() if unbatched else ():
        # The transforms of torch.func know tensors alone.
        if key in unbatched and isinstance(value, torch.Tensor):
            entries[key] = UnbatchedTensor(value, batch_size)
    device = context["device"]
    if device is not None and any(tensor.device != device for tensor in tensors):
        device = None
    names = context["names"] if batch_size == old else None
    if names is not None:
        names = list(names) if any(name is not None for name in names) else None
    return _rust.new(_registered[context["cls"]], entries, batch_size, device, names)


def _is_one_value(value: Any) -> bool:
    """Tell whether this is a value for all elements, which has any batch size."""
    return bool(getattr(value, "_is_non_tensor", False) and value._is_one)


def _unflatten_class(values: Sequence[Any], context: dict[str, Any]) -> Any:
    cls: Any = context["cls"]
    inner = _unflatten(values, {**context, "cls": CollectionProtocol._plain_type})
    return None if inner is None else _rust.wrap_fields(cls, inner)


def _closed(sizes: tuple[int | None, ...], shapes: list[torch.Size]) -> torch.Size:
    """The old batch size; that of the leaves where an exported program leaves it open.

    To compare an open size with a number would fix it.
    """
    num_dims = len(sizes)
    if not shapes:
        known = sizes.index(None) if None in sizes else num_dims
        return torch.Size(sizes[:known])  # type: ignore[arg-type]
    first = shapes[0][:num_dims]
    if any(map(_is_open, sizes)) or any(map(_is_open, first)):
        return first
    return torch.Size(sizes)  # type: ignore[arg-type]


def _has_one_more(value: object, before: tuple[int | None, ...]) -> bool:
    """Tell whether a leaf of the shape ``before`` has got one dim more, in front."""
    if not isinstance(value, torch.Tensor):
        return False
    sizes = (*value.shape, *before)
    return not any(map(_is_open, sizes)) and value.shape[1:] == before


def _new_batch_size(
    old: torch.Size, shapes: list[torch.Size], has_more: bool
) -> torch.Size:
    """The batch size for leaves of ``shapes`` where it was ``old``.

    It stays where all leaves still begin with it. A new dim in front of it in every
    leaf (what :func:`torch.vmap` adds) is a new batch dim, also where it happens to be
    as long as the one that it is in front of (``has_more``). Otherwise it is what the
    leaves have in common, with no more dims than before.
    """
    if not shapes:
        return old
    num_dims = len(old)
    if not has_more and all(shape[:num_dims] == old for shape in shapes):
        return old
    first = shapes[0]
    if all(
        shape[:1] == first[:1] and shape[1 : num_dims + 1] == old for shape in shapes
    ):
        return first[: num_dims + 1]
    common = 0
    while common < num_dims and all(
        len(shape) > common and shape[common] == first[common]
        if len(first) > common
        else False
        for shape in shapes
    ):
        common += 1
    return first[:common]
