"""A directory save in a store is verified without a copy on this machine."""

import pytest
import torch

from tensordict import TensorDict, cli
from tensordict.data import DatasetWriter
from tensordict.storage.remote import copying, place_of

ITEMS = 700_000  # nearly three blocks, of which the last is not full


@pytest.fixture(params=["plain", "manifest"])
def place(request, remote):
    td = TensorDict(
        a=torch.arange(ITEMS, dtype=torch.float32),
        n=TensorDict(b=torch.arange(3), e=torch.zeros(0)),
        s="text",
    )
    td.memmap(remote)
    if request.param == "manifest":
        td.memmap(remote)
    return place_of(remote)


@pytest.fixture
def verified(capsys, monkeypatch):
    def run(url):
        status = cli.main(["verify", str(url)])
        said = capsys.readouterr()
        return status, said.out + said.err

    def never(*args, **kwargs):
        raise AssertionError("the save was copied")

    monkeypatch.setattr(copying, "bring", never)
    return run


def change(place, end, content):
    name = next(found.name for found in place.list() if found.name.endswith(end))
    if content is None:
        place.delete([name])
    else:
        place.put(name, content(bytearray(place.get(name))))


def with_a_bit(at):
    def flip(content):
        content[at] ^= 1
        return bytes(content)

    return flip


def test_a_good_save_is_read_and_not_copied(place, verified):
    status, said = verified(place)
    assert status == 0
    assert f"{place}: tree, ok (every byte: 5 good)" in said


@pytest.mark.parametrize(
    ("at", "found"),
    [(0, "bytes 0 to 1048575"), (2_100_000, "bytes 2097152 to 2799999")],
)
def test_a_changed_bit_is_found_with_its_block(at, found, place, verified):
    change(place, "a.memmap", with_a_bit(at))
    status, said = verified(place)
    assert status == 1
    assert f"a.memmap' is damaged: {found} differ" in said
    assert "1 damaged" in said
    assert str(place) in said
    assert "/tmp/" not in said


def test_a_cut_or_missing_object_is_damage(place, verified):
    change(place, "a.memmap", lambda content: bytes(content[:-1]))
    status, said = verified(place)
    assert status == 1
    assert "'a'" in said or "a.memmap" in said
    change(place, "a.memmap", None)
    status, said = verified(place)
    assert status == 1
    assert "missing" in said


def test_metadata_that_cannot_be_read_is_damage(place, capsys):
    change(place, "s/meta.json", lambda content: bytes(content[:-1]))
    assert cli.main(["verify", str(place)]) == 1
    assert "s/meta.json" in capsys.readouterr().out


def test_a_dataset_without_checksums_is_not_read(remote, verified):
    with DatasetWriter(remote) as writer:
        writer.extend(TensorDict(x=torch.zeros(5), batch_size=[5]))
    status, said = verified(remote)
    assert status == 0
    assert "the save has no checksums" in said
