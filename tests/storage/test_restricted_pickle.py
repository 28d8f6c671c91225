"""Pickles that nobody said to trust: data is read, and nothing is run."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import io
import os
import pathlib
import pickle
import subprocess
import sys
import types
import uuid
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict import NonTensorData, TensorDict, TensorDictParams, tensorclass
from tensordict.storage.restricted_pickle import RefusedPickleError, loads


class Plain:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Plain and other.value == self.value

    __hash__ = None


class Slotted:
    __slots__ = ("value",)


class Colour(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Record:
    name: str
    values: list


class Stateful:
    ran = False

    def __setstate__(self, state):
        Stateful.ran = True


class Listed(list):
    ran = False

    def append(self, value):
        Listed.ran = True

    extend = append


DATA = [
    {1, 2},
    frozenset("ab"),
    (1, (2.5, None)),
    1 + 2j,
    bytearray(b"x"),
    range(3),
    slice(1, 2),
    collections.OrderedDict(a=1),
    collections.deque([1, 2], maxlen=3),
    collections.defaultdict(list, a=[1]),
    collections.Counter("aab"),
    dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    dt.timedelta(3),
    decimal.Decimal("1.5"),
    fractions.Fraction(1, 3),
    uuid.UUID(int=5),
    pathlib.PurePosixPath("/a/b"),
    types.SimpleNamespace(a=1),
    np.float32(1.5),
    np.dtype("int16"),
    torch.Size([2]),
    torch.float16,
    torch.device("cpu"),
    Colour.RED,
    Point(1, 2),
    Plain([1, {"a": {3}}]),
    Record("a", [1, (2,)]),
    {"nested": [Plain(1), {Colour.RED}]},
    len,
    Plain,
]


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("value", DATA, ids=lambda value: type(value).__name__)
def test_data_is_read(value, protocol):
    assert loads(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("dtype", ["int64", "float32", "U3", "object"])
def test_arrays_are_read(dtype, protocol):
    array = np.array([1, 2, 3]).astype(dtype)
    read = loads(pickle.dumps({"a": array}, protocol))["a"]
    assert read.dtype == array.dtype
    assert (read == array).all()


def test_tensors_are_read():
    tensor = torch.arange(6.0).view(2, 3).t()
    assert loads(pickle.dumps([tensor]))[0].equal(tensor)


def test_slots_are_read():
    held = Slotted()
    held.value = 3
    assert loads(pickle.dumps(held)).value == 3


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.binary() | st.booleans(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner)
        ),
        max_leaves=8,
    ),
    st.sampled_from([0, 1, 2, 3, 4, 5]),
)
def test_nested_data_is_read(value, protocol):
    assert loads(pickle.dumps(value, protocol)) == value


class Call:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Fill:
    """Pickles as a state of something that is there already."""

    def __init__(self, target, state):
        self.target, self.state = target, state

    def parts(self):
        name = self.target.__module__, self.target.__qualname__
        head = pickle.PROTO + bytes([2]) + pickle.GLOBAL
        head += f"{name[0]}\n{name[1]}\n".encode()
        return head + pickle.dumps(self.state, 2)[2:-1] + pickle.BUILD + pickle.STOP


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
@pytest.mark.parametrize(
    "function",
    [os.system, os.mkdir, subprocess.Popen, eval, exec, getattr, setattr, __import__],
    ids=lambda function: function.__name__,
)
def test_calls_are_refused(function, protocol, tmp_path):
    made = tmp_path / "made"
    code = f"mkdir {made}" if function is os.system else str(made)
    content = pickle.dumps({"a": [Call(function, code)]}, protocol)
    with pytest.raises((RefusedPickleError, pickle.UnpicklingError)):
        loads(content)
    assert not made.exists()


def test_a_call_by_way_of_a_class_is_refused():
    class_of_process = pickle.dumps(subprocess.Popen, 2)[2:-1]
    for end in (
        pickle.MARK + b"X\x04\0\0\0true" + pickle.TUPLE + pickle.NEWOBJ,
        pickle.EMPTY_TUPLE + pickle.EMPTY_DICT + pickle.NEWOBJ_EX,
        pickle.EMPTY_TUPLE + pickle.REDUCE,
    ):
        content = pickle.PROTO + b"\4" + class_of_process + end + pickle.STOP
        made = None
        try:
            made = loads(content)
        except (pickle.UnpicklingError, TypeError):
            pass
        assert not hasattr(made, "pid")


@pytest.mark.parametrize("state", [{"ran": True}, (None, {"ran": True})])
@pytest.mark.parametrize("target", [Stateful, Plain, collections.Counter, loads])
def test_nothing_that_is_there_is_changed(target, state):
    before = dict(vars(target))
    with pytest.raises((pickle.UnpicklingError, TypeError)):
        loads(Fill(target, state).parts())
    assert dict(vars(target)) == before


@pytest.mark.parametrize("held", [Stateful(), Listed([1, 2])])
def test_methods_of_classes_are_not_called(held):
    if isinstance(held, Stateful):
        held.value = 1
    with pytest.raises(RefusedPickleError):
        loads(pickle.dumps(held))
    assert not type(held).ran


def test_a_class_of_this_package_has_the_path_of_the_release(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensordict.nn.params", raising=False)
    content = b"\x80\x04ctensordict.nn.params\nTensorDictParams\n."
    assert loads(content) is TensorDictParams


def test_nothing_is_imported():
    with pytest.raises(RefusedPickleError, match="is not imported"):
        loads(b"\x80\x02cthis_module.is_not\nthere\n.")


def test_tensors_hide_no_pickle(tmp_path):
    inner = io.BytesIO()
    torch.save(Call(os.mkdir, str(tmp_path / "made")), inner)
    content = pickle.dumps(Call(torch.storage._load_from_bytes, inner.getvalue()))
    with pytest.raises(pickle.UnpicklingError):
        loads(content)
    assert not (tmp_path / "made").exists()


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content):
    try:
        loads(pickle.PROTO + b"\4" + content)
    except Exception:  # noqa: BLE001 - any error but a call is right
        pass


@tensorclass
class Held:
    x: torch.Tensor
    y: object


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["value", "stack", "class"])
@pytest.mark.parametrize("archive", [False, True])
def test_a_save_with_a_call_is_not_run(kind, archive, tmp_path):
    made = tmp_path / "made"
    value = Call(os.mkdir, str(made))
    if kind == "class":
        td = Held(torch.ones(2), value, batch_size=[2])
    else:
        values = [NonTensorData(value), NonTensorData(value)]
        held = torch.stack(values) if kind == "stack" else values[0]
        td = TensorDict({"a": torch.ones(2), "v": held}, [2] if kind == "stack" else [])
    path = tmp_path / ("save.tdz" if archive else "save")
    td.memmap(path)
    made.rmdir() if made.exists() else None
    cls = type(td)
    with pytest.raises(RuntimeError, match="allow_pickle=True"):
        cls.load_memmap(path)
    assert not made.exists()
    with pytest.raises(RuntimeError, match="allow_pickle=True"):
        cls.load_memmap(path, allow_pickle=False)
    assert not made.exists()
    cls.load_memmap(path, allow_pickle=True)
    assert made.exists()


def test_a_save_with_instances_is_read_with_a_warning(tmp_path):
    td = TensorDict({"v": NonTensorData(Plain({1, 2}))})
    td.memmap(tmp_path)
    with pytest.warns(FutureWarning, match="pickled values"):
        loaded = TensorDict.load_memmap(tmp_path)
    assert loaded["v"] == Plain({1, 2})
