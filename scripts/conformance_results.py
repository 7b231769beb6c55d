"""Evaluates the results of the conformance suite: failed checks, expected failures, and the generated page."""

import collections
import fnmatch
import json
import pathlib
import re

EXPECTED = pathlib.Path(__file__).resolve().with_name("conformance.expected")

# Scenarios whose details quote the server's result; members that belong to an era or to one hop, and the tool that is
# added and removed.
QUOTING = re.compile(r"(tools|resources|prompts)-|completion-|json-schema-")
UNQUOTED = {"resultType", "ttlMs", "cacheScope", "_meta", "serverInfo", "toolCount", "test_extra_tool"}

# failed: {(scenario, check): reason}; untried: checks that the suite could not make.
Outcome = collections.namedtuple("Outcome", "passed total failed untried", defaults=(0,))


def quoted(value):
    if isinstance(value, dict):
        return {key: quoted(inner) for key, inner in value.items() if key not in UNQUOTED}
    if isinstance(value, list):
        return [quoted(inner) for inner in value if inner not in list(UNQUOTED)]
    return value


def judge_alone(scenarios):
    """Evaluates results without a comparison: everything that is not a success, a remark or skipped is a failure."""
    passed, failed = 0, {}
    for scenario, checks in scenarios.items():
        for check in checks:
            passed += check["status"] == "SUCCESS"
            if check["status"] in ("FAILURE", "WARNING"):
                failed[scenario, check["id"]] = one_line(check.get("errorMessage") or check.get("description", ""))
        if not any(check["status"] in ("SUCCESS", "SKIPPED") for check in checks):
            failed.setdefault((scenario, "*"), "no check succeeded")
    return Outcome(passed, passed + len(failed), failed)


def judge(direct, through, why):
    """Compares with the direct results: a check that succeeded directly must succeed with the same details."""
    passed, untried, failed = 0, 0, {}
    for scenario, checks in direct.items():
        here = {(check["id"], check["name"]): check for check in through.get(scenario, [])}
        # A scenario without failures omits only optional checks, such as streams: neither failure nor success.
        content = here and all(check["status"] in ("SUCCESS", "INFO") for check in here.values())
        for check in checks:
            if check["status"] != "SUCCESS":
                continue
            found = here.get((check["id"], check["name"]), {})
            status = found.get("status", "INFO" if content else "MISSING")
            said, wanted = quoted(found.get("details")), quoted(check.get("details"))
            quotes = QUOTING.match(scenario) and check["id"] != "wire-schema-valid"
            if status not in ("SUCCESS", "INFO"):
                failed[scenario, check["id"]] = one_line(found.get("errorMessage") or why)
            elif status == "INFO":
                untried += 1
            elif quotes and said != wanted:
                failed[scenario, check["id"]] = one_line(f"different details: {json.dumps(said)}")
            else:
                passed += 1
    return Outcome(passed, passed + len(failed), failed, untried)


def one_line(text):
    return " ".join(text.split())[:300]


class Line:
    """`suite/leg scenario[:check] — reason`; each part except the reason may contain `*`."""

    def __init__(self, text):
        self.text = text
        wanted, _, self.reason = text.partition(" — ")
        place, what = wanted.split()
        self.suite, self.leg = place.split("/", 1)
        self.scenario, _, self.check = what.partition(":")
        if not self.reason:
            raise SystemExit(f"{EXPECTED}: no reason: {text}")

    def covers(self, suite, leg, scenario):
        pairs = ((suite, self.suite), (leg, self.leg), (scenario, self.scenario))
        return all(fnmatch.fnmatchcase(name, pattern) for name, pattern in pairs)

    def expects(self, suite, leg, scenario, check):
        return self.covers(suite, leg, scenario) and fnmatch.fnmatchcase(check, self.check or "*")


def read_expected():
    lines = EXPECTED.read_text().splitlines() if EXPECTED.exists() else []
    return [Line(text) for text in lines if text.strip() and not text.startswith("#")]


