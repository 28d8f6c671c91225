"""The text of collections."""

from __future__ import annotations

import pytest
import torch

from tensordict import TensorDict, get_printoptions, lazy_stack, set_printoptions

LONG = """\
TensorDict(
    fields={
        a: Tensor(shape=torch.Size([3, 2]), device=cpu, dtype=torch.float32, is_shared=False),
        n: TensorDict(
            fields={
                b: Tensor(shape=torch.Size([3]), device=cpu, dtype=torch.float32, is_shared=False)},
            batch_size=torch.Size([3]),
            device=None,
            is_shared=False)},
    batch_size=torch.Size([3]),
    device=None,
    is_shared=False)"""


@pytest.fixture
def td():
    return TensorDict({"n": {"b": torch.ones(3)}, "a": torch.zeros(3, 2)}, [3])


def test_repr_is_the_long_form_by_default(td):
    assert repr(td) == LONG


def test_repr_compact_is_one_line(td):
    with set_printoptions(compact=True):
        assert (
            repr(td) == "TensorDict(batch_size=[3], fields={a: f32[2], n: {b: f32[]}})"
        )
    assert repr(td) == LONG


def test_repr_compact_breaks_lines_of_more_than_80():
    td = TensorDict({"k" * 36: torch.zeros(3), "x": torch.zeros(3)})
    with set_printoptions(compact=True):
        lines = repr(td).splitlines()
        assert lines[0] == "TensorDict(batch_size=[], fields={"
        assert len(repr(td.exclude("x"))) == 80


def test_repr_fake_and_meta_tensors_name_themselves():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        assert "a: FakeTensor(" in repr(TensorDict(a=torch.zeros(2)))
    assert "device=meta" in repr(TensorDict(a=torch.zeros(2, device="meta")))


def test_repr_sparse_tensor_has_no_storage_to_ask():
    assert "is_shared=None" in repr(TensorDict(a=torch.eye(2).to_sparse()))


def test_set_printoptions_keeps_what_is_not_given():
    before = get_printoptions()
    with set_printoptions(sort_keys="insertion"):
        with set_printoptions(show_dtype=False):
            assert get_printoptions()["sort_keys"] == "insertion"
        assert get_printoptions()["show_dtype"]
    assert get_printoptions() == before


def test_set_printoptions_can_be_entered_twice():
    before = get_printoptions()
    options = set_printoptions(compact=True)
    with options, options:
        assert get_printoptions()["compact"]
    assert get_printoptions() == before


def test_set_printoptions_decorates(td):
    @set_printoptions(compact=True)
    def printed():
        return repr(td)

    assert "\n" not in printed()
    assert repr(td) == LONG


def test_set_printoptions_stays_with_set():
    before = get_printoptions()
    try:
        set_printoptions(compact=True).set()
        assert get_printoptions()["compact"]
    finally:
        set_printoptions(**before).set()


def test_set_printoptions_refuses_unknown_options():
    with pytest.raises(TypeError, match="Unknown printoptions: {'colour'}"):
        set_printoptions(colour=True)


def test_repr_plain_summarizes_values():
    td = TensorDict(a=torch.tensor([1, 5]), b=torch.tensor([1.0, 3.0]))
    with set_printoptions(plain=True):
        assert "min=1, max=5" in repr(td)
        assert "mean=2, std=1.414" in repr(td)


def test_repr_html_escapes_keys():
    with set_printoptions(compact=True):
        assert "&lt;b&gt;" in TensorDict({"<b>": torch.zeros(1)})._repr_html_()
    with set_printoptions(html=False):
        assert TensorDict(a=1)._repr_html_() is None


def test_repr_of_parameters_that_a_lazy_module_has_yet_to_make():
    td = TensorDict.from_module(torch.nn.LazyLinear(3))
    assert "weight: UninitializedParameter(shape=torch.Size([-1])," in repr(td)
    with set_printoptions(compact=True):
        assert (
            repr(td)
            == "TensorDict(batch_size=[], fields={bias: f32[-1], weight: f32[-1]})"
        )
    with set_printoptions(plain=True, show_storage_size=True, show_is_view=True):
        assert "storage_size=None, values unknown" in repr(td)


def test_repr_of_a_stack_of_what_is_no_tensor_names_its_class():
    stack = lazy_stack([TensorDict(a=torch.ones(2), batch_size=[2])] * 2)
    shapes = stack._fast_apply(lambda leaf: leaf.shape)
    assert "a: [Size]" in repr(shapes)
    with set_printoptions(compact=True):
        assert "a: [Size]" in repr(shapes)


def test_set_printoptions_has_effect_at_once(td):
    before = get_printoptions()
    try:
        set_printoptions(compact=True)
        assert "\n" not in repr(td)
        options = set_printoptions(show_batch_size=False)
        with options:
            assert "batch_size" not in repr(td)
        assert "batch_size" in repr(td)
        assert get_printoptions()["compact"]
    finally:
        set_printoptions(**before)


@pytest.mark.parametrize(
    "make", [lambda td: td, lambda td: lazy_stack([td, td]), lambda td: td.copy()]
)
def test_keys_are_shown_as_keys(make):
    td = make(TensorDict(a=torch.zeros(2), n={"b": torch.zeros(2)}))
    assert repr(td.keys()) == "dict_keys(['a', 'n'])"
    assert repr(td.keys(True, True)) == "dict_keys(['a', ('n', 'b')])"
