"""Containers of every kind that release 0.15.3 saved, in every layout, read back.

They are compared with the containers that were saved, leaves bit for bit.
"""

import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict import TensorDict
from tensordict.protocol import CollectionProtocol
from torch_versions import OLDER

HERE = Path(__file__).parent
# The pickles name the classes of the module by this name.
sys.path.insert(0, str(HERE))
try:
    import kinds
    from record_kinds import LOADS
finally:
    sys.path.remove(str(HERE))

with zipfile.ZipFile(HERE / "kinds_0_15_3.zip") as packed:
    FILES = {name: packed.read(name) for name in packed.namelist()}
SAVED = sorted({name.split("/")[0] for name in FILES})
if OLDER:
    # The tensors of it have a state that this torch does not know.
    SAVED.remove("jagged.pickle")

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore:The legacy lazy mode:DeprecationWarning"
)

WITHOUT_CLASS = {
    # The release writes these as plain containers, or as the class inside.
    "consolidated": ("class", "class_unset", "class_in_class", "class_column"),
    "tree": ("params", "params_inside"),
    "archive": ("params", "params_inside", "part", "part_at", "part_inside"),
}
WITHOUT_CLASS["archive"] += ("view", "permute", "unsqueeze")
WITHOUT_CLASS["consolidated"] += ("class_stack",)


def bits(tensor: torch.Tensor) -> Any:
    """All that a tensor is, but for how it lies in memory."""
    if tensor.is_nested:
        return [tensor.layout, *map(bits, tensor.unbind())]
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    plain = plain.as_subclass(torch.Tensor)
    content = plain.reshape(-1).view(torch.uint8).tolist() if plain.numel() else []
    return [plain.dtype, plain.shape, content]


def as_text(value: Any) -> Any:
    """A value such that NaN is itself, and a tuple the list that JSON makes of it."""
    return repr(value).replace("(", "[").replace(")", "]")


def assert_same(loaded: Any, saved: Any, has_class: bool) -> None:
    if isinstance(saved, torch.Tensor):
        assert bits(loaded) == bits(saved)
        return
    assert loaded.batch_size == saved.batch_size
    if saved._is_non_tensor:
        assert as_text(loaded.tolist()) == as_text(saved.tolist())
        return
    if has_class:
        assert type(loaded) is type(saved)
    assert loaded.names == saved.names
    if hasattr(saved, "tensordicts"):
        assert loaded.stack_dim == saved.stack_dim
        pairs = zip(loaded.tensordicts, saved.tensordicts, strict=True)
        for member, other in pairs:
            assert_same(member, other, has_class)
        return
    found, expected = loaded._entries(), saved._entries()
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert isinstance(found[key], CollectionProtocol) == isinstance(
            value, CollectionProtocol
        )
        assert_same(found[key], value, has_class)


@pytest.mark.parametrize("name", SAVED)
def test_what_the_release_saved(name, tmp_path):
    kind, way = name.rsplit(".", 1)
    for file, content in FILES.items():
        if file.split("/")[0] == name:
            path = tmp_path / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    loaded = LOADS[way](tmp_path / name)
    saved = kinds.KINDS[kind]()
    assert_same(loaded, saved, kind not in WITHOUT_CLASS.get(way, ()))


def test_a_loaded_tensor_without_bytes_is_an_ordinary_one(tmp_path):
    saved = kinds.KINDS["no_items"]().memmap(tmp_path)
    loaded = TensorDict.load_memmap(tmp_path)
    assert type(saved["a"]) is type(saved["b"]) is type(loaded["b"])
    assert type(loaded["a"]) is torch.Tensor
