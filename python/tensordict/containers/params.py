"""A collection of parameters that is also a module."""

from __future__ import annotations

import contextlib
import copy
import functools
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import torch
from torch import nn

from tensordict import _rust
from tensordict.containers.collection import TensorDictBase
from tensordict.containers.dense import TensorDict
from tensordict.primitives import classes
from tensordict.primitives.checks import is_branch
from tensordict.primitives.common import more_refs
from tensordict.primitives.operations import COPIES
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol, as_stack
from tensordict.primitives.tied import tie_again, tied_places
from tensordict.storage.old_states import is_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tensordict.primitives.entry import Entry
    from tensordict.primitives.protocol import BatchIndex, NestedKeyLike

__all__ = ["TensorDictParams"]

MSG_LAZY = "Using a LazyStackedTensorDict within a TensorDictParams isn't permitted."

F = TypeVar("F", bound="Callable[..., Any]")


def _unlocking(method: F) -> F:
    """Wrap a method that adds or removes entries: it also works on a locked content."""

    @functools.wraps(method)
    def opened(self: Any, *args: object, **kwargs: object) -> Any:
        with self._opened():
            return method(self, *args, **kwargs)

    return cast("F", opened)


MSG_LOAD = (
    "{name} loads a state dict with the names and shapes of its entries, {keys}. Pass "
    "these, or load only the names that both have with strict=False."
)

NOTHING: dict[str, Any] = {}

KINDS = ("_parameters", "_buffers")


class _Slots(dict[str, Any]):
    """The parameters or buffers of a module by name, as torch asks for them.

    The dictionary is made at each request. Writing to it also writes to the collection:
    functional calls and exports replace parameters this way.
    """

    owner: Any
    kind: str

    def __setitem__(self, name: str, value: object) -> None:
        super().__setitem__(name, value)
        slot = self.owner._entry_slot(name)
        if slot is not None and value is not None:
            td, key = slot
            # A lock protects the set of keys, which does not change here.
            td._set_entry(key, value)
        else:
            self.owner.__dict__[self.kind][name] = value

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        slot = self.owner._entry_slot(name)
        if slot is not None:
            td, key = slot
            td.del_(key)
        else:
            del self.owner.__dict__[self.kind][name]

    def pop(self, name: str, *default: object) -> Any:
        """Remove a tensor and return it."""
        if name not in self:
            return super().pop(name, *default)
        value = self[name]
        del self[name]
        return value


