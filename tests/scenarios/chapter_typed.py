"""Typed tensordicts: declarations, what they check, and the collections they wrap."""

from __future__ import annotations

import copy
from typing import ClassVar, NotRequired

import torch
from scenario import scenario

from tensordict import TensorDict, TensorDictParams, TypedTensorDict, lazy_stack


class State(TypedTensorDict):
    position: torch.Tensor
    velocity: NotRequired[torch.Tensor]


class Labelled(State):
    label: str = "none"


def states():
    return lazy_stack(
        [TensorDict(position=torch.zeros(3)), TensorDict(position=torch.ones(3))]
    )


@scenario
def entries_are_attributes():
    state = State(position=torch.zeros(2, 3), batch_size=[2])
    state.velocity = torch.ones(2, 3)
    return state, state.position is state["position"], list(state.keys())


@scenario
def a_missing_key_is_refused():
    return State(velocity=torch.ones(2), batch_size=[2])


@scenario
def an_unknown_key_is_refused():
    return State(position=torch.zeros(2), colour=torch.zeros(2), batch_size=[2])


@scenario
def an_optional_key_that_is_not_set():
    state = State(position=torch.zeros(2), batch_size=[2])
    return "velocity" in state, state.get("velocity"), hasattr(state, "velocity")


@scenario
def reading_an_optional_key_that_is_not_set():
    return State(position=torch.zeros(2), batch_size=[2]).velocity


@scenario
def a_default_is_read_where_nothing_is_set():
    labelled = Labelled(position=torch.zeros(2), batch_size=[2])
    return labelled.label, "label" in labelled, sorted(Labelled.__expected_keys__)


@scenario
def inheritance_adds_keys():
    return (
        sorted(Labelled.__required_keys__),
        sorted(Labelled.__optional_keys__),
        issubclass(Labelled, State),
        Labelled(position=torch.zeros(1), label="a", batch_size=[1]),
    )


@scenario
def a_subclass_makes_an_optional_key_required():
    class Moving(State):
        velocity: torch.Tensor

    return sorted(Moving.__required_keys__), Moving(position=torch.zeros(1))


@scenario
def class_variables_and_methods_are_no_keys():
    class Robot(State):
        limit: ClassVar[float] = 2.0

        @property
        def speed(self):
            return self.velocity.norm(dim=-1)

        def clipped(self):
            return self.velocity.clamp(max=self.limit)

    robot = Robot(position=torch.zeros(2), velocity=torch.tensor([1.0, 3.0]))
    return robot.speed, robot.clipped(), sorted(Robot.__expected_keys__)


@scenario
def a_key_with_the_name_of_a_method_is_refused():
    class Bad(TypedTensorDict):
        keys: torch.Tensor

    return Bad


@scenario
def shadowing_allows_the_name_of_a_method():
    class Shadowing(TypedTensorDict["shadow"]):
        values: torch.Tensor

    shadowing = Shadowing(values=torch.ones(2), batch_size=[2])
    return shadowing.values, shadowing["values"]


@scenario
def an_unknown_option_is_refused():
    return TypedTensorDict["strict"]


@scenario
def frozen_classes_are_locked():
    class Frozen(TypedTensorDict["frozen"]):
        position: torch.Tensor

    frozen = Frozen(position=torch.zeros(2), batch_size=[2])
    locked = frozen.is_locked
    frozen.position = torch.ones(2)
    return locked


@scenario
def options_as_keywords_of_the_class_statement():
    class Frozen(TypedTensorDict, frozen=True):
        position: torch.Tensor

    return Frozen(position=torch.zeros(2), batch_size=[2]).is_locked


@scenario
def made_of_a_dictionary():
    state = State({"position": torch.zeros(2)}, batch_size=[2])
    return state, State.from_dict({"position": torch.zeros(2)}, batch_size=[2])


@scenario
def made_of_a_dictionary_that_lacks_a_key():
    return State({"velocity": torch.zeros(2)}, batch_size=[2])


@scenario
def operations_keep_the_class():
    state = State(position=torch.arange(6.0).view(2, 3), batch_size=[2])
    results = [
        state[0],
        state.clone(),
        state + 1,
        state.to(torch.float64),
        state.unsqueeze(0),
        torch.stack([state, state]),
        torch.cat([state, state]),
        state.expand(3, 2),
        state.apply(lambda x: x * 2),
    ]
    return [(type(each).__name__, list(each.batch_size)) for each in results]


@scenario
def comparisons_and_reductions_are_plain():
    state = State(position=torch.ones(2, 3), batch_size=[2])
    results = [state == state, state.sum(), state.mean(dim=0), state > 0]
    return [type(each).__name__ for each in results], (state == state).all()


@scenario
def selecting_may_leave_out_what_is_required():
    state = State(position=torch.zeros(2), velocity=torch.ones(2), batch_size=[2])
    rest = state.select("velocity")
    return rest, state.exclude("position"), hasattr(rest, "position")


@scenario
def a_dense_source_is_linked():
    source = TensorDict(position=torch.zeros(2), batch_size=[2])
    state = State.from_tensordict(source)
    state.velocity = torch.ones(2)
    source["more"] = torch.zeros(2)
    del source["velocity"]
    return source, state, state._source is source, state._locked_schema


@scenario
def a_lazy_stack_is_linked():
    source = states()
    state = State.from_tensordict(source)
    state.velocity = torch.ones(2)
    state["position"] = torch.full((2, 3), 5.0)
    state["n", "x"] = torch.zeros(2)
    state.position[0] = 9.0
    return source, list(state.keys()), isinstance(state, State)


