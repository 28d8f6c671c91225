"""Callbacks on two ranks: sharded by others' strategies, saved, resumed, asked to end."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ranks import Ranks
from tensordict import TensorDict
from tensordict.checkpoint import Checkpointer
from tensordict.checkpoint.tools import verify
from tensordict.data import BatchLoader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(280)]

if not torch.distributed.is_available():
    pytest.skip("this torch has no ranks", allow_module_level=True)

WORLD = 2
STEPS = 6


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(WORLD, tmp_path_factory.mktemp("two"))
    yield ranks
    ranks.close()


def needs(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def launched(rank: int) -> None:
    """Say who this is, as ``torchrun`` does."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29499",
        "TORCHELASTIC_RUN_ID": "run",
    }


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


# Lightning ----------------------------------------------------------------------------


def strategy_of(kind: str) -> Any:
    from lightning.pytorch import strategies

    if kind == "ddp":
        return strategies.DDPStrategy()
    return strategies.ModelParallelStrategy(
        data_parallel_size=WORLD, tensor_parallel_size=1
    )


def fit(
    rank: int, folder: str, kind: str, steps: int, asked: int | None = None
) -> dict[str, Any]:
    """Train by Lightning: the losses of this run, the last step, and the steps saved."""
    launched(rank)
    import lightning.pytorch as lightning

    from tensordict.checkpoint.callbacks.lightning import LightningCheckpoint

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.losses: list[float] = []

        def configure_model(self) -> None:
            if kind == "fsdp2":
                from torch.distributed.fsdp import fully_shard

                for layer in self.net:
                    fully_shard(layer, mesh=self.device_mesh["data_parallel"])
                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch: Any, number: int) -> Any:
            if rank == 1 and self.trainer.global_step == asked:
                # One rank is asked, and all end.
                checkpointer._preempted.set()
            loss = self.net(batch["x"]).square().mean()
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.trainer.strategy.model.parameters(), 0.1)

    module = Module()
    checkpointer = Checkpointer(
        folder, durable=False, keep=None, background=True, handle_sigterm=True
    )
    trainer = lightning.Trainer(
        max_steps=steps,
        max_epochs=10,
        accelerator="cpu",
        devices=WORLD,
        strategy=strategy_of(kind),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[LightningCheckpoint(checkpointer, every_n_steps=2)],
    )
    td = TensorDict(x=torch.arange(64.0).reshape(16, 4) / 64, batch_size=[16])
    loader = BatchLoader(td, 2, shuffle=True, seed=1, rank=rank, world_size=WORLD)
    trainer.fit(module, loader)
    checkpointer.close()
    return {
        "losses": module.losses,
        "step": trainer.global_step,
        "steps": checkpointer.steps(),
    }


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_lightning(two: Ranks, tmp_path: Path, kind: str) -> None:
    needs("lightning")
    whole = two.all(fit, str(tmp_path / "whole"), kind, STEPS)
    first = two.all(fit, str(tmp_path / "run"), kind, 4)
    rest = two.all(fit, str(tmp_path / "run"), kind, STEPS)
    for rank in range(WORLD):
        assert whole[rank]["steps"] == [2, 4, 6]
        assert rest[rank]["step"] == STEPS
        assert first[rank]["losses"] + rest[rank]["losses"] == whole[rank]["losses"]
    assert verify(tmp_path / "run" / "step-6") == []
    # The bare model, in one process.
    module = nn.Module()
    module.net = net()
    Checkpointer(tmp_path / "run").restore(model=module)
    loaded = Checkpointer(tmp_path / "run").load()["model"]
    assert torch.equal(loaded["net", "0", "weight"], module.net[0].weight)
    if kind != "ddp":
        return
    asked = two.all(fit, str(tmp_path / "asked"), kind, STEPS, 2)
    assert [each["step"] for each in asked] == [3, 3]
    assert [each["steps"] for each in asked] == [[2, 3]] * 2
    rest = two.all(fit, str(tmp_path / "asked"), kind, STEPS)
    for rank in range(WORLD):
        assert asked[rank]["losses"] + rest[rank]["losses"] == whole[rank]["losses"]


# Accelerate ---------------------------------------------------------------------------


