//! What the shim reads and leaves in bundles, so that `delete` finds everything after the shim is gone.
//!
//! In every container's bundle: `berth.json`, the runtime that knows the container and where its control groups are, and
//! `exit.json` once it has exited.
//! Beside the agent's socket: `<socket without extension>.exits/<id>`, the same for an agent, which outlives the bundle.
//! In the bundle that the shim was started in: `shim.pid`, `shim.sockets`, and `members/<id>`, a link to each container's
//! bundle.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use berth_proto::shim::Task;
use berth_shim_core::{Exit, Id};
use nix::libc;
use prost::Message;
use serde_json::{Value, json};
use thiserror::Error;

use crate::cgroup::Cgroup;
use crate::runtime::Runtime;

/// Largest file read from a bundle. containerd writes specs of tens of kilobytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
const RECORD: &str = "berth.json";
const EXIT: &str = "exit.json";
/// The pid of the container's init, written by the runtime.
pub(crate) const INIT_PID: &str = "init.pid";
const SHIM_PID: &str = "shim.pid";
const SOCKETS: &str = "shim.sockets";
const MEMBERS: &str = "members";

/// Why a file of a bundle cannot be used.
#[derive(Debug, Error)]
pub(crate) enum BundleError {
    #[error("access {path}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("read {path} as JSON", path = path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("read {path}: it is not an object", path = path.display())]
    NotAnObject { path: PathBuf },
    #[error("read {path}: it has more than {FILE_BYTES_MAX} bytes", path = path.display())]
    Long { path: PathBuf },
    #[error("read {path}: {missing} is missing", path = path.display())]
    Incomplete { path: PathBuf, missing: &'static str },
}

/// The parsed `config.json` of a bundle.
pub(crate) fn read_config(bundle: &Path) -> Result<Value, BundleError> {
    let path = bundle.join("config.json");
    let config = read_json(&path)?;
    if config.is_object() { Ok(config) } else { Err(BundleError::NotAnObject { path }) }
}

pub(crate) fn write_config(bundle: &Path, config: &Value) -> Result<(), BundleError> {
    write_json(&bundle.join("config.json"), config)
}

/// What is noted of a container that a runtime was asked to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: Id,
    pub(crate) runtime: Runtime,
    /// Its control groups, once they are known.
    pub(crate) cgroup: Option<Cgroup>,
}

/// Notes which runtime knows the container, before it is asked to create it, and its control groups after that.
pub(crate) fn write_record(
    bundle: &Path,
    id: &Id,
    runtime: &Runtime,
    cgroup: Option<&Cgroup>,
) -> Result<(), BundleError> {
    let record = json!({
        "id": id.as_str(),
        "binary": runtime.binary,
        "args": runtime.args,
        "root": runtime.root,
        "cgroup": cgroup.map(Cgroup::to_json),
    });
    write_json(&bundle.join(RECORD), &record)
}

/// No runtime knows the container any more.
pub(crate) fn remove_record(bundle: &Path) {
    // containerd may have removed the whole bundle by now.
    let _absent = fs::remove_file(bundle.join(RECORD)).is_err();
}

/// The container and the runtime that knows it, if one was ever asked to create it.
pub(crate) fn read_record(bundle: &Path) -> Result<Option<Record>, BundleError> {
    let path = bundle.join(RECORD);
    let record = match read_json(&path) {
        Err(BundleError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let text = |name: &'static str| {
        let value = record.get(name).and_then(Value::as_str);
        value.ok_or_else(|| BundleError::Incomplete { path: path.clone(), missing: name })
    };
    let id = Id::parse(text("id")?)
        .map_err(|_bad| BundleError::Incomplete { path: path.clone(), missing: "id" })?;
    let args = record.get("args").and_then(Value::as_array).into_iter().flatten();
    let args = args.filter_map(|arg| arg.as_str().map(str::to_owned)).collect();
    let runtime = Runtime { binary: text("binary")?.into(), args, root: text("root")?.into() };
    Ok(Some(Record { id, runtime, cgroup: record.get("cgroup").and_then(Cgroup::from_json) }))
}

pub(crate) fn write_exit(bundle: &Path, pid: u32, exit: Exit) -> Result<(), BundleError> {
    let record = json!({
        "pid": pid,
        "code": exit.code,
        "exited_at_ns": exit.at_ns,
        "oom_kills": exit.oom_kills,
    });
    write_json(&bundle.join(EXIT), &record)
}

/// Writes the end of a container where the agent finds it when the shim is gone, and the bundle with it: into a directory
/// beside its socket, from which the agent removes it with the container.
pub(crate) fn write_exit_for_agent(socket: &Path, task: &Task) -> Result<(), BundleError> {
    let dir = socket.with_extension("exits");
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            return Err(BundleError::Io { path: dir, source });
        }
        Ok(()) | Err(_) => {}
    }
    write_file(&dir.join(&task.id), &task.encode_to_vec())
}

