"""Saves that go on after the call: their values, their errors, and how processes end."""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensordict import _rust
from tensordict.checkpoint import Checkpointer
from tensordict.checkpoint import checkpointer as checkpointer_module

pytestmark = pytest.mark.filterwarnings("ignore:This process")


def make(path: Path, **options: Any) -> Checkpointer:
    return Checkpointer(path / "run", durable=False, background=True, **options)


@pytest.mark.parametrize("dedupe", [False, True])
def test_the_values_are_those_of_the_call(tmp_path: Path, dedupe: bool) -> None:
    model = nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    config = {"list": [1, 2], "lr": 0.1}
    strided = torch.arange(10_000.0).reshape(100, 100).t()
    with make(tmp_path, dedupe=dedupe, keep=None, when_busy="queue") as checkpointer:
        expected = []
        for step in range(4):
            model(torch.rand(2, 300)).sum().backward()
            optimizer.step()
            expected.append(
                (model.weight.detach().clone(), list(config["list"]), strided.clone())
            )
            checkpointer.save(
                step, model=model, optimizer=optimizer, config=config, strided=strided
            )
            with torch.no_grad():
                model.weight.zero_()
                strided.add_(1)
            config["list"].append(step)  # type: ignore[attr-defined]
            optimizer.param_groups[0]["lr"] = 7.0
            model.weight.data.normal_()
    assert checkpointer.steps() == [0, 1, 2, 3]
    for step, (weight, values, total) in enumerate(expected):
        fresh = nn.Linear(300, 300)
        restored = checkpointer.restore(step, model=fresh)
        assert torch.equal(fresh.weight, weight)
        assert restored["config"]["list"] == values
        assert torch.equal(restored["strided"], total)
        groups = checkpointer.load(step)["optimizer", "param_groups"]
        assert groups[0]["lr"] == (0.001 if step == 0 else 7.0)


def test_staging_memory_is_made_once(tmp_path: Path) -> None:
    checkpointer = make(tmp_path)
    assert checkpointer.num_staged_bytes() == 0
    for step in range(5):
        checkpointer.save(step, x=torch.zeros(1000), y=torch.ones(10))
    checkpointer.wait()
    assert 4040 <= checkpointer.num_staged_bytes() <= 4200
    checkpointer.save(6, x=torch.zeros(2000))
    checkpointer.save(7, x=torch.zeros(1))
    checkpointer.wait()
    assert 8000 <= checkpointer.num_staged_bytes() <= 8200
    assert checkpointer.steps() == [4, 6, 7]


class Slow:
    """Stands for a save that takes until it is waited for."""

    def __init__(self) -> None:
        self.done = False

    def is_done(self) -> bool:
        return self.done

    def wait(self) -> bool:
        self.done = True
        return True

    def raise_error(self) -> None:
        pass


class Staging:
    def __init__(self) -> None:
        self.saves: list[tuple[Any, Any, Slow]] = []

    def save(self, plan: Any, how: Any, after: Any, progress: Any) -> Slow:
        self.saves.append((plan, after, Slow()))
        return self.saves[-1][2]


@pytest.mark.parametrize("when_busy", ["wait", "skip", "queue"])
def test_a_save_while_another_is_written(tmp_path: Path, when_busy: Any) -> None:
    checkpointer = make(tmp_path, when_busy=when_busy, keep=1)
    staging = checkpointer._writer._staging = Staging()
    assert checkpointer.save(1, x=1) is not None
    second = checkpointer.save(2, x=2)
    saves = staging.saves
    if when_busy == "skip":
        assert second is None
        assert len(saves) == 1
        saves[0][2].done = True
        assert checkpointer.save(2, x=2) is not None
        return
    assert second is not None
    assert saves[0][2].done == (when_busy == "wait")
    if when_busy == "queue":
        assert saves[1][1] is saves[0][2]
        # The first is deleted when the second is there.
        assert saves[1][0][5] == [str(tmp_path / "run" / "step-1")]
    # One that is to be there at once waits for those before.
    checkpointer.save(3, x=3, background=False)
    assert all(save.done for _, _, save in saves)
    assert checkpointer.steps() == [3]


def test_a_step_that_is_not_durable_yet_is_not_the_latest(tmp_path: Path) -> None:
    checkpointer = make(tmp_path)
    checkpointer.save(1, x=1, background=False)
    checkpointer.save(2, x=2, background=False)
    # It has its name, and its thread has not said that it is on the disk.
    pending = checkpointer._steps.saved()[-1]
    checkpointer._writer._pending.append((pending, Slow()))
    assert checkpointer.latest() == 1
    assert checkpointer.steps() == [1]
    checkpointer.wait()
    assert checkpointer.latest() == 2


