"""Settings of modules that hold in a ``with`` block, in a decorated function, or for good.

Each setting is one :class:`Setting`. A block changes it for all threads, as the value is
one of the process; ``thread_local=True`` changes it for the running thread alone, and
blocks inside such a one stay in that thread, too.
"""

from __future__ import annotations

import functools
import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

# The base of torch's own context managers that are decorators too.
from torch.utils._contextlib import _DecoratorContextManager

from tensordict import _rust
from tensordict.primitives.deprecation import environment_flag

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.containers.collection import TensorCollection
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = [
    "InteractionType",
    "composite_lp_aggregate",
    "interaction_type",
    "set_composite_lp_aggregate",
    "set_interaction_type",
    "set_skip_existing",
    "skip_existing",
]

MSG_SKIP_NONE = (
    "It seems you are using set_skip_existing as a context manager with ``None`` input. "
    "This behaviour is not allowed. None is for a decorated method, which then follows "
    "the setting that holds around it: give True, False or a list of keys here."
)


class Setting:
    """A value of the process, which a thread can have its own of."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.by_thread: dict[int, Any] = {}

    def get(self) -> Any:
        """The value that holds in this thread."""
        if self.by_thread:
            return self.by_thread.get(threading.get_ident(), self.value)
        return self.value


class _Mode(_DecoratorContextManager):
    """A value of a :class:`Setting` that holds in a ``with`` block."""

    _setting: ClassVar[Setting]

    def __init__(self, mode: Any, *, thread_local: bool = False) -> None:
        super().__init__()
        self.mode = mode
        self.thread_local = thread_local

    def clone(self) -> Self:
        """Another one of the same mode, as the decorator needs one per call."""
        cls = type(self)
        made = cls.__new__(cls)
        made.mode = self.mode
        made.thread_local = self.thread_local
        return made

    def __enter__(self) -> None:
        setting = self._setting
        # The compiler cannot ask for the thread, which only settings of threads need.
        if not self.thread_local and (
            not setting.by_thread or threading.get_ident() not in setting.by_thread
        ):
            self._thread: int | None = None
            self._before = setting.value
            setting.value = self.mode
            return
        thread = threading.get_ident()
        self._thread = thread
        self._before = setting.by_thread.get(thread, _NOTHING)
        setting.by_thread[thread] = self.mode

    def __exit__(self, *exception: object) -> None:
        if self._thread is None:
            self._setting.value = self._before
        elif self._before is _NOTHING:
            del self._setting.by_thread[self._thread]
        else:
            self._setting.by_thread[self._thread] = self._before


_NOTHING = object()


# Sampling ---------------------------------------------------------------------------


class InteractionType(StrEnum):
    """The value that a probabilistic module takes of its distribution."""

    MODE = "mode"
    """The most probable value."""
    MEDIAN = "median"
    MEAN = "mean"
    RANDOM = "random"
    """A sample."""
    DETERMINISTIC = "deterministic"
    """The distribution's ``deterministic_sample``, which each has."""

    @classmethod
    def from_str(cls, type_str: str) -> InteractionType:
        """The member of a name, in upper or lower case.

        Examples:
            >>> InteractionType.from_str("MEAN")
            <InteractionType.MEAN: 'mean'>
        """
        return cls(type_str.lower())


INTERACTION = Setting(None)


def interaction_type() -> InteractionType | None:
    """Return the type that :class:`set_interaction_type` has set; None outside of it.

    Examples:
        >>> with set_interaction_type("mean"):
        ...     interaction_type()
        <InteractionType.MEAN: 'mean'>
    """
    return INTERACTION.get()


class set_interaction_type(_Mode):  # noqa: N801 - a public name
    """Set what probabilistic modules take of distributions, in a block or function.

    Args:
        type: a member of :class:`InteractionType`, or its name. With None each module
            follows its own ``default_interaction_type``.
        thread_local: whether it holds for the running thread alone.

    Raises:
        ValueError: there is no such type.

    Examples:
        >>> with set_interaction_type(InteractionType.RANDOM):
        ...     interaction_type()
        <InteractionType.RANDOM: 'random'>
    """

    _setting = INTERACTION

    def __init__(
        self,
        type: InteractionType | str | None = InteractionType.DETERMINISTIC,
        *,
        thread_local: bool = False,
    ) -> None:
        # The compiler cannot call a member's methods, which it has as a string.
        if type is not None and not isinstance(type, InteractionType):
            type = InteractionType(type.lower() if isinstance(type, str) else type)
        super().__init__(type, thread_local=thread_local)


# Log-probabilities of composite distributions ---------------------------------------

AGGREGATE = Setting(environment_flag("COMPOSITE_LP_AGGREGATE"))


def composite_lp_aggregate(nowarn: bool = False) -> bool:  # noqa: ARG001
    """Return whether a composite distribution sums its log-probabilities to one tensor.

    It is off by default: they are a collection with a log-probability per variable.

    Args:
        nowarn: accepted for the sake of older code; nothing is warned about.

    Examples:
        >>> composite_lp_aggregate()
        False
    """
    return bool(AGGREGATE.get())


