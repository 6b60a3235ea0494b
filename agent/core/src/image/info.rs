//! What is known of an image on the node.

/// An image on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageInfo {
    /// The name it was found under, normalised.
    pub name: String,
    /// Digest of its config: the image id.
    pub id: String,
    /// The tag that `image` of a container status shows; none for one that is known by digest alone.
    pub tag: Option<String>,
    /// `repository@digest`, where known: what `imageID` of a container status shows.
    pub repo_digest: Option<String>,
    /// Chain id of its layers: parent of the containers' snapshots.
    pub chain_id: String,
    /// Bytes of its layers, packed.
    pub size_bytes: u64,
    /// Its config.
    pub config: ImageConfig,
}

/// The part of an image's config that a container starts from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// `NAME=value`.
    pub env: Vec<String>,
    /// `ENTRYPOINT`.
    pub entrypoint: Vec<String>,
    /// `CMD`.
    pub cmd: Vec<String>,
    /// `USER`: name or number, with an optional group.
    pub user: String,
    /// `WORKDIR`.
    pub working_dir: String,
    /// `STOPSIGNAL`.
    pub stop_signal: Option<String>,
    /// `VOLUME`s: paths in the container.
    pub volumes: Vec<String>,
}
