//! Images that nothing uses are removed: every five minutes it is looked how full their disk is, and where it is too full, or images may
//! grow too old, they are listed and removed one after the other.
//!
//! Source: `StartGarbageCollection` of `pkg/kubelet/kubelet.go`, `GarbageCollect` of `pkg/kubelet/images/image_gc_manager.go`. The kubelet
//! lists images every time; here the disk alone is looked at while there is room (decision 0038).

mod round;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use jiff::Timestamp;

use self::round::Round;
use crate::{
    cluster::node::{self, Note},
    config::ImageCollection,
    effect::{Effect, NodeAct},
    event::Outcome,
    failure::Failure,
    image::collection::{NoCapacity, Shortage, Stays, StoredImage, StoredName, Unused, removals, shortage},
    ops::{Ops, Purpose},
    pod::fit,
    time::{Mono, Now},
};

/// Between two looks at the disk (`ImageGCPeriod`).
const PERIOD: Duration = Duration::from_secs(300);

/// Until it is looked again whether every source of pods has said what it wants.
const SOURCES_AGAIN: Duration = Duration::from_secs(10);

/// Names of images whose last use is remembered: far more than a node has.
const NAMES_MAX: usize = 4096;

/// What is removed, and what of use is known for that.
#[derive(Debug)]
pub(super) struct Collection {
    settings: Option<ImageCollection>,
    /// When this agent began.
    began: Mono,
    state: State,
    /// When an image of a name was last seen in use.
    used: BTreeMap<String, Mono>,
    /// Images that were listed, by id.
    known: BTreeMap<String, Known>,
    /// Whether the last time failed.
    has_failed: bool,
    notes: VecDeque<Note>,
}

#[derive(Debug)]
enum State {
    /// Nothing is removed.
    Off,
    /// The disk is looked at next at this time.
    Rest(Mono),
    /// It is being looked at.
    Measuring,
    /// Images are to be listed.
    Unlisted(Option<Shortage>),
    /// They are being listed.
    Listing(Option<Shortage>),
    /// They are being removed.
    Removing(Round),
}

/// Since when an image is known.
#[derive(Debug)]
struct Known {
    touched: Timestamp,
    since: Mono,
}

impl Collection {
    pub(super) fn new(settings: Option<ImageCollection>) -> Self {
        Self {
            settings,
            began: Mono::default(),
            state: State::Off,
            used: BTreeMap::new(),
            known: BTreeMap::new(),
            has_failed: false,
            notes: VecDeque::new(),
        }
    }

    /// The agent has begun. Before images are old enough there is nothing to look for.
    pub(super) fn begin(&mut self, now: Mono) {
        if let Some(settings) = &self.settings {
            self.began = now;
            self.state = State::Rest(now + settings.age_min.min(PERIOD));
        }
    }

    /// A source may still want pods whose images nothing uses yet: nothing is begun before it has spoken.
    pub(super) fn wait_for_sources(&mut self, now: Mono) {
        if let State::Rest(until) = &mut self.state
            && *until <= now
        {
            *until = now + SOURCES_AGAIN;
        }
    }

    /// Whether there is something to ask for, for which it counts what is wanted.
    pub(super) fn is_due(&self, now: Mono) -> bool {
        let is_due = match &self.state {
            State::Off | State::Measuring | State::Listing(_) => false,
            State::Rest(until) => *until <= now,
            State::Unlisted(_) => true,
            State::Removing(round) => round.is_idle(),
        };
        is_due || !self.notes.is_empty()
    }

    pub(super) fn poll_timeout(&self) -> Option<Mono> {
        match &self.state {
            State::Rest(until) => Some(*until),
            State::Off | State::Measuring | State::Unlisted(_) | State::Listing(_) | State::Removing(_) => {
                None
            }
        }
    }

    /// Names of the image that is being removed.
    pub(super) fn removing(&self) -> BTreeSet<String> {
        let under_way = match &self.state {
            State::Removing(round) => round.under_way(),
            State::Off | State::Rest(_) | State::Measuring | State::Unlisted(_) | State::Listing(_) => None,
        };
        under_way.into_iter().flat_map(|removal| names(&removal.image)).cloned().collect()
    }

    /// The next thing to ask for. Images with a name that is `wanted` stay.
    pub(super) fn poll_effect(
        &mut self,
        wanted: &BTreeSet<String>,
        ops: &mut Ops,
        now: Mono,
    ) -> Option<Effect> {
        let (purpose, act) = match &mut self.state {
            State::Rest(until) if *until <= now => {
                self.uses(wanted, now);
                self.state = State::Measuring;
                (Purpose::MeasureImages, NodeAct::MeasureImages)
            }
            State::Unlisted(shortage) => {
                self.state = State::Listing(*shortage);
                (Purpose::ListImages, NodeAct::ListImages)
            }
            State::Removing(round) if round.is_idle() => match round.next(wanted, now) {
                Some(removal) => (Purpose::RemoveImage, NodeAct::RemoveImage(Box::new(removal))),
                None => {
                    self.end_round(now);
                    return self.tell(ops);
                }
            },
            State::Off | State::Rest(_) | State::Measuring | State::Listing(_) | State::Removing(_) => {
                return self.tell(ops);
            }
        };
        Some(Effect::Node { op: ops.open(purpose), act })
    }

