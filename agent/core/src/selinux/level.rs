//! Levels that keep pods apart: two categories that no other pod has.

use std::collections::BTreeSet;

use crate::{id::PodUid, users};

/// How many categories a policy has (`selinux_category_range` of containerd).
pub const CATEGORIES: u32 = 1024;

/// A level that pods may not have, since nothing confined reaches what has it (`privContainerMountLabel`).
const RESERVED: &str = "s0:c1022,c1023";

/// A level for a pod that none of the others has, of the first so many categories; `None` when all are taken.
///
/// Which one follows from its UID, as far as that is free: it is mostly the same again after a reboot, so that files keep their label.
#[must_use]
pub fn free(uid: &PodUid, categories: u32, taken: &BTreeSet<&str>) -> Option<String> {
    let pairs = u64::from(categories) * u64::from(categories.saturating_sub(1)) / 2;
    let start = u64::from(users::place(uid)).checked_rem(pairs)?;
    let mut levels = (start..pairs).chain(0..start).map(pair);
    levels.find(|level| level != RESERVED && !taken.contains(level.as_str()))
}

/// The pair with this number: those whose higher category is `n` come after all with lower ones.
fn pair(number: u64) -> String {
    let high = (8 * number + 1).isqrt().midpoint(1);
    let low = number - high * (high - 1) / 2;
    format!("s0:c{low},c{high}")
}

/// Whether a level has the form that containerd's CRI takes (`checkSelinuxLevel`).
#[must_use]
pub fn is_level(text: &str) -> bool {
    let (sensitivities, categories) = match text.split_once(':') {
        Some((sensitivities, categories)) => (sensitivities, Some(categories)),
        None => (text, None),
    };
    let is_range = |text: &str, between: char, is_end: fn(&str) -> bool| match text.split_once(between) {
        Some((from, to)) => is_end(from) && is_end(to),
        None => is_end(text),
    };
    is_range(sensitivities, '-', |text| is_numbered(text, 's', 1))
        && categories.is_none_or(|categories| {
            categories.split(',').all(|part| is_range(part, '.', |text| is_numbered(text, 'c', 4)))
        })
}

fn is_numbered(text: &str, letter: char, digits_max: usize) -> bool {
    text.strip_prefix(letter).is_some_and(|digits| {
        (1..=digits_max).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(number: u32) -> PodUid {
        PodUid::new(format!("pod-{number}"))
    }

    #[test]
    fn each_pair_of_categories_has_one_number() {
        let expected = ["s0:c0,c1", "s0:c0,c2", "s0:c1,c2", "s0:c0,c3", "s0:c1,c3", "s0:c2,c3", "s0:c0,c4"];
        assert_eq!((0..7).map(pair).collect::<Vec<_>>(), expected);
        let pairs = u64::from(CATEGORIES) * u64::from(CATEGORIES - 1) / 2;
        assert_eq!(pair(pairs - 1), "s0:c1022,c1023");
        assert_eq!((0..pairs).map(pair).collect::<BTreeSet<_>>().len() as u64, pairs);
    }

    #[test]
    fn no_two_pods_have_the_same_level_until_all_are_taken() {
        let mut given: Vec<String> = Vec::new();
        for number in 0..6 {
            let taken = given.iter().map(String::as_str).collect();
            let level = free(&uid(number), 4, &taken).unwrap();
            assert!(!given.contains(&level) && is_level(&level), "{level}");
            given.push(level);
        }
        let taken = given.iter().map(String::as_str).collect();
        assert_eq!(free(&uid(6), 4, &taken), None);
        for categories in [0, 1] {
            assert_eq!(free(&uid(0), categories, &BTreeSet::new()), None);
        }
    }

    #[test]
    fn a_uid_decides_its_level_and_nobody_has_the_reserved_one() {
        let levels: BTreeSet<String> =
            (0..200).map(|number| free(&uid(number), CATEGORIES, &BTreeSet::new()).unwrap()).collect();
        assert!(levels.len() > 195, "{levels:?}");
        let all: Vec<String> = (0..523_776).map(pair).filter(|level| level != RESERVED).collect();
        let taken = all.iter().map(String::as_str).collect();
        assert_eq!(free(&uid(0), CATEGORIES, &taken), None);
    }

    #[test]
    fn levels_have_the_form_that_containerd_takes() {
        for (text, expected) in [
            ("s0", true),
            ("s0:c1", true),
            ("s0:c1,c2", true),
            ("s0:c0.c1023", true),
            ("s0:c0.c3,c7,c9999", true),
            ("s0-s0", true),
            ("s0-s1:c0.c1023", true),
            ("", false),
            ("s", false),
            ("s10", false),
            ("0", false),
            ("s0:", false),
            ("s0:c", false),
            ("s0:c1,", false),
            ("s0:c12345", false),
            ("s0:c1.c2.c3", false),
            ("s0:c1:c2", false),
            ("s0-s0:c0-s1:c1", false),
            ("s0-s0-s0", false),
            ("s0\n", false),
            (" s0", false),
            ("s0:c\u{661}", false),
            ("s0,x=\"", false),
            ("SystemLow", false),
        ] {
            assert_eq!(is_level(text), expected, "{text:?}");
        }
    }
}
