//! Secrets of a connection: the server gets them, and they are redacted everywhere else.

use std::path::Path;

use super::http::remote_server::{RemoteServer, Reply, stateless};
use super::*;
use crate::protocol::list_kind::ListKind;
use crate::spec::template::{Secret, SecretError, TemplateText};
use crate::spec::{CommandSpec, HttpSpec};

const VALUE: &str = "can4ry-w0rd/with+signs";

fn lookup(name: &str) -> Result<Secret, SecretError> {
    match name {
        "token" => Ok(Secret::new(VALUE)),
        "locked" => Err(SecretError::Locked("unlock it".to_owned())),
        _ => Err(SecretError::NotFound),
    }
}

async fn try_connect(spec: &ServerSpec) -> (Result<(Connection, Listing), StartFailure>, Arc<StderrTail>) {
    try_connect_with(spec, None, Some(SecretStoreHandle(Arc::new(lookup)))).await
}

fn text(written: &str) -> TemplateText {
    TemplateText::parse(written, Path::new("/")).unwrap()
}

fn remote(url: &str, header: &str) -> ServerSpec {
    let mut http = HttpSpec::new("");
    http.url = text(url);
    http.headers.insert("Authorization".into(), text(header));
    ServerSpec::http("remote".parse().unwrap(), http)
}

#[tokio::test]
async fn secret_is_sent_to_the_server_and_redacted_in_errors() {
    let server = RemoteServer::start(|request| match (request.method(), request.header("authorization")) {
        ("tools/call", Some(sent_header)) => {
            Reply::text(500, "text/plain", format!("bad token {sent_header}"))
        }
        _ => stateless(request),
    });
    let server = server.await;
    let (connection, _) = try_connect(&remote(&server.url, "Bearer ${secret:token}")).await.0.unwrap();
    let error = call(&connection, "echo", json!({})).await.unwrap_err();
    let sent_header = server.requests("tools/call")[0].header("authorization").map(str::to_owned);
    assert_eq!(sent_header, Some(format!("Bearer {VALUE}")));
    let output = format!("{error} {error:?} {} {connection:?}", error.data());
    assert!(
        error.to_string().contains("bad token Bearer [secret]") && !output.contains("can4ry"),
        "{output}"
    );
}

#[tokio::test]
async fn secret_in_a_json_rpc_error_is_redacted() {
    let server = RemoteServer::start(|request| match (request.method(), request.header("authorization")) {
        ("tools/call", Some(sent)) => {
            let error = json!({"code": -32000, "message": format!("bad {sent}"), "data": {"sent": [sent]}});
            Reply::json(200, &json!({"jsonrpc": "2.0", "id": request.body["id"], "error": error}))
        }
        _ => stateless(request),
    });
    let server = server.await;
    let (connection, _) = try_connect(&remote(&server.url, "Bearer ${secret:token}")).await.0.unwrap();
    let outcome = call(&connection, "echo", json!({})).await.unwrap();
    let ResponsePayload::Error(error) = &outcome.answer else { panic!("not an error: {outcome:?}") };
    let text = String::from_utf8_lossy(error);
    assert!(text.contains("bad Bearer [secret]") && !text.contains("can4ry"), "{text}");
}

#[tokio::test]
async fn secret_in_the_error_of_a_list_is_redacted() {
    let server = RemoteServer::start(|request| match (request.method(), request.header("authorization")) {
        ("tools/list", Some(sent)) => {
            let escaped = sent.replace('c', "\\u0063");
            let id = &request.body["id"];
            let error = format!(r#"{{"code":-32000,"message":"bad {sent}","data":["{escaped}"]}}"#);
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
            Reply::text(200, "application/json", body)
        }
        _ => stateless(request),
    });
    let server = server.await;
    let (_, listing) = try_connect(&remote(&server.url, "Bearer ${secret:token}")).await.0.unwrap();
    let failure = listing.unknown_list(ListKind::Tools).unwrap();
    let error: Value = serde_json::from_slice(&failure.error).unwrap();
    assert_eq!(error, json!({"code": -32000, "message": "bad Bearer [secret]", "data": ["Bearer [secret]"]}));
}

#[tokio::test]
async fn secret_in_a_url_is_redacted_in_errors() {
    let down =
        RemoteServer::start(|request| Reply::text(500, "text/plain", format!("no {}", request.path))).await;
    for url in [format!("{}/${{secret:token}}", down.url), "http://${secret:token}@127.0.0.1:1/".to_owned()] {
        let error = try_connect(&remote(&url, "x")).await.0.unwrap_err().error;
        let output = format!("{error} {error:?} {}", error.data());
        assert!(!output.contains("can4ry"), "{output}");
    }
    let error =
        try_connect(&remote("http://me:${secret:token}@127.0.0.1:1/", "x")).await.0.unwrap_err().error;
    assert!(
        error.to_string().contains("`${secret:token}` has characters that are not allowed in a host"),
        "{error}"
    );
}

#[tokio::test]
async fn secret_in_process_output_is_redacted() {
    let script = "echo \"token $TOKEN\" >&2; echo \"I was told $TOKEN\"; exit 3";
    let mut command = CommandSpec::new("sh").args(["-c", script]);
    command.env.insert("TOKEN".into(), text("${secret:token}"));
    let (failed, stderr) = try_connect(&ServerSpec::command("loud".parse().unwrap(), command)).await;
    let error = failed.unwrap_err().error;
    let lines = stderr.lines_after(0);
    let output = format!("{error} {error:?} {} {lines:?}", error.data());
    assert!(lines[0].text == "token [secret]" && !output.contains("can4ry"), "{output}");
}

#[tokio::test]
async fn missing_secret_fails_the_start_with_a_hint() {
    for (name, message, hint) in [
        ("other", "secret `other` is not set", "set the secret `other`"),
        ("locked", "secret `locked` is locked", "unlock it"),
    ] {
        let mut command = CommandSpec::new("touch").arg("/nowhere/at-all");
        command.env.insert("TOKEN".into(), text(&format!("${{secret:{name}}}")));
        let (failed, stderr) = try_connect(&ServerSpec::command("git".parse().unwrap(), command)).await;
        let error = failed.unwrap_err().error;
        assert_eq!(error.to_string(), format!("`git` could not start: {message}"));
        assert_eq!((error.kind(), error.class()), (ErrorKind::AuthNeeded, Some(FailureClass::NeedsAuth)));
        assert_eq!(
            (error.hint().to_string(), stderr.last_number()),
            (hint.to_owned(), 0),
            "it was not started"
        );
    }
}
