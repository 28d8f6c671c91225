"""Draw, as text, which stream is in which row over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensordict import TensorDict

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def picture_of_rows(batches: Iterable[TensorDict]) -> str:
    """Draw the rows of batches: one line for each row, one column for each batch.

    A letter is a stream, upper-case at its first item. A dot is a row without a stream.
    A letter in brackets is a stream that is read again.

    Examples:
        >>> from tensordict.data import StreamDataLoader
        >>> texts = ["hello", "to", "all", "of"]
        >>> loader = StreamDataLoader(texts, iter, 2, padding_mode="zeros")
        >>> print(picture_of_rows(loader))
        A a a a a D d
        B b C c c . .
    """
    lines: list[list[str]] = []
    for column, batch in enumerate(batches):
        rows = batch.get("row", None)
        numbers = list(range(len(batch))) if rows is None else rows.tolist()
        while len(lines) <= max(numbers, default=-1):
            lines.append(["."] * column)
        for line in lines:
            line.append(".")
        streams = batch["stream_id"].tolist()
        resets = batch["reset"].tolist()
        valid = batch["valid"].tolist()
        for number, stream, reset, is_new in zip(
            numbers, streams, resets, valid, strict=True
        ):
            if stream >= 0:
                letter = _LETTERS[stream % len(_LETTERS)]
                letter = letter.upper() if reset else letter
                lines[number][column] = letter if is_new else f"({letter})"
    width = max((len(cell) for line in lines for cell in line), default=1)
    return "\n".join(
        " ".join(cell.center(width) for cell in line).rstrip() for line in lines
    )
