//! Id mappings of a mount: `uidmap=` and `gidmap=`, as snapshotters that can `remap-ids` write them.

use super::PlanError;
use crate::namespace::IdRange;

/// Ranges that the kernel takes for one user namespace (`UID_GID_MAP_MAX_EXTENTS`).
const RANGES_MAX: usize = 340;

/// How owners of files appear through a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdMap {
    /// Users.
    pub uids: Vec<IdRange>,
    /// Groups.
    pub gids: Vec<IdRange>,
}

impl IdMap {
    /// Reads the values of both options. One without the other would map half of every file's owner.
    pub(super) fn of(uids: Option<&str>, gids: Option<&str>) -> Result<Option<Self>, PlanError> {
        match (uids, gids) {
            (None, None) => Ok(None),
            (Some(uids), Some(gids)) => {
                Ok(Some(Self { uids: ranges("uidmap", uids)?, gids: ranges("gidmap", gids)? }))
            }
            (Some(uids), None) => Err(refuse("uidmap", uids, "there is no gidmap beside it")),
            (None, Some(gids)) => Err(refuse("gidmap", gids, "there is no uidmap beside it")),
        }
    }
}

fn ranges(name: &str, value: &str) -> Result<Vec<IdRange>, PlanError> {
    let mut ranges = Vec::new();
    for text in value.split(',') {
        if ranges.len() == RANGES_MAX {
            return Err(refuse(name, value, "it has more than 340 ranges"));
        }
        let range = range(text).ok_or_else(|| refuse(name, value, "a range is inside:outside:count"))?;
        ranges.push(range);
    }
    Ok(ranges)
}

/// A range of at least one id that stays below the id that stands for none.
fn range(text: &str) -> Option<IdRange> {
    let mut numbers = text.splitn(3, ':').map(decimal);
    let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let fits = |first: u32| first.checked_add(count).is_some();
    (count > 0 && fits(inside) && fits(outside)).then_some(IdRange { inside, outside, count })
}

/// Digits only: `parse` alone would take a sign.
pub(super) fn decimal(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn refuse(name: &str, value: &str, why: &'static str) -> PlanError {
    PlanError::IdMap { option: format!("{name}={value}"), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_written() {
        let map = IdMap::of(Some("0:100000:65536"), Some("0:200000:10,10:5:1")).unwrap().unwrap();
        assert_eq!(IdRange::lines(&map.uids), "0 100000 65536\n");
        assert_eq!(IdRange::lines(&map.gids), "0 200000 10\n10 5 1\n");
        assert_eq!(IdMap::of(None, None).unwrap(), None);
    }

    #[test]
    fn half_a_mapping_and_malformed_ranges_are_refused() {
        IdMap::of(Some("0:0:1"), None).expect_err("half a mapping");
        IdMap::of(None, Some("0:0:1")).expect_err("half a mapping");
        let many = vec!["0:0:1"; RANGES_MAX + 1].join(",");
        for bad in
            ["", "0", "0:1", "0:1:2:3", "0:1:0", "-1:0:1", "+1:0:1", "a:0:1", "0:4294967295:2", ",", &many]
        {
            IdMap::of(Some(bad), Some("0:0:1")).expect_err(bad);
        }
    }
}
