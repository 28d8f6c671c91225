"""Modules and functions of collections as exported programs, and as graphs."""

import io

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.export import Dim, export
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from tensordict import TensorClass, TensorDict, TensorDictParams, lazy_stack
from tensordict.nn import (
    EnsembleModule,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)

STRICT = pytest.mark.parametrize("strict", [False, True])


class Pair(TensorClass):
    x: torch.Tensor
    y: torch.Tensor


class Builds(nn.Module):
    def forward(self, x, y):
        return TensorDict(a=x, b=y + 1, batch_size=x.shape[:1])


class Swaps(nn.Module):
    def forward(self, pair):
        return Pair(x=pair.y, y=pair.x + 1, batch_size=pair.batch_size)


class Scales(nn.Module):
    def __init__(self, params):
        super().__init__()
        self.params = params

    def forward(self, x):
        return x * self.params["n", "scale"] + self.params["bias"]


def scales():
    n = TensorDict(scale=torch.ones(2))
    return Scales(TensorDictParams(TensorDict(bias=torch.ones(2), n=n)))


def sequence():
    return TensorDictSequential(
        TensorDictModule(nn.Linear(3, 2), ["x"], ["h"]),
        TensorDictModule(nn.Linear(2, 4), ["h"], ["y"]),
    )


@STRICT
def test_sequence_is_exported_with_tensors_by_name(strict):
    module, x = sequence(), torch.randn(2, 3)
    program = export(module, (), {"x": x}, strict=strict)
    for found, expected in zip(program.module()(x=x), module(x=x), strict=True):
        torch.testing.assert_close(found, expected)
    assert sorted(program.state_dict) == sorted(module.state_dict())


@STRICT
def test_sequence_is_exported_with_a_collection(strict):
    module, x = sequence(), torch.randn(2, 3)
    program = export(module, (TensorDict(x=x, batch_size=[2]),), strict=strict)
    found = program.module()(TensorDict(x=x, batch_size=[2]))
    assert found.batch_size == (2,)
    assert (found == module(TensorDict(x=x, batch_size=[2]))).all()


