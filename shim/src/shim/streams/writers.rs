//! Logs and files whose disk takes its time: who waits for them, and who does not.

use std::collections::VecDeque;

use berth_proto::ttrpc::{Code, Status};
use berth_shim_core::Process;

use super::Streams;
use crate::io::{Copy, Log, Writer};
use crate::shim::clients::Clients;
use crate::shim::watches::Watches;

/// Requests to open a log anew that are under way, of all clients.
const REOPENINGS_MAX: usize = 64;

/// A log or file of a process that is gone.
pub(in crate::shim) enum Leaving {
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

impl Streams {
    /// Takes note that some writer has something to tell.
    pub(in crate::shim) fn hear_writers(&self) {
        let _spurious = self.writing.word().read().is_err();
    }

    /// Those that have ended since: their last word is said, and what is found of them now is final.
    pub(in crate::shim) fn take_ended(&mut self) -> Vec<Leaving> {
        let (ended, leaving) =
            std::mem::take(&mut self.leaving).into_iter().partition(|leaving| leaving.writer().is_ended());
        self.leaving = leaving;
        ended
    }

    /// Reads again from processes whose logs have caught up.
    pub(in crate::shim) fn read_on(&mut self, watches: &Watches) {
        let stalled = self.ios.iter().filter(|(_, io)| io.outputs.iter().any(|(_, output)| output.stalled));
        let stalled: Vec<Process> = stalled.map(|(process, _)| process.clone()).collect();
        for process in stalled {
            self.unstall(&process, watches);
        }
    }

    /// Notes a process of which is to be known when everything that it has written is on disk.
    pub(in crate::shim) fn begin_draining(&mut self, process: Process) {
        self.draining.insert(process);
    }

    /// Those of which everything is.
    pub(in crate::shim) fn take_drained(&mut self) -> Vec<Process> {
        let is_drained = |process: &&Process| self.ios.get(process).is_none_or(|io| io.is_written());
        let drained: Vec<Process> = self.draining.iter().filter(is_drained).cloned().collect();
        for process in &drained {
            self.draining.remove(process);
        }
        drained
    }

    /// Opens the log or the files of a process anew, because someone moved them, and answers then.
    pub(in crate::shim) fn reopen_log(
        &mut self,
        conn: u64,
        stream: u32,
        process: &Process,
    ) -> Result<(), Status> {
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

    /// Answers the requests to open logs anew of which the outcome is known.
    pub(in crate::shim) fn answer_reopenings(&mut self, clients: &mut Clients) {
        let mut waiting = VecDeque::from(std::mem::take(&mut self.reopenings));
        while let Some(reopening) = waiting.pop_front() {
            match self.outcome(&reopening) {
                Some(result) => {
                    clients.respond(reopening.conn, reopening.stream, result.map(|()| Vec::new()));
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
    pub(in crate::shim) fn is_written(&self) -> bool {
        self.leaving.is_empty() && self.rotations.is_empty()
    }

    /// Bytes of processes that are gone which are not written.
    pub(in crate::shim) fn unwritten_bytes(&self) -> usize {
        self.leaving.iter().map(|leaving| leaving.writer().waiting_bytes()).sum()
    }
}