    fn tell(&mut self, ops: &mut Ops) -> Option<Effect> {
        let note = self.notes.pop_front()?;
        Some(Effect::Node { op: ops.number(), act: NodeAct::Note(note) })
    }

    /// Takes how full the disk is.
    pub(super) fn measured(&mut self, result: Result<Outcome, Failure>, now: Mono) {
        let Some(settings) = self.settings else { return };
        let found = match fit::image_disk(result) {
            Ok(disk) => shortage(&settings, disk),
            Err(failure) => return self.fail(&failure, now),
        };
        match found {
            Err(NoCapacity) => {
                let note = node::image_disk_has_no_size();
                let why = note.message.clone();
                self.notes.push_back(note);
                self.rest(Err(why), now);
            }
            Ok(None) if settings.age_max.is_none() => self.rest(Ok(()), now),
            Ok(shortage) => {
                if let Some(Shortage { percent, bytes, .. }) = shortage {
                    tracing::info!(percent, bytes, "the disk of images is too full: unused ones are removed");
                }
                self.state = State::Unlisted(shortage);
            }
        }
    }

    /// Takes the images that there are.
    pub(super) fn listed(&mut self, result: Result<Outcome, Failure>, now: Now) {
        let (Some(settings), State::Listing(shortage)) = (self.settings, &self.state) else { return };
        let shortage = *shortage;
        let images = match fit::images(result) {
            Ok(images) => images,
            Err(failure) => return self.fail(&failure, now.mono),
        };
        self.know(&images, now);
        let unused = images.into_iter().map(|image| Unused {
            since: self.known.get(&image.id).map_or(now.mono, |known| known.since),
            last_used: names(&image).filter_map(|name| self.used.get(name)).max().copied(),
            image,
        });
        let removals = removals(&settings, unused.collect(), self.began, now);
        self.state = State::Removing(Round::new(shortage, removals, now.mono));
    }

    /// Takes what came of a removal.
    pub(super) fn removed(&mut self, result: Result<Outcome, Failure>, now: Mono) {
        let State::Removing(round) = &mut self.state else { return };
        if let Err(failure) = round.ended(fit::is_removed(result)) {
            self.fail(&failure, now);
        }
    }

    /// Remembers that images of these names are in use.
    pub(super) fn uses<'a>(&mut self, names: impl IntoIterator<Item = &'a String>, now: Mono) {
        for name in names {
            self.used.insert(name.clone(), now);
        }
        if let Some(last) = self.used.len().checked_sub(NAMES_MAX + 1) {
            let mut times: Vec<Mono> = self.used.values().copied().collect();
            times.sort_unstable();
            // What is in use now stays, however much that is.
            let forgotten = times[last];
            self.used.retain(|_, at| *at > forgotten || *at == now);
        }
    }

    /// Remembers what there is, and forgets the rest. An image is known from when its records were changed last, by the wall clock, which
    /// is asked once; but not from before this agent began, as with a kubelet: pods may come that have used it.
    fn know(&mut self, images: &[StoredImage], now: Now) {
        let all: BTreeSet<&String> = images.iter().flat_map(names).collect();
        self.used.retain(|name, _| all.contains(name));
        let used = images.iter().filter(|image| image.stays == Some(Stays::Used));
        self.uses(used.flat_map(names), now.mono);
        let since = |image: &StoredImage| match self.known.get(&image.id) {
            Some(known) if known.touched == image.touched => known.since,
            Some(_) | None => now.mono_of(image.touched).max(self.began),
        };
        let known = images
            .iter()
            .map(|image| (image.id.clone(), Known { touched: image.touched, since: since(image) }));
        self.known = known.collect();
    }

    fn end_round(&mut self, now: Mono) {
        let (State::Removing(round), Some(settings)) = (&self.state, &self.settings) else { return };
        let result = match (round.failure(settings), round.missed()) {
            (Some(why), _) => Err(why),
            (None, Some(note)) => {
                let why = note.message.clone();
                self.notes.push_back(note);
                Err(why)
            }
            (None, None) => Ok(()),
        };
        self.rest(result, now);
    }

    /// Something was not to be known. That containerd is away is told elsewhere.
    fn fail(&mut self, failure: &Failure, now: Mono) {
        if failure.kind.is_told_elsewhere() {
            self.state = State::Rest(now + PERIOD);
        } else {
            self.rest(Err(failure.message.clone()), now);
        }
    }

    /// Until the next time. What fails once is told to the log alone, as by a kubelet.
    fn rest(&mut self, result: Result<(), String>, now: Mono) {
        if let Err(why) = &result {
            tracing::warn!(why, "unused images were not removed as they should be");
        }
        let failed_before = std::mem::replace(&mut self.has_failed, result.is_err());
        if let Err(why) = result
            && failed_before
        {
            self.notes.push_back(node::images_not_removed(why));
        }
        self.state = State::Rest(now + PERIOD);
    }
}

/// What pods may call an image: its names and its id.
fn names(image: &StoredImage) -> impl Iterator<Item = &String> {
    image.names.iter().map(|StoredName { name, .. }| name).chain([&image.id])
}

#[cfg(test)]
mod tests;
