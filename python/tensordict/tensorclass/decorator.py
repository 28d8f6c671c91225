"""The decorator ``@tensorclass``, which makes a tensorclass of an ordinary class."""

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

    The decorator makes a new class with :class:`TensorClass` among its bases; see there
    for the options. Like a dataclass, a subclass adds fields only if it is decorated,
    too. Type checkers know more about classes that inherit from :class:`TensorClass`
    directly.

    Args:
        cls: the class, whose annotations are the fields.
        autocast: cast values to the type in the annotation.
        frozen: fields cannot be set after ``__init__``.
        nocast: store numbers and arrays as they are, not as tensors.
        shadow: fields may have the names of methods and attributes of the class.
        tensor_only: all fields hold tensors or collections.
        skip_post_init_on_rebuild: only a call of the class calls ``__post_init__``.
        cast_filter: a function of a field's name that returns whether ``autocast``
            casts the field.
        kw_only: whether ``__init__`` takes keyword arguments only.

    Raises:
        AttributeError: a field has the name of a method or attribute, and ``shadow`` is
            false.
        TypeError: options exclude one another, or an annotation contradicts an option.

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
    """Make the class again, with :class:`TensorClass` among its bases.

    Python cannot add a base to an existing class that has no bases.
    """
    namespace = {**vars(cls), "__qualname__": cls.__qualname__}
    slots = namespace.get("__slots__", ())
    # The new class makes its own slot descriptors.
    for name in (
        "__dict__",
        "__weakref__",
        *([slots] if isinstance(slots, str) else slots),
    ):
        namespace.pop(name, None)
    bases = [base for base in cls.__bases__ if base not in (object, Generic)]
    generic = [base for base in cls.__bases__ if base is Generic]
    new_class: Any = types.new_class(
        cls.__name__,
        (*bases, TensorClass, *generic),
        {**options, "cast_filter": cast_filter, "kw_only": kw_only},
        lambda body: body.update(namespace),
    )
    new_class.__declares_for_subclasses__ = False
    _move_cells(cls, new_class, namespace)
    return new_class


def _move_cells(old: object, new: object, namespace: dict[str, Any]) -> None:
    """Make ``super()`` and ``__class__`` in the methods refer to the new class."""
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
    """Return the Python functions behind a member of a class."""
    if isinstance(member, property):
        functions = [member.fget, member.fset, member.fdel]
    else:
        functions = [getattr(member, "__func__", member)]
    return [
        function for function in functions if isinstance(function, types.FunctionType)
    ]


tensorclass.__module__ = "tensordict.tensorclass"
