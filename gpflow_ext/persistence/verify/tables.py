"""The two files beside the graph that declare sizes: the index of the variables, and the example."""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensorflow.core.protobuf import tensor_bundle_pb2

from .protobuf import DTYPES, STRING, dims_of
from .saver import OBJECT_GRAPH, key_of

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_NPY = re.compile(
    rb"\{'descr': '[<|]([bfiuU])(\d{1,6})', 'fortran_order': (?:True|False), "
    rb"'shape': \(([\d, ]{0,60})\), \} *\n"
)
Variables = Sequence[tuple[int, tuple[int, ...]]]


def check_index(content: bytes, variables: Variables, size: int) -> None:
    """Check that the index names the variables of the graph alone, and that they fill their file."""
    try:
        entries = dict(_entries(content))
        header = tensor_bundle_pb2.BundleHeaderProto.FromString(entries.pop(b"", b""))
        found = {k.decode(): tensor_bundle_pb2.BundleEntryProto.FromString(v) for k, v in entries.items()}
    except Exception as error:  # the protobuf implementations raise different classes
        raise ValueError(f"variables/variables.index is not an index of variables: {error}") from error
    expected: dict[str, tuple[int, tuple[int, ...]]] = {key_of(i): v for i, v in enumerate(variables)}
    expected[OBJECT_GRAPH] = (STRING, ())
    if header.num_shards != 1 or header.endianness != 0 or found.keys() != expected.keys():
        raise ValueError("variables/variables.index names other variables than the graph holds")
    end = 0
    for name, entry in sorted(found.items(), key=lambda item: item[1].offset):
        dtype, dims = expected[name]
        stored = dims_of(entry.shape)
        fits = len(stored) == len(dims) and all(
            s == d or d < 0 <= s for s, d in zip(stored, dims, strict=True)
        )
        fits &= entry.dtype == dtype and not entry.slices
        fits &= dtype == STRING or entry.size == math.prod(stored) * DTYPES[dtype][1]
        if not fits or entry.shard_id or entry.offset != end or entry.size < 0:
            raise ValueError(f"variables/variables.index has {name} in another type, shape or place")
        end += entry.size
    if end != size:
        raise ValueError(f"the variables have {size} bytes; their index tells of {end}")


def check_example(content: bytes, inputs: int, outputs: Mapping[str, Any]) -> None:
    """Check that the example holds inputs [n, D] and an array for each output, no larger than declared."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if any(m.compress_type != zipfile.ZIP_STORED or m.file_size != m.compress_size for m in members):
                raise ValueError("it is compressed, which an export does not do")
            if sorted(m.filename for m in members) != sorted(f"{k}.npy" for k in ("inputs", *outputs)):
                raise ValueError("it does not hold the inputs and the outputs of serving_default")
            shapes = {m.filename.removesuffix(".npy"): _shape(archive.read(m)) for m in members}
    except (ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"example.npz: {error}") from error
    rows = shapes["inputs"][0] if len(shapes["inputs"]) == 2 else -1
    if shapes["inputs"] != (rows, inputs) or any(shape[:1] != (rows,) for shape in shapes.values()):
        raise ValueError(f"example.npz: inputs must have the shape [n, {inputs}], and each output n rows")


def _shape(content: bytes) -> tuple[int, ...]:
    """Return the shape of an array in NumPy's format, whose bytes are as many as it declares."""
    [length] = struct.unpack("<H", content[8:10]) if len(content) > 10 else [0]
    header = _NPY.fullmatch(content[10 : 10 + length])
    if header is None or not content.startswith(b"\x93NUMPY\x01\x00"):
        raise ValueError("it holds something other than arrays")
    kind, size, dims = header.groups()
    shape = tuple(int(dim) for dim in dims.split(b",") if dim.strip())
    if math.prod(shape) * int(size) * (4 if kind == b"U" else 1) != len(content) - 10 - length:
        raise ValueError("an array declares another size than it has")
    return shape


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a table of LevelDB's format, uncompressed, as TensorFlow writes it."""
    [magic] = struct.unpack("<Q", content[-8:])
    if magic != _MAGIC:
        raise ValueError("it does not end as such a table does")
    footer = content[-_FOOTER:]
    _, place = _number(footer, 0)
    _, place = _number(footer, place)
    for _, handle in _block(content, *_handle(footer, place)):
        yield from _block(content, *_handle(handle, 0))


def _handle(content: bytes, place: int) -> tuple[int, int]:
    offset, place = _number(content, place)
    return offset, _number(content, place)[0]


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    if offset + size + 5 > len(content) - _FOOTER or content[offset + size] != 0:
        raise ValueError("a block lies outside of it, or is compressed")
    block = content[offset : offset + size]
    [restarts] = struct.unpack("<I", block[-4:])
    end, place, key = size - 4 * (restarts + 1), 0, b""
    while place < end:
        shared, place = _number(block, place)
        own, place = _number(block, place)
        length, place = _number(block, place)
        if shared > len(key) or place + own + length > end:
            raise ValueError("an entry lies outside of its block")
        key = key[:shared] + block[place : place + own]
        yield key, block[place + own : place + own + length]
        place += own + length


def _number(content: bytes, place: int) -> tuple[int, int]:
    """Return a number of variable length, and the place after it."""
    value = 0
    for shift in range(0, 64, 7):
        value |= (content[place] & 127) << shift
        place += 1
        if content[place - 1] < 128:
            return value, place
    raise ValueError("a number is too long")
