"""Loading into memory that is there, and more leaves than the kernel maps files."""

import os
from pathlib import Path

import pytest
import torch

from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictParams,
    lazy_stack,
    load_memmap,
    tensorclass,
)
from tensordict.storage import verify


def make() -> TensorDict:
    nested = TensorDict({"b": torch.arange(3_000_000)}, [])
    small = {f"k{i}": torch.full((3, 2), float(i)) for i in range(200)}
    return TensorDict({"n": nested, "none": torch.zeros(0), **small}, [])


@pytest.mark.parametrize("num_threads", [0, 1, 5])
@pytest.mark.parametrize("checks", [True, False])
def test_tensors_of_out_are_filled(num_threads, checks, tmp_path):
    make().save(tmp_path / "x", checks=checks)
    out = make().apply(torch.zeros_like)
    tensors = {key: out[key] for key in out.keys(True, True)}
    loaded = TensorDict.load_memmap(tmp_path / "x", out=out, num_threads=num_threads)
    assert loaded is out
    saved = make()
    for key, tensor in tensors.items():
        assert torch.equal(tensor, saved[key])
        if tensor.numel():
            assert out[key] is tensor


def test_tensors_that_do_not_fit_are_replaced(tmp_path):
    TensorDict({key: torch.arange(6).view(2, 3) for key in "abcdef"}, []).save(tmp_path)
    shared = torch.zeros(2, 3, dtype=torch.int64)
    gaps = torch.zeros(3, 2, dtype=torch.int64).mT
    out = TensorDict(
        {
            "a": torch.zeros(2, 3),
            "b": torch.zeros(3, 2, dtype=torch.int64),
            "c": gaps,
            "d": shared,
            "e": shared,
            "f": {"x": torch.zeros(2)},
        },
        [],
    )
    TensorDict.load_memmap(tmp_path, out=out)
    for key in "abcdef":
        assert out[key].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert out["d"] is shared
    assert out["e"] is not shared
    assert gaps.eq(0).all()


def test_damage_is_an_error_and_modified_is_not(tmp_path):
    make().save(tmp_path / "x")
    out = make().apply(torch.zeros_like)
    TensorDict.load_memmap(tmp_path / "x")["k0"].fill_(7)
    assert TensorDict.load_memmap(tmp_path / "x", out=out)["k0"].eq(7).all()
    path = tmp_path / "x" / "n" / "b.memmap"
    times = os.stat(path)
    with path.open("r+b") as file:
        file.seek(9_000_000)
        file.write(b"\xff")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if verify(tmp_path / "x").lines("changed or damaged"):
        pytest.skip("the file system does not tell when a mapped file was changed")
    with pytest.raises(
        RuntimeError, match=r"\('n', 'b'\).*is damaged: bytes 8388608 to"
    ):
        TensorDict.load_memmap(tmp_path / "x", out=out)


def test_a_locked_out_stays(tmp_path):
    make().save(tmp_path / "x")
    out = make().apply(torch.zeros_like).lock_()
    with pytest.raises(RuntimeError, match="Cannot modify locked"):
        TensorDict.load_memmap(tmp_path / "x", out=out)
    assert out["k5"].eq(0).all()


def test_links_out_of_the_save_are_refused(tmp_path):
    make().save(tmp_path / "x")
    (tmp_path / "secret").write_bytes(bytes(24))
    leaf = tmp_path / "x" / "k0.memmap"
    leaf.unlink()
    leaf.symlink_to(tmp_path / "secret")
    with pytest.raises(RuntimeError, match="'k0' is a symbolic link that leads out"):
        TensorDict.load_memmap(tmp_path / "x")
    leaf.unlink()
    leaf.symlink_to("k1.memmap")
    assert TensorDict.load_memmap(tmp_path / "x")["k0"].eq(1).all()
    (tmp_path / "x" / "n").rename(tmp_path / "moved")
    (tmp_path / "x" / "n").symlink_to(tmp_path / "moved")
    with pytest.raises(RuntimeError, match="'n' is a symbolic link that leads out"):
        TensorDict.load_memmap(tmp_path / "x")


