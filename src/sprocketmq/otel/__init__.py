"""Spans and metrics of clients by OpenTelemetry's conventions for messaging: the extra ``sprocketmq[otel]``."""

try:
    from sprocketmq.otel.carrier import context_of, links_to
    from sprocketmq.otel.hooks import OpenTelemetryHooks
except ModuleNotFoundError as e:
    if e.name is None or e.name.partition(".")[0] != "opentelemetry":
        raise
    from sprocketmq.errors import PartNotInstalled

    raise PartNotInstalled("OpenTelemetry, which sprocketmq.otel needs,", "pip install opentelemetry-api") from None

__all__ = ["OpenTelemetryHooks", "context_of", "links_to"]
