"""Graphs that do more than compute, wherever a loader could come to run it: each is refused by name."""

from __future__ import annotations

import itertools
import random
import shutil

import gpflow
import numpy as np
import pytest
import test_profiles
from hostile import CALLS, OTHERS, PLACES, WORKING, Edited, nodes_of, small
from marks import SLOW, others_slow
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import config_pb2, saver_pb2

import gpflow_ext as gpx
from gpflow_ext.persistence.verify.operations import PURE

OPERATIONS = (*WORKING, *OTHERS)
EVERYWHERE = ("WriteFile", "SaveV2", "RestoreV2", "MergeV2Checkpoints", "PyFunc")
EVERY = ("function of a signature", "main op", "restore's function", "save's function")
CASES = list(itertools.product(PLACES, OPERATIONS))
PROFILES = list(itertools.product(test_profiles.MODELS, ("exact", "cached")))
QUICK = [case for case in CASES if case[0] in EVERY or case[1] in EVERYWHERE]


def refused(folder, match=""):
    with pytest.raises(ValueError, match=match) as error:
        gpx.verify(folder)
    return str(error.value)


@pytest.mark.parametrize(("place", "operation"), others_slow(CASES, *QUICK))
def test_an_operation_is_refused_wherever_it_is(exported, tmp_path, place, operation):
    model = Edited(exported, tmp_path / "model")
    PLACES[place](model, operation, str(tmp_path / "target"))
    assert "do not load this model" in refused(model.write())
    assert not (tmp_path / "target").exists()


def test_none_of_these_operations_is_on_the_list():
    assert not PURE & set(OPERATIONS)


@pytest.mark.parametrize(("name", "profile"), others_slow(PROFILES, ("SVGP", "exact"), ("VGPKMM", "cached")))
def test_every_class_and_profile_is_verified(tmp_path, name, profile):
    folder = gpx.export(test_profiles.MODELS[name](), tmp_path / "m", profile=profile)
    assert gpx.verify(folder).folder == folder


def test_what_is_edited_back_is_verified(exported, tmp_path):
    model = Edited(exported, tmp_path / "model")
    assert gpx.verify(model.write()).files == 6


def _swap_inputs(model):
    inputs = model.node(model.served).input
    inputs[-1], inputs[-2] = inputs[-2], inputs[-1]


def _swap_bound(model):
    function = model.meta.object_graph_def.concrete_functions[model.called(model.served).signature.name]
    function.bound_inputs[0], function.bound_inputs[1] = function.bound_inputs[1], function.bound_inputs[0]


def _object(model, kind):
    return next(each for each in model.meta.object_graph_def.nodes if each.WhichOneof("kind") == kind)


def _pure(model):
    """A function of the library that computes."""
    return model.called(model.served).node_def


def _constant(model, name, value):
    node = next(n for n in model.called(model.saving).node_def if n.name == name)
    node.attr["value"].tensor.string_val[:] = [value]


def _prefix(model):
    function = model.called(model.restoring)
    node = function.node_def.add(name="elsewhere", op="Const")
    node.attr["dtype"].type = types_pb2.DT_STRING
    node.attr["value"].tensor.dtype = types_pb2.DT_STRING
    node.attr["value"].tensor.string_val.append(b"/tmp/elsewhere")
    next(n for n in function.node_def if n.op == "RestoreV2").input[0] = "elsewhere:output:0"


def _filename_is_a_constant(model):
    node = model.node("saver_filename")
    node.op = "Const"
    del node.attr["shape"]
    node.attr["value"].tensor.dtype = types_pb2.DT_STRING
    node.attr["value"].tensor.string_val.append(b"/tmp/elsewhere")


def _restores_by_saving(model):
    model.meta.saver_def.restore_op_name = model.saving


def _chain(model, depth, calls):
    """Functions that call the next one, each ``calls`` times."""
    for i in range(depth):
        function = model.graph.library.function.add()
        function.signature.name = f"__inference_chain_{i}"
        for k in range(calls):
            node = function.node_def.add(name=f"call_{k}", op="PartitionedCall")
            node.attr["f"].func.name = f"__inference_chain_{(i + 1) % depth}"
    function.ClearField("node_def")
    return function


