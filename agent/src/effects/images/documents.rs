//! Documents of images: indexes, manifests and configs, from containerd's content store.
//!
//! Everything read is a registry's or an image's to choose: sizes are capped, digests are checked by containerd when it stores a blob, and only
//! what a container starts from is taken, as Go reads it.

use std::collections::BTreeMap;

use berth_core::{
    failure::{Failure, FailureKind},
    image::{
        ImageConfig,
        name::is_digest,
        platform::{self, Platform},
    },
};
use containerd_client::{services::v1::ReadContentRequest, types};
use oci_spec::image::{Arch, MediaType};
use serde::de::{DeserializeOwned, IgnoredAny};
use sha2::{Digest, Sha256};

use super::failure::{failed, unknown};
use crate::{
    go_json::read_as_go,
    large::{self, Stopping},
    runtime::{CallError, Containerd},
};

/// Largest index, manifest or config that is read (containerd's own bound for manifests).
const DOCUMENT_MAX: i64 = 8 << 20;

/// Deepest nesting of indexes.
const INDEX_DEPTH_MAX: usize = 4;

/// Most bytes of the name of a signal. It goes into the record of every container of the image; a longer one names none.
const SIGNAL_BYTES_MAX: usize = 32;

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

impl ImageError {
    /// Whether it is containerd that fails, not the image.
    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::Call(error) => matches!(error.kind(), FailureKind::RuntimeDown | FailureKind::Unknown),
            Self::Stopping(_) => true,
            Self::Malformed { .. } | Self::TooLarge { .. } | Self::NoPlatform(_) => false,
        }
    }

    /// Whether it says so each time, as long as the image is the same.
    pub(super) fn is_for_good(&self) -> bool {
        match self {
            Self::Malformed { .. } | Self::TooLarge { .. } | Self::NoPlatform(_) => true,
            Self::Call(_) | Self::Stopping(_) => false,
        }
    }
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

read_as_go! {
    /// What refers to a blob.
    struct Described {
        media_type: String = "mediaType",
        digest: String = "digest",
        size: i64 = "size",
        platform: Option<DescribedPlatform> = "platform",
    }

    /// The platform that a manifest is for.
    struct DescribedPlatform {
        os: String = "os",
        architecture: String = "architecture",
        variant: String = "variant",
        features: Vec<String> = "os.features",
    }

    /// A choice of manifests.
    struct Index { manifests: Vec<Described> = "manifests", }

    /// An image.
    struct Manifest {
        config: Described = "config",
        layers: Vec<Described> = "layers",
    }

    /// What an image is made of and runs.
    struct Config {
        os: String = "os",
        architecture: String = "architecture",
        variant: String = "variant",
        config: RunConfig = "config",
        root: RootFs = "rootfs",
    }

    /// What it runs.
    struct RunConfig {
        env: Vec<String> = "Env",
        entrypoint: Vec<String> = "Entrypoint",
        cmd: Vec<String> = "Cmd",
        user: String = "User",
        working_dir: String = "WorkingDir",
        stop_signal: String = "StopSignal",
        volumes: BTreeMap<String, IgnoredAny> = "Volumes",
    }

    /// Its layers.
    struct RootFs { diff_ids: Vec<String> = "diff_ids", }
}

impl Described {
    fn bytes(&self) -> u64 {
        u64::try_from(self.size).unwrap_or_default()
    }

    /// How well what this refers to fits this machine; what names no platform comes last.
    fn rank(&self) -> Option<usize> {
        match &self.platform {
            None => Some(usize::MAX),
            Some(platform) if !platform.features.is_empty() => None,
            Some(DescribedPlatform { os, architecture, variant, .. }) => rank(os, architecture, variant),
        }
    }
}

/// All of an image but its layers.
pub(super) struct Documents {
    manifest: Manifest,
    config: Config,
    /// Id of the image.
    pub(super) config_digest: String,
    /// Size of the manifest and of the indexes above it.
    above_bytes: u64,
}

impl Documents {
    /// Chain id of the layers.
    pub(super) fn chain_id(&self) -> String {
        self.diff_ids().iter().fold(String::new(), |below, diff_id| chain_id(&below, diff_id))
    }

    /// Digests of the layers unpacked, lowest first.
    pub(super) fn diff_ids(&self) -> &[String] {
        &self.config.root.diff_ids
    }

    /// The layers as packed, lowest first.
    pub(super) fn layers(&self) -> Vec<types::Descriptor> {
        let descriptor = |layer: &Described| types::Descriptor {
            media_type: layer.media_type.clone(),
            digest: layer.digest.clone(),
            size: layer.size,
            ..types::Descriptor::default()
        };
        self.manifest.layers.iter().map(descriptor).collect()
    }

