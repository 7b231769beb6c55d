"""The comparison tables, one function each."""

from .figures import MISSING, cell, fmt, median, mib, ratios, scaled, series, spread, table
from .flat import LOADS, MOST

STDIO_FLOOR, HTTP_FLOOR = "stdio-floor", "http-floor"


class View:
    """Results as the tables ask for them."""

    def __init__(self, results):
        self.results = results
        self.targets = results["targets"]

    def name(self, key):
        return self.targets[key]["name"]

    def series(self, key, scenario, field, shape="one"):
        return series(self.results, shape, key, scenario, field)

    def median(self, key, scenario, field, shape="one"):
        return median(self.series(key, scenario, field, shape))

    def over(self, key, floor, scenario, field, shape="one"):
        """The target's value over the floor's, round by round."""
        return ratios(self.series(key, scenario, field, shape), self.series(floor, scenario, field, shape))

    def gateways(self):
        """All targets with processes of their own."""
        return [key for key in self.targets if key != STDIO_FLOOR]


def all_tables(results):
    view = View(results)
    parts = (latency, latency_ratios, cpu, memory, ten_servers, flat_cost, behaviour)
    return [text for part in parts for text in part(view)]


def latency(view):
    def row(key):
        return [
            view.name(key),
            fmt(view.median(key, "c1", "p50_us"), 0),
            fmt(view.median(key, "c1", "p99_us"), 0),
            fmt(view.median(key, "c16", "calls_per_s"), 0),
            fmt(scaled(view.median(key, "c16", "p99_us"), 1e-3)),
            fmt(view.median(key, "c64", "calls_per_s"), 0),
            fmt(scaled(view.median(key, "c64", "p99_us"), 1e-3)),
            fmt(view.median(key, "10k", "p50_us"), 0),
            fmt(scaled(view.median(key, "1m", "p50_us"), 1e-3)),
        ]

    header = ["gateway", "c=1 p50 µs", "c=1 p99 µs", "c=16 calls/s", "c=16 p99 ms"]
    header += ["c=64 calls/s", "c=64 p99 ms", "10 KB p50 µs", "1 MB p50 ms"]
    return table("One server: latency and throughput (medians over rounds)", header, map(row, view.targets))


def latency_ratios(view):
    def row(key):
        over = lambda scenario, field: spread(view.over(key, STDIO_FLOOR, scenario, field))
        speed = lambda whose, scenario: view.series(whose, scenario, "calls_per_s")
        slower = lambda scenario: spread(ratios(speed(STDIO_FLOOR, scenario), speed(key, scenario)))
        return [
            view.name(key),
            over("c1", "p50_us"),
            over("c1", "p99_us"),
            slower("c16"),
            slower("c64"),
            over("10k", "p50_us"),
            over("1m", "p50_us"),
        ]

    header = ["gateway", "c=1 p50 ×", "c=1 p99 ×", "c=16 throughput 1/×", "c=64 throughput 1/×"]
    header += ["10 KB p50 ×", "1 MB p50 ×"]
    title = "One server: ratio to the direct-stdio floor, per round: median (range)"
    return table(title, header, map(row, view.targets))


def cpu(view):
    def row(key):
        scenarios = ("c1", "c16", "c64", "10k", "1m")
        seconds = [fmt(view.median(key, scenario, "cpu_s_per_10k"), 2) for scenario in scenarios]
        return [
            view.name(key),
            *seconds,
            spread(view.over(key, HTTP_FLOOR, "c16", "cpu_s_per_10k"), 2),
            spread(view.over(key, HTTP_FLOOR, "1m", "cpu_s_per_10k"), 2),
            fmt(view.targets[key].get("idle_cpu_percent"), 2),
        ]

    header = ["gateway", "c=1", "c=16", "c=64", "10 KB", "1 MB"]
    header += ["c=16 × HTTP floor", "1 MB × HTTP floor", "idle CPU %"]
    title = "CPU of the gateway's processes alone, seconds per 10,000 calls (echo servers not counted)"
    return table(title, header, map(row, view.gateways()))


