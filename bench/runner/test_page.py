"""Checks that the page says what the results say. `python3 -m unittest discover bench/runner -t bench`"""

import unittest

from .figures import fmt, ratios, series, spread
from .main import parse
from .report import merged, page
from .resolve import broken
from .template import fill


def results(*rounds):
    """Results of `one` rounds, each given as {key: {scenario: result}}."""
    records = [{"shape": "one", "round": number, "data": data} for number, data in enumerate(rounds)]
    return {
        "started": "2026-01-01 00:00:00",
        "options": {"rounds": len(records), "scale": 1.0, "quick": False, "phases": "one"},
        "machine": {"cpu": "a cpu", "cpus": 2, "kernel": "6", "commit": "abc"},
        "targets": {key: {"name": key} for key in ("stdio-floor", "http-floor", "toolcrib")},
        "rounds": records,
        "load1": [0.5, 1.5],
    }


SLOW = {"p50_us": 5000.0, "p99_us": 9000.0}


def cpu(seconds, **more):
    return {"c16": {"cpu_s_per_10k": seconds, "ok": 1, **more}}


class Page(unittest.TestCase):
    def test_ratios_are_formed_inside_a_round(self):
        text = page(results(
            {"http-floor": cpu(0.1), "toolcrib": cpu(0.2)},
            {"http-floor": cpu(0.4), "toolcrib": cpu(1.6)},
            {"http-floor": cpu(0.1), "toolcrib": cpu(0.3)},
        ))
        self.assertIn("| 3.00 (2.00–4.00); 0.30 (0.20–1.60) s |", text)

    def test_a_failed_scenario_is_left_out_and_not_counted_as_zero(self):
        found = results({"toolcrib": cpu(0.2, failed="late")}, {"toolcrib": cpu(0.3)})
        self.assertEqual(series(found, "one", "toolcrib", "c16", "cpu_s_per_10k"), [None, 0.3])
        self.assertEqual(ratios([None, 0.3], [0.1, 0.1]), [0.3 / 0.1])

    def test_bounds_are_judged(self):
        found = results()
        counted = {"small": [55_000], "off": [48_000, 49_200], "on": [51_000], "megabyte": [2.1]}
        found["targets"]["toolcrib"]["instructions"] = counted
        text = page(found)
        self.assertIn("| instructions per small tools/call through `serve` | 55,000 (55,000–55,000) | – | – |", text)
        self.assertIn("| the same, history and metrics off | 48,600 (48,000–49,200) | ≤ 48,500 | **no** |", text)
        self.assertIn("| 51,000 (51,000–51,000) | ≤ 52,000 | yes |", text)
        self.assertIn("| 2.10 (2.10–2.10) | ≤ 2.2 | yes |", text)

    def test_flat_costs_are_judged_and_missing_ones_left_out(self):
        found = results()
        found["flat"] = {"base": 50_000.0, "servers": 50_500.0, "tools": 52_000.0, "sessions": None}
        text = page(found)
        self.assertIn("| servers: 10 → 1,000 | 50,000 → 50,500 | 1.010 | ≤ 1.03 | yes |", text)
        self.assertIn("| tools: 10 → 10,000 | 50,000 → 52,000 | 1.040 | ≤ 1.03 | **no** |", text)
        self.assertNotIn("sessions:", text)

    def test_the_library_stands_beside_the_official_sdk(self):
        found = results()
        side = lambda speed, cpu: {
            "slow_calls_per_s": 1000, "slow": SLOW, "echo_cpu_us": cpu, "immediate": {"calls_per_s": speed},
        }
        rounds = [{"library": side(450, 5.0), "sdk": side(160, 10.0), "raw": side(1000, 3.0)}]
        run = {"callers": 32, "slow_ms": 5, "rounds": rounds}
        found["library"] = {"free": run, "one_core": run}
        text = page(found)
        self.assertIn("immediately, × raw pipe | 0.450 (0.450–0.450); official Rust SDK 0.160 (0.160–0.160) | ≥ 0.45 | yes |", text)
        found["library"]["instructions"] = {"crib": 20_000.0, "lease": 19_000.0}
        self.assertIn("× a call of the crib | 0.950; 19,000 and 20,000 | ≤ 1.005 | yes |", page(found))
        self.assertIn("on one core, × official Rust SDK | 0.500 (0.500–0.500) | ≤ 0.47 | **no** |", text)

    def test_the_library_stands_beside_the_raw_pipe(self):
        found = results()
        side = lambda speed, cpu: {"slow_calls_per_s": speed, "slow": SLOW, "echo_cpu_us": cpu}
        rounds = [{"library": side(950, 9.0), "raw": side(1000, 3.0)}]
        run = {"callers": 32, "slow_ms": 5, "rounds": rounds}
        found["library"] = {"free": run, "one_core": run}
        text = page(found)
        self.assertIn("× raw pipe | 0.950 (0.950–0.950) | ≥ 0.95 | yes |", text)
        self.assertNotIn("official Rust SDK", text)
        shown = "9.00 (9.00–9.00) µs; raw pipe 3.00 (3.00–3.00) µs"
        self.assertIn(f"on one core | {shown} | ≤ 8 µs | **no** |", text)
        self.assertIn(f"on all cores | {shown} | – | – |", text)

    def test_a_large_config_is_judged_by_both_its_bounds(self):
        measured = results()
        measured["resolve"] = {
            "library": {"rounds": [{"read_ms": 30.0, "resolve_ms": 15.0}, {"read_ms": 28.0, "resolve_ms": 16.0}]},
            "why": {"wall_ms": [90.0, 130.0, 110.0], "cpu_ms": [40.0, 41.0, 42.0]},
        }
        text = page(measured)
        self.assertIn("5 layers | 44.5 (44.0–45.0) ms; 29.0 (28.0–30.0) to read, 15.5 (15.0–16.0) to resolve | ≤ 50 ms | yes |", text)
        self.assertIn("| 110 (90.0–130) ms, 41.0 (40.0–42.0) of them CPU | ≤ 100 ms | **no** |", text)
        self.assertEqual(broken(measured), ["110.0 ms for `why`, at most 100"])
        self.assertEqual(len(broken(results())), 2, "what was not measured was not kept")

    def test_what_was_not_measured_is_not_on_the_page(self):
        text = page(results())
        for absent in ("Targets", "library", "Memory", "Behaviour"):
            self.assertNotIn(absent, text)

    def test_later_results_fill_in_earlier_ones(self):
        first, second = results({"toolcrib": cpu(0.2)}), results({"toolcrib": cpu(0.3)})
        second["targets"]["toolcrib"]["soak"] = {"calls": 5}
        both = merged([first, second])
        self.assertEqual(len(both["rounds"]), 2)
        self.assertEqual(both["targets"]["toolcrib"]["soak"], {"calls": 5})


class Small(unittest.TestCase):
    def test_numbers_are_written_as_long_as_they_matter(self):
        written = [fmt(None), fmt(3.14159, 2), fmt(123.4), fmt(12345.6)]
        self.assertEqual(written, ["–", "3.14", "123", "12,346"])
        self.assertEqual(spread([3, 1, None, 2]), "2.0 (1.0–3.0)")

    def test_only_known_placeholders_are_filled(self):
        self.assertEqual(fill('{"a": {port}, "b": {{each}}}', {"port": 7, "each": "x"}), '{"a": 7, "b": {x}}')

    def test_a_quick_look_leaves_the_page_alone(self):
        self.assertEqual(parse(["--quick"]).page.name, "quick.md")
        self.assertEqual(parse([]).page.name, "benchmarks.md")
        self.assertEqual(parse(["--quick", "--rounds", "4"]).rounds, 4)


if __name__ == "__main__":
    unittest.main()
