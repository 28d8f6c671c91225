"""Models that are spread over ranks: any placement on any mesh, stages, replicas."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ranks import Raised, Ranks
from tensordict.checkpoint import Checkpointer, shares
from tensordict.checkpoint.shares import _Plan
from tensordict.checkpoint.steps import META, meta_bytes, read_meta
from tensordict.checkpoint.tools import verify
from tensordict.storage.sharded import Layout, layout_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(280)]

if not torch.distributed.is_available():
    pytest.skip("this torch has no ranks", allow_module_level=True)

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (  # noqa: E402
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

WORLD = 4


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(WORLD, tmp_path_factory.mktemp("four"))
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(2, tmp_path_factory.mktemp("two"))
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(3, tmp_path_factory.mktemp("three"))
    yield ranks
    ranks.close()


def numbers(*shape: int, start: float = 0.0) -> torch.Tensor:
    count = int(torch.tensor(shape).prod())
    return (torch.arange(count, dtype=torch.float32) + start).reshape(shape)


def mesh_of(shape: tuple[int, ...]) -> Any:
    names = ("a", "b", "c")[: len(shape)]
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def whole(value: Any) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def holding(**tensors: Any) -> nn.Module:
    module = nn.Module()
    for name, value in tensors.items():
        setattr(module, name, nn.Parameter(value, requires_grad=False))
    return module


# Placements ---------------------------------------------------------------------------

SHAPES: dict[str, tuple[int, ...]] = {
    "rows": (8, 6),
    "columns": (5, 8),
    "uneven": (7, 3),
    "tiny": (1, 2),
    "small": (3,),
    "both": (9, 10),
    "deep": (2, 5, 3),
    "replicated": (4, 4),
    "strided": (24, 2),
    "part": (8,),
    "other part": (6, 2),
    "scalar": (),
    "plain": (3, 3),
}


def values() -> dict[str, torch.Tensor]:
    return {
        name: numbers(*shape, start=100.0 * place) if shape else torch.tensor(7.0)
        for place, (name, shape) in enumerate(SHAPES.items())
    }


def spread(mesh: tuple[int, ...], *, is_empty: bool = False) -> nn.Module:
    """A model with each placement that a mesh can have."""
    found = {}
    device_mesh = mesh_of(mesh)
    first = device_mesh["a"] if len(mesh) > 1 else device_mesh
    last = device_mesh["b"] if len(mesh) > 1 else device_mesh
    two = len(mesh) > 1
    placements: dict[str, tuple[Any, list[Any]]] = {
        "rows": (device_mesh, [Shard(0), Replicate()] if two else [Shard(0)]),
        "columns": (device_mesh, [Replicate(), Shard(1)] if two else [Shard(1)]),
        "uneven": (device_mesh, [Shard(0), Shard(0)] if two else [Shard(0)]),
        "tiny": (device_mesh, [Shard(0), Shard(0)] if two else [Shard(0)]),
        "small": (device_mesh, [Shard(0), Replicate()] if two else [Shard(0)]),
        "both": (device_mesh, [Shard(0), Shard(1)] if two else [Shard(1)]),
        "deep": (device_mesh, [Shard(1), Shard(2)] if two else [Shard(1)]),
        "replicated": (device_mesh, [Replicate()] * len(mesh)),
        "strided": (
            device_mesh,
            [_StridedShard(0, split_factor=mesh[1]), Shard(0)]
            if two
            else [_StridedShard(0, split_factor=2)],
        ),
        "part": (first, [Shard(0)]),
        "other part": (last, [Shard(0)]),
        "scalar": (device_mesh, [Replicate()] * len(mesh)),
    }
    for name, value in values().items():
        if is_empty:
            value = torch.zeros_like(value)
        if name in placements:
            value = distribute_tensor(value, *placements[name])
        found[name] = value
    return holding(**found)


def save_spread(rank: int, folder: str, mesh: tuple[int, ...]) -> None:
    with Checkpointer(folder, durable=False) as checkpointer:
        checkpointer.save(1, model=spread(mesh), state=dict(spread(mesh).state_dict()))


def restore_spread(rank: int, folder: str, mesh: tuple[int, ...]) -> None:
    model = spread(mesh, is_empty=True)
    state = dict(spread(mesh, is_empty=True).state_dict())
    checkpointer = Checkpointer(folder, durable=False)
    restored = checkpointer.restore(model=model, state=state)
    for name, expected in values().items():
        own, found = getattr(model, name), restored["state"][name]
        assert torch.equal(whole(own), expected), name
        assert type(found) is type(state[name]), name
        assert torch.equal(whole(found), expected), name
        if isinstance(found, DTensor):
            assert found.placements == own.placements, name


def check_alone(folder: Path) -> None:
    """Restore what ranks have saved in this process, which has none."""
    model = holding(**{name: torch.zeros_like(each) for name, each in values().items()})
    restored = Checkpointer(folder).restore(model=model)
    loaded = Checkpointer(folder).load()
    for name, expected in values().items():
        assert torch.equal(getattr(model, name), expected), name
        assert torch.equal(restored["state"][name], expected), name
        assert torch.equal(loaded["model", name], expected), name
    assert verify(folder / "step-1") == []


@pytest.mark.parametrize("mesh", [(4,), (2, 2)], ids=str)
def test_any_placement_on_any_mesh(
    four: Ranks, three: Ranks, tmp_path: Path, mesh: tuple[int, ...]
) -> None:
    folder = tmp_path / "run"
    four.all(save_spread, str(folder), mesh)
    for other in ((4,), (2, 2)):
        four.all(restore_spread, str(folder), other)
    three.all(restore_spread, str(folder), (3,))
    check_alone(folder)
    # One process saves, and ranks restore.
    model = holding(**values())
    again = tmp_path / "again"
    Checkpointer(again, durable=False).save(1, model=model, state=values())
    four.all(restore_spread, str(again), mesh)


def restore_adapters(rank: int, folder: str) -> None:
    """Restore a step without frozen parameters, into mapped memory where that goes."""
    model = spread((2, 2))
    model.rows.requires_grad_()
    model.plain.requires_grad_()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(1)
    checkpointer = Checkpointer(folder, durable=False)
    checkpointer.save(1, model=model, trainable_only=True)
    for is_lazy in (False, True):
        fresh = spread((2, 2))
        checkpointer.restore(model=fresh, lazy=is_lazy)
        for name, expected in values().items():
            is_saved = name in ("rows", "plain")
            assert torch.equal(whole(getattr(fresh, name)), expected + is_saved), name


def test_only_what_trains(four: Ranks, tmp_path: Path) -> None:
    four.all(restore_adapters, str(tmp_path))


class HalfAndFull(torch.optim.Optimizer):
    """An optimizer that keeps its states in single precision."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["master"] = parameter.detach().float() + 1e-4


