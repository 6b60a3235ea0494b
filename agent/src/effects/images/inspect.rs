//! Images on the node: their record in containerd, and from there manifest and config.
//!
//! Everything read is a registry's or an image's to choose: sizes are capped, digests are checked by containerd when it
//! stores a blob, and only what a container starts from is taken.

use std::{collections::BTreeSet, sync::Arc};

use berth_core::{
    event::Outcome,
    failure::{Failure, FailureKind},
    id::ImageRef,
    image::{
        self, ImageConfig, ImageInfo, WantedImage,
        access::{Access, PullSecret, Verdict},
        name::ImageName,
    },
};
use containerd_client::{
    services::v1::{
        GetImageRequest, Image, ListImagesRequest, ReadContentRequest, snapshots::StatSnapshotRequest,
    },
    types::Descriptor,
};
use oci_spec::image::{
    Arch, Descriptor as OciDescriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType, Os,
};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::{
    credentials::{self, Found, Tracked},
    failure::{failed, unknown},
    host::Host,
    kinds::{Lane, RUNTIME},
    pulled, unpack,
};
use crate::{
    causes::with_causes,
    large::{self, Stopping},
    runtime::{CallError, Containerd},
};

/// Largest index, manifest or config that is read (containerd's own bound for manifests).
const DOCUMENT_MAX: i64 = 8 << 20;

/// Deepest nesting of indexes.
const INDEX_DEPTH_MAX: usize = 4;

/// Why an image on the node cannot be used.
#[derive(Debug, thiserror::Error)]
pub(in crate::effects) enum ImageError {
    /// Containerd failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A document is not what it should be.
    #[error("read {what} {digest} of the image")]
    Malformed {
        /// Which document.
        what: &'static str,
        /// Its digest.
        digest: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A document is too large.
    #[error("read {what} {digest} of the image: it is larger than {DOCUMENT_MAX} bytes")]
    TooLarge {
        /// Which document.
        what: &'static str,
        /// Its digest.
        digest: String,
    },
    /// A large document was not read.
    #[error(transparent)]
    Stopping(#[from] Stopping),
    /// There is nothing for this machine in it.
    #[error("use image {0}: it has no manifest for this platform (linux/{arch})", arch = go_arch())]
    NoPlatform(String),
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Call(error) => error.into(),
            ImageError::Stopping(why) => unknown(why.to_string()),
            ImageError::Malformed { .. } | ImageError::TooLarge { .. } | ImageError::NoPlatform(_) => {
                failed(FailureKind::ImagePull, &error)
            }
        }
    }
}

/// An image as found, unpacked or not.
#[derive(Debug)]
pub(in crate::effects) struct Located {
    pub(in crate::effects) info: ImageInfo,
    pub(in crate::effects) record: Image,
    /// Of all records of the same content.
    pub(in crate::effects) names: Vec<String>,
    pub(in crate::effects) is_unpacked: bool,
    /// As packed, lowest first.
    pub(in crate::effects) layers: Vec<Descriptor>,
    /// Digests of the layers unpacked, in the same order.
    pub(in crate::effects) diff_ids: Vec<String>,
}

/// Looks for an image, and unpacks what was only imported. One whose layers are not there is as good as absent, and one that is of no use here, by its
/// platform or its documents: a pull repairs it, where its registry has another one by now.
///
/// So is one that a pod with other secrets pulled, for a pod that could not have pulled it.
pub(in crate::effects) async fn inspect(host: &Arc<Host>, wanted: &WantedImage) -> Result<Outcome, Failure> {
    let name = parse(&wanted.image)?;
    let place = host.lanes.enter(Lane::Images, RUNTIME).await?;
    let found = usable(locate(host, &name).await)?;
    drop(place);
    if let Some(found) = &found
        && !may_use(host, wanted, &name, &found.info.id).await
    {
        return Ok(Outcome::Image(None));
    }
    if let Some(packed) = found.as_ref().filter(|found| !found.is_unpacked)
        && !unpack::unpack(host, packed).await?
    {
        return Ok(Outcome::Image(None));
    }
    Ok(Outcome::Image(found.map(|found| Arc::new(found.info))))
}

