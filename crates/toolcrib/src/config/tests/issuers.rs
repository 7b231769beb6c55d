//! `[issuers]`, `[groups]` and callers that tokens of issuers identify.

use super::*;
use crate::model::caller::Caller;

#[test]
fn issuers_and_groups_are_read() {
    let config = toml(
        "[issuers.corp]\nissuer = 'https://login.example/'\n\
         [issuers.ci]\nissuer = 'http://localhost:9/x'\naudience = 'tools'\njwks = 'keys.json'\nalgorithms = ['ES256']\n\
         caller-claim = 'email'\ngroups-claim = 'roles'\nscopes = ['openid']\ngroups = ['dev']\n\
         [groups.dev]\nissuers = ['corp', 'ci']\nallow = ['git.*']\nadmin = true\nquota = { calls = 9, per = '1h' }\nin-flight = 2\nexpose = 'search'\n\
         [groups.'Team A']\nissuers = ['corp']\n[profiles.work]\ngroups = ['dev']\n\
         [callers.bot]\ntoken = 'x'\ngroups = ['Team A']\n\
         [callers.'corp:ada']\nadmin = true\nprofile = 'work'\ndeny = ['git.push']\n\
         [servers.git]\ncommand = 'x'\n[listen]\npublic-url = 'https://tools.example/'",
    );
    assert_eq!(problem_lines(&config), [""; 0]);
    let [corp, ci] = &config.issuers[..] else { panic!("{:?}", config.issuers) };
    assert_eq!((corp.name.as_str(), corp.issuer.as_str()), ("corp", "https://login.example/"));
    assert_eq!((&corp.keys, corp.algorithms.len()), (&KeySource::Metadata, 9));
    assert_eq!((corp.caller_claim.as_str(), corp.groups_claim.as_str()), ("sub", "groups"));
    assert_eq!(ci.keys, KeySource::File("/folder/keys.json".into()));
    assert_eq!(
        (ci.audience.as_deref(), &ci.algorithms[..]),
        (Some("tools"), &[SignatureAlgorithm::Es256][..])
    );
    assert_eq!((ci.caller_claim.as_str(), ci.groups_claim.as_str()), ("email", "roles"));
    assert_eq!((&ci.groups[..], &ci.scopes[..]), (&["dev".to_owned()][..], &["openid".to_owned()][..]));
    assert_eq!(config.policy.groups.keys().collect::<Vec<_>>(), ["Team A", "dev"]);
    assert_eq!(config.policy.profiles["work"].groups, ["dev"]);
    assert_eq!(config.callers[0].groups, ["Team A"]);
    assert_eq!(config.issued_callers[0].name, "corp:ada");
    assert_eq!(config.policy.callers["corp:ada"].deny.len(), 1);
    let member = Caller::with_groups("corp:x", ["dev".to_owned()]);
    let limits = config.usage_limits.limits_for(&member).map(|(owner, limit)| limit.config_key(owner));
    assert_eq!(limits.collect::<Vec<_>>(), ["groups.dev.quota"]);
    assert_eq!(config.usage_limits.groups_in_flight["dev"].get(), 2);
    assert!(config.expose.is_search(&member, None, || 0));
    assert!(config.requires_tokens());
    assert_eq!(config.listen.public_url.as_deref(), Some("https://tools.example"));
}

#[test]
fn group_that_every_issuer_can_name_is_noted() {
    let issuers =
        "[issuers.corp]\nissuer = 'https://a.example'\n[issuers.partner]\nissuer = 'https://b.example'\n";
    let config = toml(&format!("{issuers}[groups.ops]\nadmin = true\n[groups.dev]\nissuers = ['corp']"));
    assert_eq!(
        problem_lines(&config),
        ["5:9 NOTE: tokens of every issuer can name the group `ops`: `corp`, `partner`"]
    );
    let trusts = |group: usize| ["corp", "partner"].map(|issuer| config.groups[group].trusts(issuer));
    assert_eq!((trusts(0), trusts(1)), ([true, true], [true, false]));
    let one_issuer = toml("[issuers.corp]\nissuer = 'https://a.example'\n[groups.ops]\nadmin = true");
    assert_eq!(problem_lines(&one_issuer), [""; 0]);
}