/// The exit of the container, if it was recorded.
pub(crate) fn read_exit(bundle: &Path) -> Option<Exit> {
    let record = read_json(&bundle.join(EXIT)).ok()?;
    let number = |name: &str| record.get(name).and_then(Value::as_u64);
    Some(Exit {
        code: u32::try_from(number("code")?).ok()?,
        at_ns: record.get("exited_at_ns").and_then(Value::as_i64)?,
        oom_kills: number("oom_kills")?,
    })
}

pub(crate) fn write_shim_pid(bundle: &Path, pid: u32) -> Result<(), BundleError> {
    write_file(&bundle.join(SHIM_PID), pid.to_string().as_bytes())
}

pub(crate) fn read_shim_pid(bundle: &Path) -> Option<u32> {
    read_text(&bundle.join(SHIM_PID))?.trim().parse().ok()
}

/// A shim that ends by itself needs no ending. Where containerd has removed its bundle and made another of that name, the note is
/// another shim's.
pub(crate) fn remove_own_pid(bundle: &Path) {
    if read_shim_pid(bundle) == Some(std::process::id()) {
        remove_shim_pid(bundle);
    }
}

fn remove_shim_pid(bundle: &Path) {
    // containerd may have removed the whole bundle by now.
    let _absent = fs::remove_file(bundle.join(SHIM_PID)).is_err();
}

/// Nothing of a shim that never served stays.
pub(crate) fn remove_shim_notes(bundle: &Path) {
    remove_shim_pid(bundle);
    let _absent = fs::remove_file(bundle.join(SOCKETS)).is_err();
}

/// Notes the sockets that the shim listens on.
pub(crate) fn write_sockets<'p>(
    bundle: &Path,
    paths: impl Iterator<Item = &'p Path>,
) -> Result<(), BundleError> {
    let lines: Vec<String> = paths.map(|path| path.display().to_string()).collect();
    write_file(&bundle.join(SOCKETS), lines.join("\n").as_bytes())
}

/// Sockets of a shim that may not have removed them.
pub(crate) fn read_sockets(bundle: &Path) -> Vec<PathBuf> {
    let text = read_text(&bundle.join(SOCKETS)).unwrap_or_default();
    text.lines().filter(|line| line.starts_with('/')).map(PathBuf::from).collect()
}

/// Notes in the shim's own bundle where a member's is. Of a group that bundle goes with the container that came first;
/// nothing is noted then, and nothing made in its place, where containerd would stumble over it.
pub(crate) fn add_member(shim_bundle: &Path, id: &Id, bundle: &Path) -> Result<(), BundleError> {
    let members = shim_bundle.join(MEMBERS);
    match fs::create_dir(&members) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            return Err(BundleError::Io { path: members, source });
        }
        Ok(()) | Err(_) => {}
    }
    let link = members.join(id.as_str());
    match fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(BundleError::Io { path: link, source: error });
        }
        Ok(()) | Err(_) => {}
    }
    std::os::unix::fs::symlink(bundle, &link).map_err(|source| BundleError::Io { path: link, source })
}

pub(crate) fn remove_member(shim_bundle: &Path, id: &Id) {
    // Absent already, or left for `delete`, which tolerates a container that is gone.
    let _absent = fs::remove_file(shim_bundle.join(MEMBERS).join(id.as_str())).is_err();
}

