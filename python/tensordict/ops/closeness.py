"""Assertions for tests: whether two tensordicts have nearly the same values."""

from __future__ import annotations

import torch

from tensordict.ops.operands import mismatch_message, unset_fields
from tensordict.primitives.errors import absent_key
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.special import in_line

__all__ = ["assert_allclose_td", "assert_close"]

MSG_TYPES = "assert_allclose inputs must be of TensorDict type, got {} and {}"
MSG_MISMATCH = "key {} does not match, got mse = {:4.4f}"
MSG_FAILED = "Failed to compare key {}. Scroll up for more details."


def assert_close(
    actual: object,
    expected: object,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    intersection: bool = False,
    msg: str = "",
    prefix: object = (),
) -> bool:
    """Assert that two tensordicts have nearly the same leaves.

    :func:`torch.testing.assert_close` compares the leaves, with its default tolerances
    for each dtype; dtypes and shapes must be equal. Batch sizes, names, locks and the
    tensordicts' devices are not compared.

    Args:
        actual: the tensordict to check.
        expected: the tensordict to compare with.
        rtol: the relative tolerance. Pass both ``rtol`` and ``atol``, or neither.
        atol: the absolute tolerance.
        equal_nan: whether NaN equals NaN.
        intersection: compare only the keys that both tensordicts contain.
        msg: a text to add to the error message.
        prefix: a key to put before all keys in messages.

    Returns:
        True.

    Raises:
        AssertionError: two leaves differ. The message names the key.
        KeyError: the keys differ and ``intersection`` is False.
        TypeError: one of the two is no tensordict.

    Examples:
        >>> td = TensorDict(a=torch.ones(2))
        >>> assert_close(td, td + 1e-9)
        True
    """
    if not isinstance(actual, CollectionProtocol) or not isinstance(
        expected, CollectionProtocol
    ):
        raise TypeError(MSG_TYPES.format(type(actual), type(expected)))
    _check_keys(actual, expected, intersection)
    # Compare lazy stacks member by member, with the keys that only some members have.
    stack = None if actual._is_dense or expected._is_dense else actual._lazy_stack()
    groups = None if stack is None else stack._member_operands((expected,))
    if groups is not None:
        for member, (part,) in groups:
            assert_close(member, part, rtol, atol, equal_nan, intersection, msg, prefix)
        return True
    # Read entries one by one: an entry that cannot be stacked hides no earlier
    # difference.
    theirs = set(expected._sample_entries())
    if not isinstance(prefix, tuple):
        prefix = (prefix,)
    for key in list(actual._sample_entries()):
        if key not in theirs:
            continue
        value = actual._get_entry(key, NO_DEFAULT)
        other, path = expected._get_entry(key, NO_DEFAULT), (*prefix, key)
        if isinstance(value, CollectionProtocol) or isinstance(
            other, CollectionProtocol
        ):
            assert_close(value, other, rtol, atol, equal_nan, intersection, msg, path)
            continue
        other = in_line(value, other)
        try:
            text = MSG_MISMATCH.format(path, _mean_squared_difference(value, other))
        except RuntimeError as error:
            raise RuntimeError(MSG_FAILED.format(path)) from error
        text += f",\t{msg}\n" if msg else "\n"
        torch.testing.assert_close(
            value,
            other,
            rtol=rtol,
            atol=atol,
            equal_nan=equal_nan,
            msg=text.__add__,
        )
    return True


def _mean_squared_difference(value: torch.Tensor, other: torch.Tensor) -> float:
    difference = value.to(torch.complex128) - other.to(torch.complex128)
    return difference.abs().pow(2).mean().item()


assert_allclose_td = assert_close
"""The older name of :func:`assert_close`."""


def _check_keys(
    actual: CollectionProtocol, expected: CollectionProtocol, intersection: bool
) -> None:
    """Raise an error if the keys differ, unless ``intersection`` allows it."""
    mine, theirs = set(actual._sample_entries()), set(expected._sample_entries())
    if not intersection and mine != theirs:
        missing, extra = mine - theirs, theirs - mine
        missing -= unset_fields(actual, missing, expected)
        extra -= unset_fields(expected, extra, actual)
        if missing or extra:
            raise absent_key(mismatch_message(missing, extra))
