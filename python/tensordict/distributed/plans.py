"""Plans of structures: the order of the leaves, and how they are sent.

Leaves are in the order of their keys, level by level. The members of a lazy stack follow each
other. This is the order of tensordict 0.15, and does not depend on the order in which entries were
set. A :class:`Plan` decides which leaves are packed together, and which are separate messages. It
is created once for each structure.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust
from tensordict.distributed.wire import SMALL_BYTES, fill
from tensordict.primitives import classes
from tensordict.primitives.checks import is_tensorclass
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import describing
from tensordict.storage.layouts import consolidated
from tensordict.storage.sharded import is_sharded

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Packing",
    "Parts",
    "Plan",
    "Walk",
    "buffer_of",
    "copy_into",
    "difference",
    "new_buffer_of",
    "pack_leaves",
    "parts_of",
    "unpack_leaves",
]

MAX_PLANS = 256
"""The number of structures whose plans are kept."""

MSG_LAYOUT = (
    "Cannot send the entry {key}: its layout is {layout}, but only dense and jagged tensors "
    "are sent leaf by leaf. Call init_remote(), or store its parts as dense entries."
)

Spec = tuple[tuple[str, ...], str, tuple[int, ...]]
"""The key of a leaf, its dtype and its shape. For a jagged leaf, the last part of the key is a
digest of its offsets."""


class Packing:
    """The places of leaves in one buffer, for one structure.

    Args:
        numbers: the numbers of the packed leaves, in the order of the walk.
        starts: the first byte of each packed leaf in the buffer.
    """

    def __init__(self, numbers: list[int], starts: list[int]) -> None:
        self._numbers = numbers
        self._native = _rust.Packing(numbers, starts)

    def leaves_in(self, found: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the packed leaves."""
        return [found[number] for number in self._numbers]

    def copy(
        self, found: list[torch.Tensor], buffer: torch.Tensor, unpack: bool
    ) -> bool:
        """Copy packed leaves into the buffer, or with ``unpack`` from the buffer.

        Returns:
            False if a leaf is not a plain tensor on the CPU. Nothing is copied then.
        """
        return self._native.copy(found, buffer, unpack)


class Plan:
    """The plan for the leaves of one structure: their order, and which are packed.

    Args:
        specs: the key, dtype and shape of each leaf, in the order of sending.
        order: for each leaf of ``specs`` its number in the order of the walk.
    """

    def __init__(self, specs: list[Spec], order: list[int]) -> None:
        self.specs: list[Spec] = specs
        self.order: list[int] = order
        self.describe_as(specs)
        self.small: list[int] = []
        self.starts: list[int] = []
        self.large: list[int] = []
        self.num_bytes: list[int] = []
        self.buckets: dict[int | None, Any] = {}
        end = 0
        for place, (_, dtype, shape) in enumerate(specs):
            size = getattr(torch, dtype).itemsize
            for length in shape:
                size *= length
            self.num_bytes.append(size)
            if size >= SMALL_BYTES:
                self.large.append(place)
                continue
            self.small.append(place)
            self.starts.append(end)
            end += size + -size % 16
        self.flat_bytes: int = end
        self.packing: Packing = self.packed_at(self.small, self.starts)

    def packed_at(self, places: list[int], starts: list[int]) -> Packing:
        """Return a packing that puts leaves of the plan at the given bytes of a buffer."""
        return Packing([self.order[place] for place in places], starts)

    def describe_as(self, specs: list[Spec]) -> None:
        """Set the text and the digest that are compared with another process."""
        self.text: bytes = json.dumps(specs).encode()
        self.digest: bytes = hashlib.blake2b(self.text, digest_size=16).digest()


