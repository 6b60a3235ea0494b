//! The kernel's log, which alone tells what was ended when the machine had no memory left.

use std::{
    fs::OpenOptions,
    io::{self, ErrorKind, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};

use berth_core::cluster::node::OomLog;
use nix::fcntl::OFlag;
use tokio::{net::unix::pipe::Receiver, time::sleep};

use super::Notes;

/// Where it is read: a record with each call, and those of before are passed over (`Documentation/ABI/testing/dev-kmsg` of Linux).
const LOG: &str = "/dev/kmsg";
/// Longest record (`PRINTK_MESSAGE_MAX`, `CONSOLE_EXT_LOG_MAX` of `include/linux/printk.h`).
const RECORD_BYTES_MAX: usize = 8 << 10;
/// Records that are read one after the other, and the pause after them: a flood takes a few hundredths of a processor at most, and what
/// the kernel has no more room for is lost.
const RECORDS_AT_ONCE: usize = 500;
const PAUSE: Duration = Duration::from_millis(50);

/// Tells what the log says from now on, for as long as the agent runs.
pub(super) async fn follow(notes: Notes) {
    let error = match open(LOG.as_ref()) {
        Ok(log) => tell(&log, &notes).await,
        Err(error) => error,
    };
    tracing::warn!(%error, "{LOG} cannot be read: no event tells when the machine has no memory left");
}

fn open(path: &Path) -> io::Result<Receiver> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut log = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    log.seek(SeekFrom::End(0))?;
    // No pipe, but waited for and read like one.
    Receiver::from_file_unchecked(log)
}

/// Goes on until the log cannot be read any more; why.
async fn tell(log: &Receiver, notes: &Notes) -> io::Error {
    let mut record = vec![0_u8; RECORD_BYTES_MAX];
    let mut ooms = OomLog::default();
    loop {
        if let Err(error) = log.readable().await {
            return error;
        }
        for _ in 0..RECORDS_AT_ONCE {
            match log.try_read(&mut record) {
                Ok(0) => return ErrorKind::UnexpectedEof.into(),
                Ok(length) => {
                    let note = ooms.take(&String::from_utf8_lossy(&record[..length]));
                    note.into_iter().for_each(|note| notes.tell(note));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if is_passed_over(&error) => {}
                Err(error) => return error,
            }
        }
        sleep(PAUSE).await;
    }
}

/// The next call reads on: records that were not read in time are lost (EPIPE), or one is longer than any is (EINVAL).
fn is_passed_over(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::InvalidInput | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::OwnedFd};

    use berth_core::status::Severity;
    use tokio::net::UnixDatagram;

    use super::*;
    use crate::cluster::Recorder;

    /// Far more than a flood takes.
    const ENOUGH: Duration = Duration::from_secs(20);

    /// A socket of datagrams is read as the log is: one with each call.
    #[tokio::test]
    async fn what_is_ended_for_the_machine_is_told_also_after_a_flood() {
        let (kernel, log) = UnixDatagram::pair().unwrap();
        let log = File::from(OwnedFd::from(log.into_std().unwrap()));
        let log = Receiver::from_file_unchecked(log).unwrap();
        let (recorder, mut happened) = Recorder::new();
        let notes = Notes::of("n", Some(recorder));
        let told = tokio::spawn(async move { tell(&log, &notes).await });
        let records =
            ["4,1,2,-;web invoked oom-killer: gfp_mask=0", "3,2,3,-;Out of memory: Killed process 7 (web)"];
        for record in ["6,1,2,-;other"; RECORDS_AT_ONCE].into_iter().chain(records) {
            kernel.send(record.as_bytes()).await.unwrap();
        }
        let happened = tokio::time::timeout(ENOUGH, happened.recv()).await.unwrap().unwrap();
        assert_eq!((happened.object.kind, happened.object.name.as_str()), ("Node", "n"));
        assert_eq!((happened.severity, happened.reason.as_str()), (Severity::Warning, "SystemOOM"));
        assert_eq!(happened.message, "System OOM encountered, victim process: web, pid: 7");
        assert!(!told.is_finished());
        told.abort();
    }

    #[tokio::test]
    async fn what_is_no_log_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(open(&dir.path().join("kmsg")).unwrap_err().kind(), ErrorKind::NotFound);
        // Nobody can wait for it.
        assert_eq!(open("/dev/null".as_ref()).unwrap_err().kind(), ErrorKind::PermissionDenied);
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(open(&pipe).unwrap_err().kind(), ErrorKind::NotSeekable);
    }
}
