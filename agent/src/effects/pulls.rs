//! The pulls of this agent that are under way, by image: pods may each pull the same with secrets of their own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{self, Arc, PoisonError},
    time::Duration,
};

use tokio::sync::{Mutex, MutexGuard};

use crate::one_thread::{OneThread, Unanswered};

/// How long the disk of the root directory may take.
pub(in crate::effects) const WITHIN: Duration = Duration::from_secs(20);

/// Those of each image, and who changes what is written of them. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct PullsUnderWay {
    table: Arc<Mutex<BTreeMap<String, UnderWay>>>,
    writer: OneThread,
    reader: OneThread,
    /// Ids that were recorded since images began to be listed, where somebody lists them.
    recorded: Arc<sync::Mutex<Option<BTreeSet<String>>>>,
}

impl PullsUnderWay {
    /// The table, which nobody else sees while what is written of a pull is changed with it. An image of which a pull of this agent has
    /// left something written is in it.
    pub(in crate::effects) async fn lock(&self) -> MutexGuard<'_, BTreeMap<String, UnderWay>> {
        self.table.lock().await
    }

    /// Changes what is written. Nobody else does meanwhile, also when this is no longer waited for.
    pub(in crate::effects) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        self.writer.run(WITHIN, work).await
    }

    /// Reads what is written.
    pub(in crate::effects) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        self.reader.run(WITHIN, work).await
    }

    /// Images begin to be listed.
    pub(in crate::effects) fn list_begins(&self) {
        *self.since_list() = Some(BTreeSet::new());
    }

    /// What the image of an id was pulled with is about to be written down.
    pub(in crate::effects) fn records(&self, id: &str) {
        if let Some(recorded) = self.since_list().as_mut() {
            recorded.insert(id.to_owned());
        }
    }

    /// Ids of images that may not be in the list, since they were recorded after it began.
    pub(in crate::effects) fn not_listed(&self) -> BTreeSet<String> {
        self.since_list().clone().unwrap_or_default()
    }

    fn since_list(&self) -> sync::MutexGuard<'_, Option<BTreeSet<String>>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a pull brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::effects) enum Came {
    /// Nothing.
    Nothing,
    /// An image, and what it was pulled with is written down.
    Recorded,
    /// Perhaps an image, of which nothing is written down.
    Perhaps,
}

/// Pulls of one name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::effects) struct UnderWay {
    count: usize,
    /// Whether one that has ended may have brought what no record tells of.
    is_unsure: bool,
    /// The same of one before these, until one of these is recorded.
    was_unsure: bool,
    /// What the name has pointed at whenever one began, where no record of a pull tells of that: a digest.
    preloaded: Option<String>,
}

impl UnderWay {
    /// One has begun; whether one that had ended, perhaps of an earlier agent, had left something written, and what the name points at now
    /// that no record of a pull tells of.
    pub(in crate::effects) fn begun(&mut self, was_written: bool, preloaded: Option<String>) {
        let is_first = self.count == 0 && !was_written;
        if self.count == 0 {
            (self.is_unsure, self.was_unsure) = (false, was_written);
        }
        self.count += 1;
        if is_first {
            self.preloaded = preloaded;
        } else if self.preloaded != preloaded {
            self.preloaded = None;
        }
    }

    /// Whether one of them has not ended.
    pub(in crate::effects) fn is_under_way(&self) -> bool {
        self.count > 0
    }

    /// Whether the name pointed at this before any of them began: they have not brought it.
    pub(in crate::effects) fn has_found(&self, target: &str) -> bool {
        self.preloaded.as_deref() == Some(target)
    }

    /// One has ended. `None` while there are others; else whether what is on the node by this name is known: it was there before, is
    /// recorded, or is brought by somebody else.
    pub(in crate::effects) fn ended(&mut self, came: Came) -> Option<bool> {
        self.count = self.count.saturating_sub(1);
        self.is_unsure |= came == Came::Perhaps;
        self.was_unsure &= came != Came::Recorded;
        (self.count == 0).then_some(!self.is_unsure && !self.was_unsure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_pulls_of_a_name_brought_is_known_when_none_is_under_way_and_none_is_unsure() {
        use Came::{Nothing, Perhaps, Recorded};
        for (ends, expected) in [
            (vec![Nothing], true),
            (vec![Recorded], true),
            (vec![Perhaps], false),
            (vec![Recorded, Nothing], true),
            (vec![Perhaps, Recorded], false),
            (vec![Nothing, Perhaps], false),
            (vec![Perhaps, Nothing, Nothing], false),
        ] {
            let mut under_way = UnderWay::default();
            ends.iter().for_each(|_| under_way.begun(false, None));
            let (last, before) = ends.split_last().unwrap();
            for came in before {
                assert_eq!(under_way.ended(*came), None, "{ends:?}: others are under way");
                assert!(under_way.is_under_way());
            }
            assert_eq!(under_way.ended(*last), Some(expected), "{ends:?}");
            assert!(!under_way.is_under_way());
        }
    }

    #[test]
    fn what_was_there_before_all_pulls_of_a_name_was_not_brought_by_them() {
        let here = Some("here");
        for (begun, expected) in [
            (&[(false, here)][..], true),
            (&[(false, None)], false),
            (&[(false, Some("other"))], false),
            // An earlier agent may have brought it.
            (&[(true, here)], false),
            (&[(false, here), (false, here)], true),
            (&[(false, None), (false, here)], false),
            (&[(false, here), (false, None)], false),
            (&[(false, here), (false, Some("other")), (false, here)], false),
        ] {
            let mut under_way = UnderWay::default();
            for (was_written, target) in begun {
                under_way.begun(*was_written, target.map(str::to_owned));
            }
            assert_eq!(under_way.has_found("here"), expected, "{begun:?}");
        }
        for (target, expected) in [("here", true), ("other", false)] {
            let mut under_way = UnderWay::default();
            under_way.begun(false, Some("here".to_owned()));
            assert_eq!(under_way.ended(Came::Perhaps), Some(false));
            under_way.begun(true, Some(target.to_owned()));
            assert_eq!(under_way.ended(Came::Nothing), Some(false));
            assert_eq!(under_way.has_found("here"), expected, "{target}");
            assert!(!under_way.has_found("other"));
        }
    }

    #[test]
    fn what_a_pull_before_may_have_brought_is_known_when_one_is_recorded() {
        use Came::{Nothing, Perhaps, Recorded};
        for (came, expected) in [(Nothing, false), (Perhaps, false), (Recorded, true)] {
            let mut under_way = UnderWay::default();
            under_way.begun(false, None);
            assert_eq!(under_way.ended(Perhaps), Some(false));
            under_way.begun(true, None);
            assert_eq!(under_way.ended(came), Some(expected), "{came:?}");
        }
    }
}
