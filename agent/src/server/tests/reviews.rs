//! How the API server is asked: how often, how many questions at once, for how long, and how long its answers count.

use std::{
    convert::Infallible,
    future::ready,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use berth_core::server::{Attributes, Origin, User, Verdict};
use futures::{
    StreamExt as _, poll,
    stream::{self, FuturesUnordered},
};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body_util::Full;
use hyper::body::Bytes;
use kube::{Client, client::Body};
use tokio::{runtime::Handle, sync::Semaphore, time::timeout};

use super::{
    super::{
        authenticate::{self, Authenticator, TOKEN_MAX, Tokens, USER_MAX},
        authorize::{self, Access, Kept},
        certificates::Certificates,
        connection::Asker,
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

/// Somebody of one of many places, which is known.
fn asker(last: u8) -> Asker {
    Asker { from: Origin::of(Ipv4Addr::new(192, 0, 2, last).into()), is_known: true }
}

fn stranger(last: u8) -> Asker {
    Asker { is_known: false, ..asker(last) }
}

/// Waits until so many questions were refused and so many are being asked, and no more of either for a while.
async fn settle<F>(asking: &mut FuturesUnordered<F>, slow: &Slow, refused: usize, asked: usize)
where
    F: Future<Output = Result<Option<User>, ReviewError>>,
{
    let (mut told, mut rest) = (0, 1000);
    while told < refused || slow.now.load(SeqCst) < asked || rest > 0 {
        match poll!(asking.next()) {
            Poll::Ready(answer) => {
                assert_eq!(answer, Some(Err(ReviewError::TooMany("a token"))));
                told += 1;
            }
            Poll::Pending => rest -= usize::from(rest > 0),
        }
        tokio::task::yield_now().await;
    }
    assert_eq!((told, slow.now.load(SeqCst)), (refused, asked));
}

#[tokio::test]
async fn eight_questions_are_asked_at_once_and_as_many_wait_as_may() {
    // Each origin has more than it may have.
    for (who, origins, places) in [
        (asker as fn(u8) -> Asker, 1, 64),
        (asker, 2, 128),
        (asker, 3, 128),
        (stranger, 1, 16),
        (stranger, 16, 256),
        (stranger, 17, 256),
    ] {
        let slow = Slow::new();
        let reviewer = slow.reviewer();
        let of = |last: u8| (0..70).map(move |number| (format!("t{last}-{number}"), last));
        let asked: Vec<_> = (0..origins).flat_map(of).collect();
        let mut asking: FuturesUnordered<_> =
            asked.iter().map(|(token, last)| reviewer.token(token, who(*last))).collect();
        settle(&mut asking, &slow, asked.len() - places, 8).await;
        // More would have to wait for their time.
        let some = places.min(90);
        slow.may.add_permits(some);
        let answers: Vec<_> = timeout(LONG, asking.take(some).collect()).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Some(_)))), "{answers:?}");
        assert_eq!(slow.most.load(SeqCst), 8, "{origins}");
    }
}

