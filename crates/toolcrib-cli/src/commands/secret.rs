//! `toolcrib secret`: values for `${secret:NAME}`, set without anybody looking on, listed by name, removed.

use std::io::{IsTerminal as _, Read as _};

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::Secret;
use toolcrib::text::is_secret_name;
use zeroize::Zeroizing;

use crate::cli::{SecretCommand, SetSecret};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::place::Place;
use crate::secrets::{Keeper, Uses};
use crate::typed;

/// The largest value.
const LARGEST: usize = 64 << 10;

/// Sets, lists or removes.
pub(crate) fn run(command: &SecretCommand, place: &Place, out: &mut Output) -> Result<Exit> {
    let config = place.sources().load();
    if config.refused() {
        return Err(Failure::bad_config(&config).into());
    }
    let (keeper, uses) = (Keeper::new(place, &config.secrets), Uses::of(&config));
    match command {
        SecretCommand::Set(args) => set(args, &keeper, &uses, out),
        SecretCommand::Ls => ls(&keeper, &uses, out),
        SecretCommand::Rm(args) => rm(&args.name, &keeper, &uses, out),
    }
}

fn set(args: &SetSecret, keeper: &Keeper, uses: &Uses, out: &mut Output) -> Result<Exit> {
    let name = &args.name;
    named(name)?;
    if args.value.is_some() {
        let message = "a value on the command line can be seen by everybody on this machine";
        let hint = format!("type it when `toolcrib secret set {name}` asks, or pipe it in");
        return Err(Failure::usage(message).hint(hint).into());
    }
    let value = value(name, out)?;
    let kept = keeper.set(name, &value)?;
    let users = uses.users(name);
    if out.json {
        out.value(&json!({"name": name, "backend": kept.as_str(), "used_by": users}))?;
        return Ok(Exit::Fine);
    }
    out.say(&format!("`{name}` is set"))?;
    out.say(&keeper.advice(kept))?;
    for server in users.iter().filter(|user| !user.starts_with("callers.")) {
        out.say(&format!("`{server}` gets it when it starts; one that runs: toolcrib restart {server}"))?;
    }
    Ok(Exit::Fine)
}

fn named(name: &str) -> Result<(), Failure> {
    match is_secret_name(name) {
        true => Ok(()),
        false => Err(Failure::usage(format!("no secret can be called `{}`", name.escape_default()))
            .hint("use letters, digits, `-`, `_`, `.` and `/`, such as `github-token`")),
    }
}

/// What somebody types, or what stdin holds if it is no terminal.
fn value(name: &str, out: &Output) -> Result<Secret, Failure> {
    let broken = |error: std::io::Error| {
        Failure::new(Exit::Unexpected, "no_value", format!("the value cannot be read: {error}"))
    };
    let text = if std::io::stdin().is_terminal() {
        if !out.asker().is_there() {
            return Err(Failure::usage("nobody may be asked for the value")
                .hint(format!("pipe it in: … | toolcrib secret set {name}")));
        }
        typed::unseen(&format!("value of `{name}`: "))
            .map_err(broken)?
            .ok_or_else(|| Failure::new(Exit::Interrupted, "interrupted", "nothing was set"))?
    } else {
        let mut text = Zeroizing::new(String::new());
        std::io::stdin().take(LARGEST as u64 + 2).read_to_string(&mut text).map_err(broken)?;
        text
    };
    let value = text.strip_suffix('\n').unwrap_or(&text);
    let value = value.strip_suffix('\r').unwrap_or(value);
    let wrong = match value.len() {
        0 => Some("the value is empty"),
        1..=LARGEST => value.contains('\0').then_some("the value has a null byte in it"),
        _ => Some("the value is larger than 64 KiB"),
    };
    match wrong {
        Some(why) => Err(Failure::new(Exit::Unexpected, "bad_value", why)),
        None => Ok(Secret::new(value)),
    }
}

fn ls(keeper: &Keeper, uses: &Uses, out: &mut Output) -> Result<Exit> {
    let kept = keeper.names(uses)?;
    let names: std::collections::BTreeSet<&String> = kept.keys().chain(uses.names()).collect();
    let place = |name: &String| kept.get(name).map(|kept| kept.as_str());
    if out.json {
        let secrets = names.iter().map(|name| {
            json!({"name": name, "backend": place(name), "set": kept.contains_key(*name), "used_by": uses.users(name)})
        });
        out.value(&Value::Array(secrets.collect()))?;
        return Ok(Exit::Fine);
    }
    let rows: Vec<Vec<String>> = names
        .iter()
        .map(|name| {
            let users = uses.users(name).join(", ");
            vec![(*name).clone(), place(name).unwrap_or("not set").to_owned(), users]
        })
        .collect();
    if rows.is_empty() {
        out.say("no secrets")?;
    } else {
        out.rows(&["NAME", "KEPT IN", "USED BY"], &rows)?;
    }
    Ok(Exit::Fine)
}

fn rm(name: &str, keeper: &Keeper, uses: &Uses, out: &mut Output) -> Result<Exit> {
    named(name)?;
    if !keeper.remove(name)? {
        let message = format!("there is no secret `{name}`");
        return Err(Failure::new(Exit::Unexpected, "unknown_secret", message)
            .hint("toolcrib secret ls")
            .into());
    }
    if out.json {
        out.value(&json!({"name": name, "removed": true, "used_by": uses.users(name)}))?;
    } else {
        out.say(&format!("`{name}` is gone"))?;
    }
    match uses.users(name).join(", ") {
        users if users.is_empty() => {}
        users => out.warn(&format!("`{name}` is still used by {users}"), None)?,
    }
    Ok(Exit::Fine)
}
