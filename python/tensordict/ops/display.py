"""The printed forms of a tensordict."""

from __future__ import annotations

import types
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.nn.parameter import is_lazy

# Torch's base class of context managers that are also decorators.
from torch.utils._contextlib import _DecoratorContextManager

from tensordict.primitives.metatensor import MetaTensor
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import is_shared_class, shown_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DisplayOps",
    "describe_fields",
    "get_printoptions",
    "readable",
    "set_printoptions",
]

LINE_WIDTH = 80

_VERBOSE = (
    "show_device",
    "show_is_shared",
    "show_field_device",
    "show_dtype",
    "show_field_is_shared",
)
"""The options that ``verbose=False`` turns off."""

_ONLY_LONG = frozenset(
    {
        "plain",
        "show_field_device",
        "show_field_is_shared",
        "show_grad",
        "show_is_contiguous",
        "show_is_shared",
        "show_is_view",
        "show_shape",
        "show_storage_size",
    }
)
"""Options of the long form only. Passing one of them selects the long form."""

# The mapping is replaced, never changed, so that a reader in another thread sees either
# all old or all new options.
_options: types.MappingProxyType[str, Any] = types.MappingProxyType(
    {
        "show_batch_size": True,
        "show_device": True,
        "show_is_shared": True,
        "show_shape": True,
        "show_field_device": True,
        "show_dtype": True,
        "show_field_is_shared": True,
        "show_grad": False,
        "show_is_contiguous": False,
        "show_is_view": False,
        "show_storage_size": False,
        "plain": False,
        "sort_keys": "alphabetical",
        "compact": False,
        "html": True,
    }
)


def get_printoptions() -> dict[str, Any]:
    """Return a copy of the options for the :func:`repr` of tensordicts.

    Examples:
        >>> get_printoptions()["compact"]
        False
    """
    return dict(_options)


class set_printoptions(_DecoratorContextManager):  # noqa: N801 - a public name
    """Set how tensordicts print: permanently, or as a context manager or decorator.

    The options take effect at once. At the end of a ``with`` statement, and outside of
    a decorated function, the previous options are restored. Options that are not passed
    do not change.

    Args:
        verbose: False to leave out devices, dtypes and ``is_shared``, except for those
            passed explicitly.
        **kwargs: any of

            - ``compact``: use the short form. Default: False if an option of the long
              form is passed, otherwise unchanged.
            - ``show_batch_size``, ``show_device``, ``show_is_shared``: for a tensordict.
            - ``show_shape``, ``show_field_device``, ``show_dtype``,
              ``show_field_is_shared``, ``show_grad``, ``show_is_contiguous``,
              ``show_is_view``, ``show_storage_size``: for a leaf.
            - ``plain``: show a summary of each leaf's values.
            - ``sort_keys``: ``"alphabetical"``; any other value keeps the order of the
              entries.
            - ``html``: show a tree in notebooks.

    Raises:
        TypeError: an option does not exist.

    Examples:
        >>> td = TensorDict(a=torch.zeros(3, 2), batch_size=[3])
        >>> with set_printoptions(compact=True):
        ...     print(td)
        TensorDict(batch_size=[3], fields={a: f32[2]})
        >>> options = set_printoptions(compact=True)
        >>> print(td)
        TensorDict(batch_size=[3], fields={a: f32[2]})
        >>> options = set_printoptions(compact=False)
    """

    def __init__(self, *, verbose: bool = True, **kwargs: Any) -> None:
        super().__init__()
        unknown = set(kwargs) - set(_options)
        if unknown:
            msg = f"Unknown printoptions: {unknown}. Valid options: {sorted(_options)}"
            raise TypeError(msg)
        self._kwargs = (
            kwargs if verbose else {**dict.fromkeys(_VERBOSE, False), **kwargs}
        )
        if "compact" not in kwargs and not _ONLY_LONG.isdisjoint(kwargs):
            self._kwargs = {**self._kwargs, "compact": False}
        self._before: list[types.MappingProxyType[str, Any]] = []
        self._at_first: types.MappingProxyType[str, Any] | None = _options
        self.set()
        self._made = _options

    def clone(self) -> Self:
        """Return a new context manager with the same options for a decorated call."""
        return type(self)(**self._kwargs)

    def set(self) -> None:
        """Set the options permanently, as the constructor does."""
        global _options  # noqa: PLW0603 - replaced as a whole, see above
        _options = types.MappingProxyType({**_options, **self._kwargs})

    def __call__(self, orig_func: Any) -> Any:
        """Decorate a function; the options apply inside of it only."""
        self._restore()
        return super().__call__(orig_func)

    def _restore(self) -> None:
        """Restore the options from before the constructor, if they did not change."""
        global _options  # noqa: PLW0603
        if self._at_first is not None and _options is self._made:
            _options = self._at_first
        self._at_first = None

    def __enter__(self) -> None:
        self._restore()
        self._before.append(_options)
        self.set()

    def __exit__(self, *exception: object) -> None:
        global _options  # noqa: PLW0603
        _options = self._before.pop()


