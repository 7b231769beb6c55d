//! Reads `auth` of a remote server.

use super::reader::TableReader;
use crate::spec::auth::{AuthSpec, Grant, IdentityProvider};
use crate::spec::template::TemplateText;
use crate::spec::url::parse_url;

const GRANTS: [(&str, Grant); 4] = [
    (Grant::AuthorizationCode.as_str(), Grant::AuthorizationCode),
    (Grant::ClientCredentials.as_str(), Grant::ClientCredentials),
    (Grant::EnterpriseManaged.as_str(), Grant::EnterpriseManaged),
    (Grant::Command.as_str(), Grant::Command),
];

/// Reads how the tokens of a server are obtained.
pub(super) fn read(reader: &mut TableReader<'_>) -> Box<AuthSpec> {
    let Some(mut table) = reader.table("auth") else { return Box::default() };
    let command = read_command(&mut table);
    let written = table.choice("grant", &GRANTS);
    let grant = written.unwrap_or(if command.is_empty() { Grant::AuthorizationCode } else { Grant::Command });
    let auth = AuthSpec {
        grant,
        client_id: read_text(&mut table, "client-id"),
        client_secret: read_text(&mut table, "client-secret"),
        private_key: read_text(&mut table, "private-key"),
        client_metadata_url: read_url(&mut table, "client-metadata-url"),
        scopes: read_scopes(&mut table),
        command,
        identity_provider: read_identity_provider(&mut table),
    };
    check_complete(&mut table, &auth);
    table.finish();
    Box::new(auth)
}

pub(super) fn read_text(table: &mut TableReader<'_>, key: &'static str) -> Option<TemplateText> {
    let written = table.string(key)?;
    let node = table.peek(key)?;
    table.template(node, written)
}

pub(super) fn read_url(table: &mut TableReader<'_>, key: &'static str) -> Option<String> {
    let written = table.string(key)?;
    if let Err(reason) = parse_url(written) {
        table.error_at_value(key, format!("invalid `{key}`: {reason}"), "write an `https://…` URL");
        return None;
    }
    Some(written.to_owned())
}

pub(super) fn read_scopes(table: &mut TableReader<'_>) -> Vec<String> {
    let scopes = table.strings("scopes").unwrap_or_default();
    let mut read = Vec::new();
    for (node, scope) in scopes {
        if scope.is_empty() || scope.contains(char::is_whitespace) {
            let hint = "write each scope as a string of its own, such as `[\"read\", \"write\"]`";
            table.error(node.span.start, "a scope is empty or contains spaces", hint);
        }
        read.push(scope.to_owned());
    }
    read
}

fn read_command(table: &mut TableReader<'_>) -> Vec<TemplateText> {
    let words = table.strings("command").unwrap_or_default();
    words.into_iter().filter_map(|(node, word)| table.template(node, word)).collect()
}

fn read_identity_provider(table: &mut TableReader<'_>) -> Option<IdentityProvider> {
    let mut provider = table.table("identity-provider")?;
    let token_endpoint = read_url(&mut provider, "token-endpoint");
    let client_id = read_text(&mut provider, "client-id");
    let id_token = read_text(&mut provider, "id-token");
    if token_endpoint.is_none() || client_id.is_none() || id_token.is_none() {
        let message = "`identity-provider` needs `token-endpoint`, `client-id` and `id-token`";
        provider.error_at_table(message, "add the missing keys");
    }
    provider.finish();
    Some(IdentityProvider::new(token_endpoint?, client_id?, id_token?))
}

/// Reports a grant whose settings are missing.
fn check_complete(table: &mut TableReader<'_>, auth: &AuthSpec) {
    let grant = auth.grant.as_str();
    let missing = match auth.grant {
        Grant::AuthorizationCode => None,
        Grant::Command => auth.command.is_empty().then_some("`command = [\"program\", \"argument\"]`"),
        Grant::ClientCredentials if auth.client_id.is_none() => Some("`client-id`"),
        Grant::ClientCredentials if auth.client_secret.is_none() && auth.private_key.is_none() => {
            Some("`client-secret` or `private-key`")
        }
        Grant::EnterpriseManaged if auth.identity_provider.is_none() => Some("`identity-provider`"),
        Grant::EnterpriseManaged if auth.client_id.is_none() => Some("`client-id`"),
        Grant::ClientCredentials | Grant::EnterpriseManaged => None,
    };
    if let Some(missing) = missing {
        table.error_at_table(format!("`grant = \"{grant}\"` needs {missing}"), format!("add {missing}"));
    }
}
