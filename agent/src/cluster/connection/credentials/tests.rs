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
    let get = async || Credentials::of(Source::File(file.clone(), OneThread::default())).now().await;
    assert!(get().await.unwrap_err().contains("read the token file"));
    for empty in [" \n".to_owned(), "x".repeat((64 << 10) + 1)] {
        fs::write(&file, empty).unwrap();
        assert!(get().await.unwrap_err().contains("it has no token"));
    }
    fs::write(&file, "  first\n").unwrap();
    let header = get().await.unwrap().header().unwrap().unwrap();
    assert!(header == "Bearer first" && header.is_sensitive());
}

/// A plugin that notes each run, and waits until there is a file.
fn waiting(dir: &Path) -> Source {
    let print =
        r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"x"}}"#;
    let text =
        format!("cd {}; echo >> runs; until [ -e gate ]; do sleep 0.01; done; echo '{print}'", dir.display());
    let config = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sh", "args": ["-c", text],
    });
    Source::Plugin(Plugin::of(&serde_json::from_value(config).unwrap()).unwrap())
}

#[tokio::test]
async fn those_who_ask_at_once_wait_for_one_run_which_outlives_them() {
    let dir = tempfile::tempdir().unwrap();
    let credentials = Credentials::of(waiting(dir.path()));
    let gave_up = tokio::time::timeout(Duration::from_millis(50), credentials.now()).await;
    gave_up.unwrap_err();
    let all = futures::future::join_all((0..20).map(|_| credentials.now()));
    let open = async { fs::write(dir.path().join("gate"), "").unwrap() };
    let (all, ()) = tokio::join!(all, open);
    assert!(all.iter().all(|one| token(one) == "x"));
    assert_eq!(fs::read_to_string(dir.path().join("runs")).unwrap().lines().count(), 1);
}

#[test]
fn no_token_makes_a_header_of_its_own() {
    for hostile in ["a\nX-Other: b", "a\r\n", "\0"] {
        credential(hostile, None).header().unwrap_err();
    }
    assert_eq!(Credential { token: None, identity: None, until: None }.header(), Ok(None));
}
