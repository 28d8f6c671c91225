"""``@tensorclass``: a tensorclass from an ordinary class."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Generic, TypeVar, dataclass_transform, overload

from tensordict.tensorclass.base import TensorClass
from tensordict.tensorclass.fields import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["tensorclass"]

T = TypeVar("T")


@overload
def tensorclass(cls: type[T], /) -> type[T]: ...
@overload
def tensorclass(
    cls: None = None,
    /,
    *,
    autocast: bool = ...,
    frozen: bool = ...,
    nocast: bool = ...,
    shadow: bool = ...,
    tensor_only: bool = ...,
    skip_post_init_on_rebuild: bool = ...,
    cast_filter: Callable[..., Any] | None = ...,
    kw_only: bool = ...,
) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(field_specifiers=())
def tensorclass(
    cls: Any = None,
    /,
    *,
    autocast: bool = False,
    frozen: bool = False,
    nocast: bool = False,
    shadow: bool = False,
    tensor_only: bool = False,
    skip_post_init_on_rebuild: bool = False,
    cast_filter: Callable[..., Any] | None = None,
    kw_only: bool = False,
) -> Any:
    """Make a class a tensorclass: a collection whose entries are its fields.

    The class is made anew with :class:`TensorClass` among its bases. For the options
    see there. As of dataclasses, a subclass has further fields only where it is
    decorated, too. Type checkers see more of a class that inherits from
    :class:`TensorClass` itself.

    Args:
        cls: the class, whose annotations are the fields.
        autocast: cast values to the type in the annotation.
        frozen: fields cannot be set after ``__init__``.
        nocast: keep numbers and arrays as they are, and make no tensors of them.
        shadow: fields may have the names of members of the class.
        tensor_only: all fields hold tensors or collections.
        skip_post_init_on_rebuild: call ``__post_init__`` in ``__init__`` alone.
        cast_filter: asked by name which fields ``autocast`` casts.
        kw_only: whether all arguments of ``__init__`` are keywords.

    Raises:
        AttributeError: a field has the name of a member, and ``shadow`` is false.
        TypeError: options exclude one another, or an annotation does not go with them.

    Examples:
        >>> @tensorclass
        ... class Data:
        ...     image: torch.Tensor
        ...     label: torch.Tensor | None = None
        >>> data = Data(torch.zeros(3, 4), batch_size=[3])
        >>> data.image.shape, data.view(3, 1).batch_size
        (torch.Size([3, 4]), torch.Size([3, 1]))
    """
    options = {
        name: True
        for name, value in (
            ("autocast", autocast),
            ("frozen", frozen),
            ("nocast", nocast),
            ("shadow", shadow),
            ("tensor_only", tensor_only),
            ("skip_post_init_on_rebuild", skip_post_init_on_rebuild),
        )
        if value
    }

    def decorate(cls: type) -> Any:
        if not issubclass(cls, TensorClass):
            return _rebased(cls, options, cast_filter, kw_only)
        prepare(cls, options, cast_filter, kw_only)
        return cls

    return decorate if cls is None else decorate(cls)


def _rebased(
    cls: type, options: dict[str, bool], cast_filter: object, kw_only: bool
) -> Any:
    """The class once more, with :class:`TensorClass` among its bases.

    A class without bases cannot be given one: the layout of its instances is fixed.
    """
    namespace = {**vars(cls), "__qualname__": cls.__qualname__}
    slots = namespace.get("__slots__", ())
    # The descriptor of a slot is made anew with the class.
    for name in (
        "__dict__",
        "__weakref__",
        *([slots] if isinstance(slots, str) else slots),
    ):
        namespace.pop(name, None)
    own = [base for base in cls.__bases__ if base not in (object, Generic)]
    generic = [base for base in cls.__bases__ if base is Generic]
    made: Any = types.new_class(
        cls.__name__,
        (*own, TensorClass, *generic),
        {**options, "cast_filter": cast_filter, "kw_only": kw_only},
        lambda body: body.update(namespace),
    )
    made.__declares_for_subclasses__ = False
    _move_cells(cls, made, namespace)
    return made


def _move_cells(old: object, new: object, namespace: dict[str, Any]) -> None:
    """Let ``super()`` and ``__class__`` in the methods mean the new class."""
    for member in namespace.values():
        for function in _functions(member):
            for cell in function.__closure__ or ():
                try:
                    refers = cell.cell_contents is old
                except ValueError:
                    continue
                if refers:
                    cell.cell_contents = new


def _functions(member: Any) -> list[types.FunctionType]:
    """The Python functions behind a member of a class."""
    if isinstance(member, property):
        found = [member.fget, member.fset, member.fdel]
    else:
        found = [getattr(member, "__func__", member)]
    return [function for function in found if isinstance(function, types.FunctionType)]


tensorclass.__module__ = "tensordict.tensorclass"
