"""Data loading: datasets, loaders, collate functions, samplers, and pytrees."""

from __future__ import annotations

from collections import OrderedDict

import torch
from scenario import scenario
from torch.utils import _pytree as pytree
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

import tensordict
from tensordict import (
    NonTensorData,
    TensorDict,
    TensorDictParams,
    lazy_stack,
    tensorclass,
)


@tensorclass
class Sample:
    image: torch.Tensor
    label: int
    name: str = "none"


class Rows(Dataset):
    """A dataset whose items are collections."""

    def __init__(self, size: int = 6) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> TensorDict:
        return TensorDict(x=torch.full((2,), float(index)), y=torch.tensor(index))


class Batched(Dataset):
    """A dataset that reads a whole batch at once."""

    def __init__(self) -> None:
        self.data = rows()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> TensorDict:
        return self.data[index]

    def __getitems__(self, indices: list[int]) -> TensorDict:
        return self.data[indices]


class Stream(IterableDataset):
    """A stream of collections."""

    def __iter__(self):
        for number in range(4):
            yield TensorDict(x=torch.tensor(number))


class Texts(Dataset):
    """A dataset with text beside tensors."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> TensorDict:
        return TensorDict(x=torch.tensor(index), text=f"number {index}")


def rows() -> TensorDict:
    return TensorDict(
        {"x": torch.arange(12.0).view(6, 2), "n": {"y": torch.arange(6)}},
        batch_size=[6],
    )


def same(batch):
    return batch


@scenario
def a_collection_as_the_dataset():
    loader = DataLoader(rows(), batch_size=2, collate_fn=same)
    return [batch.batch_size for batch in loader], next(iter(loader))


@scenario
def a_collection_read_by_batches():
    loader = DataLoader(
        rows(),
        sampler=BatchSampler(SequentialSampler(rows()), 4, drop_last=False),
        batch_size=None,
        collate_fn=same,
    )
    return list(loader)


@scenario
def a_collection_with_the_default_collate():
    return list(DataLoader(rows(), batch_size=3))


@scenario
def rows_with_the_default_collate():
    return list(DataLoader(Rows(), batch_size=4))


@scenario
def rows_stacked_by_torch():
    return list(DataLoader(Rows(), batch_size=4, collate_fn=torch.stack))


@scenario
def rows_stacked_lazily():
    loader = DataLoader(Rows(), batch_size=4, collate_fn=lazy_stack)
    first = next(iter(loader))
    return type(first).__name__, first.batch_size, first["x"]


@scenario
def rows_collated_by_the_package():
    return list(DataLoader(Rows(4), batch_size=2, collate_fn=tensordict.collate))


@scenario
def a_batch_at_once():
    loader = DataLoader(Batched(), batch_size=2, collate_fn=same)
    return list(loader)


@scenario
def the_last_batch_is_dropped():
    loader = DataLoader(rows(), batch_size=4, collate_fn=same, drop_last=True)
    return [len(batch) for batch in loader], len(loader)


@scenario
def shuffled_by_a_generator():
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(Rows(), batch_size=3, shuffle=True, generator=generator)
    return [batch["y"] for batch in loader]


@scenario
def a_random_sampler():
    sampler = RandomSampler(rows(), replacement=True, num_samples=5)
    loader = DataLoader(rows(), batch_size=5, sampler=sampler, collate_fn=torch.stack)
    return next(iter(loader)).batch_size


@scenario
def a_weighted_sampler():
    sampler = WeightedRandomSampler([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], num_samples=3)
    return list(DataLoader(Rows(), sampler=sampler, batch_size=3))


@scenario
def a_stream():
    return list(DataLoader(Stream(), batch_size=3))


@scenario
def a_stream_without_batches():
    return list(DataLoader(Stream(), batch_size=None))


@scenario
def rows_by_a_worker():
    return list(DataLoader(Rows(4), batch_size=2, num_workers=1))


@scenario
def text_by_a_worker():
    loader = DataLoader(Texts(), batch_size=2, num_workers=1, collate_fn=torch.stack)
    return [batch["text"] for batch in loader], [batch["x"] for batch in loader]


@scenario
def text_with_the_default_collate():
    first = next(iter(DataLoader(Texts(), batch_size=2)))
    return first["text"], first["x"], first.batch_size


@scenario
def tensorclasses_with_the_default_collate():
    samples = [Sample(image=torch.ones(2) * i, label=i, name=str(i)) for i in range(4)]
    first = next(iter(DataLoader(samples, batch_size=2)))
    return type(first) is Sample, first.image, first.name, first.batch_size


@scenario
def default_collate_of_collections():
    return default_collate([Rows()[0], Rows()[1]])


@scenario
def default_collate_of_collections_in_other_containers():
    item = {"td": Rows()[1], "n": 3, "more": [torch.ones(1), Rows()[2]]}
    return default_collate([item, item])


@scenario
def default_collate_of_ragged_collections():
    items = [TensorDict(x=torch.ones(2)), TensorDict(x=torch.ones(3))]
    return default_collate(items).batch_size


@scenario
def default_collate_of_other_keys():
    return default_collate([TensorDict(x=torch.ones(2)), TensorDict(y=torch.ones(2))])


@scenario
def collate_of_the_package_with_padding_of_nothing():
    return tensordict.collate([Rows()[0], Rows()[1]]), tensordict.collate([rows()[:2]])


@scenario
def a_subset_and_parts():
    parts = random_split(Rows(), [4, 2], torch.Generator().manual_seed(0))
    subset = Subset(rows(), [1, 3])
    return [len(part) for part in parts], subset[1], len(subset)


@scenario
def datasets_joined():
    joined = ConcatDataset([Rows(2), Rows(3)])
    return len(joined), joined[3], next(iter(DataLoader(joined, batch_size=5)))


@scenario
def datasets_side_by_side():
    stacked = StackDataset(td=Rows(3), x=TensorDataset(torch.arange(3)))
    return next(iter(DataLoader(stacked, batch_size=3)))


@scenario
def a_mapped_collection_as_the_dataset(tmp_path):
    rows().memmap(tmp_path / "save")
    data = TensorDict.load_memmap(tmp_path / "save")
    loader = DataLoader(data, batch_size=2, collate_fn=torch.stack, num_workers=1)
    return [batch["n", "y"] for batch in loader]


@scenario
def an_epoch_of_training():
    torch.manual_seed(0)
    data = TensorDict(x=torch.randn(8, 2), y=torch.zeros(8, 1), batch_size=[8])
    module = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for batch in DataLoader(data, batch_size=4, collate_fn=torch.stack):
            loss = (module(batch["x"]) - batch["y"]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return len(losses), losses[-1] < losses[0]


@scenario
def pinning_where_there_is_no_device():
    if torch.cuda.is_available():
        return True
    return rows().is_pinned() if hasattr(TensorDict, "is_pinned") else False


@scenario
def moved_to_the_device_in_the_loop():
    loader = DataLoader(rows(), batch_size=3, collate_fn=torch.stack)
    return [batch.to("cpu", non_blocking=True).device for batch in loader]


@scenario
def rows_iterated():
    td = rows()
    return [row["n", "y"].item() for row in td], [row.batch_size for row in td[:1]]


# Pytrees -------------------------------------------------------------------------------


@scenario
def a_tree_flattened_and_restored():
    td = rows()
    leaves, spec = pytree.tree_flatten(td)
    return leaves, pytree.tree_unflatten([leaf + 1 for leaf in leaves], spec)


@scenario
def a_tree_mapped():
    mixed = {"td": rows(), "other": [torch.ones(2)]}
    return pytree.tree_map(lambda x: x * 2, mixed)


@scenario
def a_tree_with_paths():
    pairs, _ = pytree.tree_flatten_with_path(rows())
    return [pytree.keystr(path) for path, _ in pairs]


@scenario
def a_tree_of_a_tensorclass():
    sample = Sample(image=torch.ones(2), label=torch.tensor(1), name="x")
    mapped = pytree.tree_map(
        lambda x: x + 1 if isinstance(x, torch.Tensor) else x, sample
    )
    return mapped.image, mapped.name, type(mapped) is Sample


@scenario
def a_tree_of_a_lazy_stack():
    stack = lazy_stack([Rows()[0], Rows()[1]])
    mapped = pytree.tree_map(lambda x: x + 1, stack)
    return type(mapped).__name__, mapped["x"]


@scenario
def a_tree_with_text():
    td = TensorDict(x=torch.ones(2), text="hello")
    leaves, spec = pytree.tree_flatten(td)
    again = pytree.tree_unflatten(leaves, spec)
    return len(leaves), again["text"], again["x"]


@scenario
def a_tree_keeps_names_and_device():
    td = TensorDict(x=torch.ones(2), batch_size=[2], names=["time"], device="cpu")
    mapped = pytree.tree_map(lambda x: x + 1, td)
    return mapped.names, mapped.device, mapped.is_locked


@scenario
def a_tree_of_changed_shapes():
    td = rows()
    mapped = pytree.tree_map(lambda x: x[0], td)
    return mapped["x"].shape, mapped.batch_size


@scenario
def from_a_tree():
    tree = OrderedDict(a=[torch.ones(1), torch.zeros(1)], b=(torch.ones(2),))
    td = TensorDict.from_pytree(tree)
    return td, pytree.tree_map(lambda x: x.shape, td.to_pytree())


@scenario
def leaves_of_params():
    params = TensorDictParams(TensorDict(w=torch.ones(2)))
    leaves = pytree.tree_leaves(params)
    return len(leaves), type(leaves[0]).__name__


@scenario
def values_that_are_no_tensors_in_a_batch():
    items = [
        TensorDict(x=torch.ones(1), info=NonTensorData({"k": i})) for i in range(2)
    ]
    batch = next(iter(DataLoader(items, batch_size=2, collate_fn=torch.stack)))
    return batch["info"], batch[1]["info"]
