"""Each error that a user of modules can meet names the module, the key and the remedy."""

import pytest
import torch
from torch import distributions as d
from torch import nn

from tensordict import TensorDict, TensorDictParams, from_modules
from tensordict.nn import (
    CompositeDistribution,
    EnsembleModule,
    TensorDictModuleBase,
    TensorDictModuleWrapper,
    dispatch,
)
from tensordict.nn import ProbabilisticTensorDictModule as Prob
from tensordict.nn import ProbabilisticTensorDictSequential as ProbSequential
from tensordict.nn import TensorDictModule as Module
from tensordict.nn import TensorDictSequential as Sequential


def increment(x):
    return x + 1


def three(x):
    return x, x, x


def linear():
    return Module(nn.Linear(3, 2), ["q"], ["z"])


def normal(**options):
    return Prob(["loc", "scale"], ["x"], distribution_class=d.Normal, **options)


def td():
    return TensorDict(a=torch.ones(3), batch_size=[3])


def composite(**entries):
    params = TensorDict(c=entries or {"loc": torch.ones(3), "scale": torch.ones(3)})
    return CompositeDistribution(params, {"c": d.Normal})


def params():
    return TensorDictParams(TensorDict(a=torch.ones(3)))


def two_copies(module, **options):
    return EnsembleModule(module, 2, **options)


class NoKeys(TensorDictModuleBase):
    @dispatch
    def forward(self, tensordict):
        return tensordict


class Sum(TensorDictModuleBase):
    in_keys = ["a", "b"]
    out_keys = ["c"]

    @dispatch
    def forward(self, tensordict):
        tensordict["a"] + tensordict["b"]
        return tensordict


def in_a_block(nested):
    """Call a module with parameters of another shape."""
    module = nn.Linear(3, 2)
    entries = {"weight": torch.ones(5, 5)}
    if nested:
        module, entries = nn.Sequential(module), {"0": entries}
    with TensorDict(entries).to_module(module):
        module(torch.ones(3))


def stacked_in_a_block():
    """Call a module with the stacked parameters of others."""
    module = nn.Linear(3, 2)
    with TensorDict(weight=torch.ones(4, 2, 3)).to_module(module):
        module(torch.ones(3))


MISSING = [
    "TensorDictModule reads in_keys=['q']",
    "are None: {'q'}",
    "Set the entries before the call, or give the module other in_keys",
]
STRICT = ["TensorDictModule reads in_keys=['q']", "Set the entries before the call"]
FEW = ["TensorDictModule", "out_keys=['z', 'w']", "several outputs are a tuple"]
MANY = ["TensorDictModule", "out_keys=['z', 'w']", 'name it "_" to drop it']
NO_KEYS = ["'NoKeys' object has no attribute 'in_keys'", "Set it, such as"]
NO_PLACE = ["has no parameter, buffer or submodule", "select the entries that it has"]
THROUGH_LEAF = [
    "entry a is already present",
    "TensorDictModule writes",
    "('a', 'z')",
    "give the module other out_keys",
]
PARAMETERS = [
    "ProbabilisticTensorDictModule reads ['loc', 'scale']",
    "are not in the tensordict",
    "Set the entries before the call",
]
LOAD = ["TensorDictParams", "['a']", "load only the names that both have"]
UNLIKE = [
    "Module 0 (Linear) and module 1 (Linear) differ",
    "Make the modules alike",
    "lazy_stack=True",
]

