//! Logs and files whose disk takes its time: who waits for them, and who does not.

use std::collections::VecDeque;

use berth_proto::ttrpc::{Code, Status};
use berth_shim_core::{Event, Process};

use super::{LINGER_MS, Phase, Shim};
use crate::io::{Copy, Log, Writer};
use crate::sys;

/// Time from the end of a shim to the end of its process while a disk does not take the last of its logs, milliseconds.
/// Nobody waits for that process.
const LOGS_MS: u64 = 600_000;
/// Requests to open a log anew that are under way, of all clients.
const REOPENINGS_MAX: usize = 64;

/// A log or file of a process that is gone.
pub(super) enum Leaving {
    Log(Log),
    File(Copy),
}

impl Leaving {
    fn writer(&self) -> &Writer {
        match self {
            Self::Log(log) => &log.writer,
            Self::File(file) => &file.writer,
        }
    }
}

/// A request to open a process's logs and files anew.
pub(super) struct Reopening {
    conn: u64,
    stream: u32,
    process: Process,
    /// By which each of them knows it, in order.
    numbers: Vec<u64>,
}

impl Shim {
    /// Some writer has something to tell.
    pub(super) fn writers_ready(&mut self) {
        let _spurious = self.writing.word().read().is_err();
        // Their last word is said: what is found of them now is final.
        let (ended, leaving): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.leaving).into_iter().partition(|leaving| leaving.writer().is_ended());
        self.leaving = leaving;
        self.compress_logs(&ended);
        if !ended.is_empty() {
            sys::trim();
        }
        self.read_on();
        self.tell_drained();
        self.answer_reopenings();
    }

    /// Reads again from processes whose logs have caught up.
    fn read_on(&mut self) {
        let stalled = self.ios.iter().filter(|(_, io)| io.outputs.iter().any(|(_, output)| output.stalled));
        let stalled: Vec<Process> = stalled.map(|(process, _)| process.clone()).collect();
        for process in stalled {
            self.unstall(&process);
        }
    }

    /// Tells the machine once everything that a process has written is on disk.
    pub(super) fn begin_draining(&mut self, process: Process) {
        self.draining.insert(process);
        self.tell_drained();
    }

    fn tell_drained(&mut self) {
        let is_drained = |process: &&Process| self.ios.get(process).is_none_or(|io| io.is_written());
        let drained: Vec<Process> = self.draining.iter().filter(is_drained).cloned().collect();
        for process in drained {
            self.draining.remove(&process);
            self.happen(Event::Drained(process));
        }
    }

    /// Opens the log or the files of a process anew, because someone moved them, and answers then.
    pub(super) fn reopen_log(&mut self, conn: u64, stream: u32, process: &Process) -> Result<(), Status> {
        let many = || Status::new(Code::ResourceExhausted, "the log is being opened anew many times");
        let io = self.ios.get(process).filter(|io| io.log.is_some() || !io.files.is_empty());
        let io =
            io.ok_or_else(|| Status::new(Code::FailedPrecondition, "the container's log is not the shim's"))?;
        if self.reopenings.len() >= REOPENINGS_MAX {
            return Err(many());
        }
        let numbers = io.writers().map(Writer::reopen).collect::<Option<_>>().ok_or_else(many)?;
        self.reopenings.push(Reopening { conn, stream, process: process.clone(), numbers });
        Ok(())
    }

    fn answer_reopenings(&mut self) {
        let mut waiting = VecDeque::from(std::mem::take(&mut self.reopenings));
        while let Some(reopening) = waiting.pop_front() {
            match self.outcome(&reopening) {
                Some(result) => {
                    self.clients.respond(reopening.conn, reopening.stream, result.map(|()| Vec::new()))
                }
                None => self.reopenings.push(reopening),
            }
        }
    }

    fn outcome(&self, reopening: &Reopening) -> Option<Result<(), Status>> {
        let Some(io) = self.ios.get(&reopening.process) else {
            return Some(Err(Status::new(Code::NotFound, "the container is gone: not found")));
        };
        let results = io.writers().zip(&reopening.numbers).map(|(writer, number)| writer.reopened(*number));
        let result = results.collect::<Option<Result<(), String>>>()?;
        Some(result.map_err(|error| Status::new(Code::Internal, format!("failed to open the log: {error}"))))
    }

    /// Lets a log or file end by itself.
    pub(super) fn leave(&mut self, leaving: Leaving) {
        leaving.writer().close();
        self.leaving.push(leaving);
    }

    /// Whether nothing of any log is left to write or to compress.
    pub(super) fn is_written(&self) -> bool {
        self.leaving.is_empty() && self.rotations.is_empty()
    }

    /// Whether the end was long ago: what is not written is lost.
    pub(super) fn gives_logs_up(&self) -> bool {
        let late = self.give_up_logs_at_ms().is_some_and(|at| at <= self.now().mono_ms);
        if late {
            let lost: usize = self.leaving.iter().map(|leaving| leaving.writer().waiting_bytes()).sum();
            crate::log::warning!("the disk takes no logs: giving up {lost} bytes");
        }
        late
    }

    pub(super) fn give_up_logs_at_ms(&self) -> Option<u64> {
        match self.phase {
            Phase::Ending { until_ms } if !self.is_written() => Some(until_ms - LINGER_MS + LOGS_MS),
            Phase::Ending { .. } | Phase::Serving => None,
        }
    }
}
