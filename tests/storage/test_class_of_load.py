"""Which class a load by a tensorclass gives."""

import pytest
import torch

from tensordict import TensorClass, TensorDict, tensorclass


class Point(TensorClass):
    a: torch.Tensor
    s: str = "x"


class Other(TensorClass):
    a: torch.Tensor


@tensorclass
class Decorated:
    a: torch.Tensor


def test_a_class_takes_a_plain_save_as_its_fields(tmp_path):
    point = Point(torch.arange(2), "hi", batch_size=[2]).memmap(tmp_path)
    # The path of an instance is that of the collection inside.
    loaded = Point.load_memmap(point.saved_path)
    assert type(loaded) is Point
    assert loaded.s == "hi"
    assert loaded.a.tolist() == [0, 1]
    assert type(Point.load(point.saved_path)) is Point
    assert type(TensorDict.load_memmap(point.saved_path)) is TensorDict


def test_a_plain_save_with_other_keys_is_refused(tmp_path):
    TensorDict(z=torch.ones(2)).memmap(tmp_path)
    with pytest.raises(ValueError, match="must correspond to the class attributes"):
        Point.load_memmap(tmp_path)


def test_what_is_of_a_class_stays_of_that(tmp_path):
    point = Point(torch.arange(2), batch_size=[2])
    point.memmap(tmp_path / "class")
    assert type(Other.load_memmap(tmp_path / "class")) is Point


def test_a_decorated_class_gives_what_was_saved(tmp_path):
    saved = Decorated(torch.arange(2), batch_size=[2]).memmap(tmp_path)
    assert type(Decorated.load_memmap(tmp_path)) is Decorated
    assert type(Decorated.load_memmap(saved.saved_path)) is TensorDict
    out = TensorDict(a=torch.zeros(2, dtype=torch.int64), batch_size=[2])
    assert Point.load_memmap(saved.saved_path, out=out) is out
