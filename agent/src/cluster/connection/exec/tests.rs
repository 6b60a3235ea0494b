use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;

use super::*;
use crate::causes::with_causes;

fn plugin(config: Value) -> Result<Plugin, PluginError> {
    let mut config = parsed(config);
    config.cluster = Some(ExecAuthCluster {
        server: Some("https://api.example:6443".to_owned()),
        insecure_skip_tls_verify: None,
        certificate_authority_data: Some(b"authority".to_vec()),
        proxy_url: None,
        tls_server_name: Some("api".to_owned()),
        config: Some(json!({ "audience": "x" })),
    });
    Plugin::of(&config)
}

fn parsed(config: Value) -> ExecConfig {
    serde_json::from_value(config).unwrap()
}

/// A plugin that is a script.
fn script(text: &str, more: Value) -> Plugin {
    let mut config = json!({
        "apiVersion": VERSIONS[0], "interactiveMode": "Never", "command": "sh", "args": ["-c", text],
    });
    config.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    plugin(config).unwrap()
}

fn printed(status: Value) -> String {
    json!({ "apiVersion": VERSIONS[0], "kind": "ExecCredential", "status": status }).to_string()
}

#[test]
fn plugins_that_no_agent_can_run_are_refused() {
    for (config, why) in [
        (json!({ "command": "x" }), "apiVersion `` is not one of"),
        (
            json!({ "apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x" }),
            "v1alpha1` is not",
        ),
        (json!({ "apiVersion": VERSIONS[0], "command": "x" }), "interactiveMode is missing"),
        (json!({ "apiVersion": VERSIONS[1], "command": "x", "interactiveMode": "Always" }), "no terminal"),
        (json!({ "apiVersion": VERSIONS[1] }), "command is missing"),
        (json!({ "apiVersion": VERSIONS[1], "command": "" }), "command is missing"),
        (json!({ "apiVersion": VERSIONS[1], "command": "x", "env": [{ "value": "y" }] }), "has no name"),
    ] {
        let refused = plugin(config.clone()).unwrap_err().to_string();
        assert!(refused.contains(why), "{config}: {refused}");
    }
    plugin(json!({ "apiVersion": VERSIONS[1], "command": "x" })).unwrap();
}

#[tokio::test]
async fn a_plugin_is_told_of_the_cluster_and_prints_a_token() {
    let text = r#"printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}' \
        "$WHO|$(printf %s "$KUBERNETES_EXEC_INFO" | base64 -w0)""#;
    for (provides, spec) in [
        (
            true,
            json!({ "interactive": false, "cluster": {
                "server": "https://api.example:6443", "tls-server-name": "api", "config": { "audience": "x" },
                "certificate-authority-data": super::super::base64(b"authority"),
            } }),
        ),
        (false, json!({ "interactive": false })),
    ] {
        let env = json!({ "env": [{ "name": "WHO", "value": "node" }], "provideClusterInfo": provides });
        let credential = script(text, env).run().await.unwrap();
        let token = credential.token.unwrap();
        let (who, info) = token.expose_secret().split_once('|').unwrap();
        assert_eq!(who, "node");
        let info = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, info).unwrap();
        let info: Value = serde_json::from_slice(&info).unwrap();
        assert_eq!(info, json!({ "apiVersion": VERSIONS[0], "kind": "ExecCredential", "spec": spec }));
        assert_eq!((credential.until, credential.identity.is_none()), (None, true));
    }
}

#[tokio::test]
async fn a_plugin_that_fails_says_why_and_what_it_printed_is_not_shown() {
    for (text, why) in [
        ("echo secret; echo 'not today' >&2; exit 3", "exit status: 3: not today"),
        ("exit 0", "it is empty"),
        ("echo '{'", "neither JSON nor YAML"),
        ("echo secret", "its kind is not ExecCredential"),
    ] {
        let error = with_causes(&script(text, json!({})).run().await.unwrap_err());
        assert!(error.contains(why) && !error.contains("secret"), "{text}: {error}");
    }
    let missing = json!({ "command": "/nowhere/plugin", "installHint": "get it there" });
    let error = with_causes(&script("", missing).run().await.unwrap_err());
    assert!(error.starts_with("ask the credential plugin (get it there): run /nowhere/plugin"), "{error}");
}

