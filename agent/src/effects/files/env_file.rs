//! Files in volumes that give variables of containers, as a worker reads them. What is in them may be secret, and is told to nobody.
//! Source: `makeEnvironmentVariables` of `pkg/kubelet/kubelet_pods.go`.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs::File,
    io::{self, ErrorKind, Read as _},
    os::fd::AsFd as _,
    path::Path,
};

use berth_core::{
    derived::env_file::{EnvFile, FILE_BYTES_MAX},
    failure::Failure,
    oci::ObjectValues,
    pod::port::start::StartRequest,
};
use rustix::fs::{Mode, OFlags, ResolveFlags, open};

use super::{
    failure::{config, unknown},
    host::Host,
    wire::FileKeyText,
    work::{Answer, Called, PATH, Work},
};
use crate::{
    contained::{open_within, opened_to_read},
    workers::Sort,
};

/// Most bytes that are read of files for the environment of a container, and most that they give.
const BYTES_MAX: usize = 8 << 20;

/// Adds what files give to what objects and services give.
///
/// # Errors
/// `Config` when a variable that is needed is not there, or a file is none.
pub(in crate::effects) async fn add(
    host: &Host,
    request: &StartRequest,
    values: &mut ObjectValues,
) -> Result<(), Failure> {
    let (mut places, mut wanted) = (Vec::new(), Vec::new());
    for (index, key, volume) in request.files_of_environment() {
        let missing =
            || config(format!("cannot find the volume {:?} referenced by FileKeyRef", key.volume.as_str()));
        places.push(index);
        wanted.push(FileKeyText::new(volume.ok_or_else(missing)?, key));
    }
    let Some(first) = wanted.first() else { return Ok(()) };
    let (what, path) = (format!("environment files of {}", request.id), first.root.clone());
    let called = Called { what: &what, path: &path, sort: Sort::Own, within: PATH };
    match host.work(request.pod.uid.as_str(), called, &Work::EnvFiles(wanted)).await? {
        Answer::EnvFiles(found) if found.len() == places.len() => {
            let found = places.into_iter().zip(found);
            values.keys.extend(found.filter_map(|(index, value)| Some((index, value?))));
            Ok(())
        }
        _ => Err(unknown("environment files: an answer to another request")),
    }
}

/// In a worker: the values of variables, in their order. Each file is read once, and nothing but these values is kept of it.
pub(in crate::effects) fn read(wanted: &[FileKeyText]) -> Result<Vec<Option<String>>, Failure> {
    let mut names: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for one in wanted {
        names.entry(place(one)).or_default().insert(one.key.as_str());
    }
    let mut files = BTreeMap::new();
    let (mut unread, mut left) = (BYTES_MAX, BYTES_MAX);
    let mut values = Vec::new();
    for one in wanted {
        let file = match files.entry(place(one)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let names = names.remove(new.key()).unwrap_or_default();
                let text = text(new.key(), &mut unread)?;
                new.insert(EnvFile::read(&text, names))
            }
        };
        let value = file.value(&one.key).map_err(|error| wrong(error.to_string()))?;
        if value.is_none() && !one.is_optional {
            let file = Path::new(&one.root).join(&one.path).display().to_string();
            return Err(config(format!("environment variable key {:?} not found in file {file:?}", one.key)));
        }
        let too_large = || config(format!("files give variables of more than {BYTES_MAX} bytes"));
        left = left.checked_sub(value.map_or(0, length)).ok_or_else(too_large)?;
        values.push(value.map(str::to_owned));
    }
    Ok(values)
}

/// How long a value is in the answer, in which a control character is written as `\\u0001`.
fn length(value: &str) -> usize {
    value.len() + 5 * value.bytes().filter(u8::is_ascii_control).count()
}

fn wrong(why: String) -> Failure {
    config(format!("couldn't parse env file: {why}"))
}

/// A file by its volume and its path, however that is written.
fn place(wanted: &FileKeyText) -> (&str, String) {
    let names: Vec<_> = wanted.path.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    (&wanted.root, names.join("/"))
}

