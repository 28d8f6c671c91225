"""Calls of a function on every leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, overload

import torch

from tensordict import _rust
from tensordict._rust import apply_nest
from tensordict.ops.batch import MSG_NAMES_LENGTH
from tensordict.primitives import classes
from tensordict.primitives.common import MSG_OUT_BATCH_SIZE
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict.containers.collection import TensorDictBase

__all__ = ["ApplyOps"]

MSG_FUNCTION = (
    "{}() calls its first argument with each leaf, and {!r:.50} is no function."
)
MSG_OTHERS = (
    "'{}' object has no entries: {}() takes tensordicts with the same keys after its function. "
    "A value that is the same for all leaves belongs into the function: "
    "lambda leaf: fn(leaf, value)."
)
MSG_UNKNOWN_KEYWORDS = (
    "{}() ignores the keyword argument(s) {}. Starting with TensorDict 0.17, the default "
    "will change to raising a TypeError for unknown keyword arguments."
)
MSG_OUT_DEVICE = (
    "device and out.device must be equal when both are provided. "
    "Got device={} and out.device={}."
)


class ApplyOps(CollectionProtocol):
    """Calls of a function on every leaf."""

    @overload
    def apply(
        self,
        fn: Callable[..., Any],
        *others: object,
        filter_empty: Literal[False] | None = None,
        **options: Any,
    ) -> Self: ...
    @overload
    def apply(
        self,
        fn: Callable[..., Any],
        *others: object,
        filter_empty: bool,
        **options: Any,
    ) -> Self | None: ...
    def apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        batch_size: Sequence[int] | None = None,
        device: torch.device | str | int | None = NO_DEFAULT,
        names: Sequence[str | None] | None = NO_DEFAULT,  # type: ignore[assignment]
        inplace: bool = False,
        default: object = NO_DEFAULT,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        out: TensorDictBase | None = None,
        **constructor_kwargs: Any,
    ) -> Self | None:
        """Call ``fn`` on every leaf and collect the results under the same keys.

        Leaves are visited depth first, in key order. If ``fn`` returns None, the result
        lacks the key. The result is a new, unlocked tensordict.

        Args:
            fn: called as ``fn(leaf, *leaves_of_others)``.
            *others: tensordicts with the keys of this one; further keys are ignored.
                ``fn`` gets their leaves of the same key.
            batch_size: the batch size of the result and of its nested tensordicts.
                Default: the present ones. With it, the result has no names.
            device: the device of the result. Default: the device of this tensordict.
            names: the names of the result's dimensions. Default: the present ones.
            inplace: copy the results into the leaves' memory and return this
                tensordict. The batch size, device and names do not change.
            default: passed to ``fn`` for an entry that one of ``others`` lacks. Without
                it, a missing entry is an error.
            filter_empty: leave out each tensordict for which ``fn`` returned no result.
                Default: leave it out unless it was empty before. If the root itself is
                left out, the result is None.
            propagate_lock: lock the result if this tensordict is locked.
            call_on_nested: call ``fn`` on the direct entries only, with nested
                tensordicts passed as a whole.
            is_leaf: called with the type of each value; if it returns True, ``fn`` is
                called on the value instead of its entries.
            out: a tensordict to store the results in; they replace its entries.
            **constructor_kwargs: ``named``, ``nested_keys`` and ``prefix`` turn the
                call into a :meth:`named_apply` whose keys start with ``prefix``. Other
                arguments are ignored with a warning.

        Raises:
            KeyError: one of ``others`` lacks a key, and there is no ``default``.
            RuntimeError: a result does not have the batch size as its leading
                dimensions; or ``out`` is locked, or its batch size or device is not the
                requested one. Then nothing has been written.

        Examples:
            >>> td = TensorDict(a=torch.ones(3), b={"c": torch.zeros(3)}, batch_size=[3])
            >>> td.apply(lambda x: x + 1)["b", "c"]
            tensor([1., 1., 1.])
            >>> td.apply(lambda x, y: x - y, td)["a"]
            tensor([0., 0., 0.])
            >>> td.apply(lambda x: x.sum(), batch_size=[])["a"]
            tensor(3.)
        """
        named = nested_keys = False
        prefix: tuple[str, ...] = ()
        if constructor_kwargs:
            named = constructor_kwargs.pop("named", False)
            nested_keys = constructor_kwargs.pop("nested_keys", False)
            prefix = constructor_kwargs.pop("prefix", ())
            if constructor_kwargs:
                _warn_unknown("apply", constructor_kwargs)
        if (
            batch_size is None
            and out is None
            and not named
            and device is NO_DEFAULT
            and not (inplace or propagate_lock)
        ):
            given: Any = names
            if given is not NO_DEFAULT:
                _check_names(names, self.batch_size)
            _check_call("apply", fn, others)
            return apply_nest(
                self, fn, others, None, NO_DEFAULT, names, default, False, False,
                filter_empty, True if call_on_nested else is_leaf,
            )  # fmt: skip
        return self._apply_with(
            fn,
            others,
            batch_size,
            device,
            names,
            inplace,
            default,
            named,
            nested_keys,
            filter_empty,
            propagate_lock,
            True if call_on_nested else is_leaf,
            out,
            False,
            prefix,
        )

    @overload
    def named_apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        filter_empty: Literal[False] | None = None,
        **options: Any,
    ) -> Self: ...
    @overload
    def named_apply(
        self, fn: Callable[..., Any], *others: Any, filter_empty: bool, **options: Any
    ) -> Self | None: ...
    def named_apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        nested_keys: bool = False,
        batch_size: Sequence[int] | None = None,
        device: torch.device | str | int | None = NO_DEFAULT,
        names: Sequence[str | None] | None = NO_DEFAULT,  # type: ignore[assignment]
        inplace: bool = False,
        default: Any = NO_DEFAULT,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        out: TensorDictBase | None = None,
        **constructor_kwargs: object,
    ) -> Self | None:
        """Call ``fn`` on the key and value of every leaf and collect the results.

        As :meth:`apply`, but ``fn`` gets the key as its first argument.

        Args:
            fn: called as ``fn(key, leaf, *leaves_of_others)``.
            *others: as in :meth:`apply`.
            nested_keys: pass the whole key of a nested leaf, a tuple. Default: only its
                last part.
            batch_size: see :meth:`apply`.
            device: see :meth:`apply`.
            names: see :meth:`apply`.
            inplace: see :meth:`apply`.
            default: see :meth:`apply`.
            filter_empty: see :meth:`apply`.
            propagate_lock: see :meth:`apply`.
            call_on_nested: see :meth:`apply`.
            is_leaf: see :meth:`apply`.
            out: see :meth:`apply`.
            **constructor_kwargs: ignored, with a warning.

        Examples:
            >>> td = TensorDict(a=torch.ones(3), b={"c": torch.zeros(3)}, batch_size=[3])
            >>> keys = []
            >>> td.named_apply(lambda key, x: keys.append(key), nested_keys=True)
            >>> keys
            ['a', ('b', 'c')]
        """
        if constructor_kwargs:
            _warn_unknown("named_apply", constructor_kwargs)
        given: Any = names
        if (
            batch_size is None
            and out is None
            and device is NO_DEFAULT
            and given is NO_DEFAULT
            and not (inplace or propagate_lock)
        ):
            _check_call("named_apply", fn, others)
            return apply_nest(
                self, fn, others, None, NO_DEFAULT, names, default, True, nested_keys,
                filter_empty, True if call_on_nested else is_leaf,
            )  # fmt: skip
        return self._apply_with(
            fn,
            others,
            batch_size,
            device,
            names,
            inplace,
            default,
            True,
            nested_keys,
            filter_empty,
            propagate_lock,
            True if call_on_nested else is_leaf,
            out,
            False,
        )

    def apply_(self, fn: Callable[..., Any], *others: object, **kwargs: Any) -> Self:
        """Call ``fn`` on every leaf and copy the results into the leaves' memory.

        As :meth:`apply` with ``inplace=True``. Works on a locked tensordict, too.

        Args:
            fn: called as ``fn(leaf, *leaves_of_others)``.
            *others: tensordicts with the keys of this one.
            **kwargs: further arguments of :meth:`apply`.

        Examples:
            >>> td = TensorDict(a=torch.ones(3))
            >>> leaf = td["a"]
            >>> td.apply_(lambda x: x + 1)["a"] is leaf
            True
            >>> leaf
            tensor([2., 2., 2.])
        """
        self.apply(fn, *others, inplace=True, **kwargs)
        return self

    def attrs(
        self,
        *,
        fields: Sequence[str] = ("device", "dtype", "shape"),
        num_threads: int | None = None,
    ) -> Self:
        """Return the device, dtype and shape of every leaf.

        Args:
            fields: the attributes to return.
            num_threads: accepted for compatibility, and ignored.

        Returns:
            A tensordict without batch dimensions or device, with a
            :class:`TensorAttrs` for each leaf.
        """
        result = self._apply_with(
            lambda leaf: classes.TensorAttrs.from_tensor(leaf, fields=fields),
            batch_size=(),
            device=None,
            filter_empty=False,
            checked=True,
        )
        _empty_columns(result)
        return result

    # Calls of clients of the published package -----------------------------------

    def _fast_apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        batch_size: Sequence[int] | None = None,
        device: torch.device | str | int | None = NO_DEFAULT,
        names: Sequence[str | None] | None = NO_DEFAULT,  # type: ignore[assignment]
        inplace: bool = False,
        call_on_nested: bool = False,
        default: object = NO_DEFAULT,
        named: bool = False,
        nested_keys: bool = False,
        filter_empty: bool | None = False,
        is_leaf: Callable[[type], bool] | None = None,
        propagate_lock: bool = False,
        out: TensorDictBase | None = None,
        num_threads: int = 0,
        checked: bool = True,
        **constructor_kwargs: Any,
    ) -> Self | None:
        """Call :meth:`apply`; if ``checked``, results are not validated."""
        return self._apply_with(
            fn,
            others,
            batch_size,
            device,
            names,
            inplace,
            default,
            named,
            nested_keys,
            filter_empty,
            propagate_lock,
            True if call_on_nested else is_leaf,
            out,
            checked,
            call_on_unbatched=constructor_kwargs.get("call_on_unbatched", False),
        )

    def _apply_nest(
        self,
        fn: Callable[..., Any],
        *others: Any,
        batch_size: Sequence[int] | None = None,
        device: torch.device | str | int | None = NO_DEFAULT,
        names: Sequence[str | None] | None = NO_DEFAULT,  # type: ignore[assignment]
        inplace: bool = False,
        checked: bool = False,
        call_on_nested: bool = False,
        default: object = NO_DEFAULT,
        named: bool = False,
        nested_keys: bool = False,
        prefix: tuple[str, ...] = (),
        filter_empty: bool | None = None,
        is_leaf: Callable[[type], bool] | None = None,
        out: TensorDictBase | None = None,
        call_on_unbatched: bool = False,
        **constructor_kwargs: object,
    ) -> Self | None:
        """Walk as :meth:`apply` does, below ``prefix`` and without the lock.

        A class that is not dense overrides this, or is converted to a dense tensordict.
        """
        source = self
        if not self._is_dense and not inplace and out is None:
            source = self._as_dense()
        return source._apply_with(
            fn,
            others,
            batch_size,
            device,
            names,
            inplace,
            default,
            named,
            nested_keys,
            filter_empty,
            False,
            True if call_on_nested else is_leaf,
            out,
            checked,
            prefix,
            call_on_unbatched,
        )

    def _as_dense(self) -> Any:
        """Return a dense tensordict that shares the direct entries of this one."""
        return _rust.new(
            classes.TensorDict,
            dict(self._entries()),
            self.batch_size,
            self.device,
            self.names if self._has_names() else None,
        )

    def _apply_with(
        self,
        fn: Callable[..., Any],
        others: tuple[Any, ...] = (),
        batch_size: Sequence[int] | None = None,
        device: Any = NO_DEFAULT,
        names: Any = NO_DEFAULT,
        inplace: bool = False,
        default: object = NO_DEFAULT,
        named: bool = False,
        nested_keys: bool = False,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        is_leaf: object = None,
        out: Any = None,
        checked: bool = False,
        prefix: tuple[str, ...] = (),
        call_on_unbatched: bool = False,
    ) -> Any:
        """Do every form of :meth:`apply`; ``is_leaf=True`` means ``call_on_nested``."""
        _check_call("apply", fn, others)
        if inplace:
            # Compute all results before the first write: if the function raises, the
            # tensordict is unchanged.
            tree = apply_nest(
                self, fn, others, None, NO_DEFAULT, None, default, named, nested_keys,
                filter_empty, is_leaf, True, prefix,
            )  # fmt: skip
            if tree is None:
                return None
            _rust.write_tree(self._leaves_owner(), tree, True, checked)
            return self
        if device is not NO_DEFAULT and device is not None:
            device = torch.device(device)
        if batch_size is not None:
            batch_size = torch.Size(batch_size)
        if names is not NO_DEFAULT:
            _check_names(names, self.batch_size if batch_size is None else batch_size)
        if out is not None:
            _check_out(out, batch_size, device)
        result = apply_nest(
            self, fn, others, batch_size, device, names, default, named, nested_keys,
            filter_empty, is_leaf, checked or out is not None, prefix,
            call_on_unbatched,
        )  # fmt: skip
        if out is not None and result is not None:
            _rust.write_tree(out, result, False, checked, is_leaf is not True)
            out._take_written()
            result = out
        if propagate_lock and result is not None and self.is_locked:
            result.lock_()
        return result

    def _leaves_owner(self) -> Self:
        """Return the tensordict whose leaves an operation in place writes to."""
        return self

    def _take_written(self) -> None:
        """Adapt entries that were stored below this tensordict to its class."""


def _warn_unknown(method: str, keywords: dict[str, Any]) -> None:
    names = ", ".join(map(repr, keywords))
    warn_caller(MSG_UNKNOWN_KEYWORDS.format(method, names))


def _check_call(method: str, fn: object, others: tuple[Any, ...]) -> None:
    """Check the function of a call, and the other tensordicts.

    Raises:
        AttributeError: one of ``others`` is no tensordict.
        TypeError: ``fn`` cannot be called.
    """
    if not callable(fn):
        raise TypeError(MSG_FUNCTION.format(method, fn))
    for other in others:
        # A member of a lazy stack may lack the entry; NO_DEFAULT stands for it.
        if not isinstance(other, CollectionProtocol) and other is not NO_DEFAULT:
            raise AttributeError(MSG_OTHERS.format(type(other).__name__, method))


def _check_names(names: Sequence[str | None] | None, size: torch.Size) -> None:
    if names is not None and len(names) != len(size):
        raise ValueError(MSG_NAMES_LENGTH.format(list(names), len(size)))


def _check_out(out: Any, batch_size: Any, device: object) -> None:
    if batch_size is not None and batch_size != out.batch_size:
        raise RuntimeError(MSG_OUT_BATCH_SIZE)
    if device is not NO_DEFAULT and device != out.device:
        raise RuntimeError(MSG_OUT_DEVICE.format(device, out.device))


def _empty_columns(td: CollectionProtocol) -> None:
    """Replace the non-tensor stacks of ``td``, which is new, by empty tensordicts."""
    for holder in _rust.containers(td):
        for key, value in list(holder._entries().items()):
            if isinstance(value, CollectionProtocol._non_tensor_stack_type):
                holder._set_entry(key, td._plain_type({}, ()))