@pytest.mark.parametrize("options", [{}, {"return_log_prob": True}])
def test_probabilistic_sequence_is_exported(options):
    # Not strictly: that refuses torch's own Normal, in a module without a collection, too.
    module = ProbabilisticTensorDictSequential(
        TensorDictModule(lambda x: (x, x.exp()), ["x"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(
            ["loc", "scale"], ["y"], distribution_class=Normal, **options
        ),
    )
    x = torch.randn(2, 3)
    exported = export(module, (), {"x": x}, strict=False).module()
    x = torch.randn(2, 3)
    torch.testing.assert_close(exported(x=x), module(x=x))


@STRICT
@pytest.mark.parametrize("size", [Dim("rows"), Dim.AUTO], ids=["named", "auto"])
def test_batch_size_of_an_argument_is_open_where_its_leaves_are(strict, size):
    module = sequence()
    td = TensorDict(x=torch.randn(2, 3), batch_size=[2])
    shapes = ([{0: size}],)
    program = export(module, (td,), dynamic_shapes=shapes, strict=strict)
    found = program.module()(TensorDict(x=torch.ones(5, 3), batch_size=[5]))
    assert found.batch_size == (5,)
    torch.testing.assert_close(found["y"], module(x=torch.ones(5, 3))[1])


@STRICT
def test_batch_size_of_a_result_is_open_where_its_leaves_are(strict):
    rows = Dim("rows")
    shapes = {"x": {0: rows}, "y": {0: rows}}
    args = (torch.ones(2, 3), torch.ones(2))
    program = export(Builds(), args, dynamic_shapes=shapes, strict=strict)
    found = program.module()(torch.ones(5, 3), torch.ones(5))
    assert found.batch_size == (5,)
    assert found["b"].tolist() == [2.0] * 5


@STRICT
def test_result_of_a_class_is_exported(strict):
    pair = Pair(x=torch.ones(2, 3), y=torch.zeros(2, 3), batch_size=[2])
    found = export(Swaps(), (pair,), strict=strict).module()(pair.clone())
    assert type(found) is Pair
    assert found.batch_size == (2,)
    assert found.y.unique().tolist() == [2.0]


def test_saved_program_gives_what_it_gave():
    module, x = sequence(), torch.randn(2, 3)
    file = io.BytesIO()
    torch.export.save(export(module, (), {"x": x}), file)
    file.seek(0)
    found = torch.export.load(file).module()(x=x)
    torch.testing.assert_close(found, module(x=x))


@STRICT
def test_parameters_of_an_exported_program_are_its_own(strict):
    module = scales()
    kept = module.params["bias"], module.params["n", "scale"]
    program = export(module, (torch.ones(2),), strict=strict)
    assert not program.constants
    assert module.params["bias"] is kept[0]
    assert module.params["n", "scale"] is kept[1]
    loaded = program.module()
    loaded.load_state_dict(
        {"params.bias": torch.zeros(2), "params.n.scale": torch.zeros(2)}
    )
    assert loaded(torch.ones(2)).tolist() == [0.0, 0.0]


def test_ensemble_is_exported():
    module = EnsembleModule(TensorDictModule(nn.Linear(3, 2), ["x"], ["y"]), 2)
    x = torch.randn(3)
    found = export(module, (TensorDict(x=x),)).module()(TensorDict(x=x))
    torch.testing.assert_close(found["y"], module(TensorDict(x=x))["y"])


def test_functional_call_puts_tensors_into_params():
    module = scales()
    given = {"params.n.scale": torch.tensor([2.0, 3.0])}
    x = torch.ones(2)
    assert functional_call(module, given, x).tolist() == [3.0, 4.0]
    assert functional_call(module, {"params.bias": x * 0}, x).tolist() == [1.0, 1.0]
    assert module(x).tolist() == [2.0, 2.0]
    assert isinstance(module.params["n", "scale"], nn.Parameter)


def test_transforms_of_a_functional_call_reach_params():
    module = scales()

    def loss(scale):
        return functional_call(module, {"params.n.scale": scale}, torch.ones(2)).sum()

    assert torch.func.grad(loss)(torch.zeros(2)).tolist() == [1.0, 1.0]
    rows = torch.vmap(loss)(torch.arange(6.0).view(3, 2))
    assert rows.tolist() == [3.0, 7.0, 11.0]


def test_nested_params_are_a_submodule():
    params = scales().params
    part = params.get_submodule("n")
    assert type(part) is TensorDictParams
    assert params.get_parameter("n.scale") is params["n", "scale"]
    part["more"] = torch.ones(1)
    assert isinstance(params["n", "more"], nn.Parameter)
    params.lock_()
    with pytest.raises(RuntimeError, match="lock"):
        params.n["other"] = torch.ones(1)


def test_what_is_registered_in_params_is_kept_beside_the_entries():
    params = scales().params
    params.register_parameter("extra", nn.Parameter(torch.ones(1)))
    params.register_buffer("count", torch.zeros(1))
    params.bias = nn.Parameter(torch.zeros(2))
    assert params["bias"].tolist() == [0.0, 0.0]
    assert "extra" not in params
    names = [name for name, _ in params.named_parameters()]
    assert names == ["bias", "n.scale", "extra"]
    copied = torch.load(_saved(params), weights_only=False)
    assert [name for name, _ in copied.named_parameters()] == names
    assert [name for name, _ in copied.named_buffers()] == ["count"]


def _saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_graph_of_collections_has_open_batch_sizes():
    td = TensorDict(x=torch.ones(2, 3), batch_size=[2])
    graph = make_fx(lambda td: td + 1, tracing_mode="symbolic")(td)
    found = graph(TensorDict(x=torch.ones(4, 3), batch_size=[4]))
    assert found.batch_size == (4,)
    assert found["x"].unique().tolist() == [2.0]


class Adds(nn.Module):
    def forward(self, td):
        return td + 1


def collections():
    n = TensorDict(b=torch.ones(4), batch_size=[4], names=["time"])
    td = TensorDict(a=torch.ones(4, 3), n=n, batch_size=[4], names=["time"])
    return {
        "nested": td,
        "tensorclass": Pair(x=torch.ones(4), y=torch.ones(4, 2), batch_size=[4]),
        "lazy": lazy_stack([td.select("a"), td.select("a") + 1], 1),
        "device": td.to("cpu"),
    }


@STRICT
@pytest.mark.parametrize("name", ["nested", "tensorclass", "lazy", "device"])
def test_program_of_collections_is_saved_and_loaded(name, strict):
    td = collections()[name]
    file = io.BytesIO()
    torch.export.save(export(Adds(), (td,), strict=strict), file)
    file.seek(0)
    # Torch before 2.15 reads the example inputs as it reads any file: a class is allowed.
    with torch.serialization.safe_globals([Pair]):
        result = torch.export.load(file).module()(td)
    assert type(result) is type(td)
    assert result.names == td.names
    assert result.device == td.device
    assert (result == td + 1).all()


@STRICT
def test_saved_program_of_a_collection_takes_other_batch_sizes(strict):
    rows = Dim("rows", min=2)
    td = TensorDict(a=torch.ones(4, 3), n={"b": torch.ones(4)}, batch_size=[4])
    shapes = ([{0: rows}, [{0: rows}]],)
    program = export(Adds(), (td,), dynamic_shapes=shapes, strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    result = torch.export.load(file).module()(torch.cat([td, td]))
    assert result.batch_size == torch.Size([8])
    assert (result["n", "b"] == 2).all()


class Writes(nn.Module):
    def forward(self, td):
        return td.set("z", td["a"] + 1)


@STRICT
def test_values_are_in_what_a_program_gives(strict):
    td = TensorDict(a=torch.ones(3), s="x", n={"t": "y"}, batch_size=[3])
    program = export(Writes(), (td.clone(),), strict=strict).module()
    result = program(td.clone())
    assert result["z"].tolist() == [2.0] * 3
    assert result["s"] == "x"
    assert result.get("s").batch_size == result.batch_size == torch.Size([3])
    other = td.clone().set("s", "y")
    with pytest.raises(ValueError, match="spec"):
        program(other)


@STRICT
def test_values_have_the_open_batch_size_of_a_program(strict):
    rows = Dim("rows", min=2)
    td = TensorDict(a=torch.ones(4, 3), s="x", batch_size=[4])
    program = export(
        Writes(), (td.clone(),), dynamic_shapes=([{0: rows}, []],), strict=strict
    )
    other = TensorDict(a=torch.ones(7, 3), s="x", batch_size=[7])
    result = program.module()(other)
    assert result.batch_size == result.get("s").batch_size == torch.Size([7])
    assert result[0]["s"] == "x"
