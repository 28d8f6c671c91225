"""Reinforcement learning with TorchRL: environments, transforms, specs and collectors."""

from __future__ import annotations

import torch
from rl_parts import actor, counted, seen, torchrl
from scenario import scenario
from torch import nn

from tensordict import NonTensorData, TensorDict, lazy_stack
from tensordict.nn import TensorDictModule, TensorDictSequential


def pendulum():
    from torchrl.envs import PendulumEnv

    return PendulumEnv()


@scenario
def a_rollout_of_an_environment():
    torchrl()
    from torchrl.envs import check_env_specs

    env = pendulum()
    check_env_specs(env)
    env.set_seed(0)
    return seen(env.rollout(5)), seen(env.rand_step(env.reset()))


@scenario
def rollouts_go_on_after_the_end():
    torchrl()
    env = counted(batch_size=[2])
    stopped = env.rollout(20, policy=lambda td: td.set("action", torch.ones(2, 1)))
    longer = env.rollout(
        9,
        policy=lambda td: td.set("action", torch.ones(2, 1)),
        break_when_any_done=False,
    )
    return seen(stopped), seen(longer), longer.names


@scenario
def step_after_step():
    torchrl()
    from torchrl.envs import step_mdp

    env = counted()
    data = env.reset()
    for _ in range(3):
        data["action"] = torch.ones(1)
        data, after = env.step_and_maybe_reset(data)
    data = env.rand_step(env.reset())
    data["other"] = torch.ones(1)
    return (
        seen(after),
        seen(step_mdp(data)),
        seen(step_mdp(data, keep_other=False, exclude_reward=False)),
        seen(step_mdp(data, exclude_action=False, exclude_done=True)),
    )


@scenario
def nested_keys_of_an_environment():
    torchrl()
    from torchrl.envs import check_env_specs
    from torchrl.testing.mocking_classes import MultiKeyCountingEnv, NestedCountingEnv

    answers = []
    for env in (
        NestedCountingEnv(nest_done=True, nest_reward=True),
        MultiKeyCountingEnv(batch_size=(2,)),
    ):
        check_env_specs(env)
        answers.append(seen(env.rollout(4)))
    return answers


@scenario
def agents_of_different_shapes():
    torchrl()
    from torchrl.envs import check_env_specs
    from torchrl.testing.mocking_classes import HeterogeneousCountingEnv

    env = HeterogeneousCountingEnv(batch_size=[2])
    check_env_specs(env, return_contiguous=False)
    data = env.rollout(3, return_contiguous=False)
    agents = data[:, 0]["lazy"]
    return (
        type(data).__name__,
        list(data.batch_size),
        type(agents).__name__,
        [seen(agent) for agent in agents.unbind(1)],
        sorted(str(key) for key in data.keys(True, True)),
    )


@scenario
def texts_and_classes_of_an_environment():
    torchrl()
    from torchrl.envs import check_env_specs
    from torchrl.testing.mocking_classes import (
        CountingEnvWithString,
        EnvWithMetadata,
        EnvWithTensorClass,
        Str2StrEnv,
    )

    answers = []
    env = CountingEnvWithString(max_size=3, min_size=2)
    env.set_seed(0)
    check_env_specs(env)
    data = env.rollout(3, break_when_any_done=False)
    answers.append([len(text) > 1 for text in data["string"]])
    env = EnvWithMetadata()
    data = env.rollout(3)
    answers.append(data["non_tensor"])
    env = EnvWithTensorClass()
    data = env.rollout(3)
    answers += [type(data["tc"]).__name__, list(data["tc"].batch_size)]
    env = Str2StrEnv()
    env.set_seed(0)
    data = env.rollout(3)
    return answers, [isinstance(text, str) for text in data["observation"]]


@scenario
def environments_one_after_another():
    torchrl()
    from torchrl.envs import SerialEnv, check_env_specs

    env = SerialEnv(3, counted)
    check_env_specs(env)
    data = env.rollout(6, break_when_any_done=False)
    part = env.reset(
        TensorDict(_reset=torch.tensor([[True], [False], [True]]), batch_size=[3])
    )
    return seen(data), seen(part), seen(env.rollout(2)[..., -1])


