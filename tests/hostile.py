"""Exported models made hostile or damaged: one edit each, all hashes written anew by who edits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from gpflow_ext.persistence.verify import sealed, sha256_file

CALLS = ("PartitionedCall", "StatefulPartitionedCall")


class Edited:
    """A copy of an exported model, whose graph and manifest are edited in place."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder = Path(shutil.copytree(folder, target))
        self.saved = saved_model_pb2.SavedModel()
        self.saved.ParseFromString((self.folder / "saved_model.pb").read_bytes())
        self.manifest: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())

    @property
    def meta(self) -> Any:
        return self.saved.meta_graphs[0]

    @property
    def graph(self) -> Any:
        return self.meta.graph_def

    def node(self, name: str) -> Any:
        return next(node for node in self.graph.node if node.name == name)

    def function(self, name: str) -> Any:
        return next(f for f in self.graph.library.function if f.signature.name == name)

    def called(self, call: str) -> Any:
        """The function that a node of the main graph calls."""
        return self.function(self.node(call).attr["f"].func.name)

    @property
    def served(self) -> str:
        """The node that computes serving_default."""
        return next(iter(self.meta.signature_def["serving_default"].outputs.values())).name.split(":")[0]

    @property
    def saving(self) -> str:
        return self.meta.saver_def.save_tensor_name.split(":")[0]

    @property
    def restoring(self) -> str:
        return self.meta.saver_def.restore_op_name

    def write(self) -> Path:
        """Write the graph, and a manifest whose hashes are those of the files."""
        (self.folder / "saved_model.pb").write_bytes(self.saved.SerializeToString(deterministic=True))
        return self.seal()

    def seal(self) -> Path:
        """Write a manifest whose hashes are those of the files."""
        hashes = {name: self.folder / name for name in self.manifest["sha256"]}
        self.manifest["sha256"] = {name: sha256_file(file) for name, file in hashes.items() if file.is_file()}
        (self.folder / "manifest.json").write_bytes(sealed(self.manifest))
        return self.folder


def write_to(target: str) -> Any:
    return tf.raw_ops.WriteFile(filename=target, contents="written")


def _save(target: str) -> Any:
    return tf.raw_ops.SaveV2(
        prefix=target, tensor_names=["x"], shape_and_slices=[""], tensors=[tf.constant(1.0)]
    )


def _save_dataset(target: str) -> Any:
    rows = tf.raw_ops.RangeDataset(
        start=tf.constant(0, tf.int64),
        stop=tf.constant(2, tf.int64),
        step=tf.constant(1, tf.int64),
        output_types=[tf.int64],
        output_shapes=[[]],
    )
    return tf.raw_ops.DatasetToTFRecord(input_dataset=rows, filename=target, compression_type="")


WORKING: dict[str, Callable[[str], Any]] = {
    "WriteFile": write_to,
    "ReadFile": lambda target: tf.raw_ops.ReadFile(filename=target).op,
    "MatchingFiles": lambda target: tf.raw_ops.MatchingFiles(pattern=target).op,
    "SaveV2": _save,
    "Save": lambda target: tf.raw_ops.Save(filename=target, tensor_names=["x"], data=[tf.constant(1.0)]),
    "SaveSlices": lambda target: tf.raw_ops.SaveSlices(
        filename=target, tensor_names=["x"], shapes_and_slices=[""], data=[tf.constant(1.0)]
    ),
    "RestoreV2": lambda target: (
        tf.raw_ops.RestoreV2(prefix=target, tensor_names=["x"], shape_and_slices=[""], dtypes=[tf.float32])[
            0
        ].op
    ),
    "Restore": lambda target: tf.raw_ops.Restore(file_pattern=target, tensor_name="x", dt=tf.float32).op,
    "MergeV2Checkpoints": lambda target: tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[target], destination_prefix=target
    ),
    "PyFunc": lambda target: tf.raw_ops.PyFunc(input=[target], token="pyfunc_0", Tout=[tf.int64])[0].op,
    "PrintV2": lambda target: tf.raw_ops.PrintV2(input="written", output_stream=f"file://{target}"),
    "TextLineDataset": lambda target: (
        tf.raw_ops.TextLineDataset(filenames=target, compression_type="", buffer_size=0).op
    ),
    "DatasetToTFRecord": _save_dataset,
    "DebugIdentityV2": lambda target: (
        tf.raw_ops.DebugIdentityV2(input=tf.constant(1.0), debug_urls=[f"file://{target}"]).op
    ),
    "HashTableV2": lambda target: tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64).op,
    "TensorArrayV3": lambda target: tf.raw_ops.TensorArrayV3(size=1, dtype=tf.float32)[0].op,
}
"""Operations with what makes them run: they write to ``target`` or read it, or hold what outlives a call."""

