use std::thread::{self, ThreadId};

use containerd_client::services::v1::ReadContentResponse;
use serde::{Deserialize, Deserializer};
use tokio::time::timeout;

use super::*;
use crate::{
    large::AT_ONCE_BYTES,
    runtime::fake::{Ending, Fake, LONG},
};

const DIGEST: &str = "sha256:7cc4b5aefd1d0cadf8d97d4350462ba51c694ebca145b08d7d41b41acc8db5aa";

fn documents(manifest: Manifest, config: Config) -> Documents {
    Documents { manifest, config, config_digest: DIGEST.to_owned(), above_bytes: 40_000 }
}

fn config(text: &str) -> ImageConfig {
    documents(Manifest::default(), serde_json::from_str(text).unwrap()).image_config()
}

/// A document that knows where it was parsed.
struct ParsedOn(ThreadId);

impl<'de> Deserialize<'de> for ParsedOn {
    fn deserialize<D: Deserializer<'de>>(document: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(document)?;
        Ok(Self(thread::current().id()))
    }
}

#[tokio::test]
async fn a_large_document_is_parsed_elsewhere() {
    let here = thread::current().id();
    for (bytes, is_here) in [(AT_ONCE_BYTES, true), (AT_ONCE_BYTES + 1, false)] {
        let document = format!("\"{}\"", "x".repeat(bytes - 2));
        let parsed = parse_json("config", "sha256:aa", document.into_bytes()).await;
        let ParsedOn(thread) = parsed.unwrap();
        assert_eq!(thread == here, is_here, "{bytes} bytes");
        let broken = parse_json::<ParsedOn>("config", "sha256:aa", vec![b'x'; bytes]).await;
        assert!(matches!(broken, Err(ImageError::Malformed { what: "config", .. })), "{bytes} bytes");
    }
}

/// What is known of an image is kept: nothing is made of half a document.
#[tokio::test]
async fn a_document_that_stops_midway_is_not_read() {
    let part = |data: &[u8]| ReadContentResponse { data: data.to_vec(), ..ReadContentResponse::default() };
    let parts = [part(b"{}"), part(b"\n")];
    let whole = Fake::answering(&parts, Ending::Whole).await;
    assert_eq!(read(&whole.containerd, "config", DIGEST).await.unwrap(), b"{}\n");
    for ending in Ending::MIDWAY {
        let fake = Fake::answering(&parts, ending).await;
        let document = timeout(LONG, read(&fake.containerd, "config", DIGEST)).await.expect("an end");
        let error = document.unwrap_err();
        assert!(matches!(error, ImageError::Call(_)), "{ending:?}: {error:?}");
    }
}

#[tokio::test]
async fn cve_2023_25153_a_document_without_an_end_is_given_up() {
    let part = ReadContentResponse { offset: 0, data: vec![b' '; 1 << 20] };
    let fake = Fake::answering(&vec![part.clone(); 8], Ending::Whole).await;
    assert_eq!(read(&fake.containerd, "config", DIGEST).await.unwrap().len(), 8 << 20);
    let fake = Fake::answering(&vec![part; 9], Ending::Whole).await;
    let document = read(&fake.containerd, "config", DIGEST).await;
    assert!(matches!(document, Err(ImageError::TooLarge { what: "config", .. })), "{document:?}");
}

#[test]
fn chain_ids_as_in_the_specification() {
    let of = |diff_ids: &[String]| {
        let root = RootFs { diff_ids: diff_ids.to_vec() };
        documents(Manifest::default(), Config { root, ..Config::default() }).chain_id()
    };
    let ids = ["sha256:aa".to_owned(), "sha256:bb".to_owned()];
    assert_eq!(of(&[]), "");
    assert_eq!(of(&ids[..1]), "sha256:aa");
    // printf 'sha256:aa sha256:bb' | sha256sum
    assert_eq!(of(&ids), "sha256:b68ad689d6d1ec110ea1c13617437ad6f3766d4b3b309f6a603a222e07a0164f");
}

