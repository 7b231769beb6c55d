//! Protects the memory and environment of the gateway from its servers, which run as the same user.

/// Keeps other processes of this user from reading the memory and environment of this one, and from finding them in a core
/// file. Child processes are not affected, except that they write no core files.
pub(crate) fn protect_process() {
    use rustix::process::{Resource, Rlimit};
    let limit = rustix::process::getrlimit(Resource::Core);
    let lowered = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), ..limit });
    if let Err(error) = lowered.map_err(std::io::Error::from).and_then(|()| forbid_dumps()) {
        tracing::warn!("servers may read the memory of the gateway: {error}");
    }
}

#[cfg(target_os = "linux")]
fn forbid_dumps() -> std::io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(not(target_os = "linux"))]
fn forbid_dumps() -> std::io::Result<()> {
    Ok(())
}
