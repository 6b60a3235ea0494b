//! All images on the node as they are kept: by id, with every record that has to go for one to be gone.

use std::collections::BTreeMap;

use berth_core::{
    failure::Failure,
    image::collection::{Stays, StoredImage, StoredName},
};
use containerd_client::services::v1::{Image, ListImagesRequest};
use jiff::Timestamp;

use super::documents::read_documents;
use crate::{
    causes::with_causes,
    clock,
    runtime::{Containerd, labels},
};

/// Lists them. One of which something is missing is no image of the node: it is left out, and so is kept. One whose documents are none of an
/// image, or of none for this machine, is there all the same, by the digest of what its records point at, and whatever its layers weigh:
/// whoever pulls such images could fill the disk with them.
///
/// # Errors
/// Containerd does not list them, or stops to answer.
pub(super) async fn list(containerd: &Containerd) -> Result<Vec<StoredImage>, Failure> {
    let mut client = containerd.images();
    let listed = client.list(ListImagesRequest::default());
    let records = containerd.call("list images", "", listed).await?.images;
    let mut contents: BTreeMap<String, Vec<Image>> = BTreeMap::new();
    for record in records {
        let Some(digest) = record.target.as_ref().map(|target| target.digest.clone()) else { continue };
        contents.entry(digest).or_default().push(record);
    }
    let mut images = BTreeMap::new();
    for (digest, records) in contents {
        let Some(target) = records.first().and_then(|record| record.target.clone()) else { continue };
        let bytes = u64::try_from(target.size).unwrap_or_default();
        match read_documents(containerd, &digest, target).await {
            Ok(documents) => {
                let bytes = documents.size_bytes();
                let found = stored(&documents.config_digest, documents.chain_id(), bytes, records);
                images.entry(found.id.clone()).and_modify(|one| join(one, &found)).or_insert(found);
            }
            Err(error) if error.is_lost() => return Err(error.into()),
            Err(error) if error.is_for_good() => {
                images.insert(digest.clone(), stored(&digest, String::new(), bytes, records));
            }
            Err(error) => {
                tracing::debug!(digest, why = with_causes(&error), "an image is not to be removed");
            }
        }
    }
    Ok(images.into_values().collect())
}

/// An image of these records, which point at the same.
fn stored(id: &str, chain_id: String, size_bytes: u64, records: Vec<Image>) -> StoredImage {
    let says = |record: &Image, label: &str, value: &str| {
        record.labels.get(label).is_some_and(|known| known == value)
    };
    let changed = |record: &Image| {
        let times = [record.updated_at.as_ref(), record.created_at.as_ref()];
        times.into_iter().flatten().filter_map(clock::of_proto).max()
    };
    let stays = if !records.iter().all(|record| says(record, labels::IMAGE, labels::MANAGED)) {
        Some(Stays::OfOthers)
    } else if records.iter().any(|record| says(record, labels::PINNED, labels::PINNED_VALUE)) {
        Some(Stays::Pinned)
    } else {
        None
    };
    StoredImage {
        id: id.to_owned(),
        chain_id,
        size_bytes,
        touched: records.iter().filter_map(changed).max().unwrap_or(Timestamp::UNIX_EPOCH),
        stays,
        names: records.into_iter().map(name).collect(),
    }
}

fn name(record: Image) -> StoredName {
    StoredName { name: record.name, target: record.target.unwrap_or_default().digest }
}

/// Another record of the same image may point at an index where the first one points at a manifest.
fn join(one: &mut StoredImage, other: &StoredImage) {
    one.names.extend(other.names.iter().cloned());
    one.size_bytes = one.size_bytes.max(other.size_bytes);
    one.touched = one.touched.max(other.touched);
    one.stays = one.stays.or(other.stays);
}

#[cfg(test)]
mod tests {
    use containerd_client::types::Descriptor;
    use prost_types::Timestamp as ProtoTime;

    use super::*;

    fn record(name: &str, labels: &[(&str, &str)], created: i64, updated: i64) -> Image {
        let time = |seconds| Some(ProtoTime { seconds, nanos: 0 });
        Image {
            name: name.to_owned(),
            labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            target: Some(Descriptor { digest: "sha256:11".to_owned(), ..Descriptor::default() }),
            created_at: time(created),
            updated_at: time(updated),
        }
    }

    const OURS: (&str, &str) = (labels::IMAGE, labels::MANAGED);
    const PINNED: (&str, &str) = (labels::PINNED, labels::PINNED_VALUE);

    #[test]
    fn an_image_is_what_all_its_records_say() {
        use Stays::{OfOthers, Pinned};
        // Labels of each record, and what follows.
        type Case = (&'static [&'static [(&'static str, &'static str)]], Option<Stays>);
        let cases: [Case; 7] = [
            (&[&[OURS], &[OURS], &[OURS]], None),
            (&[&[OURS], &[]], Some(OfOthers)),
            (&[&[]], Some(OfOthers)),
            (&[&[(labels::IMAGE, "other")]], Some(OfOthers)),
            (&[&[OURS], &[OURS, PINNED]], Some(Pinned)),
            (&[&[OURS], &[PINNED]], Some(OfOthers)),
            (&[&[OURS, (labels::PINNED, "no")]], None),
        ];
        for (all, stays) in cases {
            let records = all.iter().map(|labels| record("a", labels, 1, 2)).collect();
            let image = stored("sha256:01", "sha256:02".to_owned(), 7, records);
            assert_eq!(image.stays, stays, "{all:?}");
        }
    }

    #[test]
    fn what_was_changed_last_tells_how_old_it_is_and_images_of_one_id_are_one() {
        let first = vec![record("a", &[OURS], 5, 5), record("b", &[OURS], 1, 9)];
        let mut one = stored("sha256:01", "sha256:02".to_owned(), 7, first);
        assert_eq!(one.touched, Timestamp::from_second(9).unwrap());
        join(&mut one, &stored("sha256:01", "sha256:02".to_owned(), 8, vec![record("c", &[PINNED], 10, 10)]));
        assert_eq!(one.names.iter().map(|record| record.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!((one.size_bytes, one.touched.as_second()), (8, 10));
        assert_eq!(one.stays, Some(Stays::OfOthers), "all its records count");
    }
}
