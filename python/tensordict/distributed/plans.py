"""Plans of structures: the leaves in one order, and how they go through a wire.

Leaves are in the order of their keys, level by level, members of a lazy stack one after
the other: the order of tensordict 0.15, whatever the order in which they were set. A
:class:`Plan` says which of them are packed together and which are sent as they are. It is
made once for each structure.
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
"""So many structures are remembered."""

MSG_LAYOUT = (
    "Cannot send the entry {key}, a tensor of the layout {layout}: only dense tensors and "
    "jagged ones are sent leaf by leaf. init_remote() or send the parts of it."
)

Spec = tuple[tuple[str, ...], str, tuple[int, ...]]
"""The key of a leaf, its dtype and its shape; of a jagged one also what its offsets are."""


class Packing:
    """The places of leaves in one buffer, kept for a structure.

    Args:
        numbers: which leaves of a walk are packed.
        starts: the first byte of each in the buffer.
    """

    def __init__(self, numbers: list[int], starts: list[int]) -> None:
        self._numbers = numbers
        self._native = _rust.Packing(numbers, starts)

    def leaves_in(self, found: list[torch.Tensor]) -> list[torch.Tensor]:
        """Choose the leaves that are packed."""
        return [found[number] for number in self._numbers]

    def copy(
        self, found: list[torch.Tensor], buffer: torch.Tensor, unpack: bool
    ) -> bool:
        """Copy leaves of a walk to the buffer, or with ``unpack`` from there.

        Returns:
            False, and nothing is copied, where a leaf has no plain bytes on the CPU.
        """
        return self._native.copy(found, buffer, unpack)


class Plan:
    """The way of the leaves of one structure through a wire.

    Args:
        specs: the leaves in their order.
        order: for each of them its place among the leaves of the walk.
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
        """Give leaves of the plan their first bytes in a buffer."""
        return Packing([self.order[place] for place in places], starts)

    def describe_as(self, specs: list[Spec]) -> None:
        """Set what is compared with the structure of another process."""
        self.text: bytes = json.dumps(specs).encode()
        self.digest: bytes = hashlib.blake2b(self.text, digest_size=16).digest()


class Parts(NamedTuple):
    """The leaves of a collection, and what else is in it."""

    plan: Plan
    found: list[torch.Tensor]
    """The leaves as the walk met them, detached where they are not plain."""
    values: list[tuple[tuple[str, ...], Any]]
    """The collections of values that are no tensors, by their keys."""
    views: list[tuple[int, Any, str]]
    """Leaves that are read as copies: their place, and the collection and key to write to."""

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The leaves in the order of the plan."""
        return [self.found[number] for number in self.plan.order]

    def leaf(self, place: int) -> torch.Tensor:
        """Get one of the leaves, by its place in the plan."""
        return self.found[self.plan.order[place]]


_PLANS: dict[Any, Plan] = {}


def _plan(known: object, specs: list[Spec], order: list[int]) -> Plan:
    plan = Plan(specs, order)
    if len(_PLANS) >= MAX_PLANS:
        _PLANS.pop(next(iter(_PLANS)), None)
    _PLANS[known] = plan
    return plan


def parts_of(td: CollectionProtocol) -> Parts:
    """Find the leaves of a collection, and the plan of its structure.

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
    known = tuple(walk.specs)
    plan = _PLANS.get(known) or _plan(known, walk.specs, list(range(len(walk.specs))))
    return Parts(plan, walk.leaves, walk.values, walk.views)


