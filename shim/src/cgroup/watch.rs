//! Out-of-memory kills: the counter, and a descriptor that wakes the loop when it may have changed.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::Cgroup;

/// Readable after an out-of-memory kill in one container.
pub(crate) enum OomWatch {
    /// cgroup v2: `memory.events` was changed.
    Events(Inotify),
    /// cgroup v1: the group ran out of memory, or is gone.
    Control(EventFd),
}

impl OomWatch {
    pub(crate) fn new(cgroup: &Cgroup) -> io::Result<Self> {
        match cgroup {
            Cgroup::Unified(path) => {
                let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
                inotify.add_watch(&path.join("memory.events"), AddWatchFlags::IN_MODIFY)?;
                Ok(Self::Events(inotify))
            }
            Cgroup::Split(_) => {
                let path = cgroup.memory().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
                let control = fs::File::open(path.join("memory.oom_control"))?;
                let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
                let numbers = format!("{} {}", event.as_fd().as_raw_fd(), control.as_raw_fd());
                fs::write(path.join("cgroup.event_control"), numbers)?;
                Ok(Self::Control(event))
            }
        }
    }

    /// Takes what made it readable.
    pub(crate) fn clear(&self) {
        let _spurious = match self {
            Self::Events(inotify) => inotify.read_events().is_err(),
            Self::Control(event) => event.read().is_err(),
        };
    }
}

impl AsFd for OomWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Events(inotify) => inotify.as_fd(),
            Self::Control(event) => event.as_fd(),
        }
    }
}

impl Cgroup {
    /// Processes killed for memory since the group was made.
    pub(crate) fn oom_kills(&self) -> Option<u64> {
        let file = match self {
            Self::Unified(path) => path.join("memory.events"),
            Self::Split(_) => self.memory()?.join("memory.oom_control"),
        };
        parse_oom_kills(&fs::read_to_string(file).ok()?)
    }
}

/// The line `oom_kill N`, which both versions have.
fn parse_oom_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_count_kills_in_the_same_words() {
        assert_eq!(parse_oom_kills("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 1\n"), Some(3));
        assert_eq!(parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"), Some(1));
        assert_eq!(parse_oom_kills("oom_kill_disable 0\n"), None);
    }
}