@classes.provided
class TensorDictParams(TensorDictBase, nn.Module):
    """A collection whose leaves are parameters and buffers, and an ``nn.Module``.

    Tensors of floating point and complex dtype become :class:`torch.nn.Parameter`,
    others :class:`torch.nn.Buffer`. In a surrounding module, a leaf's name is its
    nested key, joined by dots. Operations that make new leaves (indexing, arithmetic,
    ``apply``, ``data``) return a plain :class:`TensorDict`; ``clone`` and ``to`` return
    a ``TensorDictParams``.

    Args:
        parameters: a collection or a mapping. A collection is not copied: its leaves
            are replaced in it. Default: the keyword arguments.
        no_convert: if true, tensors that are not parameters become buffers, of any
            dtype.
        lock: whether to lock ``parameters``, so that only this collection can change
            its entries.
        **kwargs: entries, in place of ``parameters``.

    Raises:
        ValueError: both ``parameters`` and keyword entries are given.

    Examples:
        >>> params = TensorDictParams(weight=torch.zeros(2), n={"step": torch.tensor(3)})
        >>> [name for name, _ in params.named_parameters()]
        ['weight']
        >>> [name for name, _ in params.named_buffers()]
        ['n.step']
    """

    _param_td: Any
    """The collection that holds the parameters."""

    no_convert: bool | str

    def __init__(
        self,
        parameters: TensorDictBase | Mapping[str, Any] | None = None,
        *,
        no_convert: bool | str = False,
        lock: bool = False,
        **kwargs: object,
    ) -> None:
        nn.Module.__init__(self)
        if parameters is None:
            parameters = TensorDict(kwargs)
        elif kwargs:
            msg = "Either parameters or entries as keyword arguments, not both."
            raise ValueError(msg)
        elif isinstance(parameters, TensorDictParams):
            parameters = parameters._param_td
        elif not isinstance(parameters, CollectionProtocol):
            parameters = TensorDict(parameters)
        self._wrap(parameters, no_convert)
        self._lock_content = lock
        if lock:
            self._param_td.lock_()

    def _wrap(self, content: Any, no_convert: bool | str) -> None:
        state = self.__dict__
        state["no_convert"] = no_convert
        state["_param_td"] = content
        state["_lock_content"] = False
        state["_is_locked"] = False
        state["_get_post_hook"] = []
        if no_convert != "skip":
            _convert(content, bool(no_convert))

    def _like(self, content: Any) -> Self:
        """Make the same class around ``content``, without converting its leaves."""
        return type(self)(content, no_convert="skip")

    # Reading --------------------------------------------------------------------------

    def register_get_post_hook(self, hook: Callable[[Any, Any], Any]) -> None:
        """Call ``hook(self, value)`` on each leaf that is read, and return its result.

        If the hook returns None, the value stays.
        """
        self._get_post_hook.append(hook)

    def _hooked(self, value: object) -> Any:
        if isinstance(value, CollectionProtocol):
            return value
        for hook in self._get_post_hook:
            result = hook(self, value)
            if result is not None:
                value = result
        return value

    def _hooked_entry(self, value: object) -> Any:
        if not isinstance(value, CollectionProtocol):
            return self._hooked(value)
        # The nested leaves are mapped here, because walks do not call hooks.
        return _rust.map_leaves(value, self._hooked, (), None, True, 0, False, -1)

    def get(self, key: NestedKeyLike, *args: object, **kwargs: object) -> Entry:
        """Return the entry at ``key``, or a default (None unless given) if missing."""
        value = super().get(key, *args, **kwargs)
        return self._hooked(value) if self._get_post_hook else value

    @overload
    def __getitem__(self, index: BatchIndex) -> TensorDict: ...
    @overload
    def __getitem__(self, index: str | tuple[str, ...]) -> Entry: ...
    @overload
    def __getitem__(self, index: object) -> Any: ...
    def __getitem__(self, index: object) -> Any:
        """Return the entry at a key, or a plain collection at an index."""
        value = super().__getitem__(index)
        if self._get_post_hook and isinstance(index, (str, tuple)):
            return self._hooked(value)
        return value

    # The protocol: it delegates to the collection of parameters -----------------------

    @property
    def _tensordict(self) -> dict[str, Any]:
        return self._param_td._tensordict

    @property
    def _batch_size(self) -> torch.Size:
        return self._param_td.batch_size

    @_batch_size.setter
    def _batch_size(self, value: torch.Size) -> None:
        self._param_td._batch_size = value

    @property
    def _device(self) -> torch.device | None:
        return self._param_td.device

    @_device.setter
    def _device(self, value: torch.device | None) -> None:
        self._param_td._device = value

    @property
    def _td_dim_names(self) -> list[str | None] | None:
        return self._param_td._td_dim_names

    @_td_dim_names.setter
    def _td_dim_names(self, value: list[str | None] | None) -> None:
        self._param_td._td_dim_names = value

    def _entries(self) -> dict[str, Any]:
        entries = self._param_td._entries()
        if self._get_post_hook:
            return {key: self._hooked_entry(value) for key, value in entries.items()}
        return entries

    def _get_entry(self, key: str, default: object) -> Any:
        return self._param_td._get_entry(key, default)

    def _set_entry(self, key: str, value: object) -> None:
        value = _converted(value, {}, bool(self.no_convert))
        self._param_td._set_entry(key, value)

    def _del_entry(self, key: str) -> None:
        self._param_td._del_entry(key)

    def _save_plan(self, plan: object, level: int) -> None:
        self._param_td._save_plan(plan, level)

    def _saved(
        self, leaves: object, directory: object, inplace: bool
    ) -> CollectionProtocol:
        """Return the saved collection of the parameters, which is no module."""
        if inplace:
            self._refuse_in_place()
        return self._param_td._saved(leaves, directory, False)

    def _refuse_in_place(self) -> None:
        msg = "Cannot build a memmap TensorDict in-place. Use memmap or memmap_like instead."
        raise RuntimeError(msg)

    def _put_leaves(self, leaves: Iterator[torch.Tensor]) -> None:
        """Replace the leaves; a parameter stays a parameter, a buffer a buffer."""
        old_leaves: list[torch.Tensor] = _rust.leaves(self._param_td)
        # The iterator may continue with leaves of another collection.
        new_leaves = [_as_kind_of(next(leaves), old) for old in old_leaves]
        self._param_td._put_leaves(iter(new_leaves))

    @classmethod
    def _from_description(
        cls, level: dict[str, Any], source: Any, path: object
    ) -> Self:
        return cls(source.inner(level, path))

    def _shape_fields(self) -> dict[str, str | None]:
        return {}

    def _leaves_owner(self) -> Any:
        # The owner is the content, so that an operation in place fails on parameters
        # that require grad, like torch's own.
        return self._param_td

    def _take_written(self) -> None:
        _convert(self._param_td, bool(self.no_convert))

    def _take_loaded(self, loaded: CollectionProtocol) -> Self:
        # Optimizers refer to the parameters: keep the objects, copy the values.
        self.data.update_(loaded)
        return self

    def _with_entries(self, entries: dict[str, Any]) -> Any:
        names = self.names if self._has_names() else None
        return _rust.new(
            type(self._param_td), entries, self.batch_size, self.device, names
        )

    def _stack_all(self, tds: Sequence[CollectionProtocol], dim: int) -> Any:
        return _rust.stack([_inside(td) for td in tds], dim)

    def _cat_all(self, tds: Sequence[CollectionProtocol], dim: int) -> Any:
        return _rust.cat([_inside(td) for td in tds], dim)

    def _make_child(self) -> Any:
        return self._param_td._make_child()

    def _child_type(self) -> type[Any]:
        return self._param_td._child_type()

    def _set_path(
        self,
        path: tuple[str, ...],
        value: object,
        inplace: bool | None,
        non_blocking: bool,
        validated: bool,
        ignore_lock: bool,
    ) -> None:
        if inplace is False:
            value = self._with_own_collections(value)
        with torch.no_grad(), self._opened():
            super()._set_path(
                path, value, inplace, non_blocking, validated, ignore_lock
            )
        # A value written below an entry needs its conversion, too.
        nested = self._param_td._get_entry(path[0], None)
        if isinstance(nested, CollectionProtocol):
            _convert(nested, bool(self.no_convert))

    def _with_own_collections(self, value: object) -> Any:
        """Return ``value`` with new collections, because their leaves get replaced."""
        if isinstance(value, dict):
            return {
                key: self._with_own_collections(item) for key, item in value.items()
            }
        if not isinstance(value, CollectionProtocol) or any(
            nested is self for nested in _rust.containers(value)
        ):
            # Storing refuses a collection that contains this one, and says why.
            return value
        return value.clone(False)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        """Unlock the content for a change, unless this collection is locked itself."""
        content = self._param_td
        if not content.is_locked or self._is_locked:
            yield
            return
        content.unlock_()
        try:
            yield
        finally:
            content.lock_()

    def exclude(self, *keys: Any, inplace: bool = False) -> Any:
        """See :meth:`TensorDict.exclude`. The result is plain unless ``inplace``."""
        if not inplace:
            return (self._param_td.exclude if keys else self._param_td.copy)(*keys)
        with self._opened():
            return super().exclude(*keys, inplace=True)

    def select(self, *keys: object, inplace: bool = False, **kwargs: object) -> Any:
        """See :meth:`TensorDict.select`. The result is plain unless ``inplace``."""
        with self._opened():
            result = self._param_td.select(*keys, inplace=inplace, **kwargs)
        return self if inplace else result

    def where(self, *args: object, **kwargs: object) -> Any:
        """See :meth:`TensorDict.where`. The result is a plain collection."""
        return self._param_td.where(*args, **kwargs)

    flatten_keys: Any = _unlocking(TensorDictBase.flatten_keys)
    unflatten_keys: Any = _unlocking(TensorDictBase.unflatten_keys)
    rename_key_: Any = _unlocking(TensorDictBase.rename_key_)
    popitem: Any = _unlocking(TensorDictBase.popitem)
    del_: Any = _unlocking(TensorDictBase.del_)

    def update(self, input_dict_or_td: Any = None, *args: Any, **kwargs: Any) -> Self:
        """Set the entries of a collection or mapping. They become parameters."""
        if input_dict_or_td is not self:
            input_dict_or_td = self._with_own_collections(input_dict_or_td)
        with torch.no_grad(), self._opened():
            super().update(input_dict_or_td, *args, **kwargs)
        _convert(self._param_td, bool(self.no_convert))
        return self

    def update_(self, *args: Any, **kwargs: Any) -> Self:
        """Copy the entries of a collection or mapping into the parameters."""
        with torch.no_grad():
            super().update_(*args, **kwargs)
        return self

    def _map_leaves(
        self,
        op: object,
        args: tuple[Any, ...],
        prefix: torch.Size | None,
        names: object,
        tail: int,
        lock: bool,
        k: int,
    ) -> Any:
        # A result with new shapes keeps the lock of the content, one with new values
        # not.
        lock = lock and (self._is_locked or prefix is not None)
        if op in COPIES:
            # A copy of a collection that contains this one also contains parameters.
            return self.clone()
        content = self._param_td
        return _rust.map_leaves(content, op, args, prefix, names, tail, lock, k)

    def _split_leaves(self, *args: Any) -> list[Any]:
        return _rust.split_leaves(self._param_td, *args)

    def _leaves(self, out: list[Any]) -> None:
        out.extend(_rust.leaves(self._param_td))

    def _rebuild(self, values: Iterable[Any], lock: bool) -> Any:
        # ``values`` may continue with leaves of a surrounding collection: take only as
        # many as there are leaves here.
        iterator = iter(values)
        leaves = [next(iterator) for _ in _rust.leaves(self._param_td)]
        return _rust.rebuild(self._param_td, leaves, True, lock)

    def _index(self, index: object) -> Any:
        part = self._param_td[index]
        return self if part is self._param_td else part

    @classmethod
    def _from_plain(cls, made: object, source: object = None) -> Any:
        return made

    @classmethod
    def from_dict(cls, input_dict: Any, **kwargs: Any) -> TensorDictParams:
        """See :meth:`TensorDict.from_dict`. The tensors become parameters."""
        return TensorDictParams(TensorDict.from_dict(input_dict, **kwargs))

    def from_dict_instance(
        self, input_dict: object, **kwargs: object
    ) -> TensorDictParams:
        """See :meth:`TensorDict.from_dict_instance`. The tensors are not converted."""
        result = self._like(self._param_td.from_dict_instance(input_dict, **kwargs))
        result.__dict__["no_convert"] = self.no_convert
        return result

    def _clone_structure(self) -> Self:
        return self._like(_rust.clone_structure(self._param_td))

    def replace(self, *args: object, **kwargs: object) -> Self:
        """See :meth:`TensorDict.replace`. The new entries are not converted."""
        result: Any = self._param_td.replace(*args, **kwargs)
        if result is self._param_td:
            return self
        return self._like(result)

    def split_keys(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """See :meth:`TensorDict.split_keys`. The last result holds parameters."""
        with self._opened():
            *parts, rest = super().split_keys(*args, **kwargs)
        if rest is not self:
            rest = self._like(rest)
        return (*parts, rest)

    def _dense_type(self) -> type:
        return type(self._param_td)

    def _writes_through(self) -> bool:
        return False

    # Locks ----------------------------------------------------------------------------

    def _lock_tree(self, parents: tuple[Any, ...]) -> None:
        self.__dict__["_is_locked"] = True
        if parents:
            refs = more_refs(self._lock_parents_weakrefs, parents)
            self.__dict__["_lock_parents_weakrefs"] = refs
        _rust.lock_tree(self._param_td, (*parents, weakref.ref(self)))

    def _holders(self) -> list[Any]:
        return [self, *self._param_td._holders()]

    def _containers(self, out: list[Any]) -> None:
        out.append(self)
        _rust.containers(self._param_td, out)

    def _after_unlock(self) -> None:
        """Lock the content again if it was made with ``lock=True``."""
        if self._lock_content:
            _rust.lock_tree(self._param_td)

    # Copies ---------------------------------------------------------------------------

    def clone(self, recurse: bool = True, **kwargs: object) -> Self:
        """Copy to new parameters, without autograd history; tied ones stay tied."""
        if not recurse:
            return self._clone_structure()
        return self._like(_rust.map_leaves(self._param_td, _tied(_clone_leaf)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy all tensors and hooks; tied parameters stay tied."""
        copied = _rust.map_leaves(
            self._param_td, lambda leaf: copy.deepcopy(leaf, memo)
        )
        result = type(self)(copied, no_convert=self.no_convert)
        memo[id(self)] = result
        result.__dict__["_get_post_hook"] = list(self._get_post_hook)
        for kind in (*KINDS, "_modules"):
            result.__dict__[kind] = copy.deepcopy(self.__dict__[kind], memo)
        return result

    def to(self, *args: object, **kwargs: object) -> Self:
        """Move or cast to new parameters. See :meth:`TensorDict.to`."""
        content = self._param_td
        moved: Any = content.to(*args, **kwargs)
        if moved is content:
            return self
        moved = moved._fast_apply(_as_kind_of, content, filter_empty=False)
        result = type(self)(moved, no_convert=True)
        result.__dict__["no_convert"] = self.no_convert
        if content.is_locked:
            moved.lock_()
        return result

    @property
    def data(self) -> TensorDictBase:
        """The data of the parameters, as a plain collection. It cannot be assigned."""
        return self._param_td.data

    @property
    def grad(self) -> TensorDictBase | None:
        """The gradients, as a plain collection. None if no parameter has a gradient."""
        return self._param_td.grad

    @grad.setter
    def grad(self, value: object) -> None:
        self._param_td.grad = value

    def apply_(self, fn: Callable[..., Any], *others: object, **kwargs: object) -> Self:
        """Call ``fn`` on the data of each leaf; ``fn`` may write into its argument.

        Examples:
            >>> TensorDictParams(TensorDict(a=torch.ones(2))).apply_(torch.Tensor.zero_)["a"]
            Parameter containing:
            tensor([0., 0.], requires_grad=True)
        """
        self.data.apply_(fn, *others, **kwargs)
        return self

    def zero_(self) -> Self:
        """Fill all tensors with zeros, in place."""
        with torch.no_grad():
            return super().zero_()

    def fill_(self, *args: Any, **kwargs: Any) -> Self:
        """Fill one parameter, or all in a nested collection, in place."""
        with torch.no_grad():
            return super().fill_(*args, **kwargs)

    def set_at_(self, *args: Any, **kwargs: Any) -> Self:
        """Write into a part of a parameter, in place."""
        with torch.no_grad():
            return super().set_at_(*args, **kwargs)

    def update_at_(self, *args: Any, **kwargs: Any) -> Self:
        """Write into parts of the parameters, in place."""
        with torch.no_grad():
            return super().update_at_(*args, **kwargs)

    def share_memory_(self) -> Self:
        """Move all tensors to shared memory, in place."""
        self._param_td.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Return whether the parameters are in shared memory."""
        return self._param_td.is_shared()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state, in a form that tensordict 0.15 and torch can read, too."""
        return {
            **super().__getstate__(),
            "_parameters": dict(self._parameters),
            "_buffers": dict(self._buffers),
            "_locked_tensordicts": [],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state, also one of the published tensordict 0.15."""
        state = dict(state)
        state.pop("_locked_tensordicts", None)
        registered = [state.pop(kind, None) or NOTHING for kind in KINDS]
        locked = state.pop("_is_locked", False)
        nn.Module.__init__(self)
        state["_get_post_hook"] = list(state.get("_get_post_hook") or [])
        super().__setstate__(state)
        for kind, tensors in zip(KINDS, registered, strict=True):
            self.__dict__[kind] = {
                name: tensor
                for name, tensor in tensors.items()
                if self._entry_slot(name) is None
            }
        # The published package locks the content with the collection. Here, only the
        # collection's own lock locks it.
        if locked:
            if self._param_td.is_locked and not self._lock_content:
                self._param_td.unlock_()
            self.lock_()

    # Printing -------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Return the text of the collection of parameters, inside the class name."""
        return f"{type(self).__name__}(params={self._param_td!r})"

    # The module: the attributes that torch uses, and the state dict -------------------

    @property
    def _parameters(self) -> dict[str, Any]:
        """The parameters by their dotted names, for :class:`torch.nn.Module`."""
        return self._slots("_parameters")

    @_parameters.setter
    def _parameters(self, value: object) -> None:
        """Set the parameters that were registered beside the collection's entries."""
        self.__dict__["_parameters"] = value

    @property
    def _buffers(self) -> dict[str, Any]:
        """The buffers and other tensors by their dotted names."""
        return self._slots("_buffers")

    @_buffers.setter
    def _buffers(self, value: object) -> None:
        """Set the buffers that were registered beside the collection's entries."""
        self.__dict__["_buffers"] = value

    def _slots(self, kind: str) -> dict[str, Any]:
        """Return the entries of a kind, and the tensors registered beside them."""
        are_parameters = kind == "_parameters"
        slots = _Slots(
            (name, leaf)
            for name, leaf in self._named_leaves()
            if isinstance(leaf, nn.Parameter) is are_parameters
        )
        slots.update(self.__dict__.get(kind, NOTHING))
        slots.owner, slots.kind = self, kind
        return slots

    def _entry_slot(self, name: str) -> tuple[Any, str] | None:
        """Return the nested collection and the key of the leaf with a dotted name."""
        for prefix, td in _collections(self._content(), ""):
            if name.startswith(prefix):
                key = name[len(prefix) :]
                if isinstance(td._get_entry(key, None), torch.Tensor):
                    return td, key
        return None

    def _named_leaves(self) -> Iterator[tuple[str, torch.Tensor]]:
        if "_param_td" not in self.__dict__:
            return
        for key, leaf in _rust.walk(self._param_td, 2, True, True):
            if isinstance(leaf, torch.Tensor):
                yield key if isinstance(key, str) else ".".join(key), leaf

    def _stand_ins(self) -> Iterator[tuple[str, dict[str, Any], nn.Module]]:
        """Yield a plain module with the direct tensors of each nested collection.

        torch's own code moves and loads the tensors of these modules, so that tensor
        subclasses and torch's flags work. Tensors that it replaced are then stored as
        entries.
        """
        for prefix, td in _collections(self._param_td, ""):
            entries = td._entries()
            module = nn.Module()
            for key, leaf in entries.items():
                if isinstance(leaf, nn.Parameter):
                    module._parameters[key] = leaf
                elif isinstance(leaf, torch.Tensor):
                    module._buffers[key] = leaf
            yield prefix, entries, module
            for slots in (module._parameters, module._buffers):
                for key, leaf in slots.items():
                    if leaf is not entries[key]:
                        entries[key] = leaf

    def _apply(self, fn: Callable[[torch.Tensor], Any], recurse: bool = True) -> Self:
        """Move or cast the tensors in place, on behalf of a surrounding module."""
        for _, _, module in self._stand_ins():
            module._apply(fn)
        devices = {leaf.device for _, leaf in self._named_leaves()}
        if self._param_td.device is not None and devices != {self._param_td.device}:
            _set_device(self._param_td, devices.pop() if len(devices) == 1 else None)
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        for name, leaf in self._named_leaves():
            destination[prefix + name] = leaf if keep_vars else leaf.detach()

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own_names = {prefix + name for name, _ in self._named_leaves()}
        for level, _, module in self._stand_ins():
            module._load_from_state_dict(
                state_dict, prefix + level, local_metadata, False, missing_keys, [],
                error_msgs,
            )  # fmt: skip
        if strict:
            missing_keys += [key for key in own_names if key not in state_dict]
            others = [key for key in state_dict if key.startswith(prefix)]
            unexpected_keys += [
                key for key in others if key not in own_names and not is_field(key)
            ]
        missing_keys[:] = list(OrderedDict.fromkeys(missing_keys))

    def state_dict(
        self,
        destination: Any = None,
        prefix: str = "",
        keep_vars: bool = False,
        flatten: bool = True,
    ) -> dict[str, Any]:
        """Return the leaves by dotted names, like :meth:`torch.nn.Module.state_dict`.

        Args:
            destination: the dictionary to fill. Default: a new one.
            prefix: the text before each name.
            keep_vars: whether to return the parameters themselves, which require grad.
            flatten: if false, nested collections become nested dictionaries.
        """
        if flatten:
            return nn.Module.state_dict(
                self, destination=destination, prefix=prefix, keep_vars=keep_vars
            )
        flat = nn.Module.state_dict(self, prefix=prefix, keep_vars=keep_vars)
        nested = _nested_state(self._param_td, flat, prefix)
        if destination is None:
            return nested
        destination.update(nested)
        return destination

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
        from_flatten: bool = True,
    ) -> Self:
        """Copy a state from :meth:`state_dict` into the leaves.

        Args:
            state_dict: tensors by dotted names, or in nested dictionaries.
            strict: whether a missing or unknown name is an error.
            assign: whether to store the tensors themselves instead of copying values.
            from_flatten: ignored: both forms are recognized. Other collections use it.

        Raises:
            RuntimeError: a name is missing or unknown and ``strict`` is true, or a
                shape differs.
        """
        # Entries that were tied get the same assigned tensor.
        groups = tied_places(self) if assign else []
        state = OrderedDict(_flat_state(state_dict))
        # torch attaches the versions of the saved modules to a state dict.
        state.__dict__.update(getattr(state_dict, "__dict__", {}))
        try:
            nn.Module.load_state_dict(self, state, strict=strict, assign=assign)
        except RuntimeError as error:
            error.add_note(
                MSG_LOAD.format(
                    name=type(self).__name__, keys=sorted(self.state_dict())
                )
            )
            raise
        tie_again(groups, None)
        return self

    def __getattr__(self, name: str) -> Any:
        """Return an entry by its name, if no attribute has the name."""
        content = self.__dict__.get("_param_td")
        if content is not None and not name.startswith("__"):
            value = content._get_entry(name, NO_DEFAULT)
            if is_branch(value):
                return self._part(name, value)
            if value is not NO_DEFAULT:
                return value
        return nn.Module.__getattr__(self, name)

    def _part(self, key: str, nested: object) -> Self:
        """Wrap a nested collection as the submodule that torch expects."""
        part = self._like(nested)
        state = part.__dict__
        state["no_convert"] = self.no_convert
        state["_is_locked"] = self._is_locked
        state["_place"] = (self, key)
        return part

    def _content(self) -> CollectionProtocol:
        """Return the collection of parameters; for a submodule, its present one.

        ``torch.export`` replaces a module's attributes by copies, so a submodule looks
        its collection up in the surrounding one.
        """
        place = self.__dict__.get("_place")
        if place is None:
            return self._param_td
        parent, key = place
        nested = parent._content()._get_entry(key, None)
        return nested if isinstance(nested, CollectionProtocol) else self._param_td

    def __hash__(self) -> int:
        """Hash by identity, like a module; other collections are not hashable."""
        return id(self)


def _collections(td: CollectionProtocol, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield each nested collection with its dotted prefix."""
    yield prefix, td
    for key, value in list(td._entries().items()):
        if isinstance(value, CollectionProtocol):
            yield from _collections(value, f"{prefix}{key}.")


def _set_device(td: CollectionProtocol, device: torch.device | None) -> None:
    td._device = device
    for value in list(td._entries().values()):
        if isinstance(value, CollectionProtocol):
            _set_device(value, device)


def _nested_state(
    td: CollectionProtocol, flat: Mapping[str, Any], prefix: str
) -> OrderedDict[str, Any]:
    """Return the state of ``td`` nested; non-tensor data is an empty dictionary.

    Args:
        td: the collection of the parameters.
        flat: its state by dotted names, each of which begins with ``prefix``.
        prefix: the text before the outermost names, in ``flat`` and in the result.
    """
    return OrderedDict(
        (prefix + key, value) for key, value in _nested_items(td, flat, prefix)
    )


def _nested_items(
    td: CollectionProtocol, flat: Mapping[str, Any], path: str
) -> Iterator[tuple[str, Any]]:
    for key, value in td._entries().items():
        if isinstance(value, CollectionProtocol):
            yield key, OrderedDict(_nested_items(value, flat, f"{path}{key}."))
        elif path + key in flat:
            yield key, flat[path + key]


def _flat_state(state: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield pairs of dotted name and tensor, from a flat or a nested state."""
    for key, value in state.items():
        if isinstance(value, Mapping):
            yield from _flat_state(value, f"{path}{key}.")
        else:
            yield path + key, value


TensorDictParams.__module__ = "tensordict.nn.params"


def _inside(td: CollectionProtocol) -> Any:
    return td._param_td if isinstance(td, TensorDictParams) else td


def _convert(
    td: CollectionProtocol, as_buffers: bool, seen: dict[int, Any] | None = None
) -> None:
    """Replace the leaves of a collection, locked or not, by parameters and buffers."""
    if as_stack(td) is not None:
        raise RuntimeError(MSG_LAZY)
    if seen is None:
        seen = {}
    for key, value in list(td._entries().items()):
        if isinstance(value, CollectionProtocol):
            _convert(value, as_buffers, seen)
        elif isinstance(value, torch.Tensor):
            converted = _converted(value, seen, as_buffers)
            if converted is not value:
                td._set_entry(key, converted)


def _converted(value: object, seen: dict[int, Any], as_buffers: bool) -> Any:
    """Return a tensor as a parameter or buffer, the same one for the same tensor."""
    if isinstance(value, CollectionProtocol):
        _convert(value, as_buffers, seen)
        return value
    if not isinstance(value, torch.Tensor) or isinstance(value, nn.Parameter):
        return value
    if getattr(value, "_is_buffer", False) or (as_buffers and value.requires_grad):
        # A buffer has no history, so a tensor of an autograd graph is not
        # converted.
        return value
    converted = seen.get(id(value))
    if converted is None:
        if not as_buffers and _can_be_parameter(value):
            converted = nn.Parameter(value.detach())
        elif torch._C._functorch.is_functorch_wrapped_tensor(value):
            # A buffer is detached, so a functorch transform would no longer track it.
            return value
        else:
            converted = nn.Buffer(value)
        seen[id(value)] = converted
    return converted


def _can_be_parameter(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _as_kind_of(value: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Make ``value`` a parameter or a buffer if ``old`` is one."""
    if isinstance(old, nn.Parameter):
        if isinstance(value, nn.Parameter) or not _can_be_parameter(value):
            return value
        return nn.Parameter(value.detach(), old.requires_grad)
    if getattr(old, "_is_buffer", False) and value is not old:
        return nn.Buffer(value)
    return value


def _tied(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap ``fn`` to be called once for each object; its result is reused."""
    results: dict[int, Any] = {}

    def once_per_leaf(leaf: object) -> Any:
        result = results.get(id(leaf))
        if result is None:
            result = results[id(leaf)] = fn(leaf)
        return result

    return once_per_leaf


def _clone_leaf(leaf: torch.Tensor) -> torch.Tensor:
    if isinstance(leaf, nn.Parameter):
        return nn.Parameter(leaf.data.clone(), leaf.requires_grad)
    copied = leaf.clone()
    return nn.Buffer(copied) if getattr(leaf, "_is_buffer", False) else copied
