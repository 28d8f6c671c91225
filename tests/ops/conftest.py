"""The containers that every topic's tests run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tensordict import TensorDict


class UserTensorDict(TensorDict):
    """A user's subclass."""


@pytest.fixture(params=[TensorDict, UserTensorDict], ids=["dense", "subclass"])
def container(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a container of some kind; called as :class:`TensorDict` is."""
    return request.param
