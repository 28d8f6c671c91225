"""Tensordicts as arguments and results of :func:`torch.vmap`.

``vmap`` flattens its arguments as pytrees and maps each leaf along ``in_dims``. For a
tensordict, ``in_dims`` would then count the dims of its leaves, and the batch size and
names would be lost. Here a tensordict is one argument: ``in_dims`` and ``out_dims``
count its batch dims. The mapped dim is a batch dim, or a feature dim that all leaves
have in one size.

Three functions of :mod:`torch._functorch.vmap` that flatten arguments and assemble
results are wrapped. Without a tensordict they do what torch's functions do.

Torch has no batching rules for ``torch._foreach_*``, which computes all leaves of a
tensordict at once. The first call of ``vmap`` in a process (or the import of Dynamo)
registers rules that compute leaf by leaf.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch import vmap as functorch
from torch.overrides import has_torch_function_variadic as any_special
from torch.utils import _pytree

from tensordict import _rust
from tensordict.primitives import uninitialized
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install", "register_foreach_rules"]


def install() -> None:
    """Wrap the functions of functorch, once a process."""
    if hasattr(functorch._process_batched_inputs, "__wrapped__"):
        return
    for name, wrap in (
        ("_process_batched_inputs", _process_batched_inputs),
        ("_create_batched_inputs", _create_batched_inputs),
        ("_unwrap_batched", _unwrap_batched),
    ):
        setattr(functorch, name, _wrapped(getattr(functorch, name), wrap))


def _wrapped(
    original: Callable[..., Any], wrap: Callable[..., Any]
) -> Callable[..., Any]:
    def wrapper(*args: object, **kwargs: object) -> Any:
        return wrap(original, *args, **kwargs)

    wrapper.__name__ = original.__name__
    wrapper.__wrapped__ = original  # type: ignore[attr-defined]
    return wrapper


def _is_collection(value: object) -> bool:
    return isinstance(value, CollectionProtocol)


def _placeholder(value: Any, dim: Any = None) -> Any:
    """Return a tensor without memory, of the mappable dims of a tensordict."""
    if not _is_collection(value):
        return value
    return torch.empty(()).expand(_mapped_size(value, dim))


def _mapped_size(td: CollectionProtocol, dim: object = None) -> Any:
    """Return the sizes of the dims that ``vmap`` can map over.

    This is the batch size. A tensordict without batch dims that is no node of a pytree
    (parameters, subclasses) has the shape of its first leaf. If ``dim`` is a feature
    dim that all leaves have in one size, its size is appended, with 1 for the dims in
    between.
    """
    size = td.batch_size
    if not size:
        return next((leaf.shape for leaf in _leaves(td)), ())
    if isinstance(dim, int) and dim >= len(size) and _has_plain_leaves(td, dim):
        lengths = {leaf.shape[dim] if dim < leaf.ndim else None for leaf in _leaves(td)}
        if len(lengths) == 1 and None not in lengths:
            return (*size, *[1] * (dim - len(size)), *lengths)
    return size


def _has_plain_leaves(td: CollectionProtocol, dim: int) -> bool:
    """Return whether all leaves are plain tensors with ``dim`` as a feature dim."""
    return not any_special(*_leaves(td)) and all(
        (part._is_dense or part._is_one) and part.batch_dims <= dim
        for part in _rust.containers(td)
    )


def _leaves(td: Any) -> Any:
    return td.values(include_nested=True, leaves_only=True)


def _has_batch_dims(value: Any) -> bool:
    """Return whether a value is a tensordict with batch dims, which are mapped."""
    return _is_collection(value) and value.batch_dims > 0


def _process_batched_inputs(
    original: Callable[..., Any],
    in_dims: object,
    args: tuple[Any, ...],
    func: Callable[..., Any],
) -> Any:
    if not _rules:
        register_foreach_rules()
    if not torch.compiler.is_compiling() and len(args) < len(_FLAT_SPECS):
        plan = _plan_flat(in_dims, args)
        if plan is not None:
            return *plan, list(args), _FLAT_SPECS[len(args)]
    flat, spec = _pytree.tree_flatten(args, is_leaf=_has_batch_dims)
    if not any(map(_is_collection, flat)):
        return original(in_dims, args, func)
    dims = _pytree._broadcast_to_and_flatten(in_dims, spec) or [None] * len(flat)
    placeholders = _pytree.tree_unflatten(list(map(_placeholder, flat, dims)), spec)
    batch_size, flat_in_dims, _, spec = original(in_dims, placeholders, func)
    for dim, value in zip(flat_in_dims, flat, strict=True):
        if dim is not None and _is_collection(value) and not value.batch_size:
            _check_leaves(value, dim, batch_size, functorch._get_name(func))
    return batch_size, flat_in_dims, flat, spec


_FLAT_SPECS = [_pytree.tree_flatten((0,) * count)[1] for count in range(8)]
"""By number of arguments: the pytree spec of that many leaves."""


def _plan_flat(in_dims: object, args: tuple[Any, ...]) -> tuple[int, list[Any]] | None:
    """Return the mapped size and the mapped dim of each argument.

    The result is None if an argument is neither a tensor nor a tensordict with batch
    dims, if none is a tensordict, or if the dims do not fit: then functorch flattens
    the arguments and raises the errors.
    """
    dims = in_dims if type(in_dims) is tuple else (in_dims,) * len(args)
    if len(dims) != len(args) or not any(map(_has_batch_dims, args)):
        return None
    mapped_dims = []
    sizes = set()
    for dim, value in zip(dims, args, strict=True):
        if isinstance(value, torch.Tensor):
            if value.is_nested:
                return None
            shape: Any = value.shape
        elif _has_batch_dims(value):
            shape = _mapped_size(value, dim)
        else:
            return None
        if dim is not None:
            if type(dim) is not int or not -len(shape) <= dim < len(shape):
                return None
            dim %= len(shape)
            sizes.add(shape[dim])
        mapped_dims.append(dim)
    return (sizes.pop(), mapped_dims) if len(sizes) == 1 else None


def _check_leaves(td: CollectionProtocol, dim: int, batch_size: int, name: str) -> None:
    """Raise an error if a leaf lacks the mapped dim or has another size there."""
    for leaf in _leaves(td):
        if dim >= leaf.ndim:
            msg = (
                f"vmap({name}, ...)(<inputs>): Got in_dim={dim} for some input, but that "
                f"input is a Tensor of dimensionality {leaf.ndim}"
            )
            raise ValueError(msg)
        if leaf.shape[dim] != batch_size:
            msg = (
                "vmap: Expected all tensors to have the same size in the mapped "
                f"dimension, got sizes {[batch_size, leaf.shape[dim]]} for the mapped "
                "dimension"
            )
            raise ValueError(msg)


def _create_batched_inputs(
    original: Callable[..., Any],
    flat_in_dims: list[int | None],
    flat_args: list[Any],
    vmap_level: int,
    args_spec: Any,
) -> Any:
    if not any(map(_is_collection, flat_args)):
        return original(flat_in_dims, flat_args, vmap_level, args_spec)
    batched = []
    mapped: list[tuple[Any, Any, list[int]]] = []
    for dim, arg in zip(flat_in_dims, flat_args, strict=True):
        if dim is None:
            batched.append(arg)
        elif _is_collection(arg) and _is_stack_along(arg, dim):
            dense = arg.contiguous()
            rows = _add_batch_dim(dense, dim, vmap_level)
            for collection in _rust.containers(rows):
                collection.__dict__[_ROWS] = True
            mapped.append((arg, dense, [leaf._version for leaf in _leaves(dense)]))
            batched.append(rows)
        else:
            batched.append(_add_batch_dim(arg, dim, vmap_level))
    if mapped or hasattr(_stacks, "of_level"):
        _stacks.__dict__.setdefault("of_level", {})[vmap_level] = mapped
    if len(batched) < len(_FLAT_SPECS) and args_spec is _FLAT_SPECS[len(batched)]:
        return tuple(batched)
    return _pytree.tree_unflatten(batched, args_spec)


_ROWS = "_is_row_of_stack"
"""Marks a batched copy of a lazy stack: results made from it become lazy stacks."""

_stacks = threading.local()
"""By level: the mapped lazy stacks, their dense copies and the versions of the leaves."""


def _is_stack_along(td: CollectionProtocol, dim: int) -> bool:
    """Return whether ``td`` is a lazy stack whose members are mapped over."""
    if torch.compiler.is_compiling():
        return False
    stack = td._lazy_stack()
    return stack is not None and stack.stack_dim == dim


def _write_back(level: int) -> None:
    """Write changes that were made in place in the dense copies to the lazy stacks."""
    copies = getattr(_stacks, "of_level", {}).pop(level, ())
    for stack, dense, versions in copies:
        leaves = zip(dense.keys(True, True), _leaves(dense), versions, strict=True)
        for key, leaf, version in list(leaves):
            if leaf._version != version:
                stack.set_(key, leaf)


def _add_batch_dim(value: Any, dim: int, level: int) -> Any:
    if not _is_collection(value):
        return functorch._add_batch_dim(value, dim, level)  # type: ignore[attr-defined]
    size = value.batch_size
    remaining_dims = tuple(other for other in range(len(size)) if other != dim)
    has_uninitialized = uninitialized.has_uninitialized(_rust.leaves(value))
    return _rust.map_leaves(
        value,
        uninitialized._add_batch_dim if has_uninitialized else functorch._add_batch_dim,  # type: ignore[attr-defined]
        (dim, level),
        torch.Size([size[other] for other in remaining_dims]),
        remaining_dims,
        0,
        True,
    )


def _unwrap_batched(
    original: Callable[..., Any],
    outputs: object,
    out_dims: object,
    vmap_level: int,
    batch_size: int,
    func: Callable[..., Any],
) -> Any:
    _write_back(vmap_level)
    if isinstance(outputs, torch.Tensor):
        return original(outputs, out_dims, vmap_level, batch_size, func)
    if type(out_dims) is int and _is_collection(outputs):
        name = functorch._get_name(func)
        return _remove_batch_dim(name, outputs, vmap_level, batch_size, out_dims)
    flat, spec = _pytree.tree_flatten(outputs, is_leaf=_is_collection)
    if not any(map(_is_collection, flat)):
        return original(outputs, out_dims, vmap_level, batch_size, func)
    if _is_collection(outputs) and isinstance(out_dims, tuple) and len(out_dims) == 1:
        out_dims = out_dims[0]
    flat_out_dims = _pytree._broadcast_to_and_flatten(out_dims, spec)
    if flat_out_dims is None:
        # functorch raises its own error for placeholders of the same structure.
        flat = list(map(_placeholder, flat))
        outputs = _pytree.tree_unflatten(flat, spec)
        return original(outputs, out_dims, vmap_level, batch_size, func)
    name = functorch._get_name(func)
    unwrapped = [
        _remove_batch_dim(name, value, vmap_level, batch_size, dim)
        for value, dim in zip(flat, flat_out_dims, strict=True)
    ]
    return _pytree.tree_unflatten(unwrapped, spec)


def _remove_batch_dim(
    name: str, value: Any, level: int, batch_size: int, out_dim: int | None
) -> Any:
    if not _is_collection(value) or out_dim is None:
        return functorch._maybe_remove_batch_dim(
            name, value, level, batch_size, out_dim
        )
    size = value.batch_size
    dim = out_dim if out_dim >= 0 else len(size) + 1 + out_dim
    if not 0 <= dim <= len(size):
        msg = (
            f"Dimension out of range (expected to be in range of "
            f"[{-len(size) - 1}, {len(size)}], but got {out_dim})"
        )
        raise IndexError(msg)
    old = tuple(range(len(size)))
    result = _rust.map_leaves(
        value,
        _remove_from_leaf,
        (level, batch_size, dim),
        torch.Size([*size[:dim], batch_size, *size[dim:]]),
        (*old[:dim], -1, *old[dim:]),
        0,
        True,
    )
    if not torch.compiler.is_compiling() and _ROWS in vars(value):
        return result.to_lazystack(dim)
    return result


def _remove_from_leaf(
    leaf: torch.Tensor, level: int, batch_size: int, dim: int
) -> torch.Tensor:
    return functorch._remove_batch_dim(leaf, level, batch_size, dim)  # type: ignore[attr-defined]


# Batching rules --------------------------------------------------------------------

_lock = threading.Lock()
_rules: list[torch.library.Library] = []
"""The library of the rules, once registered. The rules live as long as it does."""

_FOREACH = "_foreach_"
_SCALAR_FORMS = {"maximum": "clamp_min", "minimum": "clamp_max"}


def register_foreach_rules() -> None:
    """Register the batching rules of ``torch._foreach_*``, once a process.

    Dynamo cannot trace this function. The import of Dynamo calls it.
    """
    with _lock:
        if _rules:
            return
        library = torch.library.Library("aten", "IMPL")
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("aten::" + _FOREACH) and not name.endswith("out"):
                rule = _foreach_rule(name.removeprefix("aten::"))
                if (
                    rule is not None
                    and not torch._C._dispatch_has_kernel_for_dispatch_key(
                        name, "FuncTorchBatched"
                    )
                ):
                    library.impl(name.removeprefix("aten::"), rule, "FuncTorchBatched")
        _rules.append(library)


def _foreach_rule(name: str) -> Callable[..., Any] | None:
    """Return a rule that computes a foreach operator tensor by tensor.

    Returns:
        The rule; None if torch has no operator for a single tensor.
    """
    base, _, overload = name.partition(".")
    base = base.removeprefix(_FOREACH)
    inplace = base.endswith("_")
    if inplace:
        base = base[:-1]
    if overload.startswith("Scalar"):
        base = _SCALAR_FORMS.get(base, base)
    operator = getattr(torch.ops.aten, base, None)
    if operator is None:
        return None
    has_value = base in ("addcmul", "addcdiv")

    def rule(*values: Any, **options: object) -> list[Any] | None:
        results = []
        for position, first in enumerate(values[0]):
            others = [
                value[position] if isinstance(value, (list, tuple)) else value
                for value in values[1:]
            ]
            if has_value and len(others) == 3:
                result = operator(first, *others[:2], value=others[2])
            else:
                result = operator(first, *others, **options)
            if inplace:
                first.copy_(result)
            results.append(result)
        return None if inplace else results

    return rule
