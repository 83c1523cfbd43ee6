"""One StatefulSet at a Kubernetes API server: its scale subresource and its pods."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import urllib3
from kubernetes import client
from kubernetes import config as kubernetes_config

from kernelflume.core.errors import ConfigurationError, ConflictError, DeadlineError, UnavailableError
from kernelflume.scaler.providers.callthread import CallThread
from kernelflume.scaler.providers.pods import Pod, pod_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.scaler.providers.settings import KubernetesSettings

_CONTAINER = "anode"
_NUM_TRIES = 5
"""Of a change that others overtake."""
_NOT_FOUND = 404
_CONFLICT = 409
_MAX_MESSAGE = 300


class StatefulSet:
    """Asks the API server, each time within the request time-out, in a thread of its own."""

    def __init__(self, api_client: Any, settings: KubernetesSettings) -> None:
        """Use a configured ``kubernetes.client.ApiClient``."""
        self.name = settings.stateful_set
        self._namespace = settings.namespace
        self._timeout_s = settings.request_timeout_s
        self._client = api_client
        self._apps = client.AppsV1Api(api_client)
        self._core = client.CoreV1Api(api_client)
        self._thread = CallThread("kubernetes")

    @classmethod
    def connect(cls, settings: KubernetesSettings) -> StatefulSet:
        """Read where the API server is; it is not asked yet.

        Raises:
            ConfigurationError: there is no usable configuration.
        """
        configuration = client.Configuration()
        try:
            if settings.kubeconfig or settings.context:
                _from_kubeconfig(settings, configuration)
            else:
                try:
                    kubernetes_config.load_incluster_config(client_configuration=configuration)
                except kubernetes_config.ConfigException:
                    _from_kubeconfig(settings, configuration)
        except (kubernetes_config.ConfigException, OSError, ValueError) as error:
            raise ConfigurationError(f"kubernetes.kubeconfig: no cluster is configured: {error}") from error
        configuration.retries = False  # the scaler tries again by itself, and knows its deadline
        return cls(client.ApiClient(configuration), settings)

    async def edit(self, change: Callable[[int], int | None]) -> int:
        """Set the number of replicas to ``change`` of the present one, None leaves it; returns the number.

        Nothing is lost when somebody else changes it at the same time: the API server refuses a change of
        what is no longer the present state, and ``change`` is asked again.

        Raises:
            UnavailableError: the API server did not do it.
            ConflictError: others were faster each time.
        """
        for _ in range(_NUM_TRIES):
            scale = await self._call(
                "get", "statefulsets/scale", self._apps.read_namespaced_stateful_set_scale
            )
            present = scale.spec.replicas or 0
            wanted = change(present)
            if wanted is None or wanted == present:
                return present
            scale.spec.replicas = wanted
            try:
                await self._call(
                    "update",
                    "statefulsets/scale",
                    partial(self._apps.replace_namespaced_stateful_set_scale, body=scale),
                )
            except ConflictError:
                continue
            return wanted
        raise ConflictError(f"StatefulSet {self._namespace}/{self.name} is being scaled by somebody else")

    async def pod(self, ordinal: int) -> Pod | None:
        """Return a pod, or None if it is not there.

        Raises:
            UnavailableError: the API server did not answer.
        """
        try:
            found = await self._call("get", "pods", self._core.read_namespaced_pod, ordinal=ordinal)
        except _NotFoundError:
            return None
        return _view(found)

    async def delete_pod(self, ordinal: int, *, grace_s: float) -> None:
        """Delete a pod, which gets ``grace_s`` to end by itself; one that is not there is no error.

        Raises:
            UnavailableError: the API server did not do it.
        """
        delete = partial(self._core.delete_namespaced_pod, grace_period_seconds=max(1, round(grace_s)))
        try:
            await self._call("delete", "pods", delete, ordinal=ordinal)
        except _NotFoundError:
            return

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    async def _call(
        self, verb: str, resource: str, call: Callable[..., Any], *, ordinal: int | None = None
    ) -> Any:
        name = self.name if ordinal is None else pod_name(self.name, ordinal)
        request = partial(call, name, self._namespace, _request_timeout=(self._timeout_s, self._timeout_s))
        what = f"Kubernetes did not {verb} {resource} {self._namespace}/{name}"
        try:
            # The request's own time-outs are those of single reads and of the connection.
            return await self._thread.call(request, timeout_s=2 * self._timeout_s)
        except client.ApiException as error:
            message = f"{what}: {_message(error)}"
            if error.status == _CONFLICT:
                raise ConflictError(message) from error
            raise (_NotFoundError if error.status == _NOT_FOUND else UnavailableError)(message) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnavailableError(f"{what}: {error}") from error
        except DeadlineError as error:
            raise UnavailableError(f"{what}: {error}") from error


class _NotFoundError(UnavailableError):
    """The API server knows no object of that name."""


def _from_kubeconfig(settings: KubernetesSettings, configuration: Any) -> None:
    kubernetes_config.load_kube_config(
        config_file=settings.kubeconfig or None,
        context=settings.context or None,
        client_configuration=configuration,
        persist_config=False,
    )


def _message(error: Any) -> str:
    """Return status, reason and the message of a Status object, if the answer was one."""
    told = f"{error.status} {error.reason}"
    try:
        message = str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):  # a proxy's own words
        return told
    return f"{told}: {message[:_MAX_MESSAGE]}"


def _view(pod: Any) -> Pod:
    """Return what matters of a ``V1Pod``."""
    status = pod.status
    containers = status.container_statuses or []
    container = next((item for item in containers if item.name == _CONTAINER), None) or next(
        iter(containers), None
    )
    waiting = container.state.waiting if container is not None and container.state is not None else None
    last = container.last_state.terminated if container is not None and container.last_state else None
    return Pod(
        uid=pod.metadata.uid,
        phase=status.phase or "",
        is_leaving=pod.metadata.deletion_timestamp is not None,
        reason=_joined(status.reason, status.message),
        num_restarts=container.restart_count if container is not None else 0,
        waiting_for=_joined(waiting.reason, waiting.message) if waiting is not None else "",
        last_end=f"code {last.exit_code}{f' ({last.reason})' if last.reason else ''}"
        if last is not None
        else "",
    )


def _joined(*parts: str | None) -> str:
    return ": ".join(part for part in parts if part)[:_MAX_MESSAGE]
