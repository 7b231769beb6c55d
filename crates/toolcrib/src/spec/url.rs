//! The URLs of remote servers.

use http::Uri;

/// Parses the URL of a server. The error does not quote the text, which may contain a secret.
pub(crate) fn parse_url(text: &str) -> Result<Uri, &'static str> {
    let uri: Uri = text.trim().parse().map_err(|_| "it is not a URL")?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
            Err("it contains a user name or password, which is not supported")
        }
        (Some("http" | "https"), Some(_)) if uri.host().is_some_and(|host| !host.is_empty()) => Ok(uri),
        _ => Err("it must start with `https://` or `http://` and a host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_url_accepts_only_http_urls_with_a_host() {
        for good in ["https://example.test/mcp", "http://127.0.0.1:80", "http://[::1]:7717/x?y=z"] {
            assert!(parse_url(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "example.test",
            "/mcp",
            "ftp://x/",
            "https://",
            "https://user:pass@x/",
            "http:/x",
            "h ttp://x",
        ] {
            assert!(parse_url(bad).is_err(), "{bad}");
        }
    }
}
