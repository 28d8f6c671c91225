"""A dense collection with declared keys."""

from __future__ import annotations

import functools
import inspect
import typing
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NotRequired,
    Self,
    cast,
    dataclass_transform,
)

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.containers.typed_links import Linked, default_of, linked
from tensordict.primitives import classes
from tensordict.primitives.checks import is_tensorclass
from tensordict.storage import pickles
from tensordict.tensorclass.fields import own_annotations, resolved_annotation
from tensordict.tensorclass.reserved import RESERVED

if TYPE_CHECKING:
    import dataclasses
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from tensordict.primitives.protocol import CollectionProtocol
    from tensordict.tensorclass.annotations import (
        BatchSizeField,
        DeviceField,
        NamesField,
    )

__all__ = ["TypedTensorDict"]

if TYPE_CHECKING:
    from abc import ABCMeta
    from typing import Literal, Protocol, overload

    class _Reduction(Protocol):
        """The type that checkers see for a reduction: ``TensorDict`` or a tensor."""

        @overload
        def __call__(
            self, *args: Any, reduce: Literal[False] | None = ..., **kwargs: Any
        ) -> TensorDict: ...
        @overload
        def __call__(
            self, *args: Any, reduce: Literal[True], **kwargs: Any
        ) -> torch.Tensor: ...

    class _Truth(Protocol):
        """The type that checkers see for ``all`` and ``any``."""

        @overload
        def __call__(self, dim: None = None) -> bool: ...
        @overload
        def __call__(self, dim: int) -> TensorDict: ...

    @dataclass_transform(
        kw_only_default=True, eq_default=False, field_specifiers=(dataclasses.field,)
    )
    class _DataclassLike(ABCMeta): ...
else:
    _DataclassLike = type(TensorDict)

OPTIONS = ("shadow", "frozen", "autocast", "nocast", "tensor_only")

MSG_OPTION = "Unknown TypedTensorDict option: {!r}. Valid options: {}"
MSG_RESERVED = (
    "Field {!r} shadows a TensorDictBase attribute. Use TypedTensorDict['shadow'] to "
    "allow this."
)
MSG_MISSING = "{}() missing required field(s): {}"
MSG_UNKNOWN = "{}() got unexpected field(s): {}"


