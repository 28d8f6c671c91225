"""Lazy stacks in files of one buffer, and in safetensors files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.containers.lazy.state import StackState
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import describing, safetensors_levels
from tensordict.storage import source as sources

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["FilesOps"]

MSG_KEYS = (
    "Cannot save the lazy stack {} as safetensors: its entries have different keys. Give "
    "every entry the same keys first."
)
MSG_NAMES = "Not all dim names match, got {} and {}."


class FilesOps(StackState):
    """Lazy stacks in files of one buffer, and in safetensors files.

    See :mod:`tensordict.storage.layouts.consolidated` and :mod:`tensordict.storage.layouts.safetensors`
    for what the methods promise. The first keeps the members apart; the second has the
    entries stacked, so members must agree.
    """

    def _describe(self, rows: Iterator[Any]) -> Any:
        name = type(self).__name__
        dim, dim_name = self.stack_dim, self._td_dim_name
        return describing.describe_stack(name, self.tensordicts, dim, dim_name, rows)

    def _described_child(self, name: str) -> Any:
        return self.tensordicts[int(name)]

    @classmethod
    def _from_description(cls, level: dict[str, Any], source: Any, path: Any) -> Any:
        members = sources.members_of(level, source, path)
        fields = level["cls_metadata"]
        dim, dim_name = fields["stack_dim"], fields["stack_dim_name"]
        stack = (
            cls._of(members, dim, dim_name) if members else _hollow(cls, dim, dim_name)
        )
        return sources.locked_as(stack, fields)

    def _put_leaves(self, leaves: Iterator[Any]) -> None:
        for member in self.tensordicts:
            member._put_leaves(leaves)

    def _to_level(self, writer: Any, path: tuple[str, ...]) -> dict[str, Any]:
        _leaf_keys(self, f"at {path}" if path else "at the root")
        names = [member.names for member in self.tensordicts]
        for others in names:
            if others != names[0]:
                raise ValueError(MSG_NAMES.format(names[0], others))
        level = safetensors_levels.stack_to_level(self, writer, path)
        keys = level.pop("keys")
        level["stack_dim"] = self.stack_dim
        if self._td_dim_name is not None:
            level["stack_dim_name"] = self._td_dim_name
        level["keys"] = keys
        return level

    @classmethod
    def _from_level(
        cls,
        level: dict[str, Any],
        reader: Any,
        path: str | os.PathLike[str],
        is_part: bool = False,
    ) -> Any:
        """The stack of a level: its parts are views of the stacked tensors."""
        dense = reader.collection(level, path, is_part=True)
        dim = level["stack_dim"]
        # The published release writes the name of the stack dim among the others alone.
        names = level.get("names")
        dim_name = level.get("stack_dim_name", names and names[dim])
        members = list(dense.unbind(dim))
        return (
            cls._of(members, dim, dim_name) if members else _hollow(cls, dim, dim_name)
        )


def _hollow(cls: Any, dim: int, dim_name: str | None) -> Any:
    """A stack without members."""
    return cls(stack_dim=dim, stack_dim_name=dim_name)


def _leaf_keys(
    td: CollectionProtocol, place: str
) -> frozenset[tuple[tuple[str, ...], bool]]:
    """The keys of what is no collection, each with whether it is a value.

    What only some members of a stack have would be left out where they are stacked.

    Raises:
        TypeError: members of a stack differ in them.
    """
    if not td._is_dense and hasattr(td, "tensordicts"):
        found = [_leaf_keys(member, place) for member in td.tensordicts]
        if any(keys != found[0] for keys in found):
            raise TypeError(MSG_KEYS.format(place))
        return found[0] if found else frozenset()
    keys: set[tuple[tuple[str, ...], bool]] = set()
    for key, value in td._entries().items():
        is_collection = isinstance(value, CollectionProtocol)
        if is_collection and not value._is_non_tensor:
            inner = _leaf_keys(value, place)
            keys.update(((key, *below), is_value) for below, is_value in inner)
        else:
            keys.add(((key,), is_collection))
    return frozenset(keys)
