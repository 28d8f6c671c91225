"""Collections as arguments and results of vmap."""

from __future__ import annotations

import pytest
import torch

from tensordict import (
    NonTensorStack,
    TensorDict,
    TensorDictParams,
    UnbatchedTensor,
    assert_close,
    lazy_stack,
)
from tensordict.interop import vmap


@pytest.fixture
def td():
    return TensorDict(
        {"a": torch.arange(24.0).view(3, 4, 2), "n": {"b": torch.ones(3, 4)}},
        [3, 4],
        names=["x", "y"],
    )


def test_in_dims_count_batch_dims(td):
    seen = []

    def function(one):
        seen.append((one.batch_size, one["a"].shape, one.names))
        return one

    torch.vmap(function, in_dims=1)(td)
    assert seen == [(torch.Size([3]), torch.Size([3, 2]), ["x"])]


def test_negative_in_dims_count_batch_dims_too(td):
    result = torch.vmap(lambda one: one, in_dims=-1, out_dims=1)(td)
    assert torch.equal(result["a"], td["a"])


def test_out_dims_place_the_new_batch_dim(td):
    result = torch.vmap(lambda one: one, out_dims=1)(td)
    assert result.batch_size == torch.Size([4, 3])
    assert result.names == ["y", None]
    assert torch.equal(result["a"], td["a"].transpose(0, 1))


def test_arithmetic_inside(td):
    result = torch.vmap(lambda one: one * 2 + one)(td)
    assert torch.equal(result["a"], td["a"] * 3)
    result = torch.vmap(lambda one, other: one - other)(td, td)
    assert result["n", "b"].sum() == 0


def test_inplace_arithmetic_inside(td):
    result = torch.vmap(lambda one: one.clone().add_(1))(td)
    assert torch.equal(result["a"], td["a"] + 1)


def test_tensors_and_collections_together(td):
    x = torch.arange(3.0)
    collection, tensor = torch.vmap(lambda one, y: (one, y + 1))(td, x)
    assert collection.batch_size == td.batch_size
    assert torch.equal(tensor, x + 1)


def test_a_collection_made_inside(td):
    result = torch.vmap(lambda x: TensorDict(double=x * 2))(td["a"])
    assert result.batch_size == torch.Size([3])
    assert torch.equal(result["double"], td["a"] * 2)


def test_the_argument_stays_as_it_was(td):
    torch.vmap(lambda one: one.set("new", one["a"]))(td)
    assert "new" not in td


def test_without_collections_nothing_changes():
    x = torch.randn(3, 2)
    assert torch.equal(torch.vmap(torch.sin)(x), x.sin())
    tree = torch.vmap(lambda pair: {"s": pair[0] + pair[1]})((x, x))
    assert torch.equal(tree["s"], x * 2)


def test_foreach_under_vmap_computes_tensor_by_tensor():
    x = torch.ones(3, 2)
    out = torch.vmap(lambda a: torch._foreach_addcmul([a], [a], [a], 2.0)[0])(x)
    assert out.tolist() == [[3.0, 3.0]] * 3


def test_dims_that_do_not_exist_are_refused(td):
    with pytest.raises(ValueError, match="in_dim"):
        torch.vmap(lambda one: one, in_dims=2)(td)
    with pytest.raises(IndexError, match="out of range"):
        torch.vmap(lambda one: one, out_dims=3)(td)


class Own(TensorDict):
    """A subclass, which is no node of a pytree."""


@pytest.mark.parametrize("kind", [TensorDict, Own, TensorDictParams])
def test_vmap_maps_over_the_leaves_of_a_collection_without_batch_dims(kind):
    td = kind(TensorDict(a=torch.arange(3.0), n={"b": torch.ones(3, 2)}))
    result = torch.vmap(lambda td: td["a"] * td["n", "b"].sum())(td)
    assert result.tolist() == [0, 2, 4]
    result = torch.vmap(lambda td, scale: (td * scale)["n"], (0, None))(td, 2)
    assert result["b"].tolist() == [[2, 2]] * 3


@pytest.mark.parametrize("kind", [TensorDict, Own, TensorDictParams])
@pytest.mark.parametrize(("other", "message"), [((4,), "same size"), ((), "in_dim")])
def test_leaves_that_do_not_fit_together_are_refused(kind, other, message):
    td = kind(TensorDict(a=torch.arange(3.0), b=torch.ones(other)))
    with pytest.raises(ValueError, match=message):
        torch.vmap(lambda td: td["a"])(td)


# Forward mode imports decompositions that torch still compiles with its old compiler.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")
@pytest.mark.parametrize("jacobian", [torch.func.jacrev, torch.func.jacfwd])
def test_jacobian_of_nested_parameters(jacobian):
    td = TensorDict(a=torch.randn(3), n={"b": torch.randn(3)})
    result = jacobian(lambda td: td["a"] * td["n", "b"])(td)
    torch.testing.assert_close(result["a"], torch.diag(td["n", "b"]))
    torch.testing.assert_close(result["n", "b"], torch.diag(td["a"]))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")
