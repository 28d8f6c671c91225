"""Checkpoints in object stores: steps that are there whole, of which a training goes on."""

import os
import threading
from datetime import timedelta

import pytest
import torch

from object_stores import Proxy, bytes_read
from tensordict import TensorDict
from tensordict.checkpoint import Checkpointer
from tensordict.checkpoint.mirror import Mirror
from tensordict.checkpoint.remote_steps import RETIRED
from tensordict.storage.remote import Place, place_of

SEED = 17


def model_of(value):
    model = torch.nn.Linear(4, 3)
    torch.nn.init.constant_(model.weight, value)
    torch.nn.init.constant_(model.bias, -value)
    return model


def restored(checkpointer, step=None):
    model = model_of(0.0)
    found = checkpointer.restore(step, model=model)
    assert (model.bias == -model.weight[0, 0]).all()
    return found.step, model.weight[0, 0].item(), found["epoch"]


def names(url):
    return {found.name for found in place_of(url).list()}


@pytest.fixture
def make(tmp_path, remote):
    made = []

    def make(place=remote, **options):
        if place == remote and "staging" not in options:
            options["staging"] = tmp_path / f"staging-{len(made)}"
        made.append(Checkpointer(place, durable=False, **options))
        return made[-1]

    yield make
    for checkpointer in made:
        checkpointer.close()


@pytest.mark.parametrize("background", [False, True])
def test_steps_are_found_and_restored_by_another_process(make, remote, background):
    checkpointer = make(background=background, keep=2)
    for step in range(1, 5):
        checkpointer.save(
            step, model=model_of(step), epoch=step, metrics={"loss": -step}
        )
    checkpointer.wait()
    other = make()
    assert other.steps() == checkpointer.steps() == [3, 4]
    assert other.latest() == 4
    assert other.best("loss") == 4
    assert restored(other) == (4, 4.0, 4)
    assert restored(other, 3) == (3, 3.0, 3)
    assert float(other.load(3)["model", "weight"][0, 0]) == 3
    with pytest.raises(FileNotFoundError, match="no step 1"):
        other.restore(1, model=model_of(0))
    assert {name.partition("/")[0] for name in names(remote)} == {"step-3", "step-4"}


def test_a_place_without_steps_says_so(make, remote):
    assert make().steps() == []
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        make().restore(model=model_of(0))


def test_a_training_goes_on_behind_the_last_step_and_saves_one_anew(make):
    make(keep=3).save(1, model=model_of(1), epoch=1)
    again = make(keep=3)
    again.save(2, model=model_of(2), epoch=2)
    again.save(1, model=model_of(10), epoch=10)
    other = make()
    assert other.steps() == [2, 1]
    assert restored(other) == (1, 10.0, 10)
    assert restored(other, 2) == (2, 2.0, 2)


def test_only_the_files_of_the_items_that_are_asked_for_are_read(
    make, remote, monkeypatch
):
    checkpointer = make()
    big = {"weight": torch.ones(1000)}
    checkpointer.save(1, model=model_of(1), epoch=1, ema=torch.nn.ParameterDict(big))
    from tensordict.checkpoint import remote_files

    fetched = []
    real = remote_files.read_range

    def read(source, *args):
        fetched.append(source.place.name)
        return real(source, *args)

    monkeypatch.setattr(remote_files, "read_range", read)
    assert restored(checkpointer) == (1, 1.0, 1)
    assert fetched == ["model.safetensors"]


