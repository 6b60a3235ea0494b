//! What those may have the server do who were not let in.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use futures::{
    StreamExt as _,
    future::{LocalBoxFuture, join_all},
    poll,
    stream::FuturesUnordered,
};
use tokio::{sync::Semaphore, time::timeout};
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

use super::{
    super::{
        client_ca::{ClientCa, Verifier},
        review::OF_STRANGERS,
    },
    client::{Http2, LONG, send, usual_http2},
    pki::Authority,
    world::{Decides, Settings, World},
};

/// Says what authorities say, and counts how often it was asked.
#[derive(Debug)]
struct Counting(Verifier, Arc<AtomicUsize>);

impl ClientCertVerifier for Counting {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.1.fetch_add(1, SeqCst);
        self.0.verify_client_cert(leaf, between, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, leaf, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The status that a request with a token has.
async fn status(client: Http2, token: String) -> u16 {
    let request =
        http::Request::get("https://localhost/pods").header("authorization", format!("Bearer {token}"));
    send(&client, request).await.status().as_u16()
}

/// Waits until the API server is asked about a token, by a request whose answer does not come before.
async fn is_asked<F: Future<Output = u16>>(world: &World, token: &str, mut answer: Pin<&mut F>) {
    let asking = async {
        while !world.api.state().tokens.iter().any(|spec| spec["token"] == token) {
            assert!(poll!(answer.as_mut()).is_pending());
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, asking).await.expect("a question");
}

#[tokio::test]
async fn the_certificates_of_a_connection_are_judged_once_for_all_its_requests() {
    for (of_authority, expected) in [(true, 200), (false, 401)] {
        let (authority, asked) = (Authority::new(), Arc::<AtomicUsize>::default());
        let verifier = ClientCa::fixed(&authority.pem).now().unwrap();
        let client_ca = ClientCa::judged_by(Arc::new(Counting(verifier, Arc::clone(&asked))));
        let settings = Settings { client_ca: Some(client_ca), ..Settings::default() };
        let world = World::start(settings).await;
        let signs = if of_authority { &authority } else { &world.authority };
        let sender = world.http2(Some(&signs.client("admin")), &usual_http2()).await;
        let statuses = join_all((0..250).map(|_| status(sender.clone(), String::new()))).await;
        assert_eq!(statuses, [expected; 250]);
        assert_eq!(asked.load(SeqCst), 1);
    }
}

#[tokio::test]
async fn requests_that_wait_to_be_let_in_have_only_so_much_room() {
    // For three, and for what is sent of a fourth, which is less than it takes in memory.
    let decides = Decides::AlwaysAllow;
    let (heads, heads_of_admitted) = (220 << 10, 440 << 10);
    let world = World::start(Settings { decides, heads, heads_of_admitted, ..Settings::default() }).await;
    let admitted = world.http2(Some(&world.authority.client("admin")), &usual_http2()).await;
    assert_eq!(status(admitted.clone(), String::new()).await, 200);
    let hold = Arc::new(Semaphore::new(0));
    world.api.state().held_by = Some(Arc::clone(&hold));
    let stranger = || async { world.http2(None, &usual_http2()).await };
    let (sender, other) = (stranger().await, stranger().await);
    let long = |number: usize| format!("{number}{}", "x".repeat(63 << 10));
    let mut waiting = Vec::new();
    for number in 0..3_usize {
        let mut answer = Box::pin(status(sender.clone(), long(number)));
        is_asked(&world, &long(number), answer.as_mut()).await;
        waiting.push(answer);
    }
    assert_eq!(status(sender.clone(), long(3)).await, 429);
    assert_eq!(status(other.clone(), String::new()).await, 401, "what is short has room");
    assert_eq!(status(admitted, long(3)).await, 200, "those who were let in have room of their own");
    hold.add_permits(5);
    assert_eq!(join_all(waiting).await, [401; 3]);
    assert_eq!(status(sender, long(3)).await, 401, "there is room again");
}

#[tokio::test]
async fn an_origin_that_is_not_known_has_so_many_questions_and_takes_none_of_others() {
    let world = World::start(Settings { decides: Decides::AlwaysAllow, ..Settings::default() }).await;
    let admin = world.authority.client("admin");
    let hold = Arc::new(Semaphore::new(0));
    world.api.state().held_by = Some(Arc::clone(&hold));
    // That somebody from here was let in makes nobody elsewhere known.
    let here = world.http2(Some(&admin), &usual_http2()).await;
    assert_eq!(status(here.clone(), String::new()).await, 200);
    let elsewhere = world.http2_over(world.elsewhere().await, None, &usual_http2()).await;
    let ask = |token: usize| -> LocalBoxFuture<'_, (usize, u16)> {
        let answer = status(elsewhere.clone(), format!("good-{token}"));
        Box::pin(async move { (token, answer.await) })
    };
    let mut asked: FuturesUnordered<_> = (0..=OF_STRANGERS.each).map(ask).collect();
    let (refused, code) = asked.next().await.unwrap();
    assert_eq!(code, 401);
    assert!(poll!(asked.next()).is_pending(), "one is refused and no other");

    let stranger = world.http2(None, &usual_http2()).await;
    let mut known = Box::pin(status(stranger, "good-here".to_owned()));
    is_asked(&world, "good-here", known.as_mut()).await;

    let admitted = world.http2_over(world.elsewhere().await, Some(&admin), &usual_http2()).await;
    assert_eq!(status(admitted.clone(), String::new()).await, 200);
    let mut again = Box::pin(status(elsewhere.clone(), "good-again".to_owned()));
    is_asked(&world, "good-again", again.as_mut()).await;

    hold.add_permits(asked.len() + 2);
    assert_eq!((known.await, again.await), (200, 200));
    let codes: Vec<u16> = asked.map(|(_, code)| code).collect().await;
    assert_eq!(codes, [200; OF_STRANGERS.each]);
    let refused = format!("good-{refused}");
    assert!(!world.api.state().tokens.iter().any(|spec| spec["token"] == refused), "nobody was asked");
}
