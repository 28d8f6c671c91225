"""Items come back as what they were when they were saved."""

import pathlib
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from plain_values import VALUES, equal
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictParams,
    tensorclass,
)
from tensordict.checkpoint import Checkpointer
from tensordict.nn import TensorDictModule


@pytest.fixture
def checkpointer(tmp_path: pathlib.Path) -> Checkpointer:
    return Checkpointer(tmp_path / "run", durable=False)


def test_plain_data_comes_back_as_what_it_was(checkpointer: Checkpointer) -> None:
    items = {f"v{number}": value for number, value in enumerate(VALUES)}
    checkpointer.save(0, **items)
    restored = checkpointer.restore()
    for name, value in items.items():
        assert equal(restored[name], value), (value, restored[name])


def test_values_are_refused_by_their_place(checkpointer: Checkpointer) -> None:
    class Foo:
        pass

    with pytest.raises(
        TypeError, match=r"config\['a'\]\['1'\] in a checkpoint: a .*Foo"
    ):
        checkpointer.save(0, config={"a": [0, Foo()]})
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RecursionError, match="contains itself"):
        checkpointer.save(0, loop=loop)
    with pytest.raises(TypeError, match="array"):
        checkpointer.save(0, array=np.array([object()]))
    assert checkpointer.steps() == []
    assert not (checkpointer.directory / "step-0").exists()


@tensorclass
class Pair:
    a: torch.Tensor
    b: str


def collections_of_all_kinds() -> dict[str, Any]:
    td = TensorDict(
        {"a": torch.arange(3), "n": TensorDict({"b": torch.ones(3, 2)}, [3, 2])},
        [3],
        names=["t"],
    )
    td["text"] = "hello"
    return {
        "td": td,
        "lazy": LazyStackedTensorDict(
            td.exclude("text"), td.exclude("text"), stack_dim=1
        ),
        "ragged": LazyStackedTensorDict(
            TensorDict(a=torch.ones(2), s="x"),
            TensorDict(a=torch.ones(3), s=NonTensorData(("y", 1))),
        ),
        "words": TensorDict(
            {"word": NonTensorStack("a", "b"), "n": {"more": NonTensorStack(1, None)}},
            [2],
        ),
        "value": NonTensorData({"a": (1, torch.ones(2))}, batch_size=[2]),
        "column": NonTensorStack("a", ("b", 2)),
        "inner": TensorDict(
            {
                "lazy": LazyStackedTensorDict(
                    TensorDict(a=torch.ones(2)), TensorDict(a=torch.ones(3))
                )
            }
        ),
        "pair": Pair(a=torch.zeros(2), b="x", batch_size=[2]),
        "inside": {"list": [td.clone(), 1]},
    }


def test_collections_come_back(checkpointer: Checkpointer) -> None:
    items = collections_of_all_kinds()
    checkpointer.save(0, **items)
    restored = checkpointer.restore()
    assert (restored["td"] == items["td"]).all()
    assert restored["td"].names == ["t"]
    assert restored["td"]["text"] == "hello"
    assert restored["lazy"].batch_size == items["lazy"].batch_size
    assert (restored["lazy"]["a"] == items["lazy"]["a"]).all()
    for row, size in enumerate((2, 3)):
        assert restored["ragged"][row]["a"].shape == (size,)
        assert restored["inner"]["lazy"][row]["a"].shape == (size,)
    rows = restored["ragged"].tensordicts
    assert [row["s"] for row in rows] == ["x", ("y", 1)]
    words = restored["words"]
    assert words.get("word").tolist() == ["a", "b"]
    assert words.get(("n", "more")).tolist() == [1, None]
    assert restored["value"].batch_size == (2,)
    assert restored["value"].data["a"][1].sum() == 2
    assert restored["column"].tolist() == ["a", ("b", 2)]
    assert type(restored["pair"]) is Pair
    assert restored["pair"].b == "x"
    assert (restored["inside"]["list"][0] == items["td"]).all()
    changed = items["td"].clone().zero_()
    place = changed["a"]
    tensor = torch.full((3,), 9)
    checkpointer.save(1, td=items["td"], tensor=torch.arange(3))
    checkpointer.restore(td=changed, tensor=tensor)
    assert (changed == items["td"]).all()
    assert place.tolist() == [0, 1, 2]
    assert tensor.tolist() == [0, 1, 2]


