"""Errors say what was asked, what was found, what to do; and nothing has changed.

Each row is a mistake: what is called with fresh data, the class of the error, and pieces of its
text. The first piece is that of the published release.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict import (
    KeyThroughLeafError,
    MissingKeyError,
    NonTensorData,
    TensorClass,
    TensorDict,
    TensorDictParams,
    TypedTensorDict,
    lazy_stack,
    pad_sequence,
)
from tensordict.base import _KeyThroughLeafError
from tensordict.checkpoint import Checkpointer
from tensordict.data import StreamDataLoader
from tensordict.nn import TensorDictModule


def data() -> TensorDict:
    """A nested collection of batch size [4]."""
    return TensorDict(
        obs=TensorDict(pixels=torch.zeros(4, 3), state=torch.zeros(4), batch_size=[4]),
        reward=torch.zeros(4),
        batch_size=[4],
    )


class Record(TensorClass):
    """A tensorclass."""

    obs: TensorDict
    reward: torch.Tensor


class Typed(TypedTensorDict):
    """A typed collection."""

    obs: TensorDict
    reward: torch.Tensor


KINDS = {
    "dense": data,
    "lazy": lambda: lazy_stack(list(data().unbind(0))),
    "view": lambda: data()._get_sub_tensordict(slice(0, 4)),
    "params": lambda: TensorDictParams(data()),
    "typed": lambda: Typed(obs=data()["obs"], reward=torch.zeros(4), batch_size=[4]),
    "class": lambda: Record(obs=data()["obs"], reward=torch.zeros(4), batch_size=[4]),
    "member": lambda: TensorDict(inner=data(), batch_size=[4])["inner"],
}


def described(value: Any) -> Any:
    """All that a mistake might have changed."""
    keys = [str(key) for key in value.keys(True)]
    leaves = [value.get(key) for key in value.keys(True, True)]
    tensors = [leaf.tolist() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return keys, tensors, value.batch_size, value.is_locked, value.device


def assert_refused(make: Any, call: Any, kind: Any, pieces: Any) -> Exception:
    """The error of a call on fresh data, which is as it was."""
    td = make()
    before = described(td)
    with pytest.raises(kind) as caught:
        call(td)
    text = str(caught.value)
    for piece in pieces:
        assert piece in text
    assert "\n" not in text
    assert len(text) < 700
    assert described(td) == before
    return caught.value


MISSING = {
    "get": lambda td, key: td.get(key, default=...) and td[key],
    "getitem": lambda td, key: td[key],
    "pop": lambda td, key: td.pop(key),
    "del": lambda td, key: td.del_(key),
    "rename": lambda td, key: td.rename_key_(key, "new"),
    "select": lambda td, key: td.select(key),
}


@pytest.mark.parametrize("name", [name for name in MISSING if name != "get"])
@pytest.mark.parametrize("kind", ["dense", "lazy", "view", "typed", "member"])
def test_a_missing_key_names_near_ones(name: str, kind: str) -> None:
    """All ways of asking for an entry say which one was meant."""
    call = MISSING[name]
    if kind == "view" and name in ("pop", "rename"):
        return  # refused whatever the key is
    pieces = ["rewrad", "Did you mean 'reward'?"]
    error = assert_refused(KINDS[kind], lambda td: call(td, "rewrad"), KeyError, pieces)
    assert isinstance(error, MissingKeyError)
    assert error.args == (str(error),)


@pytest.mark.parametrize("name", ["getitem", "select", "del", "pop"])
@pytest.mark.parametrize("kind", ["dense", "lazy", "typed", "member"])
def test_a_missing_nested_key_is_named_whole(name: str, kind: str) -> None:
    """The whole key is there, and so are near ones."""
    call = MISSING[name]
    pieces = ["('obs', 'pixel')", "Did you mean ('obs', 'pixels')?"]
    key = ("obs", "pixel")
    assert_refused(KINDS[kind], lambda td: call(td, key), KeyError, pieces)
    pieces = ["('ob', 'pixels')", "Did you mean ('obs', 'pixels')?"]
    key = ("ob", "pixels")
    assert_refused(KINDS[kind], lambda td: call(td, key), KeyError, pieces)


def test_the_error_of_a_missing_key_can_be_pickled() -> None:
    """Workers send errors; the text and the class come through."""
    for key, kind in [
        ("rewrad", MissingKeyError),
        (("reward", "x"), KeyThroughLeafError),
    ]:
        with pytest.raises(kind) as caught:
            data()[key]
        again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
        assert type(again) is kind
        assert str(again) == str(caught.value)


def test_no_near_key_is_made_up() -> None:
    """Nothing is offered if no key is near."""
    with pytest.raises(KeyError) as caught:
        data()["zzz"]
    text = "key \"zzz\" not found in TensorDict with keys ['obs', 'reward']"
    assert str(caught.value) == text


@pytest.mark.parametrize("kind", ["dense", "lazy", "typed", "member", "view"])
def test_a_key_through_a_leaf_is_a_public_error(kind: str) -> None:
    """It is a KeyError and a ValueError, as the release raises the one or the other."""
    pieces = ["'reward' is a Tensor, not a tensordict, so it has no entry 'x'."]
    for name in ("getitem", "select"):
        for base in (KeyThroughLeafError, KeyError, ValueError):
            call = MISSING[name]
            key = ("reward", "x")
            assert_refused(
                KINDS[kind], lambda td, c=call, k=key: c(td, k), base, pieces
            )
    assert _KeyThroughLeafError is KeyThroughLeafError
    with pytest.raises(KeyThroughLeafError, match=r"key is \('obs', 'state', 'x'\)"):
        data()["obs", "state", "x"]


LOCKED = "Cannot modify locked TensorDict. For in-place modification"


@pytest.mark.parametrize(
    "call",
    [
        lambda td: td.set("x", torch.zeros(4)),
        lambda td: td.pop("reward"),
        lambda td: td.del_("reward"),
        lambda td: td.update({"x": torch.zeros(4)}),
        lambda td: td.rename_key_("reward", "x"),
        lambda td: td.select("reward", inplace=True),
    ],
)
def test_a_locked_collection_says_what_locked_it(call: Any, tmp_path: Any) -> None:
    """The reason is named, and both ways out."""
    ways = ["`unlock_()`", "`clone(False)`"]
    made = {
        "`lock_()`": lambda: data().lock_(),
        "mapped to files": lambda: data().memmap(tmp_path / "save"),
        "shared memory": lambda: data().share_memory_(),
    }
    for reason, make in made.items():
        assert_refused(make, call, RuntimeError, [LOCKED, reason, *ways])
    for kind in ("lazy", "typed"):
        make = KINDS[kind]
        assert_refused(
            lambda m=make: m().lock_(), call, RuntimeError, [LOCKED, "`lock_()`", *ways]
        )


def test_a_locked_entry_names_its_parent() -> None:
    """The root is to be unlocked."""
    root = data().lock_()
    pieces = [
        LOCKED,
        "part of a locked TensorDict of batch size [4]",
        "['obs', 'reward']",
    ]
    assert_refused(
        lambda: root["obs"],
        lambda td: td.set("x", torch.zeros(4)),
        RuntimeError,
        pieces,
    )
    pieces = ["Cannot unlock a tensordict that is part of a locked graph", "'pixels'"]
    assert_refused(lambda: root["obs"], lambda td: td.unlock_(), RuntimeError, pieces)


def batch(**entries: Any) -> TensorDict:
    """A collection of no batch dims."""
    return TensorDict(entries)


JOINS = {
    "ragged": (
        [batch(a=torch.zeros(3)), batch(a=torch.zeros(4))],
        ["to stack is incompatible", "for key a", "`lazy_stack`"],
    ),
    "ragged below": (
        [batch(n=batch(a=torch.zeros(3))), batch(n=batch(a=torch.zeros(4)))],
        ["to stack is incompatible", "('n', 'a')", "`lazy_stack`"],
    ),
    "keys": (
        [batch(a=torch.zeros(3)), batch(b=torch.zeros(3), c=torch.zeros(3))],
        [
            "keys in the tensordicts to stack are exclusive",
            "lacks the keys ['a']",
            "['b', 'c']",
        ],
    ),
    "keys below": (
        [batch(n=batch(a=torch.zeros(3))), batch(n=batch(b=torch.zeros(3)))],
        [
            "keys in the tensordicts to stack are exclusive",
            "lacks the keys ['a']",
            "'n'",
        ],
    ),
}


@pytest.mark.parametrize("name", JOINS)
def test_a_stack_that_is_refused_says_why(name: str) -> None:
    """The keys are named, and what takes such entries."""
    members, pieces = JOINS[name]
    with pytest.raises(RuntimeError) as caught:
        torch.stack(members)
    for piece in pieces:
        assert piece in str(caught.value)
    assert "\n" not in str(caught.value)


MISFITS = {
    "nested collection": (
        lambda td: td.set(("obs", "n"), TensorDict(a=torch.zeros(3), batch_size=[3])),
        ["the Tensor a has shape torch.Size([3])", "('obs', 'n', 'a')"],
    ),
    "nested dict": (
        lambda td: td.set("new", {"b": {"c": torch.zeros(3)}}),
        ["batch dimension mismatch", "('new', 'b', 'c')"],
    ),
    "constructor": (
        lambda td: TensorDict({"a": {"b": {"c": torch.zeros(3)}}}, td.batch_size),
        ["batch dimension mismatch", "('a', 'b', 'c')"],
    ),
    "row": (
        lambda td: td.__setitem__(
            0, batch(obs=batch(pixels=torch.zeros(2)), reward=torch.zeros(()))
        ),
        ["The expanded size of the tensor (3) must match", "('obs', 'pixels')"],
    ),
    "leaf of a row": (
        lambda td: td.__setitem__(0, batch(reward=torch.zeros(2))),
        ["expand(source of shape [2], size=[])", "The key is 'reward'."],
    ),
    "batch size": (
        lambda td: setattr(td, "batch_size", [5]),
        ["incompatible with the batch-size", "('obs', 'pixels')"],
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_value_that_does_not_fit_names_its_whole_key(name: str) -> None:
    """Also where it lies deep in what was given."""
    call, pieces = MISFITS[name]
    assert_refused(data, call, RuntimeError, pieces)


ARGUMENTS = {
    "td + s": (lambda td: td + "s", TypeError, ["add()", "(TensorDict, str)"]),
    "s + td": (lambda td: "s" + td, TypeError, []),
    "td - object": (lambda td: td - object(), TypeError, ["sub()", "operand"]),
    "add_": (lambda td: td.add_("s"), TypeError, ["add()", "operand"]),
    "add alpha": (lambda td: td.add(None), TypeError, []),
    "+=": (lambda td: td.__iadd__({}), TypeError, ["add()", "(TensorDict, dict)"]),
    "mul": (lambda td: td.mul_("s"), TypeError, ["mul()", "(TensorDict, str)"]),
    "lerp": (lambda td: td.lerp(td, "s"), TypeError, ["operand"]),
    "stack": (
        lambda td: torch.stack([td, torch.zeros(4)]),
        AttributeError,
        ["'Tensor' object has no attribute 'batch_size'", "item 1 is a tensor"],
    ),
    "cat": (
        lambda td: torch.cat([torch.zeros(4), td]),
        AttributeError,
        ["'Tensor' object has no attribute 'batch_size'", "item 0 is a tensor"],
    ),
    "update": (
        lambda td: td.update(3),
        AttributeError,
        ["'int' object has no attribute 'items'", "a mapping, not 3"],
    ),
    "update_": (lambda td: td.update_(3), TypeError, ["not iterable", "a mapping"]),
    "mean": (
        lambda td: td.mean(dim="time"),
        TypeError,
        ["'time' is a name", "td.names.index('time')"],
    ),
    "sum": (lambda td: td.sum(dim=("time",)), TypeError, ["'time' is a name"]),
    "batch size": (
        lambda td: TensorDict({"a": torch.zeros(3)}, batch_size="3"),
        ValueError,
        ["could not be retrieved from source", "'3', of type str"],
    ),
    "batch size of text": (
        lambda td: TensorDict({"a": torch.zeros(3)}, batch_size=["3"]),
        ValueError,
        ["could not be retrieved from source", "['3'], of type list"],
    ),
    "from_module": (
        lambda td: TensorDict.from_module(3),
        AttributeError,
        ["'int' object has no attribute '_parameters'", "takes a torch.nn.Module"],
    ),
    "from_module of a class": (
        lambda td: TensorDict.from_module(torch.nn.Linear),
        AttributeError,
        ["takes a torch.nn.Module, and not 'Linear'"],
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("kind", ["dense", "lazy"])
def test_an_argument_that_is_none_is_named_in_one_line(name: str, kind: str) -> None:
    """The class is that of the release; the text says what is taken."""
    call, error, pieces = ARGUMENTS[name]
    pieces = [
        piece.replace("TensorDict,", f"{type(KINDS[kind]()).__name__},")
        for piece in pieces
    ]
    assert_refused(KINDS[kind], call, error, pieces)


def test_arithmetic_in_place_says_which_dtype_does_not_fit() -> None:
    """One of two dtypes cannot hold the result: nothing is written."""

    def mixed() -> TensorDict:
        return TensorDict(a=torch.zeros(3, dtype=torch.int32), b=torch.zeros(3))

    pieces = ["result type Float can't be cast", "dtype torch.int32"]
    other = TensorDict(a=torch.ones(3), b=torch.ones(3))
    for call in (
        lambda td: td.add_(1.5),
        lambda td: td.mul_(1.5),
        lambda td: td.div_(2),
        lambda td: td.add_(other),
    ):
        assert_refused(mixed, call, RuntimeError, pieces)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a /proc")
def test_a_save_below_proc_ends_in_an_error() -> None:
    """The system says there that a parent is missing, which it is not."""
    with pytest.raises(OSError, match="/proc/"):
        TensorDict(a=torch.zeros(3)).memmap("/proc/x/y")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a /proc")
def test_a_save_where_none_can_be_names_the_path_asked_for() -> None:
    """And not a directory above it, or the one for the work beside it."""
    for path in ("/proc/x/y", "/dev/null/x"):
        with pytest.raises(OSError, match=f": '{path}'") as caught:
            data().memmap(path)
        assert caught.value.filename == path


def test_a_load_of_nothing_says_that_there_is_no_save(tmp_path: Path) -> None:
    """The class, the number and the file are those of the system's error."""
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(FileNotFoundError, match="there is no save in") as caught:
            TensorDict.load_memmap(path)
        assert caught.value.errno == 2
        assert caught.value.filename == str(path / "meta.json")


