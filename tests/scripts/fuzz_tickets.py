"""Damage ticket files in every way we can think of, and see that each is refused in one sentence or loads unchanged.

    python -m tests.scripts.fuzz_tickets --files 20000 --seed 0

A second class of files is forged: the checksums are right, and what they vouch for is an attack. A forged ticket may
load, but its model must be a model of Keras' own layers or a `TicketError`: no code, no import by name, no file read.
How large a network it builds, and how long that takes, is not limited. `tests/tickets/test_ticket_file.py` runs a short version of both.

The tickets in `corpus/tickets/` are what the damage is done to. `--make-corpus` wrote them, by `made` below; those that
begin with `found-` once loaded as another ticket, hung or raised something else, and are refused today.
"""

import argparse
import collections
import contextlib
import hashlib
import io
import json
import pickle
import struct
import sys
import tempfile
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load as parse_arrays
from safetensors.numpy import save as format_arrays

from lottery import tickets
from lottery.errors import TicketError
from lottery.tickets import ticket_file

CORPUS = Path(__file__).parent / "corpus" / "tickets"
SECONDS = 2.0  # of the processor, for one file: hundreds of times what most take
# Bytes of memory for a file of some: a bit of a mask becomes two numbers of eight bytes and two of one.
MOST_MEMORY = (160, 1_000_000)  # by byte of the file, and besides
MOST_OF_ALL = 300_000_000
ODD = (
    -1, 0, 1, 2, 7, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**400, 0.0, -0.0, 1.0, 1.5, 1e308, True, False, None,
    "", "0", "F32", "F64", "BF16", "I32", "U32", "U8", "../x", "/etc/passwd", "a//b", "a\\b", "a\0b", "C:x", "\u2028",
    "\ud800", "é", [], [[]], [0], [1], [-1], [1.0], ["1"], [True], [2**62, 4], [1] * 40, {}, {"class_name": "Lambda"},
)  # fmt: skip
PATHS = (
    "../x",
    "/etc/passwd",
    "a//b",
    "..",
    "start/../../x",
    "a\0b",
    "a\\b",
    "C:\\x",
    "a\nb",
    "\ud800",
    "x" * 2000,
    "",
)


def contents(name):
    """The bytes of a file of the corpus."""
    return (CORPUS / f"{name}.safetensors").read_bytes()


def seeds():
    """The whole tickets of the corpus, by name."""
    names = sorted(path.stem for path in CORPUS.glob("*.safetensors"))
    return {name: contents(name) for name in names if not name.startswith("found-")}


