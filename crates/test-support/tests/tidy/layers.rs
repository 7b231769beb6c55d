//! The order of the modules of each crate, and the modules that do no I/O.

use super::{Source, UsedPath, UsedPaths, assert_none, root, sources};

/// A crate and its top-level modules from the bottom up. A module uses only those before it.
struct Crate {
    src: &'static str,
    layers: &'static [&'static str],
}

const CRATES: &[Crate] = &[
    Crate {
        src: "crates/toolcrib/src",
        layers: &[
            "util",
            "protocol",
            "spec",
            "model",
            "serialize",
            "store",
            "call",
            "observer",
            "catalog",
            "search",
            "access",
            "limits",
            "cache",
            "secrets",
            "config",
            "process",
            "http_client",
            "oauth",
            "identity",
            "upstream",
            "supervisor",
            "registry",
            "pipeline",
            "crib",
        ],
    },
    Crate {
        src: "crates/toolcrib-agents/src",
        layers: &["error", "edit", "agents", "secret_heuristics", "export", "import"],
    },
    Crate {
        src: "crates/toolcrib-serve/src",
        layers: &[
            "query",
            "address_limit",
            "admin_routes",
            "client_memory",
            "connection_peer",
            "connection_waker",
            "forwarded",
            "origin_check",
            "resource",
            "caller_assertion",
            "callers",
            "dashboard_sessions",
            "login",
            "replicas",
            "batch",
            "peek_io",
            "service",
            "connection_clients",
            "outbox",
            "response_data",
            "body",
            "request_body",
            "response",
            "cors",
            "login_error",
            "static_files",
            "h2_streams",
            "detached_stream",
            "draining",
            "session",
            "stdio",
            "gateway",
            "dashboard",
            "endpoint",
            "routes",
            "http1",
            "http",
        ],
    },
    Crate {
        src: "crates/toolcrib-testkit/src",
        layers: &["script", "shared", "instance", "server", "child"],
    },
    Crate {
        src: "crates/toolcrib-valkey/src",
        layers: &[
            "resp",
            "store_url",
            "command",
            "health",
            "usage",
            "operation",
            "leases",
            "connection",
            "link",
            "worker",
            "store",
        ],
    },
    Crate {
        src: "crates/toolcrib-cli/src",
        layers: &[
            "exit",
            "hints",
            "explain",
            "command_error",
            "visible_text",
            "listen",
            "protection",
            "prompt",
            "cli",
            "progress_line",
            "project",
            "sources",
            "paths",
            "output",
            "secrets",
            "environment",
            "preflight",
            "report",
            "tool_listing",
            "audit",
            "telemetry",
            "history",
            "client",
            "progress",
            "redirect_listener",
            "policy_test",
            "dashboard",
            "gateway",
            "admin",
            "commands",
            "completion",
            "fuzzing",
            "demo_server",
            "logging",
        ],
    },
];

/// A module that claims to be pure, and the path prefixes it must not use.
struct Pure {
    path: &'static str,
    forbidden: &'static [&'static str],
}

/// I/O, clocks and tasks. `tokio::time::Instant` as a type is allowed: decisions take `now` as a parameter.
const IO: &[&str] = &[
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::thread",
    "tokio::fs",
    "tokio::net",
    "tokio::process",
    "tokio::io",
    "tokio::spawn",
    "tokio::sync",
    "tokio::task",
    "tokio::time::sleep",
    "tokio::time::timeout",
    "Instant::now",
    "SystemTime::now",
    "crate::util::clock",
];

/// As [`IO`], and no locks and nothing of tokio but its `Instant`.
const VALUES: &[&str] = &[
    "std::fs",
    "std::net",
    "std::process::Command",
    "std::env",
    "std::thread",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "tokio",
    "Instant::now",
    "SystemTime::now",
    "crate::util::clock",
];

const PURE: &[Pure] = &[
    Pure { path: "crates/toolcrib/src/model", forbidden: VALUES },
    Pure { path: "crates/toolcrib/src/protocol", forbidden: IO },
    Pure { path: "crates/toolcrib/src/catalog", forbidden: IO },
    Pure { path: "crates/toolcrib/src/access/policy", forbidden: IO },
    Pure { path: "crates/toolcrib/src/config/resolve", forbidden: IO },
    Pure { path: "crates/toolcrib/src/config/merge", forbidden: IO },
    Pure { path: "crates/toolcrib/src/identity/token", forbidden: VALUES },
    Pure { path: "crates/toolcrib/src/store/memory/token_bucket", forbidden: IO },
    Pure { path: "crates/toolcrib/src/store/memory/window", forbidden: IO },
    Pure { path: "crates/toolcrib/src/supervisor/breaker", forbidden: IO },
    Pure { path: "crates/toolcrib/src/supervisor/restart", forbidden: IO },
    Pure { path: "crates/toolcrib-agents/src/edit/entry", forbidden: VALUES },
    Pure { path: "crates/toolcrib-agents/src/edit/jsonc", forbidden: VALUES },
    Pure { path: "crates/toolcrib-agents/src/edit/toml", forbidden: VALUES },
    Pure { path: "crates/toolcrib-agents/src/edit/yaml", forbidden: VALUES },
    Pure { path: "crates/toolcrib-agents/src/secret_heuristics", forbidden: VALUES },
    Pure { path: "crates/toolcrib-agents/src/export/render", forbidden: VALUES },
    Pure { path: "crates/toolcrib-agents/src/export/validate", forbidden: VALUES },
    Pure { path: "crates/toolcrib-agents/src/import/draft", forbidden: VALUES },
    Pure { path: "crates/toolcrib-agents/src/import/references", forbidden: VALUES },
];