class Parts(NamedTuple):
    """The leaves and the non-tensor data of a collection, with the plan of its structure."""

    plan: Plan
    found: list[torch.Tensor]
    """The leaves in the order of the walk. Subclasses of ``Tensor`` are detached to tensors."""
    values: list[tuple[tuple[str, ...], Any]]
    """The non-tensor collections with their keys."""
    views: list[tuple[int, Any, str]]
    """The leaves of views, which are read as copies: the place of each leaf in the plan, and
    the view and the key to write it back."""

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The leaves in the order of the plan."""
        return [self.found[number] for number in self.plan.order]

    def leaf(self, place: int) -> torch.Tensor:
        """Return a leaf by its place in the plan."""
        return self.found[self.plan.order[place]]


_PLANS: dict[Any, Plan] = {}


def _plan(structure: object, specs: list[Spec], order: list[int]) -> Plan:
    plan = Plan(specs, order)
    if len(_PLANS) >= MAX_PLANS:
        _PLANS.pop(next(iter(_PLANS)), None)
    _PLANS[structure] = plan
    return plan


def parts_of(td: CollectionProtocol) -> Parts:
    """Return the leaves of a collection, and the plan of its structure.

    Raises:
        TypeError: a leaf is neither dense nor jagged.
    """
    found = _rust.wire_layout(td)
    if found is not None:
        text, leaves = found
        plan = _PLANS.get(text)
        if plan is None:
            walk = Walk()
            walk.enter(td, ())
            places = {path: place for place, path in enumerate(_paths(td, ()))}
            order = [places[path] for path, *_ in walk.specs]
            plan = _plan(text, walk.specs, order)
        return Parts(plan, leaves, [], [])
    walk = Walk()
    walk.enter(td, ())
    specs = tuple(walk.specs)
    plan = _PLANS.get(specs) or _plan(specs, walk.specs, list(range(len(specs))))
    return Parts(plan, walk.leaves, walk.values, walk.views)


def _paths(td: CollectionProtocol, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the keys of the leaves of a plain collection, in the order of setting."""
    for key, value in td._entries().items():
        if isinstance(value, CollectionProtocol):
            yield from _paths(value, (*path, key))
        else:
            yield (*path, key)


class _BufferPlan(NamedTuple):
    """The buffer that a collection of one structure has when it is consolidated."""

    plan: Plan
    packing: Packing


_BUFFER_PLANS: dict[bytes, _BufferPlan] = {}


def buffer_of(td: Any) -> Parts | None:
    """Return the buffer of a consolidated collection as parts with one leaf.

    Returns:
        None if the collection is not consolidated, or has changed since.
    """
    state = td._consolidated_home()._consolidated
    if state is None:
        return None
    checked = _rust.wire_places(td)
    # If keys, dtypes, shapes and addresses are unchanged, the leaves still are the bytes of
    # the buffer. This check takes a hundredth of the time of a description.
    if checked is None or checked != state.get("wire_checked"):
        if consolidated.state_of(td) is None:
            return None
        state["wire_checked"] = checked
    return _buffer_in(state)


def new_buffer_of(td: Any) -> Parts:
    """Copy a collection into a consolidated buffer; return it as parts with one leaf."""
    layout = _rust.wire_layout(td)
    if layout is not None:
        text, leaves = layout
        buffer_plan = _BUFFER_PLANS.get(text)
        if buffer_plan is not None:
            buffer = torch.zeros(buffer_plan.plan.num_bytes[0], dtype=torch.uint8)
            if buffer_plan.packing.copy(leaves, buffer, False):
                return Parts(buffer_plan.plan, [buffer], [], [])
    buffered = td.consolidate()
    parts = _buffer_in(buffered._consolidated_home()._consolidated)
    checked = _rust.wire_places(buffered)
    if layout is not None and checked is not None and checked[0] == layout[0]:
        first = parts.found[0].data_ptr()
        # The address of a leaf without elements is 0.
        places: Any = memoryview(checked[1])
        starts = [max(place - first, 0) for place in places.cast("N")]
        packing = Packing(list(range(len(starts))), starts)
        if len(_BUFFER_PLANS) >= MAX_PLANS:
            _BUFFER_PLANS.pop(next(iter(_BUFFER_PLANS)), None)
        _BUFFER_PLANS[layout[0]] = _BufferPlan(parts.plan, packing)
    return parts


def _buffer_in(state: dict[str, Any]) -> Parts:
    buffer = state["storage"]
    plan = state.get("wire_plan")
    if plan is None:
        plan = Plan([(("buffer",), "uint8", tuple(buffer.shape))], [0])
        rows = describing.keyed_rows(state["metadata"], ())
        # Two buffers have the same structure only if each leaf has the same place.
        specs: list[Spec] = [
            ((key,), row[0].removeprefix("torch."), (*row[1], row[2]))
            for key, row in rows
        ]
        plan.describe_as(specs)
        state["wire_plan"] = plan
    return Parts(plan, [buffer], [], [])


