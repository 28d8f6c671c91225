"""The base class of tensorclasses, and the class statement of a subclass."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, cast, dataclass_transform

from tensordict.containers.collection import TensorCollection, gather
from tensordict.primitives import classes
from tensordict.tensorclass.delegation import delegate
from tensordict.tensorclass.fields import OPTIONS, prepare
from tensordict.tensorclass.files import FilesOfClass

if TYPE_CHECKING:
    import dataclasses
    from abc import ABCMeta

__all__ = ["TensorClass"]

MSG_ABSTRACT = (
    "TensorCollection is an abstract base class and cannot be instantiated directly."
)
MSG_OPTIONS = (
    "TensorClass is not a generic class, so TensorClass[...] only accepts the flags {}. "
    "Got {}."
)

if TYPE_CHECKING:
    from tensordict.tensorclass.annotations import (
        BatchSizeField,
        DeviceField,
        NamesField,
    )

    # A metaclass instead of a base class: the base class of a frozen dataclass must be
    # frozen, but subclasses of this class may be frozen or not.
    @dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
    class _DataclassLike(ABCMeta): ...
else:
    _DataclassLike = type(TensorCollection)


class TensorClass(FilesOfClass, metaclass=_DataclassLike):
    """A collection with typed fields. Subclasses declare fields like a dataclass.

    The ``__init__`` of a subclass has an argument for each field, and ``batch_size``,
    ``device`` and ``names``. Fields are attributes. All other methods of
    :class:`TensorDict` are available, and return instances of the class.

    Options are keywords of the class statement, or flags in brackets:

    - ``autocast``: cast values to the type in the annotation.
    - ``nocast``: store numbers and arrays as they are, not as tensors.
    - ``frozen``: fields cannot be set after ``__init__``.
    - ``tensor_only``: all fields hold tensors or collections.
    - ``shadow``: fields may have the names of methods and attributes.
    - ``skip_post_init_on_rebuild``: only a call of the class calls ``__post_init__``;
      operations that make an instance do not.

    Examples:
        >>> class Data(TensorClass):
        ...     image: torch.Tensor
        ...     label: torch.Tensor | None = None
        >>> data = Data(torch.zeros(3, 4), batch_size=[3])
        >>> data[0].image.shape, data.label is None
        (torch.Size([4]), True)
        >>> class Shadowing(TensorClass["shadow"]):
        ...     keys: torch.Tensor
        >>> Shadowing(torch.zeros(3)).keys
        tensor([0., 0., 0.])
    """

    if TYPE_CHECKING:
        # Type checkers do not compare these descriptors with the property setters.
        batch_size: BatchSizeField = dataclasses.field(  # type: ignore[override]
            kw_only=True, default=cast("Any", ...)
        )
        device: DeviceField = dataclasses.field(kw_only=True, default=cast("Any", ...))
        names: NamesField = dataclasses.field(  # type: ignore[override]
            kw_only=True, default=cast("Any", ...)
        )

    def __init_subclass__(cls, **options: Any) -> None:
        if not any(
            getattr(base, "__declares_for_subclasses__", False)
            for base in cls.__bases__
        ):
            super().__init_subclass__(**options)
            classes.announce(cls, "tensorclass")
            return
        given_options = {name: options.pop(name) for name in OPTIONS if name in options}
        cast_filter = options.pop("cast_filter", None)
        kw_only = options.pop("kw_only", False)
        super().__init_subclass__(**options)
        prepare(cls, given_options, cast_filter, kw_only)

    @classmethod
    def __class_getitem__(cls, item: object) -> Any:
        """Return the class with options: ``TensorClass["nocast", "shadow"]``."""
        if any(base is Generic for base in cls.__mro__):
            return super().__class_getitem__(item)  # type: ignore[misc]
        flags = item if isinstance(item, tuple) else (item,)
        if not all(flag in OPTIONS for flag in flags):
            raise TypeError(MSG_OPTIONS.format(OPTIONS, flags))
        return _with_flags(cls, flags)

    if not TYPE_CHECKING:

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            raise NotImplementedError(MSG_ABSTRACT)


@functools.cache
def _with_flags(cls: type, flags: tuple[str, ...]) -> Any:
    """Make a base class with flags. The same flags return the same class."""
    options = dict.fromkeys(flags, True)
    return type(cls)(
        "_".join([cls.__name__, *flags]),
        (cls,),
        {"__module__": cls.__module__},
        **options,
    )


gather(TensorClass, TensorClass, TensorCollection)
delegate(TensorClass)
TensorClass.__module__ = "tensordict.tensorclass"
