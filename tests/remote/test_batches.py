"""A loader of batches gives the same over an object store as over files."""

import pytest
import torch

import tensordict
from object_stores import Proxy
from tensordict import TensorDict, lazy_stack
from tensordict.data import BatchLoader, Mixture, gather
from tensordict.data.loader.pipelines import WaitingPipeline
from tensordict.storage.remote import place_of

ROWS = 50


@pytest.fixture
def places(tmp_path, request):
    """A save in files, and the same one in a store."""
    td = TensorDict(
        a=torch.arange(3 * ROWS).reshape(ROWS, 3),
        n=TensorDict(b=torch.arange(ROWS), batch_size=[ROWS]),
        batch_size=[ROWS],
    )
    return in_both(td, tmp_path, request)


def in_both(td, tmp_path, request, **how):
    url = f"memory:///{request.node.name}"
    td.memmap(tmp_path / "data", **how)
    for file in (tmp_path / "data").rglob("*"):
        if file.is_file():
            name = file.relative_to(tmp_path / "data").as_posix()
            place_of(url).put(name, file.read_bytes())
    return tmp_path / "data", url


def rows_of(loader):
    return [batch["a"].tolist() for batch in loader]


@pytest.mark.parametrize(
    "how",
    [
        {}, {"shuffle": True, "seed": 3}, {"shuffle": "blocks", "block_size": 8, "seed": 1},
        {"prefetch": 0}, {"workers": 2}, {"rank": 1, "world_size": 3, "seed": 2, "shuffle": True},
        {"keys": ["a"]}, {"drop_last": True},
    ],
)  # fmt: skip
def test_batches_are_those_of_files(how, places):
    path, url = places
    local = BatchLoader(tensordict.load(path), 7, **how)
    remote = BatchLoader(url, 7, **how)
    for _ in range(2):
        assert rows_of(remote) == rows_of(local)


def test_a_loader_goes_on_where_its_state_was_taken(places):
    path, url = places
    expected = rows_of(BatchLoader(tensordict.load(path), 7, shuffle=True, seed=5))
    loader = BatchLoader(url, 7, shuffle=True, seed=5)
    batches = iter(loader)
    first = [next(batches)["a"].tolist() for _ in range(3)]
    state = loader.state_dict()
    batches.close()
    again = BatchLoader(url, 7, shuffle=True, seed=5)
    again.load_state_dict(state)
    assert first + rows_of(again) == expected


def test_a_mixture_takes_remote_collections(places):
    path, url = places
    local, remote = tensordict.load(path), tensordict.load(url)
    expected = BatchLoader(Mixture([local, local], [1, 2]), 6, seed=1)
    found = BatchLoader(Mixture([remote, remote], [1, 2]), 6, seed=1)
    assert rows_of(found) == rows_of(expected)


@pytest.mark.parametrize("form", ["padded", "jagged", "stack"])
def test_rows_that_differ_get_a_form_without_reading_all(form, tmp_path, request):
    rows = [TensorDict(a=torch.arange(n) + 10.0 * n, d=n) for n in (1, 2, 4, 3, 5)]
    path, url = in_both(lazy_stack(rows), tmp_path, request, ragged="columns")
    local, remote = tensordict.load(path), tensordict.load(url, read_limit=0)
    mask = {"mask_key": "mask"} if form == "padded" else {}
    found = gather(remote, [3, 0], ragged=form, **mask)
    expected = gather(local, [3, 0], ragged=form, **mask)
    assert set(found.keys()) == set(expected.keys())
    for one, other in zip(found.unbind(0), expected.unbind(0), strict=True):
        assert (one == other).all()
    batches = BatchLoader(remote, 2, ragged=form, **mask)
    expected = BatchLoader(local, 2, ragged=form, **mask)
    for one, other in zip(batches, expected, strict=True):
        if form == "stack":
            one, other = one[0], other[0]
        assert one["a"][0].tolist() == other["a"][0].tolist()


class Late:
    """Makes batches, each of which is late until somebody waits for it."""

    def __init__(self):
        self.calls = 0

    def __call__(self, rows):
        self.calls += 1
        return TensorDict(a=rows, batch_size=rows.shape)


def test_a_loader_that_waits_begins_more_batches():
    make = Late()
    pipeline = WaitingPipeline(make, 2)
    gate = pipeline._threads.submit(lambda: None)
    gate.result()
    depths = []
    for _ in range(5):
        pipeline.put(torch.arange(2))
        pipeline._begun[0].result()
        pipeline.get()
        depths.append(pipeline.depth)
    # None was late.
    assert depths == [2] * 5

    class NotYet:
        def done(self):
            return False

        def result(self):
            return TensorDict(a=torch.arange(2), batch_size=[2])

    for _ in range(5):
        pipeline._begun.append(NotYet())
        pipeline.get()
        depths.append(pipeline.depth)
    assert depths[5:] == [4, 8, 15, 15, 15]
    pipeline.close()


def test_exactly_the_rows_are_asked_for(s3, monkeypatch):
    """Count the requests and bytes of an S3, by way of a proxy."""
    td = TensorDict(a=torch.randn(400, 4096), b=torch.arange(400), batch_size=[400])
    proxy = Proxy(s3.endpoint, rate=0)
    try:
        url = "s3://bucket/rows"
        for name, content in files_of(td).items():
            place_of(url, s3.options()).put(name, content)
        remote = tensordict.load(url, storage_options=s3.options(proxy.endpoint))
        assert not [request for request in proxy.requests if "memmap" in request[1]]
        assert len(proxy.requests) <= 2
        assert remote.batch_size == (400,)
        assert remote["a"].dtype == torch.float32
        proxy.requests.clear()
        rows = [3, 399, 200, 201, 7, 3]
        assert torch.equal(remote[rows]["a"], td[rows]["a"])
        asked = [request[2] for request in proxy.requests if "a.memmap" in request[1]]
        size = 4 * 4096
        # Rows 3 to 7 are read through, since those between are less than a request.
        assert sorted(asked) == sorted(
            f"bytes={size * start}-{size * stop - 1}"
            for start, stop in ((3, 8), (200, 202), (399, 400))
        )
        assert len([one for one in proxy.requests if "b.memmap" in one[1]]) == 1
    finally:
        proxy.stop()


def files_of(td):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        td.memmap(f"{folder}/data")
        below = Path(folder) / "data"
        return {
            file.relative_to(below).as_posix(): file.read_bytes()
            for file in below.rglob("*")
            if file.is_file()
        }