def restore_half(rank: int, folder: str) -> None:
    mesh = mesh_of((4,))
    half = distribute_tensor(numbers(6, 2).bfloat16(), mesh, [Shard(0)])
    model = holding(w=half)
    optimizer = HalfAndFull(model.parameters())
    optimizer.step()
    checkpointer = Checkpointer(folder, durable=False)
    checkpointer.save(1, model=model, optimizer=optimizer)
    fresh = HalfAndFull(model.parameters())
    checkpointer.restore(model=model, optimizer=fresh)
    master = fresh.state[model.w]["master"]
    assert master.dtype == torch.float32
    assert master.placements == model.w.placements
    assert torch.equal(whole(master), numbers(6, 2) + 1e-4)


def test_states_of_more_precision(four: Ranks, tmp_path: Path) -> None:
    four.all(restore_half, str(tmp_path))


def save_partial(rank: int, folder: str) -> None:
    mesh = mesh_of((4,))
    value = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    Checkpointer(folder, durable=False).save(1, model={"layer": {"weight": value}})


def test_a_partial_placement_names_the_tensor(four: Ranks, tmp_path: Path) -> None:
    for answer in four.try_all(save_partial, str(tmp_path / "run")):
        assert isinstance(answer, Raised)
        assert "model['layer']['weight']" in answer.text
        assert "redistribute" in answer.text
    assert not (tmp_path / "run").exists() or os.listdir(tmp_path / "run") == []


def restore_other_shape(rank: int, folder: str) -> None:
    model = spread((4,), is_empty=True)
    mesh = mesh_of((4,))
    model.rows = nn.Parameter(distribute_tensor(torch.zeros(9, 6), mesh, [Shard(0)]))
    before = whole(model.uneven).tolist()
    with pytest.raises(RuntimeError, match=r"'rows': the model has \[9, 6\] and the"):
        Checkpointer(folder).restore(model=model)
    assert whole(model.uneven).tolist() == before


