"""The objects of an exported model, from which Python's loader makes what it returns."""

from __future__ import annotations

from typing import Any

from .protobuf import STRING, check_fields, dims_of, refuse, size_of
from .saver import Saver

_USERS = {0: "_generic_user_object", 1: "trackable_list_wrapper", 2: "signature_map"}
_CONSTANT = "tf.TrackableConstant"
_SEQUENCES = ("list_value", "tuple_value")
_STRUCTURES = (
    *_SEQUENCES,
    "dict_value",
    "named_tuple_value",
    "none_value",
    "string_value",
    "tensor_spec_value",
)


def check_objects(
    objects: Any, nodes: dict[str, Any], calls: dict[str, str], saver: Saver
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Check that there is one module with variables and signatures; return type and shape of the variables.

    Parameters
    ----------
    objects
        The object graph.
    nodes
        The nodes of the main graph by name.
    calls
        The function of each signature.
    saver
        The variables' nodes in the order of saving.
    """
    everything = list(objects.nodes)
    for i, each in enumerate(everything):
        _check_object(i, each, len(everything))
    if len(everything) < 3 or _children(everything[0]) != {"variables_read": 1, "signatures": 2}:
        refuse("holds another object than a module with its variables and signatures")
    held, signatures = _children(everything[1]), _children(everything[2])
    if list(held) != [str(i) for i in range(len(saver.variables))] or signatures.keys() != calls.keys():
        refuse("holds other variables or signatures than it saves and serves")
    kinds = {i: each.WhichOneof("kind") for i, each in enumerate(everything)}
    wrapped = {i: each.bare_concrete_function.concrete_function_name for i, each in enumerate(everything)}
    if {name: wrapped[i] for name, i in signatures.items()} != calls:
        refuse("serves other functions from Python than elsewhere")
    handles = dict(zip(held.values(), saver.variables, strict=True))
    handles |= {i: each.constant.operation for i, each in enumerate(everything) if kinds[i] == "constant"}
    expected = dict.fromkeys((0, 1, 2), "user_object") | dict.fromkeys(held.values(), "variable")
    expected |= dict.fromkeys(signatures.values(), "bare_concrete_function")
    others = {kind for i, kind in kinds.items() if i not in expected}
    if others - {"constant"} or any(kinds[i] != kind for i, kind in expected.items()):
        refuse(f"holds objects of other kinds: {sorted(map(str, others))}")
    _check_functions(objects.concrete_functions, nodes, calls, handles)
    for i in signatures.values():
        captured = objects.concrete_functions[wrapped[i]].bound_inputs
        if not _children(everything[i]).items() <= {(f"capture_{k}", n) for k, n in enumerate(captured)}:
            refuse(f"has children at object {i}")
    return tuple(_variable(everything[i].variable, nodes[handles[i]]) for i in held.values())


def _check_object(number: int, item: Any, total: int) -> None:
    where = f"object {number}"
    kind = item.WhichOneof("kind")
    known = ("user_object", "variable", "bare_concrete_function", "constant")
    check_fields(item, ("children", "dependencies", "registered_name", *known), where)
    if item.registered_name != (_CONSTANT if kind == "constant" else ""):
        refuse(f"has the registered class {item.registered_name[:80]!a} at {where}")
    if any(not 0 <= each.node_id < total for each in (*item.children, *item.dependencies)):
        refuse(f"names an object that there is not at {where}")
    if kind == "user_object":
        check_fields(item.user_object, ("identifier", "version"), where)
        if item.user_object.identifier != _USERS.get(number):
            refuse(f"has an object of the class {item.user_object.identifier[:80]!a} at {where}")
    elif item.children and kind != "bare_concrete_function":
        refuse(f"has children at {where}")
    if kind == "bare_concrete_function":
        _check_structure(item.bare_concrete_function.function_spec.fullargspec, where)
        _check_structure(item.bare_concrete_function.function_spec.input_signature, where)


def _children(item: Any) -> dict[str, int]:
    found = {child.local_name: child.node_id for child in item.children}
    if len(found) != len(item.children) or len(set(found.values())) != len(found):
        refuse("names an object twice")
    return found


def _variable(variable: Any, node: Any) -> tuple[int, tuple[int, ...]]:
    check_fields(variable, ("dtype", "shape", "name", "trainable"), f"variable {variable.name[:80]!a}")
    dims = dims_of(variable.shape)
    size_of(variable.dtype, [max(d, 0) for d in dims], f"variable {variable.name[:80]!a}")
    same = dims_of(node.attr["shape"].shape) == dims and node.attr["dtype"].type == variable.dtype
    if not same or variable.dtype == STRING:
        refuse(f"holds variable {variable.name[:80]!a} in another type or shape than its graph")
    return variable.dtype, tuple(dims)


def _check_functions(
    functions: Any, nodes: dict[str, Any], calls: dict[str, str], handles: dict[int, str]
) -> None:
    """Check that Python's loader gives a signature's function what the main graph gives it."""
    if sorted(functions) != sorted(calls.values()):
        refuse("has other functions for Python than its signatures'")
    given = {
        node.attr["f"].func.name: [each for each in node.input if nodes[each].op != "Placeholder"]
        for node in nodes.values()
        if "f" in node.attr
    }
    for name, function in functions.items():
        check_fields(
            function, ("bound_inputs", "canonicalized_input_signature", "output_signature"), f"{name[:80]!a}"
        )
        if [handles.get(i) for i in function.bound_inputs] != given[name]:
            refuse(f"gives function {name[:80]!a} other variables from Python than elsewhere")
        _check_structure(function.canonicalized_input_signature, name)
        _check_structure(function.output_signature, name)


def _check_structure(value: Any, where: str) -> None:
    """Check that a description of arguments is made of TensorFlow's plain kinds, not of other classes."""
    kind = value.WhichOneof("kind")
    if kind not in _STRUCTURES:
        refuse(f"describes arguments by a {kind} at {where[:80]!a}")
    if kind in _SEQUENCES:
        below = list(getattr(value, kind).values)
    elif kind == "dict_value":
        below = list(value.dict_value.fields.values())
    elif kind == "named_tuple_value":
        if value.named_tuple_value.name != "FullArgSpec":
            refuse(f"describes arguments by a {value.named_tuple_value.name[:80]!a} at {where[:80]!a}")
        below = [pair.value for pair in value.named_tuple_value.values]
    else:
        below = []
    for each in below:
        _check_structure(each, where)
