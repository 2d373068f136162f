"""Servers of either make with TLS and access control: their settings, who the users are, and requests of the administrator."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tests.certificates import Authority, Pair
from tests.interop import apache
from tests.interop.apache import Login
from tests.interop.ours import UNHURRIED
from tests.ports import LOOPBACK

from sprocketmq import Credentials, TlsConfig
from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.namesrv import NameServer, NameServerConfig
from sprocketmq.net.loops import LoopThread
from sprocketmq.net.server_tls import ServerTls, TlsMode
from sprocketmq.security.config import SecurityConfig
from sprocketmq.storage.store import StoreConfig
from sprocketmq.testing import wait_until

ADMIN = Login("admin", "the-admin-has-a-long-secret")
INNER = Login("inner", "brokers-among-themselves-sign-so")
CLUSTER = "SecuredCluster"
PROVIDER = "org.apache.rocketmq.auth.{}.provider.Local{}MetadataProvider"
START_TIMEOUT_S = 60.0


def access_control() -> dict[str, str]:
    """Return the lines of broker.conf that switch on authentication and authorization (ACL 2.0)."""
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationMetadataProvider": PROVIDER.format("authentication", "Authentication"),
        "authorizationMetadataProvider": PROVIDER.format("authorization", "Authorization"),
        "initAuthenticationUser": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": INNER.access_key, "secretKey": INNER.secret_key}),
    }


def tls_client(ca_file: str) -> tuple[str, ...]:
    """Return the flags of a JVM whose clients use TLS, and check the certificates of servers (never their names, in 5.5.0)."""
    return ("-Dtls.enable=true", "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true", f"-Dtls.client.trustCertPath={ca_file}")


def tls_server(certificate: Pair, ca_file: str, *, mode: str = "enforcing") -> tuple[str, ...]:
    """Return the flags of a JVM whose servers have a certificate of ours, and whose own connections use TLS."""
    return (
        *tls_client(ca_file),
        f"-Dtls.server.mode={mode}",
        f"-Dtls.server.certPath={certificate.cert_file}",
        f"-Dtls.server.keyPath={certificate.key_file}",
    )


class Secured:
    """A nameserver and a broker with access control and TLS; ``tls`` is what this process trusts them by."""

    def __init__(self, authority: Authority, namesrv: str, address: str, broker: str) -> None:
        self.authority = authority
        self.tls = ssl.create_default_context(cafile=authority.ca_file)
        self.namesrv = namesrv
        self.address = address
        self.broker = broker
        self.cluster = CLUSTER

    def client(self, login: Login, **tls: Any) -> dict[str, Any]:
        """Return the arguments of a client of ours that logs in and trusts the servers' authority."""
        return {
            "namesrv": self.namesrv,
            "credentials": Credentials(login.access_key, login.secret_key),
            "tls": TlsConfig(**{"ca_file": self.authority.ca_file, **tls}),
        }

    def ask(self, code: int, document: object = None, **fields: object) -> tuple[dict[str, Any], bytes]:
        """Send one request of the administrator to the broker, and return the header and the body of the answer."""
        body = b"" if document is None else json.dumps(document).encode()
        return apache.request(self.address, code, login=ADMIN, tls=self.tls, body=body, **fields)

    def create_user(self, login: Login, *grants: tuple[str, str]) -> Login:
        """Create a user, with a policy that allows the actions on the resource of each of ``grants``; return its login when it is valid."""
        user = {"username": login.access_key, "password": login.secret_key, "userType": "Normal"}
        done(self.ask(3001, user, username=login.access_key))
        if grants:
            entries = [{"resource": resource, "actions": actions.split(","), "decision": "Allow"} for resource, actions in grants]
            subject = f"User:{login.access_key}"
            done(self.ask(3006, {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}, subject=subject))
        for resource, _ in grants:
            if resource.startswith("Topic:"):
                self.wait_for_user(login, resource.removeprefix("Topic:"))
        return login

    def wait_for_user(self, login: Login, topic: str) -> None:
        """Wait until the nameserver gives a user the route of a topic: ours looks at the file of users once a second."""
        wait_until(lambda: self.route_code(login, topic) == 0, what=f"the route of {topic} for {login.access_key}")

    def route_code(self, login: Login, topic: str) -> int:
        """Ask the nameserver for a route as a user, and return the code of the answer."""
        code: int = apache.request(self.namesrv, 105, login=login, tls=self.tls, topic=topic)[0]["code"]
        return code

    def update_user(self, name: str, **changes: str) -> None:
        """Change members of a user."""
        done(self.ask(3002, {"username": name, **changes}, username=name))

    def delete_user(self, name: str) -> None:
        """Delete a user and its policies."""
        done(self.ask(3003, username=name))

    def create_topic(self, topic: str, queues: int = 4) -> str:
        """Create a topic at the broker, wait until the nameserver knows it, and return its name."""
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
        done(self.ask(17, **fields, topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false"))
        self.wait_for_user(ADMIN, topic)
        return topic


def done(answer: tuple[dict[str, Any], bytes]) -> None:
    """Assert that an answer is no refusal."""
    assert answer[0]["code"] == 0, answer


def apache_secured_broker(home: Path, authority: Authority, namesrv: str, name: str, **settings: str) -> apache.ApacheBroker:
    """Start Apache's broker with enforcing TLS and access control, registered at a nameserver with TLS."""
    return apache.ApacheBroker(
        home,
        namesrv,
        name=name,
        cluster=CLUSTER,
        settings=apache.SMALL_STORE | access_control() | settings,
        flags=(*apache.SMALL_BROKER, *tls_server(authority.issue(name, hosts=(LOOPBACK,)), authority.ca_file)),
        tls=ssl.create_default_context(cafile=authority.ca_file),
        login=ADMIN,
    )


@contextlib.contextmanager
def secured_apache_servers(home: Path, authority: Authority) -> Iterator[Secured]:
    """Run Apache's nameserver and broker, both with enforcing TLS, the broker with access control; the certificates are for 127.0.0.1 only."""
    flags = tls_server(authority.issue("apache-namesrv", hosts=(LOOPBACK,)), authority.ca_file)
    with contextlib.ExitStack() as running:
        namesrv = apache.ApacheNamesrv(home / "namesrv", flags=(*apache.SMALL, *flags))
        running.callback(namesrv.kill)
        broker = apache_secured_broker(home / "broker", authority, namesrv.address, "secured-a")
        running.callback(broker.kill)
        yield Secured(authority, namesrv.address, broker.address, broker.name)


def users_file(path: Path) -> Path:
    """Write a file of users that has the administrator, and return it."""
    admin = {"username": ADMIN.access_key, "secrets": [ADMIN.secret_key], "type": "Super", "status": "enable"}
    path.touch(0o600)
    path.write_text(json.dumps({"users": [admin], "policies": []}))
    return path


@contextlib.contextmanager
def our_secured_servers(
    directory: Path,
    authority: Authority,
    *,
    mode: TlsMode = TlsMode.ENFORCING,
    broker_name: str = "secured-o",
    namesrv: str | None = None,
    **settings: Any,
) -> Iterator[Secured]:
    """Run our broker, and our nameserver unless there is one at `namesrv`, with access control and TLS, in a thread of this process.

    `settings` are added to the broker's configuration.
    """
    directory.mkdir(parents=True)
    certificate = authority.issue(f"{directory.name}-server", hosts=(LOOPBACK,))
    inner = Credentials(INNER.access_key, INNER.secret_key)
    security = SecurityConfig(users_file=users_file(directory / "users.json"), inner_credentials=inner)
    tls = ServerTls(mode, cert_file=certificate.cert_file, key_file=certificate.key_file)
    loop = LoopThread(directory.name).start()
    with contextlib.ExitStack() as running:
        running.callback(loop.stop)
        if namesrv is None:
            ours = NameServer(NameServerConfig(port=0, security=security, tls=tls, cluster_name=CLUSTER))
            loop.run(ours.start, START_TIMEOUT_S)
            running.callback(lambda: loop.run(ours.stop))
            namesrv = ours.address
        broker = Broker(
            BrokerConfig(
                store=StoreConfig(directory / "store", commitlog_segment_bytes=1 << 20, preallocate=False),
                cluster_name=CLUSTER,
                broker_name=broker_name,
                namesrv=(namesrv,),
                security=security,
                tls=tls,
                tls_client=TlsConfig(ca_file=authority.ca_file),
                **({"port": 0} | UNHURRIED | settings),
            )
        )
        loop.run(broker.start, START_TIMEOUT_S)
        running.callback(lambda: loop.run(broker.stop))
        yield Secured(authority, namesrv, broker.address, broker_name)


class Handshakes:
    """A port with a certificate that our own servers would not start with; ``outcomes`` has "done", or why a handshake failed."""

    def __init__(self, certificate: Pair) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.cert_file, certificate.key_file)
        self._listener = socket.create_server((LOOPBACK, 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.address = f"{LOOPBACK}:{self._listener.getsockname()[1]}"
        self.outcomes: list[str] = []

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(30)
            with connection:
                try:
                    with self._context.wrap_socket(connection, server_side=True):
                        self.outcomes.append("done")
                except OSError as e:
                    self.outcomes.append(str(e))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._listener.close()
