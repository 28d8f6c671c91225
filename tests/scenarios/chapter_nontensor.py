"""Non-tensor data: text, numbers, objects and None as entries, and stacks of them."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import torch
from scenario import scenario

from tensordict import (
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    lazy_stack,
    set_list_to_stack,
)


def people():
    return TensorDict(
        name=["bob", "ann", "cid"], age=torch.tensor([2, 1, 3]), batch_size=[3]
    )


@scenario
def one_value_for_all_rows():
    td = TensorDict(a=torch.zeros(2), text="hello", batch_size=[2])
    return td["text"], td.get("text"), td[0]["text"], td.get("text").batch_size


@scenario
def a_list_of_text_is_a_column():
    td = people()
    return td["name"], td[1]["name"], td[1:]["name"], td.get("name").tolist()


@scenario
def a_list_of_the_wrong_length():
    return TensorDict(name=["a", "b"], batch_size=[3])


@scenario
def nested_lists_of_text():
    td = TensorDict(t=[["a", "b"], ["c", "d"]], batch_size=[2])
    return td["t"], td[0]["t"], td.get("t").batch_size


@scenario
def none_is_a_value():
    td = TensorDict(a=torch.zeros(2), nothing=None, batch_size=[2])
    return td["nothing"], "nothing" in td, td.get("nothing", "default")


@scenario
def objects_keep_their_identity():
    thing = {1, 2}
    td = TensorDict(batch_size=[2])
    td.set_non_tensor("thing", thing)
    return td["thing"] is thing, td.get_non_tensor("thing") is thing, td[0]["thing"]


@scenario
def a_list_as_one_value():
    td = TensorDict(batch_size=[2])
    td.set_non_tensor("words", ["a", "b", "c"])
    td["words"].append("d")
    return td["words"], td[0]["words"]


@scenario
def lists_are_values_with_list_to_stack_off():
    with set_list_to_stack(False):
        td = TensorDict(words=["a", "b", "c"], batch_size=[2])
    return td["words"], td.batch_size


@scenario
def dictionaries_as_values():
    td = TensorDict(a=torch.zeros(2), batch_size=[2])
    td["meta"] = NonTensorData({"k": 1}, batch_size=[2])
    return td["meta"], td[1]["meta"]


@scenario(
    reason="the class of a value is named MetaData[str], as it is written",
    ours=lambda result: isinstance(result[0], MetaData) and result[2],
)
def annotated_classes_can_be_called():
    return (
        MetaData[str]("x"),
        NonTensorStack[str]("a", "b"),
        isinstance(MetaData[str]("x"), MetaData),
    )


@scenario(
    reason="the release takes the type of NonTensorData[...] for an option",
    ours=lambda result: result[0].data == 1 and result[1] == "a" and result[2] == [1],
)
def annotated_values():
    def first(value: NonTensorData[str]) -> NonTensorData[Any]:
        return value.data

    made = NonTensorData[list[int]]([1])
    return NonTensorData[int](1), first(NonTensorData("a")), made.data


# Writing --------------------------------------------------------------------------------


@scenario
def an_item_of_the_list_writes():
    td = people()
    td["name"][0] = "eve"
    td["name"][-1] = "joe"
    return td["name"], td[0]["name"]


@scenario
def a_slice_of_the_list_writes():
    td = people()
    td["name"][1:] = ["x", "y"]
    td["name"][::2] = ["u", "v"]
    return list(td["name"])


@scenario(
    reason="in the release reverse and sort change a list of their own, in silence",
    ours=lambda result: (
        result == (["cid", "ann", "bob"], ["ann", "bob", "cid"], ["cid", "bob", "ann"])
    ),
)
def reverse_and_sort_write():
    td = people()
    td["name"].reverse()
    seen = [list(td["name"])]
    td["name"].sort()
    seen.append(list(td["name"]))
    td["name"].sort(key=lambda name: name[0], reverse=True)
    return (*seen, list(td["name"]))


@scenario(
    reason="in the release reverse changes a list of its own, in silence",
    ours=lambda result: (
        result == ([["c", "d"], ["a", "b"]], [["c", "d"], ["b", "a"]], "b")
    ),
)
def rows_of_nested_lists_are_reversed():
    td = TensorDict(t=[["a", "b"], ["c", "d"]], batch_size=[2])
    td["t"].reverse()
    rows = td["t"].tolist()
    td["t"][1].reverse()
    return rows, td["t"].tolist(), td[1]["t"][0]


@scenario
def append_to_a_column():
    td = people()
    td["name"].append("new")
    return td["name"]


@scenario(
    reason="in the release nothing happens, in silence",
    ours=lambda result: result == ["UserWarning"] * 7,
)
def whatever_would_change_the_length():
    td = people()
    seen = []
    for change in (
        lambda names: names.extend(["x"]),
        lambda names: names.insert(0, "x"),
        lambda names: names.pop(),
        lambda names: names.remove("bob"),
        lambda names: names.clear(),
        lambda names: names.__delitem__(0),
        lambda names: names.__imul__(2),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            change(td["name"])
        seen += [warning.category.__name__ for warning in caught]
    return seen


@scenario
def adding_to_a_column_in_place():
    td = people()
    td["name"] += ["new"]


@scenario
def a_list_of_its_own():
    td = people()
    names = list(td["name"])
    names.append("new")
    joined = td["name"] + ["more"]
    return names, type(joined).__name__, joined, td["name"]


@scenario
def copies_of_the_list():
    names = people()["name"]
    return (
        copy.copy(names),
        copy.deepcopy(names),
        pickle.loads(pickle.dumps(names)),
        names.copy(),
    )


@scenario
def setting_and_updating():
    td = people()
    td.update({"name": ["x", "y", "z"]})
    td["more"] = "all"
    td.set("more", ["p", "q", "r"])
    td.update_({"name": ["k", "l", "m"]})
    return td["name"], td["more"]


@scenario
def writing_at_an_index():
    td = people()
    td[0] = TensorDict(name="zoe", age=torch.tensor(9))
    td.set_at_("name", "yan", 1)
    td[2:] = TensorDict(name=["xi"], age=torch.tensor([7]), batch_size=[1])
    return td


@scenario
def one_value_becomes_a_column():
    td = TensorDict(text="a", x=torch.zeros(3), batch_size=[3])
    td[0] = TensorDict(text="b", x=torch.ones(()))
    return td["text"], type(td.get("text")).__name__


@scenario
def writing_to_a_locked_collection():
    td = people().lock_()
    td["name"] = ["a", "b", "c"]


# Arrays ---------------------------------------------------------------------------------


def _columns(result):
    return all(list(column) == ["a", "bb"] and row == "bb" for column, row in result)


@scenario(
    reason="an array of text is a column: in the release each row has all of it",
    ours=_columns,
)
def arrays_of_text():
    array = np.array(["a", "bb"])
    made = [
        TensorDict(s=array, batch_size=[2]),
        TensorDict({"s": array}, [2]),
        TensorDict.from_dict({"s": array}, batch_size=[2]),
        TensorDict.from_any({"s": array}, batch_size=[2]),
        TensorDict(batch_size=[2]).set("s", array),
        TensorDict(batch_size=[2]).update({"s": array}),
        TensorDict(s=["x", "y"], batch_size=[2]).update_({"s": array}),
        TensorDict(s=["x", "y"], batch_size=[2]).set_("s", array),
        lazy_stack([TensorDict(), TensorDict()]).set("s", array),
        TensorDict.from_dict({"s": array, "x": torch.ones(2)}, auto_batch_size=True),
    ]
    return [(td["s"], td[1]["s"]) for td in made]


@scenario(
    reason="an array of objects is a column: in the release each row has all of it",
    ours=lambda result: (
        result[:2] == [None, b"y"]
        and result[2] == np.datetime64("2021-01-01")
        and result[3].tolist() == ["c", "d"]
    ),
)
def arrays_of_objects_bytes_and_dates():
    made = [
        np.array(["a", None], dtype=object),
        np.array([b"x", b"y"]),
        np.array(["2020-01-01", "2021-01-01"], dtype="M8[D]"),
        np.array([["a", "b"], ["c", "d"]]),
    ]
    return [TensorDict(s=array, batch_size=[2])[1]["s"] for array in made]


@scenario(
    reason="an array of text is a column: in the release each row has all of it",
    ours=lambda result: list(result) == ["z", "x", "y"],
)
def arrays_of_text_at_an_index():
    td = TensorDict(s=["z", "b", "c"], batch_size=[3])
    td.set_at_("s", np.array(["x", "y"]), slice(1, None))
    return td["s"]


@scenario
def arrays_without_batch_dims_are_one_value():
    td = TensorDict(s=np.array(["a", "b"]), n=np.arange(3))
    return td["s"].tolist(), td["n"]


@scenario
def arrays_that_are_not_of_the_rows():
    td = TensorDict(classes=np.array(["cat", "dog", "owl"]), batch_size=[2])
    return td["classes"].tolist(), td[0]["classes"].tolist()


@scenario
def arrays_as_one_value_on_purpose():
    td = TensorDict(batch_size=[2])
    td.set_non_tensor("s", np.array(["a", "b"]))
    return td["s"].tolist(), td[0]["s"].tolist()


# Stacks ---------------------------------------------------------------------------------


@scenario
def stacking_values():
    one, two = TensorDict(s="a"), TensorDict(s="b")
    same = torch.stack([one, one])
    return torch.stack([one, two])["s"], same["s"], type(same.get("s")).__name__


@scenario
def concatenating_columns():
    td = people()
    joined = torch.cat([td, td[:1]])
    return joined["name"], joined.batch_size


@scenario
def lazy_stacks_of_values():
    stack = lazy_stack([TensorDict(s="a"), TensorDict(s="b")])
    stack["t"] = ["x", "y"]
    return stack["s"], stack[0]["t"], stack.get("s").tolist(), stack[1].to_dict()


@scenario
def stack_from_list_and_tolist():
    stack = NonTensorStack.from_list([["a", "b"], ["c", "d"]])
    return stack.batch_size, stack[0].tolist(), stack.tolist(), stack[1, 0].data


@scenario
def shapes_of_a_column():
    td = TensorDict(s=[["a", "b"], ["c", "d"]], batch_size=[2, 2])
    return (
        td.view(-1)["s"],
        td.permute(1, 0)["s"],
        td.unsqueeze(0).batch_size,
        td[:, 1]["s"],
        td.reshape(4)[3]["s"],
    )


@scenario
def indexing_with_masks_and_tensors():
    td = people()
    return td[td["age"] > 1]["name"], td[torch.tensor([2, 0])]["name"], td[[1]]["name"]


@scenario
def sorting_rows_by_an_entry():
    td = people()
    return td[td["age"].argsort()]["name"]


@scenario
def expand_and_repeat():
    td = TensorDict(s=["a", "b"], batch_size=[2])
    return td.expand(2, 2)["s"], td.repeat(2)["s"], td.repeat_interleave(2)["s"]


@scenario
def metadata_is_stacked_to_one():
    stacked = torch.stack([TensorDict(m=MetaData("a")), TensorDict(m=MetaData("a"))])
    return stacked.get("m"), stacked["m"]


@scenario
def values_in_operations():
    td = TensorDict(x=torch.ones(2), s="text", batch_size=[2])
    return (td + 1)["s"], td.apply(lambda x: x * 2)["s"], td.to(torch.float64)["s"]


@scenario
def values_are_not_leaves_of_tensors():
    td = TensorDict(x=torch.ones(2), s="text", n={"t": "more"}, batch_size=[2])
    return (
        sorted(map(str, td.keys(True, True))),
        td.filter_non_tensor_data().to_dict(),
        td.non_tensor_items(),
    )


@scenario
def comparing_values():
    td = people()
    return (td == people()).all(), (td == td.clone().update({"name": "x"})).all()


@scenario
def to_dict_and_tolist():
    td = people()
    return td.to_dict(), td.tolist(convert_tensors=True)


@scenario
def columns_on_disk(tmp_path):
    td = people()
    td.memmap(tmp_path)
    loaded = TensorDict.load_memmap(tmp_path)
    return loaded["name"], loaded[2]["name"], loaded["age"]


@scenario(
    reason="the release leaves the values of a column as they are",
    ours=lambda result: list(result) == ["bob", "ann", "cid"],
)
def columns_in_state_dicts():
    td = people()
    other = TensorDict(name=["", "", ""], age=torch.zeros(3).long(), batch_size=[3])
    other.load_state_dict(td.state_dict())
    return other["name"]
