"""The n-step transition adder."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np
import tree
from dm_env import specs

from rlpad import core
from rlpad.replay.interface import ReplayClient, Writer, is_leaf
from rlpad.specs import EnvironmentSpec
from rlpad.types import NestedArray, NestedSpec, Transition

#: Gives a transition its priority; it sees the transition as it is stored.
PriorityFn = Callable[[Transition], float]


class _Step(NamedTuple):
    """One step of the window: its cells, its numbers, and what priority functions want to see of it."""

    observation: NestedArray
    action: NestedArray
    extras: NestedArray
    reward: NestedArray
    discount: NestedArray
    values: tuple[NestedArray, ...]


class NStepTransitionAdder(core.Adder):
    """Turns steps into transitions over up to n steps.

    The transition from time t over k steps holds the observation, action and extras of time t, the
    observation of time t + k, and with g for the discount factor, r and d for the environment's rewards and
    discounts

        reward   = r_t + g d_t r_{t+1} + ... + g^(k-1) d_t ... d_{t+k-2} r_{t+k-1}
        discount = g^(k-1) d_t ... d_{t+k-1}

    so that a learner bootstraps with `reward + g * discount * v(next_observation)`. Windows are shorter at
    both ends of an episode: 0 to 1, 0 to 2, ... 0 to n at its start, and n, n-1, ... 1 steps up to its end
    (Acme's NStepTransitionAdder). An episode that is cut off (a last discount that isn't 0) is bootstrapped
    like any other. Rewards and discounts may be arrays or nests; they are broadcast against each other. Every
    step is stored once, however many transitions refer to it.
    """

    def __init__(
        self,
        client: ReplayClient,
        *,
        n_step: int,
        discount: float,
        priority_fns: Mapping[str, PriorityFn | None],
    ):
        """Opens a writer.

        Args:
          client: access to replay.
          n_step: steps that a transition spans, n.
          discount: discount factor g.
          priority_fns: by table to write to, what gives a transition its priority; None stands for the
            highest priority so far.

        Raises:
          ValueError: `n_step` is below 1, the discount is outside of [0, 1], or no table is named.
          KeyError: a table doesn't exist.
        """
        if n_step < 1:
            raise ValueError(f"n_step must be at least 1, got {n_step}")
        if not 0.0 <= discount <= 1.0:
            raise ValueError(f"discount must be in [0, 1], got {discount}")
        if not priority_fns:
            raise ValueError("priority_fns must name at least one table")
        signature = [client.table(name).signature for name in priority_fns][0]
        self._dtypes = _value_dtypes(signature)
        self._n_step = n_step
        self._discount = discount
        self._priority_fns = dict(priority_fns)
        # Between a transition's first step and its item lie its window and the shorter windows of an end.
        self._writer: Writer = client.writer(num_keep_alive=2 * n_step + 2)
        self._window: deque[_Step] = deque()
        self._needs_values = any(priority_fn is not None for priority_fn in priority_fns.values())
        self._observation: NestedArray = None
        self._last_value: NestedArray = None
        self._started = False

    @staticmethod
    def signature(spec: EnvironmentSpec, extras_spec: NestedSpec = ()) -> Transition:
        """Returns the signature of a table of these transitions."""
        rewards, discounts = _broadcast_structures(spec.rewards, spec.discounts)

        def joint(reward: specs.Array, discount: specs.Array, like: specs.Array) -> specs.Array:
            return specs.Array(np.broadcast_shapes(reward.shape, discount.shape), like.dtype)

        return Transition(
            observation=spec.observations,
            action=spec.actions,
            reward=tree.map_structure(lambda r, d: joint(r, d, r), rewards, discounts),
            discount=tree.map_structure(lambda r, d: joint(r, d, d), rewards, discounts),
            next_observation=spec.observations,
            extras=extras_spec,
        )

    def ready(self, count: int = 1) -> bool:
        """Whether replay would take the items of `count` more steps; an episode's last makes n of them."""
        return self._writer.ready(count * self._n_step * len(self._priority_fns))

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode.

        Raises:
          ValueError: the timestep is no first one.
        """
        if not timestep.first():
            raise ValueError(f"add_first needs a timestep of type FIRST, got {timestep.step_type!r}")
        self.reset()
        self._observe({"observation": timestep.observation})
        self._started = True

    def _observe(self, columns: dict[str, NestedArray]) -> dict[str, NestedArray]:
        cells = self._writer.append(columns)
        self._observation = cells["observation"]
        if self._needs_values:
            # A copy: environments may use the same array for every observation.
            self._last_value = tree.map_structure(np.array, columns["observation"])
        return cells

    def add(self, action: NestedArray, next_timestep: dm_env.TimeStep, extras: NestedArray = ()) -> None:
        """Adds a step; the last one of an episode writes the shorter windows up to it.

        Raises:
          ValueError: no episode was started.
        """
        if not self._started:
            raise ValueError("add was called before add_first")
        observation, value = self._observation, self._last_value
        reward, discount = _as_float64(next_timestep.reward), _as_float64(next_timestep.discount)
        if not (type(reward) is type(discount) is float):
            reward, discount = _broadcast_structures(reward, discount)
        # The window reaches up to the new step; its return goes into the same row as the step.
        window = self._window
        returns = self._returns(
            [step.reward for step in window] + [reward], [step.discount for step in window] + [discount]
        )
        columns = {
            "observation": next_timestep.observation,
            "action": action,
            "reward": returns[0],
            "discount": returns[1],
        }
        if _has_leaves(extras):
            columns["extras"] = extras
        cells = self._observe(columns)
        values = ()
        if self._needs_values:
            values = (value, *tree.map_structure(np.array, (action, extras)))
        window.append(_Step(observation, cells["action"], cells.get("extras", extras), reward, discount, values))
        self._write(cells, returns)
        if next_timestep.last():
            while len(window) > 1:
                window.popleft()
                returns = self._returns([step.reward for step in window], [step.discount for step in window])
                self._write(self._writer.append({"reward": returns[0], "discount": returns[1]}), returns)
            self.reset()
        elif len(window) == self._n_step:
            window.popleft()

    def _returns(self, rewards: list[NestedArray], discounts: list[NestedArray]) -> tuple[NestedArray, NestedArray]:
        """Returns and discounts of a window, of the shape that both have when broadcast."""
        like = rewards[0]
        if is_leaf(like):
            return self._leaf_returns(rewards, discounts, self._dtypes[0])
        columns = zip(map(tree.flatten, rewards), map(tree.flatten, discounts), strict=True)
        flat_rewards, flat_discounts = (list(zip(*rows, strict=True)) for rows in zip(*columns, strict=True))
        pairs = list(map(self._leaf_returns, flat_rewards, flat_discounts, self._dtypes))
        totals, products = zip(*pairs, strict=True)
        return tree.unflatten_as(like, totals), tree.unflatten_as(like, products)

    def _leaf_returns(
        self, rewards: Sequence[Any], discounts: Sequence[Any], dtypes: tuple[np.dtype, np.dtype]
    ) -> tuple[Any, Any]:
        total: Any = 0.0
        product: Any = 0.0
        scale: Any = 1.0
        for reward, discount in zip(rewards, discounts, strict=True):
            total = total + scale * reward
            product = scale * discount
            scale = product * self._discount
        if isinstance(total, float) and isinstance(product, float):
            return dtypes[0].type(total), dtypes[1].type(product)
        total, product = np.broadcast_arrays(total, product)
        return total.astype(dtypes[0]), product.astype(dtypes[1])

    def _write(self, cells: dict[str, NestedArray], returns: tuple[NestedArray, NestedArray]) -> None:
        step = self._window[0]
        transition = Transition(
            step.observation, step.action, cells["reward"], cells["discount"], self._observation, step.extras
        )
        for table, priority_fn in self._priority_fns.items():
            priority = None
            if priority_fn is not None:
                observation, action, extras = step.values
                priority = float(priority_fn(Transition(observation, action, *returns, self._last_value, extras)))
            self._writer.create_item(table, transition, priority)

    def reset(self) -> None:
        """Forgets the unfinished episode; what was written stays."""
        self._window.clear()
        self._started = False

    def flush(self) -> bool:
        """Writes out every item that replay takes now; returns whether that was all."""
        return self._writer.flush()

    def close(self) -> None:
        """Closes the writer."""
        self._writer.close()


def _as_float64(nest: NestedArray) -> NestedArray:
    """Copies rewards or discounts as float64; numbers become Python's, which are the fastest."""
    if isinstance(nest, (float, np.floating)):
        return float(nest)
    if not is_leaf(nest):
        return tree.map_structure(_as_float64, nest)
    return float(nest) if np.ndim(nest) == 0 else np.array(nest, np.float64)


def _broadcast_structures(rewards: NestedArray, discounts: NestedArray) -> tuple[NestedArray, NestedArray]:
    """Gives both the structure of the one that is nested."""
    if is_leaf(rewards) == is_leaf(discounts):
        return rewards, discounts
    if not is_leaf(rewards):
        return rewards, tree.map_structure(lambda _: discounts, rewards)
    return tree.map_structure(lambda _: rewards, discounts), discounts


def _has_leaves(nest: NestedArray) -> bool:
    if isinstance(nest, tuple) and not nest:
        return False  # what policies without extras give, at every step
    return is_leaf(nest) or bool(tree.flatten(nest))


def _value_dtypes(signature: Transition) -> list[tuple[np.dtype, np.dtype]]:
    """Pairs the dtypes of rewards and discounts, for each leaf."""
    leaves = zip(tree.flatten(signature.reward), tree.flatten(signature.discount), strict=True)
    return [(np.dtype(reward.dtype), np.dtype(discount.dtype)) for reward, discount in leaves]
