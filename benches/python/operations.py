"""The measured operations: a tensordict expression and a bare loop for each.

Names in the expressions:

=========  ==================================================================
``td``     the container, batch size ``B``, each leaf ``[*B, 2]`` float32
``td2``    a second one of the same structure; ``one`` has batch size ``[1, 4, 3]``
``bd``     as ``td``, bool; ``pos`` as ``td``, all positive; ``sg`` a copy of ``td``
``L``      the leaves of ``td`` in a list; ``L2``, ``L1``, ``LB``, ``LP``, ``LS`` of the others
``D``      the entries of ``td`` as nested plain dictionaries, ``k`` the batch dims
``locked``  a locked copy of ``td``, ``named`` one whose dims have names
``mask``   a bool mask of the batch; ``idx`` and ``gidx`` integer tensors
=========  ==================================================================

The bare side makes the necessary torch calls in a list comprehension, and computes the
new shape of each leaf from the leaf. If torch has a ``_foreach_`` function, it is used.
Structure operations have no bare side; they compare with the published release only.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["OPERATIONS", "Operation"]


class Operation(NamedTuple):
    """A measured operation; ``bare`` is None if it compares with the release only."""

    name: str
    container: str
    bare: str | None
    group: str


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
atleast_3d: td.atleast_3d() = [v.unsqueeze(0) for v in L]
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
ge: td >= td2 = [v >= w for v, w in zip(L, L2)]
ne: td != td2 = [v != w for v, w in zip(L, L2)]
eq tensor: td == scalar = [v == scalar for v in L]
or: bd | bd = [v | v for v in LB]
xor: bd ^ bd = [v ^ v for v in LB]
logical_and: bd.logical_and(bd) = [v.logical_and(v) for v in LB]
isneginf: td.isneginf() = [v.isneginf() for v in L]
isreal: td.isreal() = [v.isreal() for v in L]
radd: 1 + td = torch._foreach_add(L, 1)
rsub: 1 - td = [torch.rsub(v, 1) for v in L]
rdiv: 2 / pos = torch._foreach_mul(torch._foreach_reciprocal(LP), 2)
mod: td % 2 = [v % 2 for v in L]
add tensor: td + scalar = torch._foreach_add(L, scalar)
add batch tensor: td + per = [v + per.unsqueeze(-1) for v in L]
add alpha: td.add(td2, alpha=2) = torch._foreach_add(L, L2, alpha=2)
isub: td.__isub__(td2) = torch._foreach_sub_(L, L2)
imul: td.__imul__(1.0) = torch._foreach_mul_(L, 1.0)
ipow: td.__ipow__(1) = torch._foreach_pow_(L, 1)
abs_: pos.abs_() = torch._foreach_abs_(LP)
clamp_min_: td.clamp_min_(-9.0) = torch._foreach_clamp_min_(L, -9.0)
lerp_: td.lerp_(td, 0.5) = torch._foreach_lerp_(L, L, 0.5)
prod: td.prod(0) = [v.prod(0) for v in L]
min: td.min(0) = [v.min(0) for v in L]
cummax: td.cummax(0) = [v.cummax(0) for v in L]
nansum: td.nansum(0) = [v.nansum(0) for v in L]
nanmean: td.nanmean(0) = [v.nanmean(0) for v in L]
quantile: td.quantile(0.5, 0) = [v.quantile(0.5, 0) for v in L]
var: td.var(0) = [v.var(0) for v in L]
all dim: bd.all(0) = [v.all(0) for v in LB]
any dim: bd.any(0) = [v.any(0) for v in LB]
expand_as: td.expand_as(td2) = [v.expand_as(w) for v, w in zip(L, L2)]
broadcast_to: td.broadcast_to((4, 3)) = [v.expand(4, 3, *v.shape[k:]) for v in L]
swapaxes: td.swapaxes(0, 1) = [v.swapaxes(0, 1) for v in L]
moveaxis: td.moveaxis(0, 1) = [v.moveaxis(0, 1) for v in L]
tile: td.tile((2, 1)) = [v.repeat(2, 1, *(1,) * (v.ndim - k)) for v in L]
rot90: td.rot90() = [v.rot90() for v in L]
fliplr: td.fliplr() = [v.fliplr() for v in L]
split sizes: td.split([1, 3]) = [v.split([1, 3]) for v in L]
masked_fill_: td.masked_fill_(mask, 0.0) = [v.masked_fill_(mask.unsqueeze(-1), 0.0) for v in L]
index bool: td[True] = [v[True] for v in L]
index range: td[range(2)] = [v[range(2)] for v in L]
new_ones: td.new_ones(2) = [v.new_ones((2, *v.shape[k:])) for v in L]
new_full: td.new_full((2,), 1.0) = [v.new_full((2, *v.shape[k:]), 1.0) for v in L]
new_empty: td.new_empty(2) = [v.new_empty((2, *v.shape[k:])) for v in L]
ones_like: torch.ones_like(td) = [torch.ones_like(v) for v in L]
full_like: torch.full_like(td, 1.0) = [torch.full_like(v, 1.0) for v in L]
empty_like: torch.empty_like(td) = [torch.empty_like(v) for v in L]
torch.unbind: torch.unbind(td, 0) = [torch.unbind(v, 0) for v in L]
torch.split: torch.split(td, 2) = [torch.split(v, 2) for v in L]
torch.clone: torch.clone(td) = [torch.clone(v) for v in L]
torch.squeeze: torch.squeeze(one, 0) = [torch.squeeze(v, 0) for v in L1]
cpu: td.cpu() = [v.cpu() for v in L]
float: td.float() = [v.float() for v in L]
half: td.half() = [v.half() for v in L]
int: td.int() = [v.int() for v in L]
type: td.type(torch.float64) = [v.type(torch.float64) for v in L]
detach_: td.detach_() = [v.detach_() for v in L]
gt: td > td2 = [v > w for v, w in zip(L, L2)]
le: td <= td2 = [v <= w for v, w in zip(L, L2)]
isposinf: td.isposinf() = [v.isposinf() for v in L]
bitwise_and: bd.bitwise_and(bd) = [v.bitwise_and(v) for v in LB]
mod method: td.mod(2) = [v % 2 for v in L]
rsub method: td.rsub(1) = [torch.rsub(v, 1) for v in L]
idiv: td.__itruediv__(1.0) = torch._foreach_div_(L, 1.0)
div of two: td / pos = torch._foreach_div(L, LP)
pow of two: pos ** td2 = torch._foreach_pow(LP, L2)
mul tensor: td * scalar = torch._foreach_mul(L, scalar)
clamp_max: td.clamp_max(1.0) = torch._foreach_clamp_max(L, 1.0)
maximum_: td.maximum_(td) = torch._foreach_maximum_(L, L)
addcmul_: td.addcmul_(td2, td2, value=0.0) = torch._foreach_addcmul_(L, L2, L2, 0.0)
ceil: td.ceil() = torch._foreach_ceil(L)
floor: td.floor() = torch._foreach_floor(L)
frac: td.frac() = torch._foreach_frac(L)
trunc: td.trunc() = torch._foreach_trunc(L)
sign: td.sign() = torch._foreach_sign(L)
cos: td.cos() = torch._foreach_cos(L)
tan: td.tan() = torch._foreach_tan(L)
acos: td.acos() = torch._foreach_acos(L)
asin: td.asin() = torch._foreach_asin(L)
atan: td.atan() = torch._foreach_atan(L)
cosh: td.cosh() = torch._foreach_cosh(L)
sinh: td.sinh() = torch._foreach_sinh(L)
erf: td.erf() = torch._foreach_erf(L)
erfc: td.erfc() = torch._foreach_erfc(L)
expm1: td.expm1() = torch._foreach_expm1(L)
lgamma: td.lgamma() = torch._foreach_lgamma(L)
log10: pos.log10() = torch._foreach_log10(LP)
log1p: pos.log1p() = torch._foreach_log1p(LP)
log2: pos.log2() = torch._foreach_log2(LP)
neg_: sg.neg_() = torch._foreach_neg_(LS)
round_: sg.round_() = torch._foreach_round_(LS)
atleast_1d: td.atleast_1d() = [v for v in L]
atleast_2d: td.atleast_2d() = [v for v in L]
flipud: td.flipud() = [v.flipud() for v in L]
swapdims: td.swapdims(0, 1) = [v.swapdims(0, 1) for v in L]
get_at: td.get_at(last, 0) = leaf[0]
set_at_: td.set_at_(last, leaf[0], 0) = leaf.__setitem__(0, leaf[0])
update_at_: td.update_at_(td2[0], 0) = [v.__setitem__(0, w[0]) for v, w in zip(L, L2)]
copy_at_: td.copy_at_(td2[0], 0) = [v.__setitem__(0, w[0]) for v, w in zip(L, L2)]
amin: td.amin(0) = [v.amin(0) for v in L]
cummin: td.cummin(0) = [v.cummin(0) for v in L]
stack method: TensorDict.stack([td, td2]) = [torch.stack([v, w]) for v, w in zip(L, L2)]
cat method: TensorDict.cat([td, td2]) = [torch.cat([v, w]) for v, w in zip(L, L2)]
maybe_dense_stack: TensorDict.maybe_dense_stack([td, td2]) = [torch.stack([v, w]) for v, w in zip(L, L2)]
bfloat16: td.bfloat16() = [v.bfloat16() for v in L]
long: td.to(torch.int64) = [v.to(torch.int64) for v in L]
uint8: td.to(torch.uint8) = [v.to(torch.uint8) for v in L]
complex64: td.complex64() = [v.to(torch.complex64) for v in L]
bool: td.bool() = [v.bool() for v in L]
apply two: td.apply(lambda x, y: x, td2) = [(lambda x, y: x)(v, w) for v, w in zip(L, L2)]
acos_: sg.acos_() = torch._foreach_acos_(LS)
asin_: sg.asin_() = torch._foreach_asin_(LS)
atan_: sg.atan_() = torch._foreach_atan_(LS)
ceil_: sg.ceil_() = torch._foreach_ceil_(LS)
cos_: sg.cos_() = torch._foreach_cos_(LS)
cosh_: sg.cosh_() = torch._foreach_cosh_(LS)
erf_: sg.erf_() = torch._foreach_erf_(LS)
erfc_: sg.erfc_() = torch._foreach_erfc_(LS)
exp_: sg.exp_() = torch._foreach_exp_(LS)
expm1_: sg.expm1_() = torch._foreach_expm1_(LS)
floor_: sg.floor_() = torch._foreach_floor_(LS)
frac_: sg.frac_() = torch._foreach_frac_(LS)
lgamma_: sg.lgamma_() = torch._foreach_lgamma_(LS)
log10_: sg.log10_() = torch._foreach_log10_(LS)
log1p_: sg.log1p_() = torch._foreach_log1p_(LS)
log2_: sg.log2_() = torch._foreach_log2_(LS)
log_: sg.log_() = torch._foreach_log_(LS)
reciprocal_: sg.reciprocal_() = torch._foreach_reciprocal_(LS)
sigmoid_: sg.sigmoid_() = torch._foreach_sigmoid_(LS)
sign_: sg.sign_() = torch._foreach_sign_(LS)
sin_: sg.sin_() = torch._foreach_sin_(LS)
sinh_: sg.sinh_() = torch._foreach_sinh_(LS)
sqrt_: sg.sqrt_() = torch._foreach_sqrt_(LS)
tan_: sg.tan_() = torch._foreach_tan_(LS)
tanh_: sg.tanh_() = torch._foreach_tanh_(LS)
trunc_: sg.trunc_() = torch._foreach_trunc_(LS)
addcdiv_: sg.addcdiv_(td2, pos) = torch._foreach_addcdiv_(LS, L2, LP)
clamp_max_: sg.clamp_max_(1.0) = torch._foreach_clamp_max_(LS, 1.0)
minimum_: sg.minimum_(td) = torch._foreach_minimum_(LS, L)
div_: sg.div_(1.0) = torch._foreach_div_(LS, 1.0)
pow_: sg.pow_(1) = torch._foreach_pow_(LS, 1)
sub_: sg.sub_(td2) = torch._foreach_sub_(LS, L2)
add_ alpha: sg.add_(td2, alpha=2) = torch._foreach_add_(LS, L2, alpha=2)
mul_ tensor: sg.mul_(scalar) = torch._foreach_mul_(LS, scalar)
add_ tensor: sg.add_(scalar) = torch._foreach_add_(LS, scalar)
complex128: td.complex128() = [v.cdouble() for v in L]
float16: td.float16() = [v.half() for v in L]
float32: td.float32() = [v.float() for v in L]
int8: td.int8() = [v.char() for v in L]
int16: td.int16() = [v.short() for v in L]
int32: td.int32() = [v.int() for v in L]
uint16: td.uint16() = [v.to(torch.uint16) for v in L]
stack_from_tensordict: td.stack_from_tensordict(0) = torch.stack(L)
cat_from_tensordict: td.cat_from_tensordict(0) = torch.cat(L)
update_at_ tensor: td.update_at_(td2[idx], idx) = [v.__setitem__(idx, w[idx]) for v, w in zip(L, L2)]
torch.unsqueeze: torch.unsqueeze(td, 0) = [torch.unsqueeze(v, 0) for v in L]
torch.permute: torch.permute(td, (1, 0)) = [torch.permute(v, (1, 0, *range(k, v.ndim))) for v in L]
torch.reshape: torch.reshape(td, (3, 4)) = [torch.reshape(v, (3, 4, *v.shape[k:])) for v in L]
torch.flatten: torch.flatten(td, 0, 1) = [torch.flatten(v, 0, 1) for v in L]
torch.gather: torch.gather(td, 0, gidx) = [torch.gather(v, 0, gidx.unsqueeze(-1).expand(*gidx.shape, *v.shape[k:])) for v in L]
torch.where: torch.where(mask, td, td2) = [torch.where(mask.unsqueeze(-1), v, w) for v, w in zip(L, L2)]
torch.exp: torch.exp(td) = torch._foreach_exp(L)
torch.add: torch.add(td, td2) = torch._foreach_add(L, L2)
torch.sum: torch.sum(td, 0) = [torch.sum(v, 0) for v in L]
torch.isnan: torch.isnan(td) = [torch.isnan(v) for v in L]
torch.flip: torch.flip(td, (0,)) = [torch.flip(v, (0,)) for v in L]
torch.roll: torch.roll(td, 1, 0) = [torch.roll(v, 1, 0) for v in L]
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
setitem: td[last] = leaf
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

_FURTHER = """
fill_: td.clone(False).fill_(first, 0.0)
mean reduce: td.mean(reduce=True)
sum reduce: td.sum(reduce=True)
shape: td.shape
size: td.size()
size dim: td.size(0)
dim: td.dim()
ndim: td.ndim
batch_dims: td.batch_dims
depth: td.depth
set batch_size: setattr(td, "batch_size", [4, 3])
set names: setattr(up, "names", None)
refine_names: up.refine_names(None, None)
rename: td.rename("x", "y")
auto_batch_size_: up.auto_batch_size_(2)
is_contiguous: td.is_contiguous()
pad: tensordict.pad(td, [0, 1, 0, 0])
gather method: td.gather(0, gidx)
getitems: td.__getitems__([0, 2])
get_item_shape: td.get_item_shape(last)
iterate: [None for _ in td]
get nested: td.get((last,) if isinstance(last, str) else last)
get default: td.get("missing", None)
getitem tuple: td[(first,) if isinstance(first, str) else first]
getitem missing: (lambda: None)() if "missing" not in td else td["missing"]
set inplace: td.set(last, leaf, inplace=True)
set new nested: up.set(("made", "below"), leaf)
setitem nested: up.__setitem__(("made", "below"), leaf)
setitem dict: up.__setitem__("made", {"below": leaf})
set number: up.set("number", one_leaf)
setdefault: td.setdefault(last, leaf)
del and set: td.set("extra", leaf).del_("extra")
popitem: td.set("extra", leaf).popitem()
get_non_tensor: td.get_non_tensor(last)
set_non_tensor: up.set_non_tensor("text", "a")
set text: up.set("text", "a")
entry_class: td.entry_class(last)
is_non_tensor: td.is_non_tensor(last)
non_tensor_items: td.non_tensor_items()
filter_non_tensor: td.filter_non_tensor_data()
filter_empty_: td.filter_empty_()
rename_keys: td.rename_keys({first: "renamed"})
separates: td.clone(False).separates(first)
clear: td.clone(False).clear()
sorted_keys: td.sorted_keys
keys sort: td.keys(True, True, sort=True)
keys contains: first in td.keys(True)
keys contains flat: "k0" in td.keys()
keys len: len(td.keys())
keys len nested: len(td.keys(True, True))
keys set: set(td.keys())
keys and: td.keys() & td2.keys()
keys equal: td.keys() == td2.keys()
values: list(td.values())
values sort: td.values(sort=True)
items leaves: list(td.items(leaves_only=True))
for keys: [None for _ in td.keys()]
for items: [None for _, _ in td.items()]
update keys: up.update(td2, keys_to_update=[first])
update inplace: up.update(td2, inplace=True)
update clone: up.update(td2, clone=True)
select lax: td.select("missing", strict=False)
select inplace: td.clone(False).select(first, inplace=True)
exclude inplace: td.clone(False).exclude(first, inplace=True)
exclude none: td.exclude()
flatten_keys inplace: td.clone(False).flatten_keys(".", inplace=True)
fromkeys: TensorDict.fromkeys(["a", "b"])
build empty: TensorDict()
build batch: TensorDict(batch_size=[4, 3])
build kwargs: TensorDict(a=leaf, b=leaf, batch_size=[4, 3])
build of container: TensorDict(td, [4, 3])
build names: TensorDict(D, [4, 3], names=["x", "y"])
build device: TensorDict(D, [4, 3], device="cpu")
build lock: TensorDict(D, [4, 3], lock=True)
new_unsafe: TensorDict._new_unsafe(dict(td.items()), td.batch_size)
from_dict auto: TensorDict.from_dict(D, auto_batch_size=True)
from_any: TensorDict.from_any(D)
create_nested: td.clone(False).create_nested("made")
copy.copy: copy.copy(up2)
deepcopy: copy.deepcopy(up2)
lazy stack: tensordict.lazy_stack([td, td2])
to_tensordict: td.to_tensordict()
to_dict shared: td.to_dict(retain_none=False)
to_namedtuple: td.to_namedtuple()
to_pytree: td.to_pytree()
tree_flatten: pytree.tree_flatten(td)
tree_map: pytree.tree_map(identity, td)
numpy: td.numpy()
tolist: td[:0].tolist()
dtype: td.dtype
is_cpu: td.is_cpu
is_cuda: td.is_cuda
is_memmap: td.is_memmap()
is_shared: td.is_shared()
is_consolidated: td.is_consolidated()
auto_device_: up.auto_device_()
clear_device_: up.clear_device_()
to batch_size: td.to(batch_size=[4])
state_dict: td.state_dict()
load_state_dict: up2.load_state_dict(state)
getstate: up2.__getstate__()
dumps: pickle.dumps(up2)
loads: pickle.loads(pickled)
grad: td.grad
requires_grad: td.requires_grad
requires_grad_ true: td2.requires_grad_(False)
data_ptr: td.data_ptr()
param_count: td.param_count()
zero_grad: td.zero_grad()
apply inplace: td.apply(identity, inplace=True)
apply_: td.apply_(identity)
apply batch: td.apply(lambda x: x, batch_size=[4])
apply filter: td.apply(lambda x: None, filter_empty=True)
apply default: td.apply(lambda x, y: x, td2, default=None)
named_apply nested: td.named_apply(lambda n, x: x, nested_keys=True)
fast_apply: td._fast_apply(identity)
set_str: td._set_str("k0", leaf, inplace=False, validated=True)
get_str: td._get_str(next(iter(D)), None)
sub_tensordict: td._get_sub_tensordict(0)
lock: td.lock_()
unlock: td2.unlock_()
set is_locked: setattr(td2, "is_locked", False)
lock of locked: locked.lock_()
with unlock: locked.unlock_().__enter__().__exit__(None, None, None)
with view: td.view(-1).__enter__().__exit__(None, None, None)
with flatten_keys: td.flatten_keys(".").__enter__().__exit__(None, None, None)
with unsqueeze: td.unsqueeze(0).__enter__().__exit__(None, None, None)
clone of locked: locked.clone(False)
add of locked: locked + 1
view of locked: locked.view(-1)
repr: repr(td)
isinstance: isinstance(td, TensorDict)
is_tensor_collection: tensordict.is_tensor_collection(td)
reduce pickle: up2.__reduce_ex__(4)
to_lazystack: td.to_lazystack(0)
densify: td.densify()
contiguous of slice: td[1:3].contiguous()
is_meta: td.is_meta
where pad: td.where(mask, td2, pad=0.0)
from_struct_array: td[:1].to_struct_array()
split_keys two: td.split_keys(half, half[:0])
has_names: td._has_names()
names of named: named.names
view of named: named.view(-1)
index of named: named[0]
permute of named: named.permute(1, 0)
clone of named: named.clone(False)
keys is_leaf: list(td.keys(True, True, is_leaf=is_leaf))
items is_leaf: list(td.items(True, True, is_leaf=is_leaf))
values is_leaf: list(td.values(True, True, is_leaf=is_leaf))
keys nested sort: list(td.keys(True, True, sort=True))
items sort: list(td.items(sort=True))
items nested sort: list(td.items(True, True, sort=True))
values nested sort: list(td.values(True, True, sort=True))
keys inner: list(td.keys(True))
items inner: list(td.items(True))
get nested missing: td.get(("missing", "below"), None)
get of tuple of one: td.get((last,) if isinstance(last, str) else last, None)
pop default: td.pop("missing", None)
pop nested: up.set(("made", "below"), leaf).pop(("made", "below"))
rename_key_ nested: up.set(("made", "below"), leaf).rename_key_(("made", "below"), ("made", "b2"))
setdefault new: (up.setdefault("extra", leaf), up.del_("extra"))
change batch_size: (setattr(up2, "batch_size", [4]), setattr(up2, "batch_size", [4, 3]))
change names: (setattr(up2, "names", ["x", "y"]), setattr(up2, "names", None))
rename_: named.rename_("x", "y")
ndimension: td.ndimension()
is_empty of empty: TensorDict().is_empty()
lock of clone: td.clone(False).lock_().unlock_()
tree_unflatten: pytree.tree_unflatten(*pytree.tree_flatten(td))
tree_leaves: pytree.tree_leaves(td)
equal: (named == named).all()
str: str(td)
from_tuple: TensorDict.from_tuple((leaf, leaf), batch_size=[4, 3])
from_dict_instance: td.from_dict_instance(D)
from_pytree: TensorDict.from_pytree(D)
stack_tensors: up2.clone(False).stack_tensors(first, last, out_key="out", dim=-1)
cat_tensors: up2.clone(False).cat_tensors(first, last, out_key="out", dim=-1)
replace one: td.replace(a=leaf)
split_keys default: td.split_keys(half, strict=False)
unflatten inplace: flat.clone(False).unflatten_keys(".", inplace=True)
"""
"""Operations of every topic that are compared with the release alone: none is slower."""


def _parse(group: str, text: str) -> list[Operation]:
    operations = []
    for line in text.strip().splitlines():
        name, _, rest = line.partition(": ")
        if group == "tensor":
            container, _, loop = rest.rpartition(" = ")
            operations.append(Operation(name, container, loop, group))
        else:
            operations.append(Operation(name, rest, None, group))
    return operations


OPERATIONS = [
    *_parse("tensor", _TENSOR),
    *_parse("structure", _STRUCTURE),
    *_parse("further", _FURTHER),
]
