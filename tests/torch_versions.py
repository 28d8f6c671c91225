"""The version of torch, for the tests of what an earlier one cannot do by itself."""

import pytest
import torch

OLDER = torch.__version__ < torch.torch_version.TorchVersion("2.15")
"""True if torch is older than the one that recorded the answers of the release."""


def needs_torch(reason: str) -> pytest.MarkDecorator:
    """Skip a test where an older torch cannot do what it needs, which is said."""
    return pytest.mark.skipif(OLDER, reason=f"torch before 2.15 {reason}")
