"""One gateway in one shape, running in front of echo servers."""

import json
import os
import shutil
import subprocess

from .processes import (
    cpu_seconds,
    end_tree,
    free_port,
    own_share_bytes,
    owns_port,
    resident_bytes,
    tree,
    wait_until,
    wait_until_quiet,
)
from .template import fill

# How many servers there are behind the gateway in each shape, and how many tools each has.
SHAPES = {"one": (1, 5), "ten": (10, 100)}
READY_SECONDS = 90
CALLING_MODES = ("call", "fanout", "sessions", "probe", "startup")


class Instance:
    """A target in a shape. Nothing runs until `launch` or `start`."""

    def __init__(self, target, shape, paths, log):
        self.target, self.shape, self.paths = target, shape, paths
        self.key = target["key"]
        self.label = f"{self.key}/{shape}"
        self.spec = target[shape]
        self.servers, self.tools = SHAPES[shape]
        self.dir = paths["scratch"] / self.key / shape
        self.speaks_stdio = "url" not in self.spec
        self.prefix = []  # put before the command: a program that runs it
        self.log = lambda message: log(f"{self.label}: {message}")
        self.process = None
        self.helpers = []
        self.restarts = 0
        self.values = {}

    def setting(self, name, default):
        """A setting of this shape, else of the target."""
        return self.spec.get(name, self.target.get(name, default))

    def fill(self, text, **extra):
        return fill(text, {**self.values, **extra})

    def prepare(self):
        """New ports, a clean directory, the files the command needs."""
        shutil.rmtree(self.dir, ignore_errors=True)
        self.dir.mkdir(parents=True)
        self.values = {
            **self.paths,
            "port": free_port(),
            "port2": free_port(),
            "dir": self.dir,
            "tools": self.tools,
            "servers": self.servers,
        }
        each = self.target.get("each", "")
        parts = [self.fill(each, id=f"s{number}") for number in range(self.servers)]
        self.values["each"] = self.target.get("each_sep", ",").join(parts)
        for name, text in {**self.target.get("files", {}), **self.spec.get("files", {})}.items():
            path = self.dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.fill(text))

    def command(self):
        return [*self.prefix, *(self.fill(part) for part in self.spec["cmd"])]

    def environment(self):
        own = {**self.target.get("env", {}), **self.spec.get("env", {})}
        return {**os.environ, **{name: self.fill(value) for name, value in own.items()}}

    def load_args(self, mode):
        """mcp-load options that reach this instance."""
        args = [] if self.speaks_stdio else ["--url", self.fill(self.spec["url"])]
        args += [self.fill(arg) for arg in self.setting("load", [])]
        if mode in CALLING_MODES:
            args += [self.fill(arg) for arg in self.setting("call", [])]
        return args

    def launch(self):
        """Starts the gateway; whether it listens, without having been asked anything."""
        self.prepare()
        if self.speaks_stdio:
            return True
        with open(self.dir / "log.txt", "ab") as log:
            for helper in self.setting("helpers", []):
                command = [self.fill(part) for part in helper["cmd"]]
                self.helpers.append(spawn(command, self.dir, os.environ, log))
            self.process = spawn(self.command(), self.dir, self.environment(), log)
        ended = lambda: self.process.poll() is not None
        listens = lambda: owns_port([p.pid for p in tree(self.process.pid)], self.values["port"])
        if not wait_until(lambda: ended() or listens(), READY_SECONDS):
            self.log("never listened on its port")
            return False
        if ended():
            self.log(f"exited {self.process.returncode} at start, see {self.dir}/log.txt")
            return False
        return self.set_up()

    def set_up(self):
        """Runs the target's setup command, if it has one."""
        setup = self.setting("setup", None)
        if not setup:
            return True
        command = [self.fill(part) for part in setup]
        done = subprocess.run(command, cwd=self.dir, env=self.environment(), capture_output=True, text=True)
        (self.dir / "setup.txt").write_text(done.stdout + done.stderr)
        if done.returncode:
            self.log(f"setup failed: {(done.stdout + done.stderr)[-300:]}")
        return done.returncode == 0

    def answers(self):
        """Waits until one call is answered correctly; whether it was."""
        last = {}

        def answered():
            last.update(self.load("call", ["-n", "1", "--warmup", "0", "--timeout-s", "10"], 30))
            return last.get("ok") == 1

        if wait_until(answered, READY_SECONDS, every=0.3):
            return True
        self.log(f"never answered a call: {last}")
        return False

    def start(self):
        return self.launch() and (self.speaks_stdio or self.answers())

    def alive(self):
        return self.speaks_stdio or (self.process is not None and self.process.poll() is None)

    def stop(self, patience=10):
        for process in [self.process, *self.helpers]:
            if process is not None:
                end_tree(process, patience)
        self.process, self.helpers = None, []

    def split(self):
        """(the gateway's processes, the echo servers behind it)"""
        members = tree(self.process.pid) if self.process else []
        if self.target.get("is_floor"):
            return members, []
        servers = [member for member in members if member.name in ("echo-server", "echo-http")]
        return [member for member in members if member not in servers], servers

    def gateway_pids(self):
        return [process.pid for process in self.split()[0]]

    def cpu(self):
        """CPU seconds of the gateway's own processes."""
        return sum(map(cpu_seconds, self.gateway_pids()))

    def settle(self):
        wait_until_quiet(self.gateway_pids())

    def memory(self):
        """Bytes: resident of the started process itself; of its helpers, which share most with it, what each adds; resident
        of the echo servers."""
        gateway, servers = self.split()
        helpers = [process.pid for process in gateway if process.pid != self.process.pid]
        return {
            "own": resident_bytes(self.process.pid) if self.process else 0,
            "helpers": sum(map(own_share_bytes, helpers)),
            "helper_count": len(helpers),
            "servers": sum(resident_bytes(server.pid) for server in servers),
            "server_count": len(servers),
        }

    def load_command(self, mode, args):
        tail = ["--", *self.command()] if self.speaks_stdio or mode == "startup" else []
        words = [self.paths["bin"] / "mcp-load", mode, *self.load_args(mode), *args, *tail]
        return [str(word) for word in words]

    def load(self, mode, args, patience):
        """Runs mcp-load against this instance."""
        return run_json(self.load_command(mode, args), patience, self.dir, self.environment())


def spawn(command, cwd, env, log):
    """A child in a session of its own, so that everything it starts can be found and ended."""
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )


def run_json(command, patience, cwd, env=None, before=None):
    """The last line a program printed, as JSON. `before` runs in the new process, before the program."""
    options = {"capture_output": True, "text": True, "cwd": cwd, "env": env, "preexec_fn": before}
    try:
        done = subprocess.run(command, timeout=patience, **options)
    except subprocess.TimeoutExpired:
        return {"failed": f"ran past {patience} s"}
    return last_json(done.stdout, done.stderr)


def last_json(stdout, stderr=""):
    try:
        return json.loads(stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"failed": f"said: {stdout[-200:]} {stderr[-200:]}"}
