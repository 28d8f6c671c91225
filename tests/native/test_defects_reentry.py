"""Python code that runs in the middle of a walk can change whatever is walked."""

import os
import struct

import pytest
import torch

from separate_process import check_separately
from tensordict import TensorDict, _rust


def test_attributes_whose_names_clear_the_container(tmp_path):
    check_separately(
        """
        class Key:
            def __init__(self, name, holder):
                self.hash, self.holder = hash(name), holder

            def __hash__(self):
                return self.hash

            def __eq__(self, other):
                self.holder._tensordict.clear()
                return False

        def meddled(name):
            td = TensorDict({f"k{at}": torch.ones(2) for at in range(5)}, [2])
            nested = TensorDict({"b": torch.ones(2)}, [2])
            td._tensordict["n"] = nested
            td._tensordict.update({f"z{at}": torch.ones(2) for at in range(5)})
            state = vars(nested)
            kept = dict(state)
            state.clear()
            # In front of the attribute that is looked for, and with its hash.
            state[Key(name, td)] = None
            state.update(kept)
            del nested, kept, state
            return td

        plain = TensorDict({f"k{at}": torch.ones(2) for at in range(5)}, [2])
        plain["n"] = TensorDict({"b": torch.ones(2)}, [2])
        plain.update({f"z{at}": torch.ones(2) for at in range(5)})
        for name in ("_tensordict", "_batch_size", "_device", "_td_dim_names", "_is_locked"):
            for operate in (
                lambda td: td + td, lambda td: td == td, lambda td: td + 1,
                lambda td: td.clone(), lambda td: td.clone(False), lambda td: td.data,
                lambda td: torch.stack([td, td]), lambda td: td[0], lambda td: td + plain,
                lambda td: plain + td, lambda td: td.update_(plain), lambda td: td.sum(),
                lambda td: plain.update(td), lambda td: td.apply(torch.clone),
                lambda td: list(td.keys(True)), lambda td: td.lock_(), lambda td: td.abs_(),
                lambda td: td.all(), lambda td: td.is_empty(), lambda td: td.unbind(0),
                lambda td: td.exclude("b"), lambda td: td.flatten_keys(),
            ):
                try:
                    operate(meddled(name))
                except Exception:
                    pass
        """,
        tmp_path,
        overwrites_freed=True,
    )


def test_a_mode_that_frees_what_is_stored(tmp_path):
    check_separately(
        """
        from torch.overrides import TorchFunctionMode

        class Clears(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                for each in (entries, td._tensordict):
                    each.clear()
                return func(*args, **(kwargs or {}))

        for batch_size in ([], [2]):
            for device in (None, "cpu"):
                td = TensorDict({}, batch_size)
                entries = {}
                # From the first on, the attributes of such tensors are looked at.
                for _ in range(3):
                    entries.update(
                        {f"k{at}": torch.ones(2, device="meta") for at in range(20)}
                    )
                    with Clears():
                        try:
                            td = TensorDict(entries, batch_size, device=device)
                            td.update(entries)
                        except Exception:
                            pass
        """,
        tmp_path,
        overwrites_freed=True,
    )


def test_shared_values_of_a_file_that_could_be_cut_are_refused(tmp_path):
    values = _rust.SharedValues([b"one", b"two"])
    assert _rust.SharedValues.from_descriptor(os.dup(values.fileno())).read(1)[1] == (
        b"two"
    )
    content = os.pread(values.fileno(), 1 << 16, 0)
    plain = tmp_path / "plain"
    plain.write_bytes(content)
    with pytest.raises(RuntimeError, match="fixed size"):
        _rust.SharedValues.from_descriptor(os.open(plain, os.O_RDWR))
    with pytest.raises(OSError):
        os.ftruncate(values.fileno(), 8)
    if hasattr(os, "memfd_create"):
        import fcntl

        # The lock is in the second half of the header.
        other = os.memfd_create("other", os.MFD_ALLOW_SEALING)
        os.write(other, content[:64] + struct.pack("<8Q", *[-1 & (1 << 64) - 1] * 8))
        os.write(other, content[128:])
        fcntl.fcntl(other, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with pytest.raises(RuntimeError, match="lock"):
            _rust.SharedValues.from_descriptor(other)


def test_a_safetensors_file_is_covered_by_its_header(tmp_path):
    path = tmp_path / "file.safetensors"
    TensorDict({"a": torch.ones(2)}, []).save(path)
    content = path.read_bytes()
    path.write_bytes(content + b"\0")
    with pytest.raises(RuntimeError, match="appended"):
        TensorDict.load(path)
