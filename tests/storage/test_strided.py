"""Tensors that do not lie in order in memory, saved in every layout.

They are put in order in buffers of a few megabytes while they are written, and not copied whole.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordict import TensorDict

NAMES = ["x", "x.tdz", "x.safetensors", "x.cons"]

DTYPES = [
    torch.uint8,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


def round_trip(leaf: torch.Tensor, path) -> torch.Tensor:
    td = TensorDict({"a": leaf, "b": torch.ones(3)})
    if path.suffix == ".cons":
        td.consolidate(path)
        return TensorDict.from_consolidated(path)["a"]
    td.save(path)
    return TensorDict.load(path)["a"]


def make(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    base = torch.arange(torch.Size(shape).numel() * 2) % 251
    if dtype.is_complex:
        return torch.view_as_complex(base.view(*shape, 2).double()).to(dtype)
    return base[::2].view(shape).to(dtype)


@st.composite
def views(draw):
    shape = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    view = make(shape, draw(st.sampled_from(DTYPES)))
    view = view.permute(draw(st.permutations(range(view.ndim))))
    for dim in range(view.ndim):
        start = draw(st.integers(0, view.shape[dim] - 1))
        view = view.narrow(dim, start, view.shape[dim] - start)
        step = draw(st.integers(1, 3))
        view = view[(slice(None),) * dim + (slice(None, None, step),)]
    if draw(st.booleans()):
        view = view[None].expand(3, *view.shape)
    if view.is_complex() and draw(st.booleans()):
        view = view.conj()
        view = draw(st.sampled_from([view, view.imag, view.real]))
    return view


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(view=views())
def test_views_are_written_in_order(name, view, tmp_path_factory):
    if name == "x.safetensors" and view.is_complex() and view.element_size() == 16:
        view = view.to(torch.complex64)
    loaded = round_trip(view, tmp_path_factory.mktemp("views") / name)
    assert loaded.dtype == view.dtype
    assert torch.equal(loaded, view.resolve_conj().resolve_neg())


@pytest.mark.parametrize("name", NAMES)
def test_views_of_more_than_a_buffer(name, tmp_path):
    base = torch.arange(1700 * 1900, dtype=torch.int32).view(1700, 1900)
    views = [base.t(), base[:, 3:], base[::2, ::2].t()]
    for number, view in enumerate(views):
        loaded = round_trip(view, tmp_path / f"{number}{name}")
        assert torch.equal(loaded, view)


def test_negated_integers(tmp_path):
    view = torch._neg_view(torch.arange(5))
    assert torch.equal(round_trip(view, tmp_path / "x"), -torch.arange(5))


# In place ------------------------------------------------------------------------------

# Shorter than one system call's bytes, longer, and of several blocks.
SIZES = [10, 300_000, 3_000_000]


@pytest.mark.parametrize("num_items", SIZES)
@pytest.mark.parametrize("transform", ["flip", "shift", "transpose", "step"])
def test_a_view_written_over_its_own_file(transform, num_items, tmp_path):
    transforms = {
        "flip": lambda t: t.view(2, -1).t(),
        "shift": lambda t: t[1:],
        "transpose": lambda t: t.view(-1, 5).t(),
        "step": lambda t: t[::2],
    }
    values = torch.arange(num_items)
    saved = TensorDict({"a": values}).memmap(tmp_path / "x")
    view = transforms[transform](saved["a"])
    TensorDict({"a": view}).memmap(tmp_path / "x", atomic=False)
    expected = transforms[transform](values)
    assert torch.equal(TensorDict.load_memmap(tmp_path / "x")["a"], expected)


@pytest.mark.parametrize("num_items", SIZES)
def test_leaves_that_change_places(num_items, tmp_path):
    a, b = torch.arange(num_items), -torch.arange(num_items)
    saved = TensorDict({"a": a, "b": b, "c": a + 1}).memmap(tmp_path / "x")
    swapped = {"a": saved["b"], "b": saved["a"], "c": saved["c"]}
    TensorDict(swapped).memmap(tmp_path / "x", atomic=False, copy_existing=True)
    loaded = TensorDict.load_memmap(tmp_path / "x")
    assert torch.equal(loaded["a"], b)
    assert torch.equal(loaded["b"], a)
    assert torch.equal(loaded["c"], a + 1)
