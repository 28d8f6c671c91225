"""Laws that every tensordict class obeys, to test a class of your own.

:func:`check_collection` checks all laws. To make one test for each law, use :func:`laws`::

    @pytest.mark.parametrize("law", laws(), ids=str)
    def test_my_collection(law):
        law(make)

``make`` takes a tensordict and returns an instance of your class with its entries. It is
called once for each law, with :func:`sample`.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tensordict import TensorCollection, TensorDict, is_tensorclass
from tensordict._deprecated_utils import TESTING
from tensordict.primitives.deprecation import deprecated_names

__all__ = ["Law", "check_collection", "laws", "sample"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = deprecated_names(__name__, TESTING)

Make = Callable[[TensorDict], TensorCollection]

INDICES: tuple[Any, ...] = (
    0,
    -1,
    (0, 1),
    slice(1, None),
    (slice(None), 0),
    ...,
    None,
    (..., slice(0, 2)),
    torch.tensor([1, 0]),
    (slice(None), torch.tensor([[0, 2]])),
    [0, 1],
    torch.tensor([[True, False, True], [False, True, True]]),
)

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda td: td.reshape(-1),
    "expand": lambda td: td.expand(2, 2, 3),
    "gather": lambda td: td.gather(0, torch.zeros(1, 3, dtype=torch.int64)),
    "flatten": lambda td: td.flatten(0, 1),
    "repeat": lambda td: td.repeat(2, 1),
    "flip": lambda td: td.flip(0),
    "roll": lambda td: td.roll(1, 1),
    "split": lambda td: td.split(1, 1)[2],
    "unbind": lambda td: td.unbind(1)[1],
    "stack": lambda td: torch.stack([td, td], 1),
    "cat": lambda td: torch.cat([td, td], 1),
    "sum": lambda td: td.sum(0),
    "max": lambda td: td.max(1)[0],
    "add a number": lambda td: td + 1,
    "multiply by a tensor": lambda td: td * torch.tensor([[1.0], [2.0]]),
    "add a tensordict": lambda td: td + td.to_tensordict(),
    "be added to a tensordict": lambda td: td.to_tensordict() + td,
    "compare": lambda td: td > 3,
    "exp": lambda td: td.exp(),
    "double": lambda td: td.double(),
    "clone": lambda td: td.clone(),
    "apply": lambda td: td.apply(lambda leaf: leaf - 1),
    "apply to two": lambda td: td.apply(torch.add, td.to_tensordict()),
    "select": lambda td: td.select("n"),
    "exclude": lambda td: td.exclude("a"),
    "flatten the keys of a copy": lambda td: td.to_tensordict().flatten_keys("."),
    "masked_fill": lambda td: td.masked_fill(
        torch.tensor([[True], [False]]).expand(2, 3), 0
    ),
    "where": lambda td: td.where(torch.ones(2, 3, dtype=torch.bool), 0),
    "contiguous": lambda td: td.contiguous(),
    "zeros_like": torch.zeros_like,
    "empty": lambda td: td.empty(),
}


@dataclass(frozen=True)
class Law:
    """A law, called with a function that makes an instance of the tested class.

    Args:
        name: a sentence that states the law.
        check: a function that raises an ``AssertionError`` if an instance breaks the
            law.
    """

    name: str
    check: Callable[[Any], None]

    def __call__(self, make: Make) -> None:
        """Make an instance and check the law.

        Raises:
            AssertionError: the instance breaks the law.
        """
        self.check(make(sample()))

    def __str__(self) -> str:
        return self.name


def sample() -> TensorDict:
    """Return the tensordict whose entries the tested class has to hold.

    Its batch size is ``[2, 3]``; ``"a"`` has the shape ``[2, 3]`` and ``("n", "b")``
    the shape ``[2, 3, 4]``. The tested class may add non-tensor data.

    Examples:
        >>> sorted(sample().keys(True, True), key=str)
        [('n', 'b'), 'a']
    """
    leaves = {
        "a": _numbers(2, 3),
        "n": {"b": _numbers(2, 3, 4) + 7},
    }
    return TensorDict(leaves, batch_size=[2, 3])


def laws() -> list[Law]:
    """Return the laws that every tensordict class obeys.

    A locked instance has to reject new entries and to accept writes in place.

    Examples:
        >>> [law for law in laws() if law.name == "exp is that of a tensordict"]
        [Law(name='exp is that of a tensordict', ...)]
    """
    result = [
        Law(check.__name__.removeprefix("_").replace("_", " "), check)
        for check in CHECKS
    ]
    result += [
        Law(f"index {index} is that of each leaf", _index_law(index))
        for index in INDICES
    ]
    result += [
        Law(f"{name} is that of a tensordict", _operation_law(operation))
        for name, operation in OPERATIONS.items()
    ]
    return result


def check_collection(make: Make) -> None:
    """Check every law for a tensordict class.

    Args:
        make: a function that takes a tensordict and returns an instance of the tested
            class with its entries.

    Raises:
        AssertionError: an instance breaks a law. The error names the law.

    Examples:
        >>> from tensordict import lazy_stack
        >>> check_collection(lambda source: lazy_stack(list(source.unbind(1)), 1))
    """
    for law in laws():
        try:
            law(make)
        except Exception as error:
            raise AssertionError(f"the collection breaks the law: {law}") from error


def _numbers(*size: int) -> torch.Tensor:
    count = torch.Size(size).numel()
    return torch.arange(count, dtype=torch.float32).reshape(size)


def _plain(td: TensorCollection) -> dict[str, Any]:
    """Return nested dictionaries of copies of the entries."""
    return td.to_tensordict().to_dict(retain_none=False)


def _differing(found: object, expected: object, path: str = "") -> str | None:
    """Return the path of the first entry that differs; None if all are equal."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        if found.keys() != expected.keys():
            return f"{path or 'the keys'}: {list(found)} instead of {list(expected)}"
        for key, value in expected.items():
            differing = _differing(found[key], value, f"{path}.{key}".lstrip("."))
            if differing:
                return differing
        return None
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        same = found.dtype == expected.dtype and torch.equal(found, expected)
    else:
        same = bool(found == expected)
    return None if same else f"{path}: {found!r} instead of {expected!r}"


