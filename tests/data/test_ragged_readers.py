"""Every reader takes what every writer made of rows that differ in shape."""

import inspect
from typing import NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import tensordict
from tensordict import (
    LazyStackedTensorDict,
    TensorDict,
    TypedTensorDict,
    lazy_stack,
    tensorclass,
)
from tensordict.data import (
    BatchLoader,
    DatasetReader,
    DatasetWriter,
    Mixture,
    gather,
)
from tensordict.primitives.checks import inside

LENGTHS = (3, 1, 2, 4)
CHOSEN = [2, 0]


@tensorclass
class Picture:
    pixels: torch.Tensor


@tensorclass
class Sample:
    tokens: torch.Tensor
    label: torch.Tensor
    text: str
    mask: torch.Tensor | None = None


@tensorclass
class Pair:
    tokens: torch.Tensor
    picture: Picture


class Typed(TypedTensorDict):
    tokens: torch.Tensor
    label: torch.Tensor


# The rows of each class, and the paths of their ragged entries.
CLASSES = {
    "tensordict": lambda n: TensorDict(tokens=torch.arange(n), label=torch.tensor(n)),
    "texts": lambda n: TensorDict(
        tokens=torch.arange(n), label=torch.tensor(n), text=f"no {n}"
    ),
    "nested": lambda n: TensorDict(
        label=torch.tensor(n), inner=TensorDict(tokens=torch.arange(n), text=f"no {n}")
    ),
    "typed": lambda n: Typed(
        tokens=torch.arange(n), label=torch.tensor(n), batch_size=[]
    ),
    "tensorclass": lambda n: Sample(torch.arange(n), torch.tensor(n), f"no {n}"),
    "tensorclass inside": lambda n: TensorDict(
        label=torch.tensor(n),
        inner=Sample(torch.arange(n), torch.tensor(n), f"no {n}"),
    ),
    "tensorclass in a tensorclass": lambda n: Pair(
        torch.arange(n), Picture(torch.full((n, 2), n))
    ),
}


def written(path, rows):
    with DatasetWriter(path) as writer:
        for row in rows:
            writer.append(row)
    return TensorDict.load_memmap(path)


def joined(path, rows):
    for part in range(2):
        with DatasetWriter(path, part=part) as writer:
            writer.extend(rows[2 * part : 2 * part + 2])
    DatasetWriter.join(path)
    return TensorDict.load_memmap(path)


def mapped(path, rows):
    lazy_stack(rows).memmap(path)
    return TensorDict.load_memmap(path)


def in_columns(path, rows):
    lazy_stack(rows).memmap(path, ragged="columns")
    return TensorDict.load_memmap(path)


def in_an_archive(path, rows):
    lazy_stack(rows).memmap(path.with_suffix(".tdz"))
    return TensorDict.load_memmap(path.with_suffix(".tdz"))


def in_one_file(path, rows):
    lazy_stack(rows).consolidate(path)
    return TensorDict.from_consolidated(path)


def dense(path, rows):
    return lazy_stack(rows).densify(layout=torch.jagged)


def dense_and_saved(path, rows):
    lazy_stack(rows).densify().memmap(path)
    return TensorDict.load_memmap(path)


def dense_and_written(path, rows):
    with DatasetWriter(path) as writer:
        writer.extend(dense(path, rows))
    return TensorDict.load_memmap(path)


WRITERS = {
    "writer": written,
    "writer, joined": joined,
    "memmap": mapped,
    "memmap in columns": in_columns,
    "lazy_stack": lambda path, rows: lazy_stack(rows),
    "archive": in_an_archive,
    "consolidated": in_one_file,
    "jagged": dense,
    "nested tensors, memmap": dense_and_saved,
    "jagged, writer": dense_and_written,
}


class Written(NamedTuple):
    """The rows of a class, and what each writer made of them, read again."""

    rows: list
    data: dict
    folders: dict


@pytest.fixture(scope="module", params=CLASSES)
def written_rows(request, tmp_path_factory):
    rows = [CLASSES[request.param](length) for length in LENGTHS]
    folders = {name: tmp_path_factory.mktemp("rows") / "data" for name in WRITERS}
    data = {name: write(folders[name], rows) for name, write in WRITERS.items()}
    return Written(rows, data, folders)


def of_every_writer(check):
    """Make a test of a check of data and rows, and of the folder where asked for."""
    given = inspect.signature(check).parameters

    def test(written_rows, subtests, **options):
        for name, data in written_rows.data.items():
            with subtests.test(writer=name):
                if "folder" in given:
                    options["folder"] = written_rows.folders[name]
                check(data, written_rows.rows, **options)

    own = [
        each for name, each in given.items() if name not in ("data", "rows", "folder")
    ]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    fixtures = [inspect.Parameter(n, kind) for n in ("written_rows", "subtests")]
    test.__signature__ = inspect.Signature([*fixtures, *own])
    test.__name__ = check.__name__
    return test


