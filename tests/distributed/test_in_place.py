"""``send`` and ``recv`` between two processes, of every kind of collection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed

from collections_of_ranks import COLLECTIONS, dense, state
from ranks import Raised
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict

if TYPE_CHECKING:
    from ranks import Ranks


def _transfer(rank: int, name: str, send: str, receive: str) -> Any:
    td = COLLECTIONS[name](rank + 1)
    if rank == 0:
        getattr(td, send)(dst=1)
    else:
        getattr(td, receive)(src=0)
    return state(td)


@pytest.mark.parametrize("name", COLLECTIONS)
def test_values_arrive_in_every_collection(pair: Ranks, name: str) -> None:
    sent, received = pair.all(_transfer, name, "send", "recv")
    expected = state(COLLECTIONS[name](1))
    assert sent == expected
    assert received == expected


@pytest.mark.parametrize("receive", ["recv", "irecv"])
@pytest.mark.parametrize("send", ["send", "isend"])
def test_all_pairs_of_methods_go_together(pair: Ranks, send: str, receive: str) -> None:
    _, received = pair.all(_transfer, "dense", send, receive)
    assert received == state(dense(1))


def _returned(rank: int) -> list[Any]:
    td = dense(rank)
    if rank == 0:
        return [
            td.send(1),
            td.isend(1),
            td.isend(1, init_tag=5),
            td.isend(1, pseudo_rand=True, init_tag=5),
        ]
    return [
        td.recv(0),
        td.irecv(0),
        td.recv(0, init_tag=5),
        td.recv(0, pseudo_rand=True, init_tag=5),
    ]


def test_the_last_tag_is_returned(pair: Ranks) -> None:
    assert pair.all(_returned) == [[None, 3, 8, 8], [3, None, 8, 8]]


def _both_ways(rank: int) -> tuple[Any, int]:
    mine, other = dense(rank + 1), dense(9)
    works = other.irecv(src=1 - rank, return_premature=True)
    mine.send(dst=1 - rank)
    for work in works:
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    return state(other), len(works)


def test_both_send_while_they_receive(pair: Ranks) -> None:
    first, second = pair.all(_both_ways)
    assert first == (state(dense(2)), 1)
    assert second == (state(dense(1)), 1)


def _in_order(rank: int) -> list[float]:
    tds = [TensorDict(a=torch.full((2,), float(number))) for number in range(4)]
    if rank == 0:
        works = [td.isend(dst=1, return_early=True) for td in tds]
    else:
        tds = [TensorDict(a=torch.zeros(2)) for _ in range(4)]
        works = [td.irecv(src=0, return_premature=True) for td in tds]
    for each in reversed(works):
        each[0].wait()
    return [float(td["a"].sum()) for td in tds]


def test_transfers_of_one_tag_follow_each_other(pair: Ranks) -> None:
    assert pair.all(_in_order) == [[0, 2, 4, 6]] * 2


def _by_tags(rank: int) -> list[float]:
    tds = [TensorDict(a=torch.full((2,), number + 1.0)) for number in range(2)]
    if rank == 0:
        for tag in (1, 0):
            tds[tag].send(dst=1, init_tag=tag)
    else:
        tds = [TensorDict(a=torch.zeros(2)) for _ in range(2)]
        works = [
            td.irecv(src=0, init_tag=tag, return_premature=True)
            for tag, td in enumerate(tds)
        ]
        for each in works:
            each[0].wait()
    return [float(td["a"].sum()) for td in tds]


def test_tags_tell_transfers_apart(pair: Ranks) -> None:
    assert pair.all(_by_tags) == [[2, 4]] * 2


def _whole(rank: int, method: str) -> Any:
    td = dense(rank + 1)
    if rank == 0:
        getattr(td, method)(dst=1, consolidated=True)
        return None
    td = td.consolidate()
    assert td.recv(src=0, consolidated=True) is None
    assert td.is_consolidated()
    return state(td)


@pytest.mark.parametrize("method", ["send", "isend"])
def test_the_buffer_of_a_consolidated_collection_is_sent(
    pair: Ranks, method: str
) -> None:
    assert pair.all(_whole, method)[1] == state(dense(1))


CHANGES: dict[str, Any] = {
    "nothing": lambda td: None,
    "in place": lambda td: td["b"].fill_(7),
    "replaced": lambda td: td.unlock_().set("b", torch.full_like(td["b"], 7)),
    "other data": lambda td: setattr(td["b"], "data", torch.full_like(td["b"], 7)),
    "turned": lambda td: td["square"].t_(),
    "another one added": lambda td: td.unlock_().set("z", torch.ones(3)),
}


def _whole_again(rank: int, change: str, consolidates: bool) -> Any:
    td = dense(rank + 1)
    td["square"] = torch.arange(9.0).view(3, 3) + rank
    other = td.clone().consolidate()
    td = td.consolidate() if consolidates else td
    for _ in range(2):
        if rank == 0:
            td.send(1, consolidated=True)
        else:
            other.recv(0, consolidated=True)
    if rank == 0:
        CHANGES[change](td)
        td.send(1, consolidated=True)
        return state(td)
    if change == "another one added":
        other = other.clone().unlock_().set("z", torch.zeros(3)).consolidate()
    other.recv(0, consolidated=True)
    return state(other)


@pytest.mark.parametrize("consolidates", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_since_is_sent(
    pair: Ranks, change: str, consolidates: bool
) -> None:
    sent, received = pair.all(_whole_again, change, consolidates)
    assert received == sent


def _calls(rank: int, is_consolidated: bool) -> int:
    td = dense(rank + 1)
    other = td.consolidate()
    td = other if is_consolidated else td
    described = []
    describe = TensorDict._describe

    def counted(*arguments: Any) -> Any:
        described.append(1)
        return describe(*arguments)

    TensorDict._describe = counted
    try:
        for _ in range(5):
            if rank == 0:
                td.send(1, consolidated=True)
            else:
                other.recv(0, consolidated=True)
    finally:
        TensorDict._describe = describe
    return len(described)


@pytest.mark.parametrize("is_consolidated", [True, False])
def test_a_buffer_is_described_once_and_then_sent(
    pair: Ranks, is_consolidated: bool
) -> None:
    # The two levels of the collection.
    assert max(pair.all(_calls, is_consolidated)) <= 4


def _group(rank: int) -> Any:
    group = distributed.new_group([0, 1])
    td = dense(rank + 1)
    if rank == 0:
        td.send(group=group, group_dst=1)
        td.send(dst=1, group=group)
    else:
        td.recv(group=group, group_src=0)
        td.zero_()
        td.recv(src=0, group=group)
    store = distributed.PrefixStore(
        "own", distributed.distributed_c10d._get_default_store()
    )
    own = distributed.ProcessGroupGloo(store, rank, 2)
    td = td.zero_() if rank else td
    if rank == 0:
        td.send(group=own, group_dst=1)
    else:
        td.recv(group=own, group_src=0)
    return state(td)


def test_groups_and_ranks_in_them(pair: Ranks) -> None:
    assert pair.all(_group) == [state(dense(1))] * 2


# Errors -------------------------------------------------------------------------------

DIFFERENT: dict[str, Any] = {
    "shape": (
        lambda rank: TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(2 + rank)}}),
        "('n', 'b')",
    ),
    "dtype": (
        lambda rank: TensorDict(a=torch.ones(2), b=torch.ones(2).to(DTYPES[rank])),
        "'b'",
    ),
    "missing": (
        lambda rank: TensorDict({key: torch.ones(2) for key in "abc"[: 2 + rank]}),
        "'c'",
    ),
    "members": (
        lambda rank: LazyStackedTensorDict(
            *[TensorDict(a=torch.ones(2)) for _ in range(2 + rank)]
        ),
        "('2', 'a')",
    ),
    "large": (
        lambda rank: TensorDict(a=torch.ones(400_000 + rank)),
        "'a'",
    ),
}
DTYPES = [torch.float32, torch.float64]


def _different(rank: int, name: str, whole: bool) -> Any:
    td = DIFFERENT[name][0](rank)
    if whole:
        td = td.consolidate()
    before = state(td)
    try:
        if rank == 0:
            td.send(dst=1, consolidated=whole)
        else:
            td.recv(src=0, consolidated=whole)
    finally:
        assert state(td) == before


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", DIFFERENT)
def test_structures_that_differ_are_an_error_on_both_sides(
    pair: Ranks, name: str, whole: bool
) -> None:
    if whole and name == "members":
        pytest.skip("the same by their buffers")
    answers = pair.try_all(_different, name, whole)
    for answer in answers:
        assert isinstance(answer, Raised)
        assert answer.name == "ValueError"
        assert DIFFERENT[name][1] in answer.text
        assert "differ" in answer.text
    # The group is as good as before.
    assert pair.all(_transfer, "dense", "send", "recv")[1] == state(dense(1))


def _different_in_background(rank: int) -> None:
    td = DIFFERENT["shape"][0](rank)
    if rank == 0:
        works = td.isend(dst=1, return_early=True)
    else:
        works = td.irecv(src=0, return_premature=True)
    works[0].wait()


def test_an_error_in_the_background_comes_when_it_is_waited_for(pair: Ranks) -> None:
    for answer in pair.try_all(_different_in_background):
        assert answer.name == "ValueError"
        assert "('n', 'b')" in answer.text


def _of_two_kinds(rank: int) -> None:
    td = dense(rank).consolidate()
    if rank == 0:
        td.send(dst=1, consolidated=True)
    else:
        td.recv(src=0)


def test_one_side_alone_has_consolidated(pair: Ranks) -> None:
    for answer in pair.try_all(_of_two_kinds):
        assert answer.name == "ValueError"
        assert "consolidated=True" in answer.text


def _wrong_arguments(rank: int) -> list[str]:
    td = dense(rank)
    found = []
    for arguments in (
        {},
        {"dst": 1 - rank, "group_dst": 1},
        {"group_dst": 1},
        {"dst": rank},
        {"dst": 1 - rank, "wire": "0.14"},
    ):
        try:
            td.send(**arguments)
        except ValueError as error:
            found.append(str(error))
    try:
        td.recv(1 - rank, consolidated=True)
    except AttributeError as error:
        found.append(str(error))
    return found


def test_arguments_that_do_not_go_together(pair: Ranks) -> None:
    for texts in pair.all(_wrong_arguments):
        assert len(texts) == 6
        assert texts[0].startswith("Exactly one of `dst` and `group_dst`")
        assert texts[1].startswith("`group_dst` requires `group`")
        assert "itself" in texts[3]
        assert "consolidate" in texts[5]


def _values(rank: int) -> Any:
    td = TensorDict(
        sent=NonTensorData({"from": rank, (1, 2): b"bytes"}),
        x=torch.full((1,), float(rank)),
    )
    if rank == 0:
        td["here"] = "only in rank 0"
        td.send(dst=1)
        return None
    td["there"] = "only in rank 1"
    td.recv(src=0)
    return {key: td[key] for key in ("sent", "there")} | {"keys": sorted(td.keys())}


def test_plain_values_travel(pair: Ranks) -> None:
    assert pair.all(_values)[1] == {
        "sent": {"from": 0, (1, 2): b"bytes"},
        "there": "only in rank 1",
        "keys": ["sent", "there", "x"],
    }