class Unpicklable:
    """A value that no pickle takes."""

    def __reduce__(self) -> Any:
        """Refuse."""
        msg = "no pickle of this"
        raise RuntimeError(msg)


def test_a_value_that_cannot_be_pickled_is_named_by_its_key(tmp_path: Path) -> None:
    """The error is the value's own."""
    nested = TensorDict(inner=TensorDict(value=NonTensorData(Unpicklable())))
    with pytest.raises(RuntimeError, match=r"no pickle of this.*'inner', 'value'"):
        nested.memmap(tmp_path / "save")
    assert not (tmp_path / "save").exists()


def test_a_scalar_that_is_to_be_padded_is_named() -> None:
    """And what to do with it."""
    members = [batch(n=batch(a=torch.tensor(1))), batch(n=batch(a=torch.tensor(2)))]
    with pytest.raises(
        RuntimeError, match=r"Cannot pad scalars.*\('n', 'a'\).*unsqueeze"
    ):
        pad_sequence(members)


def test_a_key_with_dots_that_is_meant_to_be_nested() -> None:
    """The nested key is named where it is one."""
    with pytest.raises(KeyError, match=r"Did you mean \('obs', 'state'\)\?"):
        data()["obs.state"]
    with pytest.raises(KeyError, match=r"Did you mean \('obs', 'state'\)\?"):
        data().select("obs.state")
    with pytest.raises(KeyError) as caught:
        data()["obs.nothing"]
    assert "mean" not in str(caught.value)


