//! Web pages of other origins that the config allows: answers the requests with which browsers ask for permission, and lets the pages
//! read responses (CORS).

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use hyper::{HeaderMap, Method, Response, StatusCode};

use crate::body::ResponseBody;

/// Methods of the endpoints.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
/// Headers of responses that clients need.
const EXPOSED_HEADERS: HeaderValue =
    HeaderValue::from_static("Mcp-Session-Id, WWW-Authenticate, Retry-After");
/// Seconds for which a browser keeps the permission.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// Returns the response to a browser that asks whether an allowed page may send a request; `None` for the request itself. Which
/// headers the page may send is for the endpoint to decide.
pub(crate) fn answer_preflight(method: &Method, headers: &HeaderMap) -> Option<Response<ResponseBody>> {
    if method != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    answer.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    for requested in headers.get_all(ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.append(ACCESS_CONTROL_ALLOW_HEADERS, requested.clone());
    }
    Some(response)
}

/// Lets an allowed page read a response.
pub(crate) fn allow(response: &mut Response<ResponseBody>, page: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, page);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    headers.append(VARY, HeaderValue::from(ORIGIN));
}
