"""Brokers and nameservers of both makes in one cluster, with TLS, and with requests that servers sign for themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.interop import apache
from tests.interop.apache import JavaClient, Login
from tests.interop.replicating import saved
from tests.interop.secured import ADMIN, Secured, apache_secured_broker, our_secured_servers

from sprocketmq.testing import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


def test_apaches_broker_registers_at_our_nameserver_by_its_inner_credentials(
    home: Path, authority: Authority, secured_java: JavaClient, secured_ours: Secured
) -> None:
    with apache_secured_broker(home / "guest", authority, secured_ours.namesrv, "guest-a") as broker:
        guest = Secured(authority, secured_ours.namesrv, broker.address, broker.name)
        topic = guest.create_topic("of_a_guest")
        (sent,) = secured_java.signed_by(ADMIN).send(guest.namesrv, [{"topic": topic, "body": b"x"}])
        assert (sent["status"], sent["broker"]) == ("SEND_OK", "guest-a")
        broker.kill()


def test_our_broker_registers_at_apaches_nameserver_over_tls(
    home: Path, authority: Authority, secured_java: JavaClient, secured_apache: Secured
) -> None:
    with our_secured_servers(home / "our-guest", authority, broker_name="guest-o", namesrv=secured_apache.namesrv) as guest:
        topic = guest.create_topic("of_our_guest")
        user = guest.create_user(Login("guest", "who-sends-to-a-guest-signs"), (f"Topic:{topic}", "Pub,Get"))
        (sent,) = secured_java.signed_by(user).send(guest.namesrv, [{"topic": topic, "body": b"x"}])
        assert (sent["status"], sent["broker"]) == ("SEND_OK", "guest-o")


@pytest.mark.long
def test_apaches_slave_gets_tables_of_our_secured_master_but_not_its_log(home: Path, authority: Authority) -> None:
    """It signs its requests for tables, and knows neither the secret nor TLS at the port for slaves."""
    port = apache.broker_port()
    with our_secured_servers(home / "master", authority, broker_name="mixed-s", port=port, ha_port=0, fast_port_enable=True) as master:
        topic = master.create_topic("of_a_secured_master")
        role = {"brokerRole": "SLAVE", "brokerId": "1"}
        with apache_secured_broker(home / "slave", authority, master.namesrv, "mixed-s", **role) as slave:
            wait_until(
                lambda: topic in saved(slave.store, "topics").get("topicConfigTable", {}), timeout_s=120, what="tables at Apache's slave"
            )
            assert not any(file.read_bytes().strip(b"\0") for file in (slave.store / "commitlog").glob("0*"))
            slave.kill()
