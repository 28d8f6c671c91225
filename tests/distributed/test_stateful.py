"""Collections in ``torch.distributed.checkpoint``: values, in the background, sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful

from collections_of_ranks import COLLECTIONS, state
from tensordict import NonTensorData, TensorDict
from tensordict.checkpoint.dcp import CollectionState, Reader, Writer

if TYPE_CHECKING:
    from pathlib import Path

    from ranks import Ranks

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of single processes


def _save(made: Any, path: Path, writer: str) -> None:
    if writer == "torch":
        dcp.save(made, checkpoint_id=path)
    elif writer == "ours":
        dcp.save(made, storage_writer=Writer(path))
    elif writer == "later":
        dcp.async_save(made, checkpoint_id=path).result()
    else:
        dcp.async_save(made, storage_writer=Writer(path)).result()


def _load(into: Any, path: Path, writer: str) -> None:
    if writer in ("torch", "later"):
        dcp.load(into, checkpoint_id=path)
    else:
        dcp.load(into, storage_reader=Reader(path))


KINDS = sorted(COLLECTIONS.keys() - {"one element", "unbatched"})


@pytest.mark.parametrize("name", KINDS)
def test_collections_of_every_kind_come_back(name: str, tmp_path: Path) -> None:
    td, other = COLLECTIONS[name](1), COLLECTIONS[name](2)
    _save({"td": CollectionState(td)}, tmp_path, "ours")
    _load({"td": CollectionState(other)}, tmp_path, "ours")
    assert state(other) == state(td)


@pytest.mark.parametrize("writer", ["torch", "ours", "later", "ours later"])
def test_values_are_kept_by_every_writer(writer: str, tmp_path: Path) -> None:
    if "later" in writer and not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    td = COLLECTIONS["texts"](1)
    td["more"] = NonTensorData({(1, 2): b"bytes"})
    other = COLLECTIONS["texts"](2)
    other["more"] = NonTensorData(None)
    leaf = other["x"]
    _save({"td": CollectionState(td)}, tmp_path, writer)
    _load({"td": CollectionState(other)}, tmp_path, writer)
    assert state(other) == state(td)
    assert other["x"] is leaf


def test_it_is_a_stateful() -> None:
    assert isinstance(CollectionState(TensorDict()), Stateful)


def test_keys_with_points_are_told_apart(tmp_path: Path) -> None:
    def make(value: float) -> TensorDict:
        one = torch.full((1,), value)
        return TensorDict({"a.b": one, "a": {"b": one + 1}})

    other = make(5)
    _save({"td": CollectionState(make(1))}, tmp_path, "ours")
    _load({"td": CollectionState(other)}, tmp_path, "ours")
    assert state(other) == state(make(1))


def test_a_value_that_can_only_be_pickled_is_refused_by_its_key(tmp_path: Path) -> None:
    td = TensorDict(n={"v": NonTensorData(object())})
    with pytest.raises(Exception, match=r"\('n', 'v'\)"):
        _save({"td": CollectionState(td)}, tmp_path, "ours")


def _sharded(rank: int, path: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(12.0).view(6, 2)
    td = TensorDict(w=distribute_tensor(whole, mesh, [Shard(0)]), n="of both")
    dcp.save({"td": CollectionState(td)}, storage_writer=Writer(path))
    found = []
    for placement in (Shard(0), Shard(1), Replicate()):
        empty = distribute_tensor(torch.zeros(6, 2), mesh, [placement])
        other = TensorDict(w=empty, n="")
        dcp.load({"td": CollectionState(other)}, storage_reader=Reader(path))
        loaded = other["w"]
        assert loaded.placements == (placement,)
        assert other["n"] == "of both"
        found.append(loaded.full_tensor().tolist())
    # Leaf by leaf each rank sends what it has.
    if rank == 0:
        td.send(dst=1)
        return found
    td.recv(src=0)
    found.append(td["w"].to_local().tolist())
    return found


def test_sharded_leaves_are_loaded_with_other_placements(
    pair: Ranks, tmp_path: Path
) -> None:
    whole = torch.arange(12.0).view(6, 2).tolist()
    first, second = pair.all(_sharded, str(tmp_path / "step"))
    assert first == [whole] * 3
    assert second == [whole] * 3 + [whole[:3]]
