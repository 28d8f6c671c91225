"""Distributions: what is drawn, with which random numbers, and its log-probability."""

from __future__ import annotations

import torch
from scenario import scenario
from torch.distributions import (
    Bernoulli,
    Categorical,
    Independent,
    Normal,
    TransformedDistribution,
)
from torch.distributions.transforms import TanhTransform

from tensordict import NonTensorData, TensorDict
from tensordict.nn import (
    AddStateIndependentNormalScale,
    CompositeDistribution,
    InteractionType,
    NormalParamExtractor,
    OneHotCategorical,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TruncatedNormal,
    composite_lp_aggregate,
    interaction_type,
    rand_one_hot,
    set_composite_lp_aggregate,
    set_interaction_type,
)
from tensordict.nn.distributions import Delta


def normal(**options):
    """Return a module of a normal distribution."""
    return ProbabilisticTensorDictModule(
        in_keys=["loc", "scale"],
        out_keys=["x"],
        distribution_class=Normal,
        **options,
    )


def data(**entries):
    return TensorDict(loc=torch.zeros(2), scale=torch.ones(2), **entries)


def composite(**options):
    return ProbabilisticTensorDictModule(
        in_keys=["params"],
        distribution_class=CompositeDistribution,
        distribution_kwargs={
            "distribution_map": {"a": Normal, ("n", "b"): Categorical},
            **options.pop("more", {}),
        },
        **options,
    )


def composite_data():
    params = {
        "a": {"loc": torch.zeros(2), "scale": torch.ones(2)},
        "n": {"b": {"logits": torch.arange(3.0).expand(2, 3)}},
    }
    return TensorDict(params=params, batch_size=[2])


def policy(*more, **options):
    """Return a sequence of a network and a distribution."""
    head = TensorDictModule(lambda y: (y, y.exp()), ["y"], ["loc", "scale"])
    return ProbabilisticTensorDictSequential(
        head, normal(return_log_prob=True), *more, **options
    )


# Choice of a value -----------------------------------------------------------------


@scenario
def each_interaction_type():
    module = normal()
    found = []
    for kind in ("mode", "mean", "random", "deterministic", None):
        with set_interaction_type(kind):
            found.append((interaction_type(), module(data())["x"]))
    return found


@scenario
def the_default_interaction_type_of_a_module():
    return [
        normal(default_interaction_type=kind)(data())["x"]
        for kind in (InteractionType.RANDOM, "mean", InteractionType.MODE)
    ]


@scenario
def an_unknown_interaction_type():
    set_interaction_type("nope")


@scenario
def interaction_type_as_a_decorator():
    module = normal()

    @set_interaction_type("random", thread_local=True)
    def draw(td):
        return module(td)["x"]

    return draw(data()), interaction_type()


@scenario
def interaction_types_by_their_names():
    return InteractionType.from_str("RANDOM"), InteractionType("mean")


@scenario
def values_of_a_categorical_distribution():
    module = ProbabilisticTensorDictModule(
        ["logits"], ["x"], distribution_class=Categorical, return_log_prob=True
    )
    td = TensorDict(logits=torch.arange(3.0).expand(2, 3), batch_size=[2])
    with set_interaction_type("mode"):
        mode = module(td.copy())
    with set_interaction_type("random"):
        return mode, module(td)


@scenario
def the_median_that_a_distribution_lacks():
    with set_interaction_type("median"):
        ProbabilisticTensorDictModule(["probs"], ["x"], distribution_class=Bernoulli)(
            TensorDict(probs=torch.ones(2) / 2)
        )


@scenario
def a_mean_that_is_estimated():
    class Shy(Normal):
        @property
        def mean(self):
            raise NotImplementedError

    module = ProbabilisticTensorDictModule(
        ["loc", "scale"],
        ["x"],
        distribution_class=Shy,
        default_interaction_type="mean",
        n_empirical_estimate=10,
    )
    return module(data())


@scenario
def numbers_of_samples():
    drawn = normal(
        num_samples=3, default_interaction_type="random", return_log_prob=True
    )
    mean = normal(num_samples=torch.Size([3, 4]), default_interaction_type="mean")
    rows = TensorDict(loc=torch.zeros(2), scale=torch.ones(2), batch_size=[2])
    return drawn(rows), mean(rows)


