"""Public exceptions, and helpful parts of error messages.

Programs search for the first sentence of a message, so it stays. Further sentences say
what was found and what to do. All of this is computed after the failure, so a call that
succeeds pays nothing.
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
MSG_BAD_KEY = (
    "Only NestedKeys are supported: a key must be a string or a non-empty, "
    "possibly nested tuple of strings. Got key {!r}."
)

_MOST_KEYS = 200
"""With more keys than this, no similar keys are searched: it would take long."""


class KeyMessageError(KeyError):
    """A :class:`KeyError` that prints its message as it is.

    A plain ``KeyError`` prints the ``repr`` of its message, with quotes and escapes.
    """

    def __str__(self) -> str:
        """Return the message without quotes and escapes."""
        return str(self.args[0]) if len(self.args) == 1 else super().__str__()


class MissingKeyError(KeyMessageError):
    """The error of a missing key. Its message lists the keys and suggests similar ones.

    Examples:
        >>> td = TensorDict(reward=torch.zeros(3))
        >>> try:
        ...     td["rewrad"]
        ... except KeyError as error:
        ...     print(error)
        key "rewrad" not found in TensorDict with keys ['reward']. Did you mean 'reward'?
    """


class KeyThroughLeafError(MissingKeyError, ValueError):
    """The error of a nested key that leads below a leaf.

    Examples:
        >>> td = TensorDict(reward=torch.zeros(3))
        >>> try:
        ...     td["reward", "mean"]
        ... except KeyThroughLeafError as error:
        ...     print(error)
        'reward' is a Tensor, not a tensordict, so it has no entry 'mean'.
    """


def bad_key(key: object) -> KeyError:
    """Make the error of a method that got ``key``, which is no nested key."""
    return KeyMessageError(MSG_BAD_KEY.format(key))


def absent_key(text: str) -> KeyError:
    """Make a key error that prints ``text`` as it is."""
    return KeyError(text) if torch.compiler.is_compiling() else MissingKeyError(text)


def missing_key(
    td: CollectionProtocol, key: str, path: tuple[str, ...] = (), position: int = 0
) -> KeyError:
    """Make the error of reading an entry that ``td`` lacks.

    ``path`` is the whole key of the call if it has more parts than ``key``, and
    ``position`` the place of ``key`` in it.
    """
    # Not `td.keys()`: a tensorclass field may have that name.
    keys = sorted(td._sample_entries())
    text = f'key "{key}" not found in {type(td).__name__} with keys {keys}'
    if torch.compiler.is_compiling():
        return KeyError(text)
    path = path or (key,)
    return MissingKeyError(text + _key_hints(path, position, keys, "", td))


def missing_path(td: CollectionProtocol, path: tuple[str, ...], text: str) -> KeyError:
    """Make the error with the text ``text`` for a nested key that ``td`` lacks."""
    if torch.compiler.is_compiling():
        return KeyError(text)
    for position, key in enumerate(path):
        keys = sorted(td._sample_entries())
        if key not in keys:
            return MissingKeyError(text + _key_hints(path, position, keys, text, td))
        td = td._sample_entry(key)
        if not isinstance(td, CollectionProtocol):
            break
    return MissingKeyError(text)


def missing_of_all(
    td: CollectionProtocol, path: tuple[str, ...], *, every: bool = False
) -> KeyError:
    """Make the error of a nested key that ``td`` lacks; the message lists nested keys.

    With ``every``, it lists nested keys also for a missing key of one part.
    """
    keys = sorted(td.keys(every or len(path) > 1), key=str)
    name = path[0] if len(path) == 1 else path
    text = f'key "{name}" not found in {type(td).__name__} with keys {keys}'
    return missing_path(td, path, text)


def _key_hints(
    path: tuple[str, ...],
    position: int,
    keys: Sequence[str],
    message: str,
    td: CollectionProtocol,
) -> str:
    """Suggest similar keys for the part at ``position`` of ``path``."""
    hints = []
    if len(path) > 1 and str(path) not in message:
        hints.append(f"The whole key is {path}")
    if len(keys) <= _MOST_KEYS:
        near = difflib.get_close_matches(path[position], keys)
        meant = [(*path[:position], each, *path[position + 1 :]) for each in near]
        if not near and _has_path(td, parts := tuple(path[position].split("."))):
            meant = [(*path[:position], *parts, *path[position + 1 :])]
        names = [repr(each[0] if len(each) == 1 else each) for each in meant]
        if names:
            hints.append(f"Did you mean {' or '.join(names)}?")
    text = "".join(f". {each}" for each in hints)
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
    """Make the error of a nested key whose part at ``position`` lies below a leaf."""
    text = (
        f"{path[position - 1]!r} is a {type(leaf).__name__}, not a tensordict, "
        f"so it has no entry {path[position]!r}."
    )
    if len(path) > 2:  # the first sentence names two parts only
        text += f" The whole key is {path}."
    return KeyThroughLeafError(text)


def not_an_operand(
    op: object, td: CollectionProtocol, operands: tuple[Any, ...], error: TypeError
) -> TypeError:
    """Make the error of arithmetic with an operand of a wrong type."""
    plain = (int, float, complex, torch.Tensor, CollectionProtocol)
    if all([isinstance(operand, plain) for operand in operands]):
        return error
    op = getattr(op, "func", op)
    name = getattr(op, "__name__", "the operation").removeprefix("_foreach_").strip("_")
    kinds = ", ".join(type(each).__name__ for each in (td, *operands))
    return TypeError(
        f"{name}() received an invalid combination of arguments - got ({kinds}): an "
        "operand must be a number, a tensor or a tensordict."
    )


def not_a_mapping(source: object) -> AttributeError:
    """Make the error of an update from an object without entries."""
    return AttributeError(
        f"'{type(source).__name__}' object has no attribute 'items': update() takes a "
        f"tensordict or a mapping, not {source!r:.50}."
    )


def keyed(error: RuntimeError, key: object) -> RuntimeError:
    """Record the key of the entry that caused an error and that its text names."""
    path = key if isinstance(key, tuple) else (key,)
    error._at_entry = (str(error), path)  # type: ignore[attr-defined]
    return error


def at_key(error: Exception, key: object) -> Exception:
    """Add to an error the key of the entry that caused it.

    Each level of nesting adds its key in front. An error of another class than
    ``RuntimeError``, or a subclass of the user's, stays as it is.
    """
    if type(error) is not RuntimeError or len(error.args) != 1:
        return error
    text, path = getattr(error, "_at_entry", (str(error), ()))
    path = (*(key if isinstance(key, tuple) else (key,)), *path)
    error._at_entry = (text, path)  # type: ignore[attr-defined]
    name = f"key is {path[0]!r}" if len(path) == 1 else f"whole key is {path}"
    error.args = (f"{text.rstrip('. ')}. The {name}.",)
    return error


def at_value(error: Any, *keys: str) -> None:
    """Add to a pickling error the key of the entry, if the error accepts another text.

    Each level of nesting adds its key in front.
    """
    if len(error.args) != 1 or not isinstance(error.args[0], str):
        return
    with contextlib.suppress(AttributeError):
        text, path = getattr(error, "_at_entry", (error.args[0], ()))
        path = (*keys, *path)
        error._at_entry = (text, path)
        if path:
            name = path[0] if len(path) == 1 else path
            advice = "Save its parts instead, or leave the entry out (exclude)."
            error.args = (f"{text}. The object is the entry {name!r}. {advice}",)


def below(error: Exception, key: object) -> Exception:
    """Add the key to an error that :func:`at_key` handled, and to no other."""
    return at_key(error, key) if hasattr(error, "_at_entry") else error


def locked_error(td: CollectionProtocol) -> RuntimeError:
    """Make the error of adding or removing entries of the locked ``td``."""
    if torch.compiler.is_compiling():
        return RuntimeError(MSG_LOCKED)
    return RuntimeError(f"{MSG_LOCKED} {_why_locked(td)}")


def graph_error(td: CollectionProtocol, parent: CollectionProtocol) -> RuntimeError:
    """Make the error of unlocking ``td`` alone if the locked ``parent`` contains it."""
    if torch.compiler.is_compiling():
        return RuntimeError(MSG_LOCKED_GRAPH.format(td, parent))
    return RuntimeError(MSG_LOCKED_GRAPH.format(short_name(td), short_name(parent)))


def _why_locked(td: CollectionProtocol) -> str:
    """Explain what locked ``td`` and how to unlock it."""
    inner = td.__dict__.get("_param_td", td)
    copies = "`clone(False)` returns an unlocked copy with the same leaves"
    if inner.is_memmap():
        reason = "its leaves are mapped to files"
    elif inner.is_shared():
        reason = "its leaves are in shared memory"
    else:
        parent = _locked_parent(inner)
        if parent is not None:
            return (
                f"It is locked because it is part of a locked {short_name(parent)}: "
                f"call `unlock_()` on that one. {copies}."
            )
        return f"It was locked by `lock_()`: call `unlock_()`. {copies}."
    parent = _locked_parent(inner)
    target = "" if parent is None else " on the root"
    return f"It is locked because {reason}: call `unlock_()`{target}. {copies}."


def _locked_parent(td: CollectionProtocol) -> Any:
    """Return the outermost locked tensordict that contains ``td``, if any."""
    for ref in getattr(td, "_lock_parents_weakrefs", ()):
        parent = ref()
        if parent is not None and parent.is_locked:
            return parent
    return None


def short_name(td: CollectionProtocol) -> str:
    """Return class, batch size and keys of a tensordict in one line."""
    keys = sorted(td._sample_entries(), key=str)
    shown = ", ".join(map(repr, keys[:8])) + (", ..." if len(keys) > 8 else "")
    return (
        f"{type(td).__name__} of batch size {list(td.batch_size)} with keys [{shown}]"
    )