def test_the_error_of_a_property_stays_its_own() -> None:
    """It is not taken for a name that is not there."""

    class Own(TensorDict):
        @property
        def reward(self) -> None:
            msg = "not yet"
            raise AttributeError(msg)

    with pytest.raises(AttributeError, match="^not yet$"):
        _ = Own(reward=torch.zeros(3)).reward


def test_missing_keys_are_shown_as_they_are(tmp_path: Path) -> None:
    """Without quotes around the message and escapes in it."""
    td, model = data(), torch.nn.Linear(2, 2)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, model=model)
    module = TensorDictModule(model, in_keys=["x"], out_keys=["y"])
    for call in (
        lambda: td + td.exclude("reward"),
        lambda: td.add_(td.exclude("reward")),
        lambda: TensorDict(w=torch.zeros(2)).to_module(model),
        lambda: checkpointer.restore(net=model),
        lambda: module(td),
    ):
        with pytest.raises(MissingKeyError) as caught:
            call()
        assert str(caught.value) == caught.value.args[0]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda td: td.memmap(num_thread=2), r"TensorDictBase\.memmap\(\).*num_thread"),
        (lambda td: td.map(id, chunk_size=3), r"TensorDictBase\.map\(\).*chunk_size"),
        (lambda td: td.reshape("a"), r"one sequence of numbers, got 'a'"),
        (lambda td: td.view("a"), r"one sequence of numbers, got 'a'"),
        (lambda td: td.expand("3"), r"expand\(\) takes numbers.*'3'"),
        (lambda td: td.expand("3", 4), r"expand\(\) takes numbers.*'3'"),
        (lambda td: td.apply(3), r"apply\(\) calls its first argument.* 3 is no"),
        (lambda td: td.named_apply(3), r"named_apply\(\) calls its first.* 3 is no"),
    ],
)
def test_arguments_are_named(call: Any, said: str) -> None:
    """And the class is one that users know."""
    td = data()
    with pytest.raises(TypeError, match=said):
        call(td)
    assert pickle.loads(pickle.dumps(TensorDict.memmap)) is TensorDict.memmap