@scenario
def a_transformed_distribution():
    module = ProbabilisticTensorDictModule(
        ["loc", "scale"],
        ["x"],
        distribution_class=lambda loc, scale: TransformedDistribution(
            Normal(loc, scale), TanhTransform()
        ),
        default_interaction_type="random",
        return_log_prob=True,
    )
    return module(data())


@scenario
def an_independent_distribution():
    module = ProbabilisticTensorDictModule(
        ["loc", "scale"],
        ["x"],
        distribution_class=lambda loc, scale: Independent(Normal(loc, scale), 1),
        return_log_prob=True,
    )
    return module(TensorDict(loc=torch.zeros(2, 3), scale=torch.ones(2, 3)))


@scenario
def parameters_from_elsewhere():
    nested = ProbabilisticTensorDictModule(
        {"loc": ("n", "mu"), "scale": "s"}, ["x"], distribution_class=Normal
    )
    fixed = ProbabilisticTensorDictModule(
        ["loc"], ["x"], distribution_class=Normal, distribution_kwargs={"scale": 2.0}
    )
    td = TensorDict(n={"mu": torch.ones(2)}, s=torch.ones(2))
    return nested.in_keys, nested(td), fixed(data()), fixed.dist_params_keys


@scenario
def a_parameter_of_another_name():
    module = ProbabilisticTensorDictModule(
        ["mu", "scale"], ["x"], distribution_class=Normal
    )
    return module(TensorDict(mu=torch.zeros(2), scale=torch.ones(2)))


# Random numbers ----------------------------------------------------------------------


@scenario
def a_seed_in_the_collection_goes_on():
    module = normal(default_interaction_type="random", generator="seed")
    td = data(seed=3)
    found = [module(td)["x"].clone() for _ in range(3)]
    return found, td["seed"]


@scenario
def a_seed_that_is_no_tensor_goes_on():
    module = normal(default_interaction_type="random", generator="seed")
    td = data(seed=NonTensorData(3))
    found = [module(td)["x"].clone() for _ in range(3)]
    return found, td["seed"], type(td.get("seed")).__name__


@scenario
def a_seed_under_a_nested_key_goes_on():
    module = normal(default_interaction_type="random", generator=("state", "seed"))
    td = data(state={"seed": NonTensorData(3), "other": torch.ones(1)})
    found = [module(td)["x"].clone() for _ in range(3)]
    return found, td["state", "seed"]


@scenario
def seeds_of_other_dtypes_become_integers():
    found = []
    for seed in (torch.tensor(3, dtype=torch.int32), torch.tensor([3]), 1.5, True):
        module = normal(default_interaction_type="random", generator="seed")
        td = data(seed=seed)
        found.append([module(td)["x"].clone() for _ in range(3)] + [td["seed"]])
    return found


@scenario
def a_generator_in_the_collection():
    generator = torch.Generator().manual_seed(3)
    module = normal(default_interaction_type="random", generator="rng")
    td = data(rng=NonTensorData(generator))
    found = [module(td)["x"].clone() for _ in range(2)]
    return found, td["rng"] is generator, torch.rand(2, generator=generator)


@scenario
def a_generator_of_the_module():
    generator = torch.Generator().manual_seed(3)
    of_generator = normal(default_interaction_type="random", generator=generator)
    of_seed = normal(default_interaction_type="random", generator=3)
    first = [of_generator(data())["x"] for _ in range(2)]
    second = [of_seed(data())["x"] for _ in range(2)]
    # The global generator has not moved.
    return first, second, torch.rand(2)


@scenario
def a_seed_that_is_missing():
    module = normal(default_interaction_type="random", generator="seed")
    td = data()
    return module(td), torch.rand(1)


@scenario
def a_seed_of_two_elements():
    normal(generator="seed")(data(seed=torch.tensor([1, 2])))


@scenario
def a_seed_that_is_a_text():
    normal(default_interaction_type="random", generator="seed")(data(seed="a"))


@scenario
def a_generator_that_is_none():
    return [normal(generator=given) for given in (["seed"], True)]


