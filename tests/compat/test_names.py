"""Names are found where clients of the release import them from."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path

import pytest
import torch

import tensordict
from separate_process import check_freshly
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    PersistentTensorDict,
    TensorDict,
    TensorDictBase,
    TensorDictParams,
    base,
    is_leaf_nontensor,
    lazy_stack,
    tensorclass,
    utils,
)

NAMES = json.loads(
    (Path(__file__).parent / "names_0_15_3.json").read_text(encoding="utf-8")
)


@tensorclass
class Pair:
    a: torch.Tensor
    note: str | None = None


def nested() -> TensorDict:
    return TensorDict(
        a=torch.ones(2), n=TensorDict(b=torch.zeros(2, 3), batch_size=[2]), batch_size=2
    )


def ragged() -> LazyStackedTensorDict:
    return lazy_stack([TensorDict(a=torch.ones(2)), TensorDict(a=torch.ones(3))])


@pytest.mark.parametrize("module", NAMES)
def test_module_has_the_names_of_the_release(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = importlib.import_module(module)
        missing = [name for name in NAMES[module] if not hasattr(found, name)]
    assert not missing


def test_names_are_the_same_objects_everywhere():
    assert utils.assert_close is tensordict.assert_close
    assert importlib.import_module("tensordict.nn.utils").Buffer is torch.nn.Buffer
    assert utils.is_compiling is torch.compiler.is_compiling
    module = importlib.import_module("tensordict.tensorclass")
    assert module.is_tensorclass is tensordict.is_tensorclass
    with pytest.raises(AttributeError, match=r"'tensordict\.utils' has no attribute"):
        _ = utils.no_such_name
    with pytest.raises(AttributeError, match="_private"):
        _ = base._private


def test_dir_shows_public_names_only():
    shown = dir(tensordict)
    assert {"TensorDict", "nn", "data", "stack"} < set(shown)
    assert {name for name in shown if name.startswith("_")} == {"__version__"}
    assert not {"ops", "containers", "interop", "collection"} & set(shown)
    assert all(hasattr(tensordict, name) for name in shown)


def test_importing_loads_none_of_what_comes_later():
    # Torch itself may import some of the libraries, so what it brings does not count.
    program = (
        "import sys, torch; before = set(sys.modules); import tensordict; "
        "print({'tensordict.store', 'tensordict.persistent', 'tensordict.nn', "
        "'tensordict.interop.tables', 'pandas', 'polars', 'pyarrow', "
        "'tensordict.cli', 'tensordict.cli.demo', 'tensordict.cli.doctor', "
        "'tqdm', 'cloudpickle', 'optree', 'torch._dynamo'} "
        "& (set(sys.modules) - before))"
    )
    assert check_freshly(program) == "set()\n"


def test_persistent_is_a_class_of_collections_from_everywhere():
    assert issubclass(PersistentTensorDict, TensorDictBase)
    for path in ("persistent", "_lazy", "_pytree", "_torch_func"):
        module = importlib.import_module(f"tensordict.{path}")
        assert module.PersistentTensorDict is PersistentTensorDict


# Names that are not public, but used -----------------------------------------------


@pytest.mark.parametrize(
    "td",
    [nested(), ragged(), Pair(a=torch.ones(2)), TensorDictParams(nested())],
    ids=lambda td: type(td).__name__,
)
def test_keys_are_completed(td):
    assert td._ipython_key_completions_() == list(td.keys())
    assert "a" in td._ipython_key_completions_()


def test_checks_of_entries():
    td = nested()
    assert td._check_batch_size()
    assert td._check_device()
    assert ragged()._check_batch_size()
    td["n"]._tensordict["b"] = torch.zeros(3)
    assert not td._check_batch_size(raise_exception=False)
    with pytest.raises(RuntimeError, match=r"incongruent.*\[3\].*\[2\].*'b'"):
        td._check_batch_size()
    td = TensorDict(n={"a": torch.ones(2)}, device="cpu")
    assert td._check_device()
    td._tensordict["n"]._tensordict["a"] = torch.ones(2, device="meta")
    assert not td._check_device(raise_exception=False)
    with pytest.raises(RuntimeError, match="devices are incongruent.*meta.*cpu"):
        td._check_device()


def test_has_non_tensor():
    assert not nested()._has_non_tensor
    assert TensorDict(n={"s": "text"})._has_non_tensor
    assert Pair(a=torch.ones(2), note="x")._has_non_tensor
    assert not Pair(a=torch.ones(2))._has_non_tensor
    assert lazy_stack([TensorDict(s="x"), TensorDict(s="y")])._has_non_tensor
    assert not NonTensorData("x")._has_non_tensor


def test_values_list():
    td = nested()
    assert [value is td["a"] for value in td._values_list()] == [True, False]
    leaves = td._values_list(True, True)
    assert all(x is y for x, y in zip(leaves, [td["a"], td["n", "b"]], strict=True))
    assert len(td._values_list(True)) == 3
    assert td._items_list(True, True)[0] == ["a", ("n", "b")]
    assert td._values_list(sorting_keys=[("n", "b")])[0] is td["n", "b"]
    stack = ragged()
    assert stack._items_list()[0] == [("0", "a"), ("1", "a")]
    assert [value.shape[0] for value in stack._values_list()] == [2, 3]
    with pytest.raises(RuntimeError, match="Failed to stack"):
        stack._values_list(collapse=True)
    assert NonTensorStack("x", "y")._values_list() == []
    td["s"] = "text"
    assert len(td._values_list(True, True)) == 2
    assert len(td._values_list(True, True, is_leaf=is_leaf_nontensor)) == 3


def test_private_names_of_base_and_utils():
    assert base._is_tensor_collection(TensorDict)
    assert not base._is_tensor_collection(torch.Tensor)
    td = nested().lock_()
    with pytest.raises(RuntimeError) as refused:
        td["c"] = torch.ones(2)
    assert utils._LOCK_ERROR in str(refused.value)
    with pytest.raises(TypeError, match=r"Only NestedKeys are supported.*Got key 1\."):
        raise TypeError(base._GENERIC_NESTED_ERR.format(1))


@pytest.mark.parametrize("key", ["a", "a/b", "..", "", "a b", "a%2Fb", "é", "a.b"])
def test_keys_as_names_of_files(key, tmp_path):
    name = utils._encode_key_for_filesystem(key)
    assert utils._decode_key_from_filesystem(name) == key
    assert utils._encode_key_for_filesystem(key, robust=False) == key
    TensorDict({key: torch.ones(2)}).memmap_(tmp_path / "save")
    assert (tmp_path / "save" / f"{name}.memmap").exists()
