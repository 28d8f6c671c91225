"""Tensors of other devices are copied while others are written.

There need not be another device: a class of tensors that say that they are elsewhere
stands in for one, whose copies to the CPU the tests watch and hold up.
"""

import threading
from unittest import mock

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import tensordict
from tensordict import LazyStackedTensorDict, TensorDict, to_safetensors
from tensordict.storage import devices, leaves, safetensors_levels, verify
from tensordict.storage.devices import DeviceReader

SAVES = {
    "x": lambda td, path: td.memmap(path, num_threads=1),
    "x.tdz": lambda td, path: td.memmap(path, num_threads=1),
    "packed.tdz": lambda td, path: td.memmap(
        path, num_threads=1, compression="deflate"
    ),
    "x.safetensors": lambda td, path: to_safetensors(td, path, num_threads=1),
    "x.consolidated": lambda td, path: td.consolidate(path),
}
PIECE = devices.PIECE_BYTES


class Elsewhere(torch.Tensor):
    """A tensor of a device that there is not.

    Args:
        values: what it has.
        copying: called when it is copied to the CPU.
    """

    @staticmethod
    def __new__(cls, values, copying=None):
        made = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, dtype=values.dtype, device="cuda:0"
        )
        made.values, made.copying = values, copying or torch.clone
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return Elsewhere(args[0].values, args[0].copying)
        assert func is torch.ops.aten._to_copy.default
        if kwargs["device"].type == "meta":
            return args[0].values.to("meta")
        return args[0].copying(args[0].values)


def save(td, path):
    SAVES[path.name](td, path)


def read(path):
    return tensordict.load(path, verify=path.name.startswith("x"))


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


class Watched:
    """Leaves whose copies end when that of the next one has begun.

    Args:
        count: how many.
        items: how many numbers each has.
    """

    def __init__(self, count, items):
        self.begun = [threading.Event() for _ in range(count)]
        self.begun.append(threading.Event())
        self.begun[count].set()
        self.storages = []
        self.most_alive = 0
        self.has_waited_in_vain = False
        self.td = TensorDict(
            {
                f"{number:02}": Elsewhere(torch.full((items,), number), self.copied)
                for number in range(count)
            }
        )

    def copied(self, values):
        number = int(values[0])
        self.begun[number].set()
        if not self.begun[number + 1].wait(20):
            self.has_waited_in_vain = True
        made = values.clone()
        self.storages.append(StorageWeakRef(made.untyped_storage()))
        alive = sum(not storage.expired() for storage in self.storages)
        self.most_alive = max(self.most_alive, alive)
        return made


# Small ones are put together before they are written, large ones written from where they are.
@pytest.mark.parametrize("items", [16, 1 << 18])
@pytest.mark.parametrize("name", ["x", "x.tdz", "x.safetensors", "x.consolidated"])
def test_a_leaf_is_copied_while_the_one_before_is_written(name, items, tmp_path):
    watched = Watched(12, items)
    save(watched.td, tmp_path / name)
    assert not watched.has_waited_in_vain
    # One that is written, one that is there for it, one that is about to be dropped.
    assert watched.most_alive <= 3
    loaded = read(tmp_path / name)
    for number in range(12):
        assert (loaded[f"{number:02}"] == number).all()
    assert {found.outcome for found in verify(tmp_path / name).findings} == {"good"}


@pytest.mark.parametrize("name", SAVES)
@pytest.mark.parametrize("error", [RuntimeError("lost"), KeyboardInterrupt()])
def test_a_copy_that_fails_ends_the_save(name, error, tmp_path):
    def fail(values):
        raise error

    path = tmp_path / name
    save(TensorDict(a=torch.zeros(3)), path)
    sound = {str(number): Elsewhere(torch.ones(9)) for number in range(5)}
    td = TensorDict(sound | {"c": Elsewhere(torch.ones(1 << 18), fail)} | sound)
    before = threading.enumerate()
    with pytest.raises(type(error)) as raised:
        save(td, path)
    if isinstance(error, RuntimeError):
        assert raised.value is error
        (note,) = error.__notes__
        assert "'c'" in note or "c.memmap" in note
        assert str(path) in note or "c.memmap" in note
        del error.__notes__
    assert names_in(tmp_path) == [name]
    assert (read(path)["a"] == torch.zeros(3)).all()
    # The copy of the next leaf may have been on its way.
    for thread in set(threading.enumerate()) - set(before):
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("name", ["x", "x.tdz"])
def test_a_save_is_cancelled_while_a_leaf_is_copied(name, tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def copied(values):
        begun.set()
        assert go_on.wait(20)
        return values.clone()

    path = tmp_path / name
    save(TensorDict(a=torch.zeros(3)), path)
    td = TensorDict({str(number): Elsewhere(torch.ones(9), copied) for number in "ab"})
    future = td.memmap(path, return_early=True, num_threads=2)
    assert begun.wait(20)
    assert future.cancel()
    go_on.set()
    with pytest.raises(RuntimeError, match="cancelled"):
        future.result()
    assert names_in(tmp_path) == [name]
    assert list(read(path).keys()) == ["a"]


def test_a_save_in_the_background_is_of_the_entries_at_the_call(tmp_path):
    go_on = threading.Event()

    def copied(values):
        assert go_on.wait(20)
        return values.clone()

    td = TensorDict(a=Elsewhere(torch.ones(9), copied), b=Elsewhere(torch.ones(9)))
    future = td.memmap(tmp_path / "x", return_early=True, num_threads=2)
    td["b"] = Elsewhere(torch.zeros(9))
    go_on.set()
    assert (future.result()["b"] == 1).all()
    assert (read(tmp_path / "x")["b"] == 1).all()


@pytest.mark.parametrize("name", SAVES)
def test_a_large_leaf_is_written_in_pieces(name, tmp_path):
    # Python gives the bytes of these dtypes on the CPU, too.
    values = torch.arange(3 * PIECE + 5) % 100
    td = TensorDict(
        a=values.to(torch.float8_e4m3fn),
        b=values[: 2 * PIECE].view(2, -1).T.to(torch.float8_e5m2),
    )
    with mock.patch.object(leaves, "is_elsewhere", return_value=True):
        save(td, tmp_path / name)
    loaded = read(tmp_path / name)
    for key in td.keys():
        assert torch.equal(loaded[key].view(torch.uint8), td[key].view(torch.uint8))


@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_lazy_stack_is_written_to_safetensors(is_mixed, tmp_path):
    values = [torch.arange(6.0).view(3, 2) + number for number in range(2)]
    second = values[1] if is_mixed else Elsewhere(values[1])
    members = [TensorDict(a=Elsewhere(values[0])), TensorDict(a=second)]
    with mock.patch.object(safetensors_levels, "STREAMED_FROM", 0):
        to_safetensors(LazyStackedTensorDict(*members), tmp_path / "x.safetensors")
    loaded = tensordict.load(tmp_path / "x.safetensors")
    assert torch.equal(loaded["a"], torch.stack(values))


# Results of readers --------------------------------------------------------------------


def bytes_of(reader):
    pieces = reader.pieces()
    found = []
    while (piece := pieces.next_piece()) is not None:
        assert piece.numel() <= 64
        found.append(bytes(piece.tolist()))
    assert sum(map(len, found)) == reader.num_bytes
    return b"".join(found)


def plain_bytes(tensor):
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).tolist())


