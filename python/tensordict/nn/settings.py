"""Settings of modules for a ``with`` block, a decorated function or the process.

Each setting is one :class:`Setting`. A block changes it for all threads of the process.
With ``thread_local=True`` a block changes it for the running thread only; blocks inside
of this block then change it for that thread only, too.
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
    "This behaviour is not allowed: None is only for a decorator, whose method then "
    "follows the setting at its call. Pass True, False or a list of keys here."
)


class Setting:
    """A value of the process that a thread can override."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.by_thread: dict[int, Any] = {}

    def get(self) -> Any:
        """Return the value for the running thread."""
        if self.by_thread:
            return self.by_thread.get(threading.get_ident(), self.value)
        return self.value


class _Mode(_DecoratorContextManager):
    """A context manager and decorator that sets the value of a :class:`Setting`."""

    _setting: ClassVar[Setting]

    def __init__(self, mode: Any, *, thread_local: bool = False) -> None:
        super().__init__()
        self.mode = mode
        self.thread_local = thread_local

    def clone(self) -> Self:
        """Return a context manager of the same mode: a decorator needs one a call."""
        cls = type(self)
        result = cls.__new__(cls)
        result.mode = self.mode
        result.thread_local = self.thread_local
        return result

    def __enter__(self) -> None:
        setting = self._setting
        # The compiler cannot trace `get_ident`, so it is called for thread-local
        # settings only.
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
    """The value that a probabilistic module takes from its distribution."""

    MODE = "mode"
    """The most probable value."""
    MEDIAN = "median"
    MEAN = "mean"
    RANDOM = "random"
    """A sample."""
    DETERMINISTIC = "deterministic"
    """The distribution's ``deterministic_sample``, or else its mode or its mean."""

    @classmethod
    def from_str(cls, type_str: str) -> InteractionType:
        """Return the member of a name, in upper or lower case.

        Examples:
            >>> InteractionType.from_str("MEAN")
            <InteractionType.MEAN: 'mean'>
        """
        return cls(type_str.lower())


INTERACTION = Setting(None)


def interaction_type() -> InteractionType | None:
    """Return the type that :class:`set_interaction_type` set; None outside of it.

    Examples:
        >>> with set_interaction_type("mean"):
        ...     interaction_type()
        <InteractionType.MEAN: 'mean'>
    """
    return INTERACTION.get()


class set_interaction_type(_Mode):  # noqa: N801 - a public name
    """Set the value that probabilistic modules take from their distributions.

    Use it as a context manager or as a decorator.

    Args:
        type: a member of :class:`InteractionType`, or its name. If None, each module
            uses its own ``default_interaction_type``.
        thread_local: whether to set it for the running thread only.

    Raises:
        ValueError: the name is unknown.

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
        # The compiler represents a member as a string, and cannot call its methods.
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
    """Set whether composite distributions sum their log-probabilities to one tensor.

    Use it as a context manager or a decorator, or for the whole process with
    :meth:`set`.

    Args:
        mode: whether log-probabilities are summed.
        thread_local: whether to set it for the running thread only.

    Examples:
        >>> with set_composite_lp_aggregate(True):
        ...     composite_lp_aggregate()
        True
    """

    _setting = AGGREGATE

    def __init__(self, mode: bool = True, *, thread_local: bool = False) -> None:
        super().__init__(mode, thread_local=thread_local)

    def set(self) -> None:
        """Set the mode until :meth:`unset` is called."""
        self.__enter__()

    def unset(self) -> None:
        """Restore the mode from before :meth:`set`."""
        self.__exit__()


# Modules that are skipped because their outputs exist -------------------------------

SKIP = Setting(False)


def skip_existing() -> bool | list[Any]:
    """Return whether modules are skipped if their outputs exist.

    Returns:
        A boolean, or the list of output keys that :class:`set_skip_existing` was given.

    Examples:
        >>> skip_existing()
        False
    """
    return SKIP.get()


class set_skip_existing(_Mode):  # noqa: N801 - a public name
    """Skip modules whose outputs are in the tensordict already.

    A module is skipped if all its ``out_keys`` exist and none of them is also an input.
    Use this class as a context manager, or as a decorator of a method, which is then
    skipped by the same rule.

    Args:
        mode: whether modules are skipped, or the list of output keys that may be
            skipped. None is for a decorator only: the method follows the setting at its
            call.
        in_key_attr: the attribute of a decorated module that names its inputs.
        out_key_attr: the attribute that names its outputs.
        thread_local: whether to set it for the running thread only.

    Raises:
        RuntimeError: ``mode`` is None in a context manager.

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
        """Return another context manager of the same mode."""
        result = super().clone()
        result.in_key_attr = self.in_key_attr
        result.out_key_attr = self.out_key_attr
        return result

    def __enter__(self) -> None:
        if self.mode is None:
            raise RuntimeError(MSG_SKIP_NONE)
        super().__enter__()

    def __call__(self, func: Callable[..., Any]) -> Any:
        """Return the method, which is skipped if its outputs exist."""
        in_key_attr, out_key_attr, mode = self.in_key_attr, self.out_key_attr, self.mode

        @functools.wraps(func)
        def method(
            _self: Any, tensordict: TensorCollection, *args: object, **kwargs: object
        ) -> Any:
            active_mode = SKIP.get() if mode is None else mode
            if active_mode and has_results(
                active_mode,
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
    """Return whether a module can be skipped under the mode ``mode``."""
    for key in out_keys:
        if key in in_keys or (mode is not True and key not in mode):
            return False
        if not _rust.contains(td, key):
            return False
    return True


class _set_skip_existing_None(set_skip_existing):  # noqa: N801 - a name that clients use
    """``set_skip_existing(None)``: its method follows the setting at the call."""

    def __init__(
        self, in_key_attr: str = "in_keys", out_key_attr: str = "out_keys"
    ) -> None:
        super().__init__(None, in_key_attr, out_key_attr)


# Tensors instead of tensordicts ----------------------------------------------------

DISPATCH = Setting(True)


def _dispatch_td_nn_modules() -> bool:
    """Return whether modules take tensors instead of a tensordict."""
    return bool(DISPATCH.get())


class _set_dispatch_td_nn_modules(_Mode):  # noqa: N801 - a name that clients use
    """Set whether modules take tensors instead of a tensordict."""

    _setting = DISPATCH

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)


for _utils_name in (
    composite_lp_aggregate,
    set_composite_lp_aggregate,
    skip_existing,
    set_skip_existing,
    _set_skip_existing_None,
    _dispatch_td_nn_modules,
    _set_dispatch_td_nn_modules,
):
    _utils_name.__module__ = "tensordict.nn.utils"
for _probabilistic_name in (InteractionType, interaction_type, set_interaction_type):
    _probabilistic_name.__module__ = "tensordict.nn.probabilistic"
