"""Modules: their tensors by name, which are tied, and filling them again in their place."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensordict.checkpoint.kinds.flat_parameters import refuse_flat_module
from tensordict.checkpoint.kinds.interface import Kind, Saving
from tensordict.checkpoint.names import bare_names, bare_wrapper_names
from tensordict.primitives import special
from tensordict.storage.sharded import is_sharded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from tensordict.checkpoint.files import ItemFiles
    from tensordict.checkpoint.kinds.interface import Item
    from tensordict.checkpoint.ranges import Stored
    from tensordict.checkpoint.restoring import Restoring
    from tensordict.storage.encoding import Decoder, Encoder

__all__ = ["ModuleKind", "describe_state", "saved_state"]

MSG_MODULE = "Cannot restore {item}: the model and the checkpoint differ, and neither was changed.{lines}"
MSG_META = (
    "Cannot restore {item!r}: {names} would stay on meta, since the checkpoint has no "
    "values for them. Give them some first, as with module.to_empty(device=...). Nothing "
    "was changed."
)


class ModuleKind(Kind):
    """Saves the state of a module under its plain names."""

    name = "module"
    is_shared = True

    def matches(self, item: object) -> bool:
        """Return whether an item is a module."""
        return isinstance(item, nn.Module)

    def describe(self, item: Item, saving: Saving) -> dict[str, Any]:
        """Take the tensors under their plain names, and say the rest of the state."""
        refuse_flat_module(saving.name, item)
        frozen: set[str] = set()
        if saving.trainable_only:
            frozen = {
                name
                for name, parameter in item.named_parameters(remove_duplicate=False)
                if not parameter.requires_grad
            }
        if saving.name == "model":
            saving.files += _config_of(item)
        state = item.state_dict()
        names = bare_names(item, state)
        buffers = (name for name, _ in item.named_buffers(remove_duplicate=False))
        saving.buffers = frozenset(names.get(name, name) for name in buffers)
        return describe_state(state, saving.encoder, frozen, names, _tied(item))

    def prepare(
        self, item: Item, name: str, about: Mapping[str, Any], restoring: Restoring
    ) -> None:
        """Compare names and shapes, and have the tensors read into their place."""
        refuse_flat_module(name, item)
        filling = _Filling(item, name, about, restoring)
        if filling.is_plain():
            filling.fill()
        else:
            filling.load_by_torch()

    def load(self, about: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the state as it was saved."""
        return saved_state(about, decoder)

    def merged(self, item: str, abouts: Mapping[int, Any]) -> dict[str, Any]:
        """Return the union of the names of all ranks."""
        found: dict[str, Any] = {**abouts[min(abouts)]}
        found["names"] = list(
            dict.fromkeys(name for about in abouts.values() for name in about["names"])
        )
        for field in ("tied", "values"):
            joined: dict[str, Any] = {}
            for about in abouts.values():
                joined = {**about.get(field, {}), **joined}
            if joined:
                found[field] = joined
        frozen = {name for about in abouts.values() for name in about.get("frozen", ())}
        if frozen:
            found["frozen"] = sorted(frozen - set(found["names"]))
        return found


def _config_of(module: object) -> list[tuple[str, bytes]]:
    """The configuration without which ``transformers`` does not open a folder."""
    write = getattr(getattr(module, "config", None), "to_json_string", None)
    if not hasattr(module, "save_pretrained") or write is None:
        return []
    text: str = write()
    return [("config.json", text.encode())]


