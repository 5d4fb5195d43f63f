"""A ticket as one file: how it is written, and everything that is checked before it is used."""

import hashlib
import json
import math
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import FailFast, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as parse_arrays
from safetensors.numpy import save as format_arrays

from lottery import files
from lottery.errors import LotteryError, TicketError, first_wrong
from lottery.files import MOST_RECORD, check_nesting
from lottery.masks import Masks, density, leaks, total_kept
from lottery.settings import Schema

FORMAT, WITH_HELD = 1, 2  # the second also has the values of masked entries, for a ticket where some are not zero
KEY = "ticket"  # the one entry of the metadata, for the order of several varies
MOST_VARIABLES, MOST_DIMENSIONS = 20_000, 32

# NumPy's types by safetensors' names. The record has NumPy's: nothing else says that a header's was not changed.
_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16", "U32": "uint32",
    "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64",
}  # fmt: skip
_SHA = r"^[0-9a-f]{64}$"


class Contents(NamedTuple):
    """The parts of a ticket; see `lottery.tickets.Ticket`, whose other attributes are in `about` by name."""

    masks: Masks
    weights: dict[str, np.ndarray]
    trained: dict[str, np.ndarray] | None
    about: dict[str, Any]


class _Variable(Schema, strict=True, extra="forbid"):
    # Without FailFast pydantic would list each of a million errors.
    shape: Annotated[list[Annotated[int, Field(ge=1, le=2**40)]], Field(max_length=MOST_DIMENSIONS), FailFast()]
    dtype: str
    masked: bool


class _Record(Schema, strict=True, extra="forbid"):
    format: Annotated[int, Field(ge=FORMAT, le=WITH_HELD)]
    lottery: str
    density: float
    num_kept: int
    variables: dict[str, _Variable]
    architecture: dict[str, Any]
    metrics: dict[str, Any]
    provenance: dict[str, Any]
    sha256: dict[str, Annotated[str, Field(pattern=_SHA)]]
    record_sha256: Annotated[str, Field(pattern=_SHA)]


def pack(contents: Contents) -> bytes:
    """Pack a ticket as the bytes of a safetensors file; the same ticket gives the same bytes.

    ``mask/NAME`` is a mask at one bit an entry, in row-major order, the first in the highest bit. ``start/NAME`` and
    ``trained/NAME`` are the kept entries of a masked weight in the same order, or the whole of another variable. If
    some masked entries are held at other values than zero, ``held/NAME`` are the masked entries of each weight. The
    record is JSON, under ``ticket`` in the metadata. `TicketError` says which name or type cannot be written.
    """
    masks = contents.masks
    for name, value in contents.weights.items():
        _check_name(name)
        if value.dtype.name not in _TYPES.values():
            raise TicketError(f"{name} must have one of the types {', '.join(_TYPES.values())}, not {value.dtype}.")
    tensors = {f"mask/{name}": np.packbits(mask) for name, mask in masks.items()}
    for part, values in (("start", contents.weights), ("trained", contents.trained or {})):
        for name, value in values.items():
            kept = value[masks[name]] if name in masks else value
            tensors[f"{part}/{name}"] = np.asarray(kept, order="C")
    with_held = bool(leaks(contents.weights, masks))
    # Those of the start do for the trained weights, too: held entries do not train.
    if with_held:
        tensors |= {f"held/{name}": contents.weights[name][~mask] for name, mask in masks.items()}
    record: dict[str, Any] = {
        "format": WITH_HELD if with_held else FORMAT,
        "lottery": metadata.version("lottery"),
        "density": density(masks),
        "num_kept": total_kept(masks),
        "variables": {
            name: {"shape": list(value.shape), "dtype": value.dtype.name, "masked": name in masks}
            for name, value in contents.weights.items()
        },
        **contents.about,
        "sha256": {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in tensors.items()},
    }
    try:
        record["record_sha256"] = _digest(record)
    except (ValueError, TypeError, RecursionError) as error:
        raise TicketError(f"The ticket's metrics, provenance or architecture is not plain data: {error}.") from None
    packed = format_arrays(tensors, {KEY: json.dumps(record)})
    unpack(packed, "what would be written")  # refuse to write what could not be read
    return packed