class Walk:
    """Collects the leaves and the non-tensor data of a collection of any class."""

    def __init__(self) -> None:
        self.leaves: list[torch.Tensor] = []
        self.specs: list[Spec] = []
        self.values: list[tuple[tuple[str, ...], Any]] = []
        self.views: list[tuple[int, Any, str]] = []

    def enter(self, td: Any, path: tuple[str, ...]) -> None:
        """Collect all entries of a collection."""
        if td._is_non_tensor:
            self.values.append((path, td))
            return
        if is_tensorclass(td):
            td = td._tensordict
        if isinstance(td, classes.LazyStackedTensorDict):
            for number, member in enumerate(td.tensordicts):
                self.enter(member, (*path, str(number)))
            return
        entries = td._entries()
        is_view = isinstance(td, classes._SubTensorDict)
        for key in sorted(entries, key=str):
            value = entries[key]
            inner = (*path, str(key))
            if isinstance(value, CollectionProtocol):
                self.enter(value, inner)
                continue
            if is_view:
                self.views.append((len(self.leaves), td, key))
            self.take(value, inner)

    def take(self, leaf: Any, path: tuple[str, ...]) -> None:
        """Collect a leaf."""
        ragged: tuple[str, ...] = ()
        if is_sharded(leaf):
            leaf = leaf.to_local()
        if leaf.layout == torch.jagged:
            # Offsets are not sent. They belong to the structure, as shapes do.
            offsets = [leaf.offsets(), leaf.lengths()]
            lists = [None if part is None else part.tolist() for part in offsets]
            text = json.dumps([*lists, leaf._ragged_idx]).encode()
            ragged = ("jagged " + hashlib.blake2b(text, digest_size=16).hexdigest(),)
            leaf = leaf.values()
        elif leaf.layout != torch.strided:
            key = path[0] if len(path) == 1 else path
            raise TypeError(MSG_LAYOUT.format(key=repr(key), layout=leaf.layout))
        if type(leaf) is not torch.Tensor:
            leaf = leaf.detach().as_subclass(torch.Tensor)
        dtype = str(leaf.dtype).removeprefix("torch.")
        self.specs.append(((*path, *ragged), dtype, tuple(leaf.shape)))
        self.leaves.append(leaf)


# Packing ------------------------------------------------------------------------------


def pack_leaves(parts: Parts, flat: torch.Tensor) -> None:
    """Copy the small leaves to their places in a buffer of bytes."""
    plan = parts.plan
    if not plan.packing.copy(parts.found, flat, False):
        leaves = [leaf.detach() for leaf in plan.packing.leaves_in(parts.found)]
        fill(flat, 0, list(zip(plan.starts, leaves, strict=True)))


def unpack_leaves(parts: Parts, flat: torch.Tensor) -> None:
    """Copy the bytes of a buffer into the small leaves."""
    plan = parts.plan
    if plan.packing.copy(parts.found, flat, True):
        return
    with torch.no_grad():
        leaves = plan.packing.leaves_in(parts.found)
        for leaf, start in zip(leaves, plan.starts, strict=True):
            piece = flat[start : start + leaf.numel() * leaf.element_size()]
            if piece.storage_offset() % max(leaf.element_size(), 1):
                piece = piece.clone()
            copy_into(leaf, piece.view(leaf.dtype).view(leaf.shape))


def copy_into(leaf: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a source into a leaf. An expanded dimension of the leaf takes the source's first index."""
    target = leaf.detach()
    for dim, (length, stride) in enumerate(
        zip(target.shape, target.stride(), strict=True)
    ):
        if not stride and length > 1:
            target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    target.copy_(source)


# Comparing ----------------------------------------------------------------------------


def difference(mine: bytes, other: bytes, who: str) -> str:
    """Describe the first difference between the structures of this process and another.

    Args:
        mine: the text of this process's plan.
        other: the text of the other process's plan.
        who: the name of the other process, such as ``rank 1``.
    """
    specs = [_as_spec(spec) for spec in json.loads(mine)]
    others = [_as_spec(spec) for spec in json.loads(other)]
    own_by_key = {key: rest for key, *rest in specs}
    others_by_key = {key: rest for key, *rest in others}
    for key in sorted({*own_by_key, *others_by_key}):
        here, there = own_by_key.get(key), others_by_key.get(key)
        if here != there:
            return f"the entry {_shown(key)} is {_of(here)} here, and {_of(there)} in {who}"
    return f"the order of the entries differs in {who}"


def _as_spec(found: Any) -> tuple[tuple[str, ...], str, tuple[int, ...]]:
    key, dtype, shape = found
    return tuple(map(str, key)), str(dtype), tuple(map(int, shape))


def _shown(key: tuple[str, ...]) -> str:
    key = tuple(part for part in key if not part.startswith("jagged "))
    return repr(key[0] if len(key) == 1 else key)


def _of(spec: list[Any] | None) -> str:
    return "missing" if spec is None else f"{spec[0]} of the shape {list(spec[1])}"
