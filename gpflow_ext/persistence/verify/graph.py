"""The graph of an exported model: that it is exactly of the form that an export writes, and only computes.

An export calls `tf.saved_model.save` on one module with a list of variables. What that writes is the same for
every model except for the functions of the signatures. So the main graph is compared with that form, node by
node; only the functions are free, and hold operations of the list alone.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from tensorflow.core.protobuf import saved_model_pb2

from .objects import check_objects
from .operations import PURE
from .protobuf import (
    DTYPES,
    by_name,
    check_fields,
    check_node,
    dims_of,
    functions_of,
    refuse,
    strings_of,
)
from .saver import Saver, check_saver

INIT = "__saved_model_init_op"
_MAIN_OP = "saved_model_main_op"
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_INPUTS = {"VarHandleOp": 0, "Placeholder": 0, "Const": 0, "NoOp": 0, "ReadVariableOp": 1}
_ATTRIBUTES = {
    "VarHandleOp": {"dtype", "shape", "shared_name", "debug_name"},
    "Placeholder": {"dtype", "shape"},
    "Const": {"dtype", "value"},
    "NoOp": set[str](),
    "ReadVariableOp": {"dtype"},
    **{call: {"Tin", "Tout", "f", "config_proto"} for call in _CALLS},
}
_FUNCTION = re.compile(r"[a-z_][\w./<>-]*")  # operations begin with a capital
_PARTS = ("signature", "node_def", "ret", "control_ret", "attr", "arg_attr")
_DECLARED = ("name", "input_arg", "output_arg", "control_output", "is_stateful")
_SETTINGS = ("_construction_context", "_input_shapes", "_noinline", "_XlaMustCompile")  # of a function
_MOST_NODES = 1_000_000  # once every call is replaced by what it calls
_DEEPEST = 50  # calls within calls


class Graph(NamedTuple):
    """Results of the checks: signatures as a manifest has them, variables in the order of saving."""

    operations: tuple[str, ...]
    signatures: dict[str, Any]
    variables: tuple[tuple[int, tuple[int, ...]], ...]  # type and shape
    texts: frozenset[tuple[bytes, ...] | None]  # constants


def check_graph(content: bytes) -> Graph:
    """Check the bytes of ``saved_model.pb``."""
    meta = _parse(content)
    library = _functions(meta.graph_def.library)
    nodes = by_name(meta.graph_def.node, "the main graph")
    for node in nodes.values():
        _check_main(node, nodes, library)
    saver = check_saver(meta.saver_def, nodes, library)
    calls = _check_signatures(meta, nodes, saver)
    _check_init(meta, nodes)
    _check_library(library, saver, set(calls.values()))
    variables = check_objects(meta.object_graph_def, nodes, calls, saver)
    everything = [*nodes.values(), *(node for f in library.values() for node in f.node_def)]
    signatures = {name: _recorded(meta.signature_def[name]) for name in calls}
    own = [node for name, f in library.items() if name not in saver.functions for node in f.node_def]
    texts = frozenset(strings_of(node.attr["value"].tensor) for node in own if node.op == "Const")
    return Graph(tuple(sorted({node.op for node in everything})), signatures, variables, texts)


def _parse(content: bytes) -> Any:
    model = saved_model_pb2.SavedModel()
    try:
        model.ParseFromString(content)
    except Exception as error:  # where it nests too deep, too; implementations raise different classes
        raise ValueError(f"saved_model.pb is not a SavedModel: {error}") from error
    model.DiscardUnknownFields()
    if model.ByteSize() != len(content):
        refuse("holds fields that are unknown or written twice")
    if model.saved_model_schema_version != 1 or len(model.meta_graphs) != 1:
        refuse(f"has {len(model.meta_graphs)} graphs, of schema {model.saved_model_schema_version}")
    meta = model.meta_graphs[0]
    about = meta.meta_info_def
    if not meta.HasField("object_graph_def"):
        refuse("has no objects: TensorFlow 1 wrote it, or nobody")
    fields = (
        "meta_info_def",
        "graph_def",
        "saver_def",
        "collection_def",
        "signature_def",
        "object_graph_def",
    )
    check_fields(meta, fields, "its graph")
    versions = ("tensorflow_version", "tensorflow_git_version")
    check_fields(about, ("stripped_op_list", "tags", "stripped_default_attrs", *versions), "its description")
    if list(about.tags) != ["serve"]:
        refuse(f"has the tags {str(list(about.tags))[:80]!a}")
    check_fields(meta.graph_def, ("node", "library", "versions"), "its graph")
    check_fields(meta.graph_def.library, ("function",), "its library")
    return meta


def _functions(library: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for function in library.function:
        name = function.signature.name
        if found.setdefault(name, function) is not function:
            refuse(f"has two functions of the name {name[:80]!a}")
        where = f"function {name[:80]!a}"
        check_fields(function, _PARTS, where)
        check_fields(function.signature, _DECLARED, f"the signature of {where}")
        strange = sorted(function.attr.keys() - set(_SETTINGS))
        if strange:  # by `api_implements` TensorFlow may call another function in its place
            refuse(f"has the settings {strange[:5]!a} of {where}, which an export does not write")
    return found


def _check_main(node: Any, nodes: dict[str, Any], library: dict[str, Any]) -> None:
    """Check that a node is a variable, its reading, a placeholder, a constant, a NoOp or a call."""
    where = f"node {node.name[:80]!a} of the main graph"
    check_node(node, library, "the main graph")
    if node.op not in _INPUTS and node.op not in _CALLS:
        refuse(f"has {node.op} ({where}), which does not belong there")
    strange = {name for name in node.attr if not name.startswith("_")} - _ATTRIBUTES[node.op]
    if strange or len(node.input) != _INPUTS.get(node.op, len(node.input)):
        given = [*node.input[:3], *sorted(strange)[:3]]
        refuse(f"has inputs or attributes, {given!a}, that do not belong to {node.op} ({where})")
    fits = ("VarHandleOp",) if node.op == "ReadVariableOp" else ("VarHandleOp", "Placeholder", "Const")
    for name in node.input:
        if name not in nodes or nodes[name].op not in fits:
            refuse(f"has the input {name[:80]!a} at {where}, which does not belong there")
    if node.op == "VarHandleOp" and node.attr["shared_name"].s.decode(errors="replace") != node.name:
        refuse(f"shares a variable under another name ({where})")
    if node.op in _CALLS and not node.attr["f"].HasField("func"):
        refuse(f"calls nothing ({where})")


def _check_signatures(meta: Any, nodes: dict[str, Any], saver: Saver) -> dict[str, str]:
    """Check that each signature calls a function with its placeholders; return the functions by signature."""
    found, called = {}, set(saver.calls)
    for name, signature in meta.signature_def.items():
        if name == INIT:
            continue
        where = f"signature {name[:80]!a}"
        check_fields(signature, ("inputs", "outputs", "method_name"), where)
        for tensor in (*signature.inputs.values(), *signature.outputs.values()):
            known = tensor.dtype in DTYPES and not tensor.tensor_shape.unknown_rank
            if tensor.WhichOneof("encoding") != "name" or not known:
                refuse(f"has a tensor of another kind in {where}")
        outputs = {tensor.name.rpartition(":")[0] for tensor in signature.outputs.values()}
        call = min(outputs, default="")
        given = [tensor.name.removesuffix(":0") for tensor in signature.inputs.values()]
        if len(outputs) != 1 or call not in nodes or nodes[call].op not in _CALLS or call in called:
            refuse(f"computes {where} by {call[:80]!a}, which is not a call of its own")
        placeholders = [each for each in nodes[call].input if nodes[each].op == "Placeholder"]
        if sorted(placeholders) != sorted(given):
            refuse(f"gives other inputs to {where} than it names")
        called.add(call)
        found[name] = nodes[call].attr["f"].func.name
    strangers = {name for name, node in nodes.items() if node.op in _CALLS} - called
    if strangers or "serving_default" not in found:
        refuse(f"lacks serving_default, or calls functions for nothing: {sorted(strangers)[:5]!a}")
    return found


def _check_init(meta: Any, nodes: dict[str, Any]) -> None:
    """Check that what a loader runs first does nothing."""
    named = []
    for name, collection in meta.collection_def.items():
        if name != _MAIN_OP or collection.WhichOneof("kind") != "node_list":
            refuse(f"has the collection {name[:80]!a}")
        named += collection.node_list.value
    init = meta.signature_def.get(INIT)
    if init is not None:
        check_fields(init, ("outputs",), "its init op")
        if set(init.outputs) != {INIT} or init.outputs[INIT].WhichOneof("encoding") != "name":
            refuse("has an init op of another kind")
        named.append(init.outputs[INIT].name)
    for name in named:
        if name not in nodes or nodes[name].op != "NoOp":
            refuse(f"runs {name[:80]!a} when it is loaded")


def _check_library(library: dict[str, Any], saver: Saver, signatures: set[str]) -> None:
    """Check every function, called or not, and that what is called in turn is neither endless nor huge."""
    if signatures & set(saver.functions):
        refuse("saves or restores its variables by a signature")
    own = {name: f for name, f in library.items() if name not in saver.functions}
    calls: dict[str, list[str]] = {}
    for name, function in own.items():
        where = f"function {name[:80]!a}"
        if not _FUNCTION.fullmatch(name):
            refuse(f"has {where}, whose name could be an operation's")
        calls[name] = []
        for node in by_name(function.node_def, where).values():
            if node.op not in PURE:
                which = (
                    f"(node {node.name[:80]!a} of {where}), which is not on the list of harmless operations"
                )
                refuse(f"has {node.op[:80]} {which}")
            check_node(node, own, where)
            calls[name] += [f.name for value in node.attr.values() for f in functions_of(value)]
    for name in saver.functions:
        for node in library[name].node_def:
            check_node(node, (), f"function {name[:80]!a}")
    sizes: dict[str, int] = {}
    for name in own:
        _expanded(name, own, calls, sizes, 0)


def _expanded(
    name: str, library: dict[str, Any], calls: dict[str, list[str]], sizes: dict[str, int], depth: int
) -> int:
    """Return how many nodes a function has once every call in it is replaced by what it calls."""
    if name not in sizes:
        if depth > _DEEPEST:
            refuse(f"has functions that call each other deeper than {_DEEPEST}")
        below = sum(_expanded(each, library, calls, sizes, depth + 1) for each in calls[name])
        sizes[name] = len(library[name].node_def) + below
        if sizes[name] > _MOST_NODES:
            refuse(f"has functions that call each other {sizes[name]} times over")
    return sizes[name]


def _recorded(signature: Any) -> dict[str, Any]:
    """Return a signature as a manifest records it."""

    def specs(tensors: Any) -> dict[str, Any]:
        shapes = {name: dims_of(tensor.tensor_shape) for name, tensor in tensors.items()}
        return {
            name: {
                "shape": [None if size < 0 else size for size in shapes[name]],
                "dtype": DTYPES[tensor.dtype][0],
            }
            for name, tensor in tensors.items()
        }

    return {"inputs": specs(signature.inputs), "outputs": specs(signature.outputs)}