fn text((root, path): &(&str, String), unread: &mut usize) -> Result<String, Failure> {
    let most = FILE_BYTES_MAX.min(*unread);
    let bytes = bytes(root, path, most).map_err(|error| wrong(format!("open {path}: {error}")))?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(wrong(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    let too_many = || wrong(format!("the files of a container have more than {BYTES_MAX} bytes"));
    *unread = unread.checked_sub(bytes.len()).ok_or_else(too_many)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads one, and of a longer one a byte more than so many. Links lead nowhere but within the volume, and nothing is waited for.
fn bytes(root: &str, path: &str, most: usize) -> io::Result<Vec<u8>> {
    let root = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = open_within(root.as_fd(), path, OFlags::PATH, within)?;
    let none = || io::Error::new(ErrorKind::InvalidInput, "it is no file");
    let file = File::from(opened_to_read(&found)?.ok_or_else(none)?);
    if !file.metadata()?.is_file() {
        return Err(none());
    }
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use berth_core::failure::FailureKind;

    use super::*;

    fn wanted(root: &Path, path: &str, key: &str) -> FileKeyText {
        let root = root.to_str().unwrap().to_owned();
        FileKeyText { root, path: path.to_owned(), key: key.to_owned(), is_optional: true }
    }

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
        let a_of = |path| read(&[wanted(&volume, path, "A")]);
        assert_eq!(a_of("sub/env").unwrap(), [Some("1".to_owned())]);
        assert_eq!(a_of("inside").unwrap(), [Some("1".to_owned())]);
        for path in ["up", "absolute", "magic", "pipe", "sub", "none", "../secret"] {
            let failure = a_of(path).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Config, "{path}");
            assert!(failure.message.starts_with("couldn't parse env file: open "), "{}", failure.message);
        }
        fs::write(volume.join("long"), vec![b'\n'; FILE_BYTES_MAX + 1]).unwrap();
        assert!(
            a_of("long").unwrap_err().message.contains(&format!("it has more than {FILE_BYTES_MAX} bytes"))
        );
    }

    #[test]
    fn files_of_one_path_in_two_volumes_are_two() {
        let dir = tempfile::tempdir().unwrap();
        let volume = |name: &str, text: &str| {
            let volume = dir.path().join(name);
            fs::create_dir(&volume).unwrap();
            fs::write(volume.join("env"), text).unwrap();
            volume
        };
        let (one, other) = (volume("one", "A='1'"), volume("other", "B='2'\nA='3'"));
        let all = [
            wanted(&one, "env", "A"),
            wanted(&other, "env", "A"),
            wanted(&one, "env", "B"),
            wanted(&other, "env", "B"),
        ];
        let found = read(&all).unwrap();
        assert_eq!(
            found.iter().map(Option::as_deref).collect::<Vec<_>>(),
            [Some("1"), Some("3"), None, Some("2")]
        );
        let needed = FileKeyText { is_optional: false, ..all[2].clone() };
        let failure = read(&[all[0].clone(), needed]).unwrap_err();
        let expected = format!("environment variable key \"B\" not found in file {:?}", one.join("env"));
        assert_eq!((failure.kind, failure.message), (FailureKind::Config, expected));
    }

    /// By as many names as it likes, a pod has one file read once, and many files up to a bound.
    #[test]
    fn what_is_read_and_what_it_gives_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path();
        let file = volume.join("env");
        let value = "x".repeat(32 << 10);
        let line = format!("A='{value}'\n");
        fs::write(&file, format!("{line}{}", "\n".repeat(FILE_BYTES_MAX - line.len()))).unwrap();
        let times = BYTES_MAX / FILE_BYTES_MAX;
        let links = |count: usize| -> Vec<_> {
            let link = |number| {
                let name = format!("link{number}");
                drop(fs::hard_link(&file, volume.join(&name)));
                wanted(volume, &name, "A")
            };
            (0..count).map(link).collect()
        };
        assert!(read(&links(times)).is_ok_and(|found| found.iter().all(Option::is_some)));
        let more = read(&links(times + 1)).unwrap_err();
        assert_eq!(more.kind, FailureKind::Config);
        assert!(more.message.ends_with(&format!("have more than {BYTES_MAX} bytes")), "{}", more.message);

        let spelled = |number| wanted(volume, &format!("{}/env", "/.".repeat(number)), "A");
        let values = BYTES_MAX / value.len();
        let all: Vec<_> = (0..=values).map(spelled).collect();
        assert!(read(&all[..values]).is_ok_and(|found| found.iter().all(Option::is_some)));
        let more = read(&all).unwrap_err();
        assert_eq!(more.message, format!("files give variables of more than {BYTES_MAX} bytes"));

        // In the answer each is written with six letters.
        fs::write(&file, format!("A='{}'\n", "\u{1}".repeat(32 << 10))).unwrap();
        read(&all[..values / 6]).unwrap();
        assert_eq!(read(&all[..values / 6 + 1]).unwrap_err().message, more.message);
    }
}
