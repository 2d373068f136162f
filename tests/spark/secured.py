"""A cluster with TLS and access control, and a user who may do what Spark needs and nothing else.

The nameserver reads the file of users again a quarter of a second after the broker has changed it: what admits the user waits for that.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sprocketmq import sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import AccessRefused
from sprocketmq.protocol.bodies import AclInfo
from sprocketmq.testing import wait_until

USER = "spark-reader"
PROBE = "Probe"
SECRET = "Zq8-this-is-the-secret-of-the-reader"


class Secured:
    """``admin`` and ``producer`` act as the Super user. ``client`` is a directory for clients, of USER."""

    def __init__(self, mq: LocalCluster, admin: sync.AdminClient, producer: sync.Producer, client: Path) -> None:
        self.mq = mq
        self.namesrv = mq.namesrv
        self.broker = mq.brokers[0]
        self.admin = admin
        self.producer = producer
        self.client = client
        self.ca_file = client / "ca.pem"
        self.credentials = self.write_credentials(SECRET)
        assert mq.secure is not None
        shutil.copy(mq.secure / "ca.pem", self.ca_file)
        admin.create_topic(PROBE, queues=1)
        admin.create_user(self.broker, USER, SECRET)
        self.grant("Group:*", "Sub", "Get")
        self.grant_topics()

    def write_credentials(self, secret: str, name: str = "credentials.json") -> Path:
        """Write a file of credentials of USER."""
        path = self.client / name
        path.touch(mode=0o600)
        path.write_text(json.dumps({"access_key": USER, "secret_key": secret}))
        return path

    def grant_topics(self) -> None:
        """Allow USER to read and write all topics."""
        self.grant("Topic:*", "Pub", "Sub", "Get")
        self._wait_until_admitted()

    def revoke_topics(self) -> None:
        """Take back what ``grant_topics`` allowed."""
        self.admin.delete_acl(self.broker, f"User:{USER}", "Topic:*")

    def admit(self, admitted: bool) -> None:
        """Enable or disable USER."""
        self.admin.update_user(self.broker, USER, status="enable" if admitted else "disable")
        if admitted:
            self._wait_until_admitted()

    def grant(self, resource: str, *actions: str) -> None:
        entry = {"resource": resource, "actions": list(actions), "decision": "Allow"}
        acl = {"subject": f"User:{USER}", "policies": [{"policyType": "Custom", "entries": [entry]}]}
        self.admin.put_acl(self.broker, AclInfo.decode(json.dumps(acl).encode()))

    def _wait_until_admitted(self) -> None:
        def known() -> bool:
            try:
                with sync.AdminClient(namesrv=self.namesrv, secure=self.client) as probe:
                    probe.queues(PROBE)
            except AccessRefused:
                return False
            return True

        # Each failure counts against this address; after ten the answers take a second each.
        wait_until(known, timeout_s=60, what=f"the nameserver admits {USER}")


@contextmanager
def secured_cluster(client: Path) -> Iterator[Secured]:
    """Run a cluster; ``client`` is an empty directory."""
    with (
        LocalCluster(secure=True) as mq,
        sync.AdminClient(namesrv=mq.namesrv, secure=mq.secure) as admin,
        sync.Producer("secured-tests", namesrv=mq.namesrv, secure=mq.secure) as producer,
    ):
        yield Secured(mq, admin, producer, client)
