"""Reinforcement learning with TorchRL: replay buffers, storages and samplers."""

from __future__ import annotations

import pytest
import torch
from rl_parts import seen, steps, torchrl
from scenario import scenario

from tensordict import NonTensorStack, TensorDict, tensorclass


@tensorclass
class Transition:
    observation: torch.Tensor
    action: torch.Tensor
    note: str


def filled(storage, rows=20, batch=4, **options):
    from torchrl.data import TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(storage=storage, batch_size=batch, **options)
    buffer.extend(steps(rows))
    return buffer


@scenario
def a_list_of_steps_is_sampled():
    torchrl()
    from torchrl.data import ListStorage, ReplayBuffer

    buffer = ReplayBuffer(
        storage=ListStorage(10), batch_size=3, collate_fn=lambda rows: torch.stack(rows)
    )
    for row in steps(12).unbind(0):
        buffer.add(row)
    sample = buffer.sample()
    return len(buffer), seen(sample), type(sample).__name__


@scenario
def a_storage_in_memory_wraps_around():
    torchrl()
    from torchrl.data import LazyTensorStorage

    buffer = filled(LazyTensorStorage(16))
    buffer.extend(steps(4))
    return len(buffer), seen(buffer[:]), seen(buffer.sample())


@scenario
def a_storage_of_mapped_files(tmp_path):
    torchrl()
    from torchrl.data import LazyMemmapStorage

    buffer = filled(LazyMemmapStorage(32, scratch_dir=tmp_path))
    buffer.add(steps(1)[0])
    sample = buffer.sample(8)
    stored = buffer._storage._storage
    return len(buffer), seen(sample), stored.is_memmap(), seen(buffer[3])


@scenario
def a_storage_of_two_dims():
    torchrl()
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40, ndim=2), batch_size=6, dim_extend=1
    )
    buffer.extend(steps(4, 5))
    buffer.extend(steps(4, 5))
    return len(buffer), seen(buffer.sample()), seen(buffer[:])


@scenario
def each_row_once():
    torchrl()
    from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement

    buffer = filled(LazyTensorStorage(20), sampler=SamplerWithoutReplacement())
    rows = torch.cat([buffer.sample()["index"] for _ in range(5)])
    return sorted(rows.tolist()), [seen(sample) for sample in buffer]


@scenario
def slices_of_trajectories():
    torchrl()
    from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

    data = steps(4, 5)
    data["episode"] = torch.arange(4)[:, None].expand(4, 5).clone()
    sampler = SliceSampler(slice_len=2, traj_key="episode", strict_length=True)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=sampler, batch_size=6
    )
    buffer.extend(data.reshape(-1))
    sample = buffer.sample()
    return seen(sample), seen(sample.reshape(3, 2))


@scenario
def slices_by_ends_without_replacement():
    torchrl()
    from torchrl.data import (
        LazyTensorStorage,
        SliceSamplerWithoutReplacement,
        TensorDictReplayBuffer,
    )

    sampler = SliceSamplerWithoutReplacement(num_slices=2, end_key=("next", "done"))
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=sampler, batch_size=10
    )
    buffer.extend(steps(4, 5).reshape(-1))
    return seen(buffer.sample()), seen(buffer.sample())


@scenario
def priorities_follow_the_errors():
    torchrl()
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.7, beta=0.9, storage=LazyTensorStorage(20), batch_size=8
    )
    buffer.extend(steps(20))
    sample = buffer.sample()
    sample["td_error"] = torch.arange(8.0)
    buffer.update_tensordict_priority(sample)
    again = buffer.sample()
    # The rows are drawn by a generator of their own, which has no seed.
    return [
        (list(each.batch_size), sorted(map(str, each.keys(True, True))))
        for each in (sample, again)
    ]


@scenario
def prioritized_slices():
    torchrl()
    from torchrl.data import (
        LazyTensorStorage,
        PrioritizedSliceSampler,
        TensorDictReplayBuffer,
    )

    sampler = PrioritizedSliceSampler(
        max_capacity=20, alpha=0.7, beta=0.9, num_slices=2, end_key=("next", "done")
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=sampler, batch_size=4
    )
    buffer.extend(steps(4, 5).reshape(-1))
    sample = buffer.sample()
    return list(sample.batch_size), sorted(sample.keys(True), key=str)


