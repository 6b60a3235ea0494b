//! What changes on the node, read beside the loop: its files may be on a file system that does not answer.

use std::{
    io,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use berth_core::config::NodeFacts;

use crate::{causes::with_causes, config::LiveFacts};

/// How long the loop waits for two small files: they are most often in memory.
const WITHIN: Duration = Duration::from_millis(200);

/// What was read, or why not.
pub(super) type Facts = Result<NodeFacts, String>;

/// Has a thread that reads, from the first that is read on.
#[derive(Debug)]
pub(super) struct Reader {
    live: LiveFacts,
    thread: Option<Thread>,
    /// Whether the last that was asked for has not come yet.
    is_late: bool,
}

/// The way to the thread and back, which ends with it.
#[derive(Debug)]
struct Thread {
    asked: SyncSender<()>,
    read: Receiver<Facts>,
}

impl Thread {
    fn start(live: LiveFacts) -> io::Result<Self> {
        let (asked, asks) = sync_channel(1);
        let (answers, read) = sync_channel(1);
        let reads = move || {
            while asks.recv().is_ok() {
                if answers.send(live.read().map_err(|error| with_causes(&error))).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("facts".to_owned()).spawn(reads)?;
        Ok(Self { asked, read })
    }
}

impl Reader {
    /// One that reads these. A thread that cannot be had now is asked for again with each look.
    pub(super) fn of(live: LiveFacts) -> Self {
        let thread = Thread::start(live.clone()).ok();
        Self { live, thread, is_late: false }
    }

    /// The facts of now. What does not come at once is not waited for again until it has come.
    pub(super) fn read(&mut self) -> Facts {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => Thread::start(self.live.clone()).map_err(|error| no_thread(&error))?,
        };
        let thread = self.thread.insert(thread);
        if self.is_late {
            match thread.read.try_recv() {
                // Of earlier.
                Ok(_) => self.is_late = false,
                Err(_) => return Err(silent()),
            }
        }
        if thread.asked.send(()).is_err() {
            return Err(ended());
        }
        match thread.read.recv_timeout(WITHIN) {
            Ok(facts) => facts,
            Err(RecvTimeoutError::Timeout) => {
                self.is_late = true;
                Err(silent())
            }
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
        }
    }
}

fn no_thread(error: &io::Error) -> String {
    format!("read the node's files: start a thread that does: {}", with_causes(error))
}

fn ended() -> String {
    "read the node's files: the thread that does has ended".to_owned()
}

fn silent() -> String {
    "read the node's resolv.conf and /etc/hosts: no answer; see to the file systems they are on".to_owned()
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, net::IpAddr, time::Instant};

    use berth_core::config::ResolvConf;
    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    /// A FIFO that nobody writes stands for a file that does not answer.
    #[test]
    fn a_file_that_does_not_answer_is_waited_for_once_and_only_a_moment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let ips = Some(vec![IpAddr::from([10, 0, 0, 7])]);
        let mut reader = Reader::of(LiveFacts { resolv_conf: Some(path.clone()), fixed_ips: ips });
        let refused = reader.read().unwrap_err();
        assert!(refused.contains("no answer"), "{refused}");
        let began = Instant::now();
        for _ in 0..1000 {
            reader.read().unwrap_err();
        }
        assert!(began.elapsed() < WITHIN * 100, "waited {:?}", began.elapsed());

        drop(OpenOptions::new().write(true).open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "nameserver 10.0.0.1\n").unwrap();
        let facts = loop {
            if let Ok(facts) = reader.read() {
                break facts;
            }
        };
        assert_eq!(facts.resolv_conf, ResolvConf::Text("nameserver 10.0.0.1\n".to_owned()));
    }
}
