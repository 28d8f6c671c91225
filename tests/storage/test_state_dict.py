"""State dicts."""

from collections import OrderedDict

import pytest
import torch

from tensordict import TensorDict, TensorDictParams, lazy_stack, tensorclass


def make() -> TensorDict:
    return TensorDict(
        {"a": torch.arange(6.0).view(3, 2), "n": {"b": torch.ones(3)}}, [3], names=["t"]
    )


def test_state_dict_flat_and_nested():
    td = make()
    flat = td.state_dict()
    assert list(flat) == ["a", "n.b"]
    assert flat["a"].data_ptr() == td["a"].data_ptr()
    assert dict(flat._metadata) == {
        "": {"batch_size": torch.Size([3]), "device": None},
        "n": {"batch_size": torch.Size([3]), "device": None},
    }
    nested = td.state_dict(flatten=False)
    assert list(nested) == ["a", "n"]
    assert list(nested["n"]) == ["b"]
    assert list(nested._metadata) == list(nested["n"]._metadata) == [""]


def test_state_dict_prefix_and_destination():
    destination = OrderedDict(z=1)
    out = make().state_dict(destination, "p.")
    assert out is destination
    assert list(out) == ["z", "p.a", "p.n.b"]
    assert list(out._metadata) == ["p", "p.n"]


def test_state_dict_keep_vars():
    leaf = torch.ones(3, requires_grad=True)
    td = TensorDict({"a": leaf}, [3])
    assert not td.state_dict()["a"].requires_grad
    assert td.state_dict(keep_vars=True)["a"] is leaf


def test_state_dict_of_names_that_collide():
    td = TensorDict({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}})
    with pytest.raises(KeyError, match="collide in the flat state dict key 'a.b'"):
        td.state_dict()
    assert list(td.state_dict(flatten=False)) == ["a.b", "a"]


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize("assign", [True, False])
def test_load_state_dict(flatten, assign):
    source = make().state_dict(flatten=flatten)
    td = make().zero_()
    leaf, nested = td["a"], td["n"]
    assert td.load_state_dict(source, assign=assign) is td
    assert (td["a"] is leaf) is not assign
    assert (td["a"] is source["a"]) is assign
    assert td["n"] is nested
    assert td["a"][2, 1] == 5
    assert td["n", "b"].eq(1).all()
    assert td.names == ["t"]


def test_load_state_dict_strict():
    flat, nested = make().state_dict(), make().state_dict(flatten=False)
    del flat["a"]
    with pytest.raises(RuntimeError, match=r"key sets don't match[^}]*\{'a'\}"):
        make().load_state_dict(flat)
    assert make().load_state_dict(flat, strict=False)["n", "b"].eq(1).all()
    nested["n"]["new"] = torch.ones(3)
    td = make().zero_()
    with pytest.raises(RuntimeError, match=r"extra keys \n\{'new'\}"):
        td.load_state_dict(nested)
    assert td["a"].eq(0).all()
    assert td.load_state_dict(nested, strict=False)["n", "new"].eq(1).all()


def test_load_state_dict_takes_the_batch_size():
    td = TensorDict()
    td.load_state_dict(make().state_dict(), strict=False)
    assert td.batch_size == (3,)
    small = TensorDict({"a": torch.ones(2)}, [2])
    with pytest.raises(RuntimeError, match="incompatible with the batch-size"):
        small.load_state_dict(make().state_dict(), strict=False)


def test_load_state_dict_into_a_locked_collection():
    td = make().zero_().lock_()
    assert td.load_state_dict(make().state_dict())["a"][2, 1] == 5
    with pytest.raises(RuntimeError, match="Cannot modify locked"):
        td.load_state_dict(make().state_dict(), assign=True)


