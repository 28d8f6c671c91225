"""Copies, new collections of the same structure, and collections of Python objects."""

from __future__ import annotations

import collections
import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensordict import (
    TensorDict,
    from_any,
    from_dict,
    from_struct_array,
    from_tuple,
    fromkeys,
    make_tensordict,
)

Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024


@dataclasses.dataclass
class Point:
    """A plain dataclass."""

    x: torch.Tensor
    y: torch.Tensor


def nested(container):
    """A container of three rows with a nested one."""
    return container({"a": torch.zeros(3), "n": {"b": torch.ones(3, 2)}}, [3])


# Copies ------------------------------------------------------------------------------


def test_clone_copies_the_leaves(container):
    td = nested(container)
    cloned = td.clone()
    cloned["n", "b"].zero_()
    assert type(cloned) is type(td)
    assert (td["n", "b"] == 1).all()


@pytest.mark.parametrize("method", ["clone", "copy", "__copy__"])
def test_shallow_copies_share_leaves_and_no_container(container, method):
    td = nested(container)
    made = td.clone(False) if method == "clone" else getattr(td, method)()
    assert made["a"] is td["a"]
    assert made["n"] is not td["n"]
    made["n", "z"] = torch.zeros(3)
    assert ("n", "z") not in td


def test_no_copy_is_locked(container):
    td = nested(container).lock_()
    for made in (td.clone(), td.clone(False), copy.copy(td), copy.deepcopy(td)):
        assert not made.is_locked
        assert not made["n"].is_locked


def test_clone_keeps_names_and_device(container):
    td = container({"a": torch.zeros(3)}, [3], device="cpu", names=["x"])
    assert td.clone().names == ["x"]
    assert td.clone(False).device == torch.device("cpu")


def test_clone_refuses_other_arguments(container):
    with pytest.raises(TypeError, match="memory_format"):
        nested(container).clone(memory_format=torch.preserve_format)


def test_deepcopy_knows_one_object_in_two_places(container):
    td = nested(container)
    first, second = copy.deepcopy([td, td])
    assert first is second


# Empty and new -----------------------------------------------------------------------


def test_empty_keeps_everything_but_the_entries(container):
    td = container({"a": torch.zeros(3)}, [3], names=["x"], device="cpu").lock_()
    made = td.empty()
    assert type(made) is type(td)
    assert (made.batch_size, made.names, made.device) == ((3,), ["x"], td.device)
    assert not made.is_locked
    assert list(made.keys()) == []


def test_empty_with_recurse_makes_new_nested_containers(container):
    td = container({"n": {}}, [3])
    made = td.empty(recurse=True)
    made["n"]["z"] = torch.zeros(3)
    assert list(td["n"].keys()) == []


def test_empty_refuses_a_size_that_a_nested_one_does_not_begin_with(container):
    with pytest.raises(RuntimeError, match="does not start with it"):
        nested(container).empty(recurse=True, batch_size=[4])


def test_empty_takes_one_name_per_dim(container):
    with pytest.raises(ValueError, match="length of the dimension names"):
        nested(container).empty(names=["x", "y"])


@pytest.mark.parametrize("size", [(5, 2), ([5, 2],), (torch.Size([5, 2]),)])
def test_new_zeros_replaces_the_batch_dims(container, size):
    made = nested(container).new_zeros(*size)
    assert made["n", "b"].shape == (5, 2, 2)
    assert made["n"].batch_size == (5, 2)


def test_sizes_of_new_leaves_may_be_numbers_of_numpy(container):
    size = nested(container).new_zeros(np.int64(2), np.int64(1)).batch_size
    assert size == (2, 1)
    assert {type(length) for length in size} == {int}


def test_new_leaves_take_a_dtype_and_a_device(container):
    made = nested(container).new_full([2], 1, dtype=torch.int8, device="meta")
    assert made["a"].dtype is torch.int8
    assert made.device == made["n"].device == torch.device("meta")


