//! Where the last lines of a log begin, found from its end: what is before them is not read, and nothing of them is kept.
//!
//! Lines of one stream may begin between parts of a line of the other, so each stream has a beginning of its own.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
};

use berth_shim_core::log::Names;
use memchr::memrchr;

use super::{
    file::{BLOCK, read_some},
    line::TEXT_MAX,
    place::{Place, Rotated},
    record::{Record, Records},
};

/// So many bytes of a line of the file tell what it is.
const HEAD: usize = 128;

/// How far back the parts of a line are looked for that began before all others: about as long as a line is joined.
const PARTS_MAX: u64 = 2 * TEXT_MAX as u64;

/// A place in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Position {
    /// Which of its files: 0 is the oldest.
    pub(super) file: usize,
    /// Where in it, before compression.
    pub(super) at: u64,
}

/// The beginning of each stream for the last `lines`.
pub(super) fn begins(place: &Place, file: &File, older: &[Names], lines: u64) -> io::Result<[Position; 2]> {
    let mut search = Search { missing: lines, states: [State::Unseen; 2], begins: [None; 2], parts: 0 };
    let mut backwards = Backwards::new(file)?;
    let end = Position { file: older.len(), at: backwards.end };
    search.back(&mut backwards, older.len())?;
    for (number, names) in older.iter().enumerate().rev() {
        if search.is_done() {
            break;
        }
        search.unseen_is_closed();
        // What cannot be read is told when it is to be.
        let Some(rotated) = place.open_rotated(names).ok().flatten() else { continue };
        if let Some(plain) = rotated.plain() {
            let gone_back =
                Backwards::new(plain).and_then(|mut backwards| search.back(&mut backwards, number));
            gone_back.unwrap_or_default();
        } else {
            search.through(rotated, || place.open_rotated(names).ok().flatten(), number);
        }
    }
    if search.missing > 0 {
        return Ok([Position::default(); 2]);
    }
    Ok(search.begins.map(|begins| begins.unwrap_or(end)))
}

/// What is known of a stream, going back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing of it was seen.
    Unseen,
    /// A line of it is wanted whose beginning may be farther back.
    Open,
    /// What is farther back is not wanted.
    Closed,
}

struct Search {
    /// Lines that are wanted beyond those that were found.
    missing: u64,
    states: [State; 2],
    begins: [Option<Position>; 2],
    /// Bytes gone back for nothing but parts.
    parts: u64,
}

impl Search {
    fn is_done(&self) -> bool {
        self.missing == 0 && (!self.states.contains(&State::Open) || self.parts > PARTS_MAX)
    }

    /// Only in the newest file an unended line is one that may be.
    fn unseen_is_closed(&mut self) {
        for state in self.states.iter_mut().filter(|state| **state == State::Unseen) {
            *state = State::Closed;
        }
    }

    /// Goes back through a file.
    fn back(&mut self, lines: &mut Backwards<'_>, file: usize) -> io::Result<()> {
        let mut behind = lines.end;
        while !self.is_done()
            && let Some(at) = lines.previous()?
        {
            if self.missing == 0 {
                self.parts += behind - at;
            }
            behind = at;
            if let Some(record) = Record::parse(&lines.head) {
                self.take(&record, Position { file, at });
            }
            if self.missing == 0 {
                lines.floor = at.saturating_sub(PARTS_MAX);
            }
        }
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>, position: Position) {
        let index = record.stream.index();
        match (record.is_full, self.states[index]) {
            (true, _) | (false, State::Unseen) if self.missing > 0 => {
                self.missing -= 1;
                self.states[index] = State::Open;
                self.begins[index] = Some(position);
            }
            (true, _) | (false, State::Unseen) => self.states[index] = State::Closed,
            (false, State::Open) => self.begins[index] = Some(position),
            (false, State::Closed) => {}
        }
    }

