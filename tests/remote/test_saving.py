"""The laws of saving hold at every place: on the disk, in memory, in S3."""

import json
import os
import threading

import pytest
import torch

from tensordict import LazyStackedTensorDict, TensorDict
from tensordict.storage import layouts, verify
from tensordict.storage.functions import to_safetensors
from tensordict.storage.remote import Place, place_of, publishing
from tensordict.storage.remote.fetching import download_file, download_folder
from tensordict.storage.remote.publishing import RECORD, SWITCH


def sample(offset=0):
    return TensorDict(
        {
            "a": torch.arange(6).reshape(3, 2) + offset,
            "half": torch.full((3,), 0.5, dtype=torch.bfloat16),
            "nested": TensorDict({"b": torch.ones(3, 1) + offset}, [3]),
            "a/b ü%#": torch.zeros(3, 0),
            "text": "hello",
        },
        [3],
    )


def columns(td, url, **options):
    rows = LazyStackedTensorDict(
        *[
            TensorDict({"a": row["a"], "r": torch.arange(n + 1)})
            for n, row in enumerate(td)
        ]
    )
    return rows.memmap(url, ragged="columns", **options)


LAYOUTS = {
    "tree": ("save", lambda td, url, **options: td.memmap(url, **options)),
    "archive": ("save.tdz", lambda td, url, **options: td.memmap(url, **options)),
    "safetensors": (
        "m.safetensors",
        lambda td, url, **options: td.memmap(url, **options),
    ),
    "shards": ("m.safetensors", lambda td, url: to_safetensors(td, url, shards=2)),
    "consolidated": ("file.td", lambda td, url: td.consolidate(url)),
    "columns": ("rows", columns),
}
EVERY = pytest.mark.parametrize("layout", LAYOUTS)


def fetched(url, folder):
    """Load a save by way of files, which are checked."""
    if not url.startswith(("s3:", "memory:")):
        return layouts.load(None, url)
    place = place_of(url)
    folder.mkdir(exist_ok=True)
    target = folder / place.name
    if place.exists(SWITCH):
        download_folder(place, target)
    elif place.exists():
        download_file(place, target)
    else:
        weights = json.loads((place.parent / f"{place.name}.index.json").get())
        for name in {*weights["weight_map"].values(), f"{place.name}.index.json"}:
            download_file(place.parent / name, folder / name)
        return layouts.load(None, target)
    assert not verify(target).lines("damaged")
    return layouts.load(None, target)


def expected(layout, td):
    return columns(td, "memory://unused/rows") if layout == "columns" else td


def same(found, td, layout):
    if layout == "columns":
        return bool((found["a"] == td["a"]).all())
    plain = found.to_tensordict()
    return (
        {*plain.keys(True, True)} == {*td.keys(True, True)}
        and plain["text"] == td["text"]
        and bool((plain.exclude("text") == td.exclude("text")).all())
    )


@EVERY
def test_what_is_saved_is_loaded(url, layout, tmp_path):
    name, save = LAYOUTS[layout]
    td = sample()
    save(td, f"{url}/{name}")
    assert same(fetched(f"{url}/{name}", tmp_path / "there"), td, layout)
    for offset in range(2):
        # A save that takes the place of another is read in the same way.
        save(sample(offset), f"{url}/{name}")
        loaded = TensorDict.load(f"{url}/{name}")
        rows = torch.tensor([2, 0])
        assert (loaded[rows]["a"] == sample(offset)["a"][rows]).all()
        whole = loaded if layout == "columns" else loaded.to_tensordict()
        assert same(whole, sample(offset), layout)


def test_a_save_returns_the_collection_over_what_is_there(remote):
    saved = sample().memmap(remote)
    assert saved.batch_size == (3,)
    assert (saved[1]["nested", "b"] == 1).all()
    later = sample(1).memmap(f"{remote}/later", num_threads=2, return_early=True)
    assert (later.result()[1]["nested", "b"] == 2).all()


