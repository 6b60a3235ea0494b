//! The termination message of a container: its file, or the end of its log.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use berth_core::{
    derived::termination::{FILE_BYTES_MAX, LOG_BYTES_MAX, from_file, from_log},
    event::Outcome,
    failure::Failure,
    id::PodUid,
    pod::port::termination::TerminationMessageRequest,
};
use nix::fcntl::OFlag;

use super::{
    failure::{local, unknown},
    host::Host,
    work::{Answer, Called, PATH, Work},
};
use crate::{logs::Lines, workers::Sort};

/// Bytes read from the end of a log: the message, with the framing of lines of a few bytes each.
const LOG_TAIL_MAX: u64 = 16 * LOG_BYTES_MAX as u64;

/// Reads it.
///
/// # Errors
/// When nobody could look: then the message may still be there. What the pod did to its file makes it empty.
pub(in crate::effects) async fn read(
    host: &Host,
    pod: &PodUid,
    request: TerminationMessageRequest,
) -> Result<Outcome, Failure> {
    let TerminationMessageRequest { id, file, log } = request;
    let what = format!("termination message of {id}");
    let path = file.clone().or_else(|| log.clone()).unwrap_or_default();
    let called = Called { what: &what, path: &path, sort: Sort::Ends, within: PATH };
    match host.work(pod.as_str(), called, &Work::TerminationMessage { file, log }).await? {
        Answer::TerminationMessage(message) => Ok(Outcome::TerminationMessage(message)),
        _ => Err(unknown("termination message: an answer to another request")),
    }
}

/// In a worker: reads it from the file, or from the log when the file has none.
pub(in crate::effects) fn message(file: Option<&Path>, log: Option<&Path>) -> Result<String, Failure> {
    let read = |path: Option<&Path>, max| match path {
        Some(path) => tail(path, max).map_err(local("read", path)),
        None => Ok(Vec::new()),
    };
    let message = from_file(&read(file, FILE_BYTES_MAX as u64)?);
    if !message.is_empty() {
        return Ok(message);
    }
    Ok(from_log(&unframed(&read(log, LOG_TAIL_MAX)?)))
}

/// What a container wrote, without the frame of the log. A first line that is not whole has no frame, and is left out.
fn unframed(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut lines = Lines::default();
    lines.feed(bytes, |line| text.extend_from_slice(&line.text));
    lines.finish().for_each(|line| text.extend_from_slice(&line.text));
    text
}

/// The end of a regular file; nothing of what is none, or not there. Links are not followed, and nothing is waited for
/// (CVE-2026-53489).
fn tail(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    let mut file: File = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(Vec::new());
    }
    file.seek(SeekFrom::Start(metadata.len().saturating_sub(max)))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_speaks_first_and_the_log_when_it_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("message"), dir.path().join("0.log"));
        fs::write(&log, "2026-11-21T01:02:03.000000000Z stderr F it broke\n").unwrap();
        fs::write(&file, "").unwrap();
        assert_eq!(message(Some(&file), Some(&log)).unwrap().trim_end(), "it broke");
        assert_eq!(message(Some(&file), None).unwrap(), "");
        fs::write(&file, "said").unwrap();
        assert_eq!(message(Some(&file), Some(&log)).unwrap(), "said");
        fs::write(&file, "x".repeat(FILE_BYTES_MAX + 10)).unwrap();
        assert_eq!(message(Some(&file), None).unwrap().len(), FILE_BYTES_MAX);
    }

    #[test]
    fn cve_2026_53489_links_and_pipes_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, link, pipe) =
            (dir.path().join("secret"), dir.path().join("link"), dir.path().join("pipe"));
        fs::write(&secret, "secret").unwrap();
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert_eq!(message(Some(&link), Some(&link)).unwrap(), "");
        assert_eq!(message(Some(&pipe), None).unwrap(), "");
    }

    /// The core asks again, and gives up in time.
    #[test]
    fn what_cannot_be_looked_at_is_not_taken_for_empty() {
        let dir = tempfile::tempdir().unwrap();
        let (none, file) = (dir.path().join("none"), dir.path().join("file"));
        fs::write(&file, "said").unwrap();
        assert_eq!(message(Some(&none), Some(&none)).unwrap(), "");
        let unreadable = dir.path().join("x".repeat(300));
        message(Some(&unreadable), None).unwrap_err();
        message(None, Some(&unreadable)).unwrap_err();
        assert_eq!(message(Some(&file), Some(&unreadable)).unwrap(), "said");
    }
}