class TypedTensorDict(TensorDict, metaclass=_DataclassLike):
    """A :class:`TensorDict` whose subclasses declare keys, which are attributes too.

    Entries are passed as keywords and checked against the declaration. A declared key
    is required unless it has a default or is ``NotRequired``; an undeclared key is an
    error. Later writes are not checked, so that operations can add and remove entries.

    Options are keywords of the class statement, or flags in brackets. ``shadow`` allows
    keys with the names of methods and attributes. ``frozen`` locks each new instance.
    ``autocast``, ``nocast`` and ``tensor_only`` are accepted for compatibility with
    tensorclasses.

    Raises:
        TypeError: a required key is missing, or a key is not declared.

    Examples:
        >>> class State(TypedTensorDict):
        ...     position: torch.Tensor
        ...     velocity: torch.Tensor | None = None
        >>> state = State(position=torch.zeros(3, 2), batch_size=[3])
        >>> state.position is state["position"], state[0].batch_size
        (True, torch.Size([]))
        >>> State(batch_size=[3])
        Traceback (most recent call last):
        TypeError: State() missing required field(s): position
    """

    __expected_keys__: ClassVar[frozenset[str]] = frozenset()
    __required_keys__: ClassVar[frozenset[str]] = frozenset()
    __optional_keys__: ClassVar[frozenset[str]] = frozenset()
    __field_defaults__: ClassVar[dict[str, Any]] = {}

    _shadow: ClassVar[bool] = False
    _frozen: ClassVar[bool] = False
    _autocast: ClassVar[bool] = False
    _nocast: ClassVar[bool] = False
    _tensor_only: ClassVar[bool] = False

    # A slot, because `__dict__` may be the state of the linked plain collection.
    __slots__ = ("_linked_to",)

    if TYPE_CHECKING:
        # Parameters of `__init__` that are not declared keys.
        _source: Mapping[Any, Any] | CollectionProtocol | None = dataclasses.field(
            kw_only=False, default=None
        )
        batch_size: BatchSizeField = dataclasses.field(  # type: ignore[override]
            kw_only=True, default=cast("Any", ...)
        )
        device: DeviceField = dataclasses.field(kw_only=True, default=cast("Any", ...))
        names: NamesField = dataclasses.field(  # type: ignore[override]
            kw_only=True, default=cast("Any", ...)
        )
        non_blocking: dataclasses.InitVar[bool | None] = None
        lock: dataclasses.InitVar[bool] = False

        # A reduced entry does not have the declared type.
        sum: ClassVar[_Reduction]  # type: ignore[assignment]
        mean: ClassVar[_Reduction]  # type: ignore[assignment]
        nansum: ClassVar[_Reduction]  # type: ignore[assignment]
        nanmean: ClassVar[_Reduction]  # type: ignore[assignment]
        prod: ClassVar[_Reduction]  # type: ignore[assignment]
        std: ClassVar[_Reduction]  # type: ignore[assignment]
        var: ClassVar[_Reduction]  # type: ignore[assignment]
        quantile: ClassVar[_Reduction]  # type: ignore[assignment]
        amax: ClassVar[_Reduction]  # type: ignore[assignment]
        amin: ClassVar[_Reduction]  # type: ignore[assignment]
        all: ClassVar[_Truth]  # type: ignore[assignment]
        any: ClassVar[_Truth]  # type: ignore[assignment]

    if not TYPE_CHECKING:

        @property
        def _source(self) -> TensorDict:
            """A plain collection with the same state as this one."""
            try:
                return self._linked_to
            except AttributeError:
                plain = TensorDict.__new__(TensorDict)
                plain.__dict__ = self.__dict__
                self._linked_to = plain
                return plain

    def __init_subclass__(cls, **options: object) -> None:
        for name in OPTIONS:
            if name in options:
                setattr(cls, f"_{name}", bool(options.pop(name)))
        super().__init_subclass__(**options)
        _declare(cls)

    @classmethod
    def __class_getitem__(cls, item: object) -> Any:
        """Return the class with options: ``TypedTensorDict["shadow"]``."""
        flags = item if isinstance(item, tuple) else (item,)
        for flag in flags:
            if flag not in OPTIONS:
                raise ValueError(MSG_OPTION.format(flag, ", ".join(OPTIONS)))
        return _with_flags(cls, flags)

    def __init__(
        self,
        _source: Mapping[Any, Any] | CollectionProtocol | None = None,
        *,
        batch_size: Sequence[int] | torch.Size | int | None = None,
        device: torch.device | str | int | None = None,
        names: Sequence[str | None] | None = None,
        non_blocking: bool | None = None,
        lock: bool = False,
        **kwargs: Any,
    ) -> None:
        cls = type(self)
        if _source is None:
            missing = cls.__required_keys__ - kwargs.keys()
            if missing:
                text = ", ".join(sorted(missing))
                raise TypeError(MSG_MISSING.format(cls.__name__, text))
            unknown = kwargs.keys() - cls.__expected_keys__
            if unknown:
                text = ", ".join(sorted(unknown))
                raise TypeError(MSG_UNKNOWN.format(cls.__name__, text))
            _source = kwargs
        size = () if batch_size is None else batch_size
        _rust.init(self, _source, size, device, names, bool(non_blocking))
        if lock or cls._frozen:
            self.lock_()

    @classmethod
    def from_tensordict(cls, td: Any, *, check: bool = True) -> Self:
        """Make a typed collection that shares its state with ``td``.

        A change of one, such as a new entry or a lock, is a change of both.

        Args:
            td: a collection, also a lazy stack or a view. Undeclared keys are allowed.
            check: whether a missing required key is an error.

        Raises:
            TypeError: a required key is missing.

        Examples:
            >>> class State(TypedTensorDict):
            ...     position: torch.Tensor
            >>> td = TensorDict(position=torch.zeros(3), batch_size=[3])
            >>> State.from_tensordict(td).position is td["position"]
            True
        """
        present_keys = set(td.keys())
        missing = cls.__required_keys__ - present_keys
        if check and missing:
            name = f"{cls.__name__}.from_tensordict"
            raise TypeError(MSG_MISSING.format(name, ", ".join(sorted(missing))))
        if td._is_non_tensor:
            # Non-tensor data has no entries.
            td = td._plain_type({}, td._batch_size, device=td._device)
        elif is_tensorclass(td):
            # Use the collection inside the tensorclass, which is locked if it is
            # frozen.
            return cls.from_tensordict(td._tensordict, check=False)
        elif isinstance(td, Linked):
            td = td._source
        declared: Any = cls._declared() if issubclass(cls, Linked) else cls
        if not td._is_dense:
            typed = object.__new__(linked(declared))
            typed.__dict__["_source"] = td
            return typed
        typed = declared.__new__(declared)
        # Sharing `__dict__` shares the entire state, batch size and lock included.
        typed.__dict__ = td.__dict__
        typed._linked_to = td
        return typed

    def masked_select(self, mask: torch.Tensor, *, inplace: bool = False) -> Self:
        """Keep elements where ``mask`` is true. See :meth:`TensorDict.masked_select`.

        Args:
            mask: bool, with the leading dims of the batch size.
            inplace: change this collection.
        """
        plain = super().masked_select(mask, inplace=inplace)
        if plain is self:
            return self
        size, device, names = plain._batch_size, plain._device, plain._td_dim_names
        return _rust.new(type(self), plain._tensordict, size, device, names)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state in a form that tensordict 0.15 can read, too."""
        return pickles.typed_state_of(self, TensorDict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state, also one of the published tensordict 0.15."""
        pickles.restore_typed(self, state)

    def _child_type(self) -> type[Any]:
        # Nested collections have undeclared keys.
        return TensorDict

    @classmethod
    def _from_plain(cls, made: object, source: object = None) -> Self:
        return cls.from_tensordict(made, check=False)

    def _undeclared(self, entries: dict[str, Any], is_named: bool = True) -> TensorDict:
        """Make a plain collection of entries, with this batch size and device."""
        names = list(self.names) if is_named else None
        return _rust.new(TensorDict, entries, self._batch_size, self._device, names)

    def _save_plan(self, plan: object, level: int) -> None:
        # A save does not contain the declaration: it equals a plain collection's save.
        self._undeclared(self._tensordict, self._has_names())._save_plan(plan, level)


