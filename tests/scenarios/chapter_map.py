"""Maps: one function, chunks of rows, several processes."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from scenario import scenario

from tensordict import (
    NonTensorStack,
    TensorDict,
    TensorDictParams,
    lazy_stack,
    tensorclass,
)

FORK = {"mp_start_method": "fork"}

LATER_ROWS = "the release shifts later rows to where a chunk without a result should be"
EMPTY = "the release divides by zero where there are no rows"


@tensorclass
class Sample:
    x: torch.Tensor
    label: str = "none"


def data(n=6):
    return TensorDict(
        a=torch.arange(n),
        b=TensorDict(c=torch.arange(2.0 * n).view(n, 2), batch_size=[n]),
        batch_size=[n],
    )


def quiet(method, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = method(*args, **{**FORK, **kwargs})
        return list(result) if method.__name__ == "map_iter" else result


def double(chunk):
    return chunk.apply(lambda leaf: leaf * 2)


def identity(chunk):
    return chunk


def rows_of(chunk):
    return TensorDict(rows=torch.tensor([chunk["a"].numel()]), batch_size=[1])


def shape_of(chunk):
    return TensorDict(dims=torch.tensor(chunk.ndim), first=chunk["a"].reshape(-1)[0])


def only_odd(chunk):
    return chunk if chunk["a"].reshape(-1)[0] % 2 else None


def nothing(chunk):
    return None


def fails(chunk):
    raise ValueError("this chunk is bad")


def draws(chunk):
    return TensorDict(drawn=torch.randint(1000, (1,)), batch_size=[1])


def draws_by_numpy(chunk):
    drawn = np.random.randint(1000)
    return TensorDict(drawn=torch.tensor([drawn]), batch_size=[1])


def threads(chunk):
    return TensorDict(n=torch.tensor([torch.get_num_threads()]), batch_size=[1])


def writes(chunk):
    chunk["a"].add_(100)


def returns_a_tensor(chunk):
    return chunk["a"]


def returns_a_number(chunk):
    return 3


def ragged(chunk):
    return TensorDict(a=torch.zeros(int(chunk["a"].reshape(-1)[0])))


def other_keys(chunk):
    return TensorDict({f"k{int(chunk['a'][0])}": torch.zeros(1)}, batch_size=[1])


def lengths(chunk):
    n = int(chunk["a"][0])
    return TensorDict(a=torch.full((n,), n), batch_size=[n])


def texts(chunk):
    return TensorDict(
        s=f"row {int(chunk['a'].reshape(-1)[0])}", batch_size=chunk.batch_size
    )


@scenario
def a_map_with_one_worker():
    return quiet(data().map, double, num_workers=1)


@scenario
def a_map_with_two_workers_has_two_chunks():
    return quiet(data().map, rows_of, num_workers=2)


@scenario
def chunks_of_two_rows():
    return quiet(data(5).map, rows_of, num_workers=2, chunksize=2)


@scenario
def chunks_of_single_rows_without_the_dim():
    return quiet(data(3).map, shape_of, num_workers=2, chunksize=0)


@scenario
def chunks_of_one_row_keep_the_dim():
    return quiet(data(3).map, double, num_workers=2, chunksize=1)


@scenario
def a_number_of_chunks():
    return [
        quiet(data(7).map, rows_of, num_workers=2, num_chunks=n)["rows"]
        for n in (1, 3, 5)
    ]


@scenario
def more_workers_than_whole_chunks():
    return quiet(data(6).map, rows_of, num_workers=4)


@scenario
def more_chunks_than_rows():
    return quiet(data(3).map, double, num_workers=2, num_chunks=100)


@scenario
def both_a_size_and_a_number():
    return quiet(data().map, double, num_workers=1, chunksize=2, num_chunks=2)


@scenario
def no_chunks():
    return quiet(data().map, double, num_workers=1, num_chunks=0)


@scenario(
    reason="the release names the method that it calls, and not the argument",
    ours=lambda error: isinstance(error, ValueError) and "chunksize" in str(error),
)
def a_negative_chunk():
    return quiet(data().map, double, num_workers=1, chunksize=-1)


@scenario
def no_workers():
    return quiet(data().map, double, num_workers=0)


@scenario
def an_unknown_start_method():
    return quiet(data().map, double, num_workers=1, mp_start_method="nope")


@scenario
def along_another_dim():
    td = TensorDict(a=torch.arange(12).view(2, 6), batch_size=[2, 6])
    return [
        quiet(td.map, double, dim, num_workers=2, chunksize=c)
        for dim in (1, -1)
        for c in (0, 4)
    ]


@scenario
def along_a_dim_that_is_not_there():
    return quiet(data().map, double, 1, num_workers=1, chunksize=1)


@scenario
def along_a_negative_dim_that_is_not_there():
    return quiet(data().map, double, -2, num_workers=1, chunksize=1)


@scenario
def results_that_are_none_are_dropped():
    return (
        quiet(data().map, only_odd, num_workers=2, chunksize=0),
        quiet(data().map, only_odd, num_workers=2, chunksize=1),
        quiet(data().map, nothing, num_workers=2, chunksize=1),
    )


@scenario
def results_that_are_none_stay_in_an_iteration():
    return [
        one is None
        for one in quiet(data(4).map_iter, only_odd, num_workers=2, chunksize=1)
    ]


@scenario
def an_error_in_the_function():
    return quiet(data().map, fails, num_workers=2, chunksize=1)


@scenario
def an_error_in_the_function_of_an_iteration():
    return quiet(data().map_iter, fails, num_workers=2, chunksize=1)


@scenario
def chunks_by_index():
    return [
        quiet(
            data(5).map, double, num_workers=2, chunksize=c, index_with_generator=True
        )
        for c in (0, 2)
    ]


@scenario
def the_seed_comes_from_the_generator():
    generator = torch.Generator().manual_seed(3)
    result = quiet(data().map, draws, num_workers=1, chunksize=2, generator=generator)
    return result, torch.randint(1000, (3,), generator=generator)


@scenario
def without_a_generator_seeds_are_always_the_same():
    torch.manual_seed(5)
    return quiet(data().map, draws, num_workers=1, chunksize=2), torch.randint(
        1000, (2,)
    )


@scenario
def the_seed_of_an_iteration():
    generator = torch.Generator().manual_seed(3)
    return quiet(
        data().map_iter, draws, num_workers=1, chunksize=2, generator=generator
    )


@scenario
def numpy_has_a_seed_in_a_worker():
    generator = torch.Generator().manual_seed(3)
    options = {"num_workers": 1, "chunksize": 2}
    return (
        quiet(data().map, draws_by_numpy, **options),
        quiet(data().map, draws_by_numpy, **options, generator=generator),
        list(quiet(data().map_iter, draws_by_numpy, **options)),
    )


@scenario
def threads_of_a_worker():
    return quiet(data(2).map, threads, num_workers=1, chunksize=1, worker_threads=2)


@scenario
def a_child_with_few_tasks():
    return quiet(data(4).map, double, num_workers=2, chunksize=1, max_tasks_per_child=4)


@scenario
def an_iteration():
    return [
        quiet(data(5).map_iter, double, num_workers=2, chunksize=c)
        for c in (0, 2, None)
    ]


@scenario
def a_shuffled_iteration():
    torch.manual_seed(1)
    results = quiet(
        data(5).map_iter, identity, num_workers=1, chunksize=2, shuffle=True
    )
    return results, torch.randint(1000, (2,))


@scenario
def a_shuffled_iteration_needs_the_generator():
    return quiet(
        data().map_iter,
        identity,
        num_workers=1,
        shuffle=True,
        index_with_generator=False,
    )


@scenario
def into_a_collection():
    out = data().zero_()
    result = quiet(data().map, double, num_workers=2, chunksize=2, out=out)
    return result is out, out


@scenario
def single_rows_into_a_collection_in_shared_memory():
    out = data().zero_().share_memory_()
    result = quiet(data().map, double, num_workers=2, chunksize=0, out=out)
    return result is out, out["a"], out["b", "c"]


@scenario
def into_a_collection_in_files(tmp_path):
    out = data().zero_().memmap_(tmp_path / "out")
    result = quiet(data().map, double, num_workers=2, chunksize=2, out=out)
    return (
        result is out,
        out["a"] + 0,
        TensorDict.load_memmap(tmp_path / "out")["a"] + 0,
    )


@scenario
def none_into_a_collection_in_shared_memory():
    out = data().zero_().share_memory_()
    quiet(data().map, only_odd, num_workers=2, chunksize=1, out=out)
    return out["a"]


@scenario(
    reason=LATER_ROWS,
    ours=lambda result: result.tolist() == [0, 1, 0, 3, 0, 5],
)
def none_into_a_collection():
    out = data().zero_()
    quiet(data().map, only_odd, num_workers=2, chunksize=1, out=out)
    return out["a"]


@scenario
def fewer_rows_into_a_collection():
    out = TensorDict(rows=torch.zeros(3, dtype=torch.int64), batch_size=[3])
    return quiet(data().map, rows_of, num_workers=2, chunksize=2, out=out)


@scenario
def into_a_collection_without_the_key():
    return quiet(data().map, double, num_workers=2, out=TensorDict(batch_size=[6]))


@scenario
def along_another_dim_into_a_collection():
    td = TensorDict(a=torch.arange(12).view(2, 6), batch_size=[2, 6])
    return [
        quiet(td.map, double, 1, num_workers=2, chunksize=c, out=td.clone().zero_())
        for c in (0, 4)
    ]


@scenario
def writes_in_place_reach_the_collection():
    td = data()
    result = quiet(td.map, writes, num_workers=2, chunksize=0)
    return result, td["a"], td["a"].is_shared()


@scenario
def writes_in_place_reach_files(tmp_path):
    td = data().memmap_(tmp_path / "td")
    quiet(td.map, writes, num_workers=2, chunksize=2)
    return TensorDict.load_memmap(tmp_path / "td")["a"] + 0


@scenario
def writes_in_place_reach_the_members_of_a_stack():
    members = list(data(3).clone().unbind(0))
    td = lazy_stack(members)
    quiet(td.map, writes, num_workers=2, chunksize=0)
    return [member["a"] for member in members]


@scenario
def a_map_of_a_tensorclass():
    samples = Sample(x=torch.arange(4), batch_size=[4])
    return [
        quiet(samples.map, double, num_workers=2, chunksize=c).x for c in (None, 0, 1)
    ]


@scenario
def the_class_of_a_map_of_a_tensorclass():
    samples = Sample(x=torch.arange(4), batch_size=[4])
    result = quiet(samples.map, identity, num_workers=2)
    return type(result).__name__, result.batch_size, result.label


@scenario
def a_map_of_a_ragged_stack():
    td = lazy_stack([TensorDict(a=torch.ones(n + 1)) for n in range(4)])
    results = [quiet(td.map, double, num_workers=2, chunksize=c) for c in (None, 0)]
    return [
        (type(r).__name__, r.batch_size, [m["a"] for m in r.unbind(0)]) for r in results
    ]


@scenario
def a_map_of_a_view():
    return quiet(data()._get_sub_tensordict(slice(1, 5)).map, double, num_workers=2)


@scenario
def a_map_of_what_is_in_files(tmp_path):
    result = quiet(data().memmap_(tmp_path / "td").map, double, num_workers=2)
    return result, result.is_memmap(), result.is_locked


@scenario
def a_map_of_parameters():
    params = TensorDictParams(TensorDict(a=torch.ones(4, 2), batch_size=[4]))
    return quiet(params.map, double, num_workers=2)


@scenario
def a_map_with_values_that_are_no_tensors():
    td = data(3)
    td["s"] = "hello"
    td["u"] = NonTensorStack("x", "y", "z")
    results = [quiet(td.map, identity, num_workers=2, chunksize=c) for c in (None, 0)]
    return [(r["s"], r["u"]) for r in results]


@scenario
def results_with_texts():
    return [
        quiet(data(3).map, texts, num_workers=2, chunksize=c)["s"] for c in (None, 0)
    ]


@scenario
def results_that_are_tensors():
    return (
        quiet(data().map, returns_a_tensor, num_workers=2),
        quiet(data().map_iter, returns_a_tensor, num_workers=2),
    )


@scenario
def results_that_are_numbers():
    return quiet(data().map, returns_a_number, num_workers=2)


@scenario
def an_iteration_over_numbers():
    return quiet(data().map_iter, returns_a_number, num_workers=2)


@scenario
def results_of_other_shapes_are_stacked_lazily():
    result = quiet(data(3).map, ragged, num_workers=2, chunksize=0)
    return (
        type(result).__name__,
        result.batch_size,
        [m["a"].shape for m in result.unbind(0)],
    )


@scenario
def results_with_other_keys():
    return quiet(data(3).map, other_keys, num_workers=2, chunksize=1)


@scenario
def results_of_other_lengths():
    return quiet(data(4).map, lengths, num_workers=2, chunksize=1)


@scenario
def names_of_dims():
    td = TensorDict(a=torch.arange(4), batch_size=[4], names=["time"])
    return [
        quiet(td.map, identity, num_workers=2, chunksize=c).names for c in (None, 0)
    ]


@scenario
def a_locked_collection():
    result = quiet(data().lock_().map, identity, num_workers=2)
    return result.is_locked, result


@scenario
def a_function_that_is_none():
    return quiet(data().map, 3, num_workers=1)


@scenario
def no_rows():
    return quiet(data(0).map, double, num_workers=2, chunksize=2)


@scenario
def no_rows_one_by_one():
    return quiet(data(0).map, double, num_workers=2, chunksize=0)


@scenario
def no_rows_for_two_workers():
    return quiet(data(0).map, double, num_workers=2)


@scenario(
    reason=EMPTY,
    ours=lambda error: isinstance(error, ValueError) and "positive" in str(error),
)
def no_rows_in_an_iteration():
    return quiet(data(0).map_iter, double, num_workers=2)


@scenario
def in_a_pool():
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(2) as pool:
        return (
            quiet(data().map, rows_of, pool=pool, mp_start_method=None),
            quiet(data().map, rows_of, pool=pool, chunksize=4, mp_start_method=None),
            quiet(
                data().map_iter, rows_of, pool=pool, chunksize=4, mp_start_method=None
            ),
        )


@scenario
def in_a_pool_of_threads():
    from multiprocessing.pool import ThreadPool

    with ThreadPool(2) as pool:
        return quiet(data().map, rows_of, pool=pool, mp_start_method=None)