#[tokio::test]
async fn a_plugin_that_hangs_is_ended() {
    for text in ["sleep 1000", "sleep 1000 & exit 0"] {
        let mut plugin = script(text, json!({}));
        assert_eq!(plugin.within, WITHIN);
        plugin.within = Duration::from_millis(100);
        let error = with_causes(&plugin.run().await.unwrap_err());
        assert!(error.starts_with("ask the credential plugin: run sh") && error.contains("100ms"), "{error}");
    }
}

#[test]
fn what_a_plugin_prints_is_taken_whole_or_not_at_all() {
    let taken = |text: &str| {
        let documents = parse("plugin", text).unwrap();
        understood(documents.first().unwrap(), VERSIONS[0])
    };
    for (status, why) in [
        (json!({}), "neither a token nor"),
        (json!({ "token": "" }), "neither a token nor"),
        (json!({ "token": 5 }), "neither a token nor"),
        (json!({ "clientCertificateData": "x" }), "one alone"),
        (json!({ "token": "x", "clientKeyData": "x" }), "one alone"),
        (json!({ "token": "x", "expirationTimestamp": "tomorrow" }), "is no time"),
        (json!({ "token": "x", "expirationTimestamp": "2030-01-01" }), "is no time"),
        (json!({ "token": "x", "expirationTimestamp": "2030-01-01T00:00:00" }), "is no time"),
        (json!({ "token": "x", "expirationTimestamp": "-009999-01-01T00:00:00+23:00" }), "is no time"),
        (json!("x"), "neither a token nor"),
    ] {
        let refused = taken(&printed(status.clone())).unwrap_err();
        assert!(refused.contains(why), "{status}: {refused}");
    }
    let other = printed(json!({ "token": "x" })).replace("/v1", "/v1beta1");
    assert!(taken(&other).unwrap_err().contains("another apiVersion"));
    taken("{kind: ExecCredential, apiVersion: client.authentication.k8s.io/v1}").unwrap_err();

    let yaml = "kind: ExecCredential\napiVersion: client.authentication.k8s.io/v1\nstatus:\n  token: x\n  \
                expirationTimestamp: \"2030-01-01T00:00:00Z\"\n  clientCertificateData: c\n  clientKeyData: k\n";
    let credential = taken(yaml).unwrap();
    assert_eq!(credential.until, "2030-01-01T00:00:00Z".parse().ok());
    for last in ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59.5-12:00", "9999-12-31T00:00:00+01:00"] {
        let until = taken(&printed(json!({ "token": "x", "expirationTimestamp": last }))).unwrap().until;
        assert_eq!(until, Some(Timestamp::MAX), "{last}");
    }
    let identity = credential.identity.unwrap();
    assert_eq!((identity.certificates.as_str(), identity.key.expose_secret()), ("c", "k"));
}

fn pair() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

#[tokio::test]
async fn what_no_request_can_be_sent_with_is_no_answer() {
    let ((certificate, key), (other, _)) = (pair(), pair());
    let on_one_line = "-----BEGIN PRIVATE KEY-----secret-----END PRIVATE KEY-----";
    let with = |certificate: &str, key: &str| json!({ "clientCertificateData": certificate, "clientKeyData": key, "token": "secret" });
    for (status, why) in [
        (with(&certificate, &key), None),
        (with(&other, &key), Some("keys may not be consistent")),
        (with(&certificate, &other), Some("its key is not in PEM form")),
        (with(&key, &key), Some("")),
        (with(&certificate, on_one_line), Some("its key is not in PEM form")),
        (json!({ "token": "secret" }), None),
        (json!({ "token": "secret\nX-Other: x" }), Some("")),
    ] {
        let config = json!({
            "apiVersion": VERSIONS[0], "interactiveMode": "Never",
            "command": "echo", "args": [printed(status.clone())],
        });
        let answer = plugin(config).unwrap().run().await;
        let told = answer.err().map(|error| with_causes(&error));
        assert_eq!(told.is_some(), why.is_some(), "{status}");
        let (told, why) = (told.unwrap_or_default(), why.unwrap_or_default());
        assert!(told.contains(why) && !told.contains("secret"), "{told}");
    }
}
