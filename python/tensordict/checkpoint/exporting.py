"""The method of a checkpointer that writes steps in the formats of others."""

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
    """Writes steps for other programs. It is a base of ``Checkpointer``."""

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

        Tensors are whole, however the step is divided over ranks, and are streamed: memory
        is needed for one shard of a folder of Hugging Face, for one tensor of a directory
        of DCP. With several ranks all call it, and each writes a share. What is read is
        compared with its checksums, and the directory appears whole.

        Args:
            path: the directory, which is not there yet, or empty.
            step: the number of the step. Default: the one that was saved last.
            item: the name of an item. Names of several, for ``"dcp"``, are written each
                under its name; the state of an optimizer has the form that
                ``torch.distributed.checkpoint.state_dict.get_state_dict`` gives it.
            format: ``"huggingface"`` for safetensors files with an index, and the
                ``config.json`` of a model of ``transformers``, which ``from_pretrained``
                opens; tensors that are tied and not sharded are there once. Or ``"dcp"`` for what
                ``torch.distributed.checkpoint.load`` reads.
            max_shard_size: the most bytes of a safetensors file: a number, or a text such
                as ``"5GB"``, the default. A larger tensor has a file of its own.

        Returns:
            The directory.

        Raises:
            FileNotFoundError: there is no such step.
            FileExistsError: something is at ``path``.
            KeyError: the step has no such item.
            ValueError: the wishes do not go together, or the item has no tensors.
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
        """Wait for steps in the background, and find the step that all ranks take."""
        # The names of processes tell who has ended if one does.
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
        """Write a step that all ranks see, each a share of it."""
        number = self._agree_on_step(group, number)
        try:
            files = self._open(self._find(number))
        except Exception as found:  # noqa: BLE001 (it is raised on all ranks)
            export_step(found, target, how, group)
            return
        opened: Any
        try:
            with files.names_in_errors():
                try:
                    opened = files, read_meta(files.root)
                except Exception as found:  # noqa: BLE001 (it is raised on all ranks)
                    opened = found
                export_step(opened, target, how, group)
        finally:
            files.close()