def split(content):
    """The header, the record and the bytes of the tensors."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return header, json.loads(header["__metadata__"]["ticket"]), content[8 + length :]


def joined(header, body, record=None):
    """A file of a header, which is a dict or any text, and the bytes after it."""
    if record is not None:
        text = record if isinstance(record, str) else json.dumps(record)
        header = {**header, "__metadata__": {**header.get("__metadata__", {}), "ticket": text}}
    if not isinstance(header, (str, bytes)):
        header = json.dumps(header, separators=(",", ":"))
    text = header if isinstance(header, bytes) else header.encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def forge(content, record_edit=None, tensors_edit=None):
    """The file that its writer would have signed, had the record and the tensors been these; nothing is checked.

    Args:
        content: A ticket file.
        record_edit: Called with the record, to change it.
        tensors_edit: Called with the tensors by name, to change them, before the record.
    """
    _, record, _ = split(content)
    tensors = dict(parse_arrays(content))
    if tensors_edit:
        tensors_edit(tensors)
    record["sha256"] = {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in tensors.items()}
    if record_edit:
        record_edit(record)
    record.pop("record_sha256", None)
    text = json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass")
    record["record_sha256"] = hashlib.sha256(text).hexdigest()
    return format_arrays(tensors, {"ticket": json.dumps(record)})


def differences(first, second):
    """In what two tickets differ, to the last bit and in order; empty if in nothing."""
    found = []
    for part in ("masks", "weights", "trained"):
        one, other = getattr(first, part), getattr(second, part)
        if (one is None) != (other is None):
            found.append(part)
        elif one is not None and list(one) != list(other):
            found.append(f"names of {part}")
        elif one is not None:
            for name, value in one.items():
                theirs = other[name]
                if (value.dtype, value.shape, value.tobytes()) != (theirs.dtype, theirs.shape, theirs.tobytes()):
                    found.append(f"{part} of {name}")
    # As text, for True is 1 and 1.0 otherwise.
    about = (json.dumps({key: one.about[key] for key in sorted(one.about)}) for one in (first, second))
    return found + (["what is known of it"] if len(set(about)) > 1 else [])


# What is done to a file: from (random numbers, its bytes) to other bytes.


def _position(rng, content):
    return int(rng.integers(len(content)))


def flip_bits(rng, content):
    content = bytearray(content)
    for _ in range(rng.integers(1, 9)):
        content[_position(rng, content)] ^= 1 << int(rng.integers(8))
    return bytes(content)


def flip_bits_of_header(rng, content):
    length = 8 + int.from_bytes(content[:8], "little")
    return flip_bits(rng, content[:length]) + content[length:]


def set_bytes(rng, content):
    content = bytearray(content)
    for _ in range(rng.integers(1, 5)):
        content[_position(rng, content)] = int(rng.choice([0, 9, 32, 34, 44, 48, 49, 91, 92, 93, 123, 125, 128, 255]))
    return bytes(content)


def insert_bytes(rng, content):
    at = _position(rng, content)
    return content[:at] + rng.bytes(int(rng.integers(1, 20))) + content[at:]


def delete_bytes(rng, content):
    at = _position(rng, content)
    return content[:at] + content[at + int(rng.integers(1, 20)) :]


def truncate(rng, content):
    return content[: _position(rng, content)]


def extend(rng, content):
    return content + (bytes, rng.bytes)[rng.integers(2)](int(rng.integers(1, 200)))


def swap_chunks(rng, content):
    size = int(rng.integers(1, 64))
    a, b = sorted(rng.integers(0, max(1, len(content) - size), 2))
    if b - a < size:
        return content[:a] + content[b:]
    return content[:a] + content[b : b + size] + content[a + size : b] + content[a : a + size] + content[b + size :]


def lie_about_header(rng, content):
    length = int.from_bytes(content[:8], "little")
    lies = (0, 1, length - 1, length + 1, length + 8, len(content) - 8, len(content), 10**8, 2**32, 2**63, 2**64 - 1)
    return struct.pack("<Q", lies[rng.integers(len(lies))]) + content[8:]


def _places(value):
    """Every place in nested values, as (container, key)."""
    inside = (
        list(value.items() if isinstance(value, dict) else enumerate(value)) if isinstance(value, (dict, list)) else []
    )
    return [(value, key) for key, _ in inside] + [place for _, one in inside for place in _places(one)]


def edit_header(rng, content):
    header, _, body = split(content)
    places = [place for place in _places(header) if place[1] != "__metadata__"]
    for _ in range(rng.integers(1, 3)):
        holder, key = places[rng.integers(len(places))]
        holder[key] = ODD[rng.integers(len(ODD))]
    return joined(header, body)


def edit_tensor(rng, content):
    header, _, body = split(content)
    names = [name for name in header if name != "__metadata__"]
    entry = header[names[rng.integers(len(names))]]
    field = ("dtype", "shape", "data_offsets")[rng.integers(3)]
    if field == "dtype":
        types = (*ticket_file._TYPES, "BF16", "F8_E4M3", "C64", "", None, 1, [], "f32")
        entry[field] = types[rng.integers(len(types))]
    elif rng.random() < 0.5 and entry[field]:
        entry[field][rng.integers(len(entry[field]))] = ODD[rng.integers(len(ODD))]
    else:
        entry[field] = [[], [1], [0, 0], [*entry[field], 1], [1, *entry[field]], entry[field][::-1], None][
            rng.integers(7)
        ]
    return joined(header, body)


def swap_fields(rng, content):
    header, _, body = split(content)
    names = [name for name in header if name != "__metadata__"]
    first, second = (header[names[rng.integers(len(names))]] for _ in range(2))
    field = ("dtype", "shape", "data_offsets")[rng.integers(3)]
    first[field], second[field] = second[field], first[field]
    return joined(header, body)


def overlap(rng, content):
    header, _, body = split(content)
    names = [name for name in header if name != "__metadata__"]
    begin, end = header[names[rng.integers(len(names))]]["data_offsets"]
    shift = int(rng.integers(-8, 9))
    header[names[rng.integers(len(names))]]["data_offsets"] = [max(0, begin + shift), max(0, end + shift)]
    return joined(header, body)


def rename(rng, content):
    header, record, body = split(content)
    names = [name for name in header if name != "__metadata__"]
    old = names[rng.integers(len(names))]
    new = (*PATHS, *(old.partition("/")[0] + "/" + path for path in PATHS), *names)[
        rng.integers(2 * len(PATHS) + len(names))
    ]
    header = {new if name == old else name: value for name, value in header.items()}
    return joined(header, body, record)


def repeat_name(rng, content):
    header, record, body = split(content)
    names = [name for name in header if name != "__metadata__"]
    name = names[rng.integers(len(names))]
    kind = rng.integers(4)
    if kind == 0:  # a tensor
        return joined(json.dumps(header)[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}", body)
    if kind == 1:  # the metadata
        return joined(json.dumps(header)[:-1] + f', "__metadata__": {json.dumps(header["__metadata__"])}}}', body)
    if kind == 2:  # the record in it
        text = json.dumps(json.dumps(record))
        return joined(
            json.dumps({**header, "__metadata__": 0}).replace(
                '"__metadata__": 0', f'"__metadata__": {{"ticket": {text}, "ticket": {text}}}'
            ),
            body,
        )
    key = list(record)[rng.integers(len(record))]
    return joined(header, body, json.dumps(record)[:-1] + f", {json.dumps(key)}: {json.dumps(record[key])}}}")


def edit_record(rng, content):
    header, record, body = split(content)
    places = _places(record)
    for _ in range(rng.integers(1, 3)):
        holder, key = places[rng.integers(len(places))]
        holder[key] = ODD[rng.integers(len(ODD))]
    return joined(header, body, record)


def edit_text_of_record(rng, content):
    header, record, body = split(content)
    text = json.dumps(record)
    at = _position(rng, text)
    new = ("", "0", "1", ".0", "e5", "-", "NaN", "Infinity", '"', ",", "\\u0041", "\\ud800", " ", "\n", "[", "}", "\t ")
    return joined(header, body, text[:at] + new[rng.integers(len(new))] + text[at + int(rng.integers(2)) :])


def reorder_record(rng, content):
    header, record, body = split(content)
    holders = [record, *(holder[key] for holder, key in _places(record) if isinstance(holder[key], dict))]
    holder = holders[rng.integers(len(holders))]
    items = list(holder.items())
    rng.shuffle(items)
    holder.clear()
    holder.update(items)
    return joined(header, body, record)


def lose_key(rng, content):
    header, record, body = split(content)
    where = (header, record)[rng.integers(2)]
    places = [(holder, key) for holder, key in _places(where) if isinstance(holder, dict)]
    holder, key = places[rng.integers(len(places))]
    del holder[key]
    return joined(header, body, record if "__metadata__" in header and where is record else None)


def add_tensor(rng, content):
    header, record, body = split(content)
    extra = rng.bytes(int(rng.integers(0, 9)))
    name = ("start/x", "trained/x", "mask/x", "x", "", "../x", "__metadata_")[rng.integers(7)]
    header[name] = {"dtype": "U8", "shape": [len(extra)], "data_offsets": [len(body), len(body) + len(extra)]}
    return joined(header, body + extra, record)


def drop_tensor(rng, content):
    tensors = dict(parse_arrays(content))
    del tensors[list(tensors)[rng.integers(len(tensors))]]
    return format_arrays(tensors, split(content)[0]["__metadata__"])


def swap_tensors(rng, content):
    tensors = dict(parse_arrays(content))
    first, second = (list(tensors)[rng.integers(len(tensors))] for _ in range(2))
    tensors[first], tensors[second] = tensors[second], tensors[first]
    return format_arrays(tensors, split(content)[0]["__metadata__"])


def edit_tensors_values(rng, content):
    tensors = {name: value.copy() for name, value in parse_arrays(content).items()}
    name = list(tensors)[rng.integers(len(tensors))]
    kind = rng.integers(3)
    if kind == 0:
        tensors[name] = tensors[name].astype((np.float16, np.float32, np.float64, np.int32, np.uint8)[rng.integers(5)])
    elif kind == 1 and tensors[name].size:
        tensors[name] = np.roll(tensors[name], 1)
    else:
        tensors[name] = np.append(tensors[name], tensors[name][:1] if tensors[name].ndim else 0)
    return format_arrays(tensors, split(content)[0]["__metadata__"])


def nest(rng, content):
    header, record, body = split(content)
    depth = int(rng.choice([50, 250, 900, 1100, 5000, 100_000]))
    deep = ("[" * depth + "]" * depth, '{"a":' * depth + "0" + "}" * depth)[rng.integers(2)]
    if rng.integers(2):
        return joined(json.dumps(header)[:-1] + f', "x": {deep}}}', body)
    key = ("metrics", "architecture", "provenance", "x")[rng.integers(4)]
    record.pop(key, None)
    return joined(header, body, json.dumps(record)[:-1] + f', "{key}": {{"a": {deep}}}}}')


def huge_numbers(rng, content):
    header, record, body = split(content)
    digits = "9" * int(rng.choice([20, 400, 4299, 4301, 50_000]))
    number = (digits, f"-{digits}", f"1e{digits[:6]}", f"{digits}.5", "NaN", "Infinity", "-Infinity")[rng.integers(7)]
    names = [name for name in header if name != "__metadata__"]
    if rng.integers(2):
        entry = header[names[rng.integers(len(names))]]
        entry[("shape", "data_offsets")[rng.integers(2)]] = "HERE"
        several = ", ".join([number] * int(rng.choice([1, 2, 32, 33, 200])))
        return joined(json.dumps(header).replace('"HERE"', f"[{several}]"), body)
    places = _places(record)
    holder, key = places[rng.integers(len(places))]
    holder[key] = "HERE"
    return joined(header, body, json.dumps(record).replace('"HERE"', number))


def flood(rng, content):
    """A record of a hundred thousand small things, which take far more memory than text."""
    header, record, body = split(content)
    length = int(10 ** rng.uniform(3, 5.3))
    key = (None, "variables", "sha256", "metrics", "architecture", "provenance")[rng.integers(6)]
    holder = record if key is None else record[key]
    if key == "variables" and rng.integers(2):
        holder = next(iter(holder.values()))
    thing = (0, {}, [], "", None, {"shape": []}, [0], "a")[rng.integers(8)]
    if rng.integers(3):
        holder |= {f"{index:x}": thing for index in range(length // 8)}
    else:
        holder["shape" if "shape" in holder else "x"] = [thing] * (length // 3)
    return joined(header, body, record)


def more_metadata(rng, content):
    header, record, body = split(content)
    more = ({"x": "y"}, {"x": 1}, {"Ticket": "{}"}, {"": ""}, {"format": "pt"})[rng.integers(5)]
    if rng.integers(2):
        header["__metadata__"].update(more)
    else:
        header["__metadata__"] = {**more, **header["__metadata__"]}
    return joined(header, body)


def odd_text(rng, content):
    header, record, body = split(content)
    text = json.dumps(header)
    kind = rng.integers(7)
    if kind == 0:
        return joined(b"\xef\xbb\xbf" + text.encode(), body)
    if kind < 4:
        return joined(text.encode(("utf-16", "utf-16-le", "utf-32")[kind - 1]), body)
    if kind == 4:
        at = _position(rng, text)
        return joined(
            text[:at].encode() + bytes([int(rng.choice([0x80, 0xC0, 0xED, 0xFF]))]) + text[at:].encode(), body
        )
    if kind == 5:
        return joined((" " * int(rng.integers(1, 9))) + text, body)
    return joined(header, body, "\ufeff" + json.dumps(record))


def write_otherwise(rng, content):
    """The same ticket in other words, most of the time: spaces, escapes, another order of tensors, more padding."""
    header, record, body = split(content)
    record = json.dumps(record, indent=(None, 1)[rng.integers(2)], ensure_ascii=bool(rng.integers(2)))
    names = list(header)
    rng.shuffle(names)
    header = {name: header[name] for name in names}
    header["__metadata__"] = {"ticket": record}
    text = json.dumps(header, indent=(None, 2)[rng.integers(2)], ensure_ascii=bool(rng.integers(2)))
    return joined(text + " " * int(rng.choice([0, 0, 8, 80])), body)


def splice(rng, content):
    others = list(seeds().values())
    other = others[rng.integers(len(others))]
    if rng.integers(2):
        return joined(split(content)[0], split(other)[2])
    return content[: _position(rng, content)] + other[_position(rng, other) :]


def something_else(rng, content):
    kind = rng.integers(9)
    if kind == 0:
        return b""
    if kind == 1:
        return rng.bytes(int(rng.integers(1, 400)))
    if kind == 2:
        return format_arrays(
            {"a": np.zeros(3)}, [None, {"format": "np"}, {"ticket": "{}"}, {"ticket": "[]"}][rng.integers(4)]
        )
    if kind == 3:
        return pickle.dumps({"masks": np.ones(3)}, protocol=int(rng.integers(6)))
    if kind == 4:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("t.safetensors", content)
        return file.getvalue()
    if kind == 5:
        return b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + rng.bytes(200)
    if kind == 6:
        return joined(("{}", "[]", "null", '""', "0", "", "{", '{"a":{}}', '{"__metadata__":[]}')[rng.integers(9)], b"")
    if kind == 7:
        return content[::-1]
    return bytes(int(rng.integers(1, 100)))


MUTATIONS = (
    flip_bits, flip_bits_of_header, set_bytes, insert_bytes, delete_bytes, truncate, extend, swap_chunks,
    lie_about_header, edit_header, edit_tensor, swap_fields, overlap, rename, repeat_name, edit_record,
    edit_text_of_record, reorder_record, lose_key, add_tensor, drop_tensor, swap_tensors, edit_tensors_values, nest,
    huge_numbers, flood, more_metadata, odd_text, write_otherwise, splice, something_else,
)  # fmt: skip


def judged(content, read, expected):
    """Read a file. What came of it, ``"same"`` or ``"refused"`` or what is wrong; its seconds; its peak of memory."""
    tracemalloc.start()  # for no longer than this, because it slows down everything
    before, began = tracemalloc.get_traced_memory()[0], time.thread_time()
    found = None
    try:
        found = read()
        outcome = "loaded"
    except TicketError as error:
        outcome = "refused" if said_well(error) else f"refused in more than a line: {str(error)[:300]!r}"
    except Exception as error:
        outcome = f"{type(error).__name__}: {str(error)[:300]}"
    seconds, peak = time.thread_time() - began, tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    if found is not None:
        wrong = [differences(found, one) for one in expected]
        outcome = "same" if [] in wrong else f"loaded as another ticket: {wrong[0]}"
    if seconds > SECONDS:
        outcome = f"took {seconds:.1f} s"
    if peak > min(MOST_MEMORY[0] * len(content) + MOST_MEMORY[1], MOST_OF_ALL):
        outcome = f"took {peak} bytes for {len(content)}"
    return outcome, seconds, peak


def said_well(error, most=6000):
    """Whether an error is one sentence of bounded length in one line."""
    return len(str(error).splitlines()) == 1 and len(str(error)) <= most


def fuzz(num_files, seed, folder, say=print):
    """Damage `num_files` files; how many broke a promise.

    Args:
        num_files: How many; the kinds of damage take turns, and so do the tickets.
        seed: Of all chance.
        folder: Where every twentieth is written to, and loaded from. What breaks a promise stays there.
        say: Called with each line of the report.
    """
    rng = np.random.default_rng(seed)
    whole = seeds()
    read = {name: ticket_file.unpack(content, name) for name, content in whole.items()}
    counts, slowest, most = collections.Counter(), (0.0, ""), (0, "")
    wrong = 0
    for index in range(num_files):
        mutation = MUTATIONS[index % len(MUTATIONS)]
        name = list(whole)[rng.integers(len(whole))]
        content = mutation(rng, whole[name])
        if rng.random() < 0.1:  # two in one
            with contextlib.suppress(Exception):  # the second may need a whole file
                content = MUTATIONS[rng.integers(len(MUTATIONS))](rng, content)
        if index % 20:
            reader = lambda: ticket_file.unpack(content, "the file")  # noqa: B023, E731
        else:
            path = folder / "mutant.safetensors"
            path.write_bytes(content)
            reader = lambda: _contents(tickets.load(path))  # noqa: B023, E731
        # Something of every other ticket may be in it, or all.
        outcome, seconds, peak = judged(content, reader, [read[name], *read.values()])
        kind = mutation.__name__
        slowest, most = max(slowest, (seconds, kind)), max(most, (peak, kind))
        if outcome in ("same", "refused"):
            counts[kind, outcome] += 1
        else:
            wrong += 1
            (folder / f"wrong-{seed}-{index}.safetensors").write_bytes(content)
            say(f"{kind} of {name}, file {index}: {outcome}")
    say(f"{'what was done':24}{'the same':>10}{'refused':>10}")
    for mutation in MUTATIONS:
        say(f"{mutation.__name__:24}{counts[mutation.__name__, 'same']:10}{counts[mutation.__name__, 'refused']:10}")
    for outcome in ("same", "refused"):
        say(f"{outcome}: {sum(count for (_, found), count in counts.items() if found == outcome)}")
    say(f"slowest: {slowest[0] * 1000:.1f} ms ({slowest[1]}); most memory: {most[0] / 1e6:.2f} MB ({most[1]})")
    return wrong


def _contents(ticket):
    about = {"architecture": ticket.architecture, "metrics": ticket.metrics, "provenance": ticket.provenance}
    return ticket_file.Contents(ticket.masks, ticket.weights, ticket.trained, about)


# What a forger may ask Keras for.


def layer(name, module="keras.layers", /, **config):
    """Keras' configuration of a layer or of another part."""
    return {"module": module, "class_name": name, "config": config, "registered_name": None}


