"""``MetaData[int]``: a subclass whose values are of one type."""

import copy
import pickle
import typing

import pytest
import torch

from tensordict import MetaData, NonTensorStack, TensorClass, TensorDict

Number = MetaData[int]


class Named(MetaData[int]):
    pass


def test_the_class_is_made_once_and_takes_values_of_its_type():
    assert MetaData[int] is Number
    assert Number.__name__ == "MetaData[int]"
    assert issubclass(Number, MetaData)
    assert not isinstance(MetaData(3), Number)
    assert repr(Number(3)) == (
        "MetaData[int](data=3, batch_size=torch.Size([]), device=None)"
    )
    assert Number(data=MetaData(3), batch_size=[2]).data == 3
    with pytest.raises(TypeError, match="Expected data of type int, got str"):
        Number("a")
    with pytest.raises(TypeError, match="Expected data of type int, got str"):
        Named(data="a")
    with pytest.raises(TypeError, match=r"Cannot specify type for MetaData\[int\]"):
        Number[str]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (list[int], [1], (1,)),
        (int | str, "a", 1.5),
        ((int, str), "a", 1.5),
        (torch.Tensor, torch.ones(1), 3),
        (typing.Any, "a", None),
        (list[int] | None, None, None),
    ],
)
def test_types_that_are_no_classes(kind, good, bad):
    assert MetaData[kind](good).data is good
    if bad is not None:
        with pytest.raises(TypeError, match="Expected data of type"):
            MetaData[kind](bad)


@pytest.mark.parametrize("kind", [Number, Named])
def test_what_is_made_of_one_is_of_its_class(kind):
    value = kind(3, batch_size=[2])
    td = TensorDict(a=value, batch_size=[2])
    made = [value.clone(), value[0], td[:1].get("a"), td.expand(4, 2).get("a")]
    made += [copy.deepcopy(value), pickle.loads(pickle.dumps(td)).get("a")]
    made += [torch.stack([value, value])]
    assert {type(each) for each in made} == {kind}
    assert td["a"] == 3
    assert type(torch.stack([value, kind(4, batch_size=[2])])) is NonTensorStack


def test_a_save_is_read_where_the_class_was_not_made(tmp_path):
    TensorDict(a=Number(3)).memmap(tmp_path / "here")
    assert type(TensorDict.load_memmap(tmp_path / "here").get("a")) is Number

    class Gone:
        pass

    TensorDict(a=MetaData[Gone | int](3)).memmap(tmp_path / "there")
    for file in (tmp_path / "there").rglob("*.json"):
        file.write_text(file.read_text().replace("Gone | int", "Other"))
    loaded = TensorDict.load_memmap(tmp_path / "there").get("a")
    assert type(loaded) is MetaData
    assert loaded.data == 3


def test_a_field_of_a_tensorclass():
    class Row(TensorClass["autocast"]):
        a: Number
        b: MetaData[str] = None

    row = Row(a=3, b="x")
    assert (row.a, row.b) == (3, "x")
    with pytest.raises(TypeError, match=r"int"):
        Row(a="x")
