"""All leaves concatenated into one tensor."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.primitives import classes
from tensordict.primitives.checks import is_leaf_nontensor
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
    """The layout of leaves in the tensor that :meth:`TensorDict.pack` makes.

    Attributes:
        keys: the keys of the leaves, in their order in the tensor.
        shapes: the feature shape ``*F`` of each leaf.
        dim: the packed dimension, counted from the end.
        nested: for each nested tensordict its key, additional batch dimensions and type
            (None for the plain type).
        device: the device of the tensordict.
        cls: the type of the tensordict; None for the plain type.
        offsets: the index at which each leaf begins.
        numel: the size of the packed dimension.
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
        """Compute the index at which each leaf begins."""
        offsets, total = [], 0
        for shape in self.shapes:
            offsets.append(total)
            total += shape.numel()
        object.__setattr__(self, "offsets", tuple(offsets))
        object.__setattr__(self, "numel", total)

    def unpack(self, flat: torch.Tensor) -> TensorDictBase:
        """Return a tensordict whose leaves are views of ``flat``.

        Args:
            flat: a tensor with the packed dimension at ``dim``. Its other dimensions
                become the batch size.

        Raises:
            RuntimeError: the packed dimension has another size than this layout.
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
        # An instance of a frozen class takes no entries, so make it of complete ones.
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
    """Concatenate the leaves: see :meth:`tensordict.TensorDict.pack`."""
    batch_size = td.batch_size
    ndim = len(batch_size)
    leaves_by_key = dict(_rust.walk(td, 2, True, True, is_leaf_nontensor))
    for key, value in leaves_by_key.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(MSG_NON_TENSOR.format(key))
    if layout is None:
        back = dim if dim < 0 else dim - ndim - 1
        if not -ndim - 1 <= back <= -1:
            msg = (
                "Dimension out of range (expected to be in range of "
                f"[{-ndim - 1}, {ndim}], but got {dim})"
            )
            raise IndexError(msg)
        keys = tuple(sorted(leaves_by_key, key=_path))
        layout = PackLayout(
            keys=keys,
            shapes=tuple(leaves_by_key[key].shape[ndim:] for key in keys),
            dim=back,
            nested=tuple(_nested(td, ndim)),
            device=td.device,
            cls=_own_type(td),
        )
    elif set(leaves_by_key) != set(layout.keys):
        raise KeyMessageError(
            MSG_KEYS.format(
                sorted(leaves_by_key, key=_path), sorted(layout.keys, key=_path)
            )
        )
    leaves = [leaves_by_key[key] for key in layout.keys]
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
    """List key, additional batch dims and type of nested tensordicts, outer first."""
    out = []
    for key, value in sorted(td._entries().items()):
        if isinstance(value, CollectionProtocol):
            at = (*path, key)
            name = at if path else key
            out.append((name, value.batch_size[ndim:], _own_type(value)))
            out += _nested(value, ndim, at)
    return out
