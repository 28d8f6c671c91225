"""Parameters of modules as tensordicts, and tensordicts as parameters of modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from tensordict import _rust
from tensordict.primitives import classes
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.tied import (
    ModuleSlot,
    current_tensor,
    put_back,
    tie_again,
    tied_places,
)
from tensordict.primitives.uninitialized import has_uninitialized, stack_uninitialized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.containers.dense import TensorDict

__all__ = ["ModulesOps", "from_module", "from_modules"]

MSG_MEMO = "memo cannot be passed to the public to_module anymore."
MSG_LAZY_MODULES = (
    "lazy_stack=True is not compatible with lazy modules, whose parameters have no shape "
    "yet: call the modules first, or stack without it."
)
MSG_NAMES = "All key sets must match."
MSG_DIFFERENCE = (
    "from_modules stacks the parameters of modules of one structure. {pair} differ: "
    "{difference}. Make the modules alike, or keep their own parameters with lazy_stack=True."
)
MSG_SHAPES = (
    "In the block of to_module, {module} has parameters of another shape than its own: "
    "{shapes}. Give values of its shapes."
)
MSG_LOAD_SHAPES = (
    "to_module(use_state_dict=True) loads the entries into {module} with its own checks: "
    "give values of its shapes, or put them in without use_state_dict."
)
MSG_INPLACE_STATE_DICT = "inplace argument cannot be passed when use_state_dict=True."


class ModulesOps(CollectionProtocol):
    """Parameters of modules as tensordicts, and tensordicts as their parameters."""

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        as_module: bool = False,
        lock: bool = False,
        use_state_dict: bool = False,
        filter_empty: bool = True,
    ) -> Self:
        """Return the parameters and buffers of ``module``, nested as its submodules.

        The tensordict contains the module's own tensors: nothing is copied, and a tied
        parameter stays one object.

        Args:
            module: the module.
            as_module: return a :class:`TensorDictParams`, which is a module itself.
            lock: lock the result.
            use_state_dict: read ``module.state_dict()`` instead, so that its hooks run:
                the tensors are detached, and buffers that are not persistent are
                missing.
            filter_empty: leave out submodules without parameters and buffers.

        Examples:
            >>> params = TensorDict.from_module(nn.Linear(3, 2))
            >>> params["weight"].shape
            torch.Size([2, 3])
        """
        if isinstance(module, CollectionProtocol):
            # A TensorDictParams is a tensordict of parameters already.
            return _finished(module, False, lock)
        kind: Any = cls if cls._is_dense else cls._plain_type
        try:
            if use_state_dict:
                td = _from_state_dict(kind, module)
            else:
                td = _from_module(kind, module, filter_empty)
        except (AttributeError, TypeError) as error:
            if isinstance(module, nn.Module):
                raise
            given = module.__name__ if isinstance(module, type) else module
            msg = (
                f"{error}: from_module takes a torch.nn.Module, and not {given!r:.50}."
            )
            raise type(error)(msg) from None
        return _finished(cls._from_plain(td), as_module, lock)

    @classmethod
    def from_modules(
        cls,
        *modules: nn.Module,
        as_module: bool = False,
        lock: bool = True,
        use_state_dict: bool = False,
        lazy_stack: bool = False,
        expand_identical: bool = False,
    ) -> Self:
        """Stack the parameters of several modules of one structure: an ensemble.

        Leaves go from ``[*F]`` to ``[N, *F]``, where ``N`` is the number of modules.
        Parameters become new parameters that share no memory with the modules.

        Args:
            *modules: modules with the same parameter names and shapes.
            as_module: return a :class:`TensorDictParams`, which is a module itself.
            lock: lock the result.
            use_state_dict: see :meth:`from_module`.
            lazy_stack: return a lazy stack of each module's own parameters, not copied.
            expand_identical: expand a parameter that all modules share instead of
                copying it.

        Parameters of lazy modules get their shapes and values when a module is called
        with them under :func:`torch.vmap`, which must allow random numbers.

        Raises:
            RuntimeError: no module was passed, the parameters differ in name or shape,
                or only some of them are uninitialized.
            ValueError: with ``expand_identical``, the parameters differ in name.

        Examples:
            >>> params = TensorDict.from_modules(nn.Linear(3, 2), nn.Linear(3, 2))
            >>> params.batch_size, params["weight"].shape
            (torch.Size([2]), torch.Size([2, 2, 3]))
        """
        parts = [
            cls.from_module(module, use_state_dict=use_state_dict) for module in modules
        ]
        td: Any
        if lazy_stack:
            if _have_uninitialized(parts):
                raise RuntimeError(MSG_LAZY_MODULES)
            td = cls.lazy_stack(parts)  # type: ignore[attr-defined]
        else:
            try:
                td = _stacked(parts, expand_identical)
            except (RuntimeError, ValueError) as error:
                _explain_difference(modules, parts, error)
                raise
        return _finished(td, as_module, lock)

    def to_module(
        self,
        module: nn.Module,
        *,
        inplace: bool | None = None,
        return_swap: bool = True,
        swap_dest: Any = None,
        use_state_dict: bool = False,
        non_blocking: bool = False,
        preserve_module_state: bool = True,
        memo: object = None,
        strict: bool | None = None,
    ) -> Any:
        """Replace the parameters and buffers of ``module`` by the entries.

        At the end of a ``with`` statement, the module gets its own tensors back. A
        parameter that the block assigned to the module is then stored in this
        tensordict.

        A tensor that the module has at several places (tied weights) stays one tensor
        if this tensordict has one value for it; the entry may be at any of the places.

        The module shares the memory of the entries. If :meth:`load_memmap` loaded them,
        training the module overwrites the checkpoint, unless it was loaded with
        ``mode="r"``.

        Args:
            module: a module that has every entry. Its other tensors do not change.
            inplace: copy the values into the module's tensors.
            return_swap: return the module's previous tensors. If False, return None.
            swap_dest: the tensordict to store the previous tensors in.
            use_state_dict: call ``module.load_state_dict``, so that its hooks run.
            non_blocking: with ``inplace``, as in :meth:`torch.Tensor.copy_`.
            preserve_module_state: wrap a tensor that requires no grad in a
                :class:`torch.nn.Parameter` if it replaces a parameter. It shares the
                memory.
            memo: not allowed.
            strict: require an entry for every parameter and persistent buffer, and one
                value for tensors at several places. Default: True if this tensordict
                was loaded from a file. If False, tensors without an entry stay, and
                different values for one tensor untie the module: it then has two
                tensors. With the default, equal values are one tensor, unless they
                require separate gradients.

        Returns:
            The previous tensors of the module under the same keys (with ``inplace``, a
            copy).

        Raises:
            KeyError: the module lacks an entry. The module is unchanged.
            RuntimeError: an entry has another shape than the tensor that it replaces.
                Additional leading dimensions are allowed, as stacked parameters have
                them. Any shape is allowed if the module's tensor is uninitialized, on
                the meta device or without elements. Or ``strict`` finds a missing entry
                or two values. The module is unchanged.

        Examples:
            >>> module = nn.Linear(3, 1, bias=False)
            >>> params = TensorDict(weight=torch.ones(1, 3))
            >>> with params.to_module(module):
            ...     module(torch.ones(3)).item()
            3.0

            Train a module without changing its checkpoint:

            >>> import tempfile
            >>> path = tempfile.mkdtemp()
            >>> _ = params.memmap(path)
            >>> _ = TensorDict.load_memmap(path, mode="r").to_module(module)
            >>> _ = module.weight.data.zero_()
            >>> TensorDict.load_memmap(path)["weight"].tolist()
            [[1.0, 1.0, 1.0]]
        """
        if memo is not None:
            raise RuntimeError(MSG_MEMO)
        if not isinstance(module, nn.Module):
            msg = f"to_module expects a torch.nn.Module, got a {type(module).__name__}."
            raise TypeError(msg)
        if use_state_dict and inplace is not None:
            raise RuntimeError(MSG_INPLACE_STATE_DICT)
        if isinstance(module, CollectionProtocol) and use_state_dict:
            # A TensorDictParams' state dict has the same names as its entries.
            inplace, use_state_dict = True, False
        copies = bool(inplace or use_state_dict)
        tied: list[ModuleSlot] = []
        preserves = preserve_module_state and not copies
        swapped = _rust.swap_module(self, module, preserves, copies, strict, tied)
        if use_state_dict:
            _load_state(self, module, preserve_module_state, strict)
        elif inplace:
            _check_sizes(swapped, self, module)
            swapped = _write_inplace(swapped, self, non_blocking)
        if not return_swap:
            return None
        if isinstance(module, CollectionProtocol):
            held: Any = module
            swapped = held._like(swapped)
        if swap_dest is not None:
            _rust.write_tree(swap_dest, swapped, False, True)
            swapped = swap_dest
        kwargs: dict[str, Any] = {"inplace": True} if inplace else {}
        if tied and not inplace:
            kwargs["tied"] = [(*place, current_tensor(*place[:2])) for place in tied]
        # A strong reference, unlike in other operations: the module must get its
        # tensors back even if no one else refers to this tensordict.
        swapped._last_op = ("to_module", (module,), kwargs, lambda: self)
        return swapped

    def _undo_to_module(
        self,
        source: object,
        module: nn.Module,
        inplace: bool = False,
        tied: Sequence[tuple[Any, str, torch.Tensor, Any]] = (),
    ) -> None:
        """Undo ``with source.to_module(module) as self`` at its end.

        ``tied`` are places whose value was not that of ``source``.
        """
        current = _rust.restore_module(self, module, source, inplace, bool(tied))
        if inplace:
            _write_inplace(current, self, False)
        put_back(tied)

    def _explain_to_module(
        self,
        source: CollectionProtocol,
        module: nn.Module,
        inplace: bool = False,
        **others: object,
    ) -> str | None:
        """Explain an error of the block if a parameter has another shape."""
        if inplace:
            return None
        differences = []
        for key, module_tensor in self.items(True, True):
            source_tensor = source.get(key, None)
            if not (
                isinstance(module_tensor, torch.Tensor)
                and isinstance(source_tensor, torch.Tensor)
            ):
                continue
            if _differ(source_tensor, module_tensor):
                name = key if isinstance(key, str) else ".".join(key)
                shapes = f"{list(source_tensor.shape)} in place of {list(module_tensor.shape)}"
                differences.append(f"{name} {shapes}")
        if not differences:
            return None
        shapes = ", ".join(differences[:8]) + (", ..." if len(differences) > 8 else "")
        return MSG_SHAPES.format(module=type(module).__name__, shapes=shapes)


def from_module(
    module: nn.Module,
    as_module: bool = False,
    lock: bool = True,
    use_state_dict: bool = False,
    filter_empty: bool = True,
) -> TensorDict:
    """Return the parameters of a module as a locked :class:`TensorDict`.

    As :meth:`TensorDict.from_module`, but ``lock`` is True by default.

    Examples:
        >>> from_module(nn.Linear(3, 2)).is_locked
        True
    """
    return classes.TensorDict.from_module(
        module, as_module, lock, use_state_dict, filter_empty
    )


def from_modules(
    *modules: nn.Module,
    as_module: bool = False,
    lock: bool = True,
    use_state_dict: bool = False,
    lazy_stack: bool = False,
    expand_identical: bool = False,
) -> TensorDict:
    """Stack the parameters of several modules: see :meth:`TensorDict.from_modules`.

    Examples:
        >>> from_modules(nn.Linear(3, 2), nn.Linear(3, 2))["bias"].shape
        torch.Size([2, 2])
    """
    return classes.TensorDict.from_modules(
        *modules,
        as_module=as_module,
        lock=lock,
        use_state_dict=use_state_dict,
        lazy_stack=lazy_stack,
        expand_identical=expand_identical,
    )


from_module.__module__ = from_modules.__module__ = "tensordict._td"


# Modules to tensordicts -----------------------------------------------------------


_NO_DIMS = torch.Size([])


def _from_module(cls: type, module: nn.Module, filter_empty: bool) -> Any:
    entries: dict[str, Any] = {}
    for tensors in (module._parameters, module._buffers):
        if tensors:
            entries |= {
                name: tensor for name, tensor in tensors.items() if tensor is not None
            }
    for name, child in module._modules.items():
        if child is None:
            continue
        if isinstance(child, CollectionProtocol):
            entries[name] = child
            continue
        nested = _from_module(cls, child, filter_empty)
        if not filter_empty or nested._tensordict:
            entries[name] = nested
    return _rust.new(cls, entries, _NO_DIMS, None, None)


def _from_state_dict(cls: type, module: nn.Module) -> Any:
    td: Any = _rust.new(cls, {}, torch.Size([]), None, None)
    for key, value in module.state_dict().items():
        _rust.set_entry(td, tuple(key.split(".")), value)
    return td


def _have_uninitialized(parts: list[Any]) -> bool:
    return any(has_uninitialized(_rust.leaves(part)) for part in parts)


def _stacked(parts: list[Any], expand_identical: bool) -> Any:
    if not parts:
        raise RuntimeError("stack expects a non-empty TensorList")

    has_lazy = _have_uninitialized(parts)

    def stack(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        if has_lazy and has_uninitialized((first, *others)):
            return stack_uninitialized((first, *others))
        if expand_identical and all(other is first for other in others):
            return first.expand(len(parts), *first.shape)
        data = torch.stack([first.data, *(other.data for other in others)])
        if isinstance(first, nn.Parameter):
            return nn.Parameter(data, first.requires_grad)
        return data

    if expand_identical or has_lazy:
        names = set(parts[0].keys(True, True))
        if any(set(part.keys(True, True)) != names for part in parts):
            raise ValueError(MSG_NAMES)
    else:
        # This stack is only for torch's checks and for errors that name the key.
        torch.stack([part.data for part in parts])
    result = parts[0]._fast_apply(
        stack, *parts[1:], batch_size=torch.Size([len(parts)]), filter_empty=False
    )
    for key, value in parts[0].items(True):
        if isinstance(value, CollectionProtocol) and value.batch_size:
            result[key].batch_size = [len(parts), *value.batch_size]
    return result


def _differ(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether the shapes of two tensors differ; uninitialized ones never do."""
    return not has_uninitialized((first, second)) and first.shape != second.shape