OPTIMIZERS = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adamax": {},
    "ASGD": {},
    "LBFGS": {"history_size": 3},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "SGD": {"lr": 0.1},
    "SGD momentum": {"lr": 0.1, "momentum": 0.9},
    "Muon": {},
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    torch.manual_seed(len(optimizer.state))
    data = torch.rand(8, 4)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(data) ** 2).mean()
        loss.backward()
        return loss

    return float(optimizer.step(closure).detach())  # type: ignore[arg-type,union-attr]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_go_on_as_if_nothing_was(
    checkpointer: Checkpointer, name: str, lazy: bool
) -> None:
    cls = getattr(torch.optim, name.split(maxsplit=1)[0], None)
    if cls is None:
        pytest.skip("this torch does not have it")

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        bias = name != "Muon"
        model = nn.Sequential(nn.Linear(4, 3, bias=bias), nn.Linear(3, 1, bias=bias))
        return model, cls(model.parameters(), **OPTIMIZERS[name])

    model, optimizer = make()
    for _ in range(3):
        train(model, optimizer)
    checkpointer.save(3, model=model, optimizer=optimizer)
    state = optimizer.state_dict()
    fresh_model, fresh = make()
    checkpointer.restore(model=fresh_model, optimizer=fresh, lazy=lazy)
    assert equal(fresh.state_dict()["param_groups"], state["param_groups"])
    assert [*fresh.state_dict()["state"]] == [*state["state"]]
    for number, values in state["state"].items():
        assert equal(dict(fresh.state_dict()["state"][number]), dict(values))
    expected = [train(model, optimizer) for _ in range(3)]
    assert [train(fresh_model, fresh) for _ in range(3)] == expected
    # Training on writes nothing into the files.
    again_model, again = make()
    checkpointer.restore(model=again_model, optimizer=again)
    assert [train(again_model, again) for _ in range(3)] == expected


def test_the_state_of_half_precision_is_not_rounded(checkpointer: Checkpointer) -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], momentum=0.9)
    optimizer.state[parameter]["momentum_buffer"] = torch.tensor([0.1, 0.2, 0.3])
    checkpointer.save(0, optimizer=optimizer)
    optimizer.state.clear()
    checkpointer.restore(optimizer=optimizer)
    found = optimizer.state[parameter]["momentum_buffer"]
    assert found.dtype == torch.float32
    assert found.tolist() == torch.tensor([0.1, 0.2, 0.3]).tolist()


def schedulers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    module = torch.optim.lr_scheduler
    return {
        "steps": module.StepLR(optimizer, 2),
        "multi": module.MultiStepLR(optimizer, [2, 2, 5]),
        "cosine": module.CosineAnnealingLR(optimizer, 7),
        "restarts": module.CosineAnnealingWarmRestarts(optimizer, 3),
        "function": module.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
        "once": module.OneCycleLR(optimizer, 0.1, total_steps=20),
        "cyclic": module.CyclicLR(optimizer, 0.1, 0.2),
        "plateau": module.ReduceLROnPlateau(optimizer),
        "sequence": module.SequentialLR(
            optimizer,
            [module.ConstantLR(optimizer), module.ExponentialLR(optimizer, 0.9)],
            [2],
        ),
        "chain": module.ChainedScheduler(
            [module.PolynomialLR(optimizer), module.LinearLR(optimizer)]
        ),
    }


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_schedulers_and_scalers(checkpointer: Checkpointer) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
    made = schedulers(optimizer)
    for name, scheduler in made.items():
        scheduler.step(*((1.5,) if name == "plateau" else ()))
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    checkpointer.save(0, scaler=scaler, optimizer=optimizer, **made)
    states = {name: scheduler.state_dict() for name, scheduler in made.items()}
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5, momentum=0.9)
    fresh = schedulers(other)
    scaler_state = scaler.state_dict()
    scaler = torch.amp.GradScaler("cpu")
    checkpointer.restore(scaler=scaler, optimizer=other, **fresh)
    assert {name: scheduler.state_dict() for name, scheduler in fresh.items()} == states
    assert scaler.state_dict() == scaler_state
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


class Tied(nn.Module):
    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4, device=device)
        self.norm = nn.BatchNorm1d(4, device=device)
        self.head = nn.Linear(4, 5, bias=False, device=device)
        self.head.weight = self.embed.weight


def test_tied_tensors_are_saved_once_and_tied_again(checkpointer: Checkpointer) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = Tied()
    path = checkpointer.save(0, model=model)
    names = safetensors.load_file(path / "model.safetensors")  # type: ignore[operator]
    assert "embed.weight" in names
    assert "head.weight" not in names
    fresh = Tied()
    optimizer = torch.optim.SGD(fresh.parameters(), lr=1.0)
    checkpointer.restore(model=fresh)
    assert fresh.head.weight is fresh.embed.weight
    assert torch.equal(fresh.head.weight, model.head.weight)
    assert optimizer.param_groups[0]["params"][0] is fresh.embed.weight
    for lazy in (False, True):
        empty = Tied("meta")
        held = empty.embed.weight
        checkpointer.restore(model=empty, lazy=lazy)
        assert empty.head.weight is empty.embed.weight is held
        assert not any(value.is_meta for value in empty.state_dict().values())
        assert equal(dict(empty.state_dict()), dict(model.state_dict()))


