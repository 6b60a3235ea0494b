//! How the API server is asked: how often, how many questions at once, for how long, and how long its answers count.

use std::{
    convert::Infallible,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use berth_core::server::{Attributes, User, Verdict};
use futures::{
    StreamExt as _, poll,
    stream::{self, FuturesUnordered},
};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body_util::Full;
use hyper::body::Bytes;
use kube::{Client, client::Body};
use tokio::{runtime::Handle, sync::Semaphore};

use super::{
    super::{
        authenticate::{Authenticator, TOKEN_MAX, Tokens, USER_MAX},
        authorize::{Access, Kept},
        review::{ReviewError, Reviewer},
    },
    api::Api,
    client::LONG,
};
use crate::{clock, cluster::Clients};

const MINUTE: Duration = Duration::from_secs(60);

/// That a token is somebody's.
const SOMEBODY: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","metadata":{},"spec":{},
    "status":{"authenticated":true,"user":{"username":"me"}}}"#;
const OVERLOADED: &str = r#"{"apiVersion":"v1","kind":"Status","status":"Failure","code":503}"#;

/// What an API server does with a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    Answer,
    Refuse,
    Hang,
}

/// An API server that does one thing after the other, and the last for good; and how often it was asked.
fn doing(all: &'static [Does]) -> (Reviewer, Arc<AtomicUsize>) {
    let asked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&asked);
    let service = tower::service_fn(move |_request: http::Request<Body>| {
        let number = count.fetch_add(1, SeqCst);
        async move {
            let (status, answer) = match all[number.min(all.len() - 1)] {
                Does::Answer => (201, SOMEBODY),
                Does::Refuse => (503, OVERLOADED),
                Does::Hang => std::future::pending().await,
            };
            let answer = Full::new(Bytes::from(answer));
            Ok::<_, Infallible>(Response::builder().status(status).body(answer).unwrap())
        }
    });
    (Reviewer::new(Clients::new(Client::new(service, "default")), Handle::current()), asked)
}

