//! The variables that servers inherit from this process, and the credentials in their values.

use std::ffi::OsString;

use super::platform;
use crate::spec::Endpoint;
use crate::util::encoding;

/// Variables that every server inherits: the user's environment, and how to reach a network behind a proxy. Names of
/// variables for proxies are used in both cases.
const INHERITED: [&str; 22] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "TERM",
    "TMPDIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
];

/// Starts of the names of other variables that every server inherits: locale, folders, and settings of package managers.
const INHERITED_PREFIXES: [&str; 6] = ["LC_", "XDG_", "npm_config_", "NPM_CONFIG_", "UV_", "PIP_"];

/// Words in the names of variables that hold secrets. Servers get these only if `inherit-env` or `env` names them.
const SECRET_WORDS: [&str; 4] = ["TOKEN", "PASSWORD", "SECRET", "AUTH"];

/// The user of a URL without a password is taken for a token from this length on.
const MIN_TOKEN_LENGTH: usize = 16;

/// Returns whether every server inherits a variable.
fn is_inherited(name: &str) -> bool {
    let has_prefix = INHERITED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let upper = name.to_ascii_uppercase();
    let is_of_platform = platform::INHERITED.iter().any(|inherited| inherited.eq_ignore_ascii_case(name));
    let is_secret = || SECRET_WORDS.iter().any(|word| upper.contains(word));
    INHERITED.contains(&name) || is_of_platform || has_prefix && !is_secret()
}

/// Returns the variables of this process that a server inherits, besides the standard ones those in `inherit_env`.
pub(crate) fn inherited_env(inherit_env: &[String]) -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        is_inherited(&name) || inherit_env.iter().any(|inherited| *inherited == name)
    })
}

/// Returns the credentials in URLs of a server's environment, such as the password of a proxy. They are not for output.
pub(crate) fn find_credentials(endpoint: &Endpoint) -> Vec<String> {
    let (inherit_env, env) = match endpoint {
        Endpoint::Command(command) => (command.inherit_env.as_slice(), Some(&command.env)),
        // The connection to a remote server may use a proxy.
        Endpoint::Http(_) | Endpoint::InProcess(_) => (&[][..], None),
    };
    let inherited = inherited_env(inherit_env).filter_map(|(_, value)| value.into_string().ok());
    let declared = env.into_iter().flat_map(|env| env.values()).map(|value| value.source().to_owned());
    inherited.chain(declared).flat_map(|value| url_credentials(&value)).collect()
}

/// Returns the user with the password, and the password, of a URL such as `http://user:password@proxy:8080`.
fn url_credentials(value: &str) -> Vec<String> {
    let Some((_, rest)) = value.split_once("://") else { return Vec::new() };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let Some((user_info, _)) = authority.rsplit_once('@') else { return Vec::new() };
    let Some((_, password)) = user_info.split_once(':') else {
        // A user name is not secret, a token is.
        return if user_info.len() < MIN_TOKEN_LENGTH { Vec::new() } else { vec![user_info.to_owned()] };
    };
    let decoded = encoding::percent_decode_lossy(password).into_owned();
    vec![user_info.to_owned(), password.to_owned(), decoded]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_and_package_variables_are_inherited_without_secrets() {
        for name in ["PATH", "LC_ALL", "https_proxy", "SSL_CERT_FILE", "npm_config_registry", "UV_INDEX_URL"]
        {
            assert!(is_inherited(name), "{name}");
        }
        for name in [
            "GITHUB_TOKEN",
            "FTP_PROXY",
            "npm_config__authToken",
            "npm_config_//registry.example/:_password",
            "UV_PUBLISH_TOKEN",
            "UV_INDEX_WORK_PASSWORD",
            "PIP_CLIENT_SECRET",
            "XDG_ACTIVATION_TOKEN",
        ] {
            assert!(!is_inherited(name), "{name}");
        }
    }

    #[test]
    fn credentials_of_urls_are_found() {
        assert_eq!(url_credentials("http://me:p%40ss@proxy.example:8080/"), ["me:p%40ss", "p%40ss", "p@ss"]);
        let token = url_credentials("https://0123456789abcdef@index.example/simple");
        assert_eq!(token, ["0123456789abcdef"]);
        for plain in [
            "https://user@index.example",
            "http://proxy.example:8080",
            "localhost,.example",
            "",
            "https://h/a@b",
        ] {
            assert!(url_credentials(plain).is_empty(), "{plain}");
        }
    }
}