def test_unchanged_tensors_are_those_of_older_steps(make, remote):
    checkpointer = make(dedupe=True, keep=2)
    frozen = torch.nn.Linear(100, 100)

    def save(step):
        checkpointer.save(step, model=model_of(step), frozen=frozen, epoch=step)

    def frozen_objects():
        files = [name for name in names(remote) if name.endswith(".safetensors")]
        return sorted(name for name in files if "frozen" in name)

    save(1)
    first = frozen_objects()
    for step in range(2, 6):
        save(step)
        # The object stays where it is, also when its step is deleted.
        assert frozen_objects() == first
        assert make().steps() == [step - 1, step]
        new = torch.nn.Linear(100, 100)
        make().restore(step, model=model_of(0), frozen=new)
        assert torch.equal(new.weight, frozen.weight)
    assert f"step-1/{RETIRED}" in names(remote)
    torch.nn.init.zeros_(frozen.weight)
    torch.nn.init.zeros_(frozen.bias)
    save(6)
    save(7)
    assert not [name for name in names(remote) if name.startswith("step-1/")]
    new = torch.nn.Linear(100, 100)
    make().restore(model=model_of(0), frozen=new)
    assert torch.equal(new.weight, frozen.weight)


def test_a_step_that_others_lead_to_is_saved_anew(make, remote):
    checkpointer = make(dedupe=True, keep=None)
    frozen = torch.nn.Linear(100, 100)
    checkpointer.save(1, model=model_of(1), frozen=frozen, epoch=1)
    checkpointer.save(2, model=model_of(2), frozen=frozen, epoch=2)
    changed = torch.nn.Linear(100, 100)
    checkpointer.save(1, model=model_of(10), frozen=changed, epoch=10)
    new = torch.nn.Linear(100, 100)
    make().restore(2, model=model_of(0), frozen=new)
    assert torch.equal(new.weight, frozen.weight)
    make().restore(1, model=model_of(0), frozen=new)
    assert torch.equal(new.weight, changed.weight)


def test_a_mirror_has_what_is_here_no_more(make, remote, tmp_path):
    checkpointer = make(tmp_path / "local", mirror=remote, keep=2)
    for step in range(1, 4):
        checkpointer.save(step, model=model_of(step), epoch=step)
        checkpointer.wait()
    assert sorted(os.listdir(tmp_path / "local")) == ["step-2", "step-3"]
    assert make().steps() == checkpointer.steps() == [2, 3]
    elsewhere = make(tmp_path / "new machine", mirror=remote, keep=2)
    assert elsewhere.steps() == [2, 3]
    assert restored(elsewhere) == (3, 3.0, 3)
    elsewhere.save(4, model=model_of(4), epoch=4)
    elsewhere.wait()
    assert make().steps() == [3, 4]


def test_a_step_that_goes_up_is_not_deleted_here(make, remote, tmp_path, monkeypatch):
    may_go_on = threading.Event()
    real = Mirror.upload

    def upload(self, step, shared=None):
        may_go_on.wait(60)
        real(self, step, shared)

    monkeypatch.setattr(Mirror, "upload", upload)
    checkpointer = make(tmp_path / "local", mirror=remote, keep=1)
    for step in range(1, 4):
        checkpointer.save(step, model=model_of(step), epoch=step)
    assert checkpointer.steps() == [1, 2, 3]
    may_go_on.set()
    checkpointer.wait()
    assert make().steps() == [3]


@pytest.mark.parametrize("background", [False, True])
def test_a_step_that_cannot_go_up_is_an_error_and_older_ones_stay(
    make, remote, monkeypatch, background
):
    checkpointer = make(background=background)
    checkpointer.save(1, model=model_of(1), epoch=1)
    checkpointer.wait()

    def put(self, *args, **options):
        raise OSError("the network is gone")

    with monkeypatch.context() as patched:
        patched.setattr(Place, "put", put)
        with pytest.raises(OSError, match="the network is gone"):
            checkpointer.save(2, model=model_of(2), epoch=2)
            checkpointer.wait()
    assert make().steps() == [1]
    checkpointer.save(3, model=model_of(3), epoch=3)
    checkpointer.wait()
    assert make().steps() == [1, 3]
    assert restored(make()) == (3, 3.0, 3)


def test_a_save_is_skipped_while_the_one_before_goes_up(make, remote, monkeypatch):
    may_go_on = threading.Event()
    real = Mirror.upload

    def upload(self, step, shared=None):
        may_go_on.wait(60)
        real(self, step, shared)

    monkeypatch.setattr(Mirror, "upload", upload)
    checkpointer = make(background=True, when_busy="skip")
    checkpointer.save(1, model=model_of(1), epoch=1)
    assert checkpointer.save(2, model=model_of(2), epoch=2) is None
    may_go_on.set()
    checkpointer.wait()
    assert make().steps() == [1]


