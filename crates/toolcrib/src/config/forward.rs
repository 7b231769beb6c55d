//! Reads `forward` of a remote server.

use http::header::HeaderName;

use super::auth::{read_scopes, read_text, read_url};
use super::reader::TableReader;
use super::remote::is_reserved_header;
use crate::spec::{Forward, Sharing, TokenExchange};

/// Default of `forward-header`.
const DEFAULT_HEADER: &str = "X-Toolcrib-Caller";

/// Value of `forward`.
#[derive(Clone, Copy, PartialEq)]
enum ForwardKind {
    Nothing,
    Header,
    TokenExchange,
}

/// Reads what a remote server learns about the caller.
pub(super) fn read(reader: &mut TableReader<'_>) -> Forward {
    let kinds = [
        ("none", ForwardKind::Nothing),
        ("header", ForwardKind::Header),
        ("token-exchange", ForwardKind::TokenExchange),
    ];
    let kind = reader.choice("forward", &kinds).unwrap_or(ForwardKind::Nothing);
    let header = read_header(reader);
    let exchange = read_exchange(reader);
    for (key, needed) in
        [("forward-header", ForwardKind::Header), ("token-exchange", ForwardKind::TokenExchange)]
    {
        if reader.has(key) && kind != needed {
            let value = if needed == ForwardKind::Header { "header" } else { "token-exchange" };
            let message = format!("`{key}` requires `forward = \"{value}\"`");
            reader.error_at_value(key, message, format!("add `forward = \"{value}\"`, or remove `{key}`"));
        }
    }
    match (kind, exchange) {
        (ForwardKind::Nothing, _) => Forward::Nothing,
        (ForwardKind::Header, _) => Forward::Header(header),
        (ForwardKind::TokenExchange, Some(exchange)) => Forward::TokenExchange(Box::new(exchange)),
        (ForwardKind::TokenExchange, None) => {
            if !reader.has("token-exchange") {
                let message = "`forward = \"token-exchange\"` needs `token-exchange`";
                let hint = "write `token-exchange = { token-endpoint = \"https://…\", client-id = \"…\" }`";
                reader.error_at_value("forward", message, hint);
            }
            Forward::Nothing
        }
    }
}

fn read_header(reader: &mut TableReader<'_>) -> String {
    let written = reader.string("forward-header").unwrap_or(DEFAULT_HEADER);
    let name = written.to_ascii_lowercase();
    if HeaderName::from_bytes(name.as_bytes()).is_err() {
        let message = format!("invalid header name `{}`", written.escape_default());
        reader.error_at_value("forward-header", message, "write letters, digits and `-`");
    } else if is_reserved_header(&name) || name == "authorization" {
        let message = format!("the header `{written}` is set by toolcrib");
        reader.error_at_value("forward-header", message, "choose another, such as `X-Toolcrib-Caller`");
    }
    written.to_owned()
}

fn read_exchange(reader: &mut TableReader<'_>) -> Option<TokenExchange> {
    let mut table = reader.table("token-exchange")?;
    let token_endpoint = read_url(&mut table, "token-endpoint");
    let client_id = read_text(&mut table, "client-id");
    let client_secret = read_text(&mut table, "client-secret");
    let audience = table.string("audience").map(str::to_owned);
    let scopes = read_scopes(&mut table);
    if !table.has("token-endpoint") || !table.has("client-id") {
        let message = "`token-exchange` needs `token-endpoint` and `client-id`";
        table.error_at_table(message, "add the missing keys");
    }
    table.finish();
    let exchange = TokenExchange::new(token_endpoint?, client_id?);
    Some(TokenExchange { audience, client_secret, scopes, ..exchange })
}

/// Returns the sharing of a server that learns something about its caller, and reports one that cannot be.
pub(super) fn check_sharing(reader: &mut TableReader<'_>, forward: &Forward, sharing: Sharing) -> Sharing {
    if *forward == Forward::Nothing || sharing == Sharing::PerProject {
        return sharing;
    }
    if reader.has("sharing") && sharing != Sharing::PerCaller {
        let message = "`forward` needs a connection for each caller";
        reader.error_at_value("sharing", message, "write `sharing = \"per-caller\"`, or remove it");
    }
    Sharing::PerCaller
}
