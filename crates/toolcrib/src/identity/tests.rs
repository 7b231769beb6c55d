//! Tests of tokens and key sets: every algorithm, forged tokens, and documents that cannot be used.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use super::*;
use crate::config::{Config, SignatureAlgorithm};

/// Keys and a token for each algorithm, made with another library.
const VECTORS: &str = include_str!("tests/vectors.json");
const ISSUER: &str = "https://login.example";
const RESOURCE: &str = "https://tools.example/mcp";

/// The time at which tokens of these tests are used.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn seconds(offset: i64) -> i64 {
    1_800_000_000 + offset
}

fn issuer(settings: &str) -> IssuerSpec {
    let text = format!("[issuers.corp]\nissuer = '{ISSUER}'\n{settings}\n[groups.dev]\n");
    let config = Config::parse(std::path::Path::new("/x/config.toml"), &text);
    assert!(config.problems.is_empty(), "{:?}", config.problems);
    config.issuers[0].clone()
}

fn verify(token: &str, issuer: &IssuerSpec, keys: &KeySet) -> Result<VerifiedToken, TokenError> {
    let token = UnverifiedToken::parse(token)?;
    if !token.is_from(issuer) {
        return Err(TokenError::UnknownIssuer);
    }
    token.check_claims(issuer, now())?;
    token.check_signature(keys)?;
    token.into_verified(issuer)
}

/// A key of an issuer, or of an attacker.
struct Signer {
    pair: EcdsaKeyPair,
    id: &'static str,
}

impl Signer {
    fn new(id: &'static str) -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self { pair: EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap(), id }
    }

    fn public_key(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let coordinate = |part: &[u8]| URL_SAFE_NO_PAD.encode(part);
        json!({"kty": "EC", "crv": "P-256", "x": coordinate(&point[1..33]), "y": coordinate(&point[33..]), "kid": self.id})
    }

    fn key_set(&self) -> KeySet {
        KeySet::parse(json!({"keys": [self.public_key()]}).to_string().as_bytes()).unwrap()
    }

    fn header(&self) -> Value {
        json!({"alg": "ES256", "kid": self.id, "typ": "JWT"})
    }

    /// Returns the header with further members, or other values of its own.
    fn header_with(&self, members: Value) -> String {
        let Value::Object(members) = members else { panic!("not an object") };
        let mut header = self.header();
        header.as_object_mut().unwrap().extend(members);
        header.to_string()
    }

    fn sign(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

fn claims() -> Value {
    json!({
        "iss": ISSUER, "aud": [RESOURCE, "other"], "sub": "ada", "exp": seconds(300), "nbf": seconds(30), "iat": seconds(50),
        "groups": ["dev", "ops"], "scope": "openid profile:work", "client_id": "cli",
    })
}

/// Returns the claims with one of them replaced, or removed if the value is null.
fn claims_with(name: &str, value: Value) -> String {
    let mut claims = claims();
    match value {
        Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
        value => claims[name] = value,
    }
    claims.to_string()
}

#[test]
fn every_algorithm_is_verified_and_bound_to_its_kind_of_key() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let keys = KeySet::parse(VECTORS.as_bytes()).unwrap();
    let issuer = issuer("");
    for algorithm in SignatureAlgorithm::ALL {
        let name = algorithm.as_str();
        let token = vectors["tokens"][name].as_str().unwrap();
        assert_eq!(verify(token, &issuer, &keys).unwrap().subject, "ada", "{name}");
        let pinned = IssuerSpec { algorithms: vec![algorithm], ..issuer.clone() };
        for other in SignatureAlgorithm::ALL {
            let token = vectors["tokens"][other.as_str()].as_str().unwrap();
            assert_eq!(
                verify(token, &pinned, &keys).is_ok(),
                other == algorithm,
                "{name} {}",
                other.as_str()
            );
        }
        let tampered = token.replace("at+jwt", "at+jws");
        assert!(verify(&format!("{tampered}A"), &issuer, &keys).is_err());
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
        bytes[7] ^= 1;
        let changed = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(bytes));
        assert_eq!(verify(&changed, &issuer, &keys), Err(TokenError::Signature), "{name}");
    }
}

