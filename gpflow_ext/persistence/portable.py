"""Translate a folded graph to ONNX, in operators that runtimes have in single and in double precision."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from .onnx_functions import DOMAIN, FUNCTIONS, OPSET, function_of
from .onnx_nodes import HANDLERS, drop_shapes_of_elements, nodes

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-7  # of the runtime's results, relative to those of size above one


def to_onnx(function: Any) -> bytes:
    """Return a concrete function of ``inputs`` as an ONNX model, its outputs by name.

    Triangular solves by a matrix that is known become products with its inverse.

    Raises
    ------
    ImportError
        Without the extra ``onnx``.
    ValueError
        If the function has an operation that no operator of ONNX stands for; they are named.
    """
    onnx, tf2onnx, _ = libraries()
    function = _for_no_rows_too(function)
    with _quiet(), _refusing("it cannot be converted"):
        model = _convert(function, onnx, tf2onnx)
    for node in nodes(model.graph):
        if node.op_type in FUNCTIONS:
            node.domain = DOMAIN  # the converter drops the domain inside branches
    drop_shapes_of_elements(model.graph)
    unknown = {n.op_type for n in nodes(model.graph) if not n.domain and not onnx.defs.has(n.op_type)}
    if unknown:
        raise ValueError(
            f"this model cannot be portable: ONNX has no operator for {', '.join(sorted(unknown))}. "
            'Export it with profile="cached".'
        )
    dtype = "float" if function.inputs[0].dtype == tf.float32 else "double"
    model.functions.extend(function_of(name, dtype) for name in FUNCTIONS)
    model = onnx.inliner.inline_local_functions(model)
    standard = [opset for opset in model.opset_import if opset.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(standard)
    with _refusing("what the converter made is no ONNX model"):
        onnx.checker.check_model(model)
    return model.SerializeToString()


def compare(model: bytes, function: Any, inputs: Mapping[str, Array]) -> float:
    """Run an ONNX model in ONNX Runtime; return its largest difference from the function it stands for.

    Differences are relative to the largest result, where that is above one.

    Raises
    ------
    ValueError
        If ONNX Runtime cannot run it, or returns other classes, or numbers that differ by more than
        `TOLERANCE` (for single precision 100 units of rounding).
    """
    _, _, runtime = libraries()
    with _refusing("ONNX Runtime refuses it"):
        session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    expected = {key: value.numpy() for key, value in function(**_tensors(inputs)).items()}
    sure = decided(expected.get("probabilities"))
    worst = 0.0
    for key, ours in expected.items():
        if ours.dtype.kind == "f":
            worst = max(worst, _difference(key, ours, found[key]))
            continue
        theirs = found[key].astype("U") if found[key].dtype.kind == "O" else found[key]
        ours = np.char.decode(ours.astype("S"), "utf-8") if ours.dtype.kind == "O" else ours
        if not np.array_equal(ours[sure], theirs[sure]):
            raise ValueError(f"this model cannot be portable: ONNX Runtime returns another {key!r}")
    return worst


def _tensors(inputs: Mapping[str, Array]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(value) for name, value in inputs.items()}


def decided(probabilities: Array | None) -> Any:
    """Return for which rows rounding cannot change the most probable class."""
    if probabilities is None:
        return slice(None)
    last, first = np.sort(probabilities, axis=1)[:, -2:].T
    return ~(first - last < 2.0 * _tolerance(probabilities.dtype))


def _tolerance(dtype: Any) -> float:
    return TOLERANCE if dtype == np.float64 else 100.0 * float(np.finfo(dtype).eps)


def _difference(key: str, ours: Array, theirs: Array) -> float:
    """Return the largest difference of two results, relative to the largest of size above one."""
    size = np.abs(ours[np.isfinite(ours)]).max(initial=1.0)
    agree = np.isnan(ours) & np.isnan(theirs)
    worst = float(np.where(agree, 0.0, np.abs(ours - theirs)).max(initial=0.0) / size)
    if not worst <= _tolerance(ours.dtype):
        raise ValueError(
            f"this model cannot be portable: ONNX Runtime differs by {worst:.1e} in {key!r}, more than "
            f"{_tolerance(ours.dtype):.0e}"
        )
    return worst


def _for_no_rows_too(function: Any) -> Any:
    """Return a function that answers no rows too: in a shape, ONNX takes 0 for what the size was before."""
    spec = tf.TensorSpec(function.inputs[0].shape, function.inputs[0].dtype, "inputs")

    def answer(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        N = tf.shape(inputs)[0]
        lacking = [[0, tf.maximum(1 - N, 0)], *([0, 0] for _ in spec.shape[1:])]
        found = function(inputs=tf.ensure_shape(tf.pad(inputs, lacking), spec.shape))
        return {key: value[:N] for key, value in found.items()}

    return tf.function(answer, autograph=False).get_concrete_function(spec)


def _convert(function: Any, onnx: Any, tf2onnx: Any) -> Any:
    """Return what the converter makes of a function, without its optimisers: runtimes have their own."""
    results = {key: tensor.name for key, tensor in function.structured_outputs.items()}
    inputs, outputs = [function.inputs[0].name], list(results.values())
    frozen = tf2onnx.tf_loader.from_function(function, inputs, outputs)
    domain = tf2onnx.convert.make_default_custom_op_handler(DOMAIN)
    handlers: dict[str, Any] = {name: (domain, []) for name in FUNCTIONS}
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        tf.import_graph_def(frozen, name="")
        converted = tf2onnx.tfonnx.process_tf_graph(
            graph,
            continue_on_error=True,
            opset=OPSET,
            custom_op_handlers={**handlers, **HANDLERS},
            extra_opset=[onnx.helper.make_opsetid(DOMAIN, 1)],
            input_names=inputs,
            output_names=outputs,
            tensors_to_rename={inputs[0]: "inputs", **{name: key for key, name in results.items()}},
        )
        return converted.make_model("exported by gpflow_ext")


def libraries() -> tuple[Any, Any, Any]:
    """Return onnx, tf2onnx and onnxruntime, or raise ``ImportError`` with what to install."""
    try:
        import onnx
        import onnx.checker
        import onnx.inliner
        import onnxruntime
        import tf2onnx
    except ImportError as error:
        raise ImportError(
            'profile="portable" needs the extra onnx: pip install "gpflow-ext[onnx]"'
        ) from error
    return onnx, tf2onnx, onnxruntime


@contextlib.contextmanager
def _refusing(reason: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the libraries raise classes of their own
        raise ValueError(f"this model cannot be portable: {reason}: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the converter from printing what it cannot convert: the error lists it once."""
    logger = logging.getLogger("tf2onnx")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