def initializer(name, /, **config):
    return layer(name, "keras.initializers", **config)


def sequential(*layers, **config):
    return layer(
        "Sequential", "keras", name="sequential", trainable=True, dtype="float32", layers=list(layers), **config
    )


def functional(library, name, layers, output):
    """A functional model: layers by name, each with the names and nodes of the layers that it is called on."""
    keras_3 = library == "keras"

    def node(source, index, kwargs):
        tensor = {"shape": [None, 4], "dtype": "float32", "keras_history": [source, index, 0]}
        tensor = {"class_name": "__keras_tensor__", "config": tensor}
        return {"args": [tensor], "kwargs": kwargs} if keras_3 else [[source, index, 0, kwargs]]

    parts = []
    for own, (part, *nodes) in layers.items():
        part = {**part, "name": own, "config": {**part["config"], "name": own}}
        parts.append({**part, "inbound_nodes": [node(*one) for one in nodes]})
    config = {"name": name, "trainable": True, "layers": parts, "input_layers": [[next(iter(layers)), 0, 0]]}
    config["output_layers"] = [[output, 0, 0]]
    return layer("Functional", f"{'keras.src.models' if keras_3 else 'tf_keras.src.engine'}.functional", **config)


def attacks(library):
    """Architectures that a stranger may write, by what they try; each is for a ticket of `dense`, 4 to 2 units."""

    def inputs(*shape, **config):
        key = "batch_shape" if library == "keras" else "batch_input_shape"
        return layer("InputLayer", **{key: [None, *shape], "dtype": "float32", "sparse": False, "name": "x", **config})

    def dense(**config):
        return layer("Dense", **{"units": 2, "name": "dense", **config})

    def nested(depth):
        part = dense()
        for index in range(depth):
            part = layer("Sequential", "keras", name=f"s{index}", layers=[part])
        return part

    def rest(name, /, **config):
        """After the input, and before a layer that fits."""
        return sequential(inputs(4), layer(name, name="it", **config), dense())

    policy = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "int8_from_float32"}}
    keras = {
        "nothing wrong": sequential(inputs(4), dense()),
        "lambda": rest("Lambda", function={"class_name": "__lambda__", "config": {"value": "4wEAAAA="}}),
        "lambda of a function": rest("Lambda", function="os.system", arguments={"command": "touch canary"}),
        "os.system": sequential(inputs(4), layer("system", "os", command="touch canary"), dense()),
        "import": sequential(inputs(4), layer("Thing", "canary_module"), dense()),
        "import of Keras' own": sequential(inputs(4), layer("Thing", "keras.src.canary_module"), dense()),
        "function": sequential(inputs(4), dense(activation={"class_name": "function", "module": "os", "config": "system"})),
        "builtin function": sequential(inputs(4), dense(activation={"class_name": "function", "module": "builtins", "config": "eval", "registered_name": "eval"})),
        "registered name": sequential(inputs(4), {**dense(), "registered_name": "canary>Dense"}),
        "registered as nothing": sequential(inputs(4), {**dense(), "registered_name": ""}),
        "class in a class": sequential(inputs(4), layer("Dense.__init__", "keras.layers"), dense()),
        "saved model": rest("TFSMLayer", filepath="/tmp/canary"),
        "vocabulary": rest("StringLookup", vocabulary="/etc/canary"),
        "integers": rest("IntegerLookup", vocabulary="/etc/canary"),
        "hub": rest("TorchModuleWrapper", module="canary"),
        "get_file": sequential(inputs(4), layer("get_file", "keras.utils", fname="canary", origin="file:///etc/canary"), dense()),
        "activation by path": sequential(inputs(4), dense(activation="../canary")),
        "activation of no one": sequential(inputs(4), dense(activation="canary")),
        "activations": sequential(inputs(4), dense(activation=["relu"])),
        "activation without a class": sequential(inputs(4), dense(activation={"config": "relu"})),
        "units of 400 digits": sequential(inputs(4), dense(units=10**400)),
        "units of text": sequential(inputs(4), dense(units="2")),
        "units below zero": sequential(inputs(4), dense(units=-2)),
        "many dimensions": sequential(inputs(*[1] * 500), layer("Flatten", name="f"), dense()),
        "permute": sequential(inputs(4, 4), layer("Permute", dims=[2, 10**9])),
        "axis": rest("BatchNormalization", axis=10**9),
        "cells by name": sequential(inputs(4, 4), layer("RNN", cell=layer("StackedRNNCells", cells=["Lambda"]))),
        "layer by name": sequential(inputs(4), "StringLookup"),
        "layer by name alone": sequential(inputs(4, 4), layer("Bidirectional", layer="LSTM")),
        "layers by key": layer("Sequential", "keras", name="s", layers={"a": dense()}),
        "no module": sequential(inputs(4), {"class_name": "Dense", "config": {"units": 2}}),
        "layer of a dict": rest("TimeDistributed", layer={"config": {}}),
        "constant of text": sequential(inputs(4), dense(kernel_initializer=initializer("Constant", value="../canary"))),
        "constant of a dict": sequential(inputs(4), dense(kernel_initializer=initializer("Constant", value={"a": 1}))),
        "constant of 400 digits": sequential(inputs(4), dense(kernel_initializer=initializer("Constant", value=10**400))),
        "initializer of a dict": sequential(inputs(4), dense(kernel_initializer={"shape": [4, 2]})),
        "scale of text": sequential(inputs(4), dense(kernel_initializer=initializer("VarianceScaling", scale="x"))),
        "array": sequential(inputs(4), dense(kernel_initializer={"class_name": "__numpy__", "config": {"value": [1], "dtype": "O"}})),
        "tensor": sequential(inputs(4), dense(kernel_initializer={"class_name": "__tensor__", "config": {"value": 1, "dtype": "float32"}})),
        "lambda anywhere": sequential(inputs(4), dense(bias_initializer={"class_name": "__lambda__", "config": {"value": "x"}})),
        "typespec": sequential(inputs(4, type_spec={"class_name": "__typespec__", "spec_name": "TensorSpec", "module": "tensorflow", "config": [[4], "float32"], "registered_name": None}), dense()),
        "bytes": sequential(inputs(4), dense(name={"class_name": "__bytes__", "config": {"value": "x"}})),
        "slice": sequential(inputs(4), dense(units={"class_name": "__slice__", "config": {"start": 0, "stop": 1, "step": 1}})),
        "composite": functional(library, "f", {"x": (inputs(4),), "dense": (dense(), ("x", 0, {"training": "_COMPOSITE_TYPE"}))}, "dense"),
        "quantized": sequential(inputs(4), dense(dtype=policy)),
        "quantized by name": sequential(inputs(4), dense(dtype="int4_from_float32")),
        "type of no one": sequential(inputs(4), dense(dtype="object")),
        "type of a dict": sequential(inputs(4), dense(dtype={"name": "float32"})),
        "quantization": sequential(inputs(4), dense(quantization_config={"class_name": "GPTQConfig", "config": {"dataset": "canary"}, "module": "keras.quantizers"})),
        "quantization without a class": sequential(inputs(4), dense(quantization_config={"a": 1})),
        "built for what": sequential(inputs(4), {**dense(), "build_config": {"shapes_dict": {"a": "b"}, "input_shape": "x"}}),
        "compiled": {**sequential(inputs(4), dense()), "compile_config": {"optimizer": "adam", "loss": "mse"}},
        "shared": sequential(inputs(4), {**dense(), "shared_object_id": [1]}),
        "shared by all": sequential(*[{**dense(), "shared_object_id": 1}] * 3),
        "name of two lines": sequential(inputs(4), dense(name="a\nb\u2028c")),
        "long name": sequential(inputs(4), dense(name="a" * 10**5)),
        "number for a name": sequential(inputs(4), dense(name=5)),
        "a long class": sequential(inputs(4), layer("x\ny" * 10**4)),
        "seed": sequential(inputs(4), layer("Dropout", rate=0.5, seed=10**30), dense()),
        "seed of a dict": sequential(inputs(4), layer("Dropout", rate=0.5, seed={"a": 1}), dense()),
        "seed generator": sequential(inputs(4), layer("Dropout", rate=0.5, seed=layer("SeedGenerator", "keras.random", seed=1)), dense()),
        "no such layer": functional(library, "f", {"x": (inputs(4),), "a": (dense(), ("b", 0, {}))}, "a"),
        "odd arguments": functional(library, "f", {"x": (inputs(4),), "dense": (dense(), ("x", 0, {"canary": {"a": [1]}}))}, "dense"),
        "nested": nested(10),
        "a layer": dense(),
        "an initializer": initializer("Zeros"),
        "an input": inputs(4),
        "empty": {},
        "no layers": layer("Sequential", "keras", name="s"),
        "list": [1],
        "text": "Lambda",
        "null": None,
        "number": 10**400,
    }  # fmt: skip
    built_in = {
        "built in without a shape": {"name": "lenet_300_100"},
        "built in of a number": {"name": "lenet_300_100", "input_shape": 5, "num_classes": 2},
        "built in of text": {"name": "lenet_300_100", "input_shape": "ab", "num_classes": 2},
        "built in of truth": {"name": "lenet_300_100", "input_shape": [True], "num_classes": True},
        "built in of 400 digits": {"name": "lenet_300_100", "input_shape": [10**400], "num_classes": 2},
        "built in as a dict": {"name": {"a": 1}, "input_shape": [4], "num_classes": 2},
        "built in by path": {"name": "canary_module:model", "input_shape": [4], "num_classes": 2},
        "class": {"class": "a\nb" * 500, "why": ["x\ny"] * 500},
        "nothing": {},
        "null and nothing": {"keras": None, "name": None},
    }
    made = {name: {"library": library, "keras": config} for name, config in keras.items()}
    made |= {name: {"library": library, **config} for name, config in built_in.items()}
    if library == "keras":
        made |= {"no library": {"keras": keras["nothing wrong"]}, "a library": {"library": "os\n" * 10**4, "keras": {}}}
    return made


