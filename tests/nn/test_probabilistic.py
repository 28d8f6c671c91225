"""Modules that make distributions, and the distributions of the package."""

import pytest
import torch
from torch import distributions, nn

from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    InteractionType,
    NormalParamExtractor,
    OneHotCategorical,
    TensorDictModule,
    TensorDictSequential,
    TruncatedNormal,
    interaction_type,
    set_composite_lp_aggregate,
    set_interaction_type,
)
from tensordict.nn import ProbabilisticTensorDictModule as Probabilistic
from tensordict.nn import ProbabilisticTensorDictSequential as Sequence
from torch_versions import needs_torch


def normal(**kwargs):
    return Probabilistic(
        in_keys=["loc", "scale"],
        out_keys=["x"],
        distribution_class=distributions.Normal,
        **kwargs,
    )


def actor(**kwargs):
    return Sequence(
        TensorDictModule(
            nn.Sequential(nn.Linear(3, 4), NormalParamExtractor()),
            ["obs"],
            ["loc", "scale"],
        ),
        normal(return_log_prob=True),
        **kwargs,
    )


@pytest.fixture
def td():
    return TensorDict({"loc": torch.zeros(2, 3), "scale": torch.ones(2, 3)}, [2])


def test_interaction_type_of_a_block_wins(td):
    module = normal(default_interaction_type="random")
    with set_interaction_type(InteractionType.MEAN):
        assert (module(td)["x"] == 0).all()
    assert interaction_type() is None
    assert not (module(td)["x"] == 0).any()


def recording(seen, in_key="obs", out_keys=("loc", "scale")):
    """A module that notes the interaction type that it is called under."""

    def net(x):
        seen.append(interaction_type())
        return x, x.abs() + 1

    return TensorDictModule(net, [in_key], list(out_keys))


def test_modules_before_the_last_know_the_interaction_type():
    seen = []
    sequence = Sequence(recording(seen), normal(default_interaction_type="mean"))
    obs = TensorDict(obs=torch.ones(3), batch_size=[3])
    sequence(obs.copy())
    with set_interaction_type("random"):
        sequence(obs.copy())
    sequence(obs.copy(), _requires_sample=False)
    assert seen == [
        InteractionType.MEAN,
        InteractionType.RANDOM,
        InteractionType.MEAN,
    ]


def test_several_distributions_each_follow_their_own_type():
    seen = []
    sequence = Sequence(
        recording(seen),
        normal(default_interaction_type="mean"),
        recording(seen, "x", ["y", "z"]),
    )
    obs = TensorDict(obs=torch.ones(3), batch_size=[3])
    result = sequence(obs, _requires_sample=False)
    assert seen == [None, None]
    assert (result["z"] == 2).all()


def test_nested_sequence_that_gives_no_value_is_called():
    seen = []
    nested = Sequence(recording(seen, "loc", ["q", "w"]), normal())
    sequence = Sequence(recording(seen), nested)
    obs = TensorDict(obs=torch.ones(3), batch_size=[3])
    result = sequence(obs, _requires_sample=False)
    assert len(seen) == 2
    assert set(result.keys()) == {"obs", "loc", "scale", "q", "w"}


def test_missing_parameter_is_named(td):
    with pytest.raises(ValueError, match=r"\['scale'\] are not in the tensordict"):
        normal()(td.exclude("scale"))


def test_parameters_of_another_name_are_named(td):
    module = Probabilistic(
        ["loc", "std"], ["x"], distribution_class=distributions.Normal
    )
    with pytest.raises(TypeError, match="dist_keys=.*'std'.*Normal"):
        module(td.set("std", td["scale"]))


def test_samples_are_new_batch_dims(td):
    result = normal(num_samples=4, default_interaction_type="random")(td)
    assert result.batch_size == (4, 2)
    assert result["x"].std(0).min() > 0
    assert "x" not in td


def test_generator_leaves_the_global_one_alone(td):
    module = normal(generator=3, default_interaction_type="random")
    state = torch.get_rng_state()
    first = module(td)["x"]
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first, module(td)["x"])
    again = normal(generator=3, default_interaction_type="random")
    assert torch.equal(first, again(td)["x"])


