"""The server's metrics for Prometheus."""

from __future__ import annotations

from typing import TypeVar

import prometheus_client as prometheus
from prometheus_client.registry import Collector

from .model import ServedModel

CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST
M = TypeVar("M", bound=Collector)


class Metrics:
    """Counters of one server, in a registry of its own, and those of the process: memory, descriptors."""

    def __init__(self, model: ServedModel) -> None:
        self._registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self._registry)
        prometheus.PlatformCollector(registry=self._registry)
        self.requests = self._own(
            prometheus.Counter("gpflow_ext_requests", "Requests answered.", ["call", "code"], registry=None)
        )
        self.seconds = self._own(
            prometheus.Histogram("gpflow_ext_request_seconds", "Headers to answer.", ["call"], registry=None)
        )
        self.rows = self._own(prometheus.Counter("gpflow_ext_rows", "Rows predicted.", registry=None))
        self.running = self._own(
            prometheus.Gauge("gpflow_ext_requests_running", "Requests in progress.", registry=None)
        )
        about = self._own(prometheus.Info("gpflow_ext_model", "What is served.", registry=None))
        about.info({"name": model.name, "version": model.version})

    def _own(self, metric: M) -> M:
        self._registry.register(metric)
        return metric

    def page(self) -> bytes:
        """Return all in the text format of Prometheus."""
        text: bytes = prometheus.generate_latest(self._registry)
        return text
