//! One server as `status --json` shows it: every field always there, `null` where there is nothing to say.

use std::time::Duration;

use serde_json::{Value, json};
use toolcrib::quota::Standing;
use toolcrib::status::{InstanceStatus, LastError};
use toolcrib::wire::revision::Era;
use toolcrib::{FailureClass, ServerStatus, Sharing, Start, StateName};

use crate::timestamp::timestamp;

/// One server; `revision` is that of the catalog.
pub(super) fn server(status: &ServerStatus, revision: u64) -> Value {
    let info = status.server_info.as_deref().and_then(|raw| serde_json::from_slice::<Value>(raw).ok());
    let is_running = |status: &ServerStatus| {
        matches!(status.state, StateName::Ready | StateName::Tripped | StateName::Probing)
    };
    let running = match status.sharing {
        Sharing::Shared => usize::from(is_running(status)),
        _ => status.instances.iter().filter(|instance| is_running(&instance.status)).count(),
    };
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
        "cache_entries": status.cache_entries,
        "cache_hits": status.cache_hits,
        "cache_misses": status.cache_misses,
        "tools": status.tools,
        "memory": status.memory,
        "calls": status.calls,
        "errors": status.errors,
        "p50": seconds(status.p50),
        "p99": seconds(status.p99),
        "start": match status.start { Start::OnDemand => "on-demand", Start::AtBoot => "at-boot" },
        "pin": status.pin.as_str(),
        "unapproved": status.unapproved.iter().map(|(tool, mark)| json!({"tool": &**tool, "change": mark.as_str()})).collect::<Vec<_>>(),
        "sharing": status.sharing.as_str(),
        "instances": running,
        "instances_list": status.instances.iter().map(instance).collect::<Vec<_>>(),
        "revision": revision,
        "era": status.protocol.map(|revision| match revision.era() { Era::Session => "legacy", Era::Stateless => "modern" }),
        "protocol_version": status.protocol.map(toolcrib::wire::revision::Revision::as_str),
        "server_info": info,
    })
}

/// What is left of one limit of one caller.
pub(super) fn standing(standing: &Standing) -> Value {
    let (calls, per) = standing.share.measure();
    json!({
        "caller": standing.caller.as_str(),
        "limit": standing.name,
        "calls": calls,
        "per": per.as_secs_f64(),
        "left": standing.left,
        "room_in": seconds(standing.room_in),
    })
}

/// One instance of a server that is not shared.
fn instance(instance: &InstanceStatus) -> Value {
    let InstanceStatus { key, asked, status } = instance;
    json!({
        "key": key.to_string(),
        "state": status.state.as_str(),
        "pid": status.pid,
        "uptime": seconds(status.uptime),
        "asked": asked.as_secs_f64(),
        "generation": status.generation,
        "leases": status.leases,
        "in_flight": status.in_flight,
        "restarts": status.restarts,
        "restarts_left": status.restarts_left,
        "breaker": status.breaker(),
        "next_attempt_in": seconds(status.next_attempt_in),
        "last_error": status.last_error.as_ref().map(last_error),
        "calls": status.calls,
        "errors": status.errors,
    })
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

fn last_error(error: &LastError) -> Value {
    let (code, at) = (error.kind.facts().name, timestamp(error.at));
    json!({"code": code, "message": error.message, "hint": error.hint, "at": at})
}

#[cfg(test)]
mod tests {
    use toolcrib::{Mark, Pinning};

    use super::*;

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
            cache_entries: 2,
            cache_hits: 0,
            cache_misses: 0,
            tools: None,
            memory: None,
            calls: 0,
            errors: 0,
            p50: None,
            p99: None,
            start: Start::OnDemand,
            protocol: None,
            server_info: None,
            pin: Pinning::Strict,
            unapproved: vec![("log".into(), Mark::Changed)],
            sharing: Sharing::PerClient,
            instances: Vec::new(),
        };
        let told = server(&status, 3);
        let fields = "name transport state pid uptime generation leases in_flight restarts restarts_left \
            consecutive_failures breaker ejected next_attempt_in last_error class stderr_tail cache_entries cache_hits cache_misses tools memory calls \
            errors p50 p99 start pin unapproved sharing instances instances_list revision era protocol_version server_info";
        let members = told.as_object().unwrap();
        assert!(fields.split_whitespace().all(|field| members.contains_key(field)), "{told}");
        assert_eq!(members.len(), fields.split_whitespace().count());
        assert_eq!(told["unapproved"], json!([{"tool": "log", "change": "changed"}]));
        assert_eq!((&told["ejected"], &told["next_attempt_in"]), (&json!(true), &json!(1.5)));
    }
}
