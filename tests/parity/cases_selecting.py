"""Entries that sequences, wrappers and chains of distributions leave in their input.

As in ``cases_transforms`` a program is a paragraph.
"""

from frame import Case

SETUP = """from nn_setup import *
from tensordict import LazyStackedTensorDict, from_module
torch.manual_seed(0)
def fresh():
    return TensorDict(a=T([3]), b=T([3], 5), n={"c": T([3], 1)}, batch_size=[3])
def at(key, out):
    return PM(in_keys={"loc": key}, out_keys=[out],
              distribution_class=lambda loc: d.Normal(loc, 1.0))
td = fresh()
"""


def programs(method: str, text: str) -> list[Case]:
    """A case for each paragraph."""
    paragraphs = text.strip().split("\n\n")
    return [Case(method, "none", SETUP + program) for program in paragraphs]


CASES = [
    Case(
        "TensorDictModuleWrapper",
        "none",
        SETUP
        + 'm=W(M(two,["a"],["z","w"])); m.select_out_keys("w","z"); m(torch.zeros(2))',
        reason="the release gives the outputs in another order than its out_keys",
        ours="[x.tolist() for x in result] == [[0, 0], [1, 1]]",
    ),
    *programs(
        "TensorDictSequential",
        """
m=S(M(two,["a"],["z","b"]),M(one,["z"],["w"]),selected_out_keys=["w"]); r=m(td)
(r is td,td)

m=S(M(two,["a"],["z","b"]),M(one,["z"],["w"]),selected_out_keys=["w"]); o=TensorDict(q=T([3])); r=m(td,tensordict_out=o)
(r is o,o,td)

m=S(M(two,["a"],["z","y"]),M(one,["a"],[("m","q")],inplace=False),selected_out_keys=[("m","q")]); r=m(td)
(r is td,td)

m=S(M(one,["a"],["z"]),S(M(one,["z"],["y"]),inplace="empty"),selected_out_keys=["z"]); r=m(td)
(r is td,td)

m=S(lambda t: t.set("b",t["b"]*0).set("k",t["b"]),M(one,["a"],["z"]),selected_out_keys=["z"]); r=m(td)
(r is td,td)

m=S(lambda t: t.exclude("b"),M(one,["a"],["z"]),selected_out_keys=["z"]); r=m(td)
(r is td,td)

m=S(M(one,["a"],["z"]),M(one,["z"],["w"]),selected_out_keys=["w"]); r=m(td._get_sub_tensordict(slice(0,2)))
(r,td)

m=S(M(one,["a"],["z"]),M(one,["z"],["w"])).select_out_keys("w"); r=m(td._get_sub_tensordict(slice(0,2)))
(r,td)

m=S(M(one,["a"],["z"]),M(one,["z"],["w"]),selected_out_keys=["w"]); l=LazyStackedTensorDict(fresh(),fresh()); r=m(l)
(r is l,r)

m=S(M(one,["a"],["z"]),selected_out_keys=["z"]); m(td.lock_())

m=S(M(add,["a","b"],["z"]),M(one,["a"],["b"]),M(one,["a"],["a"]),inplace="empty"); m(td)

m=S(M(one,["a"],["z"]),S(M(one,["z"],["y"]),M(one,["b"],["w"]))); t=m.select_subsequence(in_keys=["a"])
(t.in_keys,t.out_keys,len(t),len(t[1]),t[1].in_keys,t[1].out_keys)

m=S(M(one,["a"],["z"]),S(M(one,["z"],["y"]),M(one,["b"],["w"]),inplace=False)); \
t=m.select_subsequence(in_keys=["a"],out_keys=["y"])
(t.in_keys,t.out_keys,t[1].inplace)

m=S(M(one,["a"],["z"]),S(M(one,["z"],["y"]),M(one,["b"],["w"]))); m.select_subsequence(in_keys=["q"],out_keys=["y"])

m=S({"x":M(one,["a"],["z"]),"y":M(one,["z"],["w"])},selected_out_keys=["w"]); del m["y"]

m=S(M(one,["a"],["z"]),M(one,["z"],["w"]),selected_out_keys=["w"]); m[1]=M(one,["z"],["v"])

m=S(M(one,["a"],["z"]),M(one,["z"],["w"]),selected_out_keys=["w"]); m[0]=M(one,["b"],["z"]); \
(m.in_keys,m.out_keys,m(td))
""",  # noqa: E501
    ),
    *programs(
        "TensorDictModuleWrapper",
        """
m=W(M(two,["a"],["z","w"])); m.select_out_keys("z"); m(T([3]))

m=W(M(two,["a"],["z","w"])); m.select_out_keys("w"); m(a=T([3]))

m=W(M(two,["a"],["z","_"])); m.select_out_keys("z"); m(T([3]))

m=W(M(two,["a"],["z","w"]).select_out_keys("w")); m(T([3]))

m=W(W(M(two,["a"],["z","w"]))); m.select_out_keys("w"); (m(T([3])),m(td),m.reset_out_keys()(T([3])))
""",
    ),
    *programs(
        "ProbabilisticTensorDictSequential",
        """
m=[PS(at("a","y"),at("y","z")),PS(at("a","y"),PS(at("y","z"))),PS(PS(at("a","y")),at("y","z")),PS(at("a","y"),PS(at("y","z")),at("z","w")),PS(at("a","y"),M(one,["y"],["z"])),PS(M(one,["a"],["y"]))]
[x.return_composite for x in m]

m=PS(at("a","y"),PS(at("y","z"))); (type(m.get_dist(td)).__name__,m.log_prob(m(td)))

m=PS(PS(at("a","y")),at("y","z")); (type(m.get_dist(td)).__name__,m.log_prob(m(td)))

m=PS(at("a","y"),M(one,["y"],["z"]),return_composite=False)

m=PS(at("a","y"),M(one,["y"],["z"])); type(m.build_dist_from_params(td)).__name__

m=PS(M(one,["a"],["q"]),at("q","y"),at("y","z")); x=m.get_dist(td); td

m=PS(M(one,["a"],["q"]),at("q","y")); x=m.get_dist(td); td

m=PS(M(one,["a"],["q"]),at("q","b")); (m.log_prob(td),td)

m=PS(M(one,["a"],["q"]),at("q","b"),M(one,["b"],["c"])); (m.log_prob(td),td)

m=PM(in_keys={"loc":"a"},out_keys=["x"],distribution_class=lambda loc: \
d.Normal(loc,1.0),num_samples=torch.Size([])); r=m(td)
r["x"] is td["a"]
""",  # noqa: E501
    ),
    *programs(
        "OneHotCategorical",
        """
x=OneHotCategorical(logits=T([3,4])); (x.rsample(),torch.rand(1))

x=OneHotCategorical(probs=T([3,4]).abs()+0.5); (x.rsample((2,)),torch.rand(1))
""",
    ),
    *programs(
        "to_module",
        """
m=nn.Linear(2,1); q=from_module(m).data.apply(lambda x: (x+1).requires_grad_()); \
r=(q*2).to_module(m,use_state_dict=True); m(torch.ones(2)).sum().backward()
(q["weight"].grad,type(m.weight).__name__)

m=nn.Linear(2,1); q=from_module(m).data.apply(lambda x: (x+1).requires_grad_()); p=q*2
with p.to_module(m,use_state_dict=True): y=m(torch.ones(2)).sum()
y.backward(); (q["bias"].grad,type(m.weight).__name__)
""",  # noqa: E501
    ),
]

HELPERS = (SETUP,)
"""The beginnings of programs: answers go by what follows them."""
