"""Torsos: from an observation to features."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp

from rlpad.types import NestedArray


def flatten_observation(observation: NestedArray, batch_dims: int = 1) -> jax.Array:
    """Concatenates all leaves of an observation into one float32 vector per batch entry.

    Args:
      observation: nest of arrays [B..., ...]; of any numeric or boolean dtype.
      batch_dims: leading axes that are kept.

    Returns:
      float32 [B..., D], leaves in the order of `jax.tree.leaves`.
    """
    leaves = [
        jnp.reshape(jnp.asarray(leaf, jnp.float32), leaf.shape[:batch_dims] + (-1,))
        for leaf in jax.tree.leaves(observation)
    ]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


class NatureTorso(hk.Module):
    """The convolutional torso of Mnih et al. 2015 (Nature 518, extended data table 1).

    Takes uint8 or float images [B, H, W, C] with values 0 to 255; gives float32 [B, D].
    """

    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns flat features of a batch of images."""
        hidden = jnp.asarray(images, jnp.float32) / 255.0
        for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            hidden = jax.nn.relu(hk.Conv2D(channels, kernel, stride, padding="VALID")(hidden))
        return hk.Flatten()(hidden)
