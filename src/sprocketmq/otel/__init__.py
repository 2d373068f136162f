"""Spans and metrics of clients by OpenTelemetry's conventions for messaging: the extra ``sprocketmq[otel]``."""

try:
    from sprocketmq.otel.carrier import context_of, links_to
    from sprocketmq.otel.hooks import OpenTelemetryHooks
except ModuleNotFoundError as e:
    if e.name is None or e.name.partition(".")[0] != "opentelemetry":
        raise
    raise ImportError("sprocketmq.otel needs OpenTelemetry, which is not installed: pip install 'sprocketmq[otel]'") from None

__all__ = ["OpenTelemetryHooks", "context_of", "links_to"]
