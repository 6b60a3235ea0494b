//! Maps of user namespaces (`user_namespaces(7)`), parsed.

use thiserror::Error;

/// Ranges that the kernel takes (`UID_GID_MAP_MAX_EXTENTS`).
const RANGES_MAX: usize = 340;
/// Bytes of a map that the kernel takes in the one write that it allows: less than a page, of which the smallest counts.
const TEXT_BYTES_MAX: usize = 4095;

/// Ids that follow each other inside and outside of a user namespace; for a mount, as its files have them and as they are
/// seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdRange {
    /// First id in the namespace.
    pub inside: u32,
    /// First id outside.
    pub outside: u32,
    /// Number of ids.
    pub count: u32,
}

impl IdRange {
    /// Ranges as `/proc/pid/uid_map` takes them.
    pub fn lines(ranges: &[Self]) -> String {
        let line = |range: &Self| format!("{} {} {}\n", range.inside, range.outside, range.count);
        ranges.iter().map(line).collect()
    }
}

/// What is wrong with a map.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdMapError {
    /// No range.
    #[error("map ids: there are maps for users and for groups, or neither")]
    Empty,
    /// More ranges than the kernel takes.
    #[error("map ids: {0} ranges are more than {RANGES_MAX}")]
    TooMany(usize),
    /// A text that the kernel does not take.
    #[error("map ids: {0} bytes are more than {TEXT_BYTES_MAX}; use fewer ranges")]
    TooLong(usize),
    /// A range without ids, or one that reaches the id that stands for none.
    #[error("map ids: {range:?}: {why}")]
    Range {
        /// The range.
        range: IdRange,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two ranges that have an id in common.
    #[error("map ids: {0:?} and {1:?} overlap")]
    Overlap(IdRange, IdRange),
    /// The root of the pod is nobody.
    #[error("map ids: id 0 of the pod is not mapped, as which its first process starts")]
    NoRoot,
    /// Not what `/proc/pid/uid_map` has.
    #[error("map ids: {0:?} is not a line of a map")]
    Line(String),
}

/// The users or the groups of a pod, in order of the ids inside.
///
/// No range is empty, none overlaps another inside or outside, root has an id, and none is the node's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdMap(Vec<IdRange>);

impl IdMap {
    /// Takes ranges in any order.
    ///
    /// A range with the node's root is refused: files and processes of root would be the pod's own, which is what a user
    /// namespace is to prevent (KEP-127).
    pub fn new(ranges: impl IntoIterator<Item = IdRange>) -> Result<Self, IdMapError> {
        let mut ranges: Vec<IdRange> = ranges.into_iter().collect();
        ranges.sort_unstable();
        if ranges.len() > RANGES_MAX {
            return Err(IdMapError::TooMany(ranges.len()));
        }
        for range in &ranges {
            check(*range)?;
        }
        disjoint(&ranges, |range| range.inside)?;
        let mut outside = ranges.clone();
        outside.sort_unstable_by_key(|range| range.outside);
        disjoint(&outside, |range| range.outside)?;
        let map = Self(ranges);
        match map.0.first() {
            None => return Err(IdMapError::Empty),
            Some(first) if first.inside != 0 => return Err(IdMapError::NoRoot),
            Some(_) => {}
        }
        let bytes = map.lines().len();
        if bytes > TEXT_BYTES_MAX { Err(IdMapError::TooLong(bytes)) } else { Ok(map) }
    }

    /// Reads what the kernel shows of a map.
    pub fn parse(text: &str) -> Result<Self, IdMapError> {
        let line = |line: &str| {
            let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
            match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
                (Some(Ok(inside)), Some(Ok(outside)), Some(Ok(count)), None) => {
                    Ok(IdRange { inside, outside, count })
                }
                _ => Err(IdMapError::Line(line.to_owned())),
            }
        };
        Self::new(text.lines().map(line).collect::<Result<Vec<_>, _>>()?)
    }

    /// The map as the kernel reads it.
    pub fn lines(&self) -> String {
        IdRange::lines(&self.0)
    }

    /// The ranges, in order of the ids inside.
    pub fn ranges(&self) -> &[IdRange] {
        &self.0
    }

    /// The node's id of the pod's root.
    pub fn root(&self) -> u32 {
        self.0.first().map_or(u32::MAX, |range| range.outside)
    }
}

fn check(range: IdRange) -> Result<(), IdMapError> {
    let refuse = |why| Err(IdMapError::Range { range, why });
    if range.count == 0 {
        return refuse("it is empty");
    }
    // The last id is below u32::MAX, which stands for no id.
    let fits = |first: u32| first.checked_add(range.count).is_some();
    if !fits(range.inside) || !fits(range.outside) {
        return refuse("it goes beyond the last id");
    }
    if range.outside == 0 {
        return refuse("it has the node's root");
    }
    Ok(())
}

