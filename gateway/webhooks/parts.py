"""Put the parts of webhooks together from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.settings import Settings, comma_separated, private_networks, webhook_port_list, webhook_waits
from gateway.webhooks.schedule import RetryPolicy
from gateway.webhooks.targets import TargetPolicy
from gateway.webhooks.vault import Vault

if TYPE_CHECKING:
    from gateway.webhooks.dispatcher import Dispatcher
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
    """What delivers by itself, not started yet."""
    from gateway.webhooks.runner import DeliveryThread

    return DeliveryThread(open_dispatcher(services, is_hinted=False), services.signals)


def open_relay(services: Services) -> DeliveryThread:
    """What tells workers of deliveries by the broker, not started yet."""
    from gateway.webhooks.outbox import Outbox
    from gateway.webhooks.relay import Relay
    from gateway.webhooks.runner import DeliveryThread

    settings = services.settings
    outbox = Outbox(services.database, keep_days=settings.webhook_keep_days)
    relay = Relay(outbox, services.dispatch, patience_s=settings.hint_again_s)
    return DeliveryThread(relay, services.signals)


def open_dispatcher(services: Services, *, is_hinted: bool) -> Dispatcher:
    """What sends, not started yet; with `is_hinted` what it is told of, else whatever is due."""
    from gateway.webhooks.dispatcher import Dispatcher  # loads an HTTP client
    from gateway.webhooks.sender import Sender

    settings = services.settings
    return Dispatcher(
        services.database,
        Sender(target_policy(settings), timeout_s=settings.webhook_timeout_s),
        open_vault(settings),
        retry_policy(settings),
        keep_days=settings.webhook_keep_days,
        timeout_s=settings.webhook_timeout_s,
        is_hinted=is_hinted,
    )
