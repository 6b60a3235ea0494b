//! Exits that a shim left on disk, for when it cannot tell them any more.
//!
//! A shim writes the exit of each container to `<its agent socket>.exits/<container id>` before it tells anybody: a
//! [`Task`] of `berth.shim.v1`. Containerd removes the bundle of a shim that it finds dead; these files stay until the
//! agent removes their container.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use berth_core::{id::ContainerId, observation::Exit};
use berth_proto::shim::Task;
use prost::Message;

use super::shims::exit;
use crate::absent::absent_is_fine;

/// Largest file that is read. A task is some 150 bytes.
const FILE_MAX: u64 = 4096;

/// Exits of one sandbox that are read: more containers than a pod has, since each goes with its container.
const EXITS_MAX: usize = 1024;

/// The directory of a shim, by its socket.
pub(super) fn dir(socket: &Path) -> PathBuf {
    socket.with_extension("exits")
}

/// Everything that a shim left. What cannot be read is left out: those ends are then unknown, as without any file.
pub(super) fn read_all(dir: &Path) -> Vec<(ContainerId, Exit)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let names = entries.take(EXITS_MAX).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| read(dir, &name)).collect()
}

fn read(dir: &Path, name: &str) -> Option<(ContainerId, Exit)> {
    let mut bytes = Vec::new();
    File::open(dir.join(name)).ok()?.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
    let task = Task::decode(bytes.as_slice()).ok().filter(|task| task.id == name)?;
    Some((ContainerId::from_known(name), exit(&task)?))
}

/// Removes the exit of a container.
pub(super) fn remove(dir: &Path, id: &ContainerId) -> io::Result<()> {
    absent_is_fine(fs::remove_file(dir.join(id.as_str())))
}

/// Removes everything that a shim left.
pub(super) fn remove_all(dir: &Path) -> io::Result<()> {
    absent_is_fine(fs::remove_dir_all(dir))
}

#[cfg(test)]
mod tests {
    use berth_proto::shim::{Exit as Told, TaskStatus};

    use super::*;

    #[test]
    fn an_exit_is_read_as_the_shim_would_have_told_it_and_anything_else_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        let dir = dir(&root.path().join("s.sock"));
        assert_eq!(read_all(&dir), []);
        fs::create_dir(&dir).unwrap();
        let task = |id: &str, code| Task {
            id: id.to_owned(),
            status: TaskStatus::Stopped.into(),
            started_at: 1_000_000_000,
            exit: Some(Told { code, exited_at: 2_000_000_000, oom_kills: 1 }),
            ..Task::default()
        };
        fs::write(dir.join("c1"), task("c1", 7).encode_to_vec()).unwrap();
        // Of one whose start was not told yet when it ended.
        fs::write(dir.join("c0"), Task { started_at: 0, ..task("c0", 7) }.encode_to_vec()).unwrap();
        // Half written, of another, of one that runs, none at all.
        fs::write(dir.join("c2.tmp"), task("c2", 0).encode_to_vec()).unwrap();
        fs::write(dir.join("c3"), task("c4", 0).encode_to_vec()).unwrap();
        let runs = Task { status: TaskStatus::Running.into(), ..task("c5", 0) };
        fs::write(dir.join("c5"), runs.encode_to_vec()).unwrap();
        fs::write(dir.join("c6"), [0xff; 9000]).unwrap();
        fs::create_dir(dir.join("c7")).unwrap();
        let exit = Exit {
            code: 7,
            started_at: crate::clock::wall(1_000_000_000),
            finished_at: crate::clock::wall(2_000_000_000).unwrap(),
            oom_killed: true,
        };
        let [c0, c1] = ["c0", "c1"].map(ContainerId::from_known);
        let mut found = read_all(&dir);
        found.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(found, [(c0.clone(), Exit { started_at: None, ..exit }), (c1.clone(), exit)]);
        remove(&dir, &c0).unwrap();
        remove(&dir, &c1).unwrap();
        remove(&dir, &c1).unwrap();
        assert_eq!(read_all(&dir), []);
        remove_all(&dir).unwrap();
        remove_all(&dir).unwrap();
        assert!(!dir.exists());
    }
}
