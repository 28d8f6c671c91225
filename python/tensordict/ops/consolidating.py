"""All leaves in one buffer: a file, shared memory, pinned memory, a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import describing
from tensordict.storage import safetensors_levels as _safetensors
from tensordict.storage import source as sources
from tensordict.storage.layouts import consolidated as _consolidated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

__all__ = ["ConsolidatingOps"]


class ConsolidatingOps(CollectionProtocol):
    """All leaves in one buffer: a file, shared memory, pinned memory, a device."""

    def consolidate(
        self,
        filename: Path | str | None = None,
        *,
        num_threads: int = 0,
        device: torch.device | None = None,
        non_blocking: bool = False,
        inplace: bool = False,
        return_early: bool = False,
        use_buffer: bool = False,
        share_memory: bool = False,
        pin_memory: bool = False,
        metadata: bool = False,
        durable: bool = False,
        checks: bool = True,
        pbar: bool = False,
    ) -> Self:
        """Copy all leaves into one buffer, and return a locked collection over it.

        It is moved to a device, sent to a process and pickled in one piece. A collection
        that is consolidated already is returned as it is, unless another ``filename``
        is asked for. Replacing or removing an entry, or unlocking, ends it.

        With ``filename`` the buffer is that file, mapped: what is stored into a leaf
        reaches it. The file is written beside and renamed: a process that is killed
        leaves the old one or the new. :meth:`from_consolidated` reads it.

        Args:
            filename: the file. Default: memory.
            num_threads: above 1, ``return_early`` is heeded; the copy is parallel anyway.
            device: where the buffer is. Default: that of the leaves, if they have one.
                Not together with ``filename``.
            non_blocking: whether copies from a device may overlap.
            inplace: whether the leaves of this tensordict are replaced, and it returned.
            return_early: with ``num_threads`` above 1, return a future at once, whose
                ``result()`` is the tensordict. The leaves must not change until then.
            use_buffer: with ``filename``, whether the leaves are in memory, and the file
                is a copy of it.
            share_memory: whether the buffer is in shared memory.
            pin_memory: whether the buffer is in pinned memory.
            metadata: taken for compatibility: the description is always made.
            durable: with ``filename``, whether the file is on the disk when this returns.
            checks: with ``filename``, whether checksums are kept in it. See
                :func:`tensordict.storage.verify`.
            pbar: with ``filename``, whether a progress bar is shown.

        Returns:
            A collection of the same structure. A jagged tensor stays one.

        Raises:
            RuntimeError: ``device`` and ``filename`` are both given; ``inplace`` on a
                locked collection; a sparse tensor; with ``filename``, a value that is no
                tensor and that JSON cannot hold.
            NotImplementedError: a nested tensor that is not jagged, or a quantized one.
            OSError: the file cannot be written.

        Examples:
            >>> td = TensorDict(a=torch.arange(3), n={"b": torch.ones(3)}, batch_size=[3])
            >>> one = td.consolidate()
            >>> one.is_consolidated(), one.is_locked
            (True, True)
            >>> a, b = one["a"], one["n", "b"]
            >>> a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
            True
            >>> import os, tempfile
            >>> path = os.path.join(tempfile.mkdtemp(), "all")
            >>> _ = td.consolidate(path)
            >>> TensorDict.from_consolidated(path)["n", "b"]
            tensor([1., 1., 1.])
        """
        options = _consolidated.Options(
            filename,
            num_threads,
            device,
            non_blocking,
            inplace,
            return_early,
            use_buffer,
            share_memory,
            pin_memory,
            durable,
            checks,
            pbar,
        )
        return _consolidated.consolidate(self, options)

    @classmethod
    def from_consolidated(cls, filename: Path | str) -> Self:
        """Load a file of :meth:`consolidate`: a collection over it, mapped once.

        Stores into its leaves stay in this process.

        Raises:
            FileNotFoundError: there is no such file.
            RuntimeError: it is damaged or was cut.
            ValueError: it is not a consolidated file.
        """
        return _consolidated.load(filename, cls)

    def is_consolidated(self) -> bool:
        """Return whether all leaves are in the one buffer of :meth:`consolidate`."""
        return _consolidated.state_of(self) is not None

    # Calls of the engine: dense collections; others override ------------------------

    def _describe(self, rows: Iterator[Any]) -> Any:
        """Describe this tensordict. See :mod:`tensordict.storage.layouts.consolidated`."""
        return describing.describe_dense(self, rows)

    def _described_child(self, name: str) -> Any:
        """The tensordict of a nested level."""
        return self._entries()[name]

    @classmethod
    def _from_description(cls, level: dict[str, Any], source: Any, path: Any) -> Any:
        """Make a collection. See :mod:`tensordict.storage.layouts.consolidated`."""
        return sources.dense_from_description(cls, level, source, path)

    def _put_leaves(self, leaves: Iterator[Any]) -> None:
        """Replace the leaves."""
        _consolidated.put_leaves(self, leaves)

    def _consolidated_home(self) -> Self:
        """The tensordict that knows of the buffer."""
        return self

    def _to_level(self, writer: Any, path: tuple[str, ...]) -> dict[str, Any]:
        """The level of this tensordict. See :mod:`tensordict.storage.safetensors_levels`."""
        return _safetensors.dense_to_level(self, writer, path)

    def _to_entry(self, writer: object, path: tuple[str, ...]) -> dict[str, Any]:
        """The entry of this tensordict in the level of another."""
        return {"td": self._to_level(writer, path)}

    @classmethod
    def _from_level(
        cls, level: dict[str, Any], reader: Any, path: Any, is_part: bool = False
    ) -> Any:
        """Make a collection. See :mod:`tensordict.storage.safetensors_levels`."""
        return _safetensors.dense_from_level(cls, level, reader, path, is_part)