def accelerate(rank: int, folder: str, kind: str, count: int = 3) -> list[float]:
    """Train by Accelerate from the last step, if there is one: the losses of some steps."""
    launched(rank)
    import accelerate
    from accelerate.utils import FullyShardedDataParallelPlugin

    from tensordict.checkpoint.callbacks.accelerate import AcceleratorCheckpoint

    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True)
    if kind == "fsdp2":
        # Without a GPU the library takes DDP for the plugin, unless it is told.
        state: Any = accelerate.state.AcceleratorState._shared_state
        state["distributed_type"] = accelerate.DistributedType.FSDP
        state["fsdp_plugin"] = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=10
        )
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    is_sharded = any(hasattr(each, "placements") for each in model.parameters())
    assert is_sharded == (kind == "fsdp2")
    callback = AcceleratorCheckpoint(accelerator, Checkpointer(folder, durable=False))
    first = 0
    if callback.checkpointer.latest() is not None:
        first = callback.restore()["done"]
    losses = []
    for step in range(first, first + count):
        data = torch.arange(8.0).reshape(2, 4) * (step + rank) / 50
        loss = model(data).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
        callback.save(step, done=step + 1)
    return losses


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_accelerate(two: Ranks, tmp_path: Path, kind: str) -> None:
    needs("accelerate")
    run, whole = str(tmp_path / "run"), str(tmp_path / "whole")
    first = two.all(accelerate, run, kind)
    rest = two.all(accelerate, run, kind)
    assert sorted(os.listdir(run)) == ["step-3", "step-4", "step-5"]
    expected = two.all(accelerate, whole, kind, 6)
    for rank in range(WORLD):
        assert first[rank] + rest[rank] == expected[rank]
    model = net()
    Checkpointer(run).restore(model=model)


# transformers -------------------------------------------------------------------------


def bert(seed: int) -> Any:
    import transformers

    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    return transformers.BertForSequenceClassification(config)


def trainer_losses(rank: int, folder: str, steps: int) -> list[float]:
    """Train by the trainer of transformers from the latest step, if there is one."""
    launched(rank)
    import accelerate
    import transformers

    from tensordict.checkpoint.callbacks.transformers import TrainerCheckpoint

    accelerate.state.AcceleratorState._reset_state(True)
    generator = torch.Generator().manual_seed(1)
    rows = [
        {
            "input_ids": torch.randint(11, (5,), generator=generator),
            "labels": torch.tensor(number % 2),
        }
        for number in range(16)
    ]
    losses: list[float] = []

    class Trainer(transformers.Trainer):  # type: ignore[name-defined,misc]
        def training_step(self, *arguments: Any, **options: Any) -> Any:
            loss = super().training_step(*arguments, **options)
            losses.append(loss.item())
            return loss

    checkpointer = Checkpointer(folder, durable=False, keep=None, background=True)
    callback = TrainerCheckpoint(checkpointer, every_n_steps=2)
    resumes = callback.latest() is not None
    trainer = Trainer(
        # A resumed training begins with other weights, which the step replaces.
        model=bert(5 if resumes else 0),
        args=transformers.TrainingArguments(
            output_dir=folder + "-out",
            max_steps=steps,
            per_device_train_batch_size=2,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            lr_scheduler_type="constant",
            learning_rate=0.01,
            seed=3,
            ddp_backend="gloo",
        ),
        train_dataset=rows,
        callbacks=[callback],
    )
    assert trainer.args.world_size == WORLD
    trainer.train(resume_from_checkpoint=callback.latest())
    checkpointer.close()
    return losses


def test_a_trainer_resumes_with_the_weights_of_all_ranks(
    two: Ranks, tmp_path: Path
) -> None:
    needs("transformers")
    import transformers

    whole = two.all(trainer_losses, str(tmp_path / "whole"), 6)
    first = two.all(trainer_losses, str(tmp_path / "run"), 4)
    rest = two.all(trainer_losses, str(tmp_path / "run"), 6)
    for rank in range(WORLD):
        assert first[rank] + rest[rank] == whole[rank]
    path = tmp_path / "run" / "step-6"
    model, info = transformers.BertForSequenceClassification.from_pretrained(
        path, output_loading_info=True
    )
    assert not info["missing_keys"]
    saved = bert(7)
    Checkpointer(tmp_path / "run").restore(model=saved)
    for name, value in saved.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def save_apart(rank: int, folder: str, kind: str, shards: int) -> None:
    """Save a model of which each rank has other values."""
    from torch.distributed.fsdp import fully_shard

    model = bert(0)
    if kind == "fsdp2":
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (WORLD,))
        fully_shard(model, mesh=mesh)
    checkpointer = Checkpointer(
        folder, durable=False, shards=shards, per_rank=["model"] * (kind == "per_rank")
    )
    checkpointer.save(1, model=model)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("kind", ["fsdp2", "per_rank"])
def test_transformers_refuses_a_step_without_whole_tensors(
    two: Ranks, tmp_path: Path, kind: str, shards: int
) -> None:
    needs("transformers")
    import transformers

    two.all(save_apart, str(tmp_path), kind, shards)
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        transformers.BertForSequenceClassification.from_pretrained(tmp_path / "step-1")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[]
    )
    trainer = transformers.Trainer(model=bert(1), args=arguments, train_dataset=[{}])
    with pytest.raises(ValueError, match="Can't find a valid checkpoint"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "step-1"))
    assert verify(tmp_path / "step-1") == []
    if kind == "fsdp2":
        saved = bert(7)
        Checkpointer(tmp_path).restore(model=saved)
        expected = bert(0).state_dict()
        for name, value in saved.state_dict().items():
            assert torch.equal(expected[name], value), name
