"""Apache's proxy, and Apache's clients for Java, Node and Rust that speak gRPC with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.interop import apache
from tests.ports import LOOPBACK, free_ports

PROXY_POM = Path(__file__).with_name("proxy") / "pom.xml"
JAVA5 = Path(__file__).with_name("java5")
NODE = Path(__file__).with_name("node")
RUST = Path(__file__).with_name("rust")


def java5_jars() -> Path:
    """Return the directory of the client's jars. Raises ApacheUnavailable."""
    cache = apache.cache_dir().with_name("rocketmq-client-java-5.0.7")
    return apache.resolved(JAVA5 / "pom.xml", cache, "rocketmq-client-java-5.0.7.jar", "Apache's Java client of version 5")


def node_modules() -> Path:
    """Return the directory of the modules of the client for Node, which npm brings the first time. Raises ApacheUnavailable."""
    cache = apache.cache_dir().with_name("rocketmq-client-nodejs-1.0.8")
    modules = cache / "node_modules"
    with apache.locked(cache / "lock"):
        if not modules.is_dir():
            partial = Path(tempfile.mkdtemp(prefix="resolving-", dir=cache))
            try:
                shutil.copy(NODE / "package.json", partial)
                command = [apache.tool("npm"), "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(partial)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
                if done.returncode != 0:
                    raise apache.ApacheUnavailable(f"npm could not bring Apache's client for Node:\n{(done.stdout + done.stderr)[-2000:]}")
                (partial / "node_modules").rename(modules)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return modules


def rust_program() -> Path:
    """Return the program that uses the client for Rust, which cargo builds when it has changed. Raises ApacheUnavailable."""
    target = apache.cache_dir().with_name("rocketmq-client-rust-5.0.0")
    command = [
        apache.tool("cargo"),
        "build",
        "--quiet",
        "--manifest-path",
        str(RUST / "Cargo.toml"),
        "--target-dir",
        str(target),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        raise apache.ApacheUnavailable(f"cargo could not build a program with Apache's client for Rust:\n{done.stderr[-2000:]}")
    return target / "debug" / "official"


class ApacheProxy(apache.JavaProcess):
    """Apache's proxy in front of the brokers of `cluster`, on a free port; ready when constructed."""

    def __init__(self, home: Path, namesrv: str, cluster: str, flags: tuple[str, ...] = tuple(apache.SMALL)) -> None:
        cache = apache.cache_dir().with_name(f"rocketmq-proxy-{apache.VERSION}")
        library = apache.resolved(PROXY_POM, cache, f"rocketmq-proxy-{apache.VERSION}.jar", "Apache's proxy")
        remoting, self.port = free_ports(), free_ports()
        self.address = f"{LOOPBACK}:{self.port}"
        settings = {
            "rocketMQClusterName": cluster,
            "namesrvAddr": namesrv,
            "proxyMode": "CLUSTER",
            "grpcServerPort": self.port,
            "remotingListenPort": remoting,
            "localServeAddr": LOOPBACK,
        }
        (home / "conf").mkdir(parents=True, exist_ok=True)
        config = home / "conf" / "rmq-proxy.json"
        config.write_text(json.dumps(settings))
        arguments = ("-pc", str(config), "-n", namesrv, "-pm", "cluster")
        super().__init__("org.apache.rocketmq.proxy.ProxyStartup", *arguments, home=home, flags=flags, library=library)
        self.wait_for("startup successfully")