def tensors(row) -> dict:
    return {
        key if isinstance(key, tuple) else (key,): value
        for key, value in row.items(True, True)
        if isinstance(value, torch.Tensor)
    }


def texts(row) -> dict:
    return {
        key: row.get(key)
        for key in row.keys(True)
        if (key[-1] if isinstance(key, tuple) else key) == "text"
    }


def kind(td) -> type:
    """The class of rows: a tensorclass, or a tensordict of whatever kind."""
    return type(td) if tensordict.is_tensorclass(td) else TensorDict


def check_stack(found, rows):
    assert isinstance(inside(found), LazyStackedTensorDict)
    check_rows(found, rows)


def check_rows(found, rows):
    assert found.batch_size == (len(rows),)
    assert kind(found) is kind(rows[0])
    for at, row in enumerate(rows):
        member = found[at]
        assert kind(member) is kind(row)
        assert tensors(member).keys() == tensors(row).keys()
        for key, value in tensors(row).items():
            assert torch.equal(member.get(key), value)
        assert texts(member) == texts(row)
        if "inner" in row.keys():
            assert kind(member.get("inner")) is kind(row.get("inner"))


def check_padded(found, rows, padding=0):
    check_dense(found, rows)
    for key in tensors(rows[0]):
        values = [row.get(key) for row in rows]
        expected = pad_sequence(values, True, padding) if values[0].ndim else None
        expected = torch.stack(values) if expected is None else expected
        assert torch.equal(found.get(key), expected)


def check_jagged(found, rows):
    check_dense(found, rows)
    for key in tensors(rows[0]):
        values = [row.get(key) for row in rows]
        assert found.get(key).is_nested == bool(values[0].ndim)
        for part, value in zip(found.get(key).unbind(), values, strict=True):
            assert torch.equal(part, value)


def check_dense(found, rows):
    assert found.batch_size == (len(rows),)
    assert type(found) is kind(rows[0])
    assert tensors(found).keys() == tensors(rows[0]).keys()
    for key in texts(rows[0]):
        assert list(found.get(key)) == [row.get(key) for row in rows]
    if "inner" in rows[0].keys():
        assert type(found.get("inner")) is kind(rows[0].get("inner"))


def is_dense(data) -> bool:
    """Return whether rows are those of nested tensors, and not of a lazy stack."""
    return type(inside(data)) is TensorDict


def is_strided(data) -> bool:
    """Return whether there are nested tensors of which torch takes no empty index."""
    return is_dense(data) and any(
        leaf.is_nested and leaf.layout is torch.strided
        for leaf in tensors(data).values()
    )


FORMS = {
    "stack": check_stack,
    "padded": check_padded,
    "jagged": check_jagged,
    None: check_rows,
}


@pytest.mark.parametrize("ragged", FORMS)
@of_every_writer
def test_gather(data, rows, ragged):
    found = gather(data, torch.tensor(CHOSEN), ragged=ragged)
    FORMS[ragged](found, [rows[at] for at in CHOSEN])


@pytest.mark.parametrize("ragged", FORMS)
@of_every_writer
def test_a_batch_loader(data, rows, ragged):
    first, second = BatchLoader(data, 3, ragged=ragged)
    FORMS[ragged](first, rows[:3])
    FORMS[ragged](second, rows[3:])


@of_every_writer
def test_an_index(data, rows):
    check_rows(data[CHOSEN], [rows[at] for at in CHOSEN])
    check_rows(data[1:3], rows[1:3])


@of_every_writer
def test_a_reader(data, rows, folder):
    if (folder / "meta.json").exists():
        reader = DatasetReader(folder)
        check_rows(reader[CHOSEN], [rows[at] for at in CHOSEN])


@of_every_writer
def test_a_data_loader_of_torch(data, rows):
    for at, found in enumerate(torch.utils.data.DataLoader(data, 2)):
        check_rows(found, rows[2 * at : 2 * at + 2])


@of_every_writer
def test_get_pads(data, rows):
    if is_dense(data):
        return
    for key in tensors(rows[0]):
        values = [row.get(key) for row in rows]
        if values[0].ndim:
            found = data.get(key, as_padded_tensor=True, padding_value=-1)
            assert torch.equal(found, pad_sequence(values, True, -1))


@of_every_writer
def test_densify(data, rows):
    check_jagged(data.densify(layout=torch.jagged), rows)


