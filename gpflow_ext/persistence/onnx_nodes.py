"""Parts of ONNX graphs that the converter does not make by itself, or not so that runtimes can run them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.linalg


def nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of the graphs inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes(attribute.g)


def drop_shapes_of_elements(graph: Any) -> None:
    """Let lists that a loop goes through be tensors: the converter leaves the shapes of their elements."""
    dropped: set[str] = set()
    for node in nodes(graph):
        if node.op_type == "Identity":
            dropped.update(node.input[1:])
            del node.input[1:]
    used = {name for node in nodes(graph) for name in node.input}
    kept = [each for each in graph.initializer if each.name in used or each.name not in dropped]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _solve(ctx: Any, node: Any, name: str, args: Any) -> None:
    """Replace a solve by the product with the inverse of its matrix, which must be a constant."""
    matrix = node.inputs[0].get_tensor_value(as_list=False)
    lower = bool(node.get_attr_value("lower", 1))
    inverse = np.stack(
        [
            scipy.linalg.solve_triangular(part, np.eye(len(part), dtype=part.dtype), lower=lower)
            for part in matrix.reshape(-1, *matrix.shape[-2:])
        ]
    ).reshape(matrix.shape)
    if node.get_attr_value("adjoint", 0):
        inverse = np.swapaxes(inverse, -1, -2)
    constant = ctx.make_const(f"{name}_inverse", inverse)
    node.type = "MatMul"
    ctx.replace_input(node, node.input[0], constant.output[0], 0)


def _gather_patches(ctx: Any, node: Any, name: str, args: Any) -> None:
    """Replace the extraction of patches by a lookup of pixels: convolutions are in single precision alone."""
    image = ctx.get_shape(node.input[0])[1:]
    if node.get_attr_str("padding") != "VALID":
        raise ValueError("patches are padded")
    windows = zip(
        image, *(node.get_attr(key).ints[1:3] for key in ("ksizes", "strides", "rates")), strict=False
    )
    down, across = (
        np.arange(0, length - (size - 1) * rate, stride)[:, None] + rate * np.arange(size)
        for length, size, stride, rate in windows
    )
    pixels = np.arange(np.prod(image)).reshape(image)
    found = pixels[down[:, None, :, None], across[None, :, None, :]].reshape(len(down), len(across), -1)
    flat = ctx.make_const(f"{name}_flat", np.array([-1, pixels.size], np.int64))
    rows = ctx.make_node("Reshape", [node.input[0], flat.output[0]])
    which = ctx.make_const(f"{name}_pixels", found.astype(np.int64))
    shape, dtype = ctx.get_shape(node.output[0]), ctx.get_dtype(node.output[0])
    ctx.remove_node(node.name)
    ctx.make_node(
        "Gather",
        [rows.output[0], which.output[0]],
        attr={"axis": 1},
        name=node.name,
        outputs=node.output,
        shapes=[shape],
        dtypes=[dtype],
    )


HANDLERS: dict[str, Any] = {
    "ExtractImagePatches": (_gather_patches, []),
    "MatrixTriangularSolve": (_solve, []),
}
