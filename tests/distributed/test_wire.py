"""Collections on a wire: described, made again, and damaged on the way."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np
import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictParams,
    tensorclass,
)
from tensordict.distributed import wire


@tensorclass
class Sent:
    """A class with a tensor and a text."""

    x: torch.Tensor
    text: str


def _nested() -> TensorDict:
    return TensorDict(
        {
            "b": torch.arange(3),
            "a": torch.ones(3, 2),
            "n": {"c": torch.zeros(3, 1, dtype=torch.complex128), "e": {}},
            "empty": torch.zeros(3, 0),
            "text": "one",
        },
        [3],
        names=["rows"],
    )


COLLECTIONS: dict[str, Any] = {
    "nested": _nested,
    "empty": TensorDict,
    "locked": lambda: _nested().lock_(),
    "stack": lambda: LazyStackedTensorDict(_nested(), _nested()),
    "ragged stack": lambda: LazyStackedTensorDict(
        TensorDict(a=torch.zeros(1)), TensorDict(a=torch.ones(2))
    ),
    "class": lambda: Sent(x=torch.ones(2), text="q", batch_size=[2]),
    "class inside": lambda: TensorDict(
        d=Sent(x=torch.ones(2), text="q", batch_size=[2]), batch_size=[2]
    ),
    "view": lambda: _nested()._get_sub_tensordict(slice(0, 2)),
    "parameters": lambda: TensorDictParams(TensorDict(a=torch.ones(2), n={"b": 1.0})),
    "values": lambda: TensorDict(
        one=NonTensorStack("a", "b"), two=NonTensorData((1, "x")), batch_size=[2]
    ),
    "device": lambda: TensorDict(a=torch.ones(2), device="cpu"),
    "consolidated": lambda: _nested().consolidate(),
    "gaps": lambda: TensorDict(a=torch.arange(8).view(2, 4).t()[:, 0]),
}


def _made_again(td: Any) -> Any:
    message = wire.describe(td)
    return wire.parse(message.description).collection(wire.pack(message))


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_collection_is_made_again(name: str) -> None:
    td = COLLECTIONS[name]()
    made = _made_again(td)
    expected = TensorDict if name == "view" else type(td)
    assert type(made) is expected
    assert made.is_consolidated()
    assert made.batch_size == td.batch_size
    assert made.is_locked == (name == "locked")
    if name != "ragged stack":
        assert (made == td).all()
        assert list(made.keys()) == list(td.keys())
        assert made.names == td.names
    again = _made_again(made)
    assert type(again) is expected


def test_values_that_json_cannot_hold_are_encoded() -> None:
    value = {(1, 2): b"bytes", "array": np.arange(3), "set": {1}}
    made = _made_again(TensorDict(v=NonTensorData(value)))["v"]
    assert made[1, 2] == b"bytes"
    assert made["set"] == {1}
    assert made["array"].tolist() == [0, 1, 2]


def test_a_value_that_can_only_be_pickled_is_refused_by_its_key() -> None:
    td = TensorDict(n={"v": NonTensorData(object())})
    with pytest.raises(TypeError, match=r"\('n', 'v'\).*object.*pickled"):
        wire.describe(td)


@pytest.mark.parametrize("small", [1, 24, 1 << 20])
def test_runs_are_the_whole_buffer(small: int) -> None:
    message = wire.describe(_nested())
    whole = wire.pack(message)
    pieces = []
    end = 0
    for run in wire.runs(message.parts, message.num_bytes, small):
        assert run.start == end
        end = run.stop
        piece = torch.empty(run.stop - run.start, dtype=torch.uint8)
        wire.fill(piece, run.start, run.parts)
        pieces.append(piece)
    assert torch.equal(torch.cat(pieces), whole)


def test_a_head_is_read_back_and_checked() -> None:
    head = wire.Head(3, 10, 1 << 40, b"d" * 16, b"e" * 24)
    assert wire.Head.of(head.to_bytes()) == head
    assert len(head.to_bytes()) == wire.HEAD_BYTES
    with pytest.raises(wire.WireError, match="more than the 1000"):
        wire.Head.of(head.to_bytes(), 1000)
    with pytest.raises(wire.WireError, match="a description of"):
        wire.Head.of(head._replace(description_bytes=1 << 60).to_bytes())
    for content in (b"", b"x" * wire.HEAD_BYTES, head.to_bytes()[:-1]):
        with pytest.raises(wire.WireError, match="head"):
            wire.Head.of(content)


def test_a_description_above_the_limit_is_refused() -> None:
    message = wire.describe(_nested())
    with pytest.raises(wire.WireError, match="more than the 16"):
        wire.parse(message.description, 16)


def test_a_buffer_of_another_length_is_refused() -> None:
    message = wire.describe(_nested())
    with pytest.raises(wire.WireError, match="needs"):
        wire.parse(message.description).collection(torch.zeros(8, dtype=torch.uint8))


def test_a_class_that_is_not_known_is_named() -> None:
    message = wire.describe(COLLECTIONS["class inside"]())
    content = message.description.replace(b"Sent", b"Sunk")
    with pytest.raises(wire.WireError, match="'d'.*Sunk.*import the module"):
        wire.parse(content).collection(wire.pack(message))


def test_a_nest_of_levels_is_refused() -> None:
    level: dict[str, Any] = {}
    for _ in range(300):
        level = {"n": level}
    text = json.dumps({"level": level, "remarks": {}, "num_bytes": 0}).encode()
    for content in (text, b'{"level":' + b"[" * 100_000):
        with pytest.raises(wire.WireError):
            wire.parse(struct.pack("<Q", len(content)) + content)


def test_a_damaged_description_is_an_error_and_nothing_else() -> None:
    dice = random.Random(0)  # noqa: S311 (which bytes are changed)
    td = TensorDict(n=_nested(), v=NonTensorData({1: b"x", 2: np.arange(3)}))
    messages = [wire.describe(td), wire.describe(COLLECTIONS["stack"]())]
    for number in range(600):
        message = messages[number % 2]
        content = bytearray(message.description)
        for _ in range(dice.randint(1, 3)):
            content[dice.randrange(len(content))] = dice.randrange(256)
        if number % 5 == 0:
            del content[dice.randrange(len(content)) :]
        try:
            wire.parse(bytes(content), 1 << 20).collection(wire.pack(message))
        except wire.WireError:
            continue
