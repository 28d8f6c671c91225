"""torch's ``DataLoader`` over a collection: one gather a batch, in workers too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tensordict import TensorDict, tensorclass
from tensordict.data import BatchLoader, DatasetWriter

TIMEOUT_S = 120


@tensorclass
class Sample:
    x: torch.Tensor
    label: torch.Tensor


class Counted(TensorDict):
    """A collection that notes how it is read."""

    reads: list[Any] = []

    def __getitems__(self, rows: Any) -> Any:
        self.reads.append(rows)
        return super().__getitems__(rows)


def unchanged(batch: Any) -> Any:
    return batch


def data(num_rows: int = 12) -> TensorDict:
    return TensorDict(
        x=torch.arange(num_rows * 3).view(num_rows, 3),
        rest=TensorDict(label=torch.arange(num_rows), batch_size=[num_rows]),
        batch_size=[num_rows],
    )


def test_a_batch_is_one_read() -> None:
    Counted.reads.clear()
    td = Counted(data().to_dict(), batch_size=[12])
    batches = list(DataLoader(td, batch_size=5))
    assert Counted.reads == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert [batch.batch_size for batch in batches] == [(5,), (5,), (2,)]
    assert (torch.cat(batches) == td).all()


@pytest.mark.parametrize(
    "collate", [{}, {"collate_fn": unchanged}], ids=["default", "unchanged"]
)
@pytest.mark.parametrize("kind", ["in memory", "mapped", "tensorclass"])
def test_forked_workers_read_batches(kind: str, collate: Any, tmp_path: Any) -> None:
    td: Any = data()
    if kind == "mapped":
        td.memmap(tmp_path / "td")
        td = TensorDict.load_memmap(tmp_path / "td")
    elif kind == "tensorclass":
        td = Sample(td["x"], td["rest", "label"], batch_size=[12])
    loader = DataLoader(
        td,
        batch_size=5,
        num_workers=2,
        multiprocessing_context="fork",
        timeout=TIMEOUT_S,
        **collate,
    )
    for _ in range(2):
        batches = list(loader)
        assert all(type(batch) is type(td[:1]) for batch in batches)
        assert [len(batch) for batch in batches] == [5, 5, 2]
        assert (torch.cat(batches) == td).all()


def test_a_spawned_worker_reads_batches_and_uses_a_loader(tmp_path: Any) -> None:
    """One worker is started for all that is asked here: it takes seconds to import torch."""
    path = tmp_path / "td"
    with DatasetWriter(path) as writer:
        writer.extend(data())
    td = TensorDict.load_memmap(path)
    loader = DataLoader(
        Both(td, BatchLoader(td, 4, shuffle=True, seed=0)),
        batch_size=4,
        collate_fn=unchanged,
        num_workers=1,
        multiprocessing_context="spawn",
        timeout=TIMEOUT_S,
    )
    expected = [
        batch["rest", "label"] for batch in BatchLoader(td, 4, shuffle=True, seed=0)
    ]
    for at, (batch, order) in enumerate(loader):
        assert (batch == td[4 * at : 4 * at + 4]).all()
        assert torch.equal(order, torch.cat(expected))


class Both:
    """Rows of a collection beside what a loader gives in the same process."""

    def __init__(self, td: Any, loader: BatchLoader) -> None:
        self.td = td
        self.loader = loader

    def __len__(self) -> int:
        return len(self.td)

    def __getitems__(self, rows: list[int]) -> Any:
        self.loader.set_epoch(0)
        order = [batch["rest", "label"] for batch in self.loader]
        return self.td.__getitems__(rows), torch.cat(order)