    /// The bytes of the image as its descriptors say them: indexes and manifest, config, layers. Source: containerd,
    /// `core/images/usage/calculator.go` `CalculateImageUsage`, as `getImage` of `internal/cri/store/image/image.go` calls it.
    pub(super) fn size_bytes(&self) -> u64 {
        let parts = self.manifest.layers.iter().chain([&self.manifest.config]);
        parts.map(Described::bytes).fold(self.above_bytes, u64::saturating_add)
    }

    /// What a container starts from.
    pub(super) fn image_config(self) -> ImageConfig {
        let run = self.config.config;
        ImageConfig {
            env: run.env,
            entrypoint: run.entrypoint,
            cmd: run.cmd,
            user: run.user,
            working_dir: run.working_dir,
            stop_signal: Some(run.stop_signal).filter(|name| (1..=SIGNAL_BYTES_MAX).contains(&name.len())),
            // Directories are named by their order.
            volumes: run.volumes.into_keys().collect(),
        }
    }
}

/// Reads those of the image that a record points at, for this machine. Source: `Manifest` and `ConfigPlatform` of containerd's
/// `core/images/image.go`.
pub(super) async fn read_documents(
    containerd: &Containerd,
    name: &str,
    target: types::Descriptor,
) -> Result<Documents, ImageError> {
    let no_platform = || ImageError::NoPlatform(name.to_owned());
    let (mut digest, mut media_type) = (target.digest, target.media_type);
    let mut above_bytes = u64::try_from(target.size).unwrap_or_default();
    let mut names_platform = true;
    for _ in 0..INDEX_DEPTH_MAX {
        if !is_index(&media_type) {
            let bytes = read(containerd, "manifest", &digest).await?;
            let manifest: Manifest = parse_json("manifest", &digest, bytes).await?;
            if let Some(layer) = manifest.layers.iter().find(|layer| !is_digest(&layer.digest)) {
                return Err(no_digest("layer", &layer.digest));
            }
            let config_digest = manifest.config.digest.clone();
            let bytes = read(containerd, "config", &config_digest).await?;
            let config: Config = parse_json("config", &config_digest, bytes).await?;
            let fits = rank(&config.os, &config.architecture, &config.variant).is_some();
            if !names_platform && !fits {
                return Err(no_platform());
            }
            return Ok(Documents { manifest, config, config_digest, above_bytes });
        }
        let bytes = read(containerd, "index", &digest).await?;
        let index: Index = parse_json("index", &digest, bytes).await?;
        let chosen = choose(&index).ok_or_else(no_platform)?;
        digest.clone_from(&chosen.digest);
        media_type.clone_from(&chosen.media_type);
        names_platform = chosen.platform.is_some();
        above_bytes = above_bytes.saturating_add(chosen.bytes());
    }
    Err(no_platform())
}

fn is_index(media_type: &str) -> bool {
    media_type == MediaType::ImageIndex.to_string()
        || media_type == "application/vnd.docker.distribution.manifest.list.v2+json"
}

/// The manifest that fits this machine best. Attestations, which name the platform `unknown`, are not among them.
fn choose(index: &Index) -> Option<&Described> {
    let ranked = index.manifests.iter().filter_map(|one| Some((one.rank()?, one)));
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, one)| one)
}

fn rank(os: &str, architecture: &str, variant: &str) -> Option<usize> {
    let [os, architecture, variant] = [os, architecture, variant].map(str::to_owned);
    platform::rank(&go_arch(), &Platform { os, architecture, variant })
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
    if !is_digest(digest) {
        return Err(no_digest(what, digest));
    }
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

fn no_digest(what: &'static str, digest: &str) -> ImageError {
    let source = serde::de::Error::custom("it is referred to by what is no digest");
    ImageError::Malformed { what, digest: digest.to_owned(), source }
}

async fn parse_json<T: DeserializeOwned + Send + 'static>(
    what: &'static str,
    digest: &str,
    bytes: Vec<u8>,
) -> Result<T, ImageError> {
    let length = bytes.len();
    // Go reads what is no UTF-8 as well.
    let parse = move || serde_json::from_str(&String::from_utf8_lossy(&bytes));
    let parsed = large::read(length, parse).await?;
    parsed.map_err(|source| ImageError::Malformed { what, digest: digest.to_owned(), source })
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

#[cfg(test)]
mod tests;
