//! Compares the gateway with this process: agents may expect another version or other values of variables.

use serde_json::{Map, Value};
use toolcrib::util::encoding;

use crate::client::GatewayClient;
use crate::environment::digest_value;
use crate::output::Output;
use crate::paths::Paths;

/// Warns if the gateway has another version, or other values of the variables that the config uses. A gateway that does not
/// answer is not an error here.
pub(super) async fn warn_about_differences(paths: &Paths, out: &mut Output) -> std::io::Result<()> {
    let Some(salt) = encoding::random_hex() else { return Ok(()) };
    let Ok(Some(client)) = GatewayClient::find(paths).await else { return Ok(()) };
    let Ok(info) = client.get(&format!("/api/v1/gateway?salt={salt}")).await else { return Ok(()) };
    let hint = match info["auto_started"] == true {
        true => "`toolcrib stop-gateway` stops it; the next message starts another one",
        false => "restart the gateway",
    };
    let own_version = env!("CARGO_PKG_VERSION");
    if let Some(version) = info["version"].as_str().filter(|version| *version != own_version) {
        out.warn(&format!("the gateway has version {version}, this is {own_version}"), Some(hint))?;
    }
    let Some(theirs) = info["environment"].as_object() else { return Ok(()) };
    let names = different_names(theirs, |name| digest_value(name, &salt));
    if !names.is_empty() {
        let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let message = format!("servers use the gateway's environment, which has other values of {names}");
        out.warn(&message, Some(hint))?;
    }
    Ok(())
}

/// Returns the variables that are set here and are not set, or have another value, in the gateway.
fn different_names(theirs: &Map<String, Value>, own_digest: impl Fn(&str) -> Option<String>) -> Vec<&str> {
    let is_different = |(name, digest): &(&String, &Value)| {
        own_digest(name).is_some_and(|own| digest.as_str() != Some(own.as_str()))
    };
    theirs.iter().filter(is_different).map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_variables_that_are_set_here_differ() {
        let theirs = json!({"SAME": "1", "OTHER": "2", "MISSING": null, "NOT_HERE": "1", "NOWHERE": null});
        let own_digest = |name: &str| (!name.starts_with("NO")).then(|| "1".to_owned());
        let names = different_names(theirs.as_object().unwrap(), own_digest);
        assert_eq!(names.join(" "), "MISSING OTHER");
    }
}