#[test]
fn problem_of_an_issuer_refuses_the_config() {
    for (text, message) in [
        ("[issuers.a]", "1:10 CONFIG: `issuers.a` has no `issuer`"),
        (
            "[issuers.a]\nissuer = 'login.example'",
            "2:10 CONFIG: `issuers.a.issuer`: it must start with `https://` or `http://` and a host",
        ),
        (
            "[issuers.a]\nissuer = 'http://login.example'",
            "2:10 CONFIG: `issuers.a.issuer` must use https: anyone on the network could forge tokens",
        ),
        (
            "[issuers.a]\nissuer = 'https://x'\nalgorithms = ['none']",
            "3:15 CONFIG: tokens without a signature are never accepted",
        ),
        (
            "[issuers.a]\nissuer = 'https://x'\nalgorithms = ['HS256']",
            "3:15 CONFIG: `HS256` needs a shared secret and is not supported",
        ),
        (
            "[issuers.a]\nissuer = 'https://x'\nalgorithms = ['RS1']",
            "3:15 CONFIG: unknown signature algorithm `RS1`",
        ),
        (
            "[issuers.a]\nissuer = 'https://x'\nalgorithms = []",
            "3:14 CONFIG: `algorithms` is empty: no token would be accepted",
        ),
        ("[issuers.a]\nissuer = 'https://x'\naudience = ''", "3:12 CONFIG: `issuers.a.audience` is empty"),
        (
            "[issuers.a]\nissuer = 'https://x'\n[issuers.b]\nissuer = 'https://x'",
            "3:10 CONFIG: `issuers.a` and `issuers.b` have the same `issuer`",
        ),
        (
            "[issuers.'a:b']\nissuer = 'https://x'",
            "1:10 CONFIG: invalid issuer name `a:b`: a name contains only `a-z`, `0-9`, `-` and `_`, and starts with a letter or digit",
        ),
        ("[callers.'corp:ada']", "1:10 CONFIG: invalid caller name `corp:ada`: no issuer is called `corp`"),
        ("[groups.dev]\nissuers = ['corp']", "2:12 CONFIG: unknown issuer `corp`"),
        (
            "[groups.dev]\nissuers = []",
            "2:11 CONFIG: `groups.dev.issuers` is empty: no token could name the group",
        ),
        ("[groups.dev]\n[profiles.p]\ngroups = ['dve']", "3:11 CONFIG: unknown group `dve`"),
        (
            "[listen]\npublic-url = 'tools.example'",
            "2:14 CONFIG: `listen.public-url`: it must start with `https://` or `http://` and a host",
        ),
        (
            "[listen]\npublic-url = 'https://tools.example/mcp'",
            "2:14 CONFIG: `listen.public-url`: it must not contain the path of an endpoint",
        ),
    ] {
        let config = toml(text);
        assert_eq!(problem_lines(&config), [message], "{text}");
        assert!(config.is_refused());
    }
}

#[test]
fn agents_are_callers_that_need_no_token() {
    let config = toml(
        "[profiles.work]\n[profiles.agent-qwen]\n[servers.git]\ncommand = 'x'\n\
         [callers.'agent:codex']\ndeny = ['git.push']\nprofile = 'work'\nquota = { calls = 9, per = '1h' }\nexpose = 'search'\n",
    );
    assert_eq!(problem_lines(&config), [""; 0]);
    assert!(!config.requires_tokens() && config.callers.is_empty() && config.issued_callers.is_empty());
    let caller = |agent, profile| config.policy.local_caller(agent, profile);
    let codex = caller(Some("codex"), None);
    assert_eq!((codex.as_str(), codex.profile(), codex.is_local()), ("agent:codex", Some("work"), true));
    assert_eq!(codex.agent_name(), Some("codex"));
    assert_eq!(caller(Some("codex"), Some("other")).profile(), Some("other"));
    assert_eq!(caller(Some("qwen"), None).profile(), Some("agent-qwen"));
    assert_eq!(caller(Some("claude"), None).profile(), None);
    assert_eq!((caller(None, None), caller(None, None).profile()), (Caller::local(), None));
    let impostor = Caller::new("agent:codex");
    assert!(!impostor.is_local() && impostor.agent_name().is_none(), "only the program names agents");
    let limits = config.usage_limits.limits_for(&codex).map(|(owner, limit)| limit.config_key(owner));
    assert_eq!(limits.collect::<Vec<_>>(), ["callers.agent:codex.quota"]);
    assert!(config.expose.is_search(&codex, None, || 0));
}

#[test]
fn agents_get_no_rights_and_their_issuer_is_reserved() {
    let config = toml(
        "[issuers.agent]\nissuer = 'https://a.example'\n[callers.'agent:codex']\nadmin = true\ntoken = 'x'\n\
         [callers.'agent:']\n[callers.'agent:A b']\n",
    );
    let expected = [
        "1:10 CONFIG: the issuer name `agent` is reserved for the agents of this user",
        "4:9 CONFIG: `callers.agent:codex.admin` has no meaning: an agent has the rights of `local`",
        "5:9 CONFIG: `callers.agent:codex.token` has no meaning: an agent has the rights of `local`",
        "6:10 CONFIG: invalid name of an agent ``",
        "7:10 CONFIG: invalid name of an agent `A b`",
    ];
    let found = problem_lines(&config);
    for problem in expected {
        assert!(found.iter().any(|found| found.starts_with(problem)), "{problem} in {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}
