"""Containers of every kind that release 0.15.3 saved, in every layout, read back.

They are compared with the containers that were saved, leaves bit for bit.
"""

import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tensordict import TensorDict
from torch_versions import OLDER

HERE = Path(__file__).parent
# The pickles name the classes of the module by this name.
sys.path.insert(0, str(HERE))
try:
    import kinds
    from same import assert_same
    from topic_kinds import LOADS
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
