"""A PostgreSQL cluster under Patroni in network namespaces of its own, and the faults made to it.

Each node has its own network namespace with PostgreSQL, Patroni and one etcd member. Two links lead
out of it: to the other nodes, and to the clients. HAProxy, PgBouncer and all clients live in the
namespace of this process. No interface of the machine is used.

`enter` runs the program in new namespaces for networks and processes. The first process of that
process namespace is the last to go: when it ends, for whatever reason, the kernel ends all others.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

PROGRAMS = ("postgres", "patroni", "etcd", "haproxy", "pgbouncer", "unshare", "nsenter", "ip")
NODES = (1, 2, 3)
POSTGRES, POOLED, REST, HAPROXY = 5432, 6432, 8008, 5000
TIMINGS = {"ttl": 9, "loop_wait": 1, "retry_timeout": 4}
ROUTES = ("multi-host", "HAProxy", "PgBouncer → HAProxy")
_INSIDE = "PERDURE_FAILOVER_INSIDE"


def missing_programs() -> list[str]:
    """What must be installed first: Debian has a package of each, and `python3-etcd`."""
    return [name for name in PROGRAMS if _command(name) is None]


def versions() -> str:
    """The programs of the cluster, with their versions."""
    found = []
    for name, option in zip(
        PROGRAMS[:5], ("-V", "--version", "--version", "-v", "-V"), strict=True
    ):
        command = [str(_command(name)), option]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        number = re.search(r"\d+(\.\d+)+", said.stdout)
        found.append(f"{name} {number[0] if number else '?'}")
    return ", ".join(found)


def enter(module: str, arguments: list[str]) -> None:
    """Return in a process that has network and process namespaces of its own."""
    if os.environ.get(_INSIDE) is None:
        own = [] if os.geteuid() == 0 else ["--map-current-user", "--keep-caps"]
        command = ["unshare", *own, "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        os.environ[_INSIDE] = "1"
        os.execvp("unshare", [*command, sys.executable, "-m", module, *arguments])
    child = os.fork()
    if child == 0:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child gets it too, and cleans up
    while True:  # also waits for processes whose parents were killed
        ended, status = os.wait()
        if ended == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


class Node:
    """One server of the cluster."""

    def __init__(self, number: int, home: Path) -> None:
        self.name = f"node{number}"
        self.address, self.peer = f"10.77.0.{number}", f"10.77.1.{number}"
        self.home = home / self.name
        self.namespace: subprocess.Popen[bytes] | None = None
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def ask(self, path: str, body: dict[str, Any] | None = None, method: str | None = None) -> Any:
        """Ask this node's Patroni. `None` if it does not answer."""
        data = None if body is None else json.dumps(body).encode()
        address = f"http://{self.address}:{REST}/{path}"
        request = urllib.request.Request(address, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20 if data else 2) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            text = error.read()
        except OSError:
            return None
        try:
            return json.loads(text)
        except ValueError:
            return text.decode()

    def pids(self) -> list[int]:
        """Every process in this node's network namespace but the one that holds it."""
        assert self.namespace is not None
        holder = self.namespace.pid
        own, found = os.readlink(f"/proc/{holder}/ns/net"), []
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdigit() and os.readlink(f"/proc/{name}/ns/net") == own:
                    found.append(int(name))
        return [pid for pid in found if pid != holder]

    def postmaster(self) -> int:
        return int((self.home / "data" / "postmaster.pid").read_text().split("\n")[0])


