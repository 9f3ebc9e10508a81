"""Check an exported model before loading it: every file, and every operation in its graph.

This file imports nothing but the standard library and TensorFlow's protocol buffers, so it can be copied to a
machine that has only TensorFlow.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tensorflow.core.protobuf import saved_model_pb2

_NUMERICAL = """
Abs Acos Acosh Add AddN AddV2 All Any ArgMax ArgMin Asin Asinh Atan Atan2 Atanh BatchMatMul BatchMatMulV2
BatchMatMulV3 BesselI0e BesselI1e Betainc BiasAdd Bincount Bitcast BroadcastArgs BroadcastTo Bucketize Cast
Ceil CheckNumerics Cholesky ClipByValue Complex Concat ConcatV2 Conj Cos Cosh Cross Cumprod Cumsum
CumulativeLogsumexp DepthToSpace Diag DiagPart Digamma Div DivNoNan DynamicPartition DynamicStitch Einsum
Elu Equal Erf Erfc Erfinv Exp ExpandDims Expm1 ExtractImagePatches Fill Floor FloorDiv FloorMod Gather
GatherNd GatherV2 Greater GreaterEqual Identity IdentityN Igamma Igammac Imag InTopKV2 InvertPermutation
IsFinite IsInf IsNan
LeakyRelu Less LessEqual Lgamma LinSpace Log Log1p LogMatrixDeterminant LogSoftmax LogicalAnd LogicalNot
LogicalOr LowerBound MatMul MatrixBandPart MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2
MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixInverse MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3
MatrixSolve MatrixSolveLs MatrixTriangularSolve Max Maximum Mean Min Minimum MirrorPad Mod Mul MulNoNan
Ndtri Neg NextAfter NotEqual OneHot OnesLike Pack Pad PadV2 ParallelConcat ParallelDynamicStitch Polygamma
Pow PreventGradient Prod Qr Range Rank Real RealDiv Reciprocal Relu Relu6 Reshape Reverse ReverseV2 Rint
Roll Round Rsqrt ScatterNd SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum Select SelectV2
SelfAdjointEigV2 Selu Shape ShapeN Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign Split SplitV
Sqrt Square SquaredDifference Squeeze StopGradient StridedSlice Sub Sum Svd Tan Tanh TensorScatterAdd
TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate Tile TopKV2 Transpose
TridiagonalMatMul TridiagonalSolve TruncateDiv TruncateMod Unique UniqueV2 Unpack UnsortedSegmentMax
UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound Where Xdivy Xlog1py Xlogy ZerosLike
Zeta
"""
_RANDOM = """
Multinomial RandomGammaGrad RandomStandardNormal RandomUniform RandomUniformInt StatelessMultinomial
StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetAlg StatelessRandomGetKeyCounter
StatelessRandomGetKeyCounterAlg StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomUniform
StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
StatelessRandomUniformIntV2 StatelessRandomUniformV2
"""
_CONTROL = """
Assert BroadcastGradientArgs Case Const ControlTrigger EmptyTensorList EnsureShape Enter Exit If LoopCond
Merge NextIteration NoOp PartitionedCall Placeholder PlaceholderWithDefault StatefulPartitionedCall
StatelessCase StatelessIf StatelessWhile Switch TensorListConcatV2 TensorListElementShape
TensorListFromTensor TensorListGather TensorListGetItem TensorListLength TensorListPopBack
TensorListPushBack TensorListReserve TensorListResize TensorListSetItem TensorListSplit TensorListStack
While
"""
_VARIABLES = """
AssignVariableOp DisableCopyOnRead ReadVariableOp ResourceGather ResourceGatherNd VarHandleOp
VarIsInitializedOp VariableShape
"""
_STRINGS = "StaticRegexFullMatch StringFormat StringJoin"  # names of the variables' files, Assert's messages
_PURE = frozenset(" ".join((_NUMERICAL, _RANDOM, _CONTROL, _VARIABLES, _STRINGS)).split())
# TensorFlow writes these into every SavedModel to store and load its variables. They touch files, so they are
# allowed there and nowhere that a signature or another callable function can reach.
_FILES = frozenset(("MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename"))


class Verified(NamedTuple):
    """What was checked: the folder of the version, how many files, and which operations the graph holds."""

    folder: Path
    files: int
    operations: tuple[str, ...]


def verify(path: str | os.PathLike[str]) -> Verified:
    """Check the files of an exported model against its manifest, and its graph against an allow-list.

    A SavedModel is a program: this shows that it is the one that was exported and that it only computes. It
    does not show who exported it, because the manifest could have been written anew with the files.

    Parameters
    ----------
    path
        An exported model (its newest version is taken) or one version of it.

    Raises
    ------
    ValueError
        Naming the file that is missing, extra or changed, or the operation that is not on the list.
    """
    folder = version_folder(path)
    hashes = read_manifest(folder)["sha256"]
    _check_files(folder, hashes)
    return Verified(folder, len(hashes), _check_operations(folder / "saved_model.pb"))


def version_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of one version: ``path`` itself, or the newest version below it."""
    folder = Path(path)
    if (folder / "manifest.json").exists() or (folder / "saved_model.pb").exists():
        return folder
    numbers = versions(folder)
    if not numbers:
        raise ValueError(
            f"{folder} holds no exported model: it has neither saved_model.pb nor a version folder 1, 2, ..."
        )
    return folder / str(numbers[-1])


