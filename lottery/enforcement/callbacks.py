"""Every mode of enforcement as a callback of ``fit``, for Keras 3 and tf_keras alike."""

import contextlib
from collections.abc import Mapping
from typing import Any

from lottery.enforcement.fit_callback import FitCallback, guard
from lottery.enforcement.holding import HeldAt
from lottery.enforcement.modes import ENFORCEMENTS
from lottery.errors import unknown


class EnforceMasks(FitCallback):
    """Holds masked entries of a model while ``fit`` trains it.

    ``model.fit(x, y, callbacks=[EnforceMasks(masks)])`` is all there is to do: it installs itself when training
    begins, also in a model that was fitted before, and takes itself off when training ends, by an exception too. It
    can be used again, for the same model or another. Callbacks that read the weights after a batch come behind it.

    Args:
        masks: By weight, boolean arrays, True where the entry is kept.
        mode: A key of ``lottery.enforcement.ENFORCEMENTS``, or a function like its entries.
        held_at: By weight, the values that masked entries are held at; zero where it says nothing; or ``"present"``
            for the values that the weights have when training begins.

    Raises:
        LotteryError: Here, the mode does not exist; when training begins, masks or values do not fit the model.
    """

    def __init__(self, masks: Mapping[str, Any], mode: Any = "constraint", held_at: HeldAt = None) -> None:
        super().__init__()
        if not callable(mode) and not (isinstance(mode, str) and mode in ENFORCEMENTS):
            raise unknown("mode", mode, ENFORCEMENTS)
        self._hold: Any = mode if callable(mode) else ENFORCEMENTS[mode]
        self._masks, self._held_at = masks, held_at
        self._inner: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Install: masked entries are at their held values from here on."""
        super().on_train_begin(logs)
        with contextlib.ExitStack() as stack:
            self._inner = stack.enter_context(self._hold(self.model, self._masks, self._held_at))
            for one in self._inner:
                one.set_model(self.model)
                one.on_train_begin(logs)
            guard(stack, self.model, self._container, self._fit, self._take_off)
            self._installed = stack.pop_all()

    def on_train_batch_end(self, batch: Any, logs: Any = None) -> None:
        """Do what the mode does at the end of a batch, if anything."""
        for one in self._inner:
            one.on_train_batch_end(batch, logs)

    def _take_off(self) -> None:
        self._inner = []
        super()._take_off()
