"""The pickles of saves; those that nobody said to trust are read without being run.

A pickle is a program: it names functions and has them called. Here it gets the values
that plain data is made of, and instances of classes that this process knows already, made
as :mod:`copy` makes them: by ``__new__`` of a builtin type and the attributes that were
kept. Times of pandas and of this package, and time zones, are made, too: their modules are
imported. Nothing else is imported, and nothing else is called: a pickle that asks for more
is refused, with what it asks for.
"""

from __future__ import annotations

import _compat_pickle
import collections
import datetime as dt
import decimal
import enum
import fractions
import importlib
import io
import pathlib
import pickle
import sys
import types
import uuid
import zoneinfo
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.primitives import classes
from tensordict.primitives.deprecation import warn_caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tensordict.storage.paths import SavedPath

__all__ = ["RefusedPickleError", "loads", "read_pickle"]

MSG_PICKLE = (
    "{} holds pickled values, which can run any code when they are read: pass "
    "allow_pickle=True if you trust the file."
)
MSG_DEFAULT = (
    " Starting with TensorDict 0.17, the default will change to refusing such files."
)
MSG_REFUSED = "{}: {}. Pass allow_pickle=True to have it run, if you trust the file."


class RefusedPickleError(pickle.UnpicklingError):
    """A pickle asks for more than data."""


def read_pickle(file: SavedPath, allow_pickle: bool | None) -> Any:
    """The value of a pickle of a save.

    Args:
        file: the pickle.
        allow_pickle: whether it may run code. By default what plain data needs is read,
            with a warning, and nothing is run.

    Raises:
        RuntimeError: it is not allowed, or asks for more than data.
    """
    if allow_pickle is False:
        raise RuntimeError(MSG_PICKLE.format(file))
    if allow_pickle:
        with file.open("rb") as stream:
            return pickle.load(stream)  # noqa: S301 - the caller allows it
    warn_caller(MSG_PICKLE.format(file) + MSG_DEFAULT)
    try:
        return loads(file.read_bytes())
    except RefusedPickleError as error:
        raise RuntimeError(MSG_REFUSED.format(file, error)) from None


def loads(content: bytes) -> Any:
    """The value of a pickle of data.

    Raises:
        RefusedPickleError: it asks for a call, or for something that is not known here.
    """
    try:
        # The fast reader knows builtin types alone, which nothing can change.
        return _BuiltinReader(io.BytesIO(content)).load()
    except _UnknownError:
        return _Reader(io.BytesIO(content)).load()


# Allowed calls --------------------------------------------------------------------------


def _tensor_storage(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True)


def _tensor(*args: object) -> torch.Tensor:
    return torch._utils._rebuild_tensor_v2(*args)


