"""The configuration for TensorFlow Serving parses as its protocol buffers, and names the models of the zoo.

The messages are declared here, by the names and types that the server's documentation gives: text needs no more.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from scripts.tools import make_zoo

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "scripts" / "tf_serving"
FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "string": FIELD.TYPE_STRING,
    "bool": FIELD.TYPE_BOOL,
    "int64": FIELD.TYPE_INT64,
    "uint32": FIELD.TYPE_UINT32,
}
# Fields of each message; a star for those that repeat.
MESSAGES = {
    "Int64Value": {"value": "int64"},
    "Latest": {"num_versions": "uint32"},
    "All": {},
    "Specific": {"versions": "int64*"},
    "VersionPolicy": {"latest": "Latest", "all": "All", "specific": "Specific"},
    "ModelConfig": {
        "name": "string",
        "base_path": "string",
        "model_platform": "string",
        "model_version_policy": "VersionPolicy",
    },
    "ModelConfigList": {"config": "ModelConfig*"},
    "ModelServerConfig": {"model_config_list": "ModelConfigList"},
    "BatchingParameters": {
        "max_batch_size": "Int64Value",
        "batch_timeout_micros": "Int64Value",
        "max_enqueued_batches": "Int64Value",
        "num_batch_threads": "Int64Value",
        "allowed_batch_sizes": "int64*",
    },
    "PrometheusConfig": {"enable": "bool", "path": "string"},
    "MonitoringConfig": {"prometheus_config": "PrometheusConfig"},
}


@pytest.fixture(scope="module", name="messages")
def _messages():
    file = descriptor_pb2.FileDescriptorProto(name="serving.proto", package="serving", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), 1):
            label = FIELD.LABEL_REPEATED if kind.endswith("*") else FIELD.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind in SCALARS:
                message.field.add(name=field, number=number, label=label, type=SCALARS[kind])
            else:
                type_name = f".serving.{kind}"
                message.field.add(
                    name=field, number=number, label=label, type=FIELD.TYPE_MESSAGE, type_name=type_name
                )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"serving.{name}"))
        for name in MESSAGES
    }


def test_models(messages):
    text = (CONFIG / "models.config").read_text(encoding="utf-8")
    parsed = text_format.Parse(text, messages["ModelServerConfig"]())
    zoo = {folder.parent.name for folder in (ROOT / "saved_models").glob("*/1")}
    assert {each.name for each in parsed.model_config_list.config} == zoo
    assert text == make_zoo.serving_config()
    for each in parsed.model_config_list.config:
        assert each.base_path == f"/models/{each.name}"
        assert each.model_platform == "tensorflow"


def test_batching(messages):
    text = (CONFIG / "batching.config").read_text(encoding="utf-8")
    parsed = text_format.Parse(text, messages["BatchingParameters"]())
    assert 0 < parsed.max_batch_size.value <= 8192  # rows that the signatures predict in one block
    assert parsed.num_batch_threads.value >= 1


def test_monitoring(messages):
    text = (CONFIG / "monitoring.config").read_text(encoding="utf-8")
    parsed = text_format.Parse(text, messages["MonitoringConfig"]())
    assert parsed.prometheus_config.enable
    assert parsed.prometheus_config.path == "/monitoring/prometheus/metrics"


def test_the_documented_command_names_these_files():
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    assert "/saved_models:/models:ro" in text
    assert "/scripts/tf_serving:/config:ro" in text
    named = set(re.findall(r"/config/(\S+?\.config)", text))
    assert named == {path.name for path in CONFIG.iterdir()}


def test_a_wrong_field_is_seen(messages):
    with pytest.raises(text_format.ParseError, match="max_batch"):
        text_format.Parse("max_batch { value: 3 }", messages["BatchingParameters"]())
