"""Loads from object stores: they give what was saved, and read no more than is asked for."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import tensordict
from separate_process import check_freshly
from tensordict import NonTensorStack, TensorClass, TensorDict, lazy_stack
from tensordict.containers.remote import RemoteTensorDict
from tensordict.data import DatasetWriter, gather, gather_slices
from tensordict.storage.remote import place_of
from tensordict.storage.remote.tensor import RemoteTensor

ROWS = 20


class Named(TensorClass):
    x: torch.Tensor
    name: str


def data():
    return TensorDict(
        a=torch.arange(2.0 * ROWS).reshape(ROWS, 2),
        half=torch.arange(ROWS).bfloat16(),
        flags=torch.arange(ROWS) % 3 == 0,
        empty=torch.empty(ROWS, 0),
        n=TensorDict(b=torch.arange(ROWS).reshape(ROWS, 1), batch_size=[ROWS, 1]),
        c=Named(torch.rand(ROWS, 3), "a name", batch_size=[ROWS]),
        stack=lazy_stack(
            [TensorDict(q=torch.full((2,), float(i))) for i in range(ROWS)]
        ),
        value="one value",
        batch_size=[ROWS],
    )


def ragged():
    rows = [
        TensorDict(a=torch.arange(n) + 10.0 * n, t="x" * n, d=torch.tensor(n))
        for n in (1, 2, 0, 3, 5)
    ]
    return lazy_stack(rows)


def texts():
    """Make rows of one shape with columns of values, each larger than a file's beginning."""
    return [
        {"x": torch.arange(3) + n, "s": f"{n}" + "text" * 99, "j": {"n": [n] * 99}}
        for n in range(500)
    ]


def upload(path, url):
    """Put a file, or the files of a folder, as a user's other tools would."""
    place, path = place_of(url), Path(path)
    if path.is_file():
        place.put("", path.read_bytes())
    for file in path.rglob("*"):
        if file.is_file():
            place.put(file.relative_to(path).as_posix(), file.read_bytes())


def save_tree(td, path):
    td.memmap(path)
    return path


def save_shards(td, path):
    os.mkdir(path)
    tensordict.to_safetensors(td, f"{path}/m.safetensors", shards=3)
    return path


def save_file(td, path, **how):
    td.save(path, **how)
    return path


def consolidated(td, path):
    td.consolidate(filename=path)
    return path


LAYOUTS = {
    "tree": (save_tree, ""),
    "archive": (lambda td, path: save_file(td, f"{path}.tdz"), ""),
    "compressed": (
        lambda td, path: save_file(td, f"{path}.tdz", compression="deflate"),
        "",
    ),
    "an archive of any name": (lambda td, path: save_file(td, path, archive=True), ""),
    "safetensors": (lambda td, path: save_file(td, f"{path}.safetensors"), ""),
    "consolidated": (consolidated, ""),
    "shards": (save_shards, "/m.safetensors"),
    "an index": (save_shards, "/m.safetensors.index.json"),
}


@pytest.fixture
def memory(request):
    return f"memory:///{request.node.name}"


def saved(td, layout, tmp_path, url):
    """Save locally, upload that, and return both places."""
    save, below = LAYOUTS[layout]
    path = str(save(td, f"{tmp_path}/data"))
    url += Path(path).suffix
    upload(path, url)
    return path + below, url + below


