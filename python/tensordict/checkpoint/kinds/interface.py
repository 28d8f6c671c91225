"""The interface of a kind of item, and the table of kinds."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeAlias

from tensordict.storage.encoding import Encoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict.checkpoint.restoring import Restoring
    from tensordict.storage.encoding import Decoder

__all__ = ["Kind", "Saving", "kind_named", "kind_of", "loading_kind", "register_kind"]

MSG_UNKNOWN = (
    "Cannot restore {!r}: it was saved as a {!r}, a kind of item that is not registered "
    "here. Call tensordict.checkpoint.register_kind first. Nothing was changed."
)


Item: TypeAlias = Any
"""An object of the program: of one kind, which knows its class."""

State: TypeAlias = Any
"""Tensors, collections and plain data, as a kind of item saves and restores them."""


class Saving:
    """An item that is being described, and what its kind may need to know.

    Args:
        name: the name of the item.
        trainable_only: whether parameters that need no gradient are left out.
        parameters: item and name of the parameters of all modules, by ``id``.
    """

    def __init__(
        self,
        name: str,
        *,
        trainable_only: bool = False,
        parameters: Mapping[int, tuple[str, str]] | None = None,
    ) -> None:
        self.name = name
        self.trainable_only = trainable_only
        self.parameters: Mapping[int, tuple[str, str]] = parameters or {}
        self.encoder: Encoder = Encoder(name)
        """Makes JSON of values, and takes their tensors."""
        self.files: list[tuple[str, bytes]] = []
        """Names and bytes of further files of the step."""
        self.buffers: frozenset[str] = frozenset()
        """The names of the buffers of a module."""


class Kind:
    """A kind of item: how one is saved and restored.

    A class of your own says with :meth:`matches` which objects are of the kind, and with
    :meth:`state` and :meth:`set_state` what is saved of one: tensors, collections and plain
    data. :func:`register_kind` makes it known.

    Examples:
        >>> import tempfile
        >>> from tensordict.checkpoint import Checkpointer, Kind, register_kind
        >>> class Vocabulary:
        ...     def __init__(self, *words):
        ...         self.words = list(words)
        >>> class VocabularyKind(Kind):
        ...     name = "vocabulary"
        ...
        ...     def matches(self, item):
        ...         return isinstance(item, Vocabulary)
        ...
        ...     def state(self, item):
        ...         return {"words": item.words}
        ...
        ...     def set_state(self, item, state):
        ...         item.words = state["words"]
        >>> register_kind(VocabularyKind())
        >>> checkpointer = Checkpointer(tempfile.mkdtemp())
        >>> path = checkpointer.save(1, words=Vocabulary("a", "b"))
        >>> fresh = Vocabulary()
        >>> checkpointer.restore(words=fresh)
        {}
        >>> fresh.words
        ['a', 'b']
    """

    name: str = ""
    """The name that files have for the kind."""

    is_exact: bool = True
    """True if an item is restored only from one of the same kind."""

    is_shared: bool = False
    """True if all ranks have the item together, and each saves a part of it. Otherwise
    each rank has an item of its own."""

    def matches(self, item: object) -> bool:
        """Return whether an item is of this kind."""
        raise NotImplementedError

    def state(self, item: Item) -> Any:
        """Return what is saved of an item: tensors, collections and plain data."""
        raise NotImplementedError

    def set_state(self, item: Item, state: State) -> None:
        """Give an item the state that was saved of one."""
        raise NotImplementedError

    def describe(self, item: Item, saving: Saving) -> dict[str, Any]:
        """Return what JSON says of an item, whose tensors ``saving.encoder`` takes.

        Raises:
            TypeError: it holds something that a checkpoint cannot.
        """
        return {"value": saving.encoder.encode(self.state(item))}

    def prepare(
        self, item: Item, name: str, about: Mapping[str, Any], restoring: Restoring
    ) -> None:
        """Read and compare, and say how the item changes: nothing is changed yet.

        Raises:
            RuntimeError: the item differs from what was saved.
        """
        own = self.state(item)
        value = restoring.value(name, about, like=own)
        before = copy.deepcopy(own)
        restoring.add(
            lambda: self.set_state(item, value), lambda: self.set_state(item, before)
        )

    def load(self, about: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return what was saved, where there is no item to restore."""
        return decoder.decode(about["value"])

    def part_of_rank(self, about: dict[str, Any], rank: int) -> dict[str, Any]:
        """Return what the description of a rank says: of what all share rank 0 says all."""
        return {"kind": self.name} if self.is_shared and rank else dict(about)

    def merged(self, item: str, abouts: Mapping[int, Any]) -> dict[str, Any]:
        """Join the descriptions of ranks whose parts of a shared item differ.

        Args:
            item: the name of the item.
            abouts: descriptions by the rank.
        """
        return dict(abouts[min(abouts)])


_KINDS: dict[str, Kind] = {}
_ORDER: list[Kind] = []


def register_kind(kind: Kind, *, is_last: bool = False) -> None:
    """Make a kind of item known; it is asked before those that are known.

    Args:
        kind: the kind, in the place of one with its name.
        is_last: whether it is asked after those that are known.
    """
    if not kind.name:
        raise ValueError(
            f"{type(kind).__name__} has no name: set the attribute `name`."
        )
    old = _KINDS.get(kind.name)
    if old is not None:
        _ORDER.remove(old)
    _KINDS[kind.name] = kind
    _ORDER.insert(len(_ORDER) if is_last else 0, kind)


def kind_of(item: object) -> Kind:
    """Return the kind of an item, which decides how it is saved and restored."""
    return next(kind for kind in _ORDER if kind.matches(item))


def loading_kind(name: str) -> Kind:
    """Return the kind of an item that is loaded without an object to restore."""
    return _KINDS.get(name) or Kind()


def kind_named(name: str, item: str) -> Kind:
    """Return the kind of an item that was saved.

    Raises:
        RuntimeError: there is none of that name.
    """
    try:
        return _KINDS[name]
    except KeyError:
        raise RuntimeError(MSG_UNKNOWN.format(item, name)) from None
