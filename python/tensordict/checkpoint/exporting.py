"""The method :meth:`Checkpointer.export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tensordict.checkpoint.export import Export, export_step
from tensordict.checkpoint.steps import read_meta
from tensordict.storage.locations import local

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.reading import StepFiles
    from tensordict.checkpoint.steps import Step, Steps

__all__ = ["Exporting"]


class Exporting:
    """The base class of ``Checkpointer`` with its export to other formats."""

    directory: Path
    num_threads: int
    durable: bool
    _steps: Steps
    _read: Callable[..., Any]
    _durable_steps: Callable[[], list[Step]]
    _find: Callable[[int | None], Step]
    _open: Callable[..., StepFiles]
    wait: Callable[[], None]
    _ranks: Callable[[], Ranks | None]

    def export(
        self,
        path: str | Path,
        step: int | None = None,
        item: str | Sequence[str] = "model",
        format: Literal["huggingface", "dcp"] = "huggingface",
        max_shard_size: int | str | None = None,
    ) -> Path:
        """Write items of a step as a directory that other programs read.

        Tensors are written undivided, even if ranks saved them in parts. They are
        streamed: a Hugging Face folder needs memory for one shard, a DCP directory for
        one tensor. If there are several ranks, all of them call this, and each writes a
        part. All bytes read are compared with their checksums. The directory appears
        atomically.

        Args:
            path: the directory, which must not exist, or be empty.
            step: the number of the step. Default: the step that was saved last.
            item: the name of an item. ``"dcp"`` also takes several names, and writes
                each item under its name. The state of an optimizer has the form of
                ``torch.distributed.checkpoint.state_dict.get_state_dict``.
            format: ``"huggingface"`` writes safetensors files with an index, and the
                ``config.json`` of a ``transformers`` model, for ``from_pretrained``.
                Tied tensors are written once, unless they are sharded. ``"dcp"`` writes
                a directory for ``torch.distributed.checkpoint.load``.
            max_shard_size: the most bytes of a safetensors file: a number, or a string
                such as ``"5GB"``, the default. A larger tensor gets its own file.

        Returns:
            The directory.

        Raises:
            FileNotFoundError: there is no such step.
            FileExistsError: ``path`` exists and is not empty.
            KeyError: the step has no such item.
            ValueError: the arguments cannot be combined, or the item contains no
                tensors.
            RuntimeError: a file is damaged.

        Examples:
            >>> import os, tempfile
            >>> from tensordict.checkpoint import Checkpointer
            >>> folder = tempfile.mkdtemp()
            >>> checkpointer = Checkpointer(folder)
            >>> _ = checkpointer.save(1, model=torch.nn.Linear(2, 1))
            >>> out = checkpointer.export(os.path.join(folder, "out"))
            >>> sorted(os.listdir(out))
            ['model.safetensors', 'model.safetensors.index.json']
        """
        how = Export(
            item, format, max_shard_size, self.num_threads, self.durable
        ).checked()
        target = Path(local(path)).absolute()
        group = self._ranks()
        if group is None:
            self._read(step, lambda *opened: export_step(opened, target, how))
        else:
            self._export_together(group, step, target, how)
        return target

    def _agree_on_step(self, group: Ranks, number: int | None) -> int | None:
        """Wait for background saves, and return the step that all ranks take."""
        # With the names of processes, ranks notice if one of them has ended.
        group.introduce(None, "restore or export")
        error: Exception | None = None
        there: list[Step] = []
        try:
            self.wait()
            there = self._durable_steps()
        except (OSError, RuntimeError) as found:
            error = found
        group.raise_together(error, "could not save")
        return group.agree_on_step(there, number, self.directory)

    def _export_together(
        self, group: Ranks, number: int | None, target: Path, how: Export
    ) -> None:
        """Write a step that all ranks see; each rank writes a part."""
        number = self._agree_on_step(group, number)
        try:
            files = self._open(self._find(number))
        except Exception as found:  # noqa: BLE001 (all ranks raise it)
            export_step(found, target, how, group)
            return
        opened: Any
        try:
            with files.names_in_errors():
                try:
                    opened = files, read_meta(files.root)
                except Exception as found:  # noqa: BLE001 (all ranks raise it)
                    opened = found
                export_step(opened, target, how, group)
        finally:
            files.close()
