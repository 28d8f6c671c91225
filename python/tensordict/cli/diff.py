"""Compare two saves of any layouts: keys, metadata, values. Reads piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tensordict.cli import common

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    import torch

    from tensordict.primitives.protocol import CollectionProtocol

DIFFERENT = 1
PIECE_ITEMS = 1 << 22
"""The number of elements of a tensor that are compared at a time."""


class Difference(NamedTuple):
    """One difference between two saves, at a key."""

    key: tuple[str, ...]
    what: str
    """``only in first``, ``only in second``, ``metadata`` or ``values``."""
    detail: str
    deviation: float | None = None
    """The largest absolute deviation; None if it is undefined."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``tensordict diff``."""
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument(
        "--metadata", action="store_true", help="compare no values, and read no tensor"
    )
    parser.add_argument("--rtol", type=float, default=0.0, help="relative tolerance")
    parser.add_argument("--atol", type=float, default=0.0, help="absolute tolerance")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    common.add_loading(parser)


@common.reporting_errors
def run(arguments: argparse.Namespace) -> int:
    """Print the differences; return 1 if there are any."""
    first = dict(_flat(common.load_save(arguments.first, arguments), ()))
    second = dict(_flat(common.load_save(arguments.second, arguments), ()))
    found = list(_differences(first, second, arguments))
    if arguments.json:
        common.print_json(
            {
                "first": arguments.first,
                "second": arguments.second,
                "entries": len(first.keys() | second.keys()),
                "differences": [difference._asdict() for difference in found],
            }
        )
    else:
        for difference in found:
            print(
                f"{'.'.join(difference.key) or '.'}: {difference.what}: {difference.detail}"
            )
        count = len(first.keys() | second.keys())
        print(
            f"{len(found)} of {count} entries differ"
            if found
            else f"{count} entries, all the same"
        )
    return DIFFERENT if found else 0


def _flat(
    td: CollectionProtocol, key: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every collection and entry with its key; a lazy stack yields its members."""
    from tensordict.primitives.protocol import CollectionProtocol

    yield key, td
    stack = td._lazy_stack()
    if stack is None:
        entries = td._entries()
    else:
        members = stack.tensordicts
        entries = {str(number): member for number, member in enumerate(members)}
    for name, value in entries.items():
        if isinstance(value, CollectionProtocol):
            yield from _flat(value, (*key, name))
        else:
            yield (*key, name), value


def _differences(
    first: dict[tuple[str, ...], Any],
    second: dict[tuple[str, ...], Any],
    arguments: argparse.Namespace,
) -> Iterator[Difference]:
    keys = list(dict.fromkeys([*first, *second]))
    for key in _with_bar(keys, arguments):
        if key not in second:
            yield Difference(key, "only in first", _described(first[key]))
        elif key not in first:
            yield Difference(key, "only in second", _described(second[key]))
        else:
            yield from _compare(key, first[key], second[key], arguments)


def _with_bar(keys: list[Any], arguments: argparse.Namespace) -> Any:
    if arguments.metadata or not common.has_bar(arguments):
        return keys
    from tqdm.auto import tqdm

    return tqdm(keys, desc="comparing", unit="entry", leave=False)


def _described(value: Any) -> str:
    import torch

    from tensordict.primitives import special

    if isinstance(value, torch.Tensor):
        shape = list(value.shape) if special.rows(value) is None else "nested"
        return f"{str(value.dtype).removeprefix('torch.')}{shape}"
    if value._is_non_tensor:
        return repr(value._value())
    names = value.names if value._has_names() else None
    name = type(value).__name__.removeprefix("Remote")
    text = f"{name}{list(value.batch_size)}"
    return f"{text} names {names}" if names else text


def _compare(
    key: tuple[str, ...], left: Any, right: Any, arguments: argparse.Namespace
) -> Iterator[Difference]:
    import torch

    texts = _described(left), _described(right)
    is_pair = isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
    if not is_pair:
        if texts[0] != texts[1]:
            yield Difference(key, "metadata", f"{texts[0]} and {texts[1]}")
        return
    if texts[0] != texts[1]:
        yield Difference(key, "metadata", f"{texts[0]} and {texts[1]}")
    elif not arguments.metadata:
        deviation, count = _deviation(left, right, arguments.rtol, arguments.atol)
        if count:
            detail = f"{count} of {left.numel()} items differ"
            if deviation is not None:
                detail += f", by at most {deviation:g}"
            yield Difference(key, "values", detail, deviation)


def _deviation(
    left: torch.Tensor, right: torch.Tensor, rtol: float, atol: float
) -> tuple[float | None, int]:
    """Return the largest deviation, and the number of elements beyond the tolerances."""
    import torch

    from tensordict.primitives import special

    rows = special.rows(left)
    if rows is not None:
        parts = [
            _deviation(a, b, rtol, atol)
            for a, b in zip(rows, right.unbind(), strict=True)
            if a.shape == b.shape
        ]
        largest = max((part for part, _ in parts if part is not None), default=None)
        return largest, sum(count for _, count in parts)
    largest_found: float | None = None
    count = 0
    left_items, right_items = _flat_items(left), _flat_items(right)
    for start in range(0, left_items.numel(), PIECE_ITEMS):
        a = left_items[start : start + PIECE_ITEMS].as_subclass(torch.Tensor)
        b = right_items[start : start + PIECE_ITEMS].as_subclass(torch.Tensor)
        if torch.equal(
            a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
        ):
            continue
        wide = torch.complex128 if a.is_complex() else torch.float64
        x, y = a.to(wide), b.to(wide)
        same = torch.isclose(x, y, rtol=rtol, atol=atol, equal_nan=True)
        count += int((~same).sum())
        finite = (x - y).abs()[~same]
        if finite.numel():
            piece = float(finite.nan_to_num(nan=float("inf")).max())
            largest_found = (
                piece if largest_found is None else max(largest_found, piece)
            )
    return largest_found, count


def _flat_items(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor along one dim; a remote tensor stays remote."""
    from tensordict.storage.remote.tensor import RemoteTensor

    if isinstance(tensor, RemoteTensor):
        return tensor.flat()
    return tensor.reshape(-1)
