"""Devices and dtypes."""

from __future__ import annotations

import pytest
import torch

from tensordict.ops.device import normalize_device


def pair(container, **options):
    """Floats and integers, with a nested collection."""
    nested = {"b": torch.tensor([1, -2])}
    return container({"a": torch.ones(2, 3), "n": nested}, [2], **options)


def test_to_a_device_moves_everything_and_says_so(container) -> None:
    td = pair(container, names=["x"]).lock_()
    result = td.to("meta")
    assert result.device == result["n"].device == torch.device("meta")
    assert result["n", "b"].is_meta
    assert result.is_locked
    assert result.names == ["x"]
    assert td.device is None


def test_to_where_nothing_changes_is_the_collection_itself(container) -> None:
    td = pair(container, device="cpu")
    assert td.to("cpu") is td
    assert td.cpu() is td
    assert td.to() is td
    assert td.to(other=container(device="cpu")) is td


def test_to_shares_the_leaves_that_fit(container) -> None:
    td = pair(container)
    moved = td.to("cpu")
    assert moved is not td
    assert moved["a"] is td["a"]
    assert td.to(torch.float32)["a"] is td["a"]


def test_to_takes_a_tensor_or_a_collection_as_example(container) -> None:
    td = pair(container)
    result = td.to(torch.zeros(1, dtype=torch.float64))
    assert result.device == torch.device("cpu")
    assert result["n", "b"].dtype == torch.float64
    assert td.to(container(device="meta")).device == torch.device("meta")


def test_to_inplace_replaces_the_leaves(container) -> None:
    td = pair(container)
    nested = td["n"]
    assert td.to(torch.float64, inplace=True) is td
    assert td["n"] is nested
    assert td["n", "b"].dtype == torch.float64
    with pytest.raises(RuntimeError, match="locked"):
        td.lock_().to("meta", inplace=True)
    assert td["a"].device.type == "cpu"


def test_to_refuses_copy_and_what_it_does_not_know(container) -> None:
    with pytest.raises(RuntimeError, match="copy"):
        pair(container).to("cpu", copy=True)
    with pytest.raises(TypeError):
        pair(container).to("cpu", colour="red")
    with pytest.raises(RuntimeError):
        pair(container).to("nowhere")


def test_memory_format_concerns_leaves_of_its_dims(container) -> None:
    td = container(image=torch.zeros(2, 3, 4, 4), label=torch.zeros(2), batch_size=[2])
    result = td.to("cpu", memory_format=torch.channels_last)
    assert result["image"].is_contiguous(memory_format=torch.channels_last)


def test_the_device_cannot_be_set(container) -> None:
    with pytest.raises(RuntimeError, match="cannot be set"):
        pair(container).device = "cpu"


def test_auto_device_finds_the_common_device(container) -> None:
    td = pair(container)
    assert td.auto_device_() is td
    assert td["n"].device == torch.device("cpu")
    td.clear_device_()
    assert td.device is td["n"].device is None
    td["a"] = torch.zeros(2, device="meta")
    assert td.auto_device_().device is None


def test_a_device_without_index_is_the_current_one(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert normalize_device("cuda") == torch.device("cuda:3")
    assert normalize_device("cuda:1") == torch.device("cuda:1")
    assert normalize_device("cpu") == torch.device("cpu")


def test_casts_keep_what_fits_and_heed_the_filter(container) -> None:
    td = pair(container).lock_()
    result = td.float()
    assert result["a"] is td["a"]
    assert result["n", "b"].dtype == torch.float32
    assert result.is_locked
    some = td.double(cast_filter=lambda path, leaf: path == ("n", "b"))
    assert some["a"].dtype == torch.float32
    assert some["n", "b"].dtype == torch.float64


def test_dtype_is_that_of_all_leaves(container) -> None:
    assert pair(container).dtype is None
    assert pair(container).double().dtype == torch.float64
    assert container().dtype is None


def test_quantized_casts_warn(container) -> None:
    with pytest.warns(DeprecationWarning, match="quantize_per_tensor"):
        container().qint8()


def test_bytes_counts_shared_tensors_once_on_request(container) -> None:
    leaf = torch.zeros(3)
    td = container(a=leaf, b=leaf)
    assert td.bytes() == 24
    assert td.bytes(count_duplicates=False) == 12
    assert td.param_count() == 6
    assert td.param_count(count_duplicates=False) == 3


@pytest.mark.parametrize("device", [None, "cpu"])
def test_what_is_shared_is_told_whatever_device_is_named(container, device) -> None:
    td = container({"a": torch.zeros(2)}, batch_size=[2], device=device)
    assert not td.is_shared()
    assert td.share_memory_().is_shared()
