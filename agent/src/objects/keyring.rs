//! Credentials for registries, from pull secrets. Source: `pkg/credentialprovider/keyring.go`, `config.go`, `secrets/secrets.go`.

use std::{collections::BTreeMap, fmt};

use base64::{
    DecodeError, Engine, alphabet,
    engine::general_purpose::{GeneralPurpose, NO_PAD},
};
use berth_core::glob;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::{Content, MalformedSecret};
use crate::go_json::{self, field};

/// Largest secret that is read.
const BYTES_MAX: usize = 1 << 20;

/// The registry of images that name none.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// What Go calls the accounts of a file.
const CONFIG: &str = "credentialprovider.DockerConfig";

/// How `auth` is written. Go takes what is left of the last byte, whatever it is.
const AUTH: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, NO_PAD.with_decode_allow_trailing_bits(true));

/// What a registry is told.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credential {
    /// Name of the user.
    pub username: Zeroizing<String>,
    /// Password, or a token.
    pub password: Zeroizing<String>,
    /// Address that is written with them. No registry is told it.
    pub email: Zeroizing<String>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Credential")
    }
}

impl Credential {
    /// By which the same one is known again: SHA-256 of the JSON that Go makes of `AuthConfig` (`hashAuthConfig`), which has no empty
    /// fields.
    #[must_use]
    pub fn hash(&self) -> String {
        let fields = [("username", &self.username), ("password", &self.password), ("email", &self.email)];
        let fields = fields.into_iter().filter(|(_, text)| !text.is_empty());
        let fields = fields.map(|(name, text)| format!("\"{name}\":{}", *go_json::text(text)));
        let json = Zeroizing::new(format!("{{{}}}", Zeroizing::new(fields.collect::<Vec<_>>()).join(",")));
        Sha256::digest(json.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The credentials of some secrets, by what they are for.
#[derive(Debug, Default)]
pub struct Keyring(BTreeMap<String, Vec<Credential>>);

impl Keyring {
    /// Takes what a secret has; one that is of another kind, or empty, has none.
    ///
    /// # Errors
    ///
    /// When something of it is malformed, for whatever registry.
    pub fn add(&mut self, secret: &Content) -> Result<(), MalformedSecret> {
        let (key, is_wrapped) = match secret.kind.as_str() {
            "kubernetes.io/dockerconfigjson" => (".dockerconfigjson", true),
            "kubernetes.io/dockercfg" => (".dockercfg", false),
            _ => return Ok(()),
        };
        let bytes = secret.data.get(key).filter(|bytes| (1..=BYTES_MAX).contains(&bytes.len()));
        let Some(bytes) = bytes else { return Ok(()) };
        // Go reads what is no UTF-8 as well.
        let text = Zeroizing::new(String::from_utf8_lossy(bytes.reveal()).into_owned());
        let whole: Value = serde_json::from_str(&text).map_err(|error| MalformedSecret::no_json(&error))?;
        self.take(&whole, is_wrapped)
    }

    /// Takes what a file of accounts has, which are within `auths` or not; whether it can be read.
    pub fn add_config(&mut self, bytes: &[u8], is_wrapped: bool) -> bool {
        let Ok(whole) = serde_json::from_slice::<Value>(bytes) else { return false };
        self.take(&whole, is_wrapped).is_ok() && whole.is_object()
    }

    fn take(&mut self, whole: &Value, is_wrapped: bool) -> Result<(), MalformedSecret> {
        if !is_wrapped {
            return self.take_entries(entries(Some(whole), "value", CONFIG)?, Within::Nothing);
        }
        let Some(whole) = entries(Some(whole), "value", "credentialprovider.DockerConfigJSON")? else {
            return Ok(());
        };
        let auths = entries(field(whole, "auths"), "struct field DockerConfigJSON.auths", CONFIG)?;
        self.take_entries(auths, Within::Auths)?;
        let place = "struct field DockerConfigJSON.HttpHeaders";
        let headers = entries(field(whole, "HttpHeaders"), place, "map[string]string")?;
        for header in headers.into_iter().flat_map(Map::values) {
            text(Some(header), place)?;
        }
        Ok(())
    }

    fn take_entries(
        &mut self,
        entries: Option<&Map<String, Value>>,
        within: Within,
    ) -> Result<(), MalformedSecret> {
        for (of, entry) in entries.into_iter().flatten() {
            if let Some(credential) = credential(entry, within)? {
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
        Self::lookup_in([((), self)], repository).into_iter().map(|((), credential)| credential).collect()
    }

    /// The same of several keyrings as if they were one: each credential with what is given with its keyring.
    #[must_use]
    pub fn lookup_in<'a, T: Copy>(
        keyrings: impl IntoIterator<Item = (T, &'a Self)>,
        repository: &str,
    ) -> Vec<(T, Credential)> {
        let mut places: BTreeMap<&str, Vec<(T, &Credential)>> = BTreeMap::new();
        for (with, keyring) in keyrings {
            for (place, credentials) in &keyring.0 {
                let credentials = credentials.iter().map(|one| (with, one));
                places.entry(place.as_str()).or_default().extend(credentials);
            }
        }
        let fitting = places.iter().rev().filter(|(glob, _)| is_for(glob, repository));
        let mut found: Vec<&(T, &Credential)> = fitting.flat_map(|(_, all)| all).collect();
        if found.is_empty() && is_of_default_registry(repository) {
            found.extend(places.get(DEFAULT_REGISTRY).into_iter().flatten());
        }
        found.into_iter().map(|(with, one)| (*with, (*one).clone())).collect()
    }
}

/// What entries are within: it is a part of what Go says of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    /// `auths`.
    Auths,
    /// Nothing: they are all that there is.
    Nothing,
}

impl Within {
    /// Where an entry is that is none.
    fn place(self) -> &'static str {
        match self {
            Self::Auths => "struct field DockerConfigJSON.auths",
            Self::Nothing => "value",
        }
    }

    /// Where a field of an entry is.
    fn field(self, name: &str) -> String {
        match self {
            Self::Auths => format!("struct field DockerConfigJSON.auths.{name}"),
            Self::Nothing => format!("struct field dockerConfigEntryWithAuth.{name}"),
        }
    }
}

/// The fields of what is to be an object. `null` says nothing.
fn entries<'a>(
    value: Option<&'a Value>,
    place: &str,
    wanted: &'static str,
) -> Result<Option<&'a Map<String, Value>>, MalformedSecret> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(fields)) => Ok(Some(fields)),
        Some(other @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_))) => {
            Err(MalformedSecret::mistyped(other, place, wanted))
        }
    }
}

