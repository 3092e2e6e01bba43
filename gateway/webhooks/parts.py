"""Put the parts of webhooks together from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.settings import Settings, comma_separated, private_networks, webhook_port_list, webhook_waits
from gateway.webhooks.schedule import RetryPolicy
from gateway.webhooks.targets import TargetPolicy
from gateway.webhooks.vault import Vault

if TYPE_CHECKING:
    from gateway.webhooks.runner import DeliveryThread
    from gateway.wiring import Services


def target_policy(settings: Settings) -> TargetPolicy:
    """Where webhooks may go."""
    return TargetPolicy(
        ports=webhook_port_list(settings.webhook_ports),
        private_networks=private_networks(settings.webhook_private_networks),
    )


def retry_policy(settings: Settings) -> RetryPolicy:
    """How attempts are spaced."""
    return RetryPolicy(retries_s=webhook_waits(settings.webhook_retries_s), breaker_s=settings.webhook_breaker_s)


def open_vault(settings: Settings) -> Vault:
    """What seals signing secrets."""
    key = settings.webhook_secret_key
    return Vault(() if key is None else comma_separated(key.get_secret_value()))


def open_delivery(services: Services) -> DeliveryThread:
    """What delivers, not started yet."""
    from gateway.webhooks.dispatcher import Dispatcher  # loads an HTTP client
    from gateway.webhooks.runner import DeliveryThread
    from gateway.webhooks.sender import Sender

    settings = services.settings
    sender = Sender(target_policy(settings), timeout_s=settings.webhook_timeout_s)
    dispatcher = Dispatcher(
        services.database,
        sender,
        open_vault(settings),
        retry_policy(settings),
        keep_days=settings.webhook_keep_days,
        timeout_s=settings.webhook_timeout_s,
    )
    return DeliveryThread(dispatcher, services.signals)