def _declare(cls: Any) -> None:
    """Collect the keys that the body of ``cls`` declares, and make them properties."""
    required, optional = set(cls.__required_keys__), set(cls.__optional_keys__)
    defaults = dict(cls.__field_defaults__)
    for name, annotation in own_annotations(cls).items():
        hint = resolved_annotation(annotation, cls, qualified=True)
        if typing.get_origin(hint) is ClassVar or hint is ClassVar:
            continue
        if name in RESERVED and not cls._shadow:
            raise AttributeError(MSG_RESERVED.format(name))
        required.discard(name)
        optional.discard(name)
        defaults.pop(name, None)
        if name in cls.__dict__:
            defaults[name] = cls.__dict__[name]
        if name in defaults or typing.get_origin(hint) is NotRequired:
            optional.add(name)
        else:
            required.add(name)
        setattr(cls, name, property(_reader(name), _writer(name)))
    cls.__required_keys__, cls.__optional_keys__ = (
        frozenset(required),
        frozenset(optional),
    )
    cls.__expected_keys__ = frozenset(required | optional)
    cls.__field_defaults__ = defaults
    cls.__signature__ = _signature_of(cls)
    if not cls.__dict__.get("__doc__"):
        cls.__doc__ = f"{cls.__name__}{cls.__signature__}"
    classes.announce(cls, "collection")


def _signature_of(cls: Any) -> inspect.Signature:
    """Return the signature of a class: its keys, then the parameters of every class."""
    kind = inspect.Parameter.KEYWORD_ONLY
    common = inspect.signature(TypedTensorDict.__init__).parameters.values()
    source, *rest = [
        parameter for parameter in common if parameter.name not in ("self", "kwargs")
    ]
    keys = []
    hints = dict(_all_annotations(cls))
    for name in [*hints, *sorted(cls.__expected_keys__ - hints.keys())]:
        if name not in cls.__expected_keys__:
            continue
        default = inspect.Parameter.empty
        if name in cls.__optional_keys__:
            default = cls.__field_defaults__.get(name, ...)
        hint = hints.get(name, inspect.Parameter.empty)
        keys.append(inspect.Parameter(name, kind, default=default, annotation=hint))
    key_names = {key.name for key in keys}
    rest = [parameter for parameter in rest if parameter.name not in key_names]
    return inspect.Signature([source, *keys, *rest])


def _all_annotations(cls: Any) -> Iterator[tuple[str, Any]]:
    """Yield the annotations of a class and its bases, the bases' first."""
    for base in reversed(cls.__mro__):
        if issubclass(base, TypedTensorDict) and base is not TypedTensorDict:
            yield from own_annotations(base).items()


_OTHER_VALUES = (
    *("sum", "mean", "prod", "std", "var", "nansum", "nanmean", "quantile"),
    *("amax", "amin", "max", "min", "cummax", "cummin"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
)
"""The methods whose results do not have the declared types, so they are plain
collections."""


def _with_plain_results(method: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def undeclaring(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _as_plain_collections(method(self, *args, **kwargs))

    return undeclaring


def _as_plain_collections(result: object) -> Any:
    """Return a result with plain collections in place of typed ones."""
    if isinstance(result, tuple):
        return type(result)([_as_plain_collections(item) for item in result])
    if not isinstance(result, TensorDict):
        return result
    entries = result._tensordict
    for name, value in list(entries.items()):
        if isinstance(value, TypedTensorDict):
            entries[name] = _as_plain_collections(value)
    if isinstance(result, TypedTensorDict):
        return result._undeclared(entries, result._has_names())
    return result


def _reader(name: str) -> Callable[..., Any]:
    def read(self: Any) -> Any:
        try:
            return self._tensordict[name]
        except KeyError:
            pass
        return default_of(self, name)

    return read


def _writer(name: str) -> Callable[..., Any]:
    def write(self: Any, value: object) -> None:
        _rust.set_entry(self, name, value)

    return write


@functools.cache
def _with_flags(cls: Any, flags: tuple[str, ...]) -> Any:
    name = "_".join([cls.__name__, *flags])
    options: dict[str, Any] = dict.fromkeys(flags, True)
    return type(cls)(name, (cls,), {"__module__": cls.__module__}, **options)


for _name in _OTHER_VALUES:
    setattr(TypedTensorDict, _name, _with_plain_results(getattr(TensorDict, _name)))
TypedTensorDict.__module__ = "tensordict.typedtensordict"
