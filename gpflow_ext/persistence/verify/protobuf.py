"""What is common to the checks of a graph: refusing, exact fields, names, bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from tensorflow.core.protobuf import config_pb2

DTYPES = {  # of TensorFlow's enumeration: name and bytes
    1: ("float32", 4),
    2: ("float64", 8),
    3: ("int32", 4),
    4: ("uint8", 1),
    5: ("int16", 2),
    6: ("int8", 1),
    7: ("string", 1),
    9: ("int64", 8),
    10: ("bool", 1),
    14: ("bfloat16", 2),
    17: ("uint16", 2),
    19: ("float16", 2),
    22: ("uint32", 4),
    23: ("uint64", 8),
}
STRING = 7
_DEVICE = re.compile(r"(/job:localhost/replica:0/task:0)?(/device:(CPU|GPU|TPU):(\d+|\*))?")
_LARGEST_TENSOR = 64 << 20  # bytes that a constant may declare
_KEPT_FROM_TYPES = re.compile(r"[0-9,]*")  # numbers of devices


def refuse(what: str) -> NoReturn:
    """Refuse the model."""
    raise ValueError(f"saved_model.pb {what}: do not load this model")


def check_fields(message: Any, allowed: Iterable[str], where: str) -> None:
    """Refuse a message that has other fields."""
    strange = {field.name for field, _ in message.ListFields()}.difference(allowed)
    if strange:
        refuse(f"has {sorted(strange)} in {where}, which an export does not write")


def by_name(items: Iterable[Any], where: str) -> dict[str, Any]:
    """Return nodes by their names, of which no two may be alike."""
    found: dict[str, Any] = {}
    for item in items:
        if found.setdefault(item.name, item) is not item:
            refuse(f"has two of the name {item.name[:80]!a} in {where}")
    return found


def size_of(dtype: int, dims: Sequence[int], where: str) -> int:
    """Return the bytes of a tensor that is declared, each string counted as one."""
    if dtype not in DTYPES or any(d < 0 for d in dims):
        refuse(f"declares a tensor of type {dtype} and shape {list(dims)[:8]} in {where}")
    return math.prod(dims) * DTYPES[dtype][1]


def dims_of(shape: Any) -> list[int]:
    """Return the sizes of a shape, -1 where one is unknown."""
    return [dim.size for dim in shape.dim]


def check_node(node: Any, functions: Iterable[str], where: str) -> None:
    """Check what every node may carry: devices here, own functions, small constants, plain settings."""
    if not _DEVICE.fullmatch(node.device):
        refuse(f"places node {node.name[:80]!a} of {where} on {node.device[:80]!a}")
    for name, value in node.attr.items():
        kind = value.WhichOneof("value")
        where_now = f"{name!a} of node {node.name[:80]!a} of {where}"
        if kind == "placeholder" or name in ("container", "executor_type"):
            refuse(f"has {where_now}, which an export does not write")
        if name == "config_proto":
            _check_settings(value.s, where_now)
        for function in functions_of(value):
            if function.name not in functions or function.attr:
                refuse(f"calls {function.name[:80]!a}, which is not one of its own functions, by {where_now}")
        for tensor in (value.tensor, *value.list.tensor):
            dims = dims_of(tensor.tensor_shape)
            if tensor.ListFields() and size_of(tensor.dtype, dims, where_now) > _LARGEST_TENSOR:
                refuse(f"declares a constant of shape {dims[:8]} in {where_now}")


def functions_of(value: Any) -> list[Any]:
    """Return the functions that an attribute names."""
    return [*([value.func] if value.HasField("func") else []), *value.list.func]


def strings_of(tensor: Any) -> tuple[bytes, ...] | None:
    """Return a constant of strings, or ``None`` where it is none or not written out."""
    return tuple(tensor.string_val) if tensor.dtype == STRING else None


def _check_settings(content: bytes, where: str) -> None:
    """Check the settings that TensorFlow stores with a call: numbers, which name no file or optimiser."""
    settings = config_pb2.ConfigProto()
    try:
        settings.ParseFromString(content)
    except Exception:  # the protobuf implementations raise different classes
        refuse(f"has unreadable {where}")
    settings.ClearField("device_count")
    if settings.ByteSize() and not _is_plain(settings):
        refuse(f"has text in {where}")


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return _KEPT_FROM_TYPES.fullmatch(value) is not None
    if isinstance(value, bool | int | float):
        return True
    if not hasattr(value, "ListFields"):  # bytes, or several of something
        return False
    known = sum(1 for _ in value.ListFields())
    return (known > 0 or value.ByteSize() == 0) and all(_is_plain(v) for _, v in value.ListFields())
