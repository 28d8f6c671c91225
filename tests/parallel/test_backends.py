"""Laws of every backend: chunks, results, errors, iteration, journals."""

import concurrent.futures
import inspect
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import threading
from multiprocessing.pool import ThreadPool

import numpy as np
import pytest
import torch

from ray_sessions import end_ray
from tensordict import TensorDict, lazy_stack, tensorclass
from tensordict.parallel import DeadWorkerError, MapError, RayPool, WorkerPool

ROWS = 7


def rows(n=ROWS):
    return TensorDict(
        a=torch.arange(n),
        b=TensorDict(c=torch.arange(2.0 * n).view(n, 2), batch_size=[n]),
        batch_size=[n],
    )


@pytest.fixture(scope="module")
def pools():
    """Workers that are made once for all tests, since starting some takes seconds."""
    fork = multiprocessing.get_context("fork")
    with (
        WorkerPool(2, "fork") as warm,
        WorkerPool(2, "forkserver") as served,
        fork.Pool(2) as pool,
        ThreadPool(2) as threads,
        concurrent.futures.ThreadPoolExecutor(2) as thread_executor,
        concurrent.futures.ProcessPoolExecutor(2, fork) as executor,
    ):
        yield {
            "WorkerPool": {"pool": warm},
            "WorkerPool of forkserver": {"pool": served},
            "multiprocessing.Pool": {"pool": pool},
            "ThreadPool": {"pool": threads},
            "ThreadPoolExecutor": {"pool": thread_executor},
            "ProcessPoolExecutor": {"pool": executor},
            "serial": {"backend": "serial"},
            "threads": {"backend": "threads", "num_workers": 2},
            "fork": {"num_workers": 2, "mp_start_method": "fork"},
        }


PROCESSES = ("fork", "WorkerPool", "WorkerPool of forkserver")


@pytest.fixture(
    params=[
        *PROCESSES,
        "multiprocessing.Pool",
        "ThreadPool",
        "ThreadPoolExecutor",
        "ProcessPoolExecutor",
        "serial",
        "threads",
    ]
)
def workers(request, pools):
    return pools[request.param]


@pytest.fixture(params=PROCESSES)
def processes(request, pools):
    return pools[request.param]


def test_results_are_joined_in_order(workers):
    td = rows()
    for chunk in ({}, {"chunksize": 2}, {"chunksize": 0}, {"num_chunks": 3}):
        result = td.map(lambda rows: rows * 2, **workers, **chunk)
        assert (result == rows() * 2).all()
        assert result.batch_size == td.batch_size


def test_nones_are_left_out_and_stay_in_an_iteration(workers):
    def odd(row):
        return row if row["a"] % 2 else None

    assert rows().map(odd, chunksize=0, **workers)["a"].tolist() == [1, 3, 5]
    assert rows().map(lambda _: None, chunksize=0, **workers) is None
    results = list(rows(4).map_iter(odd, chunksize=0, **workers))
    assert [one is None for one in results] == [True, False, True, False]


def test_an_iteration_is_in_order_and_gives_anything(workers):
    results = rows().map_iter(lambda row: int(row["a"]), chunksize=0, **workers)
    assert list(results) == list(range(ROWS))


def test_an_iteration_can_be_left(workers):
    results = rows(100).map_iter(lambda row: int(row["a"]), chunksize=0, **workers)
    assert next(results) == 0
    results.close()


def test_results_go_into_out(workers):
    out = rows().zero_()
    result = rows().map(
        lambda row: row if row["a"] % 2 else None, chunksize=0, out=out, **workers
    )
    assert result is out
    assert out["a"].tolist() == [0, 1, 0, 3, 0, 5, 0]


def test_results_go_into_files(workers, tmp_path):
    out = rows().zero_().memmap_(tmp_path)
    rows().map(lambda part: part * 2, chunksize=2, out=out, **workers)
    assert TensorDict.load_memmap(tmp_path)["a"].tolist() == [0, 2, 4, 6, 8, 10, 12]


