"""Fields of text in compiled functions: stacked, moved, indexed and written.

Where texts go is known when a program is compiled, unless a tensor says it: those are
refused with what to do instead, and leave the rest to eager code.
"""

from __future__ import annotations

import pytest
import torch

import tensordict
from compiled_together import on_one
from tensordict import NonTensorStack, TensorDict, tensorclass


@tensorclass
class Word:
    x: torch.Tensor
    text: str = "none"


@tensorclass
class Line:
    word: Word
    number: int = 0


def words():
    return torch.stack([Word(x=torch.rand(3), text=f"word {i}") for i in range(4)])


def grid():
    return words().reshape(2, 2)


def rows():
    return torch.stack(
        [Word(x=torch.rand(2, 3), text=f"row {i}", batch_size=[2]) for i in range(2)]
    )


def part():
    return words().expand(2, 4)[:, 1::2]


def lines():
    return Line(word=grid(), number=3, batch_size=[2, 2])


def column():
    return TensorDict(x=torch.rand(2, 2), text=[["a", "b"], ["c", "d"]], batch_size=[2])


def ragged():
    stack = NonTensorStack.from_list([["a"], ["b", "c"]])
    return TensorDict(x=torch.rand(1), text=stack[1], batch_size=[])


def written(td):
    td = td.clone()
    td[0] = td[1]
    td[1, 0].text = "other"
    return td


PROGRAMS = {
    "number": lambda t: t[1],
    "numbers": lambda t: t[1, -1],
    "slice": lambda t: (t[1:], t[:, ::2]),
    "list": lambda t: (t[[1, 0]], t[:, [0, 0, 1]]),
    "booleans": lambda t: (t[[False, True]], t[True]),
    "dims": lambda t: (t[None], t[..., 0], t[:, None, 1]),
    "unbind": lambda t: (t.unbind(0), t.unbind(1)[1]),
    "split": lambda t: (t.split(1), t.split([1, 1], 1), t.chunk(2, 1)),
    "rows": lambda t: [row for each in t for row in each],
    "stack": lambda t: torch.stack([t, t], 1)[:, 1],
    "cat": lambda t: torch.cat([t, t[:1]])[2, 0],
    "shape": lambda t: (t.flatten(), t.permute(1, 0)[0], t.transpose(0, 1)),
    "squeeze": lambda t: (t.unsqueeze(1)[:, 0], t[:1].squeeze(0)[1]),
    "expand": lambda t: t.expand(3, 2, 2)[:, 1].reshape(-1)[3],
    "copies": lambda t: (t.repeat(2, 1)[3], t.flip(0)[0], torch.roll(t, 1, 0)),
    "pad": lambda t: tensordict.pad(t, [1, 0, 0, 1]),
    "clone": lambda t: t.clone()[1, 0],
    "apply": lambda t: t.apply(lambda x: x + 1)[0],
    "write": written,
    "lazy": lambda t: tensordict.lazy_stack([t, t])[1, 0],
    "locked": lambda t: t.clone().lock_()[0],
}


SOME = {"dims", "expand", "list", "number", "split", "write"}
MAKERS = {grid: None, rows: SOME, part: SOME}
"""The makers of the arguments, and the programs that are run with them: all if None."""


def described(value):
    if isinstance(value, torch.Tensor):
        return value.shape, value.tolist()
    if isinstance(value, (list, tuple)):
        return [described(item) for item in value]
    if tensordict.is_non_tensor(value):
        return type(value), value.batch_size, value.tolist()
    entries = {key: described(value.get(key)) for key in value.keys()}  # noqa: SIM118
    return type(value), value.batch_size, value.is_locked, entries


def described_fields(value):
    """Describe as :func:`described` does the inner collections of classes."""
    if isinstance(value, dict):
        return {key: described_fields(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [described_fields(item) for item in value]
    return type(value), described(value.to_tensordict())


@pytest.mark.parametrize("make", MAKERS)
def test_compiled_as_eager(make):
    torch._dynamo.reset()
    names = MAKERS[make] or PROGRAMS
    program = on_one({name: PROGRAMS[name] for name in PROGRAMS if name in names})
    argument = make()
    compiled = torch.compile(program, backend="eager", fullgraph=True)
    assert described_fields(compiled(argument)) == described_fields(program(argument))
    with torch._dynamo.config.patch(error_on_recompile=True):
        other = make()
        assert described_fields(compiled(other)) == described_fields(program(other))


@pytest.mark.parametrize(
    ("make", "program"),
    [
        pytest.param(lines, lambda t: t[1].word.text, id="nested"),
        pytest.param(lines, lambda t: t.word[0, 1].text + "!", id="nested text"),
        pytest.param(column, lambda t: t["text"][1], id="entry"),
        pytest.param(column, lambda t: t[0]["text"], id="entry of a row"),
        pytest.param(words, lambda t: [text.upper() for text in t.text], id="texts"),
        pytest.param(
            words, lambda t: t.x * len(t[2].text) + len(t[:2].text), id="lengths"
        ),
        pytest.param(ragged, lambda t: t["text"], id="row of another length"),
        pytest.param(
            words,
            lambda t: Word(x=t.x, text=list(t.text), batch_size=[4])[1:].text,
            id="made of texts",
        ),
        pytest.param(
            words, lambda t: NonTensorStack(*t.text).view(2, 2)[1].tolist(), id="values"
        ),
    ],
)
def test_texts_are_read(make, program):
    torch._dynamo.reset()
    argument = make()
    compiled = torch.compile(program, backend="eager", fullgraph=True)
    found, expected = compiled(argument), program(argument)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


def test_lists_of_numbers_index_collections():
    td = TensorDict(a=torch.rand(4, 3), batch_size=[4, 3])

    def program(td):
        return td[[0, 2]], td[:, [1, 2]], td[[True, False, False, True]]

    compiled = torch.compile(program, backend="eager", fullgraph=True)
    assert described(compiled(td)) == described(program(td))


def test_values_moved_by_tensors_are_left_to_eager_code():
    def program(td):
        return td.gather(1, torch.zeros(2, 2, dtype=torch.int64)) * 2

    td = grid()
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match="index non-tensor data with tensors"
    ):
        torch.compile(program, backend="eager", fullgraph=True)(td)
    torch._dynamo.reset()
    found = torch.compile(program, backend="eager")(td)
    assert described_fields(found) == described_fields(program(td))


def test_a_stack_is_made_of_texts_in_compiled_code():
    def made(x, texts):
        td = TensorDict(x=x, text=NonTensorStack(*texts), batch_size=[3]) + 1
        return td, NonTensorStack(texts)

    td, row = torch.compile(made, backend="eager", fullgraph=True)(
        torch.zeros(3), ["a", "b", "c"]
    )
    assert td["text"] == ["a", "b", "c"]
    assert td["x"].tolist() == [1, 1, 1]
    assert row.tolist() == [["a", "b", "c"]]