NUMBERS = torch.arange(210.0).view(5, 6, 7)

TENSORS = {
    "contiguous": NUMBERS,
    "transposed": NUMBERS.transpose(0, 2),
    "narrow": NUMBERS[:, 1:3, ::2],
    "expanded": NUMBERS[:1].expand(9, 6, 7),
    "wide rows": NUMBERS.view(10, 21).T[:, ::2].expand(3, 21, 5),
    "conjugated": torch.complex(NUMBERS, NUMBERS + 1).conj(),
    "negated": torch.complex(NUMBERS, NUMBERS).conj().imag,
    "without dims": torch.tensor(3, dtype=torch.int16),
    "empty": torch.ones(3, 0, 2),
    "bool": NUMBERS > 9,
    "float8": NUMBERS.to(torch.float8_e5m2).transpose(0, 1),
    "complex128": torch.complex(NUMBERS, NUMBERS).to(torch.complex128),
}


@pytest.mark.parametrize("name", TENSORS)
def test_pieces_are_the_bytes_in_order(name):
    with mock.patch.object(devices, "PIECE_BYTES", 64):
        assert bytes_of(DeviceReader([TENSORS[name]])) == plain_bytes(TENSORS[name])


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_pieces_of_a_stack_are_its_bytes_in_order(dim):
    parts = [NUMBERS[:, :3], -NUMBERS[:, :3]]
    with mock.patch.object(devices, "PIECE_BYTES", 64):
        found = bytes_of(DeviceReader(parts, dim))
    assert found == plain_bytes(torch.stack(parts, dim))


def test_a_piece_comes_while_the_one_before_is_used():
    log, buffers = [], set()

    class Copy:
        def __init__(self, part, buffer):
            log.append(("begun", int(part[0])))
            self.buffer = torch.empty(64) if buffer is None else buffer
            self.part = part
            buffers.add(self.buffer.data_ptr())

        def done(self):
            log.append(("done", int(self.part[0])))
            return self.buffer

    parts = iter(torch.arange(4).unbind())
    pieces = devices._Pieces((part[None] for part in parts), Copy)
    assert log == [("begun", 0)]
    while pieces.next_piece() is not None:
        log.append("used")
    assert log == [
        *[("begun", 0), ("begun", 1), ("done", 0), "used"],
        *[("begun", 2), ("done", 1), "used"],
        *[("begun", 3), ("done", 2), "used"],
        *[("done", 3), "used"],
    ]
    assert len(buffers) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no such device")
@pytest.mark.parametrize("name", SAVES)
def test_tensors_of_cuda(name, tmp_path):
    base = torch.randn(1024, 4096, dtype=torch.complex64)
    values = {
        "plain": base,
        "turned": base.T,
        "conjugated": base.conj(),
        "negated": base.conj().imag,
        "small": torch.arange(3),
        "bool": base.real > 0,
    }
    td = TensorDict({key: value.cuda() for key, value in values.items()})
    with torch.cuda.stream(torch.cuda.Stream()):
        # Work that is not done yet when the save begins.
        torch.cuda._sleep(100_000_000)
        td["late"] = td["plain"] * 2
        save(td, tmp_path / name)
    loaded = read(tmp_path / name)
    for key, value in values.items():
        assert torch.equal(torch.as_tensor(loaded[key]), value.resolve_conj())
    assert torch.equal(torch.as_tensor(loaded["late"]), base * 2)
