//! What follows for pods from what was found of an image, or from its pull; and which images pods keep from being removed.

use std::{collections::BTreeSet, sync::Arc};

use super::machine::Node;
use crate::{
    failure::{Failure, FailureKind},
    image::{ImageInfo, WantedImage, name},
    pod::PodMachine,
    time::Now,
};

impl Node {
    /// Removes images that nothing needs, when that is due.
    pub(super) fn collect_images(&mut self, now: Now) {
        if !self.sources.have_spoken() {
            self.collection.wait_for_sources(now.mono);
        }
        if self.collection.is_due(now.mono) {
            let wanted = self.wanted_images();
            while let Some(effect) = self.collection.poll_effect(&wanted, &mut self.ops, now.mono) {
                self.effects.push_back(effect);
            }
        }
        self.pulls.hold(self.collection.removing());
    }

    /// Names of images of pods that have not ended, those of their volumes among them, and of all that is being looked for or pulled.
    fn wanted_images(&self) -> BTreeSet<String> {
        let is_over = |pod: &&PodMachine| pod.status().is_some_and(|status| status.phase.is_final());
        let pods = self.pods.values().filter(|pod| !is_over(pod));
        let of_pods = pods.flat_map(|pod| pod.spec().images());
        let names = of_pods.filter_map(|image| name::kept_under(image.as_str()).ok());
        names.chain(self.pulls.images().filter_map(WantedImage::name)).collect()
    }

    /// A pod that ends before the next look at the disk has used its image all the same.
    fn uses_image(&mut self, wanted: &WantedImage, is_there: bool, now: Now) {
        if is_there {
            self.collection.uses(wanted.name().iter(), now.mono);
        }
    }

    pub(super) fn inspected(
        &mut self,
        wanted: &WantedImage,
        result: Result<Option<Arc<ImageInfo>>, Failure>,
        now: Now,
    ) {
        self.uses_image(wanted, matches!(result, Ok(Some(_))), now);
        for asker in self.pulls.inspected(wanted) {
            if let Some(pod) = self.pods.get_mut(&asker.pod) {
                pod.inspected(asker.of, &wanted.image, &result, now.mono);
                self.advance(&asker.pod, now);
            }
        }
    }

    pub(super) fn pull_secrets_missing(&mut self, wanted: &WantedImage, names: &[String], now: Now) {
        let waiting = self.pulls.pods_that_wait(wanted);
        let mut told = BTreeSet::new();
        for (uid, pod) in &mut self.pods {
            let is_news = || pod.wants(wanted) && !pod.knows_missing(names);
            if waiting.contains(uid) || is_news() {
                pod.pull_secrets_missing(names);
                told.insert(uid.clone());
            }
        }
        for uid in told {
            self.advance(&uid, now);
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
        self.uses_image(wanted, result.is_ok(), now);
        let pulled = self.pulls.pulled(wanted, result.is_ok(), now.mono);
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