@scenario
def the_state_of_a_buffer_moves_to_another():
    torchrl()
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    buffer = filled(LazyTensorStorage(20))
    state = buffer.state_dict()
    other = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
    other.load_state_dict(state)
    return len(other), bool((other[:] == buffer[:]).all()), seen(other.sample())


@scenario
def a_state_of_mapped_files_and_of_a_list(tmp_path):
    torchrl()
    from torchrl.data import LazyMemmapStorage, ListStorage, ReplayBuffer

    mapped = filled(LazyMemmapStorage(20, scratch_dir=tmp_path / "one"))
    again = filled(LazyMemmapStorage(20, scratch_dir=tmp_path / "two"))
    again.load_state_dict(mapped.state_dict())
    listed = ReplayBuffer(storage=ListStorage(20), batch_size=2, collate_fn=torch.stack)
    listed.extend([*steps(6).unbind(0)])
    other = ReplayBuffer(storage=ListStorage(20), batch_size=2, collate_fn=torch.stack)
    other.load_state_dict(listed.state_dict())
    return bool((again[:] == mapped[:]).all()), len(other), seen(other[2])


@scenario
def a_buffer_on_disk(tmp_path):
    torchrl()
    from torchrl.data import LazyMemmapStorage, LazyTensorStorage

    answers = []
    for name, make in (
        ("memory", LazyTensorStorage),
        ("mapped", LazyMemmapStorage),
    ):
        buffer = filled(make(24))
        buffer.dumps(tmp_path / name)
        other = filled(make(24))
        other.loads(tmp_path / name)
        answers += [len(other), bool((other[:] == buffer[:]).all())]
    files = (tmp_path / "memory").rglob("[!.]*.json")
    return answers, sorted(path.name for path in files)


@scenario
def a_buffer_in_pieces_of_trajectories(tmp_path):
    torchrl()
    pytest.importorskip("h5py")
    from torchrl.data import (
        FlatStorageCheckpointer,
        H5StorageCheckpointer,
        LazyTensorStorage,
        NestedStorageCheckpointer,
        TensorDictReplayBuffer,
    )

    kinds = [FlatStorageCheckpointer, NestedStorageCheckpointer, H5StorageCheckpointer]
    answers = {}
    for kind in kinds:
        data = steps(2, 6).reshape(-1)
        data["next", "observation"][:-1] = data["observation"][1:]
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(12), batch_size=2)
        buffer.storage.checkpointer = kind()
        buffer.extend(data)
        buffer.dumps(tmp_path / kind.__name__)
        other = TensorDictReplayBuffer(storage=LazyTensorStorage(12), batch_size=2)
        other.storage.checkpointer = kind()
        other.loads(tmp_path / kind.__name__)
        answers[kind.__name__] = len(other), seen(other[:])
    return answers


@scenario
def transforms_of_what_is_sampled():
    torchrl()
    from torchrl.data import LazyTensorStorage
    from torchrl.envs.transforms import (
        CatTensors,
        Compose,
        DoubleToFloat,
        RenameTransform,
        RewardScaling,
    )

    transform = Compose(
        RewardScaling(0.0, 0.5, in_keys=[("next", "reward")]),
        CatTensors(["observation", "action"], "both", del_keys=False),
        RenameTransform(["both"], ["joined"]),
        DoubleToFloat(in_keys=["joined"]),
    )
    buffer = filled(LazyTensorStorage(20), transform=transform)
    return seen(buffer.sample())


@scenario
def several_steps_at_once():
    torchrl()
    from torchrl.data import MultiStep
    from torchrl.envs import MultiStepTransform

    data = steps(2, 6)
    data["collector", "mask"] = torch.ones(2, 6, dtype=torch.bool)
    folded = MultiStep(gamma=0.9, n_steps=3)(data.clone())
    transform = MultiStepTransform(n_steps=2, gamma=0.9)
    return seen(folded), seen(transform._inv_call(steps(2, 6)))


@scenario
def buffers_side_by_side():
    torchrl()
    from torchrl.data import LazyTensorStorage, ReplayBufferEnsemble

    both = ReplayBufferEnsemble(
        filled(LazyTensorStorage(20)),
        filled(LazyTensorStorage(20), rows=10),
        p=[0.5, 0.5],
        batch_size=6,
    )
    sample = both.sample()
    return list(sample.batch_size), sorted(sample.keys()), seen(sample["index"].shape)


