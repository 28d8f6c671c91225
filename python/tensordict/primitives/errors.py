"""Public exceptions, and the part of a message that helps.

The first sentence of a message stays, since programs look for it; what was found and what to
do stand behind it. All of it is put together after the failure: nothing here is on the way
of a call that succeeds.
"""

from __future__ import annotations

import contextlib
import difflib
from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KeyThroughLeafError", "MissingKeyError"]

MSG_LOCKED = (
    "Cannot modify locked TensorDict. For in-place modification, consider using the "
    "`set_()` method and make sure the key is present."
)
MSG_LOCKED_GRAPH = (
    "Cannot unlock a tensordict that is part of a locked graph. Unlock the root "
    "tensordict first. If the tensordict is part of multiple graphs, group the graphs "
    "under a common tensordict and unlock this root. self: {}, obj: {}."
)

_MOST_KEYS = 200
"""Among more keys than these no near ones are looked for: it takes a while."""


class KeyMessageError(KeyError):
    """A :class:`KeyError` whose text is its message.

    The text of a ``KeyError`` is the ``repr`` of the message, with quotes and escapes.
    """

    def __str__(self) -> str:
        """Give the message as it is."""
        return str(self.args[0]) if len(self.args) == 1 else super().__str__()


class MissingKeyError(KeyMessageError):
    """Tell that there is no entry at a key, which keys there are, and near ones.

    Examples:
        >>> td = TensorDict(reward=torch.zeros(3))
        >>> try:
        ...     td["rewrad"]
        ... except KeyError as error:
        ...     print(error)
        key "rewrad" not found in TensorDict with keys ['reward']. Did you mean 'reward'?
    """


class KeyThroughLeafError(MissingKeyError, ValueError):
    """Tell that a nested key goes on below an entry that is a leaf.

    Examples:
        >>> td = TensorDict(reward=torch.zeros(3))
        >>> try:
        ...     td["reward", "mean"]
        ... except KeyThroughLeafError as error:
        ...     print(error)
        'reward' is a Tensor, not a tensordict, so it has no entry 'mean'.
    """


def absent_key(said: str) -> KeyError:
    """Make the error with the text ``said``, which is shown as it is."""
    return KeyError(said) if torch.compiler.is_compiling() else MissingKeyError(said)


def missing_key(
    td: CollectionProtocol, key: str, path: tuple[str, ...] = (), position: int = 0
) -> KeyError:
    """Make the error of reading an entry that ``td`` does not have.

    ``path`` is the whole key that was asked for, where that has more parts than ``key``,
    which stands at ``position`` in it.
    """
    # Not `keys`: a field may have that name.
    keys = sorted(td._sample_entries())
    said = f'key "{key}" not found in {type(td).__name__} with keys {keys}'
    if torch.compiler.is_compiling():
        return KeyError(said)
    path = path or (key,)
    return MissingKeyError(said + _about_key(path, position, keys, "", td))


def missing_path(td: CollectionProtocol, path: tuple[str, ...], said: str) -> KeyError:
    """Make the error with the text ``said`` of a nested key that ``td`` does not have."""
    if torch.compiler.is_compiling():
        return KeyError(said)
    for position, key in enumerate(path):
        keys = sorted(td._sample_entries())
        if key not in keys:
            return MissingKeyError(said + _about_key(path, position, keys, said, td))
        td = td._sample_entry(key)
        if not isinstance(td, CollectionProtocol):
            break
    return MissingKeyError(said)


def missing_of_all(
    td: CollectionProtocol, path: tuple[str, ...], *, every: bool = False
) -> KeyError:
    """Make the error of a nested key that ``td`` does not have, which names nested keys.

    ``every`` names those also where the missing key has one part.
    """
    keys = sorted(td.keys(every or len(path) > 1), key=str)
    name = path[0] if len(path) == 1 else path
    said = f'key "{name}" not found in {type(td).__name__} with keys {keys}'
    return missing_path(td, path, said)


def _about_key(
    path: tuple[str, ...],
    position: int,
    keys: Sequence[str],
    said: str,
    td: CollectionProtocol,
) -> str:
    """Help to find the key that was meant: ``path`` leads to ``position`` only, in ``td``."""
    texts = []
    if len(path) > 1 and str(path) not in said:
        texts.append(f"The whole key is {path}")
    if len(keys) <= _MOST_KEYS:
        near = difflib.get_close_matches(path[position], keys)
        meant = [(*path[:position], each, *path[position + 1 :]) for each in near]
        if not near and _has_path(td, parts := tuple(path[position].split("."))):
            meant = [(*path[:position], *parts, *path[position + 1 :])]
        names = [repr(each[0] if len(each) == 1 else each) for each in meant]
        if names:
            texts.append(f"Did you mean {' or '.join(names)}?")
    text = "".join(f". {each}" for each in texts)
    return text if text.endswith("?") or not text else f"{text}."


def _has_path(td: Any, path: tuple[str, ...]) -> bool:
    """Return whether ``td`` has an entry at a nested key."""
    for key in path:
        if not isinstance(td, CollectionProtocol) or key not in td._sample_entries():
            return False
        td = td._sample_entry(key)
    return len(path) > 1