get_printoptions.__module__ = set_printoptions.__module__ = "tensordict.utils"


class DisplayOps(CollectionProtocol):
    """The printed forms of a tensordict."""

    def __repr__(self) -> str:
        """Return class, entries, batch size and device; see :class:`set_printoptions`.

        Examples:
            >>> TensorDict(a=torch.zeros(3, 2), batch_size=[3])
            TensorDict(
                fields={
                    a: Tensor(shape=torch.Size([3, 2]), device=cpu, dtype=torch.float32, is_shared=False)},
                batch_size=torch.Size([3]),
                device=None,
                is_shared=False)
        """
        if _options["compact"]:
            return self._repr_compact()
        parts = ",\n".join(self._repr_parts())
        return f"{type(self).__name__}(\n{parts})"

    def _repr_parts(self) -> list[str]:
        """Return the indented lines of the long form, from ``fields=`` on."""
        fields = _fields_part("fields", self._repr_entries(), _options)
        return [fields, *self._repr_properties()]

    def _repr_properties(self) -> list[str]:
        """Return the lines of the long form below the fields."""
        parts = []
        if _options["show_batch_size"]:
            parts.append(f"    batch_size={self.batch_size}")
        if _options["show_device"]:
            parts.append(f"    device={self.device}")
        if _options["show_is_shared"]:
            parts.append(f"    is_shared={self.is_shared()}")
        return parts

    def _repr_compact(self) -> str:
        """Return the short form: one line if it has at most 80 characters."""
        head = ", ".join([*self._repr_head(), "fields={"])
        children = _compact_children(self, _options)
        return _layout(f"{type(self).__name__}({head}", children, "})", 0, 0)

    def _repr_head(self) -> list[str]:
        """Return the parts of the short form before the fields."""
        head = []
        if _options["show_batch_size"]:
            head.append(f"batch_size={_shape(self.batch_size)}")
        if _options["show_device"] and self.device is not None:
            head.append(f"device={self.device}")
        return head

    def _repr_entries(self) -> list[tuple[str, Any]]:
        """Return the direct entries in the order of printing."""
        entries = list(self._entries().items())
        if _options["sort_keys"] == "alphabetical":
            entries.sort(key=lambda entry: entry[0])
        return entries

    def _repr_exclusive(self) -> list[tuple[int, list[tuple[str, Any]]]]:
        """Return the members of a lazy stack with entries that some members lack."""
        return []

    def _repr_html_(self) -> str | None:
        """Return a collapsible HTML tree for notebooks; None if ``html`` is off."""
        if not _options["html"]:
            return None
        from tensordict.ops.notebook import html_tree

        return html_tree(self)

    def __rich__(self) -> object:
        """Return the tree that the library ``rich`` prints."""
        from tensordict.ops.notebook import rich_tree

        return rich_tree(self)


# The long form ---------------------------------------------------------------------


