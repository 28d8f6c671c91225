"""Structured numpy arrays: every type of column, both ways."""

from __future__ import annotations

import numpy as np
import torch
from scenario import scenario

from tensordict import NonTensorStack, TensorDict, lazy_stack, tensorclass

COLUMNS = "an array of text is a column: in the release each row has all of it"


def pets():
    return np.array(
        [("Rex", 9, 81.0), ("Fido", 3, 27.0)],
        dtype=[("name", "U10"), ("age", "i4"), ("weight", "f4")],
    )


@scenario
def numbers_are_tensors():
    array = np.array(
        [(1, 2.0, True, 3j), (4, 5.0, False, 6j)],
        dtype=[("i", "i8"), ("f", "f8"), ("b", "?"), ("c", "c8")],
    )
    td = TensorDict.from_struct_array(array)
    return td, td[1].to_dict()


@scenario
def small_and_unsigned_numbers():
    array = np.zeros(2, dtype=[("u1", "u1"), ("i2", "i2"), ("f2", "f2"), ("u2", "u2")])
    array["i2"] = [1, 2]
    return TensorDict.from_struct_array(array)


@scenario
def numbers_of_another_byte_order():
    array = np.array([(1, 2.0), (3, 4.0)], dtype=[("i", ">i4"), ("f", ">f8")])
    return TensorDict.from_struct_array(array)


@scenario(
    reason=COLUMNS,
    ours=lambda result: result == (["Rex", "Fido"], "Rex", "Fido", ["Fido"]),
)
def text_is_a_column():
    td = TensorDict.from_struct_array(pets())
    return list(td["name"]), td[0]["name"], td[-1]["name"], list(td[1:]["name"])


@scenario(
    reason=COLUMNS,
    ours=lambda result: (
        result[0] == [b"ab", b"cd"]
        and result[1] == [{"k": 1}, None]
        and result[2] == "dc"
    ),
)
def bytes_objects_and_text():
    array = np.zeros(2, dtype=[("s", "S4"), ("o", "O"), ("t", "U2")])
    array["s"], array["t"] = [b"ab", b"cd"], ["ba", "dc"]
    array["o"] = [{"k": 1}, None]
    td = TensorDict.from_struct_array(array)
    return list(td["s"]), list(td["o"]), td[1]["t"]


@scenario(
    reason=COLUMNS,
    ours=lambda result: (
        result == (np.datetime64("2021-01-01", "s"), np.timedelta64(2, "h"))
    ),
)
def dates_and_durations():
    array = np.zeros(2, dtype=[("day", "M8[s]"), ("lasts", "m8[h]")])
    array["day"] = np.array(["2020-01-01", "2021-01-01"], dtype="M8[s]")
    array["lasts"] = [1, 2]
    td = TensorDict.from_struct_array(array)
    return td[1]["day"], td[1]["lasts"]


@scenario
def subarrays_of_numbers():
    array = np.zeros(2, dtype=[("box", "f4", (2, 3)), ("id", "i8")])
    array["box"] += np.arange(3)
    td = TensorDict.from_struct_array(array)
    return td, td[0]["box"]


@scenario(
    reason=COLUMNS,
    ours=lambda result: result[0].tolist() == ["c", "d"] and result[1] == (2,),
)
def subarrays_of_text():
    array = np.zeros(2, dtype=[("tags", "U3", (2,))])
    array["tags"] = [["a", "b"], ["c", "d"]]
    td = TensorDict.from_struct_array(array)
    back = td.to_struct_array()
    assert (back["tags"] == array["tags"]).all()
    return td[1]["tags"], back.dtype["tags"].shape


@scenario(
    reason=COLUMNS,
    ours=lambda result: (
        result[0] == "r" and result[1].tolist() == [((0.0, "q"), 1), ((0.0, "r"), 2)]
    ),
)
def nested_records():
    array = np.zeros(2, dtype=[("n", [("x", "f4"), ("t", "U4")]), ("i", "i8")])
    array["n"]["t"], array["i"] = ["q", "r"], [1, 2]
    td = TensorDict.from_struct_array(array)
    return td[1]["n", "t"], td.to_struct_array()


@scenario
def nested_records_of_numbers():
    array = np.zeros((2,), dtype=[("n", [("x", "f4"), ("m", [("y", "i8")])])])
    td = TensorDict.from_struct_array(array)
    return td, td.to_struct_array().dtype.names


@scenario(
    reason=COLUMNS,
    ours=lambda result: result == ([["a", "b"], ["c", "d"]], "c", torch.Size([2, 2])),
)
def records_in_two_dims():
    array = np.array(
        [[("a", 1), ("b", 2)], [("c", 3), ("d", 4)]], dtype=[("t", "U2"), ("i", "i8")]
    )
    td = TensorDict.from_struct_array(array)
    return td.get("t").tolist(), td[1, 0]["t"], td.batch_size


@scenario(
    reason=COLUMNS,
    ours=lambda result: result == (["Rex", "Fido"], "Fido"),
)
def record_arrays():
    array = np.rec.array(pets())
    td = TensorDict.from_struct_array(array)
    return list(td["name"]), td[1]["name"]


@scenario
def one_record():
    td = TensorDict.from_struct_array(pets()[0])
    return td["name"], td["age"], td.batch_size


