//! The node's server, as the settings say it.

use std::{net::SocketAddr, time::Duration};

use berth_core::server::Debugging;
use tokio_rustls::rustls::{CipherSuite, NamedGroup};

use super::*;
use crate::config::{AuthenticationSettings, AuthorizationSettings, ServerSettings, TlsSettings, TlsVersion};

const IN_CLUSTER: &str = "--kubeconfig=/x";

fn server(text: &str, flags: &[&str]) -> ServerSettings {
    load_text(text, flags).unwrap().resolve(&facts()).unwrap().server.unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn webhook() -> AuthorizationSettings {
    AuthorizationSettings::Webhook { allowed: Duration::from_secs(300), denied: Duration::from_secs(30) }
}

#[test]
fn in_a_cluster_the_api_server_is_asked_by_default() {
    let tls = TlsSettings { least: TlsVersion::Tls12, suites: None, groups: None };
    let tokens = Some(Duration::from_secs(120));
    let expected = ServerSettings {
        listen: at("0.0.0.0:10250"),
        read_only: None,
        tls,
        authentication: AuthenticationSettings { client_ca: None, tokens, anonymous: false },
        authorization: webhook(),
        debugging: Debugging::On { logs: true },
        stream_idle: Duration::from_secs(4 * 3600),
    };
    assert_eq!(server("", &[IN_CLUSTER]), expected);
    // The kubelet lets everybody in where there is no file.
    let settings = Settings::load(KubeletFlags::parse(&[IN_CLUSTER]).unwrap()).unwrap();
    assert_eq!(settings.resolve(&facts()).unwrap().server, Some(expected));
}

#[test]
fn without_a_cluster_nobody_is_let_in_by_default() {
    let server = server("", &[]);
    assert_eq!(
        server.authentication,
        AuthenticationSettings { client_ca: None, tokens: None, anonymous: false }
    );
    assert_eq!(server.authorization, webhook());
}

#[test]
fn everything_can_be_said() {
    let said = server(
        "address: '::'\nport: 1\nreadOnlyPort: 2\nenableDebuggingHandlers: false\nenableSystemLogQuery: true\n\
         streamingConnectionIdleTimeout: 5m\nauthentication: {x509: {clientCAFile: /ca.crt}, webhook: {cacheTTL: 7s}, \
         anonymous: {enabled: true}}\nauthorization: {mode: AlwaysAllow}\n",
        &[IN_CLUSTER],
    );
    assert_eq!((said.listen, said.read_only), (at("[::]:1"), Some(at("[::]:2"))));
    assert_eq!(said.debugging, Debugging::Off);
    assert_eq!(said.stream_idle, Duration::from_secs(300));
    let (client_ca, tokens) = (Some(PathBuf::from("/ca.crt")), Some(Duration::from_secs(7)));
    assert_eq!(said.authentication, AuthenticationSettings { client_ca, tokens, anonymous: true });
    assert_eq!(said.authorization, AuthorizationSettings::AlwaysAllow);
    let relative = load_text("authentication: {x509: {clientCAFile: ca.crt}}\n", &[IN_CLUSTER]).unwrap();
    let file = relative.resolve(&facts()).unwrap().server.unwrap().authentication.client_ca.unwrap();
    assert!(file.is_absolute() && file.ends_with("ca.crt"), "{file:?}");
    assert_eq!(
        server("enableSystemLogHandler: false\n", &[IN_CLUSTER]).debugging,
        Debugging::On { logs: false }
    );
    assert_eq!(load_text("enableServer: false\n", &[]).unwrap().resolve(&facts()).unwrap().server, None);
}

#[test]
fn what_asks_an_api_server_needs_one() {
    for (text, flags, fault) in [
        ("authentication: {webhook: {enabled: true}}\n", &[][..], "authentication.webhook.enabled"),
        ("", &["--authentication-token-webhook=true"], "authentication.webhook.enabled"),
        ("authorization: {mode: Webhook}\n", &[], "authorization.mode"),
        ("authentication: {anonymous: {enabled: true}}\n", &[], "authorization.mode"),
        ("authentication: {x509: {clientCAFile: /x}}\n", &[], "authorization.mode"),
    ] {
        let told = load_text(text, flags).unwrap_err();
        assert!(told.contains(fault) && told.contains("API server"), "{text}: {told}");
        let with_server_off = format!("{text}enableServer: false\n");
        load_text(&with_server_off, flags).unwrap();
        let in_cluster: Vec<_> = flags.iter().copied().chain([IN_CLUSTER]).collect();
        load_text(text, &in_cluster).unwrap();
    }
    for text in [
        "authorization: {mode: ''}\n",
        "authentication: {webhook: {enabled: false}}\n",
        "authentication: {x509: {clientCAFile: /x}}\nauthorization: {mode: AlwaysAllow}\n",
    ] {
        load_text(text, &[]).unwrap();
    }
}

#[test]
fn tls_is_spoken_as_named() {
    let settings = load_text(
        "tlsMinVersion: VersionTLS13\ntlsCurvePreferences: [4588, 29, 23, 25]\ntlsCipherSuites: [TLS_RSA_WITH_AES_128_GCM_SHA256, \
         TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n",
        &[IN_CLUSTER],
    )
    .unwrap();
    assert_eq!(settings.left_out_of_tls(), ["TLS_RSA_WITH_AES_128_GCM_SHA256", "4588", "25"]);
    let tls = settings.resolve(&facts()).unwrap().server.unwrap().tls;
    let suites = vec![
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ];
    let groups = vec![NamedGroup::X25519, NamedGroup::secp256r1];
    assert_eq!(tls, TlsSettings { least: TlsVersion::Tls13, suites: Some(suites), groups: Some(groups) });
}

#[test]
fn tls_that_cannot_be_spoken_is_an_error_that_says_what_can() {
    for (text, parts) in [
        ("tlsMinVersion: VersionTLS10\n", &["`VersionTLS10` is no longer spoken", "VersionTLS12"][..]),
        ("tlsMinVersion: VersionTLS11\n", &["`VersionTLS11` is no longer spoken"]),
        ("tlsMinVersion: TLS12\n", &["`TLS12` is not one of `VersionTLS12`"]),
        ("tlsCipherSuites: [TLS_X]\n", &["tlsCipherSuites[0]", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]),
        ("tlsCipherSuites: [TLS_RSA_WITH_RC4_128_SHA]\n", &["none of them is there"]),
        ("tlsCurvePreferences: [29, 29]\n", &["tlsCurvePreferences[1]", "given twice"]),
        ("tlsCurvePreferences: [0]\n", &["0 is no key exchange"]),
        ("tlsCurvePreferences: [-29]\n", &["-29 is no key exchange"]),
        ("tlsCurvePreferences: [25]\n", &["none of them is there", "29 (X25519)"]),
        ("tlsCurvePreferences: [X25519]\n", &["tlsCurvePreferences[0]"]),
        ("address: localhost\n", &["address", "IP address"]),
        ("enableSystemLogQuery: true\nenableSystemLogHandler: false\n", &["enableSystemLogQuery"]),
    ] {
        let told = load_text(text, &[IN_CLUSTER]).unwrap_err();
        assert!(parts.iter().all(|part| told.contains(part)), "{text}: {told}");
    }
}

#[test]
fn the_configuration_is_shown_with_its_defaults_and_without_passwords() {
    let shown =
        load_text("maxPods: 7\nstaticPodURLHeader: {Authorization: [secret]}\n", &[]).unwrap().shown();
    assert_eq!(shown["kind"], "KubeletConfiguration");
    assert_eq!((&shown["maxPods"], &shown["syncFrequency"]), (&json!(7), &json!("1m0s")));
    assert_eq!(shown["staticPodURLHeader"], json!({"Authorization": ["<masked>"]}));
}