def compare(outcomes, ran, lines):
    """Returns unexpected failures, and lines that match a scenario without a failure."""
    surprises, stale = [], []
    for (suite, leg), outcome in outcomes.items():
        for (scenario, check), why in outcome.failed.items():
            if not any(line.expects(suite, leg, scenario, check) for line in lines):
                surprises.append((f"{suite}/{leg} {scenario}:{check}", why))
    for line in lines:
        for (suite, leg), scenarios in ran.items():
            failed = outcomes[suite, leg].failed
            for scenario in scenarios:
                if line.covers(suite, leg, scenario) and not any(
                    line.expects(suite, leg, name, check) for name, check in failed if name == scenario
                ):
                    stale.append((line, f"{suite}/{leg} {scenario}"))
    return surprises, stale


def prune(lines, stale, outcomes):
    """Replaces a line that no longer applies everywhere by one line per check that still fails. Returns the new lines."""
    kept, new, gone = [], [], {id(line) for line, _ in stale}
    for text in EXPECTED.read_text().splitlines():
        line = next((line for line in lines if line.text == text and id(line) in gone), None)
        if not line:
            kept.append(text)
            continue
        for (suite, leg), outcome in outcomes.items():
            still = sorted(pair for pair in outcome.failed if line.expects(suite, leg, *pair))
            new.extend(f"{suite}/{leg} {name}:{check} — {line.reason}" for name, check in still)
    EXPECTED.write_text("\n".join(kept + new) + "\n")
    return new


def score(outcome):
    return f"{outcome.passed}/{outcome.total}" + (f" ({outcome.untried} untried)" if outcome.untried else "")


def auth_rows(outcomes, ran):
    """Returns the table of the scenarios with an authorization server."""
    rows = ["| scenarios `auth/` | scenarios | checks |", "|---|---|---|"]
    groups = {suite: outcome for (suite, leg), outcome in outcomes.items() if leg == "client-auth"}
    for group, outcome in groups.items():
        rows.append(f"| {group} | {len(ran[group, 'client-auth'])} | {score(outcome)} |")
    return rows


def page(outcomes, ran, lines, suites):
    legs = [leg for leg in dict.fromkeys(leg for _, leg in outcomes) if leg != "client-auth"]
    rows = ["| leg | " + " | ".join(suites) + " |", "|---|" + "---|" * len(suites)]
    for leg in legs:
        cells = [outcomes.get((suite, leg)) for suite in suites]
        cells = [score(cell) if cell and cell.total else "–" for cell in cells]
        rows.append(f"| {leg} | " + " | ".join(cells) + " |")
    reasons = collections.defaultdict(collections.Counter)
    for (suite, leg), outcome in outcomes.items():
        for scenario, check in outcome.failed:
            line = next((line for line in lines if line.expects(suite, leg, scenario, check)), None)
            reasons[line.reason if line else "not expected"][leg] += 1
    missing = ["| reason of a failure | failed checks per leg |", "|---|---|"]
    for reason, where in sorted(reasons.items()):
        places = ", ".join(f"{leg} {count}" for leg, count in sorted(where.items()))
        missing.append(f"| {reason} | {places} |")
    releases = " and ".join(dict.fromkeys(release for release, _ in suites.values()))
    return f"""# Conformance

Generated by `scripts/conformance`, which runs the official suite, `@modelcontextprotocol/conformance` {releases},
against a reference server that passes all of it, and against toolcrib in front of the same server. The server runs with
both eras (`dual`), with sessions only and stateless only, each over stdio and over HTTP. In the leg `client`, the suite
is the server and toolcrib is its client.

The legs `python`, `typescript-2` and `typescript-1` are servers on the official SDKs, with toolcrib in its default configuration.
The first two support both eras, and their tools ask the client in one way only; none of them supports everything that the suite checks.

A cell shows the checks that passed out of those that pass directly; `-direct` shows the server without toolcrib. "Untried" checks pass directly but cannot be made
through toolcrib, because it answers in plain JSON where no stream is needed; they do not test its streams.

{chr(10).join(rows)}

With toolcrib as the client of a server that requires authorization, and a person who logs in with `toolcrib login`. Of the extensions, client credentials (JWT and
secret) and enterprise-managed authorization are run; `dpop`, `dpop-nonce` and `wif-jwt-bearer` are not supported.

{chr(10).join(auth_rows(outcomes, ran))}

{chr(10).join(missing) if reasons else "No check fails."}
"""
