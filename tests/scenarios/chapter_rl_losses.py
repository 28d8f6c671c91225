"""Reinforcement learning with TorchRL: modules, losses and estimators of values."""

from __future__ import annotations

import copy

import pytest
import torch
from rl_parts import (
    actor,
    categorical,
    gaussian,
    one_hot,
    qvalue,
    seen,
    steps,
    torchrl,
    trained,
    value,
)
from scenario import scenario
from torch import nn

from tensordict import TensorDict, TensorDictParams
from tensordict.nn import TensorDictModule, TensorDictSequential


def q_of_actions():
    from torchrl.data import OneHot
    from torchrl.modules import QValueActor

    return QValueActor(nn.Linear(3, 3), spec=OneHot(3), in_keys=["observation"])


@scenario
def deep_q_learning():
    torchrl()
    from torchrl.objectives import DQNLoss, SoftUpdate

    data = one_hot(steps(8))
    answers = []
    for options in ({}, {"double_dqn": True, "delay_value": True}):
        loss = DQNLoss(q_of_actions(), action_space="one-hot", **options)
        loss.make_value_estimator(gamma=0.9)
        answers.append(trained(loss, data.clone()))
    updater = SoftUpdate(loss, eps=0.5)
    updater.step()
    return answers, seen(loss.target_value_network_params.data)


@scenario
def distributional_q_learning():
    torchrl()
    from torchrl.data import OneHot
    from torchrl.modules import MLP, DistributionalQValueActor
    from torchrl.objectives import DistributionalDQNLoss

    net = MLP(in_features=3, out_features=(5, 3), num_cells=[4])
    policy = DistributionalQValueActor(
        net, spec=OneHot(3), in_keys=["observation"], support=torch.arange(5.0)
    )
    loss = DistributionalDQNLoss(policy, gamma=0.9, delay_value=True)
    return trained(loss, one_hot(steps(8)))


@scenario
def proximal_policy_optimization():
    torchrl()
    from torchrl.objectives import ClipPPOLoss, KLPENPPOLoss, PPOLoss
    from torchrl.objectives.value import GAE

    answers = []
    for kind in (PPOLoss, ClipPPOLoss, KLPENPPOLoss):
        policy, critic = gaussian(return_log_prob=True), value()
        data = steps(4, 5)
        with torch.no_grad():
            policy(data)
        GAE(gamma=0.9, lmbda=0.95, value_network=critic, average_gae=True)(data)
        answers.append(trained(kind(policy, critic), data))
    return answers


@scenario
def ppo_with_several_heads_of_actions():
    torchrl()
    from torchrl.modules import ProbabilisticActor
    from torchrl.objectives import ClipPPOLoss

    from tensordict.nn import (
        CompositeDistribution,
        set_composite_lp_aggregate,
    )

    with set_composite_lp_aggregate(False):
        net = TensorDictModule(
            nn.Linear(3, 5),
            in_keys=["observation"],
            out_keys=["logits"],
        )
        split = TensorDictModule(
            lambda logits: (logits[..., :3], logits[..., 3:4], logits[..., 4:].exp()),
            in_keys=["logits"],
            out_keys=[
                ("params", "head", "logits"),
                ("params", "tail", "loc"),
                ("params", "tail", "scale"),
            ],
        )
        policy = ProbabilisticActor(
            TensorDictSequential(net, split),
            in_keys=["params"],
            distribution_class=CompositeDistribution,
            distribution_kwargs={
                "distribution_map": {
                    "head": torch.distributions.Categorical,
                    "tail": torch.distributions.Normal,
                },
                "name_map": {"head": ("action", "head"), "tail": ("action", "tail")},
            },
            return_log_prob=True,
        )
        data = policy(steps(6).exclude("action"))
        loss = ClipPPOLoss(policy, value())
        loss.set_keys(
            action=[("action", "head"), ("action", "tail")],
            sample_log_prob=[("action", "head_log_prob"), ("action", "tail_log_prob")],
        )
        data["advantage"] = torch.randn(6, 1)
        data["value_target"] = torch.randn(6, 1)
        keys = sorted(str(key) for key in data.keys(True, True))
        return keys, trained(loss, data.detach())