def test_results_go_into_a_new_folder(workers, tmp_path):
    for number, chunksize in enumerate((0, 2)):
        folder = tmp_path / "new" / str(number)

        def odd(part):
            return None if 2 in part["a"] else part + 1

        result = rows().map(odd, chunksize=chunksize, out=folder, **workers)
        assert result["b", "c"].filename.startswith(str(folder))
        expected = rows() + 1
        expected[2 : 2 + max(1, chunksize)] = 0
        assert (result == expected).all()
        assert (TensorDict.load_memmap(folder) == expected).all()
        with pytest.raises(FileExistsError, match="new folder"):
            rows().map(odd, out=str(folder), **workers)
    assert rows().map(lambda _: None, out=tmp_path / "none", **workers) is None

    def grows(row):
        return TensorDict(a=torch.zeros(int(row["a"])))

    def fails(row):
        if row["a"] == 4:
            raise KeyError
        return row

    def changes(row):
        return row if row["a"] < 4 else row.float()

    for function, error in (
        (grows, ValueError),
        (changes, ValueError),
        (fails, KeyError),
    ):
        with pytest.raises(error) as caught:
            rows().map(function, chunksize=0, out=tmp_path / "bad", **workers)
        assert error is KeyError or "chunk" in str(caught.value)
    assert {entry.name for entry in tmp_path.iterdir()} == {"new"}
    assert {entry.name for entry in (tmp_path / "new").iterdir()} == {"0", "1"}


def test_the_error_of_the_function_is_raised_with_its_rows(workers):
    def fails(part):
        if 4 in part["a"]:
            msg = "no fours"
            raise KeyError(msg)
        return part

    for method in (
        TensorDict.map,
        lambda *args, **k: list(TensorDict.map_iter(*args, **k)),
    ):
        with pytest.raises(KeyError, match="no fours") as caught:
            method(rows(), fails, chunksize=2, **workers)
        assert "chunk 2 (rows 4 to 5)" in "".join(caught.value.__notes__)


def test_errors_are_skipped_or_collected(workers):
    def odd(row):
        if row["a"] % 2:
            return row
        msg = f"{int(row['a'])} is even"
        raise ValueError(msg)

    result = rows().map(odd, chunksize=0, on_error="skip", **workers)
    assert result["a"].tolist() == [1, 3, 5]
    with pytest.raises(MapError, match="4 chunks failed, .*0 is even") as caught:
        rows().map(odd, chunksize=0, on_error="collect", **workers)
    assert [str(error)[0] for error in caught.value.errors] == ["0", "2", "4", "6"]
    assert caught.value.result["a"].tolist() == [1, 3, 5]
    taken = []
    with pytest.raises(MapError):
        taken.extend(rows().map_iter(odd, chunksize=0, on_error="collect", **workers))
    left = rows().map_iter(odd, chunksize=0, on_error="skip", **workers)
    assert [int(row["a"]) for row in left] == [1, 3, 5]


def test_a_chunk_is_tried_again(workers, tmp_path):
    def fails_once(row):
        mark = tmp_path / str(int(row["a"]))
        if not mark.exists():
            mark.touch()
            raise OSError
        return row

    result = rows(3).map(fails_once, chunksize=0, retries=1, **workers)
    assert result["a"].tolist() == [0, 1, 2]


def test_a_journal_keeps_what_is_done(workers, tmp_path):
    calls = tmp_path / "calls"
    calls.mkdir()

    def work(row):
        (calls / f"{int(row['a'])}-{len(list(calls.iterdir()))}").touch()
        if row["a"] == 3 and not (tmp_path / "mended").exists():
            raise ValueError
        return row

    options = {"chunksize": 0, "journal": tmp_path / "journal", **workers}
    with pytest.raises(MapError):
        rows().map(work, on_error="collect", **options)
    (tmp_path / "mended").touch()
    result = rows().map(work, **options)
    assert result["a"].tolist() == list(range(ROWS))
    called = sorted(int(entry.name.split("-")[0]) for entry in calls.iterdir())
    assert called == [0, 1, 2, 3, 3, 4, 5, 6]
    assert len(list(rows().map_iter(work, **options))) == ROWS
    with pytest.raises(ValueError, match="other chunks"):
        rows().map(work, **{**options, "chunksize": 2})


def test_ragged_stacks_and_other_shapes(workers):
    td = lazy_stack([TensorDict(a=torch.ones(n + 1)) for n in range(4)])
    result = td.map(lambda row: row + 1, chunksize=0, **workers)
    assert [member["a"].shape[0] for member in result.unbind(0)] == [1, 2, 3, 4]

    def grows(row):
        return TensorDict(a=torch.zeros(int(row["a"])))

    result = rows(3).map(grows, chunksize=0, **workers)
    assert [member["a"].shape[0] for member in result.unbind(0)] == [0, 1, 2]


