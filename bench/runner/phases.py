"""What is measured, phase by phase. Each phase takes the run and adds to its results."""

import subprocess
import time

from .bench import ONE_SERVER, TEN_SERVERS, brief
from .instance import last_json
from .processes import wait_until

# How long an idle gateway is watched for the CPU it uses without requests.
IDLE_SECONDS = 5
SESSIONS_SECONDS = 120


def one_server(bench, phases):
    """`one`, `soak` and `sessions`: they share the gateways in front of a single server."""
    instances = bench.start_all("one")
    watch_idle(bench, instances)
    if "one" in phases:
        bench.rounds(instances, ONE_SERVER, "one")
    over_http = [instance for instance in instances if not instance.speaks_stdio]
    if "soak" in phases:
        for instance in over_http:
            soak(bench, instance)
    if "sessions" in phases:
        for instance in over_http:
            if not instance.target.get("no_sessions"):
                bench.put(instance.key, "sessions", hold_sessions(bench, instance))
    for instance in instances:
        bench.put(instance.key, "restarts", instance.restarts)
        instance.stop()


def watch_idle(bench, instances):
    for instance in instances:
        instance.settle()
        bench.put(instance.key, "idle", instance.memory())
    before = {instance.key: instance.cpu() for instance in instances}
    time.sleep(IDLE_SECONDS)  # the time over which idleness is observed
    for instance in instances:
        used = instance.cpu() - before[instance.key]
        bench.put(instance.key, "idle_cpu_percent", used / IDLE_SECONDS * 100)


def soak(bench, instance):
    """Makes many concurrent calls for a while, then measures the memory."""
    seconds = bench.args.soak_seconds
    args = ["-c", "16", "-n", str(bench.args.soak_calls), "--max-seconds", str(seconds), "--warmup", "0"]
    result = bench.measure(instance, "call", args, seconds + 60)
    result["memory_after"] = instance.memory()
    bench.put(instance.key, "soak", result)
    instance.log(f"soak: {brief(result)}")


def hold_sessions(bench, instance):
    """Opens sessions while watching the memory and the processes they cost."""
    if not instance.alive():
        return {"failed": "not alive"}
    before = instance.memory()
    peak = {"bytes": total(before), "servers": before["server_count"]}
    command = instance.load_command("sessions", ["-k", str(bench.args.sessions), "--hold-s", "2"])
    load = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=instance.dir
    )

    def ended():
        memory = instance.memory()
        peak["bytes"] = max(peak["bytes"], total(memory))
        peak["servers"] = max(peak["servers"], memory["server_count"])
        return load.poll() is not None

    if not wait_until(ended, SESSIONS_SECONDS, every=0.1):
        load.kill()
    result = last_json(load.communicate()[0])
    result.update(bytes_before=total(before), bytes_peak=peak["bytes"], servers_peak=peak["servers"])
    instance.log(f"sessions: {brief(result)}")
    return result


def total(memory):
    return memory["own"] + memory["helpers"] + memory["servers"]


def ten_servers(bench):
    """`ten`: listing and fan-out over ten servers, and the gateway's memory before and after."""
    untouched = lambda instance: bench.put(instance.key, "ten_untouched", instance.memory())
    instances = bench.start_all("ten", untouched)
    for instance in instances:
        # Servers may start on demand: "idle with ten servers" needs one call to each first.
        args = ["-n", "10", "--warmup", "0", *instance.spec.get("fanout", [])]
        first = instance.load("fanout", args, 120)
        if first.get("ok") != 10:
            instance.log(f"one call to each server: {brief(first)}")
        bench.put(instance.key, "ten_first_calls", first)
        instance.settle()
        bench.put(instance.key, "ten_idle", instance.memory())
    bench.rounds(instances, TEN_SERVERS, "ten")
    for instance in instances:
        instance.stop()


def startup(bench):
    """`startup`: from a cold start to all tools listed and the first call, with ten servers."""
    for number in range(bench.args.startup_rounds):
        record = {"shape": "startup", "round": number, "data": {}}
        bench.results["rounds"].append(record)
        for target in bench.targets:
            if "ten" not in target or target.get("no_startup"):
                continue
            instance = bench.instance(target, "ten")
            instance.prepare()
            result = instance.load("startup", ["--expect", "1000", "--timeout-s", "20"], 120)
            record["data"].setdefault(instance.key, {})["startup"] = result
            if not result.get("ok"):
                instance.log(f"startup: {brief(result)}")
            bench.save()
        bench.log(f"startup: round {number + 1} of {bench.args.startup_rounds} done")


def probe(bench):
    """`probe`: behaviour; kills the server behind the gateway, so every target gets a new instance."""
    for target in bench.targets:
        if target.get("no_probe"):
            continue
        instance = bench.instance(target, "one")
        if instance.start():
            bench.put(instance.key, "probe", instance.load("probe", [], 150))
            instance.log("probe: done")
        instance.stop()