# name: (call, class, parts of the text)
CASES = {
    # A key that is missing.
    "missing": (lambda: linear()(td()), KeyError, MISSING),
    "missing_strict": (
        lambda: Module(increment, ["q"], ["z"], strict=True)(td()),
        KeyError,
        STRICT,
    ),
    "missing_strict_nested": (
        lambda: Module(increment, [("n", "q")], ["z"], strict=True)(TensorDict(n={})),
        KeyError,
        ["TensorDictModule reads in_keys=[('n', 'q')]", "Set the entries"],
    ),
    "missing_in_sequence": (
        lambda: Sequential(Module(increment, ["a"], ["b"]), linear())(td()),
        KeyError,
        [*MISSING, "Failed while executing module '1'"],
    ),
    "missing_in_nested_sequence": (
        lambda: Sequential(Sequential(linear()))(td()),
        KeyError,
        [*MISSING, "Failed while executing module '0'"],
    ),
    "missing_in_named": (
        lambda: Sequential({"net": linear()})(td()),
        KeyError,
        [*MISSING, "Failed while executing module 'net'"],
    ),
    "missing_in_wrapper": (
        lambda: TensorDictModuleWrapper(linear())(td()),
        KeyError,
        MISSING,
    ),
    "missing_in_ensemble": (lambda: two_copies(linear())(td()), KeyError, MISSING),
    "missing_one_of_two": (
        lambda: Module(nn.Linear(3, 2), ["a", "w"], ["z"])(td()),
        TypeError,
        ["TensorDictModule called Linear", "There is no 'w': set it before the call"],
    ),
    "missing_parameters": (lambda: normal()(td()), ValueError, PARAMETERS),
    "missing_parameters_in_sequence": (
        lambda: ProbSequential(Module(increment, ["a"], ["loc"]), normal())(td()),
        ValueError,
        [*PARAMETERS, "Failed while executing module '1'"],
    ),
    "missing_parameters_of_dist": (
        lambda: ProbSequential(Module(increment, ["a"], ["loc"]), normal()).get_dist(
            td()
        ),
        ValueError,
        PARAMETERS,
    ),
    "parameters_of_other_names": (
        lambda: Prob(["loc"], ["x"], distribution_class=d.Exponential)(
            TensorDict(loc=torch.ones(3))
        ),
        TypeError,
        [
            "ProbabilisticTensorDictModule.dist_keys",
            "dist_keys=['loc']",
            "Pass in_keys as a dictionary from the parameters of Exponential",
        ],
    ),
    "missing_value": (
        lambda: normal(return_log_prob=True)(
            TensorDict(loc=torch.ones(3), scale=torch.ones(3)), _requires_sample=False
        ),
        ValueError,
        ["ProbabilisticTensorDictModule found no value under ['x']", "or set it first"],
    ),
    "missing_by_position": (
        lambda: Sum()(torch.zeros(2)),
        KeyError,
        ["Sum was called without ['b']", "by position or by name"],
    ),
    "missing_by_position_of_sequence": (
        lambda: Sequential(linear())(),
        KeyError,
        [*MISSING, "TensorDictSequential was called without ['q']"],
    ),
    "missing_output": (
        lambda: Sum()(torch.zeros(2), torch.zeros(2)),
        KeyError,
        ["Sum got all inputs, but did not write all of ['c']"],
    ),
    "missing_module": (
        lambda: Sequential({"x": Sum()})["nope"],
        KeyError,
        ["nope", "are named ['x']"],
    ),
    "missing_in_composite": (
        lambda: CompositeDistribution(
            TensorDict(c={"loc": torch.ones(3)}), {"q": d.Normal}
        ),
        KeyError,
        ["no param q", "CompositeDistribution builds the Normal", "at this key"],
    ),
    "other_names_in_composite": (
        lambda: composite(locc=torch.ones(3), scale=torch.ones(3)),
        TypeError,
        ["CompositeDistribution builds the Normal of 'c'", "['locc', 'scale']", "name"],
    ),
    "missing_sample_of_composite": (
        lambda: composite().log_prob(TensorDict(q=torch.ones(3))),
        ValueError,
        ["CompositeDistribution", "no entry 'c', only ['q']", "set it, or pass a name"],
    ),
    "dictionary_as_sample": (
        lambda: composite().log_prob({"c": torch.ones(3)}),
        AttributeError,
        ["got a dict", "CompositeDistribution reads ['c']", "pass TensorDict(sample)"],
    ),
    "tensor_as_sample": (
        lambda: composite().log_prob_composite(torch.ones(3)),
        RuntimeError,
        [
            "got a Tensor",
            "CompositeDistribution reads ['c']",
            "pass TensorDict(sample)",
        ],
    ),
    "missing_distribution": (
        lambda: composite()["q"],
        KeyError,
        ["CompositeDistribution has no distribution 'q'", "are ['c']"],
    ),
    "selected": (
        lambda: Module(increment, ["a"], ["z"]).select_out_keys("q"),
        ValueError,
        ["non existent key: q", "out_keys of TensorDictModule are ['z']"],
    ),
    "subsequence": (
        lambda: Sequential(Module(increment, ["a"], ["z"])).select_subsequence(
            out_keys=["q"]
        ),
        ValueError,
        ["No modules left", "Make sure", "sequence reads ['a'] and writes ['z']"],
    ),
    # Another number of inputs or outputs.
    "few": (lambda: Module(increment, ["a"], ["z", "w"])(td()), RuntimeError, FEW),
    "many": (lambda: Module(three, ["a"], ["z", "w"])(td()), RuntimeError, MANY),
    "many_in_sequence": (
        lambda: Sequential(Module(three, ["a"], ["z", "w"]))(td()),
        RuntimeError,
        [*MANY, "Failed while executing module '0'"],
    ),
    "many_by_position": (
        lambda: Module(three, ["a"], ["z", "w"])(torch.ones(3)),
        RuntimeError,
        MANY,
    ),
    "few_in_ensemble": (
        lambda: two_copies(Module(nn.Linear(3, 2), ["a"], ["z", "w"]))(td()),
        RuntimeError,
        FEW,
    ),
    "few_values": (
        lambda: Prob(["rate"], ["x", "y"], distribution_class=d.Exponential)(
            TensorDict(rate=torch.ones(3))
        ),
        ValueError,
        ["ProbabilisticTensorDictModule", "['x', 'y']", "pass a key for each"],
    ),
    "many_inputs": (
        lambda: Sequential(Module(increment, ["a"], ["z"]))(
            torch.ones(2), torch.ones(2)
        ),
        ValueError,
        ["TensorDictSequential", "in_keys=['a']", "pass no more tensors"],
    ),
    # Modules without keys, and keys that are none.
    "no_keys": (lambda: NoKeys().in_keys, AttributeError, NO_KEYS),
    "no_keys_by_position": (lambda: NoKeys()(torch.ones(3)), AttributeError, NO_KEYS),
    "no_keys_in_sequence": (lambda: Sequential(NoKeys()), AttributeError, NO_KEYS),
    "no_keys_in_ensemble": (
        lambda: two_copies(nn.Linear(2, 2)),
        AttributeError,
        ["EnsembleModule takes a module with in_keys and out_keys, got a Linear"],
    ),
    "no_keys_in_wrapper": (
        lambda: TensorDictModuleWrapper(nn.Linear(2, 2)).in_keys,
        AttributeError,
        ["TensorDictModuleWrapper takes a module with in_keys", "Wrap it"],
    ),
    "in_keys": (
        lambda: Module(increment, {"a"}, ["z"]),
        ValueError,
        ["in_keys must be of type list", "Got {'a'} for TensorDictModule"],
    ),
    "out_keys": (
        lambda: Module(increment, ["a"], 3),
        ValueError,
        ["out_keys must be of type list", "Got 3 for TensorDictModule"],
    ),
    "in_keys_of_parameters": (
        lambda: Prob([3], ["x"]),
        RuntimeError,
        ["ProbabilisticTensorDictModule takes as in_keys", "Got [3]"],
    ),
    # A key that is written twice, or cannot be written.
    "twice": (
        lambda: Module(increment, ["a"], ["z"])(torch.ones(3), a=torch.ones(3)),
        RuntimeError,
        ["The input 'a' of TensorDictModule", "pass it once"],
    ),
    "through_a_leaf": (
        lambda: Module(increment, ["a"], [("a", "z")])(td()),
        KeyError,
        THROUGH_LEAF,
    ),
    "through_a_leaf_in_sequence": (
        lambda: Sequential(Module(increment, ["a"], [("a", "z")]))(td()),
        KeyError,
        [*THROUGH_LEAF, "Failed while executing module '0'"],
    ),
    "locked": (
        lambda: Module(increment, ["a"], ["z"])(td().lock_()),
        RuntimeError,
        ["TensorDictModule", "out_keys=['z']", "consider using the `set_()` method"],
    ),
    "batch": (
        lambda: Module(lambda x: x[:1], ["a"], ["z"])(td()),
        RuntimeError,
        ["TensorDictModule writes", "for key 'z'", "must match the batch size"],
    ),
    # Parameters of another name or shape.
    "no_place": (
        lambda: TensorDict(q=torch.ones(2)).to_module(nn.Linear(3, 2)),
        KeyError,
        ["q: Linear", *NO_PLACE],
    ),
    "no_nested_place": (
        lambda: TensorDict({("5", "q"): torch.ones(2)}).to_module(
            nn.Sequential(nn.Linear(3, 2))
        ),
        KeyError,
        ["5: Sequential", *NO_PLACE],
    ),
    "shape_inplace": (
        lambda: TensorDict(weight=torch.ones(5, 5)).to_module(
            nn.Linear(3, 2), inplace=True
        ),
        RuntimeError,
        ["Linear.weight has the shape [2, 3]", "[5, 5]", "give values of its shapes"],
    ),
    "shape_in_state": (
        lambda: TensorDict(weight=torch.ones(5, 5)).to_module(
            nn.Linear(3, 2), use_state_dict=True
        ),
        RuntimeError,
        ["mismatch for weight", "into Linear", "give values of its shapes"],
    ),
    "shape_in_a_block": (
        lambda: in_a_block(nested=False),
        RuntimeError,
        ["of Linear", "weight [5, 5] in place of [2, 3]", "give values of"],
    ),
    "shape_in_a_nested_block": (
        lambda: in_a_block(nested=True),
        RuntimeError,
        ["of Sequential", "0.weight [5, 5] in place of [2, 3]", "give values of"],
    ),
    "stacked_in_a_block": (
        stacked_in_a_block,
        RuntimeError,
        [
            "Linear has parameters",
            "weight [4, 2, 3] in place of [2, 3]",
            "Give values of",
        ],
    ),
    "shape_of_state": (
        lambda: params().load_state_dict({"a": torch.ones(7)}),
        RuntimeError,
        ["size mismatch for a", *LOAD],
    ),
    "missing_state": (
        lambda: params().load_state_dict({}),
        RuntimeError,
        ['Missing key(s) in state_dict: "a"', *LOAD],
    ),
    "unknown_state": (
        lambda: params().load_state_dict({"a": torch.ones(3), "q": torch.ones(2)}),
        RuntimeError,
        ['Unexpected key(s) in state_dict: "q"', *LOAD],
    ),
    "rows_of_ensemble": (
        lambda: two_copies(Module(nn.Linear(3, 2), ["a"], ["z"]), expand_input=False)(
            TensorDict(a=torch.ones(5, 3), batch_size=[5])
        ),
        ValueError,
        ["EnsembleModule has 2 copies", "needs an input of that many rows"],
    ),
    "shapes_of_modules": (
        lambda: from_modules(nn.Linear(3, 2), nn.Linear(3, 4)),
        RuntimeError,
        ["'weight' has the shapes [2, 3] and [4, 3]", *UNLIKE],
    ),
    "names_of_modules": (
        lambda: from_modules(nn.Linear(3, 2), nn.Linear(3, 2, bias=False)),
        RuntimeError,
        ["only module 0 has 'bias'", *UNLIKE],
    ),
    "names_of_expanded_modules": (
        lambda: from_modules(
            nn.Linear(3, 2, bias=False), nn.Linear(3, 2), expand_identical=True
        ),
        ValueError,
        ["only module 1 has 'bias'", *UNLIKE],
    ),
}