/// Bundles of the members, as noted.
pub(crate) fn members(shim_bundle: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(shim_bundle.join(MEMBERS)) else { return Vec::new() };
    entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
}

pub(crate) fn read_json(path: &Path) -> Result<Value, BundleError> {
    let bytes = read_file(path)?;
    serde_json::from_slice(&bytes).map_err(|source| BundleError::Json { path: path.to_owned(), source })
}

fn read_text(path: &Path) -> Option<String> {
    String::from_utf8(read_file(path).ok()?).ok()
}

/// Reads a file that is one: not a link to another, not a FIFO to wait for, not a device, and of a size that is sane.
fn read_file(path: &Path) -> Result<Vec<u8>, BundleError> {
    let io = |source| BundleError::Io { path: path.to_owned(), source };
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(io(io::Error::other("it is not a regular file")));
    }
    let long = || BundleError::Long { path: path.to_owned() };
    if metadata.len() > FILE_BYTES_MAX {
        return Err(long());
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    // It may have grown meanwhile.
    if bytes.len() as u64 > FILE_BYTES_MAX { Err(long()) } else { Ok(bytes) }
}

fn write_json(path: &Path, value: &Value) -> Result<(), BundleError> {
    write_file(path, value.to_string().as_bytes())
}

/// Writes a file whole or not at all. Not synced: what it describes does not outlive a power loss either.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), BundleError> {
    let io = |source| BundleError::Io { path: path.to_owned(), source };
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(io)?;
    file.write_all(bytes).map_err(io)?;
    fs::rename(&temporary, path).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let bundle = tempfile::tempdir().unwrap();
        assert!(read_record(bundle.path()).unwrap().is_none());
        let runtime =
            Runtime { binary: "/bin/r".into(), args: vec!["--x".to_owned()], root: "/run/r".into() };
        let id = Id::parse("c1").unwrap();
        let split = Cgroup::Split([("memory".to_owned(), PathBuf::from("/sys/fs/cgroup/memory/c1"))].into());
        for cgroup in [None, Some(Cgroup::Unified("/sys/fs/cgroup/c1".into())), Some(split)] {
            write_record(bundle.path(), &id, &runtime, cgroup.as_ref()).unwrap();
            let record = Record { id: id.clone(), runtime: runtime.clone(), cgroup };
            assert_eq!(read_record(bundle.path()).unwrap(), Some(record));
        }
    }

    #[test]
    fn only_regular_files_of_a_sane_size_are_read() {
        let bundle = tempfile::tempdir().unwrap();
        let path = bundle.path().join("config.json");
        let refused = |why: &str| {
            let error = crate::with_causes(&read_config(bundle.path()).unwrap_err());
            assert!(error.contains(why), "{error:?} does not say {why:?}");
            if path.is_dir() { fs::remove_dir(&path).unwrap() } else { fs::remove_file(&path).unwrap() }
        };
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        refused("not a regular file");
        fs::create_dir(&path).unwrap();
        refused("not a regular file");
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        refused("symbolic link");
        fs::File::create(&path).unwrap().set_len(100 << 20).unwrap();
        refused("more than");
        fs::write(&path, "[]").unwrap();
        refused("not an object");
        fs::write(&path, "[".repeat(100_000)).unwrap();
        refused("recursion limit");
    }

    #[test]
    fn members_are_found_by_their_links() {
        let bundle = tempfile::tempdir().unwrap();
        let (a, b) = (Id::parse("a").unwrap(), Id::parse("b").unwrap());
        add_member(bundle.path(), &a, Path::new("/old")).unwrap();
        add_member(bundle.path(), &a, Path::new("/bundles/a")).unwrap();
        add_member(bundle.path(), &b, Path::new("/bundles/b")).unwrap();
        remove_member(bundle.path(), &b);
        assert_eq!(members(bundle.path()), [PathBuf::from("/bundles/a")]);
        let gone = bundle.path().join("gone");
        add_member(&gone, &a, Path::new("/bundles/a")).unwrap();
        assert!(!gone.exists());
    }
}
