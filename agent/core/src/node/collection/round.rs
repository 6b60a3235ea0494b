//! One round of removals: what of one list is removed, and what came of it.

use std::collections::{BTreeSet, VecDeque};

use super::{PERIOD, names};
use crate::{
    cluster::node::{self, Note},
    config::ImageCollection,
    failure::{Failure, FailureKind},
    image::collection::{Reason, Removal, Shortage},
    pod::go_duration,
    short::{EVENT_BYTES_MAX, short},
    time::Mono,
};

/// What is removed of one list.
#[derive(Debug)]
pub(super) struct Round {
    shortage: Option<Shortage>,
    left: VecDeque<Removal>,
    under_way: Option<Removal>,
    freed: u64,
    failures: Vec<(Reason, String)>,
    /// When its list was made.
    began: Mono,
}

impl Round {
    /// One that frees as much as there is too little of, and removes all that is too old.
    pub(super) fn new(shortage: Option<Shortage>, removals: Vec<Removal>, now: Mono) -> Self {
        Self { shortage, left: removals.into(), under_way: None, freed: 0, failures: Vec::new(), began: now }
    }

    /// Whether nothing is being removed.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_none()
    }

    /// What is being removed.
    pub(super) fn under_way(&self) -> Option<&Removal> {
        self.under_way.as_ref()
    }

    /// The next removal, which is under way from now on. Images with a name that is `wanted` stay. A list that is as old as the next look
    /// would be tells too little of what there is.
    pub(super) fn next(&mut self, wanted: &BTreeSet<String>, now: Mono) -> Option<Removal> {
        if now.since(self.began) > PERIOD {
            self.left.clear();
        }
        let to_free = self.shortage.map_or(0, |shortage| shortage.bytes);
        while let Some(removal) = self.left.pop_front() {
            let is_due = match removal.reason {
                Reason::Age => true,
                Reason::Space => self.freed < to_free,
            };
            if is_due && !names(&removal.image).any(|name| wanted.contains(name)) {
                self.under_way = Some(removal.clone());
                return Some(removal);
            }
        }
        None
    }

    /// What was under way has ended: whether the image is gone. A failure that ends the round is given back.
    pub(super) fn ended(&mut self, result: Result<bool, Failure>) -> Result<(), Failure> {
        let Some(Removal { image, reason }) = self.under_way.take() else { return Ok(()) };
        match result {
            Ok(true) => self.freed = self.freed.saturating_add(image.size_bytes),
            Ok(false) => {}
            // Whoever does not answer is not asked for the next one.
            Err(failure) if failure.kind.is_told_elsewhere() || failure.kind == FailureKind::Unknown => {
                return Err(failure);
            }
            Err(failure) => {
                tracing::warn!(image = image.id, why = failure.message, "an unused image is not removed");
                self.failures.push((reason, failure.message));
            }
        }
        Ok(())
    }

    /// What users are told where too little was freed.
    pub(super) fn missed(&self) -> Option<Note> {
        let Shortage { percent, capacity, bytes } = self.shortage?;
        (self.freed < bytes).then(|| node::image_disk_stays_full(percent, capacity, self.freed))
    }

    /// What did not work, in one text (`freeOldImages`, `freeSpace`).
    pub(super) fn failure(&self, settings: &ImageCollection) -> Option<String> {
        let is_of_space = self.failures.iter().any(|(reason, _)| *reason == Reason::Space);
        let texts: Vec<&str> = self.failures.iter().map(|(_, text)| text.as_str()).collect();
        let texts = match texts.as_slice() {
            [] => return None,
            [one] => (*one).to_owned(),
            several => format!("[{}]", several.join(", ")),
        };
        let text = if is_of_space {
            let (bytes, freed) = (self.shortage.map_or(0, |shortage| shortage.bytes), self.freed);
            format!(
                "wanted to free {bytes} bytes, but freed {freed} bytes space with errors in image deletion: {texts}"
            )
        } else {
            let age = go_duration(settings.age_max.unwrap_or_default());
            format!("wanted to free images older than {age}, encountered errors in image deletion: {texts}")
        };
        Some(short(text, EVENT_BYTES_MAX))
    }
}
