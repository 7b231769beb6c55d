//! Secrets that somebody wrote out → references to what is kept elsewhere. A value that looks like a secret is never copied
//! into a config unasked; where it was it stays.

use std::collections::BTreeMap;

use toolcrib::Secret;

use super::draft::Draft;
use super::references::shouted;
use crate::secrecy;
use crate::secrets::Keeper;

/// What becomes of secrets.
#[derive(Debug, Clone)]
pub(crate) enum Lift {
    /// They stay where they are.
    Keep,
    /// Variables stand for them, which somebody has to set.
    Env,
    /// They go where secrets are kept.
    Store(Keeper),
}

/// The values that names stand for so far: two secrets never share one.
#[derive(Debug)]
pub(super) struct Names {
    how: Lift,
    known: BTreeMap<String, Secret>,
}

impl Names {
    pub(super) fn new(how: Lift) -> Self {
        Self { how, known: BTreeMap::new() }
    }

    /// A reference that stands for a value, and the name in it.
    fn stand_for(&mut self, wanted: &str, server: &str, value: &Secret) -> (String, String) {
        let spelled = |name: &str| match self.how {
            Lift::Store(_) => shouted(name).trim_start_matches('_').to_lowercase().replace('_', "-"),
            Lift::Keep | Lift::Env => shouted(name),
        };
        let own = spelled(&format!("{server}_{wanted}"));
        let candidates = [spelled(wanted), own.clone()]
            .into_iter()
            .chain((2..).map(|n| spelled(&format!("{server}_{wanted}_{n}"))));
        let free = |name: &String| match (self.known.get(name), &self.how) {
            (Some(known), _) => known == value,
            (None, Lift::Store(keeper)) => keeper.find(name).map_or_else(|_| true, |kept| kept == *value),
            (None, Lift::Keep | Lift::Env) => true,
        };
        let name = candidates.into_iter().filter(|name| !name.is_empty()).find(free).unwrap_or(own);
        self.known.insert(name.clone(), value.clone());
        let kind = if matches!(self.how, Lift::Store(_)) { "secret" } else { "env" };
        (format!("${{{kind}:{name}}}"), name)
    }
}

/// Puts references in place of secrets, notes which, and gives what each stands for.
pub(super) fn lift(draft: &mut Draft, server: &str, names: &mut Names) -> Vec<(String, Secret)> {
    let (mut notes, mut lifted) = (Vec::new(), Vec::new());
    if matches!(names.how, Lift::Keep) {
        return lifted;
    }
    let stored = matches!(names.how, Lift::Store(_));
    let mut replace = |field: String, wanted: &str, value: &str| {
        let value = Secret::new(value);
        let (reference, name) = names.stand_for(wanted, server, &value);
        notes.push(match stored {
            true => format!("`{field}` held a secret and is `{reference}` now; `toolcrib secret ls` has it"),
            false => {
                format!("`{field}` held a secret and is `{reference}` now: set `{name}` where toolcrib runs")
            }
        });
        lifted.push((name, value));
        reference
    };
    for (name, value) in &mut draft.env {
        if is_secret(name, value) {
            *value = replace(format!("env.{name}"), name, value);
        }
    }
    let of_server = |name: &str| format!("{server}_{name}");
    for (name, value) in &mut draft.headers {
        if is_secret(name, value) {
            let (scheme, secret) = value
                .rsplit_once(' ')
                .map_or(("", value.as_str()), |(_, word)| value.split_at(value.len() - word.len()));
            let wanted =
                if name.eq_ignore_ascii_case("authorization") { of_server("token") } else { of_server(name) };
            *value = format!("{scheme}{}", replace(format!("headers.{name}"), &wanted, secret));
        }
    }
    for index in 1..draft.argv.len() {
        let (before, word) = (draft.argv[index - 1].clone(), draft.argv[index].clone());
        let flag = |word: &str| word.starts_with('-') && secrecy::in_name(word);
        let flagged = flag(&before) && !before.contains('=');
        let field = format!("args[{}]", index - 1);
        if let Some((name, value)) = word.split_once('=').filter(|(name, value)| {
            let named = secrecy::in_name(name);
            !value.is_empty() && !value.contains("${") && (named || secrecy::in_value(value))
        }) {
            let reference = replace(field, &of_server(name.trim_start_matches('-')), value);
            draft.argv[index] = format!("{name}={reference}");
        } else if !word.starts_with('-') && !word.contains("${") && (flagged || secrecy::in_value(&word)) {
            let wanted =
                if flagged { of_server(before.trim_start_matches('-')) } else { of_server("secret") };
            draft.argv[index] = replace(field, &wanted, &word);
        }
    }
    if let Some(url) = &mut draft.url {
        *url = lifted_url(url, server, &mut replace);
    }
    draft.notes.extend(notes);
    lifted
}

