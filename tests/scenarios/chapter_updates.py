"""Updates: many entries at once, in place, at an index, of some keys alone."""

from __future__ import annotations

import torch
from scenario import scenario

from tensordict import NonTensorData, TensorDict, lazy_stack, tensorclass


@tensorclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor = None


def target():
    nested = TensorDict(x=torch.zeros(2), y=torch.zeros(2), batch_size=[2])
    return TensorDict(a=torch.zeros(2), n=nested, batch_size=[2])


def source():
    nested = TensorDict(x=torch.ones(2), z=torch.ones(2), batch_size=[2])
    return TensorDict(a=torch.ones(2), b=torch.ones(2), n=nested, batch_size=[2])


@scenario
def update_merges_nested_collections():
    td, other = target(), source()
    return td.update(other) is td, td, td["a"] is other["a"], td["n"] is other["n"]


@scenario
def update_with_clones():
    td, other = target(), source()
    td.update(other, clone=True)
    return td, td["a"] is other["a"], td["b"] is other["b"]


@scenario
def update_in_place():
    td, other = target(), source()
    leaf = td["a"]
    td.update(other, inplace=True)
    return td, td["a"] is leaf, leaf


@scenario
def update_in_place_of_another_dtype():
    td = TensorDict(a=torch.zeros(2, dtype=torch.int64), batch_size=[2])
    return td.update({"a": torch.ones(2)}, inplace=True)


@scenario
def update_from_a_dictionary():
    td = target()
    td.update(
        {"a": [1.0, 2.0], ("n", "w"): torch.ones(2), "n": {"x": 5 * torch.ones(2)}}
    )
    return td


@scenario
def update_with_keywords():
    return target().update(b=torch.ones(2))


@scenario
def update_of_some_keys():
    return target().update(source(), keys_to_update=["a", ("n", "z")])


@scenario
def update_of_a_whole_nested_collection():
    return target().update(source(), keys_to_update=["n"])


@scenario
def update_of_keys_that_are_missing():
    return target().update(source(), keys_to_update=["q"])


@scenario(
    reason="the release stores all of a nested collection that was not there",
    ours=lambda td: sorted(td["m"].keys()) == ["x"],
)
def update_of_a_nested_key_without_a_parent():
    td = target()
    return td.update(
        {"m": {"x": torch.ones(2), "y": torch.ones(2)}}, keys_to_update=[("m", "x")]
    )


@scenario
def update_of_a_locked_collection():
    target().lock_().update(source())


@scenario
def update_in_place_of_a_locked_collection():
    td = target().lock_()
    td.update({"a": torch.ones(2)}, inplace=True)
    return td


@scenario
def update_of_another_batch_size():
    target().update(TensorDict(a=torch.ones(3), batch_size=[3]))


@scenario
def update_that_takes_another_batch_size():
    td = target()
    other = TensorDict(
        a=torch.ones(3), n={"x": torch.ones(3), "y": torch.ones(3)}, batch_size=[3]
    )
    return td.update(other, update_batch_size=True), td["n"].batch_size


@scenario
def update_that_takes_another_batch_size_and_lacks_keys():
    target().update(TensorDict(a=torch.ones(3), batch_size=[3]), update_batch_size=True)


@scenario
def update_that_takes_another_batch_size_in_place():
    other = TensorDict(
        a=torch.ones(3), n={"x": torch.ones(3), "y": torch.ones(3)}, batch_size=[3]
    )
    target().update(other, update_batch_size=True, inplace=True)


@scenario
def update_with_what_is_a_leaf():
    td, other = target(), source()
    td.update(other, is_leaf=lambda kind: issubclass(kind, TensorDict))
    return sorted(td["n"].keys()), td["n"] is other["n"]


@scenario
def update_writes_into_the_entries():
    td = target()
    leaf = td["n", "x"]
    td.update_({"a": torch.ones(2), "n": {"x": torch.ones(2) * 2}})
    return td, leaf


@scenario
def update_in_place_of_a_key_that_is_missing():
    target().update_({"q": torch.ones(2)})


@scenario
def update_in_place_of_one_key():
    return target().update_(source().select("a", ("n", "x")), keys_to_update="a")


@scenario
def update_in_place_of_some_keys():
    return target().update_(source(), keys_to_update=[("n", "x")])


@scenario
def update_in_place_without_blocking():
    return target().update_({"a": torch.ones(2)}, non_blocking=True)


@scenario
def update_in_a_graph():
    def made():
        weight = torch.ones(2, requires_grad=True)
        return TensorDict(a=weight * 1, done=torch.zeros(2).bool())

    td = made()
    td.update_(made())
    return td["a"].requires_grad, td["done"].requires_grad, td.clone()["done"]


@scenario
def gradients_through_an_update_in_place():
    weight = torch.ones(2, requires_grad=True)
    td = TensorDict(a=torch.zeros(2), b=torch.zeros(2))
    td.update_({"a": weight * 3, "b": torch.ones(2)})
    (td["a"] * td["b"]).sum().backward()
    return weight.grad, td["b"].requires_grad


@scenario
def update_at_rows():
    td = target()
    td.update_at_({"a": torch.tensor(5.0), "n": {"x": torch.tensor(6.0)}}, 1)
    return td


@scenario
def set_in_place():
    td = target()
    leaf = td["a"]
    td.set_("a", torch.ones(2)).set_(("n", "x"), 4.0)
    return td, td["a"] is leaf


@scenario
def set_in_place_of_a_missing_key():
    target().set_("q", torch.ones(2))


@scenario
def set_with_inplace():
    td = target()
    leaf = td["a"]
    td.set("a", torch.ones(2), inplace=True).set("new", torch.ones(2, 3), inplace=True)
    return td["a"] is leaf, leaf, td["new"].shape


@scenario
def set_of_a_wrong_shape():
    target().set("b", torch.ones(3))


@scenario
def replace_gives_a_copy():
    td = target()
    other = td.replace({"a": torch.ones(2)}, b=torch.ones(2))
    return other, td, other["n", "x"] is td["n", "x"]


@scenario
def copy_of_another_collection():
    td = target()
    td.copy_(target().apply(lambda x: x + 3))
    return td


@scenario
def update_of_a_class():
    pair = Pair(a=torch.zeros(2), batch_size=[2])
    pair.update(Pair(a=torch.ones(2), b=torch.ones(2), batch_size=[2]))
    pair.update_({"a": torch.ones(2) * 5})
    return pair


@scenario
def update_of_values():
    td = TensorDict(s="x", a=0)
    td.update({"s": "y", "t": NonTensorData("z")})
    return td, td["s"], td["t"]


@scenario
def update_of_a_stack_member_by_member():
    stack = lazy_stack([TensorDict(a=0), TensorDict(a=1)])
    stack.update({"b": torch.arange(2)})
    stack.update_({"a": torch.tensor([5, 6])})
    return stack, stack[1]


@scenario
def setdefault_and_pop():
    td = target()
    return (
        td.setdefault("a", torch.ones(2)),
        td.setdefault("c", torch.ones(2)),
        td.pop("a"),
        td,
    )