def _encoded(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        msg = f"it encodes text as {encoding!r}"
        raise RefusedPickleError(msg)
    return text.encode("latin1")


def _zone(key: str, from_cache: bool) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(key) if from_cache else zoneinfo.ZoneInfo.no_cache(key)


def _method_of_zones(*args: object) -> Any:
    """Return what ``getattr`` gives in the pickles of time zones."""
    if args != (zoneinfo.ZoneInfo, "_unpickle"):
        msg = "it calls builtins.getattr"
        raise RefusedPickleError(msg)
    return _zone


def _numpy_functions() -> Iterable[tuple[str, Any]]:
    core = getattr(np, "_core", None) or np.core
    for module in ("numpy._core", "numpy.core"):
        yield f"{module}.multiarray._reconstruct", core.multiarray._reconstruct
        yield f"{module}.multiarray.scalar", core.multiarray.scalar
        yield f"{module}.numeric._frombuffer", core.numeric._frombuffer


_TYPES: tuple[type, ...] = (
    *(set, frozenset, complex, bytes, bytearray, range, slice, list, dict, tuple),
    *(object, str, int, float, bool),
    *(collections.OrderedDict, collections.deque, collections.defaultdict),
    *(dt.date, dt.datetime, dt.time, dt.timedelta),
    *(dt.timezone, np.ndarray, np.dtype, types.SimpleNamespace, torch.Size),
    *(torch.device, decimal.Decimal, collections.Counter, fractions.Fraction),
    *(uuid.UUID, pathlib.Path, pathlib.PosixPath, pathlib.PurePath),
    *(pathlib.PurePosixPath, pathlib.PureWindowsPath, zoneinfo.ZoneInfo),
)

_KNOWN: dict[str, Any] = {
    **{f"{each.__module__}.{each.__qualname__}": each for each in _TYPES},
    **dict(_numpy_functions()),
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch.storage._load_from_bytes": _tensor_storage,
    "_codecs.encode": _encoded,
    "builtins.getattr": _method_of_zones,
}

_TIMES = frozenset(
    {
        "pandas._libs.tslibs.nattype._nat_unpickle",
        "pandas._libs.tslibs.timedeltas._timedelta_unpickle",
        "pandas._libs.tslibs.timestamps._unpickle_timestamp",
        "tensordict.interop.tables.times.NanosecondTime",
    }
)
"""The makers of times with nanoseconds. A module of theirs is imported when a pickle names it."""

_WITH_STATE = (np.ndarray, np.dtype, uuid.UUID)
"""The types whose own way to set a state is data alone."""

_OWN_CLASSES = {"tensordict.nn.params.TensorDictParams": "TensorDictParams"}
"""Classes of this package by the paths of release 0.15, which are not imported at the start."""

_CALLABLE = frozenset(map(id, [*_KNOWN.values(), _zone]))
_IMMUTABLE_TYPE = 1 << 8
"""The flag of types whose attributes nothing can set."""


def _is_immutable(value: object) -> bool:
    if isinstance(value, type):
        return bool(value.__flags__ & _IMMUTABLE_TYPE)
    return isinstance(value, types.BuiltinFunctionType)


class _UnknownError(Exception):
    """The fast reader met a name that it does not know."""


def _today(module: str, name: str) -> tuple[str, str]:
    """The name of today of what early protocols name as Python 2 did."""
    if (module, name) in _compat_pickle.NAME_MAPPING:
        return _compat_pickle.NAME_MAPPING[module, name]
    return _compat_pickle.IMPORT_MAPPING.get(module, module), name


class _BuiltinReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get(".".join(_today(module, name)))
        if known is None or not _is_immutable(known):
            raise _UnknownError
        return known


# Instances of other classes -------------------------------------------------------------

_PLAIN_NEW: set[Any] = {
    each.__new__
    for each in (object, tuple, list, dict, set, frozenset, str, bytes, int, float)
}


# The form of the reader that is written in Python, of which annotations know nothing.
_PythonUnpickler: Any = pickle._Unpickler


class _Reader(_PythonUnpickler):  # type: ignore[misc]
    """A reader of instances, which it makes and fills itself."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        # Objects made here, kept so that no other object gets their number.
        self._made: dict[int, Any] = {}
        self._callable: set[int] = set()

    def find_class(self, module: str, name: str) -> Any:
        module, name = _today(module, name)
        full = f"{module}.{name}"
        if full in _KNOWN:
            return _KNOWN[full]
        if full in _TIMES:
            return self._maker_of_times(module, name)
        if full in _OWN_CLASSES:
            return getattr(classes, _OWN_CLASSES[full])
        if module not in sys.modules:
            msg = f"it names {full}, and {module} is not imported"
            raise RefusedPickleError(msg)
        found: Any = sys.modules[module]
        for part in name.split("."):
            # Not by `getattr`, for which modules and classes can have functions.
            if part not in vars(found):
                msg = f"it names {full}, which is not there"
                raise RefusedPickleError(msg)
            found = vars(found)[part]
        return found

    def _maker_of_times(self, module: str, name: str) -> Any:
        try:
            made = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            msg = f"it names {module}.{name}, which is not there: {error}"
            raise RefusedPickleError(msg) from error
        self._callable.add(id(made))
        return made

    def _keep(self) -> None:
        made = self.stack[-1]
        self._made[id(made)] = made

    def _checked_call(self) -> None:
        called = self.stack[-2]
        is_member = isinstance(called, type) and issubclass(called, enum.Enum)
        is_known = id(called) in _CALLABLE or id(called) in self._callable
        if not is_known and not is_member:
            _refuse_call(called)
        self.load_reduce()
        self._keep()

    def _checked_new(self, cls: type, load: Callable[[], None]) -> None:
        # The `__new__` of a named tuple calls that of tuples.
        is_plain = isinstance(cls, type) and (
            cls.__new__ in _PLAIN_NEW
            or id(cls) in _CALLABLE
            or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        )
        if not is_plain:
            _refuse_call(cls)
        load()
        self._keep()

    def _checked_newobj(self) -> None:
        self._checked_new(self.stack[-2], self.load_newobj)

    def _checked_newobj_ex(self) -> None:
        self._checked_new(self.stack[-3], self.load_newobj_ex)

    def _checked_build(self) -> None:
        state, target = self.stack[-1], self.stack[-2]
        cls = type(target)
        slots = state[1] if isinstance(state, tuple) and len(state) == 2 else None
        is_plain = not hasattr(cls, "__setstate__") or isinstance(target, _WITH_STATE)
        if id(target) not in self._made or not is_plain:
            msg = f"it sets the state of a {cls.__module__}.{cls.__qualname__}"
            raise RefusedPickleError(msg)
        if isinstance(slots, dict) and not hasattr(cls, "__setstate__"):
            for name in slots:
                if not isinstance(getattr(cls, name, None), types.MemberDescriptorType):
                    msg = f"it sets {name!r} of a {cls.__module__}.{cls.__qualname__}"
                    raise RefusedPickleError(msg)
        self.load_build()

    def _checked_fill(self, load: Callable[[], None], target: object) -> None:
        cls = type(target)
        for name in ("append", "extend", "__setitem__", "add", "update"):
            method = getattr(cls, name, None)
            if isinstance(method, types.FunctionType):
                msg = f"it calls {cls.__module__}.{cls.__qualname__}.{name}"
                raise RefusedPickleError(msg)
        load()

    def _refused(self) -> None:
        msg = "it is of an early protocol of pickles, or names what is outside of it"
        raise RefusedPickleError(msg)


# The methods by the opcodes that they stand for, which the base class looks up here.
_Reader.dispatch = {
    **_PythonUnpickler.dispatch,
    pickle.REDUCE[0]: _Reader._checked_call,
    pickle.NEWOBJ[0]: _Reader._checked_newobj,
    pickle.NEWOBJ_EX[0]: _Reader._checked_newobj_ex,
    pickle.BUILD[0]: _Reader._checked_build,
    pickle.APPEND[0]: lambda self: self._checked_fill(self.load_append, self.stack[-2]),
    pickle.APPENDS[0]: lambda self: self._checked_fill(
        self.load_appends, self.metastack[-1][-1]
    ),
    pickle.SETITEM[0]: lambda self: self._checked_fill(
        self.load_setitem, self.stack[-3]
    ),
    pickle.SETITEMS[0]: lambda self: self._checked_fill(
        self.load_setitems, self.metastack[-1][-1]
    ),
    pickle.ADDITEMS[0]: lambda self: self._checked_fill(
        self.load_additems, self.metastack[-1][-1]
    ),
}
for _code in (
    *(pickle.INST, pickle.OBJ, pickle.PERSID, pickle.BINPERSID),
    *(pickle.EXT1, pickle.EXT2, pickle.EXT4),
):
    _Reader.dispatch[_code[0]] = _Reader._refused


def _refuse_call(called: object) -> None:
    name = getattr(called, "__qualname__", repr(called))
    msg = f"it calls {getattr(called, '__module__', '')}.{name}"
    raise RefusedPickleError(msg)
