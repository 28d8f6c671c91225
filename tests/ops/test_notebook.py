"""Show collections as HTML trees."""

from __future__ import annotations

import html.parser
import importlib.util

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
    lazy_stack,
    set_printoptions,
    show,
    tensorclass,
)
from tensordict.nn import TensorDictParams
from tensordict.ops.notebook import html_page

VOID = {"img", "meta", "rect", "!doctype"}


class Balanced(html.parser.HTMLParser):
    """Fail where an element is not closed, and collect the texts and attributes."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.tags, self.links = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def parsed(text):
    parser = Balanced()
    parser.feed(text)
    parser.close()
    assert not parser.open
    return parser


@tensorclass
class Sample:
    image: torch.Tensor
    label: str


def collections(tmp_path):
    td = TensorDict(
        {"a": torch.zeros(3, 2), "n": {"b": torch.ones(3)}, "t": "text"}, [3]
    )
    ragged = lazy_stack(
        [TensorDict(a=torch.zeros(2)), TensorDict(a=torch.zeros(3), b=torch.ones(1))]
    )
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    return {
        "dense": td,
        "empty": TensorDict(),
        "locked": td.clone().lock_(),
        "stack": lazy_stack([td, td]),
        "ragged stack": ragged,
        "view": lazy_stack([td, td])[:, 0],
        "typed": Sample(image=torch.zeros(3, 2), label="x", batch_size=[3]),
        "params": TensorDictParams(TensorDict(w=torch.zeros(2, 2))),
        "mapped": td.memmap(tmp_path / "save"),
        "shared": TensorDict(a=torch.zeros(3)).share_memory_(),
        "text": TensorDict(t=NonTensorStack("a", "<b>", "c"), batch_size=[3]),
        "unbatched": TensorDict(u=UnbatchedTensor(torch.zeros(7)), batch_size=[3]),
        "nested tensor": TensorDict(a=nested),
        "meta": TensorDict(a=torch.zeros(3, device="meta")),
        "sparse": TensorDict(a=torch.eye(3).to_sparse()),
        "complex": TensorDict(a=torch.zeros(9, dtype=torch.complex64)),
        "nan": TensorDict(a=torch.full((9,), float("nan"))),
    }


def test_each_collection_is_a_tree_that_is_whole_and_fetches_nothing(tmp_path):
    for name, td in collections(tmp_path).items():
        for text in (td._repr_html_(), show(td, histograms=True)._repr_html_()):
            found = parsed(text)
            assert type(td).__name__ in found.texts, name
            assert "script" not in found.tags
            assert all(link.startswith("data:image/png") for link in found.links)


def test_shapes_sizes_and_places_are_told(tmp_path):
    td = TensorDict({"a": torch.zeros(3, 1024), "n": {"b": torch.ones(3)}}, [3])
    texts = parsed(td.memmap(tmp_path)._repr_html_()).texts
    for text in ("float32", "[3, 1024]", "12.0 KiB", "memory-mapped", "b"):
        assert text in texts


def test_entries_that_not_all_members_have_are_shown():
    member = TensorDict({"a": torch.zeros(2), "n": {"<c>": torch.zeros(5)}})
    stack = lazy_stack([TensorDict(a=torch.zeros(2)), member])
    for td in (stack, TensorDict(inner=stack)):
        texts = parsed(td._repr_html_()).texts
        assert {"[1]", "n", "<c>", "[5]"} <= set(texts)
        assert "entries that not all members have" in texts


def test_what_users_put_in_is_escaped():
    td = TensorDict({"<script>": torch.zeros(1), "t": "<img src=x>"})
    text = td._repr_html_()
    assert "<script>" not in text
    assert "<img" not in text


def test_values_are_not_printed_through_lazy_or_wrapped_tensors():
    seen = []

    def look(td):
        seen.append(td._repr_html_())
        return td["a"]

    torch.vmap(look)(TensorDict(a=torch.zeros(3, 9), batch_size=[3]))
    parsed(seen[0])


@pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs pillow")
@pytest.mark.parametrize(
    "shape", [(8, 9), (3, 8, 9), (8, 9, 3), (1, 8, 9), (8, 300, 4)]
)
def test_images_are_drawn_and_only_the_first_rows(shape):
    td = TensorDict(a=torch.zeros(6, 5, *shape, dtype=torch.uint8), batch_size=[6, 5])
    assert parsed(td._repr_html_()).tags.count("img") == 4
    assert "img" not in parsed(show(td, images=False)._repr_html_()).tags


@pytest.mark.parametrize("shape", [(4, 4), (2, 8, 9), (8,), (2, 3, 8, 8), (0, 9)])
def test_what_is_no_image_is_not_drawn(shape):
    td = TensorDict(a=torch.zeros(2, *shape, dtype=torch.uint8), batch_size=[2])
    assert "img" not in parsed(td._repr_html_()).tags


def test_histograms_are_drawn_on_request():
    td = TensorDict(a=torch.arange(100.0))
    assert "svg" not in parsed(td._repr_html_()).tags
    found = parsed(show(td, histograms=True)._repr_html_())
    assert found.tags.count("rect") == 24
    assert "0 to 99" in found.texts


def test_a_large_level_has_an_end():
    td = TensorDict({str(at): torch.zeros(1) for at in range(1_000)})
    found = parsed(td._repr_html_())
    assert found.tags.count("li") == 201
    assert "… 800 more" in found.texts


def test_a_long_column_is_cut_as_the_text_of_all_of_it():
    texts = [f"text {number}" for number in range(1_000)]
    column = TensorDict(t=texts, batch_size=[1_000])
    assert repr(texts)[:200] + "…" in parsed(column._repr_html_()).texts
    same = TensorDict(t="text", batch_size=[1_000])
    assert repr(["text"] * 1_000)[:200] + "…" in parsed(same._repr_html_()).texts


def test_without_the_option_a_notebook_shows_text():
    with set_printoptions(html=False):
        assert TensorDict(a=1)._repr_html_() is None


def test_rich_prints_a_tree(tmp_path):
    console = pytest.importorskip("rich.console").Console(width=200, record=True)
    for name, td in collections(tmp_path).items():
        with console.capture() as captured:
            console.print(td)
        assert captured.get().startswith(type(td).__name__), name


def test_a_page_stands_alone():
    text = html_page(TensorDict(a=1), "<x>", images=True, histograms=True)
    found = parsed(text)
    assert "<x>" in found.texts
    assert "color-scheme" in text


def test_shown_prints_as_the_collection():
    td = LazyStackedTensorDict(TensorDict(a=1))
    assert repr(show(td)) == repr(td)
