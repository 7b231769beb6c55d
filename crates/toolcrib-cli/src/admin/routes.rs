//! The paths of the admin API. `docs/openapi.json` describes the same ones.

/// A path and the method that it supports. A segment in braces stands for a name.
pub(super) struct Route {
    #[cfg_attr(not(test), expect(dead_code, reason = "compared with the documentation"))]
    pub(super) method: &'static str,
    pub(super) path: &'static str,
}

const fn get(path: &'static str) -> Route {
    Route { method: "get", path }
}

const fn post(path: &'static str) -> Route {
    Route { method: "post", path }
}

/// Every path.
pub(super) const ROUTES: &[Route] = &[
    get("/healthz"),
    get("/readyz"),
    get("/api/v1/status"),
    get("/api/v1/gateway"),
    get("/api/v1/tools"),
    get("/api/v1/servers/{server}"),
    get("/api/v1/servers/{server}/logs"),
    post("/api/v1/servers/{server}/start"),
    post("/api/v1/servers/{server}/restart"),
    post("/api/v1/servers/{server}/stop"),
    get("/api/v1/servers/{server}/unapproved"),
    post("/api/v1/servers/{server}/approve"),
    get("/api/v1/approvals"),
    get("/api/v1/calls"),
    get("/api/v1/calls/{id}"),
    post("/api/v1/calls/{id}/approve"),
    post("/api/v1/calls/{id}/deny"),
    get("/api/v1/events"),
    get("/api/v1/stats"),
    get("/api/v1/clients"),
    get("/api/v1/servers/{server}/why"),
    get("/api/v1/config"),
    get("/api/v1/policy"),
    get("/api/v1/audit"),
    get("/api/v1/secrets"),
    post("/api/v1/ui"),
    post("/api/v1/reload"),
    post("/api/v1/handover"),
];

/// Returns whether a path exists.
pub(super) fn has_path(segments: &[&str]) -> bool {
    ROUTES.iter().any(|route| {
        let pattern = route.path.trim_start_matches('/').split('/');
        let fits = |(pattern, segment): (&str, &&str)| pattern.starts_with('{') || pattern == *segment;
        pattern.clone().count() == segments.len() && pattern.zip(segments).all(fits)
    })
}

/// Returns whether a path shows callers only what is about themselves, so that they need not be admins.
pub(super) fn is_own_data(segments: &[&str]) -> bool {
    matches!(
        segments,
        ["healthz" | "readyz"]
            | ["api", "v1", "calls" | "clients" | "events" | "stats"]
            | ["api", "v1", "calls", _]
    )
}
