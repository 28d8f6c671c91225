"""``memmap(..., ragged="columns")``: rows that differ in shape in a few files."""

import os
import pickle
import signal

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    TensorDict,
    append_memmap,
    lazy_stack,
    tensorclass,
)
from tensordict.cli import main
from tensordict.data import gather
from tensordict.storage import verify
from tensordict.storage.growing import saving

LENGTHS = (3, 1, 0, 2)


def samples(lengths=LENGTHS) -> LazyStackedTensorDict:
    return lazy_stack(
        [
            TensorDict(
                tokens=torch.arange(length),
                label=torch.tensor(at),
                text=f"sample {at}",
                n=TensorDict(image=torch.full((2, length), float(at))),
            )
            for at, length in enumerate(lengths)
        ]
    )


def are_equal(one, other) -> bool:
    if set(one.keys(True, True)) != set(other.keys(True, True)):
        return False
    return all(
        torch.equal(one[key], value)
        if isinstance(value, torch.Tensor)
        else one[key] == value
        for key, value in other.items(True, True)
    )


@pytest.fixture
def stack(tmp_path):
    samples().memmap(tmp_path / "x", ragged="columns")
    return TensorDict.load_memmap(tmp_path / "x")


def is_untouched(stack) -> bool:
    """Return whether no list of all members was made."""
    return "tensordicts" not in vars(stack)


def test_a_save_is_a_few_files(tmp_path):
    saved = samples(range(50)).memmap(tmp_path / "x", ragged="columns")
    assert saved.is_memmap()
    assert saved.is_locked
    assert saved.saved_path == tmp_path / "x"
    files = [name for _, _, names in os.walk(tmp_path) for name in names]
    # Two a key, metadata a level, and the sums.
    assert len(files) == 2 * 3 + 1 + 2 + 1
    assert not verify(tmp_path / "x").is_damaged
    assert all(map(are_equal, saved, samples(range(50))))


def test_members_are_made_on_demand(stack):
    assert isinstance(stack, LazyStackedTensorDict)
    assert stack.batch_size == (4,)
    assert set(stack.keys()) == {"tokens", "label", "text", "n"}
    assert set(stack.keys(True, True)) >= {("n", "image"), "label"}
    assert stack["label"].tolist() == [0, 1, 2, 3]
    assert stack["text"][3] == "sample 3"
    assert stack.get("tokens", as_padded_tensor=True, padding_value=-1).tolist() == [
        [0, 1, 2],
        [0, -1, -1],
        [-1, -1, -1],
        [0, 1, -1],
    ]
    assert "tokens" in repr(stack)
    assert stack.is_locked
    assert stack.device == torch.device("cpu")
    assert stack.names == [None]
    assert "missing" not in stack.keys()
    assert stack.get("missing", 1) == 1
    assert is_untouched(stack)
    assert all(map(are_equal, stack, samples()))


def test_members_are_views_of_the_files(stack, tmp_path):
    stack[3]["tokens"].fill_(7)
    stack[3].set_("label", torch.tensor(9))
    again = TensorDict.load_memmap(tmp_path / "x")
    assert again[3]["tokens"].tolist() == [7, 7]
    assert again["label"].tolist() == [0, 1, 2, 9]
    with pytest.raises(RuntimeError, match="lock"):
        stack[3]["new"] = torch.zeros(1)


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        slice(1, 3),
        slice(None, None, 2),
        slice(3, 0, -1),
        [3, 0, 0],
        [],
        range(1, 4),
        torch.tensor([2, 0]),
        torch.tensor([-1]),
        torch.tensor([True, False, False, True]),
        torch.tensor(2),
        (slice(1, 3),),
        Ellipsis,
        None,
    ],
)
def test_an_index_gives_what_it_gives_of_any_lazy_stack(index, stack):
    expected, found = samples()[index], stack[index]
    assert isinstance(found, LazyStackedTensorDict) == isinstance(
        expected, LazyStackedTensorDict
    ) or not len(expected)
    assert found.batch_size == expected.batch_size
    if expected.batch_size:
        flat = zip(found.reshape(-1), expected.reshape(-1), strict=True)
        assert all(are_equal(*pair) for pair in flat)
    else:
        assert are_equal(found, expected)


@pytest.mark.parametrize("index", [4, -5, [0, 4], torch.tensor([-5])])
def test_rows_that_there_are_not(index, stack):
    with pytest.raises(IndexError, match="out of bounds"):
        stack[index]


def test_what_is_gathered_is_a_copy(stack):
    taken = stack[torch.tensor([3, 0])]
    taken[0]["tokens"].fill_(5)
    taken[0]["new"] = torch.zeros(2)
    assert stack[3]["tokens"].tolist() == [0, 1]
    assert is_untouched(stack)


