"""The target figures of toolcrib, each with its bound if it has one."""

from .figures import MISSING, fmt, median, mib, ratios, scaled, spread, table
from .resolve import CPU_MS, LAYERS, SCOPES, SERVERS, WHY_MS, figures
from .tables import HTTP_FLOOR, STDIO_FLOOR, View, own

OURS = "toolcrib"
STATELESS, REMOTE = "toolcrib-stateless", "toolcrib-remote"


def promises(results):
    """The short table at the top of the page."""
    if OURS not in results["targets"] and not {"library", "resolve"} & set(results):
        return []
    view = View(results)
    rows = [*gateway_rows(view), *instruction_rows(view), *library_rows(results.get("library", {})), *config_rows(results)]
    return table("Targets", ["figure", "measured", "bound", "met"], rows)


def row(figure, shown, value=None, at_most=None, at_least=None, unit=""):
    """A row of the table; `value` decides whether the bound is met."""
    bound, kept = MISSING, MISSING
    if at_most is not None:
        bound, kept = f"≤ {at_most:,}{unit}", value is not None and value <= at_most
    if at_least is not None:
        bound, kept = f"≥ {at_least:,}{unit}", value is not None and value >= at_least
    if value is None or shown == MISSING:
        return [figure, MISSING, MISSING, MISSING]
    return [figure, shown, bound, {True: "yes", False: "**no**"}.get(kept, MISSING)]


def gateway_rows(view):
    if OURS not in view.targets:
        return []
    small = view.over(OURS, HTTP_FLOOR, "c16", "cpu_s_per_10k")
    latency = view.over(OURS, STDIO_FLOOR, "c1", "p50_us")
    started = view.series(OURS, "startup", "first_call_ms", "startup")
    large = view.over(OURS, HTTP_FLOOR, "1m", "cpu_s_per_10k")
    seconds = spread(view.series(OURS, "c16", "cpu_s_per_10k"), 2)
    tools = view.median(OURS, "list", "tools", "ten")
    listing = [scaled(value, 0.1) for value in view.series(OURS, "list", "cpu_s_per_10k", "ten")]
    return [
        row(
            "CPU of 10,000 small calls at c=16, × direct HTTP",
            f"{spread(small, 2)}; {seconds} s",
            median(small),
            at_most=1.8,
        ),
        *other_ways(view),
        row("CPU of 1 MB results, × direct HTTP", spread(large, 2), median(large), at_most=1.8),
        row("p50 of small calls at c=1, × direct stdio", spread(latency, 2), median(latency), at_most=5),
        row("start to the first call, ten servers", f"{spread(started)} ms", median(started), at_most=18, unit=" ms"),
        memory_row(view, "ten_untouched", "resident memory, ten servers declared, none called", 15),
        memory_row(view, "ten_idle", "resident memory of all processes, ten servers running and idle", 25),
        row(
            f"CPU per tools/list of {fmt(tools, 0)} tools",
            f"{spread(listing, 2)} ms",
            median(listing),
            at_most=2,
            unit=" ms",
        ),
    ]


def other_ways(view):
    """The same calls by stateless clients, and to a server over HTTP."""
    figures = [
        (STATELESS, OURS, "the same by stateless clients, × session clients", 1.1),
        (REMOTE, HTTP_FLOOR, "the same to a remote server, × direct HTTP", 3.5),
    ]
    rows = []
    for key, floor, figure, bound in figures:
        if key in view.targets:
            cost = view.over(key, floor, "c16", "cpu_s_per_10k")
            rows.append(row(figure, spread(cost, 2), median(cost), at_most=bound))
    return rows


def memory_row(view, name, figure, bound):
    memory = view.targets[OURS].get(name)
    if not memory:
        return row(figure, MISSING)
    shown = f"{mib(memory['own'])} MiB"
    if memory["helper_count"]:
        shown += f"; {memory['helper_count']} helper processes {mib(memory['helpers'])} MiB"
    shown += f"; {memory['server_count']} echo servers up"
    return row(figure, shown, own(memory) / 2**20, at_most=bound, unit=" MiB")


def instruction_rows(view):
    if OURS not in view.targets:
        return []
    ours = view.targets[OURS].get("instructions", {})
    floor = view.targets.get(HTTP_FLOOR, {}).get("instructions", {})
    small, large = ours.get("small", []), ours.get("megabyte", [])
    stateless = view.targets.get(STATELESS, {}).get("instructions", {}).get("small", [])
    across = [other / one for one, other in zip(small, stateless)]

    def beside(name, digits):
        return f"; direct HTTP {fmt(median(floor[name]), digits)}" if floor.get(name) else ""

    return [
        row("instructions per small tools/call through `serve`", spread(small, 0) + beside("small", 0), median(small)),
        *(
            row(f"the same, {figure}", spread(ours.get(name, []), 0), median(ours.get(name, [])), at_most=bound)
            for name, figure, bound in (
                ("off", "history and metrics off", 48_500),
                ("on", "metrics, audit, rules and limits on", 52_000),
            )
        ),
        row("the same by stateless clients, × session clients", spread(across, 3), median(across), at_most=1.1),
        row(
            "instructions per byte of a 1 MB text result",
            spread(large, 2) + beside("megabyte", 2),
            median(large),
            at_most=2.2,
        ),
    ]


