"""The interface of a kind of item, and the table of all kinds."""

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
    "Cannot restore {!r}: its kind {!r} is not registered in this program. Call "
    "tensordict.checkpoint.register_kind first. Nothing was changed."
)


Item: TypeAlias = Any
"""An object of the user's program, of the class that the kind handles."""

State: TypeAlias = Any
"""The saved form of an item: tensors, collections and plain data."""


class Saving:
    """An item that is being described, with the facts that its kind may need.

    Args:
        name: the name of the item.
        trainable_only: whether to leave out parameters with ``requires_grad=False``.
        parameters: the item and name of the parameters of all modules, by ``id``.
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
        """The encoder, which converts values to JSON and collects their tensors."""
        self.files: list[tuple[str, bytes]] = []
        """Names and contents of further files of the step."""
        self.buffers: frozenset[str] = frozenset()
        """The names of a module's buffers."""


class Kind:
    """The base class for kinds of items: how to save and restore an object.

    Write a subclass to save objects of your own. Its :meth:`matches` recognizes the
    objects, :meth:`state` returns their tensors, collections and plain data, and
    :meth:`set_state` restores these. Pass an instance to :func:`register_kind`.

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
    """The name of the kind, which is saved with each item."""

    is_exact: bool = True
    """Whether an item can only be restored from an item of the same kind."""

    is_shared: bool = False
    """Whether all ranks own an item together, and each saves a part. If false, each
    rank saves its own item."""

    def matches(self, item: object) -> bool:
        """Return whether an item is of this kind."""
        raise NotImplementedError

    def state(self, item: Item) -> Any:
        """Return the state of an item: tensors, collections and plain data."""
        raise NotImplementedError

    def set_state(self, item: Item, state: State) -> None:
        """Set the state of an item to a saved state."""
        raise NotImplementedError

    def describe(self, item: Item, saving: Saving) -> dict[str, Any]:
        """Return the JSON description of an item; ``saving.encoder`` collects its tensors.

        Raises:
            TypeError: the item contains an object that a checkpoint cannot store.
        """
        return {"value": saving.encoder.encode(self.state(item))}

    def prepare(
        self, item: Item, name: str, metadata: Mapping[str, Any], restoring: Restoring
    ) -> None:
        """Read and compare the saved item, and register how the item changes.

        Nothing is changed yet.

        Args:
            item: the item to restore.
            name: the name of the item.
            metadata: the JSON that :meth:`describe` returned at the save.
            restoring: the restore, which reads tensors and collects changes.

        Raises:
            RuntimeError: the item differs from the saved one.
        """
        current = self.state(item)
        value = restoring.value(name, metadata, like=current)
        before = copy.deepcopy(current)
        restoring.add(
            lambda: self.set_state(item, value), lambda: self.set_state(item, before)
        )

    def load(self, metadata: Mapping[str, Any], decoder: Decoder) -> Any:
        """Return the saved state, when there is no item to restore.

        Args:
            metadata: the JSON that :meth:`describe` returned at the save.
            decoder: the decoder, which has the tensors of the item.
        """
        return decoder.decode(metadata["value"])

    def part_of_rank(self, metadata: dict[str, Any], rank: int) -> dict[str, Any]:
        """Return a rank's description of an item; rank 0 describes shared items for all.

        Args:
            metadata: the JSON that :meth:`describe` returned on this rank.
            rank: the index of the rank.
        """
        return {"kind": self.name} if self.is_shared and rank else dict(metadata)

    def merged(self, item: str, metadata_by_rank: Mapping[int, Any]) -> dict[str, Any]:
        """Merge the descriptions of ranks whose parts of a shared item differ.

        Args:
            item: the name of the item.
            metadata_by_rank: the JSON that :meth:`describe` returned on each rank.
        """
        return dict(metadata_by_rank[min(metadata_by_rank)])


_KINDS: dict[str, Kind] = {}
_ORDER: list[Kind] = []


def register_kind(kind: Kind, *, is_last: bool = False) -> None:
    """Register a kind of item; it is tried before the kinds that are registered already.

    Args:
        kind: the kind; it replaces a kind of the same name.
        is_last: whether it is tried after the registered kinds instead.

    Raises:
        ValueError: the kind has no name.
    """
    if not kind.name:
        raise ValueError(
            f"{type(kind).__name__} has no name: set the attribute `name`."
        )
    existing = _KINDS.get(kind.name)
    if existing is not None:
        _ORDER.remove(existing)
    _KINDS[kind.name] = kind
    _ORDER.insert(len(_ORDER) if is_last else 0, kind)


def kind_of(item: object) -> Kind:
    """Return the kind of an item, which decides how the item is saved and restored."""
    return next(kind for kind in _ORDER if kind.matches(item))


def loading_kind(name: str) -> Kind:
    """Return the kind for loading an item without an object to restore."""
    return _KINDS.get(name) or Kind()


def kind_named(name: str, item: str) -> Kind:
    """Return the kind of a saved item.

    Raises:
        RuntimeError: no kind of this name is registered.
    """
    try:
        return _KINDS[name]
    except KeyError:
        raise RuntimeError(MSG_UNKNOWN.format(item, name)) from None
