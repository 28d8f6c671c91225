"""The operations that are measured: each as a container expression and as a bare loop.

Names in the expressions:

=========  ==================================================================
``td``     the container, batch size ``B``, each leaf ``[*B, 2]`` float32
``td2``    a second one of the same structure; ``one`` has batch size ``[1, 4, 3]``
``bd``     as ``td``, bool; ``pos`` as ``td``, all positive
``L``      the leaves of ``td`` in a list; ``L2``, ``L1``, ``LB``, ``LP`` of the others
``D``      the entries of ``td`` as nested plain dictionaries, ``k`` the batch dims
``mask``   a bool mask of the batch; ``idx`` an integer tensor
=========  ==================================================================

The bare side does what torch must be asked to do, in a list comprehension, computing
each leaf's new shape from the leaf. Where torch has a ``_foreach_`` form it is that.
Structure operations have no bare side: they compare with the published release alone.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["OPERATIONS", "Operation"]


class Operation(NamedTuple):
    """One measured operation; ``bare`` is None for a structure operation."""

    name: str
    container: str
    bare: str | None


_TENSOR = """
view: td.view(12) = [v.view(12, *v.shape[k:]) for v in L]
view(-1): td.view(-1) = [v.view(-1, *v.shape[k:]) for v in L]
reshape: td.reshape(3, 4) = [v.reshape(3, 4, *v.shape[k:]) for v in L]
permute: td.permute(1, 0) = [v.permute(1, 0, *range(k, v.ndim)) for v in L]
transpose: td.transpose(0, 1) = [v.transpose(0, 1) for v in L]
squeeze: one.squeeze(0) = [v.squeeze(0) for v in L1]
unsqueeze: td.unsqueeze(0) = [v.unsqueeze(0) for v in L]
expand: td.expand(5, 4, 3) = [v.expand(5, 4, 3, *v.shape[k:]) for v in L]
flatten: td.flatten(0, 1) = [v.flatten(0, 1) for v in L]
unflatten: td.unflatten(0, (2, 2)) = [v.unflatten(0, (2, 2)) for v in L]
split: td.split(2) = [v.split(2) for v in L]
chunk: td.chunk(2) = [v.chunk(2) for v in L]
tensor_split: td.tensor_split(2) = [v.tensor_split(2) for v in L]
unbind: td.unbind(0) = [v.unbind(0) for v in L]
repeat: td.repeat(2, 1) = [v.repeat(2, 1, *(1,) * (v.ndim - k)) for v in L]
repeat_interleave: td.repeat_interleave(2, dim=0) = [v.repeat_interleave(2, dim=0) for v in L]
movedim: td.movedim(0, 1) = [v.movedim(0, 1) for v in L]
roll: td.roll(1, 0) = [v.roll(1, 0) for v in L]
flip: td.flip(0) = [v.flip(0) for v in L]
narrow: td.narrow(0, 1, 2) = [v.narrow(0, 1, 2) for v in L]
atleast_3d: td.atleast_3d() = [v.unsqueeze(2) for v in L]
contiguous: td.contiguous() = [v.contiguous() for v in L]
index int: td[0] = [v[0] for v in L]
index slice: td[1:3] = [v[1:3] for v in L]
index tuple: td[1:, 0] = [v[1:, 0] for v in L]
index ellipsis: td[..., 0] = [v[:, 0] for v in L]
index none: td[None] = [v[None] for v in L]
index tensor: td[idx] = [v[idx] for v in L]
index list: td[[0, 2]] = [v[[0, 2]] for v in L]
index mask: td[mask] = [v[mask] for v in L]
setitem: td.__setitem__(0, td2[0]) = [v.__setitem__(0, w[0]) for v, w in zip(L, L2)]
setitem scalar: td.__setitem__(0, 0.0) = [v.__setitem__(0, 0.0) for v in L]
gather: td.gather(0, gidx) = [v.gather(0, gidx.unsqueeze(-1).expand(*gidx.shape, *v.shape[k:])) for v in L]
masked_select: td.masked_select(mask) = [v[mask] for v in L]
masked_fill: td.masked_fill(mask, 0.0) = [v.masked_fill(mask.unsqueeze(-1), 0.0) for v in L]
where: td.where(mask, td2) = [torch.where(mask.unsqueeze(-1), v, w) for v, w in zip(L, L2)]
stack: torch.stack([td, td2], 0) = [torch.stack([v, w], 0) for v, w in zip(L, L2)]
cat: torch.cat([td, td2], 0) = [torch.cat([v, w], 0) for v, w in zip(L, L2)]
clone: td.clone() = [v.clone() for v in L]
to dtype: td.to(torch.float64) = [v.to(torch.float64) for v in L]
double: td.double() = [v.double() for v in L]
to device: td.to("cpu") = [v.to("cpu") for v in L]
detach: td.detach() = [v.detach() for v in L]
data: td.data = [v.data for v in L]
apply: td.apply(torch.neg) = [torch.neg(v) for v in L]
apply lambda: td.apply(lambda x: x) = [(lambda x: x)(v) for v in L]
named_apply: td.named_apply(lambda n, x: x) = [(lambda n, x: x)("a", v) for v in L]
zeros_like: torch.zeros_like(td) = [torch.zeros_like(v) for v in L]
new_zeros: td.new_zeros(2) = [v.new_zeros((2, *v.shape[k:])) for v in L]
add scalar: td + 1 = torch._foreach_add(L, 1)
add: td + td2 = torch._foreach_add(L, L2)
sub: td - td2 = torch._foreach_sub(L, L2)
mul: td * td2 = torch._foreach_mul(L, L2)
div: td / 2 = torch._foreach_div(L, 2)
pow: td ** 2 = torch._foreach_pow(L, 2)
add_: td.add_(0) = torch._foreach_add_(L, 0)
iadd: td.__iadd__(td2) = torch._foreach_add_(L, L2)
mul_: td.mul_(1) = torch._foreach_mul_(L, 1)
neg: -td = torch._foreach_neg(L)
abs: td.abs() = torch._foreach_abs(L)
exp: td.exp() = torch._foreach_exp(L)
log: pos.log() = torch._foreach_log(LP)
sqrt: pos.sqrt() = torch._foreach_sqrt(LP)
sin: td.sin() = torch._foreach_sin(L)
tanh: td.tanh() = torch._foreach_tanh(L)
sigmoid: td.sigmoid() = torch._foreach_sigmoid(L)
reciprocal: pos.reciprocal() = torch._foreach_reciprocal(LP)
round: td.round() = torch._foreach_round(L)
maximum: td.maximum(td2) = torch._foreach_maximum(L, L2)
minimum: td.minimum(td2) = torch._foreach_minimum(L, L2)
clamp_min: td.clamp_min(td2) = torch._foreach_clamp_min(L, L2)
clamp: td.clamp(-1, 1) = [v.clamp(-1, 1) for v in L]
lerp: td.lerp(td2, 0.5) = torch._foreach_lerp(L, L2, 0.5)
addcmul: td.addcmul(td2, td2) = torch._foreach_addcmul(L, L2, L2)
addcdiv: td.addcdiv(td2, pos) = torch._foreach_addcdiv(L, L2, LP)
softmax: td.softmax(0) = [v.softmax(0) for v in L]
eq: td == td2 = [v == w for v, w in zip(L, L2)]
lt: td < td2 = [v < w for v, w in zip(L, L2)]
eq scalar: td == 0 = [v == 0 for v in L]
and: bd & bd = [v & v for v in LB]
invert: ~bd = [~v for v in LB]
isnan: td.isnan() = [v.isnan() for v in L]
isfinite: td.isfinite() = [v.isfinite() for v in L]
all: bd.all() = all(v.all() for v in LB)
any: bd.any() = any([v.any() for v in LB])
sum dim: td.sum(0) = [v.sum(0) for v in L]
sum: td.sum() = [v.sum() for v in L]
mean dim: td.mean(0) = [v.mean(0) for v in L]
max dim: td.max(0) = [v.max(0) for v in L]
amax: td.amax(0) = [v.amax(0) for v in L]
std: td.std(0) = [v.std(0) for v in L]
norm: td.norm() = torch._foreach_norm(L)
logsumexp: td.logsumexp(0) = [v.logsumexp(0) for v in L]
zero_: td.zero_() = torch._foreach_zero_(L)
copy_: td.copy_(td2) = torch._foreach_copy_(L, L2)
update_: td.update_(td2) = torch._foreach_copy_(L, L2)
requires_grad_: td.requires_grad_(False) = [v.requires_grad_(False) for v in L]
"""

_STRUCTURE = """
clone(False): td.clone(False)
copy: td.copy()
select: td.select(*keys)
select half: td.select(*half)
exclude: td.exclude(*half)
flatten_keys: td.flatten_keys(".")
unflatten_keys: flat.unflatten_keys(".")
update: up.update(td2)
update dict: up.update(D)
keys: list(td.keys())
keys nested: list(td.keys(True, True))
items: list(td.items())
items nested: list(td.items(True, True))
values nested: list(td.values(True, True))
contains: last in td
get: td.get(last)
getitem: td[last]
get missing: td.get("missing")
set: td.set(last, leaf)
setitem: td.__setitem__(last, leaf)
set_: td.set_(last, leaf)
pop and set: td.set("extra", leaf).pop("extra")
rename_key_: td.rename_key_(first, "renamed").rename_key_("renamed", first)
lock and unlock: td.lock_().unlock_()
get of locked: locked.get(last)
empty: td.empty()
empty recurse: td.empty(recurse=True)
to_dict: td.to_dict()
from_dict: TensorDict.from_dict(D, batch_size=[4, 3])
build: TensorDict(D, [4, 3])
replace: td.replace(D)
split_keys: td.split_keys(half)
batch_size: td.batch_size
device: td.device
names: td.names
numel: td.numel()
is_empty: td.is_empty()
is_locked: td.is_locked
len: len(td)
isinstance leaf test: td.is_floating_point()
bytes: td.bytes()
"""


def _parse(text: str, *, bare: bool) -> list[Operation]:
    operations = []
    for line in text.strip().splitlines():
        name, _, rest = line.partition(": ")
        if bare:
            container, _, loop = rest.rpartition(" = ")
            operations.append(Operation(name, container, loop))
        else:
            operations.append(Operation(name, rest, None))
    return operations


OPERATIONS = _parse(_TENSOR, bare=True) + _parse(_STRUCTURE, bare=False)
