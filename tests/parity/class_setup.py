"""The classes that the programs of ``cases_classes`` use: one per option and kind.

Their annotations are texts, as those of the prelude are.
"""

from __future__ import annotations
import __future__

import dataclasses
import sys
import types
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from tensordict import TensorClass, TensorDict, tensorclass

V = TypeVar("V")


class Simple(TensorClass):
    x: Tensor
    y: Tensor = None
    s: str = "default"


class NoCast(TensorClass["nocast"]):
    x: Tensor
    i: int = 3
    s: str = None


class AutoCast(TensorClass, autocast=True):
    x: Tensor
    i: int = 3
    s: str = "q"


class Frozen(TensorClass, frozen=True):
    x: Tensor
    y: Tensor = None


class OnlyTensors(TensorClass["tensor_only"]):
    x: Tensor
    y: Tensor = None


class Shadowing(TensorClass["shadow"]):
    x: Tensor
    keys: Tensor = None


class Numbers(TensorClass):
    x: Tensor
    i: int | None = None
    f: float = 2.0
    w: Any = None


class Items(TensorClass["shadow"]):
    x: Tensor
    items: Tensor = None


class Made(TensorClass):
    x: Tensor
    w: Tensor = dataclasses.field(default_factory=lambda: torch.ones(2, 3))


class Derived(TensorClass):
    x: Tensor
    y: Tensor = None

    def __post_init__(self):
        if self.y is None:
            self.y = self.x + 1


class Child(Simple):
    z: Tensor = None


class Outer(TensorClass):
    x: Tensor
    n: Simple | None = None


class Values(TensorClass):
    x: Tensor
    u: Tensor | int | str = None
    d: dict = None
    k: ClassVar[int] = 5
    f: Any = dataclasses.field(default=None, metadata={"m": 1})


class Generically(TensorClass, Generic[V]):
    x: Tensor
    y: V = None


@tensorclass
class Decorated:
    x: Tensor
    y: Tensor = None
    s: str = None


@tensorclass(frozen=True)
class DecoratedFrozen:
    x: Tensor
    y: Tensor = None


def loaded(dest, state, **options):
    """Load a state; return the result."""
    result = dest.load_state_dict(state, **options)
    return type(result).__name__, result is dest, dest


def without(state, *keys):
    """A state that lacks keys."""
    left = state.copy()
    for key in keys:
        left.pop(key, None)
    left._metadata = state._metadata
    return left


def more(state, **entries):
    """A state with further entries."""
    changed = state.copy()
    changed.update(entries)
    changed._metadata = state._metadata
    return changed


def plain(state):
    """A state without metadata."""
    return {
        key: plain(value) if isinstance(value, dict) else value
        for key, value in state.items()
    }


def about(state):
    """Return what a state says of its collections."""
    return {
        **{key: about(each) for key, each in state.items() if isinstance(each, dict)},
        "": {
            name: {key: str(value) for key, value in sorted(each.items())}
            for name, each in sorted(state._metadata.items())
        },
    }


BODY = """
import dataclasses
from dataclasses import InitVar
from typing import *
import torch
from torch import Tensor
from tensordict import TensorClass, TensorDict

class In(TensorClass):
    z: Tensor
    w: Tensor = None

class In2(TensorClass):
    q: Tensor

class X(TensorClass{options}):
    a: Tensor
    f: {annotation} = None
"""


def defined(annotation, is_postponed, options=""):
    """A class with a field of an annotation, alone in a module."""
    module = types.ModuleType("made_by_class_setup")
    sys.modules[module.__name__] = module
    body = BODY.format(annotation=annotation, options=options)
    flags = __future__.annotations.compiler_flag if is_postponed else 0
    exec(compile(body, "<body>", "exec", flags, True), vars(module))  # noqa: S102
    return module.X


def in_class(annotation, is_postponed):
    """Give values in each way to a field of an annotation; return what it has."""
    answers = []
    entries = {"z": torch.ones(2)}
    collection = TensorDict(entries, batch_size=[2])
    strange = TensorDict(zz=torch.ones(2), batch_size=[2])
    values = [entries, collection, strange, "text", torch.ones(2)]
    for options in ("", ", nocast=True"):
        try:
            cls = defined(annotation, is_postponed, options)
        except TypeError:
            answers.append(options)
            continue
        for value in values:
            answers += _given(cls, value)
    return " ".join(answers)


def _given(cls, value):
    for give in (_by_init, _by_set, _by_update, _by_collection, _by_dictionary):
        try:
            found = give(cls, value)
        except Exception as error:  # noqa: BLE001 - every error is an answer
            yield type(error).__name__
        else:
            yield type(found).__name__


def _by_init(cls, value):
    return cls(a=torch.ones(2), f=value, batch_size=[2]).f


def _by_set(cls, value):
    made = cls(a=torch.ones(2), batch_size=[2])
    made.f = value
    return made.f


def _by_update(cls, value):
    made = cls(a=torch.ones(2), batch_size=[2])
    made.update({"f": value})
    return made.f


def _by_collection(cls, value):
    entries = TensorDict({"a": torch.ones(2), "f": value}, batch_size=[2])
    return cls.from_tensordict(entries).f


def _by_dictionary(cls, value):
    return cls.from_dict({"a": torch.ones(2), "f": value}, batch_size=[2]).f