def versions(path: Path) -> list[int]:
    """Return the version numbers of the exported model at ``path``, in increasing order."""
    if not path.is_dir():
        return []
    return sorted(int(p.name) for p in path.iterdir() if p.name.isascii() and p.name.isdigit() and p.is_dir())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of one version."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        manifest["sha256"].items()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{folder} has no readable manifest.json with the hashes of its files: {error}"
        ) from error
    return manifest


def hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 hash of every file below ``folder`` but the manifest, by relative path."""
    hashes = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_symlink():
            raise ValueError(f"{name} is a symbolic link: an exported model holds plain files only")
        if file.is_file() and name != "manifest.json":
            hashes[name] = sha256_file(file)
    return hashes


def sha256_file(file: Path) -> str:
    """Return the SHA-256 hash of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _check_files(folder: Path, expected: dict[str, str]) -> None:
    found = hash_files(folder)
    problems = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    problems += [f"{name} is not in the manifest" for name in sorted(found.keys() - expected.keys())]
    problems += [
        f"{name} has changed (SHA-256 {found[name][:12]}..., in the manifest {str(expected[name])[:12]}...)"
        for name in sorted(found.keys() & expected.keys())
        if found[name] != expected[name]
    ]
    if problems:
        raise ValueError(f"{folder} is not what was exported: {'; '.join(problems)}")


def _check_operations(file: Path) -> tuple[str, ...]:
    model = saved_model_pb2.SavedModel()
    try:
        model.ParseFromString(file.read_bytes())
    except Exception as error:  # the protobuf implementations raise different classes
        raise ValueError(f"{file} is not a SavedModel: {error}") from error
    used: set[str] = set()
    for graph in model.meta_graphs:
        functions = {f.signature.name: list(f.node_def) for f in graph.graph_def.library.function}
        live_nodes, live_functions = _reachable(graph, functions)
        checks = [(node, "the main graph", node.name in live_nodes) for node in graph.graph_def.node]
        checks += [
            (node, name, name in live_functions) for name, nodes in functions.items() for node in nodes
        ]
        for node, where, live in checks:
            if not _is_allowed(node.op, functions, live):
                why = (
                    "reads or writes files"
                    if node.op in _FILES
                    else "is not on the list of harmless operations"
                )
                raise ValueError(
                    f"{file}: {node.op} (node {node.name!r} of {where}) {why}: do not load this model"
                )
            used.add(node.op)
    return tuple(sorted(used))


def _is_allowed(operation: str, functions: Container[str], live: bool) -> bool:
    if operation.startswith("__"):  # no operation of TensorFlow's own begins so: it can only be a function
        return operation in functions
    return operation in _PURE or (operation in _FILES and not live)


def _reachable(graph: Any, functions: dict[str, list[Any]]) -> tuple[set[str], set[str]]:
    """Return the nodes and the functions that a signature, or a function of the loaded object, can run."""
    by_name = {node.name: node for node in graph.graph_def.node}
    tensors = [
        t.name for s in graph.signature_def.values() for t in (*s.inputs.values(), *s.outputs.values())
    ]
    nodes: set[str] = set()
    todo = [_node_name(t) for t in tensors]
    while todo:  # backwards through the main graph
        name = todo.pop()
        if name in by_name and name not in nodes:
            nodes.add(name)
            todo += map(_node_name, by_name[name].input)
    reached: set[str] = set()
    calls = [*graph.object_graph_def.concrete_functions, *_called(by_name[name] for name in nodes)]
    while calls:
        name = calls.pop()
        if name in functions and name not in reached:
            reached.add(name)
            calls += _called(functions[name])
    return nodes, reached


def _node_name(tensor: str) -> str:
    return tensor.lstrip("^").split(":")[0]


def _called(nodes: Iterable[Any]) -> Iterator[str]:
    for node in nodes:
        yield node.op  # a node may name a function as its operation
        for value in node.attr.values():
            yield value.func.name
            yield from (f.name for f in value.list.func)
