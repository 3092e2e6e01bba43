"""Real servers for tests: each on a free port with a folder of its own, ended with whoever started it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import kombu
import psycopg
import redis

START_S = 60.0
STOP_S = 20.0


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class PostgreSQL:
    """A running PostgreSQL that is thrown away with its folder."""

    port: int

    def url(self, database: str = "postgres") -> str:
        """SQLAlchemy's address of a database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        """A connection beside those of the service."""
        return psycopg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/{database}", autocommit=True)

    @contextlib.contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The address of a database of one's own, dropped with the block."""
        name = f"t_{uuid.uuid4().hex[:16]}"
        with self.connect() as admin:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")  # type: ignore[call-overload]
        try:
            yield self.url(name)
        finally:
            with self.connect() as admin:
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[call-overload]


@dataclass
class Redis:
    """A running Redis that keeps nothing on disk."""

    port: int
    process: subprocess.Popen[bytes]
    folder: Path
    _databases: Iterator[int] = field(default_factory=lambda: iter(range(1, 10_000)))

    def url(self) -> str:
        """The address of a database of its own at each call."""
        return f"redis://127.0.0.1:{self.port}/{next(self._databases)}"


@contextlib.contextmanager
def postgresql(*, is_durable: bool = False) -> Iterator[PostgreSQL]:
    """A PostgreSQL of its own; syncing to the disk only if that is what is to be measured."""
    binaries = _postgresql_binaries()
    with _folder() as folder:
        account = _hand_over(folder)
        port = free_port()
        cluster = folder / "cluster"
        _run([*account, str(binaries / "initdb"), "-D", str(cluster), "-A", "trust", "-U", "postgres",
              "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"], cwd=folder)  # fmt: skip
        options = {
            "listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": str(folder),
            **({} if is_durable else {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}),
            "max_connections": "200", "shared_buffers": "64MB",
        }  # fmt: skip
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        log = folder / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_tied(signal.SIGQUIT, account), str(binaries / "postgres"), "-D", str(cluster), *words],
                cwd=folder, stdout=output, stderr=output,
            )  # fmt: skip
        server = PostgreSQL(port)
        with _ended(process, signal.SIGQUIT):
            _wait(lambda: server.connect().close(), process, log)
            yield server


@contextlib.contextmanager
def redis_server() -> Iterator[Redis]:
    """A Redis of its own."""
    with _folder() as folder:
        port = free_port()
        log = folder / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_tied(signal.SIGTERM), *redis_command(port)], cwd=folder, stdout=output, stderr=output
            )
        with _ended(process, signal.SIGTERM):
            _wait(lambda: redis.Redis(port=port).ping(), process, log)
            yield Redis(port, process, folder)


def redis_command(port: int) -> list[str]:
    """A Redis at this port that keeps nothing on disk."""
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--databases", "10000")
    return [_program("redis-server"), *options]


@dataclass(frozen=True, slots=True)
class RabbitMQ:
    """How to run a RabbitMQ of its own: two commands, since nodes find each other by a process beside them."""

    port: int
    names: list[str]
    """Of the process that knows where nodes are; it has to run first."""
    node: list[str]
    environment: Mapping[str, str]

    @property
    def url(self) -> str:
        """The broker's address."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def look(self) -> None:
        """Raises `OSError` until it takes connections."""
        with kombu.Connection(self.url, connect_timeout=5) as connection:
            connection.connect()


_AFTER_NAMES = 'until epmd -names >/dev/null 2>&1; do sleep 0.1; done; exec "$0"'
"""Else the node starts one of its own, which stays behind as a daemon."""


def rabbitmq(folder: Path) -> RabbitMQ:
    """Commands that keep everything in a folder, on free ports, apart from any RabbitMQ that the system may run."""
    port, names_port, nodes_port = free_port(), free_port(), free_port()
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.default = 127.0.0.1:{port}\nlog.file = false\nlog.console = true\n"
        "disk_free_limit.absolute = 50MB\n"
    )
    (folder / "enabled_plugins").write_text("[].\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))},
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(names_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"sluicegate-{port}@localhost",
        "RABBITMQ_DIST_PORT": str(nodes_port),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",  # as little of the machine as it can do with
    }
    server = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on the PATH becomes another user first
    return RabbitMQ(
        port,
        [_program("epmd"), "-port", str(names_port), "-address", "127.0.0.1"],
        ["sh", "-c", _AFTER_NAMES, str(server) if server.exists() else _program("rabbitmq-server")],
        environment,
    )


@contextlib.contextmanager
def rabbitmq_server() -> Iterator[str]:
    """The address of a RabbitMQ of its own."""
    with _folder() as folder, contextlib.ExitStack() as stack:
        made = rabbitmq(folder)
        log = folder / "server.log"
        with log.open("wb") as output:
            for words in (made.names, made.node):
                process = subprocess.Popen(
                    [*_tied(signal.SIGTERM), *words], env=made.environment, cwd=folder, stdout=output, stderr=output
                )
                stack.enter_context(_ended(process, signal.SIGTERM))
        _wait(made.look, process, log)
        yield made.url


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The address of an S3 that lives in this process's memory."""
    from moto.server import ThreadedMotoServer  # half a second that only tests of S3 need to pay

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed; `./dev setup` installs it"
    return found


def _postgresql_binaries() -> Path:
    """Debian keeps the server's programs off the PATH, by version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parents[1].name))
    return (found[-1] if found else Path(_program("initdb")).resolve()).parent


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder with a short name that another account may reach."""
    folder = Path(tempfile.mkdtemp(prefix="sluicegate-server-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hand_over(folder: Path) -> list[str]:
    """PostgreSQL refuses to run as root: give the folder to another account, and say how to become it."""
    if os.getuid() != 0:
        return []
    account = _account("postgres") or _account("nobody")
    assert account is not None
    os.chown(folder, account.pw_uid, account.pw_gid)
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


def _account(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _tied(number: signal.Signals, account: list[str] | None = None) -> list[str]:
    """Words before a command that ends it when this process dies in whatever way."""
    return [*(account or ["setpriv"]), "--pdeathsig", number.name.removeprefix("SIG")]


def _run(command: list[str], cwd: Path) -> None:
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=START_S)
    assert ran.returncode == 0, ran.stderr


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes], number: signal.Signals) -> Iterator[None]:
    try:
        yield
    finally:
        process.send_signal(number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(look: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, log.read_text("utf-8", "replace")
        try:
            look()
            return
        except (psycopg.OperationalError, redis.ConnectionError, OSError):
            assert time.monotonic() < deadline, log.read_text("utf-8", "replace")
            time.sleep(0.05)
