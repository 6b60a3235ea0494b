use std::{fs, path::Path};

use serde_json::Value;

use super::*;

const VERSION: &str = "credentialprovider.kubelet.k8s.io/v1";
const SECOND: Duration = Duration::from_secs(1);

fn settings(command: &str, args: &[&str]) -> CredentialProvider {
    CredentialProvider {
        name: "x".to_owned(),
        command: command.to_owned(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
        env: vec![("USER_NAME".to_owned(), "AWS".to_owned())],
        version: VERSION.to_owned(),
        images: vec!["*.dkr.ecr.*.amazonaws.com".to_owned(), "registry.example/team".to_owned()],
        keep: SECOND * 60,
    }
}

fn said(cache: &str, more: Value) -> String {
    let mut all = json!({
        "kind": "CredentialProviderResponse", "apiVersion": VERSION, "cacheKeyType": cache,
        "auth": { "registry.example": { "username": "u", "password": "p" } },
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all.to_string()
}

/// A provider that notes what it was asked, and waits until there is a file.
fn waiting(dir: &Path) -> Provider {
    let print = said("Registry", json!({})).replace("\"u\"", "\"'$USER_NAME'\"");
    let text = format!(
        "cd {}; cat >> asked; echo >> asked; until [ -e gate ]; do sleep 0.01; done; echo '{print}'",
        dir.display()
    );
    Provider::of(settings("sh", &["-c", &text]))
}

#[tokio::test]
async fn a_provider_is_asked_once_for_what_it_said_before() {
    let dir = tempfile::tempdir().unwrap();
    let provider = Arc::new(waiting(dir.path()));
    assert!(provider.find("other.example/team/app").await.is_empty());
    let all = futures::future::join_all((0..10).map(|_| provider.find("registry.example/team/app")));
    let open = async { fs::write(dir.path().join("gate"), "").unwrap() };
    let (all, ()) = tokio::join!(all, open);
    for found in all {
        assert_eq!((found.len(), found[0].username.as_str(), found[0].password.as_str()), (1, "AWS", "p"));
    }
    // Kept for the registry.
    assert_eq!(provider.find("registry.example/team/other").await.len(), 1);
    let asked = fs::read_to_string(dir.path().join("asked")).unwrap();
    let asked: Value = serde_json::from_str(&asked).expect("one request");
    let expected = json!({
        "kind": "CredentialProviderRequest", "apiVersion": VERSION, "image": "registry.example/team/app",
    });
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn a_provider_that_fails_has_no_account_and_is_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let provider =
        Arc::new(Provider::of(settings("sh", &["-c", &format!("echo >> {}; exit 1", runs.display())])));
    for run in 1..3 {
        assert!(provider.find("registry.example/team/app").await.is_empty());
        assert_eq!(fs::read_to_string(&runs).unwrap().lines().count(), run);
    }
}

#[test]
fn answers_are_understood_whole_or_not_at_all() {
    let provider = Provider::of(settings("x", &[]));
    let of = |text: &str| provider.understood(text, "registry.example/team/app");
    for (text, place, keep) in [
        (said("Image", json!({})), "registry.example/team/app", SECOND * 60),
        (said("Registry", json!({ "cacheDuration": "5s" })), "registry.example", SECOND * 5),
        (said("Global", json!({ "cacheDuration": "0s", "auth": null })), "", Duration::ZERO),
    ] {
        let (_, understood, kept) = of(&text).unwrap();
        assert_eq!((understood.as_str(), kept), (place, keep));
    }
    for (text, why) in [
        ("secret".to_owned(), "no CredentialProviderResponse"),
        (said("Secret", json!({})), "its cacheKeyType"),
        (said("Image", json!({ "kind": "Secret" })), "no CredentialProviderResponse of"),
        (said("Image", json!({ "apiVersion": "secret" })), "no CredentialProviderResponse of"),
        (said("Image", json!({ "auth": { "secret": 1 } })), "no CredentialProviderResponse"),
    ] {
        let refused = of(&text).err().unwrap();
        assert!(refused.contains(why) && !refused.contains("secret"), "{text}: {refused}");
    }
}

#[test]
fn answers_are_kept_for_their_time_and_their_number_is_bounded() {
    let (mut state, now) = (State::default(), Instant::now());
    let answer = || Arc::new(Vec::new());
    state.keep("registry.example".to_owned(), answer(), SECOND, now);
    assert!(state.known("registry.example/app", now).is_some());
    assert!(state.known("other.example/app", now).is_none());
    assert!(state.known("registry.example/app", now + SECOND).is_none());
    state.keep(String::new(), answer(), Duration::MAX, now);
    state.keep(String::new(), answer(), SECOND * 2, now);
    assert!(state.known("other.example/app", now + SECOND).is_some());
    for number in 0..ANSWERS_MAX * 2 {
        state.keep(number.to_string(), answer(), SECOND, now);
        assert!(state.kept.len() <= ANSWERS_MAX);
    }
}
