"""Values that are no tensors: copies, padding, pytrees, vmap and dispatch modes."""

import copy

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorDict,
    lazy_stack,
    pad_sequence,
    unpad_sequence,
)
from tensordict.tensorclass import MetaData


class Held:
    def __init__(self, value):
        self.value = value


# Copies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        NonTensorData,
        MetaData,
        lambda value: NonTensorStack(value, value),
        lambda value: TensorDict(a=NonTensorData(value)),
        lambda value: TensorDict(a=NonTensorStack(value), batch_size=[1]),
    ],
)
@pytest.mark.parametrize("how", [lambda x: x.clone(), copy.deepcopy])
def test_a_clone_has_values_of_its_own(make, how):
    value = {"k": [1]}
    made = how(make(value))
    value["k"].append(2)
    assert "2" not in str(
        made.tolist() if not isinstance(made, TensorDict) else made["a"]
    )
    # Without its leaves it shares them.
    assert "3" in str(make([3]).clone(False))


def test_a_clone_of_what_cannot_be_copied_is_an_error():
    with pytest.raises(TypeError, match="generator"):
        NonTensorData(number for number in [1]).clone()


def test_a_clone_copies_a_value_once():
    one = Held(1)
    first, second, other = NonTensorStack(one, one, Held(2)).clone().tolist()
    assert first is second is not one
    assert other.value == 2


def test_a_clone_copies_tensors_of_a_graph():
    value = torch.ones(2, requires_grad=True) * 2
    made = NonTensorData(value).clone().data
    assert made is not value
    assert made.grad_fn is not None


# Padding --------------------------------------------------------------------------------


def rows(*lists):
    return [
        TensorDict(
            a=torch.ones(len(each)), s=NonTensorStack(*each), batch_size=[len(each)]
        )
        for each in lists
    ]


@pytest.mark.parametrize(
    ("side", "wanted"),
    [("right", [["p", "q"], ["r", None]]), ("left", [["p", "q"], [None, "r"]])],
)
def test_pad_sequence_keeps_the_values(side, wanted):
    padded = pad_sequence(rows("pq", "r"), padding_side=side, return_mask=True)
    assert padded.get("s").tolist() == wanted
    assert ("masks", "s") not in padded
    back = unpad_sequence(padded)
    assert [list(row["s"]) for row in back] == [["p", "q"], ["r"]]
    assert [row["a"].shape for row in back] == [(2,), (1,)]


def test_pad_sequence_of_values_alone():
    first, second = NonTensorStack("a", "b"), NonTensorStack("c")
    assert pad_sequence([first, second]).tolist() == [["a", "b"], ["c", None]]


def test_pad_sequence_of_one_value_and_of_nested_values():
    tds = [
        TensorDict(n=TensorDict(s=text, batch_size=[n]), m=MetaData(1), batch_size=[n])
        for text, n in (("a", 2), ("b", 1))
    ]
    padded = pad_sequence(tds)
    assert padded.get(("n", "s")).tolist() == [["a", "a"], ["b", None]]
    assert padded.batch_size == (2, 2)


def test_pad_sequence_leaves_out_what_is_a_value_in_some_only():
    tds = [
        TensorDict(s="a", a=torch.ones(1), batch_size=[1]),
        TensorDict(s={"b": torch.ones(1)}, a=torch.ones(1), batch_size=[1]),
    ]
    assert list(pad_sequence(tds).keys()) == ["a"]


# Pytrees --------------------------------------------------------------------------------


def test_a_value_is_no_leaf_of_a_pytree():
    td = TensorDict(a=torch.ones(2), s="hi", m=MetaData(3), batch_size=[2])
    assert [type(leaf) for leaf in pytree.tree_leaves(td)] == [torch.Tensor]
    made = pytree.tree_map(lambda leaf: leaf[0], td)
    assert made.batch_size == made.get("s").batch_size == ()
    assert (made["s"], made["m"], type(made.get("m"))) == ("hi", 3, MetaData)
    assert pytree.tree_leaves(NonTensorData("a")) == []


def test_the_structure_of_a_pytree_holds_the_values():
    def make(value: object) -> TensorDict:
        return TensorDict(a=torch.ones(2), s=NonTensorData(value), batch_size=[2])

    for value in ("text", torch.zeros(3), [1]):
        first, second = make(value), make(value)
        assert pytree.tree_structure(first) == pytree.tree_structure(second)
        assert pytree.tree_map(torch.add, first, second)["a"].tolist() == [2, 2]
    for other in (make("other"), make(torch.zeros(3)), TensorDict(a=torch.ones(2))):
        with pytest.raises(ValueError, match="mismatch"):
            pytree.tree_map(torch.add, make("text"), other)


# Modes ----------------------------------------------------------------------------------


