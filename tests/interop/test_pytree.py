"""Collections as nodes of a pytree."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from separate_process import check_freshly
from tensordict import TensorDict, tensorclass
from tensordict._pytree import PYTREE_REGISTERED_TDS
from tensordict.nn.functional_modules import _exclude_td_from_pytree


@pytest.fixture
def td():
    return TensorDict(
        {"a": torch.zeros(3, 2), "n": TensorDict({"b": torch.ones(3, 4)}, [3, 4])},
        [3],
        names=["x"],
    )


def test_tree_map_rebuilds_the_same_structure(td):
    result = pytree.tree_map(lambda x: x + 1, td)
    assert type(result) is TensorDict
    assert result.names == ["x"]
    assert result["n"].batch_size == torch.Size([3, 4])
    assert result["n", "b"].sum() == 24


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (lambda x: x[:2], [2]),
        (lambda x: x[0], []),
        (lambda x: x[None], [1, 3]),
        (lambda x: x.sum(), []),
        (lambda x: x.unsqueeze(-1), [3]),
    ],
)
def test_tree_map_finds_the_batch_size_that_leaves_allow(td, function, size):
    assert list(pytree.tree_map(function, td).batch_size) == size


def test_paths_are_mapping_keys(td):
    paths = [path for path, _ in pytree.tree_flatten_with_path(td)[0]]
    assert paths == [
        (pytree.MappingKey("a"),),
        (pytree.MappingKey("n"), pytree.MappingKey("b")),
    ]


def test_structures_differ_by_keys_and_dims_not_by_sizes(td):
    spec = pytree.tree_structure(td)
    assert spec == pytree.tree_structure(td[:2])
    assert spec != pytree.tree_structure(td.unsqueeze(0))
    assert spec != pytree.tree_structure(td.select("a"))


def test_a_device_that_no_longer_holds_is_dropped():
    td = TensorDict({"a": torch.zeros(2)}, [2], device="cpu")
    assert pytree.tree_map(lambda x: x.to("meta"), td).device is None
    assert pytree.tree_map(lambda x: x, td).device == torch.device("cpu")


def test_a_part_is_rebuilt_as_a_plain_container(td):
    part = td._get_sub_tensordict(slice(0, 2))
    assert type(pytree.tree_map(lambda x: x, part)) is TensorDict


def test_exclude_from_pytree_for_a_block(td):
    with _exclude_td_from_pytree():
        assert pytree.tree_leaves(td)[0] is td
    assert len(pytree.tree_leaves(td)) == 2


def test_registered_classes_are_listed():
    assert all(cls in pytree.SUPPORTED_NODES for cls in PYTREE_REGISTERED_TDS)


def test_environment_variable_keeps_collections_out():
    code = (
        "import torch, tensordict\n"
        "from torch.utils import _pytree\n"
        "td = tensordict.TensorDict(a=torch.zeros(1))\n"
        "assert _pytree.tree_leaves(td)[0] is td\n"
    )
    check_freshly(code, environment={"EXCLUDE_TD_FROM_PYTREE": "1"})


# Values that are no tensors ----------------------------------------------------------


@tensorclass
class Labelled:
    x: torch.Tensor
    label: str = "none"


def test_a_value_is_part_of_the_structure_and_no_leaf():
    td = TensorDict(a=torch.ones(3), n={"s": "deep"}, s="text", batch_size=[3])
    assert [type(leaf) for leaf in pytree.tree_leaves(td)] == [torch.Tensor]
    mapped = pytree.tree_map(lambda x: x + 1, td)
    assert list(mapped.keys(True)) == list(td.keys(True))
    assert (mapped["s"], mapped["n", "s"]) == ("text", "deep")
    paths, _ = pytree.tree_flatten_with_path(td)
    assert [pytree.keystr(path) for path, _ in paths] == ["['a']"]


def test_a_value_has_the_batch_size_of_what_is_rebuilt():
    td = TensorDict(a=torch.ones(3, 2), s="text", batch_size=[3])
    mapped = pytree.tree_map(lambda x: x[0], td)
    assert mapped.get("s").batch_size == mapped.batch_size == torch.Size([2])
    grown = pytree.tree_map(lambda x: x.expand(4, *x.shape), td)
    assert grown.get("s").batch_size == grown.batch_size == torch.Size([4, 3])


def test_gradients_beside_values():
    data = Labelled(torch.ones(3), "name", batch_size=[3])
    found = torch.func.grad(lambda data: (data.x**2).sum())(data)
    assert found.label == "name"
    assert found.x.tolist() == [2.0, 2.0, 2.0]
    td = TensorDict(a=torch.ones(2), s="text")
    found = torch.func.jacrev(lambda td: td["a"] * 2)(td)
    assert found["s"] == "text"
    assert found["a"].tolist() == [[2.0, 0.0], [0.0, 2.0]]


# optree -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first", ["import optree, tensordict", "import tensordict, optree"]
)
def test_optree_knows_containers_in_the_namespace_of_torch(first):
    pytest.importorskip("optree")
    code = (
        f"{first}; import torch\n"
        "from tensordict import LazyStackedTensorDict, TensorDict, tensorclass\n"
        "@tensorclass\n"
        "class Data:\n"
        "    x: torch.Tensor\n"
        "    s: str = 'text'\n"
        "td = TensorDict(a=torch.ones(3), n={'b': torch.ones(3), 's': 'x'})\n"
        "stack = LazyStackedTensorDict(td, td.clone(), stack_dim=0)\n"
        "data = Data(x=td['a'])\n"
        "for value, count in ((td, 2), (stack, 4), (data, 1), (TensorDict(n=td), 2)):\n"
        "    assert len(optree.tree_leaves(value, namespace='torch')) == count\n"
        "    made = optree.tree_map(lambda x: x + 1, value, namespace='torch')\n"
        "    assert type(made) is type(value)\n"
        "    assert (made == value + 1).all()\n"
        "assert optree.tree_leaves(td) == [td]\n"
    )
    check_freshly(code)
