"""Callbacks of the hunt that change a container, and the ways in which they are called.

An *action* changes a container in a way that whoever walks it does not expect: entries are
cleared, deleted, added, replaced, the attributes of the instance are unset, the memory of a
tensor becomes other memory. A *hook* calls a trigger while something is done with the
container: from a leaf, a key, a mode of torch, a destructor, the collector, a tracer.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tensordict import is_tensor_collection


def parts(thing: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield the containers, dictionaries and lists that ``thing`` is made of."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, dict):
        inner = list(thing.values())
    elif isinstance(thing, list):
        inner = list(thing)
    elif is_tensor_collection(thing):
        # Not by `vars`, which moves the attributes of an instance to another place.
        inner = list(vars(thing).copy().values())
    else:
        return
    yield thing
    for value in inner:
        yield from parts(value, seen)


def dictionaries(thing: Any) -> list[dict]:
    return [part for part in parts(thing) if isinstance(part, dict)]


def collections(thing: Any) -> list[Any]:
    return [part for part in parts(thing) if not isinstance(part, (dict, list))]


def leaves(thing: Any) -> list[torch.Tensor]:
    found = (value for part in dictionaries(thing) for value in list(part.values()))
    return [value for value in found if isinstance(value, torch.Tensor)]


def some_of(td: Any, which: Callable = parts) -> list[Any]:
    """Return all parts of ``td``, the outermost, or any one of them."""
    found = list(which(td))
    inner = [part for part in found if isinstance(part, (dict, list))] or found
    return random.choice([found, found, inner[:1], [random.choice(inner)]])


# --- Actions ------------------------------------------------------------------------


def clear(td: Any) -> None:
    for part in some_of(td):
        if isinstance(part, (dict, list)):
            part.clear()


def delete_first(td: Any) -> None:
    for part in some_of(td):
        if isinstance(part, dict) and part:
            del part[next(iter(part))]
        elif isinstance(part, list) and part:
            part.pop()


def grow(td: Any) -> None:
    for part in some_of(td):
        if isinstance(part, dict) and len(part) < 40:
            part.update({f"new{number}": torch.ones(2, 3) for number in range(40)})
        elif isinstance(part, list) and len(part) < 4:
            part.extend(list(part))


def replace(td: Any) -> None:
    for part in some_of(td):
        if isinstance(part, dict):
            for key in list(part):
                part[key] = torch.zeros(7)
        elif isinstance(part, list):
            part[:] = [None] * len(part)


def swap(td: Any) -> None:
    for part in some_of(td, collections):
        for name, value in vars(part).copy().items():
            if isinstance(value, (dict, list, tuple)):
                object.__setattr__(part, name, type(value)())


def unset(td: Any) -> None:
    for part in some_of(td, collections):
        for name in vars(part).copy():
            with contextlib.suppress(AttributeError):
                object.__delattr__(part, name)


def forget(td: Any) -> None:
    for part in some_of(td, collections):
        part.__dict__.clear()


def reshape(td: Any) -> None:
    for part in collections(td):
        for name in ("_batch_size", "_device", "_td_dim_names", "stack_dim"):
            if name in vars(part).copy():
                object.__setattr__(part, name, torch.Size([9, 9, 9]))


def move(td: Any) -> None:
    for part in collections(td):
        part.__dict__  # noqa: B018 - it has its attributes elsewhere from now on


def other_memory(td: Any) -> None:
    for leaf in leaves(td):
        with contextlib.suppress(Exception):
            leaf.data = leaf.data.half()
        with contextlib.suppress(Exception):
            leaf.set_()


def use(td: Any) -> None:
    for operation in (
        lambda: td.clone(),
        lambda: td.clear(),
        lambda: td.update({"a": torch.ones(2, 3)}),
        lambda: td.unlock_().pop("n"),
        lambda: td.lock_(),
    ):
        with contextlib.suppress(Exception):
            operation()


ACTIONS: list[Callable[[Any], None]] = [
    clear,
    delete_first,
    grow,
    replace,
    swap,
    unset,
    forget,
    reshape,
    move,
    other_memory,
    use,
]


class Trigger:
    """Runs an action with a container at the ``at``-th call, or from then on always."""

    def __init__(self) -> None:
        self.disarm()

    def arm(self, td: Any, action: Callable, at: int, again: bool) -> None:
        self.td, self.action, self.left, self.again = td, action, at, again

    def disarm(self) -> None:
        self.td, self.left, self.again, self.busy = None, -1, False, False
        self.action = lambda td: None

    def __call__(self) -> None:
        if self.busy or self.td is None:
            return
        self.left -= 1
        if self.left == 0 or (self.left < 0 and self.again):
            self.busy = True
            with contextlib.suppress(Exception):
                self.action(self.td)
            self.busy = False


TRIGGER = Trigger()


def callback(*arguments: Any, **_: Any) -> Any:
    """Give back what came last, once the trigger was called: what programs call ``F``."""
    TRIGGER()
    return arguments[-1] if arguments else None


# --- What is planted in a container -----------------------------------------------------


class Leaf(torch.Tensor):
    """Calls whenever torch does something with it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        TRIGGER()
        return super().__torch_function__(func, types, args, kwargs or {})