def _endless(model):
    node = _chain(model, 3, 1).node_def.add(name="back", op="PartitionedCall")
    node.attr["f"].func.name = "__inference_chain_0"


def _large_constant(model):
    tensor = _pure(model).add(name="large", op="Const").attr["value"].tensor
    tensor.dtype = types_pb2.DT_DOUBLE
    tensor.double_val.append(0.0)
    for _ in range(2):
        tensor.tensor_shape.dim.add(size=10**6)


def _settings(model):
    settings = config_pb2.ConfigProto()
    settings.graph_options.rewrite_options.custom_optimizers.add(name="Evil")
    model.node(model.served).attr["config_proto"].s = settings.SerializeToString()


def _type_spec(model):
    function = model.meta.object_graph_def.concrete_functions[model.called(model.served).signature.name]
    function.output_signature.type_spec_value.type_spec_class_name = "Evil"


def _saveable(model):
    _object(model, "variable").saveable_objects["evil"].restore_function = 8


def _signature_for_all(model):
    model.meta.signature_def["another"].CopyFrom(model.meta.signature_def["predict_f"])


def _two_graphs(model):
    model.saved.meta_graphs.add().CopyFrom(model.meta)


def _first_evil(model):
    """A second function of the name of a harmless one."""
    name = model.called(model.served).signature.name
    function = model.graph.library.function.add()
    function.CopyFrom(model.function(name))
    function.node_def.extend(nodes_of("WriteFile", "/tmp/elsewhere"))


def _stand_in(model):
    """Two functions of one interface, the one that saves and one that computes, for TensorFlow to choose from."""
    for function in (model.called(model.saving), model.called(model.served)):
        function.attr["api_implements"].s = b"either"