def test_another_shape_names_the_tensor(four: Ranks, tmp_path: Path) -> None:
    four.all(save_spread, str(tmp_path), (4,))
    four.all(restore_other_shape, str(tmp_path))


# Names that differ by rank ------------------------------------------------------------


class Stages(nn.Module):
    """A model of which a rank has some layers, under their full names."""

    def __init__(self, layers: range) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(each): nn.Linear(3, 3) for each in layers})
        for number in layers:
            nn.init.constant_(self.layers[str(number)].weight, float(number))
        self.register_buffer("shared", torch.full((2,), 5.0))


def stage(layers: range) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Stages(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    for name, parameter in model.named_parameters():
        parameter.grad = torch.full_like(parameter, float(name.split(".")[1]) + 1)
    optimizer.step()
    return model, optimizer


def layers_of(rank: int, world: int) -> range:
    share = 12 // world
    return range(rank * share, (rank + 1) * share)


def moments(model: nn.Module, optimizer: Any) -> dict[str, list[float]]:
    return {
        name: optimizer.state[parameter]["exp_avg"].tolist()
        for name, parameter in model.named_parameters()
    }


def save_stages(rank: int, folder: str, background: bool) -> None:
    model, optimizer = stage(layers_of(rank, WORLD))
    with Checkpointer(folder, durable=False, background=background) as checkpointer:
        checkpointer.save(1, model=model, optimizer=optimizer)


def restore_stages(rank: int, folder: str, world: int) -> None:
    layers = layers_of(rank, world)
    expected, expected_optimizer = stage(layers)
    model = Stages(layers)
    nn.init.zeros_(model.shared)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.AdamW(model.parameters())
    restored = Checkpointer(folder).restore(model=model, optimizer=optimizer)
    for name, value in model.state_dict().items():
        if "bias" not in name:
            assert torch.equal(value, expected.state_dict()[name]), name
    assert moments(model, optimizer) == moments(expected, expected_optimizer)
    assert restored.missing == restored.unexpected == []
    if world == WORLD:
        # Layer 2 is on no rank, and then in no optimizer.
        with pytest.raises(RuntimeError, match=r"'layers\.2\.weight'"):
            Checkpointer(folder).restore(model=without_layer_2(layers))
        model = Stages(layers)
        optimizer = torch.optim.AdamW(
            value for name, value in model.named_parameters() if ".2." not in name
        )
        with pytest.raises(RuntimeError, match=r"no parameter 'layers\.2\.weight'"):
            Checkpointer(folder).restore(model=model, optimizer=optimizer)
        assert not optimizer.state


def without_layer_2(layers: range) -> nn.Module:
    model = Stages(layers)
    if 2 in layers:
        del model.layers["2"]
    return model


@pytest.mark.parametrize("background", [False, True])
def test_stages_are_saved_by_all_ranks(
    four: Ranks, three: Ranks, tmp_path: Path, background: bool
) -> None:
    four.all(save_stages, str(tmp_path), background)
    four.all(restore_stages, str(tmp_path), WORLD)
    three.all(restore_stages, str(tmp_path), 3)
    restore_stages(0, str(tmp_path), 1)
    assert len(Checkpointer(tmp_path).load()["model", "layers"].keys()) == 12


class Tied(nn.Module):
    """A model whose head is its embedding, with layers that wrappers take."""

    def __init__(self, wrappers: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        for number, layer in enumerate(self.layers):
            if "compiled" in wrappers:
                layer = torch.compile(layer, backend="eager")  # type: ignore[assignment]
            if "checkpointed" in wrappers:
                layer = checkpoint_wrapper(layer)
            self.layers[number] = layer
        if "sharded" in wrappers:
            for layer in self.layers:
                fully_shard(layer)
            fully_shard(self)


def tied(
    value: float, wrappers: tuple[str, ...]
) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Tied(wrappers)
    optimizer = torch.optim.AdamW(model.parameters())
    for number, parameter in enumerate(model.parameters()):
        nn.init.constant_(parameter, value + number)
        parameter.grad = torch.full_like(parameter, value * (number + 1))
    optimizer.step()
    return model, optimizer


def tied_values(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return [
        (
            whole(each.detach()).tolist(),
            whole(optimizer.state[each]["exp_avg"]).tolist(),
        )
        for each in model.parameters()
    ]


def restore_tied(rank: int, folder: str) -> None:
    forms: list[tuple[str, ...]] = [
        (),
        ("sharded",),
        ("checkpointed",),
        ("sharded", "checkpointed"),
        ("sharded", "checkpointed", "compiled"),
    ]
    for step, saved in enumerate(forms):
        checkpointer = Checkpointer(folder, durable=False)
        model, optimizer = tied(1.0, saved)
        expected = tied_values(model, optimizer)
        checkpointer.save(step, model=model, optimizer=optimizer)
        for form in forms:
            fresh, other = tied(9.0, form)
            locals_of = [each.data_ptr() for each in map(local, fresh.parameters())]
            checkpointer.restore(model=fresh, optimizer=other)
            assert tied_values(fresh, other) == expected, (saved, form)
            assert fresh.head.weight is fresh.embed.weight
            # Values go to the memory that is there.
            after = [each.data_ptr() for each in map(local, fresh.parameters())]
            assert after == locals_of, form


def local(value: Any) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def test_tied_shards_with_wrappers(two: Ranks, tmp_path: Path) -> None:
    two.all(restore_tied, str(tmp_path))


def save_local_indices(rank: int, folder: str, per_rank: list[str]) -> None:
    """Stages whose layers have the same names, beside one that only the first has."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(2 + (rank == 0))))
    for layer in model:
        nn.init.constant_(layer.weight, float(rank))
    checkpointer = Checkpointer(folder, durable=False, per_rank=per_rank)
    checkpointer.save(1, model=model)
    for layer in model:
        nn.init.zeros_(layer.weight)
    checkpointer.restore(model=model)
    assert torch.equal(model[0].weight, torch.full((2, 2), float(rank)))


def test_one_name_for_different_things(four: Ranks, tmp_path: Path) -> None:
    for answer in four.try_all(save_local_indices, str(tmp_path / "a"), []):
        assert isinstance(answer, Raised)
        assert "'model'" in answer.text
        assert "'0.weight'" in answer.text
        assert "the ranks 0 and 1" in answer.text
        assert "per_rank=['model']" in answer.text
    four.all(save_local_indices, str(tmp_path / "b"), ["model"])


def save_other_shapes(rank: int, folder: str) -> None:
    Checkpointer(folder, durable=False).save(1, model=nn.Linear(2, 2 + rank % 2))


def test_one_name_for_other_shapes(four: Ranks, tmp_path: Path) -> None:
    for answer in four.try_all(save_other_shapes, str(tmp_path / "run")):
        assert isinstance(answer, Raised)
        assert "'weight'" in answer.text or "'bias'" in answer.text
        assert "[2, 2] and torch.float32 [3, 2]" in answer.text or "[3]" in answer.text


def save_differing_replicas(rank: int, folder: str) -> None:
    model = nn.BatchNorm1d(3)
    for value in model.state_dict().values():
        value.fill_(rank + 1)
    checkpointer = Checkpointer(folder, durable=False)
    checkpointer.save(1, model=model)
    fresh = nn.BatchNorm1d(3)
    checkpointer.restore(model=fresh)
    # Those of the lowest rank throughout, and never a mix.
    assert all(torch.all(value == 1) for value in fresh.state_dict().values())


def test_replicas_that_differ_are_those_of_rank_0(four: Ranks, tmp_path: Path) -> None:
    four.all(save_differing_replicas, str(tmp_path))


def model_apart(value: float, placement: Any) -> nn.Module:
    """A model on one of two meshes of two ranks, with ``value`` in its parameters."""
    mesh = mesh_of((2, 2))["b"]
    shapes = {"large": (1000, 2), "one": (4, 2), "two": (4,)}
    model = holding(
        **{
            name: distribute_tensor(
                torch.full(shape, value if name != "one" else 0.0),
                mesh,
                [placement if len(shape) > 1 else Shard(0)],
                src_data_rank=None,
            )
            for name, shape in shapes.items()
        }
    )
    model.register_buffer("count", torch.tensor(value))
    return model


def save_apart(rank: int, folder: str, divisions: tuple[int, int]) -> list[str]:
    """Save models on two meshes, which are equal in step 2 alone; the errors."""
    placement = Shard(divisions[rank // 2])
    checkpointer = Checkpointer(folder, durable=False)
    said = []
    for step in (1, 2, 3):
        is_other = step != 2 and rank >= 2
        model = model_apart(step + 10.0 * is_other, placement)
        try:
            checkpointer.save(step, model=model)
        except RuntimeError as error:
            said.append(str(error))
    assert checkpointer.steps() == [2]
    model = model_apart(0.0, placement)
    checkpointer.restore(model=model)
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        assert torch.all(whole(value) == (0 if name == "one" else 2)), name
    return said


@pytest.mark.parametrize("divisions", [(0, 0), (0, 1)])
def test_models_on_meshes_of_their_own_are_no_mix(
    four: Ranks, tmp_path: Path, divisions: tuple[int, int]
) -> None:
    for said in four.all(save_apart, str(tmp_path / "run"), divisions):
        assert len(said) == 2
        for text in said:
            assert "2 tensors differ between the rank 0 and the ranks 2, 3" in text
            assert "The first tensor is 'large'" in text
            assert "process_group=" in text
            assert "per_rank=['model']" in text


def save_per_rank(rank: int, folder: str, widths: tuple[int, int]) -> None:
    """Save parts of each mesh under one name, and restore them there and elsewhere."""
    mesh, width = mesh_of((2, 2))["b"], widths[rank // 2]

    def make(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        full = torch.full((5, width), value)
        placed = distribute_tensor(full, mesh, [Shard(0)], src_data_rank=None)
        model = holding(weight=placed)
        model.weight.requires_grad_()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
        optimizer.state[model.weight]["momentum_buffer"] = placed.detach() * 2
        return model, optimizer

    checkpointer = Checkpointer(folder, durable=False, per_rank=["model", "optimizer"])
    value = 1.0 + rank // 2
    model, optimizer = make(value)
    checkpointer.save(1, model=model, optimizer=optimizer)
    model, optimizer = make(0.0)
    checkpointer.restore(model=model, optimizer=optimizer)
    state = optimizer.state[model.weight]["momentum_buffer"]
    assert torch.equal(whole(model.weight), torch.full((5, width), value))
    assert torch.equal(whole(state), torch.full((5, width), 2 * value))
    other = distribute_tensor(torch.zeros(5, widths[0]), mesh_of((4,)), [Shard(0)])
    with pytest.raises(RuntimeError, match="saved apart|size mismatch|cannot restore"):
        checkpointer.restore(model=holding(weight=other))
    assert torch.all(other.to_local() == 0)


@pytest.mark.parametrize("widths", [(3, 3), (3, 4)])
def test_each_mesh_saves_its_own_part(
    four: Ranks, tmp_path: Path, widths: tuple[int, int]
) -> None:
    four.all(save_per_rank, str(tmp_path), widths)
    assert verify(tmp_path / "step-1") == []


# The share of each rank ----------------------------------------------------------------------


def save_replicas(rank: int, folder: str, mesh: list[int]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    if mesh:
        device_mesh = mesh_of(tuple(mesh))
        for layer in model:
            for name in ("weight", "bias"):
                value = getattr(layer, name).detach()
                placed = distribute_tensor(value, device_mesh, [Replicate(), Shard(0)])
                setattr(layer, name, nn.Parameter(placed))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    checkpointer = Checkpointer(folder, durable=False)
    checkpointer.save(1, model=model, optimizer=optimizer)
    expected = [whole(each).detach().clone() for each in model.parameters()]
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    checkpointer.restore(model=model, optimizer=optimizer)
    for parameter, value in zip(model.parameters(), expected, strict=True):
        assert torch.equal(whole(parameter), value)


@pytest.mark.parametrize("mesh", [[], [2, 2]], ids=["DDP", "HSDP"])
def test_each_rank_writes_its_share(
    four: Ranks, tmp_path: Path, mesh: list[int]
) -> None:
    four.all(save_replicas, str(tmp_path), mesh)
    step = tmp_path / "step-1"
    sizes = [0] * WORLD
    for file in step.glob("*.safetensors"):
        stem = file.name.removesuffix(".safetensors")
        rank = int(stem.rpartition("-rank-")[2]) if "-rank-" in stem else 0
        sizes[rank] += file.stat().st_size
    assert max(sizes) <= 1.1 * sum(sizes) / WORLD
    # Three values for each of the parameters, and nothing twice.
    assert sum(sizes) < 1.05 * 3 * 4 * 8 * (256 * 256 + 256)
    if not mesh:
        safetensors = pytest.importorskip("safetensors.torch")
        index = (step / "model.safetensors.index.json").read_text()
        names = nn.Sequential(*(nn.Linear(1, 1) for _ in range(8))).state_dict()
        found = {}
        for file in step.glob("model*.safetensors"):
            assert file.name in index
            found |= safetensors.load_file(file)
        assert found.keys() == names.keys()


def save_with_ddp(rank: int, folder: str) -> None:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.named_parameters())
    wrapped(torch.rand(3, 4)).square().sum().backward()
    optimizer.step()
    checkpointer = Checkpointer(folder, durable=False)
    checkpointer.save(1, model=wrapped, optimizer=optimizer)
    fresh = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    again = torch.optim.AdamW(list(fresh.named_parameters())[::-1])
    checkpointer.restore(model=fresh, optimizer=again)
    for name, own in fresh.named_parameters():
        before = dict(model.named_parameters())[name]
        assert torch.equal(own, before)
        for key, value in optimizer.state[before].items():
            assert torch.equal(again.state[own][key], value)


def test_a_model_within_ddp(four: Ranks, tmp_path: Path) -> None:
    four.all(save_with_ddp, str(tmp_path))
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    Checkpointer(tmp_path).restore(model=model)
    assert read_meta(tmp_path / "step-1")["items"]["model"]["names"] == list(
        model.state_dict()
    )


# Onto meta, and states of other shapes ------------------------------------------------


def fsdp(*, is_meta: bool, seed: int = 0) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    with torch.device("meta" if is_meta else "cpu"):
        model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3), nn.BatchNorm1d(3))
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """The values after a step that computes with the values before it."""
    data = numbers(4, 6) / 10
    optimizer.zero_grad()
    model(data).square().sum().backward()
    optimizer.step()
    return [whole(each.detach()).tolist() for each in model.parameters()]


def resume_on_meta(rank: int, folder: str, optimizer: str) -> None:
    make = getattr(torch.optim, optimizer)
    model = fsdp(is_meta=False)
    first = make(model.parameters(), lr=0.01)
    step_of(model, first)
    checkpointer = Checkpointer(folder, durable=False)
    checkpointer.save(1, model=model, optimizer=first)
    expected = step_of(model, first)
    fresh = fsdp(is_meta=True)
    parameters = list(fresh.parameters())
    second = make(parameters, lr=0.5)
    checkpointer.restore(model=fresh, optimizer=second)
    assert all(
        own is other for own, other in zip(parameters, fresh.parameters(), strict=True)
    )
    for value in (*fresh.parameters(), *fresh.buffers()):
        assert not value.is_meta
    assert step_of(fresh, second) == expected


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_a_sharded_model_on_meta_goes_on(
    four: Ranks, tmp_path: Path, optimizer: str
) -> None:
    four.all(resume_on_meta, str(tmp_path), optimizer)


def restore_without_values(rank: int, folder: str) -> None:
    model = fsdp(is_meta=False)
    checkpointer = Checkpointer(folder, durable=False)
    checkpointer.save(1, model=model)
    fresh = fsdp(is_meta=True)
    fresh.register_buffer("table", torch.zeros(3, device="meta"), persistent=False)
    with pytest.raises(RuntimeError, match="'table' would stay on meta"):
        checkpointer.restore(model=fresh)
    assert all(value.is_meta for value in fresh.parameters())


def test_a_tensor_that_would_stay_on_meta_is_named(four: Ranks, tmp_path: Path) -> None:
    four.all(restore_without_values, str(tmp_path))


class Preconditioned(torch.optim.SGD):
    """An optimizer whose states have shapes and placements of their own."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    mesh = parameter.device_mesh
                    left = numbers(5, 2, start=float(torch.distributed.get_rank() * 0))
                    state["left"] = distribute_tensor(left, mesh, [Shard(1)])
                    state["parts"] = {"rows": distribute_tensor(left, mesh, [Shard(0)])}
                    state["factor"] = torch.tensor(2.0)
                parameter.grad = None


def restore_preconditioned(rank: int, folder: str, other_world: bool) -> None:
    model = fsdp(is_meta=False)
    optimizer = Preconditioned(model.parameters(), lr=1.0)
    checkpointer = Checkpointer(folder, durable=False)
    if not other_world:
        optimizer.step()
        checkpointer.save(1, model=model, optimizer=optimizer)
    fresh = Preconditioned(model.parameters(), lr=1.0)
    checkpointer.restore(model=model, optimizer=fresh)
    for parameter in model.parameters():
        state = fresh.state[parameter]
        assert state["left"].placements == (Shard(1),)
        assert state["parts"]["rows"].placements == (Shard(0),)
        assert torch.equal(whole(state["left"]), numbers(5, 2))
        assert torch.equal(whole(state["parts"]["rows"]), numbers(5, 2))
        assert type(state["factor"]) is torch.Tensor


def test_states_come_back_as_they_were(
    four: Ranks, three: Ranks, tmp_path: Path
) -> None:
    four.all(restore_preconditioned, str(tmp_path), False)
    three.all(restore_preconditioned, str(tmp_path), True)


# Meshes of two dims, as trainings have them -------------------------------------------


def two_dims(mesh: tuple[int, ...], seed: int = 0) -> nn.Module:
    """A model that is tensor parallel over the last dim of a mesh, and sharded over both."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 3))
    device_mesh = mesh_of(mesh)
    if len(mesh) > 1:
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        parallelize_module(model, device_mesh["b"], plan)
    for layer in model:
        fully_shard(layer, mesh=device_mesh["a"])
    fully_shard(model, mesh=device_mesh["a"])
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """The losses of two steps, the same on all ranks."""
    losses = []
    for number in range(2):
        optimizer.zero_grad()
        data = numbers(4, 8, start=number) / 50
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(whole(loss.detach())))
    return losses


def save_two_dims(rank: int, folder: str, options: dict[str, Any]) -> list[float]:
    model = two_dims((2, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with Checkpointer(folder, durable=False, **options) as checkpointer:
        for step in range(2):
            train(model, optimizer)
            checkpointer.save(step, model=model, optimizer=optimizer)
    checkpointer = Checkpointer(folder, durable=False, **options)
    # Nothing changed: with dedupe, every rank links to what it wrote.
    checkpointer.save(2, model=model, optimizer=optimizer)
    checkpointer.wait()
    return train(model, optimizer)


def resume_two_dims(rank: int, folder: str, mesh: tuple[int, ...]) -> list[float]:
    losses: list[float] = []
    for step in (1, 2):
        model = (
            two_dims(mesh, seed=1)
            if mesh
            else nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 3))
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
        checkpointer = Checkpointer(folder)
        restored = checkpointer.restore(step, model=model, optimizer=optimizer)
        assert restored.missing == restored.unexpected == []
        losses = train(model, optimizer)
    return losses


@pytest.mark.parametrize("options", [{}, {"background": True}, {"dedupe": True}])
def test_a_training_goes_on_on_another_mesh(
    four: Ranks, three: Ranks, tmp_path: Path, options: dict[str, Any]
) -> None:
    (expected, *others) = four.all(save_two_dims, str(tmp_path), options)
    assert others == [expected] * 3
    # Bit for bit on the same mesh, and within rounding on another.
    assert four.all(resume_two_dims, str(tmp_path), (2, 2)) == [expected] * 4
    for ranks, mesh in ((four, (4,)), (three, (3,))):
        for losses in ranks.all(resume_two_dims, str(tmp_path), mesh):
            assert losses == pytest.approx(expected, rel=1e-4)
    assert resume_two_dims(0, str(tmp_path), ()) == pytest.approx(expected, rel=1e-4)
    assert verify(tmp_path / "step-2") == []
    if options.get("dedupe"):
        for file in (tmp_path / "step-2").glob("*.safetensors"):
            assert file.stat().st_nlink == 2, file.name


def evaluate_and_save(rank: int, folder: str) -> None:
    """Save and restore while a module of FSDP2 has its gathered parameters."""
    model = two_dims((2,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer)
    expected = {
        name: whole(optimizer.state[parameter]["exp_avg"])
        for name, parameter in model.named_parameters()
    }
    with torch.no_grad():
        model[2](numbers(4, 8))
    checkpointer = Checkpointer(folder, durable=False)
    checkpointer.save(1, model=model, optimizer=optimizer)
    fresh = two_dims((2,), seed=1)
    parameters = list(fresh.parameters())[::-1]
    optimizer = torch.optim.AdamW(parameters, lr=0.5)
    with torch.no_grad():
        fresh[2](numbers(4, 8))
    checkpointer.restore(model=fresh, optimizer=optimizer)
    fresh[2].reshard()
    for name, parameter in fresh.named_parameters():
        assert torch.equal(whole(optimizer.state[parameter]["exp_avg"]), expected[name])


def test_a_save_after_an_evaluation_knows_the_names(two: Ranks, tmp_path: Path) -> None:
    two.all(evaluate_and_save, str(tmp_path))


# Steps of before ----------------------------------------------------------------------


def save_as_before(rank: int, folder: str) -> None:
    """Save as when each rank described its parts, and copies were saved twice."""
    mesh = mesh_of((2, 2))
    value = distribute_tensor(numbers(8), mesh["a"], [Shard(0)])
    checkpointer = Checkpointer(folder, durable=False)
    checkpointer.save(1, model=holding(w=value, plain=numbers(3)))
    torch.distributed.barrier()
    step = Path(folder) / "step-1"
    local, start = value.to_local().contiguous(), mesh.get_local_rank("a") * 4
    name = f"model-rank-{rank:05}.safetensors" if rank else "model.safetensors"
    from safetensors.torch import save_file

    tensors = {f"w@{start}": local} | ({} if rank else {"plain": numbers(3)})
    (step / f"model-rank-{rank:05}.safetensors").unlink(missing_ok=True)
    save_file(tensors, step / name)
    file = f"rank-{rank:05}.json" if rank else META
    meta = read_meta(step, file)
    meta.pop("grids", None)
    about = meta["items"]["model"]
    about.pop("parts", None)
    about["files"] = [name]
    shard = {"name": f"w@{start}", "offsets": [start], "sizes": [4]}
    about["shards"] = {"w": shard}
    if rank == 0:
        del about["values"]["w"]["placements"]
    (step / file).write_bytes(meta_bytes(meta))


def test_steps_of_before_are_read(four: Ranks, tmp_path: Path) -> None:
    pytest.importorskip("safetensors.torch")
    four.all(save_as_before, str(tmp_path))
    model = holding(w=torch.zeros(8), plain=torch.zeros(3))
    Checkpointer(tmp_path).restore(model=model)
    assert torch.equal(model.w, numbers(8))
    assert torch.equal(model.plain, numbers(3))
    assert verify(tmp_path / "step-1") == []


def count_plans(rank: int, folder: str) -> int:
    """Save three times; return how often the division was made."""
    made = []
    init = shares._Plan.__init__

    def counting(self: Any, *arguments: Any, **options: Any) -> None:
        made.append(self)
        init(self, *arguments, **options)

    model = spread((2, 2))
    assert layout_of(model.rows, "") is layout_of(model.rows.clone(), "")
    checkpointer = Checkpointer(folder, durable=False)
    shares._Plan.__init__ = counting  # type: ignore[method-assign]
    try:
        for step in range(3):
            with torch.no_grad():
                model.rows.add_(1)
            checkpointer.save(step, model=model)
    finally:
        shares._Plan.__init__ = init  # type: ignore[method-assign]
    return len(made)


def test_the_division_is_made_once(four: Ranks, tmp_path: Path) -> None:
    assert four.all(count_plans, str(tmp_path)) == [1] * WORLD


# The description of a step ------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "placements"),
    [((64,), ("S0",)), ((8, 8), ("R", "S0")), ((8, 8), ("S0", "S1"))],
)
def test_a_description_has_a_few_bytes_for_each_tensor(
    mesh: tuple[int, ...], placements: tuple[str, ...]
) -> None:
    """A plan of many ranks, in one process."""
    world, count = 64, 1000
    shapes = [(1024, 512), (512, 64), (2048, 1024)]
    layouts = [Layout(shape, tuple(range(world)), mesh, placements) for shape in shapes]
    names = [f"layers.{number}.weight" for number in range(count)]
    described = {
        "is_shared": True,
        "names": names,
        "parameters": None,
        "plain": {},
        "sharded": {
            name: (layouts[number % 3], "torch.float32")
            for number, name in enumerate(names)
        },
    }
    plan = _Plan({0: {"model": described}}, {}, world)
    text = json.dumps({"grids": plan.grids, "parts": plan.parts})
    assert len(text) < 60 * count + 40 * world * len(plan.grids)
    assert len(plan.grids) <= 3 * mesh[0]
    written = [0] * world
    for number, name in enumerate(names):
        grid = plan.grids[plan.parts["model"][name]]
        sizes = [torch.Size(sizes).numel() for _, sizes, _ in grid]
        assert sum(sizes) == torch.Size(shapes[number % 3]).numel()
        for size, (_, _, rank) in zip(sizes, grid, strict=True):
            written[rank] += size
    assert max(written) <= 1.1 * sum(written) / world
