//! Files in volumes that give variables of containers, as a worker reads them. What is in them may be secret, and is told to nobody.
//! Source: `makeEnvironmentVariables` of `pkg/kubelet/kubelet_pods.go`.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    io::{self, ErrorKind, Read as _},
    os::fd::AsFd as _,
    path::Path,
};

use berth_core::{
    derived::env_file::{FILE_BYTES_MAX, value_of},
    failure::Failure,
    oci::ObjectValues,
    pod::port::start::StartRequest,
};
use rustix::fs::{Mode, OFlags, ResolveFlags, open};

use super::{
    failure::{config, unknown},
    host::Host,
    work::{Answer, Called, PATH, Work},
};
use crate::{
    contained::{open_within, opened_to_read},
    workers::Sort,
};

/// Most bytes that files give the environment of a container.
const BYTES_MAX: usize = 8 << 20;

/// Adds what files give to what objects and services give. Each file is read once.
///
/// # Errors
/// `Config` when a variable that is needed is not there, or a file is none.
pub(in crate::effects) async fn add(
    host: &Host,
    request: &StartRequest,
    values: &mut ObjectValues,
) -> Result<(), Failure> {
    let mut texts: BTreeMap<(&str, &str), String> = BTreeMap::new();
    let mut left = BYTES_MAX;
    for (index, wanted, volume) in request.files_of_environment() {
        let missing = || {
            config(format!("cannot find the volume {:?} referenced by FileKeyRef", wanted.volume.as_str()))
        };
        let volume = volume.ok_or_else(missing)?;
        let place = (volume, wanted.path.as_str());
        let text = match texts.entry(place) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(text(host, request, place).await?),
        };
        let found = value_of(text, &wanted.key);
        match found.map_err(|error| config(format!("couldn't parse env file: {error}")))? {
            Some(value) => {
                let too_large = || config(format!("files give variables of more than {BYTES_MAX} bytes"));
                left = left.checked_sub(value.len()).ok_or_else(too_large)?;
                values.keys.insert(index, value);
            }
            None if wanted.optional => {}
            None => {
                let file = Path::new(volume).join(&wanted.path);
                let (key, file) = (&wanted.key, file.display().to_string());
                return Err(config(format!("environment variable key {key:?} not found in file {file:?}")));
            }
        }
    }
    Ok(())
}

async fn text(host: &Host, request: &StartRequest, (root, path): (&str, &str)) -> Result<String, Failure> {
    let what = format!("environment file {path} of {}", request.id);
    let called = Called { what: &what, path: root, sort: Sort::Own, within: PATH };
    let work = Work::EnvFile { root: root.to_owned(), path: path.to_owned() };
    match host.work(request.pod.uid.as_str(), called, &work).await? {
        Answer::EnvFile(text) => Ok(text),
        _ => Err(unknown("environment file: an answer to another request")),
    }
}

/// In a worker: reads one. Links lead nowhere but within the volume, and nothing is waited for.
pub(in crate::effects) fn read(root: &str, path: &str) -> Result<String, Failure> {
    match bytes(root, path) {
        Ok(bytes) if bytes.len() <= FILE_BYTES_MAX => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Ok(_) => Err(config(format!("couldn't parse env file: it has more than {FILE_BYTES_MAX} bytes"))),
        Err(error) => Err(config(format!("couldn't parse env file: open {path}: {error}"))),
    }
}

fn bytes(root: &str, path: &str) -> io::Result<Vec<u8>> {
    let root = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = open_within(root.as_fd(), path, OFlags::PATH, within)?;
    let none = || io::Error::new(ErrorKind::InvalidInput, "it is no file");
    let file = File::from(opened_to_read(&found)?.ok_or_else(none)?);
    if !file.metadata()?.is_file() {
        return Err(none());
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX);
    file.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use berth_core::failure::FailureKind;

    use super::*;

    #[test]
    fn cve_2021_25741_a_file_of_variables_is_read_within_its_volume() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("secret"), "A='of the node'").unwrap();
        let volume = dir.path().join("volume");
        fs::create_dir_all(volume.join("sub")).unwrap();
        fs::write(volume.join("sub/env"), "A='1'").unwrap();
        symlink("../secret", volume.join("up")).unwrap();
        symlink(dir.path().join("secret"), volume.join("absolute")).unwrap();
        symlink("sub/env", volume.join("inside")).unwrap();
        symlink("/proc/self/fd/0", volume.join("magic")).unwrap();
        nix::unistd::mkfifo(&volume.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let root = volume.to_str().unwrap();
        assert_eq!(read(root, "sub/env").unwrap(), "A='1'");
        assert_eq!(read(root, "inside").unwrap(), "A='1'");
        for path in ["up", "absolute", "magic", "pipe", "sub", "none", "../secret"] {
            let failure = read(root, path).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Config, "{path}");
            assert!(failure.message.starts_with("couldn't parse env file: open "), "{}", failure.message);
        }
        fs::write(volume.join("long"), vec![b'\n'; FILE_BYTES_MAX + 1]).unwrap();
        assert!(read(root, "long").unwrap_err().message.contains("more than"));
    }
}
