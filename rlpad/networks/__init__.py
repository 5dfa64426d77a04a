"""Network parts that several agents share, as dm-haiku modules."""

from rlpad.networks.linear import MLP, Linear
from rlpad.networks.torsos import NatureTorso, flatten_observation
from rlpad.networks.values import DuellingHead, QNetwork

__all__ = ["MLP", "DuellingHead", "Linear", "NatureTorso", "QNetwork", "flatten_observation"]