/// An image that can be used. Source: `getImage` of containerd's `internal/cri/store/image/image.go`, which knows no other.
fn usable<T>(located: Result<Option<T>, ImageError>) -> Result<Option<T>, ImageError> {
    match located {
        Err(ImageError::NoPlatform(_) | ImageError::Malformed { .. } | ImageError::TooLarge { .. }) => {
            Ok(None)
        }
        located => located,
    }
}

async fn may_use(host: &Arc<Host>, wanted: &WantedImage, name: &ImageName, id: &str) -> bool {
    let access = pulled::access(host, &wanted.image, name, id).await;
    let found = match access {
        Access::All | Access::Nobody => Found::default(),
        Access::With(_) => credentials::find(host, wanted, &name.repository()).await,
    };
    if found.malformed.is_some() {
        return false;
    }
    match access.verdict(Tracked::secrets(&found.credentials)) {
        Verdict::Refused => false,
        Verdict::Allowed => true,
        Verdict::Fits(secret) => {
            keep(host, &wanted.image, id, secret.clone()).await;
            true
        }
    }
}

/// Keeps that a secret fits an image. The image may be used all the same.
async fn keep(host: &Arc<Host>, image: &ImageRef, id: &str, secret: PullSecret) {
    if let Err(failure) = pulled::record(host, image, id, Some(secret)).await {
        tracing::warn!(%image, id, why = failure.message, "a secret that fits the image is not kept");
    }
}

/// The name, checked.
pub(in crate::effects) fn parse(image: &ImageRef) -> Result<ImageName, Failure> {
    image::name::parse(image.as_str()).map_err(|error| failed(FailureKind::InvalidImageName, &error))
}

/// Finds an image by its name.
pub(in crate::effects) async fn locate(host: &Host, name: &ImageName) -> Result<Option<Located>, ImageError> {
    let Some(record) = get(host, &name.to_string()).await? else { return Ok(None) };
    let Some(target) = record.target.clone() else { return Ok(None) };
    let documents = match read_documents(&host.containerd, &record.name, target).await {
        // The record is there without its content: as good as absent, and a pull repairs it.
        Err(ImageError::Call(error)) if error.is_not_found() => return Ok(None),
        result => result?,
    };
    let Documents { manifest, config, config_digest, above_bytes } = documents;
    let chain_id = chain_id_of(config.rootfs().diff_ids());
    let names = names(host, &record).await?;
    let (tag, repo_digest) = image::name::shown_of(names.iter().map(String::as_str));
    let info = ImageInfo {
        name: record.name.clone(),
        id: config_digest.clone(),
        tag,
        repo_digest,
        chain_id: chain_id.clone(),
        size_bytes: size_bytes(above_bytes, &manifest),
        config: image_config(&config),
    };
    let is_unpacked = is_unpacked(host, &chain_id).await?;
    let layers = manifest.layers().iter().map(|layer| Descriptor {
        media_type: layer.media_type().to_string(),
        digest: layer.digest().to_string(),
        size: i64::try_from(layer.size()).unwrap_or_default(),
        ..Descriptor::default()
    });
    let diff_ids = config.rootfs().diff_ids().clone();
    Ok(Some(Located { info, record, names, is_unpacked, layers: layers.collect(), diff_ids }))
}

