//! Static files of a web page that is part of the program.

use bytes::Bytes;
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    HeaderName, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{HeaderMap, Method, Response, StatusCode};

use crate::body::ResponseBody;
use crate::response::error_response;

/// The page runs only its own scripts, loads nothing from elsewhere, and cannot be framed. Images are also those in results of
/// tools.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data: blob:; media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// A file of a web page.
#[derive(Debug, Clone, Copy)]
pub struct StaticFile {
    /// The path of its URL.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// The entity tag, in quotes.
    pub etag: &'static str,
    /// The content.
    pub content: &'static [u8],
    /// The content, compressed with gzip.
    pub gzip: &'static [u8],
}

/// Returns the response to a request for a file.
pub(crate) fn respond(file: &StaticFile, method: &Method, headers: &HeaderMap) -> Response<ResponseBody> {
    if method != Method::GET && method != Method::HEAD {
        let mut response = error_response(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use GET");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let contains = |name: HeaderName, text: &str| {
        headers.get_all(name).iter().any(|value| value.to_str().is_ok_and(|value| value.contains(text)))
    };
    if contains(IF_NONE_MATCH, file.etag) {
        return with_headers(StatusCode::NOT_MODIFIED, ResponseBody::empty(), file);
    }
    let is_compressed = accepts_gzip(headers);
    let content = if is_compressed { file.gzip } else { file.content };
    let body = match *method == Method::HEAD {
        true => ResponseBody::empty(),
        false => ResponseBody::full(Bytes::from_static(content)),
    };
    let mut response = with_headers(StatusCode::OK, body, file);
    if is_compressed {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// Returns whether a client accepts content that is compressed with gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        matches!(name.trim(), "gzip" | "*") && weight != Some(0.0)
    })
}

fn with_headers(status: StatusCode, body: ResponseBody, file: &StaticFile) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, file.content_type),
        (ETAG, file.etag),
        // Every use asks whether the file is the same: the next version of the program has others.
        (CACHE_CONTROL, "no-cache"),
        (VARY, "accept-encoding"),
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (OPENER_POLICY, "same-origin"),
        (RESOURCE_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: StaticFile = StaticFile {
        path: "/",
        content_type: "text/html",
        etag: "\"1\"",
        content: b"plain",
        gzip: b"compressed",
    };

    fn get(method: &Method, pairs: &[(HeaderName, &str)]) -> Response<ResponseBody> {
        let pairs = pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()));
        respond(&FILE, method, &pairs.collect())
    }

    #[test]
    fn file_is_sent_once_with_a_strict_policy() {
        let response = get(&Method::GET, &[(ACCEPT_ENCODING, "br, gzip")]);
        assert_eq!((response.status(), response.body().len()), (StatusCode::OK, FILE.gzip.len()));
        let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        let known = get(&Method::GET, &[(ACCEPT_ENCODING, "gzip"), (IF_NONE_MATCH, "W/\"0\", \"1\"")]);
        assert_eq!((known.status(), known.body().len()), (StatusCode::NOT_MODIFIED, 0));
        assert_eq!(get(&Method::HEAD, &[(ACCEPT_ENCODING, "gzip")]).body().len(), 0);
        assert_eq!(get(&Method::POST, &[]).status(), StatusCode::METHOD_NOT_ALLOWED);
    }

    #[test]
    fn client_without_gzip_gets_the_plain_file() {
        for accepted in [None, Some("identity"), Some("br"), Some("gzip;q=0, br")] {
            let headers: Vec<_> = accepted.map(|accepted| (ACCEPT_ENCODING, accepted)).into_iter().collect();
            let response = get(&Method::GET, &headers);
            assert_eq!(response.status(), StatusCode::OK, "{accepted:?}");
            assert_eq!(response.body().len(), FILE.content.len(), "{accepted:?}");
            assert_eq!(response.headers().get(CONTENT_ENCODING), None, "{accepted:?}");
            assert_eq!(response.headers()[VARY], "accept-encoding");
        }
        for accepted in ["gzip", "br;q=1.0, gzip;q=0.8", "*"] {
            let response = get(&Method::GET, &[(ACCEPT_ENCODING, accepted)]);
            assert_eq!(response.headers()[CONTENT_ENCODING], "gzip", "{accepted}");
        }
    }
}