def forged(library, name):
    """A ticket file with right checksums and one of the `attacks`."""
    architecture = attacks(library)[name]
    return forge(contents("keras"), lambda record: record.update(architecture=architecture))


class Watch:
    """What Python is asked to do while a model is built: `events` are those that no ticket may bring about."""

    def __init__(self):
        self.events, self.on = [], False
        sys.addaudithook(self._hook)

    def _hook(self, event, arguments):
        if self.on and (
            event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "pickle.find_class")
            or event.startswith(("socket.connect", "urllib"))
            or (event == "marshal.loads" and "importlib" not in sys._getframe(1).f_code.co_filename)  # it loads modules
            or (event in ("open", "import", "os.listdir") and "canary" in str(arguments))
        ):
            self.events.append((event, str(arguments)[:200]))

    def __enter__(self):
        self.events.clear()
        self.on = True
        return self

    def __exit__(self, *_):
        self.on = False


def built(content, watch):
    """Load a forged file and build its model: ``"a model"`` or ``"refused"`` or what is wrong; and its seconds."""
    began = time.perf_counter()
    with watch:
        try:
            parts = ticket_file.unpack(content, "the file")
            model = tickets.Ticket(parts.masks, parts.weights, parts.trained, **parts.about).model()
            outcome = "a model" if type(model).__name__ in ("Sequential", "Functional") else f"a {type(model)}"
        except TicketError as error:
            outcome = "refused" if said_well(error) else f"refused in more than a line: {str(error)[:300]!r}"
        except Exception as error:
            outcome = f"{type(error).__name__}: {str(error)[:300]}"
    if watch.events:
        outcome = f"did {watch.events[0]}"
    return outcome, time.perf_counter() - began


