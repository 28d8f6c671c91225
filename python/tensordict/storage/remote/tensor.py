"""Tensors whose bytes are in an object of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from tensordict.storage.remote.reading import read_all
from tensordict.storage.remote.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from tensordict.storage.remote.objects import RemoteObject

__all__ = ["RemoteTensor", "check_limit", "filled"]

MSG_LIMIT: Final = (
    "{what} needs all of {urls}, {size:,} bytes, and more than {limit:,} are only read when "
    "you say so: take rows (td[rows]), read all with td.to_tensordict(), load a copy with "
    "load_memmap(..., download=True), or raise the limit with load_memmap(..., "
    "read_limit=bytes)."
)
MSG_READ_ONLY: Final = (
    "A tensor in an object store cannot be written to ({name}): take a copy with "
    "td.to_tensordict(), or write a new save."
)

READ_LIMIT: Final = 64 << 20
"""The most bytes that are read without being asked for as rows, unless a load says else."""

_Tensor: Any = torch.Tensor

_KNOWN: Final = {
    getattr(_Tensor, name).__get__
    for name in (
        "shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad",
        "grad_fn", "is_sparse", "is_sparse_csr", "is_quantized", "is_meta", "is_cpu",
        "is_cuda", "is_nested", "names", "itemsize", "nbytes", "is_mkldnn", "is_mps",
        "is_xpu", "_version", "output_nr", "retains_grad", "volatile", "name",
    )
    if hasattr(_Tensor, name) and hasattr(getattr(_Tensor, name), "__get__")
} | {
    getattr(_Tensor, name)
    for name in (
        "size", "dim", "ndimension", "numel", "nelement", "element_size", "stride",
        "storage_offset", "is_floating_point", "is_complex", "is_signed", "is_contiguous",
        "is_pinned", "is_shared", "is_neg", "is_conj", "is_inference", "get_device",
        "__len__", "__hash__", "has_names", "is_same_size", "_is_view",
    )
    if hasattr(_Tensor, name)
} | {torch.is_floating_point, torch.is_complex, torch.numel, torch.is_tensor, torch.is_nonzero}  # fmt: skip
"""The functions that ask for what is known without reading."""

_KNOWN.discard(torch.is_nonzero)


_ITSELF: Final = {_Tensor.detach, torch.detach, _Tensor.share_memory_}
"""The functions that give the same tensor: it has no gradients, nothing is written, and other
processes read the same object."""


class RemoteTensor(torch.Tensor):
    """A tensor in an object: shape and dtype are known, bytes are read when they are used.

    An index along the first dim reads those rows. Everything else reads all of it first,
    where that is not more than the limit of its load.
    """

    _object: RemoteObject
    _offset: int
    _limit: int

    @staticmethod
    def of(
        source: RemoteObject,
        offset: int,
        shape: torch.Size,
        dtype: torch.dtype,
        limit: int = READ_LIMIT,
    ) -> RemoteTensor:
        """Make the tensor of some bytes of an object, row-major and without gaps."""
        made: Any = _Tensor._make_wrapper_subclass(
            RemoteTensor, shape, dtype=dtype, device="cpu", requires_grad=False
        )
        made._object, made._offset, made._limit = source, offset, limit
        source.require(offset + made.num_bytes)
        return made

    @property
    def num_bytes(self) -> int:
        """The bytes of all its items."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.numel() * self.element_size()

    @property
    def url(self) -> str:
        """The object that it is in."""
        return self._object.place.url

    def plan(
        self, rows: np.ndarray[Any, Any], out: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Segments]:
        """Return memory for rows, ``[len(rows), *F]``, and what has to be read into it."""
        with torch._C.DisableTorchFunctionSubclass():
            shape, dtype = self.shape, self.dtype
        if out is None:
            out = torch.empty((len(rows), *shape[1:]), dtype=dtype)
        size = out[:1].numel() * out.element_size() if len(rows) else 0
        source, memory = self._object, bytes_of(out)
        return out, Segments.of_rows(source, self._offset, size, rows, memory)

    def plan_all(self) -> tuple[torch.Tensor, Segments]:
        """Return memory for all of it, and what has to be read into that."""
        with torch._C.DisableTorchFunctionSubclass():
            out = torch.empty(self.shape, dtype=self.dtype)
        one, size = np.zeros(1, np.int64), out.numel() * out.element_size()
        return out, Segments.of_rows(
            self._object, self._offset, size, one, bytes_of(out)
        )

    def plan_runs(
        self, starts: np.ndarray[Any, Any], stops: np.ndarray[Any, Any]
    ) -> tuple[torch.Tensor, Segments]:
        """Plan to read runs of the items of a flat tensor, one after the other."""
        with torch._C.DisableTorchFunctionSubclass():
            size, dtype = self.element_size(), self.dtype
        lengths = stops - starts
        out = torch.empty(int(lengths.sum()), dtype=dtype)
        places = np.cumsum(lengths) - lengths
        some = lengths > 0
        segments = Segments(
            self._object,
            self._offset + starts[some] * size,
            lengths[some] * size,
            bytes_of(out),
            places[some] * size,
        )
        return out, segments

    def flat(self) -> RemoteTensor:
        """Return all items along one dim. Nothing is read."""
        with torch._C.DisableTorchFunctionSubclass():
            size, dtype = torch.Size([self.numel()]), self.dtype
        return RemoteTensor.of(self._object, self._offset, size, dtype, self._limit)

    def read(self) -> torch.Tensor:
        """Read all of it, however large it is."""
        out, segments = self.plan_all()
        return filled(out, [segments])

    def _read_within(self, what: str) -> torch.Tensor:
        check_limit(what, [self], self._limit)
        return self.read()

    def as_subclass(self, cls: type) -> Any:
        """Return this tensor: there is no memory that another class could be over."""
        return self

    def __getitem__(self, index: Any) -> Any:
        from tensordict.storage.remote.rows import rows_of_index

        with torch._C.DisableTorchFunctionSubclass():
            shape = self.shape
        found = rows_of_index(index, shape) if shape else None
        if found is None:
            return self._read_within("This index")[index]
        out, segments = self.plan(found.rows)
        return found.taken_from(filled(out, [segments]))

    def __repr__(self, *args: object, **kwargs: object) -> str:  # type: ignore[override]
        with torch._C.DisableTorchFunctionSubclass():
            return f"RemoteTensor(shape={self.shape}, dtype={self.dtype}, url={self.url!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            shape, dtype = self.shape, self.dtype
        return RemoteTensor.of, (self._object, self._offset, shape, dtype, self._limit)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._read_within("This loop"))

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _KNOWN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if func in _ITSELF:
            return args[0]
        return _on_values(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _on_values(func, args, kwargs or {})


def _on_values(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function of torch with all that it needs read, and all of that at once."""
    name = getattr(func, "__name__", str(func))
    targets = [kwargs.get("out"), *args[:1]]
    writes = name.endswith("_") and not name.endswith("__")
    writes |= name in (
        "__setitem__",
        "__iadd__",
        "__imul__",
        "__isub__",
        "__itruediv__",
    )
    if (writes and isinstance(targets[1], RemoteTensor)) or isinstance(
        targets[0], RemoteTensor
    ):
        raise RuntimeError(MSG_READ_ONLY.format(name=name))
    found: dict[int, RemoteTensor] = {}

    def note(value: Any) -> Any:
        if isinstance(value, RemoteTensor):
            found[id(value)] = value
        return value

    _mapped(note, (args, kwargs))
    if not found:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    tensors = list(found.values())
    check_limit(f"{name.strip('_')}()", tensors, tensors[0]._limit)
    plans = {number: value.plan_all() for number, value in found.items()}
    read_all([segments for _, segments in plans.values()])

    def put(value: Any) -> Any:
        return plans[id(value)][0] if isinstance(value, RemoteTensor) else value

    args, kwargs = _mapped(put, (args, kwargs))
    return func(*args, **kwargs)


def _mapped(fn: Callable[[Any], Any], value: Any) -> Any:
    """Call a function with each value in nested lists, tuples and dicts."""
    if type(value) in (list, tuple):
        return type(value)(_mapped(fn, item) for item in value)
    if type(value) is dict:
        return {key: _mapped(fn, item) for key, item in value.items()}
    return fn(value)


def bytes_of(out: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the memory of a tensor without gaps, as flat bytes."""
    flat = out.reshape(-1).view(torch.uint8) if out.numel() else out.new_empty(0).byte()
    return flat.numpy()


def filled(made: Any, plans: list[Segments]) -> Any:
    """Read what was planned into the memory that ``made`` has."""
    read_all(plans)
    return made


def check_limit(what: str, tensors: Sequence[RemoteTensor], limit: int) -> None:
    """Refuse to read more than a limit without being asked for it.

    Args:
        what: the operation, as the subject of a sentence.
        tensors: the tensors that it needs, one at least.
        limit: the most bytes of all of them together.

    Raises:
        RuntimeError: they have more bytes.
    """
    size = sum(tensor.num_bytes for tensor in tensors)
    if size > limit:
        urls = list(dict.fromkeys(tensor.url for tensor in tensors))
        shown = urls[0] if len(urls) == 1 else f"{urls[0]} and {len(urls) - 1} others"
        message = MSG_LIMIT.format(what=what, urls=shown, size=size, limit=limit)
        raise RuntimeError(message)