def test_more_leaves_than_mappings(tmp_path):
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    if limit > 100_000:
        pytest.skip(f"the kernel maps {limit} files: a save of more takes too long")
    count = limit + 100
    td = TensorDict({f"k{i}": torch.full((2,), i) for i in range(count)})
    saved = td.memmap(tmp_path / "x")
    assert saved[f"k{count - 1}"].tolist() == [count - 1] * 2
    del saved
    loaded = TensorDict.load_memmap(tmp_path / "x", mode="r")
    assert all(loaded[f"k{i}"].tolist() == [i, i] for i in range(0, count, 997))
    message = r"mode='r'.*archive \(a path that ends with '.tdz'\)"
    for mode in (None, "r+"):
        with pytest.raises(RuntimeError, match=message):
            TensorDict.load_memmap(tmp_path / "x", mode=mode)


def test_preallocate(tmp_path):
    large = TensorDict({"a": torch.zeros(1).expand(1 << 20)})
    like = large.memmap_like(tmp_path / "x", preallocate=True)
    assert like["a"].eq(0).all()
    assert (tmp_path / "x" / "a.memmap").stat().st_blocks * 512 >= 4 << 20
    huge = TensorDict({"a": torch.zeros(1).expand(1 << 50)})
    with pytest.raises(OSError, match="'a'"):
        huge.memmap_like(tmp_path / "y", preallocate=True)
    assert not (tmp_path / "y" / "a.memmap").exists()


@tensorclass
class Sample:
    x: torch.Tensor
    label: str


def loaded_into(make, tmp_path):
    """A collection at the top and nested, each loaded into one of other values."""
    make(1).save(tmp_path / "top")
    TensorDict(n=make(1)).save(tmp_path / "nested")
    top, outer = make(0), TensorDict(n=make(0))
    nested = outer.get("n")
    assert type(top).load_memmap(tmp_path / "top", out=top) is top
    assert TensorDict.load_memmap(tmp_path / "nested", out=outer) is outer
    assert outer.get("n") is nested
    return top, nested


def test_a_tensorclass_takes_what_is_loaded(tmp_path):
    def make(number):
        return Sample(torch.full((2,), number), str(number), batch_size=[2])

    for sample in loaded_into(make, tmp_path):
        assert (sample.x.tolist(), sample.label) == ([1, 1], "1")


def test_values_take_what_is_loaded(tmp_path):
    for value in loaded_into(NonTensorData, tmp_path):
        assert value.data == 1
    held = NonTensorData(0)
    other = held.clone()
    NonTensorData(1).save(tmp_path / "value")
    NonTensorData.load_memmap(tmp_path / "value", out=held)
    assert (held.data, other.data) == (1, 0)


def test_a_stack_of_values_takes_what_is_loaded(tmp_path):
    def make(number):
        return NonTensorStack(*(NonTensorData((number, at)) for at in range(2)))

    for stack in loaded_into(make, tmp_path):
        assert stack.tolist() == [(1, 0), (1, 1)]


def test_values_take_the_place_of_tensors_and_of_others(tmp_path):
    TensorDict(a=NonTensorData("x"), b=NonTensorStack("x", "y"), batch_size=[2]).save(
        tmp_path
    )
    out = TensorDict(
        a=torch.zeros(2), b=TensorDict(c=torch.zeros(2), batch_size=[2]), batch_size=[2]
    )
    TensorDict.load_memmap(tmp_path, out=out)
    assert (out["a"], out["b"].tolist()) == ("x", ["x", "y"])


def test_a_part_takes_what_is_loaded(tmp_path):
    source = TensorDict(x=torch.zeros(4), batch_size=[4])
    part = source._get_sub_tensordict(slice(2))
    TensorDict(x=torch.ones(2), batch_size=[2]).save(tmp_path)
    assert TensorDict.load_memmap(tmp_path, out=part) is part
    assert source["x"].tolist() == [1, 1, 0, 0]


def test_parameters_stay_and_get_what_is_loaded(tmp_path):
    def make(number):
        weight = torch.nn.Parameter(torch.full((2,), float(number)))
        return TensorDictParams(TensorDict(w=weight))

    params = make(0)
    weight = params["w"]
    make(1).save(tmp_path)
    TensorDict.load_memmap(tmp_path, out=params)
    assert params["w"] is weight
    assert weight.tolist() == [1, 1]
    assert weight.requires_grad


