"""Codecs of values that users register, in checkpoints and in messages."""

from __future__ import annotations

import dataclasses
import fractions
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tensordict import NonTensorData, TensorDict
from tensordict.checkpoint import Checkpointer, Codec, load, register_codec, save
from tensordict.distributed import wire
from tensordict.storage.codecs import interface

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclasses.dataclass
class Ratio:
    of: Any
    to: Any


class RatioCodec(Codec):
    name = "ratio"

    def matches(self, value: object) -> bool:
        return isinstance(value, Ratio)

    def encode(self, value: Any, path: Any, encoder: Any) -> dict[str, Any]:
        return {
            "of": encoder.encode(value.of, (*path, "of")),
            "to": encoder.encode(value.to, (*path, "to")),
        }

    def decode(self, fields: Any, decoder: Any) -> Any:
        return Ratio(decoder.decode(fields["of"]), decoder.decode(fields["to"]))


class FractionCodec(Codec):
    name = "fraction"
    classes = (fractions.Fraction,)

    def encode(self, value: Any, path: Any, encoder: Any) -> dict[str, Any]:
        return {"parts": [value.numerator, value.denominator]}

    def decode(self, fields: Any, decoder: Any) -> Any:
        return fractions.Fraction(*fields["parts"])


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name in ("_NAMED", "_OF_CLASS", "_ORDER"):
            table = getattr(interface, name)
            patch.setattr(interface, name, type(table)(table))
        register_codec(RatioCodec())
        register_codec(FractionCodec())
        yield


THIRD = fractions.Fraction(1, 3)


@pytest.mark.usefixtures("registered")
def test_a_value_of_ones_own_comes_back_wherever_it_is(tmp_path: Path) -> None:
    value = {"rates": [THIRD, Ratio(torch.arange(3), {"tuple": (THIRD,)})]}
    save(tmp_path / "one.safetensors", value)
    checkpointer = Checkpointer(tmp_path / "run", durable=False)
    td = TensorDict(x=torch.zeros(2), rate=NonTensorData(THIRD), batch_size=[2])
    checkpointer.save(1, value=value, td=td)
    restored = checkpointer.restore()
    assert restored["td"]["rate"] == THIRD
    message = wire.describe(td)
    received = wire.parse(message.description).collection(wire.pack(message))
    assert received["rate"] == THIRD
    for found in (load(tmp_path / "one.safetensors"), restored["value"]):
        first, second = found["rates"]
        assert first == THIRD
        assert second.of.tolist() == [0, 1, 2]
        assert second.to == {"tuple": (THIRD,)}


@pytest.mark.usefixtures("registered")
def test_the_last_one_of_a_name_takes_the_place_of_those_before(tmp_path: Path) -> None:
    class Doubled(FractionCodec):
        def encode(self, value: Any, path: Any, encoder: Any) -> dict[str, Any]:
            return {"parts": [2 * value.numerator, value.denominator]}

    register_codec(Doubled())
    save(tmp_path / "one.safetensors", THIRD)
    assert load(tmp_path / "one.safetensors") == 2 * THIRD
    assert len([each for each in interface._ORDER if each.name == "fraction"]) == 1


def test_what_no_codec_takes_is_named_when_saving_and_when_loading(
    tmp_path: Path, registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "one.safetensors"
    save(file, {"a": THIRD})
    monkeypatch.delitem(interface._NAMED, "fraction")
    monkeypatch.delitem(interface._OF_CLASS, fractions.Fraction)
    with pytest.raises(ValueError, match=r"kind 'fraction'.*register_codec"):
        load(file)
    before = file.read_bytes()
    with pytest.raises(TypeError, match=r"\['a'\].*fractions\.Fraction"):
        save(file, {"a": THIRD})
    assert file.read_bytes() == before


def test_a_codec_needs_a_name() -> None:
    class Nameless(FractionCodec):
        name = ""

    with pytest.raises(ValueError, match="Nameless has no name"):
        register_codec(Nameless())
