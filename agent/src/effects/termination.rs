//! The last words of a container: its termination message file, or the end of its log.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use berth_core::{
    effect::TerminationMessageRequest,
    event::{Failure, Outcome},
    termination::{FILE_BYTES_MAX, LOG_BYTES_MAX, from_file, from_log},
};
use nix::fcntl::OFlag;

use super::host::blocking;
use crate::logs::Lines;

/// Bytes read from the end of a log: the message, with the framing of lines of a few bytes each.
const LOG_TAIL_MAX: u64 = 16 * LOG_BYTES_MAX as u64;

/// Reads them. What cannot be read is no message: a container has ended, and nothing about that may fail.
pub(super) async fn read(request: TerminationMessageRequest) -> Result<Outcome, Failure> {
    blocking(move || {
        let file = request.file.as_deref().map(|path| tail(path.as_ref(), FILE_BYTES_MAX as u64));
        let message = match file {
            Some(Ok(bytes)) => from_file(&bytes),
            Some(Err(_)) | None => String::new(),
        };
        if !message.is_empty() {
            return Ok(Outcome::TerminationMessage(message));
        }
        let log = request.log.as_deref().and_then(|path| tail(path.as_ref(), LOG_TAIL_MAX).ok());
        Ok(Outcome::TerminationMessage(log.map(|bytes| from_log(&unframed(&bytes))).unwrap_or_default()))
    })
    .await
}

/// What a container wrote, without the frame of the log. A first line that is not whole has no frame, and is left out.
fn unframed(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut lines = Lines::default();
    lines.feed(bytes, |line| text.extend_from_slice(&line.text));
    lines.finish().for_each(|line| text.extend_from_slice(&line.text));
    text
}

/// The end of a regular file. Links are not followed, and nothing is waited for (CVE-2026-53489).
fn tail(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut file: File = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    file.seek(SeekFrom::Start(metadata.len().saturating_sub(max)))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn message(file: &Path, log: Option<&Path>) -> String {
        let text = |path: &Path| path.display().to_string();
        let request = TerminationMessageRequest {
            id: berth_core::id::ContainerId::from_known("c1"),
            file: Some(text(file)),
            log: log.map(text),
        };
        match read(request).await {
            Ok(Outcome::TerminationMessage(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_file_speaks_first_and_the_log_when_it_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("message"), dir.path().join("0.log"));
        std::fs::write(&log, "2026-11-21T01:02:03.000000000Z stderr F it broke\n").unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(message(&file, Some(&log)).await.trim_end(), "it broke");
        assert_eq!(message(&file, None).await, "");
        std::fs::write(&file, "said").unwrap();
        assert_eq!(message(&file, Some(&log)).await, "said");
        std::fs::write(&file, "x".repeat(FILE_BYTES_MAX + 10)).unwrap();
        assert_eq!(message(&file, None).await.len(), FILE_BYTES_MAX);
    }

    #[tokio::test]
    async fn cve_2026_53489_links_and_pipes_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, link, pipe) =
            (dir.path().join("secret"), dir.path().join("link"), dir.path().join("pipe"));
        std::fs::write(&secret, "secret").unwrap();
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert_eq!(message(&link, Some(&link)).await, "");
        assert_eq!(message(&pipe, None).await, "");
    }
}
