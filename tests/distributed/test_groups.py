"""Ranks and groups that nothing can be sent to are errors in each process by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed

from collections_of_ranks import dense, state
from ranks import Raised
from tensordict import TensorDict

if TYPE_CHECKING:
    from ranks import Ranks

TRANSFERS: dict[str, Any] = {
    "send": lambda td, rank, group: td.send(rank, group=group),
    "send in 0.15": lambda td, rank, group: td.send(rank, group=group, wire="0.15"),
    "recv": lambda td, rank, group: td.recv(rank, group=group),
    "recv in 0.15": lambda td, rank, group: td.recv(rank, group=group, wire="0.15"),
    "isend": lambda td, rank, group: td.isend(rank, group=group, return_early=True),
    "irecv": lambda td, rank, group: td.irecv(rank, group=group, return_premature=True),
    "init_remote": lambda td, rank, group: td.init_remote(rank, group),
    "init_remote in 0.15": lambda td, rank, group: td.init_remote(
        rank, group, wire="0.15"
    ),
    "from_remote_init": lambda td, rank, group: TensorDict.from_remote_init(
        rank, group
    ),
    "from_remote_init in 0.15": lambda td, rank, group: TensorDict.from_remote_init(
        rank, group, wire="0.15"
    ),
}
"""Calls with another process."""

ROOTED: dict[str, Any] = {
    "broadcast": lambda td, rank, group: td.broadcast(rank, group=group),
    "scatter": lambda td, rank, group: td.scatter(rank, [td, td], group=group),
    "gather_and_stack": lambda td, rank, group: td.gather_and_stack(rank, group),
    "reduce": lambda td, rank, group: td.reduce(rank, group=group),
    "reduce later": lambda td, rank, group: td.reduce(
        rank, group=group, async_op=True, return_premature=True
    ),
    "from_remote_init": lambda td, rank, group: TensorDict.from_remote_init(
        rank, group, use_broadcast=True
    ),
    "from_remote_init in 0.15": lambda td, rank, group: TensorDict.from_remote_init(
        rank, group, use_broadcast=True, wire="0.15"
    ),
}
"""Calls of all processes with a root."""

ALL: dict[str, Any] = {
    "all_reduce": lambda td, rank, group: td.all_reduce(group=group),
    "all_gather": lambda td, rank, group: td.all_gather(group=group),
    "init_remote": lambda td, rank, group: td.init_remote(
        group=group, use_broadcast=True
    ),
    "init_remote in 0.15": lambda td, rank, group: td.init_remote(
        group=group, use_broadcast=True, wire="0.15"
    ),
}
"""Calls of all processes."""

KINDS = {"a transfer": TRANSFERS, "a root": ROOTED, "all": ALL}


def _errors(calls: dict[str, Any], rank: Any, group: Any = None) -> dict[str, str]:
    """Make each call: the text of its error, behind the name of its class."""
    found = {}
    for name, call in calls.items():
        td = dense(1)
        try:
            call(td, rank, group)
        except (TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = "nothing"
        assert state(td) == state(dense(1))
    return found


def _with_rank(_: int, kinds: list[str], rank: Any) -> list[dict[str, str]]:
    return [_errors(KINDS[kind], rank) for kind in kinds]


@pytest.mark.parametrize("rank", [7, 2, -1])
def test_a_rank_that_is_not_in_the_group(pair: Ranks, rank: int) -> None:
    for found in pair.all(_with_rank, ["a transfer", "a root"], rank):
        for texts in found:
            for name, text in texts.items():
                assert f"={rank} is not in the group: its size is 2" in text, name
                assert text.startswith("ValueError"), name


@pytest.mark.parametrize("rank", ["1", 1.0])
def test_a_rank_that_is_no_number(pair: Ranks, rank: Any) -> None:
    for found in pair.all(_with_rank, ["a transfer", "a root"], rank):
        for texts in found:
            for name, text in texts.items():
                assert text.startswith("TypeError"), name
                assert repr(rank) in text, name


def _own(rank: int) -> dict[str, str]:
    return _errors(TRANSFERS, rank)


def test_the_own_rank(pair: Ranks) -> None:
    for rank, texts in enumerate(pair.all(_own)):
        for name, text in texts.items():
            assert f"itself: rank {rank} is this process" in text, name
            assert "size 2" in text, name


def _in_a_group(_: int) -> list[str]:
    found = []
    for name in ("send", "recv", "isend", "irecv"):
        side = "dst" if name.endswith("send") else "src"
        for rank in (2, -1, "0"):
            options = {"group": distributed.group.WORLD, f"group_{side}": rank}
            with pytest.raises((TypeError, ValueError), match=f"group_{side}") as error:
                getattr(dense(0), name)(**options)
            found.append(str(error.value))
    return found


def test_a_rank_in_a_group_that_it_does_not_have(pair: Ranks) -> None:
    for texts in pair.all(_in_a_group):
        assert len(texts) == 12
        assert sum("its size is 2" in text for text in texts) == 8


def _of_some(rank: int) -> Any:
    group = distributed.new_group([0, 2])
    outside = 1 if rank != 1 else 0
    if rank == 1:
        return [_errors(calls, outside, group) for calls in KINDS.values()]
    found = [_errors(calls, outside, group) for calls in (TRANSFERS, ROOTED)]
    # The group is as good as before.
    td = TensorDict(a=torch.ones(1))
    td.all_reduce(group=group)
    return found, float(td["a"])


def test_a_group_without_one_of_the_processes(three: Ranks) -> None:
    first, outside, last = three.all(_of_some)
    for texts, total in (first, last):
        assert total == 2
        for kind in texts:
            for name, text in kind.items():
                assert "=1 is not in the group: its size is 2" in text, name
                assert "0, 2" in text, name
    for kind in outside:
        for name, text in kind.items():
            assert "This process, rank 1 of 3, is not in the group" in text, name


def _destroyed(rank: int) -> list[dict[str, str]]:
    group = distributed.new_group([0, 1])
    distributed.destroy_process_group(group)
    found = [_errors(calls, 1 - rank, group) for calls in KINDS.values()]
    return [*found, _errors(IN_GROUP, 1 - rank, group)]


IN_GROUP = {
    "send": lambda td, rank, group: td.send(group=group, group_dst=rank),
    "recv": lambda td, rank, group: td.recv(group=group, group_src=rank),
}


def test_a_group_that_was_destroyed(pair: Ranks) -> None:
    for rank, found in enumerate(pair.all(_destroyed)):
        for texts in found:
            for name, text in texts.items():
                assert "was destroyed" in text, name
                assert f"rank {rank} of 2" in text, name


def test_without_a_group() -> None:
    assert not distributed.is_initialized()
    for kind, calls in KINDS.items():
        for name, text in _errors(calls, 1).items():
            assert "Default process group has not been initialized" in text, name
            assert kind == "all" or "=1 was asked for, in a group of size 0" in text


def test_something_else_in_the_place_of_a_group() -> None:
    for calls in KINDS.values():
        for name, text in _errors(calls, 1, "workers").items():
            assert text.startswith("TypeError"), name
            assert "'workers'" in text, name


# Errors of one process that others learn of ---------------------------------------------


def _refused(rank: int, how: str, later: bool) -> None:
    own = {"value": (lambda: 1) if rank == 0 else "text"}.get(how, torch.eye(2))
    td = TensorDict(x=torch.ones(1), n={"f": own})
    if rank == (1 if how == "received leaf" else 0) and how != "value":
        td["n", "f"] = torch.eye(2).to_sparse()
    if later:
        works = (
            td.isend(1, return_early=True)
            if rank == 0
            else td.irecv(0, return_premature=True)
        )
        works[0].wait()
    elif rank == 0:
        td.send(1)
    else:
        td.recv(0)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("how", ["value", "leaf", "received leaf"])
def test_what_one_side_cannot_transfer_is_an_error_on_both(
    pair: Ranks, how: str, later: bool
) -> None:
    answers = pair.try_all(_refused, how, later)
    here, there = answers if how != "received leaf" else reversed(answers)
    assert isinstance(here, Raised)
    assert here.name == "TypeError"
    assert "('n', 'f')" in here.text
    assert isinstance(there, Raised)
    assert there.name == "WireError"
    assert here.text in there.text
    # The group is as good as before.
    assert pair.all(_sent) == [state(dense(1))] * 2


def _sent(rank: int) -> Any:
    td = dense(rank + 1)
    if rank == 0:
        td.send(1)
    else:
        td.recv(0)
    return state(td)


def _lambdas(rank: int) -> None:
    td = TensorDict(f=lambda: 1)
    if rank == 0:
        td.send(1)
    else:
        td.recv(0)


def test_a_value_that_could_only_be_pickled_is_refused(pair: Ranks) -> None:
    for answer in pair.try_all(_lambdas):
        assert isinstance(answer, Raised)
        assert "Cannot send the entry 'f': it holds a function" in answer.text


def _reduced(rank: int) -> None:
    leaf = torch.eye(2)
    TensorDict(a=leaf.to_sparse() if rank == 2 else leaf).all_reduce()


def test_a_leaf_that_one_cannot_reduce_is_an_error_in_all(three: Ranks) -> None:
    answers = three.try_all(_reduced)
    assert [answer.name for answer in answers] == [
        "WireError",
        "WireError",
        "TypeError",
    ]
    assert all("'a'" in answer.text for answer in answers)
    assert all("Rank 2" in answer.text for answer in answers[:2])


ROWS: dict[str, Any] = {
    "3 rows": lambda: torch.stack([dense(9)] * 3),
    "1 rows": lambda: torch.stack([dense(9)]),
    "no batch size": lambda: TensorDict(a=torch.zeros(3)),
}


def _other_rows(rank: int, found: str) -> None:
    td = ROWS[found]() if rank == 1 else dense(rank)
    td.gather_and_stack(dst=1)


@pytest.mark.parametrize("found", ROWS)
def test_gather_into_another_number_of_rows(three: Ranks, found: str) -> None:
    for answer in three.try_all(_other_rows, found):
        assert isinstance(answer, Raised)
        assert "world size - 1 rows, which is 2" in answer.text
        assert f"got {found}" in answer.text
