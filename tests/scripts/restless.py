"""A network that draws random numbers and keeps statistics, to be named by an experiment: tests.scripts.restless:network."""

from typing import Any


def network() -> Any:
    """Convolution, BatchNorm and dropout, for the digits; built, not compiled."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8)), layers.Reshape((8, 8, 1)), layers.Conv2D(4, 3), layers.BatchNormalization(),
            layers.Activation("relu"), layers.Flatten(), layers.Dense(32, "relu"), layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )  # fmt: skip