def test_progress_counts_rows(workers, capsys):
    rows().map(lambda part: part, chunksize=2, pbar=True, **workers)
    list(rows().map_iter(lambda part: part, chunksize=2, pbar=True, **workers))
    assert capsys.readouterr().err.count("7/7") >= 2


def test_seeds_of_chunks_do_not_depend_on_the_workers():
    def draw(_):
        other = np.random.rand() + random.random()
        return TensorDict(x=torch.rand(2) + other)

    options = {"chunksize": 0, "seed_per_chunk": True}
    torch.manual_seed(0)
    expected = rows().map(draw, backend="serial", **options)["x"]
    for count in (1, 2, 3):
        result = rows().map(draw, num_workers=count, **options)["x"]
        assert torch.equal(result, expected)


# Processes ---------------------------------------------------------------------------------


def test_writes_in_place_are_seen(processes):
    td = rows()
    td.map(lambda part: part["a"].add_(10) and None, chunksize=0, **processes)
    assert td["a"].tolist() == [10, 11, 12, 13, 14, 15, 16]


def test_a_killed_worker_is_named_with_its_rows(processes):
    def dies(row):
        if row["a"] == 3:
            os.kill(os.getpid(), 9)
        return row

    for method in (
        TensorDict.map,
        lambda *args, **k: list(TensorDict.map_iter(*args, **k)),
    ):
        with pytest.raises(RuntimeError, match=r"SIGKILL .* chunk 3 \(row 3\)"):
            method(rows(), dies, chunksize=0, **processes)
    result = rows().map(dies, chunksize=0, on_error="skip", **processes)
    assert result["a"].tolist() == [0, 1, 2, 4, 5, 6]
    left = rows().map_iter(dies, chunksize=0, on_error="skip", **processes)
    assert [int(row["a"]) for row in left] == [0, 1, 2, 4, 5, 6]


def test_the_row_of_a_killed_worker_is_tried_again(processes, tmp_path):
    def dies_once(row):
        mark = tmp_path / str(int(row["a"]))
        if row["a"] == 3 and not mark.exists():
            mark.touch()
            os._exit(7)
        return row

    result = rows().map(dies_once, chunksize=0, retries=1, **processes)
    assert result["a"].tolist() == list(range(ROWS))


def test_what_would_end_a_process_is_an_error(processes):
    def leaves(row):
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match=r"chunk \d \(row \d\) .*SystemExit: 3"):
        rows().map(leaves, chunksize=0, **processes)


