"""Lookup of the class that a directory was saved from.

Metadata names classes as strings. A name is only compared with existing classes:
nothing is imported by a name from a file.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "class_text",
    "dense_root",
    "find_class",
    "is_dense_class",
    "known_texts",
    "register_class",
    "register_family",
    "type_text",
]

_CLASSES: dict[str, type] = {}
"""Classes by the strings that name them in files: ``_class`` and ``_type``."""

_ROOTS: list[type] = []
"""Classes whose subclasses have their own layouts and are found by their names."""

_DENSE_TEXTS: list[str] = []
"""The names of the classes whose directories have the layout with a batch size."""


def type_text(cls: type) -> str:
    """Return the name of a class that every version writes: ``_type``."""
    return f"<class '{cls.__module__}.{cls.__qualname__}'>"


def class_text(cls: type) -> str:
    """Return the name of a class that version 1 writes: ``_class``."""
    public: str | None = cls.__dict__.get("_public_class_text")
    return public or f"{cls.__module__}:{cls.__qualname__}"


def register_class(cls: type, public_module: str, *aliases: str, dense: bool) -> None:
    """Make a class known to the loader.

    Args:
        cls: the class.
        public_module: the module in ``_class``.
        *aliases: further names of the class in older files.
        dense: whether its directories have the layout with a batch size.
    """
    cls._public_class_text = f"{public_module}:{cls.__qualname__}"  # type: ignore[attr-defined]
    texts = [class_text(cls), type_text(cls), *aliases]
    _CLASSES.update(dict.fromkeys(texts, cls))
    if dense:
        _DENSE_TEXTS.extend(texts)


def register_family(root: type) -> None:
    """Make all subclasses of ``root``, present and future, known to the loader."""
    _ROOTS.append(root)


def dense_root() -> type:
    """Return the dense class, from which programs derive subclasses."""
    return _CLASSES[_DENSE_TEXTS[0]]


def is_dense_class(cls: type) -> bool:
    """Return whether a class is the dense class or a subclass of it."""
    return issubclass(cls, dense_root())


def known_texts() -> list[str]:
    """Return the names of all classes of the layout with a batch size."""
    texts = list(_DENSE_TEXTS)
    for cls in _family(dense_root()):
        texts += (class_text(cls), type_text(cls))
    return texts


def find_class(
    requested: type | None,
    class_name: str | None,
    type_name: str | None,
    directory: object,
) -> Any:
    """Return the class that a directory was saved from.

    A program saves its own classes as ``__main__.Data``, also classes in functions. If
    the class has moved to an importable module, a load by the class itself reads it.

    Raises:
        RuntimeError: no class has this name.
    """
    for text in (class_name, type_name):
        if text in _CLASSES:
            return _CLASSES[text]
    if requested is not None and type_name == type_text(requested):
        return requested
    for root in (dense_root(), *_ROOTS):
        for cls in _family(root):
            if class_name == class_text(cls) or type_name == type_text(cls):
                return cls
    # ``MetaData[int]`` may not exist in this process, but is a ``MetaData``.
    plain = (type_name or "").partition("[")[0] + "'>"
    if plain in _CLASSES:
        return _CLASSES[plain]
    shown = (type_name or class_name or "?").removeprefix("<class '")
    shown = shown.removesuffix("'>")
    if requested is not None and _has_moved(requested, shown):
        return requested
    name = shown.rpartition(".")[2]
    raise RuntimeError(
        f"Could not find the class {shown} saved in {directory}. Import the module "
        f"that defines it, or call {name}.load_memmap() instead of "
        "TensorDict.load_memmap()."
    )


def _has_moved(cls: type, shown: str) -> bool:
    """Return whether ``cls`` has the qualified name in ``shown``, in another module."""
    module = shown.replace(":", ".").removesuffix(f".{cls.__qualname__}")
    return module != shown.replace(":", ".") and "<locals>" not in module


def _family(root: type) -> list[type]:
    """Return all direct and indirect subclasses."""
    subclasses: list[type] = []
    waiting: list[type] = list(root.__subclasses__())
    while waiting:
        cls = waiting.pop()
        subclasses.append(cls)
        waiting.extend(cls.__subclasses__())
    return subclasses