INDICES = {
    "an integer": 3, "the last": -1, "a slice": slice(2, 9), "steps": slice(1, None, 4),
    "a list": [1, 5, 3, 3], "two dims": torch.tensor([[1, 2], [3, 4]]), "a new dim": (None, 5),
    "dots": Ellipsis, "a mask": torch.arange(ROWS) % 3 == 0, "an array": np.array([4, -4]),
    "no rows": torch.zeros(0, dtype=torch.int64), "a range": range(3, 6),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_index_gives_what_a_local_load_gives(layout, tmp_path, memory):
    path, url = saved(data(), layout, tmp_path, memory)
    local, remote = TensorDict.load_memmap(path), TensorDict.load_memmap(url)
    assert remote.batch_size == local.batch_size
    assert set(remote.keys(True, True)) == set(local.keys(True, True))
    for key in ("a", "half", "flags", ("n", "b")):
        assert remote[key].shape == local[key].shape
        assert remote[key].dtype == local[key].dtype
    for index in INDICES.values():
        found, expected = remote[index], local[index]
        assert found.batch_size == expected.batch_size
        assert (found == expected).all()
        assert not any(isinstance(leaf, RemoteTensor) for leaf in found.values())
        assert torch.equal(remote["a"][index], local["a"][index])
        assert (remote["n"][index] == local["n"][index]).all()
        assert isinstance(remote["c"], Named)
        assert remote["c"][index].name == "a name"
    assert (remote.to_tensordict() == local.to_tensordict()).all()


@pytest.mark.parametrize("layout", ["tree", "archive", "consolidated"])
def test_a_large_save_is_described_by_its_ends(layout, tmp_path, memory):
    td = TensorDict(
        {str(i): torch.randn(64, 400) for i in range(4)}
        | {"s": NonTensorStack(*map(str, range(64)))},
        [64],
    )
    path, url = saved(td, layout, tmp_path, memory)
    remote = tensordict.load(url)
    assert isinstance(remote, RemoteTensorDict)
    assert (remote[[1, 60]] == tensordict.load(path)[[1, 60]]).all()
    assert remote[60]["s"] == "60"


@pytest.mark.parametrize("layout", ["columns", "members"])
def test_rows_that_differ_in_shape(layout, tmp_path, memory):
    if layout == "columns":
        ragged().memmap(tmp_path / "data", ragged="columns")
    else:
        ragged().save(tmp_path / "data")
    upload(tmp_path / "data", memory)
    local, remote = tensordict.load(tmp_path / "data"), tensordict.load(memory)
    assert remote.batch_size == local.batch_size
    assert set(remote.keys()) == {"a", "t", "d"}
    for index in (slice(1, 4), [4, 0, 0], torch.tensor([1, 3]), torch.arange(5) > 2):
        found, expected = remote[index], local[index]
        assert type(found) is type(expected)
        for one, other in zip(found.unbind(0), expected.unbind(0), strict=True):
            assert (one["a"].tolist(), one["t"]) == (other["a"].tolist(), other["t"])
    assert remote[3]["a"].tolist() == [30, 31, 32]
    for form in ("padded", "jagged"):
        found = gather(remote.select("a"), [3, 0], ragged=form)["a"]
        expected = gather(local.select("a"), [3, 0], ragged=form)["a"]
        assert found.is_nested == expected.is_nested
        assert found[0].tolist() == expected[0].tolist()
    assert "in the store" in repr(remote) or layout == "members"


def test_values_of_rows_of_one_shape_are_those_of_the_save(tmp_path, remote):
    DatasetWriter.from_iterable(tmp_path / "data", texts())
    upload(tmp_path / "data", remote)
    local, td = (
        TensorDict.load_memmap(tmp_path / "data"),
        TensorDict.load_memmap(remote),
    )
    assert "text" not in repr(td)
    for index in (499, slice(5, 9), [490, 2, 2], slice(0, 0)):
        expected, found = local[index], td[index]
        for key in ("s", ("j", "n")):
            values, others = expected.get(key), found.get(key)
            if hasattr(values, "tolist"):
                values, others = values.tolist(), others.tolist()
            assert others == values
    assert td["s"].tolist() == local["s"].tolist()
    assert td.to_tensordict()["j", "n"].tolist() == local["j", "n"].tolist()
    small = TensorDict.load_memmap(remote, read_limit=1000)
    assert small[7]["s"].startswith("7text")
    with pytest.raises(RuntimeError, match="1,000 are only read"):
        small["s"][7]


def test_a_pickle_of_values_tells_where_they_are(tmp_path):
    obstore = pytest.importorskip("obstore")
    DatasetWriter.from_iterable(tmp_path, texts())
    store = obstore.store.LocalStore(tmp_path)
    td = TensorDict.load_memmap(store)
    assert td["s"][3].startswith("3text")
    sent = pickle.dumps(td)
    assert b"texttext" not in sent
    assert pickle.loads(sent)[[499]]["s"][0].startswith("499text")


def test_gathering_reads_rows_into_memory_that_is_there(tmp_path, memory):
    path, url = saved(data(), "tree", tmp_path, memory)
    local, remote = tensordict.load(path), tensordict.load(url, read_limit=0)
    assert (gather(remote, [3, -1]) == gather(local, [3, -1])).all()
    out = TensorDict(a=torch.zeros(2, 2, dtype=torch.float64), batch_size=[2])
    assert gather(remote, [3, 4], out=out, keys=["a"]) is out
    assert torch.equal(out["a"], local["a"][3:5].double())
    windows = gather_slices(remote.select("a"), [0, 5], [1, 3], mask="mask")
    assert (
        windows == gather_slices(local.select("a"), [0, 5], [1, 3], mask="mask")
    ).all()


def test_a_class_loads_itself(tmp_path, memory):
    Named(torch.rand(4, 3), "b", batch_size=[4]).memmap(tmp_path / "data")
    upload(tmp_path / "data", memory)
    found = Named.load_memmap(memory)
    assert isinstance(found, Named)
    assert found[1:3].x.shape == (2, 3)
    assert found.name == "b"


def test_a_part_of_a_save_and_its_shapes_alone(tmp_path, memory):
    _, url = saved(data(), "tree", tmp_path, memory)
    assert tensordict.load(url, subpath="n")[2]["b"].tolist() == [2]
    shapes = tensordict.load(url, device="meta")
    assert shapes["a"].is_meta
    assert shapes["a"].shape == (ROWS, 2)


# Limits ---------------------------------------------------------------------------------


def test_what_needs_all_is_refused_beyond_the_limit(tmp_path, memory):
    path, url = saved(data().select("a", "half"), "tree", tmp_path, memory)
    local, remote = tensordict.load(path), tensordict.load(url, read_limit=100)
    for call in (
        lambda td: td + 1, lambda td: td["a"] + 1, lambda td: td.clone(),
        lambda td: td["a"].numpy(), lambda td: td["a"].sum(), lambda td: td.contiguous(),
        lambda td: torch.stack([td, td]), lambda td: td[...], lambda td: td["a"].tolist(),
        lambda td: td.to(torch.float64), lambda td: td.apply(torch.neg),
    ):  # fmt: skip
        with pytest.raises(
            RuntimeError, match=r"needs all of .*to_tensordict.*download="
        ):
            call(remote)
    with pytest.raises(
        RuntimeError, match=r"all of \S+/a.memmap and 1 others, [\d,]+ b"
    ):
        remote.clone()
    assert (remote[:] == local).all()
    assert (remote.to_tensordict() == local).all()
    within = tensordict.load(url)
    assert (within + 1 == local + 1).all()
    assert torch.equal(within["a"] + 1, local["a"] + 1)
    assert (within.clone() == local).all()
    assert type(within.clone()) is TensorDict


def test_nothing_is_written(tmp_path, memory):
    path, url = saved(data().select("a", "n"), "tree", tmp_path, memory)
    remote = tensordict.load(url)
    for call in (
        lambda td: td.set("new", torch.ones(ROWS)), lambda td: td.set_("a", td["a"] + 1),
        lambda td: td.__setitem__(0, 0), lambda td: td.add_(1), lambda td: td["a"].add_(1),
        lambda td: td.del_("a"), lambda td: td["a"].zero_(), lambda td: td["n"].zero_(),
        lambda td: td["a"].__setitem__(0, 1), lambda td: td.update_({"a": torch.ones(ROWS, 2)}),
        lambda td: td.unlock_().set("new", torch.ones(ROWS)),
        lambda td: td.rename_key_("a", "b"), lambda td: td.unlock_().update({"a": torch.ones(ROWS, 2)}),
    ):  # fmt: skip
        with pytest.raises((RuntimeError, NotImplementedError)):
            call(remote)
    assert (tensordict.load(url).to_tensordict() == tensordict.load(path)).all()


def test_keys_are_chosen_without_reading(tmp_path, memory):
    _, url = saved(data(), "tree", tmp_path, memory)
    remote = tensordict.load(url, read_limit=0)
    assert set(remote.select("a", ("n", "b")).keys(True, True)) == {"a", ("n", "b")}
    assert remote.select("a")[3]["a"].tolist() == [6, 7]
    assert "a" not in remote.exclude("a").keys()
    assert remote["a"].shape == (ROWS, 2)
    assert len(remote["a"]) == len(remote) == ROWS
    assert "RemoteTensor" in repr(remote)
    assert remote.get("missing") is None
    assert "a" in remote.keys()
    assert not remote.is_empty()


@pytest.mark.parametrize("place", ["a path", "True"])
@pytest.mark.parametrize("layout", ["tree", "archive", "shards"])
def test_a_download_is_a_local_save(place, layout, tmp_path, memory):
    _, url = saved(data(), layout, tmp_path, memory)
    target = tmp_path / "copy" if place == "a path" else True
    cache = tmp_path / "cache"
    found = tensordict.load(url, download=target, cache_dir=cache)
    assert not isinstance(found, RemoteTensorDict)
    assert (found["a"] == data()["a"]).all()
    if target is not True:
        assert target.exists()
        assert {path.name for path in tmp_path.iterdir()} == {
            "copy", "data" + Path(url).suffix.replace(".safetensors", "")
        }  # fmt: skip
        with pytest.raises(FileExistsError, match="there already"):
            tensordict.load(url, download=target)


def test_loading_into_a_collection_reads_all(tmp_path, memory):
    path, url = saved(data().select("a", "n"), "tree", tmp_path, memory)
    out = TensorDict(a=torch.zeros(ROWS, 2), batch_size=[ROWS])
    TensorDict.load_memmap(url, out=out)
    assert (out == tensordict.load(path)).all()


@pytest.mark.parametrize(
    ("layout", "load"),
    [
        ("tree", lambda url: TensorDict(batch_size=[ROWS]).load_memmap_(url)),
        ("safetensors", tensordict.from_safetensors),
        ("shards", tensordict.from_safetensors),
        ("consolidated", TensorDict.from_consolidated),
        ("consolidated", tensordict.from_consolidated),
        ("archive", TensorDict.load),
    ],
)  # fmt: skip
def test_every_door_takes_a_url(layout, load, tmp_path, memory):
    path, url = saved(data(), layout, tmp_path, memory)
    found = load(url)
    assert (found[[1, 4]] == tensordict.load(path)[[1, 4]]).all()


# Errors ---------------------------------------------------------------------------------


def test_a_missing_save_says_where_it_was_looked_for(memory):
    for url in (memory, f"{memory}.safetensors", f"{memory}.tdz"):
        with pytest.raises(FileNotFoundError, match="no save at memory:///.*meta.json"):
            tensordict.load(url)


def test_an_object_that_is_no_save_is_refused(memory):
    place_of(memory).put("", b"something else entirely")
    with pytest.raises(ValueError, match="memory://"):
        tensordict.load(memory)


@pytest.mark.parametrize("arguments", [{"mode": "r+"}, {"verify": True}])
def test_arguments_for_local_files_are_refused(arguments, tmp_path, memory):
    _, url = saved(data().select("a"), "tree", tmp_path, memory)
    with pytest.raises(ValueError, match="memory://"):
        tensordict.load(url, **arguments)


def test_an_object_that_changed_is_named(tmp_path, memory):
    _, url = saved(data(), "tree", tmp_path, memory)
    remote = tensordict.load(url)
    place_of(url).put("a.memmap", torch.zeros(ROWS, 2).numpy().tobytes())
    for call in (
        lambda: remote[3],
        lambda: remote["a"][3],
        lambda: remote.to_tensordict(),
    ):
        with pytest.raises(RuntimeError, match=r"a.memmap changed since the metadata"):
            call()


def test_an_object_that_is_too_short_is_named(tmp_path, memory):
    _, url = saved(data().select("a"), "tree", tmp_path, memory)
    place_of(url).put("a.memmap", b"short")
    with pytest.raises(RuntimeError, match="a.memmap"):
        tensordict.load(url)


def test_an_object_that_went_is_named(tmp_path, memory):
    _, url = saved(data(), "tree", tmp_path, memory)
    remote = tensordict.load(url)
    place_of(url).delete(["a.memmap"])
    with pytest.raises(FileNotFoundError, match="a.memmap"):
        remote[3]


def test_an_index_out_of_range_reads_nothing(tmp_path, memory):
    _, url = saved(data().select("a"), "tree", tmp_path, memory)
    remote = tensordict.load(url)
    place_of(url).delete(["a.memmap"])
    for index in (ROWS, -ROWS - 1, [0, ROWS]):
        with pytest.raises(IndexError, match="out of bounds"):
            remote[index]


# Processes ------------------------------------------------------------------------------


def test_a_remote_collection_is_sent_by_its_place(tmp_path):
    obstore = pytest.importorskip("obstore")
    path = save_tree(data(), str(tmp_path / "data"))
    ragged().memmap(tmp_path / "rows", ragged="columns")
    remote = tensordict.load(obstore.store.LocalStore(path))
    again = pickle.loads(pickle.dumps(remote))
    assert isinstance(again, RemoteTensorDict)
    assert (again[[1, 3]] == tensordict.load(path)[[1, 3]]).all()
    rows = tensordict.load(obstore.store.LocalStore(tmp_path / "rows"))
    assert pickle.loads(pickle.dumps(rows))[3]["t"] == "xxx"
    assert pickle.loads(pickle.dumps(remote["a"]))[1].tolist() == [2, 3]


def test_the_library_is_imported_when_a_url_is_used():
    code = (
        "import sys, tensordict\n"
        "assert 'obstore' not in sys.modules\n"
        "assert 'tensordict.storage.remote.reading' not in sys.modules\n"
        "tensordict.storage.remote.place_of('memory://a')\n"
        "assert 'obstore' in sys.modules\n"
    )
    check_freshly(code)


def test_a_download_has_the_checksums_of_the_save(tmp_path, memory):
    _, url = saved(data().select("a", "n"), "tree", tmp_path, memory)
    found = tensordict.load(url, download=tmp_path / "copy", verify=True)
    assert (found["a"] == data()["a"]).all()
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {path.name for path in (tmp_path / "data").iterdir()}
    damaged = tmp_path / "copy" / "a.memmap"
    modified = damaged.stat().st_mtime_ns
    damaged.write_bytes(b"damage" + damaged.read_bytes()[6:])
    os.utime(damaged, ns=(modified, modified))
    with pytest.raises(RuntimeError, match=r"a\.memmap.*damaged"):
        tensordict.load(tmp_path / "copy", verify=True)


def test_an_object_comes_in_parts_and_none_of_another_version(
    tmp_path, memory, monkeypatch
):
    from tensordict.storage.remote import fetching

    monkeypatch.setattr(fetching, "_SPAN", 1000)
    content = np.random.default_rng(0).integers(0, 255, 10_500, np.uint8).tobytes()
    place = place_of(memory)
    for size in (0, 1, 1000, 1001, 10_500):
        place.put("", content[:size])
        fetching.download_file(place, tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == content[:size]
    read = fetching._download_span

    def replaced(source, start, *args):
        if start == 3000:
            place.put("", content[::-1])
        return read(source, start, *args)

    monkeypatch.setattr(fetching, "_download_span", replaced)
    with pytest.raises(RuntimeError, match="changed since"):
        fetching.download_file(place, tmp_path / "file")
