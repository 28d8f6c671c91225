"""The lazy stack of a collector's windows, which densifies without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tensordict import (
    LazyStackedTensorDict,
    TensorDict,
    unravel_key_to_tuple,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensordict._nestedkey import NestedKey


@dataclass(frozen=True)
class Column:
    """The values of one stream over several windows.

    Attributes:
        values: ``[N, *F]``, the values of all windows, concatenated.
        sizes: the number of values of each window; the sum is ``N``.
    """

    values: Tensor
    sizes: list[int]

    def split(self) -> tuple[Tensor, ...]:
        """Return the values of each window, as views."""
        return self.values.split(self.sizes)

    def to_nested(self, layout: torch.layout) -> Tensor:
        """Return a nested tensor of the windows that shares their memory."""
        sizes = torch.tensor(self.sizes, dtype=torch.int64)
        offsets = torch.zeros(len(self.sizes) + 1, dtype=torch.int64)
        torch.cumsum(sizes, 0, out=offsets[1:])
        if layout is torch.jagged:
            lengths = sizes.tolist() or [0]
            return torch.nested.nested_tensor_from_jagged(
                self.values,
                offsets,
                min_seqlen=min(lengths),
                max_seqlen=max(lengths),
            )
        features = torch.tensor(self.values.shape[1:], dtype=torch.int64)
        shapes = torch.cat([sizes[:, None], features.expand(len(sizes), -1)], 1)
        strides = torch.tensor(self.values.stride()).expand_as(shapes).contiguous()
        # torch has no public function for a strided nested tensor without a copy.
        return torch._nested_view_from_buffer(
            self.values.flatten(),
            shapes,
            strides,
            offsets[:-1] * self.values[:1].numel(),
        )


class BucketStack(LazyStackedTensorDict):
    """A lazy stack of windows: one member for each window, with views of shared columns.

    It behaves like any :class:`LazyStackedTensorDict`. As long as its members are
    unchanged, :meth:`densify` returns nested tensors that share their memory: a write
    to one is visible in the other.
    """

    _columns: dict[NestedKey, tuple[Column, tuple[Tensor, ...]]] | None = None

    @classmethod
    def from_columns(cls, columns: Iterable[tuple[NestedKey, Column]]) -> Self:
        """Return a stack along dim 0 with one member for each window."""
        parts = {key: (column, column.split()) for key, column in columns}
        members = [
            TensorDict(dict(zip(parts, leaves, strict=True)))
            for leaves in zip(*(views for _, views in parts.values()), strict=True)
        ]
        stack = cls(*members, stack_dim=0)
        stack._columns = parts
        return stack

    def densify(self, layout: torch.layout = torch.strided) -> Any:
        """Return each stream as one nested tensor, without a copy if members are unchanged.

        Args:
            layout: ``torch.strided`` or ``torch.jagged``.
        """
        if self._columns is None or not self._is_as_made():
            return super().densify(layout=layout)
        return dense_columns(
            ((key, column) for key, (column, _) in self._columns.items()), layout
        )

    def _is_as_made(self) -> bool:
        members: list[Any] = self.tensordicts
        return all(
            len(views) == len(members)
            and all(
                member.get(key) is view
                for member, view in zip(members, views, strict=True)
            )
            for key, (_, views) in (self._columns or {}).items()
        ) and all(
            len(member.keys(True, True)) == len(self._columns or {})
            for member in members
        )


def dense_columns(
    columns: Iterable[tuple[NestedKey, Column]], layout: torch.layout
) -> TensorDict:
    """Return a tensordict of one nested tensor for each column, of batch size ``[W]``."""
    by_key = dict(columns)
    num_windows = len(next(iter(by_key.values())).sizes) if by_key else 0
    dense = TensorDict(batch_size=[num_windows])
    for key, column in by_key.items():
        # The number of windows is known to match: checking each entry would take longer
        # than all the rest.
        dense._set_tuple(
            unravel_key_to_tuple(key),
            column.to_nested(layout),
            inplace=False,
            validated=True,
        )
    return dense
