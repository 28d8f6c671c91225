"""States of items whose tensors are read when they are written to another file."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from tensordict.checkpoint.files import ItemFiles, StepParts
from tensordict.checkpoint.kinds import loading_kind
from tensordict.checkpoint.optimizer_forms import by_name
from tensordict.checkpoint.reads import Reads
from tensordict.primitives.errors import MissingKeyError
from tensordict.storage.encoding import Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tensordict.checkpoint.ranges import Stored
    from tensordict.checkpoint.reading import StepFiles

__all__ = ["LazyTensors", "state_of_step"]

MSG_ITEM = "'{}' has no item {!r}: it has {}."

_LAZY_KINDS = {"module", "optimizer", "tensor", "value"}
"""The kinds of items that can be built without the values of their tensors."""

_OF_VALUES = {"array", "sparse", "jagged", "collection", "stack", "column"}
"""The kinds of values in the JSON of an ``Encoder`` that need the values of tensors."""


class LazyTensors:
    """Placeholders on ``meta`` for the tensors of a step, which are read on demand.

    Args:
        num_threads: the most threads that read.
        naming: a context in which errors name the directory of the step.
        bring: the function that downloads bytes of tensors, by the paths of files.
    """

    def __init__(
        self,
        num_threads: int = 0,
        naming: Callable[[], AbstractContextManager[None]] = nullcontext,
        bring: Callable[[Any], None] | None = None,
    ) -> None:
        self.num_threads = num_threads
        self.naming = naming
        self.bring = bring
        self._stored: dict[int, tuple[torch.Tensor, Stored]] = {}

    def standing_for(self, stored: Stored) -> torch.Tensor:
        """Return a placeholder for a tensor of a step."""
        placeholder = torch.empty(stored.shape, dtype=stored.dtype, device="meta")
        self._stored[id(placeholder)] = placeholder, stored
        return placeholder

    def read(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the values of placeholders, after a check of their checksums.

        Args:
            tensors: placeholders, and other tensors, which are returned as they are.

        Raises:
            RuntimeError: a file is damaged.
        """
        reads, found = Reads(self.num_threads, bring=self.bring), []
        for tensor in tensors:
            entry = self._stored.get(id(tensor))
            if entry is not None:
                stored = entry[1]
                tensor = torch.empty(stored.shape, dtype=stored.dtype)
                reads.add(stored, tensor, is_new=True)
            found.append(tensor)
        with self.naming():
            reads.fetch()
        return found

    def written(self, tensor: Any) -> Any:
        """Return a tensor for a file writer; subclasses may read it in pieces."""
        return tensor


class _Reading(Decoder):
    """A decoder that reads each tensor when it is needed.

    Args:
        files: the tensors of an item.
        tensors: the reader.
    """

    def __init__(self, files: ItemFiles, tensors: LazyTensors) -> None:
        super().__init__({}, files.directory, torch.device("cpu"), self._whole)
        self.files = files
        self.lazy = tensors

    def _tensor_of(self, stored: Stored) -> torch.Tensor:
        return self.lazy.read([self.lazy.standing_for(stored)])[0]

    def _whole(self, fields: Mapping[str, Any]) -> torch.Tensor:
        return self._tensor_of(self.files.of_fields(fields))

    def named(self, name: str) -> torch.Tensor:
        """Return the tensor with this name."""
        return self._tensor_of(self.files.stored(name))


class _Standing(_Reading):
    """A decoder that builds states from placeholders."""

    def __init__(self, files: ItemFiles, tensors: LazyTensors) -> None:
        super().__init__(files, tensors)
        self.device = torch.device("meta")
        self._reading = _Reading(files, tensors)
        self._known: dict[str, torch.Tensor] = {}

    def _tensor_of(self, stored: Stored) -> torch.Tensor:
        if stored.name not in self._known:
            self._known[stored.name] = self.lazy.standing_for(stored)
        return self._known[stored.name]

    def decode(self, value: object) -> Any:
        """Return the encoded value."""
        kind = value.get("$") if isinstance(value, dict) else None
        if kind in _OF_VALUES:
            return self._reading.decode(value)
        if isinstance(value, dict) and kind == "parameter":
            return self.decode(value["value"])
        return super().decode(value)

    def taken(self, fields: Mapping[str, Any]) -> torch.Tensor:
        """Return the placeholder of the tensor to which fields refer."""
        return self._tensor_of(self.files.of_fields({**fields, "$": "tensor"}))


def state_of_step(
    files: StepFiles, meta: Mapping[str, Any], item: str, tensors: LazyTensors
) -> Any:
    """Return the state of an item, with placeholders for its tensors.

    Args:
        files: the files of the step.
        meta: the content of ``meta.json``.
        item: the name of the item.
        tensors: the reader, which knows the placeholders.

    Raises:
        KeyError: the step has no such item.
    """
    metadata = meta["items"].get(item)
    if metadata is None:
        text = MSG_ITEM.format(files.directory, item, sorted(meta["items"]))
        raise MissingKeyError(text)
    item_files = ItemFiles(StepParts(files, meta), item, metadata, 0)
    kind = metadata["kind"]
    decoder = (_Standing if kind in _LAZY_KINDS else _Reading)(item_files, tensors)
    state = loading_kind(kind).load(metadata, decoder)
    names = [name for name, _ in metadata.get("parameters") or ()]
    if kind == "optimizer" and names and None not in names:
        return by_name(state, names)
    return state
