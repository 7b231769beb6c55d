//! One server as `status --json` shows it: every field always there, `null` where there is nothing to say.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use toolcrib::status::LastError;
use toolcrib::wire::revision::Era;
use toolcrib::{FailureClass, ServerStatus, Start, StateName};

/// One server; `revision` is that of the catalog.
pub(super) fn server(status: &ServerStatus, revision: u64) -> Value {
    let info = status.server_info.as_deref().and_then(|raw| serde_json::from_slice::<Value>(raw).ok());
    let running = matches!(status.state, StateName::Ready | StateName::Tripped | StateName::Probing);
    json!({
        "name": status.server.as_str(),
        "transport": status.transport,
        "state": status.state.as_str(),
        "pid": status.pid,
        "uptime": seconds(status.uptime),
        "generation": status.generation,
        "leases": status.leases,
        "in_flight": status.in_flight,
        "restarts": status.restarts,
        "restarts_left": status.restarts_left,
        "consecutive_failures": status.consecutive_failures,
        "breaker": status.breaker(),
        "ejected": status.state == StateName::Ejected,
        "next_attempt_in": seconds(status.next_attempt_in),
        "last_error": status.last_error.as_ref().map(last_error),
        "class": status.last_error.as_ref().and_then(|error| error.class).map(FailureClass::name),
        "stderr_tail": status.stderr_tail,
        "cache_entries": null,
        "tools": status.tools,
        "memory": null,
        "calls": status.calls,
        "errors": status.errors,
        "p50": seconds(status.p50),
        "p99": seconds(status.p99),
        "start": match status.start { Start::OnDemand => "on-demand", Start::AtBoot => "at-boot" },
        "sharing": "shared",
        "instances": u8::from(running),
        "revision": revision,
        "era": status.protocol.map(|revision| match revision.era() { Era::Session => "legacy", Era::Stateless => "modern" }),
        "protocol_version": status.protocol.map(toolcrib::wire::revision::Revision::as_str),
        "server_info": info,
    })
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

fn last_error(error: &LastError) -> Value {
    let (code, at) = (error.kind.facts().name, timestamp(error.at));
    json!({"code": code, "message": error.message, "hint": error.hint, "at": at})
}

/// A moment in UTC, as RFC 3339 writes it.
fn timestamp(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Days in the calendar that begins on 1 March of the year 0, where leap days come last in their year.
    let from_march = days + 719_468;
    let (era, day_of_era) = (from_march / 146_097, from_march % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_in_utc() {
        let at = |seconds, millis| {
            timestamp(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(millis))
        };
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400, 5), "2000-02-29T00:00:00.005Z");
        assert_eq!(at(1_794_732_506, 0), "2026-11-15T08:48:26.000Z");
        assert_eq!(at(4_102_444_799, 999), "2099-12-31T23:59:59.999Z");
    }

    #[test]
    fn every_field_of_the_contract_is_there() {
        let status = ServerStatus {
            server: "git".parse().unwrap(),
            transport: "stdio",
            state: StateName::Ejected,
            pid: None,
            uptime: None,
            generation: 6,
            leases: 0,
            in_flight: 0,
            restarts: 5,
            restarts_left: 0,
            consecutive_failures: 0,
            next_attempt_in: Some(Duration::from_millis(1500)),
            last_error: None,
            stderr_tail: vec!["boom".to_owned()],
            noise: 0,
            tools: None,
            calls: 0,
            errors: 0,
            p50: None,
            p99: None,
            start: Start::OnDemand,
            protocol: None,
            server_info: None,
        };
        let told = server(&status, 3);
        let fields = "name transport state pid uptime generation leases in_flight restarts restarts_left \
            consecutive_failures breaker ejected next_attempt_in last_error class stderr_tail cache_entries tools memory calls \
            errors p50 p99 start sharing instances revision era protocol_version server_info";
        let members = told.as_object().unwrap();
        assert!(fields.split_whitespace().all(|field| members.contains_key(field)), "{told}");
        assert_eq!(members.len(), fields.split_whitespace().count());
        assert_eq!((&told["ejected"], &told["next_attempt_in"]), (&json!(true), &json!(1.5)));
    }
}
