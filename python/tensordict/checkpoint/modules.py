"""Modules: their tensors by name, which are tied, and filling them again in their place."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensordict.storage.sharded import is_sharded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from tensordict.storage.encoding import Decoder, Encoder

__all__ = [
    "Mismatch",
    "check_module",
    "describe_module",
    "describe_state",
    "fill_module",
    "module_state",
]

MSG_MODULE = "Cannot restore {item}: the model and the checkpoint differ, and neither was changed.{}"


class Mismatch:
    """The differences between a model and the checkpoint, in both directions."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.wrong: list[str] = []

    def text(self, item: str, *, strict: bool) -> str | None:
        """Describe what is refused; return None if nothing is."""
        lines = list(self.wrong)
        if strict and self.missing:
            lines.append(f"missing in the checkpoint: {_shown(self.missing)}")
        if strict and self.unexpected:
            lines.append(f"unexpected in the checkpoint: {_shown(self.unexpected)}")
        if not lines:
            return None
        joined = "".join(f"\n  {line}" for line in lines)
        return MSG_MODULE.format(joined, item=repr(item))


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(repr(name) for name in names[:20]) + more


def module_state(module: nn.Module) -> dict[str, Any]:
    """The state of a module by name, without gradients."""
    state: dict[str, Any] = module.state_dict()
    return state


def describe_module(
    module: nn.Module, encoder: Encoder, *, trainable_only: bool
) -> dict[str, Any]:
    """Take the tensors of a module under their plain names, and say the rest of it."""
    frozen: set[str] = set()
    if trainable_only:
        frozen = {
            name
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if not parameter.requires_grad
        }
    return describe_state(module_state(module), encoder, frozen)


def describe_state(
    state: Mapping[str, Any], encoder: Encoder, frozen: AbstractSet[str] = frozenset()
) -> dict[str, Any]:
    """Take the tensors of the state of a module, but for those that are frozen."""
    tied: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, value in state.items():
        if name in frozen:
            continue
        is_plain = isinstance(value, torch.Tensor) and not is_sharded(value)
        if is_plain and _is_dense(value):
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
        "names": [name for name in state if name not in frozen],
    }
    if tied:
        about["tied"] = tied
    if values:
        about["values"] = values
    if frozen:
        about["frozen"] = sorted(frozen & state.keys())
    metadata = getattr(state, "_metadata", None)
    if metadata:
        about["versions"] = encoder.encode(dict(metadata), ("_metadata",))
    return about


def _is_dense(value: torch.Tensor) -> bool:
    return (
        value.layout == torch.strided and not value.is_nested and not value.is_quantized
    )


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


def check_module(
    module: nn.Module, about: Mapping[str, Any], saved: Mapping[str, Any]
) -> Mismatch:
    """Compare the names and shapes of a module with those of a checkpoint.

    Args:
        module: the module, which is not changed.
        about: what the checkpoint says of it.
        saved: the tensors of the checkpoint, or what stands for their shapes, by name.
    """
    found = Mismatch()
    own = module_state(module)
    frozen = set(about.get("frozen", ()))
    found.missing = [name for name in own if name not in saved and name not in frozen]
    found.unexpected = [name for name in saved if name not in own]
    for name, value in own.items():
        other = saved.get(name)
        if (
            isinstance(value, torch.Tensor)
            and isinstance(other, torch.Tensor)
            and value.shape != other.shape
        ):
            found.wrong.append(
                f"size mismatch for {name!r}: the model has {list(value.shape)} and the "
                f"checkpoint {list(other.shape)}"
            )
    return found


_PLAIN_LOADERS = {
    nn.Module._load_from_state_dict,
    nn.modules.batchnorm._NormBase._load_from_state_dict,
}


def is_plain(module: nn.Module) -> bool:
    """Return whether loading this module is copying its tensors, and nothing else."""
    if type(module).load_state_dict is not nn.Module.load_state_dict:
        return False
    for each in module.modules():
        cls = type(each)
        if (
            cls._load_from_state_dict not in _PLAIN_LOADERS
            or cls.set_extra_state is not nn.Module.set_extra_state
            or cls.state_dict is not nn.Module.state_dict
            or each._load_state_dict_pre_hooks
            or each._load_state_dict_post_hooks
            or each._state_dict_hooks
            or each._state_dict_pre_hooks
        ):
            return False
    return True


def places_of(
    module: nn.Module, names: Iterable[str]
) -> dict[str, tuple[nn.Module, str, torch.Tensor]]:
    """The module, the attribute and the tensor of each name of a plain module."""
    wanted = set(names)
    found: dict[str, tuple[nn.Module, str, torch.Tensor]] = {}
    for prefix, each in module.named_modules(remove_duplicate=False):
        start = f"{prefix}." if prefix else ""
        for entries in (each._parameters, each._buffers):
            for name, value in list(entries.items()):
                if value is not None and start + name in wanted:
                    found[start + name] = each, name, value
    return found


def fill_module(
    module: nn.Module, state: Mapping[str, Any], *, device: torch.device | None
) -> None:
    """Give the tensors of a module on ``meta`` their values; they stay the same objects.

    Optimizers, and other modules that share a parameter, go on with it.
    """
    for name, (owner, attribute, value) in places_of(module, state).items():
        # One that is tied to another was filled with it.
        if value is None or not value.is_meta:
            continue
        made = state[name].to(device=device or "cpu", dtype=value.dtype)
        if isinstance(value, nn.Parameter):
            new = nn.Parameter(made, requires_grad=value.requires_grad)
            torch.utils.swap_tensors(value, new)
        else:
            owner._buffers[attribute] = made
