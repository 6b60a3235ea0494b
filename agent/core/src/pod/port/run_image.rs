//! What a run tells of its image and its user, also after both have changed on the node.

use oci_spec::runtime::User;

use crate::{image::ImageInfo, record::RunImage, status::RunUser};

/// Groups of a container's process that are kept in its record and shown.
const GROUPS_KEPT_MAX: usize = 1000;

/// One that has no tag is shown by its id.
pub(super) fn run_image(image: &ImageInfo, user: Option<RunUser>) -> RunImage {
    RunImage {
        name: image.tag.clone().unwrap_or_else(|| image.id.clone()),
        id: image.repo_digest.clone().unwrap_or_else(|| image.id.clone()),
        stop_signal: image.config.stop_signal.clone(),
        user,
    }
}

/// Of an image with very many groups the first are kept and shown.
pub(super) fn user(user: &User) -> RunUser {
    let groups = user.additional_gids().iter().flatten().take(GROUPS_KEPT_MAX);
    RunUser { uid: user.uid(), gid: user.gid(), supplemental_groups: groups.copied().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    /// `/etc/group` of an image may list a user in a hundred thousand of them.
    #[test]
    fn of_very_many_groups_the_first_are_kept() {
        for (has, kept) in [(3, 3), (5000, 1000)] {
            let mut all = User::default();
            all.set_additional_gids(Some((0..has).collect()));
            assert_eq!(user(&all).supplemental_groups, (0..kept).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_run_shows_a_tag_and_a_digest_of_its_image_or_its_id() {
        let (tag, digest, id) = ("r.example/a:1", "r.example/a@sha256:03", "sha256:01");
        for (known_tag, known_digest, expected) in [
            (Some(tag), Some(digest), (tag, digest)),
            (Some(tag), None, (tag, id)),
            (None, Some(digest), (id, digest)),
            (None, None, (id, id)),
        ] {
            let image = ImageInfo {
                name: digest.into(),
                tag: known_tag.map(Into::into),
                repo_digest: known_digest.map(Into::into),
                ..fixtures::image()
            };
            let shown = run_image(&image, None);
            assert_eq!((shown.name.as_str(), shown.id.as_str()), expected, "{known_tag:?} {known_digest:?}");
        }
    }
}