def test_modules_save_their_state_through_torch(tmp_path):
    td = make()
    torch.save(td.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert make().zero_().load_state_dict(loaded)["a"][2, 1] == 5


# Releases 0.2 to 0.8 -------------------------------------------------------------------


def old_level(batch_size, **entries):
    """A level of a state dict as releases 0.2 to 0.8 wrote it."""
    return OrderedDict(entries, __batch_size=torch.Size(batch_size), __device=None)


def old_state():
    return old_level([3], a=torch.ones(3), n=old_level([3], b=torch.ones(3, 2)))


def held():
    inner = TensorDict(b=torch.zeros(3, 2), batch_size=[3])
    return TensorDict(a=torch.zeros(3), n=inner, batch_size=[3])


@tensorclass
class Old:
    a: torch.Tensor
    label: str = "new"
    inner: TensorDict | None = None


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_an_old_state_is_loaded(strict, assign):
    td = held()
    a = td["a"]
    state = old_state()
    assert td.load_state_dict(state, strict=strict, assign=assign) is td
    assert td["a"].tolist() == [1, 1, 1]
    assert td["n", "b"].sum() == 6
    assert (td["a"] is a) != assign
    assert set(td.keys(True)) == {"a", "n", ("n", "b")}
    # The given state stays as it is.
    assert "__batch_size" in state["n"]


def test_an_old_state_has_batch_sizes():
    td = held()
    td.batch_size = []
    td["n"].batch_size = []
    td.load_state_dict(old_level([3], a=torch.ones(3), n=old_state()["n"]))
    assert td.batch_size == td["n"].batch_size == torch.Size([3])
    empty = TensorDict()
    empty.load_state_dict(old_state(), strict=False)
    assert (empty == held() + 1).all()
    assert empty["n"].batch_size == torch.Size([3])


def test_an_old_state_of_other_keys_is_refused():
    with pytest.raises(RuntimeError, match="extra keys \n{'z'}"):
        held().load_state_dict(OrderedDict(old_state(), z=torch.ones(3)))
    with pytest.raises(RuntimeError, match="tensordict extra keys\n{'n'}"):
        held().load_state_dict(old_level([3], a=torch.ones(3)))


def test_entries_named_as_old_fields_are_entries():
    td = TensorDict({"__batch_size": torch.zeros(3)}, [3])
    td.load_state_dict(td.apply(lambda x: x + 1).state_dict())
    assert td["__batch_size"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("nested", [False, True])
def test_an_old_state_of_a_tensorclass(nested):
    inner = TensorDict(c=torch.zeros(3), batch_size=[3])
    held = Old(torch.zeros(3), inner=inner, batch_size=[3])
    tensors = old_level([3], a=torch.ones(3), inner=old_level([3], c=torch.ones(3)))
    state = OrderedDict(_tensordict=tensors, _non_tensordict={"label": "old"})
    if nested:
        TensorDict(x=held, batch_size=[3]).load_state_dict(old_level([3], x=state))
    else:
        held.load_state_dict(state)
    assert held.a.tolist() == held.inner["c"].tolist() == [1, 1, 1]
    assert held.label == "old"


def test_an_old_state_of_a_value():
    fields = {"data": "old"}
    value = OrderedDict(_tensordict=old_level([3]), _non_tensordict=fields)
    for found in ("old", value):
        td = TensorDict(a=torch.zeros(3), s="new", batch_size=[3])
        td.load_state_dict(old_level([3], a=torch.ones(3), s=found))
        assert td["s"] == "old"
    made = TensorDict(batch_size=[3])
    made.load_state_dict(old_level([3], s=value), strict=False)
    assert made["s"] == "old"


def test_an_old_state_of_stacks_views_and_typed_ones():
    stack = lazy_stack([held(), held()])
    inner = old_level([2, 3], b=torch.ones(2, 3, 2))
    stack.load_state_dict(old_level([2, 3], a=torch.ones(2, 3), n=inner))
    assert stack[1]["a"].tolist() == [1, 1, 1]
    whole = TensorDict(a=torch.zeros(4), batch_size=[4])
    whole._get_sub_tensordict(slice(0, 3)).load_state_dict(
        old_level([3], a=torch.ones(3))
    )
    assert whole["a"].tolist() == [1, 1, 1, 0]


def test_an_old_state_of_parameters():
    params = TensorDictParams(held())
    params.load_state_dict(old_state())
    assert params["n", "b"].sum() == 6
    module = torch.nn.ModuleDict({"p": TensorDictParams(held())})
    state = {"p.a": torch.ones(3), "p.n.b": torch.ones(3, 2)}
    result = module.load_state_dict(
        {**state, "p.__batch_size": torch.Size([3]), "p.__device": None}
    )
    assert not result.unexpected_keys
    assert module["p"]["a"].tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match='Unexpected key.*"p.z"'):
        module.load_state_dict({**state, "p.z": torch.ones(3)})
