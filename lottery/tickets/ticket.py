"""Tickets: masks and the weights to start from, out of a run or a file, into a model or a file."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lottery import files, masks, text_tables, weights
from lottery.enforcement import HeldAt, entries, patching
from lottery.errors import TicketError, printable
from lottery.formatting import percent
from lottery.masks import Masks
from lottery.models import architecture
from lottery.models.architecture import Architecture
from lottery.models.kerases import keras_of
from lottery.statistics.metric import ACCURACY, LOSS
from lottery.tickets import from_run, ticket_file


# Without `eq`: dicts of arrays can be neither compared by == nor hashed.
@dataclass(frozen=True, eq=False, repr=False)
class Ticket:
    """A ticket: masks, start weights, and where they are from.

    Attributes:
        masks: Boolean arrays by weight, True where the entry is kept.
        weights: Every variable at the start, by stable name, except states of random layers; masked entries are zero,
            or at their held values.
        trained: The same variables after training under the masks, or None.
        architecture: The network as plain data; see `lottery.models.architecture`.
        metrics: Losses in nats, accuracies in [0, 1]; those of the dense network under ``dense``, over replicates under
            ``replicates``; may be empty.
        provenance: Run, round, replicate, rewind step, data and their digest, protocol, versions.
    """

    masks: Masks
    weights: dict[str, np.ndarray]
    trained: dict[str, np.ndarray] | None
    architecture: Architecture
    metrics: dict[str, Any]
    provenance: dict[str, Any]

    def __post_init__(self) -> None:
        for values in (self.masks, self.weights, self.trained or {}):
            for value in values.values():
                value.flags.writeable = False  # masks and weights belong together

    @property
    def density(self) -> float:
        """Fraction of the prunable weights that are kept, in [0, 1]."""
        return masks.density(self.masks)

    @property
    def num_kept(self) -> int:
        """Number of weights that are kept."""
        return masks.total_kept(self.masks)

    @property
    def held_at(self) -> dict[str, np.ndarray] | None:
        """Values to hold masked entries at, by weight, as `lottery.enforcement` takes them; None if all are zero.

        The arrays are start weights, of which the masked entries count.
        """
        if not masks.leaks(self.weights, self.masks):
            return None
        return {name: self.weights[name] for name in self.masks}

    def model(self, trained: bool = False, library: str | None = None) -> Any:
        """Build the network and set its weights, masked entries at zero or their held values. It is not compiled.

        No code from a file is imported or run: the model is a built-in network, or consists of Keras' own layers.

        Args:
            trained: Set the trained weights instead of the start weights.
            library: ``"keras"`` or ``"tf_keras"``; by default the library in which the ticket was found.

        Raises:
            TicketError: The network needs code that the ticket does not contain; or there are no trained weights.
        """
        values = self._values(trained)
        built = architecture.build(self.architecture, masks.shapes(values), library)
        _assign(built, values)
        return built

    def apply(self, model: Any, trained: bool = False) -> None:
        """Set the weights of a model with the same names and shapes; masked entries get zero or their held values.

        Values are rounded where variables of the model have a smaller type. Use `lottery.enforcement` to hold the masks
        while training, with `held_at`. Wrappers of tfmot get the masks here, keep every entry without a mask, and stop
        computing masks.

        Args:
            model: A built model of either Keras.
            trained: Set the trained weights instead of the start weights.

        Raises:
            TicketError: Names or shapes differ; or the model has wrappers of tfmot, and the ticket holds masked entries
                at other values than zero. The model is unchanged.
        """
        from lottery.enforcement import tfmot

        values = self._values(trained)
        # Refuses what is no Keras model.
        keras_of(model)
        _check_shapes(f"The ticket is not of the model {model.name!r}.", values, weights.portable(model))
        wrapped = {name: np.ones(wrapper.mask.shape, bool) for name, wrapper in tfmot.find(model).items()}
        if wrapped and self.held_at:
            raise TicketError(
                f"The model {model.name!r} is wrapped by tfmot, which holds masked entries at zero, and the ticket "
                "holds some at other values; take the wrappers off with lottery.enforcement.tfmot.strip."
            )
        _assign(model, values)
        if wrapped:
            # A mask that the wrapper computes would prune what the ticket keeps.
            tfmot.wrap(model, {name: self.masks.get(name, ones) for name, ones in wrapped.items()})

    def save(self, path: str | Path, trained: bool = True) -> Path:
        """Write the ticket to one file, completely or not at all. `load` and every reader of safetensors can open it.

        Args:
            path: The file, ending in ``.safetensors``; it is returned.
            trained: Write the trained weights too, if there are any.

        Raises:
            LotteryError: The path has another ending, or cannot be written.
        """
        path = Path(path)
        if path.suffix != ".safetensors":
            raise TicketError(f"A ticket is a .safetensors file, not {str(path)!r}.")
        about = {"architecture": self.architecture, "metrics": self.metrics, "provenance": self.provenance}
        parts = ticket_file.Contents(self.masks, self.weights, self.trained if trained else None, about)
        files.write(path, ticket_file.pack(parts))
        return path

    def export(self, path: str | Path, form: str | None = None, inputs: Any = None, trained: bool | None = None) -> Any:
        """Write the network to a file that other programs load, and compare the file with it.

        Args:
            path: The file; its ending decides the format unless `form` does. See `lottery.tickets.exporting.export`.
            form: A key of `lottery.tickets.formats.EXPORTS`.
            inputs: Examples to compare with; drawn at random by default.
            trained: Write the trained weights, or the start weights if False; by default the trained ones if there are
                any.

        Returns:
            What was written, and how it compares: a `lottery.tickets.exporting.Exported`.
        """
        from lottery.tickets import exporting

        form = exporting.form_of(Path(path), form)
        if trained is None:
            trained = self.trained is not None
        model = self.model(trained, exporting.EXPORTS[form].library)
        return exporting.export(model, self.masks, path, form, inputs, self.held_at)

    def _values(self, trained: bool) -> dict[str, np.ndarray]:
        if not trained:
            return self.weights
        if self.trained is None:
            raise TicketError("The ticket holds no trained weights; train its model, or pass trained=False.")
        return self.trained

    def facts(self) -> dict[str, str]:
        """Describe the ticket for a person: its size, its network, where it comes from and how well it does."""
        found = {"density": f"{percent(self.density)}, {self.num_kept:,} weights kept"}
        others = sum(masks.leaks(self.weights, self.masks).values())
        if others:
            num = sum(mask.size for mask in self.masks.values()) - self.num_kept
            found["held at"] = f"values of their own: {others:,} of {num:,} masked weights, the others at zero"
        about = self.architecture
        network = about.get("name") or about.get("class") or "layers of Keras' own"
        found["network"] = f"{network}, of {about.get('library')}"
        found["weights"] = "at the start"
        if self.trained is not None:
            found["weights"] += f", and trained{self._step()}"
        of = self.provenance
        if of.get("run"):
            found["from"] = f"{of['run']}, replicate {of.get('replicate')}, round {of.get('round')}"
        if "rewind_step" in of:
            found["rewound to"] = f"step {of['rewind_step']} ({of.get('rewind_mode')})"
        data = of.get("data")
        if isinstance(data, dict) and data.get("name"):
            found["data"] = f"{data['name']}, digest {data.get('digest')}"
        found |= self._measured()
        return {name: printable(text) for name, text in found.items()}

    def _measured(self) -> dict[str, str]:
        """Return the test accuracy, or else the test loss, as text by its name; empty if the ticket holds neither."""
        for metric in (ACCURACY, LOSS):
            value = self.metrics.get(metric.early_stop)
            if isinstance(value, float):
                # Wherever the trained weights are from.
                return {metric.name: f"{metric.value(value)} at the early-stop step"}
        return {}

    def _step(self) -> str:
        """Name the step of the trained weights, if the ticket says it."""
        at, step = (self.provenance.get(key) for key in ("trained_at", "trained_step"))
        if not isinstance(step, int):
            return ""
        names = {"early_stop": "early-stop step", "budget": "best within the budget of the dense network"}
        return f" to step {step:,}, the {names.get(str(at), 'end')}"

    def layers(self) -> text_tables.TextTable:
        """List the weights with their shapes, entries that are kept, and densities."""
        rows = [
            [name, " x ".join(map(str, mask.shape)), f"{mask.sum():,}", f"{mask.size:,}", percent(mask.mean())]
            for name, mask in self.masks.items()
        ]
        return text_tables.TextTable(["weight", "shape", "kept", "of", "density"], rows)

    def _repr_html_(self) -> str:
        """Show the facts and the weights in a notebook."""
        facts = "".join(f"<b>{escape(name)}</b>: {escape(text)}<br>" for name, text in self.facts().items())
        return f"<p>{facts}</p>{text_tables.html(self.layers())}"

    def __repr__(self) -> str:
        of = self.provenance
        parts = [f"density {percent(self.density)} ({self.num_kept:,} weights kept)"]
        if "run" in of:
            parts.append(f"round {of.get('round')} of {of['run']}, replicate {of.get('replicate')}")
        parts += [f"{name} {value}" for name, value in self._measured().items()]
        parts.append("start and trained weights" if self.trained is not None else "start weights")
        return printable(f"<Ticket: {', '.join(parts)}>")


def load(
    source: str | PathLike[str],
    *,
    round: int | str | None = None,
    density: float | None = None,
    replicate: int = 1,
    at: Literal["end", "early_stop", "budget"] = "end",
) -> Ticket:
    """Load a ticket from a file, or from a round of a run.

    Args:
        source: A ``.safetensors`` file that `Ticket.save` wrote, or the folder of a run.
        round: Of a run: its number; ``"best"``, the pruned round with the highest mean validation accuracy (or the
            lowest loss, if the model measures none); or ``"smallest_matching"``, the sparsest round that is shown to be
            matching, as in `lottery show`: at most 0.002 of accuracy below dense, or 2 % of loss above.
        density: Of a run, instead of a round: a density in (0, 1]; the nearest round is used.
        replicate: Of a run, from 1.
        at: Of a run, the step of the trained weights: the last step; the early-stop step, at which accuracies are
            compared; or the step with the lowest validation loss within the budget of the dense network, which is its
            early-stop step. The ticket's `provenance` says which, as ``trained_at`` and ``trained_step``.

    Returns:
        The ticket. Every checksum has been compared; nothing is unpickled, imported or run.

    Raises:
        TicketError: There is no such file, run or round; or the file is not a valid ticket.
        LotteryError: The run is damaged, or an earlier version stored no weights at the early-stop step.
    """
    path = Path(source)
    if files.is_folder(path):
        parts = from_run.contents(path, round, density, replicate, at)
    else:
        if round is not None or density is not None or replicate != 1 or at != "end":
            what = "rounds, replicates or steps"
            raise TicketError(f"{str(path)!r} is not a run's folder, so it has no {what} to choose from.")
        parts = ticket_file.unpack(ticket_file.read(path), repr(str(path)))
    return Ticket(parts.masks, parts.weights, parts.trained, **parts.about)


def of(
    model: Any,
    kept: Mapping[str, np.ndarray],
    *,
    trained: Mapping[str, np.ndarray] | None = None,
    metrics: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    held_at: HeldAt = None,
) -> Ticket:
    """Make a ticket from any model and masks. It starts from the present weights of the model.

    Args:
        model: A built model of either Keras. It is not changed.
        kept: Boolean arrays by weight, of its shape, True where the entry is kept.
        trained: Every variable after training, as `lottery.weights.read_state` returns them.
        metrics, provenance: Plain JSON values to store in the ticket.
        held_at: What masked entries are held at, as for `lottery.enforcement.constraint`; zero if missing.

    Raises:
        LotteryError: There is no mask, or a mask, a held value or a trained weight does not fit the model; or LoRA
            adapts a masked weight.
    """
    keras_of(model)
    if not kept:
        raise TicketError("kept must have a mask for one weight or more. It has none.")
    named = weights.portable(model)
    start = {name: value for name, value in weights.read_state(model).items() if name in named}
    masks.check(dict(kept), start)
    # Copies, for the arrays of a ticket are made read-only.
    own = {name: np.array(kept[name]) for name in start if name in kept}
    holds = entries.held(model, own, held_at)
    entries.refuse_adapted(model, holds)
    values = {} if held_at is None else {entry.name: np.broadcast_to(entry.value, entry.mask.shape) for entry in holds}
    after = None
    if trained is not None:
        after = {name: np.array(value) for name, value in trained.items() if name in named}
        _check_shapes("The trained weights are not of the model.", after, start)
        for name, value in after.items():
            if value.dtype != start[name].dtype:
                raise TicketError(f"The trained {name!r} is {value.dtype}, the model's is {start[name].dtype}.")
        after = masks.apply(after, own, values)
    return Ticket(
        masks=own,
        weights=masks.apply(start, own, values),
        trained=after,
        architecture=architecture.describe(model),
        metrics=copy.deepcopy(dict(metrics or {})),
        provenance=copy.deepcopy(dict(provenance or {})),
    )


def _check_shapes(what: str, values: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise an error that begins with `what`, and lists both sides, unless names and shapes agree."""
    own, wanted = masks.shapes(values), masks.shapes(expected)
    if own != wanted:
        raise TicketError(f"{what} {architecture.differing(own, wanted)}")


def _assign(model: Any, values: Mapping[str, np.ndarray]) -> None:
    weights.assign(model, values)
    for layer in weights.all_layers(model):
        if isinstance(layer, keras_of(model).layers.Normalization):
            # The layer computes with constants made of its variables, and so do functions traced before.
            layer.finalize_state()
            patching.retrace(model)