class StubbornError(Exception):
    """Cannot be made again from what pickle keeps of it."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_an_error_that_cannot_be_sent_is_told(processes):
    def fails(row):
        raise StubbornError(1, 2)

    with pytest.raises(RuntimeError, match="StubbornError: 1 and 2"):
        rows().map(fails, chunksize=0, **processes)


def test_workers_are_replaced(processes):
    def who(row):
        return TensorDict(pid=os.getpid())

    result = rows().map(who, chunksize=0, max_tasks_per_child=1, **processes)
    assert len(set(result["pid"].tolist())) == ROWS
    results = list(
        rows().map_iter(who, chunksize=0, max_tasks_per_child=2, **processes)
    )
    assert len(results) == ROWS


def test_a_chunk_that_takes_too_long_is_given_up(processes):
    def hangs(row):
        if row["a"] == 2:
            multiprocessing.Event().wait()
        return row

    for method in (
        TensorDict.map,
        lambda *args, **k: list(TensorDict.map_iter(*args, **k)),
    ):
        # On a busy machine one of those before may take too long as well.
        with pytest.raises(TimeoutError, match=r"chunk ([012]) \(row \1\)"):
            method(rows(), hangs, chunksize=0, timeout=0.3, **processes)


def test_a_result_that_cannot_be_sent_is_an_error(processes):
    import threading

    with pytest.raises(TypeError, match="pickle"):
        list(rows(2).map_iter(lambda _: threading.Lock(), chunksize=0, **processes))


def test_a_pool_stays_warm(pools):
    pool = pools["WorkerPool"]["pool"]

    def who(row):
        return TensorDict(pid=os.getpid())

    first = rows().map(who, chunksize=0, pool=pool)["pid"].tolist()
    again = rows().map(who, chunksize=0, pool=pool)["pid"].tolist()
    assert len(set(first) | set(again)) <= 2


def test_a_pool_keeps_its_processes_when_results_are_taken_in_order(pools):
    td = TensorDict(a=torch.arange(4), batch_size=[4])
    pool = pools["WorkerPool"]["pool"]

    def numbers():
        chunks = td.map_iter(with_pid, chunksize=1, pool=pool)
        return {number for chunk in chunks for number in chunk["pid"].tolist()}

    first = numbers()
    for _ in range(30):
        first |= numbers()
    assert len(first) <= 2


def with_pid(chunk):
    return chunk.set("pid", torch.full((1,), os.getpid()))


def test_a_closed_pool_says_so():
    pool = WorkerPool(1)
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        rows().map(lambda row: row, pool=pool)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backend": "dask"}, ValueError, "backend must be one of"),
        ({"on_error": "ignore"}, ValueError, "on_error must be"),
        ({"backend": "threads", "timeout": 1}, ValueError, "needs worker processes"),
        ({"backend": "threads", "seed_per_chunk": True}, ValueError, "processes"),
        ({"pool": 3}, TypeError, "pool must be"),
        ({"worker_threads": 0}, RuntimeError, "positive integer"),
        ({"chunksize": 2.0}, TypeError, "chunksize must be an int"),
    ],
)
def test_options_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        rows().map(lambda row: row, **options)


def test_no_process_is_left():
    before = set(multiprocessing.active_children())
    rows().map(lambda row: row, num_workers=2)
    results = rows(50).map_iter(lambda row: row, num_workers=2, chunksize=0)
    next(results)
    del results
    assert set(multiprocessing.active_children()) <= before


def test_many_chunks_take_few_descriptors():
    before = len(os.listdir("/proc/self/fd"))
    result = rows(3000).map(lambda row: row, num_workers=2, chunksize=0)
    assert result.batch_size == torch.Size([3000])
    assert len(os.listdir("/proc/self/fd")) - before < 20


@tensorclass
class Sample:
    x: torch.Tensor
    nested: TensorDict


def test_results_of_a_class_are_written_to_their_place(processes):
    samples = Sample(
        x=torch.arange(6.0).view(3, 2),
        nested=TensorDict(y=torch.arange(3), batch_size=[3]),
        batch_size=[3],
    )
    for chunksize in (0, 2):
        result = samples.map(lambda rows: rows * 2, chunksize=chunksize, **processes)
        assert type(result) is Sample
        assert torch.equal(result.x, samples.x * 2)
        assert torch.equal(result.nested["y"], samples.nested["y"] * 2)


@pytest.mark.parametrize("dim", [0, 1])
def test_rows_that_numpy_does_not_see_are_results(dim):
    td = TensorDict(x=torch.arange(12.0).view(3, 4), batch_size=[3, 4])

    def odd_kinds(row):
        x = row["x"]
        half = x.bfloat16()
        with_gradient = x * torch.ones((), requires_grad=True)
        at = int(x.flatten()[0])
        seen = {
            0: {"x": x, "n": {"half": half}},
            1: {"x": with_gradient, "n": {"half": half}},
            2: {"n": {"half": half}, "x": x},
        }[at % 3]
        return TensorDict(seen, batch_size=row.batch_size)

    def plain(row):
        found = odd_kinds(row).exclude("n")
        return found.set("y", row["x"].mT if row.ndim > 1 else row["x"] + 1)

    for function, keys in ((odd_kinds, {"x", "n"}), (plain, {"x", "y"})):
        result = td.map(function, dim, num_workers=2, chunksize=0)
        assert set(result.keys()) == keys
        assert torch.equal(result["x"].detach(), td["x"])


@pytest.fixture
def interruptible():
    """Have an interrupt raise, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_leaves_no_process():
    before = set(multiprocessing.active_children())
    caller = os.getpid()  # not the parent of a worker, where a server makes those

    def interrupts(row):
        if row["a"] == 2:
            os.kill(caller, signal.SIGINT)
            multiprocessing.Event().wait()
        return row

    for method in (
        TensorDict.map,
        lambda *args, **k: list(TensorDict.map_iter(*args, **k)),
    ):
        with pytest.raises(KeyboardInterrupt):
            method(rows(), interrupts, chunksize=0, num_workers=2)
        assert set(multiprocessing.active_children()) <= before


KILLS = int(os.environ.get("TENSORDICT_KILLS", "4"))


def _killed_at(victim, folder):
    """A process whose map kills it when a worker is at a row."""

    def run():
        caller = os.getpid()  # as above

        def work(row):
            at = int(row["a"])
            with open(folder / "calls", "a") as file:
                file.write(f"{at} ")
            if at == victim:
                os.kill(caller, signal.SIGKILL)
                os._exit(1)
            return row * 2

        result = rows().map(
            work, num_workers=2, chunksize=0, journal=folder / "journal"
        )
        assert (result == rows() * 2).all()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(60)
    return process.exitcode


