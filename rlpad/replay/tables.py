"""What a replay table is: its items, how they are drawn, removed and rationed."""

from __future__ import annotations

import dataclasses

from rlpad.types import NestedSpec


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Draws every item with the same probability."""


@dataclasses.dataclass(frozen=True)
class Prioritized:
    """Draws items in proportion to `priority ** exponent` (Schaul et al. 2016, arXiv 1511.05952)."""

    exponent: float = 0.6

    def __post_init__(self) -> None:
        if self.exponent < 0:
            raise ValueError(f"priority exponent must be at least 0, got {self.exponent}")


@dataclasses.dataclass(frozen=True)
class Fifo:
    """Removes the oldest item when the table is full."""


@dataclasses.dataclass(frozen=True)
class RateLimiter:
    """Holds the learner and the actors to a ratio of samples per insert. Two statements hold at all times:

        samples <= samples_per_insert * (inserts - min_size) + tolerance,    else the learner waits
        samples_per_insert * (inserts - min_size) <= samples + tolerance,    else actors wait

    and nothing is sampled before `min_size` inserts.

    Attributes:
      samples_per_insert: samples per inserted item, on average.
      min_size: inserts before the first sample.
      tolerance: how far samples may run ahead of the ratio, or behind it, in samples. At least what one call
        of the learner samples, or nobody can ever move.
    """

    samples_per_insert: float
    min_size: int
    tolerance: float

    def __post_init__(self) -> None:
        if not self.samples_per_insert > 0:
            raise ValueError(f"samples_per_insert must be above 0, got {self.samples_per_insert}")
        if self.min_size < 1:
            raise ValueError(f"min_size must be at least 1, got {self.min_size}")
        if self.tolerance < self.samples_per_insert:
            raise ValueError(
                f"tolerance must be at least samples_per_insert ({self.samples_per_insert:g}), "
                f"got {self.tolerance:g}: not one item could be inserted"
            )

    def can_sample(self, count: int, *, inserts: int, samples: int) -> bool:
        """Whether `count` more samples keep the learner within the ratio."""
        if inserts < self.min_size:
            return False
        return samples + count <= self.samples_per_insert * (inserts - self.min_size) + self.tolerance

    def can_insert(self, count: int, *, inserts: int, samples: int) -> bool:
        """Whether `count` more inserts keep the actors within the ratio."""
        if inserts + count <= self.min_size:
            return True
        owed = self.samples_per_insert * (inserts + count - self.min_size)
        return owed <= samples + self.tolerance

    @property
    def max_batch(self) -> int:
        """Items that can be inserted at once without fear that they never can."""
        return max(1, int(self.tolerance / self.samples_per_insert))


@dataclasses.dataclass(frozen=True)
class Table:
    """A replay table.

    Attributes:
      name: its name.
      signature: nest of `dm_env.specs.Array` that every item has, without a batch axis.
      max_size: items that it holds.
      sampler: how items are drawn.
      remover: which item goes when it's full.
      rate_limiter: how samples and inserts are rationed.
      max_times_sampled: an item goes after it was drawn so often; 0 for no limit.
    """

    name: str
    signature: NestedSpec
    max_size: int
    sampler: Uniform | Prioritized
    rate_limiter: RateLimiter
    remover: Fifo = dataclasses.field(default_factory=Fifo)
    max_times_sampled: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a replay table needs a name")
        if self.max_size < self.rate_limiter.min_size:
            raise ValueError(
                f"table {self.name!r}: max_size {self.max_size} is below min_size "
                f"{self.rate_limiter.min_size}, so nothing could ever be sampled"
            )
        if self.max_times_sampled < 0:
            raise ValueError(f"table {self.name!r}: max_times_sampled must be at least 0")


def by_name(tables: list[Table]) -> dict[str, Table]:
    """Indexes tables by name.

    Raises:
      ValueError: there is none, or two have the same name.
    """
    indexed = {table.name: table for table in tables}
    if not tables or len(indexed) != len(tables):
        raise ValueError(f"expected tables of different names, got {[table.name for table in tables]}")
    return indexed