def library_rows(library):
    free, one_core = Sides(library.get("free", {})), Sides(library.get("one_core", {}))
    return [*slow_rows(free), *immediate_rows(free), *echo_rows(free, one_core), *sdk_rows(one_core), *lease_rows(library)]


def config_rows(results):
    measured = figures(results)
    if "resolve" not in results:
        return []
    size = f"{SERVERS:,} servers, {SCOPES} scopes"
    halves = f"{spread(measured['both'], 1)} ms; {spread(measured['read'], 1)} to read, {spread(measured['resolve'], 1)} to resolve"
    why = f"{spread(measured['why'], 1)} ms, {spread(measured['why_cpu'], 1)} of them CPU"
    return [
        row(f"config: CPU of {size}, {LAYERS} layers", halves, median(measured["both"]), at_most=CPU_MS, unit=" ms"),
        row(f"config: `why`, cold, of {size}", why, median(measured["why"]), at_most=WHY_MS, unit=" ms"),
    ]


class Sides:
    """The rounds of one `library-load` run: the library beside the raw pipe and the official SDK."""

    def __init__(self, run):
        self.run = run
        self.rounds = run.get("rounds", [])

    def of(self, side, *fields):
        """A figure of one side, per round."""
        values = [each[side] for each in self.rounds]
        for field in fields:
            values = [value[field] for value in values]
        return values

    def has(self, side, field):
        """Whether this was measured; older results lack some figures."""
        return bool(self.rounds) and all(field in each.get(side, {}) for each in self.rounds)

    def tail(self, side):
        return ratios(self.of(side, "slow", "p99_us"), self.of(side, "slow", "p50_us"))


def slow_rows(free):
    if not free.rounds:
        return []
    speed = ratios(free.of("library", "slow_calls_per_s"), free.of("raw", "slow_calls_per_s"))
    tail = free.tail("library")
    p50, p99 = (median(free.of("library", "slow", field)) / 1000 for field in ("p50_us", "p99_us"))
    server = f"{free.run['callers']} callers of a {free.run['slow_ms']} ms tool"
    beside = f"p50 {fmt(p50, 2)} ms, p99 {fmt(p99, 2)} ms; raw pipe {spread(free.tail('raw'), 2)}"
    return [
        row(f"library: calls/s, {server}, × raw pipe", spread(speed, 3), median(speed), at_least=0.95),
        row(f"library: p99 over p50, {server}", f"{spread(tail, 2)}; {beside}", median(tail), at_most=2),
    ]


def immediate_rows(free):
    if not free.has("sdk", "immediate"):
        return []
    floor = free.of("raw", "immediate", "calls_per_s")
    speed = ratios(free.of("library", "immediate", "calls_per_s"), floor)
    sdk = ratios(free.of("sdk", "immediate", "calls_per_s"), floor)
    figure = f"library: calls/s, {free.run['callers']} callers of a tool that answers immediately, × raw pipe"
    shown = f"{spread(speed, 3)}; official Rust SDK {spread(sdk, 3)}"
    return [row(figure, shown, median(speed), at_least=0.45)]


def sdk_rows(one_core):
    if not one_core.has("sdk", "echo_cpu_us"):
        return []
    cpu = ratios(one_core.of("library", "echo_cpu_us"), one_core.of("sdk", "echo_cpu_us"))
    figure = "library: client CPU per sequential call, on one core, × official Rust SDK"
    return [row(figure, spread(cpu, 3), median(cpu), at_most=0.47)]


def lease_rows(library):
    counted = library.get("instructions", {})
    call, held = counted.get("crib"), counted.get("lease")
    if not call or not held:
        return []
    figure = "library: instructions per call on a held lease, × a call of the crib"
    return [row(figure, f"{fmt(held / call, 3)}; {fmt(held, 0)} and {fmt(call, 0)}", held / call, at_most=1.005)]


def echo_rows(free, one_core):
    rows = []
    # Only on one core is the figure the client's own; on all cores it is mostly the cost of waking them.
    for placement, sides, bound in (("on one core", one_core, 8), ("on all cores", free, None)):
        cpu, floor = sides.of("library", "echo_cpu_us"), sides.of("raw", "echo_cpu_us")
        shown = f"{spread(cpu, 2)} µs; raw pipe {spread(floor, 2)} µs"
        figure = f"library: client CPU per sequential call, {placement}"
        rows.append(row(figure, shown, median(cpu), at_most=bound, unit=" µs"))
    return rows
