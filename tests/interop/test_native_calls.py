"""Methods and torch functions that the bindings answer without running bytecode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensordict import TensorDict, lazy_stack, set_lazy_legacy


class Experience(TensorDict):
    """A subclass of users that takes part in a torch function by itself."""

    asked: list[Any]

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        if func is torch.neg:
            return "negative"
        return super().__torch_function__(func, types, args, kwargs)


class Plain(TensorDict):
    """A subclass that adds nothing."""


def made(cls: type[TensorDict] = TensorDict) -> TensorDict:
    return cls({"a": torch.ones(2, 3), "n": {"b": torch.full((2,), 4.0)}}, [2])


# Calls from C, `map` for one, do not run the code of a method but its native form.


def test_methods_give_the_same_however_they_are_called():
    td = made()
    (by_map,) = map(TensorDict.sqrt, [td])
    assert (by_map == td.sqrt()).all()
    (by_map,) = map(TensorDict.add, [td], [td])
    assert (by_map == td + td).all()
    (by_map,) = map(TensorDict.unsqueeze, [td], [0])
    assert by_map.batch_size == (1, 2)
    (by_map,) = map(TensorDict.squeeze, [by_map], [0])
    assert by_map.batch_size == (2,)


@pytest.mark.parametrize("name", ["sqrt", "add", "mul", "squeeze", "unsqueeze"])
def test_methods_refuse_arguments_that_they_do_not_take(name):
    method = getattr(TensorDict, name)
    with pytest.raises(TypeError):
        list(map(method, [made()], [1], [2], [3]))
    with pytest.raises((TypeError, AttributeError)):
        list(map(method, [1]))


def test_operands_that_are_not_in_line_are_aligned():
    td = made()
    (result,) = map(TensorDict.add, [td], [torch.tensor([1.0, 2.0])])
    assert result["a"].tolist() == [[2.0] * 3, [3.0] * 3]
    with pytest.raises(KeyError):
        list(map(TensorDict.add, [td], [td.select("a")]))


def test_shapes_are_noted_for_with_statements():
    td = made()
    (row,) = map(TensorDict.unsqueeze, [td], [0])
    with row as inner, inner.squeeze(0) as whole:
        whole["c"] = torch.zeros(2)
    assert "c" in row


@pytest.mark.filterwarnings("ignore:The legacy lazy mode:DeprecationWarning")
def test_lazy_shapes_are_lazy_however_they_are_called():
    with set_lazy_legacy(True):
        (view,) = map(TensorDict.unsqueeze, [made()], [0])
        assert type(view) is type(made().unsqueeze(0))
    assert type(view) is not TensorDict


@pytest.mark.parametrize("cls", [TensorDict, Plain, Experience])
def test_torch_functions_of_subclasses(cls):
    td = made(cls)
    result = torch.sqrt(td)
    assert type(result) is cls
    assert result["n", "b"].tolist() == [2.0, 2.0]
    assert torch.stack([td, td]).batch_size == (2, 2)
    assert torch.add(td, made())["a"].tolist() == [[2.0] * 3] * 2


def test_a_subclass_answers_first():
    assert torch.neg(made(Experience)) == "negative"
    assert torch.neg(made())["a"].tolist() == [[-1.0] * 3] * 2


def test_other_classes_take_part():
    stack = lazy_stack([made(), made()])
    assert torch.sqrt(stack)["n", "b"].tolist() == [[2.0] * 2] * 2

    class Other:
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> str:
            return "other"

    assert torch.add(made(), Other()) == "other"


def test_casts_keep_the_tensors_that_have_the_dtype():
    td = TensorDict(
        a=torch.zeros(2),
        b=torch.zeros(2, dtype=torch.int32),
        c=torch.nn.Parameter(torch.zeros(2)),
        batch_size=[2],
    )
    cast = td.float()
    assert cast["a"] is td["a"]
    assert cast["c"] is td["c"]
    assert cast["b"].dtype is torch.float32
    assert td.double()["a"].dtype is torch.float64
    assert td.int()["b"] is td["b"]


@pytest.mark.parametrize("shape", [(3, 2), [3, 2], torch.Size([3, 2])])
def test_shapes_may_be_one_sequence(shape):
    td = TensorDict(a=torch.arange(12).view(2, 3, 2), batch_size=[2, 3])
    for method in (td.reshape, td.view):
        assert (method(shape) == method(3, 2)).all()
    assert torch.reshape(td, shape).batch_size == (3, 2)
    assert td.reshape([-1]).batch_size == (6,)
    with pytest.raises(RuntimeError):
        td.reshape((4, 4))