@EVERY
def test_a_save_takes_the_place_of_another_and_leaves_nothing_of_it(
    url, layout, tmp_path
):
    name, save = LAYOUTS[layout]
    counts = []
    for offset in range(3):
        save(sample(offset), f"{url}/{name}")
        if not url.startswith("file:"):
            counts.append(len(list(place_of(url).list())))
    assert same(fetched(f"{url}/{name}", tmp_path / "there"), sample(2), layout)
    # The record is one object less or more beside the same files.
    assert len(set(counts)) <= 1


def names(url):
    return {found.name for found in place_of(url).list()}


@EVERY
def test_a_save_that_fails_leaves_the_one_before(remote, layout, tmp_path, monkeypatch):
    name, save = LAYOUTS[layout]
    save(sample(), f"{remote}/{name}")
    before = names(remote)
    real, count = Place.put, 0

    def put(self, *args, **options):
        nonlocal count
        count += 1
        if count == failing:
            raise OSError("the network is gone")
        return real(self, *args, **options)

    for failing in range(1, 20):
        count = 0
        with monkeypatch.context() as patched:
            patched.setattr(Place, "put", put)
            try:
                save(sample(1), f"{remote}/{name}")
                break
            except OSError as error:
                failed = str(error)
        assert "the network is gone" in failed
        found = fetched(f"{remote}/{name}", tmp_path / str(failing))
        assert same(found, sample(), layout)
        assert names(remote) == before
    assert failing > 1


def test_a_save_that_is_not_to_be_replaced_stays(remote, tmp_path):
    for name in ("save", "save.tdz"):
        sample().memmap(f"{remote}/{name}", existsok=False)
        with pytest.raises(FileExistsError, match=name):
            sample(1).memmap(f"{remote}/{name}", existsok=False)
        assert same(fetched(f"{remote}/{name}", tmp_path / name), sample(), "tree")