#[test]
fn valid_token_says_who_the_caller_is() {
    let signer = Signer::new("k1");
    let keys = signer.key_set();
    let header = signer.header().to_string();
    let token = signer.sign(&header, &claims().to_string());
    let verified = verify(&token, &issuer(""), &keys).unwrap();
    assert_eq!((verified.issuer.as_str(), verified.subject.as_str()), ("corp", "ada"));
    assert_eq!(verified.client.as_deref(), Some("cli"));
    assert_eq!(verified.groups, ["dev", "ops"]);
    assert_eq!(verified.scopes, ["openid", "profile:work"]);
    assert_eq!(verified.audiences.as_deref(), Some(&[RESOURCE.to_owned(), "other".to_owned()][..]));
    assert_eq!(verified.expires, now() + Duration::from_secs(300));
    let configured = issuer("audience = 'other'\ncaller-claim = 'client_id'\ngroups-claim = 'realm.roles'");
    let nested = claims_with("realm", json!({"roles": ["admins"]}));
    let verified = verify(&signer.sign(&header, &nested), &configured, &keys).unwrap();
    assert_eq!((verified.subject.as_str(), verified.groups), ("cli", vec!["admins".to_owned()]));
    assert_eq!(verified.audiences, None, "it was checked");
    let twice = nested.replacen(r#"{"roles":"#, r#"{"roles":["dev"],"roles":"#, 1);
    assert_ne!(twice, nested);
    let verified = verify(&signer.sign(&header, &twice), &configured, &keys).unwrap();
    assert!(verified.groups.is_empty(), "readers may differ about a nested member that appears twice");
    // A token that names no key, and a set with one possible key.
    let unnamed = signer.sign(r#"{"alg":"ES256"}"#, &claims().to_string());
    assert!(verify(&unnamed, &configured, &keys).is_ok());
}

/// Returns tokens that must not be accepted, each with the way in which it is forged.
fn forged_tokens(genuine: &Signer) -> Vec<(&'static str, String)> {
    let attacker = Signer::new("k1");
    let header = genuine.header().to_string();
    let good = claims().to_string();
    let token = genuine.sign(&header, &good);
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let (first, payload) = signed.split_once('.').unwrap();
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let public_key = genuine.pair.public_key().as_ref();
    let hmac_header = encode(r#"{"alg":"HS256","kid":"k1"}"#);
    let hmac_message = format!("{hmac_header}.{payload}");
    let hmac_key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, public_key);
    let hmac = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&hmac_key, hmac_message.as_bytes()));
    let admin = encode(&claims_with("sub", json!("root")));
    let own_key = genuine.header_with(json!({"jwk": attacker.public_key()}));
    let own_url = genuine.header_with(json!({"jku": "https://evil.example/keys", "kid": "evil"}));
    vec![
        ("no signature, alg none", format!("{}.{payload}.", encode(r#"{"alg":"none"}"#))),
        ("alg None with a signature", format!("{}.{payload}.{signature}", encode(r#"{"alg":"None"}"#))),
        ("HS256 with the public key", format!("{hmac_message}.{hmac}")),
        ("another key", attacker.sign(&header, &good)),
        ("another key in `jwk`", attacker.sign(&own_key, &good)),
        ("another key at `jku`", attacker.sign(&own_url, &good)),
        ("another subject", format!("{first}.{admin}.{signature}")),
        ("truncated signature", token[..token.len() - 4].to_owned()),
        ("empty signature", format!("{signed}.")),
        ("zero signature", format!("{signed}.{}", URL_SAFE_NO_PAD.encode([0; 64]))),
        ("padded signature", format!("{token}==")),
        ("line break in the token", format!("{signed}.\n{signature}")),
        ("four parts", format!("{token}.{signature}")),
        ("member twice", genuine.sign(&header, &good.replacen('{', r#"{"sub":"root","#, 1))),
        ("alg twice", genuine.sign(&header.replacen('{', r#"{"alg":"none","#, 1), &good)),
        ("not an object", genuine.sign(&header, "[]")),
        (
            "member twice, once escaped",
            genuine.sign(&header, &good.replacen('{', r#"{"s\u0075b":"root","#, 1)),
        ),
        (
            "signature in DER",
            format!(
                "{signed}.{}",
                URL_SAFE_NO_PAD.encode([&[0x30, 6, 2, 1, 1, 2, 1, 1][..], &[0; 56]].concat())
            ),
        ),
        ("nested too deeply", genuine.sign(&header, &format!("{{\"a\":{}", "[".repeat(2000)))),
    ]
}

/// Returns tokens with headers that must not be accepted, signed by the issuer.
fn tokens_with_bad_headers(genuine: &Signer) -> Vec<(&'static str, String)> {
    let good = claims().to_string();
    let token = genuine.sign(&genuine.header().to_string(), &good);
    let header_with = |members: Value| genuine.header_with(members);
    vec![
        ("unknown key", genuine.sign(&header_with(json!({"kid": "k2"})), &good)),
        ("key id of another type", genuine.sign(&header_with(json!({"kid": ["k1"]})), &good)),
        ("critical header", genuine.sign(&header_with(json!({"crit": ["b64"], "b64": false})), &good)),
        ("another type of token", genuine.sign(&header_with(json!({"typ": "logout+jwt"})), &good)),
        ("algorithm that is not accepted", genuine.sign(&header_with(json!({"alg": "ES384"})), &good)),
        ("a token as its payload", genuine.sign(&header_with(json!({"cty": "JWT"})), &token)),
        ("alg in lower case", genuine.sign(&header_with(json!({"alg": "es256"})), &good)),
        ("several algs", genuine.sign(&header_with(json!({"alg": ["none", "ES256"]})), &good)),
        ("alg of another kind of key", genuine.sign(&header_with(json!({"alg": "RS256"})), &good)),
        ("key id that is a path", genuine.sign(&header_with(json!({"kid": "../../k1"})), &good)),
        ("key id that is a number", genuine.sign(&header_with(json!({"kid": 1})), &good)),
        ("key id that is huge", genuine.sign(&header_with(json!({"kid": "k".repeat(9000)})), &good)),
        ("type that is a list", genuine.sign(&header_with(json!({"typ": ["JWT"]})), &good)),
    ]
}

/// Returns tokens with claims that must not be accepted, signed by the issuer.
fn tokens_with_bad_claims(genuine: &Signer) -> Vec<(&'static str, String)> {
    let header = genuine.header().to_string();
    let with_claim = |name: &str, value: Value| genuine.sign(&header, &claims_with(name, value));
    vec![
        ("expired", with_claim("exp", json!(seconds(0)))),
        ("without an end", with_claim("exp", Value::Null)),
        ("end as text", with_claim("exp", json!("4102444800"))),
        ("end before 1970", with_claim("exp", json!(-1))),
        ("end that no clock has", with_claim("exp", json!(1e300))),
        ("end that is true", with_claim("exp", json!(true))),
        ("not valid for a century", with_claim("nbf", json!(seconds(3_000_000_000)))),
        ("valid from a text", with_claim("nbf", json!("0"))),
        ("audience with a null byte", with_claim("aud", json!([null, format!("{RESOURCE}\0")]))),
        ("audience with a slash", with_claim("aud", json!(format!("{RESOURCE}/")))),
        ("several issuers", with_claim("iss", json!([ISSUER]))),
        ("issuer in another case", with_claim("iss", json!("https://LOGIN.example"))),
        ("subject that is a number", with_claim("sub", json!(0))),
        ("long subject", with_claim("sub", json!("ä".repeat(129)))),
        ("not valid yet", with_claim("nbf", json!(seconds(61)))),
        ("issued in the future", with_claim("iat", json!(seconds(3600)))),
        ("another audience", with_claim("aud", json!("https://other.example/mcp"))),
        ("audience that contains the right one", with_claim("aud", json!(format!("{RESOURCE}2")))),
        ("without an audience", with_claim("aud", Value::Null)),
        ("another issuer", with_claim("iss", json!("https://login.example/"))),
        ("without an issuer", with_claim("iss", Value::Null)),
        ("without a subject", with_claim("sub", Value::Null)),
        ("subject with a line break", with_claim("sub", json!("ada\nroot"))),
        ("bound to a key", with_claim("cnf", json!({"jkt": "x"}))),
        ("huge", with_claim("padding", json!("x".repeat(16 << 10)))),
    ]
}

#[test]
fn forged_tokens_are_refused() {
    let genuine = Signer::new("k1");
    let keys = genuine.key_set();
    let issuer = issuer(&format!("audience = '{RESOURCE}'\nalgorithms = ['ES256']"));
    let header = genuine.header().to_string();
    assert!(verify(&genuine.sign(&header, &claims().to_string()), &issuer, &keys).is_ok());
    let forged =
        [forged_tokens(&genuine), tokens_with_bad_headers(&genuine), tokens_with_bad_claims(&genuine)]
            .concat();
    assert_eq!(forged.len(), 57);
    for (name, token) in forged {
        assert!(verify(&token, &issuer, &keys).is_err(), "{name}");
    }
    let refused = |name: &str, value: Value| {
        verify(&genuine.sign(&header, &claims_with(name, value)), &issuer, &keys).unwrap_err()
    };
    assert_eq!(refused("exp", json!(seconds(-1))), TokenError::Expired);
    assert_eq!(refused("nbf", json!(seconds(61))), TokenError::NotYetValid);
    assert_eq!(refused("aud", json!("x")), TokenError::Audience);
    assert_eq!(refused("iss", json!("x")), TokenError::UnknownIssuer);
    assert_eq!(refused("sub", json!("")), TokenError::InvalidClaim("sub".to_owned()));
}

#[test]
fn key_sets_that_cannot_be_used_are_refused() {
    let parse = |keys: Value| KeySet::parse(json!({ "keys": keys }).to_string().as_bytes());
    let good = Signer::new("k").public_key();
    assert_eq!(
        parse(json!(vec![json!({"kty": "EC"}); 10_000])).unwrap_err(),
        "it has 10000 keys, at most 100 are supported"
    );
    assert_eq!(KeySet::parse(b"[]").unwrap_err(), "it has no array `keys`");
    assert!(KeySet::parse(b"<html>").unwrap_err().starts_with("it is not JSON"));
    let with = |name: &str, value: Value| {
        let mut key = good.clone();
        key[name] = value;
        key
    };
    for unusable in [
        json!({"kty": "oct", "k": "c2VjcmV0"}),
        with("use", json!("enc")),
        with("key_ops", json!(["encrypt"])),
        with("alg", json!("ES384")),
        with("alg", json!("HS256")),
        with("crv", json!("P-521")),
        with("x", json!("AA")),
        json!({"kty": "RSA", "e": "AQAB", "n": URL_SAFE_NO_PAD.encode([0xff; 128])}),
        with("kty", json!("OKP")),
        json!("text"),
    ] {
        assert!(parse(json!([unusable])).is_err(), "{unusable}");
        assert!(parse(json!([unusable, good])).is_ok(), "others are used");
    }
}