def test_new_leaves_keep_names_where_there_are_as_many_dims(container):
    td = container({}, [3, 4], names=["x", "y"])
    assert td.new_zeros(7, 8).names == ["x", "y"]
    assert td.new_zeros(7).names == [None]
    assert td.new_zeros(7, 8, 9).names == [None] * 3
    assert td.new_zeros().names == []


def test_new_tensor_gives_every_leaf_the_data(container):
    made = nested(container).new_tensor([1, 2])
    assert made.batch_size == made["n"].batch_size == (2,)
    assert made["n", "b"].tolist() == [1.0, 2.0]


# Variations --------------------------------------------------------------------------


def test_replace_leaves_the_source_alone(container):
    td = nested(container).lock_()
    made = td.replace({("n", "b"): torch.zeros(3)}, a=torch.ones(3))
    assert made["a"].tolist() == [1.0, 1.0, 1.0]
    assert made["n", "b"].shape == (3,)
    assert td["n", "b"].shape == (3, 2)
    assert not made.is_locked


def test_replace_of_a_view_does_not_write_into_the_parent():
    td = TensorDict(a=torch.zeros(4), batch_size=[4])
    made = td._get_sub_tensordict(slice(1, 3)).replace(a=torch.ones(2))
    assert made["a"].tolist() == [1.0, 1.0]
    assert td["a"].tolist() == [0.0] * 4


def test_replace_that_fails_changes_nothing(container):
    td = nested(container)
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        td.replace(a=torch.zeros(4))
    assert td["a"].shape == (3,)


def test_create_nested_keeps_the_neighbours(container):
    td = nested(container).create_nested(("n", "p", "q"))
    assert list(td["n"].keys()) == ["b", "p"]
    assert td["n", "p", "q"].batch_size == (3,)


def test_create_nested_of_a_locked_container_fails(container):
    td = nested(container).lock_()
    with pytest.raises(RuntimeError, match="Cannot modify locked"):
        td.create_nested("z")
    assert "z" not in td


# From Python objects -----------------------------------------------------------------


def test_from_dict_finds_the_shared_dims(container):
    data = {"a": torch.zeros(3, 4), "n": {"b": torch.zeros(3, 4, 5)}, "e": {}}
    td = container.from_dict(data, auto_batch_size=True)
    assert type(td) is container
    assert td.batch_size == td["e"].batch_size == (3, 4)
    assert td["n"].batch_size == (3, 4, 5)
    assert container.from_dict(data, batch_dims=1)["n"].batch_size == (3,)


def test_from_dict_takes_one_of_size_and_dims():
    with pytest.raises(ValueError, match="Cannot pass both"):
        from_dict({}, batch_size=[], batch_dims=0)


def test_from_dict_shares_the_tensors():
    tensor = torch.zeros(3)
    assert from_dict({"n": {"a": tensor}})["n", "a"] is tensor


def test_nested_keys_come_after_the_others():
    td = from_dict({("a", "b"): 1, "a": {"c": 2}})
    assert td["a"].to_dict(convert_tensors=True) == {"c": 2, "b": 1}


def test_from_any_goes_through_nested_objects():
    td = from_any(
        {"p": Pair(torch.zeros(2), {"x": 1}), "d": Point(1.0, 2.0), "t": (3,)}
    )
    assert td["p", "b", "x"] == 1
    assert td["d", "y"] == 2
    assert td["t", "0"] == 3


def test_from_any_gives_other_objects_back():
    value = object()
    assert from_any(value) is value


def test_ignored_batch_dims_are_said():
    with pytest.warns(FutureWarning, match="from_tuple ignores batch_dims=1"):
        assert from_tuple((torch.zeros(2),), batch_dims=1).batch_size == ()


def test_from_struct_array_shares_what_it_can():
    array = np.zeros(2, dtype=[("a", "f4"), ("b", "i8")])
    td = from_struct_array(array)
    array["a"] = 5
    assert td["a"].tolist() == [5.0, 5.0]
    assert td.batch_size == (2,)


