"""Several collections as one source: shares, order, and going on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from tensordict import TensorDict, lazy_stack, tensorclass
from tensordict.data import BatchLoader, Mixture


@tensorclass
class Sample:
    x: torch.Tensor


def source(name: int, count: int) -> TensorDict:
    return TensorDict(
        x=torch.arange(count), name=torch.full((count,), name), batch_size=[count]
    )


def pairs(loader: Any) -> list[tuple[int, int]]:
    return [
        pair
        for batch in loader
        for pair in zip(batch["name"].tolist(), batch["x"].tolist(), strict=True)
    ]


def test_each_collection_has_its_share_everywhere() -> None:
    mixture = Mixture([source(0, 100), source(1, 5000), source(2, 9)], [2, 5, 1])
    loader = BatchLoader(mixture, 64, shuffle=True, seed=0)
    found = [name for name, _ in pairs(loader)]
    assert len(found) == 5109 == len(mixture)
    for start in range(0, 4096, 1024):
        counts = Counter(found[start : start + 1024])
        assert counts == {0: 256, 1: 640, 2: 128}
    sizes = [int((batch["name"] == 0).sum()) for batch in loader]
    assert 5 < min(sizes[:-1]) < max(sizes[:-1]) < 30


def test_rows_come_once_before_they_come_again() -> None:
    mixture = Mixture([source(0, 10), source(1, 500)], [1, 3], num_rows=200)
    found = pairs(BatchLoader(mixture, 16, shuffle=True, seed=0))
    few = [row for name, row in found if name == 0]
    many = [row for name, row in found if name == 1]
    for start in range(0, len(few) - 9, 10):
        assert sorted(few[start : start + 10]) != few[start : start + 10]
    assert len(set(many)) == len(many)
    counts = Counter(few)
    assert max(counts.values()) - min(counts.values()) <= 2


def test_without_a_shuffle_rows_come_in_turn() -> None:
    mixture = Mixture([source(0, 10), source(1, 50)])
    found = pairs(BatchLoader(mixture, 16))
    assert [row for name, row in found if name == 0][:3] == [0, 1, 2]
    assert sorted(row for name, row in found if name == 1) == list(range(50))


def test_a_collection_without_weight_is_left_out() -> None:
    mixture = Mixture([source(0, 10), source(1, 50)], [0, 1], num_rows=40)
    assert {name for name, _ in pairs(BatchLoader(mixture, 16))} == {1}


def test_weights_that_change_hold_from_the_next_epoch_on() -> None:
    mixture = Mixture([source(0, 10), source(1, 50)], [0, 1], num_rows=40)
    loader = BatchLoader(mixture, 8, shuffle=True, seed=0)
    batches = iter(loader)
    next(batches)
    mixture.weights = [1, 0]
    assert {name for name, _ in pairs(batches)} == {1}
    assert {name for name, _ in pairs(loader)} == {0}
    with pytest.raises(ValueError, match="2 collections"):
        mixture.weights = [1.0]
    assert mixture.weights == [1.0, 0.0]


def test_weights_that_change_in_mid_epoch_are_not_those_of_its_state() -> None:
    def made() -> BatchLoader:
        mixture = Mixture([source(0, 10), source(1, 50)], [1, 3], num_rows=40)
        return BatchLoader(mixture, 8, shuffle=True, seed=0)

    loader = made()
    batches = iter(loader)
    next(batches)
    loader.source.weights = [3, 1]  # type: ignore[attr-defined]
    other = made()
    other.load_state_dict(loader.state_dict())
    assert pairs(iter(other)) == pairs(batches)
    assert pairs(other) == pairs(loader)


@pytest.mark.parametrize("kind", ["texts", "lazy", "tensorclass", "threads", "keys"])
def test_collections_of_every_kind(kind: str) -> None:
    first, second = source(0, 20), source(1, 20)
    options: dict[str, Any] = {}
    sources: list[Any] = [first, second]
    if kind == "texts":
        for td in sources:
            td["text"] = [str(row) for row in range(20)]
    elif kind == "lazy":
        sources = [lazy_stack(list(td.unbind(0))) for td in sources]
    elif kind == "tensorclass":
        sources = [Sample(td["x"], batch_size=[20]) for td in sources]
    elif kind == "threads":
        options = {"workers": 2}
    else:
        options = {"keys": ["x"]}
    batches = list(BatchLoader(Mixture(sources), 8, **options))
    if kind == "tensorclass":
        assert all(isinstance(batch, Sample) for batch in batches)
        found = [row for batch in batches for row in batch.x.tolist()]
    else:
        found = [row for batch in batches for row in batch["x"].tolist()]
    assert sorted(found) == sorted([*range(20), *range(20)])
    if kind == "texts":
        assert batches[0]["text"] == [str(row) for row in batches[0]["x"].tolist()]
    if kind == "keys":
        assert set(batches[0].keys()) == {"x"}


def test_wrong_mixtures_are_errors() -> None:
    with pytest.raises(ValueError, match="not empty"):
        Mixture([])
    with pytest.raises(ValueError, match=r"\[3, 0\] rows"):
        Mixture([source(0, 3), source(0, 0)])
    for weights in ([1], [1, -1], [0, 0], [float("nan"), 1]):
        with pytest.raises(ValueError, match="weight"):
            Mixture([source(0, 3), source(0, 3)], weights)
    other = TensorDict(z=torch.arange(3), batch_size=[3])
    with pytest.raises((KeyError, RuntimeError)):
        list(BatchLoader(Mixture([source(0, 3), other]), 4))
