"""The module that parameters are: what torch asks of it, and its state dict."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from tensordict import _rust
from tensordict.containers.collection import TensorDictBase
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.tied import tie_again, tied_places
from tensordict.storage.old_states import is_field

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KINDS", "NOTHING", "ParamsModule"]

MSG_LOAD = (
    "{name} takes its state under the names and in the shapes of its entries, {keys}: give "
    "these, or load what both have with strict=False."
)

NOTHING: dict[str, Any] = {}
KINDS = ("_parameters", "_buffers")


class _Slots(dict[str, Any]):
    """The parameters or buffers of a module by name, in whose places torch puts others.

    It is made when it is asked for, and what is written to it is written to the
    collection: functional calls and exports would be of the old values otherwise.
    """

    owner: Any
    kind: str

    def __setitem__(self, name: str, value: object) -> None:
        super().__setitem__(name, value)
        found = self.owner._entry_slot(name)
        if found is not None and value is not None:
            td, key = found
            # The lock guards the structure, which stays.
            td._set_entry(key, value)
        else:
            self.owner.__dict__[self.kind][name] = value

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        found = self.owner._entry_slot(name)
        if found is not None:
            td, key = found
            td.del_(key)
        else:
            del self.owner.__dict__[self.kind][name]

    def pop(self, name: str, *default: object) -> Any:
        """Take out a tensor."""
        if name not in self:
            return super().pop(name, *default)
        value = self[name]
        del self[name]
        return value


class ParamsModule(TensorDictBase, nn.Module):
    """The side of :class:`TensorDictParams` that is a module."""

    _param_td: Any
    """The collection of the parameters."""

    no_convert: bool | str

    if TYPE_CHECKING:

        def _like(self, members: object) -> Self: ...

    @property
    def _parameters(self) -> dict[str, Any]:
        """The parameters by their dotted names, as :class:`torch.nn.Module` asks for."""
        return self._slots("_parameters")

    @_parameters.setter
    def _parameters(self, value: object) -> None:
        """Return what is registered in this as in any module, beside the collection."""
        self.__dict__["_parameters"] = value

    @property
    def _buffers(self) -> dict[str, Any]:
        """All other tensors by their dotted names."""
        return self._slots("_buffers")

    @_buffers.setter
    def _buffers(self, value: object) -> None:
        """See ``_parameters``."""
        self.__dict__["_buffers"] = value

    def _slots(self, kind: str) -> dict[str, Any]:
        """The entries of a kind, and what was registered beside them."""
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
        """The nested collection and the key of a leaf with a dotted name."""
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
        """Per nested collection a plain module with its direct tensors.

        torch's own code moves and loads those, with all that subclasses of tensors and
        future flags ask of it. The entries that it replaced are taken back afterwards.
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
        """Move or cast the tensors in place, as a module that holds this one asks."""
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
        known = {prefix + name for name, _ in self._named_leaves()}
        for level, _, module in self._stand_ins():
            module._load_from_state_dict(
                state_dict, prefix + level, local_metadata, False, missing_keys, [],
                error_msgs,
            )  # fmt: skip
        if strict:
            missing_keys += [key for key in known if key not in state_dict]
            others = [key for key in state_dict if key.startswith(prefix)]
            unexpected_keys += [
                key for key in others if key not in known and not is_field(key)
            ]
        missing_keys[:] = list(OrderedDict.fromkeys(missing_keys))

    def state_dict(
        self,
        destination: Any = None,
        prefix: str = "",
        keep_vars: bool = False,
        flatten: bool = True,
    ) -> dict[str, Any]:
        """The leaves by their dotted names, as :meth:`torch.nn.Module.state_dict`.

        Args:
            destination: the dictionary to fill. Default: a new one.
            prefix: what comes before each name.
            keep_vars: give the parameters themselves, which require grad.
            flatten: otherwise nested collections are dictionaries in the dictionary.
        """
        if flatten:
            return nn.Module.state_dict(
                self, destination=destination, prefix=prefix, keep_vars=keep_vars
            )
        flat = nn.Module.state_dict(self, prefix=prefix, keep_vars=keep_vars)
        found = _nested_state(self._param_td, flat, prefix)
        if destination is None:
            return found
        destination.update(found)
        return destination

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
        from_flatten: bool = True,
    ) -> Self:
        """Copy what :meth:`state_dict` gave into the leaves.

        Args:
            state_dict: tensors by their dotted names, or in nested dictionaries.
            strict: whether a missing or unknown name is an error.
            assign: take the tensors themselves in place of copying their values.
            from_flatten: accepted for other collections' sake: both forms are known.
        """
        # Assigned tensors are one where the entries were.
        groups = tied_places(self) if assign else []
        state = OrderedDict(_flat_state(state_dict))
        # The versions of the modules that it came from.
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
        """An entry by its name, where no attribute is called so."""
        inner = self.__dict__.get("_param_td")
        if inner is not None and not name.startswith("__"):
            value = inner._get_entry(name, NO_DEFAULT)
            if isinstance(value, CollectionProtocol) and not value._is_non_tensor:
                return self._part(name, value)
            if value is not NO_DEFAULT:
                return value
        return nn.Module.__getattr__(self, name)

    def _part(self, key: str, nested: object) -> Self:
        """A nested collection as the submodule that torch takes it for."""
        part = self._like(nested)
        state = part.__dict__
        state["no_convert"] = self.no_convert
        state["_is_locked"] = self._is_locked
        state["_place"] = (self, key)
        return part

    def _content(self) -> Any:
        """The collection inside; of a part, what is at its place now.

        ``torch.export`` puts copies of a module's attributes in their place.
        """
        place = self.__dict__.get("_place")
        if place is None:
            return self._param_td
        whole, key = place
        found = whole._content()._get_entry(key, None)
        return found if isinstance(found, CollectionProtocol) else self._param_td

    def __hash__(self) -> int:
        """By identity, as a module; other collections have no hash."""
        return id(self)


def _collections(td: CollectionProtocol, prefix: str) -> Iterator[tuple[str, Any]]:
    """Each nested container, with the dotted name that leads to it."""
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
    """The state of ``td`` with a dictionary for each collection, of values an empty one.

    Args:
        td: the collection of the parameters.
        flat: its state by dotted names, each of which begins with ``prefix``.
        prefix: what the names of the outermost entries begin with in the result, too.
    """
    return OrderedDict((prefix + key, value) for key, value in _level(td, flat, prefix))


def _level(
    td: CollectionProtocol, flat: Mapping[str, Any], path: str
) -> Iterator[tuple[str, Any]]:
    for key, value in td._entries().items():
        if isinstance(value, CollectionProtocol):
            held = () if value._is_non_tensor else _level(value, flat, f"{path}{key}.")
            yield key, OrderedDict(held)
        elif path + key in flat:
            yield key, flat[path + key]


def _flat_state(state: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The pairs of dotted name and tensor of a state in either form."""
    for key, value in state.items():
        if isinstance(value, Mapping):
            yield from _flat_state(value, f"{path}{key}.")
        else:
            yield path + key, value
