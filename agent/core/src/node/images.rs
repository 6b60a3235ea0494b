//! What follows for pods from what was found of an image, or from its pull.

use std::{collections::BTreeSet, sync::Arc};

use super::machine::Node;
use crate::{
    failure::{Failure, FailureKind},
    image::{ImageInfo, WantedImage},
    time::Now,
};

impl Node {
    pub(super) fn inspected(
        &mut self,
        wanted: &WantedImage,
        result: Result<Option<Arc<ImageInfo>>, Failure>,
        now: Now,
    ) {
        for asker in self.pulls.inspected(wanted) {
            if let Some(pod) = self.pods.get_mut(&asker.pod) {
                pod.inspected(&asker.container, &wanted.image, &result, now.mono);
                self.advance(&asker.pod, now);
            }
        }
    }

    pub(super) fn pull_secrets_missing(&mut self, wanted: &WantedImage, names: &[String], now: Now) {
        for uid in self.pulls.pods_that_wait(wanted) {
            if let Some(pod) = self.pods.get_mut(&uid) {
                pod.pull_secrets_missing(names);
                self.advance(&uid, now);
            }
        }
    }

    pub(super) fn pulled(
        &mut self,
        wanted: &WantedImage,
        result: Result<Option<Arc<ImageInfo>>, Failure>,
        now: Now,
    ) {
        let result = result.and_then(|found| {
            found.ok_or_else(|| Failure {
                kind: FailureKind::Unknown,
                message: "the image is not there after its pull".into(),
            })
        });
        let pulled = self.pulls.pulled(wanted, now.mono);
        for one in &pulled {
            if let Some(pod) = self.pods.get_mut(&one.asker.pod) {
                pod.pulled(&wanted.image, one, &result, now.mono);
            }
        }
        for uid in pulled.into_iter().map(|one| one.asker.pod).collect::<BTreeSet<_>>() {
            self.advance(&uid, now);
        }
    }
}