def through_leaf(
    path: tuple[str, ...], position: int, leaf: object
) -> KeyThroughLeafError:
    """Make the error of a nested key whose part at ``position`` would be in a leaf."""
    said = (
        f"{path[position - 1]!r} is a {type(leaf).__name__}, not a tensordict, "
        f"so it has no entry {path[position]!r}."
    )
    if len(path) > 2:  # the sentence names no more parts than two
        said += f" The whole key is {path}."
    return KeyThroughLeafError(said)


def not_an_operand(
    op: object, td: CollectionProtocol, operands: tuple[Any, ...], error: TypeError
) -> TypeError:
    """Make the error of arithmetic with what is no number, tensor or collection."""
    plain = (int, float, complex, torch.Tensor, CollectionProtocol)
    if all([isinstance(operand, plain) for operand in operands]):
        return error
    op = getattr(op, "func", op)
    name = getattr(op, "__name__", "the operation").removeprefix("_foreach_").strip("_")
    kinds = ", ".join(type(each).__name__ for each in (td, *operands))
    return TypeError(
        f"{name}() received an invalid combination of arguments - got ({kinds}): an "
        "operand is a number, a tensor or a collection."
    )


def not_a_mapping(source: object) -> AttributeError:
    """Make the error of an update from what has no entries."""
    return AttributeError(
        f"'{type(source).__name__}' object has no attribute 'items': update() takes a "
        f"collection or a mapping, and not {source!r:.50}."
    )


def keyed(error: RuntimeError, key: object) -> RuntimeError:
    """Note in an error whose text names the entry that caused it the key of that."""
    path = key if isinstance(key, tuple) else (key,)
    error._at_entry = (str(error), path)  # type: ignore[attr-defined]
    return error


def at_key(error: Exception, key: object) -> Exception:
    """Say in an error which entry caused it: the one at ``key``, or one below that.

    Each collection on the way adds its key in front. An error of another class than
    ``RuntimeError``, or of the user's own, stays as it is.
    """
    if type(error) is not RuntimeError or len(error.args) != 1:
        return error
    said, path = getattr(error, "_at_entry", (str(error), ()))
    path = (*(key if isinstance(key, tuple) else (key,)), *path)
    error._at_entry = (said, path)  # type: ignore[attr-defined]
    name = f"key is {path[0]!r}" if len(path) == 1 else f"whole key is {path}"
    error.args = (f"{said.rstrip('. ')}. The {name}.",)
    return error


def at_value(error: Any, *keys: str) -> None:
    """Say in an error of pickling which entry holds the value, as far as it takes a text.

    Each collection on the way adds its key in front.
    """
    if len(error.args) != 1 or not isinstance(error.args[0], str):
        return
    with contextlib.suppress(AttributeError):
        said, path = getattr(error, "_at_entry", (error.args[0], ()))
        path = (*keys, *path)
        error._at_entry = (said, path)
        if path:
            name = path[0] if len(path) == 1 else path
            advice = "save what it is made of in its place, or leave it out (exclude)."
            error.args = (f"{said}. It is the value of the entry {name!r}: {advice}",)


def below(error: Exception, key: object) -> Exception:
    """Name the key in an error that may be about something else: see :func:`at_key`."""
    return at_key(error, key) if hasattr(error, "_at_entry") else error


def locked_error(td: CollectionProtocol) -> RuntimeError:
    """Make the error of changing which entries the locked ``td`` has."""
    if torch.compiler.is_compiling():
        return RuntimeError(MSG_LOCKED)
    return RuntimeError(f"{MSG_LOCKED} {_why_locked(td)}")


def graph_error(td: CollectionProtocol, parent: CollectionProtocol) -> RuntimeError:
    """Make the error of unlocking ``td`` alone, which the locked ``parent`` holds."""
    if torch.compiler.is_compiling():
        return RuntimeError(MSG_LOCKED_GRAPH.format(td, parent))
    return RuntimeError(MSG_LOCKED_GRAPH.format(short_name(td), short_name(parent)))


def _why_locked(td: CollectionProtocol) -> str:
    """Explain what locked ``td``, and what to do about it."""
    inner = td.__dict__.get("_param_td", td)
    copies = "`clone(False)` gives an unlocked one with the same leaves"
    if inner.is_memmap():
        reason = "its leaves are mapped to files"
    elif inner.is_shared():
        reason = "its leaves are in shared memory"
    else:
        parent = _locked_parent(inner)
        if parent is not None:
            return (
                f"It is locked because it is part of a locked {short_name(parent)}: "
                f"call `unlock_()` on that one; {copies}."
            )
        return f"It was locked, as `lock_()` does: `unlock_()` opens it; {copies}."
    parent = _locked_parent(inner)
    opens = "`unlock_()` opens it" if parent is None else "`unlock_()` opens the root"
    return f"It is locked because {reason}: {opens}, and {copies}."


def _locked_parent(td: CollectionProtocol) -> Any:
    """The outermost locked collection that ``td`` is part of; None where it is the root."""
    for ref in getattr(td, "_lock_parents_weakrefs", ()):
        parent = ref()
        if parent is not None and parent.is_locked:
            return parent
    return None


def short_name(td: CollectionProtocol) -> str:
    """The class, batch size and keys of a collection, in one line."""
    keys = sorted(td._sample_entries(), key=str)
    shown = ", ".join(map(repr, keys[:8])) + (", ..." if len(keys) > 8 else "")
    return (
        f"{type(td).__name__} of batch size {list(td.batch_size)} with keys [{shown}]"
    )
