//! All images on the node, by content, with what they weigh.

use std::collections::BTreeMap;

use berth_core::cluster::node::Image;
use containerd_client::{services::v1::ListImagesRequest, types::Descriptor};

use super::inspect::{read_documents, size_bytes};
use crate::{
    causes::with_causes,
    runtime::{CallError, Containerd},
};

/// What was read of images before, by the digest of what their records point at: content never changes.
#[derive(Debug, Default)]
pub(super) struct Weighed(BTreeMap<String, (String, u64)>);

/// Lists them. Documents are read of those alone that were not there before.
///
/// # Errors
/// Containerd does not list them.
pub(super) async fn list_images(
    containerd: &Containerd,
    weighed: &mut Weighed,
) -> Result<Vec<Image>, CallError> {
    let request = ListImagesRequest::default();
    let mut client = containerd.images();
    let records = containerd.call("list images", "", client.list(request)).await?.images;
    let mut names: BTreeMap<String, (Descriptor, Vec<String>)> = BTreeMap::new();
    for record in records {
        let Some(target) = record.target else { continue };
        let entry = names.entry(target.digest.clone()).or_insert_with(|| (target, Vec::new()));
        entry.1.push(record.name);
    }
    weighed.0.retain(|digest, _| names.contains_key(digest));
    let mut images = Vec::new();
    for (digest, (target, mut names)) in names {
        names.sort();
        // Records of containerd's CRI that stand for an id are no names.
        names.retain(|name| !name.starts_with("sha256:"));
        let Some((id, bytes)) = weigh(containerd, weighed, &digest, target).await else { continue };
        let (digests, tags) = names.into_iter().partition(|name| name.contains('@'));
        images.push(Image { id, digests, tags, bytes });
    }
    Ok(images)
}

/// Id and size. An image that is not for this machine, or not there whole, has neither.
async fn weigh(
    containerd: &Containerd,
    weighed: &mut Weighed,
    digest: &str,
    target: Descriptor,
) -> Option<(String, u64)> {
    if let Some(known) = weighed.0.get(digest) {
        return Some(known.clone());
    }
    match read_documents(containerd, digest, target).await {
        Ok(documents) => {
            let bytes = size_bytes(documents.above_bytes, &documents.manifest);
            let known = (documents.config_digest, bytes);
            weighed.0.insert(digest.to_owned(), known.clone());
            Some(known)
        }
        Err(error) => {
            tracing::debug!(digest, why = with_causes(&error), "an image is not told of");
            None
        }
    }
}
