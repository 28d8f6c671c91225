"""Dataclasses, named tuples and models of pydantic, both ways."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tensordict import (
    TensorDict,
    from_dataclass,
    lazy_stack,
    tensorclass,
    to_dataclass,
    to_pydantic,
)

pydantic = pytest.importorskip("pydantic")


class Box(NamedTuple):
    low: torch.Tensor
    high: int


@dataclasses.dataclass
class Leaf:
    x: float
    tags: str = "none"


@dataclasses.dataclass
class Tree:
    value: torch.Tensor
    left: Leaf
    box: Box
    right: Leaf | None = None
    array: np.ndarray | None = None
    pair: tuple[int, int] = (0, 0)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    size: int = dataclasses.field(init=False, default=7)


class Inner(pydantic.BaseModel):
    x: float
    names: list[str] = []


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    value: torch.Tensor
    count: int
    flag: bool
    inner: Inner
    box: Box
    many: list[Inner] = []
    numbers: list[int] = []
    text: str = "x"
    nothing: str | None = None
    raw: bytes = b""
    named: int = pydantic.Field(default=0, alias="byAlias")


def tree():
    made = Tree(
        value=torch.ones(2, 3),
        left=Leaf(0.5, "a"),
        box=Box(torch.zeros(2), 4),
        right=Leaf(2.0),
        array=np.arange(3),
        pair=(1, 2),
        options={"k": torch.ones(1)},
    )
    made.size = 9
    return made


def model():
    return Model(
        value=torch.ones(2, 3),
        count=3,
        flag=True,
        inner=Inner(x=0.5, names=["a", "b"]),
        box=Box(torch.zeros(2), 4),
        many=[Inner(x=1.0), Inner(x=2.0)],
        numbers=[1, 2],
        raw=b"\x00",
        byAlias=5,
    )


def test_a_dataclass_comes_back():
    td = TensorDict.from_any(tree())
    back = to_dataclass(td, Tree)
    assert torch.equal(back.value, torch.ones(2, 3))
    assert (back.left, back.right) == (Leaf(0.5, "a"), Leaf(2.0))
    assert isinstance(back.box, Box)
    assert back.box.high == 4
    assert back.array.tolist() == [0, 1, 2]
    assert back.pair == (1, 2)
    assert back.options["k"].tolist() == [1.0]
    assert back.size == 9


def test_a_model_comes_back():
    td = TensorDict.from_any(model())
    assert td["count"].dtype == torch.int64
    assert td["inner", "x"] == 0.5
    assert list(td["inner", "names"]) == ["a", "b"]
    assert td["numbers"].tolist() == [1, 2]
    back = to_pydantic(td, Model)
    assert torch.equal(back.value, torch.ones(2, 3))
    rest = back.model_dump(exclude={"value", "box"})
    assert rest == model().model_dump(exclude={"value", "box"})
    assert isinstance(back.box, Box)


def test_models_in_mappings_are_collections_too():
    td = TensorDict.from_dict({"m": Inner(x=1.0)})
    assert td["m", "x"] == 1.0
    td = TensorDict.from_any({"m": model()}, auto_batch_size=False)
    assert td["m", "value"].shape == (2, 3)


def test_sizes_and_devices_of_models():
    class Batch(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True, extra="allow")
        a: torch.Tensor

    made = Batch(a=torch.ones(3, 2), more=torch.zeros(3))
    assert TensorDict.from_any(made, auto_batch_size=True).batch_size == (3,)
    td = TensorDict.from_any(made, batch_size=[3], device="cpu")
    assert td.device == torch.device("cpu")
    back = to_pydantic(td, Batch)
    assert torch.equal(back.more, torch.zeros(3))


def test_pydantic_validates():
    td = TensorDict.from_any(model())
    td["count"] = torch.tensor(1.5)
    with pytest.raises(pydantic.ValidationError, match="count"):
        to_pydantic(td, Model)


def test_fields_and_entries_are_the_same():
    td = TensorDict(x=torch.tensor(1.0), z=torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"\['z'\] at the root, which Leaf"):
        to_dataclass(td, Leaf)
    with pytest.raises(ValueError, match=r"\['x'\] at the root"):
        to_dataclass(TensorDict(tags="x"), Leaf)
    inner = TensorDict(
        value=torch.ones(1), left={"tags": "x"}, box={"low": 0, "high": 1}
    )
    with pytest.raises(ValueError, match=r"\['x'\] at 'left'"):
        to_dataclass(inner, Tree)
    with pytest.raises(TypeError, match="'x'.*annotated"):
        to_dataclass(TensorDict(x={"a": torch.ones(1)}), Leaf)


def test_what_is_no_class_of_the_kind():
    with pytest.raises(TypeError, match="a dataclass"):
        to_dataclass(TensorDict(), Inner)
    with pytest.raises(TypeError, match="BaseModel"):
        to_pydantic(TensorDict(), Leaf)
    with pytest.raises(TypeError, match="collection"):
        to_dataclass({}, Leaf)


def test_all_collections():
    @tensorclass
    class Point:
        x: torch.Tensor

    @dataclasses.dataclass
    class Plain:
        x: torch.Tensor

    point = Point(x=torch.ones(2), batch_size=[2])
    stack = lazy_stack([TensorDict(x=torch.ones(())), TensorDict(x=torch.zeros(()))])
    assert to_dataclass(point, Plain).x.tolist() == [1.0, 1.0]
    assert to_dataclass(stack, Plain).x.tolist() == [1.0, 0.0]
    assert to_dataclass(from_dataclass(Plain(torch.ones(2))), Plain).x.tolist() == [
        1,
        1,
    ]


def test_named_tuples_come_back():
    box = Box(torch.zeros(2), 4)
    td = TensorDict.from_any(box)
    back = td.to_namedtuple(Box)
    assert torch.equal(back.low, box.low)
    assert back.high == 4


@pytest.mark.parametrize("dtype", ["U", "S", "T", "O"])
def test_arrays_of_text_have_a_value_per_row(dtype):
    if dtype == "T":
        texts = pytest.importorskip("numpy.dtypes").StringDType()
    texts = texts if dtype == "T" else dtype
    array = np.array(["007", "Rex"]).astype(texts)
    expected = [b"007", b"Rex"] if dtype == "S" else ["007", "Rex"]
    made = TensorDict(a=array, batch_size=[2])
    made["n", "b"] = array
    for key in ("a", ("n", "b")):
        assert [row[key] for row in made] == expected
        assert all(type(value) is type(expected[0]) for value in made[key])
    td = TensorDict.from_any({"a": array, "x": torch.ones(2)}, auto_batch_size=True)
    assert td[1]["a"] == expected[1]