@pytest.mark.parametrize("ragged", ["padded", "jagged", "stack"])
def test_rows_of_one_shape(tmp_path, ragged):
    rows = [CLASSES["tensorclass"](3) for _ in range(4)]
    for name, write in WRITERS.items():
        found = gather(write(tmp_path / name, rows), CHOSEN, ragged=ragged)
        if ragged == "jagged":
            assert found.get("tokens").unbind()[1].tolist() == [0, 1, 2]
            assert found.get("label").tolist() == [3, 3]
        else:
            FORMS[ragged](found, rows[:2])


@of_every_writer
def test_an_index_of_two_dims_and_one_of_no_rows(data, rows):
    index = torch.tensor([[2, 0], [0, 1]])
    form = {"ragged": "padded", "padding_value": -1}
    flat = gather(data, index.reshape(-1), **form)
    for key, value in tensors(gather(data, index, **form)).items():
        assert torch.equal(value.flatten(0, 1), flat.get(key))
    assert gather(data, index.numpy(), **form).batch_size == (2, 2)
    with pytest.raises(ValueError, match=r"one batch dim.*\(2, 2\)"):
        gather(data, index, ragged="jagged")
    if not is_strided(data):
        assert gather(data, [], ragged="padded").batch_size == (0,)


# Masks --------------------------------------------------------------------------------

PADDED = {"ragged": "padded"}
MASK = [[True, True, False], [True, True, True]]


@of_every_writer
def test_a_mask(data, rows):
    """The mask is beside the entry: in a tensorclass in a field of it."""
    keys = {key: (*key[:-1], "mask") for key in tensors(rows[0]) if key[-1] == "tokens"}
    form = {"ragged": "padded", "padding_value": -1, "mask_key": keys}
    if isinstance(rows[0], Pair):
        with pytest.raises(ValueError, match="Pair has no field 'mask'"):
            gather(data, CHOSEN, **form)
        return
    found = gather(data, CHOSEN, **form)
    loaded = BatchLoader(data, 2, sampler=CHOSEN, **form)
    for batch in (found, *loaded):
        for mask in keys.values():
            assert batch.get(mask).dtype is torch.bool
            assert batch.get(mask).tolist() == MASK
        check_padded(batch.exclude(*keys.values()), [rows[at] for at in CHOSEN], -1)


@of_every_writer
def test_a_mask_of_the_one_ragged_entry(data, rows):
    if len({key[-1] for key in tensors(rows[0])} & {"tokens", "pixels"}) > 1:
        pytest.skip("two entries are ragged")
    key = ("inner", "mask") if "inner" in rows[0].keys() else "mask"
    found = gather(data, CHOSEN, ragged="padded", mask_key=key)
    assert found.get(key).tolist() == MASK
    if not is_strided(data):
        empty = gather(data, [], ragged="padded", mask_key=key)
        assert empty.get(key).shape[0] == 0
    both = gather(data, torch.tensor([CHOSEN]), ragged="padded", mask_key=key)
    assert both.get(key).tolist() == [MASK]


def pictures(lengths):
    return [
        TensorDict(
            tokens=torch.arange(n),
            n=TensorDict(image=torch.ones(2, n), fixed=torch.ones(2)),
        )
        for n in lengths
    ]


@pytest.fixture(params=["writer", "memmap", "lazy_stack", "jagged", "jagged, writer"])
def two(request, tmp_path):
    return WRITERS[request.param](tmp_path / "two", pictures((3, 1, 2, 2)))


def test_several_masks_are_at_the_keys_of_their_entries(two):
    found = gather(two, [1, 2], ragged="padded", mask_key="mask")
    assert found["mask", "tokens"].tolist() == [[True, False], [True, True]]
    # All dims of a row up to the last one that differs.
    image = found["mask", "n", "image"]
    assert image.shape == found["n", "image"].shape == (2, 2, 2)
    assert image[0].tolist() == [[True, False], [True, False]]
    assert image[1].all()
    assert set(found["mask"].keys(True, True)) == {"tokens", ("n", "image")}
    assert found["mask"].batch_size == (2,)
    one = gather(two, [1, 2], ragged="padded", mask_key={"tokens": ("n", "mask")})
    assert one["n", "mask"].tolist() == [[True, False], [True, True]]
    assert one["n", "image"].shape == (2, 2, 2)


