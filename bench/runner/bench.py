"""The run itself: which targets take part, what was measured so far, and the interleaved rounds."""

import json
import os
import sys
import time
import tomllib
from pathlib import Path

from .instance import Instance
from .machine import machine
from .template import fill

# name, mcp-load mode, its options, calls, seconds at most
ONE_SERVER = [
    ("c1", "call", ["-c", "1"], 20000, 3),
    ("c16", "call", ["-c", "16"], 30000, 3),
    ("c64", "call", ["-c", "64"], 30000, 3),
    ("10k", "call", ["-c", "1", "--kind", "blob", "--size", "10240"], 5000, 2),
    ("1m", "call", ["-c", "1", "--kind", "blob", "--size", "1048576"], 400, 3),
]
TEN_SERVERS = [
    ("list", "list", [], 400, 4),
    ("fanout", "fanout", ["-c", "16"], 10000, 3),
]


class Bench:
    def __init__(self, args, paths):
        self.args, self.paths = args, paths
        self.out = Path(args.out)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.instances = []
        self.results = {
            "started": time.strftime("%Y-%m-%d %H:%M:%S"),
            "options": {name: getattr(args, name) for name in ("rounds", "scale", "quick", "phases")},
            "machine": machine(paths["root"]),
            "targets": {},
            "rounds": [],
            "load1": [os.getloadavg()[0]],
            "events": [],
        }
        self.targets = self.pick_targets(tomllib.loads(Path(args.config).read_text())["target"])
        for target in self.targets:
            about = {"name": target["name"], "notes": target.get("notes", "")}
            self.results["targets"][target["key"]] = about

    def pick_targets(self, declared):
        """The targets that were asked for and are installed."""
        only = self.args.only.split(",") if self.args.only else []
        skip = self.args.skip.split(",") if self.args.skip else []
        picked = []
        for target in declared:
            key = target["key"]
            if (only and key not in only and not target.get("always")) or key in skip:
                continue
            needed = [fill(path, self.paths) for path in target.get("needs", [])]
            if all(path and os.path.exists(path) for path in needed):
                picked.append(target)
            else:
                self.log(f"{key}: left out, not installed")
        return picked

    def target(self, key):
        return next((target for target in self.targets if target["key"] == key), None)

    def log(self, message):
        print(f"[{time.strftime('%H:%M:%S')}] {message}", file=sys.stderr, flush=True)
        self.results["events"].append(message)

    def save(self):
        # A run that is cut short must leave whole results behind.
        new = self.out.with_suffix(".new")
        new.write_text(json.dumps(self.results, indent=1))
        new.replace(self.out)

    def put(self, key, name, value):
        self.results["targets"][key][name] = value
        self.save()

    def instance(self, target, shape):
        instance = Instance(target, shape, self.paths, self.log)
        self.instances.append(instance)
        return instance

    def start_all(self, shape, untouched=None):
        """Starts every target that has this shape; `untouched` is called on each before its first call."""
        started = []
        for target in self.targets:
            if shape not in target:
                continue
            instance = self.instance(target, shape)
            up = instance.launch()
            if up and untouched and not instance.speaks_stdio:
                instance.settle()
                untouched(instance)
            if up and (instance.speaks_stdio or instance.answers()):
                started.append(instance)
                instance.log("up")
            else:
                self.put(instance.key, f"{shape}_failed", True)
                instance.stop()
        return started

    def measure(self, instance, mode, args, patience):
        """One mcp-load run, with the CPU that the gateway's own processes used for it."""
        if not instance.alive():
            instance.log("died, restarting")
            instance.stop()
            instance.restarts += 1
            if not instance.start():
                return {"failed": "did not restart"}
        pids = instance.gateway_pids()
        if pids:
            args = ["--cpu-of", ",".join(map(str, pids)), *args]
        result = instance.load(mode, args, patience)
        if pids and result.get("calls"):
            result["cpu_s_per_10k"] = result["watched_cpu_s"] / result["calls"] * 1e4
        self.results["load1"].append(os.getloadavg()[0])
        return result

    def scaled(self, options, calls, seconds, warmup):
        scale = self.args.scale
        limits = ["-n", str(max(1, int(calls * scale))), "--max-seconds", str(seconds * max(scale, 0.2))]
        return [*options, *limits, "--warmup", str(warmup)]

    def rounds(self, instances, scenarios, label):
        """Scenario by scenario, every target in turn, beginning with another one each round."""
        for number in range(self.args.rounds):
            record = {"shape": label, "round": number, "data": {}}
            self.results["rounds"].append(record)
            for name, mode, options, calls, seconds in scenarios:
                turn = number % max(1, len(instances))
                for instance in instances[turn:] + instances[:turn]:
                    if instance.target.get(f"no_{mode}"):
                        continue
                    args = self.scaled(options, calls, seconds, warmup=1 if mode == "list" else 16)
                    result = self.measure(instance, mode, args + instance.spec.get(mode, []), 120)
                    record["data"].setdefault(instance.key, {})[name] = result
                    if result.get("failed") or result.get("errors") or result.get("mismatches"):
                        instance.log(f"{name}: {brief(result)}")
                self.save()
            self.log(f"{label}: round {number + 1} of {self.args.rounds} done")

    def close(self):
        """Ends everything that still runs, also after a failure."""
        for instance in self.instances:
            instance.stop()
        self.results["finished"] = time.strftime("%Y-%m-%d %H:%M:%S")
        self.save()


def brief(result):
    keys = ("failed", "error", "calls", "ok", "errors", "mismatches", "samples", "tools", "seconds")
    return {key: result[key] for key in keys if key in result}