def test_hessian_of_nested_parameters():
    td = TensorDict(a=torch.randn(3), n={"b": torch.randn(3)})
    result = torch.func.hessian(lambda td: (td["a"] * td["n", "b"] ** 2).sum())(td)
    torch.testing.assert_close(
        result["n", "b", "n", "b"], torch.diag(2 * td["a"]), atol=1e-5, rtol=1e-5
    )
    assert not result["a", "a"].any()


def leaves_of(jacobian):
    """The tensors of a Jacobian by their keys, those of lazy stacks stacked."""
    if isinstance(jacobian, torch.Tensor):
        return jacobian
    return {key: leaves_of(value) for key, value in jacobian.items()}


TRANSFORMS = [torch.func.jacrev, torch.func.jacfwd]
FUNCTIONS = {
    "of a tensor": (TRANSFORMS, lambda td: td["a"] * td["b"].sum()),
    "of a collection": (TRANSFORMS, lambda td: td**2),
    "of a number": ([torch.func.grad], lambda td: (td["a"] ** 2).sum()),
    "twice": (
        [torch.func.hessian],
        lambda td: (td["a"] ** 3).sum() * (td["b"] ** 2).sum(),
    ),
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")
@pytest.mark.parametrize("stack_dim", [0, 1])
@pytest.mark.parametrize("batch_size", [[], [3]])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_a_lazy_stack_are_those_of_a_dense_collection(
    name, batch_size, stack_dim
):
    if stack_dim > len(batch_size):
        pytest.skip("there is no such dim")
    one = TensorDict(a=torch.randn(3), b=torch.randn(3, 2), batch_size=batch_size)
    stack = lazy_stack([one, one * 2], stack_dim)
    dense = TensorDict(a=stack["a"], b=stack["b"])
    transforms, function = FUNCTIONS[name]
    for transform in transforms:
        found, expected = transform(function)(stack), transform(function)(dense)
        torch.testing.assert_close(leaves_of(found), leaves_of(expected))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")
@pytest.mark.parametrize("size", [2, 3])
def test_derivatives_of_a_collection_with_a_batch_size(size):
    td = TensorDict(a=torch.arange(3.0), batch_size=[3])
    for transform in TRANSFORMS:
        found = transform(lambda td: td["a"][:size] ** 2)(td)
        assert found.batch_size == torch.Size([size, 3])
        torch.testing.assert_close(found["a"], torch.diag(2 * td["a"])[:size])
    found = torch.func.hessian(lambda td: (td["a"] ** 3).sum())(td)
    torch.testing.assert_close(found["a", "a"], torch.diag(6 * td["a"]))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")
def test_unbatched_tensors_stay_so_when_differentiated():
    td = TensorDict(a=torch.ones(3), u=UnbatchedTensor(torch.ones(2)), batch_size=[3])

    def function(td):
        assert type(td.get("u")) is UnbatchedTensor
        return td * 2

    value, tangent = torch.func.jvp(function, (td,), (td,))
    for found in (value, tangent, torch.func.vjp(function, td)[0]):
        assert type(found.get("u")) is UnbatchedTensor
        assert found.get("u").batch_size == found.batch_size == torch.Size([3])
        assert found["u"].tolist() == [2.0, 2.0]
    found = torch.func.grad(lambda td: (td["a"].sum() * td["u"] ** 2).sum())(td)
    assert type(found.get("u")) is UnbatchedTensor
    assert found["u"].tolist() == [6.0, 6.0]
    assert type(found.get("a")) is torch.Tensor
    assert found[0]["a"].shape == torch.Size([])


SCALAR_OPERATIONS = {
    "add": lambda td, x: td + x,
    "radd": lambda td, x: x + td,
    "sub": lambda td, x: td - x,
    "mul": lambda td, x: td * x,
    "div": lambda td, x: td / x,
    "pow": lambda td, x: td**x,
    "lerp": lambda td, x: td.lerp(td + 1, x),
    "clamp": lambda td, x: td.clamp(x, x + 1),
    "equal": lambda td, x: td == x,
}


@pytest.mark.parametrize("name", SCALAR_OPERATIONS)
def test_a_mapped_number_is_an_operand(name):
    operation = SCALAR_OPERATIONS[name]
    td = TensorDict(a=torch.rand(3, 4), n={"b": torch.rand(3)}, batch_size=[3])
    numbers = torch.tensor([0.5, 2.0])
    mapped = torch.vmap(operation, in_dims=(None, 0))(td, numbers)
    expected = torch.stack([operation(td, number) for number in numbers.unbind()])
    assert_close(mapped.float(), expected.float())


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_values_that_are_mapped_are_joined(chunk_size):
    td = TensorDict(a=torch.arange(4), s=NonTensorStack(*"wxyz"), batch_size=[4])

    def both(one):
        other = one.replace(s="k")
        return torch.stack([one, other, one]), torch.cat([one[None], other[None]])

    stacked, joined = torch.vmap(both, chunk_size=chunk_size)(td)
    assert stacked["s"] == [[value, "k", value] for value in "wxyz"]
    assert joined["s"] == [[value, "k"] for value in "wxyz"]


def test_values_that_are_mapped_twice_are_joined():
    values = torch.stack([NonTensorStack(*"abc"), NonTensorStack(*"def")])
    td = TensorDict(a=torch.zeros(2, 3), s=values, batch_size=[2, 3])

    def with_first(row):
        join = torch.vmap(lambda one, first: torch.stack([one, first]), (0, None))
        return join(row, row[0])

    result = torch.vmap(with_first)(td)
    expected = [[[value, row[0]] for value in row] for row in ("abc", "def")]
    assert result["s"] == expected
    assert torch.vmap(lambda one: one.view(-1))(td[0])["s"] == [["a"], ["b"], ["c"]]


SHAPE_OPERATIONS = {
    "index": lambda td: td[None],
    "index_last": lambda td: td[..., None],
    "view": lambda td: td.view(-1),
    "expand": lambda td: td.expand(2, *td.batch_size),
    "stack": lambda td: torch.stack([td, td.replace(s="k")], -1),
    "cat": lambda td: torch.cat([td[None], td[None]]),
    "repeat": lambda td: td[None].repeat_interleave(2, dim=0),
    "split": lambda td: td[None].split(1)[0],
    "lazy": lambda td: lazy_stack([td, td]),
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", SHAPE_OPERATIONS)
def test_values_that_are_mapped_follow_shape_operations(name, dim):
    operation = SHAPE_OPERATIONS[name]
    values = torch.stack([NonTensorStack(*"abc"), NonTensorStack(*"def")])
    td = TensorDict(a=torch.zeros(2, 3), s=values, batch_size=[2, 3])
    result = torch.vmap(operation, in_dims=dim)(td)
    expected = torch.stack([operation(one) for one in td.unbind(dim)])
    assert result.batch_size == expected.batch_size
    assert result["s"] == expected["s"]


def test_values_that_are_mapped_are_not_chosen_among():
    td = TensorDict(a=torch.zeros(2), s=NonTensorStack("x", "y"), batch_size=[2])
    with pytest.raises(RuntimeError, match=r"Call where\(\) before or after"):
        torch.vmap(lambda one: one.where(torch.ones(()).bool(), one))(td)


def rows_of_two():
    return lazy_stack(
        [TensorDict(a=torch.full((3,), v), batch_size=[3]) for v in (0, 1)]
    )


@pytest.mark.parametrize("out_dim", [0, 1])
def test_what_is_written_into_a_mapped_stack_comes_back_as_a_stack(out_dim):
    def write(row):
        row["b"] = row["a"] + 1
        return row

    stack = rows_of_two()
    result = torch.vmap(write, 0, out_dim)(stack)
    assert type(result) is type(stack)
    assert result.stack_dim == out_dim
    assert result["b"].unbind(out_dim)[1].tolist() == [2, 2, 2]
    assert list(stack.keys()) == ["a"]


def test_what_is_written_in_place_reaches_the_members_of_a_stack():
    stack = rows_of_two()
    torch.vmap(lambda row: row.set_("a", row["a"] + 5)["a"])(stack)
    assert stack["a"].tolist() == [[5, 5, 5], [6, 6, 6]]


def test_flat_arguments_are_not_taken_apart_as_trees(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError

    td = TensorDict(a=torch.arange(6.0).view(3, 2), batch_size=[3])
    monkeypatch.setattr(vmap._pytree, "_broadcast_to_and_flatten", refuse)
    monkeypatch.setattr(vmap._pytree, "tree_unflatten", refuse)
    added = torch.vmap(lambda td, x: td + x, (0, None))(td, torch.ones(()))
    assert added.batch_size == (3,)
    assert (added["a"] == td["a"] + 1).all()
    assert (torch.vmap(lambda td: td["a"], -1, 1)(td) == td["a"].T).all()


@pytest.mark.parametrize(
    ("in_dims", "found"),
    [
        (0, (3, [0, 0])),
        ((-1, None), (3, [0, None])),
        ((0, 1), None),  # sizes differ
        ((0, 2), None),  # there is no such dim
        ((None, None), None),
        ((0,), None),
        ([0, 0], None),
        ((True, 0), None),
    ],
)
def test_what_is_not_flat_or_wrong_is_left_to_functorch(in_dims, found):
    td = TensorDict(a=torch.zeros(3, 2), batch_size=[3])
    assert vmap._plan_flat(in_dims, (td, torch.zeros(3, 4))) == found
    assert vmap._plan_flat(0, (torch.zeros(3), torch.zeros(3))) is None
    assert vmap._plan_flat(0, (td, {"tree": torch.zeros(3)})) is None