def _fields_part(
    label: str,
    entries: list[tuple[str, Any]],
    options: types.MappingProxyType[str, Any],
) -> str:
    fields = ",\n".join(
        _indented(f"{key}: {_describe(value, options)}", 8) for key, value in entries
    )
    return f"    {label}={{\n{fields}}}" if fields else f"    {label}={{\n    }}"


def describe_fields(entries: list[tuple[str, Any]]) -> list[str]:
    """Return an indented ``name=value`` for each field of a tensorclass."""
    return [
        _indented(f"{name}={_describe(value, _options)}", 4) for name, value in entries
    ]


def _indented(text: str, width: int) -> str:
    return "\n".join(" " * width + line for line in text.split("\n"))


def _describe(value: object, options: types.MappingProxyType[str, Any]) -> str:
    """Return one entry of the long form: a nested tensordict or a leaf."""
    if isinstance(value, CollectionProtocol):
        text, name = repr(value), value._printed_nested_as
        return text if name is None else name + text.removeprefix(type(value).__name__)
    if isinstance(value, MetaTensor):
        return _describe_meta(value, options)
    if not isinstance(value, torch.Tensor):
        return repr(value)
    parts = []
    if options["show_shape"]:
        parts.append(f"shape=torch.Size({_known_shape(value)})")
    if options["show_field_device"]:
        parts.append(f"device={value.device}")
    if options["show_dtype"]:
        parts.append(f"dtype={value.dtype}")
    if options["show_field_is_shared"]:
        parts.append(f"is_shared={_or_unknown(methodcaller('is_shared'), value)}")
    if options["show_grad"]:
        parts.append(f"requires_grad={value.requires_grad}")
    if options["show_is_contiguous"]:
        parts.append(
            f"is_contiguous={_or_unknown(methodcaller('is_contiguous'), value)}"
        )
    if options["show_is_view"]:
        parts.append(f"is_view={_or_unknown(methodcaller('_is_view'), value)}")
    if options["show_storage_size"]:
        parts.append(f"storage_size={_or_unknown(_storage_bytes, value)}")
    if options["plain"]:
        parts.append(_summary(value))
    return f"{type(value).__name__}({', '.join(parts)})"


def _describe_meta(value: MetaTensor, options: types.MappingProxyType[str, Any]) -> str:
    """Return one entry of a lazy stack, without making its tensor."""
    parts = []
    if options["show_shape"]:
        parts.append(f"shape={value.shape}")
    if options["show_field_device"]:
        parts.append(f"device={value.device}")
    if options["show_dtype"]:
        parts.append(f"dtype={value.dtype}")
    if options["show_field_is_shared"]:
        parts.append(f"is_shared={value.is_shared()}")
    if options["show_grad"]:
        parts.append(f"requires_grad={value.requires_grad}")
    return f"{value._class.__name__}({', '.join(parts)})"


def _or_unknown(question: Any, value: torch.Tensor) -> Any:
    """Call ``question``; return None if the tensor has no storage to ask about."""
    try:
        return question(value)
    except (NotImplementedError, RuntimeError, ValueError):
        return None


def _storage_bytes(value: torch.Tensor) -> int:
    return value.untyped_storage().nbytes()


def _known_shape(value: Any) -> list[Any]:
    """Return the shape, with -1 for ragged dims; ``[-1]`` if uninitialized."""
    if is_lazy(value):
        return [-1]
    return shown_shape(value)


def _summary(value: torch.Tensor) -> str:
    """Return mean and standard deviation of floats, or the range of integers."""
    if is_lazy(value) or value.is_meta:
        return "values unknown"
    if not value.numel():
        return "[]"
    if value.is_floating_point() or value.is_complex():
        value = value.detach()
        mean = value.mean().item()
        std = value.std().item() if value.numel() > 1 else float("nan")
        return f"mean={mean:.4g}, std={std:.4g}"
    return f"min={value.min().item()}, max={value.max().item()}"


