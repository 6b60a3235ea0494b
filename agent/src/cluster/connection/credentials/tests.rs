use std::{fs, path::Path};

use serde_json::json;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn credential(token: &str, until: Option<&str>) -> Credential {
    let until = until.map(|time| time.parse().unwrap());
    Credential { token: Some(SecretString::from(token)), identity: None, until }
}

fn token(answer: &Answer) -> &str {
    answer.as_ref().unwrap().token.as_ref().unwrap().expose_secret()
}

#[test]
fn a_token_file_is_read_again_after_a_minute_and_keeps_what_it_had() {
    let (mut state, began) = (State::default(), Instant::now());
    let known = |state: &State, after| {
        state.known(Keeps::ForAWhile, began + after).map(|answer| token(&answer).to_owned())
    };
    assert_eq!(known(&state, Duration::ZERO), None);
    state.take(Ok(credential("first", None)), Keeps::ForAWhile, began).unwrap();
    assert_eq!(known(&state, FILE_EVERY - SECOND).as_deref(), Some("first"));
    assert_eq!(known(&state, FILE_EVERY), None);
    let answer = state.take(Err("gone".to_owned()), Keeps::ForAWhile, began + FILE_EVERY);
    assert_eq!(token(&answer), "first");
    assert_eq!(known(&state, FILE_EVERY * 2 - SECOND).as_deref(), Some("first"));
    assert_eq!(known(&state, FILE_EVERY * 2), None);
}

#[test]
fn what_a_plugin_said_is_used_until_it_ends() {
    let now = Instant::now();
    for (until, is_used) in
        [(None, true), (Some("2999-01-01T00:00:00Z"), true), (Some("2000-01-01T00:00:00Z"), false)]
    {
        let mut state = State::default();
        state.take(Ok(credential("x", until)), Keeps::UntilItEnds, now).unwrap();
        let known = state.known(Keeps::UntilItEnds, now + FILE_EVERY * 1000);
        assert_eq!(known.is_some(), is_used, "{until:?}");
    }
}

#[test]
fn what_the_server_refuses_is_asked_for_anew_and_not_without_a_pause() {
    let (mut state, began) = (State::default(), Instant::now());
    let first = state.take(Ok(credential("first", None)), Keeps::UntilItEnds, began).unwrap();
    state.refuse(&first, began + REFUSED_PAUSE - SECOND);
    assert!(state.known(Keeps::UntilItEnds, began + REFUSED_PAUSE).is_some());
    state.refuse(&first, began + REFUSED_PAUSE);
    assert!(state.known(Keeps::UntilItEnds, began + REFUSED_PAUSE).is_none());
    let later = began + REFUSED_PAUSE * 3;
    state.take(Ok(credential("second", None)), Keeps::UntilItEnds, began + REFUSED_PAUSE).unwrap();
    // Who was refused with the one before says nothing of this one.
    state.refuse(&first, later);
    assert_eq!(token(&state.known(Keeps::UntilItEnds, later).unwrap()), "second");
}

#[test]
fn a_plugin_that_fails_is_not_run_for_each_request() {
    let (mut state, mut now) = (State::default(), Instant::now());
    for pause in [1, 2, 4, 8, 16, 30, 30].map(Duration::from_secs) {
        assert!(state.known(Keeps::UntilItEnds, now).is_none());
        state.take(Err("why".to_owned()), Keeps::UntilItEnds, now).unwrap_err();
        let within = state.known(Keeps::UntilItEnds, now + pause.saturating_sub(Duration::from_millis(1)));
        assert_eq!(within.unwrap().unwrap_err(), "why");
        now += pause;
    }
    state.take(Ok(credential("x", None)), Keeps::UntilItEnds, now).unwrap();
    state.take(Err("why".to_owned()), Keeps::UntilItEnds, now).unwrap_err();
    assert!(state.known(Keeps::UntilItEnds, now + SECOND).is_none(), "pauses begin anew");
}

#[tokio::test]
async fn a_token_is_what_a_file_has_without_blanks() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let get = async || Credentials::of(Source::File(TokenFile::new(file.clone(), None))).now().await;
    assert!(get().await.unwrap_err().contains("read the token file"));
    for empty in [" \n".to_owned(), "x".repeat((64 << 10) + 1)] {
        fs::write(&file, empty).unwrap();
        assert!(get().await.unwrap_err().contains("it has no token"));
    }
    fs::write(&file, "  first\n").unwrap();
    let header = get().await.unwrap().header().unwrap().unwrap();
    assert!(header == "Bearer first" && header.is_sensitive());
}

/// As if it had been read so long ago.
fn age(credentials: &Credentials, by: Duration) {
    if let Some((_, taken)) = &mut credentials.lock().last {
        *taken -= by;
    }
}

#[tokio::test]
async fn a_token_file_that_changed_is_used_a_minute_later_or_when_the_server_has_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let credentials = Credentials::of(Source::File(TokenFile::new(file.clone(), None)));
    let used = async || token(&credentials.now().await).to_owned();
    fs::write(&file, "first").unwrap();
    assert_eq!(used().await, "first");
    fs::write(&file, "second").unwrap();
    age(&credentials, FILE_EVERY - SECOND * 20);
    assert_eq!(used().await, "first");
    age(&credentials, SECOND * 20);
    assert_eq!(used().await, "second");
    fs::write(&file, "third").unwrap();
    age(&credentials, REFUSED_PAUSE);
    let refused = credentials.now().await.unwrap();
    credentials.refused(&refused);
    assert_eq!(used().await, "third");
}

