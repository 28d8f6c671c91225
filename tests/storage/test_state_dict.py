"""State dicts."""

from collections import OrderedDict

import pytest
import torch

from tensordict import TensorDict


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