def _paths(td: CollectionProtocol, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """List the keys of the leaves of a plain collection, as they were set."""
    for key, value in td._entries().items():
        if isinstance(value, CollectionProtocol):
            yield from _paths(value, (*path, key))
        else:
            yield (*path, key)


class _Whole(NamedTuple):
    """The buffer of a structure, were it consolidated."""

    plan: Plan
    packing: Packing


_WHOLE: dict[bytes, _Whole] = {}


def buffer_of(td: Any) -> Parts | None:
    """Take the buffer of a consolidated collection as the only leaf: all leaves at once.

    Returns:
        None if the collection is not consolidated, or was changed since.
    """
    state = td._consolidated_home()._consolidated
    if state is None:
        return None
    checked = _rust.wire_places(td)
    # Plain leaves of the same keys, dtypes and shapes at the same places are the same
    # bytes of the buffer, which the state holds; this costs a hundredth of a description.
    if checked is None or checked != state.get("wire_checked"):
        if consolidated.state_of(td) is None:
            return None
        state["wire_checked"] = checked
    return _buffer_in(state)


def new_buffer_of(td: Any) -> Parts:
    """Make the buffer that a collection has when it is consolidated, as the only leaf."""
    found = _rust.wire_layout(td)
    if found is not None:
        text, leaves = found
        known = _WHOLE.get(text)
        if known is not None:
            buffer = torch.zeros(known.plan.num_bytes[0], dtype=torch.uint8)
            if known.packing.copy(leaves, buffer, False):
                return Parts(known.plan, [buffer], [], [])
    made = td.consolidate()
    parts = _buffer_in(made._consolidated_home()._consolidated)
    checked = _rust.wire_places(made)
    if found is not None and checked is not None and checked[0] == found[0]:
        first = parts.found[0].data_ptr()
        # A leaf without elements has no first byte.
        places: Any = memoryview(checked[1])
        starts = [max(place - first, 0) for place in places.cast("N")]
        packing = Packing(list(range(len(starts))), starts)
        if len(_WHOLE) >= MAX_PLANS:
            _WHOLE.pop(next(iter(_WHOLE)), None)
        _WHOLE[found[0]] = _Whole(parts.plan, packing)
    return parts


def _buffer_in(state: dict[str, Any]) -> Parts:
    buffer = state["storage"]
    plan = state.get("wire_plan")
    if plan is None:
        plan = Plan([(("buffer",), "uint8", tuple(buffer.shape))], [0])
        rows = describing.keyed_rows(state["metadata"], ())
        # The place of each leaf is a part of the structure.
        specs: list[Spec] = [
            ((key,), row[0].removeprefix("torch."), (*row[1], row[2]))
            for key, row in rows
        ]
        plan.describe_as(specs)
        state["wire_plan"] = plan
    return Parts(plan, [buffer], [], [])


class Walk:
    """Collects the leaves of a collection of any kind."""

    def __init__(self) -> None:
        self.leaves: list[torch.Tensor] = []
        self.specs: list[Spec] = []
        self.values: list[tuple[tuple[str, ...], Any]] = []
        self.views: list[tuple[int, Any, str]] = []

    def enter(self, td: Any, path: tuple[str, ...]) -> None:
        """Take all that is in a collection."""
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
        """Take a leaf."""
        ragged: tuple[str, ...] = ()
        if is_sharded(leaf):
            leaf = leaf.to_local()
        if leaf.layout == torch.jagged:
            # Offsets stay: they are a part of the structure, as shapes are.
            offsets = [leaf.offsets(), leaf.lengths()]
            content = [None if each is None else each.tolist() for each in offsets]
            text = json.dumps([*content, leaf._ragged_idx]).encode()
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
    """Copy from a buffer of bytes to the small leaves."""
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
    """Write to a leaf, which may be expanded: then all its elements are given one value."""
    target = leaf.detach()
    for dim, (length, stride) in enumerate(
        zip(target.shape, target.stride(), strict=True)
    ):
        if not stride and length > 1:
            target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    target.copy_(source)


# Comparing ----------------------------------------------------------------------------


def difference(mine: bytes, other: bytes, who: str) -> str:
    """Say what differs first between the structures of this process and another.

    Args:
        mine: the text of the plan of this process.
        other: that of the other one.
        who: the name of the other one, such as ``rank 1``.
    """
    specs = [_as_spec(each) for each in json.loads(mine)]
    others = [_as_spec(each) for each in json.loads(other)]
    own_by_key = {key: rest for key, *rest in specs}
    others_by_key = {key: rest for key, *rest in others}
    for key in sorted({*own_by_key, *others_by_key}):
        here, there = own_by_key.get(key), others_by_key.get(key)
        if here != there:
            return f"the entry {_shown(key)} is {_of(here)} here, and {_of(there)} in {who}"
    return f"the order of the entries is another one in {who}"


def _as_spec(found: Any) -> tuple[tuple[str, ...], str, tuple[int, ...]]:
    key, dtype, shape = found
    return tuple(map(str, key)), str(dtype), tuple(map(int, shape))


def _shown(key: tuple[str, ...]) -> str:
    key = tuple(part for part in key if not part.startswith("jagged "))
    return repr(key[0] if len(key) == 1 else key)


def _of(spec: list[Any] | None) -> str:
    return "missing" if spec is None else f"{spec[0]} of the shape {list(spec[1])}"
