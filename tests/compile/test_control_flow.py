"""``torch.cond``, ``while_loop`` and ``scan`` take collections as they take dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from tensordict import TensorClass, TensorDict

if TYPE_CHECKING:
    from collections.abc import Callable


class Point(TensorClass):
    x: torch.Tensor
    y: torch.Tensor


def dense() -> TensorDict:
    return TensorDict(x=torch.arange(3.0), y=torch.ones(3), batch_size=[3])


def nested() -> TensorDict:
    return TensorDict(
        deep=dense(), x=torch.arange(3.0), label="a", batch_size=[3], names=["time"]
    )


def point() -> Point:
    return Point(torch.arange(3.0), torch.ones(3), batch_size=[3])


def looped(td: Any) -> Any:
    count, result = while_loop(
        lambda count, td: td.get("x").sum() < 20,
        lambda count, td: (count + 1, td * 2),
        (torch.tensor(0), td),
    )
    return count + 0, result


def branched(td: Any) -> Any:
    def of(operands: dict[str, Any], by: torch.Tensor) -> dict[str, Any]:
        return {"result": operands["td"] + by}

    return torch.cond(
        td.get("x").sum() > 0,
        of,
        lambda operands, by: of(operands, -by),
        ({"td": td}, torch.ones(())),
    )["result"]


def scanned(td: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        carry = carry + row.get("x")
        return carry, (carry * 2, row * 1)

    return scan(step, td, td.clone())


def both(function: Callable[..., Any], *args: Any) -> list[Any]:
    """The results without compilation and with it."""
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    return [function(*args), compiled(*args)]


def assert_same(result: Any, like: Any) -> None:
    assert type(result) is type(like)
    assert result.batch_size == like.batch_size
    assert result.names == like.names
    assert (result == like).all()


@pytest.mark.parametrize("make", [nested, point])
def test_a_loop_carries_a_collection(make: Callable[[], Any]) -> None:
    for count, result in both(looped, make()):
        assert count == 3
        assert_same(result, make() * 8)


@pytest.mark.parametrize("make", [nested, point])
def test_branches_get_and_return_collections(make: Callable[[], Any]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(branched, fullgraph=True, backend="aot_eager")
    for function in (branched, compiled):
        assert_same(function(make()), make() + 1)
        assert_same(function(-make()), -make() - 1)


@pytest.mark.parametrize("make", [nested, point])
def test_a_scan_carries_slices_and_stacks_collections(make: Callable[[], Any]) -> None:
    td = make()
    for carry, (out, rows) in both(scanned, td):
        steps = [td + 0, td + 1, td + 3]
        assert_same(carry, steps[-1])
        assert out.batch_size == (3, 3)
        assert (out == torch.stack(steps) * 2).all()
        assert rows.batch_size == (3,)
        assert (rows == td).all()


@pytest.mark.parametrize("dim", [0, 1])
def test_a_step_gets_a_row_with_the_batch_size_of_a_row(dim: int) -> None:
    xs = TensorDict(x=torch.zeros(4, 3, 5), deep={"y": torch.ones(4, 3, 5)})
    xs.auto_batch_size_(2)

    def step(total: torch.Tensor, row: Any) -> Any:
        ones = torch.ones(row.batch_size) + 0 * total
        return total + row["deep", "y"].sum(), (ones, row["deep"] * 1)

    total, (ones, deep) = scan(step, torch.zeros(()), xs, dim=dim)
    assert total == 60
    assert ones.shape == deep.batch_size == (4, 3)
    assert deep["y"].shape == (4, 3, 5)


def test_a_branch_may_change_what_it_gets_and_read_what_is_around_it() -> None:
    td, around = dense(), dense()

    def changed(td: TensorDict) -> TensorDict:
        td["x"] = td["x"] + around["y"]
        return td.exclude("y")

    def kept(td: TensorDict) -> TensorDict:
        return TensorDict(x=td["x"].clone(), batch_size=td.batch_size)

    def chosen(td: TensorDict) -> TensorDict:
        return torch.cond(td["x"].sum() > 0, changed, kept, (td,))  # type: ignore[no-any-return]

    for result in both(chosen, td):
        assert_same(result, TensorDict(x=torch.arange(1.0, 4.0), batch_size=[3]))
        assert_same(td, dense())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_gradients_pass_branches_and_scans() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        td = TensorDict(x=x, batch_size=[3])
        td = torch.cond(td["x"].sum() > 0, lambda td: td * 2, lambda td: td * 3, (td,))
        rows = TensorDict(by=torch.arange(1.0, 4.0), batch_size=[3])
        carry, out = scan(lambda td, row: (td * row["by"], td + 1), td, rows)
        return carry["x"].sum() + out["x"].sum()  # type: ignore[no-any-return]

    x = torch.ones(3, requires_grad=True)
    for result in both(loss, x):
        (gradient,) = torch.autograd.grad(result, x)
        assert gradient.tolist() == [20.0, 20.0, 20.0]