def _explain_difference(
    modules: tuple[nn.Module, ...], parts: list[Any], error: BaseException
) -> None:
    """Add a note to the error of a stack: which parameter of which module differs."""
    leaves = [dict(part.flatten_keys(".").items()) for part in parts]
    for number, other in enumerate(leaves[1:], 1):
        pair = (
            f"Module 0 ({type(modules[0]).__name__}) and module {number} "
            f"({type(modules[number]).__name__})"
        )
        for name in dict.fromkeys([*leaves[0], *other]):
            if name not in other or name not in leaves[0]:
                owner = 0 if name in leaves[0] else number
                difference = f"only module {owner} has {name!r}"
            elif _differ(leaves[0][name], other[name]):
                shapes = [list(leaf[name].shape) for leaf in (leaves[0], other)]
                difference = f"{name!r} has the shapes {shapes[0]} and {shapes[1]}"
            else:
                continue
            error.add_note(MSG_DIFFERENCE.format(pair=pair, difference=difference))
            return


def _finished(td: Any, as_module: bool, lock: bool) -> Any:
    if as_module:
        td = classes.TensorDictParams(td, no_convert=True)
    if lock:
        td.lock_()
    return td


# Tensordicts to modules -----------------------------------------------------------


def _check_sizes(
    target: CollectionProtocol, source: CollectionProtocol, module: nn.Module
) -> None:
    """Raise an error if a leaf of ``source`` cannot be copied into ``target``."""

    def check(key: object, old: torch.Tensor, new: torch.Tensor) -> None:
        try:
            new.expand(old.shape)
        except RuntimeError as error:
            name = ".".join(key) if isinstance(key, tuple) else key
            msg = (
                f"{error}. to_module(inplace=True) got {name} of shape "
                f"{list(new.shape)}, {type(module).__name__}.{name} has the shape "
                f"{list(old.shape)}. The module has not been changed: give values of its "
                "shapes, or swap them without inplace."
            )
            raise RuntimeError(msg) from error

    target.named_apply(check, source, nested_keys=True, filter_empty=True)