class Cluster:
    """Three nodes, HAProxy and PgBouncer. `close` ends every process, each by its id."""

    def __init__(self, home: Path) -> None:
        programs = _postgres_programs()
        assert programs is not None
        self._programs, self._home = programs, home
        self._identity: tuple[int, int] | None = None
        if os.geteuid() == 0:
            entry = pwd.getpwnam("postgres")
            self._identity = entry.pw_uid, entry.pw_gid
        home.chmod(0o711)
        self.nodes = [Node(number, home) for number in NODES]
        self._proxies: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._network()
        for node in self.nodes:
            self._directory(node.home)
            self._start_etcd(node)
        for node in self.nodes:
            self._start_patroni(node)
        self._proxies = [self._start_haproxy(), self._start_pgbouncer()]

    def close(self) -> None:
        for node in self.nodes:
            if node.namespace is None:
                continue
            for pid in node.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            node.namespace.kill()
        for process in self._proxies:
            process.kill()

    def url(self, route: str, database: str) -> str:
        if route == "multi-host":
            hosts = ",".join(f"{node.address}:{POSTGRES}" for node in self.nodes)
            options = "?target_session_attrs=read-write"
        else:
            port = HAPROXY if route == "HAProxy" else POOLED
            hosts, options = f"127.0.0.1:{port}", ""
        return f"postgresql://postgres@{hosts}/{database}{options}"

    def node_urls(self, database: str) -> list[str]:
        """The URL of each node, without a proxy."""
        return [f"postgresql://postgres@{node.address}/{database}" for node in self.nodes]

    # What the cluster says of itself

    def primary(self) -> Node | None:
        """The node that holds the leader key, if it takes writes."""
        for member in self._members():
            if member.get("role") == "leader" and member.get("state") == "running":
                return next(node for node in self.nodes if node.name == member["name"])
        return None

    def timeline(self) -> int:
        return _newest(self._members())

    def configure(self, *, strict: bool) -> None:
        """Set the replication, and wait until it is so."""
        primary = self.primary()
        assert primary is not None
        modes = {"synchronous_mode": strict, "synchronous_mode_strict": strict}
        primary.ask("config", modes, "PATCH")
        self.wait_until_whole(strict=strict)

    def wait_until_whole(self, *, strict: bool, seconds: float = 120.0) -> None:
        """Wait for one primary with two standbys that stream from it."""
        until(lambda: self._is_whole(strict), seconds, lambda: f"no whole cluster: {self.state()}")

    def state(self) -> str:
        return ", ".join(
            f"{one.get('name')} {one.get('role')} {one.get('state')} {one.get('timeline')}"
            for one in self._members()
        )

    def _members(self) -> list[dict[str, Any]]:
        """The members as the node sees them that knows the newest timeline: one that is cut off
        goes on telling an old story."""
        views = [view for node in self.nodes if isinstance(view := node.ask("cluster"), dict)]
        members = [list(view.get("members", [])) for view in views]
        return max(members, key=_newest, default=[])

    def _is_whole(self, strict: bool) -> bool:
        members = self._members()
        roles = sorted(str(member.get("role")) for member in members)
        wanted = (
            ["leader", "replica", "sync_standby"] if strict else ["leader", "replica", "replica"]
        )
        timelines = {member.get("timeline") for member in members}
        primary = self.primary()
        if roles != wanted or len(timelines) != 1 or primary is None:
            return False
        standbys = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
        names = "SHOW synchronous_standby_names"
        try:
            url = f"postgresql://postgres@{primary.address}/postgres"
            with psycopg.connect(url, connect_timeout=2) as connection:
                streaming = connection.execute(standbys).fetchone()
                synchronous = connection.execute(names).fetchone()
        except psycopg.Error:
            return False
        return streaming == (2,) and synchronous is not None and bool(synchronous[0]) == strict

    # Faults. Each returns what ends it.

    def fault(self, kind: str) -> Callable[[], None]:
        primary = self.primary()
        assert primary is not None
        faults = {
            "kill -9": self._kill,
            "SIGSTOP": self._stop,
            "switchover": self._switch,
            "network cut": lambda node: self._cut(node, "peers", "clients"),
            "cut between the nodes": lambda node: self._cut(node, "peers"),
            "ghost": self._ghost,
        }
        return faults[kind](primary)

    def _kill(self, node: Node) -> Callable[[], None]:
        """Its manager and its postmaster die at once."""
        node.processes["patroni"].kill()
        os.kill(node.postmaster(), signal.SIGKILL)
        return lambda: self._start_patroni(node)

    def _stop(self, node: Node) -> Callable[[], None]:
        """The whole node stands still, as a virtual machine does that is paused."""
        stopped = node.pids()

        def send(number: int) -> None:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

        send(signal.SIGSTOP)
        return lambda: send(signal.SIGCONT)

    def _switch(self, node: Node) -> Callable[[], None]:
        """What an operator does before maintenance."""
        replies = []

        def asked() -> bool:
            replies.append(str(node.ask("switchover", {"leader": node.name})))
            return "Successfully" in replies[-1]

        until(asked, 30, lambda: f"Patroni did not switch over: {replies[-1]}")
        return lambda: None

    def _cut(self, node: Node, *links: str) -> Callable[[], None]:
        """Packets to and from the node are dropped without a word."""

        def set_links(state: str) -> None:
            for link in links:
                _run("ip", "link", "set", _link(link, node), state)

        set_links("down")
        return lambda: set_links("up")

    def _ghost(self, node: Node) -> Callable[[], None]:
        """Its manager and its etcd die, and PostgreSQL lives: nothing tells it to step down."""
        node.processes["patroni"].kill()
        node.processes["etcd"].kill()

        def heal() -> None:
            self._start_etcd(node)
            self._start_patroni(node)

        return heal

    # Starting

    def _network(self) -> None:
        ours = os.readlink("/proc/self/ns/net")
        _run("ip", "link", "set", "lo", "up")
        for bridge in ("clients", "peers"):
            _run("ip", "link", "add", bridge, "type", "bridge")
            _run("ip", "link", "set", bridge, "up")
        _run("ip", "address", "add", "10.77.0.254/24", "dev", "clients")
        for node in self.nodes:
            holder = ["unshare", "--net", "sleep", "infinity"]
            node.namespace = subprocess.Popen(holder, start_new_session=True)
            pid = node.namespace.pid
            until(lambda link=f"/proc/{pid}/ns/net": os.readlink(link) != ours, 30)  # type: ignore[misc]
            for bridge, address in (("clients", node.address), ("peers", node.peer)):
                link = _link(bridge, node)
                inside = ("peer", "name", bridge, "netns", str(pid))
                _run("ip", "link", "add", link, "type", "veth", *inside)
                _run("ip", "link", "set", link, "master", bridge, "up")
                _run(*_within(node), "ip", "address", "add", f"{address}/24", "dev", bridge)
                _run(*_within(node), "ip", "link", "set", bridge, "up")
            _run(*_within(node), "ip", "link", "set", "lo", "up")

    def _start(self, node: Node, name: str, command: list[str | Path]) -> None:
        node.processes[name] = self._launch(node.home, name, command, _within(node))

    def _launch(
        self, home: Path, name: str, command: list[str | Path], within: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        if self._identity is not None:
            uid, gid = map(str, self._identity)
            within = (*(within or ("nsenter",)), f"--setuid={uid}", f"--setgid={gid}")
            within = ("nice", "-n", "-10", *within)  # a starved manager gives the primary up
        program = _command(str(command[0]))
        assert program is not None
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(home)}
        with (home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*within, program, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=home,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the program, which ends them
            )

    def _directory(self, path: Path) -> None:
        path.mkdir(mode=0o700)
        if self._identity is not None:
            os.chown(path, *self._identity)

    def _start_etcd(self, node: Node) -> None:
        members = ",".join(f"{one.name}=http://{one.peer}:2380" for one in self.nodes)
        options = {
            "name": node.name,
            "data-dir": node.home / "etcd",
            "listen-peer-urls": f"http://{node.peer}:2380",
            "initial-advertise-peer-urls": f"http://{node.peer}:2380",
            "listen-client-urls": f"http://{node.peer}:2379",
            "advertise-client-urls": f"http://{node.peer}:2379",
            "initial-cluster": members,
            "enable-v2": "true",
            "pre-vote": "true",  # a member that comes back starts no election
            "heartbeat-interval": "200",
            "election-timeout": "2000",
            "logger": "zap",
            "log-level": "error",
        }
        self._start(node, "etcd", ["etcd", *(f"--{name}={of}" for name, of in options.items())])

    def _start_patroni(self, node: Node) -> None:
        settings = node.home / "patroni.yml"
        settings.write_text(json.dumps(self._patroni(node), indent=1))  # JSON is YAML
        self._start(node, "patroni", ["patroni", settings])

    def _patroni(self, node: Node) -> dict[str, Any]:
        parameters = {
            "wal_log_hints": "on",
            "max_connections": 200,
            "shared_buffers": "32MB",
            "max_wal_size": "64MB",
            "min_wal_size": "4MB",
            "wal_keep_size": "64MB",
            "wal_sender_timeout": "4s",
            "wal_receiver_timeout": "4s",
            "wal_receiver_status_interval": "1s",
            "timezone": "UTC",
        }
        dynamic = {
            **TIMINGS,
            "maximum_lag_on_failover": 1_048_576,
            "primary_start_timeout": 0,
            "synchronous_mode": False,
            "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": parameters},
        }
        return {
            "scope": "perdure",
            "name": node.name,
            "restapi": {
                "listen": f"0.0.0.0:{REST}",
                "connect_address": f"{node.peer}:{REST}",
            },
            "etcd": {"hosts": [f"{one.peer}:2379" for one in self.nodes]},  # its v2 API
            "bootstrap": {
                "dcs": dynamic,
                "initdb": [
                    {"encoding": "UTF8"},
                    {"locale": "C"},
                    {"auth": "trust"},
                    {"wal-segsize": "1"},
                    "no-sync",
                ],
                "pg_hba": [
                    "local all all trust",
                    "host all all 127.0.0.1/32 trust",
                    "host all all 10.77.0.0/16 trust",
                    "host replication all 10.77.0.0/16 trust",
                ],
            },
            "postgresql": {
                "listen": f"0.0.0.0:{POSTGRES}",
                "connect_address": f"{node.peer}:{POSTGRES}",
                "data_dir": str(node.home / "data"),
                "bin_dir": str(self._programs),
                "pgpass": str(node.home / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres", "password": "unused"},
                    "replication": {"username": "postgres", "password": "unused"},
                },
                "parameters": {"unix_socket_directories": ""},
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
            "watchdog": {"mode": "off"},  # it would restart this machine
        }

    def _start_haproxy(self) -> subprocess.Popen[bytes]:
        home = self._home / "haproxy"
        self._directory(home)
        lines = ["global", "  maxconn 1000", "defaults", "  mode tcp", "  timeout connect 2s"]
        lines += ["  timeout check 2s", "  timeout client 1h", "  timeout server 1h"]
        lines += ["listen direct", f"  bind 127.0.0.1:{HAPROXY}"]
        lines += ["  option httpchk GET /primary", "  http-check expect status 200"]
        checks = f"check port {REST} inter 1s fastinter 500ms fall 2 rise 1"
        for node in self.nodes:
            server = f"  server {node.name} {node.address}:{POSTGRES} {checks}"
            lines += [f"{server} on-marked-down shutdown-sessions"]
        (home / "haproxy.cfg").write_text("\n".join(lines) + "\n")
        return self._launch(home, "haproxy", ["haproxy", "-db", "-f", home / "haproxy.cfg"])

    def _start_pgbouncer(self) -> subprocess.Popen[bytes]:
        home = self._home / "pgbouncer"
        self._directory(home)
        settings = {
            "listen_addr": "0.0.0.0",
            "listen_port": POOLED,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "session",
            "default_pool_size": 100,
            "max_client_conn": 500,
            "server_login_retry": 1,
            "server_check_delay": 0,
            "log_connections": 0,
            "log_disconnections": 0,
        }
        lines = ["[databases]", f"* = host=127.0.0.1 port={HAPROXY} user=postgres", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        file = home / "pgbouncer.ini"
        file.write_text("\n".join(lines) + "\n")
        return self._launch(home, "pgbouncer", ["pgbouncer", file])


def until(
    met: Callable[[], object], seconds: float, otherwise: Callable[[], str] = lambda: "too late"
) -> None:
    """Wait for a condition. Raises `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while not met():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise())
        time.sleep(0.3)


def _newest(members: list[dict[str, Any]]) -> int:
    return max((int(member.get("timeline") or 0) for member in members), default=0)


def _command(name: str) -> str | None:
    if name == "postgres" and (programs := _postgres_programs()):
        return str(programs / name)
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _postgres_programs() -> Path | None:
    from perdure.testing.postgres import installations

    return next((one for one in installations() if (one / "pg_rewind").exists()), None)


def _within(node: Node) -> tuple[str, ...]:
    assert node.namespace is not None
    return "nsenter", f"--net=/proc/{node.namespace.pid}/ns/net"


def _link(bridge: str, node: Node) -> str:
    return f"{bridge}-{node.name[-1]}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
