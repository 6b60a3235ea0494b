//! Checkpoints: what clients may ask for, how the OCI runtime is told, and why criu failed.
//!
//! Of a checkpoint's directory only the runtime and criu read; nothing in it names a container, a device, an image or a
//! path of the node for the shim.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use berth_proto::runc::{CheckpointOptions, Options};
use berth_proto::task::{CheckpointTaskRequest, CreateTaskRequest};
use berth_proto::unpack;
use berth_shim_core::{Code, Failure};

use crate::io::{StdinUri, StreamUri, Wiring};
use crate::with_causes;

/// Time that one dump or restore may take before it is killed, milliseconds: it moves a container's whole memory.
pub(crate) const CALL_MS_MAX: u64 = 1_800_000;
/// The end of criu's log, in which its last error is.
const LOG_BYTES_MAX: u64 = 256 << 10;
/// In every checkpoint that was written to the end.
const INVENTORY: &str = "inventory.img";
/// What runc and criu know (`manage-cgroups-mode`).
const CGROUPS_MODES: [&str; 4] = ["soft", "full", "strict", "ignore"];

/// A checkpoint to be written.
#[derive(Debug)]
pub(crate) struct Dump {
    pub(crate) image: PathBuf,
    /// Where criu works and logs; the shim's choice unless the client has one.
    pub(crate) work: Option<PathBuf>,
    options: CheckpointOptions,
}

/// A checkpoint to be restored.
#[derive(Debug, Clone)]
pub(crate) struct Restore {
    pub(crate) image: PathBuf,
    pub(crate) work: Option<PathBuf>,
}

impl Dump {
    pub(crate) fn of(request: &CheckpointTaskRequest) -> Result<Self, Failure> {
        let options: CheckpointOptions = match &request.options {
            None => CheckpointOptions::default(),
            Some(any) => {
                unpack(any).map_err(|error| invalid(format!("failed to {}", with_causes(&error))))?
            }
        };
        let path = if request.path.is_empty() { &options.image_path } else { &request.path };
        let image = directory("the checkpoint", path)?;
        if image.join(INVENTORY).exists() {
            let text = format!("{} holds a checkpoint already", image.display());
            return Err(Failure::new(Code::AlreadyExists, text));
        }
        if !CGROUPS_MODES.contains(&options.cgroups_mode.as_str()) && !options.cgroups_mode.is_empty() {
            return Err(invalid(format!("{:?} is no cgroups mode of criu", options.cgroups_mode)));
        }
        Ok(Self { image, work: work(&options.work_path)?, options })
    }

    pub(crate) fn arguments(&self, command: &mut Command, work: &Path) {
        let options = &self.options;
        command.arg("checkpoint").arg("--image-path").arg(&self.image).arg("--work-path").arg(work);
        for (wanted, flag) in [
            (!options.exit, "--leave-running"),
            (options.open_tcp, "--tcp-established"),
            (options.external_unix_sockets, "--ext-unix-sk"),
            (options.terminal, "--shell-job"),
            (options.file_locks, "--file-locks"),
        ] {
            if wanted {
                command.arg(flag);
            }
        }
        for kind in &options.empty_namespaces {
            command.arg("--empty-ns").arg(kind);
        }
        for (value, flag) in
            [(&options.cgroups_mode, "--manage-cgroups-mode"), (&options.parent_path, "--parent-path")]
        {
            if !value.is_empty() {
                command.arg(flag).arg(value);
            }
        }
    }
}

impl Restore {
    /// The checkpoint that a creation request names, if it does. Its directory must hold a whole one.
    pub(crate) fn of(request: &CreateTaskRequest) -> Result<Option<Self>, Failure> {
        if request.checkpoint.is_empty() {
            return Ok(None);
        }
        if !request.parent_checkpoint.is_empty() {
            let text = "a checkpoint finds its parent by itself; none can be named for a restore";
            return Err(Failure::new(Code::Unimplemented, text));
        }
        let image = directory("the checkpoint", &request.checkpoint)?;
        if !image.join(INVENTORY).is_file() {
            return Err(invalid(format!(
                "{} holds no whole checkpoint: it has no {INVENTORY}",
                image.display()
            )));
        }
        let options: Option<Options> = request.options.as_ref().and_then(|any| unpack(any).ok());
        let work = work(&options.map(|options| options.criu_work_path).unwrap_or_default())?;
        Ok(Some(Self { image, work }))
    }

    /// What the client allowed to be saved is restored: criu refuses connections and forgets locks otherwise.
    pub(crate) fn arguments(&self, command: &mut Command, work: &Path) {
        command
            .arg("restore")
            .arg("--detach")
            .arg("--image-path")
            .arg(&self.image)
            .arg("--work-path")
            .arg(work);
        command.args(["--tcp-established", "--ext-unix-sk", "--file-locks"]);
    }
}

/// Refuses to save a container whose streams are its client's named pipes: they are files outside of it, which criu has
/// no way to find again.
pub(crate) fn check_streams(wiring: &Wiring) -> Result<(), Failure> {
    let Wiring::Uris { stdin, stdout, stderr } = wiring else { return Ok(()) };
    let pipe = match (stdin, stdout, stderr) {
        (StdinUri::Fifo(path), _, _) | (_, StreamUri::Fifo(path), _) | (_, _, StreamUri::Fifo(path))
            if !path.is_file() =>
        {
            path
        }
        _ => return Ok(()),
    };
    let text = format!(
        "the container reads or writes its client's named pipe {}, which criu cannot save: create it with a log, a \
         terminal or no streams",
        pipe.display()
    );
    Err(Failure::new(Code::FailedPrecondition, text))
}

/// What the OCI runtime itself said of its failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Error,
    /// Not even that criu has failed: it does not know the command, and says so where nobody listens.
    Nothing,
}

