"""Which provider a setting means. What only one of them needs is imported for it alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.settings import service_environment
from kernelflume.scaler.command import (
    FORK_SERVER_COMMAND,
    attention_node_arguments,
    attention_node_command,
    ray_node_command,
)
from kernelflume.scaler.providers.forking import ForkServerProcess
from kernelflume.scaler.providers.process import ProcessProvider
from kernelflume.scaler.providers.standby import StandbyProvider
from kernelflume.scaler.providers.starting import ForkStarter, SpawnStarter
from kernelflume.scaler.providers.static import StaticProvider

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from kernelflume.scaler.providers.base import Provider
    from kernelflume.scaler.providers.live import LiveSettings
    from kernelflume.scaler.providers.starting import Starter
    from kernelflume.scaler.settings import ScalerSettings
    from kernelflume.store.base import RoutingStore

logger = logging.getLogger(__name__)


def make_provider(live: LiveSettings, store: RoutingStore) -> Provider:
    """Make the provider that the settings name; it follows those of them that may change.

    Raises:
        ConfigurationError: its library is missing, or it cannot work as it is set; the message names
            the setting.
    """
    settings = live.present
    match settings.provider:
        case "process":
            processes = ProcessProvider(_starter(live), log_dir=settings.log_dir)
            return _with_standby(processes, live)
        case "ray":
            return _with_standby(_ray(live, _in_use(store)), live)
        case "kubernetes":
            return _kubernetes(settings, store)
        case "static":
            return StaticProvider(store)


def _starter(live: LiveSettings) -> Starter:
    spawn = SpawnStarter(lambda node_id: attention_node_command(live.present, node_id))
    settings = live.present
    if not settings.fork_attention_nodes:
        return spawn
    if settings.attention_node_command:
        logger.info("attention nodes are not forked, as attention-node-command says how they are started")
        return spawn
    server = ForkServerProcess(FORK_SERVER_COMMAND, log_path=settings.log_dir / "fork-server.log")
    return ForkStarter(server, lambda node_id: attention_node_arguments(live.present, node_id), spawn)


def _with_standby(provider: Provider, live: LiveSettings) -> Provider:
    standby = StandbyProvider(provider, live.present.standby_attention_nodes)
    live.on_change(lambda settings: standby.set_num_standby(settings.standby_attention_nodes))
    return standby


def _ray(live: LiveSettings, in_use: Callable[[], Awaitable[Collection[str]]]) -> Provider:
    try:
        from kernelflume.scaler.providers.ray.provider import (  # noqa: PLC0415 - optional dependency
            RayProvider,
        )
    except ImportError as error:
        raise ConfigurationError(f"provider: ray needs `pip install 'kernelflume[ray]'`: {error}") from error
    settings = live.present
    provider = RayProvider(
        lambda node_id, place: ray_node_command(live.present, node_id, place),
        settings.ray,
        cluster=settings.cluster,
        memory_bytes=settings.attention_node_memory,
        log_dir=settings.log_dir.absolute(),
        in_use=in_use,
        environment=service_environment("anode"),
    )
    live.on_change(
        lambda changed: provider.set_settings(changed.ray, memory_bytes=changed.attention_node_memory)
    )
    return provider


def _kubernetes(settings: ScalerSettings, store: RoutingStore) -> Provider:
    try:
        from kernelflume.scaler.providers.kubernetes import (  # noqa: PLC0415 - optional dependency
            KubernetesProvider,
        )
        from kernelflume.scaler.providers.statefulset import StatefulSet  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"provider: kubernetes needs `pip install 'kernelflume[kubernetes]'`: {error}"
        ) from error
    return KubernetesProvider(
        StatefulSet.connect(settings.kubernetes),
        store,
        in_use=_in_use(store),
        poll_interval_s=settings.kubernetes.poll_interval_s,
    )


def _in_use(store: RoutingStore) -> Callable[[], Awaitable[Collection[str]]]:
    async def node_ids() -> Collection[str]:
        return {node.node_id for node in (await store.read()).nodes}

    return node_ids