class set_composite_lp_aggregate(_Mode):  # noqa: N801 - a public name
    """True if a composite distribution sums its log-probabilities to one tensor.

    A context manager, a decorator, and with :meth:`set` a setting for good.

    Examples:
        >>> with set_composite_lp_aggregate(True):
        ...     composite_lp_aggregate()
        True
    """

    _setting = AGGREGATE

    def __init__(self, mode: bool = True, *, thread_local: bool = False) -> None:
        super().__init__(mode, thread_local=thread_local)

    def set(self) -> None:
        """Make the mode hold from now on, or until :meth:`unset`."""
        self.__enter__()

    def unset(self) -> None:
        """Put back what held before :meth:`set`."""
        self.__exit__()


# Modules whose results are there already --------------------------------------------

SKIP = Setting(False)


def skip_existing() -> bool | list[Any]:
    """Return whether modules whose results are there already are not called.

    Examples:
        >>> skip_existing()
        False
    """
    return SKIP.get()


class set_skip_existing(_Mode):  # noqa: N801 - a public name
    """Do not call modules whose outputs are in the collection already.

    A module is left out where all its ``out_keys`` are there, and none of them is an
    input as well. As a decorator of a method it makes the method be left out so.

    Args:
        mode: whether it holds, or the list of the output keys that it holds for.
            None, of a decorator only: as the setting that holds at the call.
        in_key_attr: the attribute of a decorated module that names its inputs.
        out_key_attr: the attribute that names its outputs.
        thread_local: whether it holds for the running thread alone.

    Examples:
        >>> from tensordict.nn import TensorDictModule
        >>> module = TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["y"])
        >>> td = TensorDict(x=torch.zeros(()), y=torch.zeros(()))
        >>> with set_skip_existing():
        ...     module(td)["y"]
        tensor(0.)
        >>> module(td)["y"]
        tensor(1.)
    """

    _setting = SKIP

    def __init__(
        self,
        mode: bool | list[Any] | None = True,
        in_key_attr: str = "in_keys",
        out_key_attr: str = "out_keys",
        *,
        thread_local: bool = False,
    ) -> None:
        if isinstance(mode, list):
            mode = _rust.unravel_key_list(mode)
        super().__init__(mode, thread_local=thread_local)
        self.in_key_attr = in_key_attr
        self.out_key_attr = out_key_attr

    def clone(self) -> Self:
        """Another one of the same mode."""
        made = super().clone()
        made.in_key_attr = self.in_key_attr
        made.out_key_attr = self.out_key_attr
        return made

    def __enter__(self) -> None:
        if self.mode is None:
            raise RuntimeError(MSG_SKIP_NONE)
        super().__enter__()

    def __call__(self, func: Callable[..., Any]) -> Any:
        """The method, left out where its results are there."""
        in_key_attr, out_key_attr, mode = self.in_key_attr, self.out_key_attr, self.mode

        @functools.wraps(func)
        def method(
            _self: Any, tensordict: TensorCollection, *args: object, **kwargs: object
        ) -> Any:
            held = SKIP.get() if mode is None else mode
            if held and has_results(
                held,
                getattr(_self, in_key_attr),
                getattr(_self, out_key_attr),
                tensordict,
            ):
                return tensordict
            if mode is None:
                return func(_self, tensordict, *args, **kwargs)
            with set_skip_existing(mode):
                return func(_self, tensordict, *args, **kwargs)

        return method


def has_results(mode: Any, in_keys: Any, out_keys: Any, td: CollectionProtocol) -> bool:
    """Return whether a module can be left out under the skip mode ``mode``."""
    for key in out_keys:
        if key in in_keys or (mode is not True and key not in mode):
            return False
        if not _rust.contains(td, key):
            return False
    return True


class _set_skip_existing_None(set_skip_existing):  # noqa: N801 - a name that clients use
    """``set_skip_existing(None)``: a method that follows the setting at its call."""

    def __init__(
        self, in_key_attr: str = "in_keys", out_key_attr: str = "out_keys"
    ) -> None:
        super().__init__(None, in_key_attr, out_key_attr)


# Tensors in place of collections ----------------------------------------------------

DISPATCH = Setting(True)


def _dispatch_td_nn_modules() -> bool:
    """Return whether modules take tensors in place of a collection."""
    return bool(DISPATCH.get())


class _set_dispatch_td_nn_modules(_Mode):  # noqa: N801 - a name that clients use
    """True if modules take tensors in place of a collection."""

    _setting = DISPATCH

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)


for _of_utils in (
    composite_lp_aggregate,
    set_composite_lp_aggregate,
    skip_existing,
    set_skip_existing,
    _set_skip_existing_None,
    _dispatch_td_nn_modules,
    _set_dispatch_td_nn_modules,
):
    _of_utils.__module__ = "tensordict.nn.utils"
for _of_probabilistic in (InteractionType, interaction_type, set_interaction_type):
    _of_probabilistic.__module__ = "tensordict.nn.probabilistic"
