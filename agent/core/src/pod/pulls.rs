//! Images that pods wait for: one look and one pull per image, however many wait that have the same secrets.
//!
//! Pulls start in the order in which they were asked for, no more at once than `parallel_max` and no faster than the
//! token bucket of `registryPullQPS` and `registryBurst` lets them (`pkg/kubelet/images/helpers.go`, which fails a pull
//! above the rate; here it waits).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use crate::{
    config::PullSettings,
    effect::{Effect, NodeAct},
    id::{OpId, PodUid},
    image::WantedImage,
    ops::{Ops, Purpose},
    pod::port::image::ImageFor,
    time::Mono,
};

/// Who waits for an image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asker {
    /// The pod.
    pub pod: PodUid,
    /// What of it.
    pub of: ImageFor,
}

/// A pull that has ended, for one of those who waited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// Who waited.
    pub asker: Asker,
    /// How long the pull took.
    pub took: Duration,
    /// How long it took from the asking.
    pub waited: Duration,
}

/// Looks and pulls under way.
#[derive(Debug)]
pub struct Pulls {
    settings: PullSettings,
    looks: BTreeMap<WantedImage, Look>,
    pulls: BTreeMap<WantedImage, Pull>,
    queue: VecDeque<WantedImage>,
    /// Pulls that nobody wants any more, to be told so.
    unwanted: VecDeque<OpId>,
    /// Names of an image that is being removed: it is neither looked for nor pulled before that has ended.
    held: BTreeSet<String>,
    running: u32,
    bucket: Bucket,
}

#[derive(Debug)]
struct Look {
    asked: bool,
    askers: Vec<Asker>,
}

#[derive(Debug)]
struct Pull {
    /// When it began, and as which effect.
    started: Option<(Mono, OpId)>,
    /// Whether it was given up, since nobody wanted it for a moment at least.
    is_given_up: bool,
    askers: Vec<(Asker, Mono)>,
}

impl Pulls {
    /// Nothing is under way.
    #[must_use]
    pub fn new(settings: PullSettings) -> Self {
        Self {
            settings,
            looks: BTreeMap::new(),
            pulls: BTreeMap::new(),
            queue: VecDeque::new(),
            unwanted: VecDeque::new(),
            held: BTreeSet::new(),
            running: 0,
            bucket: Bucket::default(),
        }
    }

    /// Asks to look for an image.
    pub fn inspect(&mut self, image: &WantedImage, asker: Asker) {
        let look =
            self.looks.entry(image.clone()).or_insert_with(|| Look { asked: false, askers: Vec::new() });
        if !look.askers.contains(&asker) {
            look.askers.push(asker);
        }
    }

    /// Asks to pull an image.
    pub fn pull(&mut self, image: &WantedImage, asker: Asker, now: Mono) {
        let pull = self.pulls.entry(image.clone()).or_insert_with(|| {
            self.queue.push_back(image.clone());
            Pull { started: None, is_given_up: false, askers: Vec::new() }
        });
        if !pull.askers.iter().any(|(known, _)| *known == asker) {
            pull.askers.push((asker, now));
        }
    }

    /// Takes back what was asked for. A pull is dropped with its last asker, and given up where it has begun: it may take for ever, and others
    /// wait for its place. Source: `podWorkers.UpdatePod` of `pkg/kubelet/pod_workers.go`, which cancels what is done for the pod.
    pub fn withdraw(&mut self, asker: &Asker) {
        for look in self.looks.values_mut() {
            look.askers.retain(|known| known != asker);
        }
        self.looks.retain(|_, look| look.asked || !look.askers.is_empty());
        for pull in self.pulls.values_mut() {
            pull.askers.retain(|(known, _)| known != asker);
            if let Some((_, op)) = pull.started
                && pull.askers.is_empty()
                && !pull.is_given_up
            {
                pull.is_given_up = true;
                self.unwanted.push_back(op);
            }
        }
        self.pulls.retain(|_, pull| pull.started.is_some() || !pull.askers.is_empty());
        let pulls = &self.pulls;
        self.queue.retain(|image| pulls.contains_key(image));
    }

    /// Lets what has one of these names wait, and nothing else any longer.
    pub fn hold(&mut self, names: BTreeSet<String>) {
        self.held = names;
    }