def test_gathered_rows_are_stacked_padded_or_jagged(stack):
    padded = stack.gather_rows([3, 0], ragged="padded", padding_value=-1)
    assert padded["tokens"].tolist() == [[0, 1, -1], [0, 1, 2]]
    assert padded["n", "image"].shape == (2, 2, 3)
    assert padded["n", "image"][0, 0].tolist() == [3, 3, -1]
    assert list(padded["text"]) == ["sample 3", "sample 0"]
    jagged = stack.gather_rows([2, 0, 1], ragged="jagged", keys=["tokens", "label"])
    assert [part.tolist() for part in jagged["tokens"].unbind()] == [[], [0, 1, 2], [0]]
    assert jagged["label"].tolist() == [2, 0, 1]
    stacked = stack[1:].gather_rows(torch.tensor([2]))
    assert are_equal(stacked[0], samples()[3])
    images = stack.gather_rows([0, 1], ragged="jagged")["n", "image"]
    assert [part.tolist() for part in images.unbind()] == [[[0.0] * 3] * 2, [[1.0]] * 2]
    with pytest.raises(ValueError, match="must be 'stack'"):
        stack.gather_rows([0], ragged="no")
    assert is_untouched(stack)


def test_rows_that_differ_in_two_dims_are_not_jagged(tmp_path):
    rows = [TensorDict(image=torch.ones(n, n)) for n in (2, 3)]
    lazy_stack(rows).memmap(tmp_path / "x", ragged="columns")
    with pytest.raises(ValueError, match="'image' differ in no dim or in several"):
        gather(TensorDict.load_memmap(tmp_path / "x"), [0, 1], ragged="jagged")


def test_it_is_a_lazy_stack_in_every_other_way(stack, tmp_path):
    with pytest.raises(RuntimeError, match="as_padded_tensor"):
        stack["tokens"]
    clone = stack.clone()
    clone[0]["new"] = torch.zeros(1)
    assert are_equal(pickle.loads(pickle.dumps(stack))[3], samples()[3])
    doubled = stack.exclude("text").apply(lambda leaf: leaf * 2)
    assert doubled[3]["tokens"].tolist() == [0, 2]
    assert stack.densify(layout=torch.jagged)["tokens"].is_nested
    assert len(list(stack.split(3))) == 2
    assert torch.cat([stack, stack]).batch_size == (8,)
    for name in ("tree", "x.tdz"):
        stack.memmap(tmp_path / name)
        assert all(map(are_equal, TensorDict.load_memmap(tmp_path / name), samples()))
    stack.memmap(tmp_path / "again", ragged="columns")
    stack[1:3].memmap(tmp_path / "again", ragged="columns")
    assert all(
        map(are_equal, TensorDict.load_memmap(tmp_path / "again"), samples()[1:3])
    )
    assert sorted(os.listdir(tmp_path)) == ["again", "tree", "x", "x.tdz"]
    stack.unlock_()
    stack[0]["new"] = torch.zeros(1)
    assert "new" in stack[0]


def test_rows_with_batch_dims(tmp_path):
    rows = [
        TensorDict(a=torch.rand(n, 2), b=torch.rand(n), batch_size=[n]) for n in (2, 3)
    ]
    lazy_stack(rows).memmap(tmp_path, ragged="columns")
    loaded = TensorDict.load_memmap(tmp_path)
    assert loaded.batch_size == (2, -1)
    assert loaded[1].batch_size == (3,)
    assert (loaded[0] == rows[0]).all()
    assert loaded[[1, 1]].batch_size == (2, 3)


def test_a_tensorclass(tmp_path):
    @tensorclass
    class Sample:
        a: torch.Tensor
        s: str

    rows = lazy_stack([Sample(a=torch.ones(n), s=str(n)) for n in (1, 2)])
    rows.memmap(tmp_path, ragged="columns")
    loaded = Sample.load_memmap(tmp_path)
    assert type(loaded) is Sample
    assert type(loaded[1]) is Sample
    assert loaded[1].a.tolist() == [1.0, 1.0]
    assert loaded[0].s == "1"


def test_nested_tensors_are_rows(tmp_path):
    parts = [torch.rand(2, 3), torch.rand(1, 3)]
    for number, layout in enumerate((torch.strided, torch.jagged)):
        nested = torch.nested.nested_tensor(parts, layout=layout)
        td = TensorDict(a=nested, b=torch.zeros(2), batch_size=[2])
        td.memmap(tmp_path / str(number), ragged="columns")
        loaded = TensorDict.load_memmap(tmp_path / str(number))
        assert torch.equal(loaded[1]["a"], parts[1])


