"""Apache's servers and Java client with TLS and access control: the settings, and who the users are."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop import apache
from tests.interop.apache import Login
from tests.interop.certificates import Authority, Certificate

ADMIN = Login("admin", "the-admin-has-a-long-secret")
INNER = Login("inner", "brokers-among-themselves-sign-so")
# On a busy machine the broker would refuse what has waited for 200 ms, before it looks at who has sent it.
PATIENT = {"waitTimeMillsInSendQueue": "60000", "osPageCacheBusyTimeOutMills": "60000"}
PROVIDER = "org.apache.rocketmq.auth.{}.provider.Local{}MetadataProvider"


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


def tls_client(ca_file: Path) -> tuple[str, ...]:
    """Return the flags of a JVM whose clients use TLS, and check the certificates of servers (never their names, in 5.5.0)."""
    return ("-Dtls.enable=true", "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true", f"-Dtls.client.trustCertPath={ca_file}")


def tls_server(certificate: Certificate, ca_file: Path, *, mode: str = "enforcing") -> tuple[str, ...]:
    """Return the flags of a JVM whose servers have a certificate of ours, and whose own connections use TLS."""
    return (
        *tls_client(ca_file),
        f"-Dtls.server.mode={mode}",
        f"-Dtls.server.certPath={certificate.cert_file}",
        f"-Dtls.server.keyPath={certificate.key_file}",
    )


@dataclass(frozen=True)
class SecuredApache:
    """Apache's nameserver and broker `secured-a`, both with enforcing TLS; the broker with access control as well."""

    authority: Authority
    tls: ssl.SSLContext
    namesrv: apache.ApacheNamesrv
    broker: apache.ApacheBroker

    def ask(self, code: int, document: object = None, **fields: object) -> tuple[dict[str, Any], bytes]:
        """Send one request of the administrator to the broker, and return the header and the body of the answer."""
        body = b"" if document is None else json.dumps(document).encode()
        return apache.request(self.broker.address, code, login=ADMIN, tls=self.tls, body=body, **fields)

    def create_user(self, login: Login, *grants: tuple[str, str], **status: str) -> Login:
        """Create a user, with a policy that allows the actions on the resource of each of ``grants``; return its login."""
        user = {"username": login.access_key, "password": login.secret_key, "userType": "Normal", **status}
        self.done(self.ask(3001, user, username=login.access_key))
        if grants:
            entries = [{"resource": resource, "actions": actions.split(","), "decision": "Allow"} for resource, actions in grants]
            subject = f"User:{login.access_key}"
            self.done(self.ask(3006, {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}, subject=subject))
        return login

    def create_topic(self, topic: str, queues: int = 4) -> str:
        """Create a topic at the broker, and return its name."""
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
        self.done(self.ask(17, **fields, topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false"))
        return topic

    @staticmethod
    def done(answer: tuple[dict[str, Any], bytes]) -> None:
        """Assert that an answer is no refusal."""
        assert answer[0]["code"] == 0, answer

    def kill(self) -> None:
        """End both at once."""
        self.broker.kill()
        self.namesrv.kill()


def start_secured_apache(home: Path, authority: Authority) -> SecuredApache:
    """Start both; the certificate is for 127.0.0.1 only."""
    flags = tls_server(authority.issue("apache-server", apache.LOOPBACK), authority.ca_file)
    tls = ssl.create_default_context(cafile=str(authority.ca_file))
    namesrv = apache.ApacheNamesrv(home / "namesrv", flags=(*apache.SMALL, *flags))
    try:
        broker = apache.ApacheBroker(
            home / "broker",
            namesrv.address,
            name="secured-a",
            cluster="SecuredCluster",
            settings=apache.SMALL_STORE | PATIENT | access_control(),
            flags=(*apache.SMALL_BROKER, *flags),
            tls=tls,
        )
    except BaseException:
        namesrv.kill()
        raise
    return SecuredApache(authority, tls, namesrv, broker)
