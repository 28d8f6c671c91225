"""Rows: reading and writing at every kind of index."""

from __future__ import annotations

import numpy as np
import torch
from scenario import scenario

from tensordict import TensorDict, lazy_stack, tensorclass


@tensorclass
class Sample:
    x: torch.Tensor
    label: str = "none"


def data(n=4):
    return TensorDict(
        x=torch.arange(n * 2).view(n, 2) * 1.0,
        n=TensorDict(y=torch.zeros(n), batch_size=[n]),
        batch_size=[n],
    )


def row(value=9.0):
    return TensorDict(x=torch.full((2,), value), n=TensorDict(y=torch.tensor(value)))


ROW = "the release writes one row to many only where its batch size is the index's"


@scenario
def a_row_by_number():
    td = data()
    return td[1], td[-1]["x"], td[1]["n"].batch_size


@scenario
def a_row_by_a_number_out_of_range():
    return data()[7]


@scenario
def rows_by_a_slice_are_views():
    td = data()
    part = td[1:3]
    part["x"].zero_()
    return td["x"], part.batch_size


@scenario
def rows_by_a_mask_are_copies():
    td = data()
    part = td[torch.tensor([True, False, True, False])]
    part["x"].zero_()
    return td["x"], part


@scenario
def rows_by_arrays_lists_and_ranges():
    td = data()
    return td[np.array([0, 2])]["x"], td[[3, 0]]["x"], td[range(2)]["x"]


@scenario
def rows_by_a_square_of_positions():
    return data()[torch.tensor([[0, 1], [2, 3]])]


@scenario
def none_and_ellipsis():
    td = data()
    return td[None].batch_size, td[..., None].batch_size, td[...].batch_size


@scenario
def several_dims():
    td = TensorDict(x=torch.arange(24).view(2, 3, 4), batch_size=[2, 3])
    return td[:, 1]["x"], td[0, 1:]["x"], td[..., 0].batch_size, td[[0, 1], [1, 2]]


@scenario
def a_row_is_written():
    td = data()
    td[0] = row()
    return td


@scenario
def a_number_is_written_to_rows():
    td = data()
    td[1:3] = 5
    return td


@scenario
def rows_are_written_by_a_mask():
    td = data()
    mask = torch.tensor([True, False, True, False])
    td[mask] = torch.stack([row(1.0), row(2.0)])
    return td


@scenario(
    reason=ROW, ours=lambda td: (td["x"] == 9).all() and (td["n", "y"] == 9).all()
)
def one_row_is_written_to_all():
    td = data()
    td[:] = row()
    return td


@scenario(reason=ROW, ours=lambda td: td["x"][:, 0].tolist() == [0, 9, 4, 6])
def one_row_is_written_to_a_slice_of_one():
    td = data()
    td[1:2] = row()
    return td


@scenario(reason=ROW, ours=lambda td: td["x"][:, 0].tolist() == [9, 2, 9, 6])
def one_row_with_a_dim_of_one_is_written_by_a_list():
    td = data()
    td[[0, 2]] = row().unsqueeze(0)
    return td


@scenario
def one_row_is_written_to_all_of_a_stack():
    td = lazy_stack([TensorDict(x=torch.zeros(2)) for _ in range(3)])
    td[:] = TensorDict(x=torch.ones(2))
    td[1:2] = TensorDict(x=torch.ones(2) * 2)
    return td["x"]


@scenario
def rows_of_the_wrong_size_are_refused():
    td = data()
    td[:3] = data(2)


@scenario
def a_new_entry_is_made_at_an_index():
    td = data()
    td[1] = TensorDict(z=torch.ones(3))
    return td["z"]


@scenario
def a_dictionary_is_written_at_an_index():
    td = data()
    td[0] = {"x": torch.ones(2), "n": {"y": 3.0}}
    return td[0]


@scenario
def set_at_and_get_at():
    td = data()
    td.set_at_("x", torch.ones(2), 1)
    td.set_at_(("n", "y"), 7.0, slice(2, None))
    return (
        td.get_at("x", 1),
        td.get_at(("n", "y"), slice(1, 4)),
        td.get_at("q", 0, None),
    )


@scenario
def set_at_of_a_missing_key():
    data().set_at_("q", 0.0, 1)


@scenario
def update_at():
    td = data()
    td.update_at_(row(3.0), 2)
    td.update_at_(torch.stack([row(4.0), row(5.0)]), slice(0, 2))
    return td


@scenario
def a_part_of_a_collection_writes_through():
    td = data()
    part = td._get_sub_tensordict(slice(1, 3))
    part["x"] = torch.ones(2, 2)
    part.set_("n", part["n"] + 1)
    return td


@scenario
def rows_of_a_class():
    batch = Sample(x=torch.zeros(3, 2), batch_size=[3])
    batch[0] = Sample(x=torch.ones(2), batch_size=[])
    return batch[0], batch[1:].x, len(batch)


@scenario
def a_locked_collection_takes_rows():
    td = data().lock_()
    td[0] = row()
    return td[0], td.is_locked


@scenario
def a_locked_collection_refuses_new_entries_at_an_index():
    td = data().lock_()
    td[0] = TensorDict(z=torch.ones(3))


@scenario
def index_with_a_tensor_of_no_dims():
    td = data()
    td[torch.tensor(2)] = 0
    return td[torch.tensor(1)], td["x"]


@scenario
def unbind_split_and_chunk():
    td = data()
    return td.unbind(0)[2], td.split([1, 3])[1]["x"], td.chunk(2)[0]["x"]


@scenario
def iterate_over_rows():
    return [each["x"].sum() for each in data()]


@scenario
def gather_rows():
    td = data()
    return td.gather(0, torch.tensor([3, 3, 0]))["x"]


@scenario
def masked_rows():
    td = data()
    mask = torch.tensor([True, False, False, True])
    chosen = td.masked_select(mask)
    td.masked_fill_(mask, -1.0)
    return chosen["x"], td["x"]