    /// Images that somebody waits for, or that are being looked for or pulled.
    pub fn images(&self) -> impl Iterator<Item = &WantedImage> {
        self.looks.keys().chain(self.pulls.keys())
    }

    /// The next look or pull to begin.
    pub fn poll_effect(&mut self, ops: &mut Ops, now: Mono) -> Option<Effect> {
        if let Some(pull) = self.unwanted.pop_front() {
            return Some(Effect::Node { op: ops.number(), act: NodeAct::GiveUpPull(pull) });
        }
        let held = &self.held;
        if let Some((image, look)) =
            self.looks.iter_mut().find(|(image, look)| !look.asked && !is_held(held, image))
        {
            look.asked = true;
            let op = ops.open(Purpose::Inspect(image.clone()));
            return Some(Effect::Node { op, act: NodeAct::InspectImage(image.clone()) });
        }
        let at = self.next_pull()?;
        if self.bucket.opens_at(self.settings) > now {
            return None;
        }
        let image = self.queue.remove(at)?;
        let pull = self.pulls.get_mut(&image)?;
        self.running += 1;
        self.bucket.take(self.settings, now);
        let op = ops.open(Purpose::Pull(image.clone()));
        pull.started = Some((now, op));
        Some(Effect::Node { op, act: NodeAct::PullImage(image) })
    }

    /// When the rate lets the next pull begin.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        self.next_pull().map(|_| self.bucket.opens_at(self.settings))
    }

    /// Which of those that wait is the next, where there is room for one.
    fn next_pull(&self) -> Option<usize> {
        let next = || self.queue.iter().position(|image| !is_held(&self.held, image));
        if self.has_room() { next() } else { None }
    }

    /// A look has ended: who waits for it.
    pub fn inspected(&mut self, image: &WantedImage) -> Vec<Asker> {
        self.looks.remove(image).map(|look| look.askers).unwrap_or_default()
    }

    /// The pods that wait for a pull.
    #[must_use]
    pub fn pods_that_wait(&self, image: &WantedImage) -> BTreeSet<PodUid> {
        let pull = self.pulls.get(image);
        pull.into_iter().flat_map(|pull| &pull.askers).map(|(asker, _)| asker.pod.clone()).collect()
    }

    /// A pull has ended, with the image or without: who waits for it. Who came after it was given up has it pulled once more.
    pub fn pulled(&mut self, image: &WantedImage, is_there: bool, now: Mono) -> Vec<Pulled> {
        let Some(pull) = self.pulls.remove(image) else { return Vec::new() };
        self.running = self.running.saturating_sub(1);
        if pull.is_given_up && !is_there {
            for (asker, asked) in pull.askers {
                self.pull(image, asker, asked);
            }
            return Vec::new();
        }
        let took = pull.started.map_or(Duration::ZERO, |(began, _)| now.since(began));
        let each = |(asker, asked)| Pulled { asker, took, waited: now.since(asked) };
        pull.askers.into_iter().map(each).collect()
    }

    fn has_room(&self) -> bool {
        self.settings.parallel_max.is_none_or(|most| self.running < most.max(1))
    }
}

/// Whether an image has one of these names. A name that is none names no image.
fn is_held(names: &BTreeSet<String>, image: &WantedImage) -> bool {
    !names.is_empty() && image.name().is_some_and(|name| names.contains(&name))
}

/// A token bucket, kept as the time at which it will be full again.
#[derive(Debug, Default)]
struct Bucket {
    full_at: Duration,
}

impl Bucket {
    /// When it holds a token.
    fn opens_at(&self, settings: PullSettings) -> Mono {
        let Some(interval) = interval(settings) else { return Mono::default() };
        let ahead = interval.saturating_mul(settings.burst.max(1).saturating_sub(1));
        Mono(self.full_at.saturating_sub(ahead))
    }

    fn take(&mut self, settings: PullSettings, now: Mono) {
        if let Some(interval) = interval(settings) {
            self.full_at = self.full_at.max(now.0).saturating_add(interval);
        }
    }
}