/// The failure of a runtime's call, with criu's own reason. A runtime that knows no checkpoints, and a node without criu,
/// do not offer what was asked for.
pub(crate) fn failure(failure: Failure, word: Word, log: &Path, criu: Option<&Path>) -> Failure {
    let Failure { code, message } = failure;
    let (code, why) = match (last_error(log), word, criu) {
        (Some(reason), _, _) => (code, format!(": criu says: {reason}")),
        (None, Word::Nothing, _) => (Code::Unimplemented, ": the runtime knows no checkpoints".to_owned()),
        (None, Word::Error, None) => (Code::Unimplemented, ": criu is not installed".to_owned()),
        (None, Word::Error, Some(_)) => (code, String::new()),
    };
    Failure::new(code, message + &why)
}

fn last_error(log: &Path) -> Option<String> {
    let mut file = fs::File::open(log).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(LOG_BYTES_MAX))).ok()?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    parse_reason(&String::from_utf8_lossy(&bytes))
}

/// criu's errors follow from one another: the first one that has to do with the end is the reason, the last one only
/// says that it was the end.
fn parse_reason(log: &str) -> Option<String> {
    let errors = log.lines().filter_map(|line| line.split_once("Error (").map(|(_, error)| error));
    let told = errors.filter_map(|error| error.split_once("): ").map(|(_, text)| text.trim()));
    let mut told: Vec<&str> = told.filter(|text| !text.starts_with("rlimit:")).collect();
    if told.len() > 1 {
        told.retain(|text| !text.ends_with("FAILED."));
    }
    told.truncate(REASONS_MAX);
    (!told.is_empty()).then(|| told.join("; "))
}

/// Errors of criu that are passed on.
const REASONS_MAX: usize = 3;

fn work(path: &str) -> Result<Option<PathBuf>, Failure> {
    if path.is_empty() { Ok(None) } else { directory("criu's work", path).map(Some) }
}

/// A directory that a client names: the runtime makes it if there is none.
fn directory(what: &str, path: &str) -> Result<PathBuf, Failure> {
    let path = PathBuf::from(path);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain {
        return Err(invalid(format!("the path of {what}, {}, is not absolute and plain", path.display())));
    }
    match fs::metadata(&path) {
        Ok(metadata) if !metadata.is_dir() => {
            Err(invalid(format!("the path of {what}, {}, is no directory", path.display())))
        }
        Ok(_) | Err(_) => Ok(path),
    }
}

fn invalid(message: String) -> Failure {
    Failure::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_found_in_criu_s_log() {
        let log = "\
(00.067954) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted
(00.100000) Warn  (criu/x.c:1): something
(00.183886) Error (criu/files-reg.c:1790): Can't lookup mount=72 for fd=1 path=/out
(00.183894) Error (criu/cr-dump.c:1545): Dump files (pid: 9616) failed with -1
(00.268548) Error (criu/cr-dump.c:1975): Dumping FAILED.
";
        let reason = "Can't lookup mount=72 for fd=1 path=/out; Dump files (pid: 9616) failed with -1";
        assert_eq!(parse_reason(log).as_deref(), Some(reason));
        let only = "(00.1) Error (criu/cr-dump.c:1975): Dumping FAILED.\n";
        assert_eq!(parse_reason(only).as_deref(), Some("Dumping FAILED."));
        assert_eq!(parse_reason("(00.1) all is well\nError (\nError (x\n"), None);
    }

    #[test]
    fn what_is_not_offered_is_told_apart_from_what_failed() {
        let dir = tempfile::tempdir().unwrap();
        let (log, none) = (dir.path().join("dump.log"), dir.path().join("none.log"));
        fs::write(&log, "(00.1) Error (criu/x.c:1): no room\n").unwrap();
        let criu = Path::new("/usr/sbin/criu");
        for (word, log, criu, code, message) in [
            (Word::Error, &log, Some(criu), Code::Internal, "it failed: criu says: no room"),
            (Word::Error, &none, Some(criu), Code::Internal, "it failed"),
            (Word::Error, &none, None, Code::Unimplemented, "it failed: criu is not installed"),
            (
                Word::Nothing,
                &none,
                Some(criu),
                Code::Unimplemented,
                "it failed: the runtime knows no checkpoints",
            ),
        ] {
            let told = failure(Failure::new(Code::Internal, "it failed"), word, log, criu);
            assert_eq!((told.code, told.message.as_str()), (code, message));
        }
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_refused() {
        for bad in ["", "images", "./images", "/var/../images", "/dev/null"] {
            let request = CheckpointTaskRequest { path: bad.to_owned(), ..CheckpointTaskRequest::default() };
            let failure = Dump::of(&request).expect_err(bad);
            assert_eq!(failure.code, Code::InvalidArgument, "{bad}");
        }
        let request = CreateTaskRequest { checkpoint: "../x".to_owned(), ..CreateTaskRequest::default() };
        assert_eq!(Restore::of(&request).expect_err("relative").code, Code::InvalidArgument);
        let empty = tempfile::tempdir().unwrap();
        let path = empty.path().display().to_string();
        let request = CreateTaskRequest { checkpoint: path, ..CreateTaskRequest::default() };
        assert_eq!(Restore::of(&request).expect_err("nothing in it").code, Code::InvalidArgument);
    }

    #[test]
    fn a_checkpoint_is_never_written_into_another() {
        let image = tempfile::tempdir().unwrap();
        fs::write(image.path().join(INVENTORY), "").unwrap();
        let path = image.path().display().to_string();
        let request = CheckpointTaskRequest { path, ..CheckpointTaskRequest::default() };
        assert_eq!(Dump::of(&request).expect_err("taken").code, Code::AlreadyExists);
    }
}
