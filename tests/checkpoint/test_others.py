"""Checkpoints of others, the commands, and ``torch.distributed.checkpoint``."""

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from plain_values import equal
from tensordict import TensorDict, cli
from tensordict.checkpoint import Checkpointer, dcp_directory
from tensordict.checkpoint.dcp import Reader, Writer, read_directory
from tensordict.checkpoint.tools import convert_to_step

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(5, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def call(capsys: Any, *arguments: Any) -> tuple[int, str]:
    status = cli.main([*map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out + err


def same(first: nn.Module, second: nn.Module) -> bool:
    return equal(dict(first.state_dict()), dict(second.state_dict()))


def test_the_commands_on_steps(tmp_path: Path, capsys: Any) -> None:
    model, optimizer = make()
    run = tmp_path / "run"
    checkpointer = Checkpointer(run, durable=False)
    for step in (1, 2):
        metrics = {"loss": 0.5 / step}
        checkpointer.save(
            step, model=model, optimizer=optimizer, n=step, metrics=metrics
        )
    status, text = call(capsys, "inspect", run)
    assert status == 0
    assert "checkpoints, 2 steps" in text
    assert "loss 0.25" in text
    status, text = call(capsys, "inspect", run / "step-2")
    assert status == 0
    assert "model: module, 9 tensors" in text
    status, text = call(capsys, "inspect", "--json", run / "step-2")
    assert json.loads(text)["items"]["optimizer"]["tensors"] == 18
    assert call(capsys, "verify", run)[0] == 0
    status, text = call(capsys, "diff", "--quiet", run / "step-1", run / "step-2")
    assert status == 1
    assert text.startswith("n: ")
    target = tmp_path / "model.safetensors"
    assert call(capsys, "convert", run / "step-1", tmp_path / "one.tdz")[0] == 0
    assert call(capsys, "inspect", tmp_path / "one.tdz")[0] == 0
    file = run / "step-1" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (run / "step-7").mkdir()
    status, text = call(capsys, "verify", run)
    assert status == 1
    assert text.count("damaged") == 2
    assert "/proc/" not in text
    assert f"{run}/step-2: checkpoint, ok" in text
    status, text = call(capsys, "inspect", run)
    assert status == 1
    assert "step 7" in text
    status, text = call(capsys, "convert", run / "step-1", target)
    assert status == 2
    assert not target.exists()


@pytest.mark.parametrize("form", ["bin", "index", "pt", "legacy", "dcp"])
def test_checkpoints_of_others_become_steps(
    tmp_path: Path, capsys: Any, form: str
) -> None:
    model, optimizer = make()
    state = model.state_dict()
    source = tmp_path / "pytorch_model.bin"
    if form == "bin":
        torch.save(state, source)
    elif form == "index":
        half = list(state)[:3]
        torch.save({name: state[name] for name in half}, tmp_path / "a.bin")
        rest = {name: value for name, value in state.items() if name not in half}
        torch.save(rest, tmp_path / "b.bin")
        source = tmp_path / "pytorch_model.bin.index.json"
        weights = {name: "a.bin" if name in half else "b.bin" for name in state}
        source.write_text(json.dumps({"weight_map": weights}))
    else:
        both = {"model": state, "optimizer": optimizer.state_dict(), "epoch": 3}
        source = tmp_path / "all.pt"
        if form == "dcp":
            source = tmp_path / "dcp"
            dcp.save(both, checkpoint_id=source, no_dist=True)
        else:
            torch.save(both, source, _use_new_zipfile_serialization=form == "pt")
    target = tmp_path / "run" / "step-5"
    status, text = call(capsys, "convert", source, target)
    assert status == 0, text
    assert call(capsys, "convert", source, target)[0] == 2
    assert call(capsys, "convert", "--force", source, target)[0] == 0
    fresh, other = make()
    items: dict[str, Any] = {"model": fresh}
    if form not in ("bin", "index"):
        items["optimizer"] = other
    restored = Checkpointer(tmp_path / "run").restore(**items)
    assert same(fresh, model)
    if "optimizer" in items:
        assert restored == {"epoch": 3}
        found, expected = other.state_dict(), optimizer.state_dict()
        assert torch.equal(
            found["state"][2]["exp_avg"], expected["state"][2]["exp_avg"]
        )
        assert found["param_groups"] == expected["param_groups"]
    status, text = call(capsys, "convert", source, tmp_path / "all.tdz")
    assert status == 0, text


def test_safetensors_and_collections_become_steps(tmp_path: Path, capsys: Any) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model, _ = make()
    safetensors.save_file(model.state_dict(), tmp_path / "x.safetensors")
    run = tmp_path / "run"
    assert call(capsys, "convert", tmp_path / "x.safetensors", run / "step-1")[0] == 0
    fresh, _ = make()
    Checkpointer(run).restore(1, model=fresh)
    assert same(fresh, model)
    TensorDict(a=torch.ones(3)).memmap(tmp_path / "saved")
    assert call(capsys, "convert", tmp_path / "saved", run / "step-2")[0] == 0
    assert Checkpointer(run).restore(2)["data"]["a"].sum() == 3
    status, text = call(capsys, "convert", run / "step-2", run / "step-3")
    assert status == 2
    assert "copy its directory" in text
    assert call(capsys, "convert", tmp_path / "nothing", run / "step-3")[0] == 2


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("evil"),)


@pytest.mark.parametrize("form", ["pt", "dcp", "metadata"])
def test_pickles_are_not_run(
    tmp_path: Path, capsys: Any, monkeypatch: Any, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "all.pt"
    if form == "pt":
        torch.save({"model": Evil()}, source)
    else:
        import pickle

        source = tmp_path / "dcp"
        dcp.save(
            {"x": torch.ones(2), "evil": Evil()}, checkpoint_id=source, no_dist=True
        )
        if form == "metadata":
            (source / ".metadata").write_bytes(pickle.dumps(Evil()))
    Path("evil").unlink(missing_ok=True)
    status, text = call(capsys, "convert", source, tmp_path / "run" / "step-1")
    assert status == 2
    assert "refused" in text or "not run" in text
    assert not Path("evil").exists()


def test_dcp_through_our_storage(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model, optimizer = make()
    path = tmp_path / "saved"
    for epoch in (1, 2):
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
            "half": torch.ones(2, dtype=torch.complex128),
        }
        dcp.save(state, storage_writer=Writer(path), no_dist=True)
    (file,) = path.glob("rank-*.safetensors")
    names = safetensors.load_file(file)  # type: ignore[operator]
    assert torch.equal(names["model.0.weight"], model[0].weight)
    fresh, other = make()
    target = {
        "model": fresh.state_dict(),
        "optimizer": other.state_dict(),
        "epoch": 0,
        "half": torch.zeros(2, dtype=torch.complex128),
    }
    dcp.load(target, storage_reader=Reader(path), no_dist=True)
    assert same(fresh, model)
    assert target["epoch"] == 2
    assert target["half"].sum() == 2
    assert Reader.validate_checkpoint_id(path)
    assert not Reader.validate_checkpoint_id(tmp_path)


def test_a_directory_of_dcp_is_nested_as_it_was(tmp_path: Path) -> None:
    state = {"a": {"b": torch.arange(6), "list": [1, torch.ones(2)]}, "text": "x"}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    assert equal(read_directory(tmp_path), state)


def test_a_directory_of_dcp_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = torch.arange(60_000.0).reshape(300, 200)
    state: dict[str, Any] = {
        "plain": large,
        "transposed": large.t(),
        "half": large.to(torch.bfloat16),
        "eight": (large % 100).to(torch.float8_e4m3fn),
        "words": (large % 1000).to(torch.uint16),
        "complex": torch.complex(large, -large).to(torch.complex128),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "nested": {"list": [1, large + 1], "text": "x"},
    }
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    read: list[int] = []
    pread = dcp_directory._pread

    def counting(descriptor: int, path: Path, offset: int, count: int) -> torch.Tensor:
        read.append(count)
        return pread(descriptor, path, offset, count)

    monkeypatch.setattr(dcp_directory, "_pread", counting)
    monkeypatch.setattr(dcp_directory, "PIECE_BYTES", 1 << 12)
    found, tensors = dcp_directory.open_directory(tmp_path / "dcp")
    # Large tensors are not read before they are asked for, and others are.
    assert max(read) <= 4096
    for name in ("plain", "transposed", "half", "eight", "words", "complex"):
        assert found[name].is_meta
        (value,) = tensors.read([found[name]])
        assert value.dtype == state[name].dtype
        pair = [each.contiguous().view(torch.uint8) for each in (value, state[name])]
        assert torch.equal(*pair)
    assert torch.equal(found["scalar"], state["scalar"])
    read.clear()
    target = tmp_path / "run" / "step-3"
    convert_to_step(tmp_path / "dcp", target, durable=False)
    # Where rows do not follow each other, a chunk is read as a whole.
    assert {count for count in read if count > 4096} == {large.numel() * 4}
    restored = Checkpointer(tmp_path / "run").restore(3)
    eights = [each.pop("eight").view(torch.uint8) for each in (restored, state)]
    assert torch.equal(*eights)
    assert equal(dict(restored), state)
    assert restored["plain"].device.type == "cpu"


def test_a_damaged_directory_of_dcp_is_refused(tmp_path: Path) -> None:
    state = {"large": torch.arange(4096.0), "name": "x"}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    (file,) = (tmp_path / "dcp").glob("*.distcp")
    content = file.read_bytes()
    evil = content.replace(b"_rebuild_tensor_v2", b"_rebuild_parameter")
    value = torch.tensor(100.0).numpy().tobytes()
    flipped = content.replace(value, b"\1" + value[1:])
    assert flipped != content
    for changed in (content[:-3000], content[: len(content) // 2], evil, flipped, b""):
        file.write_bytes(changed)
        with pytest.raises(RuntimeError, match=file.name):
            convert_to_step(tmp_path / "dcp", tmp_path / "step-1", durable=False)
        assert os.listdir(tmp_path) == ["dcp"]


def test_damaged_metadata_of_dcp_is_named(tmp_path: Path) -> None:
    state = {"large": torch.arange(4096.0).reshape(64, 64), "name": "x", "n": [1, 2]}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    file = tmp_path / ".metadata"
    content = file.read_bytes()
    rng = random.Random(5)  # noqa: S311
    refused = 0
    for _ in range(60):
        changed = bytearray(content)
        changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(changed)
        try:
            dcp_directory.open_directory(tmp_path)
        except (RuntimeError, OSError) as error:
            assert str(tmp_path) in str(error)  # noqa: PT017
            refused += 1
    assert refused > 30
    metadata = pickle.loads(content)  # noqa: S301
    metadata.state_dict_metadata["large"].chunks[0].sizes = torch.Size([32, 64])
    file.write_bytes(pickle.dumps(metadata))
    with pytest.raises(RuntimeError, match=r"the chunks of 'large' do not cover"):
        dcp_directory.open_directory(tmp_path)


def test_a_directory_of_dcp_is_inspected_without_its_tensors(
    tmp_path: Path, capsys: Any
) -> None:
    state = {"model": {"large": torch.arange(4096.0)}, "epoch": 3}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    expected = call(capsys, "inspect", tmp_path)
    assert expected[0] == 0
    assert "large: float32[4096]" in expected[1]
    (file,) = tmp_path.glob("*.distcp")
    content = file.read_bytes()
    file.write_bytes(
        content.replace(torch.arange(4096.0).numpy().tobytes(), b"\0" * 16384)
    )
    assert call(capsys, "inspect", tmp_path) == expected