@scenario
def actor_critic_and_reinforce():
    torchrl()
    from torchrl.objectives import A2CLoss, ReinforceLoss

    answers = []
    for kind in (A2CLoss, ReinforceLoss):
        policy, critic = gaussian(return_log_prob=True), value()
        data = steps(4, 5)
        with torch.no_grad():
            policy(data)
        loss = kind(policy, critic)
        loss.make_value_estimator(gamma=0.9)
        answers.append(trained(loss, data))
    return answers


@scenario
def soft_actor_critic():
    torchrl()
    from torchrl.objectives import SACLoss, SoftUpdate

    loss = SACLoss(gaussian(), qvalue(), num_qvalue_nets=3)
    loss.make_value_estimator(gamma=0.9)
    answer = trained(loss, steps(8))
    SoftUpdate(loss, tau=0.1).step()
    with_value = SACLoss(gaussian(), qvalue(), value())
    return answer, trained(with_value, steps(8)), sorted(loss.state_dict())


@scenario
def soft_actor_critic_of_discrete_actions():
    torchrl()
    from torchrl.modules import ValueOperator
    from torchrl.objectives import DiscreteSACLoss

    critic = ValueOperator(
        nn.Linear(3, 3), in_keys=["observation"], out_keys=["action_value"]
    )
    loss = DiscreteSACLoss(categorical(), critic, num_actions=3, action_space="one-hot")
    return trained(loss, one_hot(steps(8)))


@scenario
def deterministic_policies():
    torchrl()
    from torchrl.data import Bounded
    from torchrl.objectives import DDPGLoss, TD3BCLoss, TD3Loss

    spec = Bounded(-1, 1, (2,))
    return (
        trained(DDPGLoss(actor(), qvalue(), delay_actor=True), steps(8)),
        trained(TD3Loss(actor(), qvalue(), action_spec=spec), steps(8)),
        trained(TD3BCLoss(actor(), qvalue(), action_spec=spec), steps(8)),
    )


@scenario
def offline_losses():
    torchrl()
    from torchrl.objectives import CQLLoss, DiscreteCQLLoss, IQLLoss

    data = steps(8)
    answers = [
        trained(CQLLoss(gaussian(), qvalue()), data.clone()),
        trained(IQLLoss(gaussian(), qvalue(), value()), data.clone()),
    ]
    discrete = DiscreteCQLLoss(q_of_actions(), action_space="one-hot")
    return answers, trained(discrete, one_hot(steps(8)))


@scenario
def randomized_ensembles():
    torchrl()
    from torchrl.objectives import CrossQLoss, REDQLoss, TQCLoss

    answers = [trained(REDQLoss(gaussian(), qvalue(), num_qvalue_nets=4), steps(8))]
    answers.append(trained(CrossQLoss(gaussian(), qvalue()), steps(8)))
    from torchrl.modules import MLP, ValueOperator

    quantiles = ValueOperator(
        MLP(in_features=5, out_features=6, num_cells=[4]),
        in_keys=["observation", "action"],
    )
    return answers, trained(TQCLoss(gaussian(), quantiles), steps(8))


