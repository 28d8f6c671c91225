"""The public methods of a tensorclass that differ from the collection's methods.

:mod:`tensordict.tensorclass.delegation` handles the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, overload

from tensordict import _rust
from tensordict.primitives.checks import inside
from tensordict.primitives.protocol import CollectionProtocol, NestedKeyLike
from tensordict.tensorclass.inner import OverCollection
from tensordict.tensorclass.making import around

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tensordict.containers.collection import TensorCollection
    from tensordict.containers.dense import TensorDict
    from tensordict.ops.packing import PackLayout

__all__ = ["MethodsOfClass"]

MSG_DESTINATIONS = "The destinations {} are not fields of {} ({})."


class MethodsOfClass(OverCollection):
    """Methods that check which keys are fields, or return plain collections."""

    def __len__(self) -> int:
        """Return the number of rows along the first batch dim."""
        return len(self._tensordict)

    def to_tensordict(self, *, retain_none: bool | None = None) -> TensorDict:
        """Copy to a plain :class:`TensorDict`, nested collections too.

        Args:
            retain_none: whether unset fields become entries with the value None.
        """
        plain = self._tensordict.to_tensordict(retain_none=retain_none)
        if retain_none:
            for name in self._field_names():
                if name not in plain._entries():
                    plain.set_non_tensor(name, None)
        return plain

    def to_dict(self, *, retain_none: bool = True, **kwargs: object) -> dict[str, Any]:
        """Return a dictionary of the fields; unset fields are None.

        Args:
            retain_none: whether fields that are None are kept.
            **kwargs: see :meth:`TensorDict.to_dict`.
        """
        result = self._tensordict.to_dict(retain_none=retain_none, **kwargs)
        if retain_none:
            for name in self._field_names():
                result.setdefault(name, None)
        return result

    def non_tensor_items(self, include_nested: bool = False) -> tuple[Any, ...]:
        """Return pairs of unset fields and None, then of non-tensor entries."""
        present = set(self._tensordict.keys())
        unset = [(name, None) for name in self._field_names() if name not in present]
        return (*unset, *self._tensordict.non_tensor_items(include_nested))

    @overload  # type: ignore[override]
    def select(
        self,
        *keys: NestedKeyLike,
        inplace: bool = ...,
        strict: bool = ...,
        as_tensordict: Literal[False] = ...,
    ) -> Self: ...
    @overload
    def select(
        self,
        *keys: NestedKeyLike,
        inplace: bool = ...,
        strict: bool = ...,
        as_tensordict: bool,
    ) -> Any: ...
    def select(
        self,
        *keys: NestedKeyLike,
        inplace: bool = False,
        strict: bool = True,
        as_tensordict: bool = False,
    ) -> Any:
        """Keep only the fields at ``keys``. See :meth:`TensorDict.select`.

        If ``as_tensordict`` is true, the result is a plain collection.
        """
        chosen = self._tensordict.select(*keys, inplace=inplace, strict=strict)
        if as_tensordict:
            return chosen
        return self if inplace else around(type(self), chosen)

    def empty(self, *args: object, **kwargs: object) -> Self:
        """Make an instance with this batch size, device and names, and unset fields."""
        return _rust.wrap_fields(type(self), self._tensordict.empty(*args, **kwargs))

    def replace(self, *args: object, **kwargs: object) -> Self:
        """Return a copy that shares the leaves, with some fields replaced.

        See :meth:`TensorDict.replace`.
        """
        inner, size = self._tensordict, self._tensordict.batch_size
        args = tuple([self._with_values(value, size) for value in args])
        changed = inner.replace(*args, **self._with_values(kwargs, size))
        # The new fields are set before `__post_init__` is called.
        return self if changed is inner else self._from_tensordict(changed)

    def where(
        self, condition: object, other: object, *, out: object = None, **kwargs: object
    ) -> Any:
        """Select values where ``condition`` is true. See :meth:`TensorDict.where`."""
        result = self._tensordict.where(
            condition, inside(other), out=inside(out), **kwargs
        )
        return self._from_tensordict(result) if out is None else out

    def data_ptr(self, *args: object, **kwargs: object) -> Any:
        """Return the memory addresses of the fields as a :class:`TensorDict`."""
        return self._tensordict.data_ptr(*args, **kwargs)

    def extend(self, tensordict: TensorCollection) -> None:
        """Add members to this lazy stack: a list, or the members of another stack."""
        if isinstance(tensordict, MethodsOfClass):
            self._tensordict.extend(tensordict._tensordict)
        else:
            self._tensordict.extend([inside(member) for member in tensordict])

    def numpy(self) -> Any:
        """Return nested dictionaries of arrays that share memory with the fields."""
        return self._tensordict.numpy()

    def tolist(self, **kwargs: object) -> Any:
        """Return nested lists over the batch dims, of a dictionary for each element."""
        return self._tensordict.tolist(**kwargs)

    def update(self, input_dict_or_td: Any = None, *args: Any, **kwargs: Any) -> Self:
        """Set the fields of a collection or mapping. See :meth:`TensorDict.update`.

        Raises:
            ValueError: a key of a mapping is not a field.
        """
        self._check_mapping(input_dict_or_td)
        source = inside(input_dict_or_td)
        if (
            kwargs.get("keys_to_update") is not None
            and isinstance(source, CollectionProtocol)
            and not source._is_dense
        ):
            # Lazy stacks select keys by member, whose fields may differ in shape.
            self._tensordict.update(source, *args, **kwargs)
            return self
        inplace = args[1] if len(args) > 1 else kwargs.get("inplace", False)
        if not inplace:
            size = self._tensordict.batch_size
            input_dict_or_td = self._with_values(input_dict_or_td, size)
            kwargs = self._with_values(kwargs, size)
        return super().update(input_dict_or_td, *args, **kwargs)

    def update_(
        self, input_dict_or_td: object = None, *args: object, **kwargs: object
    ) -> Self:
        """Write into the fields. See :meth:`TensorDict.update_`.

        Raises:
            ValueError: a key of a mapping is not a field.
        """
        self._check_mapping(input_dict_or_td)
        source = self._with_dicts(inside(input_dict_or_td))
        self._tensordict.update_(source, *args, **kwargs)
        return self

    def update_at_(
        self, input_dict_or_td: object, idx: object, *args: object, **kwargs: object
    ) -> Self:
        """Write into the fields at an index. See :meth:`TensorDict.update_at_`."""
        source = self._with_dicts(inside(input_dict_or_td))
        self._tensordict.update_at_(source, idx, *args, **kwargs)
        return self

    def cat_tensors(self, *keys: object, **kwargs: object) -> Any:
        """Concatenate fields to one entry. See :meth:`TensorDict.cat_tensors`.

        The result is the collection inside, whose keys need not be fields.
        """
        return self._tensordict.cat_tensors(*keys, **kwargs)

    def copy_at_(
        self,
        tensordict: CollectionProtocol,
        idx: object,
        non_blocking: bool = False,
        *,
        fast: bool = True,
    ) -> Self:
        """Copy all leaves to the index ``idx``. See :meth:`TensorDict.copy_at_`.

        Raises:
            RuntimeError: ``fast`` is true, and ``tensordict`` is not a plain
                collection.
        """
        source = tensordict if fast else inside(tensordict)
        self._tensordict.copy_at_(source, idx, non_blocking, fast=fast)
        return self

    def rename_keys(self, mapping: Any, *, strict: bool = True) -> Self:
        """Return an instance with renamed entries. See :meth:`TensorDict.rename_keys`.

        Raises:
            AttributeError: a new key does not begin with a field.
        """
        fields = type(self).__expected_keys__
        paths = [_rust.unravel_key_to_tuple(key) for key in mapping.values()]
        strange = sorted({path[0] for path in paths if path} - fields)
        if strange and all(map(_rust.unravel_key_to_tuple, mapping)):
            msg = MSG_DESTINATIONS.format(strange, type(self).__name__, sorted(fields))
            raise AttributeError(msg)
        renamed = self._tensordict.rename_keys(mapping, strict=strict)
        return self._from_tensordict(renamed)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Implement torch functions for tensorclasses.

        If the method returns the instance itself because there is nothing to do, the
        function returns a new instance around the same collection.
        """
        result = super().__torch_function__(func, types, args, kwargs)
        is_same = (
            len(args) > 0 and result is args[0] and isinstance(result, MethodsOfClass)
        )
        if is_same and not (result._is_non_tensor or func.__name__.endswith("_")):
            return around(type(result), result._tensordict)
        return result

    def pack(
        self, dim: int = -1, *, layout: Any = None
    ) -> tuple[torch.Tensor, PackLayout]:
        """Return the leaves in one tensor, and the layout.

        See :meth:`TensorDict.pack`.
        """
        return super().pack(dim, layout=layout)
