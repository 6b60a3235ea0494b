//! Paths of the node. Source: `pkg/volume/hostpath/host_path.go`.
//!
//! The path is an administrator's to choose, not to be kept beneath anything; links in it are followed, as kubelet does.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use berth_core::spec::HostPathType;

use super::error::{VolumeError, io_error};

/// Checks that the path is what the pod says, making it where that is asked for.
///
/// # Errors
/// When it is something else, or cannot be made.
pub fn ensure(path: &Path, kind: HostPathType) -> Result<(), VolumeError> {
    match kind {
        HostPathType::Unset => return Ok(()),
        HostPathType::DirectoryOrCreate => make_dir(path)?,
        HostPathType::FileOrCreate => make_file(path)?,
        HostPathType::Directory
        | HostPathType::File
        | HostPathType::Socket
        | HostPathType::CharDevice
        | HostPathType::BlockDevice => {}
    }
    // What cannot be looked at is not there, as for the kubelet.
    let found = fs::metadata(path).ok().map(|metadata| metadata.file_type());
    let (expected, fits): (_, fn(&fs::FileType) -> bool) = match kind {
        HostPathType::Unset => return Ok(()),
        HostPathType::DirectoryOrCreate | HostPathType::Directory => ("a directory", fs::FileType::is_dir),
        HostPathType::FileOrCreate | HostPathType::File => ("a file", fs::FileType::is_file),
        HostPathType::Socket => ("a socket file", FileTypeExt::is_socket),
        HostPathType::CharDevice => ("a character device", FileTypeExt::is_char_device),
        HostPathType::BlockDevice => ("a block device", FileTypeExt::is_block_device),
    };
    if found.is_some_and(|found| fits(&found)) {
        Ok(())
    } else {
        Err(VolumeError::WrongType { path: path.to_owned(), expected })
    }
}

fn make_dir(path: &Path) -> Result<(), VolumeError> {
    if path.exists() {
        return Ok(());
    }
    let make = || {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
    };
    make().map_err(io_error("create directory", path))
}

/// Only the file, where a link to nothing may lead to: a missing directory above it is not made.
fn make_file(path: &Path) -> Result<(), VolumeError> {
    if path.exists() {
        return Ok(());
    }
    let made = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path);
    made.map(drop).map_err(io_error("create file", path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn every_type_takes_its_own_and_refuses_the_others() {
        use HostPathType::{
            BlockDevice, CharDevice, Directory, DirectoryOrCreate, File, FileOrCreate, Socket, Unset,
        };
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("file"), "").unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("dir", at("link")).unwrap();
        let null = Path::new("/dev/null").to_owned();
        let cases = [
            (at("dir"), vec![Unset, DirectoryOrCreate, Directory]),
            (at("link"), vec![Unset, DirectoryOrCreate, Directory]),
            (at("file"), vec![Unset, FileOrCreate, File]),
            (at("socket"), vec![Unset, Socket]),
            (null, vec![Unset, CharDevice]),
            (at("none"), vec![Unset]),
        ];
        for (path, fitting) in cases {
            for kind in
                [Unset, Directory, File, Socket, CharDevice, BlockDevice, DirectoryOrCreate, FileOrCreate]
            {
                let makes = !path.exists() && matches!(kind, DirectoryOrCreate | FileOrCreate);
                let expected = fitting.contains(&kind) || makes;
                assert_eq!(ensure(&path, kind).is_ok(), expected, "{} {kind:?}", path.display());
                if makes {
                    if path.is_dir() {
                        fs::remove_dir(&path).unwrap();
                    } else {
                        fs::remove_file(&path).unwrap();
                    }
                }
            }
        }
        ensure(&at("a/b"), DirectoryOrCreate).unwrap();
        assert_eq!(fs::metadata(at("a/b")).unwrap().permissions().mode() & 0o777, 0o755);
        ensure(&at("c/file"), FileOrCreate).unwrap_err();
        std::os::unix::fs::symlink(at("target"), at("dangling")).unwrap();
        ensure(&at("dangling"), FileOrCreate).unwrap();
        assert!(at("target").is_file());
        let error = ensure(&at("file/below"), Directory).unwrap_err();
        assert!(matches!(error, VolumeError::WrongType { .. }), "{error}");
    }
}
