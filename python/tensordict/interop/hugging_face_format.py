"""The format ``"tensordict"`` of Hugging Face datasets."""

from __future__ import annotations

import functools
from typing import Any

from tensordict.interop.hugging_face import batch_of
from tensordict.primitives.checks import holds_values

__all__ = ["formatter", "give_rows_to_loaders"]


def formatter() -> type:
    """Make the class of the format, a subclass of ``datasets``' ``TensorFormatter``."""
    import pyarrow as pa
    from datasets.formatting.formatting import TensorFormatter

    class TensorDictFormatter(TensorFormatter):  # type: ignore[misc] # Any to mypy
        """A formatter that returns rows and batches as tensordicts, columns as tensors.

        Numbers keep their dtypes.

        Args:
            features: the features of the dataset.
            token_per_repo_id: the tokens that ``datasets`` fetches files with.
            device: the device to move all entries to.
            nulls: see :func:`tensordict.from_arrow`.
            mask_key: see :func:`tensordict.from_arrow`.
        """

        def __init__(
            self,
            features: object = None,
            token_per_repo_id: Any = None,
            device: Any = None,
            nulls: str = "raise",
            mask_key: object = None,
        ) -> None:
            super().__init__(features=features, token_per_repo_id=token_per_repo_id)
            self.device: Any = device
            self.nulls: str = nulls
            self.mask_key: Any = mask_key

        def format_batch(self, pa_table: object) -> Any:
            """Return a tensordict of batch size ``[N]``."""
            td = batch_of(
                pa_table,
                self.features,
                decode=self.python_features_decoder.decode_column,
                nulls=self.nulls,
                mask_key=self.mask_key,
            )
            return td if self.device is None else td.to(self.device)

        def format_row(self, pa_table: Any) -> Any:
            """Return a tensordict without batch dims."""
            return self.format_batch(pa_table.slice(0, 1))[0]

        def format_column(self, pa_table: Any) -> Any:
            """Return the entry of a column: a tensor, tensordict or list of objects."""
            entry = self.format_batch(pa_table)._get_entry(
                pa_table.column_names[0], None
            )
            if holds_values(entry):
                values: Any = entry
                return list(values.tolist())
            return entry

        def recursive_tensorize(self, data_struct: object) -> Any:
            """Convert a row of a streamed dataset, a dictionary, to a tensordict."""
            features = self.features
            schema = None if features is None else features.arrow_schema
            if features is not None:
                data_struct = features.encode_example(data_struct)
            return self.format_row(pa.Table.from_pylist([data_struct], schema=schema))

    return TensorDictFormatter


def give_rows_to_loaders() -> None:
    """Patch ``datasets`` so that a ``DataLoader`` can read datasets of this format.

    ``Dataset.__getitems__`` splits a formatted batch by its keys, as a dictionary. A
    tensordict is split into its rows instead.
    """
    import datasets

    original = datasets.Dataset.__getitems__

    @functools.wraps(original)
    def rows(self: Any, keys: list[int]) -> list[Any]:
        if self._format_type != "tensordict":
            return original(self, keys)
        return list(self[keys].unbind(0))

    datasets.Dataset.__getitems__ = rows
