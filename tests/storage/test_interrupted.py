"""Work on files that a signal ends: Ctrl-C, an alarm."""

import os
import signal

import pytest
import torch

import tensordict
from tensordict import TensorDict

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="needs the timers of Unix"
)


class AlarmError(Exception):
    """The exception that the handler of the signal raises."""


@pytest.fixture
def alarm():
    """A function after which a signal comes every 20 ms, until one raised."""

    def handle(number, frame):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise AlarmError

    before = signal.signal(signal.SIGALRM, handle)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def large() -> TensorDict:
    """Two gigabytes to write, from no memory: far longer than until the alarm."""
    return TensorDict({"a": torch.zeros(()).expand(500_000_000)})


SAVES = {
    "tree": lambda td, path: td.save(path),
    "x.tdz": lambda td, path: td.save(path),
    "x.safetensors": lambda td, path: td.save(path),
    "x.cons": lambda td, path: td.consolidate(path),
}


@pytest.mark.parametrize("name", SAVES)
def test_a_signal_ends_a_save_of_much(name, alarm, tmp_path):
    _check_interrupted(name, large(), alarm, tmp_path)


def test_a_signal_ends_a_save_of_many(alarm, tmp_path):
    td = TensorDict({f"k{i}": torch.zeros(300) for i in range(20_000)})
    _check_interrupted("tree", td, alarm, tmp_path)


def _check_interrupted(name, td, alarm, tmp_path):
    path = tmp_path / name
    save = SAVES[name]
    kept = save(TensorDict({"old": torch.ones(3)}), path)
    files = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(AlarmError):
        alarm()
        save(td, path)
    assert sorted(os.listdir("/proc/self/fd")) == files
    assert os.listdir(tmp_path) == [name]
    load = TensorDict.from_consolidated if name == "x.cons" else TensorDict.load
    assert (load(path)["old"] == 1).all()
    assert (kept["old"] == 1).all()


def test_a_signal_that_raises_nothing_ends_nothing(tmp_path):
    seen = []
    td = TensorDict({"a": torch.ones(()).expand(50_000_000)})
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(len(seen)))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        td.save(tmp_path / "x")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen
    assert TensorDict.load(tmp_path / "x")["a"].sum() == 50_000_000


@pytest.mark.parametrize("work", ["load", "verify"])
def test_a_signal_ends_reading(work, alarm, tmp_path):
    td = TensorDict({f"k{i}": torch.zeros(5_000_000) for i in range(3)})
    td.save(tmp_path / "x")
    with pytest.raises(AlarmError):
        alarm()
        while True:
            if work == "load":
                TensorDict.load(tmp_path / "x", out=td)
            else:
                tensordict.storage.verify(tmp_path / "x")
    assert TensorDict.load(tmp_path / "x", verify=True)["k2"].sum() == 0
