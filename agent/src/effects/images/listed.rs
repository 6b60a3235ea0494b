//! All images on the node, by content, with what they weigh.

use std::collections::BTreeMap;

use berth_core::cluster::node::Image;
use containerd_client::{services::v1::ListImagesRequest, types::Descriptor};

use super::documents::{ImageError, read_documents};
use crate::{
    causes::with_causes,
    runtime::{CallError, Containerd},
};

/// What was read of images before, by the digest of what their records point at: content never changes. Nothing of one that is no image here.
#[derive(Debug, Default)]
pub(super) struct Weighed(BTreeMap<String, Option<(String, u64)>>);

/// What was listed.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) images: Vec<Image>,
    /// Whether each one that is for this machine could be read.
    pub(super) is_whole: bool,
}

/// Lists them. Documents are read of those alone that were not there before.
///
/// # Errors
/// Containerd does not list them.
pub(super) async fn list_images(containerd: &Containerd, weighed: &mut Weighed) -> Result<Listed, CallError> {
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
    let mut listed = Listed { images: Vec::new(), is_whole: true };
    for (digest, (target, mut names)) in names {
        names.sort();
        // Records of containerd's CRI that stand for an id are no names.
        names.retain(|name| !name.starts_with("sha256:"));
        match weigh(containerd, weighed, &digest, target).await {
            Ok(None) => {}
            Ok(Some((id, bytes))) => {
                let (digests, tags) = names.into_iter().partition(|name| name.contains('@'));
                listed.images.push(Image { id, digests, tags, bytes });
            }
            Err(error) => {
                tracing::debug!(digest, why = with_causes(&error), "an image is not told of");
                listed.is_whole = false;
            }
        }
    }
    Ok(listed)
}

/// Id and size. An image that is not for this machine, or has documents that are none, has neither, and is never pulled: nothing is kept of it.
async fn weigh(
    containerd: &Containerd,
    weighed: &mut Weighed,
    digest: &str,
    target: Descriptor,
) -> Result<Option<(String, u64)>, ImageError> {
    if let Some(known) = weighed.0.get(digest) {
        return Ok(known.clone());
    }
    let known = match read_documents(containerd, digest, target).await {
        Ok(documents) => {
            let bytes = documents.size_bytes();
            Some((documents.config_digest, bytes))
        }
        Err(error) if error.is_for_good() => {
            tracing::debug!(digest, why = with_causes(&error), "it is no image of this node");
            None
        }
        Err(error) => return Err(error),
    };
    weighed.0.insert(digest.to_owned(), known.clone());
    Ok(known)
}