def text_of(error):
    return "\n".join([str(error.args[0]), *getattr(error, "__notes__", [])])


@pytest.mark.parametrize("name", CASES)
def test_errors_name_the_module_the_key_and_the_remedy(name):
    call, error, parts = CASES[name]
    with pytest.raises(error) as caught:
        call()
    text = text_of(caught.value)
    assert [part for part in parts if part not in text] == []


# An error while code is traced is an error of the compiler, which has the text of ours;
# after a break of the graph the Python of the module meets it.
COMPILED = {
    "missing": (linear, MISSING),
    "missing_in_sequence": (lambda: Sequential(linear()), MISSING),
    "strict": (lambda: Module(increment, ["q"], ["z"], strict=True), STRICT),
    "few": (lambda: Module(increment, ["a"], ["z", "w"]), FEW),
    "many": (lambda: Module(three, ["a"], ["z", "w"]), MANY),
    "parameters": (normal, PARAMETERS),
}


@pytest.mark.parametrize("name", COMPILED)
def test_errors_of_compiled_modules_name_the_same(name):
    make, parts = COMPILED[name]
    torch._dynamo.reset()
    with pytest.raises((KeyError, RuntimeError, ValueError)) as caught:
        torch.compile(make(), backend="eager")(td())
    text = text_of(caught.value)
    assert [part for part in parts if part not in text] == []


def test_block_left_by_an_error_in_compiled_code():
    module = nn.Linear(3, 2)

    def caught(x, weights):
        try:
            with weights.to_module(module):
                {}[x.ndim]  # what is raised in the block
        except KeyError:
            return module(x)

    torch._dynamo.reset()
    compiled = torch.compile(caught, backend="eager", fullgraph=True)
    x, weights = torch.ones(3), TensorDict(weight=torch.ones(2, 4))
    torch.testing.assert_close(compiled(x, weights), module(x))


def test_block_with_parameters_of_the_module_adds_nothing_to_an_error():
    module = nn.Linear(3, 2)
    same = TensorDict.from_module(module)
    with pytest.raises(RuntimeError) as caught, same.to_module(module):
        module(torch.ones(7))
    assert not hasattr(caught.value, "__notes__")


def test_block_of_a_lazy_module_lets_its_error_through():
    module = nn.LazyLinear(2)
    weights = TensorDict.from_module(nn.Linear(3, 2))
    with pytest.raises(IndexError), weights.to_module(module):
        raise IndexError


def test_output_key_given_twice_takes_the_last_output():
    module = Module(lambda x: (x, x + 1), ["a"], ["z", "z"])
    assert module(td())["z"].tolist() == [2, 2, 2]