@scenario
def one_record_as_an_array_without_dims():
    td = TensorDict.from_struct_array(np.array(("Rex", 9), dtype="U10, i4"))
    return str(td["f0"]), td["f1"], td.batch_size


@scenario
def memory_is_shared_where_it_can_be():
    array = np.zeros(2, dtype=[("x", "f4"), ("y", "f4")])
    td = TensorDict.from_struct_array(array)
    td["x"].fill_(3)
    return array["x"].tolist(), array["y"].tolist()


@scenario
def an_array_that_cannot_be_written():
    array = np.ones(2, dtype=[("x", "f4")])
    array.flags.writeable = False
    td = TensorDict.from_struct_array(array)
    td["x"].zero_()
    return td["x"], array["x"].tolist()


@scenario
def a_part_of_a_table():
    array = pets()
    td = TensorDict.from_struct_array(array[["age", "weight"]])
    return td, TensorDict.from_struct_array(array[::-1])["age"]


@scenario(
    reason=COLUMNS,
    ours=lambda result: result[0] == "Fido" and result[1] == (2,),
)
def the_batch_size_found():
    td = TensorDict.from_struct_array(pets(), auto_batch_size=True)
    return td[1]["name"], td.batch_size


@scenario
def a_batch_size_given():
    td = TensorDict.from_struct_array(pets(), batch_size=[])
    return td["name"].tolist(), td["age"], td.batch_size


@scenario
def a_device_given():
    td = TensorDict.from_struct_array(pets(), device="cpu")
    return td.device, td["age"]


@scenario
def to_an_array_of_numbers():
    td = TensorDict(a=torch.arange(2), b=torch.ones(2, 3), batch_size=[2])
    array = td.to_struct_array()
    return str(array.dtype), array["a"].tolist(), array["b"].tolist(), array.shape


@scenario
def to_an_array_with_text():
    td = TensorDict(s=["a", "bb"], n=torch.ones(2), batch_size=[2])
    array = td.to_struct_array()
    return str(array.dtype), array.tolist()


@scenario
def to_an_array_with_long_text():
    td = TensorDict(s=["a" * 20, "b"], batch_size=[2])
    array = td.to_struct_array()
    return array["s"].tolist()


@scenario
def to_an_array_with_one_value():
    td = TensorDict(s="all", n=torch.ones(2), batch_size=[2])
    return td.to_struct_array().tolist()


@scenario
def to_an_array_with_nested_entries():
    td = TensorDict(n={"x": torch.ones(2), "t": ["p", "q"]}, batch_size=[2])
    array = td.to_struct_array()
    return str(array.dtype), array.tolist()


@scenario
def to_an_array_in_two_dims():
    td = TensorDict(a=torch.arange(4).view(2, 2), batch_size=[2, 2])
    return td.to_struct_array().tolist(), td.to_struct_array().shape


@scenario
def to_an_array_without_batch_dims():
    td = TensorDict(a=torch.arange(2), b=torch.tensor(1.0))
    array = td.to_struct_array()
    return str(array.dtype), array.shape, array["a"].tolist()


@scenario(message=False)
def to_an_array_of_nothing():
    return TensorDict(batch_size=[2]).to_struct_array()


@scenario(
    reason="the release makes text of bytes, so that they do not come back",
    ours=lambda result: result == [(b"ab",), (b"cd",)],
)
def bytes_come_back():
    return TensorDict(s=[b"ab", b"cd"], batch_size=[2]).to_struct_array().tolist()


@scenario(
    reason="the release makes text of dates, so that they do not come back",
    ours=lambda result: result == ("<M8[D]", "2021-01-01"),
)
def dates_come_back():
    days = [np.datetime64("2020-01-01"), np.datetime64("2021-01-01")]
    array = TensorDict(day=days, batch_size=[2]).to_struct_array()
    return array.dtype["day"].str, str(array["day"][1])


@scenario
def objects_come_back():
    values = NonTensorStack({"k": 1}, None)
    array = TensorDict(o=values, batch_size=[2]).to_struct_array()
    return array["o"].tolist()


@scenario
def tables_come_back():
    array = pets()
    back = TensorDict.from_struct_array(array).to_struct_array()
    return back.tolist() == array.tolist(), str(back.dtype)


@scenario
def lazy_stacks_to_arrays():
    stack = lazy_stack([TensorDict(s="a", n=1), TensorDict(s="bb", n=2)])
    return stack.to_struct_array().tolist()


@scenario
def tensorclasses_and_arrays():
    @tensorclass
    class Pet:
        name: str
        age: torch.Tensor

    pet = Pet(["a", "b"], torch.arange(2), batch_size=[2])
    array = pet.to_struct_array()
    return array.tolist(), Pet.from_struct_array(array).age


@scenario(
    reason=COLUMNS,
    ours=lambda result: result == ["Fido", "Fido", torch.Size([2])],
)
def tables_as_entries():
    td = TensorDict(table=pets(), batch_size=[2])
    other = TensorDict.from_any(pets())
    return [td[1]["table", "name"], other[1]["name"], td["table"].batch_size]


@scenario
def tables_without_rows():
    td = TensorDict.from_struct_array(np.zeros(0, dtype=[("x", "f4"), ("i", "i8")]))
    return td, td.to_struct_array().shape