@scenario
def a_seed_of_rows():
    module = normal(default_interaction_type="random", generator=("g", "seed"))
    td = TensorDict(
        loc=torch.zeros(2, 3),
        scale=torch.ones(2, 3),
        g=TensorDict(seed=NonTensorData(3, batch_size=[2]), batch_size=[2]),
        batch_size=[2],
    )
    first, second = module(td)["x"].clone(), module(td)["x"].clone()
    return first, second, td.get(("g", "seed")).batch_size


@scenario
def a_seed_in_a_sequence():
    head = TensorDictModule(lambda y: (y, y.exp()), ["y"], ["loc", "scale"])
    module = ProbabilisticTensorDictSequential(
        head, normal(default_interaction_type="random", generator=("g", "seed"))
    )
    td = TensorDict(y=torch.zeros(2), g={"seed": NonTensorData(5)})
    found = [module(td)["x"].clone() for _ in range(3)]
    return found, td["g", "seed"], module.in_keys, module.out_keys


@scenario
def nothing_is_drawn_for_a_deterministic_value():
    td = data(seed=NonTensorData(3))
    normal(generator="seed")(td)
    return td["seed"]


# Log-probabilities -------------------------------------------------------------------


@scenario
def a_log_probability_and_its_key():
    module = normal(return_log_prob=True)
    named = normal(return_log_prob=True, log_prob_key=("n", "lp"))
    listed = normal(return_log_prob=True, log_prob_keys=["lp"])
    return module(data()), named(data()), listed.out_keys, listed.log_prob_key


@scenario
def the_log_probability_of_a_value_that_is_there():
    module = normal()
    td = data(x=torch.ones(2))
    return module.log_prob(td), module.log_prob(td, dist=Normal(1.0, 2.0))


@scenario
def caching_a_distribution():
    return normal(cache_dist=True)(data())


@scenario
def values_of_a_composite_distribution():
    module = composite(return_log_prob=True)
    return module.out_keys, module.log_prob_keys, module(composite_data())


@scenario
def a_composite_distribution_with_other_names():
    names = {"a": "u", ("n", "b"): ("n", "v")}
    module = composite(more={"name_map": names}, return_log_prob=True)
    keyed = composite(return_log_prob=True, log_prob_keys=["la", ("n", "lb")])
    return module(composite_data()), keyed(composite_data())


@scenario
def an_aggregated_log_probability():
    with set_composite_lp_aggregate(True):
        module = composite(return_log_prob=True)
        named = composite(return_log_prob=True, log_prob_key="lp")
        return module(composite_data()), module.log_prob_key, named(composite_data())


@scenario
def an_aggregate_is_set_for_good_and_unset():
    found = [composite_lp_aggregate()]
    setting = set_composite_lp_aggregate(True)
    setting.set()
    found.append(composite_lp_aggregate())
    setting.unset()
    return [*found, composite_lp_aggregate()]


@scenario
def an_aggregate_that_changes_between():
    module = composite(return_log_prob=True)
    with set_composite_lp_aggregate(True):
        module(composite_data())


@scenario
def one_key_for_several_log_probabilities():
    composite(return_log_prob=True, log_prob_key="lp")


@scenario
def several_keys_for_an_aggregate():
    with set_composite_lp_aggregate(True):
        composite(return_log_prob=True, log_prob_keys=["a", "b"])


@scenario
def a_composite_distribution_itself():
    dist = composite().get_dist(composite_data())
    sample = dist.sample((3,))
    with set_composite_lp_aggregate(True):
        total = dist.log_prob(sample), dist.entropy()
    parts = dist.log_prob_composite(sample), dist.entropy_composite()
    return dist.mode, sample, total, parts, dist.has_rsample


@scenario
def a_composite_distribution_of_others():
    dist = CompositeDistribution.from_distributions(
        TensorDict(batch_size=[2]),
        {"a": Normal(torch.zeros(2), 1.0), "b": Bernoulli(torch.ones(2) / 2)},
    )
    more = CompositeDistribution(
        TensorDict(a={"loc": torch.zeros(2)}, batch_size=[2]),
        {"a": Normal},
        extra_kwargs={"a": {"scale": torch.ones(2) * 3}},
    )
    sample = dist.sample()
    return sample, dist.log_prob(sample), more.dists["a"].scale, more.sample()