EDITS = {
    "two graphs": (_two_graphs, "2 graphs"),
    "another tag": (lambda m: m.meta.meta_info_def.tags.append("train"), "the tags"),
    "aliases": (lambda m: m.meta.meta_info_def.function_aliases.update(a="b"), "function_aliases"),
    "anything": (lambda m: m.meta.meta_info_def.any_info.SetInParent(), "any_info"),
    "no objects": (lambda m: m.meta.ClearField("object_graph_def"), "has no objects"),
    "no saver": (lambda m: m.meta.ClearField("saver_def"), "a saver of version 0"),
    "old saver": (lambda m: setattr(m.meta.saver_def, "version", saver_pb2.SaverDef.V1), "saver"),
    "another saver": (lambda m: setattr(m.meta.saver_def, "sharded", True), "sharded"),
    "file name that is a constant": (_filename_is_a_constant, "saver_filename"),
    "path that is a constant": (_prefix, "gives RestoreV2 of .* another path"),
    "another part": (lambda m: _constant(m, "Const_1", b"/../../evil"), "gives ShardedFilename"),
    "another key": (lambda m: _constant(m, "SaveV2/tensor_names", b"evil"), "gives SaveV2"),
    "restoring that saves": (_restores_by_saving, "saver something other"),
    "a variable that is not saved": (lambda m: m.node(m.saving).input.pop(1), "saver something other"),
    "variables swapped": (_swap_inputs, "other variables from Python"),
    "bound variables swapped": (_swap_bound, "other variables from Python"),
    "shared name": (lambda m: setattr(_handle(m).attr["shared_name"], "s", b"x"), "under another name"),
    "container": (lambda m: setattr(_handle(m).attr["container"], "s", b"x"), "container"),
    "device": (lambda m: setattr(_pure(m)[0], "device", "/job:worker/task:0"), "places node"),
    "executor": (lambda m: setattr(_call(m).attr["executor_type"], "s", b"X"), "executor_type"),
    "settings with text": (_settings, "has text in 'config_proto'"),
    "settings that are none": (lambda m: setattr(_call(m).attr["config_proto"], "s", b"\xff"), "unreadable"),
    "placeholder for an attribute": (lambda m: setattr(_pure(m)[0].attr["x"], "placeholder", "x"),  "which an export"),
    "arguments of a function": (
        lambda m: _call(m).attr["f"].func.attr["evil"].func.SetInParent(),
        "not one of its own functions",
    ),
    "two nodes of a name": (lambda m: m.graph.node.add().CopyFrom(m.graph.node[0]), "two of the name"),
    "two nodes of a name in a function": (lambda m: _pure(m).add().CopyFrom(_pure(m)[0]), "two of the name"),
    "two functions of a name": (_first_evil, "two functions of the name"),
    "function named as an operation": (
        lambda m: setattr(_chain(m, 1, 0).signature, "name", "WriteFile"),
        "could be an operation",
    ),
    "one function for another": (_stand_in, "api_implements"),
    "settings of a function": (lambda m: m.called(m.served).attr["forward_function_name"].SetInParent(), "forward_function_name"),
    "resource of an argument": (lambda m: m.called(m.served).resource_arg_unique_id.update({0: 1}), "resource_arg_unique_id"),
    "description of a function": (lambda m: setattr(m.called(m.served).signature, "summary", "x"), "summary"),
    "functions without end": (_endless, "deeper than"),
    "functions too deep": (lambda m: _chain(m, 200, 1), "deeper than"),
    "functions too many": (lambda m: _chain(m, 40, 2), "times over"),
    "constant too large": (_large_constant, "declares a constant"),
    "collection": (lambda m: m.meta.collection_def["x"].bytes_list.value.append(b"x"), "the collection 'x'"),
    "main op of another kind": (
        lambda m: m.meta.collection_def["saved_model_main_op"].any_list.SetInParent(),
        "the collection",
    ),
    "main op that is a call": (
        lambda m: m.meta.collection_def["saved_model_main_op"].node_list.value.append(m.served),
        "when it is loaded",
    ),
    "another signature": (_signature_for_all, "not a call of its own"),
    "signature of the saver": (
        lambda m: setattr(m.meta.signature_def["predict_f"].outputs["mean"], "name", f"{m.saving}:0"),
        "not a call of its own",
    ),
    "sparse input": (
        lambda m: m.meta.signature_def["predict_f"].inputs["inputs"].coo_sparse.SetInParent(),
        "a tensor of another kind",
    ),
    "default of an input": (
        lambda m: m.meta.signature_def["predict_f"].defaults["inputs"].SetInParent(),
        "defaults",
    ),
    "another class": (lambda m: setattr(m.meta.object_graph_def.nodes[0].user_object, "identifier", "_tf_keras_model"), "_tf_keras_model"),
    "settings of a class": (lambda m: setattr(m.meta.object_graph_def.nodes[0].user_object, "metadata", "{}"), "metadata"),
    "registered class": (lambda m: setattr(_object(m, "variable"), "registered_name", "x.Evil"), "registered class"),
    "registered saver": (
        lambda m: setattr(_object(m, "variable"), "registered_saver", "x.Evil"),
        "registered_saver",
    ),
    "own restoring": (_saveable, "saveable_objects"),
    "another object": (lambda m: m.meta.object_graph_def.nodes.add().resource.SetInParent(), "resource"),
    "an asset": (lambda m: m.meta.object_graph_def.nodes.add().asset.SetInParent(), "asset"),
    "captured tensor": (lambda m: m.meta.object_graph_def.nodes.add().captured_tensor.SetInParent(), "captured_tensor"),
    "another child": (lambda m: m.meta.object_graph_def.nodes[0].children.add(node_id=3, local_name="x"), "another object"),
    "child that is not": (lambda m: m.meta.object_graph_def.nodes[0].children.add(node_id=10**6), "there is not"),
    "type of an argument": (_type_spec, "by a type_spec_value"),
    "shape of a variable": (lambda m: _object(m, "variable").variable.shape.dim.add(size=2), "another type or shape"),
    "gradients": (lambda m: m.graph.library.registered_gradients.add(), "registered_gradients"),
    "debug information": (lambda m: m.graph.debug_info.SetInParent(), "debug_info"),
}  # fmt: skip


def _handle(model):
    return next(node for node in model.graph.node if node.op == "VarHandleOp")


def _call(model):
    return next(node for node in _pure(model) if node.op in CALLS)


