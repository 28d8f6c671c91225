"""One partner in a process group: messages there and back, and work in the background."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed

from tensordict.distributed.groups import partner_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Channel", "Transfer", "device_of", "in_order"]

ANSWER = 1 << 30
"""The number added to the tag of a message against the direction of a transfer."""

PSEUDO_RANDOM = 1 << 29
"""The number added to tags that are said to be random."""

MSG_FAILED = "The {what} with rank {rank} failed: {error}"


class Channel:
    """A partner in a process group.

    Args:
        name: ``"dst"`` or ``"src"``, as messages call the partner.
        rank: the global rank of the partner.
        group: the process group. Default: that of all processes.
        group_rank: its rank in ``group``, which may be one that nobody has registered.
        tag: the tag of the transfer.

    Raises:
        TypeError: as :func:`tensordict.distributed.groups.partner_of`.
        ValueError: so, too.
    """

    def __init__(
        self,
        name: str,
        rank: int | None,
        group: Any = None,
        group_rank: int | None = None,
        tag: int = 0,
    ) -> None:
        found = partner_of(name, rank, group, group_rank)
        self.group: Any = found.group
        self.rank: int = found.rank
        self.shown: int = found.shown
        self.tag: int = tag
        self.device: torch.device = device_of(self.group)
        # On such a wire a message may be shorter than what is waited for, and both
        # directions are independent.
        self.is_gloo: bool = _backend_of(self.group) == "gloo"

    def send(self, tensor: torch.Tensor, *, answer: bool = False) -> Any:
        """Begin to send: what is to be waited for."""
        tag = self.tag + ANSWER if answer else self.tag
        return self.group.send([tensor], self.rank, tag)

    def receive(self, tensor: torch.Tensor, *, answer: bool = False) -> Any:
        """Begin to receive: what is to be waited for."""
        tag = self.tag + ANSWER if answer else self.tag
        return self.group.recv([tensor], self.rank, tag)

    def send_bytes(self, content: bytes, *, answer: bool = False) -> Any:
        """Begin to send bytes."""
        return self.send(self.tensor_of(content), answer=answer)

    def receive_bytes(self, length: int, *, answer: bool = False) -> bytes:
        """Receive so many bytes."""
        if not length:
            return b""
        target = self.empty(length)
        self.receive(target, answer=answer).wait()
        return target.cpu().numpy().tobytes()

    def tensor_of(self, content: bytes) -> torch.Tensor:
        """Make a tensor of bytes, where the backend takes it."""
        made = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return made.to(self.device)

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Make a tensor to receive bytes."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    @contextmanager
    def naming(self, what: str) -> Iterator[None]:
        """Let an error of torch say what failed, and with whom."""
        try:
            yield
        except RuntimeError as error:
            if type(error) not in (RuntimeError, distributed.DistBackendError):
                raise
            text = MSG_FAILED.format(what=what, rank=self.shown, error=error)
            raise type(error)(text) from error

    def key(self, direction: str) -> tuple[Any, ...]:
        """Give what transfers have in common that are to follow one another."""
        return id(self.group), self.rank, self.tag, direction


def device_of(group: Any) -> torch.device:
    """Find where tensors have to be for a group: on the CPU, if it takes them there."""
    types = getattr(group, "_device_types", None)
    if types is None:
        is_on_cpu = group.name() in ("gloo", "mpi")
    else:
        is_on_cpu = torch.device("cpu") in types
    if is_on_cpu:
        return torch.device("cpu")
    return cast("torch.device", torch.accelerator.current_accelerator())


def _backend_of(group: Any) -> str:
    """Name what takes tensors on the CPU; empty where nothing does."""
    try:
        backend = group._get_backend(torch.device("cpu"))
    except AttributeError:
        backend = group
    except RuntimeError:
        return ""
    return str(backend.name())


# In the background ----------------------------------------------------------------------


class Transfer:
    """A transfer in the background: what is waited for, as ``Work`` of torch.

    Args:
        work: what is done.
        after: the transfer that has to be over before.
    """

    def __init__(self, work: Callable[[], Any], after: Transfer | None) -> None:
        self._error: BaseException | None = None
        self._result: Any = None
        self._done = threading.Event()
        self._work = work
        self._after = after

    def start(self) -> None:
        """Begin, in a thread of its own."""
        threading.Thread(
            target=self.run, name="tensordict-transfer", daemon=True
        ).start()

    def run(self) -> None:
        """Do the work."""
        try:
            if self._after is not None:
                self._after._done.wait()
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 (who waits gets it)
            self._error = error
        finally:
            # The leaves that were sent need not live longer.
            del self._work, self._after
            self._done.set()

    def wait(self, timeout: Any = None) -> bool:
        """Wait until it is over.

        Args:
            timeout: at most so long, a ``timedelta``. The group has a timeout, too.

        Raises:
            RuntimeError: it failed.
            TimeoutError: it was not over in time.
        """
        seconds = None if timeout is None else timeout.total_seconds()
        if not self._done.wait(seconds or None):
            raise TimeoutError(f"The transfer was not over after {seconds} seconds.")
        if self._error is not None:
            raise self._error
        return True

    def result(self) -> Any:
        """Wait, and give what the work returned."""
        self.wait()
        return self._result

    def is_completed(self) -> bool:
        """Tell whether it is over, well or not."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Tell whether it is over and went well."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """The reason why it failed; None if it did not."""
        return self._error if self._done.is_set() else None


_LAST: dict[tuple[Any, ...], Transfer] = {}
_LOCK = threading.Lock()


def in_order(key: tuple[Any, ...], work: Callable[[], Any], *, later: bool) -> Any:
    """Do work after all that was begun under the same key.

    Args:
        key: what messages have in common that could be taken for one another.
        work: what is done.
        later: whether in the background.

    Returns:
        What it returned, or with ``later`` the transfer.
    """
    with _LOCK:
        for known in [known for known, each in _LAST.items() if each.is_completed()]:
            del _LAST[known]
        after = _LAST.get(key)
        if not later and after is None:
            transfer = None
        else:
            transfer = _LAST[key] = Transfer(work, after)
    if transfer is None:
        return work()
    if later:
        transfer.start()
        return transfer
    transfer.run()
    return transfer.result()