OTHERS = [
    "Abort",
    "AssignVariableOp",
    "CreateSummaryFileWriter",
    "Custom>Writer",
    "EagerPyFunc",
    "FIFOQueueV2",
    "FixedLengthRecordReaderV2",
    "ImportEvent",
    "InitializeTableFromTextFileV2",
    "IteratorV2",
    "LoadDataset",
    "LoadTPUEmbeddingAdamParameters",
    "Print",
    "PyFuncStateless",
    "RemoteCall",
    "SaveDatasetV2",
    "SymbolicGradient",
    "TFRecordDataset",
    "TensorArrayV2",
    "WholeFileReaderV2",
    "WriteSummary",
    "XlaLaunch",
    "_Recv",
    "_Send",
    "VarHandleOp",
    "Variable",
    "ShardedFilename",
]
"""Operations that are refused by their name alone."""


def nodes_of(operation: str, target: str) -> list[Any]:
    """The nodes that run an operation; the last one is it, named evil."""
    graph = tf.Graph()
    with graph.as_default():
        if operation not in WORKING:
            return [tf.compat.v1.NodeDef(name="evil", op=operation)]
        made = WORKING[operation](target)
    nodes = list(graph.as_graph_def().node)
    [evil] = [node for node in nodes if node.name == made.name]
    renamed = {node.name: "evil" if node is evil else f"evil_{i}" for i, node in enumerate(nodes)}
    for node in nodes:
        node.name = renamed[node.name]
        inputs = [each.partition(":") for each in node.input]
        node.input[:] = [renamed[name] + colon + port for name, colon, port in inputs]
    return [*(node for node in nodes if node is not evil), evil]


def into_graph(model: Edited, operation: str, target: str) -> None:
    model.graph.node.extend(nodes_of(operation, target))


def into_function(function: Any, operation: str, target: str, behind: str = "Identity") -> None:
    """Add the nodes to a function, and let a node wait for them."""
    for node in nodes_of(operation, target):
        ports = {"HashTableV2": "table_handle"}
        node.input[:] = [f"{each}:{ports.get(node.op, 'output')}:0" for each in node.input]
        function.node_def.add().CopyFrom(node)
    next(node for node in function.node_def if node.name == behind).input.append("^evil")