async fn get(host: &Host, name: &str) -> Result<Option<Image>, CallError> {
    let request = GetImageRequest { name: name.to_owned() };
    let mut client = host.containerd.images();
    match host.containerd.call("look for image", name, client.get(request)).await {
        Ok(answer) => Ok(answer.image),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// What an image is called: the names of all records of the same content. One that was given another name, or was pulled by another
/// tag, has those of before too; one that was imported has no digest among them.
async fn names(host: &Host, record: &Image) -> Result<Vec<String>, CallError> {
    let target = record.target.as_ref().map_or("", |target| target.digest.as_str());
    let request = ListImagesRequest { filters: vec![format!("target.digest=={target}")] };
    let mut client = host.containerd.images();
    let images = host.containerd.call("list images with", target, client.list(request)).await?.images;
    Ok(images.into_iter().map(|image| image.name).collect())
}

/// The bytes of an image as its descriptors say them: indexes and manifest, config, layers. Source: containerd,
/// `core/images/usage/calculator.go` `CalculateImageUsage`, as `getImage` of `internal/cri/store/image/image.go` calls it.
pub(super) fn size_bytes(above: u64, manifest: &ImageManifest) -> u64 {
    let layers = manifest.layers().iter().map(OciDescriptor::size);
    layers.chain([manifest.config().size()]).fold(above, u64::saturating_add)
}

pub(super) struct Documents {
    pub(super) manifest: ImageManifest,
    config: ImageConfiguration,
    pub(super) config_digest: String,
    /// Size of the manifest and of the indexes above it.
    pub(super) above_bytes: u64,
}

impl Documents {
    /// Chain id of the layers.
    pub(super) fn chain_id(&self) -> String {
        chain_id_of(self.config.rootfs().diff_ids())
    }
}

pub(super) async fn read_documents(
    containerd: &Containerd,
    name: &str,
    target: Descriptor,
) -> Result<Documents, ImageError> {
    let (mut digest, mut media_type) = (target.digest, target.media_type);
    let mut above_bytes = u64::try_from(target.size).unwrap_or_default();
    for _ in 0..INDEX_DEPTH_MAX {
        if !is_index(&media_type) {
            let bytes = read(containerd, "manifest", &digest).await?;
            let manifest: ImageManifest = parse_json("manifest", &digest, bytes).await?;
            let config_digest = manifest.config().digest().to_string();
            let bytes = read(containerd, "config", &config_digest).await?;
            let config: ImageConfiguration = parse_json("config", &config_digest, bytes).await?;
            return Ok(Documents { manifest, config, config_digest, above_bytes });
        }
        let bytes = read(containerd, "index", &digest).await?;
        let index: ImageIndex = parse_json("index", &digest, bytes).await?;
        let chosen = choose(index.manifests()).ok_or_else(|| ImageError::NoPlatform(name.to_owned()))?;
        digest = chosen.digest().to_string();
        media_type = chosen.media_type().to_string();
        above_bytes = above_bytes.saturating_add(chosen.size());
    }
    Err(ImageError::NoPlatform(name.to_owned()))
}

fn is_index(media_type: &str) -> bool {
    media_type == MediaType::ImageIndex.to_string()
        || media_type == "application/vnd.docker.distribution.manifest.list.v2+json"
}

/// The manifest for this machine: an exact one first, then one that does not name a variant. Attestations, which name
/// the platform `unknown`, are not among them.
fn choose(manifests: &[OciDescriptor]) -> Option<&OciDescriptor> {
    let fits = |descriptor: &&OciDescriptor| {
        descriptor.platform().as_ref().is_none_or(|platform| {
            *platform.os() == Os::Linux && platform.architecture().to_string() == go_arch()
        })
    };
    let rank = |descriptor: &&OciDescriptor| {
        let variant = descriptor.platform().as_ref().and_then(|platform| platform.variant().clone());
        match (variant.as_deref(), descriptor.platform()) {
            (Some("v8"), _) | (None, Some(_)) => 0,
            (Some(_), _) => 1,
            (None, None) => 2,
        }
    };
    manifests.iter().filter(fits).min_by_key(rank)
}

/// This machine's architecture in Go's words, as images name it.
pub(in crate::effects) fn go_arch() -> String {
    match std::env::consts::ARCH {
        "x86_64" => Arch::Amd64,
        "aarch64" => Arch::ARM64,
        other => Arch::Other(other.to_owned()),
    }
    .to_string()
}

async fn read(containerd: &Containerd, what: &'static str, digest: &str) -> Result<Vec<u8>, ImageError> {
    let request = ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 };
    let mut client = containerd.content();
    let mut stream = containerd.call("read", digest, client.read(request)).await?;
    let mut bytes = Vec::new();
    while let Some(part) = containerd.next("read", digest, stream.message()).await? {
        bytes.extend_from_slice(&part.data);
        if i64::try_from(bytes.len()).unwrap_or(i64::MAX) > DOCUMENT_MAX {
            return Err(ImageError::TooLarge { what, digest: digest.to_owned() });
        }
    }
    Ok(bytes)
}

async fn parse_json<T: DeserializeOwned + Send + 'static>(
    what: &'static str,
    digest: &str,
    bytes: Vec<u8>,
) -> Result<T, ImageError> {
    let parsed = large::read(bytes.len(), move || serde_json::from_slice(&bytes)).await?;
    parsed.map_err(|source| ImageError::Malformed { what, digest: digest.to_owned(), source })
}