def test_vmap_keeps_a_value_for_each_element():
    names = NonTensorStack.from_list([["p", "q"], ["r", "s"], ["t", "u"]])
    td = TensorDict(a=torch.ones(3, 2), s=names, one="x", batch_size=[3, 2])
    seen = []

    def call(row):
        seen.append(row["s"])
        return row.set("b", row["a"] + 1).unsqueeze(0)

    made = torch.vmap(call, in_dims=1, out_dims=1)(td)

    assert made.batch_size == (1, 2, 3)
    assert made.get("s").tolist() == [[["p", "r", "t"], ["q", "s", "u"]]]
    assert made.get("one").batch_size == (1, 2, 3)
    assert seen == [[["p", "r", "t"], ["q", "s", "u"]]]
    nested = torch.vmap(torch.vmap(lambda row: row))(td)
    assert nested.get("s").tolist() == names.tolist()
    same = torch.vmap(lambda row, _: row, in_dims=(None, 0))(td, torch.ones(2))
    assert same.get("s").tolist() == [names.tolist()] * 2


def test_vmap_refuses_writes_to_a_stack_of_values():
    td = TensorDict(a=torch.ones(2), s=NonTensorStack("a", "b"), batch_size=[2])
    with pytest.raises(RuntimeError, match=r"torch\.vmap maps over"):
        torch.vmap(lambda row: row.update_({"s": NonTensorData("x")}))(td)
    assert list(td["s"]) == ["a", "b"]


def test_a_stack_of_values_works_under_a_fake_mode(tmp_path):
    stack = NonTensorStack("a", "b", "c")
    TensorDict(a=torch.ones(3), s=stack, one="x", batch_size=[3]).save(tmp_path)
    with FakeTensorMode():
        assert stack[1:].tolist() == ["b", "c"]
        assert stack[[2, 0]].tolist() == ["c", "a"]
        assert stack.unsqueeze(0).flip(1).tolist() == [["c", "b", "a"]]
        assert [each.data for each in stack.unbind(0)] == ["a", "b", "c"]
        assert torch.cat([stack, stack[:1]]).tolist() == ["a", "b", "c", "a"]
        assert torch.stack([stack, stack]).batch_size == (2, 3)
        td = TensorDict.load_memmap(tmp_path)
        assert "FakeTensor(" in repr(td)
        assert td[0]["s"] == "a"
        assert td.get("s").device == td.get("one").device == torch.device("cpu")
        assert (td + 1).expand(2, 3).get("s").tolist() == [["a", "b", "c"]] * 2
        stack[1] = "x"
    assert stack.tolist() == ["a", "x", "c"]


def test_values_on_the_meta_device(tmp_path):
    td = TensorDict(
        a=torch.ones(2), s=NonTensorStack("a", "b"), one="x", batch_size=[2]
    )
    td.save(tmp_path)
    for made in (td.to("meta"), TensorDict.load_memmap(tmp_path, device="meta")):
        assert made.get("s").device == made.get("one").device == torch.device("meta")
        assert (list(made["s"]), made["one"]) == (["a", "b"], "x")


# Rows that are one value ----------------------------------------------------------------


@pytest.mark.parametrize("kind", [NonTensorData, MetaData])
def test_a_row_of_a_stack_of_values_is_one_value(kind):
    stack = torch.stack([kind(text, batch_size=[3]) for text in "ab"])
    row = stack[1]
    assert (type(row), row.data, row.batch_size) == (kind, "b", torch.Size([3]))
    assert [type(each) for each in stack.unbind(0)] == [kind, kind]
    assert [each.data for each in stack[:].clone().tensordicts] == ["a", "b"]
    assert stack[:, 0].tolist() == ["a", "b"]
    turned = stack.permute(1, 0)
    assert turned[0].tolist() == ["a", "b"]
    assert turned.unbind(1)[1].data == "b"


def test_a_row_writes_to_its_stack_until_its_elements_differ():
    stack = torch.stack([NonTensorData(text, batch_size=[3]) for text in "ab"])
    stack[0].update_(NonTensorData("x"))
    assert stack.tolist() == [["x"] * 3, ["b"] * 3]
    stack[1, 2] = "y"
    assert type(stack[0]) is NonTensorData
    assert type(stack[1]) is NonTensorStack
    assert stack[1].tolist() == ["b", "b", "y"]
    # Elements that are equal, and were given one by one, stay elements.
    assert type(NonTensorStack.from_list([["a", "a"], ["b", "b"]])[0]) is NonTensorStack


def test_what_a_lazy_stack_shows_writes_to_its_members():
    members = [TensorDict(s=text, batch_size=[3]) for text in "pq"]
    td = lazy_stack(members)
    td.get("s")[0] = "w"
    assert members[0]["s"] == "w"
    with pytest.raises(ValueError, match="at an index"):
        td.get("s")[0, 1] = "x"
    td.set_at_("s", "x", (0, 1))
    td.update_at_(TensorDict(s="y"), (1, 2))
    assert td.get("s").tolist() == [["w", "x", "w"], ["q", "q", "y"]]
    # A stack of values alone takes a value for each element.
    alone = lazy_stack([NonTensorData(text, batch_size=[3]) for text in "pq"])
    alone[0, 1] = "x"
    assert alone.tolist() == [["p", "x", "p"], ["q"] * 3]


def test_a_column_with_more_dims_is_written_with_its_collection():
    td = TensorDict(n=TensorDict(s=NonTensorStack("p", "q"), batch_size=[2]))
    td[...] = td.clone()
    assert list(td["n", "s"]) == ["p", "q"]