def test_composite_log_prob_is_that_of_the_parts():
    params = TensorDict(
        {
            "c": {"loc": torch.zeros(3, 4), "scale": torch.ones(3, 4)},
            ("n", "d"): {"logits": torch.zeros(3, 5)},
        },
        [3],
    )
    dist = CompositeDistribution(
        params, {"c": distributions.Normal, ("n", "d"): distributions.Categorical}
    )
    sample = dist.sample()
    log_prob = dist.log_prob(sample)
    with set_composite_lp_aggregate(True):
        total = dist.log_prob(sample)
    torch.testing.assert_close(
        total, log_prob["c_log_prob"].sum(-1) + log_prob["n", "d_log_prob"]
    )
    with pytest.raises(ValueError, match="no entry 'c'"):
        dist.log_prob(sample.exclude("c"))


def test_chain_log_prob_is_of_the_values_that_are_there(td):
    second = Probabilistic(
        {"loc": "x", "scale": "scale"},
        ["y"],
        distribution_class=distributions.Normal,
        default_interaction_type="random",
    )
    module = Sequence(normal(default_interaction_type="random"), second)
    result = module(td)
    log_prob = module.log_prob(result.copy())
    expected = distributions.Normal(result["x"], result["scale"]).log_prob(result["y"])
    torch.testing.assert_close(log_prob["y_log_prob"], expected)


def test_one_hot_gradient_passes_through():
    logits = torch.zeros(5, 3, requires_grad=True)
    sample = OneHotCategorical(logits=logits).rsample()
    assert ((sample == 0) | (sample == 1)).all()
    (sample * torch.arange(3)).sum().backward()
    assert logits.grad.abs().sum() > 0


@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.0), (-torch.inf, 0.5), (0.0, 1.0)])
def test_truncated_normal_agrees_with_its_samples(low, high):
    torch.manual_seed(0)
    dist = TruncatedNormal(torch.tensor(0.3), torch.tensor(0.8), low, high)
    samples = dist.sample((200_000,))
    assert samples.min() >= low
    assert samples.max() <= high
    torch.testing.assert_close(samples.mean(), dist.mean, atol=5e-3, rtol=0)
    torch.testing.assert_close(samples.var(), dist.variance, atol=5e-3, rtol=0)
    torch.testing.assert_close(
        -dist.log_prob(samples).mean(), dist.entropy(), atol=5e-3, rtol=0
    )
    some = samples[:10]
    torch.testing.assert_close(dist.icdf(dist.cdf(some)), some, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["mean", "random"])
def test_actor_compiles_in_one_graph(kind):
    torch.manual_seed(0)
    module = actor()
    obs = TensorDict({"obs": torch.randn(4, 3)}, [4])

    def act(data):
        with set_interaction_type(kind):
            return module(data)

    compiled = torch.compile(act, fullgraph=True, backend="eager")
    torch.manual_seed(1)
    result = compiled(obs.copy())
    torch.manual_seed(1)
    expected = act(obs.copy())
    assert list(result.keys()) == ["obs", "loc", "scale", "x", "x_log_prob"]
    for key in expected.keys():
        torch.testing.assert_close(result[key], expected[key])


@needs_torch("asks a module for its length before it is made")
def test_modules_and_settings_are_made_inside_a_compiled_function():
    module = TensorDictModule(torch.abs, in_keys=["a"], out_keys=["b"])

    def made_inside(td):
        with set_interaction_type(InteractionType.MEAN):
            return TensorDictSequential(module, module)(td)

    td = TensorDict(a=-torch.ones(2))
    compiled = torch.compile(made_inside, fullgraph=True, backend="eager")
    assert (compiled(td)["b"] == 1).all()


@pytest.mark.parametrize("loc", [-100.0, -2.0, -1.05, 0.0, 0.99, 20.0])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 5.0])
def test_samples_of_a_truncated_normal_are_inside_its_bounds(loc, scale):
    dist = TruncatedNormal(torch.full((50,), loc), scale, -1.0, 1.0)
    samples = dist.sample((4,))
    assert ((samples >= -1) & (samples <= 1)).all()
    assert dist.log_prob(samples).isfinite().all()


def test_established_private_names_of_probabilistic_modules():
    from tensordict.nn.probabilistic import _use_generator

    first, second = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    with _use_generator(first):
        drawn = torch.rand(2)
    assert torch.equal(drawn, torch.rand(2, generator=second))


