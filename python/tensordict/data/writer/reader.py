"""Read a dataset while another process writes it."""

from __future__ import annotations

import difflib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensordict import TensorDict
from tensordict.data.writer.remote_parts import RemoteDataset, is_at_url
from tensordict.storage.growing.class_names import read_class_names
from tensordict.storage.growing.lock import LOCK_FILE
from tensordict.storage.locations import local

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import datasets

__all__ = ["DatasetReader"]

MSG_NOTHING = "{} has no rows yet: nothing was published there."
MSG_NO_DATASET = "{} has no dataset: {}. With wait=True a reader waits for a writer to publish rows there."
MSG_LATE = "{} has no rows after {} s: no writer published any there."


class _Folder:
    """A dataset on this machine."""

    poll_s = 0.05
    """A reader that waits looks so often."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Any:
        """Return the rows that are published; None where there are none."""
        if not (self.path / "meta.json").exists():
            return None
        return TensorDict.load_memmap(self.path, mode="r")

    def class_names(self) -> dict[Any, list[str]]:
        """Return the names of classes, by the keys of entries."""
        return read_class_names(self.path)

    def why_no_dataset(self) -> str | None:
        """Say why this is no path of a dataset, such as a misspelt one; None if it is."""
        path = self.path
        if (path / LOCK_FILE).exists():
            return None
        if path.exists():
            is_file = path.is_file()
            return "there is a file" if is_file else "there is nothing of one in it"
        near = difflib.get_close_matches(path.name, _siblings(path), 1)
        why = "there is no such directory"
        return why + (f", but one named {near[0]!r}" if near else "")


class DatasetReader:
    """The rows that a writer has published, and later those that it has published since.

    Args:
        path: the directory of a dataset, or of a writer that has it open; or its URL.
        wait: whether to wait until rows are published there; a number for so many
            seconds at most. The directory need not be there then.
        storage_options: the options of the object store of a URL, as for
            :meth:`TensorDict.load_memmap`.

    Raises:
        FileNotFoundError: there is neither a dataset nor a writer.
        TimeoutError: no rows came in time.

    Examples:
        >>> import tempfile
        >>> from tensordict.data import DatasetReader, DatasetWriter
        >>> path = tempfile.mkdtemp()
        >>> writer, reader = DatasetWriter(path), DatasetReader(path)
        >>> writer.append({"a": torch.zeros(2)})
        >>> reader.refresh(), len(reader)
        (False, 0)
        >>> writer.flush()
        >>> reader.refresh(), len(reader)
        (True, 1)
        >>> writer.close()
    """

    def __init__(
        self,
        path: str | Path,
        *,
        wait: bool | float = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.path: Path | str
        self._files: _Folder | RemoteDataset
        if is_at_url(path):
            self._files = RemoteDataset(path, storage_options)
            self.path = self._files.place.url
        else:
            self.path = Path(local(path))
            self._files = _Folder(self.path)
        self._data: Any = None
        self.refresh()
        if self._data is None:
            if wait is False:
                why = self._files.why_no_dataset()
                if why is not None:
                    message = MSG_NO_DATASET.format(self.path, why)
                    raise FileNotFoundError(2, message, str(self.path))
            else:
                self._wait(None if wait is True else float(wait))

    def _wait(self, seconds: float | None) -> None:
        began = time.monotonic()
        while not self.refresh() and self._data is None:
            if seconds is not None and time.monotonic() - began > seconds:
                raise TimeoutError(MSG_LATE.format(self.path, seconds))
            time.sleep(self._files.poll_s)

    @property
    def data(self) -> Any:
        """The rows, as a collection over the files. It stays as it is: see :meth:`refresh`.

        Raises:
            FileNotFoundError: nothing was published yet.
        """
        if self._data is None:
            raise FileNotFoundError(2, MSG_NOTHING.format(self.path), str(self.path))
        return self._data

    def refresh(self) -> bool:
        """Look for rows that were published since, and say whether there are any.

        Data that was read before stays valid: files only grow.
        """
        before = len(self)
        found = self._files.load()
        if found is not None:
            self._data = found
        return len(self) > before

    def __len__(self) -> int:
        """Count the rows that it sees."""
        return 0 if self._data is None else self._data.batch_size[0]

    @property
    def class_names(self) -> dict[Any, list[str]]:
        """By key the names of the classes that the numbers of an entry stand for."""
        return {} if self._data is None else self._files.class_names()

    def to_hf(self) -> datasets.Dataset:
        """Make a dataset of Hugging Face's ``datasets``, with a ``ClassLabel`` for names.

        See :func:`tensordict.to_hf`.
        """
        from tensordict import to_hf

        return _with_classes(to_hf(self.data), self.class_names)

    def __getitem__(self, index: object) -> Any:
        """Return the entry at a key, or the rows at an index."""
        return self.data[index]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {len(self)} rows)"


def _siblings(path: Path) -> list[str]:
    """The names of the datasets beside a path."""
    if not path.parent.is_dir():
        return []
    return [found.parent.name for found in path.parent.glob("*/meta.json")]


def _with_classes(
    dataset: datasets.Dataset, class_names: Mapping[Any, Sequence[str]]
) -> datasets.Dataset:
    """Make columns of numbers a ``ClassLabel`` each, by the keys of their entries."""
    import datasets as package

    features: Any = dataset.features.copy()
    for key, names in class_names.items():
        *above, last = (key,) if isinstance(key, str) else key
        parent = features
        for name in above:
            parent = parent[name]
        label: Any = package.ClassLabel(names=list(names))
        if not isinstance(parent[last], package.Value):
            label = package.Sequence(label)
        parent[last] = label
    return dataset.cast(features) if class_names else dataset
