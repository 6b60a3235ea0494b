//! The mark in a pod's directory: a link whose text is the run directory of the agent that made it (decision 0029).
//!
//! A link is made with its text by one call, so that a kill leaves no half of it, nor a power loss an empty one. Nobody follows
//! it, and no container can write to the directory it is in.

use std::{fs, io, os::unix::fs::symlink, path::Path};

use berth_core::paths::POD_MARK;

/// The run directory that the mark in a pod's directory names. What is no link is no mark.
pub(crate) fn read(dir: &Path) -> Option<String> {
    fs::read_link(dir.join(POD_MARK)).ok()?.into_os_string().into_string().ok()
}

/// Marks a pod's directory as made by the agent of a run directory. What the mark said before is replaced: whoever has the
/// record of the pod has its directory.
pub(crate) fn set(dir: &Path, run: &str) -> io::Result<()> {
    // A frozen file system holds up who makes a name, also one that is there.
    if read(dir).as_deref() == Some(run) {
        return Ok(());
    }
    let mark = dir.join(POD_MARK);
    match symlink(run, &mark) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        result => return result,
    }
    fs::remove_file(&mark)?;
    symlink(run, &mark)
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    use super::*;

    #[test]
    fn a_mark_says_what_was_set_last() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()), None);
        assert_eq!(read(&dir.path().join("none")), None);
        for run in ["/run/berth", "/run/berth", "/run/second/berth"] {
            set(dir.path(), run).unwrap();
            assert_eq!(read(dir.path()).as_deref(), Some(run));
        }
    }

    #[test]
    fn what_is_no_link_is_no_mark() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join(POD_MARK);
        fs::write(&mark, "/run/berth").unwrap();
        assert_eq!(read(dir.path()), None);
        set(dir.path(), "/run/berth").unwrap();
        assert_eq!(read(dir.path()).as_deref(), Some("/run/berth"));

        fs::remove_file(&mark).unwrap();
        fs::create_dir(&mark).unwrap();
        assert_eq!(read(dir.path()), None);
        set(dir.path(), "/run/berth").unwrap_err();

        fs::remove_dir(&mark).unwrap();
        symlink(OsStr::from_bytes(b"/run/\xff"), &mark).unwrap();
        assert_eq!(read(dir.path()), None);
    }
}
