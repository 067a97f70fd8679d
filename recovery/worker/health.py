"""Serves the health and the metrics of a worker over HTTP. Needs the extra ``[worker]``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.registry import Collector

from recovery.worker.worker import LOOK_MAX_S, Worker

# A worker looks at its queue at least so often; after twice that it is stuck.
STALE_S = 2 * LOOK_MAX_S
REQUEST_S = 10.0  # for a request to come, once a client has connected

Start = Callable[[str, list[tuple[str, str]]], Any]


class WorkerMetrics(Collector):
    """The metrics of a worker, for a registry of Prometheus' client library."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """The present values."""
        stats = self._worker.stats
        gauges: list[tuple[str, str, float]] = [
            ("running", "Runs that this worker executes", len(stats.running)),
            ("due", "Due runs at its last look at the queue", stats.due),
            ("quarantined", "Runs that it leaves to a person", len(stats.quarantined)),
            ("look_age_seconds", "Seconds since its last look at the queue", stats.looked_s),
        ]
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"eventlog_worker_{name}", text, value)
        ended = CounterMetricFamily(
            "eventlog_worker_runs", "Executions that have ended", labels=("agent", "outcome")
        )
        for labels, number in stats.ended.items():
            ended.add_metric(labels, number)
        yield ended
        yield CounterMetricFamily(
            "eventlog_worker_store_errors", "Outages, and looks that failed", stats.store_errors
        )


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # who connects and asks nothing must not keep a probe waiting


class _Quiet(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        """A probe a second is no news."""


def serve(worker: Worker, host: str, port: int) -> WSGIServer:
    """Serve ``/healthz`` and ``/metrics`` in a thread; the server, whose ``server_port`` is its
    port.

    ``/healthz``: 200, or 503 if the worker has not read its queue for two minutes. Its body is
    JSON. ``port``: 0 for a free one. Anyone who reaches the address can read ids of runs.
    """
    registry = CollectorRegistry()
    for one in (WorkerMetrics(worker),):
        registry.register(one)
    for kind in (ProcessCollector, PlatformCollector, GCCollector):
        kind(registry=registry)
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return list(metrics(environ, start))
            case "/healthz":
                stats = worker.stats
                is_well = stats.looked_s < STALE_S
                start("200 OK" if is_well else "503 Service Unavailable", [_JSON])
                said: dict[str, Any] = {"running": stats.running}
                said |= {"quarantined": dict(stats.quarantined)}
                said |= {"store_away_s": int(stats.away_s)}
                return [json.dumps({"ok": is_well, "due": stats.due, **said}).encode()]
            case _:
                start("404 Not Found", [("Content-Type", "text/plain")])
                return [b"/healthz or /metrics\n"]

    server = make_server(host, port, app, _Server, _Quiet)
    threading.Thread(target=server.serve_forever, name="recovery-worker-http", daemon=True).start()
    return server


_JSON = ("Content-Type", "application/json")