@scenario
def removing_from_a_linked_stack():
    source = states()
    state = State.from_tensordict(source)
    state.velocity = torch.ones(2)
    del state["velocity"]
    state.rename_key_("position", "place")
    return sorted(source.keys()), hasattr(state, "position"), state.pop("place")


@scenario
def writes_in_place_through_a_linked_stack():
    source = states()
    state = State.from_tensordict(source)
    state.set_("position", torch.full((2, 3), 2.0))
    state.update_({"position": torch.full((2, 3), 3.0)})
    state[0] = TensorDict(position=torch.zeros(3))
    state += 1
    state[1].zero_()
    return source["position"], state["position"]


@scenario
def a_row_of_a_linked_stack_is_its_member():
    source = states()
    row = State.from_tensordict(source)[1]
    row.velocity = torch.ones(())
    return type(row).__name__, list(source[1].keys()), list(source.keys())


@scenario
def locks_of_a_linked_stack():
    source = states()
    state = State.from_tensordict(source)
    state.lock_()
    locked = source.is_locked, state.is_locked
    source.unlock_()
    return locked, state.is_locked


@scenario
def members_appended_to_a_linked_stack():
    source = states()
    state = State.from_tensordict(source)
    source.append(TensorDict(position=torch.full((3,), 2.0)))
    state.append(TensorDict(position=torch.full((3,), 3.0)))
    return state.batch_size, state.position, len(source.tensordicts)


@scenario
def a_view_is_linked():
    whole = TensorDict(position=torch.zeros(3), batch_size=[3])
    state = State.from_tensordict(whole._get_sub_tensordict(slice(0, 2)))
    state.position = torch.ones(2)
    state.velocity = torch.full((2,), 2.0)
    return whole["position"], whole["velocity"][:2], state.batch_size


@scenario
def results_of_a_linked_stack():
    state = State.from_tensordict(states())
    results = [
        state[0],
        state[:1],
        state.clone(),
        state + 1,
        state.unsqueeze(0),
        state.contiguous(),
        torch.stack([state, state]),
        torch.cat([state, state]),
        state.select("position"),
        state.flatten_keys(),
        state.to_tensordict(),
        state == state,
        state.sum(),
        *state.unbind(0),
    ]
    return [(type(each).__name__, list(each.batch_size)) for each in results]


@scenario
def a_linked_stack_in_another_collection():
    td = TensorDict(state=State.from_tensordict(states()), batch_size=[2])
    td["state", "velocity"] = torch.ones(2)
    td["state"].position.zero_()
    return td["state"]._source, (td + 1)["state", "position"], td[0]["state"].velocity


@scenario
def names_of_a_linked_stack():
    source = states()
    State.from_tensordict(source).names = ["time"]
    return source.names


@scenario
def the_batch_size_of_a_linked_stack_cannot_be_set():
    State.from_tensordict(states()).batch_size = [2, 3]


@scenario
def a_source_that_lacks_a_key():
    source = lazy_stack([TensorDict(x=1), TensorDict(x=2)])
    lenient = State.from_tensordict(source, check=False)
    lenient.position = torch.zeros(2)
    return list(source.keys()), State.from_tensordict(TensorDict(x=1))


@scenario
def parameters_as_a_source():
    params = TensorDictParams(TensorDict(position=torch.ones(2)))
    state = State.from_tensordict(params)
    return type(state).__name__, state.position is params["position"]


@scenario
def copies_of_a_linked_stack_are_apart():
    source = states()
    state = State.from_tensordict(source)
    deep = copy.deepcopy(state)
    deep.position = torch.full((2, 3), 8.0)
    state.clone().zero_()
    return type(deep).__name__, source["position"], deep.position


@scenario
def updates_between_typed_and_plain():
    plain = TensorDict(position=torch.zeros(2, 3), batch_size=[2])
    state = State.from_tensordict(states())
    plain.update(state + 1)
    state.update_(plain * 2)
    state.update({"velocity": torch.ones(2)})
    return plain, state._source


@scenario
def a_typed_tensordict_through_a_pytree():
    state = State.from_tensordict(states())
    mapped = torch.utils._pytree.tree_map(lambda x: x + 1, state)
    return type(mapped).__name__, mapped.position


@scenario
def a_map_over_rows():
    state = State.from_tensordict(states())
    return torch.vmap(lambda row: row.position.sum())(state)


@scenario
def state_dicts_of_a_linked_stack():
    state = State.from_tensordict(states())
    saved = state.state_dict()
    state.zero_()
    state.load_state_dict(saved)
    return state._source["position"]


@scenario
def a_linked_stack_on_disk(tmp_path):
    state = State.from_tensordict(states())
    saved = state.memmap(tmp_path)
    return type(saved).__name__, TensorDict.load_memmap(tmp_path)["position"]


@scenario
def text_of_a_typed_tensordict():
    labelled = Labelled(position=torch.zeros(2), label=["a", "b"], batch_size=[2])
    return labelled["label"], labelled[1]["label"], labelled.get("label").tolist()


@scenario
def nested_typed_tensordicts():
    class Pair(TypedTensorDict):
        left: State
        right: State

    left = State(position=torch.zeros(2), batch_size=[2])
    pair = Pair(left=left, right=left.clone(), batch_size=[2])
    pair["right", "velocity"] = torch.ones(2)
    return pair, type(pair[0].right).__name__, type(pair.clone().left).__name__


@scenario
def dictionaries_nested_in_a_typed_tensordict():
    class Holder(TypedTensorDict):
        inner: TensorDict

    holder = Holder(inner={"x": torch.ones(2)}, batch_size=[2])
    return holder, type(holder.inner).__name__, holder.inner.batch_size
