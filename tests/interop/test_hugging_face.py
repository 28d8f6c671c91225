"""Hugging Face's ``datasets``: both ways, and its format "tensordict"."""

import sys
import types

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorDict,
    from_hf,
    lazy_stack,
    tensorclass,
    to_hf,
)
from tensordict.interop import hugging_face

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()

CARRIED = (
    *(torch.bool, torch.float16, torch.float32, torch.float64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
REFUSED = (torch.bfloat16, torch.complex64, torch.float8_e4m3fn)


@tensorclass
class Pet:
    age: torch.Tensor
    name: str


def jagged(*sizes):
    return torch.nested.nested_tensor(
        [torch.arange(size) for size in sizes], layout=torch.jagged
    )


def whole():
    return TensorDict(
        {
            "image": torch.arange(24, dtype=torch.uint8).view(3, 2, 2, 2),
            "n": {
                "flag": torch.tensor([[True], [False], [True]]),
                "x": torch.arange(3.0),
            },
            "text": ["007", "", "Fidö"],
            "none": NonTensorStack("a", None, "b"),
            "tokens": jagged(1, 2, 3),
        },
        [3],
    )


def same(left, right):
    assert left.batch_size == right.batch_size
    assert set(left.keys()) == set(right.keys())
    for key, value in left.items():
        other = right._get_entry(key, None)
        if not isinstance(value, torch.Tensor):
            if value._is_non_tensor:
                assert value.tolist() == other.tolist()
            else:
                same(value, other)
            continue
        assert (value.dtype, value.is_nested) == (other.dtype, other.is_nested)
        if value.is_nested:
            assert all(map(torch.equal, value.unbind(), other.unbind()))
        else:
            assert torch.equal(value, other)


@pytest.mark.parametrize("dtype", CARRIED, ids=str)
def test_dtypes_come_back(dtype):
    td = TensorDict(
        {
            "scalar": torch.tensor([0, 1]).to(dtype),
            "array": torch.arange(12).view(2, 3, 2).to(dtype),
            "deep": {"row": torch.ones(2, 4).to(dtype)},
        },
        [2],
    )
    dataset = to_hf(td)
    same(from_hf(dataset), td)
    same(dataset.with_format("tensordict")[:], td)
    assert dataset.with_format("tensordict")[1]["array"].dtype == dtype


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_other_dtypes_are_refused_by_name(dtype):
    td = TensorDict(n={"a": torch.zeros(2).to(dtype)}, batch_size=[2])
    with pytest.raises(TypeError, match=rf"{dtype} at \('n', 'a'\)"):
        to_hf(td)


def test_all_kinds_of_entries_come_back(tmp_path):
    dataset = to_hf(whole())
    same(from_hf(dataset), whole())
    dataset.save_to_disk(tmp_path / "d")
    kept = datasets.load_from_disk(tmp_path / "d")
    same(from_hf(kept), whole())
    same(from_hf(kept.to_iterable_dataset()), whole())
    assert list(from_hf(kept.select([2, 0]))["text"]) == ["Fidö", "007"]
    assert list(from_hf(kept, columns=["text"]).keys()) == ["text"]


def test_a_batch_may_be_written(tmp_path):
    to_hf(whole()).save_to_disk(tmp_path / "d")
    # The file is mapped for reading only.
    kept = datasets.load_from_disk(tmp_path / "d")
    batch = kept.with_format("tensordict")[:2]
    batch["image"] += 1
    from_hf(kept)["image"].zero_()
    assert kept.with_format("tensordict")[:2]["image"][0, 0, 0].tolist() == [0, 1]


@pytest.mark.parametrize(
    "td",
    [
        lazy_stack([TensorDict(a=torch.arange(n), b=torch.ones(2)) for n in (1, 3)]),
        lazy_stack([TensorDict(a=torch.ones(2)), TensorDict(a=torch.zeros(2))]),
        Pet(age=torch.tensor([3, 9]), name="Rex", batch_size=[2]),
        TensorDict(a=torch.rand(3, 2), batch_size=[3])._get_sub_tensordict(slice(1, 3)),
        TensorDict(
            a=torch.rand(2), s=NonTensorData("x", batch_size=[2]), batch_size=[2]
        ),
        TensorDict(
            a=torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), batch_size=[2]
        ),
    ],
    ids=["ragged", "stack", "class", "view", "one value", "strided"],
)
def test_all_collections(td):
    found = from_hf(to_hf(td))
    for at, row in enumerate(td.unbind(0)):
        for key in row.keys():
            value = row.get(key)
            other = found[at].get(key)
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, other)
            else:
                assert getattr(value, "data", value) == getattr(other, "data", other)


def test_features_are_cast():
    label = datasets.ClassLabel(names=["cat", "dog"])
    dataset = to_hf(
        TensorDict(y=torch.tensor([1, 0]), batch_size=[2]),
        features=datasets.Features({"y": label}),
    )
    assert dataset.features["y"].names == ["cat", "dog"]
    assert from_hf(dataset)["y"].tolist() == [1, 0]


def test_rows_columns_and_batches():
    dataset = to_hf(whole()).with_format("tensordict")
    same(dataset[1].unsqueeze(0), whole()[1:2].to_lazystack(0)[0].unsqueeze(0))
    assert dataset["image"][:].dtype == torch.uint8
    assert list(dataset["text"][:]) == ["007", "", "Fidö"]
    same(dataset[[2, 0]], whole()[[2, 0]])
    same(next(dataset.iter(2)), whole()[:2])
    part = dataset.with_format("tensordict", columns=["n"], device="cpu")[:]
    assert list(part.keys()) == ["n"]
    assert part.device == torch.device("cpu")


