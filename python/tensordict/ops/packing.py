"""All leaves side by side in one tensor."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives import classes
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from tensordict.containers.collection import TensorDictBase
    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["PackLayout", "pack_leaves"]

MSG_DTYPES = (
    "Cannot pack leaves of different dtypes: {} and {} at {!r}. Cast the tensordict "
    "first, e.g. with float()."
)
MSG_NON_TENSOR = (
    "Cannot pack the non-tensor entry {!r}. Drop the non-tensor entries with "
    "filter_non_tensor_data() first."
)
MSG_KEYS = "The leaves of the tensordict differ from the keys of the layout: {} vs {}."


@dataclasses.dataclass(frozen=True)
class PackLayout:
    """The layout of the leaves of a collection in the tensor that ``pack`` made.

    Attributes:
        keys: the leaves, in the order in which they lie.
        shapes: the feature dims ``*F`` of each.
        dim: the packed dim, counted from the end.
        nested: key, further batch dims and type (None for the plain one) of each
            nested tensordict.
        device: the device of the tensordict.
        cls: its type, None for the plain one.
        offsets: where each leaf begins.
        numel: the size of the packed dim.
    """

    keys: tuple[NestedKeyLike, ...]
    shapes: tuple[torch.Size, ...]
    dim: int = -1
    nested: tuple[tuple[NestedKeyLike, torch.Size, type | None], ...] = ()
    device: torch.device | None = None
    cls: type | None = None
    offsets: tuple[int, ...] = dataclasses.field(init=False)
    numel: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Find where each leaf begins."""
        offsets, total = [], 0
        for shape in self.shapes:
            offsets.append(total)
            total += shape.numel()
        object.__setattr__(self, "offsets", tuple(offsets))
        object.__setattr__(self, "numel", total)

    def unpack(self, flat: torch.Tensor) -> TensorDictBase:
        """The tensordict whose leaves are views of ``flat``.

        Args:
            flat: ``[*B, N]``, with the packed dim where this layout has it. The other
                dims become the batch size.

        Raises:
            RuntimeError: the packed dim does not have the size of this layout.
        """
        flat = flat.movedim(self.dim, -1)
        if flat.shape[-1] != self.numel:
            msg = (
                f"The packed dim has size {flat.shape[-1]}, but the layout needs "
                f"{self.numel}."
            )
            raise RuntimeError(msg)
        batch_size = flat.shape[:-1]
        td: Any = classes.TensorDict({}, batch_size=batch_size, device=self.device)
        for key, extra, _ in self.nested:
            size = torch.Size([*batch_size, *extra])
            td.set(key, classes.TensorDict({}, batch_size=size, device=self.device))
        for key, shape, offset in zip(
            self.keys, self.shapes, self.offsets, strict=True
        ):
            part = flat.narrow(-1, offset, shape.numel())
            td.set(key, part.reshape([*batch_size, *shape]))
        # Instances of frozen classes take no entries: they are made of what is complete.
        for key, _, cls in reversed(self.nested):
            if cls is not None:
                td.set(key, _typed(cls, td.get(key)))
        return td if self.cls is None else _typed(self.cls, td)


def _typed(cls: Any, td: CollectionProtocol) -> Any:
    return cls._from_tensordict(td)


PackLayout.__module__ = "tensordict._base.shape"


def pack_leaves(
    td: CollectionProtocol, dim: int, layout: PackLayout | None
) -> tuple[torch.Tensor, PackLayout]:
    """See :meth:`tensordict.TensorDict.pack`."""
    batch_size = td.batch_size
    ndim = len(batch_size)
    others = () if td._is_non_tensor else td.non_tensor_items(include_nested=True)
    for key, value in others:
        # A field of a class that was not given has no entry, and nothing to pack.
        if value is not None:
            raise TypeError(MSG_NON_TENSOR.format(key))
    found = dict(_rust.walk(td, 2, True, True))
    if layout is None:
        back = dim if dim < 0 else dim - ndim - 1
        if not -ndim - 1 <= back <= -1:
            msg = (
                "Dimension out of range (expected to be in range of "
                f"[{-ndim - 1}, {ndim}], but got {dim})"
            )
            raise IndexError(msg)
        keys = tuple(sorted(found, key=_path))
        layout = PackLayout(
            keys=keys,
            shapes=tuple(found[key].shape[ndim:] for key in keys),
            dim=back,
            nested=tuple(_nested(td, ndim)),
            device=td.device,
            cls=_own_type(td),
        )
    elif set(found) != set(layout.keys):
        raise KeyMessageError(
            MSG_KEYS.format(sorted(found, key=_path), sorted(layout.keys, key=_path))
        )
    leaves = [found[key] for key in layout.keys]
    for key, leaf in zip(layout.keys, leaves, strict=True):
        if leaf.dtype != leaves[0].dtype:
            raise TypeError(MSG_DTYPES.format(leaves[0].dtype, leaf.dtype, key))
    if leaves:
        flat = torch.cat(
            [
                leaf.reshape([*batch_size, shape.numel()])
                for leaf, shape in zip(leaves, layout.shapes, strict=True)
            ],
            -1,
        )
    else:
        flat = torch.zeros((*batch_size, 0), device=td.device)
    return flat.movedim(-1, layout.dim), layout


def _path(key: NestedKeyLike) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def _own_type(td: CollectionProtocol) -> type | None:
    return None if isinstance(td, classes.TensorDictBase) else type(td)


def _nested(td: CollectionProtocol, ndim: int, path: tuple[str, ...] = ()) -> list[Any]:
    """Key, further batch dims and type of each nested tensordict, outer ones first."""
    out = []
    for key, value in sorted(td._entries().items()):
        if isinstance(value, CollectionProtocol):
            at = (*path, key)
            name = at if path else key
            out.append((name, value.batch_size[ndim:], _own_type(value)))
            out += _nested(value, ndim, at)
    return out