def test_errors_are_raised_by_the_next_call(tmp_path: Path) -> None:
    checkpointer = make(tmp_path, keep=1)
    checkpointer.save(1, x=1)
    checkpointer.wait()
    for step in (2, 3, 4):
        (tmp_path / "run" / f"step-{step}").write_text("in the way")
    checkpointer.save(2, x=2)
    with pytest.raises(NotADirectoryError, match="step-2"):
        checkpointer.wait()
    checkpointer.wait()
    checkpointer.save(3, x=3)
    checkpointer._writer._pending[0][1].wait()
    with pytest.raises(NotADirectoryError, match="step-3"):
        checkpointer.save(9, x=9)
    assert checkpointer.steps() == [1]
    checkpointer.save(4, x=4)
    with pytest.raises(NotADirectoryError, match="step-4"):
        checkpointer.close()
    with pytest.raises(RuntimeError, match="closed"):
        checkpointer.save(5, x=5)
    assert sorted(os.listdir(tmp_path / "run")) == [
        "step-1",
        "step-2",
        "step-3",
        "step-4",
    ]


def test_a_child_leaves_the_save_of_its_parent_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = make(tmp_path)
    big = torch.ones(1_000_000)
    # It is not there before a part is that another process writes: not before the fork.
    part = tmp_path / "part"
    plan = checkpointer_module.plan_step

    def waiting(*args: Any, **options: Any) -> Any:
        return plan(
            *args,
            **{**options, "gathered": ([(str(part), _rust.process_name())], 120.0)},
        )

    with monkeypatch.context() as patch:
        patch.setattr(checkpointer_module, "plan_step", waiting)
        checkpointer.save(1, x=big)
    save = checkpointer._writer._pending[0][1]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert not save.is_done()
            signal.alarm(120)
            with pytest.raises(RuntimeError, match="forked from"):
                save.wait()
            checkpointer.wait()
            other = make(tmp_path / "child")
            other.save(1, x=torch.ones(3))
            other.wait()
            assert other.restore()["x"].tolist() == [1, 1, 1]
            del save, checkpointer
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    part.mkdir()
    checkpointer.save(2, x=big * 2)
    checkpointer.wait()
    assert torch.equal(checkpointer.restore(1)["x"], big)
    assert torch.equal(checkpointer.restore(2)["x"], big * 2)


PROGRAM = """
import os, sys
import torch
from tensordict.checkpoint import Checkpointer
from tensordict.checkpoint import checkpointer as checkpointer_module

folder = sys.argv[1]
x = torch.ones(500_000)
failing = Checkpointer(folder + "/failing", background=True)
os.makedirs(folder + "/failing/")
open(folder + "/failing/step-1", "w").close()
failing.save(1, x=x)
# Nobody waits, and nobody holds it.
checkpointer = Checkpointer(folder + "/run", background=True)
checkpointer.save(1, x=x)
del checkpointer
"""


@pytest.fixture(scope="module", autouse=True)
def program(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The program, which starts beside the other tests: to import torch takes seconds."""
    folder = tmp_path_factory.mktemp("program")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        yield process, folder
        process.kill()


def test_the_interpreter_ends_while_steps_are_written(
    program: tuple[subprocess.Popen[str], Path],
) -> None:
    process, folder = program
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "NotADirectoryError" in said
    assert Checkpointer(folder / "run").restore()["x"].sum() == 500_000
    assert os.listdir(folder / "run") == ["step-1"]


def in_a_child(work: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(120)
            torch.set_num_threads(1)
            work()
            status = 0
        except BaseException:  # noqa: BLE001 (the status says that it failed)
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_sigterm_is_a_wish(tmp_path: Path) -> None:
    def work() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        checkpointer = make(tmp_path, handle_sigterm=True)
        steps = 0
        while not checkpointer.preempted:
            checkpointer.save(steps, x=torch.ones(500_000))
            steps += 1
            if steps == 2:
                os.kill(os.getpid(), signal.SIGTERM)
        checkpointer.save(100, x=torch.ones(3))
        checkpointer.close()
        assert checkpointer.latest() == 100
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    in_a_child(work)
    assert Checkpointer(tmp_path / "run").restore()["x"].sum() == 3


def test_the_handler_of_a_signal_saves_in_the_middle_of_a_save(tmp_path: Path) -> None:
    def work() -> None:
        checkpointer = make(tmp_path)
        x = torch.ones(500_000)

        def handle(number: int, frame: Any) -> None:
            checkpointer.save(1000, x=x, background=False)
            raise KeyboardInterrupt

        signal.signal(signal.SIGUSR1, handle)
        signal.signal(signal.SIGALRM, handle)
        for _ in range(5):
            step = 0
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                while True:
                    checkpointer.save(step, x=x, background=bool(step % 2))
                    step += 1
            except KeyboardInterrupt:
                pass
            checkpointer.wait()
            assert 1000 in checkpointer.steps(), checkpointer.steps()
            assert torch.equal(checkpointer.restore(1000)["x"], x)

    in_a_child(work)


def test_a_handler_that_was_there_is_called_too(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with make(tmp_path, handle_sigterm=True) as checkpointer:
            assert not checkpointer.preempted
            os.kill(os.getpid(), signal.SIGTERM)
            assert checkpointer.preempted
        assert seen == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(seen) == 2
    finally:
        signal.signal(signal.SIGTERM, before)