@scenario
def environments_of_several_kinds():
    torchrl()
    from torchrl.envs import SerialEnv
    from torchrl.testing.mocking_classes import CountingEnv

    env = SerialEnv(
        2, [lambda: CountingEnv(max_steps=2), lambda: CountingEnv(max_steps=5)]
    )
    data = env.rollout(8, break_when_any_done=False)
    return seen(data["next", "done"]), env.batch_size


@scenario
def environments_in_processes():
    torchrl()
    from torchrl.envs import ParallelEnv

    answers = []
    for shared in (True, False):
        env = ParallelEnv(2, counted, use_buffers=shared, mp_start_method="fork")
        try:
            answers.append(seen(env.rollout(5, break_when_any_done=False)))
            answers.append(seen(env.reset()))
        finally:
            env.close(raise_if_closed=False)
    return answers


@scenario
def an_environment_with_transforms():
    torchrl()
    from torchrl.envs import TransformedEnv, check_env_specs
    from torchrl.envs.transforms import (
        CatTensors,
        Compose,
        DoubleToFloat,
        InitTracker,
        ObservationNorm,
        RewardSum,
        StepCounter,
        UnsqueezeTransform,
    )

    env = TransformedEnv(
        pendulum(),
        Compose(
            UnsqueezeTransform(
                dim=-1,
                in_keys=["th", "thdot"],
                in_keys_inv=["th", "thdot"],
            ),
            CatTensors(["th", "thdot"], "observation", del_keys=False),
            ObservationNorm(1.0, 2.0, in_keys=["observation"]),
            RewardSum(),
            StepCounter(max_steps=4),
            InitTracker(),
            DoubleToFloat(),
        ),
    )
    check_env_specs(env)
    env.set_seed(0)
    data = env.rollout(6)
    return seen(data), sorted(str(key) for key in env.observation_spec.keys(True, True))


@scenario
def transforms_of_frames():
    torchrl()
    from torchrl.envs import TransformedEnv
    from torchrl.envs.transforms import (
        CatFrames,
        Compose,
        FlattenObservation,
        GrayScale,
        ToTensorImage,
    )
    from torchrl.testing.mocking_classes import DiscreteActionConvMockEnvNumpy

    env = TransformedEnv(
        DiscreteActionConvMockEnvNumpy(),
        Compose(
            ToTensorImage(),
            GrayScale(),
            FlattenObservation(-2, -1, in_keys=["pixels"]),
            CatFrames(N=3, dim=-2, in_keys=["pixels"]),
        ),
    )
    return seen(env.rollout(4))


@scenario
def transforms_of_actions_and_rewards():
    torchrl()
    from torchrl.data import Unbounded
    from torchrl.envs import TransformedEnv
    from torchrl.envs.transforms import (
        ActionDiscretizer,
        BinarizeReward,
        ClipTransform,
        Compose,
        ExcludeTransform,
        Reward2GoTransform,
        RewardClipping,
        SelectTransform,
        SignTransform,
        TargetReturn,
        TensorDictPrimer,
        TimeMaxPool,
    )

    answers = []
    for transform in (
        ActionDiscretizer(num_intervals=3),
        Compose(RewardClipping(-1, 0.5), BinarizeReward()),
        ClipTransform(in_keys=["th"], low=-0.1, high=0.1),
        Compose(TargetReturn(10.0), SignTransform(in_keys=["reward"])),
        TensorDictPrimer(hidden=Unbounded((3,)), default_value=1.0),
        TimeMaxPool(in_keys=["thdot"], T=2),
        Compose(ExcludeTransform("thdot"), SelectTransform("th", "action")),
    ):
        try:
            env = TransformedEnv(pendulum(), transform)
            env.set_seed(0)
            answers.append(seen(env.rollout(3)))
        except KeyError:
            answers.append("a key is missing")
    data = pendulum().rollout(4)
    data["next", "done"][-1] = True
    return answers, seen(Reward2GoTransform(gamma=0.9).inv(data))


