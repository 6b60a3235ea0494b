//! Credentials for registries, from pull secrets. Source: `pkg/credentialprovider/keyring.go`, `config.go`, `secrets/secrets.go`.

use std::{collections::BTreeMap, fmt};

use base64::{
    Engine, alphabet,
    engine::general_purpose::{GeneralPurpose, NO_PAD},
};
use berth_core::glob;
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;
use zeroize::Zeroizing;

use super::Content;

/// Largest secret that is read.
const BYTES_MAX: usize = 1 << 20;

/// The registry of images that name none.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// How `auth` is written. Go takes what is left of the last byte, whatever it is.
const AUTH: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, NO_PAD.with_decode_allow_trailing_bits(true));

/// An `auth` of which no user and no password can be had (`decodeDockerConfigFieldAuth`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("unable to parse auth field, must be formatted as base64(username:password)")]
pub struct MalformedAuth;

/// What a registry is told.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Name of the user.
    pub username: Zeroizing<String>,
    /// Password, or a token.
    pub password: Zeroizing<String>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Credential")
    }
}

impl Credential {
    /// By which the same one is known again (`hashAuthConfig`).
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hash = Sha256::new();
        for part in [&self.username, &self.password] {
            hash.update(part.len().to_be_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The credentials of some secrets, by what they are for.
#[derive(Debug, Default)]
pub struct Keyring(BTreeMap<String, Vec<Credential>>);

impl Keyring {
    /// Takes what a secret has; one that is of another kind, or cannot be read, has none.
    ///
    /// # Errors
    ///
    /// When an entry of it is malformed, for whatever registry.
    pub fn add(&mut self, secret: &Content) -> Result<(), MalformedAuth> {
        let (key, is_wrapped) = match secret.kind.as_str() {
            "kubernetes.io/dockerconfigjson" => (".dockerconfigjson", true),
            "kubernetes.io/dockercfg" => (".dockercfg", false),
            _ => return Ok(()),
        };
        let bytes = secret.data.get(key).filter(|bytes| bytes.len() <= BYTES_MAX);
        let whole = bytes.and_then(|bytes| serde_json::from_slice::<Value>(bytes.reveal()).ok());
        whole.map_or(Ok(()), |whole| self.take(&whole, is_wrapped))
    }

    /// Takes what a file of accounts has, which are within `auths` or not; whether it can be read.
    pub fn add_config(&mut self, bytes: &[u8], is_wrapped: bool) -> bool {
        let Ok(whole) = serde_json::from_slice::<Value>(bytes) else { return false };
        self.take(&whole, is_wrapped).is_ok() && whole.is_object()
    }

    fn take(&mut self, whole: &Value, is_wrapped: bool) -> Result<(), MalformedAuth> {
        let entries = if is_wrapped { whole.get("auths") } else { Some(whole) };
        for (of, entry) in entries.and_then(Value::as_object).into_iter().flatten() {
            if let Some(credential) = credential(entry)? {
                self.put(of, credential);
            }
        }
        Ok(())
    }

    /// Takes one for a place.
    pub fn put(&mut self, of: &str, credential: Credential) {
        if let Some(of) = place(of) {
            self.0.entry(of).or_default().push(credential);
        }
    }

    /// Those that are for a repository, written with its registry: of the most specific place first.
    #[must_use]
    pub fn lookup(&self, repository: &str) -> Vec<Credential> {
        let fitting = self.0.iter().rev().filter(|(glob, _)| is_for(glob, repository));
        let found: Vec<Credential> = fitting.flat_map(|(_, all)| all.iter().cloned()).collect();
        if found.is_empty() && is_of_default_registry(repository) {
            return self.0.get(DEFAULT_REGISTRY).cloned().unwrap_or_default();
        }
        found
    }
}

/// `auth` goes before what is written apart. One that is not text is none.
fn credential(entry: &Value) -> Result<Option<Credential>, MalformedAuth> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
    let (username, password) = match text("auth") {
        "" => (text("username").to_owned(), text("password").to_owned()),
        auth => {
            // Some write it with line breaks, some without padding.
            let auth: String = auth.chars().filter(|one| !one.is_whitespace()).collect();
            let decoded = AUTH.decode(auth.trim_end_matches('=')).map_err(|_not_base64| MalformedAuth)?;
            let decoded = Zeroizing::new(decoded);
            let Ok(text) = std::str::from_utf8(&decoded) else { return Ok(None) };
            let (user, password) = text.split_once(':').ok_or(MalformedAuth)?;
            (user.to_owned(), password.to_owned())
        }
    };
    Ok(Some(Credential { username: Zeroizing::new(username), password: Zeroizing::new(password) }))
}

/// What a credential is for: a host with what of a path is written; `/v1/` and `/v2/` stand for the host.
fn place(written: &str) -> Option<String> {
    let bare =
        written.strip_prefix("https://").or_else(|| written.strip_prefix("http://")).unwrap_or(written);
    let (host, path) = bare.find('/').map_or((bare, ""), |at| bare.split_at(at));
    let path = if path.starts_with("/v1/") || path.starts_with("/v2/") { &path[3..] } else { path };
    let path = if path == "/" { "" } else { path };
    (!host.is_empty()).then(|| format!("{host}{path}"))
}

/// Whether a credential's place is that of a repository: the same number of parts of the host, each of which may be a pattern,
/// the same port, and a path that begins alike.
#[must_use]
pub fn is_for(glob: &str, target: &str) -> bool {
    let parts = |text: &str| -> (Vec<String>, String, String) {
        let (authority, path) = text.find('/').map_or((text, ""), |at| text.split_at(at));
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
        (host.split('.').map(str::to_owned).collect(), port.to_owned(), path.to_owned())
    };
    let ((glob_host, glob_port, glob_path), (host, port, path)) = (parts(glob), parts(target));
    glob_port == port
        && glob_host.len() == host.len()
        && path.starts_with(&glob_path)
        && glob_host.iter().zip(&host).all(|(pattern, text)| matches(pattern, text))
}

/// `*` stands for any letters, `?` for one. (`filepath.Match` also knows sets, which no host has: brackets are of an address.)
fn matches(pattern: &str, text: &str) -> bool {
    glob::matches(&pattern.replace('\\', r"\\").replace('[', r"\["), text)
}

fn is_of_default_registry(repository: &str) -> bool {
    match repository.split_once('/') {
        None => !repository.is_empty(),
        Some((first, _)) => {
            matches!(first, "docker.io" | "index.docker.io")
                || (!first.is_empty() && !first.contains(['.', ':']))
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use serde_json::json;

    use super::*;
    use crate::hidden::Hidden;

    fn secret(kind: &str, key: &str, value: &Value) -> Content {
        let data = BTreeMap::from([(key.to_owned(), Hidden::new(value.to_string().into_bytes()))]);
        Content { data, kind: kind.to_owned(), ..Content::default() }
    }

    fn of(auths: &[(&str, &str)]) -> Keyring {
        let auths: serde_json::Map<String, Value> = auths
            .iter()
            .map(|(place, user)| ((*place).to_owned(), json!({"username": user, "password": "p"})))
            .collect();
        let mut keyring = Keyring::default();
        let auths = json!({"auths": auths});
        keyring.add(&secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", &auths)).unwrap();
        keyring
    }

    #[test]
    fn credentials_are_found_by_host_path_port_and_pattern() {
        for (places, repository, expected) in [
            (vec![("a.example.com", "1")], "a.example.com/web", vec!["1"]),
            (vec![("a.example.com", "1")], "b.example.com/web", vec![]),
            (vec![("a.example.com", "1")], "a.example.com:5000/web", vec![]),
            (vec![("a.example.com:5000", "1")], "a.example.com:5000/web", vec!["1"]),
            (vec![("https://a.example.com/v1/", "1")], "a.example.com/web", vec!["1"]),
            (vec![("http://a.example.com/v2/", "1")], "a.example.com/web", vec!["1"]),
            (vec![("*.example.com", "1")], "a.example.com/web", vec!["1"]),
            (vec![("*.example.com", "1")], "a.b.example.com/web", vec![]),
            (vec![("*.com", "1")], "a.example.com/web", vec![]),
            (vec![("a?.example.com", "1")], "ab.example.com/web", vec!["1"]),
            (
                vec![("a.example.com", "1"), ("a.example.com/team", "2")],
                "a.example.com/team/web",
                vec!["2", "1"],
            ),
            (vec![("a.example.com/team", "2")], "a.example.com/other/web", vec![]),
            (vec![("https://index.docker.io/v1/", "1")], "docker.io/library/busybox", vec!["1"]),
            (vec![("index.docker.io", "1")], "a.example.com/web", vec![]),
            (vec![("", "1")], "a.example.com/web", vec![]),
        ] {
            let found = of(&places).lookup(repository);
            let users: Vec<&str> = found.iter().map(|one| one.username.as_str()).collect();
            assert_eq!(users, expected, "{places:?} {repository}");
        }
    }

    #[test]
    fn a_pattern_is_matched_in_bounded_time() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("**", "ab", true),
            ("a*", "a", true),
            ("*a", "ba", true),
            ("*a", "ab", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXcYb", false),
            ("?*", "", false),
            ("?*", "a", true),
            ("*?b", "aab", true),
            ("[::1]", "[::1]", true),
            ("[ab]", "a", false),
            (r"\a", r"\a", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
        let (pattern, text) = (format!("{}b", "*a".repeat(100)), "a".repeat(250));
        assert!(!matches(&pattern, &text));
    }

    #[test]
    fn both_kinds_of_secret_are_read_and_others_are_not() {
        let entry = json!({"a.io": {"auth": STANDARD.encode("user:pass:word")}});
        for (kind, key, value, expected) in [
            ("kubernetes.io/dockercfg", ".dockercfg", entry.clone(), 1),
            ("kubernetes.io/dockerconfigjson", ".dockerconfigjson", json!({"auths": entry}), 1),
            ("Opaque", ".dockercfg", entry.clone(), 0),
            ("kubernetes.io/dockercfg", ".dockerconfigjson", entry, 0),
            ("kubernetes.io/dockercfg", ".dockercfg", json!("canary"), 0),
        ] {
            let mut keyring = Keyring::default();
            keyring.add(&secret(kind, key, &value)).unwrap();
            let found = keyring.lookup("a.io/web");
            assert_eq!(found.len(), expected, "{kind} {key} {value}");
            if let Some(one) = found.first() {
                assert_eq!((one.username.as_str(), one.password.as_str()), ("user", "pass:word"));
                assert!(!format!("{keyring:?}{one:?}").contains("pass"));
            }
        }
    }

    #[test]
    fn a_malformed_account_of_any_registry_is_an_error() {
        let account =
            |auth: String| json!({"a.io": {"username": "u", "password": "p"}, "b.io": {"auth": auth}});
        for (auth, expected) in [
            ("dXNlcjpwdw==".to_owned(), Ok(())),
            ("dXNlcjpwdw".to_owned(), Ok(())),
            ("dXNl\ncjpwdw==\n".to_owned(), Ok(())),
            // Bits after the last byte.
            ("dTp=".to_owned(), Ok(())),
            (String::new(), Ok(())),
            (STANDARD.encode("nouser"), Err(MalformedAuth)),
            ("%%%".to_owned(), Err(MalformedAuth)),
        ] {
            let value = account(auth.clone());
            let mut keyring = Keyring::default();
            assert_eq!(
                keyring.add(&secret("kubernetes.io/dockercfg", ".dockercfg", &value)),
                expected,
                "{auth}"
            );
            assert_eq!(Keyring::default().add(&secret("Opaque", ".dockercfg", &value)), Ok(()), "{auth}");
            let is_usable = Keyring::default().add_config(value.to_string().as_bytes(), false);
            assert_eq!(is_usable, expected.is_ok(), "{auth}");
        }
    }
}
