"""A channel to one rank of a process group, and transfers in the background."""

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
"""The number added to the tag of a transfer with ``pseudo_rand=True``."""

MSG_FAILED = "The {what} with rank {rank} failed: {error}"


class Channel:
    """A channel to one rank of a process group.

    Args:
        name: ``"dst"`` or ``"src"``: the argument's name in error messages.
        rank: the global rank of the partner.
        group: the process group. The default is the group of all processes.
        group_rank: the partner's rank in ``group``, instead of ``rank``. The group may be
            unknown to ``torch.distributed`` then.
        tag: the tag of the transfer.

    Raises:
        TypeError: see :func:`tensordict.distributed.groups.partner_of`.
        ValueError: see :func:`tensordict.distributed.groups.partner_of`.
    """

    def __init__(
        self,
        name: str,
        rank: int | None,
        group: Any = None,
        group_rank: int | None = None,
        tag: int = 0,
    ) -> None:
        partner = partner_of(name, rank, group, group_rank)
        self.group: Any = partner.group
        self.rank: int = partner.rank
        self.shown: int = partner.shown
        self.tag: int = tag
        self.device: torch.device = device_of(self.group)
        # With gloo, a message may be shorter than the tensor that receives it, and a send
        # does not wait for a receive in the other direction.
        self.is_gloo: bool = _backend_of(self.group) == "gloo"

    def send(self, tensor: torch.Tensor, *, answer: bool = False) -> Any:
        """Begin to send a tensor; return torch's ``Work``."""
        tag = self.tag + ANSWER if answer else self.tag
        return self.group.send([tensor], self.rank, tag)

    def receive(self, tensor: torch.Tensor, *, answer: bool = False) -> Any:
        """Begin to receive a tensor; return torch's ``Work``."""
        tag = self.tag + ANSWER if answer else self.tag
        return self.group.recv([tensor], self.rank, tag)

    def send_bytes(self, content: bytes, *, answer: bool = False) -> Any:
        """Begin to send bytes; return torch's ``Work``."""
        return self.send(self.tensor_of(content), answer=answer)

    def receive_bytes(self, length: int, *, answer: bool = False) -> bytes:
        """Wait for ``length`` bytes and return them."""
        if not length:
            return b""
        target = self.empty(length)
        self.receive(target, answer=answer).wait()
        return target.cpu().numpy().tobytes()

    def tensor_of(self, content: bytes) -> torch.Tensor:
        """Return a tensor of the bytes, on the device that the backend needs."""
        tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return tensor.to(self.device)

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Return an uninitialized tensor to receive ``num_bytes`` bytes."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    @contextmanager
    def naming(self, what: str) -> Iterator[None]:
        """Add the operation and the partner's rank to an error of torch."""
        try:
            yield
        except RuntimeError as error:
            if type(error) not in (RuntimeError, distributed.DistBackendError):
                raise
            text = MSG_FAILED.format(what=what, rank=self.shown, error=error)
            raise type(error)(text) from error

    def key(self, direction: str) -> tuple[Any, ...]:
        """Return a key that all transfers share that must not overtake each other."""
        return id(self.group), self.rank, self.tag, direction


def device_of(group: Any) -> torch.device:
    """Return the device for messages of a group: the CPU, if a backend of the group accepts it."""
    types = getattr(group, "_device_types", None)
    if types is None:
        is_on_cpu = group.name() in ("gloo", "mpi")
    else:
        is_on_cpu = torch.device("cpu") in types
    if is_on_cpu:
        return torch.device("cpu")
    return cast("torch.device", torch.accelerator.current_accelerator())


def _backend_of(group: Any) -> str:
    """Return the name of the group's backend for CPU tensors, empty if it has none."""
    try:
        backend = group._get_backend(torch.device("cpu"))
    except AttributeError:
        backend = group
    except RuntimeError:
        return ""
    return str(backend.name())


# In the background ----------------------------------------------------------------------


class Transfer:
    """A transfer in the background, with the methods of torch's ``Work``.

    Args:
        work: the function that transfers.
        after: the transfer that has to end before.
    """

    def __init__(self, work: Callable[[], Any], after: Transfer | None) -> None:
        self._error: BaseException | None = None
        self._result: Any = None
        self._done = threading.Event()
        self._work = work
        self._after = after

    def start(self) -> None:
        """Run the transfer in a new thread."""
        threading.Thread(
            target=self.run, name="tensordict-transfer", daemon=True
        ).start()

    def run(self) -> None:
        """Run the transfer in this thread."""
        try:
            if self._after is not None:
                self._after._done.wait()
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 (`wait` raises it)
            self._error = error
        finally:
            # The work references the leaves, which may be freed now.
            del self._work, self._after
            self._done.set()

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the transfer ends.

        Args:
            timeout: the longest time to wait, a ``timedelta``. The timeout of the group holds
                as well.

        Raises:
            RuntimeError: the transfer failed.
            TimeoutError: the transfer did not end in time.
        """
        seconds = None if timeout is None else timeout.total_seconds()
        if not self._done.wait(seconds or None):
            raise TimeoutError(f"The transfer did not end within {seconds} seconds.")
        if self._error is not None:
            raise self._error
        return True

    def result(self) -> Any:
        """Wait until the transfer ends; return the result of its function."""
        self.wait()
        return self._result

    def is_completed(self) -> bool:
        """Return whether the transfer has ended, with or without an error."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Return whether the transfer has ended without an error."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error of the transfer, ``None`` if there is none yet."""
        return self._error if self._done.is_set() else None


_LAST: dict[tuple[Any, ...], Transfer] = {}
_LOCK = threading.Lock()


def in_order(key: tuple[Any, ...], work: Callable[[], Any], *, later: bool) -> Any:
    """Run a transfer after all earlier transfers with the same key.

    Args:
        key: :meth:`Channel.key`. The messages of transfers with one key could be confused.
        work: the function that transfers.
        later: whether to run it in the background.

    Returns:
        The result of ``work``, or with ``later`` the :class:`Transfer`.
    """
    with _LOCK:
        for ended in [other for other, last in _LAST.items() if last.is_completed()]:
            del _LAST[ended]
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