def _check_equal(found: object, expected: object) -> None:
    differing = _differing(found, expected)
    _check(differing is None, f"entry {differing}")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def _check_raises(call: Callable[[], Any], offered: str) -> None:
    """Check that a call raises the error for a value that a tensordict cannot take."""
    try:
        call()
    except (RuntimeError, ValueError):
        return
    raise AssertionError(f"{offered} is not refused")


def _index_law(index: Any) -> Callable[[Any], None]:
    def check(td: TensorCollection) -> None:
        _check_alike(td[index], td.to_tensordict()[index])

    return check


def _operation_law(operation: Callable[[Any], Any]) -> Callable[[Any], None]:
    def check(td: TensorCollection) -> None:
        _check_alike(operation(td), operation(td.to_tensordict()))

    return check


def _check_alike(found: Any, expected: Any) -> None:
    _check(
        found.batch_size == expected.batch_size,
        f"batch size {found.batch_size} instead of {expected.batch_size}",
    )
    _check_equal(_plain(found), _plain(expected))


def _keys_and_batch_size_are_those_of_the_source(td: TensorCollection) -> None:
    source = sample()
    _check(td.batch_size == source.batch_size, f"batch size {td.batch_size}")
    keys, expected = set(td.keys(True, True)), set(source.keys(True, True))
    _check(keys == expected, f"keys {keys} instead of {expected}")
    _check(("n", "b") in td.keys(True), "the nested key is not among all keys")
    _check("missing" not in list(td.keys()), "a missing key is among the keys")


def _get_reads_the_entries_of_the_source(td: TensorCollection) -> None:
    for key, value in sample().items(True, True):
        _check_equal(td.get(key), value)
    for key, value in td.items(True, True):
        _check_equal(td.get(key), value)


def _a_missing_key_is_an_error(td: TensorCollection) -> None:
    _check(td.get("missing") is None, "get() of a missing key is not None")
    # The fields of a tensorclass are attributes.
    with suppress(ValueError if is_tensorclass(td) else KeyError):
        raise AssertionError(f"a missing key gives {td['missing']!r}")


