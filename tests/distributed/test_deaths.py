"""A rank that dies is an error in the others."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed

from ranks import Raised, Ranks
from tensordict import TensorDict

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 10.0
"""The timeout of the groups here, which a death does not wait for."""

CALLS = {
    "recv": lambda td, rank, _: td.recv(src=rank),
    "half way": lambda td, rank, _: td.recv(src=rank),
    "isend": lambda td, rank, _: td.isend(dst=rank, return_early=True)[0].wait(),
    "from_remote_init": lambda _, rank, __: TensorDict.from_remote_init(src=rank),
    "broadcast": lambda td, rank, group: td.broadcast(src=rank, group=group),
    "all_reduce": lambda td, _, group: td.all_reduce(group=group),
    "gather_and_stack": lambda td, _, group: td.unsqueeze(0).gather_and_stack(
        dst=0, group=group
    ),
}
"""Calls of rank 0 with one that is dead, and with the group of both."""


def _td() -> TensorDict:
    return TensorDict(a=torch.ones(400_000), b=torch.ones(2))


def _begin_to_send() -> None:
    """Send a head, which arrives, and nothing behind it."""
    from tensordict.distributed import wire
    from tensordict.distributed.channels import Channel
    from tensordict.distributed.plans import parts_of

    plan = parts_of(_td()).plan
    head = wire.Head(1, 0, plan.flat_bytes, plan.digest).to_bytes()
    channel = Channel("dst", 0)
    channel.send_bytes(head).wait()
    channel.receive_bytes(wire.HEAD_BYTES, answer=True)


def _die(rank: int) -> dict[str, tuple[str, str]] | None:
    timeout = timedelta(seconds=SECONDS)
    partners = dict(enumerate(CALLS, 1))
    groups = {
        partner: distributed.new_group([0, partner], timeout=timeout)
        for partner in partners
    }
    if rank:
        if partners[rank] == "half way":
            _begin_to_send()
        os.kill(os.getpid(), signal.SIGKILL)
    found = {}
    for partner, how in partners.items():
        try:
            CALLS[how](_td(), partner, groups[partner])
        except RuntimeError as error:
            found[how] = type(error).__name__, str(error)
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """Return what the ranks of a group found, of which all but the first die."""
    world = len(CALLS) + 1
    ranks = Ranks(world, tmp_path_factory.mktemp("group"), 6 * SECONDS)
    try:
        yield ranks.try_all(_die)
    finally:
        ranks.close()


@pytest.mark.parametrize("how", CALLS)
def test_a_death_is_an_error_in_the_others(answers: list[Any], how: str) -> None:
    survivor, *dead = answers
    assert dead == [None] * len(CALLS)
    assert not isinstance(survivor, Raised), survivor
    assert survivor[how][0] in ("RuntimeError", "DistBackendError")


def _absent(rank: int) -> None:
    if rank == 0:
        _td().recv(src=1)


def test_a_partner_that_does_not_call_is_an_error_within_the_timeout(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    ranks = Ranks(2, tmp_path_factory.mktemp("group"), 3.0)
    try:
        waiting, other = ranks.try_all(_absent)
    finally:
        ranks.close()
    assert other is None
    assert isinstance(waiting, Raised)
    assert "rank 1" in waiting.text
