"""The commands on places in object stores."""

import json

import pytest
import torch

import tensordict
from tensordict import TensorDict, cli, from_safetensors
from tensordict.checkpoint import Checkpointer
from tensordict.cli import diff
from tensordict.storage.functions import to_safetensors
from tensordict.storage.remote import (
    Place,
    copying,
    place_of,
    publishing,
    reading,
    saving,
    tensor,
)
from tensordict.storage.remote.leftovers import find_leftovers


def sample(value=0.0):
    return TensorDict(a=torch.full((300, 4), value), n={"b": torch.ones(300)})


@pytest.fixture
def command(capsys):
    def run(*arguments, status=0):
        found = cli.main([*map(str, arguments)])
        said = capsys.readouterr()
        assert found == status, said
        return said.out + said.err

    return run


def names(url):
    return {found.name for found in place_of(url).list()}


SAVES = {
    "tree": ("data", lambda url: sample().save(url)),
    "archive": ("data.tdz", lambda url: sample().save(url)),
    "safetensors": ("data.safetensors", lambda url: to_safetensors(sample(), url)),
    "shards": ("d.safetensors", lambda url: to_safetensors(sample(), url, shards=2)),
}


@pytest.mark.parametrize("layout", SAVES)
def test_a_save_is_inspected_verified_shown_and_compared(
    remote, layout, command, tmp_path
):
    name, save = SAVES[layout]
    url = f"{remote}/{name}"
    save(url)
    said = command("inspect", url)
    assert "300" in said
    assert "/tmp" not in said
    assert url in said
    assert json.loads(command("inspect", url, "--json"))["path"] == url
    command("verify", url)
    page = tmp_path / "page.html"
    command("show", url, "--output", page)
    assert "300" in page.read_text()
    other = tmp_path / "other"
    sample().save(other)
    command("diff", url, other, "--quiet")
    sample(1.0).save(other)
    command("diff", url, other, "--quiet", status=1)


@pytest.mark.parametrize("layout", SAVES)
def test_dense_saves_are_compared_where_they_are(
    remote, layout, command, tmp_path, monkeypatch
):
    name, save = SAVES[layout]
    save(f"{remote}/{name}")
    sample().set("a", torch.full((300, 4), 2.0)).save(f"{remote}/other")
    read = []
    real = reading.read_all

    def read_all(wanted):
        read.append(sum(each.lengths.sum() for each in wanted))
        return real(wanted)

    def bring(*arguments, **options):
        raise AssertionError(arguments)

    monkeypatch.setattr(copying, "bring", bring)
    monkeypatch.setattr(tensor, "read_all", read_all)
    monkeypatch.setattr(diff, "PIECE_ITEMS", 100)
    url, other = f"{remote}/{name}", f"{remote}/other"
    said = command("diff", url, other, "--quiet", status=1)
    assert "a: values: 1200 of 1200 items differ, by at most 2" in said
    assert max(read) <= 400
    command("diff", other, other, "--quiet")
    sample().save(tmp_path / "local")
    assert "all the same" in command("diff", url, tmp_path / "local", "--quiet")


def test_a_save_is_converted_to_another_place(remote, command, tmp_path):
    sample().save(f"{remote}/data")
    target = f"{remote}/data.safetensors"
    command("convert", f"{remote}/data", target)
    assert "already" in command("convert", f"{remote}/data", target, status=2)
    command("convert", target, tmp_path / "back.tdz", "--force")
    assert (TensorDict.load(tmp_path / "back.tdz")["a"] == 0).all()


@pytest.mark.parametrize("layout", SAVES)
def test_a_save_is_copied_between_any_two_places(remote, layout, command, tmp_path):
    name, save = SAVES[layout]
    save(str(tmp_path / name))
    source = tmp_path / name
    if layout == "shards":
        source = tmp_path
        command("cp", source, f"{remote}/up", "--quiet")
        command("cp", f"{remote}/up", f"{remote}/over")
        command("cp", f"{remote}/over", tmp_path / "down")
        found = from_safetensors(tmp_path / "down" / name)
    else:
        command("cp", source, f"{remote}/up/{name}", "--quiet")
        command("cp", f"{remote}/up/{name}", f"{remote}/over/{name}")
        command("cp", f"{remote}/over/{name}", tmp_path / "down" / name)
        found = TensorDict.load(tmp_path / "down" / name)
    assert (found["n", "b"] == 1).all()


def test_a_copy_replaces_only_by_force(remote, command, tmp_path):
    sample().save(tmp_path / "data")
    command("cp", tmp_path / "data", f"{remote}/data")
    said = command("cp", tmp_path / "data", f"{remote}/data", status=2)
    assert "--force" in said
    sample(1.0).save(tmp_path / "data")
    command("cp", tmp_path / "data", f"{remote}/data", "--force")
    command("cp", f"{remote}/data", tmp_path / "data", "--force")
    assert (TensorDict.load(tmp_path / "data")["a"] == 1).all()
    assert "nothing at" in command("cp", f"{remote}/none", tmp_path / "x", status=2)
    assert not (tmp_path / "x").exists()


