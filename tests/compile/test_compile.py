"""``torch.compile(fullgraph=True)`` traces the twins in place of the native primitives."""

from __future__ import annotations

import pytest
import torch

from compiled_together import in_groups, on_one
from tensordict import NonTensorData, TensorDict, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule, set_interaction_type

FUNCTIONS = {
    "index": lambda td: td[0],
    "index_dims": lambda td: td[:, 1],
    "slice": lambda td: td[1:3],
    "index_tensor": lambda td: td[torch.tensor([0, 2])],
    "index_mask": lambda td: td[td["a"].sum(-1) > 0],
    "index_mask_of_dim": lambda td: td[:, torch.tensor([True, False, True])],
    "set_mask": lambda td: (c := td.clone(), c.__setitem__(c["a"][:, 0] > 0, 0))[0],
    "masked_select": lambda td: td.masked_select(td["a"].sum(-1) > 0),
    "where": lambda td: td.where(td["a"].sum(-1) > 0, td + 1),
    "where_values": lambda td: (
        td.clone()
        .set("text", "same")
        .where(td["a"].sum(-1) > 0, (td + 1).set("text", "same"))
    ),
    "view": lambda td: td.view(-1),
    "reshape": lambda td: td.reshape(3, 4),
    "permute": lambda td: td.permute(1, 0),
    "transpose": lambda td: td.transpose(0, 1),
    "unsqueeze": lambda td: td.unsqueeze(0),
    "expand": lambda td: td.expand(2, 4, 3),
    "stack": lambda td: torch.stack([td, td.clone()], 0),
    "cat": lambda td: torch.cat([td, td], 1),
    "apply": lambda td: td.apply(lambda x: x + 1),
    "named_apply": lambda td: td.named_apply(lambda key, x: x + len(key)),
    "add": lambda td: td + 1,
    "arithmetic": lambda td: (td * td - 2) / 3,
    "abs": lambda td: (-td).abs(),
    "compare": lambda td: td == td,
    "reduce": lambda td: td.sum(dim=0),
    "set": lambda td: td.clone(recurse=False).set("z", td["a"] * 2),
    "set_nested": lambda td: td.clone().set(("u", "v"), td["a"]),
    "set_index": lambda td: (copy := td.clone(), copy.__setitem__(0, copy[1]))[0],
    "select": lambda td: td.select("a"),
    "exclude": lambda td: td.exclude("a"),
    "update": lambda td: td.clone().update({"a": td["a"] + 1}),
    "clone": lambda td: td.clone(),
    "clone_structure": lambda td: td.clone(recurse=False),
    "to_dtype": lambda td: td.to(torch.float64),
    "to_device": lambda td: td.to("cpu"),
    "to_device_and_dtype": lambda td: td.to("cpu", torch.float16, True),
    "update_in_place": lambda td: td.clone().update_(td * 2),
    "copy": lambda td: td.clone().copy_(td * 2),
    "flatten_keys": lambda td: td.flatten_keys("."),
    "unflatten_keys": lambda td: td.flatten_keys(".").unflatten_keys("."),
    "split": lambda td: td.split(2, 0),
    "unbind": lambda td: td.unbind(0),
    "chunk": lambda td: td.chunk(2, 0),
    "to_another": lambda td: td.to(td.clone()),
    "rename": lambda td: td.rename("x", "y").exclude("a"),
    "refine_names": lambda td: td.clone(False).refine_names(..., "y"),
    "batch_size": lambda td: (
        copy := td.exclude("n"),
        setattr(copy, "batch_size", [4]),
    )[0],
    "lock": lambda td: td.clone().lock_() + 1,
    "new": lambda td: TensorDict({"x": td["a"]}, batch_size=td.batch_size),
    "keys": lambda td: list(td.keys(include_nested=True)),
    "items": lambda td: {str(key): x + 1 for key, x in td.items(True, True)},
    "clear_refs": lambda td: td.unsqueeze(0).clear_refs_for_compile_(),
}


def make(*, nested: bool, factor: float = 1.0) -> TensorDict:
    generator = torch.Generator().manual_seed(0)
    entries = {
        "a": torch.randn(4, 3, generator=generator) * factor,
        "b": torch.randn(4, 3, 5, generator=generator) * factor,
    }
    if nested:
        entries["n"] = TensorDict(
            {"c": torch.randn(4, 3, 2, generator=generator) * factor, "m": {}}, [4, 3]
        )
    return TensorDict(entries, [4, 3])


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, TensorDictBase):
        for name in ("batch_size", "names", "device", "is_locked"):
            assert getattr(found, name) == getattr(expected, name), name
        assert list(found.keys()) == list(expected.keys())
        for key in expected.keys():  # noqa: SIM118 - iterating it gives its rows
            assert_same(found.get(key), expected.get(key))
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, NonTensorData):
        assert (found.data, found.batch_size) == (expected.data, expected.batch_size)
    elif isinstance(expected, dict):
        assert_same(list(found.items()), list(expected.items()))
    else:
        assert found == expected


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Other values, not other shapes: the compiled code must serve them.
ONCE = {"error_on_recompile": True}


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("functions", in_groups(FUNCTIONS))
def test_compiled_is_eager(functions, nested):
    function = on_one(functions)
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert_same(compiled(make(nested=nested)), function(make(nested=nested)))
    with torch._dynamo.config.patch(ONCE):
        other = make(nested=nested, factor=3.0)
        assert_same(compiled(other), function(other))


