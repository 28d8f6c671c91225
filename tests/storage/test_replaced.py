"""A save that another takes the place of while it is loaded: one or the other, no mixture."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    _rust,
    tensorclass,
)
from tensordict.storage import paths


@tensorclass
class Sample:
    x: torch.Tensor
    label: str


def dense(number: int) -> TensorDict:
    value = torch.full((2, 3), number)
    return TensorDict(a=value, n=TensorDict(b=value + 0.5, batch_size=[2, 3]))


def stack(number: int) -> LazyStackedTensorDict:
    members = [
        TensorDict(x=torch.full((size,), number), n=TensorDict(y=torch.tensor(number)))
        for size in (2, 3, 4)
    ]
    return LazyStackedTensorDict(*members)


def classes(number: int) -> TensorDict:
    sample = Sample(torch.full((2,), number), str(number), batch_size=[2])
    return TensorDict(first=sample, n=TensorDict(second=sample.clone()))


def values(number: int) -> TensorDict:
    column = NonTensorStack(*(NonTensorData((number, at)) for at in range(2)))
    return TensorDict(
        a=NonTensorData({"number": number}),
        b=column,
        t=torch.full((2,), number),
        batch_size=[2],
    )


def part(number: int):
    return TensorDict(a=torch.full((4,), number), batch_size=[4])._get_sub_tensordict(
        slice(2)
    )


def nested(number: int) -> TensorDict:
    components = [torch.full((size,), float(number)) for size in (1, 2)]
    return TensorDict(a=torch.nested.nested_tensor(components), l=stack(number))


KINDS = [dense, stack, classes, values, part, nested]


class ReplacedAt:
    """An opened save that is replaced before the call of a number."""

    def __init__(self, save, calls, at, replace):
        self._save, self._calls, self._at, self._replace = save, calls, at, replace

    def __getattr__(self, name):
        if name in ("has", "read", "load_tree", "read_into"):
            if next(self._calls) == self._at:
                self._replace()
        return getattr(self._save, name)


def numbers(value) -> set[float]:
    """The whole parts of all numbers that a collection holds."""
    if isinstance(value, torch.Tensor):
        pieces = value.unbind() if value.is_nested else [value]
        flat = [number for piece in pieces for number in piece.flatten().tolist()]
        return {float(number // 1) for number in flat}
    if isinstance(value, NonTensorStack):
        return {float(number) for number, _ in value.tolist()}
    if isinstance(value, NonTensorData):
        data = value.data
        return {float(data["number"] if isinstance(data, dict) else data)}
    if isinstance(value, LazyStackedTensorDict):
        return set().union(*map(numbers, value.tensordicts))
    return set().union(*map(numbers, value.values()))


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("how", ["mapped", "read", "out"])
def test_a_load_is_of_one_save(make, how, tmp_path, monkeypatch):
    path = tmp_path / "save"
    opened = paths._open
    for at in count():
        make(1).save(path)
        calls = count()

        def replaced(prefix, mode, calls=calls, at=at):
            save = opened(prefix, mode)
            return ReplacedAt(save, calls, at, lambda: make(2).save(path))

        monkeypatch.setattr(paths, "_open", replaced)
        if how == "out":
            loaded = type(make(0)).load_memmap(path, out=make(0))
        elif how == "read":
            loaded = type(make(0)).load_memmap(path, mode="r")
        else:
            loaded = type(make(0)).load_memmap(path)
        monkeypatch.setattr(paths, "_open", opened)
        found = numbers(loaded)
        assert len(found) == 1, (at, found)
        if next(calls) <= at:
            # Nothing was replaced: every call had its turn.
            assert found == {1.0}
            break
    assert at > 0


def test_a_verified_load_is_of_the_save_that_was_verified(tmp_path, monkeypatch):
    path = tmp_path / "save"
    dense(1).save(path)
    opened = paths._open
    replaced = []

    def replace_once(prefix, mode):
        save = opened(prefix, mode)
        if not replaced:
            replaced.append(True)
            dense(2).save(path)
        return save

    monkeypatch.setattr(paths, "_open", replace_once)
    assert numbers(TensorDict.load(path, verify=True)) == {2.0}


def test_a_stack_without_a_count_is_not_cut_by_a_deletion(tmp_path, monkeypatch):
    path = tmp_path / "save"
    stack(1).save(path)
    meta = path / "meta.json"
    meta.write_text(meta.read_text().replace(', "_num_members": 3', ""))
    opened = paths._open
    replaced = []

    def replace_once(prefix, mode):
        save = opened(prefix, mode)
        if not replaced:
            # A save takes the place of this one, which is deleted in part so far.
            replaced.append(True)
            old = path.rename(tmp_path / "old")
            stack(2).save(path)
            for file in (old / "2").rglob("*"):
                if file.is_file():
                    file.unlink()
        return save

    monkeypatch.setattr(paths, "_open", replace_once)
    loaded = LazyStackedTensorDict.load_memmap(path)
    assert len(loaded) == 3
    assert numbers(loaded.tensordicts[2]) == {2.0}


def test_a_save_that_never_stays_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "save"
    stack(1).save(path)

    class Gone:
        def __init__(self, save):
            self._save = save

        def __getattr__(self, name):
            return getattr(self._save, name)

        def was_replaced(self, is_read):
            return True

    opened = paths._open
    monkeypatch.setattr(paths, "_MAX_ATTEMPTS", 3)
    monkeypatch.setattr(paths, "_open", lambda *how: Gone(opened(*how)))
    with pytest.raises(RuntimeError, match="replaced faster than it can be loaded"):
        TensorDict.load(path)


def test_what_is_missing_stays_an_error(tmp_path):
    path = tmp_path / "save"
    stack(1).save(path)
    (path / "1" / "x.memmap").unlink()
    with pytest.raises(FileNotFoundError, match="x.memmap"):
        LazyStackedTensorDict.load_memmap(path)
    directory = _rust.Directory(str(path))
    assert directory.is_current()
    assert not directory.was_replaced(False)
