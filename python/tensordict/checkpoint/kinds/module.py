"""The kind of modules: save their tensors by name, and fill them in place."""

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
    "values for them. Give them memory first, as with module.to_empty(device=...). Nothing "
    "was changed."
)


class ModuleKind(Kind):
    """A kind that saves the state of a module under its plain names."""

    name = "module"
    is_shared = True

    def matches(self, item: object) -> bool:
        """Return whether an item is a module."""
        return isinstance(item, nn.Module)

    def describe(self, item: Item, saving: Saving) -> dict[str, Any]:
        """Collect the tensors under plain names, and describe the rest of the state."""
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
        self, item: Item, name: str, metadata: Mapping[str, Any], restoring: Restoring
    ) -> None:
        """Compare names and shapes, and register reads into the module's tensors."""
        refuse_flat_module(name, item)
        filling = _Filling(item, name, metadata, restoring)
        if filling.is_plain():
            filling.fill()
        else:
            filling.load_by_torch()

    def load(
        self, metadata: Mapping[str, Any], decoder: Decoder
    ) -> OrderedDict[str, Any]:
        """Return the state as it was saved."""
        return saved_state(metadata, decoder)

    def merged(self, item: str, metadata_by_rank: Mapping[int, Any]) -> dict[str, Any]:
        """Return the union of the names of all ranks."""
        union: dict[str, Any] = {**metadata_by_rank[min(metadata_by_rank)]}
        union["names"] = list(
            dict.fromkeys(
                name
                for metadata in metadata_by_rank.values()
                for name in metadata["names"]
            )
        )
        for field in ("tied", "values"):
            joined: dict[str, Any] = {}
            for metadata in metadata_by_rank.values():
                joined = {**metadata.get(field, {}), **joined}
            if joined:
                union[field] = joined
        frozen = {
            name
            for metadata in metadata_by_rank.values()
            for name in metadata.get("frozen", ())
        }
        if frozen:
            union["frozen"] = sorted(frozen - set(union["names"]))
        return union


def _config_of(module: object) -> list[tuple[str, bytes]]:
    """Return the ``config.json`` of a ``transformers`` model."""
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
    """Collect the tensors of a module's state, and describe the state.

    Args:
        state: the state.
        encoder: the encoder that collects the tensors.
        frozen: the names to leave out.
        bare: the names under which tensors are saved, by the names of the state.
        tied_to: the first name of tied tensors, by their other names.
    """
    tied: dict[str, str] = {}
    values: dict[str, Any] = {}
    renamed, firsts = bare or {}, tied_to or {}
    for key, value in state.items():
        if key in frozen:
            continue
        name, first = renamed.get(key, key), firsts.get(key)
        if first is not None and is_sharded(value):
            # Addresses do not show that these are tied, since a rank may have an empty
            # shard.
            saved_first = values.get(renamed.get(first, first))
            if saved_first is not None:
                values[name] = saved_first
                continue
        is_plain = isinstance(value, torch.Tensor) and not is_sharded(value)
        if is_plain and special.is_strided(value):
            fields = encoder.take(value.detach(), name)
            if "dtype" in fields:
                values[name] = {"$": "tensor", **fields}
            elif fields["name"] != name:
                tied[name] = fields["name"]
            continue
        # Extra state, and other values that are not tensors.
        values[name] = encoder.encode(value, (name,))
    metadata: dict[str, Any] = {
        "kind": "module",
        "names": [renamed.get(name, name) for name in state if name not in frozen],
    }
    if tied:
        metadata["tied"] = tied
    if values:
        metadata["values"] = values
    if frozen:
        left_out = frozen & state.keys()
        metadata["frozen"] = sorted(renamed.get(name, name) for name in left_out)
    versions = getattr(state, "_metadata", None)
    if versions:
        metadata["versions"] = encoder.encode(dict(versions), ("_metadata",))
    return metadata


def _tied(module: nn.Module) -> dict[str, str]:
    """Return the first name of tied parameters and buffers, by their other names."""
    first: dict[int, str] = {}
    first_names = {}
    named = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    for name, value in named:
        first_name = first.setdefault(id(value), name)
        if first_name != name:
            first_names[name] = first_name
    return first_names


