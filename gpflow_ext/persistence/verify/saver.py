"""The two functions by which a SavedModel stores and loads its variables, exactly as TensorFlow writes them.

They touch files, so they are held to one form: all paths come from the placeholder ``saver_filename``, for
which a loader puts the folder of the variables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .protobuf import STRING, by_name, check_fields, refuse, strings_of

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_FILENAME = "saver_filename"
_VERSION = 2
_FILES = ("MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename")
_EITHER = {"Const", "Identity", "NoOp"}
_SAVES = _EITHER | {
    "DisableCopyOnRead",
    "MergeV2Checkpoints",
    "Pack",
    "ReadVariableOp",
    "SaveV2",
    "Select",
    "ShardedFilename",
    "StaticRegexFullMatch",
    "StringJoin",
}
_RESTORES = _EITHER | {"AssignVariableOp", "RestoreV2"}
_DEEPEST = 16  # operations within operations


class Saver(NamedTuple):
    """The calls of the main graph, their functions, and the nodes of the variables in the order of saving."""

    calls: tuple[str, str]
    functions: tuple[str, str]
    variables: tuple[str, ...]


def check_saver(saver: Any, nodes: dict[str, Any], library: dict[str, Any]) -> Saver:
    """Check the saver of a graph and return what belongs to it."""
    names_of = ("filename_tensor_name", "save_tensor_name", "restore_op_name")
    check_fields(saver, (*names_of, "version"), "its saver")
    if saver.version != _VERSION:
        refuse(f"has a saver of version {saver.version}")
    save, restore = saver.save_tensor_name.removesuffix(":0"), saver.restore_op_name
    filename = nodes.get(_FILENAME)
    if saver.filename_tensor_name != f"{_FILENAME}:0" or filename is None or filename.op != "Placeholder":
        refuse("takes the place of its variables from elsewhere than the placeholder saver_filename")
    for call in (save, restore):
        if call not in nodes or nodes[call].op != "StatefulPartitionedCall":
            refuse(f"saves or restores its variables by {call[:80]!a}, which does not call a function")
    names = nodes[save].attr["f"].func.name, nodes[restore].attr["f"].func.name
    handles = tuple(nodes[restore].input[1:])
    described = (nodes[save].input or [""])[-1]
    variables = {name for name, node in nodes.items() if node.op == "VarHandleOp"}
    exact = (
        filename.attr["dtype"].type == STRING
        and list(nodes[restore].input) == [_FILENAME, *handles]
        and list(nodes[save].input) == [_FILENAME, *handles, described]
        and len(handles) == len(variables)
        and set(handles) == variables
        and described in nodes
        and nodes[described].op == "Const"
        and names[0] != names[1]
    )
    if not exact:
        refuse("gives its saver something other than its variables")
    _check_save(library[names[0]], len(handles))
    _check_restore(library[names[1]], len(handles))
    return Saver((save, restore), names, handles)


def _check_save(function: Any, number: int) -> None:
    body = _Body(function, _SAVES, number + 2)
    path, described = body.arguments[0], body.arguments[-1]
    part = (
        "StringJoin:output:0",
        path,
        ("Select:output:0", ("StaticRegexFullMatch:output:0", path), (b".part",), (b"_temp/part",)),
    )
    shard = ("ShardedFilename:filename:0", part, (0,), (1,))
    tensors = (("ReadVariableOp:value:0", each) for each in body.arguments[1:-1])
    body.expect("ShardedFilename", shard[1:])
    body.expect("SaveV2", (shard, _keys(number), (b"",) * (number + 1), *tensors, described))
    body.expect("MergeV2Checkpoints", (("Pack:output:0", shard), path))


def _check_restore(function: Any, number: int) -> None:
    body = _Body(function, _RESTORES, number + 1)
    inputs = body.expect("RestoreV2", (body.arguments[0], _keys(number), (b"",) * (number + 1)))
    expected = [(each, (f"RestoreV2:tensors:{i}", *inputs)) for i, each in enumerate(body.arguments[1:])]
    assigned = [body.inputs(node) for node in body.nodes.values() if node.op == "AssignVariableOp"]
    order = {each: i for i, each in enumerate(body.arguments)}
    if sorted(assigned, key=lambda pair: order.get(pair[0], 0) if pair else 0) != expected:
        refuse(f"does not restore its variables as TensorFlow does, in {body.where}")


def _keys(number: int) -> tuple[bytes, ...]:
    return (*(key_of(i).encode() for i in range(number)), OBJECT_GRAPH.encode())


def key_of(number: int) -> str:
    """Return the name of a variable in the files, by its place among those that the model holds."""
    return f"variables_read/{number}/.ATTRIBUTES/VARIABLE_VALUE"


class _Body:
    """The nodes of a function as expressions: what each file operation is given, down to the arguments."""

    def __init__(self, function: Any, allowed: set[str], number: int) -> None:
        self.where = f"function {function.signature.name!a}"
        self.nodes = by_name(function.node_def, self.where)
        self.arguments = [argument.name for argument in function.signature.input_arg]
        self._known: dict[str, Any] = {}
        for node in self.nodes.values():
            if node.op not in allowed:
                which = f"node {node.name[:80]!a} of {self.where}"
                refuse(f"has {node.op[:80]} ({which}), which TensorFlow does not write there")
            if node.op in _FILES and any(a != "dtypes" and not a.startswith("_") for a in node.attr):
                refuse(f"has other settings of {node.op} in {self.where} than TensorFlow writes")
        if len(self.arguments) != number or len(set(self.arguments) - self.nodes.keys()) != number:
            refuse(f"has other arguments than TensorFlow writes in {self.where}")

    def expect(self, operation: str, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Check that there is one node of an operation, with these inputs, and return them."""
        found = [self.inputs(node) for node in self.nodes.values() if node.op == operation]
        if found != [inputs]:
            refuse(f"gives {operation} of {self.where} another path or other tensors than TensorFlow does")
        return found[0]

    def inputs(self, node: Any) -> tuple[Any, ...]:
        """Return the inputs of a node as expressions; those for order alone are nodes of this function."""
        return tuple(self._expression(each, 0) for each in node.input if not each.startswith("^"))

    def _expression(self, tensor: str, depth: int) -> Any:
        if tensor not in self._known:  # each is made once, so that comparing them is quick
            self._known[tensor] = self._made(tensor, depth)
        return self._known[tensor]

    def _made(self, tensor: str, depth: int) -> Any:
        name, _, port = tensor.partition(":")
        node = self.nodes.get(name)
        if node is None:
            return tensor
        if depth > _DEEPEST:
            refuse(f"has an expression too long in {self.where}")
        if node.op == "Const":
            tensor_value = node.attr["value"].tensor
            return strings_of(tensor_value) or tuple(tensor_value.int_val) or (0,)
        below = tuple(self._expression(each, depth + 1) for each in node.input if not each.startswith("^"))
        if node.op == "Identity" and len(below) == 1:
            return below[0]
        return (f"{node.op}:{port}", *below)