@pytest.mark.parametrize(
    "options", [{"names": ["x", "y"]}, {"device": "cpu"}, {"lock": True}], ids=str
)
def test_compiled_keeps_names_device_and_lock(options):
    def function(td):
        return (td + 1).unsqueeze(0)[:, 1:].view(-1)

    td = TensorDict(
        {"a": torch.ones(4, 3), "n": {"b": torch.ones(4, 3)}}, [4, 3], **options
    )
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert_same(compiled(td), function(td))


def test_gradients_flow_through_compiled_code():
    def function(td):
        return (td * 2).apply(lambda x: x.sum(), batch_size=[])["a"]

    td = TensorDict(a=torch.ones(3, requires_grad=True))
    torch.compile(function, fullgraph=True, backend="aot_eager")(td).backward()
    assert td["a"].grad.tolist() == [2, 2, 2]


def test_a_change_of_keys_is_compiled_again():
    compiled = torch.compile(lambda td: td + 1, fullgraph=True, backend="eager")
    compiled(make(nested=False))
    assert_same(compiled(make(nested=True)), make(nested=True) + 1)


def test_an_argument_is_changed_in_place():
    @torch.compile(fullgraph=True, backend="eager")
    def function(td):
        td["sum"] = td["a"] + td["b"][..., 0]
        return td

    td = make(nested=True)
    assert function(td) is td
    torch.testing.assert_close(td["sum"], td["a"] + td["b"][..., 0])


def test_vmap_of_tensors_still_compiles():
    compiled = torch.compile(
        lambda x: torch.vmap(torch.sin)(x), fullgraph=True, backend="eager"
    )
    x = torch.randn(3, 2)
    torch.testing.assert_close(compiled(x), x.sin())


def test_vmap_of_collections_compiles():
    def function(td):
        return torch.vmap(lambda one: one * 2 + 1)(td)

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert_same(compiled(make(nested=True)), function(make(nested=True)))


def test_parameters_are_swapped_in_compiled_code():
    linear = torch.nn.Linear(3, 2)
    params = TensorDict.from_module(linear).data.clone()

    def function(params, x):
        with params.to_module(linear):
            return linear(x)

    x, own = torch.randn(4, 3), linear.weight
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(params, x), function(params, x))
    assert linear.weight is own
    with torch._dynamo.config.patch(ONCE):
        other = params.apply(lambda leaf: leaf * 3)
        torch.testing.assert_close(compiled(other, x), function(other, x))
    assert linear.weight is own


@pytest.mark.parametrize("kind", ["mean", "mode", "deterministic"])
def test_the_interaction_type_can_be_set_in_a_compiled_function(kind):
    module = ProbabilisticTensorDictModule(
        in_keys=["loc", "scale"],
        out_keys=["sample"],
        distribution_class=torch.distributions.Normal,
        default_interaction_type="random",
    )

    def drawn(td):
        with set_interaction_type(kind):
            return module(td)["sample"]

    torch._dynamo.reset()
    compiled = torch.compile(drawn, backend="eager", fullgraph=True)
    td = TensorDict(loc=torch.rand(3), scale=torch.ones(3), batch_size=[3])
    assert torch.equal(compiled(td.copy()), td["loc"])


def test_few_classes_are_guarded():
    # A method is found in one class, in front of which there are two or three.
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    def function(td):
        return td[0].view(-1)

    torch._dynamo.reset()
    td = TensorDict(a=torch.ones(4, 3), batch_size=[4, 3])
    torch.compile(function, backend="eager", fullgraph=True)(td)
    (entry,) = _debug_get_cache_entry_list(function.__code__)
    assert str(entry.guard_manager).count("__mro__[") < 40


def test_a_compiled_write_reaches_features():
    @torch.compile(fullgraph=True, backend="eager")
    def write(td):
        td[:, 0] = 7
        return td

    assert write(TensorDict({"a": torch.zeros(3, 4)}, [3]))["a"].sum() == 21


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "add_", "mul_"])
def test_arithmetic_with_a_tensor_of_no_dims_is_one_graph(name):
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    def work(td, number):
        return getattr(td, name)(number)

    td = TensorDict(a=torch.arange(3.0), n={"b": torch.ones(2)})
    number = torch.tensor(2.0)
    torch._dynamo.reset()
    found = torch.compile(work, backend=backend)(td.clone(), number)
    assert len(graphs) == 1
    assert (found == work(td.clone(), number)).all()


def test_a_nested_region_takes_and_returns_collections():
    @torch.compiler.nested_compile_region
    def layer(td):
        both = torch.stack([td, td + 1])
        return TensorDict(a=both["a"].sum(0), n=both["n"][1], batch_size=td.batch_size)

    def work(td):
        return layer(layer(td))

    td = TensorDict(a=torch.arange(3.0), n={"b": torch.ones(3)}, batch_size=[3])
    torch._dynamo.reset()
    found = torch.compile(work, backend="aot_eager", fullgraph=True)(td)
    assert (found == work(td)).all()
