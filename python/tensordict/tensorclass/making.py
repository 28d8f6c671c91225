"""Making instances around collections: for operations, pickles and dictionaries."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Self

from tensordict import _rust
from tensordict.primitives.checks import is_tensorclass
from tensordict.primitives.common import value_of
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.tensorclass.access import FieldAccess
from tensordict.tensorclass.casting import as_dicts
from tensordict.tensorclass.fields import post_init_arguments

__all__ = ["Making", "around"]

MSG_TWO_SIZES = "Cannot pass both batch_size and batch_dims to `from_dict`."
MSG_NO_COLLECTION = "Expected a TensorDictBase instance but got {}"
MSG_KEYS = (
    "Keys from the tensordict ({}) must correspond to the class attributes ({}). Got the "
    "set of keys {{{}}} which do not belong to the class."
)


_STAYING = (bool, int, float, complex, list)


def around(cls: Any, inner: object) -> Any:
    """Make an instance of ``cls`` around a collection whose keys are all fields."""
    instance: Any = _rust.wrap_fields(cls, inner)
    if hasattr(cls, "__post_init__") and not cls._skip_post_init_on_rebuild:
        instance.__post_init__(*_init_var_defaults(cls))
    return instance


class Making(FieldAccess):
    """Constructors of a tensorclass, besides a call of the class."""

    @classmethod
    def _from_tensordict(
        cls,
        tensordict: CollectionProtocol,
        non_tensordict: dict[str, Any] | None = None,
        safe: bool | None = True,
        *,
        rebuild: bool = True,
    ) -> Self:
        # `rebuild` and `safe` are accepted for compatibility, and ignored.
        if not tensordict._is_dense:
            cls._check_keys(tensordict)
        if non_tensordict:
            cls._check_keys(non_tensordict)
        instance = around(cls, tensordict)
        for name, value in (non_tensordict or {}).items():
            if value is not None:
                instance._set_field_entry(name, value)
        return instance

    @classmethod
    def _from_entries(
        cls,
        input_dict: Mapping[Any, Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Any = None,
        batch_dims: int | None = None,
        **options: Any,
    ) -> Any:
        size = () if batch_size is None else batch_size
        if isinstance(size, Iterable):
            is_known = batch_size is not None or not (auto_batch_size or batch_dims)
            input_dict = cls._with_values(input_dict, tuple(size) if is_known else None)
        return super()._from_entries(
            input_dict,
            auto_batch_size=auto_batch_size,
            batch_size=batch_size,
            batch_dims=batch_dims,
            **options,
        )

    @classmethod
    def _with_dicts(cls, source: object) -> Any:
        """Convert nested mappings to dictionaries, if the class is ``tensor_only``."""
        return as_dicts(source) if cls._tensor_only else source

    @classmethod
    def _with_values(cls, source: object, size: object) -> Any:
        """Wrap the numbers and lists of a mapping that annotations keep as values.

        Args:
            source: the mapping. Any other object is returned.
            size: the batch size of the collection; None if it is not known yet.
        """
        if isinstance(source, CollectionProtocol) or not isinstance(source, Mapping):
            return source
        if cls._tensor_only:
            return as_dicts(source)
        if cls._nocast:
            return source
        changed = {}
        known_size: Any = () if size is None else size
        kinds = (bool, int, float, complex) if size is None else _STAYING
        for name, value in source.items():
            if isinstance(value, kinds) and cls._stays(name, value, known_size):
                hint = cls._type_hints[name]
                if cls._autocast and isinstance(hint, type):
                    value = value if type(value) is hint else hint(value)
                changed[name] = cls._non_tensor_type(value, batch_size=known_size)
        return {**source, **changed} if changed else source

    @classmethod
    def _from_plain(cls, made: Any, source: object = None) -> Self:
        if isinstance(made, cls):
            return made
        given = source if isinstance(source, Mapping) else {}
        for key, value in list(made._entries().items()):
            # A value that was passed as non-tensor data stays, as published.
            is_passed = isinstance(given.get(key), CollectionProtocol)
            if value_of(value) is None and not is_passed:
                cls._check_keys({key: value})
                made._del_entry(key)
        return cls.from_tensordict(made)

    def from_dict_instance(
        self,
        input_dict: Any,
        *,
        auto_batch_size: bool | None = None,
        batch_size: object = None,
        device: object = None,
        batch_dims: int | None = None,
        names: object = None,
    ) -> Self:
        """Make an instance of nested dictionaries, by a call of the class.

        See :meth:`TensorDict.from_dict_instance`.

        Raises:
            AttributeError: a key is not a field.
            TypeError: a field without a default is missing.
        """
        if batch_size is not None and batch_dims is not None:
            raise ValueError(MSG_TWO_SIZES)
        values: dict[str, Any] = {}
        below: dict[str, Any] = {}
        for key, value in list(input_dict.items()):
            if isinstance(input_dict, CollectionProtocol):
                value = value_of(value)
            name, *rest = _rust.unravel_key_to_tuple(key)
            if rest:
                below.setdefault(name, {})[tuple(rest)] = value
            else:
                values[name] = self._like_present(name, value, batch_size, device)
        for name, value in below.items():
            values[name] = self._plain_type.from_dict(
                value, batch_size=batch_size, device=device
            )
        cls: Any = type(self)
        further = {} if names is None else {"names": names}
        instance: Self = cls(**values, batch_size=batch_size, device=device, **further)
        if batch_size is None and (auto_batch_size or batch_dims is not None):
            instance.auto_batch_size_(batch_dims)
        return instance

    def _like_present(
        self, name: str, value: object, batch_size: object, device: object
    ) -> Any:
        """Convert the value of a field to the class of the present value.

        A plain collection becomes a tensorclass if the field holds a tensorclass.
        """
        if not isinstance(value, Mapping) or isinstance(value, Making):
            return value
        present = self._get_entry(name, None)
        if isinstance(value, CollectionProtocol) and not isinstance(present, Making):
            return value
        if present is None:
            present = self._make_child()
        return present.from_dict_instance(value, batch_size=batch_size, device=device)

    @classmethod
    def _check_keys(cls, entries: Any) -> None:
        """Raise an error if an entry is not a field.

        For a dense collection, :func:`wrap_fields` checks the keys itself, and calls
        this method for the error.
        """
        expected = cls.__expected_keys__
        keys = {key if isinstance(key, str) else key[0] for key in entries.keys()}  # noqa: SIM118 - a method of collections
        if not keys <= expected:
            raise ValueError(MSG_KEYS.format(keys, expected, keys - expected))

    def _check_mapping(self, source: object) -> None:
        if isinstance(source, Mapping) and not isinstance(source, CollectionProtocol):
            self._check_keys(source)

    @classmethod
    def from_tensordict(
        cls,
        tensordict: CollectionProtocol,
        non_tensordict: dict[str, Any] | None = None,
        safe: bool | None = None,
    ) -> Self:
        """Make an instance around a collection, which is not copied.

        Args:
            tensordict: a collection whose keys are fields. Missing fields are None.
            non_tensordict: further fields, with values of any type.
            safe: ignored: keys are always checked.

        Raises:
            RuntimeError: ``tensordict`` is not a collection.
            ValueError: a key is not a field.

        Examples:
            >>> class Data(TensorClass):
            ...     a: torch.Tensor
            >>> Data.from_tensordict(TensorDict(a=torch.zeros(3), batch_size=[3])).a.shape
            torch.Size([3])
        """
        if not isinstance(tensordict, CollectionProtocol):
            raise RuntimeError(MSG_NO_COLLECTION.format(type(tensordict)))
        return cls._from_tensordict(_with_classes(cls, tensordict), non_tensordict)

    def _update_source(self, source: object) -> Any:
        """Convert a mapping's values for unset tensorclass fields to their classes."""
        if isinstance(source, CollectionProtocol) or not isinstance(source, Mapping):
            return source
        changed: dict[str, Any] = {}
        for name, nested in type(self)._tensorclass_fields.items():
            value = source.get(name)
            is_set = self._get_entry(name, NO_DEFAULT) is not NO_DEFAULT
            if not is_set and _fits(nested, value):
                if isinstance(value, dict):
                    value = self._make_child().update(value)
                changed[name] = nested.from_tensordict(value)
        return {**source, **changed} if changed else source

    def __getstate__(self) -> dict[str, Any]:
        """Return the collection inside, under the names that tensordict 0.15 uses."""
        return {"tensordict": self._tensordict, "non_tensordict": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state, also one of the published tensordict 0.15."""
        object.__setattr__(self, "_tensordict", state["tensordict"])
        object.__setattr__(self, "_non_tensordict", {})
        object.__setattr__(self, "_is_initialized", True)
        for name, value in (state.get("non_tensordict") or {}).items():
            if value is not None:
                self._set_field_entry(name, value)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self),), self.__getstate__()  # type: ignore[attr-defined]


def _fits(cls: Any, value: object) -> bool:
    """Return whether a plain collection or dictionary can become a tensorclass."""
    if is_tensorclass(value) or not isinstance(value, (CollectionProtocol, dict)):
        return False
    keys = value if isinstance(value, dict) else value._sample_entries()
    return cls.__expected_keys__.issuperset(keys)


def _with_classes(cls: Any, td: Any) -> Any:
    """Return ``td`` with nested collections as the tensorclasses that fields name."""
    changed: dict[str, Any] = {}
    for name, nested in cls._tensorclass_fields.items():
        value = td._get_entry(name, NO_DEFAULT)
        if _fits(nested, value):
            changed[name] = nested.from_tensordict(value)
    if not changed:
        return td
    td = td.copy()
    for name, value in changed.items():
        td._set_entry(name, value)
    return td


@functools.lru_cache(maxsize=256)
def _init_var_defaults(cls: type) -> tuple[Any, ...]:
    """Return the defaults with which a rebuilt instance calls ``__post_init__``."""
    defaults = post_init_arguments(cls).values()
    return tuple(value for value in defaults if value is not dataclasses.MISSING)