def test_a_killed_call_is_resumed(tmp_path):
    draw = random.Random(0)
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        kept = set()
        for victim in draw.sample(range(ROWS), 2):
            code = _killed_at(victim, folder)
            assert code == (0 if victim in kept else -signal.SIGKILL)
            called = set(map(int, (folder / "calls").read_text().split()))
            assert kept.isdisjoint(called)
            if code == 0:
                break
            kept |= {int(path.stem) for path in (folder / "journal").glob("?.chunk")}
            (folder / "calls").unlink()
        else:
            assert _killed_at(None, folder) == 0
            called = set(map(int, (folder / "calls").read_text().split()))
            assert kept.isdisjoint(called)
            assert kept | called == set(range(ROWS))


# Ray ---------------------------------------------------------------------------------------

ON_RAY = [
    test_results_are_joined_in_order,
    test_nones_are_left_out_and_stay_in_an_iteration,
    test_an_iteration_is_in_order_and_gives_anything,
    test_an_iteration_can_be_left,
    test_results_go_into_out,
    test_results_go_into_files,
    test_results_go_into_a_new_folder,
    test_the_error_of_the_function_is_raised_with_its_rows,
    test_errors_are_skipped_or_collected,
    test_a_chunk_is_tried_again,
    test_a_journal_keeps_what_is_done,
    test_ragged_stacks_and_other_shapes,
    test_progress_counts_rows,
    test_what_would_end_a_process_is_an_error,
]


class Unreadable:
    """A function that pickle takes, and that cannot be made again."""

    def __call__(self, part):
        return part

    def __reduce__(self):
        return exec, ("raise OSError('not here')",)


@pytest.fixture
def ray():
    """A cluster of two workers. Its start takes seconds, so one test has all of it."""
    ray = pytest.importorskip("ray")
    # The names of sockets below it must be short.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    try:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=80 << 20,
            _temp_dir=folder,
        )
    except Exception as error:  # noqa: BLE001 # it has many
        pytest.skip(f"Ray does not start here: {error}")
    yield ray
    end_ray()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
def test_ray_does_what_all_backends_do(ray, subtests, request, tmp_path):
    with RayPool(2) as pool:
        workers = {"pool": pool}
        for number, check in enumerate(ON_RAY):
            folder = tmp_path / str(number)
            folder.mkdir()
            given = {"workers": workers, "processes": workers, "tmp_path": folder}
            names = inspect.signature(check).parameters
            arguments = {
                name: given.get(name) or request.getfixturevalue(name) for name in names
            }
            with subtests.test(check.__name__):
                check(**arguments)

        with subtests.test("a chunk is a copy"):
            td = rows()

            def write(part):
                part["a"].zero_()
                return part

            assert td.map(write, **workers)["a"].sum() == 0
            assert td["a"].tolist() == list(range(ROWS))

        with subtests.test("a dead worker is named, and replaced"):
            mark = str(tmp_path / "mark")

            def dies(row):
                if row["a"] == 3 and not os.path.exists(mark):
                    open(mark, "w").close()
                    os._exit(7)
                return row

            with pytest.raises(DeadWorkerError, match=r"chunk 3 \(row 3\)"):
                rows().map(dies, chunksize=0, **workers)
            again = rows().map(dies, chunksize=0, **workers)
            assert again["a"].tolist() == list(range(ROWS))

        with subtests.test("a chunk that takes too long is given up"):

            def hangs(row):
                if row["a"] == 2:
                    multiprocessing.Event().wait()
                return row

            with pytest.raises(TimeoutError, match=r"chunk 2 \(row 2\)"):
                rows(3).map(hangs, chunksize=0, timeout=0.3, **workers)

        with subtests.test("what cannot be sent is an error"):
            with pytest.raises(TypeError, match="lock"):
                list(rows(2).map_iter(lambda _: threading.Lock(), **workers))

        with subtests.test("what cannot be read there is an error"):
            for _ in range(2):
                with pytest.raises(Exception, match="not here"):
                    rows().map(Unreadable(), **workers)

    with subtests.test("workers for one call"):
        pids = rows().map(
            lambda _: TensorDict(pid=os.getpid()),
            backend="ray",
            num_workers=1,
            chunksize=0,
        )["pid"]
        assert len(set(pids.tolist())) == 1
