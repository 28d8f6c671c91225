"""The items of a checkpoint: what kind each is, and how it is described."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensordict.checkpoint.modules import describe_module
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.encoding import Encoder

if TYPE_CHECKING:
    from tensordict.storage.safetensors_levels import Leaf

__all__ = ["Described", "File", "describe", "is_stateful", "kind_of", "unwrapped"]


class Described:
    """An item as it is saved.

    Args:
        name: the name of the item, with which its files begin.
        about: what JSON says of it.
        tensors: its tensors by name.
        files: names and bytes of further files: the configuration without which
            ``transformers`` opens no folder.
    """

    def __init__(
        self,
        name: str,
        about: dict[str, Any],
        tensors: dict[str, Leaf],
        files: list[tuple[str, bytes]] | None = None,
    ) -> None:
        self.name = name
        self.about = about
        self.tensors = tensors
        self.files: list[Any] = files or []


class File:
    """A file that a step has beside its own, for other programs.

    Args:
        name: its name.
        content: its text.
    """

    def __init__(self, name: str, content: str) -> None:
        self.name = name
        self.content = content


def unwrapped(item: object) -> Any:
    """A module without what ``torch.compile`` has put around it, which renames its state."""
    inner = getattr(item, "_orig_mod", None)
    return inner if isinstance(item, nn.Module) and inner is not None else item


def is_stateful(item: object) -> bool:
    """Return whether an item has a state and takes one."""
    return hasattr(item, "state_dict") and hasattr(item, "load_state_dict")


def kind_of(item: object) -> str:
    """Return the kind of an item, which decides how it is saved and restored."""
    if isinstance(item, nn.Module):
        return "module"
    if isinstance(item, torch.optim.Optimizer):
        return "optimizer"
    if isinstance(item, CollectionProtocol):
        return "collection"
    if isinstance(item, torch.Tensor):
        return "tensor"
    if isinstance(item, torch.Generator):
        return "generator"
    return "stateful" if is_stateful(item) else "value"


def describe(name: str, item: Any, *, trainable_only: bool = False) -> Described:
    """Describe an item, and take its tensors without copying them.

    Raises:
        TypeError: it holds something that a checkpoint cannot.
    """
    encoder = Encoder(name)
    item = unwrapped(item)
    kind = kind_of(item)
    if isinstance(item, File):
        files = [(item.name, item.content.encode())]
        return Described(name, {"kind": "file", "value": item.name}, {}, files)
    files = []
    about: dict[str, Any]
    if kind == "module":
        about = describe_module(item, encoder, trainable_only=trainable_only)
        if name == "model":
            files = _config_of(item)
    elif kind == "generator":
        about = {"value": encoder.encode(item.get_state().cpu().numpy().tobytes())}
    elif kind in ("optimizer", "stateful"):
        about = {"value": encoder.encode(item.state_dict())}
    else:
        about = {"value": encoder.encode(item)}
    about["kind"] = kind
    if encoder.shards:
        about["shards"] = encoder.shards
    return Described(name, about, encoder.tensors, files)


def _config_of(module: object) -> list[tuple[str, bytes]]:
    """The configuration without which ``transformers`` does not open a folder."""
    write = getattr(getattr(module, "config", None), "to_json_string", None)
    if not hasattr(module, "save_pretrained") or write is None:
        return []
    text: str = write()
    return [("config.json", text.encode())]
