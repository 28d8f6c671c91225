"""A process may fork at any time, also while other threads save and load."""

from separate_process import check_separately


def test_children_load_and_save_while_threads_of_the_parent_do(tmp_path):
    check_separately(
        """
        import signal

        td = TensorDict({f"k{at}": torch.ones(2) for at in range(40)}, [])
        td.memmap("source")
        is_done = False

        def work(number):
            while not is_done:
                td.memmap(f"target{number}")
                TensorDict.load_memmap("source")

        threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
        for thread in threads:
            thread.start()
        status = 0
        for _ in range(50):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                TensorDict.load_memmap("source")
                os._exit(0)
            status = status or os.waitpid(child, 0)[1]
            if status:
                break
        is_done = True
        for thread in threads:
            thread.join()
        assert status == 0, status
        """,
        tmp_path,
    )