def test_loaders():
    dataset = (
        to_hf(whole()).remove_columns(["tokens", "none"]).with_format("tensordict")
    )
    batch = next(iter(DataLoader(dataset, batch_size=2)))
    same(batch, whole()[:2].exclude("tokens", "none"))
    sampler = BatchSampler(SequentialSampler(dataset), 2, False)
    loader = DataLoader(
        dataset, batch_size=None, sampler=sampler, collate_fn=lambda x: x
    )
    assert [len(batch) for batch in loader] == [2, 1]
    plain = to_hf(whole()).select_columns(["image"]).with_format("torch")
    assert next(iter(DataLoader(plain, batch_size=2)))["image"].shape == (2, 2, 2, 2)


def test_streams_and_functions():
    dataset = to_hf(whole()).remove_columns(["tokens"])
    stream = dataset.to_iterable_dataset().with_format("tensordict")
    assert next(iter(stream))["image"].dtype == torch.uint8
    mapped = dataset.with_format("tensordict").map(
        lambda row: {"s": row["image"].sum()}
    )
    assert mapped[0]["s"] == 28
    rows = dataset.to_iterable_dataset().map(
        lambda row: {"more": len(row["text"])}, features=None
    )
    assert next(iter(rows.with_format("tensordict")))["more"] == 3


def test_images_arrays_and_lists():
    images = pytest.importorskip("PIL.Image")
    features = datasets.Features(
        {
            "im": datasets.Image(),
            "grid": datasets.Array2D((2, 3), "float32"),
            "open": datasets.Array2D((None, 3), "uint8"),
            "even": datasets.List(datasets.Value("int32")),
            "odd": datasets.List(datasets.Value("int32")),
            "deep": datasets.List(datasets.List(datasets.Value("uint8"))),
        }
    )
    dataset = datasets.Dataset.from_dict(
        {
            "im": [
                images.fromarray(np.full((4, 5, 3), value, np.uint8))
                for value in (1, 2)
            ],
            "grid": [np.ones((2, 3)), np.zeros((2, 3))],
            "open": [np.ones((1, 3)), np.zeros((2, 3))],
            "even": [[1, 2], [3, 4]],
            "odd": [[1], [3, 4]],
            "deep": [[[1, 2]], [[3, 4]]],
        },
        features=features,
    )
    td = from_hf(dataset)
    assert td["im"].shape == (2, 3, 4, 5)
    assert td["im"].dtype == torch.uint8
    assert td["grid"].dtype == torch.float32
    assert td["grid"].sum() == 6
    assert [len(part) for part in td["open"].unbind()] == [1, 2]
    assert td["open"].dtype == torch.uint8
    assert td["even"].tolist() == [[1, 2], [3, 4]]
    assert [part.tolist() for part in td["odd"].unbind()] == [[1], [3, 4]]
    assert td["deep"].shape == (2, 1, 2)
    assert from_hf(dataset.select([1]))["odd"].tolist() == [[3, 4]]
    assert dataset.with_format("tensordict")[1]["im"].shape == (3, 4, 5)
    assert list(from_hf(dataset, columns=["im"]).keys()) == ["im"]


def test_nulls():
    dataset = datasets.Dataset.from_dict({"a": [1, None], "t": ["x", None]})
    with pytest.raises(ValueError, match="null"):
        from_hf(dataset)
    with pytest.raises(ValueError, match="null"):
        dataset.with_format("tensordict")[:]
    td = from_hf(dataset, nulls="mask")
    assert td["_mask", "a"].tolist() == [True, False]
    assert list(td["t"]) == ["x", None]
    assert dataset.with_format("tensordict", nulls="fill")[1]["a"] == 0


def test_no_rows():
    td = whole().exclude("tokens")[:0]
    found = from_hf(to_hf(td))
    assert found.batch_size == (0,)
    assert found["image"].shape == (0, 2, 2, 2)
    assert found["image"].dtype == torch.uint8


def test_what_is_refused():
    dataset = to_hf(whole())
    with pytest.raises(ValueError, match=r"dataset\['train'\]"):
        from_hf(datasets.DatasetDict(train=dataset))
    with pytest.raises(TypeError, match="got a list"):
        from_hf([])
    with pytest.raises(TypeError, match="collection"):
        to_hf({})
    with pytest.raises(ValueError, match="one batch dim"):
        to_hf(TensorDict(a=torch.zeros(2, 3), batch_size=[2, 3]))
    with pytest.raises(ValueError, match=r"\(2, 0\) at 'a'"):
        to_hf(TensorDict(a=torch.zeros(2, 0), batch_size=[2]))
    mixed = TensorDict(n={"v": NonTensorStack(1, "x")}, batch_size=[2])
    with pytest.raises(TypeError, match=r"\('n', 'v'\)"):
        to_hf(mixed)


def test_another_module_of_that_name_is_left_alone(monkeypatch):
    other = types.ModuleType("datasets")
    monkeypatch.setitem(sys.modules, "datasets", other)
    monkeypatch.delitem(sys.modules, "datasets.formatting", raising=False)
    hugging_face.register()
    assert not hasattr(other, "formatting")


def test_without_datasets_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    for call in (lambda: to_hf(whole()), lambda: from_hf([])):
        with pytest.raises(ImportError, match=r"tensordict-rs\[datasets\]"):
            call()