def test_the_default_stays_a_directory_for_each_member(tmp_path):
    samples().memmap(tmp_path)
    assert {"0", "1", "2", "3"} <= set(os.listdir(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ragged": "rows"}, "must be 'columns'"),
        ({"prefix": None}, "path of a directory"),
        ({"archive": True}, "not archive=True"),
    ],
)
def test_options_that_do_not_go_together(options, message, tmp_path):
    given = {"prefix": tmp_path / "x", "ragged": "columns", **options}
    with pytest.raises(ValueError, match=message):
        samples().memmap(**given)


def test_a_save_takes_the_place_of_another(tmp_path):
    samples().memmap(tmp_path / "x")
    samples().memmap(tmp_path / "x", ragged="columns")
    assert "0" not in os.listdir(tmp_path / "x")
    with pytest.raises(RuntimeError, match="exists"):
        samples().memmap(tmp_path / "x", ragged="columns", existsok=False)
    with pytest.raises(ValueError, match="first batch dim"):
        samples()[0].memmap(tmp_path / "x", ragged="columns")
    assert all(map(are_equal, TensorDict.load_memmap(tmp_path / "x"), samples()))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").write_text("mine")
    with pytest.raises(RuntimeError, match="not a save"):
        samples().memmap(tmp_path / "other", ragged="columns")
    assert sorted(os.listdir(tmp_path)) == ["other", "x"]


def test_a_future_and_a_part(tmp_path):
    future = samples().memmap(
        tmp_path / "x", ragged="columns", num_threads=2, return_early=True
    )
    assert are_equal(future.result()[3], samples()[3])
    nested = TensorDict.load_memmap(tmp_path / "x", subpath="n")
    assert nested[0]["image"].shape == (2, 3)


def test_dtypes_and_empty_stacks(tmp_path):
    rows = lazy_stack(
        [TensorDict(a=torch.ones(n, dtype=torch.bfloat16)) for n in (1, 2)]
    )
    rows.memmap(tmp_path / "x", ragged="columns")
    loaded = TensorDict.load_memmap(tmp_path / "x")
    assert loaded.gather_rows([1], ragged="padded")["a"].dtype is torch.bfloat16
    rows[:0].memmap(tmp_path / "y", ragged="columns")
    assert TensorDict.load_memmap(tmp_path / "y").batch_size == (0,)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64])
def test_sequences_are_padded_whatever_the_dtype(dtype, tmp_path):
    rows = [torch.ones(count, 2).to(dtype) for count in (3, 0, 5, 1)]
    stack = lazy_stack([TensorDict(a=row) for row in rows])
    loaded = stack.memmap(tmp_path, ragged="columns")
    found = loaded.gather_rows([0, 1, 2, 3], ragged="padded", padding_value=0)["a"]
    assert torch.equal(found, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))
    empty = loaded.gather_rows([1, 1], ragged="padded")["a"]
    assert empty.shape == (2, 0, 2)


