"""Two and three processes, which all tests of a module share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator


def _ranks(world: int, factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    made = Ranks(world, factory.mktemp("group"))
    yield made
    made.close()


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two processes."""
    yield from _ranks(2, tmp_path_factory)


@pytest.fixture(scope="package")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Three processes."""
    yield from _ranks(3, tmp_path_factory)