def test_a_function_that_is_saved_as_a_value(tmp_path: Path) -> None:
    """The error says what to do with it."""
    # The class is that of pickle, which is another one from 3.15 on.
    refused = (AttributeError, pickle.PicklingError)
    with pytest.raises(refused, match=r"entry 'f'. Save .*exclude"):
        TensorDict(f=lambda: 1).memmap(tmp_path / "save")


DIM_CALLS = {
    "unsqueeze": lambda td, dim: td.unsqueeze(dim),
    "squeeze": lambda td, dim: td.squeeze(dim),
    "permute": lambda td, dim: td.permute(dim),
    "transpose": lambda td, dim: td.transpose(dim, 0),
    "movedim": lambda td, dim: td.movedim(dim, 0),
    "flatten": lambda td, dim: td.flatten(dim),
    "unflatten": lambda td, dim: td.unflatten(dim, (4,)),
    "unbind": lambda td, dim: td.unbind(dim),
    "split": lambda td, dim: td.split(2, dim),
    "chunk": lambda td, dim: td.chunk(2, dim),
    "narrow": lambda td, dim: td.narrow(dim, 0, 1),
    "all": lambda td, dim: td.all(dim),
    "any": lambda td, dim: td.any(dim),
    "mean": lambda td, dim: td.mean(dim=dim),
    "flip": lambda td, dim: td.flip(dim),
    "roll": lambda td, dim: td.roll(1, dim),
    "repeat_interleave": lambda td, dim: td.repeat_interleave(2, dim=dim),
    "gather": lambda td, dim: td.gather(dim, torch.zeros(4, dtype=torch.int64)),
    "to_lazystack": lambda td, dim: td.to_lazystack(dim),
}


