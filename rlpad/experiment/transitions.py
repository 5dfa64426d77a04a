"""The builder that agents learning from n-step transitions share."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING, TypeVar

from rlpad import core
from rlpad.errors import UserError
from rlpad.experiment.builder import Builder, NetworksT
from rlpad.experiment.config import LARGEST
from rlpad.specs import EnvironmentSpec

if TYPE_CHECKING:
    import jax

    from rlpad.acting.actor_core import ActorCore
    from rlpad.learning import LearnerCore
    from rlpad.replay import ReplayClient, Sampler, Table

TABLE = "replay"


@dataclasses.dataclass(frozen=True)
class TransitionConfig:
    """Settings of agents that learn off-policy from n-step transitions."""

    discount: float = 0.99
    """Discount factor gamma, per environment step."""
    n_step: int = 3
    """Environment steps that a transition spans."""
    batch_size: int = 64
    """Transitions per SGD step."""
    samples_per_insert: float = 32.0
    """Times that each transition is sampled on average; divided by batch_size, SGD steps per actor step."""
    sgd_steps_per_learner_call: int = 32
    """SGD steps fused into one compiled call; all their batches are drawn before the first of them."""
    min_replay_size: int = 1_000
    """Transitions in replay before learning starts."""
    max_replay_size: int = 100_000
    """Transitions that replay holds; the oldest go first."""
    priority_exponent: float = 0.0
    """Alpha of prioritised replay: items are drawn in proportion to priority^alpha; 0 draws uniformly."""
    importance_sampling_exponent: float = 0.4
    """Beta of prioritised replay: how far importance weights correct for its bias."""
    min_priority: float = 1e-3
    """Added to every priority, so that no transition is lost for good."""
    variable_update_period: int = 16
    """Batched environment steps between two pulls of the policy's parameters."""

    def __post_init__(self) -> None:
        """Checks what the types can't.

        Raises:
          UserError: a setting is out of range.
        """
        self.check_range("discount", least=0.0, most=1.0)
        for name in ("n_step", "batch_size", "sgd_steps_per_learner_call", "min_replay_size"):
            self.check_range(name, least=1)
        self.check_range("variable_update_period", least=1)
        self.check_range("samples_per_insert", above=0.0)
        self.check_range("max_replay_size", least=self.min_replay_size)
        self.check_range("priority_exponent", least=0.0)
        self.check_range("importance_sampling_exponent", least=0.0, most=1.0)
        self.check_range("min_priority", above=0.0)

    def check_range(
        self, name: str, *, least: float | None = None, most: float | None = None, above: float | None = None
    ) -> None:
        """Raises `UserError` unless `least <= value <= most` and `value > above`, where these are given."""
        value = getattr(self, name)
        if least is not None and not value >= least:
            raise self.error(name, f"at least {least:g}")
        if above is not None and not value > above:
            raise self.error(name, f"above {above:g}")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.error(name, "finite")
        if isinstance(value, int) and value > LARGEST:
            raise self.error(name, f"at most {LARGEST}")
        if most is not None and not value <= most:
            raise self.error(name, f"at most {most:g}")

    def error(self, name: str, expected: str) -> UserError:
        """Makes the one-line error for a setting that is out of range."""
        flag = name.replace("_", "-")
        return UserError(f"agent setting {flag} must be {expected}, got {getattr(self, name)!r}")


TransitionConfigT = TypeVar("TransitionConfigT", bound=TransitionConfig)


class TransitionBuilder(Builder[TransitionConfigT, NetworksT]):
    """Supplies replay, adder and learner; an agent adds networks, a policy and a `LearnerCore`."""

    @abc.abstractmethod
    def make_learner_core(self, networks: NetworksT, spec: EnvironmentSpec) -> LearnerCore:
        """Returns the agent's pure learner."""

    @property
    def _samples_per_call(self) -> int:
        return self.config.batch_size * self.config.sgd_steps_per_learner_call

    def variable_update_period(self) -> int:
        """Returns after how many batched steps an actor asks for new variables."""
        return self.config.variable_update_period

    def make_replay_tables(self, spec: EnvironmentSpec, policy: ActorCore) -> list[Table]:
        """Returns one table, uniform or prioritised, that holds actors and learner to samples_per_insert."""
        from rlpad import replay
        from rlpad.replay.adders import NStepTransitionAdder

        config = self.config
        prioritised = config.priority_exponent > 0
        limiter = replay.RateLimiter(
            samples_per_insert=config.samples_per_insert,
            min_size=config.min_replay_size,
            # A whole call's samples on the one side, what an episode's end inserts at once on the other.
            tolerance=max(self._samples_per_call, config.samples_per_insert * 2 * config.n_step),
        )
        table = replay.Table(
            name=TABLE,
            signature=NStepTransitionAdder.signature(spec, policy_extras_spec(policy)),
            max_size=config.max_replay_size,
            sampler=replay.Prioritized(config.priority_exponent) if prioritised else replay.Uniform(),
            remover=replay.Fifo(),
            rate_limiter=limiter,
        )
        return [table]

    def make_adder(self, replay_client: ReplayClient, spec: EnvironmentSpec, policy: ActorCore) -> core.Adder:
        """Returns an n-step adder; new items get the highest priority so far."""
        del spec, policy
        from rlpad.replay.adders import NStepTransitionAdder

        return NStepTransitionAdder(
            replay_client,
            n_step=self.config.n_step,
            discount=self.config.discount,
            priority_fns={TABLE: None},
        )

    def make_dataset_iterator(self, replay_client: ReplayClient) -> Sampler:
        """Returns a sampler of as many items as one learner call takes."""
        return replay_client.sampler(TABLE, self._samples_per_call)

    def make_learner(
        self,
        random_key: jax.Array,
        networks: NetworksT,
        dataset: Sampler,
        spec: EnvironmentSpec,
        replay_client: ReplayClient,
    ) -> core.Learner:
        """Returns the generic learner around this agent's core."""
        from rlpad.learning import ReplayLearner

        return ReplayLearner(
            self.make_learner_core(networks, spec),
            dataset,
            key=random_key,
            batch_size=self.config.batch_size,
            sgd_steps_per_step=self.config.sgd_steps_per_learner_call,
            priority_sink=replay_client if self.config.priority_exponent > 0 else None,
            table=TABLE,
        )


def policy_extras_spec(policy: ActorCore) -> object:
    """Returns the specs of what a policy stores beside each step; `()` where that's nothing."""
    if not policy.has_extras:
        return ()
    import jax
    from dm_env import specs

    extras = jax.eval_shape(lambda key: policy.get_extras(policy.init(key, 1)), jax.random.PRNGKey(0))
    return jax.tree.map(lambda leaf: specs.Array(leaf.shape[1:], leaf.dtype), extras)