def describe_state(
    state: Mapping[str, Any],
    encoder: Encoder,
    frozen: AbstractSet[str] = frozenset(),
    bare: Mapping[str, str] | None = None,
    tied_to: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Take the tensors of the state of a module, but for those that are frozen.

    Args:
        state: the state.
        encoder: takes the tensors.
        frozen: the names that are left out.
        bare: the names under which they are saved, by those of the state.
        tied_to: the first name of tensors that have several, by the others.
    """
    tied: dict[str, str] = {}
    values: dict[str, Any] = {}
    renamed, firsts = bare or {}, tied_to or {}
    for key, value in state.items():
        if key in frozen:
            continue
        name, first = renamed.get(key, key), firsts.get(key)
        if first is not None and is_sharded(value):
            # Memory does not tell it: ranks may have an empty part.
            known = values.get(renamed.get(first, first))
            if known is not None:
                values[name] = known
                continue
        is_plain = isinstance(value, torch.Tensor) and not is_sharded(value)
        if is_plain and special.is_strided(value):
            fields = encoder.take(value.detach(), name)
            if "dtype" in fields:
                values[name] = {"$": "tensor", **fields}
            elif fields["name"] != name:
                tied[name] = fields["name"]
            continue
        # Extra state, and what else a module has there.
        values[name] = encoder.encode(value, (name,))
    about: dict[str, Any] = {
        "kind": "module",
        "names": [renamed.get(name, name) for name in state if name not in frozen],
    }
    if tied:
        about["tied"] = tied
    if values:
        about["values"] = values
    if frozen:
        left_out = frozen & state.keys()
        about["frozen"] = sorted(renamed.get(name, name) for name in left_out)
    metadata = getattr(state, "_metadata", None)
    if metadata:
        about["versions"] = encoder.encode(dict(metadata), ("_metadata",))
    return about


def _tied(module: nn.Module) -> dict[str, str]:
    """The first name of parameters and buffers that have several, by the others."""
    first: dict[int, str] = {}
    found = {}
    named = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    for name, value in named:
        known = first.setdefault(id(value), name)
        if known != name:
            found[name] = known
    return found


def saved_state(about: Mapping[str, Any], decoder: Decoder) -> OrderedDict[str, Any]:
    """The state of a module as it was saved, with tied tensors under all of their names."""
    tied, values = about.get("tied", {}), about.get("values", {})
    state: OrderedDict[str, Any] = OrderedDict()
    for name in about["names"]:
        if name in values:
            state[name] = decoder.decode(values[name])
        else:
            state[name] = decoder.named(tied.get(name, name))
    if "versions" in about:
        state._metadata = OrderedDict(decoder.decode(about["versions"]))  # type: ignore[attr-defined]
    return state


# Restoring ----------------------------------------------------------------------------


class Mismatch:
    """The differences between a model and the checkpoint, in both directions."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.wrong: list[str] = []

    def refuse(self, item: str, restoring: Restoring) -> None:
        """Raise what is refused.

        Raises:
            RuntimeError: shapes differ; or names, where that is strict.
        """
        strict = restoring.strict
        lines = list(self.wrong)
        if strict and self.missing:
            lines.append(f"missing in the checkpoint: {_shown(self.missing)}")

        def error(unexpected: list[str]) -> RuntimeError:
            if strict and unexpected:
                lines.append(f"unexpected in the checkpoint: {_shown(unexpected)}")
            joined = "".join(f"\n  {line}" for line in lines)
            return RuntimeError(MSG_MODULE.format(item=repr(item), lines=joined))

        if lines:
            raise error(self.unexpected)
        if strict:
            restoring.note_unexpected(item, self.unexpected, error)


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(repr(name) for name in names[:20]) + more


class _Filling:
    """The restoring of one module.

    Args:
        module: the module.
        item: its name.
        about: what the checkpoint says of it.
        restoring: the restore that it is part of.
    """

    def __init__(
        self,
        module: nn.Module,
        item: str,
        about: Mapping[str, Any],
        restoring: Restoring,
    ) -> None:
        self.module = module
        self.item = item
        self.about = about
        self.restoring = restoring
        self.files: ItemFiles = restoring.files_of(item, about)
        self.is_known: bool = _is_plain(module)
        # The parameters themselves, where no method of the module's own gives the state.
        self.own: dict[str, Any] = (
            module.state_dict(keep_vars=True) if self.is_known else module.state_dict()
        )
        self.bare: dict[str, str] = bare_names(module, self.own)
        own_names = set(self.bare.values())
        known = [*about["names"], *about.get("frozen", ())]
        # The names of the checkpoint, by those of the bare model.
        self.saved: dict[str, str] = {
            bare: name for name, bare in bare_wrapper_names(known, own_names).items()
        }
        frozen = set(about.get("frozen", ()))
        self.frozen: set[str] = {
            bare for bare, name in self.saved.items() if name in frozen
        }
        for bare in self.frozen:
            del self.saved[bare]

    def is_plain(self) -> bool:
        """Return whether loading is copying tensors, and nothing else."""
        values = self.about.get("values", {}).values()
        return (
            self.is_known
            and all(
                isinstance(value, dict) and value.get("$") in ("tensor", "sharded")
                for value in values
            )
            and all(
                isinstance(value, torch.Tensor)
                and (is_sharded(value) or special.is_strided(value))
                for value in self.own.values()
            )
        )

    def _stored(self, bare: str) -> Stored | None:
        """Return the tensor of the checkpoint under a name; None where it is no dense one."""
        name = self.saved[bare]
        value = self.about.get("values", {}).get(name)
        if value is None:
            return self.files.stored(self.about.get("tied", {}).get(name, name))
        if isinstance(value, dict) and value.get("$") in ("tensor", "sharded"):
            return self.files.of_fields(value)
        return None

    def _compare(self) -> dict[str, Stored]:
        """Compare names and shapes; what is stored, by the names of the module."""
        found = Mismatch()
        own = {bare: name for name, bare in self.bare.items()}
        found.missing = [
            bare for bare in own if bare not in self.saved and bare not in self.frozen
        ]
        found.unexpected = [bare for bare in self.saved if bare not in own]
        stored: dict[str, Stored] = {}
        for bare, name in own.items():
            if bare not in self.saved:
                continue
            each = self._stored(bare)
            value = self.own[name]
            if each is None or not isinstance(value, torch.Tensor):
                continue
            stored[name] = each
            is_lazy = nn.parameter.is_lazy(value)
            if not is_lazy and list(value.shape) != list(each.shape):
                found.wrong.append(
                    f"size mismatch for {bare!r}: the model has {list(value.shape)} and "
                    f"the checkpoint {list(each.shape)}"
                )
        restoring = self.restoring
        found.refuse(self.item, restoring)
        restoring.missing += [f"{self.item}.{each}" for each in found.missing]
        if not restoring.strict:
            restoring.unexpected += [f"{self.item}.{each}" for each in found.unexpected]
        return stored

    def fill(self) -> None:
        """Have the tensors of a plain module read into their memory, or made."""
        stored = self._compare()
        self._refuse_meta(stored)
        made: list[tuple[torch.Tensor, torch.Tensor]] = []
        # Tied tensors are read once.
        read: set[tuple[int, str]] = set()
        for name, each in stored.items():
            own = self.own[name]
            if (id(own), each.name) in read:
                continue
            read.add((id(own), each.name))
            if own.is_meta:
                if all(own is not other for other, _ in made):
                    made.append((own, self._made(own, each)))
                continue
            self.restoring.read_into(each, own)
        if made:
            # States of optimizers go to the devices of parameters, which come first.
            swap = partial(self._swap, made)
            self.restoring.add(swap, swap, is_first=True)

    def _made(self, own: torch.Tensor, each: Stored) -> torch.Tensor:
        """The tensor that takes the place of one on ``meta``: only this rank's part."""
        device = self.restoring.device
        value = self.restoring.tensor(each, own, device, own.dtype)
        if isinstance(own, nn.Parameter):
            return nn.Parameter(value, requires_grad=own.requires_grad)
        return value

    def _swap(self, made: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Give tensors on ``meta`` their values, or take them; they stay the same objects.

        Optimizers, and other modules that share a parameter, go on with it.
        """
        for own, value in made:
            torch.utils.swap_tensors(own, value)
        for each in self.module.modules():
            for hook in each._load_state_dict_post_hooks.values():
                # FSDP keeps a view of each parameter, which now is another.
                hook(each, None)

    def _refuse_meta(self, filled: Iterable[str]) -> None:
        names = set(filled)
        tensors = [
            *self.module.named_parameters(remove_duplicate=False),
            *self.module.named_buffers(remove_duplicate=False),
        ]
        filled_tensors = {id(self.own[name]) for name in names}
        left = [
            name
            for name, tensor in tensors
            if tensor.is_meta and id(tensor) not in filled_tensors
        ]
        if left and self.restoring.strict:
            raise RuntimeError(MSG_META.format(item=self.item, names=_shown(left)))

    def load_by_torch(self) -> None:
        """Load a module with its own way, which may rename and convert what it gets."""
        module, restoring = self.module, self.restoring
        own_of = {bare: name for name, bare in self.bare.items()}
        likes = {
            self.saved[bare]: self.own[own_of[bare]]
            for bare in self.saved
            if bare in own_of
        }
        state = restoring.value(self.item, self.about, like=likes)
        for bare, name in self.saved.items():
            key = own_of.get(bare, bare)
            if key != name:
                state[key] = state.pop(name)
        for bare in self.frozen:
            if bare in own_of:
                state[own_of[bare]] = self.own[own_of[bare]]
        takes_strict = "strict" in inspect.signature(module.load_state_dict).parameters
        has_meta = any(
            isinstance(value, torch.Tensor) and value.is_meta
            for value in self.own.values()
        )
        before = None if has_meta else _copied(module.state_dict())
        item, strict = self.item, restoring.strict

        def load() -> None:
            options: dict[str, Any] = {"strict": strict} if takes_strict else {}
            if has_meta:
                options["assign"] = True
            result = module.load_state_dict(state, **options)
            if not strict and result is not None:
                restoring.missing += [f"{item}.{each}" for each in result.missing_keys]
                restoring.unexpected += [
                    f"{item}.{each}" for each in result.unexpected_keys
                ]

        def undo() -> None:
            if before is not None:
                module.load_state_dict(before)

        restoring.add(load, undo)


_PLAIN_LOADERS = {
    nn.Module._load_from_state_dict,
    nn.modules.batchnorm._NormBase._load_from_state_dict,
}


def _is_plain(module: nn.Module) -> bool:
    """Return whether loading this module is copying its tensors, and nothing else."""
    if type(module).load_state_dict is not nn.Module.load_state_dict:
        return False
    for each in module.modules():
        cls = type(each)
        if (
            cls._load_from_state_dict not in _PLAIN_LOADERS
            or cls.set_extra_state is not nn.Module.set_extra_state
            or cls.state_dict is not nn.Module.state_dict
            or each._state_dict_pre_hooks
            or not all(map(_is_of_wrapper, _hooks_of(each)))
        ):
            return False
    return True


def _hooks_of(module: nn.Module) -> Iterator[Any]:
    yield from module._load_state_dict_pre_hooks.values()
    yield from module._load_state_dict_post_hooks.values()
    yield from module._state_dict_hooks.values()


_WRAPPERS = (
    "torch.distributed.fsdp._fully_shard",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
)
"""Modules of torch whose hooks note new parameters, or take a prefix of names away."""


def _is_of_wrapper(hook: object) -> bool:
    """Return whether a hook changes no values: of ``fully_shard``, of activation checkpoints."""
    called = getattr(hook, "hook", hook)
    return str(getattr(called, "__module__", "")).startswith(_WRAPPERS)


def _copied(state: Mapping[str, Any]) -> Any:
    copied = copy.copy(state)
    for name, value in state.items():
        is_tensor = isinstance(value, torch.Tensor)
        copied[name] = value.clone() if is_tensor else copy.deepcopy(value)  # type: ignore[index]
    return copied