def test_a_sequence_that_comes_last_calls_its_modules(td):
    first = Probabilistic(
        ["loc", "scale"], ["y"], distribution_class=distributions.Normal
    )
    module = Sequence(
        first,
        Sequence(TensorDictModule(lambda y: y + 1, ["y"], ["loc"]), normal()),
    )
    assert module.get_dist(td).mean.eq(1).all()


def step(key, out, calls):
    """A normal distribution around the entry at ``key``, and a list of who was called."""

    def shifted(x):
        calls.append(out)
        return x + 1, torch.ones_like(x)

    return Sequence(
        TensorDictModule(shifted, [key], [f"loc {out}", f"scale {out}"]),
        Probabilistic(
            {"loc": f"loc {out}", "scale": f"scale {out}"},
            [out],
            distribution_class=distributions.Normal,
            default_interaction_type="random",
        ),
    )


NESTED = {
    "first and last": lambda calls: Sequence(
        step("a", "b", calls), step("b", "c", calls), return_composite=True
    ),
    "deep": lambda calls: Sequence(
        TensorDictModule(lambda a: a, ["a"], ["d"]),
        Sequence(step("d", "b", calls), step("b", "c", calls), return_composite=True),
    ),
    "goes on": lambda calls: Sequence(
        Sequence(step("a", "b", calls), return_composite=True),
        step("b", "c", calls),
        return_composite=True,
    ),
    "selected": lambda calls: Sequence(
        Sequence(step("a", "b", calls), selected_out_keys=["b"]),
        step("b", "c", calls),
        return_composite=True,
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_distributions_of_nested_sequences_belong_to_one_draw(name):
    calls: list[str] = []
    module = NESTED[name](calls)
    td = TensorDict(a=torch.zeros(4), batch_size=[4])
    torch.manual_seed(0)
    dists = module.get_dist(td).dists
    assert calls == ["b", "c"]
    assert list(dists) == ["b", "c"]
    torch.manual_seed(0)
    drawn = distributions.Normal(td["a"] + 1, 1.0).sample()
    torch.testing.assert_close(dists["c"].mean, drawn + 1)


def test_outputs_of_nested_sequences_go_where_they_are_asked_for():
    td, out = TensorDict(a=torch.zeros(4), batch_size=[4]), TensorDict(batch_size=[4])
    dists = NESTED["selected"]([]).get_dist(td, tensordict_out=out).dists
    assert list(td.keys()) == ["a"]
    assert list(out.keys()) == ["b"]
    torch.testing.assert_close(dists["c"].mean, out["b"] + 1)


@pytest.mark.parametrize("name", NESTED)
def test_log_prob_of_nested_sequences_is_of_the_values_that_are_there(name):
    calls: list[str] = []
    module = NESTED[name](calls)
    td = module(TensorDict(a=torch.zeros(4), batch_size=[4]))
    calls.clear()
    log_prob = module.log_prob(td.copy())
    assert calls == ["b", "c"]
    around_a = distributions.Normal(td["a"] + 1, 1.0)
    around_b = distributions.Normal(td["b"] + 1, 1.0)
    torch.testing.assert_close(log_prob["b_log_prob"], around_a.log_prob(td["b"]))
    torch.testing.assert_close(log_prob["c_log_prob"], around_b.log_prob(td["c"]))


def test_distribution_kwargs_may_be_a_tensordict():
    options = TensorDict(low=torch.tensor(-1.0), high=torch.tensor(2.0))

    def module(kwargs):
        return Probabilistic(
            in_keys=["loc"],
            out_keys=["x"],
            distribution_class=lambda loc, low=0, high=0: distributions.Normal(
                loc + low, high + 1.0
            ),
            distribution_kwargs=kwargs,
        )

    td = TensorDict(loc=torch.zeros(2))
    dist = module(options).get_dist(td)
    assert dist.mean.tolist() == [-1, -1]
    assert dist.stddev.tolist() == [3, 3]
    assert module(options)(td.copy())["x"].tolist() == [-1, -1]
    assert module(TensorDict()).get_dist(td).mean.tolist() == [0, 0]
    assert "distribution_kwargs=TensorDict" in repr(module(options))
