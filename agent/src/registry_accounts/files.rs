//! Accounts in files. Source: `pkg/credentialprovider/config.go`.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    config::RegistryAccounts,
    objects::{Credential, Keyring},
    one_thread::{OneThread, Unanswered},
};

/// Largest file that is read.
const BYTES_MAX: u64 = 1 << 20;
/// How long the disk may take. A pull without an account may work too.
const WITHIN: Duration = Duration::from_secs(10);

/// The files in which they may be, those that count more first; and whether accounts are within `auths`.
#[derive(Debug, Default)]
pub(super) struct Files {
    paths: Vec<(PathBuf, bool)>,
    reader: OneThread,
}

impl Files {
    pub(super) fn of(settings: &RegistryAccounts) -> Self {
        let json = settings.json_dirs.iter().map(|dir| (dir.join("config.json"), true));
        let plain = settings.plain_dirs.iter().map(|dir| (dir.join(".dockercfg"), false));
        Self { paths: json.chain(plain).collect(), reader: OneThread::default() }
    }

    pub(super) async fn find(&self, repository: &str) -> Vec<Credential> {
        let paths = self.paths.clone();
        match self.reader.run(WITHIN, move || keyring(&paths)).await {
            Ok(keyring) => keyring.lookup(repository),
            Err(Unanswered) => {
                tracing::warn!("the node's accounts at registries cannot be read in time");
                Vec::new()
            }
        }
    }
}

/// The first file that can be used.
fn keyring(files: &[(PathBuf, bool)]) -> Keyring {
    for (path, is_wrapped) in files {
        let mut keyring = Keyring::default();
        if let Some(bytes) = bytes(path)
            && keyring.add_config(&bytes, *is_wrapped)
        {
            return keyring;
        }
    }
    Keyring::default()
}

fn bytes(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= BYTES_MAX).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_file_that_can_be_used_counts() {
        let root = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| root.path().join(name));
        fs::create_dir_all(&first).unwrap();
        fs::create_dir_all(&second).unwrap();
        let dirs = vec![first.clone(), second.clone()];
        let settings = RegistryAccounts { json_dirs: dirs.clone(), plain_dirs: dirs, providers: Vec::new() };
        let files = Files::of(&settings);
        let user = async || {
            let found = files.find("registry.example/app").await;
            found.first().map(|one| one.username.as_str().to_owned())
        };
        let account =
            |name: &str| format!(r#"{{"registry.example":{{"username":"{name}","password":"p"}}}}"#);
        assert_eq!(user().await, None);
        // From the least to the most.
        fs::write(second.join(".dockercfg"), account("old-2")).unwrap();
        assert_eq!(user().await.as_deref(), Some("old-2"));
        fs::write(first.join(".dockercfg"), account("old-1")).unwrap();
        assert_eq!(user().await.as_deref(), Some("old-1"));
        fs::write(second.join("config.json"), format!(r#"{{"auths":{}}}"#, account("new-2"))).unwrap();
        assert_eq!(user().await.as_deref(), Some("new-2"));
        fs::write(first.join("config.json"), "{").unwrap();
        assert_eq!(user().await.as_deref(), Some("new-2"));
        fs::write(first.join("config.json"), format!(r#"{{"auths":{}}}"#, account("new-1"))).unwrap();
        assert_eq!(user().await.as_deref(), Some("new-1"));
    }
}
