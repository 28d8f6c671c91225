"""Values whose type JSON does not say come back as they were, from every layout."""

from collections import OrderedDict, defaultdict
from pathlib import Path

import pytest
import torch

from tensordict import NonTensorData, NonTensorStack, TensorDict, to_safetensors

SIZE = torch.Size([2, 3])
VALUES = [
    SIZE,
    (SIZE, [SIZE, ()]),
    OrderedDict(z=1, a=(2, SIZE)),
    [OrderedDict(k=OrderedDict()), {"k": OrderedDict(x=[(1,)])}],
    ({"k": (OrderedDict(x=(1, [2])), [])},),
]


def load_saved(td: TensorDict, path: Path) -> TensorDict:
    if path.name == "consolidated":
        td.consolidate(path)
    elif path.suffix == ".safetensors":
        to_safetensors(td, path)
    else:
        td.save(path)
    return TensorDict.load(path)


def types_of(value):
    """The types in a value, in the shape of it."""
    if isinstance(value, dict):
        items = [(key, types_of(item)) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [types_of(item) for item in value]
    else:
        items = []
    return type(value), items


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("name", ["tree", "x.tdz", "x.safetensors", "consolidated"])
def test_types_of_a_value(tmp_path, name, value):
    td = TensorDict(v=NonTensorData(value), a=torch.ones(2))
    loaded = load_saved(td, tmp_path / name)["v"]
    assert loaded == value
    assert types_of(loaded) == types_of(value)


@pytest.mark.parametrize("name", ["tree", "x.tdz", "consolidated"])
def test_types_in_a_column(tmp_path, name):
    td = TensorDict(v=NonTensorStack(*VALUES), batch_size=[len(VALUES)])
    loaded = load_saved(td, tmp_path / name).get("v").unbind(0)
    assert [types_of(each.data) for each in loaded] == [
        types_of(each) for each in VALUES
    ]


@pytest.mark.parametrize("name", ["tree", "x.tdz", "x.safetensors", "consolidated"])
def test_other_kinds_of_dicts_become_dicts(tmp_path, name):
    td = TensorDict(v=NonTensorData(defaultdict(int, a=1)), a=torch.ones(2))
    loaded = load_saved(td, tmp_path / name)["v"]
    assert types_of(loaded) == types_of({"a": 1})