def _signature(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    model.node(model.served).input.append("^evil")


def _input(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    placeholder = next(iter(model.meta.signature_def["serving_default"].inputs.values())).name.split(":")[0]
    model.node(placeholder).input.append("^evil")


def _concrete(model: Edited, operation: str, target: str) -> None:
    into_function(model.called(model.served), operation, target)


def _nested(model: Edited, operation: str, target: str) -> None:
    outer = model.called(model.served)
    inner = next(node.attr["f"].func.name for node in outer.node_def if node.op in CALLS)
    into_function(model.function(inner), operation, target)


def _unreached(model: Edited, operation: str, target: str) -> None:
    function = model.graph.library.function.add()
    function.signature.name = "__inference_forgotten_1"
    function.node_def.add(name="Identity", op="NoOp")
    into_function(function, operation, target)


def _main_op(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    model.node("NoOp").input.append("^evil")


def _nested_main_op(model: Edited, operation: str, target: str) -> None:
    _main_op(model, operation, target)
    model.graph.node.add(name="between", op="NoOp", input=["^evil"])
    model.graph.node.add(name="further", op="NoOp", input=["^between"])
    model.node("NoOp").input[:] = ["^further"]


def _main_op_without_objects(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    model.meta.ClearField("object_graph_def")
    del model.meta.signature_def["__saved_model_init_op"]
    model.meta.collection_def["saved_model_main_op"].node_list.value[:] = ["evil"]


def _init_op(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    model.meta.signature_def["__saved_model_init_op"].outputs["__saved_model_init_op"].name = "evil"


def _legacy_init_op(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    del model.meta.signature_def["__saved_model_init_op"]
    del model.meta.collection_def["saved_model_main_op"]
    model.meta.collection_def["legacy_init_op"].node_list.value.append("evil")


def _restore(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    model.node(model.restoring).input.append("^evil")


def _restore_function(model: Edited, operation: str, target: str) -> None:
    into_function(model.called(model.restoring), operation, target)


def _restore_another(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    model.meta.saver_def.restore_op_name = "evil"


def _save_node(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    model.node(model.saving).input.append("^evil")


def _save_function(model: Edited, operation: str, target: str) -> None:
    into_function(model.called(model.saving), operation, target, "NoOp")


def _filename(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    model.node("saver_filename").input.append("^evil")


def _variable(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    next(node for node in model.graph.node if node.op == "VarHandleOp").input.append("^evil")


def _collection(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    model.meta.collection_def["table_initializer"].node_list.value.append("evil")


def _asset(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)
    asset = model.meta.asset_file_def.add(filename="../../outside")
    asset.tensor_info.name = "evil:0"


def _orphan(model: Edited, operation: str, target: str) -> None:
    into_graph(model, operation, target)


def _gradient(model: Edited, operation: str, target: str) -> None:
    _unreached(model, operation, target)
    name = model.called(model.served).signature.name
    model.graph.library.gradient.add(function_name=name, gradient_func="__inference_forgotten_1")


def _branch(operation_of_call: str, attribute: str) -> Callable[[Edited, str, str], None]:
    def place(model: Edited, operation: str, target: str) -> None:
        _unreached(model, operation, target)
        function = model.called(model.served)
        node = function.node_def.add(name="branch", op=operation_of_call)
        if attribute == "branches":
            node.attr[attribute].list.func.add(name="__inference_forgotten_1")
        else:
            node.attr[attribute].func.name = "__inference_forgotten_1"

    return place


def _as_operation(model: Edited, operation: str, target: str) -> None:
    _unreached(model, operation, target)
    model.called(model.served).node_def.add(name="call", op="__inference_forgotten_1")


def _as_function(model: Edited, operation: str, target: str) -> None:
    """Let a call name the operation itself as its function."""
    node = model.called(model.served).node_def.add(name="call", op="StatefulPartitionedCall")
    node.attr["f"].func.name = operation


def _concrete_function(model: Edited, operation: str, target: str) -> None:
    _unreached(model, operation, target)
    model.meta.object_graph_def.concrete_functions["__inference_forgotten_1"].SetInParent()


PLACES: dict[str, Callable[[Edited, str, str], None]] = {
    "signature": _signature,
    "input of a signature": _input,
    "function of a signature": _concrete,
    "nested function": _nested,
    "function that nobody calls": _unreached,
    "main op": _main_op,
    "main op behind others": _nested_main_op,
    "main op without objects": _main_op_without_objects,
    "init op": _init_op,
    "legacy init op": _legacy_init_op,
    "restore": _restore,
    "restore's function": _restore_function,
    "another restore": _restore_another,
    "save": _save_node,
    "save's function": _save_function,
    "file name of the saver": _filename,
    "variable": _variable,
    "collection": _collection,
    "asset": _asset,
    "node that nobody needs": _orphan,
    "gradient": _gradient,
    "If": _branch("If", "then_branch"),
    "While": _branch("While", "body"),
    "StatelessIf": _branch("StatelessIf", "else_branch"),
    "StatelessWhile": _branch("StatelessWhile", "cond"),
    "Case": _branch("Case", "branches"),
    "function as operation": _as_operation,
    "operation as function": _as_function,
    "concrete function": _concrete_function,
}
"""Where an operation is put: each edits a model so that a loader could come to run it."""


def saves_in_the_place_of_another(model: Edited, target: str) -> None:
    """Let serving_default call a function that computes, with the interface of the one that saves.

    TensorFlow then chooses the one for the device.
    """
    saving, served = model.called(model.saving), model.called(model.served)
    twin = model.graph.library.function.add()
    twin.signature.CopyFrom(saving.signature)
    twin.signature.name = "__inference_twin_1"
    twin.signature.ClearField("control_output")
    arguments = saving.signature.input_arg
    twin.node_def.add(name="path", op="Identity", input=[arguments[0].name]).attr["T"].type = arguments[
        0
    ].type
    twin.ret[saving.signature.output_arg[0].name] = "path:output:0"
    for function, device in ((twin, b"GPU"), (saving, b"CPU")):
        function.attr["api_implements"].s = b"either"
        function.attr["api_preferred_device"].s = device
    text = served.node_def.add(name="text", op="Const")
    text.attr["dtype"].type = text.attr["value"].tensor.dtype = arguments[0].type
    text.attr["value"].tensor.string_val.append(target.encode())
    resources = [each.name for each in served.signature.input_arg if each.type == arguments[1].type]
    call = served.node_def.add(name="evil", op="StatefulPartitionedCall", device="/device:CPU:0")
    call.input[:] = ["text:output:0", *resources[: len(arguments) - 2], "text:output:0"]
    call.attr["Tin"].list.type[:] = [argument.type for argument in arguments]
    call.attr["Tout"].list.type[:] = [arguments[0].type]
    call.attr["f"].func.name = twin.signature.name
    call.attr["_noinline"].b = True
    next(node for node in served.node_def if node.op == "Identity").input.append("^evil")


def small() -> gpflow.models.SVGP:
    """A binary classifier of three inputs."""
    Z = np.random.default_rng(0).normal(size=(12, 3))
    model = gpflow.models.SVGP(gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli(), Z)
    model.q_mu.assign(Z[:, :1])
    return model


def files(folder: Path) -> dict[str, bytes]:
    """What is below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
