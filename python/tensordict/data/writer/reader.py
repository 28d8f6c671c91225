"""Read a dataset while another process writes it."""

from __future__ import annotations

import difflib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tensordict import TensorDict
from tensordict.data.writer.remote_parts import RemoteDataset, is_at_url
from tensordict.storage.growing.class_names import read_class_names
from tensordict.storage.growing.lock import LOCK_FILE
from tensordict.storage.locations import local
from tensordict.storage.remote.copied import followed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import datasets

__all__ = ["DatasetReader"]

MSG_NOTHING = "{} has no rows yet: no writer has published any there."
MSG_NO_DATASET = "There is no dataset at {}: {}. To wait for a writer, pass wait=True."
MSG_LATE = "{} has no rows after {} s: no writer has published any there."


class _Folder:
    """A dataset on this machine."""

    poll_s = 0.05
    """The seconds between two looks of a waiting reader."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> TensorDict | None:
        """Return the published rows; None if there are none."""
        if not (self.path / "meta.json").exists():
            return None
        return TensorDict.load_memmap(self.path, mode="r")

    def class_names(self) -> dict[Any, list[str]]:
        """Return the class names by the keys of entries."""
        return read_class_names(self.path)

    def why_no_dataset(self) -> str | None:
        """Return why there is no dataset at the path; None if a writer is at work there."""
        path = self.path
        if (path / LOCK_FILE).exists():
            return None
        if path.exists():
            is_file = path.is_file()
            return "it is a file" if is_file else "the directory contains no dataset"
        near = difflib.get_close_matches(path.name, _siblings(path), 1)
        why = "there is no such directory"
        return why + (f", but one named {near[0]!r}" if near else "")


class DatasetReader:
    """A reader of the rows that a writer has published; :meth:`refresh` finds new ones.

    Args:
        path: the directory or URL of a dataset, possibly still open in a writer.
        wait: whether to wait until rows are published; a number limits the wait in
            seconds. The directory may be missing then.
        storage_options: the options of the object store of a URL, as for
            :meth:`TensorDict.load_memmap`.

    Raises:
        FileNotFoundError: there is no dataset, and no writer is at work there.
        TimeoutError: no rows were published in time.

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
        if not is_at_url(path):
            path = cast("Any", followed(local(path)) or path)
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
        """The rows as a memory-mapped tensordict, as of the last :meth:`refresh`.

        Raises:
            FileNotFoundError: no rows were published yet.
        """
        if self._data is None:
            raise FileNotFoundError(2, MSG_NOTHING.format(self.path), str(self.path))
        return self._data

    def refresh(self) -> bool:
        """Look for newly published rows; return whether there are any.

        Tensordicts that were read before stay valid: files only grow.
        """
        before = len(self)
        found = self._files.load()
        if found is not None:
            self._data = found
        return len(self) > before

    def __len__(self) -> int:
        """Return the number of rows that this reader sees."""
        return 0 if self._data is None else self._data.batch_size[0]

    @property
    def class_names(self) -> dict[Any, list[str]]:
        """The names of the classes to which the numbers of an entry refer, by key."""
        return {} if self._data is None else self._files.class_names()

    def to_hf(self) -> datasets.Dataset:
        """Convert to a Hugging Face dataset; entries with class names become ``ClassLabel``.

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
    """Return the names of the datasets next to a path."""
    if not path.parent.is_dir():
        return []
    return [found.parent.name for found in path.parent.glob("*/meta.json")]


def _with_classes(
    dataset: datasets.Dataset, class_names: Mapping[Any, Sequence[str]]
) -> datasets.Dataset:
    """Convert columns to ``ClassLabel``, by the keys of their entries."""
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
