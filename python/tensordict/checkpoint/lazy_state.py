"""States of items whose tensors are read when they are written elsewhere."""

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
"""The kinds of items that are made without a look at their tensors."""

_OF_VALUES = {"array", "sparse", "jagged", "collection", "stack", "column"}
"""The kinds of values in the JSON of an ``Encoder`` that need those of their tensors."""


class LazyTensors:
    """Tensors on ``meta`` that stand for those of a step, which are read when asked for.

    Args:
        num_threads: the most threads that read.
        naming: has errors name the directory of the step.
        bring: has bytes of tensors be where they are read, by the paths of files.
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
        """Return a tensor that stands for one of a step."""
        made = torch.empty(stored.shape, dtype=stored.dtype, device="meta")
        self._stored[id(made)] = made, stored
        return made

    def read(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the values of tensors, compared with their checksums.

        Args:
            tensors: those that stand for others, and any others, which stay as they are.

        Raises:
            RuntimeError: a file is damaged.
        """
        reads, found = Reads(self.num_threads, bring=self.bring), []
        for tensor in tensors:
            known = self._stored.get(id(tensor))
            if known is not None:
                stored = known[1]
                tensor = torch.empty(stored.shape, dtype=stored.dtype)
                reads.add(stored, tensor, is_new=True)
            found.append(tensor)
        with self.naming():
            reads.fetch()
        return found

    def written(self, tensor: Any) -> Any:
        """Return a tensor as a writer of files takes it: in pieces, where that can be."""
        return tensor


class _Reading(Decoder):
    """Reads each tensor when it is needed.

    Args:
        files: the tensors of an item.
    """

    def __init__(self, files: ItemFiles, tensors: LazyTensors) -> None:
        super().__init__({}, files.directory, torch.device("cpu"), self._whole)
        self.files = files
        self.lazy = tensors

    def _made(self, stored: Stored) -> torch.Tensor:
        return self.lazy.read([self.lazy.standing_for(stored)])[0]

    def _whole(self, fields: Mapping[str, Any]) -> torch.Tensor:
        return self._made(self.files.of_fields(fields))

    def named(self, name: str) -> torch.Tensor:
        """Return the tensor of a name."""
        return self._made(self.files.stored(name))


class _Standing(_Reading):
    """Makes states with tensors that stand for those of the step."""

    def __init__(self, files: ItemFiles, tensors: LazyTensors) -> None:
        super().__init__(files, tensors)
        self.device = torch.device("meta")
        self._reading = _Reading(files, tensors)
        self._known: dict[str, torch.Tensor] = {}

    def _made(self, stored: Stored) -> torch.Tensor:
        if stored.name not in self._known:
            self._known[stored.name] = self.lazy.standing_for(stored)
        return self._known[stored.name]

    def decode(self, value: object) -> Any:
        """Return the value that was encoded."""
        kind = value.get("$") if isinstance(value, dict) else None
        if kind in _OF_VALUES:
            return self._reading.decode(value)
        if isinstance(value, dict) and kind == "parameter":
            return self.decode(value["value"])
        return super().decode(value)

    def taken(self, fields: Mapping[str, Any]) -> torch.Tensor:
        """Return what stands for the tensor that fields lead to."""
        return self._made(self.files.of_fields({**fields, "$": "tensor"}))


def state_of_step(
    files: StepFiles, meta: Mapping[str, Any], item: str, tensors: LazyTensors
) -> Any:
    """Return the state of an item, with tensors that stand for those of the step.

    Args:
        files: the files of the step.
        meta: its description.
        item: the name of the item.
        tensors: takes what they stand for.

    Raises:
        KeyError: there is no such item.
    """
    about = meta["items"].get(item)
    if about is None:
        text = MSG_ITEM.format(files.directory, item, sorted(meta["items"]))
        raise MissingKeyError(text)
    found = ItemFiles(StepParts(files, meta), item, about, 0)
    kind = about["kind"]
    decoder = (_Standing if kind in _LAZY_KINDS else _Reading)(found, tensors)
    state = loading_kind(kind).load(about, decoder)
    names = [name for name, _ in about.get("parameters") or ()]
    if kind == "optimizer" and names and None not in names:
        return by_name(state, names)
    return state