@scenario
def records_of_a_class():
    torchrl()
    from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer

    answers = []
    for storage in (LazyTensorStorage(8), LazyMemmapStorage(8)):
        buffer = ReplayBuffer(storage=storage, batch_size=3)
        buffer.extend(
            Transition(torch.randn(6, 3), torch.randn(6, 2), "x", batch_size=[6])
        )
        sample = buffer.sample()
        answers += [type(sample).__name__, seen(sample.observation), sample.note]
    return answers


@scenario
def texts_in_a_buffer():
    torchrl()
    from torchrl.data import LazyStackStorage, LazyTensorStorage, ReplayBuffer

    data = steps(4)
    data["text"] = NonTensorStack("a", "b", "c", "d")
    answers = []
    for storage in (LazyStackStorage(8), LazyTensorStorage(8)):
        buffer = ReplayBuffer(storage=storage, batch_size=4)
        buffer.extend(data)
        sample = buffer[:]
        answers.append((type(sample).__name__, sample["text"], list(sample.batch_size)))
    return answers


@scenario
def samples_of_other_threads():
    torchrl()
    from torchrl.data import LazyTensorStorage

    buffer = filled(LazyTensorStorage(20), prefetch=2)
    return [list(buffer.sample().batch_size) for _ in range(4)]


@scenario
def trees_of_tensors_without_a_class():
    torchrl()
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=3)
    buffer.extend({"a": torch.arange(6), "b": {"c": torch.ones(6, 2)}})
    sample = buffer.sample()
    return sorted(sample), seen(sample["b"]["c"])


@scenario
def only_the_best_are_kept():
    torchrl()
    from torchrl.data import (
        LazyTensorStorage,
        TensorDictMaxValueWriter,
        TensorDictReplayBuffer,
    )

    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4),
        batch_size=4,
        writer=TensorDictMaxValueWriter(rank_key="score"),
    )
    buffer.extend(TensorDict(score=torch.tensor([1.0, 5, 3, 2, 9, 7]), batch_size=[6]))
    buffer.extend(TensorDict(score=torch.tensor([8.0, 0]), batch_size=[2]))
    return sorted(buffer[:]["score"].tolist())


@scenario
def maps_from_states_to_values():
    torchrl()
    from torchrl.data import TensorDictMap

    data = steps(6)
    source, found = data.exclude("next"), data["next"]
    storage = TensorDictMap.from_tensordict_pair(
        source, found, in_keys=["observation", "action"]
    )
    storage[source] = found
    other = steps(2).exclude("next")
    return (
        source["_index"].tolist(),
        storage.contains(source).tolist(),
        storage.contains(other).tolist(),
        seen(storage[source]),
    )


@scenario
def a_forest_of_searches():
    torchrl()
    from torchrl.data import MCTSForest

    def rollout(start, end):
        rows = torch.arange(start, end)
        state = torch.zeros(end - start, dtype=torch.bool)
        return TensorDict(
            observation=rows,
            action=rows % 3,
            next={
                "observation": rows + 1,
                "done": state,
                "terminated": state.clone(),
                "reward": rows * 0.5,
            },
            batch_size=[end - start],
        )

    forest = MCTSForest()
    forest.extend(rollout(0, 4))
    other = rollout(2, 6)
    other["action"] += 1
    forest.extend(other)
    tree = forest.get_tree(TensorDict(observation=torch.tensor(0)), compact=False)
    return (
        len(forest),
        tree.max_length(),
        tree.num_vertices(count_repeat=True),
        [list(path) for path in tree.valid_paths()],
        seen(tree.rollout_from_path((0,))) if tree.subtree is not None else None,
        tree.to_string(),
    )


@scenario
def trajectories_taken_apart():
    torchrl()
    from torchrl.collectors.utils import split_trajectories

    data = steps(12)
    data["collector", "traj_ids"] = torch.tensor([0] * 5 + [1] * 4 + [2] * 3)
    split = split_trajectories(data, trajectory_key=("collector", "traj_ids"))
    return seen(split)