def saved_state(metadata: Mapping[str, Any], decoder: Decoder) -> OrderedDict[str, Any]:
    """Return the state of a module as it was saved, with tied tensors under all names."""
    tied, values = metadata.get("tied", {}), metadata.get("values", {})
    state: OrderedDict[str, Any] = OrderedDict()
    for name in metadata["names"]:
        if name in values:
            state[name] = decoder.decode(values[name])
        else:
            state[name] = decoder.named(tied.get(name, name))
    if "versions" in metadata:
        state._metadata = OrderedDict(decoder.decode(metadata["versions"]))  # type: ignore[attr-defined]
    return state


# Restoring ----------------------------------------------------------------------------


class Mismatch:
    """The differences between a model and the checkpoint, in both directions."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.wrong: list[str] = []

    def refuse(self, item: str, restoring: Restoring) -> None:
        """Raise an error about the differences that are not allowed.

        Raises:
            RuntimeError: shapes differ, or the restore is strict and names differ.
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
    """The restore of one module.

    Args:
        module: the module.
        item: the name of the item.
        metadata: the description of the item.
        restoring: the restore to which it belongs.
    """

    def __init__(
        self,
        module: nn.Module,
        item: str,
        metadata: Mapping[str, Any],
        restoring: Restoring,
    ) -> None:
        self.module = module
        self.item = item
        self.metadata = metadata
        self.restoring = restoring
        self.files: ItemFiles = restoring.files_of(item, metadata)
        self.is_known: bool = _is_plain(module)
        # The parameters themselves, unless the module overrides how its state is built.
        self.own: dict[str, Any] = (
            module.state_dict(keep_vars=True) if self.is_known else module.state_dict()
        )
        self.bare: dict[str, str] = bare_names(module, self.own)
        own_names = set(self.bare.values())
        saved_names = [*metadata["names"], *metadata.get("frozen", ())]
        # The names in the checkpoint, by the names in the bare model.
        self.saved: dict[str, str] = {
            bare: name
            for name, bare in bare_wrapper_names(saved_names, own_names).items()
        }
        frozen = set(metadata.get("frozen", ()))
        self.frozen: set[str] = {
            bare for bare, name in self.saved.items() if name in frozen
        }
        for bare in self.frozen:
            del self.saved[bare]

    def is_plain(self) -> bool:
        """Return whether loading the module only copies tensors."""
        values = self.metadata.get("values", {}).values()
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
        """Return the saved dense tensor with a name; None for another value."""
        name = self.saved[bare]
        value = self.metadata.get("values", {}).get(name)
        if value is None:
            return self.files.stored(self.metadata.get("tied", {}).get(name, name))
        if isinstance(value, dict) and value.get("$") in ("tensor", "sharded"):
            return self.files.of_fields(value)
        return None

    def _compare(self) -> dict[str, Stored]:
        """Compare names and shapes; return the saved tensors by the names of the module."""
        mismatch = Mismatch()
        name_of = {bare: name for name, bare in self.bare.items()}
        mismatch.missing = [
            bare
            for bare in name_of
            if bare not in self.saved and bare not in self.frozen
        ]
        mismatch.unexpected = [bare for bare in self.saved if bare not in name_of]
        stored: dict[str, Stored] = {}
        for bare, name in name_of.items():
            if bare not in self.saved:
                continue
            saved_tensor = self._stored(bare)
            value = self.own[name]
            if saved_tensor is None or not isinstance(value, torch.Tensor):
                continue
            stored[name] = saved_tensor
            is_lazy = nn.parameter.is_lazy(value)
            if not is_lazy and list(value.shape) != list(saved_tensor.shape):
                mismatch.wrong.append(
                    f"size mismatch for {bare!r}: the model has {list(value.shape)} and "
                    f"the checkpoint {list(saved_tensor.shape)}"
                )
        restoring = self.restoring
        mismatch.refuse(self.item, restoring)
        restoring.missing += [f"{self.item}.{name}" for name in mismatch.missing]
        if not restoring.strict:
            restoring.unexpected += [
                f"{self.item}.{name}" for name in mismatch.unexpected
            ]
        return stored

    def fill(self) -> None:
        """Register reads into the tensors of a plain module; create those on ``meta``."""
        stored = self._compare()
        self._refuse_meta(stored)
        replacements: list[tuple[torch.Tensor, torch.Tensor]] = []
        # Tied tensors are read once.
        read: set[tuple[int, str]] = set()
        for name, saved_tensor in stored.items():
            tensor = self.own[name]
            if (id(tensor), saved_tensor.name) in read:
                continue
            read.add((id(tensor), saved_tensor.name))
            if tensor.is_meta:
                if all(tensor is not other for other, _ in replacements):
                    replacements.append(
                        (tensor, self._new_tensor(tensor, saved_tensor))
                    )
                continue
            self.restoring.read_into(saved_tensor, tensor)
        if replacements:
            # Swap first: optimizers take the devices of their parameters.
            swap = partial(self._swap, replacements)
            self.restoring.add(swap, swap, is_first=True)

    def _new_tensor(self, meta_tensor: torch.Tensor, stored: Stored) -> torch.Tensor:
        """Return a tensor that replaces one on ``meta``, with this rank's part only."""
        device = self.restoring.device
        value = self.restoring.tensor(stored, meta_tensor, device, meta_tensor.dtype)
        if isinstance(meta_tensor, nn.Parameter):
            return nn.Parameter(value, requires_grad=meta_tensor.requires_grad)
        return value

    def _swap(self, replacements: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Swap ``meta`` tensors with their replacements, or back; their identities stay.

        Optimizers, and other modules that share a parameter, keep using the same
        object.
        """
        for tensor, value in replacements:
            torch.utils.swap_tensors(tensor, value)
        for submodule in self.module.modules():
            for hook in submodule._load_state_dict_post_hooks.values():
                # FSDP keeps a view of each parameter, whose tensor has changed.
                hook(submodule, None)

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
        """Load a module with its own method, which may rename and convert values."""
        module, restoring = self.module, self.restoring
        name_of = {bare: name for name, bare in self.bare.items()}
        likes = {
            self.saved[bare]: self.own[name_of[bare]]
            for bare in self.saved
            if bare in name_of
        }
        state = restoring.value(self.item, self.metadata, like=likes)
        for bare, name in self.saved.items():
            key = name_of.get(bare, bare)
            if key != name:
                state[key] = state.pop(name)
        for bare in self.frozen:
            if bare in name_of:
                state[name_of[bare]] = self.own[name_of[bare]]
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
                restoring.missing += [f"{item}.{key}" for key in result.missing_keys]
                restoring.unexpected += [
                    f"{item}.{key}" for key in result.unexpected_keys
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
    """Return whether loading this module only copies its tensors."""
    if type(module).load_state_dict is not nn.Module.load_state_dict:
        return False
    for submodule in module.modules():
        cls = type(submodule)
        if (
            cls._load_from_state_dict not in _PLAIN_LOADERS
            or cls.set_extra_state is not nn.Module.set_extra_state
            or cls.state_dict is not nn.Module.state_dict
            or submodule._state_dict_pre_hooks
            or not all(map(_is_of_wrapper, _hooks_of(submodule)))
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
"""Modules of torch whose hooks only record new parameters or remove name prefixes."""


def _is_of_wrapper(hook: object) -> bool:
    """Return whether a hook changes no values, as in ``fully_shard``."""
    called = getattr(hook, "hook", hook)
    return str(getattr(called, "__module__", "")).startswith(_WRAPPERS)


def _copied(state: Mapping[str, Any]) -> Mapping[str, Any]:
    copied = copy.copy(state)
    for name, value in state.items():
        is_tensor = isinstance(value, torch.Tensor)
        copied[name] = value.clone() if is_tensor else copy.deepcopy(value)  # type: ignore[index]
    return copied