@scenario
def running_means_of_observations():
    torchrl()
    from torchrl.envs import TransformedEnv
    from torchrl.envs.transforms import VecNorm, VecNormV2

    answers = []
    for transform in (
        VecNorm(in_keys=["observation", "reward"]),
        VecNormV2(in_keys=["observation", "reward"], out_keys=["n", "r"]),
    ):
        env = TransformedEnv(counted_float(), transform)
        env.set_seed(0)
        answers.append(seen(env.rollout(5)))
        answers.append(sorted(transform.state_dict()))
    return answers


@scenario
def an_environment_of_a_world_model():
    torchrl()
    from torchrl.modules import WorldModelWrapper
    from torchrl.testing.mocking_classes import DummyModelBasedEnvBase

    class Dynamics(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4 + 1, 4)

        def forward(self, hidden, action):
            return self.net(torch.cat([hidden, action.float()], -1))

    world = WorldModelWrapper(
        TensorDictModule(
            Dynamics(),
            in_keys=["hidden_observation", "action"],
            out_keys=["hidden_observation"],
        ),
        TensorDictModule(nn.Linear(4, 1), ["hidden_observation"], ["reward"]),
    )
    env = DummyModelBasedEnvBase(world, device="cpu", batch_size=torch.Size([10]))
    return seen(env.rollout(3).detach())


@scenario
def games():
    torchrl()
    from torchrl.envs import TicTacToeEnv

    env = TicTacToeEnv()
    env.set_seed(0)
    data = env.rollout(9)
    return seen(data.exclude("mask", ("next", "mask")))


@scenario
def composite_specs():
    torchrl()
    from torchrl.data import (
        Binary,
        Bounded,
        Categorical,
        Composite,
        MultiOneHot,
        NonTensor,
        OneHot,
        Unbounded,
    )

    spec = Composite(
        a=Unbounded((4, 3)),
        b=Composite(c=Bounded(-1, 1, (4, 2)), d=OneHot(5, shape=(4, 5)), shape=(4,)),
        e=Categorical(3, shape=(4,)),
        f=MultiOneHot([2, 3], shape=(4, 5)),
        g=Binary(3, shape=(4, 3)),
        h=NonTensor(shape=(4,), example_data="x"),
        shape=(4,),
    )
    sample = spec.rand()
    outside = sample.clone()
    outside["b", "c"] += 5
    return (
        seen(spec.zero()),
        seen(sample),
        spec.is_in(sample),
        spec.is_in(outside),
        seen(spec.project(outside)),
        seen(spec.expand(2, 4).rand()),
        seen(spec[0].zero()),
        seen(torch.stack([spec, spec], 0).one()),
        sorted(str(key) for key in spec.keys(True, True)),
    )


@scenario
def lazy_stacks_of_specs():
    torchrl()
    from torchrl.data import Composite, Unbounded

    specs = [Composite(a=Unbounded((size,))) for size in (1, 2, 3)]
    spec = torch.stack(specs, 0)
    sample = spec.rand()
    return (
        type(spec).__name__,
        type(sample).__name__,
        spec.is_in(sample),
        [seen(row) for row in sample.unbind(0)],
        seen(spec[1].zero()),
    )


@scenario
def a_collector_fills_batches():
    torchrl()
    from torchrl.collectors import Collector

    collector = Collector(
        counted,
        TensorDictModule(
            lambda observation: torch.ones_like(observation),
            ["observation"],
            ["action"],
        ),
        frames_per_batch=6,
        total_frames=18,
    )
    answers = [seen(data) for data in collector]
    state = collector.state_dict()
    collector.shutdown()
    return answers, sorted(state)


@scenario
def a_collector_with_a_buffer_and_trajectories():
    torchrl()
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.envs import SerialEnv

    answers = []
    for options in ({"split_trajs": True}, {"storing_device": "cpu"}):
        collector = Collector(
            SerialEnv(2, counted),
            policy=None,
            frames_per_batch=8,
            total_frames=16,
            init_random_frames=8,
            **options,
        )
        collector.set_seed(0)
        answers.append([(data.names, list(data.batch_size)) for data in collector])
        collector.shutdown()
    buffer = ReplayBuffer(storage=LazyTensorStorage(40), batch_size=4)
    collector = Collector(
        counted,
        policy=None,
        frames_per_batch=5,
        total_frames=20,
        replay_buffer=buffer,
        extend_buffer=True,
    )
    for _ in collector:
        pass
    collector.shutdown()
    return answers, len(buffer), sorted(map(str, buffer[:].keys(True, True)))


