use std::time::Duration;

use super::*;
use crate::fixtures;

const MINUTE: u64 = 60;
const DAY: u64 = 24 * 3600;

fn settings(high: u64, low: u64) -> ImageCollection {
    ImageCollection {
        high_percent: high,
        low_percent: low,
        age_min: Duration::from_secs(2 * MINUTE),
        age_max: None,
    }
}

fn at(seconds: u64) -> Mono {
    Mono(Duration::from_secs(seconds))
}

#[test]
fn a_disk_that_is_too_full_is_brought_down_to_the_lower_threshold() {
    let full = |percent, capacity, bytes| Ok(Some(Shortage { percent, capacity, bytes }));
    for (high, low, capacity, available, expected) in [
        (85, 80, 1000, 1000, Ok(None)),
        (85, 80, 1000, 160, Ok(None)),
        (85, 80, 1000, 151, full(85, 1000, 49)),
        (85, 80, 1000, 150, full(85, 1000, 50)),
        (85, 80, 1000, 0, full(100, 1000, 200)),
        // What is free is cut to whole percents.
        (85, 80, 1000, 159, full(85, 1000, 41)),
        (85, 80, 7, 1, full(86, 7, 0)),
        (1, 0, 1000, 995, full(1, 1000, 5)),
        (0, 0, 1000, 1000, full(0, 1000, 0)),
        (100, 99, 1000, 10, Ok(None)),
        (100, 99, 1000, 9, full(100, 1000, 1)),
        // More free than there is counts as all.
        (85, 80, 1000, 2000, Ok(None)),
        (85, 80, u64::MAX, 1, full(100, u64::MAX, u64::MAX / 5 - 1)),
        (85, 80, 0, 0, Err(NoCapacity)),
        (85, 80, 0, 10, Err(NoCapacity)),
    ] {
        let found = shortage(&settings(high, low), ImageDisk { capacity, available });
        assert_eq!(found, expected, "{available} of {capacity} with {high} and {low}");
    }
}

/// An image, since when it is known, and when it was last used.
fn unused(id: &str, since: u64, last_used: Option<u64>) -> Unused {
    Unused { image: fixtures::stored(id, 1), since: at(since), last_used: last_used.map(at) }
}

fn told(settings: &ImageCollection, unused: Vec<Unused>, began: u64, now: u64) -> Vec<String> {
    let now = Now { mono: at(now), wall: Timestamp::UNIX_EPOCH };
    let removals = removals(settings, unused, at(began), now);
    removals.iter().map(|one| format!("{} {}", one.image.id, one.reason.as_str())).collect()
}

#[test]
fn what_was_never_used_goes_first_then_what_was_not_for_longest() {
    let all = vec![
        unused("used-lately", 100, Some(900)),
        unused("used-long-ago", 800, Some(850)),
        unused("new", 700, None),
        unused("old", 200, None),
        unused("b", 500, None),
        unused("a", 500, None),
    ];
    let expected =
        ["old space", "a space", "b space", "new space", "used-long-ago space", "used-lately space"];
    assert_eq!(told(&settings(85, 80), all, 0, 1000), expected);
}

#[test]
fn what_is_pinned_used_of_others_or_young_stays() {
    let with = |id: &str, stays| {
        let one = unused(id, 0, None);
        Unused { image: StoredImage { stays, ..one.image }, ..one }
    };
    let all = vec![
        with("pinned", Some(Stays::Pinned)),
        with("used", Some(Stays::Used)),
        with("of-somebody", Some(Stays::OfOthers)),
        with("goes", None),
        unused("young", 881, None),
        unused("just-old-enough", 880, None),
        // It was seen for long enough, however lately it was used.
        unused("used-a-moment-ago", 0, Some(999)),
    ];
    let expected = ["goes space", "just-old-enough space", "used-a-moment-ago space"];
    assert_eq!(told(&settings(85, 80), all, 0, 1000), expected);
}

#[test]
fn what_was_not_used_for_too_long_goes_and_what_an_agent_cannot_know_stays() {
    let settings = ImageCollection { age_max: Some(Duration::from_secs(DAY)), ..settings(85, 80) };
    let all = |now: u64| {
        vec![
            unused("never-used", now - DAY - 1, None),
            unused("a-day-old", now - DAY, None),
            unused("used-before", now - 3 * DAY, Some(now - 2 * DAY)),
            unused("used-today", now - 3 * DAY, Some(now - DAY)),
            unused("young", now - 10, None),
        ]
    };
    let by_space =
        ["never-used space", "a-day-old space", "used-before space", "used-today space"].map(str::to_owned);
    let by_age =
        ["never-used age", "used-before age", "a-day-old space", "used-today space"].map(str::to_owned);
    for (began, now, expected) in
        [(10 * DAY, 11 * DAY, &by_space), (10 * DAY, 11 * DAY + 1, &by_age), (0, 11 * DAY, &by_age)]
    {
        assert_eq!(told(&settings, all(now), began, now), expected, "{began} {now}");
    }
}