fn is_secret(name: &str, value: &str) -> bool {
    !value.is_empty() && !value.contains("${") && (secrecy::in_name(name) || secrecy::in_value(value))
}

/// Passwords before the host, values behind the question mark, and parts of the path that are nothing but a key.
fn lifted_url(url: &str, server: &str, replace: &mut impl FnMut(String, &str, &str) -> String) -> String {
    let (address, query) = url.split_once('?').map_or((url, None), |(address, query)| (address, Some(query)));
    let mut parts: Vec<String> = address.split('/').map(str::to_owned).collect();
    for (index, part) in parts.iter_mut().enumerate().skip(2) {
        let user = part
            .split_once('@')
            .filter(|_| index == 2)
            .and_then(|(user, host)| Some((user.split_once(':')?, host)));
        if let Some(((name, password), host)) = user.filter(|((_, password), _)| !password.contains("${")) {
            *part = format!(
                "{name}:{}@{host}",
                replace("url".to_owned(), &format!("{server}_password"), password)
            );
        } else if index > 2 && !part.contains("${") && secrecy::in_value(part) {
            *part = replace("url".to_owned(), &format!("{server}_key"), part);
        }
    }
    let address = parts.join("/");
    let Some(query) = query else { return address };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, value)) if is_secret(name, value) => {
            format!("{name}={}", replace("url".to_owned(), &format!("{server}_{name}"), value))
        }
        _ => pair.to_owned(),
    });
    format!("{address}?{}", pairs.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "sk-abcdefgh12345678";

    #[test]
    fn secrets_are_lifted_wherever_they_stand() {
        let mut draft = Draft {
            argv: ["npx", "x", "--api-key", SECRET, "--token=abc", SECRET, "--root", "/a"]
                .map(str::to_owned)
                .to_vec(),
            url: Some(format!("https://me:pw@host/v1/{SECRET}?api_key=abc&page=2")),
            ..Draft::default()
        };
        draft
            .env
            .extend([("GITHUB_TOKEN".to_owned(), "abc".to_owned()), ("PAGER".to_owned(), "cat".to_owned())]);
        draft.env.insert("KEPT_TOKEN".to_owned(), "${env:KEPT_TOKEN}".to_owned());
        draft.headers.insert("Authorization".to_owned(), "Bearer abc".to_owned());
        draft.headers.insert("X-Api-Key".to_owned(), "abc".to_owned());
        lift(&mut draft, "a", &mut Names::new(Lift::Env));
        assert_eq!(draft.env["GITHUB_TOKEN"], "${env:GITHUB_TOKEN}");
        assert_eq!((&*draft.env["PAGER"], &*draft.env["KEPT_TOKEN"]), ("cat", "${env:KEPT_TOKEN}"));
        assert_eq!(draft.headers["Authorization"], "Bearer ${env:A_TOKEN}");
        assert_eq!(draft.headers["X-Api-Key"], "${env:A_X_API_KEY}");
        let args = [
            "npx",
            "x",
            "--api-key",
            "${env:A_API_KEY}",
            "--token=${env:A_TOKEN}",
            "${env:A_SECRET}",
            "--root",
            "/a",
        ];
        assert_eq!(draft.argv, args);
        assert_eq!(
            draft.url.as_deref(),
            Some("https://me:${env:A_PASSWORD}@host/v1/${env:A_KEY}?api_key=${env:A_A_API_KEY}&page=2")
        );
        assert!(!format!("{draft:?}").contains(SECRET) && draft.notes.len() == 9, "{:#?}", draft.notes);
    }

    #[test]
    fn two_secrets_never_share_a_name() {
        let mut names = Names::new(Lift::Env);
        let mut lifted = |server: &str, value: &str| {
            let mut draft = Draft::default();
            draft.env.insert("TOKEN".to_owned(), value.to_owned());
            lift(&mut draft, server, &mut names);
            draft.env["TOKEN"].clone()
        };
        assert_eq!(lifted("a", "one"), "${env:TOKEN}");
        assert_eq!(lifted("b", "one"), "${env:TOKEN}");
        assert_eq!(lifted("c", "two"), "${env:C_TOKEN}");
    }
}
