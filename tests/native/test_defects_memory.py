"""A save reads the memory that tensors have when it is called, and none that is gone."""

from separate_process import check_separately


def test_a_background_save_writes_what_the_tensors_were(tmp_path):
    check_separately(
        """
        size = 2_000_000
        values = torch.arange(float(size))
        changes = {
            "half": lambda p: setattr(p, "data", p.data.half()),
            "data": lambda p: setattr(p, "data", torch.zeros(3)),
            "set_": lambda p: p.data.set_(torch.zeros(3)),
        }
        for name, change in changes.items():
            parameter = torch.nn.Parameter(values.clone())
            td = TensorDict({"a": parameter, "b": torch.ones(size)}, [])
            future = td.memmap(name, return_early=True, num_threads=2)
            change(parameter)
            del td
            other = [torch.full((size,), 7.0) for _ in range(3)]
            future.result()
            saved = TensorDict.load_memmap(name)["a"]
            assert saved.dtype is torch.float32 and torch.equal(saved, values), name
        """,
        tmp_path,
    )


def test_a_save_while_another_thread_exchanges_the_memory(tmp_path):
    check_separately(
        """
        tensors = [torch.arange(1000.0) for _ in range(200)]
        td = TensorDict({f"k{at}": each for at, each in enumerate(tensors)}, [])
        is_done = False

        def exchange():
            while not is_done:
                for each in tensors:
                    each.data = torch.arange(1000.0)

        thread = threading.Thread(target=exchange)
        thread.start()
        for at in range(5):
            for name in (f"{at}", f"{at}.tdz", f"{at}.safetensors"):
                td.save(name)
                for value in TensorDict.load(name).values():
                    assert torch.equal(value, torch.arange(1000.0))
        is_done = True
        thread.join()
        """,
        tmp_path,
    )


def test_a_tensor_beyond_its_storage_is_refused_by_name(tmp_path):
    check_separately(
        """
        def cut(tensor):
            tensor.untyped_storage().resize_(16)
            return tensor

        size = 4_000_000
        whole = torch.zeros(size)
        part = whole[3:]
        square = torch.zeros(2000, 2000).t()
        cut(square)
        cut(whole)
        for entries in (
            {"key": whole},
            {"key": part},
            {"key": square},
            {"key": torch.nn.Parameter(cut(torch.zeros(size)))},
        ):
            td = TensorDict({"ok": torch.ones(1), "n": entries}, [])
            for save in (
                lambda: td.memmap("tree"),
                lambda: td.save("archive.tdz"),
                lambda: td.save("file.safetensors"),
                lambda: td.consolidate("file"),
            ):
                with pytest.raises(RuntimeError, match="storage.*key"):
                    save()
        """,
        tmp_path,
    )


def test_a_tensor_over_a_file_that_was_cut_is_refused_by_name(tmp_path):
    check_separately(
        """
        source = {"key": torch.zeros(100_000), "n": {"other": torch.zeros(100_000)}}
        mapped = TensorDict(source, []).memmap("first")
        os.truncate("first/key.memmap", 4096)
        for td in (mapped,):
            for save in (
                lambda: td.memmap("second", copy_existing=True),
                lambda: td.save("second.tdz"),
                lambda: td.save("second.safetensors"),
                lambda: td.consolidate("file"),
            ):
                with pytest.raises(RuntimeError, match="was cut.*key"):
                    save()
        """,
        tmp_path,
    )


def test_memory_that_was_freed_before_it_was_read_is_an_error(tmp_path):
    check_separately(
        """
        from tensordict.storage.layouts import archive, directory

        size = 4_000_000
        changes = {
            "larger": lambda tensor: tensor.resize_(4 * size),
            "freed": lambda tensor: tensor.untyped_storage().resize_(0),
            "shared": lambda tensor: tensor.share_memory_(),
        }
        tensors = {
            "whole": lambda tensor: tensor,
            "view": lambda tensor: tensor.view(-1)[5:],
            "parameter": lambda tensor: torch.nn.Parameter(tensor),
        }
        for name, change in changes.items():
            for kind, taken in tensors.items():
                tensor = torch.ones(size)
                td = TensorDict({"ok": torch.ones(1), "n": {"key": taken(tensor)}}, [])

                def later(td, work, *_):
                    change(tensor)
                    return work()

                for layout, path in ((directory, "tree"), (archive, "one.tdz")):
                    TensorDict(old=torch.ones(2)).save(path)
                    kept, layout.now_or_later = layout.now_or_later, later
                    try:
                        with pytest.raises(RuntimeError, match="freed or moved.*clone"):
                            td.save(path, return_early=True)
                    finally:
                        layout.now_or_later = kept
                    assert list(TensorDict.load(path).keys()) == ["old"]
                    tensor = torch.ones(size)
                    td["n", "key"] = taken(tensor)
        assert sorted(os.listdir()) == ["one.tdz", "tree"]
        """,
        tmp_path,
    )


def test_saves_while_another_thread_resizes_the_tensors(tmp_path):
    check_separately(
        """
        from tensordict import to_safetensors

        size = 300_000
        td = TensorDict({f"k{at}": torch.ones(size) for at in range(8)}, [])
        tensors = list(td.values())
        saves = {
            "memmap": lambda: td.memmap("tree", num_threads=2),
            "early": lambda: td.memmap("early", return_early=True).result(),
            "archive": lambda: td.save("one.tdz"),
            "consolidate": lambda: td.consolidate("buffer"),
            "safetensors": lambda: to_safetensors(td, "one.safetensors"),
        }
        is_done = False

        def resize():
            while not is_done:
                for tensor in tensors:
                    tensor.resize_(4 * size)
                    tensor.untyped_storage().resize_(4 * size)
                    tensor.resize_(size)

        thread = threading.Thread(target=resize)
        thread.start()
        for save in saves.values():
            for _ in range(4):
                try:
                    save()
                except RuntimeError as error:
                    assert "freed or moved" in str(error) or "shorter" in str(error)
        is_done = True
        thread.join()
        """,
        tmp_path,
    )
