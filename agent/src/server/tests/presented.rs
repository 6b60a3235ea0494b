//! What the server presents, and how it speaks TLS.

use tokio_rustls::rustls::{CipherSuite, NamedGroup, ProtocolVersion, crypto::ring};

use super::{
    super::client_ca::ClientCa,
    client::{BOTH, ONLY_1_2, Speaks, ask, connect, request},
    pki::{Authority, Identity},
    world::{Settings, World, certificate},
};
use crate::config::{TlsSettings, TlsVersion};

#[tokio::test]
async fn another_certificate_needs_no_restart_and_ends_no_connection() {
    let world = World::start(Settings::default()).await;
    let admin = world.authority.client("admin");
    let mut before = world.connect(Some(&admin)).await;
    assert_eq!(ask(&mut before, &request("GET", "/pods", "")).await.unwrap().status, 200);
    let next = Authority::new();
    world.presented.send_replace(Some(certificate(&next)));
    let speaks = Speaks::default;
    connect(world.address, &world.of_server, Some(&admin), speaks()).await.unwrap_err();
    let mut after = connect(world.address, &next, Some(&admin), speaks()).await.unwrap();
    for stream in [&mut before, &mut after] {
        assert_eq!(ask(stream, &request("GET", "/pods", "")).await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn without_a_certificate_nobody_is_answered_until_there_is_one() {
    let world = World::start(Settings::default()).await;
    world.presented.send_replace(None);
    connect(world.address, &world.of_server, None, Speaks::default()).await.unwrap_err();
    world.presented.send_replace(Some(certificate(&world.of_server)));
    assert_eq!(world.status(None, "/pods").await, 401);
}

#[tokio::test]
async fn tls_is_spoken_as_the_settings_say() {
    let suite = CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256;
    for (least, versions, spoken) in [
        (TlsVersion::Tls12, ONLY_1_2, Some(ProtocolVersion::TLSv1_2)),
        (TlsVersion::Tls12, BOTH, Some(ProtocolVersion::TLSv1_3)),
        (TlsVersion::Tls13, BOTH, Some(ProtocolVersion::TLSv1_3)),
        (TlsVersion::Tls13, ONLY_1_2, None),
    ] {
        let tls = TlsSettings { least, suites: Some(vec![suite]), groups: Some(vec![NamedGroup::secp384r1]) };
        let world = World::start(Settings { tls, ..Settings::default() }).await;
        let speaks = Speaks { versions, ..Speaks::default() };
        let stream = connect(world.address, &world.of_server, None, speaks).await.ok();
        let session = stream.as_ref().map(|stream| stream.get_ref().1);
        assert_eq!(session.and_then(|session| session.protocol_version()), spoken, "{least:?}");
        let Some(session) = session else { continue };
        let group = session.negotiated_key_exchange_group().unwrap().name();
        assert_eq!(group, NamedGroup::secp384r1);
        if spoken == Some(ProtocolVersion::TLSv1_2) {
            assert_eq!(session.negotiated_cipher_suite().unwrap().suite(), suite);
            let mut provider = ring::default_provider();
            provider.cipher_suites.retain(|one| one.suite() != suite);
            let other = Speaks { versions, provider, ..Speaks::default() };
            connect(world.address, &world.of_server, None, other).await.unwrap_err();
        }
    }
}

#[tokio::test]
async fn other_authorities_need_no_restart_and_count_on_connections_that_there_are() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.crt");
    let (first, second) = (Authority::new(), Authority::new());
    std::fs::write(&file, &first.pem).unwrap();
    let (mut client_ca, following) = ClientCa::of_always(&file);
    tokio::spawn(following);
    client_ca.changed().await;
    let world = World::start(Settings { client_ca: Some(client_ca.clone()), ..Settings::default() }).await;
    let (of_first, of_second) = (first.client("admin"), second.client("admin"));
    let mut before = world.connect(Some(&of_first)).await;
    assert_eq!(ask(&mut before, &request("GET", "/pods", "")).await.unwrap().status, 200);
    assert_eq!(world.status(Some(&of_second), "/pods").await, 401);
    // As those do that change it under others who read it.
    let next = directory.path().join("next");
    std::fs::write(&next, &second.pem).unwrap();
    std::fs::rename(&next, &file).unwrap();
    client_ca.changed().await;
    assert_eq!(world.status(Some(&of_second), "/pods").await, 200);
    assert_eq!(world.status(Some(&of_first), "/pods").await, 401);
    assert_eq!(ask(&mut before, &request("GET", "/pods", "")).await.unwrap().status, 401);
}

/// Whoever has seen a certificate is nobody yet: its key is asked for, by both versions of TLS.
#[tokio::test]
async fn a_certificate_without_its_key_lets_nobody_in() {
    let world = World::start(Settings::default()).await;
    let (admin, other) = (world.authority.client("admin"), world.authority.client("other"));
    let forged = Identity { chain: admin.chain, key: other.key };
    for versions in [ONLY_1_2, BOTH] {
        let speaks = Speaks { versions, is_forged: true, ..Speaks::default() };
        // In TLS 1.3 a client has done its part before it hears of that.
        let Ok(mut stream) = connect(world.address, &world.of_server, Some(&forged), speaks).await else {
            continue;
        };
        assert_eq!(ask(&mut stream, &request("GET", "/pods", "")).await, None);
    }
    let own = world.authority.client("admin");
    for versions in [ONLY_1_2, BOTH] {
        let speaks = Speaks { versions, is_forged: true, ..Speaks::default() };
        let mut stream = connect(world.address, &world.of_server, Some(&own), speaks).await.unwrap();
        assert_eq!(
            ask(&mut stream, &request("GET", "/pods", "")).await.unwrap().status,
            200,
            "such a client can"
        );
    }
}