/// What is to be a text. `null` says nothing.
fn text<'a>(value: Option<&'a Value>, place: &str) -> Result<&'a str, MalformedSecret> {
    match value {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_))) => {
            Err(MalformedSecret::mistyped(other, place, "string"))
        }
    }
}

/// `auth` goes before what is written apart. One that is not text is none.
fn credential(entry: &Value, within: Within) -> Result<Option<Credential>, MalformedSecret> {
    let fields = entries(Some(entry), within.place(), "credentialprovider.dockerConfigEntryWithAuth")?;
    let of = |name: &str| text(fields.and_then(|fields| field(fields, name)), &within.field(name));
    let (auth, email, password, username) = (of("auth")?, of("email")?, of("password")?, of("username")?);
    let (username, password) = match auth {
        "" => (username.to_owned(), password.to_owned()),
        auth => {
            // Some write it with line breaks, some without padding.
            let auth: String = auth.chars().filter(|one| !one.is_whitespace()).collect();
            let decoded = AUTH.decode(auth.trim_end_matches('=')).map_err(|error| no_base64(&error))?;
            let decoded = Zeroizing::new(decoded);
            let Ok(text) = std::str::from_utf8(&decoded) else { return Ok(None) };
            let (user, password) = text.split_once(':').ok_or(MalformedSecret::Auth)?;
            (user.to_owned(), password.to_owned())
        }
    };
    let [username, password, email] = [username, password, email.to_owned()].map(Zeroizing::new);
    Ok(Some(Credential { username, password, email }))
}

