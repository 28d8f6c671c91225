"""Pickles and files of ``torch.save``: those of release 0.15.3, and our own."""

import copy
import io
import json
import multiprocessing.reduction
import pickle
import sys
import zipfile
from pathlib import Path

import cloudpickle
import pytest
import torch

from torch_versions import OLDER

HERE = Path(__file__).parent
# The pickles name the classes of the module by this name.
sys.path.insert(0, str(HERE))
try:
    from kinds import PICKLED_KINDS
    from same import assert_same
    from topic_pickled_kinds import FOLDER, WAYS, moved, named
finally:
    sys.path.remove(str(HERE))

with zipfile.ZipFile(HERE / "pickled_kinds_0_15_3.zip") as packed:
    FILES = {name: packed.read(name) for name in packed.namelist()}
RECORDED = sorted(name for name in FILES if name.endswith(".pickle"))
NAMES = set(json.loads(FILES["names.json"]))
OF_USERS = ("class", "typed", "base")
"""Kinds with classes of the program, which ``weights_only`` refuses."""
OF_TORCH = ("jagged", "components")
"""Kinds with tensors that ``weights_only`` does not know."""
VIEWS = ("part", "view", "permute", "unsqueeze")
IN_ONE_BUFFER = "consolidated"

if OLDER:
    # The tensors of it have a state that this torch does not know.
    RECORDED.remove("jagged.torch.pickle")

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore:The legacy lazy mode:DeprecationWarning"
)


def is_safe(kind: str) -> bool:
    """Return whether ``torch.load(weights_only=True)`` reads a kind of container."""
    return not kind.startswith(OF_USERS + OF_TORCH) and kind != "pickled_values"


def has_class(kind: str, way: str) -> bool:
    """Return whether the class of a container survives a way of writing it."""
    if way == "mapped":
        return not kind.startswith(("params", "tied"))
    return way != IN_ONE_BUFFER or not kind.startswith(VIEWS)


@pytest.mark.parametrize("name", RECORDED)
def test_what_the_release_wrote(name, tmp_path):
    kind, way, _ = name.split(".")
    data = FILES[name]
    if way == "mapped":
        for file, content in FILES.items():
            if file.startswith(f"{kind}.{way}/"):
                path = tmp_path / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        data = moved(data, FOLDER, str(tmp_path))
    if way == "torch":
        loaded = torch.load(io.BytesIO(data), weights_only=is_safe(kind))
    else:
        loaded = pickle.loads(data)
    assert_same(loaded, PICKLED_KINDS[kind](), has_class(kind, way))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", PICKLED_KINDS)
def test_what_we_write(kind, way, tmp_path):
    saved = PICKLED_KINDS[kind]()
    try:
        data = WAYS[way](saved, tmp_path / "saved")
    except NotImplementedError:
        # Layouts that consolidating and memory-mapping do not have.
        assert way in ("mapped", "consolidated")
        return
    ours = {name for name in named(data) if name.startswith("tensordict")}
    assert ours <= NAMES, f"the release does not have {ours - NAMES}"
    if way != "torch":
        if kind == "part_inside" and way == "mapped":
            with pytest.raises(RuntimeError, match="Cannot lock a _SubTensorDict"):
                pickle.loads(data)
            return
        assert_same(pickle.loads(data), saved, has_class(kind, way))
        return
    loaded = torch.load(io.BytesIO(data), weights_only=is_safe(kind))
    assert_same(loaded, saved, True)


@pytest.mark.parametrize("kind", PICKLED_KINDS)
def test_of_this_process(kind):
    saved = PICKLED_KINDS[kind]()
    assert_same(pickle.loads(cloudpickle.dumps(saved)), saved, True)
    if kind != "signs":
        # torch forgets that a tensor is a conjugate when it sends one.
        sent = bytes(multiprocessing.reduction.ForkingPickler.dumps(saved))
        assert_same(pickle.loads(sent), saved, True)
    assert_same(copy.deepcopy(saved), saved, not kind.startswith(VIEWS))


@pytest.mark.parametrize("kind", [kind for kind in PICKLED_KINDS if is_safe(kind)])
def test_safe_load_of_a_consolidated_one(kind):
    saved = PICKLED_KINDS[kind]()
    if kind == "unbatched":
        return
    file = io.BytesIO()
    torch.save(saved.consolidate(metadata=True), file)
    file.seek(0)
    assert_same(torch.load(file), saved, has_class(kind, IN_ONE_BUFFER))


def test_classes_of_a_program_are_refused_by_a_safe_load():
    for kind in ("class", "typed", "base"):
        file = io.BytesIO()
        torch.save(PICKLED_KINDS[kind](), file)
        file.seek(0)
        with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
            torch.load(file)