/// Whether layers are there, up to that of a chain id. An image without layers needs none.
pub(in crate::effects) async fn is_unpacked(host: &Host, chain_id: &str) -> Result<bool, CallError> {
    if chain_id.is_empty() {
        return Ok(true);
    }
    let request =
        StatSnapshotRequest { snapshotter: host.settings().snapshotter.clone(), key: chain_id.to_owned() };
    let mut client = host.containerd.snapshots();
    match host.containerd.call("look for layers", chain_id, client.stat(request)).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => {
            tracing::debug!(error = with_causes(&error), "layers cannot be looked for");
            Err(error)
        }
    }
}

/// The chain id of layers, lowest first; empty for none.
fn chain_id_of(diff_ids: &[String]) -> String {
    diff_ids.iter().fold(String::new(), |below, diff_id| chain_id(&below, diff_id))
}

/// The chain id of a layer and those below it (OCI image-spec, config.md, "Layer ChainID").
pub(in crate::effects) fn chain_id(below: &str, diff_id: &str) -> String {
    if below.is_empty() {
        return diff_id.to_owned();
    }
    let digest = Sha256::digest(format!("{below} {diff_id}").as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Most bytes of the name of a signal. It goes into the record of every container of the image; a longer one names none.
const SIGNAL_BYTES_MAX: usize = 32;

fn image_config(config: &ImageConfiguration) -> ImageConfig {
    let Some(config) = config.config() else { return ImageConfig::default() };
    // Each reading gives them in another order, and their directories are named by it.
    let volumes: BTreeSet<String> = config.volumes().iter().flatten().cloned().collect();
    ImageConfig {
        env: config.env().clone().unwrap_or_default(),
        entrypoint: config.entrypoint().clone().unwrap_or_default(),
        cmd: config.cmd().clone().unwrap_or_default(),
        user: config.user().clone().unwrap_or_default(),
        working_dir: config.working_dir().clone().unwrap_or_default(),
        stop_signal: config.stop_signal().clone().filter(|name| (1..=SIGNAL_BYTES_MAX).contains(&name.len())),
        volumes: volumes.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use containerd_client::services::v1::ReadContentResponse;
    use serde::{Deserialize, Deserializer, de::IgnoredAny};
    use tokio::time::timeout;

    use super::*;
    use crate::{
        large::AT_ONCE_BYTES,
        runtime::{
            Cause,
            fake::{Ending, Fake, LONG},
        },
    };

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
        let part =
            |data: &[u8]| ReadContentResponse { data: data.to_vec(), ..ReadContentResponse::default() };
        let parts = [part(b"{}"), part(b"\n")];
        let whole = Fake::answering(&parts, Ending::Whole).await;
        assert_eq!(read(&whole.containerd, "config", "sha256:aa").await.unwrap(), b"{}\n");
        for ending in Ending::MIDWAY {
            let fake = Fake::answering(&parts, ending).await;
            let document =
                timeout(LONG, read(&fake.containerd, "config", "sha256:aa")).await.expect("an end");
            let error = document.unwrap_err();
            assert!(matches!(error, ImageError::Call(_)), "{ending:?}: {error:?}");
        }
    }

    #[test]
    fn no_record_holds_what_is_too_long_for_a_signal() {
        let given = |name: &str| {
            let config = format!(
                "{{\"architecture\":\"\",\"os\":\"\",\"rootfs\":{{\"type\":\"layers\",\"diff_ids\":[]}},\"config\":{{\"StopSignal\":\"{name}\"}}}}"
            );
            image_config(&serde_json::from_str(&config).unwrap()).stop_signal
        };
        assert_eq!(given("SIGRTMIN+3").as_deref(), Some("SIGRTMIN+3"));
        assert_eq!(given(""), None);
        assert_eq!(given(&"x".repeat(SIGNAL_BYTES_MAX + 1)), None);
    }

    #[test]
    fn an_image_that_is_of_no_use_here_is_pulled() {
        let malformed = || serde_json::from_str::<u8>("x").unwrap_err();
        let call = CallError::new("look", "i", Cause::Timeout(std::time::Duration::ZERO));
        for (located, expected) in [
            (Ok(Some(1)), Some(Some(1))),
            (Ok(None), Some(None)),
            (Err(ImageError::NoPlatform("i".into())), Some(None)),
            (Err(ImageError::TooLarge { what: "config", digest: "d".into() }), Some(None)),
            (
                Err(ImageError::Malformed { what: "config", digest: "d".into(), source: malformed() }),
                Some(None),
            ),
            (Err(ImageError::Call(call)), None),
        ] {
            assert_eq!(usable(located).ok(), expected);
        }
    }

    #[test]
    fn volumes_of_an_image_come_in_one_order() {
        let all: Vec<String> = (10..40).map(|number| format!("/v{number}")).collect();
        let volumes: serde_json::Map<_, _> =
            all.iter().rev().map(|path| (path.clone(), serde_json::json!({}))).collect();
        let text = serde_json::json!({
            "architecture": "amd64", "os": "linux", "config": { "Volumes": volumes },
            "rootfs": { "type": "layers", "diff_ids": [] },
        });
        let config: ImageConfiguration = serde_json::from_value(text).unwrap();
        assert_eq!(image_config(&config).volumes, all);
    }

    #[tokio::test]
    async fn cve_2023_25153_a_document_without_an_end_is_given_up() {
        let part = ReadContentResponse { offset: 0, data: vec![b' '; 1 << 20] };
        for (parts, is_read) in [(8, true), (9, false)] {
            let fake = Fake::answering(&vec![part.clone(); parts], Ending::Whole).await;
            let read = read(&fake.containerd, "config", "d").await;
            match is_read {
                true => assert_eq!(read.unwrap().len(), 8 << 20),
                false => {
                    assert!(matches!(read, Err(ImageError::TooLarge { what: "config", .. })), "{read:?}");
                }
            }
        }
    }

    #[test]
    fn chain_ids_as_in_the_specification() {
        let ids = ["sha256:aa".to_owned(), "sha256:bb".to_owned()];
        assert_eq!(chain_id_of(&[]), "");
        assert_eq!(chain_id_of(&ids[..1]), "sha256:aa");
        // printf 'sha256:aa sha256:bb' | sha256sum
        assert_eq!(
            chain_id_of(&ids),
            "sha256:b68ad689d6d1ec110ea1c13617437ad6f3766d4b3b309f6a603a222e07a0164f"
        );
    }

    #[test]
    fn an_images_size_is_that_of_all_its_parts() {
        let part = |size: u64| {
            format!(
                r#"{{"mediaType":"application/octet-stream","digest":"sha256:{}","size":{size}}}"#,
                "a".repeat(64)
            )
        };
        let manifest: ImageManifest = serde_json::from_str(&format!(
            r#"{{"schemaVersion":2,"config":{},"layers":[{},{}]}}"#,
            part(10),
            part(2000),
            part(300)
        ))
        .unwrap();
        assert_eq!(size_bytes(40_000, &manifest), 42_310);
        assert_eq!(size_bytes(u64::MAX, &manifest), u64::MAX);
    }

    #[test]
    fn the_manifest_for_this_machine_is_chosen() {
        let index: ImageIndex = serde_json::from_str(&format!(
            r#"{{"schemaVersion":2,"manifests":[
                {{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":1,"digest":"sha256:{a}",
                  "platform":{{"os":"unknown","architecture":"unknown"}}}},
                {{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":1,"digest":"sha256:{b}",
                  "platform":{{"os":"linux","architecture":"s390x"}}}},
                {{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":1,"digest":"sha256:{c}",
                  "platform":{{"os":"linux","architecture":"{arch}"}}}}]}}"#,
            a = "a".repeat(64),
            b = "b".repeat(64),
            c = "c".repeat(64),
            arch = go_arch(),
        ))
        .unwrap();
        let chosen = choose(index.manifests()).unwrap();
        assert_eq!(chosen.digest().to_string(), format!("sha256:{}", "c".repeat(64)));
        assert_eq!(choose(&index.manifests()[..2]), None);
    }
}