# Sequences ---------------------------------------------------------------------------


@scenario
def a_sequence_and_its_distribution():
    module = policy()
    td = module(TensorDict(y=torch.zeros(2)))
    dist = module.get_dist(td)
    return td, module.log_prob(td), dist.scale, module.log_prob_key, module.out_keys


@scenario
def the_value_that_a_client_draws_itself():
    module = policy()
    dist = module.get_dist(TensorDict(y=torch.zeros(2)))
    mean = module._dist_sample(dist, interaction_type=InteractionType.MEAN)
    drawn = module._dist_sample(
        dist,
        interaction_type=InteractionType.RANDOM,
        generator=torch.Generator().manual_seed(1),
    )
    return mean, drawn, module[-1]._dist_sample(dist)


@scenario
def a_value_that_a_module_before_has_written():
    head = TensorDictModule(lambda y: (y, y.exp(), y + 7), ["y"], ["loc", "scale", "x"])
    module = ProbabilisticTensorDictSequential(head, normal(return_log_prob=True))
    with set_interaction_type("random"):
        td = module(TensorDict(y=torch.zeros(2)))
    return module._requires_sample, td


@scenario
def a_sequence_that_gives_no_value():
    module = policy()
    required = module._requires_sample
    module._requires_sample = False
    td = TensorDict(y=torch.zeros(2), x=torch.ones(2))
    return required, module(td)


@scenario
def two_distributions_in_a_sequence():
    second = ProbabilisticTensorDictModule(
        {"loc": "loc2", "scale": "scale2"},
        ["z"],
        distribution_class=Normal,
        return_log_prob=True,
    )
    head = TensorDictModule(lambda x: (x, x.exp()), ["x"], ["loc2", "scale2"])
    module = policy(head, second)
    td = module(TensorDict(y=torch.zeros(2)))
    last = policy(head, second, return_composite=False)
    return (
        td,
        module.log_prob(td),
        module.log_prob_keys,
        module.dist_sample_keys,
        last.get_dist(TensorDict(y=torch.zeros(2))).loc,
    )


@scenario
def a_sequence_that_does_not_end_in_a_distribution():
    ProbabilisticTensorDictSequential(
        TensorDictModule(torch.abs, ["a"], ["b"]), return_composite=False
    )


@scenario
def parameters_of_a_sequence():
    module = policy()
    params = module.get_dist_params(TensorDict(y=torch.zeros(2)))
    return params, module.build_dist_from_params(params).loc


# The package's own distributions and their parameters --------------------------------


@scenario
def one_hot_categories():
    dist = OneHotCategorical(logits=torch.arange(3.0))
    drawn = rand_one_hot(torch.ones(2, 3))
    return dist.mode, dist.sample(), dist.log_prob(torch.tensor([0, 1, 0])), drawn


@scenario
def a_truncated_normal_distribution():
    dist = TruncatedNormal(torch.zeros(2), torch.ones(2), a=-1.0, b=1.0)
    value = torch.zeros(2)
    return (
        dist.mean,
        dist.variance,
        dist.sample(),
        dist.log_prob(value),
        dist.cdf(value),
    )


@scenario
def a_delta_distribution():
    dist = Delta(torch.ones(2))
    return dist.mode, dist.log_prob(torch.ones(2)), dist.log_prob(torch.zeros(2))


@scenario
def the_parameters_of_a_normal_distribution():
    names = ("biased_softplus_1.0", "softplus", "exp", "relu", "expln", "none")
    found = [NormalParamExtractor(name)(torch.ones(2, 4)) for name in names]
    low = NormalParamExtractor(scale_mapping="exp", scale_lb=5.0)
    return found, low(torch.zeros(2, 4))


@scenario
def a_scale_that_depends_on_no_input():
    first = AddStateIndependentNormalScale(3)
    second = AddStateIndependentNormalScale(
        (2, 3), scale_mapping="exp", scale_lb=0.5, make_param=False, init_value=0.1
    )
    names = [name for name, _ in first.named_parameters()]
    buffers = [name for name, _ in second.named_buffers()]
    return first(torch.ones(2, 3)), second(torch.ones(2, 3)), names, buffers
