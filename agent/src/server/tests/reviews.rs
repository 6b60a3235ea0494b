//! How the API server is asked: how often, how many questions at once, for how long, and how long its answers count.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use berth_core::server::{Attributes, User, Verdict};
use futures::{StreamExt as _, poll, stream::FuturesUnordered};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body_util::Full;
use hyper::body::Bytes;
use kube::{Client, client::Body};
use tokio::{runtime::Handle, sync::Semaphore};

use super::{
    super::{
        authenticate::{Authenticator, Tokens},
        authorize::{Access, Kept},
        review::{ReviewError, Reviewer},
    },
    api::Api,
    client::LONG,
};
use crate::cluster::Clients;

const MINUTE: Duration = Duration::from_secs(60);

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
                let answer = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","metadata":{},"spec":{},
                    "status":{"authenticated":true,"user":{"username":"me"}}}"#;
                Ok::<_, Infallible>(
                    Response::builder().status(201).body(Full::new(Bytes::from(answer))).unwrap(),
                )
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
