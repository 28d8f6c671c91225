"""An unpickler for saves that may come from others: it reads data and runs no code.

A pickle is a program that names functions and calls them. This unpickler creates the values of
plain data, and instances of classes that this process has imported already. It creates instances
as :mod:`copy` does: by ``__new__`` of a builtin type, and the saved attributes. It also creates
times of pandas and of this package, and time zones: it imports their modules. It imports nothing
else and calls nothing else: a pickle that asks for more is refused with an error that names the
object.
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
MSG_REFUSED = "{}: {}. Pass allow_pickle=True to run it, if you trust the file."


class RefusedPickleError(pickle.UnpicklingError):
    """An error for a pickle that asks for more than data."""


def read_pickle(file: SavedPath, allow_pickle: bool | None) -> Any:
    """Return the value of a pickle in a save.

    Args:
        file: the pickle.
        allow_pickle: whether the pickle may run code. None reads plain data with a
            warning, and runs no code. False refuses every pickle.

    Raises:
        RuntimeError: the pickle is not allowed, or asks for more than data.
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
    """Return the value of a pickle of data.

    Raises:
        RefusedPickleError: the pickle asks for a call, or names an unknown object.
    """
    try:
        # The fast reader knows only builtin types, whose attributes cannot be replaced.
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
    """Return the function that ``getattr`` returns in pickles of time zones."""
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
    **{f"{cls.__module__}.{cls.__qualname__}": cls for cls in _TYPES},
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
"""The functions that create times with nanoseconds. Their module is imported when it is needed."""

_WITH_STATE = (np.ndarray, np.dtype, uuid.UUID)
"""The types whose ``__setstate__`` only sets data."""

_OWN_CLASSES = {"tensordict.nn.params.TensorDictParams": "TensorDictParams"}
"""Classes of this package by their paths in tensordict 0.15. Their modules are imported late."""

_CALLABLE = frozenset(map(id, [*_KNOWN.values(), _zone]))
_IMMUTABLE_TYPE = 1 << 8
"""The flag of types whose attributes cannot be set."""


def _is_immutable(value: object) -> bool:
    if isinstance(value, type):
        return bool(value.__flags__ & _IMMUTABLE_TYPE)
    return isinstance(value, types.BuiltinFunctionType)


class _UnknownError(Exception):
    """An error for a name that the fast reader does not know."""


def _python3_name(module: str, name: str) -> tuple[str, str]:
    """Return the Python 3 name of an object that early protocols name as Python 2 did."""
    if (module, name) in _compat_pickle.NAME_MAPPING:
        return _compat_pickle.NAME_MAPPING[module, name]
    return _compat_pickle.IMPORT_MAPPING.get(module, module), name


class _BuiltinReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        builtin = _KNOWN.get(".".join(_python3_name(module, name)))
        if builtin is None or not _is_immutable(builtin):
            raise _UnknownError
        return builtin


# Instances of other classes -------------------------------------------------------------

_PLAIN_NEW: set[Any] = {
    cls.__new__
    for cls in (object, tuple, list, dict, set, frozenset, str, bytes, int, float)
}


# The unpickler of the standard library that is written in Python. It has no annotations.
_PythonUnpickler: Any = pickle._Unpickler


class _Reader(_PythonUnpickler):  # type: ignore[misc]
    """An unpickler that creates and fills instances itself."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        # The objects created here. Keeping them prevents that another gets the same id.
        self._made: dict[int, Any] = {}
        self._callable: set[int] = set()

    def find_class(self, module: str, name: str) -> Any:
        module, name = _python3_name(module, name)
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
            # Not `getattr`: it could run a `__getattr__` of the module or class.
            if part not in vars(found):
                msg = f"it names {full}, which does not exist"
                raise RefusedPickleError(msg)
            found = vars(found)[part]
        return found

    def _maker_of_times(self, module: str, name: str) -> Any:
        try:
            maker = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            msg = f"it names {module}.{name}, which does not exist: {error}"
            raise RefusedPickleError(msg) from error
        self._callable.add(id(maker))
        return maker

    def _keep(self) -> None:
        value = self.stack[-1]
        self._made[id(value)] = value

    def _checked_call(self) -> None:
        called = self.stack[-2]
        is_member = isinstance(called, type) and issubclass(called, enum.Enum)
        is_known = id(called) in _CALLABLE or id(called) in self._callable
        if not is_known and not is_member:
            _refuse_call(called)
        self.load_reduce()
        self._keep()

    def _checked_new(self, cls: type, load: Callable[[], None]) -> None:
        # The `__new__` of a named tuple calls the `__new__` of tuple.
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
        msg = (
            "it uses an early pickle protocol, or refers to data outside of the pickle"
        )
        raise RefusedPickleError(msg)


# The base class looks up here which method handles an opcode.
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
