"""Datasets of Ray Data: of collections, of saves that workers read, and back."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from object_stores import BUCKET, S3Server
from ray_sessions import end_ray
from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    UnbatchedTensor,
    from_arrow,
    lazy_stack,
)
from tensordict.data import DatasetWriter, read_ray
from tensordict.interop import leaves
from tensordict.storage.remote import place_of

pa = pytest.importorskip("pyarrow")
pytest.importorskip("ray.data")

from ray.data.block import BlockAccessor  # noqa: E402 # once it is known to be there

from tensordict.interop.ray_data.blocks import table_of  # noqa: E402
from tensordict.interop.ray_data.describing import describe  # noqa: E402
from tensordict.interop.ray_data.joining import joined  # noqa: E402

# Ray's own.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore:The given NumPy array is not writable:UserWarning",
)

ROWS = 9
SECRET = "not-for-any-log"


class Sample(TensorClass):
    x: torch.Tensor
    label: str


def whole(rows=ROWS):
    count = torch.arange(rows)
    return TensorDict(
        x=count.float()[:, None, None] * torch.ones(2, 3),
        number=count.int(),
        flag=count % 2 == 0,
        flags=torch.stack([count % 2 == 0, count % 3 == 0, count > 3], 1),
        half=count.half()[:, None],
        small=count.to(torch.uint16),
        nothing=torch.zeros(rows, 0),
        n=TensorDict(
            y=torch.arange(2 * rows).reshape(rows, 2),
            deep={"z": torch.ones(rows, 2, 1)},
            batch_size=[rows, 2],
        ),
        text=[f"text {at}" for at in range(rows)],
        batch_size=[rows],
    )


def ragged():
    return lazy_stack(
        [
            TensorDict(
                a=torch.arange(at % 4),
                image=torch.full((at % 3 + 1, at % 2 + 1), at, dtype=torch.uint8),
                flags=torch.tensor([at % 2 == 0] * (at % 5), dtype=torch.bool),
                n=TensorDict(q=torch.full((at % 4, 2), float(at))),
                text="x" * at,
            )
            for at in range(ROWS)
        ]
    )


def same(found, expected):
    assert found.batch_size[0] == expected.batch_size[0]
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key in expected.keys(True, True):
        value, other = expected.get(key), found.get(key)
        if isinstance(value, torch.Tensor):
            assert (value.dtype, value.shape) == (other.dtype, other.shape), key
            assert torch.equal(value, other), key
        else:
            assert list(value) == list(other), key


def same_rows(found, rows):
    for at, row in enumerate(rows):
        for key in ("a", "image", "flags", ("n", "q")):
            assert torch.equal(found[key].unbind()[at], row[key]), (at, key)
        assert found["text"][at] == row["text"]


def again(ds):
    """The same blocks, as a function for batches of NumPy would make them."""
    return ds.map_batches(lambda batch: dict(batch), batch_size=2)


# Without a cluster ----------------------------------------------------------------------


class Blocks:
    """A dataset whose blocks are tables, which needs no cluster."""

    def __init__(self, *tables):
        self.tables = tables

    def iter_batches(self, **how):
        assert how == {"batch_size": None, "batch_format": "pyarrow"}
        return iter(self.tables)

    def schema(self):
        return None


def blocks(td, *sizes):
    """The tables of some rows each, of the types that are known without them."""
    description = describe(td, ".")
    if description.schema is not None:
        made = table_of(td, ".", {}).schema
        assert made.equals(description.schema)
    parts, start = [], 0
    for size in sizes or [td.batch_size[0]]:
        parts.append(table_of(td[start : start + size], ".", description.types))
        start += size
    return parts


def read_back(*tables):
    table = joined(pa, Blocks(*tables))
    return from_arrow(table, nulls="fill")


@pytest.mark.parametrize("sizes", [(9,), (4, 5), (1, 7, 1)], ids=str)
def test_a_column_is_what_numpy_and_torch_take(sizes):
    td, at = whole(), 0
    for table, size in zip(blocks(td, *sizes), sizes, strict=True):
        arrays = BlockAccessor.for_block(table).to_numpy()
        for name, key in {"x": "x", "n.deep.z": ("n", "deep", "z"), "flags": "flags",
                          "half": "half", "small": "small", "flag": "flag"}.items():  # fmt: skip
            expected = td[key][at : at + size].numpy()
            assert arrays[name].dtype == expected.dtype
            assert np.array_equal(arrays[name], expected)
        at += size


@pytest.mark.parametrize("sizes", [(9,), (4, 5), (1,) * 9], ids=str)
def test_rows_that_differ_in_shape_come_back(sizes):
    td = ragged()
    tables = blocks(td, *sizes)
    found = read_back(*tables)
    same_rows(TensorDict.from_dict({**found, "n": {"q": found["n.q"]}}), td)


def test_a_dataset_of_ragged_rows_has_one_type_in_all_blocks(tmp_path):
    DatasetWriter.from_iterable(tmp_path, list(ragged().unbind(0)))
    td = TensorDict.load_memmap(tmp_path)
    description = describe(td, ".")
    kinds = {str(table.schema.field("a").type) for table in blocks(td, *(1,) * ROWS)}
    assert kinds == {str(description.types["a"])}
    assert description.schema is not None
    assert description.types["text"] == pa.string()


def test_blocks_of_other_types_are_brought_to_one():
    lists = [[[1]], [[2, 3], [4]], [[5, 6]]]
    tables = [
        BlockAccessor.batch_to_block(
            {
                "v": [np.array(row) for row in rows],
                "w": np.array([0.5] * len(rows)) if at else np.array([1]),
                "t": [None] if not at else ["a"] * len(rows),
            }
        )
        for at, rows in enumerate(lists)
    ]
    td = read_back(*tables)
    assert [row.tolist() for row in td["v"].unbind()] == [[1], [2, 3], [4], [5, 6]]
    assert td["w"].tolist() == [1.0, 0.5, 0.5, 0.5]
    assert list(td["t"]) == [None, "a", "a", "a"]
    (table,) = [BlockAccessor.batch_to_block({"t": [{1, 2}, 3]})]
    assert list(read_back(tables[1], table)["t"]) == ["a", "a", {1, 2}, 3]
    one = pa.table({"v": ["a text"]})
    with pytest.raises(TypeError, match="column 'v' to one type"):
        joined(pa, Blocks(tables[0], one))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_dtypes_that_numpy_lacks_are_widened(dtype):
    td = TensorDict(a=torch.tensor([[0.5, -1.5]]).to(dtype), batch_size=[1])
    (table,) = blocks(td)
    found = read_back(table)["a"]
    assert found.dtype == torch.float32
    assert found.tolist() == [[0.5, -1.5]]


def test_values_of_all_kinds_come_back():
    td = TensorDict(a=torch.arange(3), batch_size=[3])
    columns = {
        "numbers": [1, 2, 3],
        "fields": [{"k": 1}, {"k": 2}, {"k": 3}],
        "other fields": [{"k": 1}, {"m": 2}, {}],
        "none": ["a", None, "b"],
        "lists": [[1], [], [2, 3]],
        "mixed": [{1, 2}, "x", 3],
        "bytes": [b"a", b"\xff", b""],
    }
    for key, values in columns.items():
        td[key] = NonTensorStack(*values)
    td["one"] = NonTensorData("of all", batch_size=[3])
    found = read_back(*blocks(td, 1, 2))
    for key, values in columns.items():
        assert not isinstance(found._get_entry(key, None), torch.Tensor)
        assert found._get_entry(key, None).tolist() == values
    assert list(found["one"]) == ["of all"] * 3


def test_two_batch_dims_are_a_row_along_the_first():
    td = TensorDict(a=torch.arange(6).reshape(2, 3), batch_size=[2, 3])
    td["t"] = NonTensorStack.from_list([["a", "b", "c"], ["d", "e", "f"]])
    found = read_back(*blocks(td))
    assert torch.equal(found["a"], td["a"])
    assert found._get_entry("t", None).tolist() == td._get_entry("t", None).tolist()


def test_tables_of_ray_are_read_without_it(tmp_path):
    from pyarrow import parquet

    td = whole()
    parquet.write_table(table_of(td, ".", {}), tmp_path / "t.parquet")
    same(TensorDict.from_parquet(tmp_path / "t.parquet", separator="."), td)
    (table,) = blocks(ragged())
    parquet.write_table(table, tmp_path / "r.parquet")
    code = (
        "import sys; from tensordict import TensorDict\n"
        f"td = TensorDict.from_parquet({str(tmp_path / 't.parquet')!r}, separator='.')\n"
        "assert td['x'].shape == (9, 2, 3) and td['flags'].sum() > 0, td\n"
        "assert td['n', 'y'].tolist()[1] == [2, 3]\n"
        f"td = TensorDict.from_parquet({str(tmp_path / 'r.parquet')!r})\n"
        "assert td['image'].unbind()[2].shape == (3, 1)\n"
        "assert 'ray' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, check=True
    )


def test_nulls_in_tensors_are_what_was_asked():
    (table,) = blocks(TensorDict(a=torch.ones(2, 3), batch_size=[2]))
    kind = table.schema.field("a").type
    storage = pa.array([[1.0] * 3, None, [2.0] * 3], kind.storage_type)
    column = pa.ExtensionArray.from_storage(kind, storage)
    with pytest.raises(ValueError, match="null"):
        from_arrow(pa.table({"a": column}))
    td = from_arrow(pa.table({"a": column}), nulls="mask")
    assert td["a"][[0, 2]].tolist() == [[1.0] * 3, [2.0] * 3]
    assert td["a"][1].isnan().all()
    assert td["_mask", "a"].tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("td", "error", "text"),
    [
        (TensorDict(a=1), ValueError, "batch dim"),
        (TensorDict({}, [3]), ValueError, "without entries"),
        (TensorDict({"a.b": torch.zeros(2), "a": {"b": torch.zeros(2)}}, [2]),
         ValueError, r"\['a.b'\]"),
        (TensorDict(n={"c": torch.zeros(2, dtype=torch.complex64)}, batch_size=[2]),
         TypeError, r"complex64 at 'n.c'"),
        (TensorDict(s=torch.eye(2).to_sparse(), batch_size=[2]), TypeError, "sparse"),
        (TensorDict(u=UnbatchedTensor(torch.zeros(3)), batch_size=[2]),
         ValueError, "'u'"),
        (lazy_stack([TensorDict(a=1), TensorDict(b=1)]), ValueError, "same keys"),
    ],
    ids=str,
)  # fmt: skip
def test_what_no_dataset_holds_is_refused(td, error, text):
    with pytest.raises(error, match=text):
        td.to_ray_dataset(override_num_blocks=1)


def test_wrong_arguments_are_refused(tmp_path):
    td = TensorDict(a=torch.zeros(2), batch_size=[2])
    with pytest.raises(ValueError, match="separator"):
        td.to_ray_dataset(separator="")
    with pytest.raises(ValueError, match="override_num_blocks"):
        td.to_ray_dataset(override_num_blocks=0)
    with pytest.raises(TypeError, match="expects a dataset of Ray Data, got a list"):
        TensorDict.from_ray_dataset([td])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_ray(tmp_path / "nowhere")
    td.memmap(tmp_path / "data")
    with pytest.raises(KeyError, match="b"):
        read_ray(tmp_path / "data", keys=["b"])


def test_without_ray_it_says_what_to_install(monkeypatch, tmp_path):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(leaves.importlib, "import_module", missing)
    calls = [
        lambda engine: engine.to_ray_dataset(whole(), ".", None),
        lambda engine: engine.from_ray_dataset(TensorDict, Named("m"), None),
    ]
    from tensordict.interop.ray_data import datasets as engine

    for call in calls:
        with pytest.raises(ImportError, match=r"pip install 'tensordict-rs\[ray\]'"):
            call(engine)


class Named:
    def __init__(self, method):
        self.method = method


# On a cluster ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray():
    """A cluster of two nodes. Its start takes seconds, so two tests have all of it."""
    import ray
    from ray.cluster_utils import Cluster

    # The names of sockets below it must be short.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    head = {**node, "include_dashboard": False, "temp_dir": folder}
    cluster = None
    try:
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False)
    except Exception as error:  # noqa: BLE001 # it has many
        if cluster is not None:
            cluster.shutdown()
        pytest.skip(f"Ray does not start here: {error}")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    ray.folder = folder
    yield ray
    end_ray()
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def s3():
    """An S3, whose credentials are in no environment."""
    pytest.importorskip("obstore")
    server = S3Server()
    yield server
    server.stop()


def test_collections_and_datasets(ray, subtests, tmp_path):
    td = whole()
    ds = td.to_ray_dataset(override_num_blocks=3)
    with subtests.test("it comes back as it was"):
        assert ds.num_blocks() == 3
        found = TensorDict.from_ray_dataset(ds)
        same(found, td)
        found["x"].zero_()
        found["number"].add_(1)
        assert TensorDict.from_ray_dataset(ds)["number"].tolist() == list(range(ROWS))
    with subtests.test("functions, in another order"):

        def double(batch):
            assert batch["x"].shape[1:] == (2, 3)
            assert batch["n.deep.z"].shape[1:] == (2, 1)
            return {**batch, "x": 2 * batch["x"]}

        made = ds.map_batches(double, batch_size=4).random_shuffle(seed=0)
        found = TensorDict.from_ray_dataset(made.materialize())
        found = found[found["number"].argsort()]
        assert torch.equal(found["x"], 2 * td["x"])
        same(found.exclude("x"), td.exclude("x"))
        batches = list(made.drop_columns(["text"]).iter_torch_batches(batch_size=4))
        assert [batch["x"].shape for batch in batches] == [
            torch.Size([size, 2, 3]) for size in (4, 4, 1)
        ]
        assert batches[0]["flags"].dtype == torch.bool
    with subtests.test("files of Parquet"):
        ds.write_parquet(str(tmp_path / "parquet"))
        kept = ray.data.read_parquet(str(tmp_path / "parquet"))
        same(TensorDict.from_ray_dataset(kept), td)
        same(TensorDict.from_parquet(tmp_path / "parquet", separator="."), td)
    with subtests.test("rows that differ in shape"):
        rows = ragged()
        ds = rows.to_ray_dataset(override_num_blocks=4)
        same_rows(TensorDict.from_ray_dataset(ds), rows)
        same_rows(TensorDict.from_ray_dataset(again(ds).materialize()), rows)
    with subtests.test("no rows"):
        found = TensorDict.from_ray_dataset(td[:0].to_ray_dataset())
        assert found["x"].shape == (0, 2, 3)
        assert found["n", "y"].dtype == torch.int64
        assert list(found["text"]) == []
    with subtests.test("a tensorclass"):
        sample = Sample(torch.rand(3, 2), "a", batch_size=[3])
        found = Sample.from_ray_dataset(sample.to_ray_dataset())
        assert isinstance(found, Sample)
        assert torch.equal(found.x, sample.x)


def test_saves_are_read_by_workers(ray, subtests, tmp_path, s3):
    options = s3.options() | {"aws_secret_access_key": SECRET}
    td, url = whole(), f"s3://{BUCKET}/data"
    td.memmap(tmp_path / "data")
    td.memmap(url, storage_options=options)
    DatasetWriter.from_iterable(tmp_path / "ragged", list(ragged().unbind(0)))
    place = place_of(f"s3://{BUCKET}/ragged", options)
    for file in Path(tmp_path / "ragged").iterdir():
        place.put(file.name, file.read_bytes()) if file.is_file() else None
    one_actor = ray.data.ActorPoolStrategy(size=1)

    class Mean:
        def __call__(self, batch):
            return {"mean": batch["x"].mean((1, 2)), "number": batch["number"]}

    for where, given in ((tmp_path / "data", None), (url, options)):
        ds = read_ray(where, storage_options=given, override_num_blocks=4)
        with subtests.test("columns are known, and rows", where=str(where)):
            assert ds.schema(fetch_if_missing=False) is not None
            assert ds.count() == ROWS
            same(TensorDict.from_ray_dataset(ds), td)
            keys = ["number", ("n", "y")]
            some = read_ray(where, keys=keys, storage_options=given)
            assert some.schema().names == ["number", "n.y"]
            assert some.take(2)[1]["n.y"].tolist() == [2, 3]
        with subtests.test("actors, in another order", where=str(where)):
            made = ds.random_shuffle().map_batches(
                Mean, compute=one_actor, batch_size=4
            )
            found = TensorDict.from_ray_dataset(made)
            assert found["mean"].tolist() == found["number"].tolist()
    with subtests.test("rows into a dataset on this machine"):
        tables = ds.iter_batches(batch_size=None, batch_format="pyarrow")
        assert DatasetWriter.from_arrow(tmp_path / "written", tables) == ROWS
        written = TensorDict.load_memmap(tmp_path / "written")
        assert torch.equal(written["x"], td["x"])
        assert list(written["text"]) == list(td["text"])
    with subtests.test("a remote collection is not read here"):
        remote = TensorDict.load_memmap(url, storage_options=options, read_limit=1)
        same(TensorDict.from_ray_dataset(remote.to_ray_dataset()), td)
    with subtests.test("map over a URL"):
        found = remote.map(
            lambda part: part.select("x") * 2, backend="ray", num_workers=1, chunksize=4
        )
        assert torch.equal(found["x"], 2 * td["x"])
    with subtests.test("rows that differ in shape"):
        ds = read_ray(tmp_path / "ragged", override_num_blocks=4)
        assert ds.schema(fetch_if_missing=False) is not None
        same_rows(TensorDict.from_ray_dataset(ds), ragged())
    with subtests.test("an object that went is named"):
        place = place_of(url, options)
        place.delete([it.name for it in place.list() if it.name.startswith("x.")])
        with pytest.raises(Exception, match=r"data/x\.memmap"):
            read_ray(url, storage_options=options).materialize()
    with subtests.test("a place of this process is refused"):
        td.save("memory://test_ray_data")
        with pytest.raises(TypeError, match="^A place in memory://"):
            read_ray("memory://test_ray_data")
        with pytest.raises(TypeError, match="^A place in memory://"):
            TensorDict.load("memory://test_ray_data").map(dict, backend="ray")
    with subtests.test("secrets are in no log"):
        logs = [file for file in Path(ray.folder).rglob("*") if file.is_file()]
        assert any(file.suffix == ".log" for file in logs)
        assert not any(SECRET.encode() in file.read_bytes() for file in logs)