def test_steps_are_listed_verified_and_copied_whole(remote, command, tmp_path):
    frozen = torch.nn.Linear(100, 100)
    with Checkpointer(
        remote, dedupe=True, keep=2, staging=tmp_path / "staging"
    ) as checkpointer:
        for step in range(4):
            checkpointer.save(step, frozen=frozen, epoch=step)
    assert "step 3" in command("inspect", remote)
    command("verify", remote)
    command("cp", remote, tmp_path / "steps")
    local = Checkpointer(tmp_path / "steps")
    assert local.steps() == [2, 3]
    new = torch.nn.Linear(100, 100)
    assert local.restore(frozen=new)["epoch"] == 3
    assert torch.equal(new.weight, frozen.weight)
    command("cp", tmp_path / "steps", f"{remote}-copy")
    copied = Checkpointer(f"{remote}-copy", staging=tmp_path / "other")
    assert copied.steps() == [2, 3]


def test_a_damaged_save_is_reported_by_its_url(remote, command):
    sample().save(f"{remote}/data")
    place = place_of(f"{remote}/data")
    content = bytearray(place.get("a.memmap"))
    content[7] ^= 255
    place.put("a.memmap", bytes(content))
    said = command("verify", f"{remote}/data", status=1)
    assert "a.memmap" in said
    assert "/tmp/" not in said


@pytest.mark.parametrize("histograms", [False, True])
def test_show_reads_the_rows_of_its_previews(
    histograms, command, tmp_path, monkeypatch, request
):
    url = f"memory:///{request.node.name}"
    images = torch.randint(0, 255, (50, 3, 16, 16), dtype=torch.uint8)
    rows = TensorDict(images=images, many=torch.zeros(50, 10_000), batch_size=[50])
    td = TensorDict(data=rows, few=torch.tensor([7, 9]))
    td.memmap(url)
    td.memmap(tmp_path / "data")
    read = []
    plain = reading.read_plain

    def noting(wanted):
        read.append(reading.count_bytes(wanted))
        plain(wanted)

    monkeypatch.setattr(reading, "read_plain", noting)
    options = ["--histograms"] if histograms else []
    command("show", url, "--output", tmp_path / "there.html", *options)
    command("show", tmp_path / "data", "--output", tmp_path / "here.html", *options)
    there, here = (
        (tmp_path / f"{name}.html").read_text() for name in ("there", "here")
    )
    assert there.count("<img") == here.count("<img") == 4
    assert "[7, 9]" in there
    assert there.count("<svg") == here.count("<svg")
    if not histograms:
        assert sum(read) == 4 * images[0].nbytes + td["few"].nbytes


def fail_at(monkeypatch, name):
    """Have a writer of another machine end, as by a kill, when it puts an object of this name."""
    real = Place.put

    def put(self, *args, **options):
        if args[0].endswith(name):
            raise KeyboardInterrupt
        return real(self, *args, **options)

    monkeypatch.setattr(Place, "put", put)
    monkeypatch.setattr(publishing, "forget", lambda *_: None)
    monkeypatch.setattr(publishing.socket, "gethostname", lambda: "elsewhere")


@pytest.mark.parametrize("is_there", [False, True])
def test_what_a_killed_writer_left_is_found_and_removed(
    remote, command, monkeypatch, is_there
):
    url = f"{remote}/data"
    if is_there:
        sample(5.0).save(url)
    before = names(remote)
    with monkeypatch.context() as patched:
        fail_at(patched, "b.memmap")
        with pytest.raises(KeyboardInterrupt):
            sample().save(url)
    left = names(remote) - before
    assert left
    # The other machine may still run: its objects stay until they are old.
    assert "no leftovers" in command("clean", remote)
    assert "not finished" in command("clean", remote, "--older-than", -1, "--dry-run")
    assert names(remote) == before | left
    command("clean", remote, "--older-than", -1)
    assert names(remote) == before
    sample(6.0).save(url)
    assert find_leftovers(place_of(remote), -1) == []


def test_what_was_left_of_nested_levels_is_removed(command, monkeypatch, request):
    remote = f"memory:///{request.node.name}"
    # One at a time, the largest first: the description of the level goes up before it fails.
    monkeypatch.setattr(publishing, "THREADS", 1)
    td = TensorDict(n=TensorDict(b=torch.ones(1, dtype=torch.int8)))
    with monkeypatch.context() as patched:
        fail_at(patched, "b.memmap")
        with pytest.raises(KeyboardInterrupt):
            td.save(f"{remote}/data")
    assert "data/n/meta.json" in names(remote)
    td.save(f"{remote}/whole")
    # Another save has a name that the one before would have used.
    place_of(f"{remote}/data").delete(["n/meta.json"])
    td["n"].save(f"{remote}/data/n")
    command("clean", remote, "--older-than", -1)
    assert tensordict.load(f"{remote}/data/n")["b"][:] == 1
    place_of(f"{remote}/data/n").delete(list(names(f"{remote}/data/n")))
    with monkeypatch.context() as patched:
        fail_at(patched, "b.memmap")
        with pytest.raises(KeyboardInterrupt):
            td.save(f"{remote}/data")
    kept = {name for name in names(remote) if name.startswith("whole/")}
    command("clean", remote, "--older-than", -1)
    assert names(remote) == kept
    assert "whole/n/meta.json" in kept


