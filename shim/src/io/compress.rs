//! Compressing the rotated files of a log. May wait for a disk: a copy of the shim does it, with whose memory the
//! compressor's goes.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use berth_shim_core::log::{Names, Step, compression};
use flate2::Compression;
use flate2::write::GzEncoder;
use nix::libc;
use thiserror::Error;

use super::log_file::names;

/// Why a log was not compressed. It stays as it was written, and is tried again after the next rotation.
#[derive(Debug, Error)]
pub(crate) enum CompressError {
    #[error("look for rotated files of log {path}")]
    Look { path: PathBuf, source: io::Error },
    #[error("remove {path}, which an earlier attempt has left")]
    Remove { path: PathBuf, source: io::Error },
    #[error("compress log {path}")]
    Compress { path: PathBuf, source: io::Error },
}

/// Compresses what is to be compressed of the log at `path`; one file that fails does not keep the others from it.
pub(crate) fn compress_rotated(path: &Path) -> Vec<CompressError> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Vec::new();
    };
    let present = match names(directory) {
        Ok(present) => present,
        Err(source) => return vec![CompressError::Look { path: path.to_owned(), source }],
    };
    let steps = compression(name, present.iter().map(String::as_str)).into_iter();
    steps.filter_map(|step| perform(directory, step).err()).collect()
}

fn perform(directory: &Path, step: Step) -> Result<(), CompressError> {
    match step {
        Step::Remove(name) => {
            let path = directory.join(name);
            remove(&path).map(drop).map_err(|source| CompressError::Remove { path, source })
        }
        Step::Compress(Names { plain, temporary, compressed }) => {
            let [path, temporary, compressed] =
                [plain, temporary, compressed].map(|name| directory.join(name));
            compress(&path, &temporary, &compressed)
                .map_err(|source| CompressError::Compress { path, source })
        }
    }
}

fn compress(plain: &Path, temporary: &Path, compressed: &Path) -> io::Result<()> {
    let whole = copy(plain, temporary).and_then(|()| fs::rename(temporary, compressed));
    if let Err(error) = whole {
        let _absent = fs::remove_file(temporary).is_err();
        // One too many, and gone meanwhile.
        return if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) };
    }
    if remove(plain)? { Ok(()) } else { remove(compressed).map(drop) }
}

fn copy(plain: &Path, temporary: &Path) -> io::Result<()> {
    // Non-blocking, so that a FIFO in its place is not waited for.
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let mut from = OpenOptions::new().read(true).custom_flags(flags).open(plain)?;
    let metadata = from.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    to.set_permissions(Permissions::from_mode(metadata.permissions().mode() & 0o777))?;
    let mut encoder: GzEncoder<File> = GzEncoder::new(to, Compression::default());
    io::copy(&mut from, &mut encoder)?;
    encoder.finish().map(drop)
}

/// Removes a file; whether it was there.
fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use flate2::read::GzDecoder;
    use tempfile::TempDir;

    use super::*;

    const OLD: &str = "0.log.20261121-010201";
    const NEW: &str = "0.log.20261121-010202";

    fn logs(files: &[(&str, &str)]) -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(directory.path().join(name), content).unwrap();
        }
        directory
    }

    fn compressed(directory: &TempDir) -> Vec<String> {
        compress_rotated(&directory.path().join("0.log"))
            .iter()
            .map(|error| crate::with_causes(error))
            .collect()
    }

    fn found(directory: &TempDir) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = names(directory.path())
            .unwrap()
            .into_iter()
            .map(|name| {
                let bytes = fs::read(directory.path().join(&name)).unwrap();
                let mut text = String::new();
                match name.strip_suffix(".gz") {
                    Some(_) => GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).map(drop).unwrap(),
                    None => text = String::from_utf8(bytes).unwrap(),
                }
                (name, text)
            })
            .collect();
        found.sort();
        found
    }

    fn expected(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files.iter().map(|(name, content)| ((*name).to_owned(), (*content).to_owned())).collect()
    }

    #[test]
    fn old_logs_are_compressed_with_their_mode_and_others_files_stay() {
        let others = [
            ("0.log.20261121-010201.bak", "neighbour"),
            ("0.log.20261121-010201.gz.tmp", "neighbour"),
            ("0.log.tmp", "neighbour"),
            ("10.log.20261121-010201", "neighbour"),
        ];
        let directory = logs(&others);
        for (name, content) in [("0.log", "live"), (OLD, "old"), (NEW, "new")] {
            fs::write(directory.path().join(name), content).unwrap();
        }
        fs::set_permissions(directory.path().join(OLD), Permissions::from_mode(0o640)).unwrap();
        assert_eq!(compressed(&directory), [] as [String; 0]);
        let mut files = expected(&others);
        files.extend(expected(&[("0.log", "live"), (&format!("{OLD}.gz"), "old"), (NEW, "new")]));
        files.sort();
        assert_eq!(found(&directory), files);
        let mode = fs::metadata(directory.path().join(format!("{OLD}.gz"))).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(compressed(&directory), [] as [String; 0], "nothing is left to do");
        assert_eq!(found(&directory), files);
    }

    #[test]
    fn what_an_attempt_that_was_killed_has_left_goes() {
        let directory = logs(&[(OLD, "old"), (NEW, "new")]);
        fs::write(directory.path().join(format!("{OLD}.tmp")), "half").unwrap();
        assert_eq!(compressed(&directory), [] as [String; 0]);
        let files = expected(&[(&format!("{OLD}.gz"), "old"), (NEW, "new")]);
        assert_eq!(found(&directory), files);
        // Killed before the log was removed.
        fs::write(directory.path().join(OLD), "old").unwrap();
        assert_eq!(compressed(&directory), [] as [String; 0]);
        assert_eq!(found(&directory), files);
    }

    #[test]
    fn a_log_that_goes_meanwhile_leaves_no_copy() {
        let directory = logs(&[]);
        let [plain, temporary, copy] =
            ["", ".tmp", ".gz"].map(|form| directory.path().join(format!("{OLD}{form}")));
        compress(&plain, &temporary, &copy).unwrap();
        assert_eq!(found(&directory), []);
        // It is held open by the copier, and gone by its name before the copy is whole.
        nix::unistd::mkfifo(&plain, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(compress(&plain, &temporary, &copy).is_err(), "a FIFO is no log");
        assert!(!temporary.exists() && !copy.exists());
    }

    #[test]
    fn nothing_is_read_or_written_through_links() {
        let directory = logs(&[("secret", "secret"), (NEW, "new")]);
        let (secret, temporary) =
            (directory.path().join("secret"), directory.path().join(format!("{OLD}.tmp")));
        symlink(&secret, directory.path().join(OLD)).unwrap();
        assert_eq!(compressed(&directory).len(), 1);
        assert!(!directory.path().join(format!("{OLD}.gz")).exists());
        fs::remove_file(directory.path().join(OLD)).unwrap();
        fs::write(directory.path().join(OLD), "old").unwrap();
        symlink(&secret, &temporary).unwrap();
        assert!(copy(&directory.path().join(OLD), &temporary).is_err());
        assert_eq!(compressed(&directory), [] as [String; 0], "a link in its place is a leftover");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
        assert!(directory.path().join(format!("{OLD}.gz")).exists());
    }
}