/// Time between two tokens; `None` is without bound.
fn interval(settings: PullSettings) -> Option<Duration> {
    Duration::from_secs(1).checked_div(settings.qps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ContainerName, ImageRef};

    fn asker(pod: &str) -> Asker {
        Asker { pod: PodUid::new(pod), of: ImageFor::Container(ContainerName::new("c")) }
    }

    fn wanted(name: &str) -> WantedImage {
        WantedImage::open(ImageRef::new(name))
    }

    fn at(millis: u64) -> Mono {
        Mono(Duration::from_millis(millis))
    }

    fn started(pulls: &mut Pulls, ops: &mut Ops, now: Mono) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(effect) = pulls.poll_effect(ops, now) {
            let Effect::Node { act, .. } = effect else { panic!("{effect:?}") };
            names.push(match act {
                NodeAct::PullImage(image) => format!("pull {image}"),
                NodeAct::InspectImage(image) => format!("look {image}"),
                NodeAct::GiveUpPull(pull) => format!("give up {}", pull.0),
                NodeAct::MeasureImages
                | NodeAct::ListImages
                | NodeAct::RemoveImage(_)
                | NodeAct::SetQos(_)
                | NodeAct::ReadNodeObject
                | NodeAct::Note(_) => panic!("{act:?}"),
            });
        }
        names
    }

    #[test]
    fn one_look_and_one_pull_serve_all_who_wait() {
        let mut pulls = Pulls::new(PullSettings { parallel_max: None, qps: 0, burst: 0 });
        let mut ops = Ops::default();
        let image = wanted("a");
        pulls.inspect(&image, asker("1"));
        pulls.inspect(&image, asker("2"));
        assert_eq!(started(&mut pulls, &mut ops, at(0)), ["look a"]);
        assert_eq!(pulls.inspected(&image), [asker("1"), asker("2")]);
        pulls.pull(&image, asker("1"), at(0));
        assert_eq!(started(&mut pulls, &mut ops, at(10)), ["pull a"]);
        pulls.pull(&image, asker("2"), at(20));
        assert!(started(&mut pulls, &mut ops, at(20)).is_empty());
        let waited: Vec<u128> =
            pulls.pulled(&image, true, at(50)).iter().map(|one| one.waited.as_millis()).collect();
        assert_eq!(waited, [50, 30]);
    }

    #[test]
    fn pods_with_other_secrets_have_pulls_of_their_own() {
        let mut pulls = Pulls::new(PullSettings { parallel_max: None, qps: 0, burst: 0 });
        let mut ops = Ops::default();
        let with = |namespace: &str, secrets: &[&str]| WantedImage {
            namespace: namespace.into(),
            secrets: secrets.iter().map(|&secret| secret.to_owned()).collect(),
            ..wanted("a")
        };
        for (pod, image) in [
            ("1", wanted("a")),
            ("2", with("shop", &["s"])),
            ("3", with("shop", &["s"])),
            ("4", with("bank", &["s"])),
            ("5", with("shop", &["s", "t"])),
        ] {
            pulls.inspect(&image, asker(pod));
            pulls.pull(&image, asker(pod), at(0));
        }
        let begun = started(&mut pulls, &mut ops, at(0));
        assert_eq!(begun, [["look a"; 4], ["pull a"; 4]].concat());
        assert_eq!(pulls.inspected(&with("shop", &["s"])), [asker("2"), asker("3")]);
        let ended: Vec<Asker> =
            pulls.pulled(&with("shop", &["s"]), true, at(1)).into_iter().map(|one| one.asker).collect();
        assert_eq!(ended, [asker("2"), asker("3")]);
        assert_eq!(pulls.inspected(&wanted("a")), [asker("1")]);
    }

    #[test]
    fn no_more_pulls_at_once_than_allowed() {
        let mut pulls = Pulls::new(PullSettings { parallel_max: Some(1), qps: 0, burst: 0 });
        let mut ops = Ops::default();
        for image in ["a", "b"] {
            pulls.pull(&wanted(image), asker(image), at(0));
        }
        assert_eq!(started(&mut pulls, &mut ops, at(0)), ["pull a"]);
        assert_eq!(pulls.poll_timeout(), None);
        pulls.pulled(&wanted("a"), true, at(5));
        assert_eq!(started(&mut pulls, &mut ops, at(5)), ["pull b"]);
    }

    #[test]
    fn a_pull_that_nobody_wants_any_more_is_given_up_and_pulled_anew_for_who_comes_then() {
        for is_there in [false, true] {
            let mut pulls = Pulls::new(PullSettings { parallel_max: Some(1), qps: 0, burst: 0 });
            let mut ops = Ops::default();
            for (image, pod) in [("a", "1"), ("a", "2"), ("b", "3")] {
                pulls.pull(&wanted(image), asker(pod), at(0));
            }
            assert_eq!(started(&mut pulls, &mut ops, at(0)), ["pull a"]);
            pulls.withdraw(&asker("1"));
            assert!(started(&mut pulls, &mut ops, at(1)).is_empty(), "another waits");
            pulls.withdraw(&asker("2"));
            pulls.withdraw(&asker("2"));
            assert_eq!(started(&mut pulls, &mut ops, at(2)), ["give up 1"]);
            pulls.pull(&wanted("a"), asker("4"), at(3));
            assert!(started(&mut pulls, &mut ops, at(3)).is_empty(), "it has not ended");
            let told = pulls.pulled(&wanted("a"), is_there, at(4));
            assert_eq!(told.len(), usize::from(is_there));
            assert_eq!(started(&mut pulls, &mut ops, at(4)), ["pull b"]);
            pulls.pulled(&wanted("b"), true, at(5));
            let again: &[&str] = if is_there { &[] } else { &["pull a"] };
            assert_eq!(started(&mut pulls, &mut ops, at(5)), again);
            if !is_there {
                let told = pulls.pulled(&wanted("a"), false, at(9));
                assert_eq!(told[0].waited, Duration::from_millis(6));
            }
        }
    }

    #[test]
    fn what_is_being_removed_is_neither_looked_for_nor_pulled_and_holds_up_nobody() {
        let mut pulls = Pulls::new(PullSettings { parallel_max: Some(1), qps: 0, burst: 0 });
        let mut ops = Ops::default();
        pulls.hold(["docker.io/library/a:latest".to_owned()].into());
        for image in ["a", "b"] {
            pulls.inspect(&wanted(image), asker("look"));
            pulls.pull(&wanted(image), asker(image), at(0));
        }
        assert_eq!(started(&mut pulls, &mut ops, at(0)), ["look b", "pull b"]);
        pulls.pulled(&wanted("b"), true, at(1));
        assert_eq!(pulls.poll_timeout(), None, "nothing happens by the clock");
        pulls.hold(BTreeSet::new());
        assert_eq!(started(&mut pulls, &mut ops, at(2)), ["look a", "pull a"]);
    }

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let mut pulls = Pulls::new(PullSettings { parallel_max: None, qps: 5, burst: 2 });
        let mut ops = Ops::default();
        for image in ["a", "b", "c", "d"] {
            pulls.pull(&wanted(image), asker(image), at(1000));
        }
        assert_eq!(started(&mut pulls, &mut ops, at(1000)), ["pull a", "pull b"]);
        assert_eq!(pulls.poll_timeout(), Some(at(1200)));
        assert!(started(&mut pulls, &mut ops, at(1199)).is_empty());
        assert_eq!(started(&mut pulls, &mut ops, at(1200)), ["pull c"]);
        assert_eq!(started(&mut pulls, &mut ops, at(1400)), ["pull d"]);
    }

    #[test]
    fn a_pull_that_nobody_waits_for_is_dropped_and_given_up_where_it_has_begun() {
        let mut pulls = Pulls::new(PullSettings { parallel_max: Some(1), qps: 0, burst: 0 });
        let mut ops = Ops::default();
        for image in ["a", "b"] {
            pulls.pull(&wanted(image), asker(image), at(0));
        }
        assert_eq!(started(&mut pulls, &mut ops, at(0)), ["pull a"]);
        pulls.withdraw(&asker("a"));
        pulls.withdraw(&asker("b"));
        assert_eq!(started(&mut pulls, &mut ops, at(1)), ["give up 1"]);
        assert!(pulls.pulled(&wanted("a"), false, at(2)).is_empty());
        assert!(started(&mut pulls, &mut ops, at(2)).is_empty());
    }
}
