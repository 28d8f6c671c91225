"""Modules from one tensorclass to another, and their use as modules of tensordicts."""

from __future__ import annotations

import dataclasses
import typing
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from torch import nn

from tensordict._established import established_names
from tensordict.nn.base import TensorDictModuleBase
from tensordict.nn.dispatching import dispatch
from tensordict.tensorclass import TensorClass

__all__ = ["TensorClassModuleBase", "TensorClassModuleWrapper"]

InputClass = TypeVar("InputClass")
OutputClass = TypeVar("OutputClass")
InputTensorClass = TypeVar("InputTensorClass", bound=TensorClass)
OutputTensorClass = TypeVar("OutputTensorClass", bound=TensorClass)

MSG_NOT_CONVERTIBLE = (
    "Only TensorClassModuleBase implementations with both input and output type as "
    "TensorClass can be converted to TensorDictModule"
)


def _is_tensor_class(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, TensorClass)


def _tensor_class_keys(kind: Any) -> list[Any]:
    """Return the keys of a tensorclass: its fields, also of nested tensorclasses."""
    keys: list[Any] = []
    for field in dataclasses.fields(kind):
        field_type = kind._type_hints.get(field.name)
        if _is_tensor_class(field_type):
            keys += [
                (field.name, *((key,) if isinstance(key, str) else key))
                for key in _tensor_class_keys(field_type)
            ]
        else:
            keys.append(field.name)
    return keys


class TensorClassModuleBase(nn.Module, ABC, Generic[InputClass, OutputClass]):
    """A module from one tensorclass, or tensor, to another.

    A subclass names both types: ``class Net(TensorClassModuleBase[Input, Output])``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorClass
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        ...     y: torch.Tensor
        >>> class Norm(TensorClass):
        ...     value: torch.Tensor
        >>> class Length(TensorClassModuleBase[Point, Norm]):
        ...     def forward(self, x):
        ...         return Norm((x.x**2 + x.y**2).sqrt(), batch_size=x.batch_size)
        >>> Length()(Point(torch.tensor(3.0), torch.tensor(4.0))).value
        tensor(5.)
        >>> Length().as_td_module()(x=torch.tensor(3.0), y=torch.tensor(4.0))
        tensor(5.)
    """

    input_type: ClassVar[Any]
    output_type: ClassVar[Any]

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Read the input and output types from the base of the subclass."""
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            if typing.get_origin(base) is TensorClassModuleBase:
                cls.input_type, cls.output_type = typing.get_args(base)

    @abstractmethod
    def forward(self, x: InputClass) -> OutputClass:
        """Return the output for an input."""

    def as_td_module(self) -> TensorClassModuleWrapper:
        """Wrap this module as a module of tensordicts, whose keys are the fields.

        Raises:
            ValueError: the input or the output type is no tensorclass.
        """
        if not (
            _is_tensor_class(self.input_type) and _is_tensor_class(self.output_type)
        ):
            raise ValueError(MSG_NOT_CONVERTIBLE)
        return TensorClassModuleWrapper(self)


class TensorClassModuleWrapper(TensorDictModuleBase):
    """A module of tensorclasses as a module of tensordicts.

    It reads the fields of the input type, and returns a new tensordict with the fields
    of the output type.

    Args:
        module: the module of tensorclasses.
    """

    def __init__(self, module: TensorClassModuleBase[Any, Any]) -> None:
        super().__init__()
        self.in_keys: list[Any] = _tensor_class_keys(module.input_type)
        self.out_keys: list[Any] = _tensor_class_keys(module.output_type)
        self.tc_module = module

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: Any = None, *args: object, **kwargs: object) -> Any:
        """Call the module with a tensorclass made of the entries.

        Args:
            tensordict: the input tensordict. Tensors by position or by name work too.
            *args: further positional arguments of the module.
            **kwargs: further keyword arguments of the module.

        Returns:
            A new tensordict.
        """
        kind = self.tc_module.input_type
        source = tensordict
        if not isinstance(source, kind):
            source = kind.from_tensordict(
                tensordict.select(*self.in_keys, strict=False)
            )
        return self.tc_module(source, *args, **kwargs).to_tensordict()


for _class in (TensorClassModuleBase, TensorClassModuleWrapper):
    _class.__module__ = "tensordict.nn.tensorclass_module"


if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
