"""Random order of the elements of a dataset."""

from __future__ import annotations

import tensorflow as tf

_FIRST = 87654321  # what TensorFlow takes for the seed of the process where none is set
_SEEDS = 2**31 - 1


def shuffled(dataset: tf.data.Dataset, buffer: int, seed: int, *, repeated: bool = False) -> tf.data.Dataset:
    """Return the elements in an order that depends on the seed alone, and not on ``tf.random.set_seed``.

    It is that of ``dataset.shuffle`` in a process where no seed is set.

    Parameters
    ----------
    dataset
        The dataset.
    buffer
        Number of elements that the next one is drawn from.
    seed
        The seed.
    repeated
        Whether each pass has an order of its own.
    """
    spec = dataset.element_spec
    parts = tf.nest.flatten(spec)
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=tf.constant(buffer, tf.int64),
        seed=tf.constant(_FIRST, tf.int64),
        seed2=tf.constant(seed % _SEEDS, tf.int64),
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        reshuffle_each_iteration=repeated,
        output_types=[part.dtype for part in parts],
        output_shapes=[part.shape for part in parts],
    )
    return tf.data.experimental.from_variant(variant, spec)
