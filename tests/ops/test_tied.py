"""Tensors that a module has at several places, and those that a collection lacks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tensordict import TensorDict, from_module, from_safetensors, to_safetensors
from tensordict.nn import TensorDictParams

FORMS = {
    "swap": {},
    "return_swap": {"return_swap": False},
    "inplace": {"inplace": True},
    "state_dict": {"use_state_dict": True},
    "as_tensors": {"preserve_module_state": False},
}


class Tied(nn.Module):
    """A model whose head has the weight of its embedding."""

    def __init__(self, value: float = 9.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("angles", torch.ones(2), persistent=False)
        with torch.no_grad():
            self.embed.weight.fill_(value)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


def is_tied(model: Tied) -> bool:
    return model.embed.weight is model.head.weight


def without(td: TensorDict, *keys: str | tuple[str, ...]) -> TensorDict:
    return td.exclude(*keys, ("angles",))


@pytest.fixture(params=["safetensors", "memmap", "in_memory"])
def saved(request, tmp_path):
    """Return a function that gives the values of a model without some entries."""

    def save(*keys, value=1.0):
        values = without(from_module(Tied(value)).data.clone(), *keys)
        if request.param == "in_memory":
            return values
        if request.param == "memmap":
            values.memmap(tmp_path / "save")
            return TensorDict.load_memmap(tmp_path / "save")
        to_safetensors(values, tmp_path / "model.safetensors")
        return from_safetensors(tmp_path)

    return save


@pytest.mark.parametrize("missing", ["embed", "head"])
@pytest.mark.parametrize("form", FORMS)
def test_to_module_fills_what_is_tied(saved, form, missing):
    model, values = Tied(), saved((missing, "weight"))
    values.to_module(model, **FORMS[form])
    assert is_tied(model)
    torch.testing.assert_close(model(torch.arange(3)), Tied(1.0)(torch.arange(3)))


@pytest.mark.parametrize("missing", ["embed", "head"])
@pytest.mark.parametrize("form", sorted(set(FORMS) - {"return_swap"}))
def test_to_module_ties_again_at_the_end_of_a_block(saved, form, missing):
    model, values = Tied(), saved((missing, "weight"))
    own = model.embed.weight
    with values.to_module(model, **FORMS[form]):
        assert is_tied(model)
        assert model.head.weight.unique().tolist() == [1]
    assert is_tied(model)
    assert model.embed.weight is own
    assert own.unique().tolist() == [9]
    assert [name for name, _ in model.named_parameters()] == [
        name for name, _ in Tied().named_parameters()
    ]


def test_to_module_and_back_by_hand():
    model = Tied()
    own = model.embed.weight
    values = TensorDict(head={"weight": torch.ones(3, 2)})
    for options in ({}, {"preserve_module_state": False}):
        swapped = values.to_module(model, **options)
        assert is_tied(model)
        assert model.embed.weight.sum() == 6
        swapped.to_module(model)
        assert model.embed.weight is own
        assert model.head.weight is own


@pytest.mark.parametrize("form", ["swap", "return_swap", "inplace", "state_dict"])
def test_to_module_of_a_save_with_both_names_stays_tied(tmp_path, form):
    from_module(Tied(1.0)).memmap(tmp_path / "save")
    model = Tied()
    TensorDict.load_memmap(tmp_path / "save").to_module(model, **FORMS[form])
    assert is_tied(model)
    assert model.head.weight.unique().tolist() == [1]


def test_to_module_of_a_save_with_both_names_in_a_block(tmp_path):
    from_module(Tied(1.0)).memmap(tmp_path / "save")
    values = TensorDict.load_memmap(tmp_path / "save")
    model = Tied()
    own, given = model.embed.weight, values["head", "weight"]
    with values.to_module(model):
        assert is_tied(model)
    assert model.embed.weight is own
    assert model.head.weight is own
    assert values["head", "weight"] is given
    new = nn.Parameter(torch.zeros(3, 2))
    with values.to_module(model):
        model.head.weight = new
    assert values["head", "weight"] is new
    assert model.head.weight is own


@pytest.mark.parametrize("form", FORMS)
def test_to_module_of_a_save_with_two_values_names_them(tmp_path, form):
    values = from_module(Tied(1.0)).data.clone()
    values["head", "weight"] = torch.zeros(3, 2)
    values.memmap(tmp_path / "save")
    values = TensorDict.load_memmap(tmp_path / "save")
    model = Tied()
    own = model.embed.weight
    with pytest.raises(RuntimeError, match=r"embed\.weight and head\.weight"):
        values.to_module(model, **FORMS[form])
    assert model.embed.weight is own
    assert model.head.weight is own
    assert own.unique().tolist() == [9]
    values.to_module(model, strict=False)
    assert model.head.weight.sum() == 0
    assert model.embed.weight.sum() == 6


@pytest.mark.parametrize("copied", ["clone", "to", "stack", "loaded"])
@pytest.mark.parametrize("form", ["swap", "inplace", "state_dict"])
def test_to_module_of_copies_with_both_names_stays_tied(copied, form, tmp_path):
    values = from_module(Tied(1.0)).data
    if copied == "clone":
        values = values.clone()
    elif copied == "to":
        values = values.to(torch.float64).to(torch.float32)
    elif copied == "stack":
        values = torch.stack([values, values])[0]
    else:
        values.memmap(tmp_path / "save")
        values = TensorDict.load_memmap(tmp_path / "save").clone()
    assert values["embed", "weight"] is not values["head", "weight"]
    model = Tied()
    own = model.embed.weight
    with values.to_module(model, **FORMS[form]):
        assert is_tied(model)
        assert model.head.weight.unique().tolist() == [1]
    assert model.embed.weight is own
    assert model.head.weight is own
    values.to_module(model, **FORMS[form])
    assert is_tied(model)


def test_to_module_of_copies_that_want_gradients_unties():
    values = from_module(Tied(1.0)).select("embed", "head").data.clone()
    values.requires_grad_()
    model = Tied()
    with values.to_module(model):
        model(torch.arange(3)).sum().backward()
    assert values["embed", "weight"].grad is not None
    assert values["head", "weight"].grad is not None


def test_to_module_of_data_in_one_memory_is_one_parameter():
    model, values = Tied(), from_module(Tied(1.0)).data
    values.to_module(model)
    assert is_tied(model)


@pytest.mark.parametrize("form", FORMS)
def test_to_module_names_what_a_save_lacks(tmp_path, form):
    values = without(from_module(Tied(1.0)).data, ("norm", "running_mean"))
    values.exclude(("norm", "weight")).memmap(tmp_path / "save")
    values = TensorDict.load_memmap(tmp_path / "save")
    model = Tied()
    own = model.embed.weight
    with pytest.raises(RuntimeError) as caught:
        values.to_module(model, **FORMS[form])
    assert "norm.weight, norm.running_mean" in str(caught.value)
    assert "angles" not in str(caught.value)
    assert str(tmp_path / "save") in str(caught.value)
    assert model.embed.weight is own
    assert own.unique().tolist() == [9]
    values.to_module(model, strict=False, **FORMS[form])
    assert model.embed.weight.sum() == 6
    # A part for which there is everything is whole.
    values["embed"].to_module(model.embed, **FORMS[form])


def test_to_module_strict_of_values_in_memory():
    values = TensorDict(weight=torch.zeros(2, 3))
    layer = nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match="bias"):
        values.to_module(layer, strict=True)
    with values.to_module(layer):
        assert layer.weight.sum() == 0
    values = from_module(Tied(1.0)).data.clone()
    values["head", "weight"] = torch.zeros(3, 2)
    with pytest.raises(RuntimeError, match=r"embed\.weight and head\.weight"):
        values.to_module(Tied(), strict=True)


def test_to_module_tied_under_vmap_and_grad():
    model = Tied()
    own = model.embed.weight
    rows = TensorDict(embed={"weight": torch.randn(4, 3, 2)}, batch_size=[4])

    def call(row, x):
        with row.to_module(model):
            assert is_tied(model)
            return model(x)

    x = torch.arange(3)
    found = torch.vmap(call, (0, None))(rows, x)
    weight = rows["embed", "weight"]
    torch.testing.assert_close(found, weight @ weight.mT)
    gradient = torch.func.grad(lambda row: call(row, x).sum())(rows[0])
    first = weight[0].clone().requires_grad_()
    (first @ first.mT).sum().backward()
    torch.testing.assert_close(gradient["embed", "weight"], first.grad)
    assert model.embed.weight is own
    assert is_tied(model)


def test_to_module_tied_in_compiled_code():
    model = Tied()
    own = model.embed.weight
    values = TensorDict(embed={"weight": torch.randn(3, 2)})

    def call(values, x):
        with values.to_module(model):
            return model(x)

    x = torch.arange(3)
    found = torch.compile(call, fullgraph=True, backend="eager")(values, x)
    torch.testing.assert_close(found, call(values, x))
    assert model.embed.weight is own
    assert is_tied(model)


def test_to_module_into_parameters_that_are_tied():
    params = TensorDictParams(from_module(Tied()))
    own = params["embed", "weight"]
    with TensorDict(head={"weight": torch.ones(3, 2)}).to_module(params):
        assert params["embed", "weight"] is params["head", "weight"]
        assert params["embed", "weight"].sum() == 6
    assert params["embed", "weight"] is own
    assert params["head", "weight"] is own


@pytest.mark.parametrize("missing", ["embed", "head"])
def test_update_of_the_parameters_of_a_module_fills_what_is_tied(saved, missing):
    model, values = Tied(), saved((missing, "weight"))
    from_module(model).data.update_(values)
    assert is_tied(model)
    assert model.head.weight.unique().tolist() == [1]


@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict_of_parameters_that_are_tied(saved, assign):
    params = from_module(Tied(), as_module=True)
    state = saved(("head", "weight")).state_dict()
    with pytest.raises(RuntimeError, match=r"head\.weight"):
        copy.deepcopy(params).load_state_dict(state, assign=assign)
    params.load_state_dict(state, assign=assign, strict=False)
    assert params["head", "weight"] is params["embed", "weight"]
    assert params["head", "weight"].sum() == 6


def test_a_model_of_transformers_with_tied_weights(tmp_path):
    transformers = pytest.importorskip("transformers")

    def model(seed):
        torch.manual_seed(seed)
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=7, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
                num_attention_heads=1, tie_word_embeddings=True,
            )
        ).eval()  # fmt: skip

    first, second = model(0), model(1)
    first.save_pretrained(tmp_path)
    from_safetensors(tmp_path).to_module(second)
    assert second.lm_head.weight is second.model.embed_tokens.weight
    ids = torch.arange(5)[None]
    assert torch.equal(second(ids).logits, first(ids).logits)
