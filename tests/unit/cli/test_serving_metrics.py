"""``--metrics``, the settings of metrics and Apache's names for them."""

import asyncio
import re
import socket

import pytest
from tests.scraping import scrape

from sprocketmq import Message, sync
from sprocketmq.cli.app import main
from sprocketmq.cli.config import Settings
from sprocketmq.errors import ConfigError
from sprocketmq.events import quoted

FREE = ("--port", "0", "--namesrv-port", "0")


def page(address):
    return asyncio.run(scrape(address))


def test_a_server_is_scraped_at_the_address_of_its_ready_line(serving, tmp_path):
    server = serving("serve", *FREE, "--metrics", "0", "--store", str(tmp_path))
    assert re.fullmatch(rf"ready namesrv=\S+ broker=\S+ metrics=127.0.0.1:\d+ store={re.escape(quoted(tmp_path))}\n", server.ready)
    with sync.Producer("pg", namesrv=server.address["namesrv"]) as producer:
        producer.send_batch([Message("orders", b"x")] * 10)
        assert page(server.address["metrics"]).value("rocketmq_messages_in_total", topic="orders") == 10
    assert server.end() == (0, "")


def test_several_brokers_need_one_port_that_is_free(tmp_path, capfd):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--brokers", "3", *FREE, "--metrics", str(port), "--store", str(tmp_path)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capfd.readouterr().err
    assert not (tmp_path / "broker-a").exists()


def test_several_brokers_refuse_labels_that_prometheus_does_not_allow(tmp_path, capfd):
    assert main(["serve", "--brokers", "2", *FREE, "--metrics", "0", "--set", "metrics_label=1:x", "--store", str(tmp_path)]) == 2
    assert "metrics_label has '1:x'" in capfd.readouterr().err


def test_apaches_names_of_the_settings(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text(
        "metricsExporterType=PROM\nmetricsPromExporterPort=6000\nmetricsPromExporterHost=0.0.0.0\n"
        "metricsLabel=env:prod,zone:b\nmetricsOtelCardinalityLimit=10\n"
    )
    settings = Settings()
    settings.put_file(file)
    found = {key: getattr(settings, f"metrics_{key}") for key in ("exporter", "port", "host", "label", "max_series")}
    assert found == {"exporter": "prom", "port": 6000, "host": "0.0.0.0", "label": "env:prod,zone:b", "max_series": 10}


@pytest.mark.parametrize(
    ("given", "exporter"), [("PROM", "prom"), ("prom", "prom"), ("2", "prom"), ("DISABLE", "disable"), ("0", "disable")]
)
def test_apaches_exporters_have_names_and_numbers(given, exporter):
    settings = Settings()
    settings.put_text(f"metricsExporterType={given}", "--set")
    assert settings.metrics_exporter == exporter


@pytest.mark.parametrize("given", ["OTLP_GRPC", "1", "LOG", "3"])
def test_apaches_other_exporters_are_refused(given):
    with pytest.raises(ConfigError, match="must be PROM or DISABLE: this broker exports metrics to Prometheus only"):
        Settings().put_text(f"metricsExporterType={given}", "--set")
