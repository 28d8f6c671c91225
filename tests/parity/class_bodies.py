"""The classes that the programs of ``cases_class_bodies`` use: what a body can say."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from tensordict import TensorClass, tensorclass


class AssignsFrozen(TensorClass, frozen=True):
    x: Tensor
    y: Tensor = None

    def __post_init__(self):
        self.y = self.x * 2


class SetsFrozen(TensorClass, frozen=True):
    x: Tensor
    y: Tensor = None

    def __post_init__(self):
        self.set("y", self.x * 2)


class GoesAround(TensorClass["frozen"]):
    x: Tensor
    y: Tensor = None

    def __post_init__(self):
        object.__setattr__(self, "y", self.x * 2)


class ChecksFrozen(TensorClass, frozen=True):
    x: Tensor
    late: int = dataclasses.field(init=False)

    def __post_init__(self):
        assert self.x is not None


class InitFrozen(TensorClass, frozen=True):
    x: Tensor

    def __init__(self, x):
        self.x = x


class InitFrozenBySet(TensorClass, frozen=True):
    x: Tensor

    def __init__(self, x):
        self.set("x", x)


class InitGoesAround(TensorClass, frozen=True):
    x: Tensor

    def __init__(self, x):
        object.__setattr__(self, "x", x)


@tensorclass
class Decorated:
    x: Tensor


class Plain(Decorated):
    y: Tensor = None
    count: int = 3
    kind: ClassVar[str] = "plain"

    def twice(self):
        return self.x * 2


class Required(Decorated):
    y: Tensor


class Hides(Decorated):
    x: Tensor = None


class Vocabulary(Decorated):
    clone_of: Tensor = None
    keys: Tensor = None


class Extends(Decorated):
    note: str = ""

    def __init__(self, x, note="", **kwargs):
        self.before = 1
        super().__init__(x, **kwargs)
        self.note = note


class Posts(Decorated):
    def __post_init__(self):
        self.x = self.x + 1


@tensorclass
class DecoratedAgain(Decorated):
    y: Tensor = None


class Based(TensorClass):
    x: Tensor


class Diamond(Decorated, Based):
    y: Tensor = None


class OtherDiamond(Based, Decorated):
    y: Tensor = None


class Nested(TensorClass):
    x: Tensor
    y: Tensor = None
    s: str = None
    n: Nested = None


def nested(**further):
    return Nested(torch.ones(2), batch_size=[2], **further)


class TakesVariable(TensorClass):
    x: Tensor
    factor: dataclasses.InitVar[float] = 2.0

    def __post_init__(self, factor):
        self.x = self.x * factor


class IgnoresVariable(TensorClass):
    x: Tensor
    factor: dataclasses.InitVar[float] = 2.0

    def __post_init__(self):
        self.x = self.x + 1


class NeedsVariable(TensorClass):
    x: Tensor
    factor: dataclasses.InitVar[float]

    def __post_init__(self, factor):
        self.x = self.x * factor


class PrefersItsDefault(TensorClass):
    x: Tensor
    factor: dataclasses.InitVar[float] = 2.0

    def __post_init__(self, factor=7):
        self.x = self.x * factor


class OnlyDeclares(TensorClass):
    x: Tensor
    factor: dataclasses.InitVar[float] = 2.0
