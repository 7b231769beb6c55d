//! Servers with an instance per caller: each caller has a login of its own.

use toolcrib::oauth::{Login, LoginRequest};
use toolcrib::{Call, Caller, Crib, Error, ErrorKind, Hint, Outcome, ServerSpec, Sharing};

use super::authorization_server::AuthorizationServer;
use super::{Machine, REDIRECT, browse, id, spec};

fn per_caller(url: &str) -> ServerSpec {
    spec(url).sharing(Sharing::PerCaller)
}

async fn call(crib: &Crib, caller: &str) -> Result<Outcome, Error> {
    crib.call(Call::tool("remote__echo").caller(Caller::new(caller))).await
}

async fn log_in(machine: &Machine, url: &str, caller: &str) {
    let logins = machine.logins().for_caller(&Caller::new(caller));
    let request = LoginRequest { server: &per_caller(url), logins: &logins, redirect_uri: REDIRECT };
    let login = Login::start(request).await.unwrap();
    let redirect = browse(login.url()).await;
    login.finish(&redirect).await.unwrap();
}

#[tokio::test]
async fn callers_use_only_their_own_logins() {
    let server = AuthorizationServer::start().await;
    let url = server.url();
    let machine = Machine::new();
    let crib = Crib::builder().server(per_caller(&url)).secrets(machine.secrets.clone());
    let crib = crib.state_dir(machine.state_dir()).build().unwrap();
    for (caller, hint) in [
        ("bob", Hint::LoginAs { server: id(), caller: "bob".to_owned() }),
        ("local", Hint::Login { server: id() }),
    ] {
        let error = call(&crib, caller).await.unwrap_err();
        assert_eq!((error.kind(), error.hint()), (ErrorKind::AuthNeeded, hint), "{error}");
    }

    // The failures of others do not delay a caller that has logged in, whose listing is the first one.
    log_in(&machine, &url, "alice").await;
    assert_eq!(call(&crib, "alice").await.unwrap().text(), "hello");
    // `Alice` is another caller, also where files are the same in lower case.
    for other in ["bob", "local", "Alice"] {
        assert_eq!(call(&crib, other).await.unwrap_err().kind(), ErrorKind::AuthNeeded, "{other}");
    }
    for caller in ["bob", "local"] {
        log_in(&machine, &url, caller).await;
        crib.reconnect(&id(), &Caller::new(caller)).await.unwrap();
        call(&crib, caller).await.unwrap();
    }
    call(&crib, "alice").await.unwrap();
    assert_eq!(server.issued.lock().unwrap().calls, ["access-1", "access-2", "access-3", "access-1"]);

    let logins = machine.logins();
    let callers = [Caller::new("alice"), Caller::new("bob")];
    assert_eq!(logins.callers(&id()), callers);
    assert!(logins.for_caller(&callers[0]).log_out(&id()).await.unwrap());
    assert_eq!(logins.callers(&id()), callers[1..]);
    assert!(logins.summary(&id()).is_some(), "the login of the local user");
}