def memory(view):
    def row(key):
        target = view.targets[key]
        soak, held = target.get("soak", {}), target.get("sessions", {})
        opened = f"{held.get('ok', 0)}/{held.get('asked', '?')}" if held else MISSING
        return [
            view.name(key),
            mib(own(target.get("idle"))),
            mib(own(soak.get("memory_after"))),
            fmt(soak.get("calls"), 0),
            fmt(soak.get("calls_per_s"), 0),
            fmt(soak.get("cpu_s_per_10k"), 2),
            fmt(soak.get("errors"), 0),
            mib(own(target.get("ten_untouched"))),
            mib(own(target.get("ten_idle"))),
            opened,
            fmt(scaled(per_session(held), 2**-20), 2),
            fmt(held.get("servers_peak"), 0),
        ]

    header = ["gateway", "idle, 1 server", "after soak", "soak calls", "soak calls/s", "soak CPU s/10k"]
    header += ["soak errors", "10 servers, never called", "10 servers, each called"]
    header += ["sessions ok", "MiB per session", "peak server processes"]
    title = "Memory of the gateway's processes alone, MiB; soak at c=16"
    return table(title, header, map(row, view.gateways()))


def own(memory):
    """Everything that belongs to the gateway, helpers included."""
    return memory["own"] + memory["helpers"] if memory else None


def per_session(held):
    if "bytes_peak" not in held:
        return None
    return (held["bytes_peak"] - held["bytes_before"]) / max(1, held.get("ok", 0))


def ten_servers(view):
    def row(key):
        start = lambda step: fmt(view.median(key, "startup", step, "startup"), 0)
        return [
            view.name(key),
            fmt(scaled(view.median(key, "list", "p50_us", "ten"), 1e-3)),
            fmt(view.median(key, "list", "tools", "ten"), 0),
            fmt(scaled(view.median(key, "list", "cpu_s_per_10k", "ten"), 0.1), 2),
            fmt(view.median(key, "fanout", "calls_per_s", "ten"), 0),
            fmt(view.median(key, "fanout", "cpu_s_per_10k", "ten"), 2),
            start("all_tools_ms"),
            start("first_call_ms"),
        ]

    header = ["gateway", "tools/list p50 ms", "tools seen", "list CPU ms", "fan-out c=16 calls/s"]
    header += ["fan-out CPU s/10k", "start → all tools ms", "start → first call ms"]
    return table("Ten servers, 100 tools each", header, map(row, view.targets))


def flat_cost(view):
    counted = view.results.get("flat", {})
    base = counted.get("base")

    def row(name):
        less, more = (f"{getattr(LOADS[key], name):,}" for key in ("base", name))
        if not base or not counted.get(name):
            return [name, MISSING, MISSING, MISSING, MISSING]
        cost = counted[name] / base
        met = "yes" if cost <= MOST else "**no**"
        return [f"{name}: {less} → {more}", f"{fmt(base, 0)} → {fmt(counted[name], 0)}", f"{cost:.3f}", f"≤ {MOST}", met]

    header = ["what a call does not touch", "instructions per call", "×", "bound", "met"]
    names = ("servers", "tools", "sessions", "rules")
    return table("Cost of a call in what it does not touch, toolcrib", header, map(row, names))


def behaviour(view):
    def row(key):
        seen = view.targets[key]["probe"]
        errors = seen.get("sixteen_sleeps_errors")
        return [
            view.name(key),
            cell(seen.get("protocol", seen.get("failed", MISSING)), 60),
            {True: "yes", False: "no"}.get(seen.get("session_id"), MISSING),
            fmt(seen.get("sixteen_sleeps_s"), 2) + (f" ({errors} errors)" if errors else ""),
            cell(seen.get("odd_characters", MISSING), 40),
            cell(seen.get("megabyte_request", MISSING), 40),
            f"{cell(seen.get('crash', MISSING), 60)} ({fmt(seen.get('crash_answer_s'))} s)",
            seen.get("after_crash", MISSING),
        ]

    header = ["gateway", "revision", "session id", "16 × sleep(200 ms) s", "special characters", "1 MB request"]
    header += ["result of the crashing call", "after crash"]
    probed = [key for key in view.targets if view.targets[key].get("probe")]
    return table("Behaviour", header, map(row, probed))