def _a_key_reads_what_get_reads(td: Any) -> None:
    if is_tensorclass(td):
        _check_equal(td.a, td.get("a"))
        _check_equal(td.n.get("b"), td.get(("n", "b")))
        return
    for key, value in td.items(True, True):
        _check_equal(td[key], value)


def _an_operation_leaves_its_collection_alone(td: TensorCollection) -> None:
    before = _plain(td)
    td.clone().apply_(lambda leaf: leaf * 0)
    (td + 1).zero_()
    _check_equal(_plain(td), before)


def _an_entry_that_is_set_is_read(td: TensorCollection) -> None:
    if td.is_locked:
        _check_raises(lambda: td.set("z", _numbers(2, 3)), "a new entry of a lock")
        return
    td.set("z", _numbers(2, 3, 2))
    td.set(("n", "y"), _numbers(2, 3))
    _check_equal(td.get("z"), _numbers(2, 3, 2))
    _check_equal(td.get(("n", "y")), _numbers(2, 3))


def _an_entry_that_is_written_in_place_is_read(td: TensorCollection) -> None:
    td.update_(td.to_tensordict().apply(lambda leaf: leaf + 1))
    _check_equal(td.get("a"), sample()["a"] + 1)
    td.set_("a", torch.zeros(2, 3))
    td.set_(("n", "b"), torch.zeros(2, 3, 4))
    for key, leaf in td.items(True, True):
        _check(not leaf.any(), f"{key} is not zero after zeros were written")


def _rows_that_are_written_are_read(td: TensorCollection) -> None:
    td[0] = td[1].clone()
    _check_equal(td.get("a"), sample()["a"][[1, 1]])
    td[:, 1] = td[:, 1] * 0 + 5
    _check_equal(td.get(("n", "b"))[:, 1], torch.full((2, 4), 5.0))


def _a_value_that_does_not_fit_changes_nothing(td: TensorCollection) -> None:
    before = _plain(td)
    _check_raises(lambda: td.set("a", torch.zeros(7)), "a tensor of another size")
    values = {"a": torch.zeros(2, 3), "z": torch.zeros(7)}
    _check_raises(lambda: td.update(values), "an update of which one does not fit")
    _check_equal(_plain(td), before)


def _a_locked_collection_takes_no_entry(td: TensorCollection) -> None:
    if not td.is_locked:
        try:
            td.lock_()
        except RuntimeError:  # A view has the lock of its parent.
            return
    _check_raises(lambda: td.set("z", torch.zeros(2, 3)), "a new entry of a lock")
    td.set_("a", torch.ones(2, 3))
    _check_equal(td.get("a"), torch.ones(2, 3))


def _a_pickle_is_the_same(td: TensorCollection) -> None:
    _check_alike(pickle.loads(pickle.dumps(td)), td)  # noqa: S301 (our own)


def _a_directory_is_the_same(td: TensorCollection) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "saved")  # noqa: PTH118 (a save takes a string)
        td.memmap(path, copy_existing=True)
        other = TensorDict.load_memmap(path)
        _check(is_tensorclass(other) == is_tensorclass(td), f"a {type(other).__name__}")
        _check_alike(other, td)


def _the_text_names_every_entry(td: TensorCollection) -> None:
    text = repr(td)
    for part in ("a", "n", "batch_size=torch.Size([2, 3])"):
        _check(part in text, f"{part!r} is not in {text!r}")


CHECKS = (
    _keys_and_batch_size_are_those_of_the_source,
    _get_reads_the_entries_of_the_source,
    _a_missing_key_is_an_error,
    _a_key_reads_what_get_reads,
    _an_operation_leaves_its_collection_alone,
    _an_entry_that_is_set_is_read,
    _an_entry_that_is_written_in_place_is_read,
    _rows_that_are_written_are_read,
    _a_value_that_does_not_fit_changes_nothing,
    _a_locked_collection_takes_no_entry,
    _a_pickle_is_the_same,
    _a_directory_is_the_same,
    _the_text_names_every_entry,
)