def read(path: Path) -> bytes:
    """Read a ticket file; raise `TicketError` before reading a large file whose size is not as its header says."""
    try:
        return files.read_packed(path)
    except LotteryError as error:
        try:
            return files.read(path, 8 + MOST_RECORD)  # `unpack` says what is wrong with it
        except LotteryError:
            raise TicketError(str(error)) from None


def unpack(content: bytes, where: str) -> Contents:
    """Unpack the bytes of a ticket file after checking sizes, counts, names and checksums; `where` names it in errors.

    Nothing but `TicketError` is raised, whatever the bytes. The arrays take at most 160 times the memory of the file: a
    bit of a mask becomes a number of eight bytes, twice with trained weights.
    """
    try:
        return _unpacked(content)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, SafetensorError) as error:
        why = error if isinstance(error, TicketError) else _first(error)
        raise TicketError(f"{where} is not a ticket file that can be trusted: {why}") from None


def _unpacked(content: bytes) -> Contents:
    header, loaded, size = _header(content)
    record = _checked_record(loaded)
    if _digest(loaded) != record.record_sha256:
        raise TicketError("the checksum of its record is wrong.")
    _check_tensors(record, header, size)
    tensors = parse_arrays(content)
    for name, value in tensors.items():
        if hashlib.sha256(value.tobytes()).hexdigest() != record.sha256[name]:
            raise TicketError(f"the checksum of {name} is wrong.")
    masked = {name: variable.shape for name, variable in record.variables.items() if variable.masked}
    masks = {name: _mask(name, shape, tensors) for name, shape in masked.items()}
    if record.num_kept != total_kept(masks) or record.density != density(masks):
        raise TicketError("its density does not agree with its masks.")
    has_trained = any(name.startswith("trained/") for name in tensors)
    about = {key: loaded[key] for key in ("architecture", "metrics", "provenance")}
    trained = _whole("trained", record, masks, tensors) if has_trained else None
    return Contents(masks, _whole("start", record, masks, tensors), trained, about)


def _header(content: bytes) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Read the list of tensors, the record, and the number of bytes of the tensors."""
    # By hand, for the library forgives what must not pass here.
    length = int.from_bytes(content[:8], "little")
    size = len(content) - 8 - length
    if len(content) < 8 or size < 0:
        raise TicketError("it ends before its header does, or has none.")
    if length > MOST_RECORD:
        raise TicketError(f"its record has {length:,} bytes, more than the limit of {MOST_RECORD:,}.")
    header = _parsed(content[8 : 8 + length])
    texts = header.pop("__metadata__", None)
    if not isinstance(texts, dict) or list(texts) != [KEY]:
        raise TicketError(f"its metadata has no {KEY!r}.")
    loaded = _parsed(texts[KEY])
    version = loaded.get("format")
    if type(version) is int and version > WITH_HELD:
        raise TicketError(
            f"it has format {version}, and this version of lottery reads up to {WITH_HELD}; install a newer version."
        )
    return header, loaded, size


def _checked_record(loaded: dict[str, Any]) -> _Record:
    # First that nothing is too long, for pydantic would list each of a million errors.
    for key, most in (("variables", MOST_VARIABLES), ("sha256", 4 * MOST_VARIABLES)):
        if isinstance(loaded.get(key), dict) and len(loaded[key]) > most:
            raise TicketError(f"it has more than {MOST_VARIABLES:,} variables.")
    _check_keys("record", loaded, _Record)
    variables = loaded.get("variables")
    # What is not a dict is refused below, in pydantic's own words.
    if isinstance(variables, dict):
        for variable in variables.values():
            if isinstance(variable, dict):
                _check_keys("variable", variable, _Variable)
    return _Record.model_validate(loaded)


def _check_keys(what: str, values: Mapping[str, Any], allowed: type[Schema]) -> None:
    for name in values:
        if name not in allowed.model_fields:
            raise TicketError(f"its {what} has {name[:80]!r}, which no ticket has.")


def _mask(name: str, shape: list[int], tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Unpack a mask, and check that it keeps as many entries as the file has."""
    bits = np.unpackbits(tensors[f"mask/{name}"])
    num = math.prod(shape)
    kept = np.count_nonzero(bits)
    held = tensors.get(f"held/{name}")
    wrong = tensors[f"start/{name}"].size != kept or (held is not None and held.size != num - kept)
    if bits[num:].any() or wrong:
        raise TicketError(f"the mask of {name} does not keep as many entries as the file has.")
    return bits[:num].astype(bool).reshape(shape)