@pytest.mark.parametrize("name", EDITS)
def test_what_an_export_does_not_write_is_refused(exported, tmp_path, name):
    model = Edited(exported, tmp_path / "model")
    edit, reason = EDITS[name]
    edit(model)
    refused(model.write(), reason)


def test_fields_that_are_unknown_or_twice_are_refused(exported, tmp_path):
    model = Edited(exported, tmp_path / "model")
    file = model.folder / "saved_model.pb"
    content = file.read_bytes()
    for more in (b"\xfa\x7f\x01x", b"\x08\x01\x08\x01"):
        file.write_bytes(content + more)
        refused(model.seal(), "unknown or written twice")


@pytest.mark.parametrize("depth", [150, 5_000])
def test_deep_nesting_is_refused(exported, tmp_path, depth):
    """Of a list in a list in ... that describes an argument."""
    value = b""
    for _ in range(depth):
        value = (
            b"\x92\x03"
            + _varint(len(value) + 1 + len(_varint(len(value))))
            + b"\x0a"
            + _varint(len(value))
            + value
        )
    model = Edited(exported, tmp_path / "model")
    function = b"\x12" + _varint(len(value)) + value
    entry = b"\x0a\x01f\x12" + _varint(len(function)) + function
    objects = b"\x12" + _varint(len(entry)) + entry
    meta = b"\x3a" + _varint(len(objects)) + objects
    (model.folder / "saved_model.pb").write_bytes(b"\x12" + _varint(len(meta)) + meta)
    refused(model.seal(), "saved_model.pb")


def _varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def changes(content, number, seed):
    """Copies of ``content``, each with one to three random bytes changed."""
    rng = random.Random(seed)
    for _ in range(number):
        changed = bytearray(content)
        for place in rng.sample(range(len(content)), rng.choice([1, 1, 1, 2, 3])):
            changed[place] ^= rng.randrange(1, 256)
        yield bytes(changed)


@pytest.mark.parametrize(
    ("name", "number"),
    [("manifest.json", 250), ("saved_model.pb", 250), ("variables/variables.index", 50), ("example.npz", 50)],
)
def test_every_random_change_is_seen(exported, tmp_path, name, number, record_property):
    folder = shutil.copytree(exported, tmp_path / "model")
    content = (folder / name).read_bytes()
    for changed in changes(content, number, seed=1):
        (folder / name).write_bytes(changed)
        with pytest.raises(ValueError, match="not what was exported"):
            gpx.verify(folder)
    record_property(f"random changes of {name}", number)


PARSED = (
    ("saved_model.pb", 250),
    ("variables/variables.index", 50),
    ("example.npz", 50),
    ("fingerprint.pb", 25),
)


@pytest.mark.parametrize("times", [1, pytest.param(40, marks=SLOW)])
@pytest.mark.parametrize(("name", "number"), PARSED)
def test_a_random_change_with_its_hash_is_refused_or_harmless(
    exported, tmp_path, name, number, times, record_property
):
    """Nothing but a `ValueError` comes out of what is parsed; what passes is still of the list."""
    model = Edited(exported, tmp_path / "model")
    content, passed = (model.folder / name).read_bytes(), 0
    allowed = PURE | set(gpx.verify(exported).operations)
    for changed in changes(content, number * times, seed=2):
        (model.folder / name).write_bytes(changed)
        try:
            operations = set(gpx.verify(model.seal()).operations)
        except ValueError:
            continue
        passed += 1
        assert operations <= allowed
    record_property(f"changes of {name} with its hash", number * times)
    record_property(f"of them accepted, {name}", passed)


def test_a_model_without_variables_is_verified(tmp_path):
    model = gpflow.models.SVGP(gpflow.kernels.Linear(), gpflow.likelihoods.Gaussian(), np.ones((1, 1)))
    folder = gpx.export(model, tmp_path / "m")
    assert "VarHandleOp" not in gpx.verify(folder).operations


def test_a_constant_that_is_captured_is_verified(tmp_path):
    model = small()
    model.mean_function = gpflow.functions.Constant(np.ones(1))
    assert gpx.verify(gpx.export(model, tmp_path / "m", profile="exact")).files == 6