@pytest.mark.parametrize("kind", ["dense", "lazy", "view", "params"])
@pytest.mark.parametrize("name", DIM_CALLS)
def test_a_dim_that_is_no_number_is_named(name: str, kind: str) -> None:
    """A name and a float are no dims; the error has the way from a name to its number."""
    call = DIM_CALLS[name]
    make = KINDS[kind]
    if kind == "view" and name in ("permute", "movedim"):
        return  # refused whatever the dims are
    pieces = ["a dim is a number", "`td.names.index('time')`"]
    assert_refused(make, lambda td: call(td, "time"), TypeError, pieces)
    assert_refused(make, lambda td: call(td, 1.5), TypeError, ["a dim is a number"])


@pytest.mark.parametrize("kind", ["dense", "lazy"])
def test_operands_that_have_no_entries_are_named(kind: str) -> None:
    """A number behind the function, a mask of another type, a shape of nothing."""
    make = KINDS[kind]
    pieces = ["'int' object has no entries", "lambda leaf: fn(leaf, value)"]
    for name in ("apply", "named_apply", "apply_"):
        assert_refused(
            make,
            lambda td, n=name: getattr(td, n)(lambda *leaves: leaves[-1], 3),
            AttributeError,
            pieces,
        )
        assert_refused(
            make, lambda td, n=name: getattr(td, n)(3), TypeError, ["is no function"]
        )
    assert_refused(
        make,
        lambda td: td.where("reward", td),
        TypeError,
        ["tensor of booleans", "str"],
    )
    assert_refused(make, lambda td: td.expand_as(3), TypeError, ["tensor", "int"])