fn no_base64(error: &DecodeError) -> MalformedSecret {
    match error {
        DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => {
            MalformedSecret::Base64 { at: *at }
        }
        DecodeError::InvalidLength(length) => MalformedSecret::Base64 { at: length.saturating_sub(1) },
        DecodeError::InvalidPadding => MalformedSecret::Auth,
    }
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
        let auths: Map<String, Value> = auths
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
    fn several_secrets_are_one_keyring() {
        const DOCKER: &str = "https://index.docker.io/v1/";
        for (secrets, repository, expected) in [
            ([vec![(DOCKER, "1")], vec![("docker.io/team", "2")]], "docker.io/team/app", &[(1, "2")][..]),
            ([vec![(DOCKER, "1")], vec![("docker.io/team", "2")]], "docker.io/app", &[(0, "1")]),
            ([vec![("a.io/team", "1")], vec![("a.io", "2")]], "a.io/team/app", &[(0, "1"), (1, "2")]),
            (
                [vec![("a.io", "1")], vec![("a.io/team", "2"), ("a.io", "3")]],
                "a.io/team/app",
                &[(1, "2"), (0, "1"), (1, "3")],
            ),
            ([vec![("b.io", "1")], vec![("c.io", "2")]], "a.io/app", &[]),
        ] {
            let keyrings = secrets.each_ref().map(|places| of(places));
            let found = Keyring::lookup_in(keyrings.iter().enumerate(), repository);
            let users: Vec<(usize, &str)> =
                found.iter().map(|(secret, one)| (*secret, one.username.as_str())).collect();
            assert_eq!(users, expected, "{secrets:?} {repository}");
        }
    }

    /// The hashes are those of `sha256.Sum256(json.Marshal(AuthConfig{…}))`, by Go 1.26.
    #[test]
    fn hashes_are_the_kubelets() {
        let odd = "{\n\t\"a\": \"<b> & c\\\"\"\u{2028}\u{2029}\u{7f}\u{1}\u{8}\u{c}\r é😀}";
        for (username, password, email, expected) in [
            ("user", "pass:word", "", "c2999a9512710b012938339378f1231efebc2e1896ff8149c766453291d1a79d"),
            (
                "user",
                "pass",
                "a@b.example",
                "40f4fce4885da03a365a4c55ba77e959fc7e45f92ca3c2aa6eeae0e2760d9279",
            ),
            ("", "", "", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
            ("", "only", "", "4fb7dc9f80db145467fc5f977d068f559ffcfc59646e881f7d26dea880019d8d"),
            ("_json_key", odd, "", "909d2bf37d42128a60217ead7141b1455c02fd965130a24b330c74c14ddd0ddc"),
            ("\u{fffd}", "", "", "1bbadb8b24f06b1ddd015a257d1f57a392b716733d571b18ea75c762775bcf4f"),
        ] {
            let entry = json!({"a.io": {"username": username, "password": password, "email": email}});
            let mut keyring = Keyring::default();
            keyring.add(&secret("kubernetes.io/dockercfg", ".dockercfg", &entry)).unwrap();
            assert_eq!(keyring.lookup("a.io/web")[0].hash(), expected, "{username} {password} {email}");
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
    fn names_of_fields_are_read_in_any_case() {
        let account = |entry: Value| json!({ "auths": { "a.io": entry } });
        for (value, expected) in [
            (json!({"Auths": {"a.io": {"username": "u", "password": "p"}}}), "u:p"),
            (account(json!({"Username": "u", "PASSWORD": "p"})), "u:p"),
            (account(json!({"Auth": STANDARD.encode("u:p")})), "u:p"),
            (account(json!({"Username": "u", "username": null, "Password": "p"})), "u:p"),
            (json!({"AUTHS": null, "auths": {"A.io": {"username": "u"}}}), ""),
        ] {
            let mut keyring = Keyring::default();
            keyring.add(&secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", &value)).unwrap();
            let found = keyring.lookup("a.io/web");
            let found = found.first().map(|one| format!("{}:{}", *one.username, *one.password));
            assert_eq!(found.unwrap_or_default(), expected, "{value}");
        }
        let headers = json!({"httpheaders": 1});
        let secret = secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", &headers);
        let error = Keyring::default().add(&secret).unwrap_err().to_string();
        assert_eq!(
            error,
            unmarshal("number", "struct field DockerConfigJSON.HttpHeaders", "map[string]string")
        );
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
            (STANDARD.encode("nouser"), Err(MalformedSecret::Auth)),
            ("%%%".to_owned(), Err(MalformedSecret::Base64 { at: 0 })),
            ("dXN%".to_owned(), Err(MalformedSecret::Base64 { at: 3 })),
            ("dXNlc".to_owned(), Err(MalformedSecret::Base64 { at: 4 })),
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

    /// What a container waits for then is what the kubelet says, and shows nothing of the secret.
    #[test]
    fn a_secret_that_is_not_accounts_is_an_error() {
        let json = ("kubernetes.io/dockerconfigjson", ".dockerconfigjson");
        let plain = ("kubernetes.io/dockercfg", ".dockercfg");
        let entry = "credentialprovider.dockerConfigEntryWithAuth";
        for ((kind, key), written, expected) in [
            (json, "", String::new()),
            (plain, "null", String::new()),
            (json, "null", String::new()),
            (json, r#"{"auths": null, "HttpHeaders": {"a": "b", "c": null}, "x": [1]}"#, String::new()),
            (json, r#"{"auths": {"a.io": null}}"#, String::new()),
            (json, "{\"auths\": {\"a.io\": {\"username\": \"\u{fffd}\"}}}", String::new()),
            (json, "{\"auths\": ", "unexpected end of JSON input".to_owned()),
            (plain, "canary", "invalid JSON in line 1, column 1".to_owned()),
            (plain, "{\n 'canary'}", "invalid JSON in line 2, column 2".to_owned()),
            (plain, "\"canary\"", unmarshal("string", "value", CONFIG)),
            (plain, "[]", unmarshal("array", "value", CONFIG)),
            (json, "7", unmarshal("number", "value", "credentialprovider.DockerConfigJSON")),
            (json, r#"{"auths": []}"#, unmarshal("array", "struct field DockerConfigJSON.auths", CONFIG)),
            (
                json,
                r#"{"HttpHeaders": true}"#,
                unmarshal("bool", "struct field DockerConfigJSON.HttpHeaders", "map[string]string"),
            ),
            (
                json,
                r#"{"HttpHeaders": {"a": 1}}"#,
                unmarshal("number", "struct field DockerConfigJSON.HttpHeaders", "string"),
            ),
            (
                json,
                r#"{"auths": {"a.io": "canary"}}"#,
                unmarshal("string", "struct field DockerConfigJSON.auths", entry),
            ),
            (plain, r#"{"a.io": "canary"}"#, unmarshal("string", "value", entry)),
            (
                json,
                r#"{"auths": {"a.io": {"auth": {}}}}"#,
                unmarshal("object", "struct field DockerConfigJSON.auths.auth", "string"),
            ),
            (
                plain,
                r#"{"a.io": {"email": 7}}"#,
                unmarshal("number", "struct field dockerConfigEntryWithAuth.email", "string"),
            ),
        ] {
            let data = BTreeMap::from([(key.to_owned(), Hidden::new(written.as_bytes().to_vec()))]);
            let secret = Content { data, kind: kind.to_owned(), ..Content::default() };
            let added = Keyring::default().add(&secret);
            let said = added.err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(said, expected, "{written}");
        }
    }

    fn unmarshal(found: &str, place: &str, wanted: &str) -> String {
        format!("json: cannot unmarshal {found} into Go {place} of type {wanted}")
    }

    #[test]
    fn what_is_no_utf_8_is_read_as_by_go() {
        let bytes = b"{\"a.io\": {\"username\": \"u\xff\", \"password\": \"p\"}}".to_vec();
        let data = BTreeMap::from([(".dockercfg".to_owned(), Hidden::new(bytes))]);
        let mut keyring = Keyring::default();
        let kind = "kubernetes.io/dockercfg".to_owned();
        keyring.add(&Content { data, kind, ..Content::default() }).unwrap();
        assert_eq!(keyring.lookup("a.io/web")[0].username.as_str(), "u\u{fffd}");
    }
}