@tensorclass
class Row:
    a: torch.Tensor
    label: str


def _of_kind(kind):
    a = torch.full((3,), 1.25)
    made = {
        "dense": lambda: TensorDict(n={"a": a}),
        "tensorclass": lambda: Row(a=a, label="text", batch_size=[3]),
        "stack": lambda: lazy_stack([TensorDict(a=a), TensorDict(a=a + 0)]),
        "nested stack": lambda: TensorDict(s=lazy_stack([TensorDict(a=a)])),
        "parameters": lambda: TensorDictParams(TensorDict(a=a)),
        "float8": lambda: TensorDict(a=torch.full((8,), 1.25).to(torch.float8_e5m2)),
    }
    return made[kind]()


def _saved_and_damaged(td, layout, folder):
    """A save with another byte in it, under the old time."""
    path = folder / {"archive": "x.tdz", "safetensors": "x.safetensors"}.get(
        layout, "x"
    )
    td.consolidate(path) if layout == "consolidated" else td.memmap(path)
    file = max(path.rglob("a.memmap")) if layout == "tree" else path
    before = file.stat()
    content = file.read_bytes()
    values = b"\x3d" * 8 if b"\x3d" * 8 in content else b"\0\0\xa0\x3f" * 3
    assert values in content
    file.write_bytes(content.replace(values, b"\x40" + values[1:]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    if verify(path).lines("changed or damaged"):
        pytest.skip("the file system does not tell")
    return path


@pytest.mark.parametrize("layout", ["tree", "archive", "safetensors", "consolidated"])
@pytest.mark.parametrize(
    "kind",
    ["dense", "tensorclass", "stack", "nested stack", "parameters", "float8"],
)
def test_damage_does_not_go_to_another_device(kind, layout, tmp_path):
    path = _saved_and_damaged(_of_kind(kind), layout, tmp_path)
    # There need be no such device: the values are looked at before they go there.
    with pytest.raises(RuntimeError, match="is damaged"):
        load_memmap(path, device="cuda")


@pytest.mark.parametrize("layout", ["tree", "archive", "safetensors", "consolidated"])
def test_damage_does_not_go_into_parameters(layout, tmp_path):
    path = _saved_and_damaged(_of_kind("parameters"), layout, tmp_path)
    out = TensorDict(n=TensorDictParams(TensorDict(a=torch.zeros(3))))["n"]
    with pytest.raises(RuntimeError, match="is damaged"):
        load_memmap(path, out=out)
    assert out["a"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", ["tensorclass", "stack", "nested stack"])
def test_what_is_in_classes_and_stacks_is_filled(kind, tmp_path):
    td = _of_kind(kind)
    td.memmap(tmp_path / "x")
    out = _of_kind(kind).zero_()
    leaves = list(out.values(True, True))
    loaded = load_memmap(tmp_path / "x", out=out)
    assert loaded is out
    assert (loaded == td).all()
    if kind == "tensorclass":
        assert out.a is leaves[0]
    path = _saved_and_damaged(td, "tree", tmp_path)
    with pytest.raises(RuntimeError, match="'a'.*is damaged"):
        load_memmap(path, out=_of_kind(kind))


@pytest.mark.parametrize("layout", ["tree", "archive", "safetensors", "consolidated"])
def test_a_member_is_loaded_by_its_number(layout, tmp_path):
    suffix = {"archive": ".tdz", "safetensors": ".safetensors"}.get(layout, "")
    path = tmp_path / f"x{suffix}"
    members = [TensorDict(a=torch.full((2,), float(n))) for n in range(2)]
    td = TensorDict(s=lazy_stack(members))
    td.consolidate(path) if layout == "consolidated" else td.memmap(path)
    assert TensorDict.load(path, subpath=("s", "1"))["a"].tolist() == [1, 1]
    with pytest.raises(ValueError, match="No tensordict found under subpath"):
        TensorDict.load(path, subpath=("s", "2"))