def _keep_graphs(module: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Replace parameters made by ``load_state_dict`` by the tensors that require grad.

    Loading a state makes a new parameter of each tensor, which cuts its graph.
    """
    for key, value in state.items():
        if not value.requires_grad or isinstance(value, nn.Parameter):
            continue
        path, _, name = key.rpartition(".")
        held: Any = module.get_submodule(path)._parameters
        made = held.get(name)
        # A hook may have loaded another tensor.
        if made is not None and torch._C._is_alias_of(made, value):  # type: ignore[attr-defined]
            held[name] = value


def _load_state(
    td: Any, module: nn.Module, preserve: bool, strict: bool | None
) -> None:
    """Load the entries by the module's ``load_state_dict``, so that its hooks run."""
    state = {
        # A parameter takes the class of its tensor: `detach` makes a mapped one plain.
        key: value
        if type(value) is torch.Tensor or value.requires_grad
        else value.detach()
        for key, value in td.flatten_keys(".").items()
    }
    groups = tied_places(module)
    try:
        incompatible = module.load_state_dict(state, strict=False, assign=True)
    except RuntimeError as error:
        error.add_note(MSG_LOAD_SHAPES.format(module=type(module).__name__))
        raise
    _keep_graphs(module, state)
    others = {key: state[key] for key in incompatible.unexpected_keys if key in state}
    if others:
        # Buffers that are not part of the module's state.
        kind: Any = td.__class__ if td._is_dense else td._dense_type()
        rest: Any = _rust.new(kind, others, _NO_DIMS, None, None)
        _rust.swap_module(rest.unflatten_keys("."), module, preserve, False, False)
    tie_again(groups, strict)


def _write_inplace(target: Any, source: CollectionProtocol, non_blocking: bool) -> Any:
    """Copy the leaves of ``source`` into ``target``; return the previous values."""
    # A tensor at two places must be saved only once, before the first write.
    before: dict[torch.Tensor, torch.Tensor] = {}

    def write(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        if old not in before:
            before[old] = old.data.clone()
        old.data.copy_(new.data, non_blocking=non_blocking)
        return before[old]

    return target._fast_apply(write, source, filter_empty=False)