def test_inspect_tells_rows_and_ragged_columns(tmp_path, capsys):
    samples().memmap(tmp_path / "x", ragged="columns")
    assert main(["inspect", str(tmp_path / "x")]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "./ TensorDict of columns, 4 rows [4]" in lines
    assert "tokens: int64[4, -1] 48 B (ragged column)" in lines
    assert "label: int64[4] 32 B" in lines
    assert "text: text[4] 32 B (column of values)" in lines


def test_some_entries_are_selected_without_making_members(stack):
    chosen = stack.select("tokens", "label")
    assert set(chosen.keys()) == {"tokens", "label"}
    assert set(gather(stack, [3, 0], keys=["label"]).keys()) == {"label"}
    assert is_untouched(stack)
    assert is_untouched(chosen)
    assert are_equal(chosen[3], samples()[3].select("tokens", "label"))
    assert are_equal(
        stack.select(("n", "image"))[1], samples()[1].select(("n", "image"))
    )
    with pytest.raises(KeyError):
        stack.select("missing")


def test_a_loader_of_torch_gets_batches_of_rows(stack):
    loader = torch.utils.data.DataLoader(stack, batch_size=3, collate_fn=lambda x: x)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [3, 1]
    assert are_equal(batches[1][0], samples()[3])


@pytest.mark.filterwarnings("ignore:This process")
def test_what_a_killed_save_left_is_swept(tmp_path, monkeypatch):
    samples().memmap(tmp_path / "x", ragged="columns")
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        monkeypatch.setattr(
            saving, "_put", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
        samples(range(9)).memmap(tmp_path / "x", ragged="columns", checks=False)
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert sorted(os.listdir(tmp_path)) == [".x.tdtmp", "x"]
    assert len(TensorDict.load_memmap(tmp_path / "x").tensordicts) == 4
    samples(range(9)).memmap(tmp_path / "x", ragged="columns")
    assert os.listdir(tmp_path) == ["x"]
    assert TensorDict.load_memmap(tmp_path / "x").batch_size == (9,)


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("index", [[3, 0], torch.tensor([3, 0]), slice(3, None, -3)])
def test_gather_gives_ragged_rows_as_asked(is_saved, index, stack):
    if isinstance(index, slice):
        index = range(3, -1, -3) if is_saved else [3, 0]
    source = stack if is_saved else samples()
    keys = ["tokens", "text", ("n", "image")]
    padded = gather(source, index, keys=keys, ragged="padded", padding_value=-1)
    assert type(padded) is TensorDict
    assert padded.batch_size == (2,)
    assert padded["tokens"].tolist() == [[0, 1, -1], [0, 1, 2]]
    assert padded["n", "image"][0, 1].tolist() == [3, 3, -1]
    assert list(padded["text"]) == ["sample 3", "sample 0"]
    jagged = gather(source, index, keys=["tokens"], ragged="jagged")
    assert [part.tolist() for part in jagged["tokens"].unbind()] == [[0, 1], [0, 1, 2]]
    stacked = gather(source, index, keys=keys, ragged="stack")
    assert are_equal(stacked[0], samples()[3].select(*keys))
    assert is_untouched(stack)


def test_what_gather_has_no_ragged_rows_of(stack):
    with pytest.raises(ValueError, match="leave out out="):
        gather(stack, [0], out=stack[[0]], ragged="padded")
    with pytest.raises(ValueError, match="got 'rows'"):
        gather(stack, [0], ragged="rows")
    across = lazy_stack([TensorDict(a=torch.ones(2), batch_size=[2])] * 3, 1)
    with pytest.raises(ValueError, match="a lazy stack along dim 1"):
        gather(across, [0], ragged="padded")


def test_an_index_of_two_dims(stack):
    index = torch.tensor([[0, 1], [3, 3]])
    found, expected = stack[index], samples()[index]
    assert found.batch_size == expected.batch_size == (2, 2)
    assert are_equal(found[1][0], samples()[3])
    assert is_untouched(stack)
    stack.unlock_()
    padded = stack.gather_rows([3, 0], ragged="padded")
    assert padded["tokens"].tolist() == [[0, 1, 0], [0, 1, 2]]


def test_a_file_that_is_cut_is_an_error_and_not_a_crash(stack, tmp_path):
    assert stack[[0]][0]["tokens"].tolist() == [0, 1, 2]
    os.truncate(tmp_path / "x" / "tokens.memmap", 0)
    with pytest.raises(RuntimeError, match="cut the file"):
        stack[[0]]


FILES = ["label.memmap", "text.memmap", "n/image.memmap", "tokens.shape.memmap"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "use",
    [
        lambda stack: stack[1],
        lambda stack: stack[-1]["label"],
        lambda stack: next(iter(stack)),
        lambda stack: stack[1:][0],
        lambda stack: stack.tensordicts,
    ],
)
def test_a_row_of_a_file_that_is_cut_is_an_error(stack, tmp_path, name, use):
    os.truncate(tmp_path / "x" / name, 1)
    with pytest.raises(RuntimeError, match=f"{name}.*cut the file"):
        use(stack)


def test_rows_of_a_save_that_was_replaced_stay(stack, tmp_path):
    samples([1]).memmap(tmp_path / "x", ragged="columns")
    assert are_equal(stack[[3, 0]][0], samples()[3])
    growing = TensorDict.load_memmap(tmp_path / "x")
    append_memmap(tmp_path / "x", samples([5, 6]))
    assert are_equal(growing[[0]][0], samples([1])[0])
    grown = TensorDict.load_memmap(tmp_path / "x")
    assert [len(row["tokens"]) for row in grown[[2, 1]]] == [6, 5]


def test_a_pickle_has_each_row_once(tmp_path):
    rows = [TensorDict(a=torch.arange(at % 5), s="text") for at in range(200)]
    lazy_stack(rows).memmap(tmp_path, ragged="columns")
    stack = TensorDict.load_memmap(tmp_path)
    content = pickle.dumps(stack)
    assert len(content) < 200 * 400
    found = pickle.loads(content)
    assert found.is_locked
    assert not stack._has_members
    assert all(are_equal(found[at], row) for at, row in enumerate(rows))
    assert are_equal(pickle.loads(pickle.dumps(stack[3:9]))[1], rows[4])
