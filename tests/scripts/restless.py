"""A network that draws random numbers and keeps statistics, to be named by an experiment: tests.scripts.restless:network."""

from typing import Any


def network() -> Any:
    """Convolution, BatchNorm and dropout, for the digits; built, not compiled.

    Every layer has a name, or Keras would give it one by the number of layers that the process has built, and a run
    records names.
    """
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8), name="images"), layers.Reshape((8, 8, 1), name="reshape"),
            layers.Conv2D(4, 3, name="conv2d"), layers.BatchNormalization(name="batch_normalization"),
            layers.Activation("relu", name="activation"), layers.Flatten(name="flatten"),
            layers.Dense(32, "relu", name="dense"), layers.Dropout(0.3, name="dropout"),
            layers.Dense(10, name="dense_1"),
        ],
        name="restless",
    )  # fmt: skip
