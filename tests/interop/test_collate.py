"""Collections in the batches of a DataLoader."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from separate_process import SERVER
from tensordict import LazyStackedTensorDict, TensorDict, lazy_stack, tensorclass


class Samples(Dataset):
    """Ten samples, each a collection."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return TensorDict(
            x=torch.full((2,), float(index)), n={"i": torch.tensor(index)}
        )


def test_default_collate_stacks():
    batch = default_collate([TensorDict(a=torch.zeros(2)), TensorDict(a=torch.ones(2))])
    assert type(batch) is TensorDict
    assert batch.batch_size == torch.Size([2])
    assert batch["a"][1].tolist() == [1, 1]


def test_data_loader_gives_collections():
    batches = list(DataLoader(Samples(), batch_size=4))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert batches[1]["n", "i"].tolist() == [4, 5, 6, 7]


def test_data_loader_workers_give_collections():
    loader = DataLoader(
        Samples(), batch_size=5, num_workers=1, multiprocessing_context=SERVER
    )
    assert [batch["n", "i"].tolist() for batch in loader] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
    ]


@tensorclass
class Pair:
    a: torch.Tensor


@pytest.mark.parametrize(
    "samples",
    [
        [TensorDict(a=torch.ones(2)), TensorDict(a=torch.ones(3))],
        [TensorDict(a=torch.ones(2)), TensorDict(b=torch.ones(2))],
        [TensorDict(a=torch.ones(2), b=torch.ones(1)), TensorDict(a=torch.ones(2))],
    ],
)
def test_default_collate_of_samples_that_differ_is_a_lazy_stack(samples):
    batch = default_collate(samples)
    assert type(batch) is LazyStackedTensorDict
    assert batch[1] is samples[1]
    assert batch.batch_size == (2,)


def test_default_collate_keeps_classes_apart():
    batch = default_collate([Pair(a=torch.ones(2)), Pair(a=torch.ones(3))])
    assert type(batch) is Pair
    with pytest.raises(TypeError, match="mixes tensorclass instances with tensordicts"):
        default_collate([Pair(a=torch.ones(2)), TensorDict(a=torch.ones(2))])


def test_default_collate_of_collections_in_lists():
    sample = {"more": [torch.ones(1), TensorDict(a=torch.ones(2))]}
    batch = default_collate([sample, sample])
    assert batch["more"][1].batch_size == (2,)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_that_one_index_gave_stays_what_it_is(num_workers):
    td = TensorDict(a=torch.arange(6), batch_size=[6])
    for source in (
        td,
        lazy_stack(list(td.unbind(0))),
        td._get_sub_tensordict(slice(0, 6)),
    ):
        context = "fork" if num_workers else None
        loader = DataLoader(
            source,
            batch_size=3,
            num_workers=num_workers,
            multiprocessing_context=context,
        )
        batches = list(loader)
        assert [type(batch) for batch in batches] == [type(source[[0, 1, 2]])] * 2
        assert torch.cat(batches)["a"].tolist() == list(range(6))