@scenario
def collectors_in_processes():
    torchrl()
    from torchrl.collectors import MultiSyncCollector

    policy = TensorDictModule(nn.Linear(1, 1), ["observation"], ["action"])
    collector = MultiSyncCollector(
        [counted_float],
        policy=policy,
        frames_per_batch=8,
        total_frames=16,
        cat_results="stack",
    )
    answers = []
    for data in collector:
        answers.append((list(data.batch_size), sorted(map(str, data.keys(True, True)))))
        collector.update_policy_weights_()
    collector.shutdown()
    return answers


def counted_float():
    from torchrl.envs import TransformedEnv
    from torchrl.envs.transforms import DTypeCastTransform

    return TransformedEnv(
        counted(),
        DTypeCastTransform(torch.int32, torch.float32, in_keys=["observation"]),
    )


@scenario
def a_recurrent_policy_in_an_environment():
    torchrl()
    from torchrl.envs import TransformedEnv
    from torchrl.envs.transforms import Compose, InitTracker
    from torchrl.modules import LSTMModule

    lstm = LSTMModule(input_size=1, hidden_size=4, in_key="observation", out_key="out")
    env = TransformedEnv(
        counted_float(), Compose(InitTracker(), lstm.make_tensordict_primer())
    )
    head = TensorDictModule(nn.Linear(4, 1), ["out"], ["action"])
    data = env.rollout(
        5, policy=TensorDictSequential(lstm, head), break_when_any_done=False
    )
    return seen(data.detach()["recurrent_state_h"]), seen(data["is_init"]), data.names


@scenario
def policies_written_as_functions_of_tensors():
    torchrl()
    from torchrl.modules import RandomPolicy

    env = counted_float()
    data = env.rollout(3, policy=RandomPolicy(env.action_spec))
    return seen(data["action"].shape), list(data.batch_size)


@scenario
def weights_given_to_another_policy():
    torchrl()
    from torchrl.weight_update import WeightStrategy

    policy, other = actor(), actor()
    strategy = WeightStrategy(extract_as="tensordict")
    weights = strategy.extract_weights(policy)
    strategy.apply_weights(other, weights)
    return (
        type(weights).__name__,
        seen(weights.data),
        all(
            bool((one == two).all())
            for one, two in zip(policy.parameters(), other.parameters(), strict=True)
        ),
    )


@scenario
def a_log_and_a_trainer(tmp_path):
    torchrl()
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.modules import MLP, Actor, ValueOperator
    from torchrl.objectives import DDPGLoss
    from torchrl.record.loggers import CSVLogger
    from torchrl.trainers import ReplayBufferTrainer, Trainer

    logger = CSVLogger("run", log_dir=str(tmp_path))
    policy = Actor(nn.Linear(1, 1), in_keys=["observation"])
    critic = ValueOperator(
        MLP(in_features=2, out_features=1, num_cells=[4]),
        in_keys=["observation", "action"],
    )
    loss = DDPGLoss(policy, critic)
    collector = Collector(counted_float, policy, frames_per_batch=5, total_frames=15)
    trainer = Trainer(
        collector=collector,
        total_frames=15,
        frame_skip=1,
        optim_steps_per_batch=2,
        loss_module=loss,
        optimizer=torch.optim.SGD(loss.parameters(), lr=0.1),
        logger=logger,
        progress_bar=False,
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
    ReplayBufferTrainer(buffer, batch_size=4).register(trainer)
    trainer.train()
    collector.shutdown()
    files = sorted({path.suffix for path in tmp_path.rglob("*") if path.is_file()})
    return len(buffer), files, trainer.collected_frames


@scenario
def conversations():
    torchrl()
    from torchrl.data import History

    chat = History.from_chats(
        [
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}],
        ]
    )
    more = chat.extend(
        History.from_chats(
            [
                [{"role": "user", "content": "e"}],
                [{"role": "user", "content": "f"}],
            ]
        ),
        inplace=False,
        dim=1,
    )
    return (
        list(chat.batch_size),
        chat.role,
        list(more.batch_size),
        more.content,
        chat[0, 1].content,
        more[:, -1].content,
        type(chat).__name__,
    )