def forge_all(say=print, library=None):
    """Try every attack; how many got through."""
    watch, wrong = Watch(), 0
    counts, slowest = collections.Counter(), (0.0, "")
    for one in (library,) if library else ("keras", "tf_keras"):
        built(forged(one, "nothing wrong"), watch)  # whatever Keras imports and allocates the first time
        for name in attacks(one):
            outcome, seconds = built(forged(one, name), watch)
            counts[one, outcome if outcome in ("a model", "refused") else "wrong"] += 1
            slowest = max(slowest, (seconds, f"{name}, {one}"))
            if outcome not in ("a model", "refused") or (name == "nothing wrong" and outcome != "a model"):
                wrong += 1
                say(f"forged {name!r} of {one}: {outcome}")
    said = "; ".join(f"{count} {outcome} ({of})" for (of, outcome), count in counts.items())
    say(f"forged: {said}; slowest {slowest[0]:.1f} s ({slowest[1]})")
    return wrong


def made():
    """The corpus, made anew: bytes by name."""
    import keras
    import tf_keras

    from lottery import masks, weights
    from lottery.models import networks

    def ticket(model, density, trained=False, **about):
        rng = np.random.default_rng(0)
        kept = {name: rng.random(value.shape) < density for name, value in weights.read(model).items()}
        for name, value in weights.read_state(model).items():
            weights.assign(model, {name: rng.normal(size=value.shape).astype(value.dtype)})
        after = {name: value + 1 for name, value in weights.read_state(model).items()} if trained else None
        return tickets.of(model, kept, trained=after, **about)

    def packed(one):
        return ticket_file.pack(_contents(one))

    def small(library):
        return library.Sequential([library.layers.InputLayer((4,)), library.layers.Dense(2)])

    two = [keras.layers.InputLayer((4,)), keras.layers.Dense(3, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(2)]  # fmt: skip
    lenet = networks.builder("lenet_300_100", (1,), 2)()
    built_in = ticket(lenet, 0.01)
    for value in (*built_in.weights.values(),):
        value.flags.writeable = True
        value[...] = 0 if value.ndim == 1 else value  # biases, which would fill the file's text with nothing
    network = {"library": "keras", "name": "lenet_300_100", "input_shape": [1], "num_classes": 2}
    rng = np.random.default_rng(1)
    types = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
    odd = {f"of type {name}/é 重み": rng.integers(0, 2, (2, 3)).astype(name) for name in types}
    odd |= {"count": np.array(7), "mean": np.array(0.5, np.float32)}
    half, none = "of type float16/é 重み", "of type float64/é 重み"
    kept = {half: np.array([[True, False, True], [False, True, True]]), none: np.zeros((2, 3), bool)}
    about = {
        "architecture": {"library": "keras", "class": "Own", "why": "-"},
        "metrics": {},
        "provenance": {"é": [1, 1.0, True]},
    }
    seeds = {
        "keras": packed(ticket(small(keras), 0.5)),
        "tf-keras": packed(ticket(small(tf_keras), 0.5, metrics={"early_stop_test_accuracy": 0.5})),
        "keras-trained": packed(ticket(keras.Sequential(two), 0.3, trained=True, metrics={"loss": 1e-9, "of": [1, None]}, provenance={"run": "r", "round": 3})),
        "built-in": ticket_file.pack(_contents(built_in)._replace(about={**_contents(built_in).about, "architecture": network})),
        "pruned": packed(ticket(small(keras), 0.0, trained=True)),
        "types": ticket_file.pack(ticket_file.Contents(kept, masks.apply(odd, kept), masks.apply(odd, kept), about)),
    }  # fmt: skip
    small_one = seeds["keras"]
    header, record, body = split(small_one)

    def with_type(content):
        header, _, body = split(content)
        header["start/dense/bias"]["dtype"] = "I32"
        return joined(header, body)

    def with_shape(content):
        header, _, body = split(content)
        header["start/dense/bias"]["shape"] = "\u2028"
        return joined(header, body)

    def nested(depth):
        return json.loads("[" * depth + "]" * depth)

    def call(old, new):
        return lambda record: record.update(
            variables={name.replace(old, new): value for name, value in record["variables"].items()}
        )

    renamed = {name.replace("dense", "a\u2028b"): value for name, value in parse_arrays(small_one).items()}
    found = {
        "type": with_type(small_one),  # loaded as int32
        "shape": with_shape(small_one),  # refused in two lines
        "order": joined(header, body, {**record, "variables": dict(reversed(record["variables"].items()))}),
        "nested": forge(small_one, lambda record: record["metrics"].update(a=nested(900))),  # loaded; save and == failed
        "separator": forge(  # refused in two lines
            small_one, call("dense", "a\u2028b"), lambda tensors: (tensors.clear(), tensors.update(renamed), tensors.update({"mask/a\u2028b/kernel": np.zeros(1, np.uint8)}))
        ),
    }  # fmt: skip
    # Raised what is no TicketError, or said it in more than a line, when the model was built.
    for library, names in {
        "keras": ("constant of text", "seed", "built in without a shape", "built in of a number", "name of two lines",
                  "class"),
        "tf_keras": ("layer by name", "compiled"),
    }.items():  # fmt: skip
        found |= {f"{library}-{name.replace(' ', '-')}": forged(library, name) for name in names}
    return seeds | {f"found-{name}": content for name, content in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--make-corpus", action="store_true", help="write the corpus anew, and nothing else")
    options = parser.parse_args()
    if options.make_corpus:
        CORPUS.mkdir(parents=True, exist_ok=True)
        for _ in range(2):  # the forged ones are made of the first
            for name, content in made().items():
                (CORPUS / f"{name}.safetensors").write_bytes(content)
        sys.exit()
    print(f"--seed {options.seed}")
    with tempfile.TemporaryDirectory() as scratch:
        wrong = fuzz(options.files, options.seed, Path(scratch))
    wrong += forge_all()
    print(
        f"{options.files} damaged files and every forged one: "
        + ("no promise broken." if not wrong else f"{wrong} promises broken.")
    )
    sys.exit(bool(wrong))
