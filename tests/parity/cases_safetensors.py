"""Safetensors files: what the release writes, reads, and refuses."""

from frame import cases

PATH = "p = tempfile.mkdtemp() + '/x.safetensors'; "

CASES = [
    *cases(
        "to_safetensors",
        f"""
        {PATH}to_safetensors(td, p); from_safetensors(p)
        {PATH}to_safetensors(td, p); from_safetensors(p, device='cpu')
        {PATH}to_safetensors(td, p); from_safetensors(p).is_locked
        {PATH}to_safetensors(td, p); list(from_safetensors(p).keys())
        {PATH}to_safetensors(td, p)
    """,
        on="flat nested deep empty scalar zero locked named half_named cpu mixed "
        "empty_nested sub grad dotted",
    ),
    *cases(
        "to_safetensors",
        f"""
        {PATH}to_safetensors(TensorDict(a='hi', b=T([2])), p); from_safetensors(p)
        {PATH}to_safetensors(TensorDict(a=NonTensorData([1, None])), p); from_safetensors(p)
        {PATH}to_safetensors(TensorDict({{'a': T([3, 2]).T}}), p); from_safetensors(p)
        {PATH}to_safetensors(TensorDict({{'a.b': T([1]), 'a': {{'b': T([1])}}}}), p)
        {PATH}to_safetensors(TensorDict({{'a': object()}}), p)
        {PATH}to_safetensors(TensorDict({{'a': T([2, 2]).to_sparse()}}), p)
        {PATH}to_safetensors(TensorDict({{'a': NonTensorStack('x', 'y')}}, [2]), p)
        {PATH}to_safetensors(NonTensorData(3), p)
        {PATH}to_safetensors(TensorDict({{'a': torch.ones(2, device='meta')}}), p)
        {PATH}s = lazy_stack([TensorDict(a=T([2]))] * 2); to_safetensors(s, p); from_safetensors(p)
        {PATH}x = T([2]); to_safetensors(TensorDict(a=x, b=x), p); from_safetensors(p)
        {PATH}to_safetensors({{'a': T([1])}}, p)
        {PATH}type(to_safetensors(TensorDict(a=T([1])), p))
    """,
        on="none",
    ),
    *cases(
        "to_safetensors",
        f"{PATH}to_safetensors(TensorDict(a=NonTensorData((1, 2))), p); "
        "from_safetensors(p)['a']",
        on="none",
        reason="the release refuses tuples",
        ours="result == (1, 2)",
    ),
    *cases("from_safetensors", "from_safetensors('/nowhere/at/all')", on="none"),
]

HELPERS = (PATH,)
"""The beginnings of programs: answers go by what follows them."""