#[tokio::test]
async fn who_makes_up_tokens_has_nobody_wait_who_is_known() {
    let slow = Slow::new();
    let reviewer = slow.reviewer();
    let made_up: Vec<String> = (0..500).map(|number| format!("t{number}")).collect();
    let of_many = made_up.iter().zip((0..=255).cycle());
    let mut flood: FuturesUnordered<_> =
        of_many.map(|(token, last)| reviewer.token(token, stranger(last))).collect();
    settle(&mut flood, &slow, 500 - 256, 8).await;
    let mut known = Box::pin(reviewer.token("good", asker(1)));
    while slow.now.load(SeqCst) < 9 {
        assert!(poll!(known.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    drop(flood);
    slow.may.add_permits(9);
    assert!(matches!(timeout(LONG, known).await.unwrap(), Ok(Some(_))));
}

#[tokio::test(start_paused = true)]
async fn a_question_has_half_a_minute() {
    let slow = Slow::new();
    let begun = tokio::time::Instant::now();
    let late = slow.reviewer().token("t", asker(1)).await;
    assert_eq!(late, Err(ReviewError::Late("a token")));
    assert_eq!(begun.elapsed().as_secs(), 30);
}

/// The bucket is of the machine's clock, and what is waited is of the paused one: of both together the last question is due after a second.
#[tokio::test(start_paused = true)]
async fn a_hundred_are_asked_at_once_and_then_fifty_in_a_second() {
    let (reviewer, asked) = doing(&[Does::Answer]);
    let (begun, begun_waiting) = (clock::mono(), tokio::time::Instant::now());
    let tokens: Vec<String> = (0..150).map(|number| format!("t{number}")).collect();
    let answers = stream::iter(tokens.iter().zip(0..))
        .map(|(token, last)| reviewer.token(token, stranger(last)))
        .buffer_unordered(144);
    assert!(answers.all(|answer| ready(matches!(answer, Ok(Some(_))))).await);
    assert_eq!(asked.load(SeqCst), 150);
    let took = clock::mono().since(begun) + begun_waiting.elapsed();
    assert!(took >= Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_question_is_asked_five_times_with_pauses_that_grow_by_half() {
    let (reviewer, asked) = doing(&[Does::Refuse]);
    let begun = tokio::time::Instant::now();
    let refused = reviewer.token("t", asker(1)).await;
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
    assert!(matches!(reviewer.token("t", asker(1)).await, Ok(Some(_))));
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
        assert_eq!(access.verdict(&asked, asker(1)).await, Ok(Verdict::Denied));
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
        assert_eq!(
            authenticator.user(&Certificates::default(), &headers, asker(1)).await.is_some(),
            is_somebodys,
            "{}",
            token.len()
        );
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
        assert_eq!(access.verdict(&asked, asker(1)).await, Ok(verdict));
        assert_eq!(access.keeps(&asked, time - Duration::from_secs(20)), Some(verdict), "{name}");
        assert_eq!(access.keeps(&asked, time), None, "{name}");
    }
    let tokens = Tokens::new(reviewer(), 2 * MINUTE).unwrap();
    let authenticator = Authenticator { client_ca: None, tokens: Some(tokens), anonymous: false };
    for (token, is_known) in [("good-me", true), ("unknown", false)] {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::try_from(format!("Bearer {token}")).unwrap());
        assert_eq!(
            authenticator.user(&Certificates::default(), &headers, asker(1)).await.is_some(),
            is_known
        );
        let tokens = authenticator.tokens.as_ref().unwrap();
        assert!(tokens.keeps(token, 2 * MINUTE - Duration::from_secs(20)), "{token}");
        assert!(!tokens.keeps(token, 2 * MINUTE), "{token}");
    }
}

/// Their times begin with the machine's clock: an hour is never over here.
#[tokio::test(start_paused = true)]
async fn a_flood_of_what_is_refused_pushes_out_nothing_that_is_not() {
    let (api, hour) = (Api::default(), 60 * MINUTE);
    let reviewer = || Reviewer::new(api.clients(), Handle::current()).without_pauses();
    let (allowed, denied, kept) = (hour, hour, Kept::default());
    let access = Access { reviewer: Some(reviewer()), node: "node-1".into(), allowed, denied, kept };
    let asked = |name: String| Attributes {
        user: User { name, ..User::default() },
        verb: "get",
        subresource: "pods",
    };
    let tokens = Tokens::new(reviewer(), hour).unwrap();
    let authenticator = Authenticator { client_ca: None, tokens: Some(tokens), anonymous: false };
    let user = async |token: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::try_from(format!("Bearer {token}")).unwrap());
        authenticator.user(&Certificates::default(), &headers, asker(1)).await
    };
    assert_eq!(access.verdict(&asked("admin".to_owned()), asker(1)).await, Ok(Verdict::Allowed));
    assert!(user("good-me").await.is_some());
    // What is refused without a word is kept.
    api.state().refuses_without_a_word = true;
    for number in 0..=authenticate::KEPT_MAX {
        assert!(user(&format!("bad-{number}")).await.is_none());
    }
    for number in 0..=authorize::KEPT_MAX {
        let denied = access.verdict(&asked(format!("nobody-{number}")), asker(1)).await;
        assert_eq!(denied, Ok(Verdict::Denied));
    }
    let tokens = authenticator.tokens.as_ref().unwrap();
    let keeps = |token: &str| tokens.keeps(token, Duration::ZERO);
    assert_eq!(["good-me", "bad-0", "bad-1"].map(keeps), [true, false, true]);
    let keeps = |name: &str| access.keeps(&asked(name.to_owned()), Duration::ZERO);
    let expected = [Some(Verdict::Allowed), None, Some(Verdict::Denied)];
    assert_eq!(["admin", "nobody-0", "nobody-1"].map(keeps), expected);
}