/// Returns the crate's own module path that a used path leads to, or `None` for another crate's.
fn resolve(used: &UsedPath, module: &[String]) -> Option<Vec<String>> {
    let supers = used.segments.iter().take_while(|segment| *segment == "super").count();
    match used.segments.first().map(String::as_str) {
        Some("crate") => Some(used.segments[1..].to_vec()),
        Some("super") => {
            let kept = module.len().checked_sub(supers)?;
            Some([&module[..kept], &used.segments[supers..]].concat())
        }
        _ => None,
    }
}

fn violations(krate: &Crate, source: &Source) -> Vec<String> {
    let module = source.module_path(krate.src);
    let Some(own) = module.first() else { return Vec::new() };
    let position = |name: &str| krate.layers.iter().position(|layer| *layer == name);
    let Some(own_position) = position(own) else {
        return vec![format!("{}: `{own}` is not in the list of layers", source.path)];
    };
    let mut wrong = Vec::new();
    for used in UsedPaths::of(source) {
        let Some(target) = resolve(&used, &module) else { continue };
        let Some(top) = target.first() else { continue };
        match position(top) {
            Some(layer) if layer <= own_position => {}
            Some(_) => {
                wrong.push(format!("{}:{}: `{own}` uses `{}`", source.path, used.line, target.join("::")));
            }
            None => wrong.push(format!(
                "{}:{}: `crate::{top}` is not a layer; use its full path",
                source.path, used.line
            )),
        }
    }
    wrong
}

#[test]
fn modules_use_only_layers_below_them() {
    for krate in CRATES {
        let files = sources(&[krate.src]);
        let wrong: Vec<String> = files
            .iter()
            .filter(|source| !source.is_test())
            .flat_map(|source| violations(krate, source))
            .collect();
        assert_none(&format!("{} breaks the order of layers", krate.src), &wrong);
    }
}

#[test]
fn every_layer_exists() {
    for krate in CRATES {
        let files = sources(&[krate.src]);
        let exists = |layer: &&str| {
            files.iter().any(|source| source.module_path(krate.src).first().is_some_and(|top| top == layer))
        };
        let missing: Vec<String> =
            krate.layers.iter().filter(|layer| !exists(layer)).map(|layer| (*layer).to_owned()).collect();
        assert_none(&format!("{} has no such modules", krate.src), &missing);
    }
}

#[test]
fn architecture_lists_the_layers_of_the_library_in_order() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, section) = page.split_once("## Layers of the library").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let listed: Vec<&str> = rows.map(|(module, _)| module).collect();
    assert_eq!(listed, CRATES[0].layers);
}

/// Returns whether a used path contains the forbidden one, at its start or as its end (`Instant::now`).
fn uses_forbidden(used: &UsedPath, forbidden: &str) -> bool {
    let path = used.segments.join("::");
    if path == "tokio::time::Instant" {
        return false;
    }
    path == forbidden
        || path.starts_with(&format!("{forbidden}::"))
        || path.ends_with(&format!("::{forbidden}"))
}

#[test]
fn pure_modules_do_no_io() {
    let mut wrong = Vec::new();
    for Pure { path, forbidden } in PURE {
        let mut found = false;
        for source in sources(&["crates"]).iter().filter(|source| !source.is_test()) {
            let is_inside =
                source.path == format!("{path}.rs") || source.path.starts_with(&format!("{path}/"));
            if !is_inside {
                continue;
            }
            found = true;
            for used in UsedPaths::of(source) {
                if let Some(bad) = forbidden.iter().find(|bad| uses_forbidden(&used, bad)) {
                    wrong.push(format!("{}:{}: uses `{bad}`", source.path, used.line));
                }
            }
        }
        if !found {
            wrong.push(format!("{path} does not exist"));
        }
    }
    assert_none("these modules claim to be pure", &wrong);
}

#[test]
fn libraries_do_not_name_the_program() {
    let naming = sources(&[
        "crates/toolcrib",
        "crates/toolcrib-agents",
        "crates/toolcrib-serve",
        "crates/toolcrib-testkit",
        "crates/toolcrib-valkey",
    ])
    .into_iter()
    .filter(|source| source.text.contains("toolcrib_cli"));
    assert_none("these name the program", &naming.map(|source| source.path).collect::<Vec<_>>());
}
