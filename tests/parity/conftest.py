"""Settings that the release had when the answers of the programs were recorded."""

import os
from collections.abc import Iterator

import pytest
from torch.distributions import Distribution


@pytest.fixture(scope="module", autouse=True)
def a_folder_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run the programs in an empty folder: some save under any name that is given."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("programs"))
    yield
    os.chdir(before)


@pytest.fixture(autouse=True)
def distributions_validate() -> Iterator[None]:
    """Check arguments of distributions, which torch.compile ends for the process."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)