@scenario
def imitation():
    torchrl()
    from torchrl.modules import MLP
    from torchrl.objectives import BCLoss, GAILLoss

    class Discriminator(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = MLP(in_features=5, out_features=1, num_cells=[4])

        def forward(self, observation, action):
            return self.net(torch.cat([observation, action], -1)).sigmoid()

    net = TensorDictModule(
        Discriminator(), in_keys=["observation", "action"], out_keys=["d_logits"]
    )
    data = steps(8)
    data["collector_action"] = torch.randn(8, 2)
    data["collector_observation"] = torch.randn(8, 3)
    loss = GAILLoss(net)
    return trained(loss, data), trained(BCLoss(actor()), steps(8))


@scenario
def decision_transformers():
    torchrl()
    pytest.importorskip("transformers")
    from torchrl.modules import (
        DecisionTransformerInferenceWrapper,
        DTActor,
        ProbabilisticActor,
        TanhDelta,
    )
    from torchrl.objectives import DTLoss

    config = DTActor.default_config()
    config.n_embd, config.n_layer, config.n_head, config.n_inner = 8, 1, 1, 8
    net = DTActor(state_dim=3, action_dim=2, transformer_config=config)
    policy = ProbabilisticActor(
        TensorDictModule(
            net,
            in_keys=["observation", "action", "return_to_go"],
            out_keys=["param"],
        ),
        in_keys=["param"],
        distribution_class=TanhDelta,
        distribution_kwargs={"low": -1.0, "high": 1.0},
    )
    data = steps(2, 4)
    data["return_to_go"] = torch.randn(2, 4, 1)
    answer, grads = trained(DTLoss(policy), data)
    wrapped = DecisionTransformerInferenceWrapper(policy, inference_context=3)
    wrapped.set_tensor_keys(action="action", observation="observation")
    return answer, len(grads), seen(wrapped(data.exclude("next")).detach())


@scenario
def world_models():
    torchrl()
    from torchrl.modules import WorldModelWrapper

    model = WorldModelWrapper(
        TensorDictModule(nn.Linear(3, 3), ["observation"], [("next", "observation")]),
        TensorDictModule(nn.Linear(3, 1), [("next", "observation")], ["reward"]),
    )
    return seen(model(steps(4)).detach()), [str(key) for key in model.out_keys]


@scenario
def agents_mix_their_values():
    torchrl()
    from torchrl.data import OneHot
    from torchrl.modules import MultiAgentMLP, QMixer, QValueModule
    from torchrl.objectives import QMixerLoss

    net = TensorDictModule(
        MultiAgentMLP(3, 3, n_agents=2, centralised=False, share_params=False, depth=1),
        in_keys=[("agents", "observation")],
        out_keys=[("agents", "action_value")],
    )
    choose = QValueModule(
        action_value_key=("agents", "action_value"),
        out_keys=[
            ("agents", "action"),
            ("agents", "action_value"),
            ("agents", "chosen_action_value"),
        ],
        spec=OneHot(3),
    )
    mixer = TensorDictModule(
        QMixer(state_shape=(5,), mixing_embed_dim=4, n_agents=2, device="cpu"),
        in_keys=[("agents", "chosen_action_value"), "state"],
        out_keys=["chosen_action_value"],
    )
    loss = QMixerLoss(TensorDictSequential(net, choose), mixer, action_space="one-hot")
    data = TensorDict(
        agents={
            "observation": torch.randn(4, 2, 3),
            "action": nn.functional.one_hot(torch.randint(3, (4, 2)), 3),
        },
        state=torch.randn(4, 5),
        next={
            "agents": {"observation": torch.randn(4, 2, 3)},
            "state": torch.randn(4, 5),
            "reward": torch.randn(4, 1),
            "done": torch.zeros(4, 1, dtype=torch.bool),
            "terminated": torch.zeros(4, 1, dtype=torch.bool),
        },
        batch_size=[4],
    )
    return trained(loss, data)


@scenario
def estimates_of_advantages():
    torchrl()
    from torchrl.objectives.value import (
        GAE,
        TD0Estimator,
        TD1Estimator,
        TDLambdaEstimator,
        VTrace,
    )

    critic = value()
    data = steps(3, 5)
    kinds = (
        lambda: GAE(gamma=0.9, lmbda=0.95, value_network=critic),
        lambda: GAE(
            gamma=0.9, lmbda=0.95, value_network=critic, vectorized=False, shifted=True
        ),
        lambda: TD0Estimator(gamma=0.9, value_network=critic),
        lambda: TD1Estimator(gamma=0.9, value_network=critic),
        lambda: TDLambdaEstimator(gamma=0.9, lmbda=0.9, value_network=critic),
    )
    answers = [seen(make()(data.clone()).detach()) for make in kinds]
    policy = gaussian(return_log_prob=True)
    with_probability = policy(data.clone()).detach()
    trace = VTrace(gamma=0.9, value_network=critic, actor_network=policy)
    return answers, seen(trace(with_probability).detach())


@scenario
def a_loss_chooses_its_estimator_and_keys():
    torchrl()
    from torchrl.objectives import PPOLoss, ValueEstimators

    policy, critic = gaussian(return_log_prob=True), value()
    answers = []
    for kind in (
        ValueEstimators.TD0,
        ValueEstimators.TD1,
        ValueEstimators.TDLambda,
        ValueEstimators.GAE,
    ):
        data = steps(2, 4)
        with torch.no_grad():
            policy(data)
        data.rename_key_(("next", "reward"), ("next", "gain"))
        loss = PPOLoss(policy, critic)
        loss.set_keys(reward="gain")
        loss.make_value_estimator(kind)
        answers.append(trained(loss, data)[0])
    return answers


@scenario
def a_loss_is_copied_saved_and_moved(tmp_path):
    torchrl()
    from torchrl.objectives import SACLoss

    loss = SACLoss(gaussian(), qvalue())
    torch.save(loss.state_dict(), tmp_path / "loss.pt")
    other = copy.deepcopy(loss)
    for parameter in other.parameters():
        parameter.data.zero_()
    report = other.load_state_dict(torch.load(tmp_path / "loss.pt"))
    other = other.to(torch.float64).float().eval().train()
    same = all(
        bool((one == two).all())
        for one, two in zip(loss.parameters(), other.parameters(), strict=True)
    )
    torch.manual_seed(0)
    first = loss(steps(4))
    torch.manual_seed(0)
    second = other(steps(4))
    return str(report), same, seen(first.detach()), seen((first - second).detach())


@scenario
def a_loss_as_a_module_of_dispatched_arguments():
    torchrl()
    from torchrl.objectives import DDPGLoss

    loss = DDPGLoss(actor(), qvalue()).select_out_keys("loss_actor")
    data = steps(4)
    result = loss(
        observation=data["observation"],
        action=data["action"],
        next_observation=data["next", "observation"],
        next_reward=data["next", "reward"],
        next_done=data["next", "done"],
        next_terminated=data["next", "terminated"],
    )
    return seen(result.detach() if isinstance(result, torch.Tensor) else result)


@scenario
def an_optimizer_over_the_parameters_of_a_loss():
    torchrl()
    from torchrl.objectives import SACLoss, group_optimizers

    loss = SACLoss(gaussian(), qvalue())
    optimizer = group_optimizers(
        torch.optim.Adam(loss.actor_network_params.flatten_keys().values(), lr=1e-2),
        torch.optim.Adam(loss.qvalue_network_params.flatten_keys().values(), lr=1e-2),
        torch.optim.Adam([loss.log_alpha], lr=1e-2),
    )
    found = []
    for _ in range(3):
        out = loss(steps(8))
        (out["loss_actor"] + out["loss_qvalue"] + out["loss_alpha"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(seen(out.detach()))
    return found, seen(loss.actor_network_params.data)


@scenario
def an_ensemble_by_vmap():
    torchrl()
    from torchrl.modules import MLP

    nets = [MLP(in_features=3, out_features=1, num_cells=[4]) for _ in range(3)]
    params = TensorDictParams(TensorDict.from_modules(*nets, as_module=True))
    module = TensorDictModule(nets[0], in_keys=["observation"], out_keys=["value"])
    wrapped = TensorDict.from_modules(
        *[TensorDictModule(net, ["observation"], ["value"]) for net in nets]
    )

    def call(weights, data):
        with weights.to_module(module):
            return module(data)

    data = steps(4)
    result = torch.vmap(call, (0, None), randomness="different")(wrapped, data)
    (gradient,) = torch.autograd.grad(
        result["value"].pow(2).sum(), wrapped["module", "0", "weight"]
    )
    return seen(result.detach()), seen(gradient), len(list(params.parameters()))


@scenario
def actors_that_share_a_trunk():
    torchrl()
    from torchrl.modules import (
        ActorCriticOperator,
        ActorCriticWrapper,
        ActorValueOperator,
    )

    common = TensorDictModule(nn.Linear(3, 3), ["observation"], ["hidden"])
    head = TensorDictModule(nn.Linear(3, 2), ["hidden"], ["action"])
    critic = TensorDictModule(nn.Linear(3, 1), ["hidden"], ["state_value"])
    both = ActorValueOperator(common, head, critic)

    class Quality(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(5, 1)

        def forward(self, hidden, action):
            return self.net(torch.cat([hidden, action], -1))

    quality = TensorDictModule(Quality(), ["hidden", "action"], ["state_action_value"])
    third = ActorCriticOperator(common, head, quality)
    data = steps(4)
    pair = ActorCriticWrapper(actor(), value())
    return [
        seen(each(data.clone()).detach())
        for each in (
            both,
            both.get_policy_operator(),
            both.get_value_operator(),
            third,
            third.get_critic_operator(),
            pair,
        )
    ]


@scenario
def exploration():
    torchrl()
    from torchrl.data import Bounded, OneHot
    from torchrl.modules import (
        AdditiveGaussianModule,
        EGreedyModule,
        OrnsteinUhlenbeckProcessModule,
    )

    spec = Bounded(-1, 1, (2,))
    noisy = TensorDictSequential(actor(), AdditiveGaussianModule(spec))
    ou = TensorDictSequential(actor(), OrnsteinUhlenbeckProcessModule(spec))
    greedy = TensorDictSequential(
        q_of_actions(), EGreedyModule(OneHot(3), eps_init=0.5, eps_end=0.1)
    )
    greedy[1].step(10)
    data = steps(4)
    data["is_init"] = torch.ones(4, 1, dtype=torch.bool)
    return [seen(each(data.clone()).detach()) for each in (noisy, ou, greedy)]


@scenario
def recurrent_modules():
    torchrl()
    from torchrl.modules import GRUModule, LSTMModule, set_recurrent_mode

    lstm = LSTMModule(input_size=3, hidden_size=4, in_key="observation", out_key="out")
    gru = GRUModule(input_size=3, hidden_size=4, in_key="observation", out_key="out")
    data = steps(2, 5)
    data["is_init"] = torch.zeros(2, 5, 1, dtype=torch.bool)
    data["is_init"][:, 0] = True
    data["is_init"][1, 3] = True
    answers = []
    for module in (lstm, gru):
        state = module.make_tensordict_primer().primers.zero((2, 5))
        whole = data.clone().update(state)
        with set_recurrent_mode(True):
            answers.append(seen(module(whole.clone()).detach()))
        with set_recurrent_mode(False):
            answers.append(seen(module(whole[:, 0].clone()).detach()))
    return answers


@scenario
def planning():
    torchrl()
    from torchrl.data import Bounded, Composite, Unbounded
    from torchrl.envs import ModelBasedEnvBase
    from torchrl.modules import CEMPlanner, MPPIPlanner, WorldModelWrapper
    from torchrl.objectives.value import TDLambdaEstimator

    class Model(ModelBasedEnvBase):
        def __init__(self, world):
            super().__init__(world, device="cpu", batch_size=[])
            self.observation_spec = Composite(hidden=Unbounded((3,)))
            self.state_spec = Composite(hidden=Unbounded((3,)))
            self.action_spec = Bounded(-1, 1, (2,))
            self.reward_spec = Unbounded((1,))

        def _reset(self, tensordict, **kwargs):
            return TensorDict(hidden=torch.zeros(3))

    class Transition(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(5, 3)

        def forward(self, hidden, action):
            return self.net(torch.cat([hidden, action], -1))

    env = Model(
        WorldModelWrapper(
            TensorDictModule(Transition(), ["hidden", "action"], ["hidden"]),
            TensorDictModule(nn.Linear(3, 1), ["hidden"], ["reward"]),
        )
    )
    cem = CEMPlanner(env, planning_horizon=3, optim_steps=2, num_candidates=4, top_k=2)
    critic = TensorDictModule(nn.Linear(3, 1), ["hidden"], ["state_value"])
    estimator = TDLambdaEstimator(gamma=0.9, lmbda=0.9, value_network=critic)
    mppi = MPPIPlanner(
        env,
        estimator,
        temperature=1.0,
        planning_horizon=3,
        optim_steps=2,
        num_candidates=4,
        top_k=2,
    )
    return [seen(env.rollout(3, policy=planner).detach()) for planner in (cem, mppi)]
