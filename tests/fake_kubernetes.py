"""A stand-in for a Kubernetes API server with one StatefulSet: real HTTP, and a process for each pod.

It speaks what ``providers.statefulset`` asks for, in the shapes of the Kubernetes API, and does with pods
what a StatefulSet controller and a kubelet would: the highest ordinal ends first, a pod that was deleted
below the number of replicas comes back under its name, and a container that ends is started again.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMESPACE = "serving"
NAME = "kf-anode"
TOKEN = "secret"  # noqa: S105 - of a server that lives for one test
_TICK_S = 0.02
_SCALE = re.compile(f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{NAME}/scale")
_POD = re.compile(f"/api/v1/namespaces/{NAMESPACE}/pods/({NAME}-(\\d+))")


@dataclass
class FakePod:
    ordinal: int
    process: subprocess.Popen[bytes] | None
    uid: str = field(default_factory=lambda: uuid.uuid4().hex)
    kill_at: float | None = None
    """Set once it was deleted."""
    num_restarts: int = 0
    last_code: int | None = None
    waiting: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        return f"{NAME}-{self.ordinal}"

    def to_dict(self) -> dict[str, Any]:
        if self.waiting is not None:
            state: dict[str, Any] = {"waiting": {"reason": self.waiting[0], "message": self.waiting[1]}}
        else:
            state = {"running": {}}
        status: dict[str, Any] = {
            "name": "anode",
            "image": "kernelflume:node",
            "imageID": "",
            "ready": self.waiting is None,
            "restartCount": self.num_restarts,
            "state": state,
        }
        if self.last_code is not None:
            status["lastState"] = {"terminated": {"exitCode": self.last_code, "reason": "Error"}}
        metadata = {"name": self.name, "namespace": NAMESPACE, "uid": self.uid}
        if self.kill_at is not None:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "status": {"phase": "Running", "containerStatuses": [status]},
        }


class FakeKubernetes:
    """The server's state; ``running_kubernetes`` serves it."""

    def __init__(self, command: Callable[[str], list[str]]) -> None:
        self.command = command
        """Pod's name -> what its container runs."""
        self.lock = threading.Lock()
        self.replicas = 0
        self.version = 1
        self.pods: dict[int, FakePod] = {}
        self.requests: list[str] = []
        self.failures: list[tuple[str, int, str]] = []
        """Of requests whose `VERB path` matches the first part: status and message."""
        self.hangs = threading.Event()
        """While set, no request is answered."""
        self.before_put: Callable[[], None] = lambda: None
        """Called before a change of the scale is looked at: what somebody else may do meanwhile."""
        self.image_fault: tuple[str, str] | None = None
        self.grace_s = 5.0
        """terminationGracePeriodSeconds of the pods' template."""
        self.stopped = threading.Event()
        self.url = ""

    def scale(self, replicas: int) -> None:
        """Scale as somebody else would."""
        with self.lock:
            self.replicas = replicas
            self.version += 1

    def delete(self, ordinal: int, grace_s: float) -> None:
        pod = self.pods[ordinal]
        kill_at = time.monotonic() + grace_s
        if pod.kill_at is None and pod.process is not None:
            pod.process.terminate()
        pod.kill_at = kill_at if pod.kill_at is None else min(pod.kill_at, kill_at)

    def reconcile(self) -> None:
        """Look once, as the controller and the kubelet do all the time."""
        with self.lock:
            for ordinal, pod in list(self.pods.items()):
                self._look_at(ordinal, pod)
            above = [ordinal for ordinal in self.pods if ordinal >= self.replicas]
            if above and self.pods[max(above)].kill_at is None:
                self.delete(max(above), self.grace_s)
            for ordinal in range(self.replicas):
                if ordinal not in self.pods:
                    self.pods[ordinal] = FakePod(
                        ordinal, self._start(f"{NAME}-{ordinal}"), waiting=self.image_fault
                    )

    def _look_at(self, ordinal: int, pod: FakePod) -> None:
        code = pod.process.poll() if pod.process is not None else 0
        if pod.kill_at is not None:
            if code is not None:
                del self.pods[ordinal]
            elif time.monotonic() > pod.kill_at and pod.process is not None:
                pod.process.kill()
        elif code is not None and pod.process is not None:
            pod.num_restarts += 1
            pod.last_code = code
            pod.process = self._start(pod.name)

    def _start(self, name: str) -> subprocess.Popen[bytes] | None:
        if self.image_fault is not None:
            return None
        return subprocess.Popen(self.command(name), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answer(self, verb: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.requests.append(f"{verb} {path}")
            for pattern, status, message in self.failures:
                if re.search(pattern, f"{verb} {path}"):
                    return status, _status(status, message)
        if verb == "PUT":
            self.before_put()
        with self.lock:
            if _SCALE.fullmatch(path):
                return self._answer_scale(verb, body)
            if (match := _POD.fullmatch(path)) is not None:
                return self._answer_pod(verb, match[1], int(match[2]), body)
        return 404, _status(404, f"the server could not find {path}")

    def _answer_scale(self, verb: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if verb == "PUT":
            if body["metadata"]["resourceVersion"] != str(self.version):
                return 409, _status(409, "the object has been modified")
            self.replicas = body["spec"].get("replicas", 0)
            self.version += 1
        metadata = {"name": NAME, "namespace": NAMESPACE, "resourceVersion": str(self.version)}
        # As the real one does, it leaves a zero out.
        spec = {"replicas": self.replicas} if self.replicas else {}
        return 200, {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": metadata,
            "spec": spec,
            "status": {"replicas": len(self.pods)},
        }

    def _answer_pod(
        self, verb: str, name: str, ordinal: int, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        pod = self.pods.get(ordinal)
        if pod is None:
            return 404, _status(404, f'pods "{name}" not found')
        if verb == "DELETE":
            self.delete(ordinal, float(body.get("gracePeriodSeconds", self.grace_s)))
        return 200, pod.to_dict()


def _status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


def _handler(cluster: FakeKubernetes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve()

        def do_PUT(self) -> None:
            self._serve()

        def do_DELETE(self) -> None:
            self._serve()

        def _serve(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(content) if content else {}
            path, _, query = self.path.partition("?")
            body |= {
                key: value for key, _, value in (item.partition("=") for item in query.split("&") if item)
            }
            while cluster.hangs.is_set() and not cluster.stopped.is_set():
                time.sleep(_TICK_S)
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, answer = 401, _status(401, "Unauthorized")
            else:
                status, answer = cluster.answer(self.command, path, body)
            data = json.dumps(answer).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:  # who asked has given up
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            return

    return Handler


@contextmanager
def running_kubernetes(command: Callable[[str], list[str]]) -> Iterator[FakeKubernetes]:
    """Serve a cluster without pods; at the end no process is left."""
    cluster = FakeKubernetes(command)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(cluster))
    server.daemon_threads = True
    cluster.url = f"http://127.0.0.1:{server.server_port}"

    def look_on() -> None:
        while not cluster.stopped.wait(_TICK_S):
            cluster.reconcile()

    threads = [
        threading.Thread(target=server.serve_forever, args=(_TICK_S,)),
        threading.Thread(target=look_on),
    ]
    for thread in threads:
        thread.start()
    try:
        yield cluster
    finally:
        cluster.stopped.set()
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join()
        for pod in cluster.pods.values():
            if pod.process is not None:
                pod.process.kill()
                pod.process.wait()


def kubeconfig(url: str, token: str = TOKEN) -> dict[str, Any]:
    """Return the content of a kubeconfig file for the server at ``url``."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
