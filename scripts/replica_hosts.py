"""Three gateways, a store with a standby and a load balancer, each on a host of its own: a network namespace on one bridge.

Used by `scripts/replicas`. Everything runs below one process that is the first of its own process namespace, so that nothing
outlives it and nothing of the machine's network changes.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

NETWORK = "10.78.0"
# The host of the balancer, the clients and the remote servers.
HERE = f"{NETWORK}.254"
GATEWAY_PORT, BALANCER_PORT, REMOTE_PORT, STORE_PORT, SENTINEL_PORT = 7717, 8080, 7718, 6379, 26379
REPLICAS = 3
# Calls that the caller `metered` may make within an hour.
QUOTA = 1000
STDIO_SERVERS, REMOTE_SERVERS = ["s0", "s1", "s2"], ["h0", "h1", "h2"]
TOKENS = {name: f"token-of-{name}-0123456789" for name in ("plain", "metered", "remote")}


def enter_namespaces():
    """Runs this script again in namespaces of its own, once."""
    if os.environ.get("REPLICA_NAMESPACES"):
        return
    if subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode:
        sys.exit("cannot create namespaces: run it as root, or allow them to this user")
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv]
    sys.exit(subprocess.run(command, env=os.environ | {"REPLICA_NAMESPACES": "1"}).returncode)


def run(*words):
    subprocess.run(words, check=True)


def wait_for(what, condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"waited {seconds} s for {what}")
        time.sleep(0.02)


def accepts(address, port):
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False


def cpu_seconds(process):
    """Returns the CPU time of a process, without its children."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Host:
    """A network namespace with one address on the bridge."""

    def __init__(self, number):
        self.address = f"{NETWORK}.{number}"
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        own, pid = os.readlink("/proc/self/ns/net"), self.holder.pid
        wait_for("a namespace", lambda: os.readlink(f"/proc/{pid}/ns/net") != own)
        run("ip", "link", "add", f"h{number}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        run("ip", "link", "set", f"h{number}", "master", "bridge0", "up")
        for words in (["link", "set", "lo", "up"], ["address", "add", f"{self.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            run(*self.inside("ip", *words))

    def inside(self, *words):
        return ["nsenter", "-t", str(self.holder.pid), "--net", *words]

    def cut(self, other):
        """Drops everything that this host sends to another one."""
        run(*self.inside("ip", "route", "add", "blackhole", f"{other.address}/32"))

    def mend(self, other):
        run(*self.inside("ip", "route", "del", "blackhole", f"{other.address}/32"))


class Program:
    """A program that is started again with the same command."""

    def __init__(self, command, log, env=None):
        self.command, self.log, self.env, self.process = command, log, env, None

    def start(self):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def start_bridge():
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "bridge0", "type", "bridge")
    run("ip", "address", "add", f"{HERE}/24", "dev", "bridge0")
    run("ip", "link", "set", "bridge0", "up")


class Store:
    """A primary and a standby of Valkey or Redis, and three sentinels."""

    def __init__(self, folder):
        self.program = shutil.which("valkey-server") or shutil.which("redis-server")
        if not self.program:
            sys.exit("install valkey-server or redis-server")
        self.hosts = [Host(11), Host(12)]
        self.nodes, self.sentinels = [], []
        for number, host in enumerate(self.hosts):
            data = folder / f"store{number}"
            data.mkdir()
            # A file, so that the sentinels can record there which node is the primary.
            config = folder / f"store{number}.conf"
            standby = f"replicaof {self.hosts[0].address} {STORE_PORT}\n" if number else ""
            config.write_text(
                f'port {STORE_PORT}\nprotected-mode no\ndir {data}\nsave ""\nappendonly yes\nappendfsync everysec\n'
                f"repl-diskless-sync-delay 0\n{standby}"
            )
            self.nodes.append(Program(host.inside(self.program, str(config)), folder / f"store{number}.log"))
        for number, host in enumerate([*self.hosts, None]):
            config = folder / f"sentinel{number}.conf"
            config.write_text(
                f"port {SENTINEL_PORT}\nprotected-mode no\nsentinel monitor main {self.hosts[0].address} {STORE_PORT} 2\n"
                "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 3000\n"
            )
            command = [self.program, str(config), "--sentinel"]
            self.sentinels.append(Program(host.inside(*command) if host else command, folder / f"sentinel{number}.log"))

    def start(self):
        for program in self.nodes:
            program.start()
        for host in self.hosts:
            wait_for("the store", lambda: accepts(host.address, STORE_PORT))
        wait_for("the standby", lambda: "master_link_status:up" in self.ask(self.hosts[1].address, "INFO", "replication"))
        for program in self.sentinels:
            program.start()
        sentinels = lambda: self.ask(HERE, "INFO", "sentinel", port=SENTINEL_PORT)
        wait_for("the sentinels", lambda: "slaves=1,sentinels=3" in sentinels())

    def ask(self, address, *words, port=STORE_PORT):
        """Sends one command and returns the bulk reply as text."""
        request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        try:
            with socket.create_connection((address, port), timeout=2) as connection:
                connection.sendall(request.encode())
                reply = connection.makefile("rb")
                head = reply.readline()
                return reply.read(int(head[1:])).decode() if head.startswith(b"$") else head.decode()
        except (OSError, ValueError):
            return ""

    def commands(self):
        """Returns how many commands clients have sent to the first node, without those that check the connection."""
        stats = re.findall(r"cmdstat_([a-z|]+):calls=(\d+)", self.ask(self.hosts[0].address, "INFO", "commandstats"))
        return sum(int(calls) for name, calls in stats if name in ("evalsha", "get", "publish"))

    def primary(self):
        for number, host in enumerate(self.hosts):
            if "role:master" in self.ask(host.address, "INFO", "replication"):
                return number
        return None

    def url(self):
        sentinels = ",".join(f"{address}:{SENTINEL_PORT}" for address in (*(host.address for host in self.hosts), HERE))
        return f"valkey-sentinel://{sentinels}/main"


class Lab:
    """Everything that runs."""

    def __init__(self, toolcrib, fake_server, folder):
        self.toolcrib, self.fake_server, self.folder = toolcrib, fake_server, pathlib.Path(folder)
        start_bridge()
        self.store = Store(self.folder)
        self.replicas = [Host(number) for number in range(1, REPLICAS + 1)]
        self.gateways = [self.gateway(number, host) for number, host in enumerate(self.replicas)]
        self.remote = self.remote_gateway()
        self.balancer = self.load_balancer()

    def start(self):
        self.store.start()
        self.remote.start()
        wait_for("the remote servers", lambda: accepts(HERE, REMOTE_PORT))
        for number in range(REPLICAS):
            self.start_gateway(number)
        self.balancer.start()
        wait_for("the balancer", lambda: accepts(HERE, BALANCER_PORT))

    def stop(self):
        """Stops the gateways in an orderly way. Returns how many did not exit with status 0."""
        gateways = [*self.gateways, self.remote]
        for gateway in gateways:
            gateway.process.terminate()
        return sum(gateway.process.wait(30) != 0 for gateway in gateways)

    def costs(self):
        """Returns the seconds of CPU that the gateways and the first node of the store have used, and the commands of the store."""
        gateways = sum(cpu_seconds(gateway.process.pid) for gateway in self.gateways)
        return {"gateways": gateways, "store": cpu_seconds(self.store.nodes[0].process.pid), "commands": self.store.commands()}

    def start_gateway(self, number):
        self.gateways[number].start()
        wait_for("a gateway", lambda: accepts(self.replicas[number].address, GATEWAY_PORT))

    def records(self, server):
        folder = self.folder / "records" / server
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def stdio_server(self, name, era):
        args = json.dumps(["--record-dir", str(self.records(name)), "--era", era])
        return f"[servers.{name}]\ncommand = {json.dumps(self.fake_server)}\nargs = {args}\n"

    def home(self, name, config):
        home = self.folder / name
        home.mkdir()
        (home / "config.toml").write_text(config)
        return os.environ | {"TOOLCRIB_HOME": str(home), "STORE_KEY": "0123456789abcdef" * 4}

    def gateway(self, number, host):
        quota = f'quota = {{ calls = {QUOTA}, per = "1h" }}\n'
        callers = "".join(
            f'[callers.{name}]\ntoken = "{token}"\n{quota if name == "metered" else ""}'
            for name, token in TOKENS.items() if name != "remote"
        )
        store = f'[store]\nurl = "{self.store.url()}"\naddress = "http://{host.address}:{GATEWAY_PORT}"\nkey = "${{env:STORE_KEY}}"\n'
        servers = "".join(
            self.stdio_server(name, ["session", "stateless", "both"][place]) for place, name in enumerate(STDIO_SERVERS)
        ) + "".join(
            f'[servers.{name}]\nurl = "http://{HERE}:{REMOTE_PORT}/mcp/s/{name}"\n'
            f'headers = {{ Authorization = "Bearer {TOKENS["remote"]}" }}\n' for name in REMOTE_SERVERS
        )
        lifecycle = '[defaults.lifecycle]\nbackoff = { first = "5ms", most = "100ms" }\n'
        listen = f'[listen]\nhosts = ["{HERE}"]\ntrusted-proxies = ["{HERE}"]\n'
        config = f"{listen}{store}{lifecycle}{callers}{servers}"
        command = [self.toolcrib, "serve", "--listen", f"{host.address}:{GATEWAY_PORT}"]
        return Program(host.inside(*command), self.folder / f"gateway{number}.log", self.home(f"replica{number}", config))

    def remote_gateway(self):
        servers = "".join(self.stdio_server(name, "both") for name in REMOTE_SERVERS)
        config = f'[callers.remote]\ntoken = "{TOKENS["remote"]}"\n{servers}'
        command = [self.toolcrib, "serve", "--listen", f"{HERE}:{REMOTE_PORT}"]
        return Program(command, self.folder / "remote.log", self.home("remote", config))

    def load_balancer(self):
        haproxy = shutil.which("haproxy") or "/usr/sbin/haproxy"
        if not os.path.exists(haproxy):
            sys.exit("install haproxy")
        servers = "".join(
            f"    server r{number} {host.address}:{GATEWAY_PORT} check inter 500ms fall 2 rise 1\n"
            for number, host in enumerate(self.replicas)
        )
        config = self.folder / "haproxy.cfg"
        # A request is sent again only if the connection could not be opened.
        config.write_text(
            "global\n    maxconn 4000\n    nbthread 1\n"
            "defaults\n    mode http\n    timeout connect 1s\n    timeout client 60s\n    timeout server 60s\n"
            "    retries 3\n    option redispatch 1\n    retry-on conn-failure\n"
            f"frontend clients\n    bind {HERE}:{BALANCER_PORT}\n    default_backend replicas\n"
            "backend replicas\n    balance roundrobin\n    option httpchk GET /readyz\n"
            f"    http-check send hdr Host {HERE}\n" + servers
        )
        return Program([haproxy, "-db", "-f", str(config)], self.folder / "haproxy.log")


def executions(folder):
    """Returns how often each token was executed, over all processes of all servers."""
    counts = {}
    for file in (pathlib.Path(folder) / "records").glob("*/*"):
        for line in file.read_text().splitlines():
            counts[line] = counts.get(line, 0) + 1
    return counts