def _parsed(text: Any) -> dict[str, Any]:
    """Parse JSON strictly: no name twice, no NaN, no deep nesting."""
    if not isinstance(text, str | bytes):
        raise TicketError("its record is not text.")

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(found)
        if len(values) < len(found):
            raise TicketError("a name appears twice.")
        return values

    def refused(constant: str) -> None:
        raise TicketError(f"{constant} is not a number.")

    values = json.loads(text, object_pairs_hook=pairs, parse_constant=refused)
    if not isinstance(values, dict):
        raise TicketError("its header is not a record.")
    check_nesting(values)
    return values


def _check_tensors(record: _Record, header: Mapping[str, Any], size: int) -> None:
    """Check that the header lists exactly the tensors of the record with their sizes, before reading any."""
    if not any(variable.masked for variable in record.variables.values()):
        raise TicketError("it has no masks.")
    parts = ["start"]
    if any(name.startswith("trained/") for name in header):
        parts.append("trained")
    of_masks = ("mask", "held") if record.format == WITH_HELD else ("mask",)
    expected = {f"{part}/{name}" for part in parts for name in record.variables}
    for name, variable in record.variables.items():
        if variable.masked:
            expected |= {f"{part}/{name}" for part in of_masks}
    if set(header) != expected or set(record.sha256) != expected:
        raise TicketError("its tensors differ from those in its record.")
    total = 0
    for name, entry in header.items():
        part, _, own = name.partition("/")
        _check_name(own)
        shape, variable = entry["shape"], record.variables[own]
        # Before multiplying them: thousands of numbers of thousands of digits take minutes.
        are_sizes = isinstance(shape, list) and all(type(length) is int and 0 <= length <= 2**40 for length in shape)
        if not are_sizes or len(shape) > MOST_DIMENSIONS:
            raise TicketError(f"{name} must have a shape of at most {MOST_DIMENSIONS} sizes, not {repr(shape)[:80]}.")
        dtype, num = _TYPES.get(entry["dtype"], ""), math.prod(variable.shape)
        if part == "mask":
            right = dtype == "uint8" and shape == [-(-num // 8)]
        elif variable.masked:
            # Whole numbers do not train, so no mask is of them.
            right = dtype == variable.dtype and "float" in dtype and len(shape) == 1 and shape[0] <= num
        else:
            right = dtype == variable.dtype and shape == variable.shape
        if not right or (part == "trained" and shape != header[f"start/{own}"]["shape"]):
            raise TicketError(f"the size or type of {name} differs from its record.")
        total += math.prod(shape) * np.dtype(dtype).itemsize
    if total != size:
        raise TicketError(f"its header announces {total} bytes of tensors, but the file has {size}.")


def _check_name(name: str) -> None:
    """Refuse a name that some program may take for a path that leads elsewhere."""
    parts = name.split("/")
    odd = not name.isprintable() or {":", "\\"} & set(name)
    if odd or len(name) > 1000 or not all(parts) or {".", ".."} & set(parts):
        raise TicketError(f"a variable is called {name[:80]!r}, not by names of layers between slashes.")


def _whole(part: str, record: _Record, masks: Masks, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Unfold every variable, with held values where a mask does not keep, or zeros if the file has none."""
    values = {name: tensors[f"{part}/{name}"].copy() for name in record.variables}  # not a view of the file
    for name, mask in masks.items():
        whole = np.zeros(mask.shape, values[name].dtype)
        whole[mask] = values[name]
        if record.format == WITH_HELD:
            whole[~mask] = tensors[f"held/{name}"]
        values[name] = whole
    return values


def _digest(record: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in record.items() if key != "record_sha256"}
    # In its order, which is that of the weights; as text rather than escaped, so that half a character is refused.
    return hashlib.sha256(json.dumps(rest, allow_nan=False, ensure_ascii=False).encode()).hexdigest()


def _first(error: Exception) -> str:
    """Shorten the message of an exception to one line of bounded length."""
    if isinstance(error, ValidationError):
        return first_wrong(error)
    lines = str(error).strip().splitlines()
    return f"{lines[0][:200]}." if lines else f"{type(error).__name__}."