/// Ranges that are in order of their `first` must each begin after the one before.
fn disjoint(ranges: &[IdRange], first: impl Fn(&IdRange) -> u32) -> Result<(), IdMapError> {
    let overlaps = |pair: &&[IdRange]| match pair {
        [before, after] => first(after) - first(before) < before.count,
        _ => false,
    };
    match ranges.windows(2).find(overlaps) {
        Some([before, after]) => Err(IdMapError::Overlap(*before, *after)),
        _ => Ok(()),
    }
}

/// The users and groups of the node that the pod's are mapped to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserMaps {
    /// Users.
    pub uids: IdMap,
    /// Groups.
    pub gids: IdMap,
}

impl UserMaps {
    /// Takes both maps, or no user namespace when there is none of either.
    pub fn new(uids: Vec<IdRange>, gids: Vec<IdRange>) -> Result<Option<Self>, IdMapError> {
        if uids.is_empty() && gids.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { uids: IdMap::new(uids)?, gids: IdMap::new(gids)? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range((inside, outside, count): (u32, u32, u32)) -> IdRange {
        IdRange { inside, outside, count }
    }

    fn map(ranges: &[(u32, u32, u32)]) -> Result<IdMap, IdMapError> {
        IdMap::new(ranges.iter().copied().map(range))
    }

    #[test]
    fn maps_of_pods_are_taken_in_any_order() {
        let last = u32::MAX - 1;
        for (ranges, text) in [
            (&[(0, 100_000, 65_536)][..], "0 100000 65536\n"),
            (&[(1000, 5000, 1), (0, 100_000, 1000)], "0 100000 1000\n1000 5000 1\n"),
            // Next to each other, inside and outside, and up to the last id.
            (&[(0, 10, 5), (5, 15, 5)], "0 10 5\n5 15 5\n"),
            (&[(0, 5, 5), (5, 1, 4)], "0 5 5\n5 1 4\n"),
            (&[(0, last, 1), (last, 1, 1)], "0 4294967294 1\n4294967294 1 1\n"),
        ] {
            let map = map(ranges).unwrap();
            assert_eq!(map.lines(), text);
            assert_eq!(IdMap::parse(text).unwrap(), map);
        }
        // As the kernel aligns them.
        let shown = IdMap::parse("         0     100000      65536\n").unwrap();
        assert_eq!((shown.root(), shown.ranges()), (100_000, &[range((0, 100_000, 65_536))][..]));
    }

    #[test]
    fn maps_that_let_out_or_that_the_kernel_would_refuse_are_refused() {
        for (ranges, why) in [
            (&[][..], "or neither"),
            (&[(0, 0, 1)], "the node's root"),
            (&[(0, 100_000, 10), (10, 0, 1)], "the node's root"),
            (&[(0, 100_000, 0)], "it is empty"),
            (&[(1, 100_000, 65_535)], "id 0 of the pod"),
            (&[(0, 1, u32::MAX)], "beyond the last id"),
            (&[(0, u32::MAX, 1)], "beyond the last id"),
            (&[(0, 100, 10), (9, 200, 10)], "overlap"),
            (&[(0, 100, 10), (10, 109, 10)], "overlap"),
            (&[(0, 200, 10), (10, 191, 10)], "overlap"),
            (&[(0, 100, 10), (0, 100, 10)], "overlap"),
        ] {
            let error = map(ranges).unwrap_err().to_string();
            assert!(error.contains(why), "{ranges:?}: {error}");
        }
        let many = |count: u32, base: u32| {
            let ranges = (0..count).map(|at| range((at, base + 2 * at, 1)));
            IdMap::new(ranges)
        };
        assert_eq!(many(341, 1), Err(IdMapError::TooMany(341)));
        many(340, 1).unwrap();
        // Few enough, but their numbers are long.
        assert!(matches!(many(340, 1_000_000_000), Err(IdMapError::TooLong(_))));
    }

    #[test]
    fn users_without_groups_are_refused() {
        let ids = || vec![range((0, 100_000, 65_536))];
        assert_eq!(UserMaps::new(Vec::new(), Vec::new()), Ok(None));
        assert!(UserMaps::new(ids(), ids()).unwrap().is_some());
        assert_eq!(UserMaps::new(ids(), Vec::new()), Err(IdMapError::Empty));
        assert_eq!(UserMaps::new(Vec::new(), ids()), Err(IdMapError::Empty));
    }

    #[test]
    fn lines_that_are_none_of_a_map_are_refused() {
        for text in ["0 1", "0 1 2 3", "0 -1 2", "a b c", "0 100000 65536\n\n", "0 4294967296 1"] {
            IdMap::parse(text).expect_err(text);
        }
    }
}