#[tokio::test]
async fn a_token_beside_a_file_counts_until_the_file_was_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let source = TokenFile::new(file.clone(), Some(SecretString::from("beside")));
    let credentials = Credentials::of(Source::File(source));
    let used = async || token(&credentials.now().await).to_owned();
    assert_eq!(used().await, "beside");
    fs::write(&file, "first").unwrap();
    age(&credentials, FILE_EVERY);
    assert_eq!(used().await, "first");
    fs::remove_file(&file).unwrap();
    age(&credentials, FILE_EVERY);
    assert_eq!(used().await, "first");
}

/// A plugin that notes each run, and waits until there is a file.
fn waiting(dir: &Path) -> Plugin {
    let print =
        r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"x"}}"#;
    let text =
        format!("cd {}; echo >> runs; until [ -e gate ]; do sleep 0.01; done; echo '{print}'", dir.display());
    let config = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sh", "args": ["-c", text],
    });
    Plugin::of(&serde_json::from_value(config).unwrap()).unwrap()
}

#[tokio::test]
async fn those_who_ask_at_once_wait_for_one_run_which_outlives_them() {
    let dir = tempfile::tempdir().unwrap();
    let credentials = Credentials::of(Source::Plugin(waiting(dir.path())));
    let gave_up = tokio::time::timeout(Duration::from_millis(50), credentials.now()).await;
    gave_up.unwrap_err();
    let all = futures::future::join_all((0..20).map(|_| credentials.now()));
    let open = async { fs::write(dir.path().join("gate"), "").unwrap() };
    let (all, ()) = tokio::join!(all, open);
    assert!(all.iter().all(|one| token(one) == "x"));
    assert_eq!(fs::read_to_string(dir.path().join("runs")).unwrap().lines().count(), 1);
}

#[tokio::test]
async fn a_plugin_that_hangs_is_ended_and_told_to_all_who_wait_and_run_again_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut plugin = waiting(dir.path());
    plugin.within = SECOND / 2;
    let credentials = Credentials::of(Source::Plugin(plugin));
    let all = futures::future::join_all((0..5).map(|_| credentials.now())).await;
    for one in all {
        let why = one.unwrap_err();
        assert!(why.contains("500ms"), "{why}");
    }
    fs::write(dir.path().join("gate"), "").unwrap();
    let answers = async {
        while credentials.now().await.is_err() {
            tokio::time::sleep(SECOND / 50).await;
        }
    };
    tokio::time::timeout(SECOND * 60, answers).await.unwrap();
    assert_eq!(token(&credentials.now().await), "x");
}

/// The certificate that is used once a plugin has printed this one.
fn certified(state: &mut State, printed: Option<&str>) -> Option<Identity> {
    let identity = printed.map(|name| Identity::new(name.to_owned(), SecretString::from("key")));
    let got = Credential { identity, ..credential("x", None) };
    state.take(Ok(got), Keeps::UntilItEnds, Instant::now()).unwrap().identity.clone()
}

#[test]
fn a_certificate_goes_on_until_another_one_or_none_is_printed() {
    let mut state = State::default();
    assert!(certified(&mut state, None).is_none());
    let first = certified(&mut state, Some("first")).unwrap();
    state.take(Err("why".to_owned()), Keeps::UntilItEnds, Instant::now()).unwrap_err();
    let again = certified(&mut state, Some("first")).unwrap();
    assert!(again.ended == first.ended && !first.ended.is_cancelled());
    let second = certified(&mut state, Some("second")).unwrap();
    assert!(first.ended.is_cancelled() && !second.ended.is_cancelled());
    assert!(certified(&mut state, None).is_none());
    assert!(second.ended.is_cancelled());
}

#[test]
fn no_token_makes_a_header_of_its_own() {
    for hostile in ["a\nX-Other: b", "a\r\n", "\0"] {
        credential(hostile, None).header().unwrap_err();
    }
    assert_eq!(Credential { token: None, identity: None, until: None }.header(), Ok(None));
}

#[tokio::test]
async fn a_plugin_that_prints_what_cannot_be_used_is_run_again_later() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("printed");
    let print = |token: &str| {
        let printed = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": { "token": token },
        });
        fs::write(&file, printed.to_string()).unwrap();
    };
    let config = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "cat", "args": [file],
    });
    let plugin = Plugin::of(&serde_json::from_value(config).unwrap()).unwrap();
    let credentials = Credentials::of(Source::Plugin(plugin));
    print("a\nb");
    let why = credentials.now().await.unwrap_err();
    assert!(why.contains("no header can have"), "{why}");
    print("x");
    let answers = async {
        while credentials.now().await.is_err() {
            tokio::time::sleep(SECOND / 50).await;
        }
    };
    tokio::time::timeout(SECOND * 60, answers).await.unwrap();
    assert_eq!(token(&credentials.now().await), "x");
}