@scenario
def rewards_and_prompts_of_classes():
    torchrl()
    from torchrl.data import PromptData, RewardData

    reward = RewardData(
        input_ids=torch.ones(4, 6, dtype=torch.int64),
        attention_mask=torch.ones(4, 6, dtype=torch.int64),
        rewards=torch.zeros(4, 1),
        end_scores=torch.ones(4),
        batch_size=[4],
    )
    prompt = PromptData(
        input_ids=torch.ones(4, 6, dtype=torch.int64),
        attention_mask=torch.ones(4, 6, dtype=torch.int64),
        prompt_rindex=torch.arange(4),
        batch_size=[4],
    )
    return (
        seen(reward[1:].end_scores),
        seen(torch.stack([reward, reward]).input_ids),
        seen(prompt.mask_label().input_ids),
        prompt.labels is None,
    )


@scenario
def environments_asked_asynchronously():
    torchrl()
    from torchrl.envs import AsyncEnvPool

    env = AsyncEnvPool([counted, counted], backend="threading", stack="lazy")
    try:
        start = env.reset()
        start["action"] = torch.ones(2, 1)
        after = env.step(start)
        rollout = env.rollout(3, break_when_any_done=False)
    finally:
        env._maybe_shutdown()
    return type(start).__name__, seen(after["next", "observation"]), rollout.shape


@scenario
def groups_of_agents():
    torchrl()
    from torchrl.testing.mocking_classes import MultiAgentCountingEnv

    env = MultiAgentCountingEnv(n_agents=3)
    env.set_seed(0)
    data = env.rollout(3)
    return env.group_map, sorted(str(key) for key in data.keys(True, True))


@scenario
def lazy_rollouts_become_dense():
    torchrl()
    from torchrl.testing.mocking_classes import EnvWithDynamicSpec

    env = EnvWithDynamicSpec(max_count=4)
    data = env.rollout(5, break_when_any_done=False, return_contiguous=False)
    shapes = [list(row["observation"].shape) for row in data.unbind(-1)]
    padded = lazy_stack([row.clone() for row in data.unbind(-1)])
    return type(data).__name__, shapes, seen(padded[0]), str(NonTensorData("x").data)


@scenario
def conditions_and_action_masks():
    torchrl()
    from torchrl.data import Binary, Categorical, Composite, Unbounded
    from torchrl.envs import EnvBase, TransformedEnv, check_env_specs
    from torchrl.envs.transforms import ActionMask

    class Masked(EnvBase):
        def __init__(self):
            super().__init__(batch_size=[])
            self.action_spec = Categorical(4)
            self.state_spec = Composite(action_mask=Binary(4, dtype=torch.bool))
            self.observation_spec = Composite(
                observation=Unbounded((3,)), action_mask=Binary(4, dtype=torch.bool)
            )
            self.reward_spec = Unbounded((1,))

        def _reset(self, tensordict=None, **kwargs):
            return self.full_observation_spec.rand().set(
                "action_mask", torch.ones(4, dtype=torch.bool)
            )

        def _step(self, data):
            mask = data["action_mask"].clone()
            mask[data["action"]] = False
            return TensorDict(
                observation=torch.zeros(3),
                action_mask=mask if mask.any() else ~mask,
                reward=torch.ones(1),
                done=torch.zeros(1, dtype=torch.bool),
            )

        def _set_seed(self, seed):
            torch.manual_seed(seed)

    env = TransformedEnv(Masked(), ActionMask())
    data = env.rollout(4)
    check_env_specs(env)
    return sorted(data["action"].tolist()), seen(data["action_mask"])