def test_trainable_only_leaves_out_what_is_frozen(checkpointer: Checkpointer) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    path = checkpointer.save(0, model=model, trainable_only=True)
    assert path is not None
    names = list(checkpointer.load(0)["model"].keys(True, True))
    assert ("0", "weight") not in names
    assert ("1", "running_mean") in names
    kept = model[0].weight.clone()
    expected = model[2].weight.clone()
    nn.init.zeros_(model[2].weight)
    checkpointer.restore(model=model)
    assert torch.equal(model[0].weight, kept)
    assert torch.equal(model[2].weight, expected)


class Own(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"count": 3, "by": (1, 2)}

    def set_extra_state(self, state: Any) -> None:
        self.found = state


def test_modules_with_their_own_way_to_load(checkpointer: Checkpointer) -> None:
    model = nn.Sequential(
        Own(2, 2), nn.utils.parametrizations.weight_norm(nn.Linear(2, 1))
    )
    checkpointer.save(0, model=model)
    fresh = nn.Sequential(
        Own(2, 2), nn.utils.parametrizations.weight_norm(nn.Linear(2, 1))
    )
    checkpointer.restore(model=fresh)
    assert fresh[0].found == {"count": 3, "by": (1, 2)}
    assert torch.equal(fresh[1].weight, model[1].weight)


def test_random_states(checkpointer: Checkpointer) -> None:
    generator = torch.Generator().manual_seed(5)

    def draw() -> tuple[Any, ...]:
        return (
            random.random(),  # noqa: S311
            float(np.random.random()),  # noqa: NPY002
            float(torch.rand(())),
            float(torch.rand((), generator=generator)),
        )

    checkpointer.save(0, generator=generator)
    expected = draw()
    assert draw() != expected
    checkpointer.restore(generator=generator)
    assert draw() == expected
    before = torch.get_rng_state()
    checkpointer.restore(rng=False)
    assert torch.equal(torch.get_rng_state(), before)
    checkpointer.save(1, rng=False, epoch=1)
    checkpointer.restore()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_step_without_a_model_is_a_collection(checkpointer: Checkpointer) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    checkpointer.save(0, model=model, optimizer=optimizer, epoch=3)
    loaded = checkpointer.load()
    assert torch.equal(loaded["model", "weight"], model.weight)
    state = optimizer.state_dict()["state"]
    assert torch.equal(
        loaded["optimizer", "state", "0", "exp_avg"], state[0]["exp_avg"]
    )
    assert loaded["epoch"] == 3
    fresh = nn.Linear(2, 1)
    loaded["model"].to_module(fresh)
    assert torch.equal(fresh.weight, model.weight)


def test_modules_of_this_package(checkpointer: Checkpointer) -> None:
    def make() -> tuple[Any, Any]:
        module = TensorDictModule(nn.Linear(2, 1), in_keys=["x"], out_keys=["y"])
        data = TensorDict(a=torch.rand(3), n={"b": torch.rand(2)})
        return module, TensorDictParams(data)

    module, params = make()
    checkpointer.save(0, module=module, params=params)
    fresh, others = make()
    place = others["n", "b"]
    checkpointer.restore(module=fresh, params=others)
    assert torch.equal(fresh.module.weight, module.module.weight)
    assert (others == params).all()
    assert others["n", "b"] is place


def test_a_compiled_module_has_its_plain_names(checkpointer: Checkpointer) -> None:
    model = nn.Linear(2, 1)
    checkpointer.save(0, model=torch.compile(model, backend="eager"))
    assert list(checkpointer.load()["model"].keys()) == ["weight", "bias"]
    for wraps in (True, False):
        fresh = nn.Linear(2, 1)
        compiled = torch.compile(fresh, backend="eager") if wraps else fresh
        checkpointer.restore(model=compiled)
        assert torch.equal(fresh.weight, model.weight)


def test_a_graph_notices_that_its_tensors_were_restored(
    checkpointer: Checkpointer,
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    checkpointer.save(0, model=model, metrics={"loss": model(torch.ones(2)).sum()})
    loss = model(torch.ones(2)).sum()
    checkpointer.restore(model=model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
