"""Read a dataset while another process writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensordict import TensorDict

__all__ = ["DatasetReader"]

MSG_NOTHING = "{} has no rows yet: nothing was published there."


class DatasetReader:
    """The rows that a writer has published, and later those that it has published since.

    Args:
        path: the directory of the writer. It need not be there yet.

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

    def __init__(self, path: str | Path) -> None:
        self.path: Path = Path(path)
        self._data: Any = None
        self.refresh()

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
        if (self.path / "meta.json").exists():
            self._data = TensorDict.load_memmap(self.path, mode="r")
        return len(self) > before

    def __len__(self) -> int:
        """Count the rows that it sees."""
        return 0 if self._data is None else self._data.batch_size[0]

    def __getitem__(self, index: object) -> Any:
        """Return the entry at a key, or the rows at an index."""
        return self.data[index]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {len(self)} rows)"