/// An API server that answers when it may, and how much it is asked at once.
struct Slow {
    may: Arc<Semaphore>,
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Slow {
    fn new() -> Self {
        Self { may: Arc::new(Semaphore::new(0)), now: Arc::default(), most: Arc::default() }
    }

    fn reviewer(&self) -> Reviewer {
        let (may, now, most) = (Arc::clone(&self.may), Arc::clone(&self.now), Arc::clone(&self.most));
        let service = tower::service_fn(move |_request: http::Request<Body>| {
            let (may, now, most) = (Arc::clone(&may), Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                may.acquire_owned().await.unwrap().forget();
                now.fetch_sub(1, SeqCst);
                let answer = Full::new(Bytes::from(SOMEBODY));
                Ok::<_, Infallible>(Response::builder().status(201).body(answer).unwrap())
            }
        });
        let clients = Clients::new(Client::new(service, "default"));
        Reviewer::new(clients, Handle::current()).without_pauses()
    }
}

#[tokio::test]
async fn sixteen_questions_are_asked_at_once_and_as_many_wait_as_may() {
    let slow = Slow::new();
    let reviewer = slow.reviewer();
    let asked: Vec<String> = (0..145).map(|number| format!("t{number}")).collect();
    let mut asking: FuturesUnordered<_> = asked.iter().map(|token| reviewer.token(token)).collect();
    // All have places but one.
    let refused = tokio::time::timeout(LONG, asking.next()).await.unwrap().unwrap();
    assert_eq!(refused, Err(ReviewError::TooMany("a token")));
    while slow.now.load(SeqCst) < 16 {
        assert!(poll!(asking.next()).is_pending());
        tokio::task::yield_now().await;
    }
    slow.may.add_permits(144);
    let answered = asking.collect::<Vec<_>>().await;
    assert!(answered.len() == 144 && answered.iter().all(|answer| matches!(answer, Ok(Some(_)))));
    assert_eq!(slow.most.load(SeqCst), 16);
}

#[tokio::test(start_paused = true)]
async fn a_question_has_half_a_minute() {
    let slow = Slow::new();
    let begun = tokio::time::Instant::now();
    let late = slow.reviewer().token("t").await;
    assert_eq!(late, Err(ReviewError::Late("a token")));
    assert_eq!(begun.elapsed().as_secs(), 30);
}

/// The bucket is of the machine's clock, and what is waited is of the paused one: of both together the last question is due after a second.
#[tokio::test(start_paused = true)]
async fn a_hundred_are_asked_at_once_and_then_fifty_in_a_second() {
    let (reviewer, asked) = doing(&[Does::Answer]);
    let (begun, begun_waiting) = (clock::mono(), tokio::time::Instant::now());
    let tokens: Vec<String> = (0..150).map(|number| format!("t{number}")).collect();
    let answers = stream::iter(&tokens).map(|token| reviewer.token(token)).buffer_unordered(144);
    assert!(answers.all(|answer| ready(matches!(answer, Ok(Some(_))))).await);
    assert_eq!(asked.load(SeqCst), 150);
    let took = clock::mono().since(begun) + begun_waiting.elapsed();
    assert!(took >= Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_question_is_asked_five_times_with_pauses_that_grow_by_half() {
    let (reviewer, asked) = doing(&[Does::Refuse]);
    let begun = tokio::time::Instant::now();
    let refused = reviewer.token("t").await;
    assert!(matches!(refused, Err(ReviewError::Api { .. })), "{refused:?}");
    assert_eq!(asked.load(SeqCst), 5);
    // Timers have milliseconds.
    let (took, pauses) = (begun.elapsed().as_millis(), 500 + 750 + 1125 + 1687);
    assert!((pauses..pauses + 10).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn a_request_has_ten_seconds_and_is_made_again() {
    let (reviewer, asked) = doing(&[Does::Hang, Does::Answer]);
    let begun = tokio::time::Instant::now();
    assert!(matches!(reviewer.token("t").await, Ok(Some(_))));
    assert_eq!(asked.load(SeqCst), 2);
    let took = begun.elapsed().as_millis();
    assert!((10_500..10_510).contains(&took), "{took} ms");
}

#[tokio::test]
async fn what_is_too_large_is_not_kept_and_no_token_is_asked_about_that_is_longer_than_any() {
    let api = Api::default();
    let reviewer = || Reviewer::new(api.clients(), Handle::current()).without_pauses();
    let (allowed, denied, kept) = (MINUTE, MINUTE, Kept::default());
    let access = Access { reviewer: Some(reviewer()), node: "node-1".into(), allowed, denied, kept };
    for (length, expected) in [(USER_MAX, Some(Verdict::Denied)), (USER_MAX + 1, None)] {
        let user = User { name: "x".repeat(length), ..User::default() };
        let asked = Attributes { user, verb: "get", subresource: "pods" };
        assert_eq!(access.verdict(&asked).await, Ok(Verdict::Denied));
        assert_eq!(access.keeps(&asked, Duration::ZERO), expected, "{length}");
    }
    let tokens = Tokens::new(reviewer(), MINUTE).unwrap();
    let authenticator = Authenticator { client_ca: None, tokens: Some(tokens), anonymous: false };
    // What else there is of a user: `u-1`, `testers`, `example.com/a` and `b`.
    let name = |size: usize| format!("good-{}", "x".repeat(size - 24));
    for (token, is_somebodys, is_kept, asked) in [
        (name(USER_MAX), true, true, 1),
        (name(USER_MAX + 1), true, false, 2),
        ("x".repeat(TOKEN_MAX), false, false, 3),
        ("x".repeat(TOKEN_MAX + 1), false, false, 3),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::try_from(format!("Bearer {token}")).unwrap());
        let tokens = authenticator.tokens.as_ref().unwrap();
        assert_eq!(authenticator.user(&[], &headers).await.is_some(), is_somebodys, "{}", token.len());
        assert_eq!(tokens.keeps(&token, Duration::ZERO), is_kept, "{}", token.len());
        assert_eq!(api.state().tokens.len(), asked, "{}", token.len());
    }
}

/// Defaults of the kubelet: what is allowed for 5 minutes, what is not for 30 seconds, tokens for 2 minutes.
#[tokio::test]
async fn what_was_said_counts_for_its_time() {
    let api = Api::default();
    let reviewer = || Reviewer::new(api.clients(), Handle::current()).without_pauses();
    let (allowed, denied) = (5 * MINUTE, MINUTE / 2);
    let access =
        Access { reviewer: Some(reviewer()), node: "node-1".into(), allowed, denied, kept: Kept::default() };
    let asked = |name: &str| Attributes {
        user: User { name: name.to_owned(), ..User::default() },
        verb: "get",
        subresource: "pods",
    };
    for (name, verdict, time) in [("admin", Verdict::Allowed, allowed), ("somebody", Verdict::Denied, denied)]
    {
        let asked = asked(name);
        assert_eq!(access.verdict(&asked).await, Ok(verdict));
        assert_eq!(access.keeps(&asked, time - Duration::from_secs(2)), Some(verdict), "{name}");
        assert_eq!(access.keeps(&asked, time), None, "{name}");
    }
    let tokens = Tokens::new(reviewer(), 2 * MINUTE).unwrap();
    let authenticator = Authenticator { client_ca: None, tokens: Some(tokens), anonymous: false };
    for (token, is_known) in [("good-me", true), ("unknown", false)] {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::try_from(format!("Bearer {token}")).unwrap());
        assert_eq!(authenticator.user(&[], &headers).await.is_some(), is_known);
        let tokens = authenticator.tokens.as_ref().unwrap();
        assert!(tokens.keeps(token, 2 * MINUTE - Duration::from_secs(2)), "{token}");
        assert!(!tokens.keeps(token, 2 * MINUTE), "{token}");
    }
}