class Dying(torch.Tensor):
    """Calls when it is freed."""

    def __del__(self):
        TRIGGER()


class Key(str):
    """Calls when it is compared or hashed."""

    __slots__ = ()

    def __eq__(self, other):
        TRIGGER()
        return str.__eq__(self, other)

    def __ne__(self, other):
        TRIGGER()
        return str.__ne__(self, other)

    def __hash__(self):
        TRIGGER()
        return str.__hash__(self)


class Name(str):
    """A key, or the name of a dim, that calls when it is freed."""

    __slots__ = ()

    def __del__(self):
        TRIGGER()


class Object:
    """A value that calls whenever it is asked for anything."""

    def __eq__(self, other):
        TRIGGER()
        return NotImplemented

    def __hash__(self):
        TRIGGER()
        return 7

    def __del__(self):
        TRIGGER()

    def __len__(self):
        TRIGGER()
        return 2

    def __index__(self):
        TRIGGER()
        return 1

    def __bool__(self):
        TRIGGER()
        return True

    def __iter__(self):
        TRIGGER()
        return iter((2, 3))

    def __getitem__(self, item):
        TRIGGER()
        return (2, 3)[item]

    def __repr__(self):
        TRIGGER()
        return "object"

    def __getattr__(self, name):
        TRIGGER()
        raise AttributeError(name)

    def __reduce__(self):
        TRIGGER()
        return Object, ()

    def __deepcopy__(self, memo):
        TRIGGER()
        return self


def plant_leaves(td: Any, kind: type[torch.Tensor]) -> None:
    for part in dictionaries(td):
        for key, value in list(part.items()):
            if type(value) is torch.Tensor and random.random() < 0.6:
                part[key] = value.detach().as_subclass(kind)


def plant_keys(td: Any, kind: type[str]) -> None:
    for part in dictionaries(td):
        entries = list(part.items())
        part.clear()
        part.update(
            (kind(key) if isinstance(key, str) else key, value)
            for key, value in entries
        )


def plant_attributes(td: Any) -> None:
    """Let the names of the attributes of the instances call when they are compared."""
    for part in collections(td):
        state = part.__dict__
        entries = [(Key(name), value) for name, value in state.items()]
        state.clear()
        state.update(entries)


def plant_objects(td: Any) -> None:
    for part in dictionaries(td):
        if random.random() < 0.5:
            part[Object() if random.random() < 0.3 else "object"] = Object()
    for part in collections(td):
        if "_td_dim_names" in vars(part).copy():
            names = [Name("x"), Name("y"), Name("z")][: len(part._batch_size)]
            object.__setattr__(part, "_td_dim_names", names)


# --- Hooks ------------------------------------------------------------------------------


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        TRIGGER()
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        TRIGGER()
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def tracing(td: Any) -> Iterator[None]:
    def trace(frame, event, argument):
        TRIGGER()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@contextlib.contextmanager
def profiling(td: Any) -> Iterator[None]:
    sys.setprofile(lambda frame, event, argument: TRIGGER())
    try:
        yield
    finally:
        sys.setprofile(None)


@contextlib.contextmanager
def monitoring(td: Any) -> Iterator[None]:
    if sys.version_info < (3, 12):
        with profiling(td):
            yield
        return
    monitor, tool = sys.monitoring, 4
    events = monitor.events
    monitor.use_tool_id(tool, "hunt")
    for event in (events.PY_START, events.CALL, events.PY_RETURN, events.LINE):
        monitor.register_callback(tool, event, lambda *_: TRIGGER())
    monitor.set_events(
        tool, events.PY_START | events.CALL | events.PY_RETURN | events.LINE
    )
    try:
        yield
    finally:
        monitor.set_events(tool, 0)
        monitor.free_tool_id(tool)


@contextlib.contextmanager
def collecting(td: Any) -> Iterator[None]:
    def called(phase, info):
        TRIGGER()

    gc.callbacks.append(called)
    before = gc.get_threshold()
    gc.set_threshold(1, 1000, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(called)


@contextlib.contextmanager
def dying_leaves(td: Any) -> Iterator[None]:
    references = [weakref.ref(leaf, lambda _: TRIGGER()) for leaf in leaves(td)]
    yield
    references.clear()


def planting(plant: Callable, *arguments: Any) -> Callable:
    @contextlib.contextmanager
    def hook(td: Any) -> Iterator[None]:
        plant(td, *arguments)
        yield

    hook.__name__ = f"{plant.__name__} {' '.join(a.__name__ for a in arguments)}"
    return hook


@contextlib.contextmanager
def function_mode(td: Any) -> Iterator[None]:
    with FunctionMode():
        yield


@contextlib.contextmanager
def dispatch_mode(td: Any) -> Iterator[None]:
    with DispatchMode():
        yield


HOOKS: list[Callable] = [
    planting(plant_leaves, Leaf),
    planting(plant_leaves, Dying),
    planting(plant_keys, Key),
    planting(plant_keys, Name),
    planting(plant_objects),
    planting(plant_attributes),
    function_mode,
    dispatch_mode,
    tracing,
    profiling,
    monitoring,
    collecting,
    dying_leaves,
]