    /// Goes through a compressed file, which can only be read from its beginning: once to count its lines, and again to find the first
    /// that is wanted.
    fn through(&mut self, rotated: Rotated, again: impl FnOnce() -> Option<Rotated>, file: usize) {
        let mut ended = [0_u64; 2];
        let bytes =
            each_record(rotated, |_place, record| ended[record.stream.index()] += u64::from(record.is_full));
        let total = ended[0] + ended[1];
        if total <= self.missing {
            self.missing -= total;
            for (index, ended) in ended.into_iter().enumerate() {
                if ended > 0 || self.states[index] == State::Open {
                    self.states[index] = State::Open;
                    self.begins[index] = Some(Position { file, at: 0 });
                }
            }
        } else if let Some(again) = again() {
            let is_first_wanted = self.missing > 0;
            let (begun, end) = begun(again, total - self.missing);
            self.missing = 0;
            for (index, begun) in begun.into_iter().enumerate() {
                if !is_first_wanted && self.states[index] != State::Open {
                    continue;
                }
                let (state, at) = match begun {
                    Begun::Earlier => (State::Open, 0),
                    Begun::At(at) => (State::Closed, at),
                    Begun::Not => (State::Closed, end),
                };
                self.states[index] = state;
                self.begins[index] = Some(Position { file, at });
            }
        }
        if self.missing == 0 {
            self.parts += bytes;
        }
    }
}

/// Where the line begins that a stream is in.
#[derive(Debug, Clone, Copy)]
enum Begun {
    /// In an older file, or there is none yet.
    Earlier,
    At(u64),
    /// It is in none.
    Not,
}

/// The lines that the streams are in behind so many that have ended, and where that is.
fn begun(rotated: Rotated, lines: u64) -> ([Begun; 2], u64) {
    let (mut begun, mut ended, mut end) = ([Begun::Earlier; 2], 0, 0);
    each_record(rotated, |place, record| {
        let begun = &mut begun[record.stream.index()];
        if ended == lines {
            return;
        }
        match (record.is_full, *begun) {
            (true, _) => {
                ended += 1;
                end = place.end;
                *begun = Begun::Not;
            }
            (false, Begun::Not) => *begun = Begun::At(place.start),
            (false, Begun::Earlier | Begun::At(_)) => {}
        }
    });
    (begun, end)
}

/// Gives the records of a file as far as it can be read; returns how long it is.
fn each_record(mut rotated: Rotated, mut each: impl FnMut(std::ops::Range<u64>, Record<'_>)) -> u64 {
    let (mut records, mut block) = (Records::default(), vec![0; BLOCK]);
    while let Ok(count @ 1..) = read_some(|block| rotated.read(block), &mut block) {
        records.feed(&block[..count], &mut each);
    }
    records.fed()
}

/// The lines of a file, last first.
struct Backwards<'f> {
    file: &'f File,
    /// Where the last line ends. What is behind it was not written whole.
    end: u64,
    /// A part of the file from `start` on, and how much of it is still to be looked at.
    block: Vec<u8>,
    start: u64,
    rest: usize,
    /// The beginning of the line that was found.
    head: Vec<u8>,
    /// What is before is not looked at.
    floor: u64,
    is_over: bool,
}

impl<'f> Backwards<'f> {
    fn new(file: &'f File) -> io::Result<Self> {
        let start = file.metadata()?.len();
        let mut all = Self {
            file,
            end: 0,
            block: Vec::new(),
            start,
            rest: 0,
            head: Vec::with_capacity(HEAD),
            floor: 0,
            is_over: false,
        };
        all.end = all.line_start()?.unwrap_or(0);
        all.is_over = all.end == 0;
        Ok(all)
    }

    /// Where the line before begins, whose beginning is `head` then.
    fn previous(&mut self) -> io::Result<Option<u64>> {
        if self.is_over {
            return Ok(None);
        }
        let start = self.line_start()?;
        self.is_over = start.is_none();
        Ok(start.or((self.start == 0).then_some(0)))
    }

    /// Goes back to behind the newline before; `None` when there is none down to the floor.
    fn line_start(&mut self) -> io::Result<Option<u64>> {
        self.head.clear();
        loop {
            let newline = memrchr(b'\n', &self.block[..self.rest]);
            let begins = newline.map_or(0, |at| at + 1);
            let found = &self.block[begins..self.rest];
            let found = &found[..found.len().min(HEAD)];
            self.head.truncate(HEAD - found.len());
            self.head.splice(0..0, found.iter().copied());
            if let Some(at) = newline {
                self.rest = at;
                return Ok(Some(self.start + begins as u64));
            }
            if self.start <= self.floor {
                self.rest = 0;
                return Ok(None);
            }
            let before = self.start.saturating_sub(BLOCK as u64);
            self.rest = usize::try_from(self.start - before).unwrap_or(BLOCK);
            self.block.resize(self.rest, 0);
            self.file.read_exact_at(&mut self.block, before)?;
            self.start = before;
        }
    }
}
