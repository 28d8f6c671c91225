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
