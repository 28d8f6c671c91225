"""The lazy mode of old: views that share, and stacks of torch.stack that are lazy."""

from __future__ import annotations

import torch
from scenario import scenario

from tensordict import TensorDict, lazy_legacy, set_lazy_legacy


def data():
    nested = TensorDict(y=torch.arange(6).view(3, 2), batch_size=[3, 2])
    return TensorDict(x=torch.arange(12).view(3, 2, 2), n=nested, batch_size=[3, 2])


@scenario
def the_mode_is_off():
    return lazy_legacy(), type(torch.stack([data(), data()])).__name__


@scenario
def the_mode_in_a_block():
    with set_lazy_legacy(True):
        inside = lazy_legacy()
    return inside, lazy_legacy()


@scenario
def the_mode_as_a_decorator():
    @set_lazy_legacy(True)
    def called():
        return type(torch.stack([data(), data()])).__name__

    return called(), lazy_legacy()


@scenario
def a_stack_is_lazy():
    with set_lazy_legacy(True):
        first = data()
        stack = torch.stack([first, data()], 1)
    stack["z"] = torch.ones(3, 2, 2)
    return type(stack).__name__, stack.batch_size, stack.stack_dim, first["z"]


@scenario
def stacks_of_other_shapes():
    with set_lazy_legacy(True):
        stack = torch.stack([TensorDict(a=torch.ones(2)), TensorDict(a=torch.ones(3))])
    return stack.get("a", as_padded_tensor=True)


@scenario
def a_view_writes_through():
    with set_lazy_legacy(True):
        td = data()
        view = td.view(6)
        view["z"] = torch.arange(6)
        view["x"] = torch.zeros(6, 2)
    return type(view).__name__, td["z"], td["x"].sum(), view.batch_size


@scenario
def a_permuted_view():
    with set_lazy_legacy(True):
        td = data()
        view = td.permute(1, 0)
        view["z"] = torch.ones(2, 3, 4)
    return type(view).__name__, view["x"].shape, td["z"].shape, view["n"].batch_size


@scenario
def a_transposed_view():
    with set_lazy_legacy(True):
        td = data()
        view = td.transpose(0, 1)
        view["x"] = view["x"] + 1
    return view.batch_size, td["x"]


@scenario
def views_with_and_without_a_dim():
    with set_lazy_legacy(True):
        td = data()
        more = td.unsqueeze(0)
        more["z"] = torch.ones(1, 3, 2)
        less = td[:1].squeeze(0)
    return type(more).__name__, more.batch_size, td["z"].shape, less.batch_size


@scenario
def a_view_taken_back():
    with set_lazy_legacy(True):
        td = data()
        return (
            td.view(6).view(3, 2) is td,
            td.unsqueeze(0).squeeze(0) is td,
            td.permute(1, 0).permute(1, 0) is td,
            td.transpose(0, 1).transpose(0, 1) is td,
        )


@scenario
def an_index_of_a_view():
    with set_lazy_legacy(True):
        td = data()
        row = td.view(6)[1]
        rows = td.permute(1, 0)[0]
    return type(row).__name__, row["x"], rows["x"], rows.batch_size


@scenario
def a_view_of_an_index():
    with set_lazy_legacy(True):
        td = data()
        view = td[:2].view(4)
        view["x"] = torch.zeros(4, 2, dtype=torch.int64)
    return type(view).__name__, view["n", "y"], td["x"]


@scenario
def a_view_of_an_indexed_view():
    with set_lazy_legacy(True):
        td = data()
        part = td.permute(1, 0)[:, :2]
        return (
            part.view(4)["x"],
            part.unsqueeze(0)["x"].shape,
            part.transpose(0, 1)["x"],
        )


@scenario
def a_view_of_a_part():
    with set_lazy_legacy(True):
        td = data()
        part = td._get_sub_tensordict(slice(0, 2))
        return (
            part.view(4)["x"],
            part.permute(1, 0).batch_size,
            part.unsqueeze(1).batch_size,
        )


@scenario
def a_view_of_a_view():
    with set_lazy_legacy(True):
        td = data()
        view = td.unsqueeze(0).permute(1, 2, 0)
        view["z"] = torch.ones(3, 2, 1)
    return view.batch_size, td["z"].shape


@scenario
def writes_at_an_index_of_a_view():
    with set_lazy_legacy(True):
        td = data()
        td.view(6).set_at_("x", 0, 2)
        td.permute(1, 0).set_(
            "n", TensorDict(y=torch.zeros(2, 3).long(), batch_size=[2, 3])
        )
    return td


@scenario
def a_view_becomes_an_ordinary_collection():
    with set_lazy_legacy(True):
        view = data().view(6)
        return (
            view.to_tensordict(),
            view.clone()["x"],
            view.contiguous()["n"].batch_size,
        )


@scenario
def arithmetic_of_views():
    with set_lazy_legacy(True):
        view = data().view(6)
        return (view + 1)["x"], view.apply(lambda x: x * 2)["n", "y"]


@scenario
def a_view_of_a_locked_collection():
    with set_lazy_legacy(True):
        view = data().lock_().view(6)
        locked = view.is_locked
        view["z"] = torch.ones(6)
    return locked


@scenario
def keys_and_items_of_a_view():
    with set_lazy_legacy(True):
        view = data().transpose(0, 1)
        return sorted(map(str, view.keys(True))), [
            (k, v.shape) for k, v in view.items()
        ]


@scenario
def a_view_without_the_mode():
    with set_lazy_legacy(False):
        td = data()
        view = td.view(6)
        view["z"] = torch.ones(6)
    return type(view).__name__, "z" in td.keys()


@scenario
def a_view_of_a_wrong_shape():
    with set_lazy_legacy(True):
        return data().view(5)["x"]
