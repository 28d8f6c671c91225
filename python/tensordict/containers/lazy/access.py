"""Reading the entries of a stack: stacked, in another form, or only looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import torch

from tensordict import _rust
from tensordict.containers.lazy.construct import check_members
from tensordict.containers.lazy.formats import (
    as_nested,
    as_padded,
    check_tensors,
    stack_leaves,
)
from tensordict.containers.lazy.state import StackState
from tensordict.ops import access
from tensordict.primitives.checks import inside
from tensordict.primitives.lazy import first_misfit
from tensordict.primitives.metatensor import MetaTensor
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.containers.dense import TensorDict
    from tensordict.primitives.entry import Entry
    from tensordict.primitives.protocol import BatchIndex, NestedKeyLike

    T = TypeVar("T")

__all__ = ["ReadingOps"]

MSG_KEYWORD = "{}._get_str() got an unexpected keyword argument {!r}"
MSG_NESTED_DIM = (
    "Because nested tensors can only be stacked along their first dimension, "
    "LazyStackedTensorDict.get_nestedtensor can only be called when the stack_dim is 0."
)
MSG_NESTED_ROWS = (
    "Cannot build a nested tensor from entries that are nested tensors themselves: the "
    "members of this stack are stacks. Pass as_list=True or as_padded_tensor=True."
)
FORMATS = frozenset(
    {
        "as_list",
        "as_padded_tensor",
        "as_nested_tensor",
        "padding_side",
        "padding_value",
        "layout",
    }
)
"""The parameters of ``get`` besides the key and a default."""


class ReadingOps(StackState):
    """Reading the entries of a stack."""

    # Reading -----------------------------------------------------------------------

    def _common_keys(self) -> list[str]:
        """The keys that all members have, in the order of the first."""
        return _rust.common_keys(self.tensordicts)

    def _group(self, key: str) -> list[Any] | None:
        """The entries of all members at a direct key; None where one has none."""
        return _rust.member_values(self.tensordicts, (key,))

    def _stacked(self, key: str, values: list[Any], is_shown: bool = True) -> Any:
        """The entries of all members as one.

        Without ``is_shown`` it is made to be kept: values may be set in part of a row.
        """
        first = values[0]
        if isinstance(first, CollectionProtocol):
            check_members(values)
            together = first._shown_together if is_shown else first._stack_lazily
            value = together(values, self.stack_dim, self._td_dim_name)
        else:
            value = stack_leaves(key, values, self.stack_dim)
        hook = self._hook_out
        return value if hook is None else hook(value)

    def _entries(self, is_shown: bool = True) -> dict[str, Any]:
        entries = {}
        for key in self._common_keys():
            values = self._group(key)
            if values is not None:
                entries[key] = self._stacked(key, values, is_shown)
        return entries

    def _get_entry(self, key: str, default: object) -> Any:
        values = self._group(key)
        return default if values is None else self._stacked(key, values)

    def _sample_entries(self) -> dict[str, Any]:
        entries = {}
        for key in self._common_keys():
            # Any leaf will do, but collections have to be seen as a stack.
            value = self.tensordicts[0]._sample_entry(key)
            if isinstance(value, CollectionProtocol):
                values = self._seen(key)
                value = value if values is None else self._sampled(values)
            entries[key] = value
        return entries

    def _held_keys(self) -> dict[str, Any]:
        return dict.fromkeys(self._common_keys())

    def _sample_entry(self, key: str) -> Any:
        values = self._seen(key)
        return NO_DEFAULT if values is None else self._sampled(values)

    def _holds_stacks(self) -> bool:
        """Return whether a member is not dense: reading its entries may stack them."""
        kinds: set[type[CollectionProtocol]] = set(map(type, self.tensordicts))
        return not all(kind._is_dense for kind in kinds)

    def _seen(self, key: str) -> list[Any] | None:
        """Look at an entry as :meth:`_group` does, but at metadata of stacked leaves."""
        if not self._holds_stacks():
            return self._group(key)
        values = []
        for member in self.tensordicts:
            value = member._seen_entry(key)
            if value is NO_DEFAULT:
                return None
            values.append(value)
        return values

    def _seen_entry(self, key: str) -> Any:
        """An entry for a look: a :class:`MetaTensor` for stacked leaves."""
        values = self._seen(key)
        if values is None:
            return NO_DEFAULT
        if any(isinstance(value, CollectionProtocol) for value in values):
            return self._sampled(values)
        return MetaTensor._of_stack(values, self.stack_dim)

    def _sampled(self, values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, CollectionProtocol):
            if first_misfit(values) is not None:
                for value in values:
                    if not isinstance(value, CollectionProtocol):
                        # Collections here and tensors there count as a leaf.
                        return value
            return first._stack_lazily(values, self.stack_dim, self._td_dim_name)
        return first

    def _children(self) -> list[Any]:
        return list(self.tensordicts)

    @overload
    def get(self, key: NestedKeyLike) -> Entry: ...
    @overload
    def get(self, key: NestedKeyLike, default: T) -> Entry | T: ...
    @overload
    def get(self, key: NestedKeyLike, *args: Any, **kwargs: Any) -> Any: ...
    def get(self, key: NestedKeyLike, *args: object, **kwargs: object) -> Any:
        """The entry at a nested key, or ``default`` where not all members have it.

        Args:
            key: a nested key.
            *args: ``default``, by position. Without it a missing entry is None.
            **kwargs: ``default``, and how an entry is read whose members differ in
                shape: ``as_list=True`` gives them in a list; ``as_padded_tensor=True`` a
                tensor filled up with ``padding_value`` (0) on the ``padding_side``
                (``"right"``), its first dim that of the members; ``as_nested_tensor=True`` a nested tensor of the
                ``layout`` (``torch.jagged``).

        Raises:
            RuntimeError: the entries of members differ in shape, and none of these is
                given.

        Examples:
            >>> stack = lazy_stack([TensorDict(a=torch.ones(n)) for n in (1, 2)])
            >>> stack.get("a", as_padded_tensor=True, padding_value=-1)
            tensor([[ 1., -1.],
                    [ 1.,  1.]])
            >>> stack.get("missing", 0)
            0
        """
        if len(args) > 1:
            raise TypeError(access.MSG_ONE_DEFAULT)
        if "default" in kwargs:
            default = kwargs.pop("default")
        else:
            default = args[0] if args else access.DEFAULT_OF_GET
        if not kwargs:
            return self._read(key, default)
        return self._get_formatted(key, default, kwargs)

    @overload
    def __getitem__(self, index: int) -> TensorDict: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, index: BatchIndex) -> Self: ...
    @overload
    def __getitem__(self, index: str | tuple[str, ...]) -> Entry: ...
    @overload
    def __getitem__(self, index: object) -> Any: ...
    def __getitem__(self, index: Any) -> Any:
        """The stacked entry at a nested key, or the part of the stack at an index."""
        if isinstance(index, str) or (
            isinstance(index, tuple) and _rust.unravel_key_to_tuple(index)
        ):
            return self._read(index, NO_DEFAULT)
        return self._get_index(index)

    def _read(self, key: NestedKeyLike, default: object) -> Any:
        """The entry at a nested key: a nested leaf without the stacks on the way."""
        path = _rust.unravel_key_to_tuple(key)
        if path and self._hook_out is None:
            stacked = _rust.stacked_values(self.tensordicts, path, self.stack_dim)
            if stacked is not None:
                return stacked
            values = _rust.member_values(self.tensordicts, path)
            if values is not None and isinstance(values[0], torch.Tensor):
                return stack_leaves(key, values, self.stack_dim)
        if default is NO_DEFAULT:
            return _rust.getitem(self, path or key)
        return _rust.get(self, key, default)

    def _get_formatted(
        self, key: NestedKeyLike, default: object, kwargs: dict[str, Any]
    ) -> Any:
        for name in kwargs:
            if name not in FORMATS:
                raise TypeError(MSG_KEYWORD.format(type(self).__name__, name))
        return self._read_formatted(key, default, kwargs)

    def _read_formatted(
        self, key: NestedKeyLike, default: object, kwargs: dict[str, Any]
    ) -> Any:
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            return _rust.get(self, key, default)
        parent: Any = self
        for at, part in enumerate(path[:-1]):
            if isinstance(parent._sample_entry(part), torch.Tensor):
                # The key runs through a leaf, which is not stacked to say so.
                return _rust.get(parent.tensordicts[0], path[at:], default)
            parent = inside(parent._get_entry(part, NO_DEFAULT))
            if not isinstance(parent, ReadingOps):
                return _rust.get(self, key, default)
        seen = parent._seen(path[-1])
        if seen is None or isinstance(seen[0], CollectionProtocol):
            return _rust.get(self, key, default)
        values = parent._formatted_group(path[-1], kwargs)
        if kwargs.get("as_list"):
            return values
        if kwargs.get("as_nested_tensor") or kwargs.get("as_padded_tensor"):
            check_tensors(path[-1], values)
        if kwargs.get("as_nested_tensor"):
            return as_nested(values, kwargs.get("layout"))
        if kwargs.get("as_padded_tensor"):
            padding = kwargs.get("padding_value", 0)
            side = kwargs.get("padding_side", "right")
            return as_padded(values, padding, side)
        return parent._stacked(path[-1], values)

    def _formatted_group(self, key: str, kwargs: dict[str, Any]) -> Any:
        """The leaves of all members at a direct key, those of stacks in the format asked.

        Raises:
            ValueError: rows of a nested tensor would be nested tensors.
        """
        if kwargs.get("stacked") or not self._holds_stacks():
            return self._group(key)
        if not any(isinstance(member, ReadingOps) for member in self.tensordicts):
            return self._group(key)
        if not (kwargs.get("as_list") or kwargs.get("as_padded_tensor")) and kwargs.get(
            "as_nested_tensor"
        ):
            raise ValueError(MSG_NESTED_ROWS)
        return [
            member._get_formatted((key,), NO_DEFAULT, kwargs)
            if isinstance(member, ReadingOps)
            else member._get_entry(key, NO_DEFAULT)
            for member in self.tensordicts
        ]

    def _get_str(self, key: str, default: object = NO_DEFAULT, **kwargs: object) -> Any:
        if not kwargs:
            return _rust.get(self, key, default)
        return self._get_formatted(key, default, kwargs)

    def _get_tuple(
        self, key: tuple[str, ...], default: object = NO_DEFAULT, **kwargs: object
    ) -> Any:
        return self._get_str(key, default, **kwargs)  # type: ignore[arg-type]

    def get_nestedtensor(
        self,
        key: NestedKeyLike,
        default: object = NO_DEFAULT,
        *,
        layout: torch.layout | None = None,
    ) -> Any:
        """The entry at a nested key as a nested tensor, a strided one by default.

        Raises:
            RuntimeError: the stack dim is not the first.
        """
        if self.stack_dim != 0:
            raise RuntimeError(MSG_NESTED_DIM)
        form = torch.strided if layout is None else layout
        # The entries of members that are stacks are rows, stacked.
        kwargs = {"as_nested_tensor": True, "layout": form, "stacked": True}
        return self._read_formatted(key, default, kwargs)

    def get_item_shape(self, key: NestedKeyLike) -> torch.Size:
        """The shape of the entry at ``key``, -1 in dims where members differ.

        Nothing is stacked for it.

        Raises:
            KeyError: not all members have such an entry.
        """
        meta = self._meta(key)
        return meta.shape

    def _meta(self, key: NestedKeyLike) -> Any:
        """Return the metadata of an entry without stacking it; a collection itself."""
        path = _rust.unravel_key_to_tuple(key)
        parent: Any = self
        for part in path[:-1]:
            parent = inside(parent._sample_entry(part))
            if not isinstance(parent, ReadingOps):
                return _rust.get(self, key)
        value = parent._seen_entry(path[-1]) if path else NO_DEFAULT
        return _rust.get(self, key, NO_DEFAULT) if value is NO_DEFAULT else value

    def is_empty(self) -> bool:
        """Return whether no member has a leaf."""
        return all(member.is_empty() for member in self.tensordicts)

    def __iter__(self) -> Iterator[TensorDict]:  # type: ignore[override]
        """The members where they are stacked along the first dim, else parts of them."""
        if self.stack_dim == 0:
            return iter(list(self.tensordicts))
        return super().__iter__()  # type: ignore[return-value]
