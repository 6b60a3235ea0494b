//! Images in the node's status. Source: `Images` of `pkg/kubelet/nodestatus/setters.go`.

use serde_json::{Value, json};

/// Names of one image that are told (`MaxNamesPerImageInNodeStatus`).
const NAMES_MAX: usize = 5;

/// An image on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// What tells it from others of its size.
    pub id: String,
    /// Names with digests.
    pub digests: Vec<String>,
    /// Names with tags.
    pub tags: Vec<String>,
    /// Size in bytes.
    pub bytes: u64,
}

/// The largest first.
pub(super) fn listed(images: &[Image], max: Option<usize>) -> Vec<Value> {
    let mut images: Vec<&Image> = images.iter().collect();
    images.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| other.id.cmp(&one.id)));
    images.truncate(max.unwrap_or(usize::MAX));
    let entry = |image: &Image| {
        let names: Vec<&String> = image.digests.iter().chain(&image.tags).take(NAMES_MAX).collect();
        json!({ "names": names, "sizeBytes": image.bytes })
    };
    images.into_iter().map(entry).collect()
}