def test_what_does_not_go_together_is_refused(tmp_path):
    url = "memory://refused/steps"
    with pytest.raises(ValueError, match="mirror must be the URL"):
        Checkpointer(tmp_path, mirror=tmp_path / "other")
    with pytest.raises(ValueError, match="are in an object store"):
        Checkpointer(url, mirror=url)
    with pytest.raises(ValueError, match="staging= is for steps in an object store"):
        Checkpointer(tmp_path, staging=tmp_path)


def test_a_flaky_network_loses_no_step(s3, tmp_path):
    proxy = Proxy(s3.endpoint, rate=0.1, seed=SEED, faults=("503", "reset", "delay"))
    backoff = {"init_backoff": timedelta(milliseconds=1), "base": 2}
    backoff["max_backoff"] = timedelta(milliseconds=20)
    retries = {"retry_config": {"backoff": backoff, "max_retries": 20}}
    options = {**s3.options(proxy.endpoint), **retries}
    url = f"s3://bucket/{tmp_path.name}"
    with Checkpointer(
        url, keep=2, storage_options=options, staging=tmp_path / "s", durable=False
    ) as checkpointer:
        for step in range(6):
            checkpointer.save(step, model=model_of(step), epoch=step)
            assert restored(checkpointer) == (step, float(step), step)
        assert checkpointer.steps() == [4, 5]
    assert proxy.met
    proxy.stop()


@pytest.fixture
def large(s3, tmp_path):
    """Return a proxy, a checkpointer that reads by it, and the model of its step."""
    url = f"s3://bucket/{tmp_path.name}/large"
    model = torch.nn.ModuleDict(
        {"first": torch.nn.Linear(1000, 500), "second": torch.nn.Linear(500, 400)}
    )
    staging = tmp_path / "staging"
    with Checkpointer(url, storage_options=s3.options(), staging=staging) as saving:
        saving.save(
            3,
            model=model.bfloat16(),
            data=TensorDict(a=torch.arange(6).reshape(3, 2), batch_size=[3]),
            phase=torch.tensor([1j, 2.0]),
            several=[torch.ones(2), {"x": torch.zeros(1)}],
        )
    proxy = Proxy(s3.endpoint, rate=0.0)
    options = s3.options(proxy.endpoint)
    yield proxy, Checkpointer(url, storage_options=options, staging=staging), model
    proxy.stop()


def test_a_loaded_step_reads_what_is_used_of_it(large):
    proxy, checkpointer, model = large
    shown = checkpointer.load()
    heads = bytes_read(proxy)
    assert heads <= 4 * (16 << 10)
    weight = shown["model", "first", "weight"]
    assert weight.shape == (500, 1000)
    assert torch.equal(weight[[499, 0]], model["first"].weight[[499, 0]])
    assert bytes_read(proxy) - heads == 2 * 2000
    assert torch.equal(shown["data"][1:]["a"], torch.tensor([[2, 3], [4, 5]]))
    assert torch.equal(shown["phase"] * 1, torch.tensor([1j, 2.0]))
    assert torch.equal(shown["several"][0] + 1, torch.full((2,), 2.0))
    whole = shown["model"].to_tensordict().flatten_keys(".")
    for name, tensor in model.state_dict().items():
        assert torch.equal(whole[name], tensor)


def test_a_lazy_restore_brings_the_tensors_that_it_needs(large):
    proxy, checkpointer, model = large
    part = torch.nn.ModuleDict({"second": torch.nn.Linear(500, 400).bfloat16()})
    checkpointer.restore(model=part, lazy=True, strict=False)
    for name, tensor in part["second"].state_dict().items():
        assert torch.equal(tensor, model["second"].state_dict()[name])
    size = sum(each.nbytes for each in part.state_dict().values())
    assert bytes_read(proxy) <= size + 5 * (16 << 10)
