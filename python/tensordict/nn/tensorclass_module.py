"""Modules from one tensorclass to another, and their use as modules of collections."""

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
    """The keys of a tensorclass: its fields, and those of nested tensorclasses."""
    keys: list[Any] = []
    for field in dataclasses.fields(kind):
        inner = kind._type_hints.get(field.name)
        if _is_tensor_class(inner):
            keys += [
                (field.name, *((key,) if isinstance(key, str) else key))
                for key in _tensor_class_keys(inner)
            ]
        else:
            keys.append(field.name)
    return keys


class TensorClassModuleBase(nn.Module, ABC, Generic[InputClass, OutputClass]):
    """A module that takes one tensorclass, or a tensor, and gives another.

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
        """Take the types that the base is given."""
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            if typing.get_origin(base) is TensorClassModuleBase:
                cls.input_type, cls.output_type = typing.get_args(base)

    @abstractmethod
    def forward(self, x: InputClass) -> OutputClass:
        """The output for an input."""

    def as_td_module(self) -> TensorClassModuleWrapper:
        """This module as one of collections, whose entries are the fields.

        Raises:
            ValueError: its types are not both tensorclasses.
        """
        if not (
            _is_tensor_class(self.input_type) and _is_tensor_class(self.output_type)
        ):
            raise ValueError(MSG_NOT_CONVERTIBLE)
        return TensorClassModuleWrapper(self)


class TensorClassModuleWrapper(TensorDictModuleBase):
    """A module of tensorclasses as one of collections.

    It reads the fields of its input type, and gives a new collection with those of its
    output type.

    Args:
        module: the module.
    """

    def __init__(self, module: TensorClassModuleBase[Any, Any]) -> None:
        super().__init__()
        self.in_keys: list[Any] = _tensor_class_keys(module.input_type)
        self.out_keys: list[Any] = _tensor_class_keys(module.output_type)
        self.tc_module = module

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: Any = None, *args: object, **kwargs: object) -> Any:
        """Call the module with the entries as fields.

        Args:
            tensordict: the collection; or tensors by position or name.
            *args: further arguments of the module.
            **kwargs: further arguments of the module.
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


if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