def test_clean_takes_nothing_that_a_save_needs(remote, command, tmp_path):
    for value in range(2):
        sample(value).save(f"{remote}/twice")
    sample().save(f"{remote}/nested/once")
    to_safetensors(sample(), f"{remote}/d.safetensors", shards=2)
    place_of(remote).put("notes.txt", b"mine")
    frozen = torch.nn.Linear(100, 100)
    with Checkpointer(
        f"{remote}/run", dedupe=True, keep=1, staging=tmp_path
    ) as checkpointer:
        for step in range(3):
            checkpointer.save(step, frozen=frozen, epoch=step)
    before = names(remote)
    assert "no leftovers" in command("clean", remote, "--older-than", -1)
    assert names(remote) == before


@pytest.mark.parametrize("layout", ["tree", "shards"])
def test_clean_spares_a_save_that_runs_on_this_machine(
    remote, command, monkeypatch, layout
):
    name, save = SAVES[layout]
    module = publishing if layout == "tree" else saving
    real = module.in_threads

    def in_threads(*arguments):
        real(*arguments)
        assert "no leftovers" in command("clean", remote, "--older-than", -1)

    monkeypatch.setattr(module, "in_threads", in_threads)
    save(f"{remote}/{name}")
    assert (tensordict.load(f"{remote}/{name}")["n", "b"][:] == 1).all()
    if layout == "shards":
        assert len(names(remote)) == 3


@pytest.mark.parametrize("layout", ["tree", "shards"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_long_save_whose_objects_are_gone_is_not_published(
    remote, monkeypatch, layout, is_there
):
    name, save = SAVES[layout]
    module = publishing if layout == "tree" else saving
    monkeypatch.setattr(module, "CHECK_S", 0.0)
    if is_there:
        save(f"{remote}/{name}")
    before = names(remote)
    real = module.in_threads

    def in_threads(*arguments):
        real(*arguments)
        own = [
            each
            for each in names(remote) - before
            if "memmap" in each or "-of-" in each
        ]
        place_of(remote).delete(own[:1])

    with monkeypatch.context() as patched:
        patched.setattr(module, "in_threads", in_threads)
        with pytest.raises(RuntimeError, match=r"is gone. `tensordict clean`"):
            save(f"{remote}/{name}")
    assert names(remote) == before
    save(f"{remote}/{name}")
    assert (tensordict.load(f"{remote}/{name}")["n", "b"][:] == 1).all()


def test_shards_that_no_index_names_are_left_over(remote, command):
    to_safetensors(sample(), f"{remote}/d.safetensors", shards=2)
    place_of(remote).delete(["d.safetensors.index.json"])
    command("clean", remote)
    assert len(names(remote)) == 2
    command("clean", remote, "--older-than", -1)
    assert not names(remote)


def test_options_of_the_command_line_reach_the_store(s3, command, tmp_path):
    url = f"s3://bucket/{tmp_path.name}"
    options = [f"--option={key}={value}" for key, value in s3.options().items()]
    sample().save(tmp_path / "data")
    command("cp", tmp_path / "data", url, *options)
    assert "300" in command("inspect", url, *options)
    assert "key=value" in command("inspect", url, "--option", "wrong", status=2)
    assert "on this machine" in command("clean", tmp_path, status=2)
    assert "seal it here" in command("seal", url, *options, status=2)


def test_steps_are_verified_an_item_at_a_time(remote, command, monkeypatch):
    with Checkpointer(f"{remote}/run", dedupe=True, durable=False) as checkpointer:
        for step in range(3):
            checkpointer.save(step, a=torch.full((9000,), step), b=torch.ones(9000))

    def bring(*arguments, **options):
        raise AssertionError(arguments)

    monkeypatch.setattr(copying, "bring", bring)
    assert command("verify", f"{remote}/run").count("ok (every byte)") == 3
    said = json.loads(command("verify", f"{remote}/run/step-2", "--json"))
    assert said["steps"] == {f"{remote}/run/step-2": []}
    place = place_of(f"{remote}/run")
    (name,) = [
        name
        for name in names(f"{remote}/run")
        if name.startswith("step-1/")
        and "a" in name.rpartition("/")[2]
        and name.endswith(".safetensors")
    ]
    content = bytearray(place.get(name))
    content[-1] ^= 1
    place.put(name, bytes(content))
    said = command("verify", f"{remote}/run", status=1)
    assert said.count("ok (every byte)") == 2
    assert f"DAMAGED   {remote}/run/step-1: " in said or f"{remote}/run/step-1" in said
    assert "/tmp" not in said
    place.delete([name])
    assert "step-1: checkpoint, damaged" in command("verify", f"{remote}/run", status=1)
