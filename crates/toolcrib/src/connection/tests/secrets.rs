//! What becomes of the secrets of a connection: its server gets them, and nobody else hears of them.

use std::path::Path;

use super::http::far::{Far, Reply, stateless};
use super::*;
use crate::spec::{CommandSpec, HttpSpec};
use crate::text::{NoSecret, Secret, Text};

const VALUE: &str = "can4ry-w0rd/with+signs";

fn knows(name: &str) -> Result<Secret, NoSecret> {
    match name {
        "token" => Ok(Secret::new(VALUE)),
        "locked" => Err(NoSecret::Locked("unlock it".to_owned())),
        _ => Err(NoSecret::NotFound),
    }
}

async fn launched(spec: &ServerSpec) -> (Result<(Connection, Listing), StartFailure>, Arc<StderrTail>) {
    launched_with(spec, None, Some(Source(Arc::new(knows)))).await
}

fn text(written: &str) -> Text {
    Text::parse(written, Path::new("/")).unwrap()
}

fn remote(url: &str, header: &str) -> ServerSpec {
    let mut http = HttpSpec::new("");
    http.url = text(url);
    http.headers.insert("Authorization".into(), text(header));
    ServerSpec::http("far".parse().unwrap(), http)
}

#[tokio::test]
async fn a_remote_server_is_shown_the_secret_and_what_it_says_of_it_is_not_repeated() {
    let far = Far::start(|seen| match (seen.what(), seen.header("authorization")) {
        ("tools/call", Some(shown)) => Reply::text(500, "text/plain", format!("bad token {shown}")),
        _ => stateless(seen),
    });
    let far = far.await;
    let (connection, _) = launched(&remote(&far.url, "Bearer ${secret:token}")).await.0.unwrap();
    let error = call(&connection, "echo", json!({})).await.unwrap_err();
    let shown = far.seen("tools/call")[0].header("authorization").map(str::to_owned);
    assert_eq!(shown, Some(format!("Bearer {VALUE}")));
    let said = format!("{error} {error:?} {} {connection:?}", error.data());
    assert!(error.to_string().contains("bad token Bearer [secret]") && !said.contains("can4ry"), "{said}");
}

#[tokio::test]
async fn a_secret_in_an_address_is_in_no_error_about_it() {
    let down = Far::start(|seen| Reply::text(500, "text/plain", format!("no {}", seen.path))).await;
    for url in [format!("{}/${{secret:token}}", down.url), "http://${secret:token}@127.0.0.1:1/".to_owned()] {
        let error = launched(&remote(&url, "x")).await.0.unwrap_err().error;
        let said = format!("{error} {error:?} {}", error.data());
        assert!(!said.contains("can4ry"), "{said}");
    }
    let error = launched(&remote("http://me:${secret:token}@127.0.0.1:1/", "x")).await.0.unwrap_err().error;
    assert!(error.to_string().contains("`${secret:token}` holds what no host can"), "{error}");
}

#[tokio::test]
async fn what_a_child_says_of_its_secret_is_masked_wherever_it_is_kept() {
    let script = "echo \"token $TOKEN\" >&2; echo \"I was told $TOKEN\"; exit 3";
    let mut command = CommandSpec::new("sh").args(["-c", script]);
    command.env.insert("TOKEN".into(), text("${secret:token}"));
    let (failed, stderr) = launched(&ServerSpec::command("loud".parse().unwrap(), command)).await;
    let error = failed.unwrap_err().error;
    let lines = stderr.after(0);
    let said = format!("{error} {error:?} {} {lines:?}", error.data());
    assert!(lines[0].1 == "token [secret]" && !said.contains("can4ry"), "{said}");
}

#[tokio::test]
async fn a_secret_that_cannot_be_had_keeps_its_server_from_starting_and_says_what_to_type() {
    for (name, words, hint) in [
        ("other", "there is no secret `other`", "toolcrib secret set other"),
        ("locked", "the secret `locked` is locked away", "unlock it"),
    ] {
        let mut command = CommandSpec::new("touch").arg("/nowhere/at-all");
        command.env.insert("TOKEN".into(), text(&format!("${{secret:{name}}}")));
        let (failed, stderr) = launched(&ServerSpec::command("git".parse().unwrap(), command)).await;
        let error = failed.unwrap_err().error;
        assert_eq!(error.to_string(), format!("`git` could not start: {words}"));
        assert_eq!((error.kind(), error.class()), (ErrorKind::AuthNeeded, Some(FailureClass::NeedsAuth)));
        assert_eq!((error.advice(), stderr.last()), (hint.to_owned(), 0), "it was not started");
    }
}