/// What `encoding/json` reads into the types of `github.com/opencontainers/image-spec`.
#[test]
fn documents_are_read_as_go_reads_them() {
    let expected = ImageConfig {
        env: vec!["A=b".into()],
        entrypoint: vec!["/x".into()],
        cmd: vec!["y".into()],
        user: "1:2".into(),
        working_dir: "/w".into(),
        stop_signal: Some("SIGUSR1".into()),
        volumes: vec!["/a".into(), "/b".into()],
    };
    for text in [
        r#"{"config":{"Env":["A=b"],"Entrypoint":["/x"],"Cmd":["y"],"User":"1:2","WorkingDir":"/w","StopSignal":"SIGUSR1",
            "Volumes":{"/b":{},"/a":{}},"ExposedPorts":{"80/tcp":{}},"Labels":{"a":"b"}},"rootfs":{"type":"layers","diff_ids":[]}}"#,
        r#"{"Config":{"env":["A=b"],"ENTRYPOINT":["/x"],"cmd":["y"],"user":"1:2","workingdir":"/w","stopSignal":"SIGUSR1",
            "volumes":{"/a":null,"/b":null},"ExposedPorts":{"80/tcp":null},"Labels":{"a":null}},"RootFS":{"diff_ids":null},
            "history":null,"x":[{"y":1}]}"#,
    ] {
        assert_eq!(config(text), expected, "{text}");
    }
    for text in
        ["{}", r#"{"config":null,"rootfs":null}"#, r#"{"config":{"Env":null,"User":null,"Volumes":null}}"#]
    {
        assert_eq!(config(text), ImageConfig::default(), "{text}");
    }
    let text = r#"{"rootfs":{"diff_ids":["sha256:aa","sha256:bb"]}}"#;
    let read: Config = serde_json::from_str(text).unwrap();
    assert_eq!(documents(Manifest::default(), read).diff_ids(), ["sha256:aa", "sha256:bb"]);
    let text = r#"{"annotations":{"a":null},"layers":[{"digest":"d","size":3,"annotations":null}],"config":{"Digest":"c","urls":null}}"#;
    let read: Manifest = serde_json::from_str(text).unwrap();
    assert_eq!((read.config.digest.as_str(), read.layers[0].bytes()), ("c", 3));
    for text in ["[]", "7", r#"{"config":7}"#, r#"{"config":{"Env":{}}}"#, "{} x"] {
        serde_json::from_str::<Config>(text).unwrap_err();
    }
}

#[tokio::test]
async fn what_is_no_utf_8_is_read_all_the_same() {
    let text = b"{\"config\":{\"User\":\"u\xff\"}}".to_vec();
    let read: Config = parse_json("config", DIGEST, text).await.unwrap();
    assert_eq!(read.config.user, "u\u{fffd}");
}

#[tokio::test]
async fn what_has_no_digest_is_not_asked_for() {
    let fake = Fake::answering(&[ReadContentResponse::default()], Ending::Whole).await;
    for digest in ["", "sha256:aa", "latest"] {
        let error = read(&fake.containerd, "config", digest).await.unwrap_err();
        assert!(matches!(error, ImageError::Malformed { what: "config", .. }), "{digest}: {error:?}");
    }
}

#[test]
fn no_record_holds_what_is_too_long_for_a_signal() {
    let given = |name: &str| config(&format!("{{\"config\":{{\"StopSignal\":\"{name}\"}}}}")).stop_signal;
    assert_eq!(given("SIGRTMIN+3").as_deref(), Some("SIGRTMIN+3"));
    assert_eq!(given(""), None);
    assert_eq!(given(&"x".repeat(SIGNAL_BYTES_MAX + 1)), None);
}

#[test]
fn volumes_of_an_image_come_in_one_order() {
    let all: Vec<String> = (10..40).map(|number| format!("/v{number}")).collect();
    let volumes: serde_json::Map<_, _> =
        all.iter().rev().map(|path| (path.clone(), serde_json::json!({}))).collect();
    let text = serde_json::json!({ "config": { "Volumes": volumes } }).to_string();
    assert_eq!(config(&text).volumes, all);
}

#[test]
fn an_images_size_is_that_of_all_its_parts() {
    let part = |size: i64| Described { size, ..Described::default() };
    let manifest = Manifest { config: part(10), layers: vec![part(2000), part(300), part(-5)] };
    assert_eq!(documents(manifest.clone(), Config::default()).size_bytes(), 42_310);
    let most = Documents { above_bytes: u64::MAX, ..documents(manifest, Config::default()) };
    assert_eq!(most.size_bytes(), u64::MAX);
}

/// A manifest of an index, for a platform: system, architecture, variant and a feature.
fn offered(number: usize, platform: Option<[&str; 4]>) -> Described {
    let platform = platform.map(|[os, architecture, variant, feature]| DescribedPlatform {
        os: os.into(),
        architecture: architecture.into(),
        variant: variant.into(),
        features: Some(feature.to_owned()).filter(|feature| !feature.is_empty()).into_iter().collect(),
    });
    Described { digest: number.to_string(), platform, ..Described::default() }
}

#[test]
fn the_manifest_for_this_machine_is_chosen() {
    let arch = go_arch();
    let of = |variant, feature| Some(["linux", arch.as_str(), variant, feature]);
    let (fits, other) = (of("", ""), Some(["linux", "s390x", "", ""]));
    let attestation = Some(["unknown", "unknown", "", ""]);
    for (offers, expected) in [
        (vec![attestation, other, fits], Some("2")),
        (vec![attestation, other], None),
        (vec![None, fits], Some("1")),
        (vec![other, None, None], Some("1")),
        (vec![fits, fits], Some("0")),
        (vec![of("v99", ""), fits], Some("1")),
        (vec![of("v99", "")], None),
        (vec![of("", "erofs"), fits], Some("1")),
        (vec![], None),
    ] {
        let manifests = offers.iter().enumerate().map(|(number, one)| offered(number, *one)).collect();
        let index = Index { manifests };
        assert_eq!(choose(&index).map(|one| one.digest.as_str()), expected, "{offers:?}");
    }
}