# The short form --------------------------------------------------------------------

_SHORT_KINDS = (
    ("bfloat", "bf"),
    ("float", "f"),
    ("complex", "c"),
    ("uint", "u"),
    ("quint", "qu"),
    ("qint", "qi"),
    ("int", "i"),
)


def _short_dtype(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    for kind, short in _SHORT_KINDS:
        if name.startswith(kind):
            return short + name.removeprefix(kind)
    return name


def _shape(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


class PrintedEntry:
    """An entry with its own text in the short form.

    Args:
        value: the entry, which the long form prints.
        short: its text in the short form.
    """

    def __init__(self, value: Any, short: str) -> None:
        self.value = value
        self.short = short

    def __repr__(self) -> str:
        return repr(self.value)


def _ignores_batch_size(value: object) -> bool:
    """Return whether an entry ignores the batch size: its whole shape prints."""
    kind = value._class if isinstance(value, MetaTensor) else type(value)
    return is_shared_class(kind)


def _compact_leaf(
    value: object, parent: CollectionProtocol, options: types.MappingProxyType[str, Any]
) -> str:
    if isinstance(value, PrintedEntry):
        return value.short
    if not isinstance(value, (torch.Tensor, MetaTensor)):
        return repr(value)
    shape = _known_shape(value)
    feature_shape = shape[len(parent.batch_size) :]
    is_own = (
        len(shape) < len(parent.batch_size)
        or shape == [-1]
        or _ignores_batch_size(value)
    )
    text = _shape(shape if is_own else feature_shape)
    if options["show_dtype"]:
        text = _short_dtype(value.dtype) + text
    device = parent.device
    usual = value.device.type == "cpu" if device is None else value.device == device
    if options["show_field_device"] and not usual:
        text += f"@{value.device}"
    return text


def _nested_label(key: str, value: Any, parent: Any) -> str:
    """Return a nested tensordict's class, if unusual, and additional batch dims."""
    own = value.batch_size[len(parent.batch_size) :]
    name = parent._nested_class(key, value).__name__
    return ("" if name == "TensorDict" else name) + (_shape(own) if own else "")


def _compact_children(
    td: CollectionProtocol, options: types.MappingProxyType[str, Any]
) -> list[Any]:
    """Return a text for each entry, or (opening text, children) for a nested one."""
    children: list[Any] = []
    for key, value in td._repr_entries():
        text = value._repr_short() if isinstance(value, CollectionProtocol) else None
        if text is not None:
            children.append(f"{key}: {text}")
        elif isinstance(value, CollectionProtocol):
            opening = f"{key}: {_nested_label(key, value, td)}{{"
            children.append((opening, _compact_children(value, options)))
        else:
            children.append(f"{key}: {_compact_leaf(value, td, options)}")
    return children


def _flat(child: str | tuple[str, list[Any]]) -> str:
    if isinstance(child, str):
        return child
    return f"{child[0]}{', '.join(map(_flat, child[1]))}}}"


def _layout(
    opening: str, children: list[Any], closing: str, indent: int, tail: int
) -> str:
    """Lay out on one line if it fits with ``tail`` more characters, else on several."""
    line = f"{opening}{', '.join(map(_flat, children))}{closing}"
    if not children or indent + len(line) + tail <= LINE_WIDTH:
        return line
    indent += 4
    lines = []
    for position, child in enumerate(children, 1):
        is_last = position == len(children)
        after = len(closing) + tail if is_last else 1
        if not isinstance(child, str):
            child = _layout(child[0], child[1], "}", indent, after)
        lines.append(" " * indent + child)
    return f"{opening}\n" + ",\n".join(lines) + closing


# Both forms ------------------------------------------------------------------------


def readable(num_bytes: float) -> str:
    """Return a number of bytes for people: ``1.5 MiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while num_bytes >= 1024 and power < len(units) - 1:
        num_bytes /= 1024
        power += 1
    return f"{num_bytes:.{min(power, 1)}f} {units[power]}"
