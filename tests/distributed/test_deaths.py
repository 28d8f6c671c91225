"""A rank that dies is an error in the others."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ranks import Raised, Ranks
from tensordict import TensorDict

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 3.0
"""The timeout of the groups here, which a death does not wait for."""


def _td() -> TensorDict:
    return TensorDict(a=torch.ones(400_000), b=torch.ones(2))


def _die(rank: int, how: str) -> Any:
    if rank == 1:
        if how == "half way":
            # Its head arrives, and nothing behind it.
            from tensordict.distributed import wire
            from tensordict.distributed.channels import Channel
            from tensordict.distributed.plans import parts_of

            plan = parts_of(_td()).plan
            head = wire.Head(1, 0, plan.flat_bytes, plan.digest).to_bytes()
            channel = Channel("dst", 0)
            channel.send_bytes(head).wait()
            channel.receive_bytes(wire.HEAD_BYTES, answer=True)
        os.kill(os.getpid(), signal.SIGKILL)
    td = _td()
    if how in ("recv", "half way"):
        td.recv(src=1)
    elif how == "isend":
        td.isend(dst=1, return_early=True)[0].wait()
    elif how == "from_remote_init":
        TensorDict.from_remote_init(src=1)
    elif how == "broadcast":
        td.broadcast(src=1)
    elif how == "all_reduce":
        td.all_reduce()
    else:
        td.unsqueeze(0).gather_and_stack(dst=0)


@pytest.mark.parametrize(
    "how",
    [
        *("recv", "half way", "isend", "from_remote_init", "broadcast", "all_reduce"),
        "gather_and_stack",
    ],
)
def test_a_death_is_an_error_in_the_others(tmp_path: Path, how: str) -> None:
    ranks = Ranks(2, tmp_path, SECONDS)
    try:
        survivor, dead = ranks.try_all(_die, how)
    finally:
        ranks.close()
    assert dead is None
    assert isinstance(survivor, Raised)
    assert survivor.name in ("RuntimeError", "DistBackendError")


def _absent(rank: int) -> None:
    if rank == 0:
        _td().recv(src=1)


def test_a_partner_that_does_not_call_is_an_error_within_the_timeout(
    tmp_path: Path,
) -> None:
    ranks = Ranks(2, tmp_path, SECONDS)
    try:
        waiting, other = ranks.try_all(_absent)
    finally:
        ranks.close()
    assert other is None
    assert isinstance(waiting, Raised)
    assert "rank 1" in waiting.text
