"""What the programs find as the release had it when their answers were recorded."""

from collections.abc import Iterator

import pytest
from torch.distributions import Distribution


@pytest.fixture(autouse=True)
def distributions_validate() -> Iterator[None]:
    """Check arguments of distributions, which torch.compile ends for the process."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)
