//! Out-of-memory kills: the counter, and a descriptor that wakes the loop when it may have changed.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::Cgroup;
use super::members::groups;

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
    /// Processes killed for memory since the group was made, in it and in the groups that the container made below.
    ///
    /// `memory.events` of version 2 counts those below (`memory.events.local` does not); `memory.oom_control` of version
    /// 1 counts its own group alone, so all of them are added up.
    pub(crate) fn oom_kills(&self) -> Option<u64> {
        match self {
            Self::Unified(path) => read_oom_kills(&path.join("memory.events")),
            Self::Split(_) => {
                let memory = self.memory()?;
                let own = read_oom_kills(&memory.join("memory.oom_control"))?;
                let below = groups(memory).into_iter().skip(1);
                // One that has gone meanwhile takes its count along.
                let below = below.filter_map(|group| read_oom_kills(&group.join("memory.oom_control")));
                Some(below.fold(own, u64::saturating_add))
            }
        }
    }
}

fn read_oom_kills(file: &Path) -> Option<u64> {
    parse_oom_kills(&fs::read_to_string(file).ok()?)
}

/// The line `oom_kill N`, which both versions have.
fn parse_oom_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn both_versions_count_kills_in_the_same_words() {
        for (kernel, text, kills) in [
            ("v2, 6.x", "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 1\n", Some(3)),
            (
                "v2, 6.16",
                "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 1\nsock_throttled 0\n",
                Some(3),
            ),
            ("v2, 5.10", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n", Some(0)),
            ("v1", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", Some(1)),
            ("v1 before 4.13", "oom_kill_disable 0\nunder_oom 0\n", None),
            ("a removed group", "", None),
            ("no number", "oom_kill max\n", None),
        ] {
            assert_eq!(parse_oom_kills(text), kills, "{kernel}");
        }
    }

    #[test]
    fn version_1_adds_up_what_the_container_made_below() {
        let top = tempfile::tempdir().unwrap();
        let below = top.path().join("made/by/the/container");
        fs::create_dir_all(&below).unwrap();
        let text = |kills: u64| format!("oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n");
        fs::write(top.path().join("memory.oom_control"), text(1)).unwrap();
        fs::write(below.join("memory.oom_control"), text(2)).unwrap();
        let split = Cgroup::Split([("memory".to_owned(), top.path().to_owned())].into());
        assert_eq!(split.oom_kills(), Some(3));
        let unified = Cgroup::Unified(top.path().to_owned());
        assert_eq!(unified.oom_kills(), None);
        fs::write(top.path().join("memory.events"), "oom 9\noom_kill 4\n").unwrap();
        assert_eq!(unified.oom_kills(), Some(4));
        fs::write(below.join("memory.events"), "oom 9\noom_kill 4\n").unwrap();
        assert_eq!(unified.oom_kills(), Some(4), "version 2 has counted what is below");
    }

    #[test]
    fn a_change_and_the_end_of_the_file_wake_the_watch() {
        let top = tempfile::tempdir().unwrap();
        let events = top.path().join("memory.events");
        fs::write(&events, "oom_kill 0\n").unwrap();
        let watch = OomWatch::new(&Cgroup::Unified(top.path().to_owned())).unwrap();
        let is_awake = || {
            let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
        };
        assert!(!is_awake());
        fs::write(&events, "oom_kill 1\n").unwrap();
        assert!(is_awake());
        watch.clear();
        assert!(!is_awake());
        fs::remove_file(&events).unwrap();
        assert!(is_awake(), "the removal of a group ends the watch");
    }
}