def test_from_list_stacks_the_items():
    td = TensorDict.from_list([{"a": 1}, {"a": 2}], names=["x"])
    assert (td["a"].tolist(), td.names) == ([1, 2], ["x"])
    with pytest.raises(ValueError, match="does not match the length"):
        TensorDict.from_list([{"a": 1}], batch_size=[2])


def test_fromkeys_sets_one_value():
    assert fromkeys(["a", ("n", "b")], 2)["n", "b"] == 2


def test_from_schema_makes_zeros():
    schema = {"a": ([2], torch.int8), ("n", "b"): ([], torch.bool)}
    td = TensorDict.from_schema(schema, batch_size=[3])
    assert (td["a"].shape, td["a"].dtype) == ((3, 2), torch.int8)
    assert not td["n", "b"].any()
    with pytest.raises(ValueError, match="Unknown storage backend 'tape'"):
        TensorDict.from_schema(schema, storage="tape")


def test_make_tensordict_takes_keywords():
    td = make_tensordict({"a": torch.zeros(3)}, b=torch.zeros(3), auto_batch_size=True)
    assert td.batch_size == (3,)
    assert set(td.keys()) == {"a", "b"}


def test_new_tensor_of_a_tensor_gives_the_advice_of_torch():
    td = TensorDict(a=torch.ones(2), n={"b": torch.ones(2, dtype=torch.float64)})
    with pytest.warns(UserWarning, match="To copy construct from a tensor"):
        made = td.new_tensor(torch.arange(3))
    assert made["a"].tolist() == [0, 1, 2]
    assert made["n", "b"].dtype is torch.float64
    with pytest.warns(UserWarning, match="To copy construct from a tensor"):
        made = td.new_tensor(td)
    assert made["a"].data_ptr() != td["a"].data_ptr()


def optimizer_state() -> dict[str, Any]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize("make", [TensorDict.from_any, TensorDict.from_dict])
def test_numbers_as_keys_become_text_and_come_back(make: Any, tmp_path: Path) -> None:
    state = optimizer_state()
    td = make(state)
    assert list(td["state"].keys()) == ["0", "1"]
    assert td["state", "0", "exp_avg"] is state["state"][0]["exp_avg"]
    assert list(td.to_dict()["state"]) == [0, 1]
    td.memmap(tmp_path / "saved")
    td.save(tmp_path / "saved.tdz")
    fresh = torch.optim.AdamW(torch.nn.Linear(2, 1).parameters())
    for name in ("saved", "saved.tdz"):
        loaded = TensorDict.load(tmp_path / name, mode="r")
        for each in (loaded, loaded.clone(), pickle.loads(pickle.dumps(td))):  # noqa: S301
            fresh.load_state_dict(each.to_dict())
            found = fresh.state_dict()
            assert found["param_groups"] == state["param_groups"]
            assert torch.equal(
                found["state"][1]["exp_avg_sq"], state["state"][1]["exp_avg_sq"]
            )


def test_keys_that_are_no_keys_are_named_with_their_place() -> None:
    with pytest.raises(
        KeyError, match=r"Got key 0\.5\. \(in the mapping at \('a', 'b'\)"
    ):
        TensorDict.from_dict({"a": {"b": {0.5: torch.ones(1)}}})
    with pytest.raises(KeyError, match="'0' both as a string and as a number"):
        TensorDict.from_any({0: torch.ones(1), "0": torch.ones(1)})
    with pytest.raises(KeyError, match="Got key None"):
        TensorDict.from_any({None: 1})
    mixed = TensorDict.from_dict({0: torch.ones(2), "a": 1, ("b", "c"): 2})
    assert type(mixed) is TensorDict
    assert list(mixed.to_dict()) == ["0", "a", "b"]
    assert TensorDict.from_dict({7: [1, 2]}, auto_batch_size=True).batch_size == (2,)