@pytest.mark.parametrize("is_there", [False, True])
def test_of_two_writers_one_gets_an_error_and_the_save_is_of_the_other(
    remote, tmp_path, is_there
):
    if is_there:
        sample(9).memmap(remote)
    at_once = threading.Barrier(2)
    outcomes = {}

    def save(number):
        from tensordict.storage.remote import publishing, saving

        def write(staged):
            sample(number).memmap(staged)

        at_once.wait()
        try:
            saving.stage_and_upload(place_of(remote), write, publishing.Uploads())
            outcomes[number] = None
        except FileExistsError as error:
            outcomes[number] = error

    threads = [threading.Thread(target=save, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [number for number, error in outcomes.items() if error is None]
    assert won
    found = fetched(remote, tmp_path / "there")
    assert any(same(found, sample(number), "tree") for number in won)
    for error in outcomes.values():
        assert error is None or "Another writer" in str(error)


def test_a_writer_that_comes_late_gets_an_error_and_removes_its_objects(
    remote, tmp_path, monkeypatch
):
    from tensordict.storage.remote import publishing

    real = publishing.put_switch

    def late(place, *args):
        monkeypatch.setattr(publishing, "put_switch", real)
        sample(1).memmap(remote)
        real(place, *args)

    monkeypatch.setattr(publishing, "put_switch", late)
    with pytest.raises(FileExistsError, match="Another writer has saved to"):
        sample(0).memmap(remote)
    assert same(fetched(remote, tmp_path / "there"), sample(1), "tree")
    folders = {name.partition("/")[0] for name in names(remote)}
    assert len(folders) == 2
    assert SWITCH in folders


def test_a_put_whose_answer_was_lost_is_not_another_writers(remote, monkeypatch):
    import obstore

    real = obstore.put

    def put(store, key, content, **options):
        made = real(store, key, content, **options)
        if options.get("mode") not in (None, "overwrite"):
            # The library tries again, and meets what it has put.
            real(store, key, content, **options)
        return made

    monkeypatch.setattr(obstore, "put", put)
    sample().memmap(remote)
    sample(1).memmap(remote)
    assert SWITCH in names(remote)


def test_objects_of_others_stay(remote):
    place = place_of(remote)
    place.put("notes.txt", b"mine")
    place.put("nested/notes.txt", b"mine")
    for offset in range(2):
        sample(offset).memmap(remote)
        assert {"notes.txt", "nested/notes.txt"} <= names(remote)


def test_a_save_goes_on_behind_the_call_and_says_how_far_it_is(remote, tmp_path):
    future = sample().memmap(remote, num_threads=2, return_early=True)
    assert future.result().batch_size == (3,)
    done, total = future.progress()
    assert done == total > 0
    assert same(fetched(remote, tmp_path / "there"), sample(), "tree")


def test_a_store_of_the_library_is_a_place_too(s3, tmp_path):
    from obstore.store import MemoryStore

    store = MemoryStore()
    sample().memmap(store)
    assert SWITCH in names(store)
    with pytest.raises(ValueError, match="storage_options"):
        sample().memmap(store, storage_options={"aws_region": "here"})
    url = f"s3://bucket/{tmp_path.name}"
    sample().memmap(url, storage_options=s3.options())
    place = place_of(url, s3.options())
    assert place.exists(SWITCH)
    assert place.exists(RECORD)


def test_what_needs_files_is_refused():
    url = "memory://refused/save"
    with pytest.raises(ValueError, match="memmap_like makes files"):
        sample().memmap_like(url)
    with pytest.raises(ValueError, match="memmap_ makes files"):
        sample().memmap_(url)
    with pytest.raises(ValueError, match="atomic=False"):
        sample().memmap(url, atomic=False)
    with pytest.raises(ValueError, match=r"td.to_parquet"):
        sample().memmap(url + ".parquet")
    assert not names("memory://refused")


def test_a_large_file_goes_up_in_parts(s3, tmp_path, monkeypatch):
    from object_stores import Proxy
    from tensordict.storage.remote import publishing

    monkeypatch.setattr(publishing, "PART", 5 << 20)
    proxy = Proxy(s3.endpoint, rate=0.0)
    data = TensorDict(a=torch.arange(12 << 18, dtype=torch.int32), batch_size=[])
    url = f"s3://bucket/{tmp_path.name}/large"
    data.memmap(url, storage_options=s3.options(proxy.endpoint))
    parts = [path for method, path, _ in proxy.requests if "partNumber" in path]
    assert len(parts) == 3
    proxy.stop()
    place = place_of(url, s3.options())
    download_folder(place, tmp_path / "there")
    assert (layouts.load(None, tmp_path / "there")["a"] == data["a"]).all()


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("size", [0, 1, 5_000, 5_001, 23_000])
def test_a_file_goes_up_in_parts(size, is_own, tmp_path, monkeypatch, request):
    monkeypatch.setattr(publishing, "PART", 5_000)
    file = tmp_path / "file"
    content = bytes(range(256)) * 90
    file.write_bytes(content[:size])
    place = place_of(f"memory:///{request.node.name}")
    publishing.upload_file(place, file, "object", is_own=is_own)
    assert place.get("object") == content[:size]


def test_a_file_that_is_cut_while_it_goes_up_is_an_error(
    tmp_path, monkeypatch, request
):
    monkeypatch.setattr(publishing, "PART", 5_000)
    file = tmp_path / "file"
    file.write_bytes(b"1" * 20_000)
    place = place_of(f"memory:///{request.node.name}")
    parts = publishing._parts

    def cut(path, *args):
        found = parts(path, *args)
        yield next(found)
        os.truncate(path, 6_000)
        yield from found

    monkeypatch.setattr(publishing, "_parts", cut)
    with pytest.raises(OSError, match="cut meanwhile"):
        publishing.upload_file(place, file, "object")
    assert not place.exists("object")
