//! Bytes that wait to be written.

use super::deflate::Deflater;
use super::event::{GoAwayStatus, ResetStatus};
use super::frame::{CONTROL, FIN, HEAD_LEN, INITIAL_WINDOW_SIZE, Kind, LEN_MAX, VERSION, flags_and_len};
use super::headers::Headers;

/// Capacity that a drained queue keeps; more is given back.
const KEPT_CAPACITY_MAX: usize = 16 << 10;

/// Most bytes of data in one frame: what is written between them has to wait for so many only.
const DATA_MAX: usize = 32 << 10;

/// Frames in the order in which they must be written.
#[derive(Debug, Default)]
pub struct Output {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were written.
    start: usize,
    deflater: Deflater,
}

impl Output {
    /// What is to be written next.
    pub fn pending(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Notes that the first `len` of the [`pending`](Output::pending) bytes were written.
    pub fn written(&mut self, len: usize) {
        self.start = self.start.saturating_add(len).min(self.buffer.len());
        if self.start == self.buffer.len() {
            self.start = 0;
            self.buffer.clear();
            if self.buffer.capacity() > KEPT_CAPACITY_MAX {
                self.buffer = Vec::new();
            }
        } else if self.start > KEPT_CAPACITY_MAX.max(self.pending().len()) {
            // What moves is less than what was written since the last time.
            self.buffer.drain(..std::mem::take(&mut self.start));
        }
    }

    pub(super) fn data(&mut self, stream: u32, bytes: &[u8]) {
        self.buffer.reserve(bytes.len() + HEAD_LEN);
        for part in bytes.chunks(DATA_MAX) {
            self.words(&[stream, flags_and_len(0, part.len())]);
            self.buffer.extend_from_slice(part);
        }
    }

    pub(super) fn finish(&mut self, stream: u32) {
        self.words(&[stream, flags_and_len(FIN, 0)]);
    }

    /// Headers that do not fit a frame are left out.
    pub(super) fn syn_reply(&mut self, stream: u32, headers: &Headers, is_last: bool) {
        let mut block = headers.encode();
        // The form of a block adds five bytes to each 64 KiB.
        if block.len() > LEN_MAX / 2 {
            block = Headers::default().encode();
        }
        let block = self.deflater.block(&block);
        self.control(Kind::SynReply, if is_last { FIN } else { 0 }, 4 + block.len());
        self.words(&[stream]);
        self.buffer.extend_from_slice(&block);
    }

    pub(super) fn rst_stream(&mut self, stream: u32, status: ResetStatus) {
        self.control(Kind::RstStream, 0, 8);
        self.words(&[stream, status.into()]);
    }

    pub(super) fn initial_window(&mut self, size: u32) {
        self.control(Kind::Settings, 0, 12);
        self.words(&[1, INITIAL_WINDOW_SIZE, size]);
    }

    pub(super) fn window_update(&mut self, stream: u32, delta: u32) {
        self.control(Kind::WindowUpdate, 0, 8);
        self.words(&[stream, delta]);
    }

    pub(super) fn ping(&mut self, id: u32) {
        self.control(Kind::Ping, 0, 4);
        self.words(&[id]);
    }

    pub(super) fn go_away(&mut self, last: u32, status: GoAwayStatus) {
        self.control(Kind::GoAway, 0, 8);
        self.words(&[last, status.into()]);
    }

    fn control(&mut self, kind: Kind, flags: u8, len: usize) {
        let first = CONTROL | u32::from(VERSION) << 16 | u32::from(kind.number());
        self.words(&[first, flags_and_len(flags, len)]);
    }

    fn words(&mut self, words: &[u32]) {
        for word in words {
            self.buffer.extend_from_slice(&word.to_be_bytes());
        }
    }
}
