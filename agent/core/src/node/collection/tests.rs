use super::*;
use crate::{
    failure::FailureKind,
    fixtures,
    image::collection::{ImageDisk, Reason, Removal},
};

const SECOND: Duration = Duration::from_secs(1);
const BEGAN: u64 = 1000;
/// The first look, when images may be old enough.
const FIRST: u64 = BEGAN + 120;

fn settings() -> ImageCollection {
    ImageCollection { high_percent: 85, low_percent: 80, age_min: 120 * SECOND, age_max: None }
}

/// A collection, and who performs its effects.
struct Rig {
    collection: Collection,
    ops: Ops,
    wanted: BTreeSet<String>,
    /// Bytes free, of a thousand.
    available: u64,
    images: Vec<StoredImage>,
    /// Images that cannot be removed, and how that fails.
    stuck: BTreeMap<String, FailureKind>,
    /// What happened.
    told: Vec<String>,
}

impl Rig {
    fn new(settings: ImageCollection) -> Self {
        let mut collection = Collection::new(Some(settings));
        collection.begin(at(BEGAN).mono);
        Self {
            collection,
            ops: Ops::default(),
            wanted: BTreeSet::new(),
            available: 1000,
            images: Vec::new(),
            stuck: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    /// Has all done that is due, and gives what was done.
    fn at(&mut self, second: u64) -> Vec<String> {
        let now = at(second);
        while self.collection.is_due(now.mono) {
            let effect = self.collection.poll_effect(&self.wanted, &mut self.ops, now.mono);
            let Some(Effect::Node { act, .. }) = effect else { break };
            self.perform(act, now);
        }
        std::mem::take(&mut self.told)
    }

    fn perform(&mut self, act: NodeAct, now: Now) {
        match act {
            NodeAct::MeasureImages => {
                self.told.push("measure".to_owned());
                let disk = ImageDisk { capacity: 1000, available: self.available };
                self.collection.measured(Ok(Outcome::ImageDisk(disk)), now.mono);
            }
            NodeAct::ListImages => {
                self.told.push("list".to_owned());
                self.collection.listed(Ok(Outcome::Images(self.images.clone())), now);
            }
            NodeAct::RemoveImage(removal) => {
                let Removal { image, reason } = *removal;
                self.told.push(format!("remove {} {}", image.id, reason.as_str()));
                assert_eq!(self.collection.removing(), names(&image).cloned().collect());
                let result = match self.stuck.get(&image.id) {
                    Some(kind) => Err(Failure::new(*kind, format!("{} is stuck", image.id))),
                    None => {
                        self.images.retain(|one| one.id != image.id);
                        self.available += image.size_bytes;
                        Ok(Outcome::Done)
                    }
                };
                self.collection.removed(result, now.mono);
            }
            NodeAct::Note(Note { reason, message, .. }) => self.told.push(format!("{reason}: {message}")),
            NodeAct::InspectImage(_)
            | NodeAct::PullImage(_)
            | NodeAct::GiveUpPull(_)
            | NodeAct::SetQos(_)
            | NodeAct::ReadNodeObject => panic!("{act:?}"),
        }
    }

    fn has(&mut self, images: &[(&str, u64)]) {
        self.images = images.iter().map(|(id, size)| fixtures::stored(id, *size)).collect();
        self.available = 1000 - images.iter().map(|(_, size)| size).sum::<u64>();
    }
}

fn at(second: u64) -> Now {
    let wall = Timestamp::from_second(1_000_000 + i64::try_from(second).unwrap()).unwrap();
    Now { mono: Mono(Duration::from_secs(second)), wall }
}

fn name(id: &str) -> String {
    format!("docker.io/library/{id}:latest")
}

#[test]
fn the_disk_alone_is_looked_at_while_there_is_room() {
    let mut rig = Rig::new(settings());
    rig.has(&[("a", 840)]);
    assert_eq!(rig.collection.poll_timeout(), Some(at(FIRST).mono));
    assert_eq!(rig.at(FIRST - 1), [""; 0]);
    for round in 0..3 {
        let now = FIRST + 300 * round;
        assert_eq!(rig.at(now), ["measure"]);
        assert_eq!(rig.collection.poll_timeout(), Some(at(now + 300).mono));
    }
}

#[test]
fn images_go_until_enough_is_free() {
    let mut rig = Rig::new(settings());
    rig.has(&[("a", 50), ("b", 40), ("c", 700), ("d", 100)]);
    assert_eq!(rig.at(FIRST), ["measure", "list", "remove a space", "remove b space"]);
    assert_eq!(rig.at(FIRST + 300), ["measure"]);
}

#[test]
fn what_pods_want_stays_also_when_they_come_while_others_go() {
    let mut rig = Rig::new(settings());
    rig.has(&[("a", 50), ("b", 60), ("c", 70), ("d", 700)]);
    rig.wanted = [name("a")].into();
    let expected = ["measure", "list", "remove b space", "remove c space"];
    assert_eq!(rig.at(FIRST), expected);

    let mut round = Round::new(
        Some(Shortage { percent: 90, capacity: 1000, bytes: 100 }),
        ["a", "b"].map(|id| Removal { image: fixtures::stored(id, 1), reason: Reason::Space }).into(),
        at(FIRST).mono,
    );
    let soon = at(FIRST + 1).mono;
    assert_eq!(round.next(&BTreeSet::new(), soon).unwrap().image.id, "a");
    round.ended(Ok(true)).unwrap();
    assert_eq!(round.next(&[name("b")].into(), soon), None);
}

#[test]
fn a_list_counts_no_longer_than_until_the_next_look() {
    for (seconds, expected) in [(300, true), (301, false)] {
        let removal = Removal { image: fixtures::stored("a", 1), reason: Reason::Age };
        let mut round = Round::new(None, vec![removal], at(FIRST).mono);
        let next = round.next(&BTreeSet::new(), at(FIRST + seconds).mono);
        assert_eq!(next.is_some(), expected, "{seconds}");
        assert_eq!(round.next(&BTreeSet::new(), at(FIRST + seconds).mono), None);
    }
}

#[test]
fn who_does_not_answer_is_not_asked_for_the_next_one() {
    let mut rig = Rig::new(settings());
    rig.has(&[("a", 100), ("b", 100), ("c", 700)]);
    rig.stuck.insert("a".to_owned(), FailureKind::Unknown);
    assert_eq!(rig.at(FIRST), ["measure", "list", "remove a space"]);
    rig.stuck.clear();
    assert_eq!(rig.at(FIRST + 299), [""; 0]);
    assert_eq!(rig.at(FIRST + 300)[..3], ["measure", "list", "remove a space"]);
}

#[test]
fn nothing_is_begun_before_every_source_has_spoken() {
    let mut rig = Rig::new(settings());
    rig.has(&[("a", 900)]);
    rig.collection.wait_for_sources(at(FIRST - 1).mono);
    assert_eq!(rig.collection.poll_timeout(), Some(at(FIRST).mono), "there is time yet");
    rig.collection.wait_for_sources(at(FIRST).mono);
    assert_eq!(rig.at(FIRST), [""; 0]);
    assert_eq!(rig.at(FIRST + 10)[0], "measure");
}

#[test]
fn what_was_used_between_two_looks_goes_last() {
    let mut rig = Rig::new(settings());
    rig.has(&[("a", 100), ("b", 100), ("c", 700)]);
    rig.collection.uses([&name("a")], at(FIRST - 60).mono);
    assert_eq!(rig.at(FIRST)[2..], ["remove b space"]);
}

/// Containers of others tell of themselves by the list alone.
#[test]
fn what_others_used_when_images_were_listed_last_goes_last() {
    let mut rig = Rig::new(settings());
    rig.has(&[("a", 100), ("b", 100), ("c", 700)]);
    rig.images[0].stays = Some(Stays::Used);
    rig.images[1].stays = Some(Stays::Pinned);
    rig.images[2].stays = Some(Stays::OfOthers);
    assert_eq!(rig.at(FIRST)[..2], ["measure", "list"]);
    assert_eq!(rig.images.len(), 3);
    (rig.images[0].stays, rig.images[1].stays) = (None, None);
    assert_eq!(rig.at(FIRST + 300), ["measure", "list", "remove b space"]);
}

#[test]
fn what_was_used_last_goes_last() {
    let mut rig = Rig::new(settings());
    rig.has(&[("a", 100), ("b", 100), ("c", 700)]);
    rig.available = 500;
    rig.wanted = [name("a")].into();
    assert_eq!(rig.at(FIRST), ["measure"]);
    rig.wanted = [name("c")].into();
    assert_eq!(rig.at(FIRST + 300), ["measure"]);
    rig.wanted.clear();
    rig.available = 0;
    assert_eq!(rig.at(FIRST + 600), ["measure", "list", "remove b space", "remove a space"]);
}

#[test]
fn an_image_is_known_from_when_it_came_whenever_it_is_listed_first() {
    let mut rig = Rig::new(settings());
    rig.has(&[("new", 100), ("old", 100), ("big", 700)]);
    assert_eq!(rig.at(FIRST + 300).len(), 3, "what came before the agent counts as known since it began");
    rig.has(&[("new", 500), ("future", 100), ("big", 300)]);
    rig.images[0].touched = at(FIRST + 581).wall;
    // By a clock that was set back meanwhile.
    rig.images[1].touched = at(FIRST + 100_000).wall;
    rig.images[2].touched = at(FIRST + 300).wall;
    assert_eq!(rig.at(FIRST + 600), ["measure", "list", "remove big space"]);
    rig.available = 0;
    assert_eq!(rig.at(FIRST + 900), ["measure", "list", "remove new space"]);
    rig.available = 150;
    assert_eq!(rig.at(FIRST + 1200), ["measure", "list", "remove future space"]);
}

#[test]
fn what_is_too_old_goes_though_there_is_room() {
    let day = 24 * 3600;
    let mut rig = Rig::new(ImageCollection { age_max: Some(day * SECOND), ..settings() });
    rig.has(&[("a", 1), ("b", 1)]);
    rig.wanted = [name("b")].into();
    assert_eq!(rig.at(FIRST), ["measure", "list"]);
    rig.wanted.clear();
    assert_eq!(rig.at(BEGAN + u64::from(day)), ["measure", "list"]);
    assert_eq!(rig.at(BEGAN + u64::from(day) + 300), ["measure", "list", "remove a age", "remove b age"]);
}

#[test]
fn too_little_freed_is_told_and_that_it_failed_again() {
    let mut rig = Rig::new(settings());
    rig.has(&[("a", 10)]);
    rig.available = 50;
    let insufficient = |percent: u64, freed: u64| node::image_disk_stays_full(percent, 1000, freed).message;
    let first = insufficient(95, 10);
    let expected =
        ["measure".into(), "list".into(), "remove a space".into(), format!("FreeDiskSpaceFailed: {first}")];
    assert_eq!(rig.at(FIRST), expected);
    let second = insufficient(94, 0);
    let told = [format!("FreeDiskSpaceFailed: {second}"), format!("ImageGCFailed: {second}")];
    assert_eq!(rig.at(FIRST + 300)[2..], told);
    rig.available = 500;
    assert_eq!(rig.at(FIRST + 600), ["measure"]);
    rig.available = 60;
    assert_eq!(rig.at(FIRST + 900).len(), 3, "what works once ends the row");
}

#[test]
fn what_cannot_be_removed_is_told_and_others_go() {
    let mut rig = Rig::new(settings());
    rig.has(&[("a", 100), ("b", 100), ("c", 60), ("d", 700)]);
    rig.stuck = [("a".to_owned(), FailureKind::Config), ("b".to_owned(), FailureKind::Transient)].into();
    rig.stuck.insert("d".to_owned(), FailureKind::Transient);
    rig.stuck.insert("c".to_owned(), FailureKind::Transient);
    rig.at(FIRST);
    rig.stuck.remove("c");
    rig.stuck.remove("d");
    let told = rig.at(FIRST + 300);
    let expected = [
        "remove a space",
        "remove b space",
        "remove c space",
        "remove d space",
        "ImageGCFailed: wanted to free 160 bytes, but freed 760 bytes space with errors in image deletion: [a is stuck, b is stuck]",
    ];
    assert_eq!(told[2..], expected);
}

#[test]
fn a_containerd_that_is_away_is_told_elsewhere() {
    let mut rig = Rig::new(settings());
    rig.has(&[("a", 900), ("b", 100)]);
    rig.stuck.insert("a".to_owned(), FailureKind::RuntimeDown);
    for round in 0..3 {
        assert_eq!(rig.at(FIRST + 300 * round), ["measure", "list", "remove a space"]);
    }
}

#[test]
fn a_disk_that_cannot_be_looked_at_is_told_the_second_time() {
    let mut collection = Collection::new(Some(settings()));
    let mut ops = Ops::default();
    let mut notes = Vec::new();
    let disk = |capacity| Ok(Outcome::ImageDisk(ImageDisk { capacity, available: 0 }));
    let hangs = || Err(Failure::new(FailureKind::Unknown, "it hangs".to_owned()));
    for result in [hangs(), disk(0), Ok(Outcome::Done)] {
        collection.measured(result, at(FIRST).mono);
        while collection.is_due(at(FIRST).mono) {
            let Some(Effect::Node { act: NodeAct::Note(note), .. }) =
                collection.poll_effect(&BTreeSet::new(), &mut ops, at(FIRST).mono)
            else {
                panic!("no note")
            };
            notes.push(note.reason);
        }
    }
    assert_eq!(notes, ["InvalidDiskCapacity", "ImageGCFailed", "ImageGCFailed"]);
}

#[test]
fn without_thresholds_nothing_is_asked() {
    let mut collection = Collection::new(None);
    collection.begin(at(BEGAN).mono);
    assert_eq!(collection.poll_timeout(), None);
    assert!(!collection.is_due(at(1_000_000).mono));
}

#[test]
fn of_too_many_names_the_oldest_are_forgotten() {
    let mut collection = Collection::new(Some(settings()));
    for second in 0..u64::try_from(NAMES_MAX).unwrap() + 10 {
        collection.uses(&[format!("{second:09}")], at(second).mono);
    }
    assert_eq!(collection.used.len(), NAMES_MAX);
    assert_eq!(collection.used.first_key_value().unwrap().0, "000000010");
}
