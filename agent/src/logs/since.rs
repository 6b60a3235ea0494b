//! Where what was written since a time begins, without reading all that is before.
//!
//! Times go up within a log. Where the clock of the node was set back, some of what was written before that may be passed over.

use std::{fs::File, io, os::unix::fs::FileExt};

use berth_shim_core::log::Names;

use super::{
    file::{BLOCK, read_some},
    place::Place,
    record::{Records, Since},
    tail::Position,
};

/// The place of the first record that may be wanted, or one before it.
pub(super) fn begins(place: &Place, file: &File, older: &[Names], since: &Since) -> io::Result<Position> {
    let mut block = vec![0; BLOCK];
    let mut begins_before = |read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>| {
        let count = read_some(read, &mut block)?;
        io::Result::Ok(first(&block[..count], since).is_some_and(|(_, is_before)| is_before))
    };
    if begins_before(&mut |block| file.read_at(block, 0))? {
        return Ok(Position { file: older.len(), at: last_before(file, since)? });
    }
    for (number, names) in older.iter().enumerate().rev() {
        // What cannot be read is told when it is to be.
        let Some(mut rotated) = place.open_rotated(names).ok().flatten() else { continue };
        if begins_before(&mut |block| io::Read::read(&mut rotated, block)).unwrap_or(false) {
            let at = rotated.plain().and_then(|file| last_before(file, since).ok()).unwrap_or_default();
            return Ok(Position { file: number, at });
        }
    }
    Ok(Position::default())
}

/// Where a record begins that is too old, behind which a block or so is too; 0 where there is none.
fn last_before(file: &File, since: &Since) -> io::Result<u64> {
    let mut block = vec![0; BLOCK];
    let (mut low, mut high) = (0, file.metadata()?.len());
    while high - low > 2 * BLOCK as u64 {
        let middle = low + (high - low) / 2;
        let count = read_some(|block| file.read_at(block, middle), &mut block)?;
        // The middle is mostly within a line.
        let found = memchr::memchr(b'\n', &block[..count]).and_then(|end| {
            let (at, is_before) = first(&block[end + 1..count], since)?;
            Some((middle + end as u64 + 1 + at, is_before))
        });
        match found {
            Some((at, true)) => low = at,
            // A line that is longer than a block is looked for from its beginning.
            Some((_, false)) | None => high = middle,
        }
    }
    Ok(low)
}

/// Where the first record begins, and whether it is too old.
fn first(bytes: &[u8], since: &Since) -> Option<(u64, bool)> {
    let mut found = None;
    Records::default().feed(bytes, |place, record| {
        found.get_or_insert_with(|| (place.start, since.is_after(&record)));
    });
    found
}