def test_the_dims_of_a_mask_do_not_depend_on_the_batch(two):
    keys = {("n", "image"): "mask"}
    for batch in BatchLoader(two, 2, ragged="padded", mask_key=keys):
        assert batch["mask"].shape == batch["n", "image"].shape
    assert batch["mask"].all()
    alike = gather(two, [2, 3], ragged="jagged")
    assert alike["n", "image"].is_nested
    assert [part.shape for part in alike["n", "image"].unbind()] == [(2, 2)] * 2


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"mask_key": "m"}, ValueError, "pass ragged='padded'"),
        ({"mask_key": "m", "ragged": "jagged"}, ValueError, "pass ragged='padded'"),
        ({**PADDED, "mask_key": "tokens"}, ValueError, "'tokens' already"),
        ({**PADDED, "mask_key": ("tokens", "m")}, ValueError, "'tokens' already"),
        ({**PADDED, "mask_key": {"label": "m"}}, ValueError, "scalars"),
        ({**PADDED, "mask_key": {"missing": "m"}}, KeyError, "'missing'"),
        ({**PADDED, "mask_key": {"text": "m"}}, KeyError, "'text'"),
        ({**PADDED, "mask_key": 3}, ValueError, "got 3"),
        ({"ragged": "pad"}, ValueError, "'pad'"),
        ({**PADDED, "padding_value": "x"}, TypeError, "must be a number, got 'x'"),
    ],
)
def test_a_mask_that_has_no_place_is_an_error_at_once(options, error, words):
    data = lazy_stack([CLASSES["texts"](length) for length in LENGTHS])
    for call in (
        lambda: BatchLoader(data, 2, **options),
        lambda: gather(data, [0], **options),
    ):
        with pytest.raises(error, match=words):
            call()
    assert set(data.keys()) == {"tokens", "label", "text"}


def test_a_mask_of_rows_that_do_not_differ_is_asked_for_by_entry():
    data = TensorDict(x=torch.ones(3, 2), batch_size=[3])
    with pytest.raises(ValueError, match="there is none. Name the entry"):
        gather(data, [0], ragged="padded", mask_key="mask")
    found = gather(data, [0], ragged="padded", mask_key={"x": "mask"})
    assert found["mask"].tolist() == [[True, True]]


def test_a_tensorclass_without_a_field_has_no_mask():
    data = lazy_stack([Pair(torch.arange(n), Picture(torch.ones(n))) for n in LENGTHS])
    with pytest.raises(ValueError, match="Declare the field, as 'mask:"):
        BatchLoader(data, 2, ragged="padded", mask_key="mask")


def test_rows_that_are_ragged_stacks_themselves_are_named():
    rows = [TensorDict(x=torch.ones(n)) for n in LENGTHS]
    data = lazy_stack([lazy_stack(rows[:2]), lazy_stack(rows[2:])])
    with pytest.raises(ValueError, match=r"entry 'x' are lazy stacks.*ragged='stack'"):
        gather(data, [0], ragged="padded")
    assert gather(data, [0], ragged="stack")[0, 1]["x"].shape == (1,)


def test_a_loader_says_what_to_pass_for_a_reader(tmp_path):
    written(tmp_path, [TensorDict(x=torch.ones(2))])
    reader = DatasetReader(tmp_path)
    with pytest.raises(TypeError, match=r"got DatasetReader\. Pass reader\.data"):
        BatchLoader(reader, 2)
    assert len(next(iter(BatchLoader(reader.data, 2)))) == 1


@pytest.mark.parametrize("ragged", ["padded", "jagged", "stack"])
def test_a_mixture(tmp_path, ragged):
    rows = [CLASSES["tensorclass"](length) for length in LENGTHS]
    mixture = Mixture([lazy_stack(rows[:2]), written(tmp_path / "data", rows[2:])])
    found = next(iter(BatchLoader(mixture, 4, sampler=range(4), ragged=ragged)))
    FORMS[ragged](found, rows)
    if ragged == "padded":
        loader = BatchLoader(mixture, 4, ragged=ragged, mask_key="mask")
        batch = next(iter(loader))
        assert batch.mask.sum(1).tolist() == batch.label.tolist()


@tensorclass
class Masked:
    tokens: torch.Tensor
    label: torch.Tensor
    mask: torch.Tensor | None = None
    token_mask: torch.Tensor | None = None


def test_the_masks_of_several_fields_have_a_field_each():
    rows = [Masked(torch.arange(n), torch.ones(n + 1), batch_size=[]) for n in (1, 2)]
    data = lazy_stack(rows)
    way = r"the field 'mask' of Masked .* mask_key=\{'tokens': 'tokens_mask', 'label': "
    for key in ("mask", ("mask", "x")):
        with pytest.raises(ValueError, match=way):
            gather(data, [0, 1], ragged="padded", mask_key=key)
    keys = {"tokens": "token_mask", "label": "mask"}
    found = gather(data, [0, 1], ragged="padded", mask_key=keys)
    assert found.token_mask.tolist() == [[True, False], [True, True]]
    assert found.mask.tolist() == [[True, True, False], [True, True, True]]