def test_the_text_of_a_key_error_is_its_message(tmp_path: Path) -> None:
    """No quotes, no escapes, wherever it is raised."""
    wrong = {
        "taken": lambda: data().rename_key_("reward", "obs", safe=True),
        "collides": lambda: TensorDict({"a": {"b": 1}, "a.b": 2}).flatten_keys(),
        "metric": lambda: _checkpointer(tmp_path).best("loss"),
    }
    for call in wrong.values():
        with pytest.raises(KeyError) as caught:
            call()
        assert str(caught.value) == caught.value.args[0]


def _checkpointer(folder: Path) -> Checkpointer:
    checkpointer = Checkpointer(folder / "run")
    checkpointer.save(1, x=torch.zeros(2))
    return checkpointer


def test_no_worker_is_told() -> None:
    """The number is named, and the way to call a function in this process."""
    assert_refused(
        data,
        lambda td: td.map(lambda x: x, num_workers=0),
        ValueError,
        ["Number of processes must be at least 1", "num_workers=0", "backend='serial'"],
    )


def test_arguments_of_a_stream_loader_are_named() -> None:
    """The class that was called, and the near name."""
    wrong = [
        ({"bath_size": 2}, "did you mean batch_size="),
        ({"sufle": True, "batch_size": 1}, "did you mean shuffle="),
        ({}, r"missing a required argument: 'batch_size'"),
    ]
    for options, text in wrong:
        with pytest.raises(TypeError, match=f"(?i)StreamDataLoader.*{text}"):
            StreamDataLoader(["ab"], iter, **options)  # type: ignore[call-overload]
