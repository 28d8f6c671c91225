"""The examples of the documents that this package was asked for: ``docs/dev/seeds.md``.

A test is named by its row there, ``test_<document>_<example>_<words>``. The code is that
of the document; where a line had to change, a comment says why.
"""

import asyncio
import multiprocessing
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn, vmap
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset

import tensordict
from ranks import Ranks
from tensordict import (
    LazyStackedTensorDict,
    MemoryMappedTensor,
    NonTensorData,
    TensorDict,
    set_lazy_legacy,
)
from tensordict.data import StreamDataLoader, StreamDataset
from tensordict.nn import TensorDictModule, TensorDictSequential, make_functional
from virtual_clock import run_on_virtual_clock

TABLE = Path(__file__).parents[2] / "docs" / "dev" / "seeds.md"


@pytest.fixture
def data():
    return TensorDict(
        {
            "key 1": torch.ones(3, 4, 5),
            "key 2": torch.zeros(3, 4, 5, dtype=torch.bool),
        },
        batch_size=[3, 4],
    )


def train_one_epoch(dataset, model, loss_module, optimizer):
    for data in dataset:
        data = model(data)
        loss = loss_module(data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# --- 000, building tensordicts from streams -------------------------------------------


def test_000_01_buckets_from_keywords():
    bucket0 = TensorDict(stream0=torch.randn(5), stream1=torch.randn(4))
    bucket1 = TensorDict(stream0=torch.randn(4), stream1=torch.randn(5))
    assert bucket0.batch_size == bucket1.batch_size == torch.Size([])
    assert list(bucket0.keys()) == ["stream0", "stream1"]


@pytest.fixture
def buckets():
    return (
        TensorDict(stream0=torch.randn(5), stream1=torch.randn(4)),
        TensorDict(stream0=torch.randn(4), stream1=torch.randn(5)),
    )


def test_000_02_lazy_stack_and_its_text(buckets):
    data = TensorDict.lazy_stack(buckets, dim=0)
    assert (
        str(data)
        == """LazyStackedTensorDict(
    fields={
        stream0: Tensor(shape=torch.Size([2, -1]), device=cpu, dtype=torch.float32, is_shared=False),
        stream1: Tensor(shape=torch.Size([2, -1]), device=cpu, dtype=torch.float32, is_shared=False)},
    exclusive_fields={
    },
    batch_size=torch.Size([2]),
    device=None,
    is_shared=False,
    stack_dim=0)"""
    )


def test_000_03_operations_on_a_lazy_stack(buckets):
    data = TensorDict.lazy_stack(buckets, dim=0)
    data_select = data.select("stream0")
    data_plus_1 = data + 1
    data_apply = data.apply(lambda x: x + 1)
    assert list(data_select.keys()) == ["stream0"]
    assert (data_plus_1 == data_apply).all()


def test_000_04_indexing_gives_the_member(buckets):
    data = TensorDict.lazy_stack(buckets, dim=0)
    assert data[0] is buckets[0]


def test_000_05_densify(buckets):
    data_cont = TensorDict.lazy_stack(buckets, dim=0).densify()
    assert data_cont["stream0"]._nested_tensor_size().tolist() == [[5], [4]]


async def generate_numbers(frequency, queue):
    i = 0
    while True:
        await asyncio.sleep(1 / frequency)
        await queue.put(i)
        i += 1


async def collect_data(queue, timeout):  # noqa: ASYNC109 (as in the document)
    values = []

    async def collect():
        nonlocal values
        while True:
            value = await queue.get()
            values.append(value)

    task = asyncio.create_task(collect())
    try:
        await asyncio.wait_for(task, timeout=timeout)
    except TimeoutError:
        task.cancel()
    return values


def test_000_06_a_second_of_a_stream_of_7_hz():
    async def wait7hz():
        queue = asyncio.Queue()
        generate_task = asyncio.create_task(generate_numbers(7, queue))
        collect_data_task = asyncio.create_task(collect_data(queue, timeout=1))
        values = await collect_data_task
        generate_task.cancel()
        return values

    assert run_on_virtual_clock(wait7hz()) == [0, 1, 2, 3, 4, 5]


class StreamedTensorDict(LazyStackedTensorDict):
    """A lazy stack class that can be built from a dictionary of streams."""

    @classmethod
    async def from_streams(cls, streams, timeout, batch_size, densify=True):  # noqa: ASYNC109
        td = cls(stack_dim=0)

        # We construct a queue for each stream
        queues = [asyncio.Queue() for _ in range(len(streams))]
        tasks = []
        for stream, queue in zip(streams.values(), queues, strict=True):
            task = asyncio.create_task(stream(queue))
            tasks.append(task)
        for _ in range(batch_size):
            values_tasks = []
            for queue in queues:
                values_task = asyncio.create_task(collect_data(queue, timeout))
                values_tasks.append(values_task)
            values = await asyncio.gather(*values_tasks)
            td.append(TensorDict(dict(zip(streams.keys(), values, strict=True))))

        # Cancel the generator tasks
        for task in tasks:
            task.cancel()
        if densify:
            return td.densify(layout=torch.strided)
        return td


async def main():
    def stream0(queue):
        return generate_numbers(frequency=7, queue=queue)

    def stream1(queue):
        return generate_numbers(frequency=3, queue=queue)

    return await StreamedTensorDict.from_streams(
        {"bucket0": stream0, "bucket1": stream1}, timeout=1, batch_size=10
    )


def test_000_07_a_subclass_built_with_append():
    td = StreamedTensorDict(stack_dim=0)
    td.append(TensorDict({"bucket0": [0, 1], "bucket1": [0]}))
    td.append(TensorDict({"bucket0": [2], "bucket1": [1]}))
    assert type(td) is StreamedTensorDict
    assert td.batch_size == torch.Size([2])


def test_000_08_two_streams_and_their_text():
    td = run_on_virtual_clock(main())
    assert (
        str(td)
        == """TensorDict(
    fields={
        bucket0: Tensor(shape=torch.Size([10, -1]), device=cpu, dtype=torch.int64, is_shared=False),
        bucket1: Tensor(shape=torch.Size([10, -1]), device=cpu, dtype=torch.int64, is_shared=False)},
    batch_size=torch.Size([10]),
    device=None,
    is_shared=False)"""
    )


def test_000_09_values_and_sizes_of_the_streams():
    td = run_on_virtual_clock(main())
    values = td["bucket0"].values()
    assert (values == torch.arange(len(values))).all()
    assert len(values) in (69, 70)
    assert len(td["bucket1"].values()) in (29, 30)
    assert set(td["bucket0"]._nested_tensor_size().flatten().tolist()) <= {6, 7, 8}


# --- 001, the README ------------------------------------------------------------------


def test_001_01_training_loop():
    # The document only names a dataset, a model and a loss.
    linear = nn.Linear(4, 1)
    before = linear.weight.detach().clone()
    dataset = TensorDict(
        {"input": torch.randn(12, 4), "target": torch.randn(12, 1)}, batch_size=[12]
    ).split(4)

    def model(data):
        return data.set("output", linear(data["input"]))

    def loss_module(data):
        return (data["output"] - data["target"]).pow(2).mean()

    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    train_one_epoch(dataset, model, loss_module, optimizer)
    assert not torch.equal(before, linear.weight)


def test_001_02_batch_size_and_entries(data):
    assert data.batch_size == data.shape == torch.Size([3, 4])
    assert data["key 2"].dtype is torch.bool


def device_casts_what_is_written(device):
    data = TensorDict(
        {
            "key 1": torch.ones(3, 4, 5),
            "key 2": torch.zeros(3, 4, 5, dtype=torch.bool),
        },
        batch_size=[3, 4],
        device=device,
    )
    data["key 3"] = torch.randn(3, 4, device="cpu")
    # The document compares with `is`; devices are equal and need not be identical.
    assert data["key 3"].device == torch.device(device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_001_03_device_casts_what_is_written_on_a_gpu():
    device_casts_what_is_written("cuda:0")


def test_001_03_device_casts_what_is_written():
    device_casts_what_is_written("meta")


def test_001_04_nested_key(data):
    data["nested", "key"] = torch.zeros(3, 4)  # the batch-size must match
    assert isinstance(data["nested"], TensorDict)
    assert data["nested"].batch_size == torch.Size([3, 4])


def test_001_05_nested_tuples_are_unravelled(data):
    data["nested", ("supernested", ("key",))] = torch.zeros(3, 4)
    assert (data["nested", "supernested", "key"] == 0).all()
    assert (("nested",), "supernested", (("key",),)) in data.keys(include_nested=True)


def test_001_06_a_string_as_an_entry(data):
    data["non-tensor"] = "a string!"
    assert data["non-tensor"] == "a string!"


def test_001_07_indexing(data):
    sub_tensordict = data[..., :2]
    assert sub_tensordict.shape == torch.Size([3, 2])
    assert sub_tensordict["key 1"].shape == torch.Size([3, 2, 5])


def test_001_08_stack_and_cat():
    tensordicts = [
        TensorDict(
            {
                "key 1": torch.ones(3, 4, 5),
                "key 2": torch.zeros(3, 4, 5, dtype=torch.bool),
            },
            batch_size=[3, 4],
        )
        for _ in range(2)
    ]
    stack_tensordict = torch.stack(tensordicts, 1)
    assert stack_tensordict.shape == torch.Size([3, 2, 4])
    assert stack_tensordict["key 1"].shape == torch.Size([3, 2, 4, 5])
    cat_tensordict = torch.cat(tensordicts, 0)
    assert cat_tensordict.shape == torch.Size([6, 4])
    assert cat_tensordict["key 1"].shape == torch.Size([6, 4, 5])


def test_001_09_view_reshape_unsqueeze(data):
    # The document prints the containers and shows their shapes.
    assert data.view(-1).shape == torch.Size([12])
    assert data.reshape(-1).shape == torch.Size([12])
    assert data.unsqueeze(-1).shape == torch.Size([3, 4, 1])


def test_001_10_apply():
    # Without the bool entry, for which torch has no uniform_.
    data = TensorDict({"key 1": torch.ones(3, 4, 5)}, batch_size=[3, 4])
    tensordict_uniform = data.apply(lambda tensor: tensor.uniform_())
    assert (tensordict_uniform["key 1"] < 1).all()
    assert tensordict_uniform["key 1"] is data["key 1"]


def test_001_11_apply_filters():
    data = TensorDict(
        {
            "a": torch.tensor(1.0, dtype=torch.float),
            "b": torch.tensor(1, dtype=torch.int64),
        },
        [],
    )
    data_float = data.apply(lambda x: x if x.dtype == torch.float else None)
    assert "b" not in data_float
    assert data_float["a"] is data["a"]


def _of_a_worker(rank, results):
    # On all workers: here the values of worker 1 differ, so that there is something to see.
    data = TensorDict({"a": torch.zeros(()), ("b", "c"): torch.ones(())}, [])
    data = data + rank
    if rank == 1:
        data.isend(dst=0)
    else:
        data.irecv(src=1)
        results.append(float(data["a"]))
    return [*results, float(data["b", "c"])]


def test_001_12_isend_and_irecv(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    workers = Ranks(2, tmp_path)
    try:
        assert workers.all(_of_a_worker, []) == [[1.0, 2.0], [2.0]]
    finally:
        workers.close()


def test_001_13_older_name_of_memory_mapped_tensors():
    # The document only names the class, which the release no longer has.
    assert issubclass(tensordict.MemmapTensor, MemoryMappedTensor)


def test_001_14_parameters_and_a_functional_call():
    layer1 = nn.Linear(3, 4)
    layer2 = nn.Linear(4, 4)
    model = nn.Sequential(layer1, layer2)
    params = TensorDict.from_module(model)
    # we represent the weights hierarchically
    weights1 = TensorDict(layer1.state_dict(), []).unflatten_keys(".")
    weights2 = TensorDict(layer2.state_dict(), []).unflatten_keys(".")
    assert (params == TensorDict({"0": weights1, "1": weights2}, [])).all()
    # Let's use our functional module
    x = torch.randn(10, 3)
    expected = model(x)
    with params.to_module(model):
        out = model(x)
    assert torch.equal(out, expected)
    with (params.data * 0).to_module(model):
        assert (model(x) == 0).all()
    assert torch.equal(model(x), expected)
    # an ensemble of models: we stack params along the first dimension...
    params_stack = torch.stack([params, params], 0)
    assert params_stack.shape == torch.Size([2])


def test_001_15_vmap_over_stacked_parameters():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
    params = TensorDict.from_module(model)
    x = torch.randn(10, 3)
    params_stack = torch.stack([params, params * 2], 0)

    # ... and use it as an input we'd like to pass through the model
    def func(x, params):
        with params.to_module(model):
            return model(x)

    y = vmap(func, (None, 0))(x, params_stack)
    assert y.shape == torch.Size([2, 10, 4])
    torch.testing.assert_close(y[0], model(x))
    with (params * 2).to_module(model):
        torch.testing.assert_close(y[1], model(x))


def test_001_16_parameter_serialization(tmp_path):
    # The path and the number of threads are ours.
    folder = tmp_path / "saved" / "folder"
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
    x = torch.randn(2, 3)
    params = TensorDict.from_module(model)
    params.memmap(folder, num_threads=2)
    expected = model(x)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert not torch.equal(model(x), expected)
    # load params
    params = TensorDict.load_memmap(folder, num_threads=2)
    params.to_module(model)  # load onto model
    assert torch.equal(model(x), expected)
    params["0"].to_module(model[0])  # load on a slice of the model
    # in the latter case we could also have loaded only the slice we needed
    params0 = TensorDict.load_memmap(folder / "0", num_threads=2)
    params0.to_module(model[0])  # load on a slice of the model
    assert torch.equal(model(x), expected)


def test_001_17_dataset_of_a_million_images(tmp_path):
    # allocate memory of the dataset on disk
    data = TensorDict(
        {
            "images": torch.zeros((128, 128, 3), dtype=torch.uint8),
            "labels": torch.zeros((), dtype=torch.int),
        },
        batch_size=[],
    )
    data = data.expand(1000000)
    # 49 GB of holes: nothing is stored but what is written below.
    data = data.memmap_like(tmp_path / "dataset")
    data["images"][10000] = 7
    data["labels"][500000] = 3
    # Let's get 3 items of our dataset:
    items = data[torch.tensor([1, 10000, 500000])]
    assert items.shape == torch.Size([3])
    assert items["images"].float().mean((1, 2, 3)).tolist() == [0.0, 7.0, 0.0]
    assert items["labels"].tolist() == [0, 0, 3]


def process_data(data):
    images = data.get("images").flip(-2).clone()
    labels = data.get("labels") // 10
    # we update the td inplace
    data.set_("images", images)  # flip image
    data.set_("labels", labels)  # cluster labels


def test_001_18_map_with_workers(tmp_path):
    # eight small images where the document has a million of 128 x 128
    data = TensorDict(
        {
            "images": torch.arange(8 * 4 * 3, dtype=torch.uint8).view(8, 4, 3, 1),
            "labels": torch.arange(0, 80, 10, dtype=torch.int),
        },
        batch_size=[8],
    ).memmap_(tmp_path / "dataset")
    expected = data["images"].flip(-2).clone()
    data_preproc = data.map(process_data, num_workers=4, chunksize=0, pbar=True)
    # the function updates its rows and returns nothing
    assert data_preproc is None
    assert torch.equal(data["images"], expected)
    assert data["labels"].tolist() == list(range(8))


def foo():
    data = TensorDict({}, batch_size=[])
    data["a"] = torch.randn(3)
    data["b"] = TensorDict({"c": torch.zeros(2)}, batch_size=[])
    return data


def test_001_19_stack_of_calls():
    data = torch.stack([foo() for _ in range(10)])
    assert data.batch_size == torch.Size([10])
    assert data["b", "c"].shape == torch.Size([10, 2])


def test_001_20_lazy_preallocation():
    n = 10
    torch.manual_seed(0)
    expected = [foo() for _ in range(n)]
    torch.manual_seed(0)
    data = TensorDict({}, batch_size=[n])
    for i in range(n):
        data[i] = foo()
        if i == 0:
            allocated = data["a"]
    assert data["a"] is allocated
    assert (data == torch.stack(expected)).all()
    # The text is that of 000 and 002: the README shows an older one.
    assert repr(data) == (
        "TensorDict(\n"
        "    fields={\n"
        "        a: Tensor(shape=torch.Size([10, 3]), device=cpu, "
        "dtype=torch.float32, is_shared=False),\n"
        "        b: TensorDict(\n"
        "            fields={\n"
        "                c: Tensor(shape=torch.Size([10, 2]), device=cpu, "
        "dtype=torch.float32, is_shared=False)},\n"
        "            batch_size=torch.Size([10]),\n"
        "            device=None,\n"
        "            is_shared=False)},\n"
        "    batch_size=torch.Size([10]),\n"
        "    device=None,\n"
        "    is_shared=False)"
    )


def test_001_20_lazy_preallocation_in_any_order():
    # "this would also work with a shuffled series of indices"
    expected = torch.stack([foo() for _ in range(10)])
    data = TensorDict({}, batch_size=[10])
    for i in torch.randperm(10).tolist():
        data[i] = expected[i]
    assert (data == expected).all()


@pytest.fixture
def deeper():
    return TensorDict(
        {
            "key 1": torch.ones(3, 4, 5),
            "key 2": TensorDict(
                {"sub-key": torch.randn(3, 4, 5, 6)}, batch_size=[3, 4, 5]
            ),
        },
        batch_size=[3, 4],
    )


def test_001_21_flatten_keys(deeper):
    tensordict_flatten = deeper.flatten_keys(separator=".")
    assert set(tensordict_flatten.keys()) == {"key 1", "key 2.sub-key"}


def test_001_22_nested_access(deeper):
    sub_value = deeper["key 2", "sub-key"]
    assert sub_value.shape == torch.Size([3, 4, 5, 6])


# --- 002, the reference of NonTensorData: its examples of saving -----------------------


def test_002_01_save_and_load(tmp_path):
    # The path is ours.
    td = TensorDict.fromkeys(["a", "b", "c", ("nested", "e")], 0)
    td.memmap(tmp_path / "saved_td")
    td_load = TensorDict.load_memmap(tmp_path / "saved_td")
    assert (td == td_load).all()
    nested = TensorDict.load_memmap(tmp_path / "saved_td" / "nested")
    assert nested["e"] == 0


def leaf_text(name, kind, device):
    return (
        f"{name}: {kind}(shape=torch.Size([]), device={device}, "
        "dtype=torch.float32, is_shared=False)"
    )


def test_002_02_load_on_meta(tmp_path):
    td = TensorDict({"a": torch.zeros(()), "b": {"c": torch.zeros(())}})
    td.save(tmp_path)
    td_load = TensorDict.load_memmap(tmp_path, device="meta")
    assert repr(td_load) == (
        "TensorDict(\n"
        "    fields={\n"
        f"        {leaf_text('a', 'Tensor', 'meta')},\n"
        "        b: TensorDict(\n"
        "            fields={\n"
        f"                {leaf_text('c', 'Tensor', 'meta')}}},\n"
        "            batch_size=torch.Size([]),\n"
        "            device=meta,\n"
        "            is_shared=False)},\n"
        "    batch_size=torch.Size([]),\n"
        "    device=meta,\n"
        "    is_shared=False)"
    )


def test_002_03_load_fake(tmp_path):
    from torch._subclasses import FakeTensor, FakeTensorMode

    td = TensorDict({"a": torch.zeros(()), "b": {"c": torch.zeros(())}})
    td.save(tmp_path)
    with FakeTensorMode():
        td_load = TensorDict.load_memmap(tmp_path)
    assert isinstance(td_load["b", "c"], FakeTensor)
    assert leaf_text("a", "FakeTensor", "cpu") in repr(td_load)


def test_002_04_memmap_like(tmp_path):
    td = TensorDict(
        {
            "a": torch.zeros((3, 64, 64), dtype=torch.uint8),
            "b": torch.zeros(1, dtype=torch.int64),
        },
        batch_size=[],
    ).expand(1_000_000)  # expand does not allocate new memory
    buffer = td.memmap_like(tmp_path / "dataset")
    assert buffer.shape == torch.Size([1_000_000])
    assert buffer["a"].shape == torch.Size([1_000_000, 3, 64, 64])


def test_002_05_construction():
    data = NonTensorData(data="a", batch_size=[3], device="cpu", names=["x"])
    assert data.data == "a"
    assert data.batch_size == torch.Size([3])
    assert data.device == torch.device("cpu")
    assert data.names == ["x"]


def test_002_06_reading_and_writing():
    data = NonTensorData("a", batch_size=[2])
    assert data.get("data") == "a"
    assert data.get("other", 0) == 0
    assert data.set("data", "b") is data
    assert data.tolist() == ["b", "b"]
    assert NonTensorData("a").tolist() == "a"
    assert data.maybe_to_stack().tolist() == ["b", "b"]
    first, second = data.unbind(0)
    assert first.data == second.data == "b"
    assert first.batch_size == torch.Size([])


def test_002_07_state_dict():
    data = NonTensorData("a", batch_size=[2])
    assert not data.state_dict()
    td = TensorDict(a=torch.ones(2), s="text", batch_size=[2])
    other = TensorDict(a=torch.zeros(2), s="text", batch_size=[2])
    assert (other.load_state_dict(td.state_dict()) == td).all()


def test_002_08_non_tensor_data_saved_and_loaded(tmp_path):
    data = NonTensorData(data="a string", batch_size=[3])
    td = TensorDict({"a": torch.arange(3), "text": data}, [3])
    future = td.memmap(tmp_path / "td", num_threads=2, return_early=True)
    assert future.result().is_memmap()
    loaded = TensorDict.load_memmap(tmp_path / "td")
    assert loaded["text"] == "a string"
    assert loaded["a"].tolist() == [0, 1, 2]
    shared = td.memmap(tmp_path / "shared", share_non_tensor=True)
    shared.update_({"text": NonTensorData("another", batch_size=[3])})
    assert shared["text"] == "another"
    like = td.memmap_like(tmp_path / "like")
    assert like["text"] == "a string"
    assert like["a"].tolist() == [0, 0, 0]


# --- 003, the README of pytorch-stream-dataloader -------------------------------------


def test_003_01_the_id_of_the_worker_is_yielded():
    class MyMagnificoIterable(IterableDataset):
        def __init__(self, files):
            self.files = files

        def __iter__(self):
            # The document imports torch.utils.data with torch.
            worker = torch.utils.data.get_worker_info()
            worker_id = int(worker.id) if worker is not None else 0
            for my_data in self.files[worker_id::2]:
                yield my_data, worker_id

    ds = MyMagnificoIterable(["a", "b", "c", "d"])
    # `torch.utils.DataLoader` there.
    forked = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "fork"}
    dataloader = DataLoader(ds, **forked)
    my_rnns = [[], []]
    for batch, worker_id in dataloader:
        the_good_rnn = my_rnns[worker_id]
        the_good_rnn.append(batch)
    assert my_rnns == [["a", "c"], ["b", "d"]]

    # The StreamDataset that the document describes.
    ds = StreamDataset(["ab", "cd"], iter, 2, "none")
    rows = [[], []]
    for batch, worker_id in DataLoader(ds, **forked):
        rows[worker_id] += batch
    assert rows == [["a", "b"], ["c", "d"]]


class TextStream:
    def __init__(self, text, tbins):
        self.text = np.frombuffer(text.encode(), dtype=np.uint8)  # np.fromstring there
        self.iter = 0
        self.tbins = tbins

    def __iter__(self):
        for i in range(0, len(self.text), self.tbins):
            data = self.text[i : i + self.tbins]
            # pad to tbins
            frame = np.zeros((1, self.tbins), dtype=np.float32)
            frame[0, : len(data)] = data
            yield (torch.from_numpy(frame), 0)


def test_003_02_an_iterator_over_one_stream():
    frames = [frame for frame, _ in TextStream("abcdefg", 5)]
    assert [frame.shape for frame in frames] == [(1, 5), (1, 5)]
    assert frames[1].tolist() == [[ord("f"), ord("g"), 0, 0, 0]]


def collate_texts(data_list):
    texts, _ = zip(*data_list, strict=True)
    return torch.cat(texts)


class TextLoader(StreamDataLoader):
    def __init__(self, texts, batch_size, num_workers, tbins=5):
        def iterator_fun(text):  # define a lambda to open ONE file
            return TextStream(text, tbins)

        dataset = StreamDataset(texts, iterator_fun, batch_size, "data", None)
        super().__init__(dataset, num_workers, collate_texts)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_003_03_rows_are_continuous(num_workers):
    texts = [
        "".join(f"{letter}_{number};" for number in range(9)) for letter in "abcdefgh"
    ]
    shown = [
        "\n".join(bytes(row.byte().tolist()).decode() for row in batch)
        for batch in TextLoader(texts, 8, num_workers, tbins=12)
    ]
    assert shown == [
        "\n".join(f"{x}_{n};{x}_{n + 1};{x}_{n + 2};" for x in "abcdefgh")
        for n in (0, 3, 6)
    ]
    # More streams than rows: the next one follows in the row that is free.
    longer = TextLoader(["a" * 10, "b" * 20, "c" * 10], 2, num_workers)
    assert ["".join(chr(int(row[0])) for row in batch) for batch in longer] == [
        "ab", "ab", "cb", "cb",
    ]  # fmt: skip


@pytest.mark.parametrize("num_workers", [0, 2])
def test_003_04_grid_of_videos(num_workers):
    class Video:
        """Frames of one colour that becomes brighter, instead of a file."""

        def __init__(self, path):
            self.colour = int(path.removesuffix(".mp4"))

        def __iter__(self):
            for number in range(2 + self.colour):
                frames = torch.full((2, 4, 4, 3), 10 * self.colour, dtype=torch.uint8)
                yield frames + number

    paths = [f"{number}.mp4" for number in range(5)]
    loader = StreamDataLoader(
        paths, Video, 4, num_workers, padding_mode="zeros", collate_fn=None
    )
    grids = [
        batch["data"][:, 0].reshape(2, 2, 4, 4, 3).permute(0, 2, 1, 3, 4).flatten(2, 3)
        for batch in loader
    ]
    assert grids[0].shape == (2, 4, 8, 3)
    corners = [grid[:, 0, ::4, 0].flatten().tolist() for grid in grids]
    assert corners == [
        [0, 10, 20, 30],
        [1, 11, 21, 31],
        [40, 12, 22, 32],
        [41, 0, 23, 33],
        [42, 0, 0, 34],
        [43, 0, 0, 0],
        [44, 0, 0, 0],
        [45, 0, 0, 0],
    ]


# --- 004, the overview ----------------------------------------------------------------


def test_004_01_training_loop():
    # The loop of 001-01 with a nested collection and a loss that writes, too.
    linear = nn.Linear(4, 1)
    dataset = [
        TensorDict({"data": {"x": torch.ones(2, 4), "y": torch.ones(2, 1)}}, [2])
        for _ in range(50)
    ]

    def model(tensordict):
        tensordict["data", "out"] = linear(tensordict["data", "x"])
        return tensordict

    def loss_module(tensordict):
        error = tensordict["data", "out"] - tensordict["data", "y"]
        tensordict["loss"] = error.pow(2).squeeze(-1)
        return tensordict["loss"].mean()

    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    train_one_epoch(dataset, model, loss_module, optimizer)
    assert (dataset[-1]["loss"] < 1e-3).all()


def test_004_02_dispatch_to_workers():
    # The pipes of the document lead to other processes; these lead back here.
    data = TensorDict({"a": torch.arange(40)}, batch_size=[40])
    workers = 4
    pipe = [multiprocessing.Pipe() for _ in range(workers)]
    # creates batches of 10 datapoints
    splits = torch.arange(data.shape[0]).split(10)
    for worker in range(workers):
        idx = splits[worker]
        pipe[worker][0].send(data[idx])
    received = [pipe[worker][1].recv() for worker in range(workers)]
    for ends in pipe:
        for end in ends:
            end.close()
    assert (torch.cat(received) == data).all()


def test_004_03_unbind_and_tree_map():
    td = TensorDict({"a": torch.randn(3, 11), "b": torch.randn(3, 3)}, batch_size=3)
    regular_dict = {"a": td["a"], "b": td["b"]}
    td0, td1, td2 = td.unbind(0)
    # similar structure with pytree; the document leaves out the dict and misplaces [i]
    regular_dicts = tree_map(lambda x: x.unbind(0), regular_dict)
    regular_dict1, regular_dict2, regular_dict3 = [
        {"a": regular_dicts["a"][i], "b": regular_dicts["b"][i]} for i in range(3)
    ]
    for td_row, dict_row in [
        (td0, regular_dict1),
        (td1, regular_dict2),
        (td2, regular_dict3),
    ]:
        assert (td_row == TensorDict(dict_row)).all()


def test_004_04_unbind_and_tree_map_nested():
    td = TensorDict(
        {"a": {"c": torch.randn(3, 11)}, "b": torch.randn(3, 3)}, batch_size=3
    )
    regular_dict = {"a": {"c": td["a", "c"]}, "b": td["b"]}
    rows = td.unbind(0)
    regular_dicts = tree_map(lambda x: x.unbind(0), regular_dict)
    regular_rows = [
        {"a": {"c": regular_dicts["a"]["c"][i]}, "b": regular_dicts["b"][i]}
        for i in range(3)
    ]
    for td_row, dict_row in zip(rows, regular_rows, strict=True):
        assert td_row.batch_size == torch.Size([])
        assert torch.equal(td_row["a", "c"], dict_row["a"]["c"])
        assert torch.equal(td_row["b"], dict_row["b"])


@pytest.fixture
def zeros_and_ones():
    return TensorDict(
        {"zeros": torch.zeros(2, 3, 4), "ones": torch.ones(2, 3, 4, 5)},
        batch_size=[2, 3],
    )


def test_004_05_construction(zeros_and_ones):
    assert zeros_and_ones.shape == torch.Size([2, 3])


def test_004_05_construction_checks_the_leading_dimensions():
    # "The leading dimensions of any values ... must be compatible"
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        TensorDict({"zeros": torch.zeros(2, 4)}, batch_size=[2, 3])


def test_004_06_get_and_set(zeros_and_ones):
    zeros = zeros_and_ones["zeros"]
    zeros_and_ones["twos"] = 2 * torch.ones(2, 3)
    assert (zeros == 0).all()
    assert (zeros_and_ones["twos"] == 2).all()


def test_004_07_indexing(zeros_and_ones):
    sub_tensordict = zeros_and_ones[..., :2]
    assert sub_tensordict.shape == torch.Size([2, 2])
    assert sub_tensordict["ones"].shape == torch.Size([2, 2, 4, 5])


def test_004_08_set_in_place(zeros_and_ones):
    # The document describes this in words.
    zeros = zeros_and_ones["zeros"]
    zeros_and_ones.set("zeros", torch.ones(2, 3, 4), inplace=True)
    zeros_and_ones.set("new", torch.ones(2, 3), inplace=True)
    assert zeros_and_ones["zeros"] is zeros
    assert (zeros == 1).all()
    zeros_and_ones.set_("zeros", torch.full((2, 3, 4), 2.0))
    assert (zeros == 2).all()
    with pytest.raises(KeyError):
        zeros_and_ones.set_("missing", torch.ones(2, 3))


def to_a_device(data, device):
    data = data.to(device)
    assert data.device == torch.device(device)
    assert all(leaf.device == torch.device(device) for leaf in data.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_004_09_to_a_gpu(zeros_and_ones):
    to_a_device(zeros_and_ones, "cuda:0")


def test_004_09_to_a_device(zeros_and_ones):
    to_a_device(zeros_and_ones, "meta")


def test_004_10_reshape(zeros_and_ones):
    reshaped = zeros_and_ones.reshape(6)
    assert reshaped.shape == torch.Size([6])
    assert reshaped["ones"].shape == torch.Size([6, 4, 5])


@pytest.fixture
def inputs_and_outputs():
    return TensorDict(
        {
            "inputs": {
                "image": torch.rand(100, 28, 28),
                "mask": torch.randint(2, (100, 28, 28), dtype=torch.uint8),
            },
            "outputs": {"logits": torch.randn(100, 10)},
        },
        batch_size=[100],
    )


def test_004_11_nested_construction(inputs_and_outputs):
    assert isinstance(inputs_and_outputs["inputs"], TensorDict)
    assert inputs_and_outputs["inputs"].batch_size == torch.Size([100])


def test_004_12_nested_get_and_set(inputs_and_outputs):
    image = inputs_and_outputs["inputs", "image"]
    logits = inputs_and_outputs.get(("outputs", "logits"))
    inputs_and_outputs["outputs", "probabilities"] = torch.sigmoid(logits)
    assert image.shape == torch.Size([100, 28, 28])
    assert list(inputs_and_outputs["outputs"].keys()) == ["logits", "probabilities"]


def lazily_stacked():
    tensordicts = [
        TensorDict({"a": torch.rand(10), "b": torch.rand(10, 100, 100)}, [10])
        for _ in range(3)
    ]
    with pytest.deprecated_call(), set_lazy_legacy(True):
        stacked = torch.stack(tensordicts, 0)  # no stacking happens here
    return tensordicts, stacked


def test_004_13_a_lazy_stack_in_lazy_mode():
    tensordicts, stacked = lazily_stacked()
    assert isinstance(stacked, LazyStackedTensorDict)
    stacked_a = stacked["a"]  # we stack the a values, b values are not stacked
    assert stacked_a.shape == torch.Size([3, 10])
    assert stacked[1] is tensordicts[1]


def test_004_14_writing_to_a_lazy_stack():
    tensordicts, stacked = lazily_stacked()
    stacked["a"] = torch.zeros_like(stacked["a"])
    assert (tensordicts[0]["a"] == 0).all()


def test_004_15_lazy_preallocation():
    n = 4
    data = TensorDict({}, batch_size=[n])
    for i in range(n):
        data[i] = foo()
    assert data["a"].shape == torch.Size([n, 3])


class LogitsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.LazyLinear(1)

    def forward(self, x):
        logits = self.linear(x)
        return logits, torch.sigmoid(logits)


@pytest.fixture
def logits_module():
    return TensorDictModule(
        LogitsNet(),
        in_keys=["input"],
        out_keys=[("outputs", "logits"), ("outputs", "probabilities")],
    )


def test_004_16_module(logits_module):
    tensordict = TensorDict({"input": torch.randn(32, 100)}, [32])
    tensordict = logits_module(tensordict)
    logits = tensordict["outputs", "logits"]
    probabilities = tensordict.get(("outputs", "probabilities"))
    assert torch.equal(probabilities, torch.sigmoid(logits))


def test_004_17_module_called_with_keywords(logits_module):
    # The document expects a collection.
    logits, probabilities = logits_module(input=torch.randn(32, 100))
    assert logits.shape == probabilities.shape == (32, 1)


def test_004_18_sequence():
    class Net(nn.Module):
        def __init__(self, input_size=100, hidden_size=50, output_size=10):
            super().__init__()
            self.fc1 = nn.Linear(input_size, hidden_size)
            self.fc2 = nn.Linear(hidden_size, output_size)

        def forward(self, x):
            x = torch.relu(self.fc1(x))
            return self.fc2(x)

    class Masker(nn.Module):
        def forward(self, x, mask):
            return torch.softmax(x * mask, dim=1)

    net = TensorDictModule(
        Net(), in_keys=[("input", "x")], out_keys=[("intermediate", "x")]
    )
    masker = TensorDictModule(
        Masker(),
        in_keys=[("intermediate", "x"), ("input", "mask")],
        out_keys=[("output", "probabilities")],
    )
    module = TensorDictSequential(net, masker)
    tensordict = TensorDict(
        {
            "input": TensorDict(
                {"x": torch.rand(32, 100), "mask": torch.randint(2, size=(32, 10))},
                batch_size=[32],
            )
        },
        batch_size=[32],
    )
    tensordict = module(tensordict)
    intermediate_x = tensordict["intermediate", "x"]
    probabilities = tensordict["output", "probabilities"]
    assert intermediate_x.shape == probabilities.shape == (32, 10)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(32))
    assert module.in_keys == [("input", "x"), ("input", "mask")]
    assert module.out_keys == [("intermediate", "x"), ("output", "probabilities")]
    only_net = module.select_subsequence(out_keys=[("intermediate", "x")])
    assert len(only_net) == 1


def test_004_19_functional_programming():
    layer1 = nn.Linear(3, 4)
    layer2 = nn.Linear(4, 4)
    model = nn.Sequential(layer1, layer2)
    weights1 = TensorDict(layer1.state_dict(), []).unflatten_keys(separator=".")
    weights2 = TensorDict(layer2.state_dict(), []).unflatten_keys(separator=".")
    params = make_functional(model)
    assert (params == TensorDict({"0": weights1, "1": weights2}, [])).all()
    x = torch.randn(10, 3)
    out = model(x, params=params)
    params_stack = torch.stack([params, params], 0)
    y = vmap(model, (None, 0))(x, params_stack)
    assert y.shape == torch.Size([2, 10, 4])
    torch.testing.assert_close(y[1], out)


def test_001_23_tensorclass():
    from tensordict.prototype import tensorclass

    @tensorclass
    class MyData:
        image: torch.Tensor
        mask: torch.Tensor
        label: torch.Tensor

        def mask_image(self):
            return self.image[self.mask.expand_as(self.image)].view(
                *self.batch_size, -1
            )

        def select_label(self, label):
            return self[self.label == label]

    images = torch.randn(100, 3, 8, 8)
    label = torch.arange(100) % 10
    mask = torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[:, :4, :5] = True
    data = MyData(images, mask.expand(100, 1, 8, 8), label=label, batch_size=[100])
    assert repr(data.select_label(1)) == (
        "MyData(\n"
        "    image=Tensor(shape=torch.Size([10, 3, 8, 8]), device=cpu, "
        "dtype=torch.float32, is_shared=False),\n"
        "    label=Tensor(shape=torch.Size([10]), device=cpu, dtype=torch.int64, "
        "is_shared=False),\n"
        "    mask=Tensor(shape=torch.Size([10, 1, 8, 8]), device=cpu, "
        "dtype=torch.bool, is_shared=False),\n"
        "    batch_size=torch.Size([10]),\n"
        "    device=None,\n"
        "    is_shared=False)"
    )
    assert data.mask_image().shape == torch.Size([100, 60])
    assert type(data.reshape(10, 10)) is MyData
    assert data.reshape(10, 10).image.shape == torch.Size([10, 10, 3, 8, 8])


# --- The table ------------------------------------------------------------------------


def test_the_table_and_the_tests_name_the_same_examples():
    row = re.compile(r"^\| (\d{3})-(\d{2}) \|.*\| (as is|adapted|GPU)\b", re.MULTILINE)
    listed = {}
    for document, example, how in row.findall(TABLE.read_text(encoding="utf-8")):
        assert (document, example) not in listed
        listed[document, example] = how
    tested = {
        tuple(name.split("_")[1:3]) for name in globals() if name.startswith("test_0")
    }
    runnable = set(listed)
    assert tested == runnable
